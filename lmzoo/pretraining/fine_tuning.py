"""Default fine-tuning recipes of newly pre-trained models, by size."""

from __future__ import annotations

from lmzoo.pretraining.recipe import PAIRED
from lmzoo.registry.family import get_family
from lmzoo.registry.head_kinds import tasks
from lmzoo.tasks import Task
from lmzoo.training import FineTuningRecipe

_POOLED_HEADS = ("classification", "regression", "multiple_choice")
_OTHER_HEADS = ("token_classification", "question_answering", "embedding", "masked_lm", "causal_lm")
_WIDE_DIM = 512  # from this width on, epochs and pooling are as in Devlin et al.


def choose_recipes_by_size(task: Task) -> dict[str, FineTuningRecipe]:
    """Return fine-tuning recipes by kind of head, for the tasks that the family or the family of its encoders supports.

    The peak learning rate is a power of the width: 1e-3 at a width of 128, from a search for the shipped presets, and
    5e-5 at a width of 768 (Devlin et al., 2019); it is multiplied by the family's `learning_rate_factor`. Classifiers
    use the mean over tokens, which was better in the search. Models of width 512 or more use the first token instead if
    an objective has trained its vector, or the last token if they are causal. Heads without a recipe by size have the
    family's own recipe (`usual_recipes`), if there is one.

    Args:
        task: the pre-trained model.
    """
    width = task.backbone.config.hidden_dim
    backbone_class = task.family.backbone
    reader_class = backbone_class.encoder_class or backbone_class  # the backbone of tasks that only read texts
    objective = getattr(task, "objective", None)
    is_narrow = width < _WIDE_DIM
    learning_rate = float(f"{5e-5 * (768 / width) ** (5 / 3):.1g}") * reader_class.learning_rate_factor
    epochs = 6 if is_narrow else 3
    has_trained_vector = objective in PAIRED or backbone_class.causal
    pooling = "first" if has_trained_vector and not is_narrow else "mean"
    recipe = FineTuningRecipe(learning_rate, epochs)
    pooled_recipe = FineTuningRecipe(learning_rate, epochs, pooling=pooling)
    recipes = {
        **backbone_class.usual_recipes,
        **dict.fromkeys(_OTHER_HEADS, recipe),
        **dict.fromkeys(_POOLED_HEADS, pooled_recipe),
    }
    families = (task.family, get_family(reader_class))
    return {kind: recipe for kind, recipe in recipes.items() if any(map(tasks()[kind].supports, families))}
