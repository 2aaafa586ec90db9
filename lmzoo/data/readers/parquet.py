"""Parquet files, which pyarrow reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lmzoo.common.arguments import near_names
from lmzoo.data.readers.text_files import Source, name_of
from lmzoo.files.urls import open_to_read

_READ = 1024  # rows that are converted at once


def import_pyarrow() -> tuple[Any, Any]:
    """Return the modules `pyarrow` and `pyarrow.parquet`.

    Raises:
        ImportError: saying how to install them.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ImportError("Parquet files need pyarrow: pip install 'lmzoo[parquet]'.") from None
    return pyarrow, parquet


def numbered_parquet_rows(
    source: Source, skip: int = 0, columns: Sequence[Any] | None = None
) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Read rows as they are needed, with their numbers, which begin with 1.

    Args:
        source: a file, a URL, or a file object in binary mode.
        skip: how many rows to leave out; groups of rows that are left out as a whole are not read.
        columns: those to read; all by default.

    Raises:
        ImportError: without pyarrow.
        ValueError: naming a file that is damaged or in another format.
    """
    with _opened(source) as file:
        names = file.schema_arrow.names
        for name in columns or ():
            if name not in names:
                raise ValueError(f"{name_of(source)} has no column {name!r}.{near_names(str(name), names)}")
        number = 1
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if skip >= count:
                skip, number = skip - count, number + count
                continue
            for part in file.iter_batches(_READ, row_groups=[group], columns=columns):
                dropped = min(skip, len(part))
                yield from enumerate(part.slice(dropped).to_pylist(), number + dropped)
                skip, number = skip - dropped, number + len(part)


def count_parquet_rows(source: Source) -> int:
    """Return number of rows, which the file's metadata says."""
    with _opened(source) as file:
        return file.metadata.num_rows


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[Any]:
    pyarrow, parquet = import_pyarrow()
    with open_to_read(source) if isinstance(source, (str, Path)) else contextlib.nullcontext(source) as file:
        try:
            yield parquet.ParquetFile(file, page_checksum_verification=True)
        except (pyarrow.ArrowException, OSError) as error:  # pyarrow raises the latter for damaged files, too
            raise ValueError(f"{name_of(source)} cannot be read as Parquet: {error}") from None
