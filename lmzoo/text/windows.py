"""Overlapping windows over long contexts, each packed with its question, for extractive question answering.

Shapes: n examples, w windows, N stored tokens, C context tokens in all windows together.
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
        counts: int64 (w, 5), number of tokens in each part.
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
        """Number of tokens of each sequence: int64 (w,)."""
        return self.counts.sum(axis=1)

    @property
    def second(self) -> np.ndarray:
        """Index of the window's first token within the sequence: int64 (w,)."""
        return self.counts[:, :_CONTEXT].sum(axis=1)

    @property
    def windows(self) -> tuple[np.ndarray, np.ndarray]:
        """Start of each window in `tokens`, and its number of tokens: two int64 (w,)."""
        return self.begins[:, _CONTEXT], self.counts[:, _CONTEXT]

    def select(self, indices: Indices) -> EncodedWindows:
        """Return the windows at `indices`, int (m,), in that order, with all examples and contexts."""
        indices = np.asarray(indices, "int64")
        return replace(self, begins=self.begins[indices], counts=self.counts[indices], examples=self.examples[indices])

    def of_example(self, example: int) -> tuple[np.ndarray, EncodedWindows]:
        """Return the windows of one example: their indices, int64 (m,), and the windows alone."""
        indices = np.flatnonzero(self.examples == example)
        windows = replace(
            self.select(indices),
            examples=np.zeros(len(indices), "int64"),
            context_bounds=self.context_bounds[[example]],
            contexts=(self.contexts[example],),
        )
        return indices, windows

    def cut_before(self, index: int) -> int:
        """Return the index of the first window of the example that the window at `index` belongs to."""
        return int(np.argmax(self.examples == self.examples[index]))

    def packed(self, indices: Indices) -> EncodedTexts:
        """Return the windows at `indices`, int (b,), as packed sequences for `Preprocessor.features`."""
        selection = self.select(indices)
        token_indices = ranges(selection.begins.ravel(), selection.counts.ravel())
        splits = np.concatenate([[0], np.cumsum(selection.lengths)])
        return EncodedTexts(self.tokens[token_indices], splits, selection.second.astype("int32"))

    def max_context(self) -> np.ndarray:
        """Return, for each context token of each window, whether this window gives it the most context: bool (C,).

        See `has_most_context`.
        """
        return has_most_context(self.examples, *self.windows)

    def positions(self, answers: np.ndarray) -> np.ndarray:
        """Return the training targets: the first and last token of the answer within each window.

        Args:
            answers: int64 (n, 2), start and end of each example's answer in its context; start == end for no answer.

        Returns:
            int32 (w, 2). If a window lacks a part of the answer, both are the first token of the sequence.

        Raises:
            ValueError: If the tokenizer drops all of an answer; the message names the first such example.
        """
        answer_tokens = np.zeros((len(self.contexts), 2), "int64")  # indices of `tokens`, first and last
        answer_tokens[:, 1] = -1
        for i in np.flatnonzero(answers[:, 0] < answers[:, 1]).tolist():
            begin, end = answers[i]
            first, after = self.context_bounds[i]
            starts, ends = self.spans[first:after].T
            overlapping = np.flatnonzero((starts < end) & (ends > begin))
            if not len(overlapping):
                raise ValueError(
                    f"The answer of example {i}, {self.contexts[i][begin:end]!r:.60}, contains nothing that the "
                    "tokenizer keeps."
                )
            answer_tokens[i] = first + overlapping[[0, -1]]
        first, last = answer_tokens[self.examples].T  # (w,), (w,)
        begins, lengths = self.windows
        has_answer = (begins <= first) & (first <= last) & (last < begins + lengths)
        target_positions = np.stack([first, last], axis=1) - (begins - self.second)[:, None]  # (w, 2)
        return np.where(has_answer[:, None], target_positions, 0).astype("int32")


def encode_windows(
    preprocessor: Preprocessor,
    questions: Sequence[Text],
    contexts: Sequence[Text],
    doc_stride: int = 128,
    max_question_length: int = 64,
) -> EncodedWindows:
    """Tokenize questions and contexts, and split the contexts into windows that fit next to their questions.

    A window begins `doc_stride` tokens after the previous one, or a whole window after it if that is less. The last one
    ends with the context (Google's BERT code). An empty context has one window. Equal texts are tokenized once. A text
    may be a list of words if the tokenizer `takes_words`. Questions longer than `max_question_length` tokens are
    truncated, with one warning per call.

    Raises:
        TypeError: If an entry is not text; the message names its position.
        ValueError: If the numbers of questions and contexts differ, or a question leaves no room for its context; the
            message names the example.

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
    context_tokens, spans = tokenizer.tokenize_with_spans(contexts)
    segments = [*preprocessor.special_ids(), *tokenizer.tokenize(questions), *context_tokens]
    sizes = np.array([len(segment) for segment in segments], "int64")
    starts = np.cumsum(sizes) - sizes
    tokens = tokenizer.as_array(itertools.chain.from_iterable(segments), int(sizes.sum()))
    # From here on, these are indices of `segments`.
    question_of = question_of + 3
    context_of = context_of + 3 + len(questions)

    question_lengths = np.minimum(sizes[question_of], max_question_length)  # (n,)
    if truncated := int(np.sum(question_lengths < sizes[question_of])):
        warn(
            f"{truncated} of {len(question_lengths)} questions were truncated to {max_question_length} tokens "
            "(`max_question_length`)."
        )
    overhead = preprocessor.packing.overhead(pair=True)
    room = preprocessor.sequence_length - question_lengths - overhead  # (n,)
    if (without_room := np.flatnonzero(room < 1)).size:
        raise ValueError(
            f"The question of example {without_room[0]} has {question_lengths[without_room[0]]} tokens; with "
            f"{overhead} special tokens it leaves no room for the context in {preprocessor.sequence_length} "
            "(`sequence_length`). Raise that, or lower `max_question_length`."
        )
    context_lengths = sizes[context_of]  # (n,)
    stride = np.minimum(room, doc_stride)  # (n,)
    window_counts = 1 + np.maximum(0, -(-(context_lengths - room) // stride))  # (n,), windows of each example
    examples = np.repeat(np.arange(len(window_counts)), window_counts)  # (w,)
    begin = ranges(np.zeros_like(window_counts), window_counts) * stride[examples]
    count = np.minimum(room[examples], context_lengths[examples] - begin)
    parts = [
        (0, sizes[0]),
        (starts[question_of][examples], question_lengths[examples]),
        (starts[1], sizes[1]),
        (starts[context_of][examples] + begin, count),
        (starts[2], sizes[2]),
    ]
    begins, counts = (np.stack([np.broadcast_to(p[k], len(examples)) for p in parts], axis=1) for k in (0, 1))
    bounds = starts[context_of][:, None] + np.stack([np.zeros_like(context_lengths), context_lengths], axis=1)
    no_spans = np.zeros((len(tokens) - len(spans), 2), "int64")
    context_strings = [text if isinstance(text, str) else " ".join(text) for text in columns[1]]
    return EncodedWindows(
        tokens, np.concatenate([no_spans, spans]), begins, counts, examples, bounds, tuple(context_strings)
    )


def has_most_context(examples: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return, for each token of each window, whether this window gives it the most context.

    Of the windows that contain a token, the best one has the highest `min(tokens to the left, tokens to the right) +
    0.01 * length`, and is the first one on ties (Google's BERT code).

    Args:
        examples: int64 (w,), the example that each window belongs to, rising.
        begins: int64 (w,), index of each window's first token.
        lengths: int64 (w,), number of tokens of each window.

    Returns:
        bool (C,), window after window. Every token is true in exactly one of its windows.
    """
    window = np.repeat(np.arange(len(examples)), lengths)  # (C,)
    is_only_window = np.bincount(examples)[examples] == 1 if len(examples) else np.ones(0, bool)  # (w,)
    most_context = is_only_window[window]
    token = ranges(begins, lengths)  # (C,)
    ambiguous = np.flatnonzero(~most_context)
    window = window[ambiguous]
    token = token[ambiguous]
    left_context = token - begins[window]
    score = np.minimum(left_context, lengths[window] - 1 - left_context) + 0.01 * lengths[window]
    order = np.lexsort((window, -score, token, examples[window]))
    best = np.ones(len(order), bool)
    # This also holds where one example ends: its last token differs from the first one of the next example.
    best[1:] = np.diff(token[order]) != 0
    most_context[ambiguous[order[best]]] = True
    return most_context


def _unique(texts: Sequence[str | list[str]]) -> tuple[list[Any], np.ndarray]:
    """Return the distinct texts, and the index of each text among them, int64 (n,)."""
    index_by_text: dict[Any, int] = {}
    keys = (text if isinstance(text, str) else tuple(text) for text in texts)
    indices = [index_by_text.setdefault(key, len(index_by_text)) for key in keys]
    return list(index_by_text), np.array(indices, "int64")
