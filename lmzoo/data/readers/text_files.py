"""Functions that the readers share, to open plain and compressed text files, and to parse and check their lines."""

from __future__ import annotations

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
from lmzoo.files.urls import find_files, is_in_folder, is_skipped, open_to_read

Source = str | Path | BinaryIO
# Names of hidden files, and of files in which programs keep their records, as lmzoo does in `_prepare.json`.
SKIPPED_PREFIXES = (".", "_")
ARCHIVE_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)


def get_name(source: Source) -> str:
    """Return the name of a file for messages."""
    return str(source) if isinstance(source, (str, Path)) else getattr(source, "name", "the file")


def read_text(source: Source, encoding: str = "utf-8") -> str:
    """Read a text file without its byte order mark.

    Args:
        source: path of a file, or a file object open in binary mode. The file may be compressed with gzip or xz,
            whatever its name.
        encoding: str, encoding of the text.

    Raises:
        TypeError: If `source` is neither a path nor a file object.
        ValueError: If the encoding is unknown, the file is in another encoding (the message names the line), or the
            archive is damaged.
    """
    if not (isinstance(source, (str, Path)) or hasattr(source, "read")):
        raise TypeError(f"Expected the path of a file, or a file object in binary mode, got {source!r:.60}.")
    with open_text(source, encoding) as file:
        try:
            return file.read()
        except UnicodeDecodeError as error:  # `error.object` holds the whole file
            line_number = error.object.count(b"\n", 0, error.start) + 1
            raise _make_encoding_error(f"{get_name(source)}, line {line_number}", error, encoding) from None


def decompress(file: io.BufferedReader[Any]) -> BinaryIO:
    """Return a reader that decompresses a gzip or xz file as it is read, or the file itself if it is uncompressed.

    The file must be at its beginning. Reading a damaged archive raises one of `ARCHIVE_ERRORS`.
    """
    first_bytes = file.peek(6)
    if first_bytes[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if first_bytes[:6] == b"\xfd7zXZ\x00":
        return lzma.LZMAFile(file)  # type: ignore[return-value]
    return file


def read_numbered_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers from 1, without line ends."""
    for line_number, line in enumerate(lines, 1):
        yield line_number, line.removesuffix("\n").removesuffix("\r")


@contextlib.contextmanager
def open_text(source: Source, encoding: str = "utf-8", newline: str = "\n", errors: str = "strict") -> Iterator[TextIO]:
    """Open a text file, skip its byte order mark, and turn reading errors in the block into ValueErrors.

    The file may be compressed with gzip or xz. Only line feeds end lines; with `newline=""` carriage returns also do.
    `errors` is the treatment of bytes in another encoding, as for `open`.

    Raises:
        ValueError: On entry, if the encoding is unknown; in the block, if the file is in another encoding or a damaged
            archive.
    """
    try:
        # This raises LookupError for codecs such as base64. Codecs that write a mark also skip it, such as utf-16.
        writes_mark = "".encode(encoding) != b""
        mark = b"" if writes_mark else "\ufeff".encode(encoding, "ignore")
    except LookupError:
        message = f"There is no encoding {encoding!r}; two common ones are utf-8 and latin-1."
        raise ArgumentError(message, "encoding") from None
    with (
        open_to_read(source)
        if isinstance(source, (str, Path))
        else io.BufferedReader(io.BytesIO(source.read())) as raw_file
    ):
        file = decompress(raw_file)
        try:
            # All readers that `decompress` returns have `peek`.
            if mark and file.peek(len(mark)).startswith(mark):  # type: ignore[attr-defined]
                file.read(len(mark))
            yield io.TextIOWrapper(file, encoding, errors, newline)
        except UnicodeDecodeError as error:
            raise _make_encoding_error(get_name(source), error, encoding) from None
        except ARCHIVE_ERRORS as error:
            raise ValueError(f"{get_name(source)} is a damaged archive: {error}") from None


def _make_encoding_error(location: str, error: UnicodeDecodeError, encoding: str) -> ArgumentError:
    """Return the error for a file that is not in `encoding`; `location` names the file and line."""
    return ArgumentError(
        f"{location}: the byte 0x{error.object[error.start]:02x} is not {encoding.removesuffix('-sig')}. If the file "
        "is in another encoding, such as latin-1, say so (`encoding`).",
        "encoding",
    )


def list_files(path: str | Path, suffixes: Collection[str] | None) -> list[str]:
    """List the files at a path, pattern or URL, sorted; in a directory, only files with one of the suffixes, if any.

    In a directory, files and subdirectories whose names begin with "." or "_" are skipped.

    Args:
        path: file, directory, pattern or URL.
        suffixes: suffixes of the files to list in a directory; None for any.

    Raises:
        FileNotFoundError: If there are no such files.
    """
    check_path(path)

    def accepts(name: str) -> bool:
        return suffixes is None or get_suffix(name) in suffixes

    files = find_files(path, accepts, SKIPPED_PREFIXES)
    if files:
        return files
    if suffixes is None:
        raise FileNotFoundError(
            f'{path} holds only files whose names begin with "." or "_", which are skipped. Name a file itself to read '
            "it."
        )
    raise FileNotFoundError(f"{path} holds no {', '.join(suffixes)} files, plain or with .gz or .xz.")


def is_listed(folder: str | Path, path: str | Path) -> bool:
    """Return whether `list_files(path)` also lists the files of `folder`, which is then `path` or in it.

    A pattern is not matched.
    """
    return is_in_folder(folder, path) and not is_skipped(folder, path, SKIPPED_PREFIXES)


def json_objects(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parse numbered JSON lines, and yield the objects with their line numbers; blank lines are skipped.

    Raises:
        ValueError: If a line is not a JSON object; the message names the line.
    """
    for line_number, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{name}, line {line_number} is not JSON: {error}.") from None
        if not isinstance(row, dict):
            raise ValueError(f'{name}, line {line_number} is not a JSON object ({{"text": ...}}): {line:.60}')
        yield line_number, row


def get_suffix(source: Source) -> str:
    """Return the lowercase suffix of a file name, ignoring ".gz" and ".xz": for example, ".csv" for "Train.csv.gz"."""
    path = Path(get_name(source).lower())
    return Path(path.stem).suffix if path.suffix in (".gz", ".xz") else path.suffix


def check_label(label: str, labels: Sequence[str] | None, where: str) -> None:
    """Check that a label in a file is not empty and, if `labels` is not None, one of `labels`.

    Raises:
        ValueError: If the label is missing or not allowed. The message starts with `where`, the label's location.
    """
    if not label:
        raise ValueError(f"{where}: the label is missing.")
    if labels is not None and label not in labels:
        raise ValueError(f"{where}: the label {label!r} is unknown.{near_names(label, labels)}")
