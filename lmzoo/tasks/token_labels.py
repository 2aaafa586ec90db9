"""Labels of tokens: checks of the labels of language models, and weights of tokens in losses and metrics.

Letters in shapes: B sequences, T tokens or masks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Tensor
from lmzoo.tasks.base.examples import Labels
from lmzoo.tasks.base.labels import as_labels
from lmzoo.tasks.base.task import Task
from lmzoo.training.span_metrics import IGNORED


class TokenLabelsTask(Task):
    """Base class of tasks that learn a label for each token, by default the id of a token in the model's vocabulary.

    Whatever the source of the batches, the weight of a sequence is the weight of each of its tokens, and tokens with
    the label -100 have the weight 0.
    """

    labels_tokens = True

    def encode_labels(self, y: Labels | None) -> np.ndarray | None:
        """Check the labels of token features, and return them as an array (n, T); None stays None.

        Raises:
            TypeError: See `encode_token_ids`.
            ValueError: See `encode_token_ids`.
        """
        return None if y is None else encode_token_ids(y, self.output.shape[-1])

    def replace_ignored(self, y: Tensor) -> Tensor:
        """Return labels for the loss, in which -100 is replaced by a label that the model has."""
        return replace_ignored(y)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Tensor | None:
        """Compute the loss with a weight for each token; see `keras.Model.compute_loss`."""
        sample_weight = weigh_tokens(y, sample_weight)
        return super().compute_loss(x, self.replace_ignored(y), y_pred, sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Compute the metrics with a weight for each token; see `keras.Model.compute_metrics`."""
        return super().compute_metrics(x, y, y_pred, weigh_tokens(y, sample_weight))


def encode_token_ids(y: Labels, vocabulary_size: int) -> np.ndarray:
    """Check that labels are token ids, or -100 where a token does not count, and return them as an array (n, T).

    Raises:
        TypeError: If `y` is not a list or an array.
        ValueError: If labels are not int (n, T), or if the vocabulary lacks an id (the message names the first).
    """
    ids = as_labels(y, "a token id for each token")
    if ids.ndim != 2 or ids.dtype.kind not in "iu":
        raise ValueError(f"Expected labels of tokens, int (n, T), got {ids.dtype} {ids.shape}.")
    invalid_ids = ids[(ids != IGNORED) & ((ids < 0) | (ids >= vocabulary_size))]
    if len(invalid_ids):
        raise ValueError(
            f"Label {invalid_ids[0]} is outside [0, {vocabulary_size}), the token ids of this model. Use {IGNORED} for "
            "tokens that do not count."
        )
    return ids


def weigh_tokens(y: Any, sample_weight: Any) -> Any:
    """Return the weights of tokens, float32 (B, T), 0 for tokens with the label -100.

    Args:
        y: int (B, T), labels. With labels of any other shape, or None, `sample_weight` is returned unchanged.
        sample_weight: weights of the sequences, (B,) or (B, 1), or of the tokens, (B, T); None for equal weights.
    """
    if y is None or len(y.shape) != 2:
        return sample_weight
    is_counted = ops.cast(ops.cast(y, "int32") != IGNORED, "float32")  # (B, T)
    if sample_weight is None:
        return is_counted
    weights = ops.cast(sample_weight, "float32")
    return is_counted * (weights if len(weights.shape) == 2 else weights[:, None])


def replace_ignored(y: Any) -> Any:
    """Return labels in which -100 is replaced by 0; None stays None."""
    return None if y is None else ops.maximum(y, 0)
