"""The recipe of `lmzoo fit`: what the preset recommends, unless options say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmzoo_cli.output import say

if TYPE_CHECKING:
    from lmzoo.tasks import Task
    from lmzoo.training import FineTuningRecipe


def choose_recipe(task: Task, preset: str, options: Mapping[str, Any]) -> FineTuningRecipe:
    """The recipe of a task with what options set, which is printed to the standard error.

    Args:
        task: as it was built from the preset.
        preset: what the task was built from.
        options: fields of the recipe, None where the user left an option out.
    """
    given = {name: value for name, value in options.items() if value is not None}
    recipe = replace(task.recipe, **{"pooling": getattr(task, "pooling", None), **given})
    settings = [
        f"peak learning rate {recipe.learning_rate:g}",
        f"{recipe.epochs} epoch{'s' * (recipe.epochs > 1)}",
        f"batches of {recipe.batch_size}",
        *([f"pooling {recipe.pooling}"] if recipe.pooling else []),
    ]
    source = f"recipe of {preset}" if task.head_kind in task.backbone.fine_tuning else "usual recipe"
    own = f"; set by options: {', '.join(name.replace('_', ' ') for name in given)}" if given else ""
    line = f"{source}: {', '.join(settings)}{own}"
    say(line)
    return recipe
