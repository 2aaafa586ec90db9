"""Static word vectors as features of a task, next to the vectors of its backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.word_features import StaticWordFeatures
from lmzoo.text import Preprocessor, Tokenizer
from lmzoo.text.tokenizers.tokenizer import Token


@dataclass(frozen=True)
class WordFeatures:
    """Static word vectors for the tokens of a tokenizer that are whole words.

    Attributes:
        count: int, number of rows of the table of vectors.
        embedding_dim: int, width E of the vectors.
        tokens: the tokens with a vector, ids or words; None if the vectors come from a file of weights.
        vectors: float32 (n, E), the vectors of the n `tokens`, or None.
        tokenizer: the tokenizer, or None.
    """

    count: int
    embedding_dim: int
    tokens: tuple[Token, ...] | None = None
    vectors: np.ndarray | None = None
    tokenizer: Tokenizer | None = None

    @classmethod
    def of(cls, word_vectors: Any, preprocessor: Preprocessor | None) -> WordFeatures | None:
        """Return the features for a task's argument `word_vectors`, or None if `word_vectors` is None.

        Args:
            word_vectors: a `StaticEmbedder`, the dict that `sizes` returns, or None.
            preprocessor: the task's preprocessor.

        Raises:
            TypeError: If `word_vectors` is something else.
            ValueError: If there is no preprocessor, or if no word is a token of its tokenizer.
        """
        if word_vectors is None:
            return None
        if isinstance(word_vectors, Mapping):
            return cls(**word_vectors)
        if not (hasattr(word_vectors, "words") and hasattr(word_vectors, "vectors")):
            raise TypeError(
                f"`word_vectors` must be a `StaticEmbedder`, got {word_vectors!r:.60}. Load one with "
                "`lmzoo.models.StaticEmbedder.from_preset`."
            )
        if preprocessor is None:
            raise ValueError("`word_vectors` needs a preprocessor, whose tokens get the vectors: pass `preprocessor=`.")
        tokenizer = preprocessor.tokenizer
        row_by_token = _find_token_rows(word_vectors.words, tokenizer)
        if not row_by_token:
            raise ValueError(
                f"None of the {len(word_vectors.words):,} words of `word_vectors` is a token of this "
                f"{type(tokenizer).__name__}."
            )
        are_words = isinstance(next(iter(row_by_token)), str)
        vectors = np.asarray(word_vectors.vectors)[list(row_by_token.values())]  # (n, E)
        count = len(row_by_token) + 1 if are_words else tokenizer.vocabulary_size
        return cls(count, vectors.shape[1], tuple(row_by_token), vectors, tokenizer)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the table, with which `of` can build it before its weights are read from a file."""
        return {"count": self.count, "embedding_dim": self.embedding_dim}

    def join(self, sequence: Tensor, ids: Tensor, dtype: keras.DTypePolicy) -> Tensor:
        """Concatenate the backbone's vectors with the word vectors of their tokens.

        Args:
            sequence: the backbone's symbolic vectors of T tokens, float (B, T, H).
            ids: the backbone's symbolic `token_ids` (B, T), or its `character_ids` (B, T, W).
            dtype: dtype policy of the layer that looks up the word vectors.

        Returns:
            The concatenated symbolic vectors, float (B, T, H + E).
        """
        layer = StaticWordFeatures(self.count, self.embedding_dim, dtype=dtype, name="word_features")
        joined_vectors = layer(sequence, ids)
        if self.tokens is not None and self.vectors is not None and self.tokenizer is not None:
            token_ids = self.tokenizer.as_array(self.tokens, len(self.tokens))  # (n,) or (n, W)
            assign = layer.assign_words if token_ids.ndim == 2 else layer.assign_ids
            assign(token_ids, self.vectors)
        return joined_vectors


def _find_token_rows(words: list[str], tokenizer: Tokenizer) -> dict[Token, int]:
    """Return a dict from each token that is a whole word to the index of the word in `words`.

    If several words share a token, the first counts. If all words are lowercase, capitalized and uppercase tokens get
    the vector of the lowercase word.
    """
    are_lowercase = all(word == word.lower() for word in words)
    case_functions = (str, str.capitalize, str.upper) if are_lowercase else (str,)
    unknown_token = None if tokenizer.unk_token is None else tokenizer.token_to_id(tokenizer.unk_token)
    row_by_token: dict[Token, int] = {}
    for change_case in case_functions:
        for row, tokens in enumerate(tokenizer.tokenize_words([change_case(word) for word in words])):
            if len(tokens) == 1 and tokens[0] != unknown_token:
                row_by_token.setdefault(tokens[0], row)
    return row_by_token
