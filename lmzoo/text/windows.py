"""Long contexts in overlapping windows, each joined to its question: the input of extractive question answering.

n examples, w windows, N tokens that the rows are made of, C tokens of all windows' contexts together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lmzoo.text.packing import Encoded, EncodedTexts
from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.validate_text import clean_columns, warn

_CONTEXT = 3  # of the parts of a row


@dataclass(frozen=True)
class EncodedWindows(Encoded):
    """Packed rows of a question and a window of its context; each text is stored once, however many rows it is in.

    Attributes:
        tokens: int32 (N,), or (N, W) where a token is a row of characters: special tokens, questions and contexts.
        spans: int64 (N, 2), the characters of its text that each token came from; zeros but for contexts.
        begins: int64 (w, 5), where in `tokens` the parts of each row begin: start, question, between, context, end.
        counts: int64 (w, 5), tokens of each part.
        examples: int64 (w,), the example that each window belongs to.
        pieces: int64 (n, 2), each example's context is `tokens[pieces[i, 0]:pieces[i, 1]]`.
        contexts: n strings; of a context that was passed as a list of words, the words joined by spaces.
    """

    tokens: np.ndarray
    spans: np.ndarray
    begins: np.ndarray
    counts: np.ndarray
    examples: np.ndarray
    pieces: np.ndarray
    contexts: tuple[str, ...]

    @property
    def lengths(self) -> np.ndarray:
        """Int64 (w,), tokens of each row."""
        return self.counts.sum(axis=1)

    @property
    def second(self) -> np.ndarray:
        """Int64 (w,), index within the row of the window's first token."""
        return self.counts[:, :_CONTEXT].sum(axis=1)

    @property
    def windows(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each row's window begins in `tokens`, and its length: two int64 (w,)."""
        return self.begins[:, _CONTEXT], self.counts[:, _CONTEXT]

    def select(self, rows: Any) -> EncodedWindows:
        """The given windows, in the given order; all examples stay known.

        Args:
            rows: int array (m,).
        """
        rows = np.asarray(rows, "int64")
        return replace(self, begins=self.begins[rows], counts=self.counts[rows], examples=self.examples[rows])

    def of_example(self, example: int) -> tuple[np.ndarray, EncodedWindows]:
        """One example alone: the indices of its windows, int64 (m,), and the windows."""
        rows = np.flatnonzero(self.examples == example)
        alone = replace(
            self.select(rows),
            examples=np.zeros(len(rows), "int64"),
            pieces=self.pieces[[example]],
            contexts=(self.contexts[example],),
        )
        return rows, alone

    def cut_before(self, row: int) -> int:
        """The first window of the example that the window at `row` belongs to."""
        return int(np.argmax(self.examples == self.examples[row]))

    def packed(self, rows: np.ndarray) -> EncodedTexts:
        """Some rows as a preprocessor takes them.

        Args:
            rows: int array (b,).
        """
        chosen = self.select(rows)
        index = _ranges(chosen.begins.ravel(), chosen.counts.ravel())
        splits = np.concatenate([[0], np.cumsum(chosen.lengths)])
        return EncodedTexts(self.tokens[index], splits, chosen.second.astype("int32"))

    def max_context(self) -> np.ndarray:
        """Which tokens of the windows have the most context there.

        Of all windows that hold a token of a context, that is the one with the highest `min(tokens to the left, tokens
        to the right) + 0.01 * length`, the first if several have it (Google's BERT code).

        Returns:
            bool (C,), for all windows one after another: every token of a context is true in one of its windows.
        """
        begins, lengths = self.windows
        window = np.repeat(np.arange(len(self)), lengths)  # (C,)
        alone = np.bincount(self.examples)[self.examples] == 1 if len(self) else np.ones(0, bool)  # (w,)
        result = alone[window]
        token = _ranges(begins, lengths)  # (C,)
        several = np.flatnonzero(~result)
        window, token = window[several], token[several]
        left = token - begins[window]
        score = np.minimum(left, lengths[window] - 1 - left) + 0.01 * lengths[window]
        order = np.lexsort((window, -score, token, self.examples[window]))
        best = np.ones(len(order), bool)
        # Also where one example ends: its last token is not the next one's first, as there are several windows.
        best[1:] = np.diff(token[order]) != 0
        result[several[order[best]]] = True
        return result

    def positions(self, answers: np.ndarray) -> np.ndarray:
        """Answers as the model learns them: the first and the last token within each window.

        Args:
            answers: int64 (n, 2), start and end of each example's answer in its context; start == end for none.

        Returns:
            int32 (w, 2). A window that does not hold the whole of the answer points at the row's first token, twice.

        Raises:
            ValueError: naming the first example of whose answer the tokenizer keeps nothing.
        """
        found = np.zeros((len(self.contexts), 2), "int64")  # the first and the last of `tokens`
        found[:, 1] = -1
        for i in np.flatnonzero(answers[:, 0] < answers[:, 1]).tolist():
            (begin, end), (first, after) = answers[i], self.pieces[i]
            starts, ends = self.spans[first:after].T
            inside = np.flatnonzero((starts < end) & (ends > begin))
            if not len(inside):
                raise ValueError(
                    f"The answer of example {i}, {self.contexts[i][begin:end]!r:.60}, holds nothing that the tokenizer "
                    "keeps."
                )
            found[i] = first + inside[[0, -1]]
        first, last = found[self.examples].T  # (w,), (w,)
        begins, lengths = self.windows
        inside = (begins <= first) & (first <= last) & (last < begins + lengths)
        relative = np.stack([first, last], axis=1) - (begins - self.second)[:, None]  # (w, 2)
        return np.where(inside[:, None], relative, 0).astype("int32")


def encode_windows(
    preprocessor: Preprocessor,
    questions: Sequence[Any],
    contexts: Sequence[Any],
    doc_stride: int = 128,
    max_question_length: int = 64,
) -> EncodedWindows:
    """Tokenises questions and contexts, and cuts the contexts into windows that fit beside their questions.

    A window begins `doc_stride` tokens after the one before it, or as many as it has room for if that is less; the
    last one ends with the context (Google's BERT code). An empty context has one window. Equal texts are tokenised
    once.

    Args:
        preprocessor: tokenizer, packing and `sequence_length`, the longest row.
        questions: n strings, or lists of words if the tokenizer `takes_words`.
        contexts: n of the same.
        doc_stride: int.
        max_question_length: int, questions of more tokens are cut at their ends, with one warning per call.

    Raises:
        TypeError: naming the position of an entry that is not text.
        ValueError: if there are not as many contexts as questions, or naming an example whose question leaves no room
            for its context.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.text.windows import encode_windows

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "who", "ada", "met", "bob", "and", "eve"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    preprocessor = Preprocessor(tokenizer, packing, sequence_length=8)
    encoded = encode_windows(preprocessor, ["Who?"], ["Ada met Bob and Eve"], doc_stride=2)
    encoded.examples  # [0, 0]: the question stands beside "Ada met Bob" and "Bob and Eve"
    ```
    """
    tokenizer, packing = preprocessor.tokenizer, preprocessor.packing
    columns = clean_columns({"questions": questions, "contexts": contexts}, tokenizer.takes_words)
    if len(columns[0]) != len(columns[1]):
        raise ValueError(f"Expected a context for each question, got {len(columns[0])} and {len(columns[1])}.")
    (questions, question_of), (contexts, context_of) = map(_unique, columns)
    special = [[packing.start] if packing.start else [], packing.between, [packing.end] if packing.end else []]
    start, between, end = ([tokenizer.token_to_id(token) for token in tokens] for tokens in special)
    asked = tokenizer.tokenize(questions)
    read, spans = tokenizer.tokenize_with_spans(contexts)
    segments = [start, between, end, *asked, *read]
    sizes = np.array([len(segment) for segment in segments], "int64")
    places = np.cumsum(sizes) - sizes
    tokens = tokenizer.as_array(itertools.chain.from_iterable(segments), int(sizes.sum()))
    question_of, context_of = question_of + 3, context_of + 3 + len(questions)  # as indices of `segments`

    lengths = np.minimum(sizes[question_of], max_question_length)  # (n,)
    if cut := int(np.sum(lengths < sizes[question_of])):
        warn(f"{cut} of {len(lengths)} questions were cut to {max_question_length} tokens (`max_question_length`).")
    overhead = packing.overhead(pair=True)
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
    begin = _ranges(np.zeros_like(number), number) * stride[examples]
    count = np.minimum(room[examples], total[examples] - begin)
    parts = [
        (0, sizes[0]),
        (places[question_of][examples], lengths[examples]),
        (places[1], sizes[1]),
        (places[context_of][examples] + begin, count),
        (places[2], sizes[2]),
    ]
    begins, counts = (np.stack([np.broadcast_to(p[k], len(examples)) for p in parts], axis=1) for k in (0, 1))
    pieces = places[context_of][:, None] + np.stack([np.zeros_like(total), total], axis=1)
    nowhere = np.zeros((len(tokens) - len(spans), 2), "int64")
    strings = [text if isinstance(text, str) else " ".join(text) for text in columns[1]]
    return EncodedWindows(tokens, np.concatenate([nowhere, spans]), begins, counts, examples, pieces, tuple(strings))


def _unique(texts: Sequence[Any]) -> tuple[list[Any], np.ndarray]:
    """The different texts, and for each text which of them it is: int64 (n,)."""
    places: dict[Any, int] = {}
    keys = (text if isinstance(text, str) else tuple(text) for text in texts)
    index = [places.setdefault(key, len(places)) for key in keys]
    return list(places), np.array(index, "int64")


def _ranges(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """All of `range(begin, begin + count)`, one after another."""
    ends = np.cumsum(counts)
    return np.repeat(begins - ends + counts, counts) + np.arange(counts.sum())
