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
    """Split texts into words by the rules of `lmzoo.text.word_splitting.split_words`.

    Args:
        texts: `tf.string` (n,), the texts to split.

    Returns:
        The words, `tf.string` (n, None), and their offsets, int32 (n, None, 2).
    """
    run_starts, run_kinds = character_kinds()
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    # Spaces separate neighboring texts, including the last and the first, which are neighbors for tf.roll.
    codes = tf.strings.unicode_decode(tf.strings.join([" ", texts]), "UTF-8")
    flat_codes = codes.values  # (c,)
    kinds = tf.gather(run_kinds, tf.searchsorted(run_starts, flat_codes, side="right") - 1)  # (c,)
    in_word = kinds != SPACE  # (c,)
    begins = in_word & ~_continues(flat_codes, kinds)  # (c,)
    words, characters = join_letters(flat_codes, compute_row_indices(codes), begins, in_word, codes.nrows())
    rows = compute_row_indices(words)  # (m,)
    starts = tf.where(begins)[:, 0] - tf.gather(codes.row_starts(), rows) - 1  # (m,), without the space in front
    spans = tf.stack([starts, starts + characters.row_lengths()], axis=1)  # (m, 2): there is no space within a word
    return words, words.with_values(tf.cast(spans, tf.int32))


def _continues(codes: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
    """Return whether each character that is not a space belongs to the word of the previous character: bool (c,).

    The rule is equivalent to the pattern in `lmzoo.text.word_splitting`. A word consists of letters and digits if
    its first character that is not `ATTACHED` is a letter or a digit, or if all its characters are `ATTACHED`.
    """

    def is_in_set(characters: str) -> tf.Tensor:
        return tf.reduce_any(codes[:, None] == [ord(character) for character in characters], axis=1)

    is_letter = kinds == LETTER
    is_attached = kinds == ATTACHED
    is_letter_or_digit = is_letter | (kinds == DIGIT)
    in_word = is_letter_or_digit | is_attached
    base_kinds = tf.gather(
        tf.boolean_mask(kinds, ~is_attached), tf.cumsum(tf.cast(~is_attached, tf.int32)) - 1
    )  # (c,), the kind of the last character that is not ATTACHED
    is_word_so_far = (base_kinds == LETTER) | (base_kinds == DIGIT) | (is_attached & (base_kinds == SPACE))

    # Beginnings of clitics of two and of three characters.
    is_apostrophe = is_in_set(APOSTROPHES)
    is_period = is_in_set(".")
    begins_negation = (
        is_in_set("nN") & _shift_to(1, is_apostrophe) & _shift_to(2, is_in_set("tT")) & ~_shift_to(3, in_word)
    )
    endings = ((1, is_in_set("rRvV")), (2, is_in_set("eE"))), ((1, is_in_set("lL")), (2, is_in_set("lL")))
    has_long_ending = tf.reduce_any([_shift_to(*first) & _shift_to(*second) for first, second in endings], axis=0)
    opens_clitic = is_apostrophe & (_shift_to(-1, codes) != codes)  # Two apostrophes are a quotation mark.
    short_clitic = opens_clitic & _shift_to(1, is_in_set("sSmMdD")) & ~_shift_to(2, in_word)
    long_clitic = begins_negation | (opens_clitic & has_long_ending & ~_shift_to(3, in_word))
    in_clitic = _shift_to(-1, short_clitic) | _shift_to(-1, long_clitic) | _shift_to(-2, long_clitic)
    after_clitic = _shift_to(-2, short_clitic) | _shift_to(-3, long_clitic)

    # Characters that join their neighbors on both sides.
    is_initial = is_letter & ~_shift_to(-1, in_word) & ~_shift_to(1, in_word)
    is_joiner = is_in_set(HYPHENS + APOSTROPHES) & _shift_to(-1, is_word_so_far) & _shift_to(1, is_letter_or_digit)
    is_joiner |= is_in_set(".,") & _shift_to(-1, kinds == DIGIT) & _shift_to(1, kinds == DIGIT)
    is_joiner |= is_period & _shift_to(-1, is_initial) & _shift_to(1, is_initial)
    is_joiner &= ~(short_clitic | long_clitic | after_clitic | _shift_to(1, begins_negation))
    ends_initials = (
        is_period
        & _shift_to(-1, is_initial)
        & _shift_to(-2, is_period)
        & _shift_to(-3, is_initial)
        & ~_shift_to(1, is_period | is_attached)
    )

    is_repeated = (kinds == PUNCTUATION) & (_shift_to(-1, codes) == codes)
    joins_emoji = (kinds == OTHER) & (_shift_to(-1, codes) == ord(JOINER)) & (_shift_to(-1, base_kinds) == OTHER)
    continues_word = (is_attached & ~_shift_to(-1, kinds == SPACE)) | (
        is_letter_or_digit & _shift_to(-1, is_word_so_far) & ~begins_negation
    )
    return continues_word | is_joiner | _shift_to(-1, is_joiner) | ends_initials | in_clitic | is_repeated | joins_emoji


def _shift_to(offset: int, values: tf.Tensor) -> tf.Tensor:
    """Return, for each index, the value `offset` positions later; the first index follows the last."""
    return tf.roll(values, -offset, axis=0)
