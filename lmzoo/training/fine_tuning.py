"""Recipes for fine-tuning: the settings that a backbone recommends for each kind of head."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FineTuningRecipe:
    """How a backbone is fine-tuned with one kind of head.

    Attributes:
        learning_rate: float, the peak.
        epochs: int, passes over the examples, if there are a few thousand.
        batch_size: int, examples of a batch.
        pooling: input of the head, as the task's constructor takes it; None for the constructor's default.

    Raises:
        ValueError: naming a field that is not a number as described, or not text.

    Example:

    ```python
    import lmzoo

    classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
    classifier.recipe.learning_rate  # what `compile` takes by default
    classifier.fit(["Fine.", "Dull."], [1, 0], epochs=classifier.recipe.epochs, batch_size=classifier.recipe.batch_size)
    ```
    """

    learning_rate: float
    epochs: int = 3
    batch_size: int = 32
    pooling: str | None = None

    def __post_init__(self) -> None:
        rate = self.learning_rate
        if not isinstance(rate, numbers.Real) or isinstance(rate, bool) or not 0 <= rate < math.inf:
            raise ValueError(f"`learning_rate` of a recipe must be a number of at least 0, got {rate!r:.60}.")
        for name in ("epochs", "batch_size"):
            count = getattr(self, name)
            if not isinstance(count, numbers.Integral) or isinstance(count, bool) or count < 1:
                raise ValueError(f"`{name}` of a recipe must be an integer of at least 1, got {count!r:.60}.")
        if not isinstance(self.pooling, str | None):
            raise ValueError(f"`pooling` of a recipe must be text or None, got {self.pooling!r:.60}.")


# By kind of head. Files hold the fields of a recipe that are not None as a dict.
StoredRecipes = Mapping[str, FineTuningRecipe | Mapping[str, Any]]


def read_recipes(stored: StoredRecipes | None) -> dict[str, FineTuningRecipe]:
    """Return recipes by kind of head, from recipes or from what `stored_recipes` returned.

    Raises:
        ValueError: for anything else; for a field that recipes do not have.
    """
    if stored is not None and not isinstance(stored, Mapping):
        raise ValueError(f"`fine_tuning` must be a dict from kinds of heads to recipes, got {stored!r:.60}.")
    return {head: _read(head, recipe) for head, recipe in (stored or {}).items()}


def _read(head: str, recipe: object) -> FineTuningRecipe:
    if isinstance(recipe, FineTuningRecipe):
        return recipe
    known = [field.name for field in dataclasses.fields(FineTuningRecipe)]
    if not isinstance(recipe, Mapping) or "learning_rate" not in recipe or (recipe.keys() - set(known)):
        raise ValueError(
            f"The recipe for {head!r} in `fine_tuning` must be a dict with `learning_rate` and at most "
            f"{', '.join(known)}, got {recipe!r:.120}."
        )
    return FineTuningRecipe(**recipe)


def stored_recipes(recipes: Mapping[str, FineTuningRecipe]) -> dict[str, dict[str, Any]]:
    """Return recipes as a dict of dicts, for JSON."""
    return {
        head: {name: value for name, value in dataclasses.asdict(recipe).items() if value is not None}
        for head, recipe in recipes.items()
    }


def usual_recipe(hidden_dim: int) -> FineTuningRecipe:
    """Return the recipe where a backbone has none: Devlin et al. (2019), with a higher rate for narrower models.

    Args:
        hidden_dim: int, width of the backbone.
    """
    return FineTuningRecipe(5e-5 * 768 / hidden_dim)
