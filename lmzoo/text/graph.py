"""Tokenising and packing inside a TensorFlow graph, with the ids of the Python path.

Importing this module, or a tokenizer's own `..._graph`, imports tensorflow and tensorflow_text; nothing else in
`lmzoo.text` does.
"""

from __future__ import annotations

import tensorflow as tf

from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.tokenizer import Tokenizer


def graph_tokenizer(tokenizer: Tokenizer) -> tf.Module:
    """The tokenizer as TensorFlow ops: its ids equal `tokenizer.tokenize`'s for every string.

    Args:
        tokenizer: a tokenizer that has its vocabulary.

    Returns:
        A module: call it on a `tf.string` tensor (n,) for a `tf.RaggedTensor` (n, None) of int32 ids. It works eagerly
        and in a `tf.function`; the vocabulary becomes part of a SavedModel.

    Raises:
        TypeError: for anything but a tokenizer of `lmzoo.text`.

    Example:

    ```python
    from lmzoo.text import WordPieceTokenizer
    from lmzoo.text.graph import graph_tokenizer

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "run", "##ning", "!"])
    graph_tokenizer(tokenizer)(["Running!", ""]).to_list()  # [[5, 6, 7], []]
    ```
    """
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"Only a tokenizer of lmzoo.text can run in a graph, got {type(tokenizer).__name__}.")
    return tokenizer.in_graph()


def graph_packer(preprocessor: Preprocessor) -> tf.Module:
    """The preprocessor as TensorFlow ops: its rows equal `preprocessor.encode`'s.

    Args:
        preprocessor: what to express; the module keeps the `sequence_length` of this moment.

    Returns:
        A module: call it on texts, or on texts and pairs, each a `tf.string` tensor (n,). It returns a dict with the
        features of `Preprocessor.features`, dense int32 (n, t) where t is the length of the longest row, and
        `truncated`, bool (n,): which rows were cut.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.text.graph import graph_packer

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "good", "film"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    graph_packer(Preprocessor(tokenizer, packing))(["good"], ["film"])["segment_ids"]  # [[0, 0, 0, 1, 1]]
    ```
    """
    return PackerGraph(preprocessor)


class PackerGraph(tf.Module):
    """See `graph_packer`."""

    def __init__(self, preprocessor: Preprocessor) -> None:
        super().__init__()
        self._tokenizer = graph_tokenizer(preprocessor.tokenizer)
        self._packing = preprocessor.packing
        self._sequence_length = preprocessor.sequence_length
        self._python = preprocessor.tokenizer  # for constants

    def __call__(self, texts: tf.Tensor, pairs: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Features of texts, or of texts and pairs, each `tf.string` (n,)."""
        packing, first = self._packing, self._tokenizer(texts)
        length = first.row_lengths()  # (n,)
        budget = self._sequence_length - packing.overhead(pairs is not None)
        start, end, between = (
            self._tokens(length, [token for token in tokens if token])
            for tokens in ([packing.start], [packing.end], packing.between)
        )
        if pairs is None:
            kept = tf.minimum(length, budget)
            truncated = kept < length
            rows = tf.concat([start, _head(first, kept), end], axis=1)
        else:
            second = self._tokenizer(pairs)
            second_length = second.row_lengths()
            # As `lmzoo.text.packing.truncate_pair`.
            kept = tf.minimum(length, tf.maximum(budget - second_length, (budget + 1) // 2))
            second_kept = tf.minimum(second_length, budget - kept)
            truncated = (kept < length) | (second_kept < second_length)
            rows = tf.concat([start, _head(first, kept), between, _head(second, second_kept), end], axis=1)
        width = tf.maximum(tf.reduce_max(rows.row_lengths()), 1)  # t; 1 if there are no rows
        shape = tf.stack([-1, width, *rows.shape[2:]])
        ids = rows.to_tensor(self._python.pad_id, shape=shape)  # (n, t), or (n, t, W) for characters
        mask = tf.sequence_mask(rows.row_lengths(), width, tf.int32)  # (n, t)
        features = {**self._python.features(ids, mask), "truncated": truncated}
        if packing.segments:
            boundary = kept + start.shape[1] + between.shape[1]  # where the second segment begins
            in_second = tf.range(width) >= boundary[:, None] if pairs is not None else tf.zeros_like(mask)
            features["segment_ids"] = tf.cast(in_second, tf.int32) * mask
        return features

    def _tokens(self, like: tf.Tensor, tokens: list[str]) -> tf.Tensor:
        """The ids of some tokens, int32 (n, k) or (n, k, W), for as many rows as `like` has."""
        ids = self._python.as_array(map(self._python.token_to_id, tokens), len(tokens)).astype("int32")
        return tf.repeat(ids[None], tf.size(like), axis=0)


def _head(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """The first values of every row, `lengths` (n,) of them."""
    return tf.gather(rows.values, tf.ragged.range(rows.row_starts(), rows.row_starts() + lengths))
