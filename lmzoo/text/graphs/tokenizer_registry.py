"""Registry of modules that run tokenizers as TensorFlow ops, with the same ids as in Python."""

from __future__ import annotations

import functools

import tensorflow as tf

from lmzoo.text.tokenizers.tokenizer import Tokenizer


@functools.singledispatch
def graph_tokenizer(tokenizer: Tokenizer) -> tf.Module:
    """Return a tokenizer as TensorFlow ops, with the same ids as `tokenizer.tokenize` for every string.

    Returns:
        A module that maps a `tf.string` tensor (n,) to a `tf.RaggedTensor` (n, None) of int32 ids, eagerly or in a
        `tf.function`. When it is saved in a SavedModel, the vocabulary is included.

    Raises:
        TypeError: If neither the tokenizer's class nor a base class is registered. Register a class with
            `graph_tokenizer.register(tokenizer_class, graph_class)`.

    Example:

    ```python
    from lmzoo.text import WordPieceTokenizer
    from lmzoo.text.graphs import graph_tokenizer

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "run", "##ning", "!"])
    graph_tokenizer(tokenizer)(["Running!", ""]).to_list()  # [[5, 6, 7], []]
    ```
    """
    raise TypeError(
        f"Only a tokenizer of lmzoo.text can run in a graph, got {type(tokenizer).__name__}. Register other "
        "classes with `graph_tokenizer.register(tokenizer_class, graph_class)`."
    )
