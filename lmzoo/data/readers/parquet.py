"""Reading of Parquet files with pyarrow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lmzoo.common.arguments import near_names
from lmzoo.data.readers.text_files import Source, get_name
from lmzoo.files.urls import open_to_read

_BATCH_ROWS = 1024  # number of rows converted at once


def import_pyarrow() -> tuple[Any, Any]:
    """Import `pyarrow` and `pyarrow.parquet`, and return both modules.

    Raises:
        ImportError: If pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ImportError("Parquet files need pyarrow: pip install 'lmzoo[parquet]'.") from None
    return pyarrow, parquet


def read_numbered_parquet_rows(
    source: Source, skip: int = 0, columns: Sequence[Any] | None = None
) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Yield the rows of a Parquet file with their numbers from 1, reading the file in batches.

    Args:
        source: path, URL, or file object in binary mode.
        skip: int, number of rows to skip; row groups that are skipped as a whole are not read.
        columns: names of the columns to read; all by default.

    Raises:
        ImportError: If pyarrow is not installed.
        ValueError: If a column does not exist or shares its name with another column, or the file is damaged or not
            Parquet; the message names the file.
    """
    with _open_parquet(source) as file:
        names = file.schema_arrow.names
        for name in columns or ():
            if name not in names:
                raise ValueError(f"{get_name(source)} has no column {name!r}.{near_names(str(name), names)}")
            if names.count(name) > 1:
                raise ValueError(f"{get_name(source)} has several columns {name!r}. Rename all but one of them.")
        row_number = 1
        for group_index in range(file.num_row_groups):
            num_rows = file.metadata.row_group(group_index).num_rows
            if skip >= num_rows:
                skip -= num_rows
                row_number += num_rows
                continue
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group_index], columns=columns):
                num_skipped = min(skip, len(batch))
                yield from enumerate(batch.slice(num_skipped).to_pylist(), row_number + num_skipped)
                skip -= num_skipped
                row_number += len(batch)


def count_parquet_rows(source: Source) -> int:
    """Return the number of rows of a Parquet file, from its metadata."""
    with _open_parquet(source) as file:
        return file.metadata.num_rows


@contextlib.contextmanager
def _open_parquet(source: Source) -> Iterator[Any]:
    """Open a Parquet file, and turn reading errors in the block into ValueErrors that name the file.

    Raises:
        ImportError: If pyarrow is not installed.
        ValueError: If the file is damaged or not in the Parquet format.
    """
    pyarrow, parquet = import_pyarrow()
    with open_to_read(source) if isinstance(source, (str, Path)) else contextlib.nullcontext(source) as file:
        try:
            yield parquet.ParquetFile(file, page_checksum_verification=True)
        except (pyarrow.ArrowException, OSError) as error:  # pyarrow also raises OSError for damaged files
            raise ValueError(f"{get_name(source)} cannot be read as Parquet: {error}") from None
