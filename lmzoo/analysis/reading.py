"""Texts as a model reads them: their tokens, and what the model computes for each."""

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
from lmzoo.tasks.base.prediction import expected_retracing
from lmzoo.tasks.base.preprocessor_checks import fit_preprocessor
from lmzoo.text import EncodedTexts, Preprocessor
from lmzoo.text.batching import ladder_buckets
from lmzoo.text.segments import clean_segments
from lmzoo.text.tokenizers.tokenizer import TokenSpan

SPECIAL = -1  # offset and segment of tokens that come from no characters


class ReadText(NamedTuple):
    """A text, or a pair of texts, as the tokens of a sequence.

    Attributes:
        texts: the text, or the two of a pair.
        tokens: T strings, special tokens included.
        offsets: int64 (T, 2), the first character of each token and the one after its last; -1 for special tokens.
        segments: int64 (T,), to which of the texts a token belongs; -1 for special tokens.

    Example: see `hidden_states`.
    """

    texts: tuple[str, ...]
    tokens: list[str]
    offsets: np.ndarray
    segments: np.ndarray


def joined(texts: tuple[str, ...], *pieces: tuple[int, Sequence[TokenSpan]]) -> ReadText:
    """Return pieces of a sequence, each with the number of its text, or `SPECIAL`."""
    spans = [span for _, piece in pieces for span in piece]
    places = np.array([(span.start, span.end) for span in spans], "int64").reshape(-1, 2)
    segments = np.repeat([segment for segment, _ in pieces], [len(piece) for _, piece in pieces])
    return ReadText(texts, [span.token for span in spans], places, segments.astype("int64"))


def listed(texts: Any) -> Any:
    """Texts or pairs of them that can be read twice: iterators become lists, and everything else stays as it is."""
    if isinstance(texts, tuple):
        return tuple(map(listed, texts))
    return list(texts) if isinstance(texts, Iterator) else texts


@dataclass(frozen=True)
class Reader:
    """A backbone with the preprocessor of its texts."""

    backbone: Backbone
    preprocessor: Preprocessor

    @classmethod
    def of(cls, model: Task | Backbone, preprocessor: Preprocessor | None) -> Reader:
        """Return the backbone of a task and its preprocessor; a backbone alone needs one.

        Raises:
            TypeError: for anything else, in place of the preprocessor, too.
            ValueError: if there is no preprocessor, if it does not fit the backbone, or for a model from sequence to
                sequence.
        """
        if not isinstance(model, (Task, Backbone)):
            raise TypeError(f"Expected a task or a backbone of `lmzoo.models`, got {model!r:.60}.")
        found = model.preprocessor if preprocessor is None and isinstance(model, Task) else preprocessor
        if found is None:
            raise ValueError(
                f"A {type(model).__name__} without a preprocessor cannot read texts: pass `preprocessor`, or a task of "
                "a preset, such as `lmzoo.models.TextEmbedder.from_preset(...)`."
            )
        backbone = model.backbone if isinstance(model, Task) else model
        if backbone.reads_source:
            raise ValueError(
                f"A {type(backbone).__name__} reads a source and a target, and this is about single sequences: see "
                "`lmzoo.models.Seq2SeqLM.source_attention`."
            )
        return cls(backbone, fit_preprocessor(backbone, found))

    def read(self, texts: Any) -> tuple[list[ReadText], EncodedTexts]:
        """Return the tokens of texts or pairs, and the packed sequences.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: if there are no texts.
        """
        tokenizer = self.preprocessor.tokenizer
        cleaned = clean_segments(texts, tokenizer.takes_words)
        if not cleaned[0]:
            raise ValueError("`texts` is empty: pass at least one text.")
        spans = [tokenizer.tokenize_with_offsets(column) for column in cleaned]
        encoded = self.preprocessor.pack(*([[span.id for span in text] for text in column] for column in spans))
        start, between, end = self.special()
        found = []
        for i, length in enumerate(encoded.lengths.tolist()):
            second, after = int(encoded.second[i]), end if len(spans) == 1 else between
            pieces: list[tuple[int, Sequence[TokenSpan]]] = [(SPECIAL, start)]
            pieces += [(0, spans[0][i][: second - len(start) - len(after)]), (SPECIAL, after)]
            if len(spans) > 1:
                pieces += [(1, spans[1][i][: length - second - len(end)]), (SPECIAL, end)]
            given = tuple(t if isinstance(t, str) else " ".join(t) for t in (column[i] for column in cleaned))
            found.append(joined(given, *pieces))
        return found, encoded

    def special(self) -> list[list[TokenSpan]]:
        """Return the special tokens at the start of a sequence, between two texts and at the end."""
        name = self.preprocessor.tokenizer.id_to_token
        ids = self.preprocessor.special_ids()
        return [[TokenSpan(i, str(name(i)), SPECIAL, SPECIAL) for i in part] for part in ids]

    def outputs(
        self, model: keras.Model, encoded: EncodedTexts, batch_size: int, keep: Callable[[Tensors, int], np.ndarray]
    ) -> list[np.ndarray]:
        """Return what is to be kept of the outputs of a model with the backbone's inputs for each sequence.

        Sequences of similar length share a batch. `keep` gets the outputs for a sequence, in which those for padding
        are still there, and its length.
        """
        # XLA takes longer to compile these than it saves, where it can be avoided.
        model.compile(jit_compile=keras.backend.backend() == "jax")
        widths = np.array(ladder_buckets(max(self.preprocessor.sequence_length, int(encoded.lengths.max()))))
        order = np.argsort(encoded.lengths, kind="stable")
        kept: dict[int, np.ndarray] = {}
        for begin in range(0, len(order), batch_size):
            indices = order[begin : begin + batch_size]
            width = int(widths[np.searchsorted(widths, encoded.lengths[indices].max())])
            with expected_retracing():
                found = model.predict_on_batch(self.preprocessor.features(encoded, indices, width))
            for row, i in enumerate(indices.tolist()):
                values = keras.tree.map_structure(lambda values, row=row: np.asarray(values[row]), found)
                kept[i] = keep(values, int(encoded.lengths[i]))
        return [kept[i] for i in range(len(encoded))]


def hidden_states(
    model: Task | Backbone, texts: Any, batch_size: int = 32, preprocessor: Preprocessor | None = None
) -> tuple[list[ReadText], list[np.ndarray]]:
    """Return the vectors of the tokens of texts in every layer.

    Args:
        model: a task, or a backbone with a `preprocessor`.
        texts: strings or pairs of them, as for `lmzoo.models.TextClassifier`.
        batch_size: int.
        preprocessor: of a backbone.

    Returns:
        The tokens of each text, and float32 (L + 1, T, H) for each: the embeddings, then the outputs of the L layers.

    Raises:
        TypeError: naming the position of an entry that is not text.
        ValueError: if there are no texts, or nothing that reads them; for a preprocessor of another family, or with
            longer sequences than the model's.

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
    read, encoded = reader.read(texts)
    # Without operations of its own, whose names could be those of the backbone's after `clear_session`.
    layers = keras.Model(reader.backbone.input, reader.backbone.output["hidden_states"])  # (B, T, H) each

    def keep(values: Tensors, length: int) -> np.ndarray:
        return np.stack([layer[:length].astype("float32") for layer in values])  # (L + 1, T, H)

    return read, reader.outputs(layers, encoded, batch_size, keep)


def text_means(read: Sequence[ReadText], states: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean vector of each text in every layer, without special tokens: float32 (n, L + 1, H)."""
    means = []
    for text, values in zip(read, states, strict=True):
        chosen = text.segments != SPECIAL
        means.append(values[:, chosen if chosen.any() else slice(None)].mean(axis=1))  # (L + 1, H)
    return np.stack(means)
