"""Packing documents into sequences for masked language models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lmzoo.data.corpora.sequence_storage import join_blocks, room_in_sequence
from lmzoo.data.corpora.token_corpus import TokenCorpus
from lmzoo.data.corpora.tokenized_documents import (
    DocumentReader,
    TokenizedDocuments,
    check_documents,
    groups_of,
    splits_of,
    tokenize_documents,
)
from lmzoo.text import EncodedTexts, Preprocessor
from lmzoo.text.preprocessor import check_is_preprocessor

_BATCH = 256  # documents tokenized at once

Documents = Iterable[str | Sequence[str]] | TokenCorpus
_Blocks = Iterator[tuple[np.ndarray, np.ndarray]]


def pack_documents(documents: Documents, preprocessor: Preprocessor) -> EncodedTexts:
    """Pack running text into full sequences: `start`, tokens, `end`, and `last`, if there are such tokens.

    Documents are joined, separated by the end token, and the result is cut into sequences of full length, so there is
    no padding. A last, shorter sequence is dropped. `pack_sentences` cuts between sentences instead.

    Args:
        documents: strings, lists of sentences, or a `TokenCorpus`, whose sequences are stored in a file. Documents
            without tokens are left out, with one warning.
        preprocessor: determines how long a sequence is.

    Returns:
        Sequences of exactly `preprocessor.sequence_length` tokens.

    Raises:
        TypeError: for a document that is not text, naming its position.
        ValueError: for a `sequence_length` without room for a token, or if the corpus is of another tokenizer.

    Example:

    ```python
    from lmzoo.data.corpora import pack_documents
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer

    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    preprocessor = Preprocessor(tokenizer, packing, sequence_length=5)
    pack_documents([["a a", "b"], ["b a"]], preprocessor).lengths  # [5, 5]
    ```
    """
    room, length = room_in_sequence(preprocessor, pair=False), preprocessor.sequence_length
    (start, _, closing), end = preprocessor.special_ids(), _ends(preprocessor)[1]

    def blocks() -> _Blocks:
        left: list[np.ndarray] = []
        for part in _parts(documents, preprocessor):
            ends = part.sentence_splits[part.document_splits[1:]]
            stream = np.concatenate([*left, np.insert(part.token_ids, ends, end)])
            count = len(stream) // room
            rows = np.empty((count, length), stream.dtype)
            rows[:, : len(start)], rows[:, length - len(closing) :] = start, closing
            rows[:, len(start) : length - len(closing)] = stream[: count * room].reshape(count, room)
            left = [stream[count * room :]]
            yield rows.reshape(-1), np.full(count, length)

    return _joined(blocks(), documents)


def pack_continuously(documents: Documents, preprocessor: Preprocessor) -> EncodedTexts:
    """Pack running text into full sequences for language models that predict the next token.

    Each document is `start`, its tokens, and `end`, if the tokenizer has such tokens. They are joined, and the result
    is cut into sequences of one more token than the model reads, each of which begins with the last token of the one
    before it: so that each token but the very first one is predicted once. The last sequence may be shorter.

    Args:
        documents: strings, lists of sentences, which are joined by spaces, or a `TokenCorpus`, whose sequences are
            stored in a file. Documents without tokens are left out, with one warning.
        preprocessor: determines how long a sequence is.

    Returns:
        Sequences of `preprocessor.sequence_length + 1` tokens.

    Raises:
        TypeError: for a document that is not text, naming its position.
        ValueError: if the corpus is of another tokenizer.

    Example:

    ```python
    from lmzoo.data.corpora import pack_continuously
    from lmzoo.families.gpt2 import FAMILY
    from lmzoo.text import BytePairTokenizer, Preprocessor

    tokenizer = BytePairTokenizer.of_words(["good", "film"], size=270, **FAMILY.special_tokens)
    packed = pack_continuously(["A good film", "A film"], Preprocessor(tokenizer, FAMILY.packing, sequence_length=4))
    packed.lengths  # [5, 5]: <|endoftext|> A Ġgood Ġfilm <|endoftext|>, then the last token again and the second text
    ```
    """
    check_is_preprocessor(preprocessor)
    tokenizer, length = preprocessor.tokenizer, preprocessor.sequence_length
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    if not isinstance(documents, TokenCorpus):
        documents = WithSpaces(documents)

    def blocks() -> _Blocks:
        left = np.zeros(0, "int32")
        for part in _parts(documents, preprocessor):
            bounds = part.sentence_splits[part.document_splits]
            stream = part.token_ids
            if end is not None:
                stream = np.insert(stream, bounds[1:], end)
            if start is not None:
                stream = np.insert(stream, bounds[:-1] + (np.arange(len(part)) if end is not None else 0), start)
            stream = np.concatenate([left, stream])
            count = max(0, len(stream) - 1) // length
            places = length * np.arange(count)[:, None] + np.arange(length + 1)  # (count, length + 1)
            left = stream[count * length :]
            yield stream[places].reshape(-1), np.full(count, length + 1)
        if len(left) > 1:
            yield left, np.array([len(left)])

    return _joined(blocks(), documents)


class WithSpaces:
    """Documents as texts: their sentences joined by spaces, for models that write text."""

    def __init__(self, documents: Iterable[str | Sequence[str]]) -> None:
        check_documents(documents)
        self.documents = documents

    def __iter__(self) -> Iterator[str | Sequence[str]]:
        for document in self.documents:
            listed = isinstance(document, (list, tuple)) and all(isinstance(sentence, str) for sentence in document)
            yield " ".join(document) if listed else document  # anything else is for the reader to refuse


def pack_sentences(
    documents: Documents,
    preprocessor: Preprocessor,
    across_documents: bool = True,
) -> EncodedTexts:
    """Pack whole sentences into sequences (Liu et al., 2019, section 4.2).

    A sequence has at most `preprocessor.sequence_length` tokens: `start`, sentences, each followed by `end`, and
    `last`, where the family has them. A sentence that does not fit begins a new sequence. By default sequences continue
    across documents, with one more `end` between documents (FULL-SENTENCES); otherwise each document begins a new
    sequence (DOC-SENTENCES). A sentence that is longer than a sequence continues in the next one; the original code
    keeps a sequence that is too long. If such a sentence ends exactly where a sequence is full, its `end`, which would
    begin the next one, is left out.

    Args:
        documents: documents, each a list of sentences; or a `TokenCorpus`, whose sequences are stored in a file.
            Sentences without tokens and documents without sentences are left out, the latter with one warning.
        preprocessor: determines how long a sequence is.
        across_documents: whether a sequence may hold parts of several documents.

    Returns:
        Sequences of different lengths.

    Raises:
        TypeError: for a document that is not text, naming its position.
        ValueError: for a `sequence_length` without room for a token, or if the corpus is of another tokenizer.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.data.corpora import pack_sentences

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    sequences = pack_sentences([["a a", "b"], ["a"]], Preprocessor(tokenizer, packing, sequence_length=7))
    sequences.lengths  # [7, 4]: [CLS] a a [SEP] b [SEP] [SEP] and [CLS] a [SEP] [SEP]
    ```
    """
    room = room_in_sequence(preprocessor, pair=False) + 1  # the end token belongs to a sentence
    start, end = _ends(preprocessor)
    last = [preprocessor.tokenizer.token_to_id(token) for token in preprocessor.packing.closing[1:]]

    def blocks() -> _Blocks:
        left: list[tuple[np.ndarray, np.ndarray]] = []
        for part in _parts(documents, preprocessor):
            stream, units, document_splits = _units(part, room, end, across_documents)
            if across_documents:
                stream, units = (np.concatenate(pair) for pair in zip(*left, (stream, units), strict=True))
            bounds, places = _fill(units, room, None if across_documents else document_splits)
            if across_documents:  # so the last sequence may continue
                unfinished = bounds[-2:][0]
                left = [(stream[places[unfinished] :], units[unfinished:])]
                bounds = bounds[:-1] or bounds
            yield _with_ends(stream, places[bounds], start, last)
        for stream, _ in left:
            yield _with_ends(stream, np.array([0, len(stream)]), start, last)

    return _joined(blocks(), documents)


def _units(
    part: TokenizedDocuments, room: int, end: int, across_documents: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens to cut, the lengths of uncuttable units, and the boundaries of documents among these."""
    lengths, documents = np.diff(part.sentence_splits), part.document_splits
    ended = lengths % room != 0  # (s,)
    ends, units = part.sentence_splits[1:][ended], lengths + ended
    if across_documents:
        units = np.insert(units, documents[1:], 1)
        ends = np.concatenate([ends, part.sentence_splits[documents[1:]]])
        documents = documents + np.arange(len(documents))
    count = -(-units // room)
    parts = np.full(count.sum(), room)
    parts[np.cumsum(count) - 1] = units - room * (count - 1)
    return np.insert(part.token_ids, ends, end), parts, splits_of(count)[documents]


def _fill(units: np.ndarray, room: int, document_splits: np.ndarray | None) -> tuple[list[int], np.ndarray]:
    """Fill sequences with units: the first unit of each sequence, and where the units are in the stream."""
    places = splits_of(units)  # (u + 1,)
    after = np.searchsorted(places, places[:-1] + room, side="right") - 1  # (u,)
    if document_splits is not None:
        after = np.minimum(after, np.repeat(document_splits[1:], np.diff(document_splits)))
    step, bounds = after.tolist(), [0]
    while bounds[-1] < len(step):
        bounds.append(step[bounds[-1]])
    return bounds, places


def _with_ends(
    stream: np.ndarray, places: np.ndarray, start: int | None, last: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Cut a block of sequences from a stream; a lone separator is dropped."""
    lengths = np.diff(places)
    kept = lengths > 1
    stream = stream[places[0] : places[-1]][np.repeat(kept, lengths)]
    lengths = lengths[kept]
    if last:
        stream = np.insert(stream, np.cumsum(lengths), last[0])
        lengths = lengths + 1
    if start is None:
        return stream, lengths
    return np.insert(stream, np.cumsum(lengths) - lengths, start), lengths + 1


def _ends(preprocessor: Preprocessor) -> tuple[int | None, int]:
    packing, token_to_id = preprocessor.packing, preprocessor.tokenizer.token_to_id
    return token_to_id(packing.start) if packing.start else None, token_to_id(packing.end)


def _parts(documents: Documents, preprocessor: Preprocessor) -> Iterator[TokenizedDocuments]:
    if isinstance(documents, TokenCorpus):
        documents.check_tokenizer(preprocessor.tokenizer)
        yield from documents.shards
    else:
        reader, kept = DocumentReader(documents), 0
        for group in groups_of(reader, _BATCH):
            part = tokenize_documents(group, preprocessor.tokenizer).without_empty()
            kept += len(part)
            yield part
        reader.report(kept)


def _joined(blocks: _Blocks, documents: Documents) -> EncodedTexts:
    folder = documents.sequences_folder if isinstance(documents, TokenCorpus) else None
    flat, splits = join_blocks(blocks, folder)
    return EncodedTexts(flat, splits, np.diff(splits).astype("int32"))
