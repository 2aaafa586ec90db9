"""Byte-level BPE tokenization in TensorFlow ops."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from lmzoo.text.graphs.added_tokens import CutTextsGraph
from lmzoo.text.graphs.composition import Composition
from lmzoo.text.graphs.merges import MergesGraph
from lmzoo.text.graphs.token_ops import (
    EDGE,
    compute_row_indices,
    ends_in_bytes,
    indices_in_rows,
    join_letters,
    repeat,
    shift,
)
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.graphs.unicode_map import code_points, to_text
from lmzoo.text.tokenizers.bpe import BYTE_TOKENS, BytePairTokenizer
from lmzoo.text.tokenizers.normalized_bpe import NormalizedBytePairTokenizer
from lmzoo.text.tokenizers.sentencepiece_text import WHITE_SPACE
from lmzoo.text.tokenizers.token_lists import make_token_ids

_SPACE = BYTE_TOKENS[ord(" ")]
_SPACES = "".join([_SPACE, *WHITE_SPACE])  # at the ends of tokens; added tokens hold whitespace itself
# Kinds of characters. OUTSIDE marks the edges of texts, which belong to no word.
OUTSIDE, WHITESPACE, OTHER, LETTER, NUMBER = range(5)


@functools.lru_cache(maxsize=1)
def character_kinds() -> tuple[np.ndarray, np.ndarray]:
    r"""Return the kind of each code point for GPT-2's word splitting.

    Kinds are determined by running the tokenizer's own splitter on every code point, so that they always follow its
    version of Unicode. The first call takes half a second.

    Returns:
        Two int32 arrays (R,) for R runs of code points of one kind: the first code point of each run, in ascending
        order from 0, and the kind: `WHITESPACE` for `\s`, `LETTER` for `\p{L}`, `NUMBER` for `\p{N}`, or `OTHER`.

    Example:

    ```python
    from lmzoo.text.graphs.bpe import LETTER, character_kinds

    starts, kinds = character_kinds()
    kinds[starts.searchsorted(ord("é"), side="right") - 1] == LETTER  # True
    ```
    """
    codes = code_points()
    starts = codes[_find_word_starts(codes)]  # (P,), runs of one kind each
    # A letter joins the "a" before it, a number the "1" after it, and another character the "!" after it.
    columns = np.broadcast_arrays(ord("a"), starts, ord("1"), starts, ord("!"))
    begins_word = _find_word_starts(np.stack(columns, axis=1).reshape(-1)).reshape(-1, 5)
    kinds = np.select([~begins_word[:, 1], ~begins_word[:, 2], ~begins_word[:, 4]], [LETTER, NUMBER, OTHER], WHITESPACE)
    is_run_start = np.diff(kinds, prepend=-1) != 0
    return starts[is_run_start].astype("int32"), kinds[is_run_start].astype("int32")


def _find_word_starts(codes: np.ndarray) -> np.ndarray:
    """Return whether the splitter begins a word at each code point, reading spaces as line breaks: bool (c,)."""
    from tokenizers import pre_tokenizers

    text = to_text(np.where(codes == ord(" "), ord("\n"), codes))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    is_start = np.zeros(len(codes), bool)
    is_start[[start for _, (start, _) in words]] = True
    return is_start


class BytePairGraph(CutTextsGraph):
    """Byte-level BPE as TensorFlow ops, without tensorflow-text, for `graph_tokenizer`."""

    def __init__(self, tokenizer: BytePairTokenizer, **settings: Any) -> None:
        super().__init__(tokenizer, spaces=_SPACES, **settings)
        ids = make_token_ids(tokenizer.base_vocabulary)
        self._starts, self._kinds = character_kinds()

        self._adds_space = tokenizer.add_prefix_space
        self._merges = MergesGraph(ids, tokenizer.merges)
        self._byte_ids = np.array([ids[token] for token in BYTE_TOKENS], "int32")  # (256,)
        tokens = tokenizer.vocabulary
        self._sizes = np.array([len(tokenizer.bytes_of(token)) for token in tokens], "int64")  # (V,), in bytes
        space_counts = [
            (len(token) - len(token.lstrip(_SPACE)), len(token) - len(token.rstrip(_SPACE))) for token in tokens
        ]
        self._token_spaces = np.array(space_counts, "int32")  # (V, 2)

    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._tokens(self.words(texts))

    def plain_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        words, characters, character_indices = self._words(texts)
        ids = self._tokens(words)
        sizes = tf.gather(self._sizes, ids.values)  # (p,)
        character_ends = ends_in_bytes(characters)  # (l,)
        token_ends = tf.cumsum(sizes)  # (p,), in bytes of all words
        begins = tf.gather(character_indices, tf.searchsorted(character_ends, token_ends - sizes, side="right"))
        ends = tf.gather(character_indices, tf.searchsorted(character_ends, token_ends - 1, side="right")) + 1
        return ids, ids.with_values(tf.stack([begins, ends], axis=1))

    def count_spaces(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        return ids.with_values(tf.gather(self._token_spaces, ids.values))

    def trim(self, spans: tf.RaggedTensor, spaces: tf.RaggedTensor) -> tf.RaggedTensor:
        """Exclude the spaces at the ends of tokens from their spans, like the `tokenizers` library."""
        begins, ends = tf.unstack(spans.values, num=2, axis=1)  # (p,)
        leading_spaces, trailing_spaces = tf.unstack(spaces.values, num=2, axis=1)  # (p,)
        if self._adds_space:
            is_first = (indices_in_rows(spans) == 0) | (begins == 0)
            # The library treats a single space there as the added space.
            leading_spaces = tf.where(is_first & (leading_spaces == 1), 0, leading_spaces)
        begins = tf.minimum(begins + leading_spaces, ends)
        ends = tf.where(ends >= trailing_spaces, tf.maximum(ends - trailing_spaces, begins), ends)
        return spans.with_values(tf.stack([begins, ends], axis=1))

    # === Words ===

    def words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Split texts, `tf.string` (n,), into words, `tf.string` (n, None)."""
        return self._words(texts)[0]

    def _words(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Split texts into words, and return the words with their characters.

        Returns:
            Words, `tf.string` (n, None); the code points of their l characters, int32 (l,); and the index of each
            character in its text, int32 (l,).
        """
        ragged_codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        ragged_codes = tf.concat(
            [tf.fill([ragged_codes.nrows(), 1], EDGE), ragged_codes], axis=1
        )  # (n, None), an edge in front of each text
        character_indices = indices_in_rows(ragged_codes) - 1  # (c,)
        codes = ragged_codes.values  # (c,)
        kinds = tf.gather(self._kinds, tf.searchsorted(self._starts, codes, side="right") - 1)  # (c,)
        kinds = tf.where(codes == EDGE, OUTSIDE, kinds)
        text_indices = compute_row_indices(ragged_codes)  # (c,)
        if self._adds_space:
            codes, kinds, character_indices, text_indices = _prepend_spaces(
                codes, kinds, character_indices, text_indices
            )
        begins = _find_word_begins(codes, kinds)
        in_word = kinds != OUTSIDE
        words, characters = join_letters(codes, text_indices, begins, in_word, ragged_codes.nrows())
        return words, characters.values, tf.boolean_mask(character_indices, in_word)

    # === Tokens ===

    def _tokens(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        """Tokenize words, `tf.string` (n, None), and return the ids of each text, int32 (n, None)."""
        unique_words, unique_indices = tf.unique(words.values)  # (u,), (w,)
        return words.with_values(tf.gather(self._tokens_of_words(unique_words), unique_indices)).merge_dims(1, 2)

    def _tokens_of_words(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Tokenize words, `tf.string` (u,), and return the ids of each word, int32 (u, None)."""
        byte_values = tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8)  # (s,)
        word_indices = repeat(tf.range(tf.size(words, tf.int64)), tf.strings.length(words))  # (s,)
        ids = tf.gather(self._byte_ids, tf.cast(byte_values, tf.int32))
        ids, word_indices = self._merges(ids, word_indices)
        return tf.RaggedTensor.from_value_rowids(ids, word_indices, nrows=tf.size(words, tf.int64), validate=False)


def _prepend_spaces(codes: tf.Tensor, kinds: tf.Tensor, *further_values: tf.Tensor) -> list[tf.Tensor]:
    """Put a space in front of each text that begins with another character.

    All arguments are (c,), one value per character. A new space gets the further values of the next character.
    """
    lacks_space = (kinds != OUTSIDE) & (shift(kinds, 1, OUTSIDE) == OUTSIDE) & (codes != ord(" "))  # (c,)
    sources = repeat(tf.range(tf.size(codes)), 1 + tf.cast(lacks_space, tf.int32))  # (d,)
    is_added = shift(sources, -1, -1) == sources  # (d,)
    codes = tf.where(is_added, ord(" "), tf.gather(codes, sources))
    kinds = tf.where(is_added, WHITESPACE, tf.gather(kinds, sources))
    return [codes, kinds, *(tf.gather(values, sources) for values in further_values)]


def _find_word_begins(codes: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
    r"""Return whether a word begins at each character, by the rules of GPT-2: bool (c,).

    Words are `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, whichever matches first.
    """
    previous_kinds = shift(kinds, 1, OUTSIDE)
    next_kinds = shift(kinds, -1, OUTSIDE)
    # The last whitespace character before a word is separate, and if it is a space, it belongs to the word.
    space_begins = (kinds == WHITESPACE) & ((previous_kinds != WHITESPACE) | (next_kinds > WHITESPACE))
    begins = (kinds > WHITESPACE) & (kinds != previous_kinds) & (shift(codes, 1, EDGE) != ord(" "))
    # A contraction is a word if a word begins with its apostrophe; the next character begins another word.
    second_codes = shift(codes, -1, EDGE)
    third_codes = shift(codes, -2, EDGE)
    is_apostrophe = begins & (codes == ord("'"))
    begins_short_contraction = is_apostrophe & tf.reduce_any([second_codes == ord(letter) for letter in "stmd"], axis=0)
    matches_by_ending = [(second_codes == ord(a)) & (third_codes == ord(b)) for a, b in ("re", "ve", "ll")]
    begins_long_contraction = is_apostrophe & tf.reduce_any(matches_by_ending, axis=0)
    begins &= ~shift(begins_short_contraction | begins_long_contraction, 1, False)
    return space_begins | begins | shift(begins_short_contraction, 2, False) | shift(begins_long_contraction, 3, False)


class NormalizedBytePairGraph(BytePairGraph):
    """Byte-level BPE of normalized texts as TensorFlow ops, for `graph_tokenizer`."""

    def __init__(self, tokenizer: NormalizedBytePairTokenizer) -> None:
        super().__init__(tokenizer, normalize_token=tokenizer.backend.normalizer.normalize_str)
        self._composition = Composition()

    def normalize(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        return self._composition(codes)

    def plain_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return super().plain_ids(self._compute_normal_form(texts)[0])

    def plain_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        texts, codes, origins = self._compute_normal_form(texts)
        ids, spans = super().plain_spans(texts)
        begins, ends = tf.unstack(spans.values, num=2, axis=1)  # (p,), in the normalized text of the part
        starts = tf.gather(codes.row_starts(), compute_row_indices(spans))  # (p,)
        # A token of a part has at least one character.
        begins, last_origins = (tf.gather(origins, starts + tf.cast(x, tf.int64)) for x in (begins, ends - 1))
        return ids, spans.with_values(tf.stack([begins, last_origins + 1], axis=1))

    def _compute_normal_form(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor, tf.Tensor]:
        """Normalize texts, `tf.string` (n,).

        Returns:
            The normalized texts, `tf.string` (n,); their c code points, int32 (n, None); and the index, in the original
            text, of the character that each code point comes from, int32 (c,).
        """
        original_codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")  # (n, None)
        codes, origins = self.normalize(original_codes)
        starts = tf.gather(original_codes.row_starts(), compute_row_indices(codes))
        return tf.strings.unicode_encode(codes, "UTF-8"), codes, origins - tf.cast(starts, tf.int32)


graph_tokenizer.register(BytePairTokenizer, BytePairGraph)
graph_tokenizer.register(NormalizedBytePairTokenizer, NormalizedBytePairGraph)
