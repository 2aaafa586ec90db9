"""Tokenised documents as arrays: what rows are packed from, and what shards hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmzoo.text import Tokenizer
from lmzoo.text.policy import is_text


@dataclass(frozen=True)
class TokenizedDocuments:
    """Tokens of documents, with the ends of sentences and of documents.

    Attributes:
        token_ids: integers (n,), without special tokens.
        sentence_splits: int64 (s + 1,), sentence i is `token_ids[sentence_splits[i]:sentence_splits[i + 1]]`.
        document_splits: int64 (d + 1,), document i has the sentences `document_splits[i]` to `document_splits[i + 1]`.
    """

    token_ids: np.ndarray
    sentence_splits: np.ndarray
    document_splits: np.ndarray

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.document_splits) - 1

    def sentences(self, document: int) -> np.ndarray:
        """Int64 (s + 1,), where the sentences of a document begin and end in `token_ids`.

        Args:
            document: int, its index.
        """
        return self.sentence_splits[self.document_splits[document] : self.document_splits[document + 1] + 1]

    def without_empty(self) -> TokenizedDocuments:
        """The same without sentences that hold no tokens, and without documents that hold no sentences."""
        filled = np.flatnonzero(np.diff(self.sentence_splits))
        sentences = self.sentence_splits[np.concatenate([[0], filled + 1])]
        documents = np.unique(np.searchsorted(filled, self.document_splits))
        return TokenizedDocuments(self.token_ids, sentences, documents)


def tokenize_documents(documents: Sequence[str | Sequence[str]], tokenizer: Tokenizer) -> TokenizedDocuments:
    """Tokenises documents, all sentences in one batch.

    Args:
        documents: documents, each a list of sentences, or a string, which is one sentence.
        tokenizer: a tokenizer of `lmzoo.text`.

    Example:

    ```python
    from lmzoo.text import WordPieceTokenizer
    from lmzoo.training.tokens import tokenize_documents

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b"])
    tokenize_documents([["a a", "b"], ["a"]], tokenizer).sentence_splits  # [0, 2, 3, 4]
    ```
    """
    parts = [sentences_of(document) for document in documents]
    ids = tokenizer.tokenize([sentence for part in parts for sentence in part])
    sentences = splits_of([len(sentence) for sentence in ids])
    flat = tokenizer.as_array(itertools.chain.from_iterable(ids), int(sentences[-1]))
    return TokenizedDocuments(flat, sentences, splits_of([len(part) for part in parts]))


def sentences_of(document: str | Sequence[str]) -> Sequence[str]:
    """A document's sentences: itself, if it is a string."""
    return [document] if is_text(document) else document  # type: ignore[list-item]


def splits_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Int64 (n + 1,), where parts of these lengths begin and end."""
    return np.concatenate([[0], np.cumsum(lengths, dtype="int64")])


def groups_of(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Items in lists of `size`; the last may be shorter."""
    items = iter(items)
    while group := list(itertools.islice(items, size)):
        yield group
