"""`lmzoo.text.word_splitting` as TensorFlow ops."""

from __future__ import annotations

import tensorflow as tf

from lmzoo.text.graphs.token_ops import join_letters, rows_of
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
    """`lmzoo.text.word_splitting.split_words` as TensorFlow ops, for `tf.string` (n,).

    Returns:
        The words, `tf.string` (n, None), and the characters where each begins and ends, int32 (n, None, 2).
    """
    starts, kinds = character_kinds()
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    # The space separates texts where neighbors matter, also the last from the first, which are neighbors for tf.roll.
    codes = tf.strings.unicode_decode(tf.strings.join([" ", texts]), "UTF-8")
    flat = codes.values  # (c,)
    kinds = tf.gather(kinds, tf.searchsorted(starts, flat, side="right") - 1)  # (c,)
    inside = kinds != SPACE  # (c,)
    begins = inside & ~_continues(flat, kinds)  # (c,)
    words, letters = join_letters(flat, rows_of(codes), begins, inside, codes.nrows())
    rows = rows_of(words)  # (m,)
    start = tf.where(begins)[:, 0] - tf.gather(codes.row_starts(), rows) - 1  # (m,), without the space in front
    span = tf.stack([start, start + letters.row_lengths()], axis=1)  # (m, 2): there is no space within a word
    return words, words.with_values(tf.cast(span, tf.int32))


def _continues(codes: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
    """Whether a character that is not a space belongs to the word of the one before it: bool (c,), as the arguments.

    The rule is that of the pattern in `lmzoo.text.word_splitting`. A word consists of letters and digits if its first
    character that is not `ATTACHED` is a letter or a digit, or if all its characters are `ATTACHED`.
    """

    def one_of(characters: str) -> tf.Tensor:
        return tf.reduce_any(codes[:, None] == [ord(character) for character in characters], axis=1)

    letter, attached = kinds == LETTER, kinds == ATTACHED
    letter_or_digit = letter | (kinds == DIGIT)
    in_word = letter_or_digit | attached
    base = tf.gather(
        tf.boolean_mask(kinds, ~attached), tf.cumsum(tf.cast(~attached, tf.int32)) - 1
    )  # (c,), the kind of the last character that is not ATTACHED
    word_so_far = (base == LETTER) | (base == DIGIT) | (attached & (base == SPACE))

    # Where clitics of two and of three characters begin.
    apostrophe, dot = one_of(APOSTROPHES), one_of(".")
    not_t = one_of("nN") & _at(1, apostrophe) & _at(2, one_of("tT")) & ~_at(3, in_word)
    after = ((1, one_of("rRvV")), (2, one_of("eE"))), ((1, one_of("lL")), (2, one_of("lL")))
    pairs = tf.reduce_any([_at(*first) & _at(*second) for first, second in after], axis=0)
    opens = apostrophe & (_at(-1, codes) != codes)  # Two apostrophes are a quotation mark.
    short = opens & _at(1, one_of("sSmMdD")) & ~_at(2, in_word)
    long = not_t | (opens & pairs & ~_at(3, in_word))
    in_clitic = _at(-1, short) | _at(-1, long) | _at(-2, long)
    after_clitic = _at(-2, short) | _at(-3, long)

    # Characters that join their neighbors on both sides.
    lone = letter & ~_at(-1, in_word) & ~_at(1, in_word)
    joint = one_of(HYPHENS + APOSTROPHES) & _at(-1, word_so_far) & _at(1, letter_or_digit)
    joint |= one_of(".,") & _at(-1, kinds == DIGIT) & _at(1, kinds == DIGIT)
    joint |= dot & _at(-1, lone) & _at(1, lone)
    joint &= ~(short | long | after_clitic | _at(1, not_t))
    last_dot = dot & _at(-1, lone) & _at(-2, dot) & _at(-3, lone) & ~_at(1, dot | attached)

    repeated = (kinds == PUNCTUATION) & (_at(-1, codes) == codes)
    joined = (kinds == OTHER) & (_at(-1, codes) == ord(JOINER)) & (_at(-1, base) == OTHER)
    belongs = (attached & ~_at(-1, kinds == SPACE)) | (letter_or_digit & _at(-1, word_so_far) & ~not_t)
    return belongs | joint | _at(-1, joint) | last_dot | in_clitic | repeated | joined


def _at(offset: int, values: tf.Tensor) -> tf.Tensor:
    """Return the values `offset` positions further on."""
    return tf.roll(values, -offset, axis=0)
