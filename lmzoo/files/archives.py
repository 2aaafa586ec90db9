"""Safe unpacking of untrusted archives, with limits on paths and sizes."""

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

# Limit on the unpacked size, as a multiple of the archive's. Weights hardly compress and vocabularies shrink to a
# third, but archive bombs expand a thousandfold.
_MAX_RATIO = 10
_EXTRA_BYTES = 64 << 20  # allowed in addition
_MAX_MEMBERS = 1000
_MAX_HEADER_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 16

# Path, size in bytes, and a function that opens the content, or None for a directory.
_Member = tuple[str, int, Callable[[], Any] | None]


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an untrusted archive into an empty directory.

    After an error, some of the archive's files may remain in the directory.

    Args:
        archive: path of a .tar.gz or .tgz file, or of a zip file under any other name, such as a .keras file.
        folder: path of an empty directory.

    Raises:
        ValueError: If the archive is damaged or compressed with an unsupported method; if it contains links, devices,
            a path outside of the directory or the same path twice; if it unpacks to more than 64 MiB plus 10 times its
            size, or to more than 1,000 entries.
        OSError: If the files cannot be written.
    """
    remaining_bytes = _MAX_RATIO * archive.stat().st_size + _EXTRA_BYTES
    members = _iterate_tar_members(archive) if archive.suffix in (".gz", ".tgz") else _iterate_zip_members(archive)
    try:
        for member_index, (name, size, open_content) in enumerate(members):
            remaining_bytes -= size
            if size < 0 or remaining_bytes < 0 or member_index == _MAX_MEMBERS:
                raise ValueError(
                    f"{archive.name} is refused: it unpacks to more than {_MAX_RATIO} times its size or to more than "
                    f"{_MAX_MEMBERS} files."
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
                shutil.copyfileobj(content, file, _BLOCK_BYTES)
    except (EOFError, RuntimeError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{archive.name} is damaged or not an archive ({error}).") from error


def _iterate_zip_members(path: Path) -> Iterator[_Member]:
    """Yield the members of a zip file, refusing links, devices and unsupported compression methods."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            file_type = stat.S_IFMT(info.external_attr >> 16)
            if file_type not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"{path.name} contains {info.filename!r}, a link or device: only files are allowed.")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{path.name} compresses {info.filename!r} with a method that is not supported.")
            yield info.filename, info.file_size, None if info.is_dir() else functools.partial(archive.open, info)


def _iterate_tar_members(path: Path) -> Iterator[_Member]:
    """Yield the members of a gzip-compressed tar file, refusing links, devices and overlong headers."""
    with _LimitedGzipFile(path) as file:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                if not (member.isreg() or member.isdir()):
                    raise ValueError(f"{path.name} contains {member.name!r}, a link or device: only files are allowed.")
                file.room = member.size + _MAX_HEADER_BYTES
                yield (
                    member.name,
                    member.size,
                    None if member.isdir() else functools.partial(archive.extractfile, member),
                )
                file.room = _MAX_HEADER_BYTES
        while file.read(_BLOCK_BYTES):  # read to the end, so that the checksum is verified
            pass


class _LimitedGzipFile(gzip.GzipFile):
    """A gzip file that limits reading to `room` more bytes, since tarfile reads headers of any length into memory."""

    room = _MAX_HEADER_BYTES

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.room -= len(data)
        if self.room < 0:
            raise tarfile.ReadError("a header is too long")
        return data
