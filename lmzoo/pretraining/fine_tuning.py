"""The fine-tuning recipes of a newly pre-trained model, by its size."""

from __future__ import annotations

from lmzoo.tasks import (
    MaskedLM,
    MultipleChoice,
    QuestionAnswerer,
    Task,
    TextClassifier,
    TextEmbedder,
    TextRegressor,
    TokenClassifier,
)
from lmzoo.training import FineTuningRecipe

_POOLED = (TextClassifier, TextRegressor, MultipleChoice)
_OTHERS = (TokenClassifier, QuestionAnswerer, TextEmbedder, MaskedLM)
_NARROW = 512  # a width from which 3 epochs are enough


def recipes_by_size(task: Task) -> dict[str, FineTuningRecipe]:
    """Recipes by kind of head, for the tasks that the family supports.

    The peak rate is the search's for the shipped presets at a width of 128, 1e-3, and that of Devlin et al. (2019) at a
    width of 768, 5e-5; between and beyond them it is a power of the width. Where a loss has trained the first token's
    vector, classifiers read it, otherwise the mean.

    Args:
        task: the pre-trained model.
    """
    width, objective = task.backbone.config.hidden_dim, getattr(task, "objective", None)
    rate = float(f"{5e-5 * (768 / width) ** (5 / 3):.1g}")
    epochs = 3 if width >= _NARROW else 6
    pooling = "first" if objective else "mean"
    recipe = FineTuningRecipe(rate, epochs)
    recipes = {cls.head_kind: recipe for cls in _OTHERS if cls.supports(task.family)}
    pooled = FineTuningRecipe(rate, epochs, pooling=pooling)
    return recipes | {cls.head_kind: pooled for cls in _POOLED if cls.supports(task.family)}
