"""Packing in a TensorFlow graph, with the same ids as in Python."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lmzoo.text.graphs.token_ops import rows_of
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer
from lmzoo.text.graphs.word_splitting import split_words
from lmzoo.text.packing import LAST_SEGMENT
from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.tokenizers.word_level import WordLevelTokenizer

_STEPS = ("encode", "encode_words", "pack", "features")  # which graphs do in their own way


def graph_packer(preprocessor: Preprocessor) -> tf.Module:
    """Return a preprocessor as TensorFlow ops: its sequences equal those of `preprocessor.encode`.

    Args:
        preprocessor: a preprocessor; later changes of its `sequence_length` have no effect on the module.

    Returns:
        A module: call it on texts, or on texts and pairs, each a `tf.string` tensor (n,). It returns a dict with the
        features of `Preprocessor.features`, dense int32 (n, t) where t is the length of the longest sequence, and
        `truncated`, bool (n,): which sequences were truncated.

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
    """The base class of modules that pack texts, words or windows.

    Raises:
        ValueError: for a subclass of `Preprocessor` with steps of its own, which are Python code.
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        super().__init__()
        cls = type(preprocessor)
        if overridden := [name for name in _STEPS if getattr(cls, name) is not getattr(Preprocessor, name)]:
            raise ValueError(
                f"A {cls.__name__} has a `{overridden[0]}` of its own, which cannot become part of an exported model. "
                "Export a task with a `lmzoo.text.Preprocessor`, and do its work before you send texts to the model."
            )
        self._tokenizer = graph_tokenizer(preprocessor.tokenizer)
        # Traced once: a model with several signatures, or on pairs, holds these ops once.
        self._tokenize = tf.function(
            self._tokenizer.__call__, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
        ).get_concrete_function()
        self._packing = preprocessor.packing
        self._sequence_length = preprocessor.sequence_length
        self._python = preprocessor.tokenizer  # for constants
        self._special_ids = preprocessor.special_ids

    def pack(self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None) -> dict[str, tf.Tensor]:
        """Return features of tokens, int32 (n, None) or (n, None, W), of texts, or of texts and pairs."""
        length = first.row_lengths()  # (n,)
        second_length = tf.zeros_like(length) if second is None else second.row_lengths()
        budget = self._sequence_length - self._packing.overhead(second is not None)
        # As `lmzoo.text.packing.truncate_pair`.
        kept = tf.minimum(length, tf.maximum(budget - second_length, (budget + 1) // 2))
        second_kept = tf.minimum(second_length, budget - kept)
        truncated = (kept < length) | (second_kept < second_length)
        start, between, end = self._special(length)
        parts, boundary = [start, head(first, kept)], None
        if second is not None:
            parts += [between, head(second, second_kept)]
            boundary = kept + start.shape[1] + between.shape[1]
        return {**self._features(tf.concat([*parts, end], axis=1), boundary), "truncated": truncated}

    def _features(self, rows: tf.RaggedTensor, boundary: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Features of packed sequences, int32 (n, None) or (n, None, W); second segments begin at `boundary`, (n,)."""
        width = tf.maximum(tf.reduce_max(rows.row_lengths()), 1)  # t; 1 if there are no sequences
        shape = tf.stack([-1, width, *rows.shape[2:]])
        ids = rows.to_tensor(self._python.pad_id, shape=shape)  # (n, t), or (n, t, W) for characters
        mask = tf.sequence_mask(rows.row_lengths(), width, tf.int32)  # (n, t)
        features = self._python.features(ids, mask)
        if self._packing.segments:
            in_second = tf.zeros_like(mask) if boundary is None else tf.range(width) >= boundary[:, None]
            features["segment_ids"] = tf.cast(in_second, tf.int32) * mask
            if self._packing.last:
                at_end = tf.equal(tf.range(width), tf.cast(rows.row_lengths(), width.dtype)[:, None] - 1)  # (n, t)
                features["segment_ids"] = tf.where(at_end, LAST_SEGMENT, features["segment_ids"])
        elif self._packing.zero_segments:
            features["segment_ids"] = tf.zeros_like(mask)
        return features

    def _special(self, like: tf.Tensor) -> list[tf.Tensor]:
        """Return special tokens around and between segments, int32 (n, k) or (n, k, W); n is the size of `like`."""
        arrays = [self._python.as_array(ids, len(ids)) for ids in self._special_ids()]  # (k,) or (k, W)
        return [tf.repeat(array[None], tf.size(like), axis=0) for array in arrays]


class PackerGraph(PackingGraph):
    """See `graph_packer`."""

    def __call__(self, texts: tf.Tensor, pairs: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Return features of texts, or of texts and pairs, each `tf.string` (n,)."""
        return self.pack(self._tokenize(texts), None if pairs is None else self._tokenize(pairs))


class PromptGraph(PackingGraph):
    """The beginnings of texts, for a model to continue: without special tokens at their end.

    Args:
        preprocessor: of the model.
        length: the most tokens of a prompt; of a longer one the last tokens remain.
        empty: ids that stand for the empty prompt, if nothing else does.
    """

    def __init__(self, preprocessor: Preprocessor, length: int, empty: Sequence[int]) -> None:
        super().__init__(preprocessor)
        self._length, self._empty = length, list(empty)

    def __call__(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return features of prompts, `tf.string` (n,), and `truncated`, as of `PackerGraph`."""
        tokens = self._tokenize(texts)  # (n, None)
        length = tokens.row_lengths()  # (n,)
        start = self._special(length)[0]  # (n, k)
        kept = tf.minimum(length, self._length - start.shape[1])
        places = tf.ragged.range(tokens.row_limits() - kept, tokens.row_limits())
        prompts = tf.concat([start, tf.gather(tokens.values, places)], axis=1)
        if self._empty and not start.shape[1]:
            lacking = tf.cast(length == 0, tf.int64) * len(self._empty)  # (n,)
            ids = tf.gather(self._empty, tf.ragged.range(lacking))  # (n, None)
            prompts = tf.concat([ids, prompts], axis=1)
        return {**self._features(prompts), "truncated": kept < length}


class WordPackerGraph(PackingGraph):
    """`Preprocessor.encode_words` as TensorFlow ops, for texts that are strings."""

    def __call__(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return features of texts, `tf.string` (n,), and their words.

        Returns:
            What `PackerGraph` returns, and `first`, int32 (n, None), the index of each word's first token, and
            `span`, int32 (n, None, 2), the characters that it came from; both ragged, without truncated words.
        """
        words, span = split_words(texts)
        tokens = self._tokens_of(words.values)  # (m, None), or (m, None, W)
        counts = words.with_values(tokens.row_lengths())  # (n, None)
        before = counts.with_values(tf.cumsum(counts.values, exclusive=True))  # tokens in all earlier words
        of_row = tf.RaggedTensor.from_row_splits(
            tokens.values, tf.gather(tokens.row_splits, words.row_splits), validate=False
        )
        place = before.values - tf.gather(of_row.row_starts(), rows_of(words))  # (m,), within its text
        budget = self._sequence_length - self._packing.overhead(False)
        kept = words.with_values(place < budget)
        column = tf.cast(place, tf.int32) + bool(self._packing.start)
        first, span = tf.ragged.boolean_mask(words.with_values(column), kept), tf.ragged.boolean_mask(span, kept)
        return {**self.pack(of_row), "first": first, "span": span}

    def _tokens_of(self, words: tf.Tensor) -> tf.RaggedTensor:
        """See `Tokenizer.tokenize_words`; the words are `tf.string` (m,)."""
        if isinstance(self._python, WordLevelTokenizer):
            ids = self._tokenizer.of_words(words)  # (m,) or (m, W)
            return tf.RaggedTensor.from_uniform_row_length(ids, 1)
        found = self._tokenize(tf.strings.join([self._python.space_of_words, words]))  # (m, None)
        lacks = tf.cast(found.row_lengths() == 0, tf.int64)  # (m,)
        unknown = tf.fill([tf.reduce_sum(lacks)], self._python.token_to_id(self._python.unk_token))
        return tf.concat([found, tf.RaggedTensor.from_row_lengths(unknown, lacks, validate=False)], axis=1)


def head(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Return the first `lengths` (n,) values of every row."""
    return tf.gather(rows.values, tf.ragged.range(rows.row_starts(), rows.row_starts() + lengths))
