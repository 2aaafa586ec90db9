"""Type aliases for the data that users pass to tasks, encoded examples, and options for batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import keras
import numpy as np
from numpy.typing import ArrayLike

from lmzoo.common.tensor_types import Tensor
from lmzoo.text import Encoded
from lmzoo.text.validate_text import Text

if TYPE_CHECKING:
    import tensorflow as tf

# Examples in a list, an array or a column of a table: texts, pairs (also a tuple of two lists), prompts with their
# choices, documents; or the output of `encode_inputs`.
Texts: TypeAlias = Iterable[Text | Sequence[Text]] | tuple[Iterable[Text], Iterable[Text]] | Encoded
# Also datasets of strings, token features, and any other source of batches that Keras accepts.
Inputs: TypeAlias = "Texts | tf.data.Dataset | Mapping[str, Tensor] | keras.utils.PyDataset"
# A label for each example: a number, a name, a collection of numbers or names, spans, or an answer. With token
# features, also a dict from outputs to labels.
Labels: TypeAlias = Collection[Any] | Mapping[str, Any]
# Weights of examples, or a list of word weights for each text; with token features, also weights of tokens.
Weights: TypeAlias = ArrayLike | Sequence[ArrayLike] | Mapping[str, ArrayLike]
# `(x, y, sample_weight)`, in the forms that users pass or in the forms that Keras takes.
TrainingData: TypeAlias = tuple[Any, Any, Any]

# The kind of `lmzoo.text.Encoded` that a task's `encode_inputs` returns.
EncodedInputs: TypeAlias = Any
# A model's inputs by name, in numpy.
FeatureArrays: TypeAlias = dict[str, np.ndarray]
# `(features,)`, `(features, y)` or `(features, y, sample_weight)`; `y` and `sample_weight` are dicts if there are
# several outputs.
Batch: TypeAlias = tuple[FeatureArrays, *tuple[np.ndarray | FeatureArrays, ...]]


BATCH_SIZE = 32


class Examples(NamedTuple):
    """Encoded examples with their labels and weights.

    Attributes:
        encoded: n encoded examples.
        labels: n labels in the form that the task's `encode_labels` returns, or None.
        weights: weights of the examples, float (n,); an array of token weights for each example; or None.
    """

    encoded: EncodedInputs
    labels: Any = None
    weights: np.ndarray | None = None

    def split(self, share: float) -> tuple[Examples, Examples]:
        """Hold out the last fraction `share` of the examples, and return `(training, validation)`.

        Raises:
            ValueError: If one of the sets would be empty.
        """
        encoded: Encoded = self.encoded
        cut = find_first_held_out(len(encoded), share, encoded.cut_before)
        training, validation = (
            Examples(encoded[example_slice], *(array if array is None else array[example_slice] for array in self[1:]))
            for example_slice in (slice(cut), slice(cut, None))
        )
        return training, validation


def find_first_held_out(count: int, share: float, cut_before: Callable[[int], int] = int) -> int:
    """Return the index of the first held-out example if the last fraction `share` is held out, as in Keras.

    Args:
        count: int, number of examples.
        share: float, fraction to hold out.
        cut_before: function from an index to the nearest index, at or before it, at which the examples may be split.

    Raises:
        ValueError: If no example would remain for training or for validation.
    """
    cut = int(count * (1 - share))
    cut = cut_before(cut) if 0 < cut < count else cut
    if not 0 < cut < count:
        raise ValueError(f"`validation_split={share}` leaves no examples for training or validation of {count}.")
    return cut


@dataclass(frozen=True)
class BatchOptions:
    """Batching options for `fit` and `evaluate`.

    Attributes:
        batch_size: int, examples per batch; None for the task's default.
        order: order of the examples: `"shuffle"`, `"sorted"` by length, or `"given"`; see `lmzoo.text.LengthBatches`.
        seed: ints that together seed shuffling and all other random choices.
        training: whether the batches are for training.
        steps: int, batches per epoch; None for all.
        verbose: whether progress is shown.
        buckets: padded lengths in increasing order; None to choose them from the lengths of the examples.
        class_weight: dict from class numbers to weights; None for equal weights.
    """

    batch_size: int | None = None
    order: str = "sorted"
    seed: tuple[int, ...] = (0,)
    training: bool = False
    steps: int | None = None
    verbose: bool = True
    buckets: list[int] | None = None
    class_weight: Mapping[int, float] | None = None


def as_array(values: Any) -> np.ndarray | None:
    """Convert `values` to a numpy array; None stays None."""
    return None if values is None else np.asarray(values)


def as_example_weights(values: Any) -> np.ndarray | None:
    """Check the weights of n examples, and return them as a numpy array (n,); None stays None.

    Weights of shape (n, 1) are flattened.

    Raises:
        TypeError: See `as_weights`.
        ValueError: If the weights have another shape; see also `as_weights`.
    """
    weights = as_weights(values)
    if weights is not None and weights.ndim == 2 and weights.shape[1] == 1:
        weights = weights[:, 0]
    if weights is not None and weights.ndim != 1:
        raise ValueError(f"`sample_weight` must hold one weight for each example, got the shape {weights.shape}.")
    return weights


def as_weights(values: Any) -> np.ndarray | None:
    """Check the weights of examples or tokens, and return them as a numpy array; None stays None.

    Raises:
        TypeError: If the weights are not numbers.
        ValueError: If lists differ in length, or if a weight is NaN, infinite or negative, which would ruin the model;
            the message names the position of the weight.
    """
    if values is None:
        return None
    try:
        weights = np.asarray(values)
    except ValueError:  # lists of different lengths
        raise ValueError(f"`sample_weight` must be numbers, got lists of different lengths: {values!r:.60}.") from None
    if weights.dtype.kind not in "fiub":
        raise TypeError(f"`sample_weight` must be numbers, got an array of {weights.dtype}.")
    weights = weights.astype("float32") if weights.dtype.kind == "b" else weights
    invalid_indices = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(invalid_indices):
        position = tuple(map(int, np.unravel_index(invalid_indices[0], weights.shape)))
        raise ValueError(
            f"`sample_weight` is {weights[position]} at position {', '.join(map(str, position))}: weights must be "
            "finite and at least 0. To leave an example out, weigh it with 0."
        )
    return weights
