"""Word vectors from one layer of a backbone or a mix of layers.

Letters in shapes: B texts, T tokens, w words in a text, K requested layers, L layers of the backbone, H width of hidden
states.
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
from lmzoo.families.named_inputs import NamedInputsModel
from lmzoo.tasks.base.prediction import predict_encoded
from lmzoo.tasks.base.task import Task
from lmzoo.text.alignment import tokens_of_words
from lmzoo.text.validate_text import Text, clean_columns, collect_warnings, warn
from lmzoo.text.word_splitting import place_words

_MAX_VALUES = 1 << 26  # floats of token vectors in memory at once: 256 MiB

# See `lmzoo.models.TextEmbedder.embed`.
Layers: TypeAlias = int | Sequence[int] | Mapping[int, float] | Literal["all"] | None


class WordVectors(NamedTuple):
    """The words of a text with their vectors.

    Attributes:
        words: w strings.
        offsets: int64 (w, 2), start and end of each word, `text[start:end]`; for a list of words, in the words joined
            by spaces.
        vectors: the vectors of the words, float32 (w, H), or (w, L, H) for all L layers.

    Example: see `lmzoo.models.TextEmbedder.embed`.
    """

    words: list[str]
    offsets: np.ndarray
    vectors: np.ndarray


class LayerMix(NamedTuple):
    """A selection of a backbone's layers, with weights for summing them.

    Attributes:
        layers: K indices into `hidden_states`; the index after the last stands for `sequence_output`.
        weights: float32 (K,), the weight of each layer in the sum; None to keep the layers separate.
    """

    layers: tuple[int, ...]
    weights: np.ndarray | None

    @classmethod
    def parse(cls, layers: Any, count: int) -> LayerMix:
        """Parse the `layers` argument of `lmzoo.models.TextEmbedder.embed`.

        Args:
            layers: None, an int, ints, a dict from ints to floats, or "all".
            count: int, number of the backbone's `hidden_states`.

        Raises:
            TypeError: If `layers` or one of its entries has another type.
            ValueError: If `layers` is empty, if the model lacks a layer, or if a weight is not a finite number.
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
        selected_layers = list(layers)
        for layer in selected_layers:
            if not isinstance(layer, numbers.Integral) or isinstance(layer, bool):
                raise TypeError(
                    f"`layers` holds {layer!r:.40}, which is not the number of a layer; weights go into a dict, such "
                    "as {-1: 0.5, -2: 0.5}."
                )
            if not -count <= int(layer) < count:
                raise ValueError(
                    f"There is no layer {layer}: this model has {count}, 0 to {count - 1}, or -1 to -{count}."
                )
        if not selected_layers:
            raise ValueError("`layers` is empty: name at least one layer.")
        if isinstance(layers, Mapping):
            for layer, weight in layers.items():
                is_valid = is_number(weight) and abs(weight) < math.inf
                require(is_valid, f"layers[{layer}]", "a finite number, the layer's weight", weight)
        weights = (
            list(layers.values()) if isinstance(layers, Mapping) else [1 / len(selected_layers)] * len(selected_layers)
        )
        return cls(tuple(int(layer) % count for layer in selected_layers), np.array(weights, "float32"))

    def combine(self, vectors: np.ndarray) -> np.ndarray:
        """Return the weighted sum, float32 (w, H), of `vectors`, float32 (w, K, H), over the layers.

        Without weights, the vectors are returned unchanged.
        """
        return vectors if self.weights is None else np.tensordot(vectors, self.weights, axes=(1, 0))


class LayerModels:
    """A cache of models that compute selected layers of a backbone, each built and compiled once.

    The models are not attributes of the task, since Keras would save them as parts of the task.

    Args:
        backbone: `lmzoo.models.Backbone` whose layers are computed.
        **compile_settings: arguments of `keras.Model.compile`.
    """

    def __init__(self, backbone: Backbone, **compile_settings: Any) -> None:
        self.backbone = backbone
        self.states = [*backbone.output["hidden_states"], backbone.output["sequence_output"]]
        self.compile_settings = compile_settings
        self.get = functools.cache(self._build)

    def _build(self, layers: tuple[int, ...]) -> NamedInputsModel:
        """Build and compile a model that outputs the hidden states of `layers`, float32 (B, T, K, H)."""
        stacked_states = ops.stack([ops.cast(self.states[layer], "float32") for layer in layers], axis=2)
        model = NamedInputsModel(self.backbone.input, stacked_states)
        model.compile(**self.compile_settings)
        return model


def embed_words(
    task: Task, models: LayerModels, texts: Sequence[Text], layers: Layers, batch_size: int
) -> list[WordVectors]:
    """Return the word vectors of each text.

    Words without tokens in the model's input get zeros, with a warning.

    Args:
        task: task whose preprocessor encodes the texts.
        models: models that compute the layers of the task's backbone.
        texts: strings or lists of words.
        layers: layers to take vectors from; see `lmzoo.models.TextEmbedder.embed`.
        batch_size: int, texts per batch.

    Raises:
        TypeError: If an entry is not text (the message names its position); see also `LayerMix.parse`.
        ValueError: See `LayerMix.parse`.
    """
    mix = LayerMix.parse(layers, len(models.states) - 1)
    with collect_warnings() as messages:
        texts = clean_columns({"texts": texts}, words=True)[0]
        preprocessor = task.text_preprocessor
        tokenizer = preprocessor.tokenizer
        words = [place_words(text) for text in texts]
        if tokenizer.takes_words:
            ids_by_text = tokenizer.tokenize(texts)
            alignments = [(np.arange(len(ids)), np.arange(len(ids))) for ids in ids_by_text]
        else:
            spans = tokenizer.tokenize_with_offsets(
                [text if isinstance(text, str) else " ".join(text) for text in texts]
            )
            ids_by_text = [[span.id for span in text_spans] for text_spans in spans]
            alignments = [tokens_of_words(*words_and_spans) for words_and_spans in zip(words, spans, strict=True)]
        encoded = preprocessor.pack(ids_by_text)
        token_counts = encoded.lengths - preprocessor.packing.overhead(pair=False)
        values_per_token = len(mix.layers) * models.states[0].shape[-1]
        vectors_by_text: dict[int, WordVectors] = {}
        order = np.argsort(-encoded.lengths, kind="stable")
        start = 0
        missing_count = 0
        while start < len(order):
            max_length = max(1, encoded.lengths[order[start]])
            indices = order[start : start + max(1, _MAX_VALUES // int(max_length * values_per_token))]
            start += len(indices)
            model = models.get(mix.layers)
            hidden_states = predict_encoded(task, model, encoded.select(indices), batch_size, verbose=0, per_token=True)
            for i, vectors in zip(indices.tolist(), hidden_states, strict=True):  # (T, K, H)
                aligned_words, aligned_tokens = (column[alignments[i][1] < token_counts[i]] for column in alignments[i])
                covered_words, group_starts, group_sizes = np.unique(
                    aligned_words, return_index=True, return_counts=True
                )
                mean_vectors = np.zeros((len(words[i]), *vectors.shape[1:]), "float32")  # (w, K, H)
                if len(covered_words):
                    token_vectors = vectors[aligned_tokens + bool(preprocessor.packing.start)]
                    mean_vectors[covered_words] = (
                        np.add.reduceat(token_vectors, group_starts, axis=0) / group_sizes[:, None, None]
                    )
                missing_count += len(mean_vectors) - len(covered_words)
                offsets = np.array([place for _, *place in words[i]], "int64").reshape(-1, 2)
                vectors_by_text[i] = WordVectors([word for word, _, _ in words[i]], offsets, mix.combine(mean_vectors))
    if missing_count:
        word_count = sum(map(len, words))
        messages.append(
            f"{missing_count} of {word_count} words have no token in the model's input: their vectors are zeros."
        )
    if messages:
        warn(" ".join(messages))
    return [vectors_by_text[i] for i in range(len(texts))]
