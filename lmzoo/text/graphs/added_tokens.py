"""Tokenizers whose texts are cut at added tokens, as TensorFlow ops."""

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

_CUT = b"\xff"  # a byte that UTF-8 does not have
_WHITESPACE = [ord(character) for character in WHITE_SPACE]


class _Found(NamedTuple):
    """Tokens in the c characters of all texts.

    Attributes:
        id: int32 (k,).
        begin: int64 (k,), the first character of each, and of the whitespace before it that belongs to it.
        end: int64 (k,), the character after each, and after the whitespace that belongs to it.
        own: int64 (k, 2), the same without whitespace.
        span: int64 (k, 2), the offsets of each.
    """

    id: tf.Tensor
    begin: tf.Tensor
    end: tf.Tensor
    own: tf.Tensor
    span: tf.Tensor


class _Parts(NamedTuple):
    """The p parts of n texts, which end where an added token begins, or where the text ends.

    Attributes:
        row: int64 (p,), index of the text.
        begin: int32 (p,), the character of the text at which the part begins.
        texts: `tf.string` (p,).
        id: int32 (p,), id of the token behind the part, or -1.
        span: int32 (p, 2), the offsets of that token.
    """

    row: tf.Tensor
    begin: tf.Tensor
    texts: tf.Tensor
    id: tf.Tensor
    span: tf.Tensor


class CutTextsGraph(tf.Module):
    """A tokenizer as TensorFlow ops, see `lmzoo.text.graphs.graph_tokenizer`: its texts are cut at added tokens.

    A subclass tokenizes what is between them: `plain_ids` and `plain_spans`.

    Args:
        tokenizer: the tokenizer.
        trims: whether the offsets of a token leave out the whitespace that belongs to it.
        normalize_token: returns a token as it is found in normalized texts.
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
        """Normalize texts, to find tokens in them.

        Args:
            codes: int32 (n, None), the code points of the texts.

        Returns:
            Code points, int32 (n, None), and for their flat values the index of the one that each came from, int32.
        """
        return codes, tf.range(tf.size(codes.values))

    @abstractmethod
    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids, int32 (n, None), of texts without added tokens, `tf.string` (n,)."""

    @abstractmethod
    def plain_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Return the same ids, and the characters that they came from, int32 (n, None, 2)."""

    def finish_spans(self, ids: tf.RaggedTensor, spans: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return the offsets of whole texts from those of their parts, both int32 (n, None, 2); `ids` are (n, None)."""
        return spans

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids, int32 (n, None), of texts, `tf.string` (n,)."""
        parts = self._parts(texts)
        return _join(parts, self.plain_ids(parts.texts), parts.id, tf.size(texts, tf.int64))

    def with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Return the ids, int32 (n, None), and the characters that they came from, int32 (n, None, 2)."""
        parts = self._parts(texts)
        ids, spans = self.plain_spans(parts.texts)
        begin = tf.gather(parts.begin, rows_of(spans))[:, None]
        spans = spans.with_values(tf.cast(spans.values, tf.int32) + begin)
        rows = tf.size(texts, tf.int64)
        ids = _join(parts, ids, parts.id, rows)
        return ids, self.finish_spans(ids, _join(parts, spans, parts.span, rows))

    def _parts(self, texts: tf.Tensor) -> _Parts:
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        codes = tf.strings.unicode_decode(texts, "UTF-8")  # (n, None)
        found = _nothing() if self._exact is None else self._exact(texts, codes)
        if self._normalized is not None:
            found = self._find_normalized(self._normalized, codes, found)
        return self._cut(codes, found)

    def _find_normalized(self, find: _FindTokens, codes: tf.RaggedTensor, found: _Found) -> _Found:
        """Add the tokens that are in the normalized parts between those that were found."""
        places = _places(codes, found)  # (p, None)
        normalized, source = self.normalize(places.with_values(tf.gather(codes.values, places.values)))
        more = find(tf.strings.unicode_encode(normalized, "UTF-8"), normalized)
        # Where characters come from, with one more at both ends. A normalizer puts spaces beside a character that come
        # from it: if one belongs to a token, the character does not.
        source = tf.pad(tf.gather(places.values, source), [[1, 1]], constant_values=-1)  # (c + 2,)
        first, last = tf.gather(source, more.begin + 1), tf.gather(source, more.end)  # (k,)
        begin = tf.where((more.begin < more.own[:, 0]) & (tf.gather(source, more.begin) == first), first + 1, first)
        end = tf.where((more.end > more.own[:, 1]) & (tf.gather(source, more.end + 1) == last), last, last + 1)
        own = tf.stack([tf.gather(source, more.own[:, 0] + 1), tf.gather(source, more.own[:, 1]) + 1], axis=1)
        # The offsets are those of the library, which count the character as well.
        more = _Found(more.id, begin, end, own, tf.stack([first, last + 1], axis=1))
        both = [tf.concat(values, axis=0) for values in zip(found, more, strict=True)]
        # Of a character that is normalized to several, each may be a token: these stay in their order.
        order = tf.argsort(both[1], stable=True)
        return _Found(*(tf.gather(values, order) for values in both))

    def _cut(self, codes: tf.RaggedTensor, found: _Found) -> _Parts:
        places = _places(codes, found)  # (p, None)
        texts = tf.strings.unicode_encode(places.with_values(tf.gather(codes.values, places.values)), "UTF-8")
        tokens = _in_rows(codes, found, found.id)  # (n, None)
        ids = tf.concat([tokens, tf.fill([codes.nrows(), 1], -1)], axis=1)
        row = rows_of(ids)
        row_start = tf.gather(codes.row_starts(), row)  # (p,)
        starts, _ = _edges(codes, found)
        offsets = tokens.with_values(found.own if self._trims else found.span)  # (n, None, 2)
        span = tf.concat([offsets, tf.zeros([codes.nrows(), 1, 2], tf.int64)], axis=1).values - row_start[:, None]
        return _Parts(row, tf.cast(starts.values - row_start, tf.int32), texts, ids.values, tf.cast(span, tf.int32))


class _FindTokens(tf.Module):
    """A search for tokens, all of which are normalized or none.

    Args:
        tokens: the tokens.
        contents: how they are written in the texts.
        ids: token -> id.
    """

    def __init__(self, tokens: Sequence[AddedToken], contents: Sequence[str], ids: dict[str, int]) -> None:
        super().__init__()
        longest_first = sorted(range(len(tokens)), key=lambda index: -len(contents[index]))
        self._pattern = "(" + "|".join(_escaped(contents[index]) for index in longest_first) + ")"
        self._numbers = lookup_table({contents[index]: index for index in reversed(longest_first)}, tf.string, -1)
        self._ids = np.array([ids[token.content] for token in tokens], "int32")  # (k,)
        self._single, self._left, self._right = np.array(
            [[token.single_word for token in tokens], [token.lstrip for token in tokens], [t.rstrip for t in tokens]]
        )  # (k,), bool

    def __call__(self, texts: tf.Tensor, codes: tf.RaggedTensor) -> _Found:
        """Find the tokens in texts, `tf.string` (n,), whose code points are int32 (n, None)."""
        cut = tf.strings.regex_replace(texts, self._pattern, _CUT + b"\\1" + _CUT)
        parts = tf.strings.split(cut, _CUT)  # (n, None)
        end = tf.cumsum(tf.strings.length(parts.values, "UTF8_CHAR"))  # (q,)
        begin = end - tf.strings.length(parts.values, "UTF8_CHAR")
        number = self._numbers.lookup(parts.values)  # (q,)
        hit = number >= 0
        number, begin, end, row = (tf.boolean_mask(x, hit) for x in (number, begin, end, rows_of(parts)))
        begin, end = tf.cast(begin, tf.int64), tf.cast(end, tf.int64)  # (k,)
        first, limit = tf.gather(codes.row_starts(), row), tf.gather(codes.row_limits(), row)
        if self._single.any():
            beside = self._is_word(codes, begin - 1, begin > first) | self._is_word(codes, end, end < limit)
            kept = ~(beside & tf.gather(self._single, number))
            number, begin, end, first, limit = (tf.boolean_mask(x, kept) for x in (number, begin, end, first, limit))
        own = tf.stack([begin, end], axis=1)
        if self._left.any() or self._right.any():
            begin, end = self._strip(codes, number, begin, end, first, limit)
        return _Found(tf.gather(self._ids, number), begin, end, own, tf.stack([begin, end], axis=1))

    def _is_word(self, codes: tf.RaggedTensor, place: tf.Tensor, inside: tf.Tensor) -> tf.Tensor:
        """Return whether a word character is at `place`, int64 (k,), and `place` is `inside` its text, bool (k,)."""
        starts, kinds = word_characters()
        code = tf.gather(tf.pad(codes.values, [[1, 1]]), place + 1)  # (k,)
        return inside & tf.gather(kinds, tf.searchsorted(starts, code, side="right") - 1)

    def _strip(
        self, codes: tf.RaggedTensor, number: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, first: tf.Tensor,
        limit: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:  # fmt: skip
        """Move `begin` and `end`, int64 (k,), over whitespace within the text, from `first` to `limit`."""
        solid = ~tf.reduce_any(codes.values[:, None] == _WHITESPACE, axis=1)  # (c,)
        end = tf.where(tf.gather(self._right, number), tf.minimum(first_from(solid, end), limit), end)
        before = tf.maximum(last_up_to(solid, begin - 1) + 1, first)
        before = tf.maximum(before, shift(end, 1, 0))
        return tf.where(tf.gather(self._left, number), before, begin), end


@functools.lru_cache(maxsize=1)
def word_characters() -> tuple[np.ndarray, np.ndarray]:
    """Return the characters beside which a token with `single_word` is not found. Takes a second or two.

    They are measured by running `tokenizers` on every code point, so that they always follow its version of Unicode.

    Returns:
        `starts` int32 (R,), the first code point of each run of one kind, rising from 0, and bool (R,), whether these
        are characters of words.
    """
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
    backend.add_tokens([AddedToken("\n", single_word=True, normalized=False).to_library()])
    codes = code_points()
    codes = codes[codes != ord("\n")]
    rows = np.stack(np.broadcast_arrays(codes, ord("\n"), ord("-")), axis=1)
    encoding = backend.encode(to_text(rows.reshape(-1)), add_special_tokens=False)
    found = np.array([start for id, (start, _) in zip(encoding.ids, encoding.offsets, strict=True) if id], "int64")
    is_word = np.ones(len(codes), bool)
    is_word[found // 3] = False
    first = np.diff(is_word, prepend=~is_word[:1]) != 0
    return codes[first].astype("int32"), is_word[first]


def _in_rows(codes: tf.RaggedTensor, found: _Found, values: tf.Tensor) -> tf.RaggedTensor:
    """Return values of tokens, (k, ...), by text: (n, None, ...)."""
    row = tf.gather(rows_of(codes), found.begin)
    return tf.RaggedTensor.from_value_rowids(values, row, codes.nrows(), validate=False)


def _edges(codes: tf.RaggedTensor, found: _Found) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Return where the parts between tokens begin and end in the c characters of all texts, two int64 (n, None)."""
    starts = tf.concat([codes.row_starts()[:, None], _in_rows(codes, found, found.end)], axis=1)
    ends = tf.concat([_in_rows(codes, found, found.begin), codes.row_limits()[:, None]], axis=1)
    return starts, ends


def _places(codes: tf.RaggedTensor, found: _Found) -> tf.RaggedTensor:
    """Return the indices of the characters of all parts, int64 (p, None)."""
    starts, ends = _edges(codes, found)
    return tf.ragged.range(starts.values, tf.maximum(starts.values, ends.values))


def _join(parts: _Parts, plain: tf.RaggedTensor, of_tokens: tf.Tensor, rows: tf.Tensor) -> tf.RaggedTensor:
    """Return the values of texts from those of their parts, (p, None, ...), and of the tokens after these, (p, ...)."""
    values = tf.concat([plain, at_most_one(of_tokens, parts.id >= 0)], axis=1)  # (p, None, ...)
    return tf.RaggedTensor.from_value_rowids(values, parts.row, rows, validate=False).merge_dims(1, 2)


def at_most_one(values: tf.Tensor, given: tf.Tensor) -> tf.RaggedTensor:
    """Return rows (n, None, ...), of one of `values`, (n, ...), where `given`, bool (n,), is true, else of none."""
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(values, given), tf.cast(given, tf.int64), validate=False)


def _nothing() -> _Found:
    place = tf.zeros((0,), tf.int64)
    spans = tf.zeros((0, 2), tf.int64)
    return _Found(tf.zeros((0,), tf.int32), place, place, spans, spans)


def _escaped(token: str) -> str:
    """Return a pattern of RE2 for a token."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{ord(c):02x}" for c in token)
