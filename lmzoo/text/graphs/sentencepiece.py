"""SentencePiece as TensorFlow ops."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from lmzoo.text.graphs.added_tokens import CutTextsGraph
from lmzoo.text.graphs.precompiled_rules import Expansion, PrecompiledRulesGraph
from lmzoo.text.graphs.token_ops import (
    EDGE,
    compute_row_indices,
    ends_in_bytes,
    find_first_from,
    indices_in_rows,
    shift,
)
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.tokenizers.precompiled_rules import precompiled_rules
from lmzoo.text.tokenizers.sentencepiece import SPACE, SentencePieceTokenizer, read_model
from lmzoo.text.tokenizers.sentencepiece_text import QUOTES, WHITE_SPACE, character_map

_SPACE_CODE = ord(" ")
_SEPARATORS = range(0x1C, 0x20)  # whitespace to Python, and to ALBERT's cleaning, but not in Unicode


class SentencePieceGraph(CutTextsGraph):
    """SentencePiece as TensorFlow ops, for `graph_tokenizer`."""

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        super().__init__(tokenizer, normalize_token=tokenizer.normalizer.normalize_str)
        self._characters = Expansion(
            {code: [(ord(c),) for c in replacement] for code, replacement in self._changes(tokenizer)}
        )
        # For each token, its id and the numbers of visible characters of its piece before it and up to its end; for the
        # last token -1, since it ends with the piece.
        splits = {}
        for piece, tokens in tokenizer.splits.items():
            sizes = [len(text.lstrip(SPACE)) for text in tokenizer.split_tokens[piece]]
            ends = [*itertools.accumulate(sizes)]
            splits[piece] = list(zip(tokens, [0, *ends], [*ends[:-1], -1], strict=False))
        self._tokens = Expansion(splits)
        self._blanks = np.array([ord(c) for c in tokenizer.blanks()], "int32")
        self._space = tokenizer.vocabulary.index(SPACE) if SPACE in tokenizer.vocabulary else -1
        self._empty_spaces = tokenizer.empty_spaces
        self._replaces_quotes = tokenizer.replaces_quotes
        if self.is_normalized:
            self._exact_characters = Expansion(
                {code: [(ord(c),) for c in replacement] for code, replacement in self._list_exact_changes(tokenizer)}
            )
            charsmap = read_model(tokenizer.model).normalizer_spec.precompiled_charsmap
            self._rules = PrecompiledRulesGraph(precompiled_rules(charsmap), whitespace=False) if charsmap else None
        self._pieces = tf_text.SentencepieceTokenizer(tokenizer.splitting_model, out_type=tf.int32)

    def _changes(self, tokenizer: SentencePieceTokenizer) -> Iterable[tuple[int, str]]:
        """Return the code points that change before the model's own cleaning, with their replacements."""
        return character_map(tokenizer.lowercase, tokenizer.keep_accents).changes().items()

    def _list_exact_changes(self, tokenizer: SentencePieceTokenizer) -> Iterable[tuple[int, str]]:
        """Return the code points that change before the model's own rules in `SentencePieceTokenizer.normalizer`."""
        return character_map(tokenizer.lowercase, tokenizer.keep_accents).changes(whitespace=False).items()

    def whitespace(self) -> list[int]:
        """Return the code points that become spaces in normalized texts."""
        return [*map(ord, WHITE_SPACE), *_SEPARATORS]

    def normalize(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        origins = tf.range(tf.size(codes.values))
        values, place, row = codes.values, tf.stack([origins, origins], axis=1), compute_row_indices(codes)
        if self._replaces_quotes:
            values, place, row = _join_quotes(values, place, row)
        values, source, _ = self._exact_characters.replace(values)
        place = tf.gather(place, source)
        row = tf.gather(row, source)
        if self._rules is not None:
            values, place, row = self._rules(values, place, row)
        # As in the library, a double quote comes from the last of the quotes that it replaces.
        return tf.RaggedTensor.from_value_rowids(values, row, codes.nrows(), validate=False), place[:, 1]

    def clean(self, texts: tf.Tensor) -> tf.Tensor:
        """Clean texts, `tf.string` (n,), by the rules of `lmzoo.text.tokenizers.sentencepiece_text.clean`."""
        return tf.strings.unicode_encode(self._clean_to_letters(texts)[0], "UTF-8")

    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.plain_spans(texts)[0]

    def plain_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        letters, origins = self._clean_to_letters(texts)
        pieces, start, end = self._pieces.tokenize_with_offsets(tf.strings.unicode_encode(letters, "UTF-8"))
        part = compute_row_indices(pieces)  # (q,)
        is_visible = ~tf.reduce_any(letters.values[:, None] == self._blanks, axis=1)  # (l,)
        # Indices of `letters.values`, (q,).
        start, end = self._locate_characters(letters, is_visible, pieces, start.values, end.values)
        source, entry = self._tokens(pieces.values)  # (t,)
        is_split = entry >= 0
        entry = tf.maximum(entry, 0)
        ids, before, upto = (column[:, 0] for column in tf.split(tf.gather(self._tokens.values, entry), 3, axis=1))
        part, start, end = (tf.gather(values, source) for values in (part, start, end))
        ids = tf.where(is_split, ids, tf.gather(pieces.values, source))
        piece_start = start
        start = tf.where(is_split, tf.minimum(find_first_from(is_visible, piece_start, before), end), start)
        inner_end = tf.minimum(find_first_from(is_visible, piece_start, tf.maximum(upto, 0)), end)
        end = tf.where(is_split & (upto >= 0), inner_end, end)
        # An empty token has the place of the next character.
        at_end = start == tf.gather(letters.row_limits(), part)
        origin_starts = origins[:, 0]
        origin_ends = origins[:, 1]
        length = tf.strings.length(texts, "UTF8_CHAR")
        first = tf.where(at_end, tf.gather(length, part), tf.gather(_append_zero(origin_starts), start))
        last = tf.where(start == end, first, tf.gather(_append_zero(origin_ends), tf.maximum(end - 1, 0)))
        ragged_ids = tf.RaggedTensor.from_value_rowids(ids, part, letters.nrows(), validate=False)
        return ragged_ids, ragged_ids.with_values(tf.stack([first, last], axis=1))

    def _clean_to_letters(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Return the cleaned characters of texts, int32 (n, None), and the offsets of each, int32 (l, 2)."""
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        offsets = indices_in_rows(codes)
        offsets = tf.stack([offsets, offsets + 1], axis=1)
        values = codes.values
        row = compute_row_indices(codes)
        if self.is_normalized:
            values = tf.where(tf.reduce_any(values[:, None] == self.whitespace(), axis=1), _SPACE_CODE, values)
        else:
            values, offsets, row = self._replace(values, offsets, row)
        values, offsets, row = self._squeeze(values, offsets, row)
        return tf.RaggedTensor.from_value_rowids(values, row, codes.nrows(), validate=False), offsets

    def _replace(self, codes: tf.Tensor, place: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replace quotes and characters by the rules of `lmzoo.text.tokenizers.sentencepiece_text.clean`.

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

    def _locate_characters(
        self,
        letters: tf.RaggedTensor,
        is_visible: tf.Tensor,
        pieces: tf.RaggedTensor,
        start: tf.Tensor,
        end: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Convert byte offsets in parts to indices of `letters.values`, int64 (q,), without leading spaces."""
        codes = letters.values  # (l,)
        letter_ends = ends_in_bytes(codes)  # (l,)
        base = tf.gather(
            tf.concat([[0], letter_ends], axis=0), tf.gather(letters.row_starts(), compute_row_indices(pieces))
        )
        first = tf.searchsorted(letter_ends, base + tf.cast(start, tf.int64), side="right", out_type=tf.int64)
        last = tf.searchsorted(letter_ends, base + tf.cast(end, tf.int64) - 1, side="right", out_type=tf.int64) + 1
        first = find_first_from(is_visible, first)
        # If a character becomes several, SentencePiece assigns it to the last of their pieces.
        last = tf.maximum(last, first + 1)
        if self._empty_spaces:
            last = tf.where(pieces.values == self._space, first, last)
        limit = tf.gather(letters.row_limits(), compute_row_indices(pieces))
        return tf.minimum(first, limit), tf.minimum(last, limit)


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
