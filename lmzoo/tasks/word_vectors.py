"""A vector for each word of a text, from any layer of a backbone or a mix of layers.

Dimensions: K requested layers, w words of a text.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from keras import ops

from lmzoo.common.arguments import is_number, require
from lmzoo.families.backbone import Backbone
from lmzoo.parallel.several_devices import SeveralDevicesModel
from lmzoo.tasks.base.prediction import predict_encoded
from lmzoo.tasks.base.task import Task
from lmzoo.text.alignment import tokens_of_words
from lmzoo.text.validate_text import Text, clean_columns, collect_warnings, warn
from lmzoo.text.word_splitting import place_words

_VALUES = 1 << 26  # floats of the tokens' vectors at once: 256 MiB

# See `lmzoo.models.TextEmbedder.embed`.
Layers: TypeAlias = int | Sequence[int] | Mapping[int, float] | Literal["all"] | None


class WordVectors(NamedTuple):
    """The words of a text with a vector for each.

    Attributes:
        words: w strings.
        offsets: int64 (w, 2), the first character of each word and the one after its last: `text[start:end]`; for a
            list of words, in the text that they form when joined by spaces.
        vectors: float32 (w, H), or (w, L, H) for all L layers.

    Example: see `lmzoo.models.TextEmbedder.embed`.
    """

    words: list[str]
    offsets: np.ndarray
    vectors: np.ndarray


class LayerMix(NamedTuple):
    """Which layers of a backbone are requested, and how they are combined.

    Attributes:
        layers: K indices of `hidden_states`; their number stands for `sequence_output`.
        weights: float32 (K,), weights of their sum; None to keep them separate.
    """

    layers: tuple[int, ...]
    weights: np.ndarray | None

    @classmethod
    def parse(cls, layers: Any, count: int) -> LayerMix:
        """Return the mix that `layers` describes; see `lmzoo.models.TextEmbedder.embed`.

        Args:
            layers: None, an int, ints, a dict from ints to floats, or "all".
            count: int, number of layers.

        Raises:
            TypeError: if it is something else.
            ValueError: if the model does not have the layers.
        """
        if layers is None:
            return cls((count,), np.ones(1, "float32"))
        if isinstance(layers, str) and layers == "all":
            return cls(tuple(range(count)), None)
        if isinstance(layers, numbers.Integral):
            layers = [layers]
        if isinstance(layers, (str, bytes)) or not hasattr(layers, "__iter__"):
            raise TypeError(
                f'`layers` is a number, a list of numbers, a dict of weights, or "all"; got {layers!r:.60}.'
            )
        wanted = list(layers)
        for layer in wanted:
            if not isinstance(layer, numbers.Integral) or isinstance(layer, bool):
                raise TypeError(
                    f"`layers` holds {layer!r:.40}, which is not the number of a layer; weights go into a dict, such "
                    "as {-1: 0.5, -2: 0.5}."
                )
            if not -count <= int(layer) < count:
                raise ValueError(
                    f"There is no layer {layer}: this model has {count}, 0 to {count - 1}, or -1 to -{count}."
                )
        if not wanted:
            raise ValueError("`layers` is empty: name at least one layer.")
        if isinstance(layers, Mapping):
            for layer, weight in layers.items():
                finite = is_number(weight) and abs(weight) < math.inf
                require(finite, f"layers[{layer}]", "a finite number, the layer's weight", weight)
        weights = list(layers.values()) if isinstance(layers, Mapping) else [1 / len(wanted)] * len(wanted)
        return cls(tuple(int(layer) % count for layer in wanted), np.array(weights, "float32"))

    def of(self, vectors: np.ndarray) -> np.ndarray:
        """Return the combination (w, H) of float32 (w, K, H); without weights (w, K, H) itself."""
        return vectors if self.weights is None else np.tensordot(vectors, self.weights, axes=(1, 0))


class LayerModels:
    """Models from a backbone's inputs to some of its layers, each compiled once, as `compiled` says.

    They are not attributes of the task itself, where Keras would save them as parts of it.
    """

    def __init__(self, backbone: Backbone, **compiled: Any) -> None:
        self.backbone = backbone
        self.states = [*backbone.output["hidden_states"], backbone.output["sequence_output"]]
        self.compiled = compiled
        self.of = functools.cache(self._of)

    def _of(self, layers: tuple[int, ...]) -> SeveralDevicesModel:
        """Return the model whose output is float32 (B, T, K, H)."""
        stacked = ops.stack([ops.cast(self.states[layer], "float32") for layer in layers], axis=2)
        model = SeveralDevicesModel(self.backbone.input, stacked)
        model.compile(**self.compiled)
        return model


def embed_words(
    task: Task, models: LayerModels, texts: Sequence[Text], layers: Layers, batch_size: int
) -> list[WordVectors]:
    """Return the vectors of the words of each text; see `lmzoo.models.TextEmbedder.embed`."""
    mix = LayerMix.parse(layers, len(models.states) - 1)
    with collect_warnings() as messages:
        texts = clean_columns({"texts": texts}, words=True)[0]
        preprocessor, words = task.text_preprocessor, [place_words(text) for text in texts]
        tokenizer = preprocessor.tokenizer
        if tokenizer.takes_words:
            tokens = tokenizer.tokenize(texts)
            aligned = [(np.arange(len(ids)), np.arange(len(ids))) for ids in tokens]
        else:
            spans = tokenizer.tokenize_with_offsets([t if isinstance(t, str) else " ".join(t) for t in texts])
            tokens = [[span.id for span in of_text] for of_text in spans]
            aligned = [tokens_of_words(*of_text) for of_text in zip(words, spans, strict=True)]
        encoded = preprocessor.pack(tokens)
        room = encoded.lengths - preprocessor.packing.overhead(pair=False)
        width = len(mix.layers) * models.states[0].shape[-1]
        results: dict[int, WordVectors] = {}
        order, done, missing = np.argsort(-encoded.lengths, kind="stable"), 0, 0
        while done < len(order):
            longest = max(1, encoded.lengths[order[done]])
            indices = order[done : done + max(1, _VALUES // int(longest * width))]
            done += len(indices)
            model, chosen = models.of(mix.layers), encoded.select(indices)
            states = predict_encoded(task, model, chosen, batch_size, verbose=0, per_token=True)
            for i, vectors in zip(indices.tolist(), states, strict=True):  # (T, K, H)
                of_word, token = (index[aligned[i][1] < room[i]] for index in aligned[i])
                found, first, counts = np.unique(of_word, return_index=True, return_counts=True)
                means = np.zeros((len(words[i]), *vectors.shape[1:]), "float32")  # (w, K, H)
                if len(found):
                    of_tokens = vectors[token + bool(preprocessor.packing.start)]
                    means[found] = np.add.reduceat(of_tokens, first, axis=0) / counts[:, None, None]
                missing += len(means) - len(found)
                offsets = np.array([place for _, *place in words[i]], "int64").reshape(-1, 2)
                results[i] = WordVectors([word for word, _, _ in words[i]], offsets, mix.of(means))
    if missing:
        count = sum(map(len, words))
        messages.append(f"{missing} of {count} words have no token in the model's input: their vectors are zeros.")
    if messages:
        warn(" ".join(messages))
    return [results[i] for i in range(len(texts))]
