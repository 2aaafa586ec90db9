"""List of presets, and lookup of their directories."""

from __future__ import annotations

import difflib
import functools
import logging
import os
import re
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from lmzoo.errors import PresetError
from lmzoo.files.manifest import read_manifest, read_version, verify_once
from lmzoo.files.preset_files import MANIFEST_FILE, METADATA_FILE, read_json, read_metadata
from lmzoo.presets.hubs import PublishedPreset, fetch

_PACKAGE = Path(__file__).parent
_VERSION = re.compile(r".+@[1-9]\d*")  # a preset name with a version
_MAX_SUGGESTIONS = 3  # similar names in an error message
_MIN_SIMILARITY = 0.6  # between an unknown name and a suggestion; difflib's own default


@dataclass(frozen=True)
class PresetInfo:
    """Metadata of a preset, as listed by `list_presets`.

    Attributes:
        name: Name to pass to `from_preset`.
        family: Name of the family, such as "bert".
        parameters: Number of parameters of the backbone.
        languages: Language codes, such as "en".
        size_bytes: Total size of the files, in bytes.
        license: License of the weights.
        shipped: Whether the preset is shipped with the library.
        description: Description in one sentence.
        handle: Location of the files: `hf://...`, `kaggle://...` or `https://...`, or the preset's name if the files
            are on this machine.
        version: Version number, which increases when a better preset replaces one with the same name.

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
    """Return the presets that `from_preset` loads by name: shipped, local and published ones.

    Local presets are found in the directories listed in the environment variable LMZOO_PRESETS (separated as in PATH),
    each with the layout `<family>/<name>/`. Shipped presets take precedence over local ones with the same name.
    Unreadable presets are omitted with a warning.

    Only the newest version of a preset is listed. `from_preset` also loads older versions as `name@version` from
    directories `<family>/<name>@<version>/`.

    Example:

    ```python
    import lmzoo

    for name, info in lmzoo.list_presets().items():
        print(name, info.family, info.parameters, info.license)
    ```
    """
    presets = {}
    directories = _find_directories()
    for name in _drop_older_versions(directories):
        directory = directories[name]
        is_shipped = directory.is_relative_to(_find_shipped_root())
        try:
            size_bytes = sum(entry["size"] for entry in read_manifest(directory).values())
            metadata = {**read_metadata(directory), "size_bytes": size_bytes, "handle": name}
            presets[name] = _make_info(name, cast(PublishedPreset, metadata), is_shipped, read_version(directory))
        except PresetError as error:
            warnings.warn(f"Preset {name!r} is left out of the list. {error}", stacklevel=2)
    for name, entry in _read_published().items():
        presets.setdefault(name, _make_info(name, entry, shipped=False))
    return presets


class PresetsOfClass:
    """Descriptor of the class attribute `presets`, a dict of the presets that the class can load, as in KerasHub."""

    def __get__(self, instance: object, cls: type) -> dict[str, PresetInfo]:
        """Return the result of the class's own `list_presets`, or else of the function `list_presets`."""
        return getattr(cls, "list_presets", list_presets)()


def resolve(preset: str | os.PathLike[str]) -> Path:
    """Return the directory of a preset, after downloading it if necessary, without comparing files with the manifest.

    Args:
        preset: Name, handle or path, as for `open_preset`.

    Raises:
        PresetError: If the name is unknown (similar names are suggested), the directory is missing or a download fails.
        TypeError: If `preset` is neither a string nor a path.

    Example:

    ```python
    from lmzoo.presets import resolve

    (resolve("bert_nano_en_uncased") / "config.json").is_file()  # True
    ```
    """
    location = _locate(preset)
    return location if isinstance(location, Path) else fetch(*location)


def find_local_directory(preset: str | os.PathLike[str]) -> Path | None:
    """Return the directory of a shipped or local preset, or None for a preset to download, even if it is cached.

    Args:
        preset: Name, handle or path, as for `open_preset`.

    Raises:
        PresetError: If the name is unknown (similar names are suggested) or the directory is missing.
        TypeError: If `preset` is neither a string nor a path.
    """
    location = _locate(preset)
    return location if isinstance(location, Path) else None


def _locate(preset: str | os.PathLike[str]) -> Path | tuple[str, PublishedPreset | None]:
    """Return the directory of a preset, or the arguments of `fetch` to download it."""
    if not isinstance(preset, (str, os.PathLike)):
        raise TypeError(f"A preset is a name, a handle or a path, got {preset!r:.60} ({type(preset).__name__}).")
    if isinstance(preset, str):
        if "://" in preset:
            return preset, None
        if directory := _find_versions(preset).get(preset):
            return directory
        if entry := _read_published().get(preset):
            return entry["handle"], entry
    path = Path(preset).expanduser()
    if str(preset) and os.path.isdir(path):
        return path.resolve()
    raise PresetError(_describe_unknown(os.fspath(preset), path))


def open_preset(preset: str | os.PathLike[str]) -> Path:
    """Return the directory of a preset, after downloading it if necessary and checking its files.

    The files are compared with the manifest once per process, and again after a file has changed. If there is no
    manifest, as in most checkpoints, this module's logger reports it once at level INFO.

    Args:
        preset: A name in `list_presets()`, or `name@version` for one of its versions; `hf://org/name[@revision]`;
            `kaggle://owner/model/framework/variation[/version]`; `https://host/path/name.zip` (.tar.gz, .tgz); or the
            path of a directory. Names take precedence over directories: write `./name` for a directory.

    Raises:
        PresetError: If the name is unknown (similar names are suggested), a download fails, or a file is missing,
            truncated or altered.
        TypeError: If `preset` is neither a string nor a path.

    Example:

    ```python
    from lmzoo.presets import open_preset

    open_preset("bert_nano_en_uncased").name  # "bert_nano_en_uncased"
    ```
    """
    directory = resolve(preset)
    if not verify_once(directory) and preset not in _read_published():  # downloads of published presets are checked
        _log_unchecked(directory)
    return directory


@functools.cache
def _log_unchecked(directory: Path) -> None:
    logging.getLogger(__name__).info(
        "%s has no %s, so damage to its files may go unnoticed. `lmzoo verify --write-manifest` writes one, with which "
        "they are compared from then on.",
        directory,
        MANIFEST_FILE,
    )


def _find_shipped_root() -> Path:
    """Return the directory of shipped presets: inside an installed package, or at the top level of a clone."""
    packaged_root = _PACKAGE / "shipped"
    repository = _PACKAGE.parents[1]
    # Without the second condition an installed package would use site-packages/presets, which other packages may own.
    return (
        repository / "presets"
        if not packaged_root.is_dir() and (repository / "pyproject.toml").is_file()
        else packaged_root
    )


def _find_directories() -> dict[str, Path]:
    """Return the directories of the shipped and local presets by name, skipping hidden (incomplete) directories."""
    extra_roots = [
        Path(root).expanduser().resolve() for root in os.environ.get("LMZOO_PRESETS", "").split(os.pathsep) if root
    ]
    directories: dict[str, Path] = {}
    for root in [_find_shipped_root(), *extra_roots]:
        for metadata_file in sorted(root.glob(f"*/*/{METADATA_FILE}")):
            if not any(part.startswith(".") for part in metadata_file.relative_to(root).parts):
                directories.setdefault(metadata_file.parent.name, metadata_file.parent)
    return directories


def _drop_older_versions(names: Collection[str]) -> list[str]:
    """Return the names, except each `name@version` for which `name` is also listed."""
    all_names = set(names)
    return [name for name in names if not (_VERSION.fullmatch(name) and name.rpartition("@")[0] in all_names)]


def _find_versions(preset: str) -> dict[str, Path]:
    """Return the local directories of a preset's versions, by name: `name`, `name@1` and so on.

    Args:
        preset: Name of the preset, with or without a version.
    """
    directories = _find_directories()
    name = preset.rpartition("@")[0] if _VERSION.fullmatch(preset) and preset not in directories else preset
    versions = {key: path for key, path in directories.items() if key == name or key.rpartition("@")[0] == name}
    if name in versions and name != preset:
        versions.setdefault(f"{name}@{read_version(versions[name])}", versions[name])
    return versions


def _read_published() -> dict[str, PublishedPreset]:
    """Return the presets in published.json, which can be downloaded by name."""
    return cast(dict[str, PublishedPreset], read_json(_PACKAGE, "published.json"))


def _make_info(name: str, metadata: PublishedPreset, shipped: bool, version: int = 1) -> PresetInfo:
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


def _find_similar(preset: str, names: Iterable[str]) -> list[str]:
    """Return up to three names of presets that are similar to an unknown name, or begin similarly, best first."""
    matcher = difflib.SequenceMatcher(b=preset)

    def compute_similarity(text: str) -> float:
        matcher.set_seq1(text)
        return matcher.ratio()

    # The first characters alone are also compared: a user may leave out a suffix such as `_en_uncased`.
    scores = {}
    for name in names:
        full_similarity = compute_similarity(name)
        scores[name] = (max(full_similarity, compute_similarity(name[: len(preset)])), full_similarity)
    similar_names = [name for name, (best_score, _) in scores.items() if best_score >= _MIN_SIMILARITY]
    return sorted(similar_names, key=lambda name: scores[name], reverse=True)[:_MAX_SUGGESTIONS]


def _describe_unknown(preset: str, path: Path) -> str:
    local_names = _drop_older_versions(_find_directories())
    names = [*local_names, *_read_published()]
    versions = {name: path for name, path in _find_versions(preset).items() if "@" in name}
    if versions:
        message = f"There is no {preset}. Its versions on this machine are {', '.join(sorted(versions))}."
        if any(path.is_relative_to(_find_shipped_root()) for path in versions.values()):
            message += " The package has the newest version only; older ones are in lmzoo's repository, in presets/."
        return message
    prefix = preset.lower()
    similar_names = [name for name in names if prefix and name.startswith(prefix)][:_MAX_SUGGESTIONS]
    similar_names = similar_names or _find_similar(prefix, names)
    message = f"Unknown preset {preset!r:.200}."
    if os.path.isfile(path):
        message += (
            " It is a file, and a preset is a directory (`keras.saving.load_model` reads .keras files, and "
            "`StaticEmbedder.from_preset` files of word vectors)."
        )
    elif os.sep in preset or preset.startswith(("~", ".")):
        message += f" There is no directory {path.absolute()}."
        if preset.count("/") == 1 and preset[0] not in "~./":
            message += f" Write 'hf://{preset}' for the Hugging Face repository."
    if similar_names:
        message += f" Did you mean {' or '.join(map(repr, similar_names))}?"
    return (
        f"{message} Expected one of {', '.join(local_names) or '(none)'}, one of the {len(_read_published())} "
        "published ones that `lmzoo presets` lists, the path of a directory, hf://org/name, kaggle://... or https://..."
    )
