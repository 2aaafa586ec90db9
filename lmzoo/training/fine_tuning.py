"""Fine-tuning recipes: the hyperparameters that a backbone recommends for each kind of head."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FineTuningRecipe:
    """Hyperparameters for fine-tuning a backbone with one kind of head.

    Attributes:
        learning_rate: float, the peak learning rate.
        epochs: int, number of passes over the training data, chosen for a few thousand examples.
        batch_size: int, number of examples in a batch.
        pooling: str, argument `pooling` of the task's constructor; None for its default.

    Raises:
        ValueError: If a field has a wrong type or is out of range; the message names the field.

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


# Recipes by kind of head. Files hold each recipe as a dict of its fields that are not None.
StoredRecipes = Mapping[str, FineTuningRecipe | Mapping[str, Any]]


def read_recipes(stored: StoredRecipes | None) -> dict[str, FineTuningRecipe]:
    """Return recipes by kind of head, given recipes or the dicts that `recipes_to_json` returns.

    Raises:
        ValueError: If `stored` is not a dict of recipes, or a recipe lacks `learning_rate`, has an unknown field or an
            invalid value.
    """
    if stored is not None and not isinstance(stored, Mapping):
        raise ValueError(f"`fine_tuning` must be a dict from kinds of heads to recipes, got {stored!r:.60}.")
    return {head: _read_recipe(head, recipe) for head, recipe in (stored or {}).items()}


def _read_recipe(head: str, recipe: object) -> FineTuningRecipe:
    if isinstance(recipe, FineTuningRecipe):
        return recipe
    field_names = [field.name for field in dataclasses.fields(FineTuningRecipe)]
    if not isinstance(recipe, Mapping) or "learning_rate" not in recipe or (recipe.keys() - set(field_names)):
        raise ValueError(
            f"The recipe for {head!r} in `fine_tuning` must be a dict with `learning_rate` and at most "
            f"{', '.join(field_names)}, got {recipe!r:.120}."
        )
    return FineTuningRecipe(**recipe)


def recipes_to_json(recipes: Mapping[str, FineTuningRecipe]) -> dict[str, dict[str, Any]]:
    """Return recipes as a dict of dicts, which can be written as JSON."""
    return {
        head: {name: value for name, value in dataclasses.asdict(recipe).items() if value is not None}
        for head, recipe in recipes.items()
    }


def make_default_recipe(hidden_dim: int, factor: float = 1.0) -> FineTuningRecipe:
    """Return the default recipe for backbones that recommend none, scaled to their width.

    The peak learning rate is 5e-5 at a width of 768, as in Devlin et al. (2019), and inversely proportional to the
    width.

    Args:
        hidden_dim: int, width of the backbone.
        factor: float, the backbone's `learning_rate_factor`.
    """
    return FineTuningRecipe(factor * 5e-5 * 768 / hidden_dim)
