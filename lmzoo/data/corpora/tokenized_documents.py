"""Tokenized documents as arrays, from which corpus files and packed sequences are made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from lmzoo.text import Tokenizer
from lmzoo.text.validate_text import clean_columns, collect_warnings, convert_to_list, is_column, is_text, warn

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class TokenizedDocuments:
    """Tokens of documents, with the boundaries of sentences and documents.

    Attributes:
        token_ids: int (n,), ids of the n tokens of all documents, without special tokens.
        sentence_splits: int64 (s + 1,), boundaries of the s sentences: sentence i is
            `token_ids[sentence_splits[i]:sentence_splits[i + 1]]`.
        document_splits: int64 (d + 1,), boundaries of the d documents: document i has the sentences from
            `document_splits[i]` to `document_splits[i + 1] - 1`.

    Example: see `lmzoo.data.corpora.tokenized_documents.tokenize_documents`.
    """

    token_ids: np.ndarray
    sentence_splits: np.ndarray
    document_splits: np.ndarray

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.document_splits) - 1

    def sentences(self, document: int) -> np.ndarray:
        """Return the boundaries in `token_ids` of the m sentences of a document: int64 (m + 1,)."""
        return self.sentence_splits[self.document_splits[document] : self.document_splits[document + 1] + 1]

    def without_empty(self) -> TokenizedDocuments:
        """Return a copy that omits sentences without tokens, and then documents without sentences."""
        nonempty_sentences = np.flatnonzero(np.diff(self.sentence_splits))
        sentence_splits = self.sentence_splits[np.concatenate([[0], nonempty_sentences + 1])]
        document_splits = np.unique(np.searchsorted(nonempty_sentences, self.document_splits))
        return TokenizedDocuments(self.token_ids, sentence_splits, document_splits)


def tokenize_documents(documents: Sequence[str | Sequence[str]], tokenizer: Tokenizer) -> TokenizedDocuments:
    """Tokenize documents, all sentences in one batch.

    Args:
        documents: sequence of documents, each a list of sentences, or a string, which is one sentence.
        tokenizer: `lmzoo.text.Tokenizer`.

    Example:

    ```python
    from lmzoo.text import WordPieceTokenizer
    from lmzoo.data.corpora.tokenized_documents import tokenize_documents

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b"])
    tokenize_documents([["a a", "b"], ["a"]], tokenizer).sentence_splits  # [0, 2, 3, 4]
    ```
    """
    sentence_lists = [sentences_of(document) for document in documents]
    ids_by_sentence = tokenizer.tokenize([sentence for sentences in sentence_lists for sentence in sentences])
    sentence_splits = make_splits([len(sentence) for sentence in ids_by_sentence])
    token_ids = tokenizer.as_array(itertools.chain.from_iterable(ids_by_sentence), int(sentence_splits[-1]))
    return TokenizedDocuments(token_ids, sentence_splits, make_splits([len(sentences) for sentences in sentence_lists]))


class DocumentReader:
    """Iterable that yields each document as a list of valid sentences, and counts problems for `report`.

    Args:
        documents: iterable of strings, each one sentence, or lists of sentences.

    Attributes:
        count: int, number of documents read so far.

    Raises:
        TypeError: If `documents` is not an iterable of documents; while reading, if a document is not text, in which
            case the message names its position.
    """

    def __init__(self, documents: Iterable[str | Sequence[str]]) -> None:
        self.documents: Iterable[str | Sequence[str]] = check_documents(documents)
        self.count = 0
        self._invalid: list[str] = []

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the sentences of each document."""
        for position, document in enumerate(self.documents):
            self.count += 1
            sentences = sentences_of(check_not_record(document, position))
            if not is_column(sentences):
                received = f"got {document!r:.60} ({type(document).__name__})"
                raise TypeError(f"`documents[{position}]` must be a string or a list of strings, {received}.")
            with collect_warnings() as messages:
                valid_sentences = clean_columns({f"documents[{position}]": sentences})[0]
            self._invalid += messages
            yield valid_sentences

    def report(self, num_used: int, empty: str = "held no tokens") -> None:
        """Warn of omitted documents and of invalid UTF-8, if there were any.

        Args:
            num_used: int, number of documents that were not omitted.
            empty: str, reason for omitting the other documents: the words after "documents" in the warning, in the
                past tense.
        """
        if num_used < self.count:
            warn(f"{self.count - num_used} of {self.count} documents {empty} and were left out.")
        if self._invalid:
            warn(f"{len(self._invalid)} documents held invalid UTF-8; it was read as U+FFFD.")


def check_documents(documents: object) -> Any:
    """Return documents, with a tensor or array as a list, after checking that they are not a single text or a table.

    Raises:
        TypeError: If `documents` is not iterable, or is a single text, a dict or a table (iterating over a dict or
            table would yield the names of its columns).
    """
    if not is_column(documents) or hasattr(documents, "columns"):
        raise TypeError(
            f"Expected a list of documents, each a list of sentences; got {documents!r:.60} "
            f"({type(documents).__name__})."
        )
    return convert_to_list(documents)


def check_not_record(document: _Item, position: int) -> _Item:
    """Return a document after checking that it is not a record.

    Raises:
        TypeError: If `document` is a record, since the names of its fields would be read as sentences.
    """
    if isinstance(document, Mapping):
        raise TypeError(
            f"`documents[{position}]` is a record of {', '.join(map(repr, document))}, not a text: "
            "`lmzoo.data.corpora.split_documents(documents, field=...)` reads one field of each record."
        )
    return document


def sentences_of(document: str | Sequence[str]) -> Sequence[str]:
    """Return the sentences of a document; a string is one sentence."""
    return [document] if is_text(document) else document  # type: ignore[list-item]


def make_splits(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the boundaries of n consecutive parts with the given lengths: int64 (n + 1,)."""
    splits = np.zeros(len(lengths) + 1, "int64")
    np.cumsum(lengths, out=splits[1:])
    return splits


def group_items(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield the items in lists of `size` items; the last list may be shorter."""
    items = iter(items)
    while group := list(itertools.islice(items, size)):
        yield group
