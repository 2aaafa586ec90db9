"""SentencePiece tokenization in TensorFlow ops."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import tensorflow as tf

from lmzoo.text.graphs.added_tokens import CutTextsGraph
from lmzoo.text.graphs.precompiled_rules import Expansion, PrecompiledRulesGraph
from lmzoo.text.graphs.sentencepiece_normalizer import (
    SentencePieceNormalizer,
    make_model_ops,
    remove_normalization,
)
from lmzoo.text.graphs.token_ops import EDGE, compute_row_indices, find_first_from, indices_in_rows, shift
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.tokenizers.precompiled_rules import precompiled_rules
from lmzoo.text.tokenizers.sentencepiece import SentencePieceTokenizer, read_model
from lmzoo.text.tokenizers.sentencepiece_text import QUOTES, WHITE_SPACE, character_map

_SPACE_CODE = ord(" ")
_SEPARATORS = range(0x1C, 0x20)  # whitespace to Python, and to ALBERT's cleaning, but not in Unicode


class SentencePieceGraph(CutTextsGraph):
    """SentencePiece tokenization in TensorFlow ops, for `graph_tokenizer`."""

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        super().__init__(tokenizer, normalize_token=tokenizer.normalizer.normalize_str)
        self._characters = Expansion(
            {code: [(ord(c),) for c in replacement] for code, replacement in self._changes(tokenizer)}
        )
        # By the id of a token that is split: the ids of the new tokens, and the bytes at which they begin and end.
        splits = {}
        for piece, tokens in tokenizer.splits.items():
            token_ends = [*itertools.accumulate(len(text.encode()) for text in tokenizer.split_tokens[piece])]
            splits[piece] = list(zip(tokens, [0, *token_ends], token_ends, strict=False))
        self._tokens = Expansion(splits)
        self._empty_spaces = tokenizer.empty_spaces
        self._last_part_counts = tokenizer.last_part_counts
        self._replaces_quotes = tokenizer.replaces_quotes
        if self.is_normalized:
            self._exact_characters = Expansion(
                {code: [(ord(c),) for c in replacement] for code, replacement in self._list_exact_changes(tokenizer)}
            )
            charsmap = read_model(tokenizer.model).normalizer_spec.precompiled_charsmap
            self._rules = PrecompiledRulesGraph(precompiled_rules(charsmap), whitespace=False) if charsmap else None
        self._normalizer = SentencePieceNormalizer(tokenizer.splitting_model)
        self._pieces = make_model_ops(remove_normalization(tokenizer.splitting_model))

    def _changes(self, tokenizer: SentencePieceTokenizer) -> Iterable[tuple[int, str]]:
        """Return the code points that change before the model's own cleaning, with their replacements."""
        return character_map(tokenizer.lowercase, tokenizer.keep_accents).changes().items()

    def _list_exact_changes(self, tokenizer: SentencePieceTokenizer) -> Iterable[tuple[int, str]]:
        """Return the code points that `SentencePieceTokenizer.normalizer` replaces, with their replacements.

        These replacements come before the model's own rules. Unlike in `_changes`, whitespace stays as it is.
        """
        return character_map(tokenizer.lowercase, tokenizer.keep_accents).changes(whitespace=False).items()

    def whitespace(self) -> list[int]:
        """Return the code points that become spaces in normalized texts."""
        return [*map(ord, WHITE_SPACE), *_SEPARATORS]

    def normalize(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        origins = tf.range(tf.size(codes.values))
        values, places, rows = codes.values, tf.stack([origins, origins], axis=1), compute_row_indices(codes)
        if self._replaces_quotes:
            values, places, rows = _join_quotes(values, places, rows)
        values, sources, _ = self._exact_characters.replace(values)
        places = tf.gather(places, sources)
        rows = tf.gather(rows, sources)
        if self._rules is not None:
            values, places, rows = self._rules(values, places, rows)
        # As in the library, a double quote comes from the last of the quotes that it replaces.
        return tf.RaggedTensor.from_value_rowids(values, rows, codes.nrows(), validate=False), places[:, 1]

    def clean(self, texts: tf.Tensor) -> tf.Tensor:
        """Clean texts, `tf.string` (n,), by the rules of `lmzoo.text.tokenizers.sentencepiece_text.clean`."""
        return tf.strings.unicode_encode(self._clean_to_letters(texts)[0], "UTF-8")

    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.plain_spans(texts)[0]

    def plain_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        characters, places = self._clean_to_letters(texts)
        normalized_texts = self._normalizer(characters)
        pieces, begins, ends = self._pieces.tokenize_with_offsets(normalized_texts.texts)
        # If a character is split into bytes, the library gives its extent to the last byte, and none to the others.
        next_extents = find_first_from(begins.values < ends.values, tf.range(tf.size(ends.values, tf.int64)))
        ends = ends.with_values(tf.gather(ends.values, next_extents))
        piece_indices, entries = self._tokens(pieces.values)  # (t,)
        is_split = entries >= 0
        ids, begins_in_piece, ends_in_piece = tf.unstack(
            tf.gather(self._tokens.values, tf.maximum(entries, 0)), num=3, axis=1
        )
        rows, begins, ends = (
            tf.gather(x, piece_indices) for x in (compute_row_indices(pieces), begins.values, ends.values)
        )
        ids = tf.where(is_split, ids, tf.gather(pieces.values, piece_indices))
        ends = tf.where(is_split, begins + tf.cast(ends_in_piece, begins.dtype), ends)
        begins = tf.where(is_split, begins + tf.cast(begins_in_piece, begins.dtype), begins)
        starts, stops, is_space = normalized_texts.find_letters(rows, begins, ends, self._last_part_counts)
        # A token at the end of a text, after all characters, is only a space.
        lengths = tf.gather(tf.strings.length(texts, "UTF8_CHAR"), rows)
        is_at_end = starts == tf.gather(characters.row_limits(), rows)
        starts = tf.where(is_at_end, lengths, tf.gather(_append_zero(places[:, 0]), starts))
        stops = tf.gather(_append_zero(places[:, 1]), tf.maximum(stops - 1, 0))
        if self._empty_spaces:
            stops = tf.where(is_space, starts, stops)
        ragged_ids = tf.RaggedTensor.from_value_rowids(ids, rows, characters.nrows(), validate=False)
        return ragged_ids, ragged_ids.with_values(tf.stack([starts, stops], axis=1))

    def _clean_to_letters(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Clean texts, and return their l characters, int32 (n, None), and the offsets of these, int32 (l, 2).

        If the texts are already normalized, only whitespace is cleaned.
        """
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        offsets = indices_in_rows(codes)
        offsets = tf.stack([offsets, offsets + 1], axis=1)
        values = codes.values
        rows = compute_row_indices(codes)
        if self.is_normalized:
            values = tf.where(tf.reduce_any(values[:, None] == self.whitespace(), axis=1), _SPACE_CODE, values)
        else:
            values, offsets, rows = self._replace(values, offsets, rows)
        values, offsets, rows = self._squeeze(values, offsets, rows)
        return tf.RaggedTensor.from_value_rowids(values, rows, codes.nrows(), validate=False), offsets

    def _replace(self, codes: tf.Tensor, place: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replace quotes and characters by the rules of `lmzoo.text.tokenizers.sentencepiece_text.clean`.

        Args:
            codes: int32 (c,), characters of all texts.
            place: int32 (c, 2), offsets of each character's origin.
            part: int (c,), index of the text of each character, non-decreasing.

        Returns:
            The characters after replacement, with their offsets and the indices of their texts, in the same form.
        """
        if self._replaces_quotes:
            codes, place, part = _join_quotes(codes, place, part)
        codes, sources, _ = self._characters.replace(codes)
        return codes, tf.gather(place, sources), tf.gather(part, sources)

    def _squeeze(self, codes: tf.Tensor, offsets: tf.Tensor, rows: tf.Tensor) -> list[tf.Tensor]:
        """Remove spaces after other spaces, and at both ends of texts. See `_join_quotes` for arguments and results."""
        is_space = codes == _SPACE_CODE
        # A space after another space, or at the start of a text, is removed.
        is_extra = is_space & (shift(is_space, 1, True) | (shift(rows, 1, -1) != rows))
        codes, offsets, rows = without(is_extra, codes, offsets, rows)
        return without((codes == _SPACE_CODE) & (shift(rows, -1, -1) != rows), codes, offsets, rows)


def _join_quotes(codes: tf.Tensor, offsets: tf.Tensor, rows: tf.Tensor) -> list[tf.Tensor]:
    """Replace two backticks or two apostrophes by one double quote.

    Args:
        codes: int32 (c,), characters of all texts.
        offsets: int32 (c, 2), offsets of each character's origin.
        rows: int (c,), index of the text of each character, non-decreasing.

    Returns:
        The characters after replacement, with their offsets and the indices of their texts, in the same form.
    """
    is_quote = tf.reduce_any(codes[:, None] == [ord(quotes[0]) for quotes in QUOTES], axis=1)  # (c,)
    continues_run = is_quote & (shift(codes, 1, EDGE) == codes) & (shift(rows, 1, -1) == rows)
    run_starts = tf.where(~continues_run)[:, 0]  # a character that is not a quote is a run of its own
    index_in_run = tf.range(tf.size(codes, tf.int64)) - tf.gather(
        run_starts, tf.cumsum(tf.cast(~continues_run, tf.int32)) - 1
    )
    is_second = index_in_run % 2 == 1  # (c,)
    is_first = shift(is_second, -1, False)
    codes = tf.where(is_first, ord('"'), codes)
    offsets += tf.cast(is_first, tf.int32)[:, None] * [0, 1]
    return without(is_second, codes, offsets, rows)


def without(drop: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
    """Return each of the arrays `values`, (c, ...), without the entries where `drop`, bool (c,), is true."""
    return [tf.boolean_mask(array, ~drop) for array in values]


def _append_zero(values: tf.Tensor) -> tf.Tensor:
    """Append a zero to an array (c,)."""
    return tf.pad(values, [[0, 1]])


graph_tokenizer.register(SentencePieceTokenizer, SentencePieceGraph)
