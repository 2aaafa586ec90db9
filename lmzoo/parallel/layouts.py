"""Layouts of weights on several devices, for `keras.distribution.ModelParallel`."""

from __future__ import annotations

import re

import keras

SPLIT = "split"  # an axis of a weight that is split between devices, in the layouts of a family's record


def layout_map(
    model: keras.Model, device_mesh: keras.distribution.DeviceMesh, axis: str = "model"
) -> keras.distribution.LayoutMap:
    """Say which weights of a model are split between devices, and along which axis.

    Embeddings are split over the vocabulary; query, key, value and the first dense layer of a block over their columns;
    its output and its second dense layer over their rows; LSTMs over their cells (Shoeybi et al., 2019,
    https://arxiv.org/abs/1909.08053). A weight that the devices cannot split evenly is on every device. The state
    of the optimizer is split like the weights.

    JAX alone computes with them: see `keras.distribution`.

    Args:
        model: a backbone or a task of the same configuration as the model to train, which is built once the
            distribution is set: weights are split as they are made. Of a task, the head's vocabulary is split, too.
        device_mesh: the devices.
        axis: the mesh's axis that weights are split along.

    Raises:
        ValueError: if the mesh has no such axis.

    Example:

    ```python
    import keras
    import lmzoo
    from lmzoo.parallel import layout_map

    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((1, len(devices)), ("batch", "model"), devices)
    backbone = lmzoo.models.Backbone.from_preset("bert_nano_en_uncased", load_weights=False)
    parallel = keras.distribution.ModelParallel(layout_map=layout_map(backbone, mesh), batch_dim_name="batch")
    if keras.backend.backend() == "jax":
        keras.distribution.set_distribution(parallel)  # before the model to train is built
    ```
    """
    sizes = dict(zip(device_mesh.axis_names, device_mesh.shape, strict=True))
    if axis not in sizes:
        raise ValueError(f"The mesh has the axes {', '.join(sizes)}: pass one of them as `axis`, not {axis!r}.")
    layouts = keras.distribution.LayoutMap(device_mesh)
    for pattern, axes in getattr(model, "backbone", model).layouts.items():
        split = axes.index(SPLIT)
        lengths = [weight.shape[split] for weight in model.weights if re.fullmatch(pattern, weight.path)]
        if lengths and not any(length % sizes[axis] for length in lengths):
            layouts[pattern] = tuple(axis if kind == SPLIT else None for kind in axes)
    return layouts
