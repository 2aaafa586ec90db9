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

_SPACE_CODE = ord(" ")


class SentencePieceGraph(CutTextsGraph):
    """SentencePiece as TensorFlow ops, for `graph_tokenizer`."""

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        super().__init__(tokenizer, normalize_token=tokenizer.normalizer.normalize_str)
        self._characters = _Expansion(
            {code: [(ord(c),) for c in replacement] for code, replacement in self._changes(tokenizer)}
        )
        # For each token, its id and the numbers of characters from its start and from its end to the end of its piece.
        splits = {}
        for piece, tokens in tokenizer.splits.items():
            sizes = [len(text.lstrip(SPACE)) for text in tokenizer.split_tokens[piece]]
            remaining = [*itertools.accumulate(reversed(sizes), initial=0)][::-1]
            splits[piece] = list(zip(tokens, remaining, remaining[1:], strict=False))
        self._tokens = _Expansion(splits)
        self._blanks = np.array([ord(c) for c in tokenizer.blanks()], "int32")
        self._space = tokenizer.vocabulary.index(SPACE) if SPACE in tokenizer.vocabulary else -1
        self._empty_spaces = tokenizer.empty_spaces
        self._replaces_quotes = tokenizer.replaces_quotes
        self._pieces = tf_text.SentencepieceTokenizer(tokenizer.splitting_model, out_type=tf.int32)

    def _changes(self, tokenizer: SentencePieceTokenizer) -> Iterable[tuple[int, str]]:
        """Return the code points that change before the model's own cleaning, with their replacements."""
        return character_map(tokenizer.lowercase, tokenizer.keep_accents).changes().items()

    def normalize(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        rows = rows_of(codes)
        origins = tf.range(tf.size(codes.values))
        values, origins, row = self._replace(codes.values, tf.stack([origins, origins], axis=1), rows)
        original_codes = tf.gather(codes.values, origins[:, 0])
        # Only `clean` turns these separators into spaces; `tokenizers` does not normalize them.
        values = tf.where((original_codes >= 0x1C) & (original_codes <= 0x1F), original_codes, values)
        return tf.RaggedTensor.from_value_rowids(values, row, codes.nrows(), validate=False), origins[:, 0]

    def clean(self, texts: tf.Tensor) -> tf.Tensor:
        """Clean texts, `tf.string` (n,), as `lmzoo.text.tokenizers.sentencepiece_text.clean` does."""
        return tf.strings.unicode_encode(self._letters(texts)[0], "UTF-8")

    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.plain_spans(texts)[0]

    def plain_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        letters, origins = self._letters(texts)
        pieces, start, end = self._pieces.tokenize_with_offsets(tf.strings.unicode_encode(letters, "UTF-8"))
        part = rows_of(pieces)  # (q,)
        start, end = self._characters_of(letters, pieces, start.values, end.values)  # (q,), indices of `letters.values`
        source, entry = self._tokens(pieces.values)  # (t,)
        is_split = entry >= 0
        entry = tf.maximum(entry, 0)
        ids, to_start, to_end = (column[:, 0] for column in tf.split(tf.gather(self._tokens.values, entry), 3, axis=1))
        part, start, end = (tf.gather(values, source) for values in (part, start, end))
        ids = tf.where(is_split, ids, tf.gather(pieces.values, source))
        start = tf.where(is_split, end - tf.cast(to_start, tf.int64), start)
        end = tf.where(is_split, end - tf.cast(to_end, tf.int64), end)
        # An empty token has the place of the next character.
        at_end = start == tf.gather(letters.row_limits(), part)
        origin_starts = origins[:, 0]
        origin_ends = origins[:, 1]
        length = tf.strings.length(texts, "UTF8_CHAR")
        first = tf.where(at_end, tf.gather(length, part), tf.gather(_append_zero(origin_starts), start))
        last = tf.where(start == end, first, tf.gather(_append_zero(origin_ends), tf.maximum(end - 1, 0)))
        ragged_ids = tf.RaggedTensor.from_value_rowids(ids, part, letters.nrows(), validate=False)
        return ragged_ids, ragged_ids.with_values(tf.stack([first, last], axis=1))

    def _letters(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Return the cleaned characters of texts, int32 (n, None), and the offsets of each, int32 (l, 2)."""
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        offsets = indices_in_rows(codes)
        offsets = tf.stack([offsets, offsets + 1], axis=1)
        values, offsets, row = self._squeeze(*self._replace(codes.values, offsets, rows_of(codes)))
        return tf.RaggedTensor.from_value_rowids(values, row, codes.nrows(), validate=False), offsets

    def _replace(self, codes: tf.Tensor, place: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replace quotes and characters as `lmzoo.text.tokenizers.sentencepiece_text.clean` does.

        Args:
            codes: int32 (c,), characters of all texts.
            place: int32 (c, 2), offsets of their origins.
            part: int (c,), index of the text of each character, rising.
        """
        if self._replaces_quotes:
            codes, place, part = _join_quotes(codes, place, part)
        codes, source, _ = self._characters.replace(codes)
        return codes, tf.gather(place, source), tf.gather(part, source)

    def _squeeze(self, codes: tf.Tensor, offsets: tf.Tensor, part: tf.Tensor) -> list[tf.Tensor]:
        """Remove spaces after other spaces, and at both ends of texts."""
        is_space = codes == _SPACE_CODE
        # After another space, or at the start of a text.
        is_extra = is_space & (shift(is_space, 1, True) | (shift(part, 1, -1) != part))
        codes, offsets, part = without(is_extra, codes, offsets, part)
        return without((codes == _SPACE_CODE) & (shift(part, -1, -1) != part), codes, offsets, part)

    def _characters_of(
        self, letters: tf.RaggedTensor, pieces: tf.RaggedTensor, start: tf.Tensor, end: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Convert byte offsets in parts to indices of `letters.values`, int64 (q,), without leading spaces."""
        codes = letters.values  # (l,)
        letter_ends = ends_in_bytes(codes)  # (l,)
        base = tf.gather(tf.concat([[0], letter_ends], axis=0), tf.gather(letters.row_starts(), rows_of(pieces)))
        first = tf.searchsorted(letter_ends, base + tf.cast(start, tf.int64), side="right", out_type=tf.int64)
        last = tf.searchsorted(letter_ends, base + tf.cast(end, tf.int64) - 1, side="right", out_type=tf.int64) + 1
        is_nonspace = ~tf.reduce_any(codes[:, None] == self._blanks, axis=1)  # (l,)
        first = first_from(is_nonspace, first)
        # If a character becomes several, SentencePiece assigns it to the last of their pieces.
        last = tf.maximum(last, first + 1)
        if self._empty_spaces:
            last = tf.where(pieces.values == self._space, first, last)
        limit = tf.gather(letters.row_limits(), rows_of(pieces))
        return tf.minimum(first, limit), tf.minimum(last, limit)


class _Expansion(tf.Module):
    """Lookup table from integers to lists of rows, each of k integers.

    Args:
        changes: dict from integers to lists of tuples of k integers.
    """

    def __init__(self, changes: Mapping[int, Sequence[tuple[int, ...]]]) -> None:
        super().__init__()
        keys = sorted(changes)
        rows = [row for key in keys for row in changes[key]]
        self.values = np.array(rows or [(0, 0, 0)], "int32")  # (r, k)
        self._keys = np.array(keys or [EDGE], "int32")
        self._lengths = np.array([len(changes[key]) for key in keys] or [1], "int32")
        self._begins = np.cumsum(self._lengths) - self._lengths

    def __call__(self, integers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Look up integers, int32 (c,).

        Returns:
            For each of the d results: the index of its origin, int32 (d,), and its row of `values`, int32 (d,), or -1
            for an integer that does not change.
        """
        has_entry, key_index = find(self._keys, integers)  # (c,)
        length = tf.where(has_entry, tf.gather(self._lengths, key_index), 1)  # (c,)
        begin = tf.where(has_entry, tf.cast(tf.gather(self._begins, key_index), tf.int32), -1)  # (c,)
        source = repeat(tf.range(tf.size(integers)), length)  # (d,)
        return source, tf.ragged.range(begin, begin + length).values

    def replace(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replace code points, int32 (c,), by the integers of their rows; keep code points without an entry.

        Returns:
            The results, int32 (d,); the index of each result's origin, int32 (d,); and the index of each result among
            the results with the same origin, int32 (d,).
        """
        source, entry = self(codes)
        results = tf.where(entry >= 0, tf.gather(self.values[:, 0], tf.maximum(entry, 0)), tf.gather(codes, source))
        follows = shift(source, 1, -1) == source  # (d,)
        index = tf.range(tf.size(source))
        first = tf.boolean_mask(index, ~follows)  # (firsts,)
        return results, source, index - tf.gather(first, tf.cumsum(tf.cast(~follows, tf.int32)) - 1)


def find(keys: np.ndarray, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return whether each value is among the sorted keys, bool (c,), and if so its index there, int32 (c,)."""
    index = tf.minimum(tf.searchsorted(keys, values), len(keys) - 1)
    return tf.gather(keys, index) == values, index


def _join_quotes(codes: tf.Tensor, place: tf.Tensor, part: tf.Tensor) -> list[tf.Tensor]:
    """Replace each pair of equal quotes by one double quote."""
    is_quote = tf.reduce_any(codes[:, None] == [ord(quotes[0]) for quotes in QUOTES], axis=1)  # (c,)
    continues_run = is_quote & (shift(codes, 1, EDGE) == codes) & (shift(part, 1, -1) == part)
    run_starts = tf.where(~continues_run)[:, 0]  # a character that is not a quote is a run of its own
    index_in_run = tf.range(tf.size(codes, tf.int64)) - tf.gather(
        run_starts, tf.cumsum(tf.cast(~continues_run, tf.int32)) - 1
    )
    is_second = index_in_run % 2 == 1  # (c,)
    is_first = shift(is_second, -1, False)
    codes = tf.where(is_first, ord('"'), codes)
    place += tf.cast(is_first, tf.int32)[:, None] * [0, 1]
    return without(is_second, codes, place, part)


def without(drop: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
    """Return each of `values`, (c, ...), without the entries where `drop`, bool (c,), is true."""
    return [tf.boolean_mask(array, ~drop) for array in values]


def _append_zero(values: tf.Tensor) -> tf.Tensor:
    """Append a zero to values, (c,)."""
    return tf.pad(values, [[0, 1]])


graph_tokenizer.register(SentencePieceTokenizer, SentencePieceGraph)
