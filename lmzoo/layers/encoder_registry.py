"""Registry of encoders: layers between the backbone and the head of a task, selected by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypeVar

import keras

# The output of an encoder: a vector for each token, a vector for each pair of texts, or the logits of answers.
Returns: TypeAlias = Literal["tokens", "pairs", "answers"]
Layer = TypeVar("Layer", bound=type[keras.layers.Layer])

_ENCODERS: dict[str, tuple[Returns, type[keras.layers.Layer]]] = {}


def register_encoder(name: str, returns: Returns) -> Callable[[Layer], Layer]:
    """Return a class decorator that adds a layer to the registry of encoders.

    The layer's constructor takes the number of units (in LSTMs, of each direction), and `dropout`, `dtype` and `name`.
    Its `call` takes the backbone's vectors (B, T, H), token ids (B, T) or ELMo's character ids (B, T, W), and the
    padding mask (B, T); for `"pairs"` and `"answers"`, also segment ids (B, T).

    Args:
        name: name of the encoder, which tasks take as their argument `encoder`.
        returns: `"tokens"` for a vector of each token, (B, T, D), `"pairs"` for a vector of each pair of texts, (B, D),
            or `"answers"` for logits of the start and end of an answer, (B, T, 2). The width D is free.

    Raises:
        ValueError: If another layer is registered under `name`.

    Example:

    ```python
    import keras
    from lmzoo.layers.encoder_registry import register_encoder

    @register_encoder("squashed", returns="tokens")
    class Squashed(keras.layers.Layer):
        def __init__(self, units, dropout=0.0, **kwargs):
            super().__init__(**kwargs)
            self.dense = keras.layers.Dense(2 * units, activation="tanh", name="dense")

        def call(self, sequence, ids, padding_mask):
            return self.dense(sequence)
    ```
    """

    def register(layer: Layer) -> Layer:
        registered_class = _ENCODERS.setdefault(name, (returns, layer))[1]
        # Names are compared, since running a notebook cell again redefines its classes.
        if (registered_class.__module__, registered_class.__qualname__) != (layer.__module__, layer.__qualname__):
            raise ValueError(f"The encoder {name!r} is {registered_class.__name__}. Choose another name.")
        _ENCODERS[name] = (returns, layer)
        return layer

    return register


def list_encoders(kinds: Sequence[Returns]) -> list[str]:
    """Return the names of the encoders whose kind of output is one of `kinds`."""
    return [name for name, (returns, _) in _ENCODERS.items() if returns in kinds]


def find_encoder(name: str) -> tuple[Returns, type[keras.layers.Layer]]:
    """Return the kind of output and the class of the encoder `name`.

    Raises:
        KeyError: If no encoder has this name.
    """
    return _ENCODERS[name]
