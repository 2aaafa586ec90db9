"""Checks of a model's inputs."""

from __future__ import annotations

import keras
import numpy as np

from lmzoo.common.tensor_types import Tensor, Tensors


def get_concrete_values(x: Tensor) -> np.ndarray | None:
    """Return the values of `x` as an array, or None for a symbolic or traced tensor, which has no values yet."""
    if isinstance(x, keras.KerasTensor):
        return None
    if keras.backend.backend() == "jax":
        import jax

        if isinstance(x, jax.core.Tracer):
            return None
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if tf.is_tensor(x) and not hasattr(x, "numpy"):
            return None
    elif getattr(x, "is_meta", False):  # on torch, Keras infers shapes from tensors without values
        return None
    return keras.ops.convert_to_numpy(x)


def check_ids(name: str, ids: Tensor, size: int, rank: int) -> None:
    """Check that the ids of an input are between 0 and `size` - 1 and have at least `rank` axes.

    While a graph is built, only the type is checked.

    Raises:
        TypeError: If `ids` is neither an array nor a tensor.
        ValueError: If `ids` has too few axes, or if an id is out of range; the message gives the id and its position.
    """
    if not hasattr(ids, "shape"):
        raise TypeError(f"`{name}` must be an array or a tensor, got {type(ids).__name__}.")
    values = get_concrete_values(ids)
    if values is None:
        return
    if values.ndim < rank:
        raise ValueError(f"`{name}` must have {rank} axes, got the shape {values.shape}.")
    # Minimum and maximum first: comparing all values takes as much memory as `ids`, which may be a whole dataset.
    if values.size and not 0 <= values.min() <= values.max() < size:
        index = tuple(np.argwhere(~((values >= 0) & (values < size)))[0])
        raise ValueError(
            f"`{name}` must be in 0..{size - 1}, got {values[index]} in sequence {index[0]} at position {index[1]}."
        )


def check_structure(name: str, value: Tensors, spec: Tensors) -> None:
    """Check that nested tensors have the structure and shapes of `spec`, nested dicts and tuples of `KerasTensor`s.

    A size of None fits any size.

    Raises:
        ValueError: If the structures or shapes differ; the message shows the shapes of both.
    """
    try:
        keras.tree.assert_same_structure(keras.tree.lists_to_tuples(value), spec)
        size_pairs = zip(keras.tree.flatten(_get_shapes(value)), keras.tree.flatten(_get_shapes(spec)), strict=True)
        matches = all(None in sizes or sizes[0] == sizes[1] for sizes in size_pairs)
    except (TypeError, ValueError):
        matches = False
    if not matches:
        raise ValueError(f"`{name}` must have the shapes {_get_shapes(spec)}, got {_get_shapes(value)}.")


def _get_shapes(tensors: Tensors) -> Tensors:
    return keras.tree.map_structure(lambda x: tuple(getattr(x, "shape", ())), tensors)
