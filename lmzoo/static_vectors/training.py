"""Training of word vectors: word2vec and fastText by gensim, GloVe by Keras."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.static_vectors.glove import train_glove
from lmzoo.static_vectors.subwords import Subwords
from lmzoo.static_vectors.vector_table import VectorTable
from lmzoo.text.validate_text import Text, clean_columns
from lmzoo.text.word_splitting import list_words

ALGORITHMS = ("skipgram", "cbow", "fasttext", "glove")
_MAX_SENTENCE_WORDS = 10_000  # gensim ignores all further words of a sentence


def train_table(
    texts: Iterable[Text],
    algorithm: str,
    hidden_dim: int,
    window: int,
    min_frequency: int,
    epochs: int,
    seed: int,
    verbose: bool,
    **settings: Any,
) -> VectorTable:
    """Train word vectors; see `lmzoo.models.StaticEmbedder.train`."""
    require(algorithm in ALGORITHMS, "algorithm", f"one of {', '.join(map(repr, ALGORITHMS))}", algorithm)
    sizes = {"hidden_dim": hidden_dim, "window": window, "min_frequency": min_frequency, "epochs": epochs}
    for name, size in sizes.items():
        require(is_integer(size, 1), name, "a positive integer", size)
    require(is_integer(seed, 0), "seed", "an integer of at least 0", seed)
    (cleaned_texts,) = clean_columns({"texts": texts}, words=True)
    word_lists = (list_words(text) if isinstance(text, str) else text for text in cleaned_texts)
    interned_words: dict[str, str] = {}  # holds each word in memory once, however often it occurs
    sentences = [[interned_words.setdefault(word, word) for word in words] for words in word_lists]
    counts = Counter(word for sentence in sentences for word in sentence)
    words = [word for word, count in counts.most_common() if count >= min_frequency]
    if not words:
        raise ValueError(f"No word occurs {min_frequency} times: pass more texts, or a lower `min_frequency`.")
    if algorithm != "glove":
        return _train_with_gensim(sentences, algorithm, sizes, seed, settings)
    id_by_word = {word: word_id for word_id, word in enumerate(words)}
    encoded_sentences = [np.array([id_by_word.get(word, -1) for word in sentence], "int64") for sentence in sentences]
    return VectorTable(
        words, train_glove(encoded_sentences, len(words), hidden_dim, window, epochs, seed, verbose, **settings)
    )


def _train_with_gensim(
    sentences: Sequence[Sequence[str]], algorithm: str, sizes: dict[str, int], seed: int, settings: dict[str, Any]
) -> VectorTable:
    """Train word2vec or fastText with gensim.

    Raises:
        ImportError: If gensim is not installed.
    """
    try:
        from gensim.models import FastText, Word2Vec
    except ImportError:
        raise ImportError("word2vec and fastText are trained by gensim: pip install 'lmzoo[vectors]'.") from None
    sentence_slices = [
        sentence[start : start + _MAX_SENTENCE_WORDS]
        for sentence in sentences
        for start in range(0, max(1, len(sentence)), _MAX_SENTENCE_WORDS)
    ]
    arguments = {
        "sentences": sentence_slices,
        "vector_size": sizes["hidden_dim"],
        "window": sizes["window"],
        "min_count": sizes["min_frequency"],
        "epochs": sizes["epochs"],
        "sg": int(algorithm != "cbow"),
        "seed": seed,
        "workers": 1,  # with more, results differ from run to run
        **settings,
    }
    if algorithm != "fasttext":
        keyed_vectors = Word2Vec(**arguments).wv
        return VectorTable(keyed_vectors.index_to_key, keyed_vectors.vectors)
    keyed_vectors = FastText(**arguments).wv
    subwords = Subwords(keyed_vectors.min_n, keyed_vectors.max_n, keyed_vectors.vectors_ngrams)
    return VectorTable(keyed_vectors.index_to_key, keyed_vectors.vectors, subwords)
