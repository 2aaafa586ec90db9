"""Layouts of weights on several devices, for `keras.distribution.ModelParallel`."""

from __future__ import annotations

import re

import keras

SPLIT = "split"  # in the layouts of a family's record: marks the axis of a weight that is split between devices


def layout_map(
    model: keras.Model, device_mesh: keras.distribution.DeviceMesh, axis: str = "model"
) -> keras.distribution.LayoutMap:
    """Return the layout map that splits the weights of a model between devices.

    As in Megatron-LM (Shoeybi et al., 2019, https://arxiv.org/abs/1909.08053), embeddings are split along the
    vocabulary; the kernels of query, key, value and the first dense layer of a block along their columns; and the
    kernels of the attention output and the second dense layer along their rows. LSTMs are split along their cells. If
    a weight cannot be split evenly, all weights of its kind are copied to every device. The optimizer's state is split
    like the weights.

    Only the JAX backend supports such layouts; see `keras.distribution`.

    Args:
        model: a backbone or task with the configuration of the model to train. Build the model to train after setting
            the distribution, since weights are split when they are created. For a task, head weights with a vocabulary
            axis are split as well.
        device_mesh: `keras.distribution.DeviceMesh` of the devices.
        axis: str, name of the axis of `device_mesh` along which weights are split.

    Raises:
        ValueError: If `device_mesh` has no axis named `axis`.

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
    axis_sizes = dict(zip(device_mesh.axis_names, device_mesh.shape, strict=True))
    if axis not in axis_sizes:
        raise ValueError(f"The mesh has the axes {', '.join(axis_sizes)}: pass one of them as `axis`, not {axis!r}.")
    layouts = keras.distribution.LayoutMap(device_mesh)
    for pattern, axis_kinds in getattr(model, "backbone", model).layouts.items():
        split_axis = axis_kinds.index(SPLIT)
        axis_lengths = [weight.shape[split_axis] for weight in model.weights if re.fullmatch(pattern, weight.path)]
        if axis_lengths and not any(length % axis_sizes[axis] for length in axis_lengths):
            layouts[pattern] = tuple(axis if kind == SPLIT else None for kind in axis_kinds)
    return layouts
