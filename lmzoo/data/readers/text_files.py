"""What all readers share: opening plain and compressed files, and naming the place of an error."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from lmzoo.common.arguments import near_names
from lmzoo.errors import ArgumentError
from lmzoo.files.atomic import check_path
from lmzoo.files.urls import find_files, open_to_read

Source = str | Path | BinaryIO
ARCHIVE_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)


def name_of(source: Source) -> str:
    """Return the name of a file in messages."""
    return str(source) if isinstance(source, (str, Path)) else getattr(source, "name", "the file")


def read_text(source: Source, encoding: str = "utf-8") -> str:
    """Read a text file, without its byte order mark.

    Args:
        source: a file, or a file object open in binary mode. It may be compressed by gzip or xz, whatever its name.
        encoding: encoding of the text.

    Raises:
        TypeError: for anything else in place of the file.
        ValueError: naming a line in another encoding; for an unknown encoding or a damaged archive.
    """
    if not (isinstance(source, (str, Path)) or hasattr(source, "read")):
        raise TypeError(f"Expected the path of a file, or a file object in binary mode, got {source!r:.60}.")
    with open_text(source, encoding) as file:
        try:
            return file.read().removeprefix("\ufeff")
        except UnicodeDecodeError as error:  # of the whole file
            line = error.object.count(b"\n", 0, error.start) + 1
            raise _not_encoded(f"{name_of(source)}, line {line}", error, encoding) from None


def decompressed(file: io.BufferedReader[Any]) -> BinaryIO:
    """Decompress a file, open at its beginning, as it is read, if it is compressed by gzip or xz.

    Reading a damaged archive raises one of `ARCHIVE_ERRORS`.
    """
    head = file.peek(6)
    if head[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if head[:6] == b"\xfd7zXZ\x00":
        return lzma.LZMAFile(file)  # type: ignore[return-value]
    return file


def numbered_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines, numbered from 1, without the characters that end them."""
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\n").removesuffix("\r")


@contextlib.contextmanager
def open_text(source: Source, encoding: str = "utf-8", newline: str = "\n") -> Iterator[TextIO]:
    """Open a text file for a `with` block that reads it line by line, without its byte order mark.

    It may be compressed by gzip or xz. Only line feeds end lines; with `newline=""` carriage returns do, too.

    Raises:
        ValueError: in the block, for another encoding, an unknown one or a damaged archive.
    """
    try:
        "".encode(encoding)  # a LookupError for codecs such as base64, which `lookup` finds
        encoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    except LookupError:
        message = f"There is no encoding {encoding!r}; two common ones are utf-8 and latin-1."
        raise ArgumentError(message, "encoding") from None
    with (
        open_to_read(source) if isinstance(source, (str, Path)) else io.BufferedReader(io.BytesIO(source.read())) as raw
    ):
        file = io.TextIOWrapper(decompressed(raw), encoding, newline=newline)
        try:
            yield file
        except UnicodeDecodeError as error:
            raise _not_encoded(name_of(source), error, encoding) from None
        except ARCHIVE_ERRORS as error:
            raise ValueError(f"{name_of(source)} is a damaged archive: {error}") from None


def _not_encoded(where: str, error: UnicodeDecodeError, encoding: str) -> ArgumentError:
    return ArgumentError(
        f"{where}: the byte 0x{error.object[error.start]:02x} is not {encoding.removesuffix('-sig')}. If the file is "
        "in another encoding, such as latin-1, say so (`encoding`).",
        "encoding",
    )


def list_files(path: str | Path, suffixes: Collection[str]) -> list[str]:
    """List the files that a path, folder, pattern or URL stands for; of a folder those with certain suffixes, sorted.

    Raises:
        FileNotFoundError: if there are none.
    """
    check_path(path)
    files = find_files(path, lambda name: suffix_of(name) in suffixes)
    if not files:
        raise FileNotFoundError(f"{path} holds no {', '.join(suffixes)} files, plain or with .gz or .xz.")
    return files


def json_objects(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the objects of JSON lines, given with their numbers; blank lines are left out.

    Raises:
        ValueError: naming a line that is not a JSON object.
    """
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{name}, line {number} is not JSON: {error}.") from None
        if not isinstance(row, dict):
            raise ValueError(f'{name}, line {number} is not a JSON object ({{"text": ...}}): {line:.60}')
        yield number, row


def suffix_of(source: Source) -> str:
    """Return the suffix of a file's name in lower case, ignoring that of its compression: ".csv" for "Train.csv.gz"."""
    path = Path(name_of(source).lower())
    return Path(path.stem).suffix if path.suffix in (".gz", ".xz") else path.suffix


def check_label(label: str, labels: Sequence[str] | None, where: str) -> None:
    """Check that a label in a file is not missing, and is one of the allowed `labels`, if these are given.

    Raises:
        ValueError: if the label is missing or not allowed.
    """
    if not label:
        raise ValueError(f"{where}: the label is missing.")
    if labels is not None and label not in labels:
        raise ValueError(f"{where}: the label {label!r} is unknown.{near_names(label, labels)}")
