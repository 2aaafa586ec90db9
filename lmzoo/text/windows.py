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
        tokens: int32 (N,), or (N, W) if tokens are words of W characters; the ids of the special tokens and of the
            tokens of questions and contexts.
        spans: int64 (N, 2), start and end offset of each context token in its context; zeros for other tokens.
        begins: int64 (w, 5), index in `tokens` at which each of the five parts of a sequence begins: the start token,
            the question, the tokens between question and context, the window, and the end tokens.
        counts: int64 (w, 5), number of tokens in each part.
        examples: int64 (w,), index of the example that each window belongs to.
        context_bounds: int64 (n, 2), indices in `tokens` at which the context of each example begins and ends.
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
        """Start of each window in `tokens`, and its number of tokens: two int64 arrays (w,)."""
        return self.begins[:, _CONTEXT], self.counts[:, _CONTEXT]

    def select(self, indices: Indices) -> EncodedWindows:
        """Return the windows at `indices` in that order, with all examples and contexts."""
        indices = np.asarray(indices, "int64")
        return replace(self, begins=self.begins[indices], counts=self.counts[indices], examples=self.examples[indices])

    def of_example(self, example: int) -> tuple[np.ndarray, EncodedWindows]:
        """Return the indices of one example's windows, int64 (m,), and an `EncodedWindows` of this example alone."""
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
        """Return the windows at `indices` as packed sequences for `Preprocessor.features`."""
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
        """Return the training targets: the positions of the answer's first and last token in each sequence.

        Args:
            answers: int64 (n, 2), offsets of the start and end of each example's answer in its context; equal offsets
                for no answer.

        Returns:
            int32 (w, 2); both positions are 0, the first token of the sequence, if there is no answer or the window
            does not contain the whole answer.

        Raises:
            ValueError: If the tokenizer drops all characters of an answer; the message names the first such example.
        """
        answer_tokens = np.zeros((len(self.contexts), 2), "int64")  # indices in `tokens` of the first and last token
        answer_tokens[:, 1] = -1
        for i in np.flatnonzero(answers[:, 0] < answers[:, 1]).tolist():
            begin, end = answers[i]
            context_begin, context_end = self.context_bounds[i]
            starts, ends = self.spans[context_begin:context_end].T
            overlapping_indices = np.flatnonzero((starts < end) & (ends > begin))
            if not len(overlapping_indices):
                raise ValueError(
                    f"The answer of example {i}, {self.contexts[i][begin:end]!r:.60}, contains nothing that the "
                    "tokenizer keeps."
                )
            answer_tokens[i] = context_begin + overlapping_indices[[0, -1]]
        first_tokens, last_tokens = answer_tokens[self.examples].T  # (w,), (w,)
        begins, lengths = self.windows
        has_answer = (begins <= first_tokens) & (first_tokens <= last_tokens) & (last_tokens < begins + lengths)
        target_positions = np.stack([first_tokens, last_tokens], axis=1) - (begins - self.second)[:, None]  # (w, 2)
        return np.where(has_answer[:, None], target_positions, 0).astype("int32")


def encode_windows(
    preprocessor: Preprocessor,
    questions: Sequence[Text],
    contexts: Sequence[Text],
    doc_stride: int = 128,
    max_question_length: int = 64,
) -> EncodedWindows:
    """Tokenize questions and contexts, and split the contexts into windows that fit next to their questions.

    The stride of the windows is `doc_stride` tokens, but at most the length of a window. The last window ends with the
    context, as in Google's BERT code. An empty context has one window. Equal texts are tokenized once. A text may be a
    list of words if the tokenizer `takes_words`. Questions longer than `max_question_length` tokens are truncated, with
    one warning per call.

    Raises:
        TypeError: If an entry is not text; the message names its position.
        ValueError: If `questions` and `contexts` differ in number, or a question leaves no room for its context; the
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
    (questions, question_indices), (contexts, context_indices) = map(_deduplicate, columns)
    context_tokens, spans = tokenizer.tokenize_with_spans(contexts)
    segments = [*preprocessor.special_ids(), *tokenizer.tokenize(questions), *context_tokens]
    segment_lengths = np.array([len(segment) for segment in segments], "int64")
    segment_starts = np.cumsum(segment_lengths) - segment_lengths
    tokens = tokenizer.as_array(itertools.chain.from_iterable(segments), int(segment_lengths.sum()))
    # From here on, these are indices in `segments`.
    question_indices = question_indices + 3
    context_indices = context_indices + 3 + len(questions)

    question_lengths = np.minimum(segment_lengths[question_indices], max_question_length)  # (n,)
    if num_truncated := int(np.sum(question_lengths < segment_lengths[question_indices])):
        warn(
            f"{num_truncated} of {len(question_lengths)} questions were truncated to {max_question_length} tokens "
            "(`max_question_length`)."
        )
    overhead = preprocessor.packing.overhead(pair=True)
    room = preprocessor.sequence_length - question_lengths - overhead  # (n,)
    if (invalid_examples := np.flatnonzero(room < 1)).size:
        raise ValueError(
            f"The question of example {invalid_examples[0]} has {question_lengths[invalid_examples[0]]} tokens; with "
            f"{overhead} special tokens it leaves no room for the context in {preprocessor.sequence_length} "
            "(`sequence_length`). Raise that, or lower `max_question_length`."
        )
    context_lengths = segment_lengths[context_indices]  # (n,)
    stride = np.minimum(room, doc_stride)  # (n,)
    num_windows = 1 + np.maximum(0, -(-(context_lengths - room) // stride))  # (n,), windows of each example
    examples = np.repeat(np.arange(len(num_windows)), num_windows)  # (w,)
    window_begins = ranges(np.zeros_like(num_windows), num_windows) * stride[examples]
    window_lengths = np.minimum(room[examples], context_lengths[examples] - window_begins)
    starts_and_lengths = [
        (0, segment_lengths[0]),
        (segment_starts[question_indices][examples], question_lengths[examples]),
        (segment_starts[1], segment_lengths[1]),
        (segment_starts[context_indices][examples] + window_begins, window_lengths),
        (segment_starts[2], segment_lengths[2]),
    ]
    begins, counts = (
        np.stack([np.broadcast_to(part[k], len(examples)) for part in starts_and_lengths], axis=1) for k in (0, 1)
    )
    context_bounds = segment_starts[context_indices][:, None] + np.stack(
        [np.zeros_like(context_lengths), context_lengths], axis=1
    )
    empty_spans = np.zeros((len(tokens) - len(spans), 2), "int64")
    context_strings = [text if isinstance(text, str) else " ".join(text) for text in columns[1]]
    return EncodedWindows(
        tokens, np.concatenate([empty_spans, spans]), begins, counts, examples, context_bounds, tuple(context_strings)
    )


def has_most_context(examples: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return, for each token of each window, whether this window gives it the most context.

    Of the windows that contain a token, the best has the highest score `min(tokens to the left, tokens to the right) +
    0.01 * length`; on ties, the first window is the best, as in Google's BERT code.

    Args:
        examples: int64 (w,), index of the example that each window belongs to, non-decreasing.
        begins: int64 (w,), index of each window's first token among the tokens of all examples.
        lengths: int64 (w,), number of tokens of each window.

    Returns:
        bool (C,), for the C tokens of all windows, window after window. Each token of an example is True in exactly one
        window.
    """
    window_indices = np.repeat(np.arange(len(examples)), lengths)  # (C,)
    is_only_window = np.bincount(examples)[examples] == 1 if len(examples) else np.ones(0, bool)  # (w,)
    most_context = is_only_window[window_indices]
    token_indices = ranges(begins, lengths)  # (C,)
    ambiguous_indices = np.flatnonzero(~most_context)
    window_indices = window_indices[ambiguous_indices]
    token_indices = token_indices[ambiguous_indices]
    left_context = token_indices - begins[window_indices]
    scores = np.minimum(left_context, lengths[window_indices] - 1 - left_context) + 0.01 * lengths[window_indices]
    order = np.lexsort((window_indices, -scores, token_indices, examples[window_indices]))
    is_best = np.ones(len(order), bool)
    # This also holds where one example ends: its last token differs from the first token of the next example.
    is_best[1:] = np.diff(token_indices[order]) != 0
    most_context[ambiguous_indices[order[is_best]]] = True
    return most_context


def _deduplicate(texts: Sequence[str | list[str]]) -> tuple[list[Any], np.ndarray]:
    """Return a list of the distinct texts, and the index of each text in this list, int64 (n,)."""
    index_by_text: dict[Any, int] = {}
    keys = (text if isinstance(text, str) else tuple(text) for text in texts)
    indices = [index_by_text.setdefault(key, len(index_by_text)) for key in keys]
    return list(index_by_text), np.array(indices, "int64")
