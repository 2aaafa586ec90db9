"""Splitting of long texts into windows, each a packed sequence, and pooling of the windows' results for each text.

Letters in shapes: n texts, w windows of all texts, b texts in a batch, W windows of each text in a batch, T positions
of a window, K outputs of a window, C tokens of all windows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.text.packing import Encoded, EncodedTexts, Indices, ranges, split_at
from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.tokenizers.tokenizer import Token
from lmzoo.text.validate_text import Text, clean_columns, warn
from lmzoo.text.windows import has_most_context

# The maximum number of windows of a text, or "auto" for as many as it needs.
MaxWindows: TypeAlias = Literal["auto"] | int
# The setting of a task; None for texts that are truncated.
Windows: TypeAlias = MaxWindows | None


def check_windows(windows: Windows, stride: int | None) -> None:
    """Check the settings of windows.

    Raises:
        ValueError: If `windows` is neither None nor "auto" nor a positive integer, `stride` is neither None nor a
            positive integer, or `stride` is set without `windows`.
    """
    is_valid = windows is None or (isinstance(windows, str) and windows == "auto") or is_integer(windows, 1)
    require(is_valid, "windows", 'None, "auto" or a positive integer', windows)
    require(stride is None or is_integer(stride, 1), "stride", "None or a positive integer", stride)
    advice = 'Long texts are truncated: pass `windows="auto"` to read them in windows.'
    require(stride is None or windows is not None, "stride", "None without `windows`", stride, advice)


@dataclass(frozen=True)
class WindowedTexts(Encoded):
    """Texts in one or more windows, each a packed sequence; all windows of a text except the last are full.

    Attributes:
        windows: `EncodedTexts`, the w windows of all texts, followed by an empty sequence for missing windows.
        splits: int64 (n + 1,), text i has the windows `splits[i]` to `splits[i + 1] - 1`.
        window_length: int, number of tokens of a full window.
    """

    windows: EncodedTexts
    splits: np.ndarray
    window_length: int

    @property
    def counts(self) -> np.ndarray:
        """Number of windows of each text: int64 (n,)."""
        return np.diff(self.splits)

    @property
    def lengths(self) -> np.ndarray:
        """Padded width that each text needs, int64 (n,): its length, or the full width of several windows."""
        counts = self.counts
        return np.where(counts == 1, self.windows.lengths[self.splits[:-1]], counts * self.window_length)

    @property
    def sequence_splits(self) -> np.ndarray:
        """Boundaries of texts in the tokens of all windows: int64 (n + 1,)."""
        return self.windows.sequence_splits[self.splits]

    @property
    def token_counts(self) -> np.ndarray:
        """Number of tokens in all windows of each text, including special tokens: int64 (n,)."""
        return np.diff(self.sequence_splits)

    def select(self, indices: Indices) -> WindowedTexts:
        indices = np.asarray(indices, "int64")
        counts = self.counts[indices]
        window_indices = ranges(self.splits[indices], counts)
        windows = self.windows.select(np.append(window_indices, len(self.windows) - 1))
        return WindowedTexts(windows, np.concatenate([[0], np.cumsum(counts)]), self.window_length)

    def flat(self) -> EncodedTexts:
        """Return the windows of all texts as w sequences."""
        return self.windows[:-1]

    def by_sequence(self, values: np.ndarray) -> np.ndarray:
        """Split an array with one value per token of all windows into an object array with one array per text."""
        return split_at(values, self.sequence_splits)

    def shape(self, width: int) -> tuple[int, int]:
        """Return the number of windows W of each text, and their padded length T, in batches padded to `width`."""
        return max(1, width // self.window_length), min(width, self.window_length)

    def features(self, preprocessor: Preprocessor, indices: np.ndarray, width: int) -> dict[str, np.ndarray]:
        """Return the inputs of the backbone for the windows of the texts at `indices`: arrays (b, W, T, ...).

        They are the features of `Preprocessor.features`; missing windows are padding.
        """
        num_windows, length = self.shape(width)
        window_indices = np.arange(num_windows)  # (W,)
        exists = window_indices < self.counts[indices][:, None]  # (b, W)
        rows = np.where(exists, self.splits[indices][:, None] + window_indices, len(self.windows) - 1)  # (b, W)
        flat_features = preprocessor.features(self.windows, rows.ravel(), length)  # (b·W, T, ...)
        return {name: values.reshape(*rows.shape, *values.shape[1:]) for name, values in flat_features.items()}

    def pool(self, outputs: np.ndarray, pooling: str) -> np.ndarray:
        """Return the mean or maximum of outputs over the windows of each text: float (n, K).

        The mean is weighted by the windows' numbers of tokens.

        Args:
            outputs: float (w, K), outputs of the windows.
            pooling: "mean" or "max".
        """
        starts = self.splits[:-1]
        if pooling == "max":
            return np.maximum.reduceat(outputs, starts, axis=0)  # (n, K)
        weights = np.maximum(self.flat().lengths, 1).astype("float32")  # (w,)
        fractions = weights / np.repeat(np.add.reduceat(weights, starts), self.counts)  # (w,)
        return np.add.reduceat(outputs * fractions[:, None], starts, axis=0)  # (n, K)

    def lay_out(self, outputs: np.ndarray) -> np.ndarray:
        """Put the outputs of the windows of each text side by side: (n, W·T, ...).

        Missing windows are filled with zeros. If each text has one window, `outputs` is returned unchanged.

        Args:
            outputs: (w, T, ...), outputs for each token of the windows.
        """
        max_windows = int(self.counts.max(initial=1))
        if max_windows == 1:
            return outputs
        text_indices = np.repeat(np.arange(len(self)), self.counts)  # (w,)
        window_indices = ranges(np.zeros(len(self), "int64"), self.counts)  # (w,)
        shape = (len(self), max_windows, self.window_length, *outputs.shape[2:])
        joined_outputs = np.zeros(shape, outputs.dtype)  # (n, W, T, ...)
        joined_outputs[text_indices, window_indices, : outputs.shape[1]] = outputs
        return joined_outputs.reshape(len(self), -1, *outputs.shape[2:])


@dataclass(frozen=True)
class WindowedWords(WindowedTexts):
    """Texts tokenized word by word, in windows; each token belongs to the window that gives it the most context.

    Attributes:
        texts: tuple of n strings; a text that was a list of words is joined by spaces.
        words: for each text, a tuple of `(word, start, end)`; offsets count characters.
        first: int64 (total words,), position of each word's first token in the windows of its text side by side; -1
            for words that were truncated.
        positions: int64 (total tokens,), position of each token in the windows of its text side by side, text after
            text; -1 for truncated tokens.
        token_splits: int64 (n + 1,), boundaries of texts in `positions`.
    """

    texts: tuple[str, ...]
    words: tuple[tuple[tuple[str, int, int], ...], ...]
    first: np.ndarray
    positions: np.ndarray
    token_splits: np.ndarray

    @property
    def word_splits(self) -> np.ndarray:
        """Boundaries of texts in `first`: int64 (n + 1,)."""
        return np.cumsum([0, *map(len, self.words)])

    def token_positions(self, i: int) -> np.ndarray:
        """Return the positions of the tokens of text `i`, without truncated tokens: int64 (t,)."""
        positions = self.positions[self.token_splits[i] : self.token_splits[i + 1]]
        return positions[positions >= 0]


@dataclass(frozen=True)
class _Placement:
    """Windows over the tokens of texts.

    Attributes:
        text: int64 (w,), index of the text of each window, non-decreasing.
        index: int64 (w,), index of the window in its text.
        begin: int64 (w,), index of the window's first token in its text.
        count: int64 (w,), number of tokens of the window.
        splits: int64 (n + 1,), text i has the windows `splits[i]` to `splits[i + 1] - 1`.
    """

    text: np.ndarray
    index: np.ndarray
    begin: np.ndarray
    count: np.ndarray
    splits: np.ndarray


def _place_windows(
    totals: np.ndarray, room: np.ndarray, stride: np.ndarray, windows: MaxWindows, sequence_length: int
) -> _Placement:
    """Place windows over texts, and warn if some texts have more windows than allowed.

    Args:
        totals: int64 (n,), number of tokens of each text.
        room: int64 (n,), number of tokens of a full window of each text.
        stride: int64 (n,), number of tokens from the start of a window to the start of the next.
        windows: maximum number of windows of a text, or "auto" for as many as it needs.
        sequence_length: int, maximum number of tokens of a sequence, for the warning.
    """
    window_counts = 1 + np.maximum(0, -((room - totals) // stride))  # (n,), rounded up
    if windows != "auto":
        if num_truncated := int((window_counts > windows).sum()):
            warn(
                f"{num_truncated} of {len(window_counts)} texts were truncated to {windows} windows of "
                f"{sequence_length} tokens (`windows`)."
            )
        window_counts = np.minimum(window_counts, windows)
    text_indices = np.repeat(np.arange(len(window_counts)), window_counts)  # (w,)
    window_indices = ranges(np.zeros_like(window_counts), window_counts)  # (w,)
    begins = window_indices * stride[text_indices]
    lengths = np.minimum(room[text_indices], totals[text_indices] - begins)
    return _Placement(text_indices, window_indices, begins, lengths, np.concatenate([[0], np.cumsum(window_counts)]))


def encode_in_windows(
    preprocessor: Preprocessor,
    texts: Sequence[Text],
    pairs: Sequence[Text] | None = None,
    windows: MaxWindows = "auto",
    stride: int | None = None,
    prompt: str = "",
) -> WindowedTexts:
    """Tokenize texts, and pack each into as many windows as it needs.

    A window begins `stride` tokens after the beginning of the previous window, or directly after the previous window
    if that is earlier. The last window ends with the text. A text that fits into a sequence has one window, the
    sequence of `Preprocessor.encode`. Of a pair, the longer text is split, the second text on ties, and each window
    holds the whole shorter text. If the shorter text takes more than half of the room, it is truncated to half, with
    one warning per call.

    Args:
        preprocessor: `lmzoo.text.Preprocessor`.
        texts: n strings; a text may also be a list of words if the tokenizer `takes_words`.
        pairs: n second texts, or None.
        windows: maximum number of windows of a text; "auto" for no maximum. Longer texts are truncated, with one
            warning per call.
        stride: int, number of tokens from the beginning of a window to the next; None for windows that do not overlap.
        prompt: str, the beginning of each first text, which is repeated in each window of the text.

    Raises:
        TypeError: If an entry is not text; the message names its position.
        ValueError: If `texts` and `pairs` differ in number, `sequence_length` leaves no room for text, or
            `check_windows` refuses `windows` or `stride`.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.text.long_texts import encode_in_windows

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "ada", "met", "bob", "and", "eve"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    preprocessor = Preprocessor(tokenizer, packing, sequence_length=5)
    encode_in_windows(preprocessor, ["Ada met Bob and Eve", "Ada"]).counts  # [2, 1]
    ```
    """
    check_windows(windows, stride)
    tokenizer = preprocessor.tokenizer
    columns = {"texts": texts} if pairs is None else {"texts": texts, "pairs": pairs}
    first, *second_columns = (tokenizer.tokenize(column) for column in clean_columns(columns, tokenizer.takes_words))
    second = second_columns[0] if second_columns else [[]] * len(first)
    if len(first) != len(second):
        raise ValueError(f"Pairs need as many second texts as first: got {len(first)} and {len(second)}.")
    first_lengths, second_lengths = (np.array([*map(len, column)], "int64") for column in (first, second))
    budget = preprocessor.room(pair=pairs is not None)
    splits_first = first_lengths > second_lengths  # (n,)
    shorter_lengths = np.minimum(first_lengths, second_lengths)
    kept_shorter_lengths = np.minimum(shorter_lengths, budget // 2)  # (n,), at most half a window
    if num_truncated := int((kept_shorter_lengths < shorter_lengths).sum()):
        warn(
            f"{num_truncated} of {len(first)} pairs hold two long texts; the shorter one was truncated to "
            f"{budget // 2} tokens, half of a window."
        )
    prompt_lengths = np.where(
        splits_first, _count_prompt_tokens(tokenizer.tokenize([prompt])[0] if prompt else [], first), 0
    )
    prompt_lengths = np.minimum(prompt_lengths, budget - kept_shorter_lengths - 1)  # (n,)
    room = budget - kept_shorter_lengths - prompt_lengths  # (n,)
    strides = room if stride is None else np.minimum(room, stride)
    totals = np.maximum(first_lengths, second_lengths) - prompt_lengths
    placement = _place_windows(totals, room, strides, windows, preprocessor.sequence_length)
    firsts = []
    seconds = []
    for i, begin, count in zip(
        placement.text.tolist(), placement.begin.tolist(), placement.count.tolist(), strict=True
    ):
        begin += prompt_lengths[i]
        if splits_first[i]:
            firsts.append(first[i][: prompt_lengths[i]] + first[i][begin : begin + count])
            seconds.append(second[i][: kept_shorter_lengths[i]])
        else:
            firsts.append(first[i][: kept_shorter_lengths[i]])
            seconds.append(second[i][begin : begin + count])
    packed_windows = preprocessor.pack(firsts, None if pairs is None else seconds)
    return WindowedTexts(_append_empty(packed_windows), placement.splits, preprocessor.sequence_length)


def encode_words_in_windows(
    preprocessor: Preprocessor,
    texts: Sequence[str | Sequence[str]],
    windows: MaxWindows = "auto",
    stride: int | None = None,
) -> WindowedWords:
    """Tokenize texts word by word, and pack each into as many windows as it needs.

    Windows are placed as by `encode_in_windows`, but overlap by half if there is no `stride`. Each token belongs to
    the window that gives it the most context; see `lmzoo.text.windows.has_most_context`.

    Args:
        preprocessor: `lmzoo.text.Preprocessor`.
        texts: n lists of words, or strings, which `lmzoo.text.word_splitting.split_words` splits.
        windows: maximum number of windows of a text; "auto" for no maximum. Longer texts are truncated, with one
            warning per call.
        stride: int, number of tokens from the start of a window to the start of the next; None for half a window.

    Raises:
        TypeError: If a text or a word is not a string; the message names its position.
        ValueError: If `sequence_length` leaves no room for text, or `check_windows` refuses `windows` or `stride`.
    """
    check_windows(windows, stride)
    joined_texts, words, ids = preprocessor.tokenize_words(texts)
    tokens = [[*itertools.chain.from_iterable(word_ids)] for word_ids in ids]
    totals = np.array([*map(len, tokens)], "int64")  # (n,)
    room = np.full_like(totals, preprocessor.room())
    strides = np.minimum(room, halve_window(preprocessor) if stride is None else stride)
    placement = _place_windows(totals, room, strides, windows, preprocessor.sequence_length)
    slices = zip(placement.text.tolist(), placement.begin.tolist(), placement.count.tolist(), strict=True)
    packed_windows = preprocessor.pack([tokens[i][begin : begin + count] for i, begin, count in slices])
    token_splits = np.concatenate([[0], np.cumsum(totals)])
    window_begins = token_splits[placement.text] + placement.begin  # (w,), among the tokens of all texts
    most_context = has_most_context(placement.text, window_begins, placement.count)
    token_indices = ranges(window_begins, placement.count)  # (C,)
    # Position of the window's first token in the windows of its text side by side.
    window_offsets = placement.index * preprocessor.sequence_length + bool(preprocessor.packing.start)  # (w,)
    window_positions = np.repeat(window_offsets - window_begins, placement.count) + token_indices  # (C,)
    positions = np.full(token_splits[-1], -1, "int64")
    positions[token_indices[most_context]] = window_positions[most_context]
    word_lengths = np.array([len(word) for word_ids in ids for word in word_ids], "int64")
    first_positions = positions[np.cumsum(word_lengths) - word_lengths]
    return WindowedWords(
        _append_empty(packed_windows),
        placement.splits,
        preprocessor.sequence_length,
        joined_texts,
        words,
        first_positions,
        positions,
        token_splits,
    )


def halve_window(preprocessor: Preprocessor) -> int:
    """Return half the number of tokens in a window of a single text, rounded up: the default `stride` for words."""
    return (preprocessor.room() + 1) // 2


def _count_prompt_tokens(prompt: Sequence[Token], texts: Sequence[Sequence[Token]]) -> np.ndarray:
    """Return the length of the common prefix of each text and the prompt, in tokens: int64 (n,).

    It may be shorter than the prompt, whose last characters may form a token with the beginning of the text.
    """
    lengths = np.zeros(len(texts), "int64")
    for i, tokens in enumerate(texts if prompt else ()):
        pairs = zip(prompt, tokens, strict=False)
        lengths[i] = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return lengths


def _append_empty(packed: EncodedTexts) -> EncodedTexts:
    """Append an empty sequence to packed sequences."""
    splits = np.append(packed.sequence_splits, packed.sequence_splits[-1])
    return EncodedTexts(packed.token_ids, splits, np.append(packed.second, np.int32(0)))
