"""Reader of binary files with untrusted headers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

_BLOCK_BYTES = 1 << 20
_MAX_WORD_BYTES = 1 << 16


class ByteReader:
    """A buffered reader that allocates no more memory than the file has bytes, whatever sizes a header states.

    Args:
        path: path of the file, for messages.
        file: the file, open in binary mode.

    Attributes:
        position: int, number of bytes that have been read.
    """

    def __init__(self, path: str | Path, file: BinaryIO) -> None:
        self.position = 0
        self._path = path
        self._file = file
        self._buffer = b""
        self._start = 0

    def read(self, size: int, content: str) -> bytearray:
        """Return the next `size` bytes.

        Args:
            size: number of bytes.
            content: description of the bytes, for messages.

        Raises:
            ValueError: If fewer bytes are left in the file.
        """
        data = bytearray(self._buffer[self._start : self._start + size])
        self._start += len(data)
        while len(data) < size:
            block = self._file.read(min(size - len(data), _BLOCK_BYTES))
            if not block:
                raise self.error(f"it ends in {content}, after {self.position + len(data):,} bytes")
            data += block
        self.position += size
        return data

    def unpack(self, format: str, content: str) -> tuple[Any, ...]:
        """Return the next values in a `struct` format; see `read`."""
        return struct.unpack(format, self.read(struct.calcsize(format), content))

    def read_word(self, end: bytes, content: str) -> bytes:
        """Return the bytes before the next `end` byte, and skip `end`.

        Raises:
            ValueError: If the file ends before `end`, or the word is implausibly long.
        """
        while (end_position := self._buffer.find(end, self._start)) < 0:
            self._buffer = self._buffer[self._start :]
            self._start = 0
            if len(self._buffer) > _MAX_WORD_BYTES:
                raise self.error(f"a word in {content} is longer than {_MAX_WORD_BYTES:,} bytes")
            block = self._file.read(_MAX_WORD_BYTES)
            if not block:
                raise self.error(f"it ends in {content}, after {self.position + len(self._buffer):,} bytes")
            self._buffer += block
        word = self._buffer[self._start : end_position]
        self.position += len(word) + 1
        self._start = end_position + 1
        return word

    def is_at_end(self) -> bool:
        """Return whether all bytes, except for line ends, have been read."""
        while not self._buffer[self._start :].strip(b"\r\n"):
            self._start = 0
            self._buffer = self._file.read(_BLOCK_BYTES)
            if not self._buffer:
                return True
        return False

    def error(self, problem: str) -> ValueError:
        """Return the error for a truncated or damaged file; `problem` says what is wrong with it."""
        return ValueError(f"{self._path} is truncated or damaged: {problem}. Download or write it again.")
