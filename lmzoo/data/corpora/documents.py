"""Readers of documents from files and streams, as lists of sentences."""

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
    decompress,
    get_suffix,
    json_objects,
    list_files,
)
from lmzoo.errors import ArgumentError
from lmzoo.files.atomic import check_path
from lmzoo.files.urls import open_to_read
from lmzoo.text.sentences import split_sentences
from lmzoo.text.validate_text import is_column, is_text

_JSON_LINES = (".jsonl", ".ndjson", ".json")
_SUFFIXES = (".txt", *_JSON_LINES)
_TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


def read_documents(
    paths: str | Path | Iterable[str | Path],
    field: str = "text",
    split: bool = True,
) -> Iterator[list[str]]:
    r"""Read documents from text files or JSON lines one at a time, as lists of sentences.

    * Text: a line is a sentence or a paragraph; blank lines separate documents.
    * `.jsonl`, `.ndjson`, `.json`: one object per line, each a document. A line of its text is a sentence or a
      paragraph; the text may also be a list of these.

    Files may be compressed with gzip or xz.

    Args:
        paths: a file; a directory, whose `.txt`, `.jsonl`, `.ndjson` and `.json` files are read in the order of their
            paths, including subdirectories, except files whose names begin with "." or "_"; a pattern such as
            `"books/*.txt.gz"`; or several of these. URLs that fsspec supports are also accepted, such as
            `"s3://bucket/books"`.
        field: str, key of the text in JSON lines.
        split: bool, whether to split lines into sentences with `lmzoo.text.split_sentences`; False to keep lines whole.

    Returns:
        An iterator over lists of sentences. Documents without text are omitted; one warning at the end counts them.

    Raises:
        FileNotFoundError: Immediately, if a file does not exist, or a directory or pattern has no such files.
        ValueError: Immediately, if a file is a table (`.csv`, `.tsv` or `.parquet`); while reading, if a file is not
            UTF-8 or contains NUL, as binary files do, an archive is damaged, or a JSON line is not an object or lacks a
            valid text; the message names the file and the byte or line.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.data.corpora import read_documents

    Path("notes.txt").write_text("It rained. Mr. Hale stayed in.\n\nThe next day was fine.\n")
    list(read_documents("notes.txt"))  # [["It rained.", "Mr. Hale stayed in."], ["The next day was fine."]]
    ```
    """
    path_list: list[Any] = list(paths) if is_column(paths) else [paths]  # type: ignore[arg-type]
    for path in path_list:
        check_path(path)
    files = [file for path in path_list for file in text_files(path)]
    texts = (text for file in files for text in _read_file_documents(file, field))
    return _split_into_sentences(texts, split)


def split_documents(documents: Any, field: str = "text", split: bool = True) -> Iterator[list[str]]:
    r"""Read documents from an iterable, such as a `tf.data.Dataset` or a Hugging Face dataset, as lists of sentences.

    Args:
        documents: strings (or UTF-8 bytes), in which a line is a sentence or a paragraph; lists of such lines; records
            that hold one of these, as in Hugging Face datasets; or a `tf.data.Dataset` of strings or records,
            batched or not.
        field: str, key of the text in records.
        split: bool, whether to split lines into sentences with `lmzoo.text.split_sentences`; False to keep lines whole.

    Returns:
        An iterator over lists of sentences, as from `read_documents`.

    Raises:
        TypeError: If `documents` is a single text, a dict or a table; while reading, if a document is not text, in
            which case the message names its position.
        ValueError: While reading, if a record lacks the field; the message names its position.

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
    return _split_into_sentences(_extract_texts(items, field), split)


def _extract_texts(items: Iterable[Any], field: str) -> Iterator[Any]:
    """Yield the texts in `items`: the field of a record, each entry of an array, and any other item unchanged."""
    for position, item in enumerate(items):
        text = _get_field(item, field, f"documents[{position}]") if isinstance(item, Mapping) else item
        yield from text.ravel().tolist() if isinstance(text, np.ndarray) else [text]


def _split_into_sentences(texts: Iterable[Any], split: bool) -> Iterator[list[str]]:
    """Split documents, each a string or a list of lines, into sentences, or into lines if `split` is False.

    Documents without text are omitted; one warning at the end counts them.
    """
    reader = DocumentReader(texts)
    num_documents = 0
    for paragraphs in reader:
        lines = [line.strip() for paragraph in paragraphs for line in paragraph.split("\n")]
        sentences = [s for line in lines for s in split_sentences(line)] if split else list(filter(None, lines))
        if sentences:
            num_documents += 1
            yield sentences
    reader.report(num_documents, "were empty")


def text_files(path: str | Path) -> list[str]:
    """List the document files at a path, directory, pattern or URL, as in `read_documents`.

    Raises:
        FileNotFoundError: If there are no such files.
        ValueError: If a file is a table.
    """
    files = list_files(path, _SUFFIXES)
    for file in files:
        if get_suffix(file) in _TABLE_SUFFIXES:
            raise ValueError(
                f"{file} is a table, not text. Convert it to JSON lines, or read a column in Python with "
                "`lmzoo.data.corpora.split_documents(lmzoo.data.readers.TableStream(...), field=...)`."
            )
    return files


def _read_file_documents(path: str, field: str) -> Iterator[str | Sequence[str]]:
    """Yield the documents of a file, each a string or a list of lines."""
    with open_to_read(path) as file:
        lines = _decode_lines(path, file)
        yield from (
            _parse_json_texts(path, lines, field) if get_suffix(path) in _JSON_LINES else _group_paragraphs(lines)
        )


def _decode_lines(path: str, file: io.BufferedReader) -> Iterator[str]:
    """Yield the lines of a possibly compressed text file.

    Raises:
        ValueError: If the file is not UTF-8 or contains NUL, or is a damaged archive.
    """
    offset = 0
    try:
        for line in decompress(file):
            invalid_offset = line.find(b"\0")
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                invalid_offset = error.start if invalid_offset < 0 else min(invalid_offset, error.start)
            if invalid_offset >= 0:
                raise ValueError(
                    f"{path} is binary or not encoded in UTF-8: byte {offset + invalid_offset:,} of its text is "
                    f"0x{line[invalid_offset]:02x}. Leave it out or convert it."
                )
            yield text.removeprefix("\ufeff") if offset == 0 else text
            offset += len(line)
    except ARCHIVE_ERRORS as error:
        raise ValueError(f"{path} is a damaged archive: {error}") from None


def _group_paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Group the lines of a file into documents, which blank lines separate.

    A file without text is one empty document.
    """
    document: list[str] = []
    has_documents = False
    for line in lines:
        if line.strip():
            document.append(line)
        elif document:
            yield document
            document = []
            has_documents = True
    if document or not has_documents:
        yield document


def _parse_json_texts(path: str, lines: Iterable[str], field: str) -> Iterator[str | Sequence[str]]:
    """Yield the text of each JSON line.

    Raises:
        ValueError: If a line is not a JSON object, or its text is missing or is not a string or a list of strings.
    """
    for line_number, row in json_objects(enumerate(lines, 1), str(path)):
        location = f"{path}, line {line_number}"
        text = _get_field(row, field, location)
        if not (isinstance(text, str) or (isinstance(text, list) and all(isinstance(part, str) for part in text))):
            raise ValueError(
                f"{location}: {field!r} must be a string or a list of strings, got {json.dumps(text)[:60]}."
            )
        yield text


def _get_field(record: Mapping[str, Any], field: str, location: str) -> Any:
    """Return the text of a record, or "" if it is null; `location` names the record in messages.

    Raises:
        ValueError: If the record lacks the field.
    """
    if field not in record:
        raise ArgumentError(f"{location} has no {field!r} (`field`).{near_names(field, list(record))}", "field")
    return "" if record[field] is None else record[field]
