"""Files of vocabularies: their lines, and errors that name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google.protobuf.message import DecodeError

from lmzoo.errors import PresetError
from lmzoo.text.tokenizers.token_lists import read_utf8


def read_lines(file: Path) -> list[str]:
    """Return the lines of a UTF-8 file."""
    # Split at "\n" only: tokens may hold other characters at which splitlines() would split.
    return [line.rstrip("\r") for line in read_utf8(file).removesuffix("\n").split("\n")]


@contextmanager
def add_file_to_errors(file: Path) -> Iterator[None]:
    """Turn errors of the block into errors that name the file.

    Raises:
        PresetError: In place of other errors.
    """
    try:
        yield
    except PresetError:
        raise
    except (OSError, ValueError) as error:
        named = isinstance(error, ValueError) and str(file) in str(error)
        raise PresetError(str(error) if named else f"{file}: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:  # an object where there should be a list, and the like
        raise PresetError(f"{file} is malformed ({type(error).__name__}: {error}).") from error
    except DecodeError as error:
        raise PresetError(f"{file} is not a whole SentencePiece model ({error}).") from error
