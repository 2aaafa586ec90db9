"""SentencePiece as TensorFlow ops."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from lmzoo.text.graphs.added_tokens import CutTextsGraph
from lmzoo.text.graphs.token_ops import EDGE, ends_in_bytes, first_from, indices_in_rows, repeat, rows_of, shift
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.tokenizers.sentencepiece import SPACE, SentencePieceTokenizer
from lmzoo.text.tokenizers.sentencepiece_text import QUOTES, character_map

_BLANK = ord(" ")


class SentencePieceGraph(CutTextsGraph):
    """See `lmzoo.text.graphs.graph_tokenizer`."""

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        super().__init__(tokenizer, normalize_token=tokenizer.normalizer.normalize_str)
        self._characters = _Expansion({code: [(ord(c),) for c in after] for code, after in self._changes(tokenizer)})
        # Tokens, and the numbers of characters from the start and the end of each to the end of its piece.
        splits = {}
        for piece, tokens in tokenizer.splits.items():
            sizes = [len(text.lstrip(SPACE)) for text in tokenizer.split_tokens[piece]]
            left = [*itertools.accumulate(reversed(sizes), initial=0)][::-1]
            splits[piece] = list(zip(tokens, left, left[1:], strict=False))
        self._tokens = _Expansion(splits)
        self._blanks = np.array([ord(c) for c in tokenizer.blanks()], "int32")
        self._space = tokenizer.vocabulary.index(SPACE) if SPACE in tokenizer.vocabulary else -1
        self._empty_spaces = tokenizer.empty_spaces
        self._replaces_quotes = tokenizer.replaces_quotes
        self._pieces = tf_text.SentencepieceTokenizer(tokenizer.splitting_model, out_type=tf.int32)

    def _changes(self, tokenizer: SentencePieceTokenizer) -> Iterable[tuple[int, str]]:
        """Return the code points that change before the model cleans texts, with what replaces each."""
        return character_map(tokenizer.lowercase, tokenizer.keep_accents).changes().items()

    def normalize(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        rows = rows_of(codes)
        place = tf.range(tf.size(codes.values))
        values, place, row = self._replace(codes.values, tf.stack([place, place], axis=1), rows)
        before = tf.gather(codes.values, place[:, 0])
        values = tf.where((before >= 0x1C) & (before <= 0x1F), before, values)  # which cleaning makes spaces
        return tf.RaggedTensor.from_value_rowids(values, row, codes.nrows(), validate=False), place[:, 0]

    def clean(self, texts: tf.Tensor) -> tf.Tensor:
        """Clean texts, `tf.string` (n,), as `lmzoo.text.tokenizers.sentencepiece_text.clean`."""
        return tf.strings.unicode_encode(self._letters(texts)[0], "UTF-8")

    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.plain_spans(texts)[0]

    def plain_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        letters, place = self._letters(texts)
        pieces, start, end = self._pieces.tokenize_with_offsets(tf.strings.unicode_encode(letters, "UTF-8"))
        part = rows_of(pieces)  # (q,)
        start, end = self._characters_of(letters, pieces, start.values, end.values)  # (q,), of all texts
        source, entry = self._tokens(pieces.values)  # (t,)
        entry, split = tf.maximum(entry, 0), entry >= 0
        ids, to_start, to_end = (column[:, 0] for column in tf.split(tf.gather(self._tokens.values, entry), 3, axis=1))
        part, start, end = (tf.gather(values, source) for values in (part, start, end))
        ids = tf.where(split, ids, tf.gather(pieces.values, source))
        start = tf.where(split, end - tf.cast(to_start, tf.int64), start)
        end = tf.where(split, end - tf.cast(to_end, tf.int64), end)
        # An empty token is at the next character.
        at_end = start == tf.gather(letters.row_limits(), part)
        from_, to = place[:, 0], place[:, 1]
        length = tf.strings.length(texts, "UTF8_CHAR")
        first = tf.where(at_end, tf.gather(length, part), tf.gather(_padded(from_), start))
        last = tf.where(start == end, first, tf.gather(_padded(to), tf.maximum(end - 1, 0)))
        found = tf.RaggedTensor.from_value_rowids(ids, part, letters.nrows(), validate=False)
        return found, found.with_values(tf.stack([first, last], axis=1))

    def _letters(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Return the cleaned characters of texts, int32 (n, None), and the originals of each, int32 (l, 2)."""
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        place = indices_in_rows(codes)
        place = tf.stack([place, place + 1], axis=1)
        values, place, row = self._squeeze(*self._replace(codes.values, place, rows_of(codes)))
        return tf.RaggedTensor.from_value_rowids(values, row, codes.nrows(), validate=False), place

    def _replace(self, codes: tf.Tensor, place: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replace quotes and characters, see `lmzoo.text.tokenizers.sentencepiece_text.clean`.

        `codes` (c,) are the characters of all texts, `place` (c, 2) where they come from, and `part` (c,) is rising.
        """
        if self._replaces_quotes:
            codes, place, part = _join_quotes(codes, place, part)
        codes, source, _ = self._characters.replace(codes)
        return codes, tf.gather(place, source), tf.gather(part, source)

    def _squeeze(self, codes: tf.Tensor, place: tf.Tensor, part: tf.Tensor) -> list[tf.Tensor]:
        """Remove the spaces behind another one, and those at the ends of texts."""
        blank = codes == _BLANK
        extra = blank & (shift(blank, 1, True) | (shift(part, 1, -1) != part))  # after another, or at the start
        codes, place, part = without(extra, codes, place, part)
        return without((codes == _BLANK) & (shift(part, -1, -1) != part), codes, place, part)

    def _characters_of(
        self, letters: tf.RaggedTensor, pieces: tf.RaggedTensor, start: tf.Tensor, end: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Convert pieces' bytes within their parts to characters of all parts, int64 (q,), without leading spaces."""
        codes = letters.values  # (l,)
        after = ends_in_bytes(codes)  # (l,)
        base = tf.gather(tf.concat([[0], after], axis=0), tf.gather(letters.row_starts(), rows_of(pieces)))
        first = tf.searchsorted(after, base + tf.cast(start, tf.int64), side="right", out_type=tf.int64)
        last = tf.searchsorted(after, base + tf.cast(end, tf.int64) - 1, side="right", out_type=tf.int64) + 1
        solid = ~tf.reduce_any(codes[:, None] == self._blanks, axis=1)  # (l,)
        first = first_from(solid, first)
        # SentencePiece assigns a character that becomes several ones to the last of their pieces.
        last = tf.maximum(last, first + 1)
        if self._empty_spaces:
            last = tf.where(pieces.values == self._space, first, last)
        limit = tf.gather(letters.row_limits(), rows_of(pieces))
        return tf.minimum(first, limit), tf.minimum(last, limit)


class _Expansion(tf.Module):
    """Replacements of some integers: for each of them any number of rows of k integers."""

    def __init__(self, changes: Mapping[int, Sequence[tuple[int, ...]]]) -> None:
        super().__init__()
        keys = sorted(changes)
        rows = [row for key in keys for row in changes[key]]
        self.values = np.array(rows or [(0, 0, 0)], "int32")  # (r, k)
        self._keys = np.array(keys or [EDGE], "int32")
        self._lengths = np.array([len(changes[key]) for key in keys] or [1], "int32")
        self._begins = np.cumsum(self._lengths) - self._lengths

    def __call__(self, integers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Replace int32 (c,): return each result's origin, an index (d,), and its row of `values`, (d,), or -1."""
        changes, place = find(self._keys, integers)  # (c,)
        length = tf.where(changes, tf.gather(self._lengths, place), 1)  # (c,)
        begin = tf.where(changes, tf.cast(tf.gather(self._begins, place), tf.int32), -1)  # (c,)
        source = repeat(tf.range(tf.size(integers)), length)  # (d,)
        return source, tf.ragged.range(begin, begin + length).values

    def replace(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replace int32 (c,), each by the rows of one integer that it has, or by itself.

        Returns:
            The results, int32 (d,); the index of each one's origin, int32 (d,); and its number among those that replace
            the same one, int32 (d,).
        """
        source, entry = self(codes)
        results = tf.where(entry >= 0, tf.gather(self.values[:, 0], tf.maximum(entry, 0)), tf.gather(codes, source))
        follows = shift(source, 1, -1) == source  # (d,)
        place = tf.range(tf.size(source))
        first = tf.boolean_mask(place, ~follows)  # (firsts,)
        return results, source, place - tf.gather(first, tf.cumsum(tf.cast(~follows, tf.int32)) - 1)


def find(keys: np.ndarray, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return whether each value is among the sorted keys, bool (c,), and if so its place there, int32 (c,)."""
    place = tf.minimum(tf.searchsorted(keys, values), len(keys) - 1)
    return tf.gather(keys, place) == values, place


def _join_quotes(codes: tf.Tensor, place: tf.Tensor, part: tf.Tensor) -> list[tf.Tensor]:
    """Replace each pair of equal quotes by one double quote."""
    quote = tf.reduce_any(codes[:, None] == [ord(quotes[0]) for quotes in QUOTES], axis=1)  # (c,)
    goes_on = quote & (shift(codes, 1, EDGE) == codes) & (shift(part, 1, -1) == part)
    run = tf.where(~goes_on)[:, 0]  # where runs begin; every other character is a run
    offset = tf.range(tf.size(codes, tf.int64)) - tf.gather(run, tf.cumsum(tf.cast(~goes_on, tf.int32)) - 1)
    second = offset % 2 == 1  # (c,)
    first = shift(second, -1, False)
    codes = tf.where(first, ord('"'), codes)
    place += tf.cast(first, tf.int32)[:, None] * [0, 1]
    return without(second, codes, place, part)


def without(drop: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
    """Return values (c, ...) without those where `drop`, bool (c,), is true."""
    return [tf.boolean_mask(array, ~drop) for array in values]


def _padded(values: tf.Tensor) -> tf.Tensor:
    """Return values (c,) and a zero, so that index c is valid."""
    return tf.pad(values, [[0, 1]])


graph_tokenizer.register(SentencePieceTokenizer, SentencePieceGraph)
