"""Word splitting as TensorFlow ops, with the same results as `lmzoo.text.word_splitting`."""

from __future__ import annotations

import tensorflow as tf

from lmzoo.text.graphs.token_ops import compute_row_indices, join_letters
from lmzoo.text.word_splitting import (
    APOSTROPHES,
    ATTACHED,
    DIGIT,
    HYPHENS,
    JOINER,
    LETTER,
    OTHER,
    PUNCTUATION,
    SPACE,
    character_kinds,
)


def split_words(texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Split texts, `tf.string` (n,), into words by the rules of `lmzoo.text.word_splitting.split_words`.

    Returns:
        The words, `tf.string` (n, None), and their offsets, int32 (n, None, 2).
    """
    starts, kinds = character_kinds()
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    # Spaces separate neighboring texts, including the last and the first, which are neighbors for tf.roll.
    codes = tf.strings.unicode_decode(tf.strings.join([" ", texts]), "UTF-8")
    flat_codes = codes.values  # (c,)
    kinds = tf.gather(kinds, tf.searchsorted(starts, flat_codes, side="right") - 1)  # (c,)
    in_word = kinds != SPACE  # (c,)
    begins = in_word & ~_continues(flat_codes, kinds)  # (c,)
    words, letters = join_letters(flat_codes, compute_row_indices(codes), begins, in_word, codes.nrows())
    rows = compute_row_indices(words)  # (m,)
    start = tf.where(begins)[:, 0] - tf.gather(codes.row_starts(), rows) - 1  # (m,), without the space in front
    span = tf.stack([start, start + letters.row_lengths()], axis=1)  # (m, 2): there is no space within a word
    return words, words.with_values(tf.cast(span, tf.int32))


def _continues(codes: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
    """Return whether each character that is not a space belongs to the word of the previous one: bool (c,).

    The rule equals the pattern in `lmzoo.text.word_splitting`. A word consists of letters and digits if its first
    character that is not `ATTACHED` is a letter or a digit, or if all its characters are `ATTACHED`.
    """

    def is_in_set(characters: str) -> tf.Tensor:
        return tf.reduce_any(codes[:, None] == [ord(character) for character in characters], axis=1)

    letter = kinds == LETTER
    attached = kinds == ATTACHED
    letter_or_digit = letter | (kinds == DIGIT)
    in_word = letter_or_digit | attached
    base = tf.gather(
        tf.boolean_mask(kinds, ~attached), tf.cumsum(tf.cast(~attached, tf.int32)) - 1
    )  # (c,), the kind of the last character that is not ATTACHED
    is_word_so_far = (base == LETTER) | (base == DIGIT) | (attached & (base == SPACE))

    # Beginnings of clitics of two and of three characters.
    apostrophe = is_in_set(APOSTROPHES)
    dot = is_in_set(".")
    not_t = is_in_set("nN") & _shift_to(1, apostrophe) & _shift_to(2, is_in_set("tT")) & ~_shift_to(3, in_word)
    endings = ((1, is_in_set("rRvV")), (2, is_in_set("eE"))), ((1, is_in_set("lL")), (2, is_in_set("lL")))
    pairs = tf.reduce_any([_shift_to(*first) & _shift_to(*second) for first, second in endings], axis=0)
    opens_clitic = apostrophe & (_shift_to(-1, codes) != codes)  # Two apostrophes are a quotation mark.
    short_clitic = opens_clitic & _shift_to(1, is_in_set("sSmMdD")) & ~_shift_to(2, in_word)
    long_clitic = not_t | (opens_clitic & pairs & ~_shift_to(3, in_word))
    in_clitic = _shift_to(-1, short_clitic) | _shift_to(-1, long_clitic) | _shift_to(-2, long_clitic)
    after_clitic = _shift_to(-2, short_clitic) | _shift_to(-3, long_clitic)

    # Characters that join their neighbors on both sides.
    initial = letter & ~_shift_to(-1, in_word) & ~_shift_to(1, in_word)
    joiner = is_in_set(HYPHENS + APOSTROPHES) & _shift_to(-1, is_word_so_far) & _shift_to(1, letter_or_digit)
    joiner |= is_in_set(".,") & _shift_to(-1, kinds == DIGIT) & _shift_to(1, kinds == DIGIT)
    joiner |= dot & _shift_to(-1, initial) & _shift_to(1, initial)
    joiner &= ~(short_clitic | long_clitic | after_clitic | _shift_to(1, not_t))
    final_point = (
        dot & _shift_to(-1, initial) & _shift_to(-2, dot) & _shift_to(-3, initial) & ~_shift_to(1, dot | attached)
    )

    repeated = (kinds == PUNCTUATION) & (_shift_to(-1, codes) == codes)
    joins_emoji = (kinds == OTHER) & (_shift_to(-1, codes) == ord(JOINER)) & (_shift_to(-1, base) == OTHER)
    continues_word = (attached & ~_shift_to(-1, kinds == SPACE)) | (
        letter_or_digit & _shift_to(-1, is_word_so_far) & ~not_t
    )
    return continues_word | joiner | _shift_to(-1, joiner) | final_point | in_clitic | repeated | joins_emoji


def _shift_to(offset: int, values: tf.Tensor) -> tf.Tensor:
    """Return, for each index, the value that is `offset` positions further on."""
    return tf.roll(values, -offset, axis=0)
