"""Embeddings of words that do not depend on the context."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, overload

import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.static_vectors.preset import load_table, save_table
from lmzoo.static_vectors.subwords import Subwords
from lmzoo.static_vectors.training import train_table
from lmzoo.static_vectors.vector_files import read_vectors, write_vectors
from lmzoo.static_vectors.vector_table import VectorTable
from lmzoo.tasks.word_vectors import WordVectors
from lmzoo.text.validate_text import Text, clean_columns, clean_texts, is_text, warn
from lmzoo.text.word_splitting import place_words

_EPSILON = 1e-6  # in 3CosMul, as in gensim; the paper has 0.001


class Neighbor(TypedDict):
    """A word and its score.

    Example: see `lmzoo.models.StaticEmbedder`.
    """

    word: str
    score: float


class StaticEmbedder:
    """Word vectors of word2vec, GloVe or fastText: each word has one vector, whatever its context.

    Subwords compose vectors for words outside of the vocabulary; without subwords, these words get zeros, with a
    warning. If no word of the vocabulary has an uppercase letter, words are looked up in lowercase.

    Args:
        words: V distinct strings, usually the most frequent first.
        vectors: float32 (V, H), the vectors of the words.
        subwords: `lmzoo.static_vectors.Subwords`, vectors of character n-grams; None for vectors of words only.

    Raises:
        TypeError: If a word is not a string; the message names its position.
        ValueError: If a word is repeated, or the shapes do not match.

    Example:

    ```python
    import numpy as np
    import lmzoo

    words = ["king", "queen", "man", "woman", "apple"]
    vectors = np.array([[1, 1, 0], [1, -1, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]], "float32")
    embedder = lmzoo.models.StaticEmbedder(words, vectors)
    embedder.embed(["The king and the queen"]).shape  # (1, 3)
    embedder.nearest("king", top_k=2)  # [{"word": "man", "score": 0.707}, ...]
    embedder.analogy("man", "king", "woman", top_k=1)[0]["word"]  # "queen"
    embedder.save("vectors.txt")
    embedder = lmzoo.models.StaticEmbedder.from_preset("vectors.txt")
    ```
    """

    def __init__(self, words: Sequence[str], vectors: Any, subwords: Subwords | None = None) -> None:
        words = clean_texts(words, "words")
        vectors = vectors if isinstance(vectors, np.ndarray) else np.asarray(vectors, "float32")
        if vectors.ndim != 2 or len(vectors) != len(words) or not vectors.size:
            raise ValueError(
                f"`vectors` must have a row for each of the {len(words):,} words, got shape {vectors.shape}."
            )
        row_by_word = {word: row for row, word in enumerate(words)}
        if len(row_by_word) != len(words):
            repeated_word = next(word for row, word in enumerate(words) if row_by_word[word] != row)
            raise ValueError(f"`words` must be different, got {repeated_word!r:.60} twice.")
        if subwords is not None and subwords.vectors.shape[1:] != vectors.shape[1:]:
            widths = f"{vectors.shape[1]} and {subwords.vectors.shape[1]}"
            raise ValueError(f"`subwords` must have vectors as wide as the words', got the widths {widths}.")
        self.words: list[str] = words
        self.vectors: np.ndarray = vectors if vectors.dtype == "float32" else vectors.astype("float32")
        self.subwords: Subwords | None = subwords
        self._index = row_by_word

    @classmethod
    def from_preset(cls, preset: str | Path, verbose: bool = True) -> Self:
        """Load word vectors from a file or a preset.

        Files of word2vec (text or binary), GloVe and fastText (.vec or .bin) are recognized by their content, and may
        be compressed by gzip or xz. The float32 vectors of a preset are memory-mapped: loading is quick, and only the
        vectors that are used are read from the disk.

        Args:
            preset: path of a file; or a preset of a `StaticBackbone`, written by `save_to_preset` or by a task, as a
                path, `hf://org/name` or another handle.
            verbose: whether to show progress.

        Raises:
            PresetError: If there is no such preset, or one of its files is altered or missing.
            ValueError: If a file is truncated, damaged or in an unknown format; the message names it.
        """
        is_file = isinstance(preset, (str, os.PathLike)) and os.path.isfile(os.path.expanduser(preset))
        table = read_vectors(preset, verbose) if is_file else load_table(preset)
        return cls(table.words, table.vectors, table.subwords)

    @classmethod
    def train(
        cls,
        texts: Iterable[Text],
        algorithm: str = "skipgram",
        hidden_dim: int = 100,
        window: int = 5,
        min_frequency: int = 5,
        epochs: int = 5,
        seed: int = 0,
        verbose: bool = True,
        **settings: Any,
    ) -> Self:
        """Train word vectors on texts, which are held in memory.

        Args:
            texts: strings, which are split into words, or lists of words.
            algorithm: `"skipgram"` or `"cbow"`, word2vec's algorithms (Mikolov et al., 2013,
                https://arxiv.org/abs/1310.4546); `"fasttext"`, skip-gram with subwords; or `"glove"`. All except GloVe
                are trained by gensim (`pip install 'lmzoo[vectors]'`), with the same results for the same seed if
                Python's `PYTHONHASHSEED` is set.
            hidden_dim: int, width of the vectors.
            window: int, maximum distance between two words that are trained on together.
            min_frequency: int; words that occur less often are left out.
            epochs: int, passes over the texts or, for GloVe, over the pairs of words that occur together; GloVe needs
                more epochs, such as 50.
            seed: int, seed of the initial vectors.
            verbose: whether to show progress (GloVe only).
            **settings: other arguments of gensim's `Word2Vec` or `FastText`, such as `negative=10` or `workers=4`; for
                GloVe, `x_max`, `alpha`, `learning_rate` and `batch_size` of `lmzoo.static_vectors.glove.train_glove`.

        Raises:
            ImportError: If gensim is needed and not installed.
            TypeError: If a text is not a string or a list of words; the message gives its position.
            ValueError: If an argument is out of range, or no word is frequent enough.

        Example:

        ```python
        import lmzoo

        texts = ["the cat sat on the mat", "the dog sat on the rug"]
        embedder = lmzoo.models.StaticEmbedder.train(texts, "glove", hidden_dim=8, min_frequency=1, verbose=False)
        embedder.embed(["the cat"]).shape  # (1, 8)
        ```
        """
        table = train_table(texts, algorithm, hidden_dim, window, min_frequency, epochs, seed, verbose, **settings)
        return cls(table.words, table.vectors, table.subwords)

    @property
    def hidden_dim(self) -> int:
        """Width of the vectors."""
        return self.vectors.shape[1]

    @functools.cached_property
    def lowercase(self) -> bool:
        """Whether no word of the vocabulary has an uppercase letter, so that words are looked up in lowercase."""
        return all(word == word.lower() for word in self.words)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self.row_of(word) is not None

    def row_of(self, word: str) -> int | None:
        """Return the index of a word in `words`, or None for a word outside of the vocabulary."""
        return self._index.get(word.lower() if self.lowercase else word)

    # === Vectors ===

    @overload
    def embed(self, texts: Sequence[Text], level: Literal["text"] = "text") -> np.ndarray: ...

    @overload
    def embed(self, texts: Sequence[Text], level: Literal["word"]) -> list[WordVectors]: ...

    def embed(self, texts: Sequence[Text], level: str = "text") -> np.ndarray | list[WordVectors]:
        """Return the vectors of texts or of their words.

        A text's vector is the mean of the vectors of its words; words without a vector are left out.

        Args:
            texts: n texts, strings or lists of words; strings are split by `lmzoo.text.word_splitting.split_words`.
            level: `"text"` or `"word"`.

        Returns:
            For texts, float32 (n, H). For words, a `WordVectors(words, offsets, vectors)` for each text. Words without
            a vector, and texts in which no word has a vector, get zeros, with one warning per call.

        Raises:
            TypeError: If a text is not a string or a list of words; the message gives its position.
            ValueError: If `level` is invalid.
        """
        require(level in ("text", "word"), "level", '"text" or "word"', level)
        (cleaned_texts,) = clean_columns({"texts": texts}, words=True)
        placed_texts = [place_words(text) for text in cleaned_texts]
        words = [word for text in placed_texts for word, _, _ in text]
        vectors, has_vector = self._look_up_vectors(words)
        splits = np.cumsum([len(text) for text in placed_texts])[:-1]
        vectors_by_text = np.split(vectors, splits) if placed_texts else []
        masks_by_text = np.split(has_vector, splits) if placed_texts else []
        if level == "text":
            word_counts = np.array([mask.sum() for mask in masks_by_text], "int64").reshape(-1, 1)
            if num_empty := int((word_counts == 0).sum()):
                warn(f"{num_empty} of {len(placed_texts)} texts have no word with a vector; their vectors are zeros.")
            sums = np.array([text_vectors.sum(axis=0) for text_vectors in vectors_by_text], "float32").reshape(
                -1, self.hidden_dim
            )
            return sums / np.maximum(word_counts, 1).astype("float32")
        if num_unknown := int((~has_vector).sum()):
            example_word = words[int(np.argmin(has_vector))]
            warn(f"{num_unknown} of {len(words)} words have no vector, such as {example_word!r:.60}; they get zeros.")
        word_vectors_by_text = []
        for text, text_vectors in zip(placed_texts, vectors_by_text, strict=True):
            offsets = np.array([(start, end) for _, start, end in text], "int64").reshape(-1, 2)
            word_vectors_by_text.append(WordVectors([word for word, _, _ in text], offsets, text_vectors))
        return word_vectors_by_text

    def _look_up_vectors(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of n words, float32 (n, H), or zeros, and whether each word has a vector, bool (n,)."""
        rows = np.array([-1 if (row := self.row_of(word)) is None else row for word in words], "int64")
        vectors = np.zeros((len(words), self.hidden_dim), "float32")
        has_vector = rows >= 0
        vectors[has_vector] = self.vectors[rows[has_vector]]
        if self.subwords is not None and not has_vector.all():
            unknown_indices = np.flatnonzero(~has_vector)
            unknown_words = [words[i].lower() if self.lowercase else words[i] for i in unknown_indices.tolist()]
            vectors[unknown_indices] = self.subwords.compose_unknown(unknown_words)
            has_vector[unknown_indices] = vectors[unknown_indices].any(axis=1)
        return vectors, has_vector

    def _look_up_unit_vector(self, word: str) -> np.ndarray:
        """Return the vector, float32 (H,), of a word, scaled to length 1.

        Raises:
            ValueError: If the word has no vector.
        """
        vectors, has_vector = self._look_up_vectors([word])
        if not has_vector[0]:
            reason = "has no character n-grams" if self.subwords else f"is not among the {len(self):,} words"
            raise ValueError(f"{word!r:.60} {reason}. Check the spelling with `word in embedder`.")
        return vectors[0] / max(float(np.linalg.norm(vectors[0])), 1e-30)

    # === Neighbors ===

    @functools.cached_property
    def _norms(self) -> np.ndarray:
        """Norms of the V vectors, float32 (V,); 1 for a vector of zeros."""
        norms = np.sqrt(np.einsum("vh,vh->v", self.vectors, self.vectors))
        return np.where(norms > 0, norms, 1)

    def cosines(self, vectors: np.ndarray) -> np.ndarray:
        """Return the cosines, float32 (n, V), of n unit vectors, float32 (n, H), and the vectors of all V words."""
        with np.errstate(all="ignore"):  # some BLAS kernels raise flags for lanes that are not part of the result
            return vectors @ self.vectors.T / self._norms

    def nearest(self, word: str, top_k: int = 10) -> list[Neighbor]:
        """Return the words whose vectors have the highest cosines with a word's vector, without the word itself.

        Args:
            word: a word, which may be outside of the vocabulary if there are subwords.
            top_k: int, maximum number of words to return.

        Returns:
            `{"word": str, "score": float}` for each word, the nearest first; the score is the cosine.

        Raises:
            ValueError: If the word has no vector, or `top_k` is not a positive integer.
        """
        (word,) = _clean_words(word=word)
        scores = self.cosines(self._look_up_unit_vector(word)[None])[0]
        return self._rank_best(scores, [word], top_k)

    def analogy(self, a: str, b: str, c: str, top_k: int = 10, method: str = "3CosAdd") -> list[Neighbor]:
        """Return the words d for which "a is to b as c is to d" holds best, without a, b and c.

        3CosAdd is from Mikolov et al. (2013, https://aclanthology.org/N13-1090), 3CosMul from Levy and Goldberg (2014,
        https://aclanthology.org/W14-1618).

        Args:
            a: a word, such as "man".
            b: a word, such as "king".
            c: a word, such as "woman".
            top_k: int, maximum number of words to return.
            method: `"3CosAdd"`, the cosine of d and b - a + c, all scaled to length 1; or `"3CosMul"`,
                s(d, b) s(d, c) / (s(d, a) + 1e-6), where s = (1 + cosine) / 2.

        Returns:
            `{"word": str, "score": float}` for each word, the best first.

        Raises:
            ValueError: If a word has no vector, or another argument is invalid.
        """
        _check_method(method)
        words = _clean_words(a=a, b=b, c=c)
        vectors = np.stack([self._look_up_unit_vector(word) for word in words])
        return self._rank_best(self.score_analogies(vectors[None], method)[0], words, top_k)

    def score_analogies(self, vectors: np.ndarray, method: str = "3CosAdd") -> np.ndarray:
        """Return the scores, float32 (n, V), of all V words as answers to n analogies; see `analogy`.

        Args:
            vectors: float32 (n, 3, H), the vectors of a, b and c for each of n analogies, scaled to unit length.
            method: `"3CosAdd"` or `"3CosMul"`.

        Raises:
            ValueError: If `method` is unknown.
        """
        _check_method(method)
        if method == "3CosAdd":
            sums = vectors[:, 1] - vectors[:, 0] + vectors[:, 2]  # (n, H)
            norms = np.linalg.norm(sums, axis=1, keepdims=True)
            return self.cosines(sums / np.maximum(norms, 1e-30))
        a, b, c = ((1 + self.cosines(vectors[:, i])) / 2 for i in range(3))  # (n, V)
        return b * c / (a + np.float32(_EPSILON))

    def _rank_best(self, scores: np.ndarray, excluded_words: Sequence[str], top_k: int) -> list[Neighbor]:
        """Return the `top_k` words with the highest `scores`, float (V,), leaving out `excluded_words`."""
        require(is_integer(top_k, 1), "top_k", "a positive integer", top_k)
        excluded_rows = {row for word in excluded_words if (row := self.row_of(word)) is not None}
        num_candidates = min(top_k + len(excluded_rows), len(scores))
        rows = np.argpartition(-scores, num_candidates - 1)[:num_candidates]
        sorted_rows = rows[np.argsort(-scores[rows], kind="stable")].tolist()
        best_rows = [row for row in sorted_rows if row not in excluded_rows][:top_k]
        return [{"word": self.words[row], "score": float(scores[row])} for row in best_rows]

    # === Files ===

    def save(self, path: str | Path, format: str = "word2vec", verbose: bool = True) -> None:
        """Write the vectors to a file in the format of another library.

        Args:
            path: path or URL of the file; an existing file is replaced once the new file is complete.
            format: `"word2vec"`, text, which is also the format of fastText's .vec files; `"word2vec_binary"`;
                `"glove"`, text without a header; or `"fasttext"`, fastText's .bin format. Only `"fasttext"` includes
                subwords.
            verbose: whether to show progress.

        Raises:
            OSError: If the file cannot be written.
            ValueError: If the format is unknown, needs subwords, or cannot hold a word, such as a word with a space; or
                if a vector is not finite.
        """
        write_vectors(path, self._table(), format, verbose)

    def save_to_preset(self, directory: str | Path, overwrite: bool = True, weights_dtype: str = "float32") -> None:
        """Write the vectors and subwords as a preset, from which tasks can also be loaded.

        A task, such as `lmzoo.models.TokenClassifier.from_preset(directory, labels=labels)`, gets a `StaticBackbone`
        with these vectors. The task does not use subwords. Words that are empty, or begin or end with spaces, are left
        out with a warning.

        Args:
            directory: directory to write. If writing fails, an existing directory is left unchanged.
            overwrite: whether an existing directory may be replaced.
            weights_dtype: dtype of the stored vectors: "float32", or "float16" or "int8" for half or a quarter of the
                bytes; see `lmzoo.models.Task.save_to_preset`. Only float32 vectors are memory-mapped when loaded.

        Raises:
            FileExistsError: If `directory` exists, and `overwrite` is False or the directory is not a preset.
            ValueError: If `weights_dtype` is unknown.
        """
        save_table(self._table(), directory, self.lowercase, overwrite, weights_dtype)

    def _table(self) -> VectorTable:
        return VectorTable(self.words, self.vectors, self.subwords)


def _check_method(method: str) -> None:
    require(method in ("3CosAdd", "3CosMul"), "method", '"3CosAdd" or "3CosMul"', method)


def _clean_words(**words: object) -> list[str]:
    """Check that arguments are words, and return them as valid strings.

    Raises:
        ValueError: If an argument is not text; the message names it.
    """
    for name, word in words.items():
        require(is_text(word), name, "a word", word)
    return clean_texts([*words.values()], "words")
