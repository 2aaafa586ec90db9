"""Unpacks untrusted archives: nothing is written outside of the folder, and sizes are limited."""

from __future__ import annotations

import functools
import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ARCHIVES = (".zip", ".tar.gz", ".tgz")

# Weights hardly compress, vocabularies to a third; the formats would allow a factor of a thousand.
_RATIO, _ALLOWANCE = 10, 64 << 20
_MOST_MEMBERS = 1000
_LONGEST_HEADER = 1 << 20
_BLOCK = 1 << 16

# Path, size in bytes, and what opens the content, which is None for a directory.
_Member = tuple[str, int, Callable[[], Any] | None]


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into an empty directory; after an error, some of its files may be there.

    Its name ends in .tar.gz or .tgz, or it is a zip file, such as a .keras file.

    Raises:
        ValueError: if the archive is damaged; if it holds anything but files and directories, a path outside of the
            directory, or a path twice; if it unpacks to more than 64 MiB plus 10 times its size, or 1,000 entries.
        OSError: if the files cannot be written.
    """
    room = _RATIO * archive.stat().st_size + _ALLOWANCE
    members = _tar_members(archive) if archive.suffix in (".gz", ".tgz") else _zip_members(archive)
    try:
        for count, (name, size, open_content) in enumerate(members):
            room -= size
            if size < 0 or room < 0 or count == _MOST_MEMBERS:
                raise ValueError(
                    f"{archive.name} is refused: it unpacks to more than {_RATIO} times its size or to more than "
                    f"{_MOST_MEMBERS} files."
                )
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or set(name) & set("\\:\0"):
                raise ValueError(f"{archive.name} contains {name!r}: only relative paths inside it are unpacked.")
            target = folder / path
            if open_content is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            if target.exists():
                raise ValueError(f"{archive.name} contains {name!r} twice.")
            target.parent.mkdir(parents=True, exist_ok=True)
            with open_content() as content, target.open("wb") as file:
                shutil.copyfileobj(content, file, _BLOCK)
    except (EOFError, RuntimeError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{archive.name} is damaged or not an archive ({error}).") from error


def _zip_members(path: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"{path.name} contains {info.filename!r}, a link or device: only files are allowed.")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{path.name} compresses {info.filename!r} with a method that is not supported.")
            yield info.filename, info.file_size, None if info.is_dir() else functools.partial(archive.open, info)


def _tar_members(path: Path) -> Iterator[_Member]:
    with _Metered(path) as file:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                if not (member.isreg() or member.isdir()):
                    raise ValueError(f"{path.name} contains {member.name!r}, a link or device: only files are allowed.")
                file.room = member.size + _LONGEST_HEADER
                yield (
                    member.name,
                    member.size,
                    None if member.isdir() else functools.partial(archive.extractfile, member),
                )
                file.room = _LONGEST_HEADER
        while file.read(_BLOCK):  # up to the end, where the checksum is
            pass


class _Metered(gzip.GzipFile):
    """A gzip file that gives at most `room` more bytes, since tarfile reads headers of any length into memory."""

    room = _LONGEST_HEADER

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.room -= len(data)
        if self.room < 0:
            raise tarfile.ReadError("a header is too long")
        return data
