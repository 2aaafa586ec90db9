"""Manifests: the size and SHA-256 digest of every file of a preset, verified before the preset is read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from lmzoo.common.arguments import is_integer, require
from lmzoo.errors import PresetError
from lmzoo.files.atomic import atomic_file
from lmzoo.files.preset_files import MANIFEST_FILE, PRESET_ENTRIES, read_json, write_json

# Checks are not cached for files changed more recently, which may change again within one tick of the file system's
# clock.
_SETTLED_NS = 2_000_000_000

_verified: dict[Path, list[tuple[str, int, int, int, int]]] = {}


class ManifestEntry(TypedDict):
    """The entry of a file in a manifest: its size in bytes and its SHA-256 digest in hexadecimal digits."""

    size: int
    sha256: str


def write_manifest(directory: str | os.PathLike[str], version: int | None = None) -> None:
    """Write manifest.json, which lists all files in `directory` except itself and hidden files.

    Args:
        directory: path of the preset.
        version: int, version of the preset, at least 1; by default the version in an existing manifest, or 1.

    Raises:
        ValueError: If `version` is not an integer of at least 1.

    Example:

    ```python
    from pathlib import Path

    from lmzoo.presets import verify_manifest, write_manifest

    Path("my_preset").mkdir()
    Path("my_preset", "config.json").write_text("{}")
    write_manifest("my_preset")  # again after an intended change
    verify_manifest("my_preset")  # True
    ```
    """
    directory = Path(directory).expanduser()
    if version is None:
        version = 1
        with contextlib.suppress(PresetError):  # a damaged manifest is replaced
            version = read_version(directory)
    require(is_integer(version, 1), "version", "an integer of at least 1", version)
    version_entry = {"version": version} if version > 1 else {}
    paths = {name: directory / name for name in _list_files(directory) if name != MANIFEST_FILE}
    files = {name: {"sha256": _compute_sha256(path), "size": path.stat().st_size} for name, path in paths.items()}
    with atomic_file(directory / MANIFEST_FILE) as temporary_path:
        write_json(temporary_path.parent, temporary_path.name, {"format": 1, **version_entry, "files": files})


def read_version(directory: Path) -> int:
    """Return the version in the manifest of a preset, by default 1.

    Raises:
        PresetError: If the manifest cannot be read, or its version is not an integer of at least 1.
    """
    if not (directory / MANIFEST_FILE).is_file():
        return 1
    version = read_json(directory, MANIFEST_FILE).get("version", 1)
    if not is_integer(version, 1):
        raise PresetError(
            f"{directory / MANIFEST_FILE}: the version must be an integer of at least 1, got {version!r}."
        )
    return version


def read_manifest(directory: Path) -> dict[str, ManifestEntry]:
    """Read the manifest of a preset.

    Returns:
        The entries, by path relative to the directory, with forward slashes.

    Raises:
        PresetError: If the manifest is missing or malformed, or a path in it leads out of the directory.
    """
    manifest = read_json(directory, MANIFEST_FILE)
    path = directory / MANIFEST_FILE
    files = manifest.get("files")
    if manifest.get("format") != 1 or not isinstance(files, dict):
        raise PresetError(f'{path} must hold "format": 1 and an object "files"; it may need a newer lmzoo.')
    for name, entry in files.items():
        if {"", ".", ".."} & set(name.split("/")) or any(character in name for character in "\\:\0"):
            raise PresetError(f"{path} lists {name!r}: only relative paths inside the preset are allowed.")
        if not isinstance(entry, dict) or {"sha256": str, "size": int} != {k: type(v) for k, v in entry.items()}:
            raise PresetError(f'{path}: the entry of {name!r} must be {{"sha256": "...", "size": bytes}}, got {entry}.')
    return files


def verify_manifest(directory: str | os.PathLike[str]) -> bool:
    """Check every file of a preset against its manifest.

    An unlisted file is an error if its name belongs to a preset (config.json, assets/...), and is otherwise ignored.

    Returns:
        Whether the directory has a manifest; presets written by KerasHub have none.

    Raises:
        PresetError: If the manifest is malformed, or a file is missing, truncated, altered or not listed; the message
            names the file.

    Example: see `write_manifest`.
    """
    directory = Path(directory).expanduser()
    if not (directory / MANIFEST_FILE).is_file():
        return False
    entries = read_manifest(directory)
    advice = (
        "Fetch or save the preset again; after an intended change, run "
        f"`lmzoo.presets.write_manifest({str(directory)!r})`."
    )
    for name, entry in entries.items():
        path = directory / name
        if not path.is_file():
            raise PresetError(f"{path} is missing, although {MANIFEST_FILE} lists it. {advice}")
        if problem := find_mismatch(path, **entry):
            raise PresetError(f"{path} was altered: {problem}. {advice}")
    for name in _list_files(directory):
        if name.split("/")[0] in PRESET_ENTRIES and name not in entries and name != MANIFEST_FILE:
            raise PresetError(f"{directory / name} is not listed in {MANIFEST_FILE}. Remove it if unknown. {advice}")
    return True


def describe_files(directory: Path) -> dict[str, str]:
    """Describe each file of a preset by its size and, if the preset has a manifest, its SHA-256 digest.

    Returns:
        Descriptions by file name, such as "7 bytes, sha256 2c26b46b...".
    """
    if (directory / MANIFEST_FILE).is_file():
        return {
            name: f"{entry['size']} bytes, sha256 {entry['sha256']}" for name, entry in read_manifest(directory).items()
        }
    return {name: f"{(directory / name).stat().st_size} bytes" for name in _list_files(directory)}


def find_mismatch(path: Path, size: int | None = None, sha256: str | None = None) -> str:
    """Compare a file with an expected size and SHA-256 digest.

    Returns:
        The difference, such as "it has 6 bytes, not 7", or "" if the file matches.
    """
    if size is not None and (actual_size := path.stat().st_size) != size:
        return f"it has {actual_size} bytes, not {size}"
    if sha256 is not None and (digest := _compute_sha256(path)) != sha256:
        return f"its sha256 is {digest}, not {sha256}"
    return ""


def verify_once(directory: Path) -> bool:
    """Check the files of a preset against its manifest, once per process and again after a file has changed.

    Returns:
        Whether the directory has a manifest.

    Raises:
        PresetError: If the manifest is malformed, or a file is missing, truncated, altered or not listed.
    """
    if not (directory / MANIFEST_FILE).is_file():
        return False
    file_stats = [(name, (directory / name).stat()) for name in _list_files(directory)]
    state = [
        (name, file_stat.st_ino, file_stat.st_size, file_stat.st_mtime_ns, file_stat.st_ctime_ns)
        for name, file_stat in file_stats
    ]
    if _verified.get(directory) != state:
        verify_manifest(directory)
        if time.time_ns() - max(file_stat.st_ctime_ns for _, file_stat in file_stats) > _SETTLED_NS:
            _verified[directory] = state
    return True


def _list_files(directory: Path) -> Iterator[str]:
    """Yield the relative paths of the files below `directory`, sorted, without hidden entries (.git, .DS_Store)."""
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield from (
            Path(folder, name).relative_to(directory).as_posix() for name in sorted(names) if not name.startswith(".")
        )


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
