"""The layers that a layer or a model consists of."""

from __future__ import annotations

from collections.abc import Iterator

import keras


def sublayers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """All layers below `layer`, parents first."""
    if isinstance(layer, keras.Model):
        inside = layer.layers
    else:  # Keras keeps lists of its own, whose names begin with "_".
        values = [value for name, value in vars(layer).items() if not name.startswith("_")]
        inside = [child for value in values for child in (value if isinstance(value, list) else [value])]
    for child in inside:
        if isinstance(child, keras.layers.Layer):
            yield child
            yield from sublayers(child)
