"""The list of presets, and the directory behind each name or handle."""

from __future__ import annotations

import difflib
import functools
import logging
import os
import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from lmzoo.errors import PresetError
from lmzoo.files.manifest import read_manifest, read_version, verify_once
from lmzoo.files.preset_files import MANIFEST_FILE, METADATA_FILE, read_json, read_metadata
from lmzoo.presets.hubs import PublishedPreset, fetch

_PACKAGE = Path(__file__).parent
_VERSION = re.compile(r".+@[1-9]\d*")  # of the name of a preset


@dataclass(frozen=True)
class PresetInfo:
    """What is known about a preset before it is loaded.

    Attributes:
        name: what to pass to `from_preset`.
        family: name of the family, such as "bert".
        parameters: number of parameters of the backbone.
        languages: language codes.
        size_bytes: size of its files.
        license: license of the weights.
        shipped: whether it came with the library.
        description: one sentence.
        handle: the source of its files: `hf://...`, `kaggle://...` or `https://...`, or the preset's name if they are
            on this machine.
        version: its version, which rises when a preset is replaced by a better one of the same name.

    Example: see `list_presets`.
    """

    name: str
    family: str
    parameters: int
    languages: tuple[str, ...]
    size_bytes: int
    license: str
    shipped: bool
    description: str
    handle: str
    version: int = 1


def list_presets() -> dict[str, PresetInfo]:
    """List the presets that `from_preset` knows by name: shipped ones, those in LMZOO_PRESETS, and published ones.

    The environment variable LMZOO_PRESETS names directories with the layout `<family>/<name>/`, separated as in PATH. A
    shipped preset takes precedence over one of the same name there. An unreadable preset is left out with a warning.

    Of a preset that has been replaced by a better one, only the newest version is listed. `from_preset` also loads
    older ones that are still there, as `name@version`: those in `<family>/<name>@<version>/`.

    Example:

    ```python
    import lmzoo

    for name, info in lmzoo.list_presets().items():
        print(name, info.family, info.parameters, info.license)
    ```
    """
    presets = {}
    directories = _directories()
    for name in _newest(directories):
        directory = directories[name]
        shipped = directory.is_relative_to(_shipped_root())
        try:
            size = sum(entry["size"] for entry in read_manifest(directory).values())
            metadata = {**read_metadata(directory), "size_bytes": size, "handle": name}
            presets[name] = _info(name, cast(PublishedPreset, metadata), shipped, read_version(directory))
        except PresetError as error:
            warnings.warn(f"Preset {name!r} is left out of the list. {error}", stacklevel=2)
    for name, entry in _published().items():
        presets.setdefault(name, _info(name, entry, shipped=False))
    return presets


def resolve(preset: str | os.PathLike[str]) -> Path:
    """Find the directory of a preset as `open_preset` does, downloaded if necessary, but does not check it.

    Raises:
        PresetError: for an unknown name (similar ones are suggested), a missing directory, or a failed download.
        TypeError: for anything but a string or a path.

    Example:

    ```python
    from lmzoo.presets import resolve

    (resolve("bert_nano_en_uncased") / "config.json").is_file()  # True
    ```
    """
    found = _find(preset)
    return found if isinstance(found, Path) else fetch(*found)


def local_directory(preset: str | os.PathLike[str]) -> Path | None:
    """Find the directory of a preset on this machine; None if it would first have to be downloaded.

    Args:
        preset: as for `open_preset`.

    Raises:
        PresetError: for an unknown name (similar ones are suggested) or a missing directory.
        TypeError: for anything but a string or a path.
    """
    found = _find(preset)
    return found if isinstance(found, Path) else None


def _find(preset: str | os.PathLike[str]) -> Path | tuple[str, PublishedPreset | None]:
    """Return the directory of a preset, or what to `fetch`."""
    if not isinstance(preset, (str, os.PathLike)):
        raise TypeError(f"A preset is a name, a handle or a path, got {preset!r:.60} ({type(preset).__name__}).")
    if isinstance(preset, str):
        if "://" in preset:
            return preset, None
        if directory := _versions(preset).get(preset):
            return directory
        if entry := _published().get(preset):
            return entry["handle"], entry
    path = Path(preset).expanduser()
    if str(preset) and os.path.isdir(path):
        return path.resolve()
    raise PresetError(_unknown(os.fspath(preset), path))


def open_preset(preset: str | os.PathLike[str]) -> Path:
    """Return the directory of a preset, downloaded if necessary and checked against its manifest.

    The check is made once per process, and again if a file has changed. Without a manifest, the logger of this module
    says so once, at the level INFO: that is usual for checkpoints, and no fault. The command line shows it.

    Args:
        preset: a name in `list_presets()`, or `name@version` for a version of it; `hf://org/name[@revision]`;
            `kaggle://owner/model/framework/variation[/version]`; `https://host/path/name.zip` (.tar.gz, .tgz); or the
            path of a directory. A known name takes precedence over a directory: write `./name` for the directory.

    Raises:
        PresetError: for an unknown name (similar ones are suggested), a failed download, or a file that is missing,
            truncated or altered.
        TypeError: for anything but a string or a path.

    Example:

    ```python
    from lmzoo.presets import open_preset

    open_preset("bert_nano_en_uncased").name  # "bert_nano_en_uncased"
    ```
    """
    directory = resolve(preset)
    if not verify_once(directory) and preset not in _published():  # whose downloads are checked
        _say_unchecked(directory)
    return directory


@functools.cache
def _say_unchecked(directory: Path) -> None:
    logging.getLogger(__name__).info(
        "%s has no %s, so damage to its files may go unnoticed. `lmzoo verify --write-manifest` writes one, with which "
        "they are compared from then on.",
        directory,
        MANIFEST_FILE,
    )


def _shipped_root() -> Path:
    """Return the directory of shipped presets: inside the package in a wheel, at the repository's top in a clone."""
    inside, repository = _PACKAGE / "shipped", _PACKAGE.parents[1]
    # Without the second condition an installed package would look at site-packages/presets, which is not ours.
    return repository / "presets" if not inside.is_dir() and (repository / "pyproject.toml").is_file() else inside


def _directories() -> dict[str, Path]:
    """Return the directories of the presets on this machine, by name; hidden ones are unfinished."""
    more = [Path(root).expanduser().resolve() for root in os.environ.get("LMZOO_PRESETS", "").split(os.pathsep) if root]
    found: dict[str, Path] = {}
    for root in [_shipped_root(), *more]:
        for metadata in sorted(root.glob(f"*/*/{METADATA_FILE}")):
            if not any(part.startswith(".") for part in metadata.relative_to(root).parts):
                found.setdefault(metadata.parent.name, metadata.parent)
    return found


def _newest(names: Collection[str]) -> list[str]:
    """Return the names without those of older versions."""
    known = set(names)
    return [name for name in names if not (_VERSION.fullmatch(name) and name.rpartition("@")[0] in known)]


def _versions(preset: str) -> dict[str, Path]:
    """Return the directories on this machine of a preset and its versions, by name: `name`, and `name@1` and so on.

    `preset` is a name with or without a version.
    """
    known = _directories()
    name = preset.rpartition("@")[0] if _VERSION.fullmatch(preset) and preset not in known else preset
    found = {other: path for other, path in known.items() if other == name or other.rpartition("@")[0] == name}
    if name in found and name != preset:
        found.setdefault(f"{name}@{read_version(found[name])}", found[name])
    return found


def _published() -> dict[str, PublishedPreset]:
    """Return the presets that can be downloaded by name, from published.json."""
    return cast(dict[str, PublishedPreset], read_json(_PACKAGE, "published.json"))


def _info(name: str, metadata: PublishedPreset, shipped: bool, version: int = 1) -> PresetInfo:
    return PresetInfo(
        name=name,
        family=metadata.get("family", "unknown"),
        parameters=metadata.get("parameter_count", 0),
        languages=tuple(metadata.get("languages", ())),
        size_bytes=metadata["size_bytes"],
        license=metadata.get("license", "unknown"),
        shipped=shipped,
        description=metadata.get("description", ""),
        handle=metadata["handle"],
        version=version,
    )


def _unknown(preset: str, path: Path) -> str:
    here = _newest(_directories())
    names = [*here, *_published()]
    if versions := sorted(name for name in _versions(preset) if "@" in name):
        return f"There is no {preset}. Its versions on this machine are {', '.join(versions)}."
    start = preset.lower()
    near = [name for name in names if start and name.startswith(start)][:3] or difflib.get_close_matches(start, names)
    message = f"Unknown preset {preset!r:.200}."
    if os.path.isfile(path):
        message += " It is a file, and a preset is a directory (`keras.saving.load_model` reads .keras files)."
    elif os.sep in preset or preset.startswith(("~", ".")):
        message += f" There is no directory {path.absolute()}."
        if preset.count("/") == 1 and preset[0] not in "~./":
            message += f" Write 'hf://{preset}' for the Hugging Face repository."
    if near:
        message += f" Did you mean {' or '.join(map(repr, near))}?"
    return (
        f"{message} Expected one of {', '.join(here) or '(none)'}, one of the {len(_published())} published ones that "
        "`lmzoo presets` lists, the path of a directory, hf://org/name, kaggle://... or https://..."
    )
