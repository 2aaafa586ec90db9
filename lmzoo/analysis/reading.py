"""Tokens of texts as a model reads them, and the model's hidden states for each token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np

from lmzoo.common.tensor_types import Tensors
from lmzoo.families import Backbone
from lmzoo.tasks import Task
from lmzoo.tasks.base.arguments import check_arguments
from lmzoo.tasks.base.prediction import suppress_retracing_warnings
from lmzoo.tasks.base.preprocessor_checks import fit_preprocessor
from lmzoo.text import EncodedTexts, Preprocessor
from lmzoo.text.batching import ladder_buckets
from lmzoo.text.segments import clean_segments
from lmzoo.text.tokenizers.tokenizer import TokenSpan

SPECIAL = -1  # offset and segment of special tokens, which come from no characters


class ReadText(NamedTuple):
    """Tokens of a text, or of a pair of texts, as a model reads them.

    Attributes:
        texts: the text, or the two texts of a pair.
        tokens: the T tokens as strings, including special tokens.
        offsets: int64 (T, 2), start and end of each token in its text, in characters; -1 for special tokens.
        segments: int64 (T,), index of each token's text in `texts`; -1 for special tokens.

    Example: see `hidden_states`.
    """

    texts: tuple[str, ...]
    tokens: list[str]
    offsets: np.ndarray
    segments: np.ndarray


def join_spans(texts: tuple[str, ...], *pieces: tuple[int, Sequence[TokenSpan]]) -> ReadText:
    """Join groups of token spans into a sequence.

    Each group is a pair of a segment (an index in `texts`, or `SPECIAL` for special tokens) and the spans in it.
    """
    spans = [span for _, piece in pieces for span in piece]
    offsets = np.array([(span.start, span.end) for span in spans], "int64").reshape(-1, 2)
    segments = np.repeat([segment for segment, _ in pieces], [len(piece) for _, piece in pieces])
    return ReadText(texts, [span.token for span in spans], offsets, segments.astype("int64"))


def make_lists(texts: Any) -> Any:
    """Return texts or pairs of texts with iterators turned into lists, so that they can be read twice."""
    if isinstance(texts, tuple):
        return tuple(map(make_lists, texts))
    return list(texts) if isinstance(texts, Iterator) else texts


@dataclass(frozen=True)
class Reader:
    """Backbone with the preprocessor that turns texts into its inputs."""

    backbone: Backbone
    preprocessor: Preprocessor

    @classmethod
    def of(cls, model: Task | Backbone, preprocessor: Preprocessor | None) -> Reader:
        """Return a reader for a task or a backbone; `preprocessor`, if given, replaces the task's preprocessor.

        Raises:
            TypeError: If `model` is neither a task nor a backbone, or `preprocessor` is not a preprocessor.
            ValueError: If there is no preprocessor, it does not fit the backbone, or the model reads a source and a
                target.
        """
        if not isinstance(model, (Task, Backbone)):
            raise TypeError(f"Expected a task or a backbone of `lmzoo.models`, got {model!r:.60}.")
        if preprocessor is None and isinstance(model, Task):
            preprocessor = model.preprocessor
        if preprocessor is None:
            raise ValueError(
                f"A {type(model).__name__} without a preprocessor cannot read texts: pass `preprocessor`, or a task of "
                "a preset, such as `lmzoo.models.TextEmbedder.from_preset(...)`."
            )
        backbone = model.backbone if isinstance(model, Task) else model
        if backbone.reads_source:
            raise ValueError(
                f"This {type(backbone).__name__} reads a source and a target, and this is about single sequences: see "
                "`lmzoo.models.Seq2SeqLM.source_attention`."
            )
        return cls(backbone, fit_preprocessor(backbone, preprocessor))

    def read(self, texts: Any) -> tuple[list[ReadText], EncodedTexts]:
        """Tokenize and pack texts or pairs of texts, and return their tokens and the packed sequences.

        Raises:
            TypeError: If an entry is not text; the message gives its position.
            ValueError: If there are no texts.
        """
        tokenizer = self.preprocessor.tokenizer
        cleaned_columns = clean_segments(texts, tokenizer.takes_words)
        if not cleaned_columns[0]:
            raise ValueError("`texts` is empty: pass at least one text.")
        spans = [tokenizer.tokenize_with_offsets(column) for column in cleaned_columns]
        encoded_texts = self.preprocessor.pack(*([[span.id for span in text] for text in column] for column in spans))
        start, between, end = self.special()
        read_texts = []
        for i, length in enumerate(encoded_texts.lengths.tolist()):
            second_start = int(encoded_texts.second[i])  # position where the second text begins
            separator = end if len(spans) == 1 else between
            pieces: list[tuple[int, Sequence[TokenSpan]]] = [(SPECIAL, start)]
            pieces += [(0, spans[0][i][: second_start - len(start) - len(separator)]), (SPECIAL, separator)]
            if len(spans) > 1:
                pieces += [(1, spans[1][i][: length - second_start - len(end)]), (SPECIAL, end)]
            text_strings = tuple(
                text if isinstance(text, str) else " ".join(text) for text in (column[i] for column in cleaned_columns)
            )
            read_texts.append(join_spans(text_strings, *pieces))
        return read_texts, encoded_texts

    def special(self) -> list[list[TokenSpan]]:
        """Return the special tokens at the start of a sequence, between two texts, and at the end."""
        id_to_token = self.preprocessor.tokenizer.id_to_token
        ids = self.preprocessor.special_ids()
        return [
            [TokenSpan(token_id, str(id_to_token(token_id)), SPECIAL, SPECIAL) for token_id in group_ids]
            for group_ids in ids
        ]

    def outputs(
        self, model: keras.Model, encoded: EncodedTexts, batch_size: int, keep: Callable[[Tensors, int], np.ndarray]
    ) -> list[np.ndarray]:
        """Run a model on encoded texts, and return the result of `keep` for each sequence.

        Sequences of similar length share a batch.

        Args:
            model: a model with the backbone's inputs.
            encoded: packed sequences.
            batch_size: int, number of sequences in a batch.
            keep: function of a sequence's outputs, which include padding, and its length without padding.
        """
        # Compiling these models with XLA takes longer than it saves, but JAX requires it.
        model.compile(jit_compile=keras.backend.backend() == "jax")
        widths = np.array(ladder_buckets(max(self.preprocessor.sequence_length, int(encoded.lengths.max()))))
        order = np.argsort(encoded.lengths, kind="stable")
        results_by_index: dict[int, np.ndarray] = {}
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            width = int(widths[np.searchsorted(widths, encoded.lengths[indices].max())])
            with suppress_retracing_warnings():
                features = self.preprocessor.features(encoded, indices, width)
                outputs = model.predict_on_batch(self.backbone.select_inputs(features))
            for row, i in enumerate(indices.tolist()):
                values = keras.tree.map_structure(lambda values, row=row: np.asarray(values[row]), outputs)
                results_by_index[i] = keep(values, int(encoded.lengths[i]))
        return [results_by_index[i] for i in range(len(encoded))]


def hidden_states(
    model: Task | Backbone, texts: Any, batch_size: int = 32, preprocessor: Preprocessor | None = None
) -> tuple[list[ReadText], list[np.ndarray]]:
    """Return the tokens of each text, and their hidden states in all layers.

    Args:
        model: a task, or a backbone with a `preprocessor`.
        texts: strings or pairs of strings, as for `lmzoo.models.TextClassifier`.
        batch_size: int, number of sequences in a batch.
        preprocessor: preprocessor of the texts; required if `model` is a backbone.

    Returns:
        The tokens of each text, and its hidden states, float32 (L + 1, T, H): the embeddings, then the outputs of the L
        layers.

    Raises:
        TypeError: If an entry is not text; the message gives its position.
        ValueError: If there are no texts or no preprocessor, the preprocessor is from another family or has longer
            sequences than the model, or the model reads a source and a target.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    (read,), (states,) = lmzoo.analysis.hidden_states(embedder, ["A quiet film."])
    states.shape[:2]  # (7, 6)
    ```
    """
    check_arguments(batch_size=batch_size)
    reader = Reader.of(model, preprocessor)
    read_texts, encoded_texts = reader.read(texts)
    # Add no operations: their names could clash with the backbone's after `clear_session`.
    layer_model = keras.Model(reader.backbone.input, reader.backbone.output["hidden_states"])  # (B, T, H) each

    def keep(values: Tensors, length: int) -> np.ndarray:
        states = [values] if isinstance(values, np.ndarray) else values  # a single output is not in a list
        return np.stack([layer[:length].astype("float32") for layer in states])  # (L + 1, T, H)

    return read_texts, reader.outputs(layer_model, encoded_texts, batch_size, keep)


def compute_text_means(read: Sequence[ReadText], states: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean vector of each text in every layer, without special tokens: float32 (n, L + 1, H).

    If a text has only special tokens, they are averaged instead. A text without tokens gets zeros.
    """
    means = []
    for text, text_states in zip(read, states, strict=True):
        is_word = text.segments != SPECIAL
        vectors = text_states[:, is_word if is_word.any() else slice(None)]  # (L + 1, t, H)
        means.append(vectors.sum(axis=1) / max(1, vectors.shape[1]))  # (L + 1, H)
    return np.stack(means)
