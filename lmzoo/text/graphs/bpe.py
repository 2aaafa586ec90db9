"""Byte-level BPE as TensorFlow ops."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from lmzoo.text.graphs.token_ops import SpecialTokenGraph, ends_in_bytes, shift
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.tokenizers.bpe import BYTE_TOKENS, BytePairTokenizer, as_bytes

# Kinds of characters. OUTSIDE: in no word, as the edges of texts and the whitespace that a mask takes with it.
OUTSIDE, SPECIAL, WHITESPACE, OTHER, LETTER, NUMBER = range(6)
_EDGE = 0x110000  # in front of every text: more than any code point
_NEVER = np.iinfo("int32").max  # the rank of a pair that does not merge


@functools.lru_cache(maxsize=1)
def character_kinds() -> tuple[np.ndarray, np.ndarray]:
    r"""The kinds of characters that GPT-2's word splitter tells apart, for all code points. Takes half a second.

    They are measured, not written down: the tokenizer's own splitter sees every code point once. Whatever Unicode
    version it follows, the table follows.

    Returns:
        `starts` int32 (R,), the first code point of each run of one kind, rising from 0, and `kinds` int32 (R,):
        `WHITESPACE` for `\s`, `LETTER` for `\p{L}`, `NUMBER` for `\p{N}`, else `OTHER`.

    Example:

    ```python
    from lmzoo.text.graphs.bpe import LETTER, character_kinds

    starts, kinds = character_kinds()
    kinds[starts.searchsorted(ord("é"), side="right") - 1] == LETTER  # True
    ```
    """
    # Surrogates are not characters, and planes 4 to 13 are empty: their ends show what happens to all of them.
    spans = (0, 0xD800), (0xE000, 0x40001), (0xDFFFF, 0x110000)
    codes = np.concatenate([np.arange(*span) for span in spans])
    starts = codes[_split(codes)]  # (P,) pieces of one kind each
    # A letter joins the letter before it, a number the number behind it, another character the mark behind it.
    probe = np.broadcast_arrays(ord("a"), starts, ord("1"), starts, ord("!"))
    begins = _split(np.stack(probe, axis=1).reshape(-1)).reshape(-1, 5)
    kinds = np.select([~begins[:, 1], ~begins[:, 2], ~begins[:, 4]], [LETTER, NUMBER, OTHER], WHITESPACE)
    first = np.diff(kinds, prepend=-1) != 0
    return starts[first].astype("int32"), kinds[first].astype("int32")


def _split(codes: np.ndarray) -> np.ndarray:
    """Bool, as `codes`: where the splitter begins a word in this text, if spaces did not join the word behind them."""
    from tokenizers import pre_tokenizers

    text = np.where(codes == ord(" "), ord("\n"), codes).astype("<u4").tobytes().decode("utf-32-le")
    words = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    begins = np.zeros(len(codes), bool)
    begins[[start for _, (start, _) in words]] = True
    return begins


class BytePairGraph(tf.Module):
    """See `lmzoo.text.graphs.graph_tokenizer`. Needs TensorFlow's own ops only."""

    def __init__(self, tokenizer: BytePairTokenizer) -> None:
        super().__init__()
        ids = {token: index for index, token in enumerate(tokenizer.vocabulary)}
        special = tokenizer.special_tokens
        self._mask = special.index(tokenizer.mask_token) if tokenizer.mask_token else -2  # no token has that place
        self._special = SpecialTokenGraph(special)
        self._special_ids = _table({token: ids[token] for token in special}, tf.string, -1)
        self._starts, self._kinds = character_kinds()

        merges = [merge.split(" ") for merge in tokenizer.merges]
        parts = np.array([[ids[token] for token in merge] for merge in merges], "int64").reshape(-1, 2)  # (merges, 2)
        self._size = len(ids)
        ranks = {a * self._size + b: rank for rank, (a, b) in enumerate(parts.tolist())}
        self._ranks = _table(ranks or {-1: _NEVER}, tf.int64, _NEVER)  # there are no empty tables
        self._merged = np.array([ids["".join(merge)] for merge in merges], "int32")  # (merges,)
        self._alone = _may_be_overtaken(parts, self._merged)  # (merges,)
        self._byte_ids = np.array([ids[token] for token in BYTE_TOKENS], "int32")  # (256,)
        data = [token.encode() if token in special else as_bytes(token) for token in tokenizer.vocabulary]
        spaces = [(len(b), len(b) - len(b.lstrip(b" ")), len(b) - len(b.rstrip(b" "))) for b in data]
        self._bytes = np.array(spaces, "int64").T  # (3, V): all of a token; spaces in front; behind

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids, int32 (n, None), of texts, `tf.string` (n,)."""
        words = self.words(texts)
        unique, index = tf.unique(words.values)  # (u,), (w,)
        return words.with_values(tf.gather(self._pieces(unique), index)).merge_dims(1, 2)

    def with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Ids, int32 (n, None), and the characters that they came from, int32 (n, None, 2)."""
        words, letters, place = self._words(texts)
        unique, index = tf.unique(words.values)  # (u,), (w,)
        ids = words.with_values(tf.gather(self._pieces(unique), index)).merge_dims(1, 2)
        size, leading, trailing = (tf.gather(table, ids.values) for table in self._bytes)  # each (p,)
        after = ends_in_bytes(letters)  # (l,)
        to_byte = tf.cumsum(size)  # (p,), in all words; pieces are made of their bytes
        first = tf.searchsorted(after, to_byte - size + leading, side="right", out_type=tf.int64)
        last = tf.searchsorted(after, to_byte - trailing - 1, side="right", out_type=tf.int64)
        # A piece of spaces alone covers nothing, and stands where it ends.
        empty = size == leading
        end = tf.where(empty, tf.searchsorted(after, to_byte - 1, side="right", out_type=tf.int64), last)
        end = tf.gather(place, end) + 1
        start = tf.where(empty, end, tf.gather(place, tf.minimum(first, last)))
        return ids, ids.with_values(tf.stack([start, end], axis=1))

    # === Words ===

    def words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Words to split into pieces, `tf.string` (n, None), of texts, `tf.string` (n,).

        A special token is a word; no other word can look like it, for it mixes letters and other characters.
        """
        return self._words(texts)[0]

    def _words(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """See `words`; the letters of all, int32 (l,), and the place of each in its text, int32 (l,)."""
        rows = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")  # (n, None)
        # The edge keeps texts apart where neighbours matter.
        rows = tf.concat([tf.fill([rows.nrows(), 1], _EDGE), rows], axis=1)
        codes = rows.values  # (c,)
        kinds = tf.gather(self._kinds, tf.searchsorted(self._starts, codes, side="right") - 1)  # (c,)
        kinds = tf.where(codes == _EDGE, OUTSIDE, kinds)
        kinds, special = self._mark_special(codes, kinds)
        begins = _word_begins(codes, kinds) | special
        inside = kinds != OUTSIDE
        first = tf.where(tf.boolean_mask(begins, inside))[:, 0]  # (w,)
        letters = tf.RaggedTensor.from_row_starts(tf.boolean_mask(codes, inside), first, validate=False)
        words = tf.strings.unicode_encode(letters, "UTF-8")  # (w,)
        of = rows.value_rowids()  # (c,)
        row = tf.boolean_mask(of, begins & inside)  # (w,)
        place = tf.range(tf.size(codes)) - tf.cast(tf.gather(rows.row_starts(), of), tf.int32) - 1  # (c,)
        words = tf.RaggedTensor.from_value_rowids(words, row, nrows=rows.nrows(), validate=False)
        return words, letters.values, tf.boolean_mask(place, inside)

    def _mark_special(self, codes: tf.Tensor, kinds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Kinds (c,) with special tokens and the whitespace before masks marked, and where special tokens begin."""
        found, inside = self._special(codes)
        kinds = tf.where(inside, SPECIAL, kinds)
        # Whitespace looks at the first other character behind it.
        solid = kinds != WHITESPACE
        is_mask = tf.concat([tf.boolean_mask(found, solid) == self._mask + 1, [False]], axis=0)
        before_mask = tf.gather(is_mask, tf.cumsum(tf.cast(solid, tf.int32), exclusive=True)) & ~solid
        return tf.where(before_mask, OUTSIDE, kinds), found > 0

    # === Pieces ===

    def _pieces(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Ids, int32 (u, None), of words, `tf.string` (u,)."""
        special = self._special_ids.lookup(words)  # (u,)
        words = tf.where(special < 0, words, "<")  # one byte, to be replaced
        data = tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8)  # (s,)
        word = tf.repeat(tf.range(tf.size(words, tf.int64)), tf.strings.length(words))  # (s,)
        special = tf.gather(special, word)  # (s,)
        ids = tf.where(special < 0, tf.gather(self._byte_ids, tf.cast(data, tf.int32)), special)
        ids, word, _ = tf.while_loop(
            lambda ids, word, ranks: tf.reduce_min(ranks) < _NEVER,
            self._merge,
            [ids, word, self._ranks_at(tf.range(tf.size(ids)), ids, word)],
            shape_invariants=[tf.TensorShape([None])] * 3,
        )
        return tf.RaggedTensor.from_value_rowids(ids, word, nrows=tf.size(words, tf.int64), validate=False)

    def _merge(self, ids: tf.Tensor, word: tf.Tensor, ranks: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Merges the pair of the lowest rank in every word, wherever it stands.

        Args:
            ids: int32 (s,), symbols of all words.
            word: int32 (s,), the number of the word that each belongs to, rising.
            ranks: int32 (s,), the rank of each symbol's pair with the next one.
        """
        best = tf.gather(tf.math.segment_min(ranks, word), word)  # (s,)
        left = tf.where((ranks == best) & (ranks < _NEVER))[:, 0]  # (h,)
        # In "aaaa" the pairs overlap: every second one of neighbouring pairs merges.
        opens = tf.concat([[True], left[1:] != left[:-1] + 1], axis=0)[: tf.size(left)]  # (h,)
        run = tf.cumsum(tf.cast(opens, tf.int32)) - 1
        chosen = (left - tf.gather(tf.boolean_mask(left, opens), run)) % 2 == 0
        if self._alone.any():
            owner = tf.gather(word, left)
            leads = tf.concat([[True], owner[1:] != owner[:-1]], axis=0)[: tf.size(left)]
            chosen &= leads | ~tf.gather(self._alone, tf.gather(ranks, left))
        left = tf.boolean_mask(left, chosen)  # (m,)
        ids = tf.tensor_scatter_nd_update(ids, left[:, None], tf.gather(self._merged, tf.gather(ranks, left)))
        keep = tf.tensor_scatter_nd_update(tf.ones_like(ids, tf.bool), left[:, None] + 1, tf.zeros_like(left, tf.bool))
        ids, word, ranks = (tf.boolean_mask(values, keep) for values in (ids, word, ranks))
        left = tf.cast(left, tf.int32) - tf.range(tf.size(left))  # where they are now
        changed = tf.concat([left, tf.maximum(left - 1, 0)], axis=0)
        ranks = tf.tensor_scatter_nd_update(ranks, changed[:, None], self._ranks_at(changed, ids, word))
        return ids, word, ranks

    def _ranks_at(self, places: tf.Tensor, ids: tf.Tensor, word: tf.Tensor) -> tf.Tensor:
        """The rank of the pair that begins at each of `places`, int32 (p,); see `_merge`."""
        second = tf.minimum(places + 1, tf.size(ids) - 1)
        pairs = tf.cast(tf.gather(ids, places), tf.int64) * self._size + tf.cast(tf.gather(ids, second), tf.int64)
        same = (tf.gather(word, places) == tf.gather(word, second)) & (second > places)
        return tf.where(same, self._ranks.lookup(pairs), _NEVER)


def _table(entries: dict, key_type: tf.DType, default: int) -> tf.lookup.StaticHashTable:
    """A table of int32 values."""
    keys, values = tf.constant(list(entries), key_type), tf.constant(list(entries.values()), tf.int32)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), default)


def _may_be_overtaken(parts: np.ndarray, merged: np.ndarray) -> np.ndarray:
    """Bool (merges,): whether a merge may give a symbol whose own merge comes earlier in the list.

    Then only the first of equal pairs merges before the ranks are looked at again. No trainer writes such lists.
    """
    ranks = np.arange(len(merged))
    first_use = np.full(max(parts.max(initial=0), merged.max(initial=0)) + 1, len(merged))
    np.minimum.at(first_use, parts, ranks[:, None])
    return first_use[merged] < ranks


def _word_begins(codes: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
    r"""Where words begin, bool (c,), by the rules of GPT-2.

    They are `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, the first that fits.
    """
    before, after = shift(kinds, 1, OUTSIDE), shift(kinds, -1, OUTSIDE)
    # The last whitespace character before a word is apart from others, and if it is a space, it belongs to the word.
    spaces = (kinds == WHITESPACE) & ((before != WHITESPACE) | (after > WHITESPACE))
    begins = (kinds > WHITESPACE) & (kinds != before) & (shift(codes, 1, _EDGE) != ord(" "))
    # A contraction is a word where a word begins with its apostrophe, and what follows begins another.
    second, third = shift(codes, -1, _EDGE), shift(codes, -2, _EDGE)
    apostrophe = begins & (codes == ord("'"))
    short = apostrophe & tf.reduce_any([second == ord(letter) for letter in "stmd"], axis=0)
    pairs = [(second == ord(a)) & (third == ord(b)) for a, b in ("re", "ve", "ll")]
    long = apostrophe & tf.reduce_any(pairs, axis=0)
    begins &= ~shift(short | long, 1, False)
    return spaces | begins | shift(short, 2, False) | shift(long, 3, False)


graph_tokenizer.register(BytePairTokenizer, BytePairGraph)
