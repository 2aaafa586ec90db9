"""Detokenization as TensorFlow ops, with the same texts as in Python."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import tensorflow as tf

from lmzoo.text.tokenizers.bpe import BytePairTokenizer
from lmzoo.text.tokenizers.character_pairs import CharacterPairTokenizer, spaced
from lmzoo.text.tokenizers.sentencepiece import SentencePieceTokenizer
from lmzoo.text.tokenizers.sentencepiece_pair import MarianTokenizer
from lmzoo.text.tokenizers.tokenizer import Tokenizer
from lmzoo.text.tokenizers.word_level import WordTokenizer


@functools.singledispatch
def graph_detokenizer(tokenizer: Tokenizer) -> tf.Module:
    """Return `tokenizer.detokenize` as TensorFlow ops.

    Returns:
        A module that maps a `tf.RaggedTensor` of int32 ids, (n, None), to texts, `tf.string` (n,).

    Raises:
        TypeError: If no module is registered for the tokenizer's class or a base class. Register one with
            `graph_detokenizer.register(tokenizer_class, graph_class)`.

    Example:

    ```python
    import tensorflow as tf
    from lmzoo.text import BytePairTokenizer
    from lmzoo.text.graphs import graph_detokenizer

    tokenizer = BytePairTokenizer.of_words(["film"], size=270)
    ids = tf.ragged.constant(tokenizer.tokenize(["É, a film!", ""]), dtype="int32")
    graph_detokenizer(tokenizer)(ids)[0]  # "É, a film!", as UTF-8
    ```
    """
    raise TypeError(
        f"The tokens of a {type(tokenizer).__name__} cannot be turned into text in a graph. Register a module with "
        "`graph_detokenizer.register(tokenizer_class, graph_class)`."
    )


class JoinedText(tf.Module):
    """Detokenization by joining the texts of tokens; invalid UTF-8 becomes U+FFFD.

    Args:
        texts: UTF-8 bytes of each of the V tokens; a token may begin or end within a character.
        trims: bool, whether to strip spaces at both ends of the joined text.
    """

    def __init__(self, texts: Iterable[bytes], trims: bool = True) -> None:
        super().__init__()
        self._texts = list(texts)  # (V,)
        self._trims = trims

    def __call__(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Map ids, int32 (n, None), to texts, `tf.string` (n,)."""
        texts = tf.strings.reduce_join(ids.with_values(tf.gather(self._texts, ids.values)), axis=1)  # (n,)
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        return tf.strings.regex_replace(texts, "^ +| +$", "") if self._trims else texts


@graph_detokenizer.register
def _(tokenizer: BytePairTokenizer) -> tf.Module:
    return JoinedText(map(tokenizer.bytes_of, tokenizer.vocabulary), trims=False)


@graph_detokenizer.register
def _(tokenizer: CharacterPairTokenizer) -> tf.Module:
    return JoinedText(spaced(token).encode() for token in tokenizer.vocabulary)


@graph_detokenizer.register
def _(tokenizer: MarianTokenizer) -> tf.Module:
    return JoinedText(tokenizer.text_of(token).encode() for token in tokenizer.vocabulary)


@graph_detokenizer.register
def _(tokenizer: SentencePieceTokenizer) -> tf.Module:
    return JoinedText(map(tokenizer.bytes_of, tokenizer.vocabulary))


@graph_detokenizer.register(WordTokenizer)
class WordText(tf.Module):
    """Detokenization by joining words with spaces, omitting padding."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        super().__init__()
        self._first = tokenizer.first_id
        self._words = [tokenizer.id_to_token(i).encode() for i in range(tokenizer.vocabulary_size)]  # (V,)

    def __call__(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Map ids, int32 (n, None), to texts, `tf.string` (n,)."""
        ids = tf.ragged.boolean_mask(ids, ids >= self._first)
        return tf.strings.reduce_join(ids.with_values(tf.gather(self._words, ids.values)), axis=1, separator=" ")
