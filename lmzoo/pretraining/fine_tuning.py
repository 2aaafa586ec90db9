"""The fine-tuning recipes of a newly pre-trained model, by its size."""

from __future__ import annotations

from lmzoo.pretraining.recipe import PAIRED
from lmzoo.registry.head_kinds import tasks
from lmzoo.tasks import Task
from lmzoo.training import FineTuningRecipe

_POOLED = ("classification", "regression", "multiple_choice")
_OTHERS = ("token_classification", "question_answering", "embedding", "masked_lm", "causal_lm")
_NARROW = 512  # below this width models are trained like the shipped presets, from it on as usual


def recipes_by_size(task: Task) -> dict[str, FineTuningRecipe]:
    """Return recipes by kind of head, for the tasks that the family supports.

    The peak rate is the search's for the shipped presets at a width of 128, 1e-3, and that of Devlin et al. (2019) at a
    width of 768, 5e-5; between and beyond them it is a power of the width. Classifiers read the mean over the tokens,
    which was better in that search; in wider models the first token's vector, if an objective has trained it, and in
    causal ones the last token's.

    Args:
        task: the pre-trained model.
    """
    width, objective = task.backbone.config.hidden_dim, getattr(task, "objective", None)
    narrow = width < _NARROW
    rate = float(f"{5e-5 * (768 / width) ** (5 / 3):.1g}")
    epochs = 6 if narrow else 3
    trained = objective in PAIRED or task.family.backbone.causal
    pooling = "first" if trained and not narrow else "mean"
    recipe = FineTuningRecipe(rate, epochs)
    pooled = FineTuningRecipe(rate, epochs, pooling=pooling)
    recipes = {**dict.fromkeys(_OTHERS, recipe), **dict.fromkeys(_POOLED, pooled)}
    return {kind: recipe for kind, recipe in recipes.items() if tasks()[kind].supports(task.family)}
