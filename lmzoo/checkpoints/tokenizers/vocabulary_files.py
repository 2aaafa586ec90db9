"""Reading of vocabulary files, and conversion of errors so that they name the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google.protobuf.message import DecodeError

from lmzoo.errors import PresetError
from lmzoo.text.tokenizers.token_lists import read_utf8


def read_lines(file: Path) -> list[str]:
    """Return the lines of a UTF-8 file."""
    # Not `splitlines`, which also splits at characters that tokens may contain.
    return [line.rstrip("\r") for line in read_utf8(file).removesuffix("\n").split("\n")]


@contextmanager
def add_file_to_errors(file: Path) -> Iterator[None]:
    """Convert errors raised in the block into `PresetError` with the path of a file.

    Raises:
        PresetError: If the block raises an error that a missing or malformed file may cause.
    """
    try:
        yield
    except PresetError:
        raise
    except (OSError, ValueError) as error:
        names_file = isinstance(error, ValueError) and str(file) in str(error)
        raise PresetError(str(error) if names_file else f"{file}: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:  # an object where there should be a list, and the like
        raise PresetError(f"{file} is malformed ({type(error).__name__}: {error}).") from error
    except DecodeError as error:
        raise PresetError(f"{file} is not a whole SentencePiece model ({error}).") from error
