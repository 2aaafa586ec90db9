"""Tokenizers as TensorFlow ops that split texts at added tokens."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lmzoo.text.graphs.token_ops import first_from, last_up_to, lookup_table, rows_of, shift
from lmzoo.text.graphs.unicode_map import code_points, to_text
from lmzoo.text.tokenizers.added_tokens import AddedToken
from lmzoo.text.tokenizers.sentencepiece_text import WHITE_SPACE
from lmzoo.text.tokenizers.tokenizer import Tokenizer

_CUT = b"\xff"  # a byte that does not occur in UTF-8
_WHITESPACE = [ord(character) for character in WHITE_SPACE]


class _Matches(NamedTuple):
    """Matches of k added tokens in the c characters of all texts.

    Attributes:
        id: int32 (k,), id of the token.
        begin: int64 (k,), first character of the match, including whitespace that belongs to the token.
        end: int64 (k,), end of the match, including whitespace that belongs to the token.
        own: int64 (k, 2), begin and end of the match without whitespace.
        span: int64 (k, 2), offsets of the token.
    """

    id: tf.Tensor
    begin: tf.Tensor
    end: tf.Tensor
    own: tf.Tensor
    span: tf.Tensor


class _Parts(NamedTuple):
    """The p parts of n texts; a part ends where an added token begins, or at the end of the text.

    Attributes:
        row: int64 (p,), index of the text.
        begin: int32 (p,), index in the text of the part's first character.
        texts: `tf.string` (p,), text of the part.
        id: int32 (p,), id of the token after the part, or -1 if the text ends there.
        span: int32 (p, 2), offsets of that token.
    """

    row: tf.Tensor
    begin: tf.Tensor
    texts: tf.Tensor
    id: tf.Tensor
    span: tf.Tensor


class CutTextsGraph(tf.Module):
    """Base class of tokenizers as TensorFlow ops that split texts at added tokens.

    See `lmzoo.text.graphs.graph_tokenizer`. A subclass implements `plain_ids` and `plain_spans`, which tokenize the
    text between added tokens.

    Args:
        tokenizer: `lmzoo.text.Tokenizer`.
        trims: bool, whether the offsets of a token exclude the whitespace that belongs to it.
        normalize_token: callable that returns the form of a token in normalized texts.
    """

    def __init__(self, tokenizer: Tokenizer, trims: bool = False, normalize_token: Callable[[str], str] = str) -> None:
        super().__init__()
        tokens = tokenizer.text_tokens
        self._trims = trims
        exact = [token for token in tokens if not token.normalized]
        normalized = [token for token in tokens if token.normalized]
        ids = {token.content: tokenizer.token_to_id(token.content) for token in tokens}
        self._exact = _FindTokens(exact, [token.content for token in exact], ids) if exact else None
        contents = [normalize_token(token.content) for token in normalized]
        self._normalized = _FindTokens(normalized, contents, ids) if normalized else None

    def normalize(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Normalize texts before tokens are matched in them.

        Args:
            codes: int32 (n, None), code points of the texts.

        Returns:
            Normalized code points, int32 (n, None), and for each of their flat values the index of its origin, int32.
        """
        return codes, tf.range(tf.size(codes.values))

    @abstractmethod
    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids, int32 (n, None), of texts without added tokens, `tf.string` (n,)."""

    @abstractmethod
    def plain_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Return the same ids as `plain_ids`, and their spans, int32 (n, None, 2)."""

    def finish_spans(self, ids: tf.RaggedTensor, spans: tf.RaggedTensor) -> tf.RaggedTensor:
        """Adjust the offsets of tokens in whole texts, after their parts have been joined.

        Args:
            ids: int32 (n, None), token ids.
            spans: int32 (n, None, 2), offsets of the tokens.
        """
        return spans

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return the token ids, int32 (n, None), of texts, `tf.string` (n,)."""
        parts = self._parts(texts)
        return _join(parts, self.plain_ids(parts.texts), parts.id, tf.size(texts, tf.int64))

    def with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Return the token ids, int32 (n, None), of texts and their offsets, int32 (n, None, 2)."""
        parts = self._parts(texts)
        ids, spans = self.plain_spans(parts.texts)
        begin = tf.gather(parts.begin, rows_of(spans))[:, None]
        spans = spans.with_values(tf.cast(spans.values, tf.int32) + begin)
        rows = tf.size(texts, tf.int64)
        ids = _join(parts, ids, parts.id, rows)
        return ids, self.finish_spans(ids, _join(parts, spans, parts.span, rows))

    def _parts(self, texts: tf.Tensor) -> _Parts:
        """Split texts at added tokens."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        codes = tf.strings.unicode_decode(texts, "UTF-8")  # (n, None)
        matches = _no_matches() if self._exact is None else self._exact(texts, codes)
        if self._normalized is not None:
            matches = self._find_normalized(self._normalized, codes, matches)
        return self._cut(codes, matches)

    def _find_normalized(self, find: _FindTokens, codes: tf.RaggedTensor, earlier: _Matches) -> _Matches:
        """Add matches of normalized tokens in the text between the earlier matches."""
        indices = _part_indices(codes, earlier)  # (p, None)
        normalized, source = self.normalize(indices.with_values(tf.gather(codes.values, indices.values)))
        matches = find(tf.strings.unicode_encode(normalized, "UTF-8"), normalized)
        # Origins of characters, padded at both ends. A normalizer may put spaces next to a character, with the same
        # origin. If such a space belongs to a token, the character does not.
        source = tf.pad(tf.gather(indices.values, source), [[1, 1]], constant_values=-1)  # (c + 2,)
        first = tf.gather(source, matches.begin + 1)  # (k,)
        last = tf.gather(source, matches.end)  # (k,)
        begin = tf.where(
            (matches.begin < matches.own[:, 0]) & (tf.gather(source, matches.begin) == first), first + 1, first
        )
        end = tf.where((matches.end > matches.own[:, 1]) & (tf.gather(source, matches.end + 1) == last), last, last + 1)
        own = tf.stack([tf.gather(source, matches.own[:, 0] + 1), tf.gather(source, matches.own[:, 1]) + 1], axis=1)
        # Offsets follow the library, which includes the character.
        matches = _Matches(matches.id, begin, end, own, tf.stack([first, last + 1], axis=1))
        columns = [tf.concat(values, axis=0) for values in zip(earlier, matches, strict=True)]
        # If a character is normalized to several, each of them may be a token; a stable sort keeps their order.
        order = tf.argsort(columns[1], stable=True)
        return _Matches(*(tf.gather(values, order) for values in columns))

    def _cut(self, codes: tf.RaggedTensor, matches: _Matches) -> _Parts:
        """Split the code points of texts at matches."""
        indices = _part_indices(codes, matches)  # (p, None)
        texts = tf.strings.unicode_encode(indices.with_values(tf.gather(codes.values, indices.values)), "UTF-8")
        tokens = _group_by_text(codes, matches, matches.id)  # (n, None)
        ids = tf.concat([tokens, tf.fill([codes.nrows(), 1], -1)], axis=1)
        row = rows_of(ids)
        row_start = tf.gather(codes.row_starts(), row)  # (p,)
        starts, _ = _part_edges(codes, matches)
        offsets = tokens.with_values(matches.own if self._trims else matches.span)  # (n, None, 2)
        span = tf.concat([offsets, tf.zeros([codes.nrows(), 1, 2], tf.int64)], axis=1).values - row_start[:, None]
        return _Parts(row, tf.cast(starts.values - row_start, tf.int32), texts, ids.values, tf.cast(span, tf.int32))


class _FindTokens(tf.Module):
    """Search for added tokens, all of them in normalized texts or all in original texts.

    Args:
        tokens: list of `AddedToken` to match.
        contents: list of strings, the form of each token in the texts.
        ids: dict from tokens to ids.
    """

    def __init__(self, tokens: Sequence[AddedToken], contents: Sequence[str], ids: dict[str, int]) -> None:
        super().__init__()
        longest_first = sorted(range(len(tokens)), key=lambda index: -len(contents[index]))
        self._pattern = "(" + "|".join(_escape(contents[index]) for index in longest_first) + ")"
        self._numbers = lookup_table({contents[index]: index for index in reversed(longest_first)}, tf.string, -1)
        self._ids = np.array([ids[token.content] for token in tokens], "int32")  # (k,)
        self._single, self._left, self._right = np.array(
            [[token.single_word for token in tokens], [token.lstrip for token in tokens], [t.rstrip for t in tokens]]
        )  # (k,), bool

    def __call__(self, texts: tf.Tensor, codes: tf.RaggedTensor) -> _Matches:
        """Match the tokens in texts, `tf.string` (n,), with the code points `codes`, int32 (n, None)."""
        marked_texts = tf.strings.regex_replace(texts, self._pattern, _CUT + b"\\1" + _CUT)
        parts = tf.strings.split(marked_texts, _CUT)  # (n, None)
        end = tf.cumsum(tf.strings.length(parts.values, "UTF8_CHAR"))  # (q,)
        begin = end - tf.strings.length(parts.values, "UTF8_CHAR")
        index = self._numbers.lookup(parts.values)  # (q,)
        is_token = index >= 0
        index, begin, end, row = (tf.boolean_mask(x, is_token) for x in (index, begin, end, rows_of(parts)))
        begin = tf.cast(begin, tf.int64)  # (k,)
        end = tf.cast(end, tf.int64)  # (k,)
        text_start = tf.gather(codes.row_starts(), row)  # (k,)
        text_end = tf.gather(codes.row_limits(), row)  # (k,)
        if self._single.any():
            touches_word = self._is_word(codes, begin - 1, begin > text_start) | self._is_word(
                codes, end, end < text_end
            )
            is_valid = ~(touches_word & tf.gather(self._single, index))
            index, begin, end, text_start, text_end = (
                tf.boolean_mask(x, is_valid) for x in (index, begin, end, text_start, text_end)
            )
        own = tf.stack([begin, end], axis=1)
        if self._left.any() or self._right.any():
            begin, end = self._strip(codes, index, begin, end, text_start, text_end)
        return _Matches(tf.gather(self._ids, index), begin, end, own, tf.stack([begin, end], axis=1))

    def _is_word(self, codes: tf.RaggedTensor, place: tf.Tensor, inside: tf.Tensor) -> tf.Tensor:
        """Return whether each place lies inside its text and holds a word character, bool (k,).

        Args:
            codes: code points of the texts.
            place: int64 (k,), positions in the joined code points.
            inside: bool (k,), whether each place lies inside its text.
        """
        starts, kinds = word_characters()
        code = tf.gather(tf.pad(codes.values, [[1, 1]]), place + 1)  # (k,)
        return inside & tf.gather(kinds, tf.searchsorted(starts, code, side="right") - 1)

    def _strip(
        self, codes: tf.RaggedTensor, index: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, first: tf.Tensor,
        limit: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:  # fmt: skip
        """Extend matches over the whitespace of their tokens, within their texts, from `first` to `limit`."""
        is_nonspace = ~tf.reduce_any(codes.values[:, None] == _WHITESPACE, axis=1)  # (c,)
        end = tf.where(tf.gather(self._right, index), tf.minimum(first_from(is_nonspace, end), limit), end)
        stripped_begin = tf.maximum(last_up_to(is_nonspace, begin - 1) + 1, first)
        stripped_begin = tf.maximum(stripped_begin, shift(end, 1, 0))
        return tf.where(tf.gather(self._left, index), stripped_begin, begin), end


@functools.lru_cache(maxsize=1)
def word_characters() -> tuple[np.ndarray, np.ndarray]:
    """Return which code points are word characters, next to which a `single_word` token does not match.

    They are determined by running `tokenizers` on every code point, and so follow its version of Unicode. The first
    call takes a second or two.

    Returns:
        `starts` int32 (R,), the first code point of each run of word or other characters, in ascending order from 0;
        and bool (R,), whether each run consists of word characters.
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


def _group_by_text(codes: tf.RaggedTensor, matches: _Matches, values: tf.Tensor) -> tf.RaggedTensor:
    """Group values of matches, (k, ...), by text: (n, None, ...)."""
    row = tf.gather(rows_of(codes), matches.begin)
    return tf.RaggedTensor.from_value_rowids(values, row, codes.nrows(), validate=False)


def _part_edges(codes: tf.RaggedTensor, matches: _Matches) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Return the starts and ends of the parts between matches, as indices of the c characters: two int64 (n, None)."""
    starts = tf.concat([codes.row_starts()[:, None], _group_by_text(codes, matches, matches.end)], axis=1)
    ends = tf.concat([_group_by_text(codes, matches, matches.begin), codes.row_limits()[:, None]], axis=1)
    return starts, ends


def _part_indices(codes: tf.RaggedTensor, matches: _Matches) -> tf.RaggedTensor:
    """Return the indices of the characters of each part: int64 (p, None)."""
    starts, ends = _part_edges(codes, matches)
    return tf.ragged.range(starts.values, tf.maximum(starts.values, ends.values))


def _join(parts: _Parts, plain: tf.RaggedTensor, token_values: tf.Tensor, rows: tf.Tensor) -> tf.RaggedTensor:
    """Concatenate the values of each text's parts, (p, None, ...), and of the tokens after them, (p, ...)."""
    values = tf.concat([plain, at_most_one(token_values, parts.id >= 0)], axis=1)  # (p, None, ...)
    return tf.RaggedTensor.from_value_rowids(values, parts.row, rows, validate=False).merge_dims(1, 2)


def at_most_one(values: tf.Tensor, given: tf.Tensor) -> tf.RaggedTensor:
    """Return ragged rows (n, None, ...): `values[i]` where `given`, bool (n,), is true, else an empty row."""
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(values, given), tf.cast(given, tf.int64), validate=False)


def _no_matches() -> _Matches:
    """Return an empty set of matches."""
    indices = tf.zeros((0,), tf.int64)
    spans = tf.zeros((0, 2), tf.int64)
    return _Matches(tf.zeros((0,), tf.int32), indices, indices, spans, spans)


def _escape(token: str) -> str:
    """Return an RE2 pattern that matches a token literally."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{ord(c):02x}" for c in token)
