"""Packing as TensorFlow ops, with the same ids as in Python."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lmzoo.text.graphs.token_ops import compute_row_indices
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.graphs.word_splitting import split_words
from lmzoo.text.packing import LAST_SEGMENT
from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.tokenizers.word_level import WordLevelTokenizer

_REIMPLEMENTED = ("encode", "encode_words", "pack", "features")  # methods that graphs replace by TensorFlow ops


def graph_packer(preprocessor: Preprocessor) -> tf.Module:
    """Return a preprocessor as TensorFlow ops, with the same sequences as `preprocessor.encode`.

    Args:
        preprocessor: `lmzoo.text.Preprocessor`; later changes to its `sequence_length` do not affect the module.

    Returns:
        A module to call on texts, or on texts and pairs, each a `tf.string` tensor (n,). It returns a dict with the
        features of `Preprocessor.features`, dense int32 (n, t, ...), where t is the length of the longest sequence, and
        `truncated`, bool (n,), whether each sequence was truncated.

    Raises:
        TypeError: If the tokenizer's class is not registered with `graph_tokenizer`.
        ValueError: If the class of `preprocessor` overrides a method of `Preprocessor` that becomes TensorFlow ops.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.text.graphs import graph_packer

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "good", "film"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    graph_packer(Preprocessor(tokenizer, packing))(["good"], ["film"])["segment_ids"]  # [[0, 0, 0, 1, 1]]
    ```
    """
    return PackerGraph(preprocessor)


class PackingGraph(tf.Module):
    """Base class of modules that pack texts, words or windows.

    Args:
        preprocessor: `lmzoo.text.Preprocessor`.

    Raises:
        TypeError: If the tokenizer's class is not registered with `graph_tokenizer`.
        ValueError: If the class of `preprocessor` overrides `encode`, `encode_words`, `pack` or `features`.
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        super().__init__()
        cls = type(preprocessor)
        if overridden_methods := [
            name for name in _REIMPLEMENTED if getattr(cls, name) is not getattr(Preprocessor, name)
        ]:
            raise ValueError(
                f"A {cls.__name__} has a `{overridden_methods[0]}` of its own, which cannot become part of an "
                "exported model. Export a task with a `lmzoo.text.Preprocessor`, and do its work before you send texts "
                "to the model."
            )
        self._tokenizer = graph_tokenizer(preprocessor.tokenizer)
        # Trace once, so that a model contains these ops only once, even with several signatures or pairs of texts.
        self._tokenize = tf.function(
            self._tokenizer.__call__, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
        ).get_concrete_function()
        self._packing = preprocessor.packing
        self._sequence_length = preprocessor.sequence_length
        self._python_tokenizer = preprocessor.tokenizer
        self._special_ids = preprocessor.special_ids

    def pack(self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None) -> dict[str, tf.Tensor]:
        """Truncate and pack tokenized texts or pairs of texts.

        Args:
            first: int32 (n, None), or (n, None, W) if tokens are words, the tokens of single or first texts.
            second: the tokens of second texts, in the same form, or None.

        Returns:
            Dict of the features, and `truncated`, bool (n,), whether each sequence was truncated.
        """
        first_lengths = first.row_lengths()  # (n,)
        second_lengths = tf.zeros_like(first_lengths) if second is None else second.row_lengths()
        budget = self._sequence_length - self._packing.overhead(second is not None)
        # Same rule as `lmzoo.text.packing.truncate_pair`.
        kept_first_lengths = tf.minimum(first_lengths, tf.maximum(budget - second_lengths, (budget + 1) // 2))
        kept_second_lengths = tf.minimum(second_lengths, budget - kept_first_lengths)
        is_truncated = (kept_first_lengths < first_lengths) | (kept_second_lengths < second_lengths)
        start, between, end = self._special(first_lengths)
        parts = [start, head(first, kept_first_lengths)]
        boundary = None
        if second is not None:
            parts += [between, head(second, kept_second_lengths)]
            boundary = kept_first_lengths + start.shape[1] + between.shape[1]
        return {**self._features(tf.concat([*parts, end], axis=1), boundary), "truncated": is_truncated}

    def _features(self, rows: tf.RaggedTensor, boundary: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Return the features of packed sequences.

        Args:
            rows: int32 (n, None) or (n, None, W), packed sequences.
            boundary: int (n,), index of the second segment's first token; None if there are no second segments.
        """
        width = tf.maximum(tf.reduce_max(rows.row_lengths()), 1)  # t; 1 if there are no sequences
        shape = tf.stack([-1, width, *rows.shape[2:]])
        ids = rows.to_tensor(self._python_tokenizer.pad_id, shape=shape)  # (n, t), or (n, t, W) for characters
        mask = tf.sequence_mask(rows.row_lengths(), width, tf.int32)  # (n, t)
        features = self._python_tokenizer.features(ids, mask)
        if self._packing.segments:
            in_second = tf.zeros_like(mask) if boundary is None else tf.range(width) >= boundary[:, None]
            features["segment_ids"] = tf.cast(in_second, tf.int32) * mask
            if self._packing.last:
                is_last = tf.equal(tf.range(width), tf.cast(rows.row_lengths(), width.dtype)[:, None] - 1)  # (n, t)
                features["segment_ids"] = tf.where(is_last, LAST_SEGMENT, features["segment_ids"])
        elif self._packing.zero_segments:
            features["segment_ids"] = tf.zeros_like(mask)
        return features

    def _special(self, like: tf.Tensor) -> list[tf.Tensor]:
        """Return the tokens at the start, between segments and at the end of n sequences; n is the size of `like`.

        Returns:
            Three tensors int32 (n, k), or (n, k, W) if tokens are words, for k tokens.
        """
        arrays = [self._python_tokenizer.as_array(ids, len(ids)) for ids in self._special_ids()]  # (k,) or (k, W)
        return [tf.repeat(array[None], tf.size(like), axis=0) for array in arrays]


class PackerGraph(PackingGraph):
    """Preprocessing of texts or pairs as TensorFlow ops, for `graph_packer`."""

    def __call__(self, texts: tf.Tensor, pairs: tf.Tensor | None = None, prompt: str = "") -> dict[str, tf.Tensor]:
        """Return the features of single texts or pairs of texts.

        Args:
            texts: `tf.string` (n,), single texts or first texts.
            pairs: `tf.string` (n,), second texts, or None.
            prompt: str to put in front of each first text.

        Returns:
            The dict of `pack`.
        """
        texts = tf.strings.join([prompt, texts]) if prompt else texts
        return self.pack(self._tokenize(texts), None if pairs is None else self._tokenize(pairs))


class PromptGraph(PackingGraph):
    """Preprocessing of prompts as TensorFlow ops.

    A prompt has no special tokens at its end, since the model continues it.

    Args:
        preprocessor: `lmzoo.text.Preprocessor` of the model.
        length: int, maximum number of tokens of a prompt, including the start token; a longer prompt loses its first
            tokens.
        empty: list of ids that replace an empty prompt if there is no start token.
    """

    def __init__(self, preprocessor: Preprocessor, length: int, empty: Sequence[int]) -> None:
        super().__init__(preprocessor)
        self._length = length
        self._empty = list(empty)

    def __call__(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the features of prompts, `tf.string` (n,).

        Returns:
            Dict of the features, and `truncated`, bool (n,), whether each prompt was truncated.
        """
        tokens = self._tokenize(texts)  # (n, None)
        prompt_lengths = tokens.row_lengths()  # (n,)
        start = self._special(prompt_lengths)[0]  # (n, k)
        kept_lengths = tf.minimum(prompt_lengths, self._length - start.shape[1])
        kept_indices = tf.ragged.range(tokens.row_limits() - kept_lengths, tokens.row_limits())
        prompts = tf.concat([start, tf.gather(tokens.values, kept_indices)], axis=1)
        if self._empty and not start.shape[1]:
            filler_lengths = tf.cast(prompt_lengths == 0, tf.int64) * len(self._empty)  # (n,)
            filler_ids = tf.gather(self._empty, tf.ragged.range(filler_lengths))  # (n, None)
            prompts = tf.concat([filler_ids, prompts], axis=1)
        return {**self._features(prompts), "truncated": kept_lengths < prompt_lengths}


class WordPackerGraph(PackingGraph):
    """`Preprocessor.encode_words` as TensorFlow ops, for texts that are strings."""

    def __call__(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the features of texts, `tf.string` (n,), and their words.

        Returns:
            The dict of `PackerGraph` with two more entries for the m words that were not truncated: `place`, int64
            (m, 2), the index of each word's sequence and the position of its first token there; and `span`, ragged
            int32 (n, None, 2), the offsets of the words in their texts.
        """
        tokens, words, first_tokens, spans = self._words_of(texts)
        token_indices = first_tokens - tf.gather(
            tokens.row_starts(), compute_row_indices(words)
        )  # (m,), within the text
        is_kept = token_indices < self._sequence_length - self._packing.overhead(False)  # (m,)
        places = tf.stack([compute_row_indices(words), token_indices + bool(self._packing.start)], axis=1)  # (m, 2)
        spans = tf.ragged.boolean_mask(spans, words.with_values(is_kept))
        return {**self.pack(tokens), "place": tf.boolean_mask(places, is_kept), "span": spans}

    def _words_of(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.Tensor, tf.RaggedTensor]:
        """Split texts, `tf.string` (n,), into words and tokenize the words.

        Returns:
            The tokens of each text, int32 (n, None) or (n, None, W); its words, `tf.string` (n, None); the index of
            each word's first token among the tokens of all texts, int64 (m,); and the offsets of the words, int32 (n,
            None, 2).
        """
        words, spans = split_words(texts)
        tokens = self._tokenize_word_strings(words.values)  # (m, None), or (m, None, W)
        tokens_by_text = tf.RaggedTensor.from_row_splits(
            tokens.values, tf.gather(tokens.row_splits, words.row_splits), validate=False
        )
        return tokens_by_text, words, tokens.row_starts(), spans

    def _tokenize_word_strings(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Map words, `tf.string` (m,), to their token ids, like `Tokenizer.tokenize_words`: int32 (m, None, ...)."""
        if isinstance(self._python_tokenizer, WordLevelTokenizer):
            ids = self._tokenizer.of_words(words)  # (m,) or (m, W)
            return tf.RaggedTensor.from_uniform_row_length(ids, 1)
        tokens = self._tokenize(tf.strings.join([self._python_tokenizer.space_of_words, words]))  # (m, None)
        num_missing = tf.cast(tokens.row_lengths() == 0, tf.int64)  # (m,)
        unknown_ids = tf.fill(
            [tf.reduce_sum(num_missing)], self._python_tokenizer.token_to_id(self._python_tokenizer.unk_token)
        )
        return tf.concat([tokens, tf.RaggedTensor.from_row_lengths(unknown_ids, num_missing, validate=False)], axis=1)


def head(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Return the first `lengths[i]` values of each row i."""
    return tf.gather(rows.values, tf.ragged.range(rows.row_starts(), rows.row_starts() + lengths))
