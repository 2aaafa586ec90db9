"""Reading documents from files and streams, as lists of sentences."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.common.arguments import near_names
from lmzoo.data.corpora.tokenized_documents import DocumentReader, check_documents
from lmzoo.data.readers.text_files import (
    ARCHIVE_ERRORS,
    decompressed,
    json_objects,
    list_files,
    suffix_of,
)
from lmzoo.errors import ArgumentError
from lmzoo.files.atomic import check_path
from lmzoo.files.urls import open_to_read
from lmzoo.text.sentences import split_sentences
from lmzoo.text.validate_text import is_column, is_text

_JSON_LINES = (".jsonl", ".ndjson")
_SUFFIXES = (".txt", *_JSON_LINES)


def read_documents(
    paths: str | Path | Iterable[str | Path],
    field: str = "text",
    split: bool = True,
) -> Iterator[list[str]]:
    r"""Read documents from text files or JSON lines, one after another.

    * Text: a line is a sentence or a paragraph; blank lines separate documents.
    * `.jsonl`, `.ndjson`: one object per line, each a document. A line of its text is a sentence or a paragraph; the
      text may also be a list of these.

    Files may be compressed by gzip or xz.

    Args:
        paths: a file; a folder, whose `.txt`, `.jsonl` and `.ndjson` files are read in the order of their paths,
            including those in its subfolders; a pattern such as `"books/*.txt.gz"`; or several of these. They may be
            URLs that fsspec reads, such as `"s3://bucket/books"`.
        field: the key of the text in JSON lines.
        split: whether to split lines into sentences with `lmzoo.text.split_sentences`; False if each line is one.

    Returns:
        An iterator over lists of sentences. Documents without text are left out; one warning at the end says how many.

    Raises:
        FileNotFoundError: at once, if a file does not exist or a folder holds none.
        ValueError: while reading, naming the file and the byte or the line: for a file that is not UTF-8 or holds NUL,
            as binary files do; for a damaged archive; for a line that is not JSON or has no text.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.data.corpora import read_documents

    Path("notes.txt").write_text("It rained. Mr. Hale stayed in.\n\nThe next day was fine.\n")
    list(read_documents("notes.txt"))  # [["It rained.", "Mr. Hale stayed in."], ["The next day was fine."]]
    ```
    """
    listed: list[Any] = list(paths) if is_column(paths) else [paths]  # type: ignore[arg-type]
    for path in listed:
        check_path(path)
    files = [file for path in listed for file in text_files(path)]
    texts = (text for file in files for text in _documents_in(file, field))
    return _documents(texts, split)


def split_documents(documents: Any, field: str = "text", split: bool = True) -> Iterator[list[str]]:
    r"""Read documents from an iterator, a `tf.data.Dataset` or a Hugging Face data set, as lists of sentences.

    Args:
        documents: strings (or UTF-8 bytes), in which a line is a sentence or a paragraph; lists of such lines; records
            that hold one of these, as in Hugging Face's data sets; or a `tf.data.Dataset` of strings or records,
            batched or not.
        field: the key of the text in records.
        split: see `read_documents`.

    Returns:
        An iterator like that of `read_documents`.

    Raises:
        TypeError: for one text, a dict or a table; while reading, naming the position of a document that is not text.
        ValueError: while reading, naming the position of a record without the field.

    Example:

    ```python
    from lmzoo.data.corpora import split_documents

    list(split_documents(iter(["It rained. We stayed in.\nOn the next day we left.", "Fine."])))
    # [["It rained.", "We stayed in.", "On the next day we left."], ["Fine."]]
    list(split_documents([{"title": "Rain", "body": "It rained."}], field="body"))  # [["It rained."]]
    ```
    """
    if is_text(documents):
        raise TypeError(f"Expected documents, got one string; write [{documents!r:.40}].")
    check_documents(documents)
    items = documents.as_numpy_iterator() if hasattr(documents, "as_numpy_iterator") else documents
    return _documents(_texts_of(items, field), split)


def _texts_of(items: Iterable[Any], field: str) -> Iterator[Any]:
    """Take the texts out of records and arrays."""
    for position, item in enumerate(items):
        text = _field_of(item, field, f"documents[{position}]") if isinstance(item, Mapping) else item
        yield from text.ravel().tolist() if isinstance(text, np.ndarray) else [text]


def _documents(texts: Iterable[Any], split: bool) -> Iterator[list[str]]:
    """Split documents, each a string or a list of lines, into sentences."""
    reader, kept = DocumentReader(texts), 0
    for cleaned in reader:
        lines = [line.strip() for part in cleaned for line in part.split("\n")]
        sentences = [s for line in lines for s in split_sentences(line)] if split else list(filter(None, lines))
        if sentences:
            kept += 1
            yield sentences
    reader.report(kept, "were empty")


def text_files(path: str | Path) -> list[str]:
    """List the files that a path, folder, pattern or URL stands for; see `read_documents`.

    Raises:
        FileNotFoundError: if there are none.
    """
    return list_files(path, _SUFFIXES)


def _documents_in(path: str, field: str) -> Iterator[str | Sequence[str]]:
    """Read the documents of a file, each a string or a list of lines."""
    with open_to_read(path) as raw:
        lines = _lines(path, raw)
        yield from _json_texts(path, lines, field) if suffix_of(path) in _JSON_LINES else _paragraphs(lines)


def _lines(path: str, raw: io.BufferedReader) -> Iterator[str]:
    place = 0
    try:
        for line in decompressed(raw):
            bad = line.find(b"\0")
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                bad = error.start if bad < 0 else min(bad, error.start)
            if bad >= 0:
                raise ValueError(
                    f"{path} is binary or not encoded in UTF-8: byte {place + bad:,} of its text is 0x{line[bad]:02x}. "
                    "Leave it out or convert it."
                )
            yield text.removeprefix("\ufeff") if place == 0 else text
            place += len(line)
    except ARCHIVE_ERRORS as error:
        raise ValueError(f"{path} is a damaged archive: {error}") from None


def _paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Group the lines between blank lines; a file without text is one empty document."""
    document: list[str] = []
    found = False
    for line in lines:
        if line.strip():
            document.append(line)
        elif document:
            yield document
            document, found = [], True
    if document or not found:
        yield document


def _json_texts(path: str, lines: Iterable[str], field: str) -> Iterator[str | Sequence[str]]:
    for number, row in json_objects(enumerate(lines, 1), str(path)):
        where = f"{path}, line {number}"
        text = _field_of(row, field, where)
        if not (isinstance(text, str) or (isinstance(text, list) and all(isinstance(part, str) for part in text))):
            raise ValueError(f"{where}: {field!r} must be a string or a list of strings, got {json.dumps(text)[:60]}.")
        yield text


def _field_of(record: Mapping[str, Any], field: str, where: str) -> Any:
    if field not in record:
        raise ArgumentError(f"{where} has no {field!r} (`field`).{near_names(field, list(record))}", "field")
    return "" if record[field] is None else record[field]
