"""Long contexts in overlapping windows, each packed with its question: the input of extractive question answering.

Shapes: n examples, w windows, N stored tokens, C tokens of the contexts in all windows together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lmzoo.text.packing import Encoded, EncodedTexts, Indices, ranges
from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.validate_text import Text, clean_columns, warn

_CONTEXT = 3  # index of the context among the parts of a sequence


@dataclass(frozen=True)
class EncodedWindows(Encoded):
    """Packed sequences of a question and a window of its context; each text is stored only once.

    Attributes:
        tokens: int32 (N,), or (N, W) if tokens are words of W characters: special tokens, questions and contexts.
        spans: int64 (N, 2), the characters of the context that each token came from; zeros for other tokens.
        begins: int64 (w, 5), where in `tokens` the parts of a sequence begin: start, question, between, context, end.
        counts: int64 (w, 5), tokens of each part.
        examples: int64 (w,), the example that each window belongs to.
        context_bounds: int64 (n, 2), where in `tokens` the context of each example begins and ends.
        contexts: n strings; a context that was a list of words is joined by spaces.
    """

    tokens: np.ndarray
    spans: np.ndarray
    begins: np.ndarray
    counts: np.ndarray
    examples: np.ndarray
    context_bounds: np.ndarray
    contexts: tuple[str, ...]

    @property
    def lengths(self) -> np.ndarray:
        """Int64 (w,), tokens of each sequence."""
        return self.counts.sum(axis=1)

    @property
    def second(self) -> np.ndarray:
        """Int64 (w,), index within the sequence of the window's first token."""
        return self.counts[:, :_CONTEXT].sum(axis=1)

    @property
    def windows(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each window begins in `tokens`, and its length: two int64 (w,)."""
        return self.begins[:, _CONTEXT], self.counts[:, _CONTEXT]

    def select(self, indices: Indices) -> EncodedWindows:
        """Return the windows at int indices (m,), in the given order; all examples and contexts are kept."""
        indices = np.asarray(indices, "int64")
        return replace(self, begins=self.begins[indices], counts=self.counts[indices], examples=self.examples[indices])

    def of_example(self, example: int) -> tuple[np.ndarray, EncodedWindows]:
        """Return a single example: the indices of its windows, int64 (m,), and the windows."""
        indices = np.flatnonzero(self.examples == example)
        alone = replace(
            self.select(indices),
            examples=np.zeros(len(indices), "int64"),
            context_bounds=self.context_bounds[[example]],
            contexts=(self.contexts[example],),
        )
        return indices, alone

    def cut_before(self, index: int) -> int:
        """Return the first window of the example that the window at `index` belongs to."""
        return int(np.argmax(self.examples == self.examples[index]))

    def packed(self, indices: Indices) -> EncodedTexts:
        """Return the windows at int indices (b,) as packed sequences, for `Preprocessor.features`."""
        chosen = self.select(indices)
        index = ranges(chosen.begins.ravel(), chosen.counts.ravel())
        splits = np.concatenate([[0], np.cumsum(chosen.lengths)])
        return EncodedTexts(self.tokens[index], splits, chosen.second.astype("int32"))

    def max_context(self) -> np.ndarray:
        """Return whether each token of a window has the most context in this window.

        Among all windows that contain a token of a context, this is the one with the highest `min(tokens to the left,
        tokens to the right) + 0.01 * length`, the first one on ties (Google's BERT code).

        Returns:
            bool (C,), for all windows one after another: every token of a context is true in one of its windows.
        """
        begins, lengths = self.windows
        window = np.repeat(np.arange(len(self)), lengths)  # (C,)
        alone = np.bincount(self.examples)[self.examples] == 1 if len(self) else np.ones(0, bool)  # (w,)
        result = alone[window]
        token = ranges(begins, lengths)  # (C,)
        several = np.flatnonzero(~result)
        window, token = window[several], token[several]
        left = token - begins[window]
        score = np.minimum(left, lengths[window] - 1 - left) + 0.01 * lengths[window]
        order = np.lexsort((window, -score, token, self.examples[window]))
        best = np.ones(len(order), bool)
        # This also holds where one example ends: its last token differs from the first one of the next example.
        best[1:] = np.diff(token[order]) != 0
        result[several[order[best]]] = True
        return result

    def positions(self, answers: np.ndarray) -> np.ndarray:
        """Return the training targets: the first and the last token of the answer within each window.

        Args:
            answers: int64 (n, 2), start and end of each example's answer in its context; start == end for no answer.

        Returns:
            int32 (w, 2). For a window without the whole answer, both are the first token of the sequence.

        Raises:
            ValueError: naming the first example whose answer the tokenizer drops completely.
        """
        found = np.zeros((len(self.contexts), 2), "int64")  # indices of `tokens`, first and last
        found[:, 1] = -1
        for i in np.flatnonzero(answers[:, 0] < answers[:, 1]).tolist():
            (begin, end), (first, after) = answers[i], self.context_bounds[i]
            starts, ends = self.spans[first:after].T
            inside = np.flatnonzero((starts < end) & (ends > begin))
            if not len(inside):
                raise ValueError(
                    f"The answer of example {i}, {self.contexts[i][begin:end]!r:.60}, contains nothing that the "
                    "tokenizer keeps."
                )
            found[i] = first + inside[[0, -1]]
        first, last = found[self.examples].T  # (w,), (w,)
        begins, lengths = self.windows
        inside = (begins <= first) & (first <= last) & (last < begins + lengths)
        relative = np.stack([first, last], axis=1) - (begins - self.second)[:, None]  # (w, 2)
        return np.where(inside[:, None], relative, 0).astype("int32")


def encode_windows(
    preprocessor: Preprocessor,
    questions: Sequence[Text],
    contexts: Sequence[Text],
    doc_stride: int = 128,
    max_question_length: int = 64,
) -> EncodedWindows:
    """Tokenize questions and contexts, and cut the contexts into windows that fit next to their questions.

    A window begins `doc_stride` tokens after the one before it, or as many as fit into a window if that is less; the
    last one ends with the context (Google's BERT code). An empty context has one window. Equal texts are tokenized
    once. A text may be a list of words if the tokenizer `takes_words`. Questions longer than `max_question_length`
    tokens are truncated, with one warning per call.

    Raises:
        TypeError: naming the position of an entry that is not text.
        ValueError: if the numbers of questions and contexts differ, or naming an example whose question leaves no room
            for its context.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.text.windows import encode_windows

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "who", "ada", "met", "bob", "and", "eve"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    preprocessor = Preprocessor(tokenizer, packing, sequence_length=8)
    encoded = encode_windows(preprocessor, ["Who?"], ["Ada met Bob and Eve"], doc_stride=2)
    encoded.examples  # [0, 0]: the question is next to "Ada met Bob" and "Bob and Eve"
    ```
    """
    tokenizer = preprocessor.tokenizer
    columns = clean_columns({"questions": questions, "contexts": contexts}, tokenizer.takes_words)
    if len(columns[0]) != len(columns[1]):
        raise ValueError(f"Expected a context for each question, got {len(columns[0])} and {len(columns[1])}.")
    (questions, question_of), (contexts, context_of) = map(_unique, columns)
    read, spans = tokenizer.tokenize_with_spans(contexts)
    segments = [*preprocessor.special_ids(), *tokenizer.tokenize(questions), *read]
    sizes = np.array([len(segment) for segment in segments], "int64")
    places = np.cumsum(sizes) - sizes
    tokens = tokenizer.as_array(itertools.chain.from_iterable(segments), int(sizes.sum()))
    question_of, context_of = question_of + 3, context_of + 3 + len(questions)  # as indices of `segments`

    lengths = np.minimum(sizes[question_of], max_question_length)  # (n,)
    if cut := int(np.sum(lengths < sizes[question_of])):
        warn(
            f"{cut} of {len(lengths)} questions were truncated to {max_question_length} tokens (`max_question_length`)."
        )
    overhead = preprocessor.packing.overhead(pair=True)
    room = preprocessor.sequence_length - lengths - overhead  # (n,)
    if (narrow := np.flatnonzero(room < 1)).size:
        raise ValueError(
            f"The question of example {narrow[0]} has {lengths[narrow[0]]} tokens; with {overhead} special tokens it "
            f"leaves no room for the context in {preprocessor.sequence_length} (`sequence_length`). Raise that, or "
            "lower `max_question_length`."
        )
    total, stride = sizes[context_of], np.minimum(room, doc_stride)  # (n,), (n,)
    number = 1 + np.maximum(0, -(-(total - room) // stride))  # (n,), windows of each
    examples = np.repeat(np.arange(len(number)), number)  # (w,)
    begin = ranges(np.zeros_like(number), number) * stride[examples]
    count = np.minimum(room[examples], total[examples] - begin)
    parts = [
        (0, sizes[0]),
        (places[question_of][examples], lengths[examples]),
        (places[1], sizes[1]),
        (places[context_of][examples] + begin, count),
        (places[2], sizes[2]),
    ]
    begins, counts = (np.stack([np.broadcast_to(p[k], len(examples)) for p in parts], axis=1) for k in (0, 1))
    bounds = places[context_of][:, None] + np.stack([np.zeros_like(total), total], axis=1)
    nowhere = np.zeros((len(tokens) - len(spans), 2), "int64")
    strings = [text if isinstance(text, str) else " ".join(text) for text in columns[1]]
    return EncodedWindows(tokens, np.concatenate([nowhere, spans]), begins, counts, examples, bounds, tuple(strings))


def _unique(texts: Sequence[str | list[str]]) -> tuple[list[Any], np.ndarray]:
    """Return the distinct texts, and for each text its index among them: int64 (n,)."""
    places: dict[Any, int] = {}
    keys = (text if isinstance(text, str) else tuple(text) for text in texts)
    index = [places.setdefault(key, len(places)) for key in keys]
    return list(places), np.array(index, "int64")
