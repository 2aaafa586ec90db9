"""Packing of documents into sequences for language models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from lmzoo.data.corpora.sequence_storage import join_blocks, room_in_sequence
from lmzoo.data.corpora.token_corpus import TokenCorpus
from lmzoo.data.corpora.tokenized_documents import (
    DocumentReader,
    TokenizedDocuments,
    check_documents,
    group_items,
    make_splits,
    tokenize_documents,
)
from lmzoo.text import EncodedTexts, Preprocessor
from lmzoo.text.preprocessor import check_is_preprocessor
from lmzoo.text.validate_text import as_single_text, is_column

_BATCH_DOCUMENTS = 256  # number of documents tokenized at once

Documents = Iterable[str | Sequence[str]] | TokenCorpus
_Blocks = Iterator[tuple[np.ndarray, np.ndarray]]


def pack_documents(documents: Documents, preprocessor: Preprocessor) -> EncodedTexts:
    """Pack running text into full sequences, each with the family's special tokens at its start and end.

    Documents are joined, separated by the end token, and the result is split into sequences of full length, so there is
    no padding. A shorter sequence at the end is dropped. `pack_sentences` splits between sentences instead.

    Args:
        documents: iterable of strings or lists of sentences, or a `TokenCorpus`, for which the sequences are stored in
            a temporary file. Documents without tokens are omitted, with one warning.
        preprocessor: `lmzoo.text.Preprocessor`, which determines the length of sequences.

    Returns:
        Sequences of exactly `preprocessor.sequence_length` tokens.

    Raises:
        TypeError: If a document is not text; the message names its position.
        ValueError: If `sequence_length` has no room for a token, or the corpus is from another tokenizer.

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
    room = room_in_sequence(preprocessor, pair=False)
    length = preprocessor.sequence_length
    start, _, closing_ids = preprocessor.special_ids()
    end = _get_start_and_end(preprocessor)[1]

    def make_blocks() -> _Blocks:
        remainder: list[np.ndarray] = []
        for part in _iterate_parts(documents, preprocessor):
            end_positions = part.sentence_splits[part.document_splits[1:]]
            stream = np.concatenate([*remainder, np.insert(part.token_ids, end_positions, end)])
            num_sequences = len(stream) // room
            rows = np.empty((num_sequences, length), stream.dtype)
            rows[:, : len(start)] = start
            rows[:, length - len(closing_ids) :] = closing_ids
            rows[:, len(start) : length - len(closing_ids)] = stream[: num_sequences * room].reshape(
                num_sequences, room
            )
            remainder = [stream[num_sequences * room :]]
            yield rows.reshape(-1), np.full(num_sequences, length)

    return _join_sequences(make_blocks(), documents)


def pack_continuously(documents: Documents, preprocessor: Preprocessor) -> EncodedTexts:
    """Pack running text into full sequences for language models that predict the next token.

    Each document becomes `start`, its tokens, and `end`, if the tokenizer has such tokens. The documents are joined and
    split into sequences of one more token than the model reads. Each sequence begins with the last token of the
    previous sequence, so that each token except the very first is predicted once. The last sequence may be shorter.

    Args:
        documents: iterable of strings or lists of sentences, which are joined by spaces; or a `TokenCorpus`, for
            which the sequences are stored in a temporary file. Documents without tokens are omitted, with one warning.
        preprocessor: `lmzoo.text.Preprocessor`, which determines the length of sequences.

    Returns:
        Sequences of `preprocessor.sequence_length + 1` tokens, except possibly the last.

    Raises:
        TypeError: If a document is not text; the message names its position.
        ValueError: If the corpus is from another tokenizer.

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
    tokenizer = preprocessor.tokenizer
    length = preprocessor.sequence_length
    start = tokenizer.start_token_id
    end = tokenizer.end_token_id
    if not isinstance(documents, TokenCorpus):
        documents = WithSpaces(documents)

    def make_blocks() -> _Blocks:
        remainder = np.zeros(0, "int32")
        for part in _iterate_parts(documents, preprocessor):
            document_bounds = part.sentence_splits[part.document_splits]
            stream = part.token_ids
            if end is not None:
                stream = np.insert(stream, document_bounds[1:], end)
            if start is not None:
                stream = np.insert(
                    stream, document_bounds[:-1] + (np.arange(len(part)) if end is not None else 0), start
                )
            stream = np.concatenate([remainder, stream])
            num_sequences = max(0, len(stream) - 1) // length
            indices = length * np.arange(num_sequences)[:, None] + np.arange(length + 1)  # (num_sequences, length + 1)
            remainder = stream[num_sequences * length :]
            yield stream[indices].reshape(-1), np.full(num_sequences, length + 1)
        if len(remainder) > 1:
            yield remainder, np.array([len(remainder)])

    return _join_sequences(make_blocks(), documents)


def pack_running_text(documents: Documents, preprocessor: Preprocessor) -> EncodedTexts:
    """Pack running text into full sequences without special tokens, for span corruption.

    Documents are joined without a token between them, as in T5's code (`reduce_concat_tokens`), and the result is split
    into sequences. The last sequence may be shorter; a single token that remains is dropped.

    Args:
        documents: iterable of strings or lists of sentences, which are joined by spaces; or a `TokenCorpus`, for
            which the sequences are stored in a temporary file. Documents without tokens are omitted, with one warning.
        preprocessor: `lmzoo.text.Preprocessor`, which determines the length of sequences.

    Returns:
        Sequences of `preprocessor.sequence_length` tokens, except possibly the last.

    Raises:
        TypeError: If a document is not text; the message names its position.
        ValueError: If the corpus is from another tokenizer.

    Example:

    ```python
    from lmzoo.data.corpora import pack_running_text
    from lmzoo.families.t5 import FAMILY
    from lmzoo.text import Preprocessor, T5Tokenizer

    tokenizer = T5Tokenizer.of_words(["A", "good", "film"], size=20, num_sentinels=5)
    packed = pack_running_text(["A good film", "A film"], Preprocessor(tokenizer, FAMILY.packing, sequence_length=3))
    packed.lengths  # [3, 2]
    ```
    """
    check_is_preprocessor(preprocessor)
    length = preprocessor.sequence_length
    if not isinstance(documents, TokenCorpus):
        documents = WithSpaces(documents)

    def make_blocks() -> _Blocks:
        remainder: list[np.ndarray] = []
        for part in _iterate_parts(documents, preprocessor):
            stream = np.concatenate([*remainder, part.token_ids])
            num_sequences = len(stream) // length
            remainder = [stream[num_sequences * length :]]
            yield stream[: num_sequences * length], np.full(num_sequences, length)
        for stream in remainder:
            if len(stream) > 1:
                yield stream, np.array([len(stream)])

    return _join_sequences(make_blocks(), documents)


class WithSpaces:
    """Documents whose sentences are joined by spaces, for models that generate text.

    Args:
        documents: iterable of strings, or lists or arrays of sentences; both may also be UTF-8 bytes.
    """

    def __init__(self, documents: Iterable[str | Sequence[str]]) -> None:
        self.documents: Iterable[str | Sequence[str]] = check_documents(documents)

    def __iter__(self) -> Iterator[Any]:
        """Yield each document as a string, or as bytes if a sentence is bytes; the reader checks what is not text."""
        for document in self.documents:
            if not is_column(document):
                yield document
                continue
            entries = [*document]
            sentences: list[Any] = [as_single_text(entry) for entry in entries]
            if None in sentences:
                yield entries
            elif any(isinstance(sentence, bytes) for sentence in sentences):
                yield b" ".join(_encode(sentence) for sentence in sentences)
            else:
                yield " ".join(sentences)


def _encode(text: str | bytes) -> bytes:
    """Return a text as UTF-8, in which lone surrogates stay invalid."""
    return text if isinstance(text, bytes) else text.encode(errors="surrogatepass")


def pack_sentences(
    documents: Documents,
    preprocessor: Preprocessor,
    across_documents: bool = True,
) -> EncodedTexts:
    """Pack whole sentences into sequences (Liu et al., 2019, section 4.2).

    A sequence has at most `preprocessor.sequence_length` tokens: `start`, sentences, each followed by `end`, and
    `last`, where the family has these tokens. A sentence that does not fit begins a new sequence. By default sequences
    continue across documents, with one more `end` between documents (FULL-SENTENCES); otherwise each document begins a
    new sequence (DOC-SENTENCES). A sentence that is longer than a sequence continues in the next sequence, whereas the
    original code keeps the overlong sequence. If such a sentence ends exactly where a sequence is full, its `end`,
    which would begin the next sequence, is omitted.

    Args:
        documents: iterable of documents, each a list of sentences; or a `TokenCorpus`, for which the sequences are
            stored in a temporary file. Sentences without tokens and documents without sentences are omitted, the latter
            with one warning.
        preprocessor: `lmzoo.text.Preprocessor`, which determines the length of sequences.
        across_documents: bool, whether a sequence may hold parts of several documents.

    Returns:
        Sequences of at most `preprocessor.sequence_length` tokens.

    Raises:
        TypeError: If a document is not text; the message names its position.
        ValueError: If `sequence_length` has no room for a token, or the corpus is from another tokenizer.

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
    room = room_in_sequence(preprocessor, pair=False) + 1  # a sentence includes its end token
    start, end = _get_start_and_end(preprocessor)
    last = [preprocessor.tokenizer.token_to_id(token) for token in preprocessor.packing.closing[1:]]

    def make_blocks() -> _Blocks:
        remainder: list[tuple[np.ndarray, np.ndarray]] = []
        for part in _iterate_parts(documents, preprocessor):
            stream, lengths, document_splits = _divide_into_units(part, room, end, across_documents)
            if across_documents:
                stream, lengths = (np.concatenate(arrays) for arrays in zip(*remainder, (stream, lengths), strict=True))
            first_units, unit_starts = _assign_units(lengths, room, None if across_documents else document_splits)
            if across_documents:  # the last sequence may continue
                last_unit = first_units[-2:][0]
                remainder = [(stream[unit_starts[last_unit] :], lengths[last_unit:])]
                first_units = first_units[:-1] or first_units
            yield _extract_sequences(stream, unit_starts[first_units], start, last)
        for stream, _ in remainder:
            yield _extract_sequences(stream, np.array([0, len(stream)]), start, last)

    return _join_sequences(make_blocks(), documents)


def _divide_into_units(
    part: TokenizedDocuments, room: int, end: int, across_documents: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Insert end tokens into tokenized documents, and divide the result into units that must stay in one sequence.

    A unit is a sentence with its end token, a piece of a sentence longer than `room`, or the end token of a document.

    Returns:
        The tokens including end tokens; the lengths of the u units, int (u,); and the index of the first unit of each
        document, followed by u.
    """
    lengths = np.diff(part.sentence_splits)
    document_splits = part.document_splits
    has_end = lengths % room != 0  # whether each sentence is followed by its end token
    end_positions = part.sentence_splits[1:][has_end]
    lengths_with_end = lengths + has_end
    if across_documents:
        lengths_with_end = np.insert(lengths_with_end, document_splits[1:], 1)
        end_positions = np.concatenate([end_positions, part.sentence_splits[document_splits[1:]]])
        document_splits = document_splits + np.arange(len(document_splits))
    num_units = -(-lengths_with_end // room)
    unit_lengths = np.full(num_units.sum(), room)
    unit_lengths[np.cumsum(num_units) - 1] = lengths_with_end - room * (num_units - 1)
    return np.insert(part.token_ids, end_positions, end), unit_lengths, make_splits(num_units)[document_splits]


def _assign_units(
    unit_lengths: np.ndarray, room: int, document_splits: np.ndarray | None
) -> tuple[list[int], np.ndarray]:
    """Assign units to sequences in order, as many units to each sequence as fit.

    Args:
        unit_lengths: int (u,), number of tokens of each of the u units, at most `room`.
        room: int, maximum number of tokens of a sequence.
        document_splits: index of the first unit of each document, followed by the number of units; each document begins
            a new sequence. None for sequences that continue across documents.

    Returns:
        The index of each sequence's first unit, followed by the number of units; and the start of each unit in the
        stream, followed by the length of the stream, int64 (u + 1,).
    """
    unit_starts = make_splits(unit_lengths)  # (u + 1,)
    sequence_ends = np.searchsorted(unit_starts, unit_starts[:-1] + room, side="right") - 1  # (u,)
    if document_splits is not None:
        sequence_ends = np.minimum(sequence_ends, np.repeat(document_splits[1:], np.diff(document_splits)))
    end_by_first_unit = sequence_ends.tolist()
    first_units = [0]
    while first_units[-1] < len(end_by_first_unit):
        first_units.append(end_by_first_unit[first_units[-1]])
    return first_units, unit_starts


def _extract_sequences(
    stream: np.ndarray, boundaries: np.ndarray, start: int | None, last: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Extract sequences from a stream, add their start and last tokens, and drop sequences that are only a separator.

    Args:
        stream: int (t,), ids of t tokens.
        boundaries: int (n + 1,), starts of the n sequences in the stream, and the end of the last sequence.
        start: int, id of the token before each sequence, or None.
        last: list with the id of the token after each sequence, or empty.

    Returns:
        The tokens of all sequences, and the length of each sequence.
    """
    lengths = np.diff(boundaries)
    is_kept = lengths > 1
    stream = stream[boundaries[0] : boundaries[-1]][np.repeat(is_kept, lengths)]
    lengths = lengths[is_kept]
    if last:
        stream = np.insert(stream, np.cumsum(lengths), last[0])
        lengths = lengths + 1
    if start is None:
        return stream, lengths
    return np.insert(stream, np.cumsum(lengths) - lengths, start), lengths + 1


def _get_start_and_end(preprocessor: Preprocessor) -> tuple[int | None, int]:
    """Return the id of the start token, or None if the family has none, and the id of the end token."""
    packing = preprocessor.packing
    token_to_id = preprocessor.tokenizer.token_to_id
    return token_to_id(packing.start) if packing.start else None, token_to_id(packing.end)


def _iterate_parts(documents: Documents, preprocessor: Preprocessor) -> Iterator[TokenizedDocuments]:
    """Yield the tokenized documents in parts, and finally warn of documents without tokens."""
    if isinstance(documents, TokenCorpus):
        documents.check_tokenizer(preprocessor.tokenizer)
        yield from documents.shards
    else:
        reader = DocumentReader(documents)
        num_documents = 0
        for group in group_items(reader, _BATCH_DOCUMENTS):
            part = tokenize_documents(group, preprocessor.tokenizer).without_empty()
            num_documents += len(part)
            yield part
        reader.report(num_documents)


def _join_sequences(blocks: _Blocks, documents: Documents) -> EncodedTexts:
    """Join blocks of sequences, in a temporary file if the documents are a corpus."""
    folder = documents.sequences_folder if isinstance(documents, TokenCorpus) else None
    token_ids, sequence_splits = join_blocks(blocks, folder)
    return EncodedTexts(token_ids, sequence_splits, np.diff(sequence_splits).astype("int32"))
