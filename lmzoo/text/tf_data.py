"""Use of tokenizers and preprocessors in `tf.data` functions, where texts are symbolic tensors, without values.

Tokenizers and preprocessors run in Python there, with the same results. A function that calls them cannot be saved in a
SavedModel: `task.export` writes tokenizers as TensorFlow ops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lmzoo.text.validate_text import TextWarningFilter

if TYPE_CHECKING:
    import tensorflow as tf


def is_symbolic(x: object) -> bool:
    """Return whether `x` is a TensorFlow tensor without values, as in `tf.data` functions."""
    if not type(x).__module__.startswith("tensorflow."):
        return False
    import tensorflow as tf

    return tf.is_symbolic_tensor(x)


def features_in_graph(
    pad: Callable[..., dict[str, np.ndarray]], texts: Sequence[Any], sequence_length: int
) -> dict[str, tf.Tensor]:
    """Compute features of texts inside a `tf.data` function.

    Args:
        pad: callable that takes one or two columns of n texts and the padded `length`, None for the length of the
            longest sequence, and returns a dict of arrays (n, t, ...).
        texts: one or two `tf.string` tensors, each a column of n texts (n,) or a single text ().
        sequence_length: int, padded length of a single text or pair, since only tensors of equal shapes can be batched.

    Returns:
        Dict of tensors (n, t, ...), or (sequence_length, ...) for a single text or pair.

    Raises:
        ValueError: If there are more than two tensors, or their shapes are neither all (n,) nor all ().
    """
    import tensorflow as tf

    columns, is_single = _to_columns(texts)
    length = sequence_length if is_single else None
    sample = tf.autograph.experimental.do_not_convert(pad)(*([""] for _ in columns))
    tensors = _run(
        lambda *texts: list(pad(*texts, length=length).values()),
        columns,
        [sample_array.dtype for sample_array in sample.values()],
    )
    features = {}
    for (name, sample_array), tensor in zip(sample.items(), tensors, strict=True):
        tensor = tf.ensure_shape(tensor, [None, length, *sample_array.shape[2:]])
        features[name] = tensor[0] if is_single else tensor
    return features


def ids_in_graph(
    tokenize: Callable[[Any], list[list[Any]]], as_array: Callable[[Iterable[Any], int], np.ndarray], texts: Any
) -> tf.Tensor | tf.RaggedTensor:
    """Tokenize texts inside a `tf.data` function.

    Args:
        tokenize: callable, `Tokenizer.tokenize`.
        as_array: callable, `Tokenizer.as_array`.
        texts: `tf.string` tensor, n texts (n,) or a single text ().

    Returns:
        The token ids, int32: ragged (n, None), or (t,) for a single text. If tokens are arrays, there is one more axis.

    Raises:
        ValueError: If `texts` has another shape.
    """
    import tensorflow as tf

    def compute(texts: np.ndarray) -> list[np.ndarray]:
        rows = tokenize(texts)
        lengths = np.array([len(row) for row in rows], "int64")
        return [as_array(itertools.chain.from_iterable(rows), int(lengths.sum())), lengths]

    columns, is_single = _to_columns([texts])
    sample = tf.autograph.experimental.do_not_convert(as_array)([], 0)
    ids, lengths = _run(compute, columns, [sample.dtype, np.dtype("int64")])
    ids = tf.ensure_shape(ids, [None, *sample.shape[1:]])
    return ids if is_single else tf.RaggedTensor.from_row_lengths(ids, tf.ensure_shape(lengths, [None]))


def _to_columns(texts: Sequence[Any]) -> tuple[list[tf.Tensor], bool]:
    """Return texts as `tf.string` columns (n,), and whether each of `texts` is a single text.

    Raises:
        ValueError: If there are more than two tensors, or their shapes are neither all (n,) nor all ().
    """
    import tensorflow as tf

    tensors = [tf.convert_to_tensor(text) for text in texts]
    ranks = {tensor.shape.rank for tensor in tensors}
    if len(tensors) > 2 or ranks not in ({0}, {1}):
        shapes = ", ".join(str(tensor.shape) for tensor in tensors)
        raise ValueError(
            f"In `tf.data`, pass texts of shape () or (n,), or a tuple of two such tensors; got {shapes}. `fit` also "
            "takes datasets of texts that are split into words."
        )
    return [tf.reshape(tensor, [-1]) for tensor in tensors], ranks == {0}


def _run(
    function: Callable[..., list[np.ndarray]], columns: Sequence[tf.Tensor], dtypes: Sequence[np.dtype[Any]]
) -> list[tf.Tensor]:
    """Run a function of arrays on symbolic tensors, with one text warning for each reason in all calls."""
    import tensorflow as tf

    warning_filter = TextWarningFilter()

    def compute(*arrays: np.ndarray) -> list[np.ndarray]:
        with warning_filter.once_per_reason():
            return function(*arrays)

    return tf.numpy_function(compute, columns, list(dtypes))
