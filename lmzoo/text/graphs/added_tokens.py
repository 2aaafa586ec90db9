"""Tokenizers as TensorFlow ops that split texts at added tokens."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lmzoo.text.graphs.token_ops import (
    compute_row_indices,
    find_first_from,
    find_last_up_to,
    indices_in_rows,
    lookup_table,
    shift,
)
from lmzoo.text.graphs.unicode_map import code_points, to_text
from lmzoo.text.tokenizers.added_tokens import AddedToken
from lmzoo.text.tokenizers.sentencepiece_text import WHITE_SPACE
from lmzoo.text.tokenizers.tokenizer import Tokenizer

_CUT = b"\xff"  # a byte that does not occur in UTF-8
_WHITESPACE = [ord(character) for character in WHITE_SPACE]


class _Matches(NamedTuple):
    """Matches of k added tokens in the c characters of all texts.

    Attributes:
        id: int32 (k,), id of each match's token.
        row: int64 (k,), index of each match's text.
        begin: int64 (k,), index in the joined texts of each match's first character, including whitespace that belongs
            to the token.
        end: int64 (k,), index after each match's last character, including whitespace that belongs to the token.
    """

    id: tf.Tensor
    row: tf.Tensor
    begin: tf.Tensor
    end: tf.Tensor


class _Parts(NamedTuple):
    """The p parts of n texts; a part ends where an added token begins, or at the end of the text.

    Attributes:
        row: int64 (p,), index of each part's text.
        codes: int32 (p, None), code points of each part, which are normalized if tokens are matched in normalized
            texts.
        origins: int32 (c,), index in the original text of the character that each of the c code points comes from.
        id: int32 (p,), id of the token after the part, or -1 if the text ends there.
        span: int32 (p, 2), offsets of that token, including whitespace that belongs to it.
        spaces: int32 (p, 2), number of spaces at each end of that token; trimmed offsets exclude them.
    """

    row: tf.Tensor
    codes: tf.RaggedTensor
    origins: tf.Tensor
    id: tf.Tensor
    span: tf.Tensor
    spaces: tf.Tensor

    @property
    def texts(self) -> tf.Tensor:
        """The text of each part, `tf.string` (p,)."""
        return tf.strings.unicode_encode(self.codes, "UTF-8")

    def in_original(self, spans: tf.RaggedTensor) -> tf.RaggedTensor:
        """Convert offsets in parts, (p, None, 2), to offsets in the original texts: int32 (p, None, 2)."""
        rows = compute_row_indices(spans)
        part_starts = tf.cast(tf.gather(self.codes.row_starts(), rows), tf.int32)
        part_ends = tf.cast(tf.gather(self.codes.row_limits(), rows), tf.int32)
        begins, ends = tf.unstack(tf.cast(spans.values, tf.int32), num=2, axis=1)
        # A part with tokens has characters; a token without characters may be at the end of the part.
        is_at_end = part_starts + begins == part_ends
        first_places = tf.gather(self.origins, tf.minimum(part_starts + begins, part_ends - 1)) + tf.cast(
            is_at_end, tf.int32
        )
        last_places = tf.gather(self.origins, tf.maximum(part_starts + ends - 1, part_starts))
        return spans.with_values(
            tf.stack([first_places, tf.where(begins == ends, first_places, last_places + 1)], axis=1)
        )


class CutTextsGraph(tf.Module):
    """Base class of tokenizers as TensorFlow ops that split texts at added tokens.

    See `lmzoo.text.graphs.graph_tokenizer`. A subclass implements `plain_ids` and `plain_spans`, which tokenize the
    text between added tokens.

    Args:
        tokenizer: `lmzoo.text.Tokenizer`.
        spaces: str, characters that count as spaces, which offsets exclude at the ends of tokens; "" for offsets that
            include all characters. A subclass with such characters implements `count_spaces` and `trim`.
        normalize_token: callable that returns the form of a token in normalized texts.
    """

    def __init__(self, tokenizer: Tokenizer, spaces: str = "", normalize_token: Callable[[str], str] = str) -> None:
        super().__init__()
        tokens = tokenizer.text_tokens
        self._spaces = [ord(character) for character in spaces]
        exact_tokens = [token for token in tokens if not token.normalized]
        normalized_tokens = [token for token in tokens if token.normalized]
        ids = {token.content: tokenizer.token_to_id(token.content) for token in tokens}
        self._exact = (
            _FindTokens(exact_tokens, [token.content for token in exact_tokens], ids) if exact_tokens else None
        )
        contents = [normalize_token(token.content) for token in normalized_tokens]
        self._normalized = _FindTokens(normalized_tokens, contents, ids) if normalized_tokens else None

    @property
    def is_normalized(self) -> bool:
        """Whether `plain_ids` and `plain_spans` get normalized texts, since tokens are matched after normalization."""
        return self._normalized is not None

    def normalize(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Normalize texts before tokens are matched in them; by default, leave them unchanged.

        Args:
            codes: int32 (n, None), code points of the texts.

        Returns:
            Normalized code points, int32 (n, None), and the flat index of the code point that each comes from, int32.
        """
        return codes, tf.range(tf.size(codes.values))

    @abstractmethod
    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenize `texts`, `tf.string` (n,), which contain no added tokens, and return their ids, int32 (n, None)."""

    def plain_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Return the ids that `plain_ids` returns, int32 (n, None), and their offsets, int32 (n, None, 2).

        Raises:
            NotImplementedError: If the class computes no offsets.
        """
        raise NotImplementedError(f"{type(self).__name__} computes no offsets.")

    def count_spaces(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return the number of spaces at each end of each token of plain text: int32 (n, None, 2)."""
        raise NotImplementedError

    def trim(self, spans: tf.RaggedTensor, spaces: tf.RaggedTensor) -> tf.RaggedTensor:
        """Exclude the spaces at both ends of tokens from the offsets of the tokens.

        Args:
            spans: int32 (n, None, 2), offsets of the tokens in the whole texts.
            spaces: int32 (n, None, 2), number of spaces at each end of each token.
        """
        raise NotImplementedError

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenize texts, `tf.string` (n,), and return their token ids, int32 (n, None)."""
        parts = self._parts(texts)
        return _join(parts, self.plain_ids(parts.texts), parts.id, tf.size(texts, tf.int64))

    def with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Tokenize texts, `tf.string` (n,), and return the ids, int32 (n, None), and offsets, int32 (n, None, 2)."""
        parts = self._parts(texts)
        ids, spans = self.plain_spans(parts.texts)
        num_texts = tf.size(texts, tf.int64)
        joined_spans = _join(parts, parts.in_original(spans), parts.span, num_texts)
        if self._spaces:
            joined_spans = self.trim(joined_spans, _join(parts, self.count_spaces(ids), parts.spaces, num_texts))
        return _join(parts, ids, parts.id, num_texts), joined_spans

    def _parts(self, texts: tf.Tensor) -> _Parts:
        """Split texts at added tokens."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        codes = tf.strings.unicode_decode(texts, "UTF-8")  # (n, None)
        parts = self._cut(
            codes, indices_in_rows(codes), _make_empty_matches() if self._exact is None else self._exact(codes)
        )
        return parts if self._normalized is None else self._cut_normalized(self._normalized, parts)

    def _cut_normalized(self, find_tokens: _FindTokens, parts: _Parts) -> _Parts:
        """Split parts of texts at tokens that are matched in normalized texts, like the `tokenizers` library."""
        codes, sources = self.normalize(parts.codes)
        inner_parts = self._cut(codes, tf.gather(parts.origins, sources), find_tokens(codes))
        # The last inner part of a part is followed by the token after the part.
        is_last = inner_parts.id < 0
        return inner_parts._replace(
            row=tf.gather(parts.row, inner_parts.row),
            id=tf.where(is_last, tf.gather(parts.id, inner_parts.row), inner_parts.id),
            span=tf.where(is_last[:, None], tf.gather(parts.span, inner_parts.row), inner_parts.span),
            spaces=tf.where(is_last[:, None], tf.gather(parts.spaces, inner_parts.row), inner_parts.spaces),
        )

    def _cut(self, codes: tf.RaggedTensor, origins: tf.Tensor, matches: _Matches) -> _Parts:
        """Split texts at matches.

        Args:
            codes: int32 (n, None), the c code points of the texts.
            origins: int32 (c,), index in the original text of the character that each code point comes from.
            matches: matches in the texts.
        """

        def by_text(values: tf.Tensor) -> tf.RaggedTensor:
            """Group values of matches, (k, ...), by text: (n, None, ...)."""
            return tf.RaggedTensor.from_value_rowids(values, matches.row, codes.nrows(), validate=False)

        def after_parts(values: tf.Tensor) -> tf.Tensor:
            """Return the pair of the match after each part, int32 (p, 2), or zeros if the text ends there.

            Args:
                values: (k, 2), a pair for each match.
            """
            no_token = tf.zeros([codes.nrows(), 1, 2], tf.int32)
            return tf.concat([by_text(tf.cast(values, tf.int32)), no_token], axis=1).values

        starts = tf.concat([codes.row_starts()[:, None], by_text(matches.end)], axis=1)  # (n, None)
        ends = tf.concat([by_text(matches.begin), codes.row_limits()[:, None]], axis=1)  # (n, None)
        code_indices = tf.ragged.range(starts.values, tf.maximum(starts.values, ends.values))  # (p, None)
        next_ids = tf.concat([by_text(matches.id), tf.fill([codes.nrows(), 1], -1)], axis=1)
        spans = tf.stack([tf.gather(origins, matches.begin), tf.gather(origins, matches.end - 1) + 1], axis=1)
        return _Parts(
            row=compute_row_indices(next_ids),
            codes=code_indices.with_values(tf.gather(codes.values, code_indices.values)),
            origins=tf.gather(origins, code_indices.values),
            id=next_ids.values,
            span=after_parts(spans),
            spaces=after_parts(self._count_outer_spaces(codes, matches)),
        )

    def _count_outer_spaces(self, codes: tf.RaggedTensor, matches: _Matches) -> tf.Tensor:
        """Return the number of spaces at each end of each match: int64 (k, 2)."""
        if not self._spaces:
            return tf.zeros([tf.size(matches.begin), 2], tf.int64)
        is_nonspace = ~tf.reduce_any(codes.values[:, None] == self._spaces, axis=1)  # (c,)
        first_indices = tf.minimum(find_first_from(is_nonspace, matches.begin), matches.end)
        last_indices = tf.maximum(find_last_up_to(is_nonspace, matches.end - 1), matches.begin - 1)
        return tf.stack([first_indices - matches.begin, matches.end - 1 - last_indices], axis=1)


class _FindTokens(tf.Module):
    """Search for added tokens, either in normalized texts or in original texts.

    Args:
        tokens: list of `AddedToken` to match.
        contents: list of strings, the form of each token in these texts.
        ids: dict from the contents of tokens to their ids.
    """

    def __init__(self, tokens: Sequence[AddedToken], contents: Sequence[str], ids: dict[str, int]) -> None:
        super().__init__()
        longest_first = sorted(range(len(tokens)), key=lambda index: -len(contents[index]))
        self._pattern = "(" + "|".join(_escape(contents[index]) for index in longest_first) + ")"
        self._numbers = lookup_table({contents[index]: index for index in reversed(longest_first)}, tf.string, -1)
        self._ids = np.array([ids[token.content] for token in tokens], "int32")  # (k,)
        self._single, self._left, self._right = np.array(
            [
                [token.single_word for token in tokens],
                [token.lstrip for token in tokens],
                [token.rstrip for token in tokens],
            ]
        )  # (k,), bool

    def __call__(self, codes: tf.RaggedTensor) -> _Matches:
        """Find the tokens in texts, which are given as code points, int32 (n, None)."""
        texts = tf.strings.unicode_encode(codes, "UTF-8")
        marked_texts = tf.strings.regex_replace(texts, self._pattern, _CUT + b"\\1" + _CUT)
        parts = tf.strings.split(marked_texts, _CUT)  # (n, None)
        ends = tf.cumsum(tf.strings.length(parts.values, "UTF8_CHAR"))  # (q,)
        begins = ends - tf.strings.length(parts.values, "UTF8_CHAR")
        token_indices = self._numbers.lookup(parts.values)  # (q,)
        is_token = token_indices >= 0
        token_indices, begins, ends, rows = (
            tf.boolean_mask(x, is_token) for x in (token_indices, begins, ends, compute_row_indices(parts))
        )
        begins = tf.cast(begins, tf.int64)  # (k,)
        ends = tf.cast(ends, tf.int64)  # (k,)
        if self._single.any():
            text_starts = tf.gather(codes.row_starts(), rows)  # (k,)
            text_ends = tf.gather(codes.row_limits(), rows)  # (k,)
            touches_word = self._is_word(codes, begins - 1, begins > text_starts) | self._is_word(
                codes, ends, ends < text_ends
            )
            is_valid = ~(touches_word & tf.gather(self._single, token_indices))
            token_indices, begins, ends, rows = (
                tf.boolean_mask(x, is_valid) for x in (token_indices, begins, ends, rows)
            )
        if self._left.any() or self._right.any():
            text_starts = tf.gather(codes.row_starts(), rows)  # (k,)
            text_ends = tf.gather(codes.row_limits(), rows)  # (k,)
            begins, ends = self._extend_over_whitespace(codes, token_indices, begins, ends, text_starts, text_ends)
            # Drop a whitespace token if the token before it already covers it.
            is_kept = begins < ends
            token_indices, rows, begins, ends = (
                tf.boolean_mask(x, is_kept) for x in (token_indices, rows, begins, ends)
            )
        return _Matches(tf.gather(self._ids, token_indices), rows, begins, ends)

    def _is_word(self, codes: tf.RaggedTensor, positions: tf.Tensor, is_inside: tf.Tensor) -> tf.Tensor:
        """Return whether each position lies inside its text and holds a word character: bool (k,).

        Args:
            codes: code points of the texts.
            positions: int64 (k,), positions in the joined code points.
            is_inside: bool (k,), whether each position lies inside its text.
        """
        starts, kinds = word_characters()
        position_codes = tf.gather(tf.pad(codes.values, [[1, 1]]), positions + 1)  # (k,)
        return is_inside & tf.gather(kinds, tf.searchsorted(starts, position_codes, side="right") - 1)

    def _extend_over_whitespace(
        self, codes: tf.RaggedTensor, token_indices: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor,
        text_starts: tf.Tensor, text_ends: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:  # fmt: skip
        """Extend matches over the whitespace around them if their tokens strip it.

        Args:
            codes: code points of the texts, c in all.
            token_indices: int (k,), index of the token of each match.
            begins: int64 (k,), position in the joined code points at which each match begins.
            ends: int64 (k,), position at which each match ends.
            text_starts: int64 (k,), position at which each match's text begins.
            text_ends: int64 (k,), position at which each match's text ends.

        Returns:
            The new `begins` and `ends`.
        """
        is_nonspace = ~tf.reduce_any(codes.values[:, None] == _WHITESPACE, axis=1)  # (c,)
        ends = tf.where(
            tf.gather(self._right, token_indices), tf.minimum(find_first_from(is_nonspace, ends), text_ends), ends
        )
        extended_begins = tf.maximum(find_last_up_to(is_nonspace, begins - 1) + 1, text_starts)
        extended_begins = tf.maximum(extended_begins, shift(ends, 1, 0))
        return tf.where(tf.gather(self._left, token_indices), extended_begins, begins), ends


@functools.lru_cache(maxsize=1)
def word_characters() -> tuple[np.ndarray, np.ndarray]:
    """Return which code points are word characters, next to which a `single_word` token does not match.

    Word characters are determined by running `tokenizers` on every code point, so that they follow its version of
    Unicode. The first call takes a second or two.

    Returns:
        Two arrays (R,) for R runs of word characters or of other characters: the first code point of each run, int32,
        in ascending order from 0; and whether the run consists of word characters, bool.
    """
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
    backend.add_tokens([AddedToken("\n", single_word=True, normalized=False).to_library()])
    codes = code_points()
    codes = codes[codes != ord("\n")]
    rows = np.stack(np.broadcast_arrays(codes, ord("\n"), ord("-")), axis=1)
    encoding = backend.encode(to_text(rows.reshape(-1)), add_special_tokens=False)
    match_starts = np.array(
        [start for id, (start, _) in zip(encoding.ids, encoding.offsets, strict=True) if id], "int64"
    )
    is_word = np.ones(len(codes), bool)
    is_word[match_starts // 3] = False
    is_run_start = np.diff(is_word, prepend=~is_word[:1]) != 0
    return codes[is_run_start].astype("int32"), is_word[is_run_start]


def _join(
    parts: _Parts, plain_values: tf.RaggedTensor, token_values: tf.Tensor, num_texts: tf.Tensor
) -> tf.RaggedTensor:
    """Concatenate, for each text, the values of its parts and of the tokens after them: (n, None, ...).

    Args:
        parts: the p parts of all texts.
        plain_values: (p, None, ...), values of the plain tokens of each part.
        token_values: (p, ...), value of the added token after each part; ignored if there is none.
        num_texts: int64 (), number n of texts.
    """
    part_values = tf.concat([plain_values, as_singletons(token_values, parts.id >= 0)], axis=1)  # (p, None, ...)
    return tf.RaggedTensor.from_value_rowids(part_values, parts.row, num_texts, validate=False).merge_dims(1, 2)


def as_singletons(values: tf.Tensor, is_present: tf.Tensor) -> tf.RaggedTensor:
    """Return n ragged rows: row i holds only `values[i]` if `is_present[i]` is true, and is empty otherwise."""
    return tf.RaggedTensor.from_row_lengths(
        tf.boolean_mask(values, is_present), tf.cast(is_present, tf.int64), validate=False
    )


def _make_empty_matches() -> _Matches:
    """Return an empty set of matches."""
    indices = tf.zeros((0,), tf.int64)
    return _Matches(tf.zeros((0,), tf.int32), indices, indices, indices)


def _escape(token: str) -> str:
    """Return an RE2 pattern that matches a token literally."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{ord(c):02x}" for c in token)
