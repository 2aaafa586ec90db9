"""From documents to the rows of masked language models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lmzoo.data.corpora.sequence_storage import join_rows, room_in_row
from lmzoo.data.corpora.token_corpus import TokenCorpus
from lmzoo.data.corpora.tokenized_documents import (
    DocumentReader,
    TokenizedDocuments,
    groups_of,
    splits_of,
    tokenize_documents,
)
from lmzoo.text import EncodedTexts, Preprocessor

_BATCH = 256  # documents tokenised at once

Documents = Iterable[str | Sequence[str]] | TokenCorpus
_Blocks = Iterator[tuple[np.ndarray, np.ndarray]]


def pack_documents(documents: Documents, preprocessor: Preprocessor) -> EncodedTexts:
    """Packs running text into full rows: `start`, pieces, `end`.

    Documents follow one another, separated by the end token, and rows are cut wherever they are full, so that there is
    no padding. A last, shorter row is dropped. `pack_sentences` cuts between sentences instead.

    Args:
        documents: strings, lists of sentences, or a `TokenCorpus`, whose rows are kept in a file (see there). Those
            that hold no tokens are left out, with one warning.
        preprocessor: says how long a row is.

    Returns:
        Rows of exactly `preprocessor.sequence_length` tokens.

    Raises:
        TypeError: for a document that is no text, naming its position.
        ValueError: for a `sequence_length` without room for a token, or if the corpus is of another tokenizer.
    """
    start, end = _ends(preprocessor)
    length, room = preprocessor.sequence_length, room_in_row(preprocessor, pair=False)

    def blocks() -> _Blocks:
        left: list[np.ndarray] = []
        for part in _parts(documents, preprocessor):
            ends = part.sentence_splits[part.document_splits[1:]]
            stream = np.concatenate([*left, np.insert(part.token_ids, ends, end)])
            count = len(stream) // room
            rows = np.full((count, length), end, stream.dtype)
            rows[:, 0] = start
            rows[:, 1:-1] = stream[: count * room].reshape(count, room)
            left = [stream[count * room :]]
            yield rows.reshape(-1), np.full(count, length)

    return _rows(blocks(), documents)


def pack_sentences(
    documents: Documents,
    preprocessor: Preprocessor,
    across_documents: bool = True,
) -> EncodedTexts:
    """Packs whole sentences into rows of at most `preprocessor.sequence_length` tokens (Liu et al., 2019, section 4.2).

    A row is `start` and then sentences, each followed by `end`; the next one begins a new row if it does not fit. By
    default rows run on across documents, with one more `end` between them (FULL-SENTENCES); otherwise a document ends
    its row (DOC-SENTENCES). A sentence that is longer than a row goes on in the next, where the original code keeps a
    row that is too long. If it ends where a row is full its `end` is left out, which would begin the next.

    Args:
        documents: documents, each a list of sentences; or a `TokenCorpus`, whose rows are kept in a file (see there).
            Sentences without tokens are left out, and so are documents without sentences, with one warning.
        preprocessor: says how long a row is.
        across_documents: whether a row may hold parts of several documents.

    Returns:
        Rows of different lengths.

    Raises:
        TypeError: for a document that is no text, naming its position.
        ValueError: for a `sequence_length` without room for a token, or if the corpus is of another tokenizer.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.data.corpora import pack_sentences

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    rows = pack_sentences([["a a", "b"], ["a"]], Preprocessor(tokenizer, packing, sequence_length=7))
    rows.lengths  # [7, 4]: [CLS] a a [SEP] b [SEP] [SEP] and [CLS] a [SEP] [SEP]
    ```
    """
    start, end = _ends(preprocessor)
    room = room_in_row(preprocessor, pair=False) + 1  # the end is a sentence's

    def blocks() -> _Blocks:
        left: list[tuple[np.ndarray, np.ndarray]] = []
        for part in _parts(documents, preprocessor):
            stream, units, document_splits = _units(part, room, end, across_documents)
            if across_documents:
                stream, units = (np.concatenate(pair) for pair in zip(*left, (stream, units), strict=True))
            bounds, places = _fill(units, room, None if across_documents else document_splits)
            if across_documents:  # and so the last row may go on
                last = bounds[-2:][0]
                left = [(stream[places[last] :], units[last:])]
                bounds = bounds[:-1] or bounds
            yield _with_start(stream, places[bounds], start)
        for stream, _ in left:
            yield _with_start(stream, np.array([0, len(stream)]), start)

    return _rows(blocks(), documents)


def _units(
    part: TokenizedDocuments, room: int, end: int, across_documents: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stream that rows are cut from, lengths of what is not cut, and where documents begin and end among these."""
    lengths, documents = np.diff(part.sentence_splits), part.document_splits
    ended = lengths % room != 0  # (s,)
    ends, units = part.sentence_splits[1:][ended], lengths + ended
    if across_documents:
        units = np.insert(units, documents[1:], 1)
        ends = np.concatenate([ends, part.sentence_splits[documents[1:]]])
        documents = documents + np.arange(len(documents))
    count = -(-units // room)
    pieces = np.full(count.sum(), room)
    pieces[np.cumsum(count) - 1] = units - room * (count - 1)
    return np.insert(part.token_ids, ends, end), pieces, splits_of(count)[documents]


def _fill(units: np.ndarray, room: int, document_splits: np.ndarray | None) -> tuple[list[int], np.ndarray]:
    """Puts as many units as fit into each row: with what unit each begins, and where the units are in the stream."""
    places = splits_of(units)  # (u + 1,)
    after = np.searchsorted(places, places[:-1] + room, side="right") - 1  # (u,)
    if document_splits is not None:
        after = np.minimum(after, np.repeat(document_splits[1:], np.diff(document_splits)))
    step, bounds = after.tolist(), [0]
    while bounds[-1] < len(step):
        bounds.append(step[bounds[-1]])
    return bounds, places


def _with_start(stream: np.ndarray, places: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows out of a stream, as a block; a lone separator is none."""
    lengths = np.diff(places)
    kept = lengths > 1
    stream = stream[places[0] : places[-1]][np.repeat(kept, lengths)]
    lengths = lengths[kept]
    return np.insert(stream, np.cumsum(lengths) - lengths, start), lengths + 1


def _ends(preprocessor: Preprocessor) -> tuple[int, int]:
    packing, token_to_id = preprocessor.packing, preprocessor.tokenizer.token_to_id
    return token_to_id(packing.start), token_to_id(packing.end)


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


def _rows(blocks: _Blocks, documents: Documents) -> EncodedTexts:
    folder: Path | None = documents.sequences_folder if isinstance(documents, TokenCorpus) else None
    flat, splits = join_rows(blocks, folder)
    return EncodedTexts(flat, splits, np.diff(splits).astype("int32"))
