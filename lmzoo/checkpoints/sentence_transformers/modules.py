"""The modules of a Sentence Transformers folder: `modules.json`, and what each module says about itself."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject, format_keys, require_value
from lmzoo.checkpoints.torch_activations import read_activation
from lmzoo.common.arguments import is_integer, is_number
from lmzoo.errors import PresetError
from lmzoo.files.inside import check_inside, file_in, has_file
from lmzoo.files.preset_files import CONFIG_FILE, read_json, read_json_list

MODULES_FILE = "modules.json"
POOLING_MODES = {  # mode -> its key in files of versions before 6, in the order in which these concatenate vectors
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
MOST_MODULES = 34  # a Transformer, its pooling, and as many layers as a `TextEmbedder` takes

_PACKAGE = re.compile(r"sentence_transformers(\.[A-Za-z_]\w*)+")
_ENTRY = ConfigTable(
    keys={"name": "name", "path": "path", "type": "type"},
    defaults={"name": None},
    allowed={"kwargs": ({}, [], None)},
    ignored=("idx",),
)
_VECTOR = "sentence_embedding"  # the only thing that our layers read and replace
_PLACES = {"module_input_name": (_VECTOR,), "module_output_name": (_VECTOR, None)}
_WIDTHS = ("embedding_dimension", "word_embedding_dimension")  # the first one counts
_POOLING = ConfigTable(
    keys={"pooling_mode": "pooling"},
    defaults={"pooling_mode": None},
    allowed={"include_prompt": (True,)},
    ignored=(*POOLING_MODES.values(), *_WIDTHS),
)
# Our kind of layer -> the table of its configuration.
_LAYERS = {
    "dense": ConfigTable(
        keys={"in_features": "width", "out_features": "units", "bias": "use_bias", "activation_function": "activation"},
        defaults={"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"},
        allowed={**_PLACES, "use_residual": (False,)},
    ),
    "layer_norm": ConfigTable(keys={"dimension": "width"}),
    "dropout": ConfigTable(keys={"dropout": "rate"}, defaults={"dropout": 0.2}),
    "normalize": ConfigTable(keys={}, allowed=_PLACES),
}
# Its argument -> what a value must be.
_CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {
    "width": (lambda value: is_integer(value, 1), "a positive integer"),
    "units": (lambda value: is_integer(value, 1), "a positive integer"),
    "use_bias": (lambda value: isinstance(value, bool), "true or false"),
    "rate": (lambda value: is_number(value, 0, 1) and value != 1, "a number in [0, 1)"),
}
# Our kind of layer -> the class.
LAYER_CLASSES = {"dense": "Dense", "layer_norm": "LayerNorm", "dropout": "Dropout", "normalize": "Normalize"}
_KINDS = ("Transformer", "Pooling", *LAYER_CLASSES.values())


class KeyReader:
    """A reader of files by tables, which collects the keys that no table lists.

    Sentence Transformers and its derivatives ignore such keys, and so does lmzoo, with a warning.

    Attributes:
        unknown_keys: File -> its unknown keys and their values.
    """

    def __init__(self) -> None:
        self.unknown_keys: dict[str, Arguments] = {}

    def read(self, table: ConfigTable, stored: JsonObject, file: Path | str) -> Arguments:
        """Read arguments from a file's content; see `ConfigTable.read`."""
        if unknown := table.unknown(stored):
            self.unknown_keys[str(file)] = {**self.unknown_keys.get(str(file), {}), **unknown}
        return table.read(stored, file, ignore_unknown=True)

    def warn(self) -> None:
        """Warn of the keys that were ignored, once for each file."""
        for file, keys in self.unknown_keys.items():
            warnings.warn(f"{file}: ignoring unknown keys: {format_keys(keys)}.", stacklevel=4)

    def report(self, directory: Path) -> dict[str, str]:
        """Return the lines of `lmzoo verify` about the keys of the files in `directory`."""
        return {
            f"not read: keys of {os.path.relpath(file, directory)}": format_keys(keys)
            for file, keys in self.unknown_keys.items()
        }


@dataclass(frozen=True)
class Module:
    """An entry of `modules.json`.

    Attributes:
        kind: Name of its class, without the package.
        directory: Folder of its files, which need not exist for a module without any.
    """

    kind: str
    directory: Path

    @property
    def file(self) -> Path:
        """Its configuration."""
        return self.directory / CONFIG_FILE

    @property
    def has_weights(self) -> bool:
        """Whether its folder must hold weights."""
        return self.kind in ("Transformer", "Dense", "LayerNorm")


def read_modules(directory: Path, reader: KeyReader | None = None) -> list[Module]:
    """Return the modules of a folder, in order. No class that the file names is imported.

    Raises:
        PresetError: If `modules.json` is malformed, names a module that lmzoo does not have, or one whose files are
            outside of the folder.
    """
    file = directory / MODULES_FILE
    entries = read_json_list(directory, file_in(directory, MODULES_FILE).name)
    if len(entries) > MOST_MODULES:
        raise PresetError(f"{file} lists {len(entries):,} modules, expected at most {MOST_MODULES}.")
    names = [entry.get("name") for entry in entries]
    for position, name in enumerate(names):
        if name is not None and name in names[:position]:
            raise PresetError(f"{file} lists two modules of the name {name!r:.60}.")
    reader = reader or KeyReader()
    return [_read_entry(reader, directory, entry, f"{file}, module {i}") for i, entry in enumerate(entries)]


def _read_entry(reader: KeyReader, directory: Path, stored: JsonObject, place: str) -> Module:
    entry = reader.read(_ENTRY, stored, place)
    name = entry["type"]
    kind = name.rpartition(".")[2] if isinstance(name, str) and _PACKAGE.fullmatch(name) else None
    if kind not in _KINDS:
        raise PresetError(f"{place}: {name!r:.100} is not supported; supported are {', '.join(_KINDS)}. No code of a "
                          "folder is run.")  # fmt: skip
    path = entry["path"]
    parts = path.split("/") if isinstance(path, str) else [".."]
    is_outside = not isinstance(path, str) or ".." in parts or (path and "" in parts) or re.search(r"[\\:\0]", path)
    require_value(not is_outside, place, "path", f"the name of a folder inside of {directory}", path)
    check_inside(directory, directory / path)
    return Module(kind, directory / path)


def read_head(modules: Sequence[Module], hidden_dim: int, reader: KeyReader) -> Arguments:
    """Return the arguments of an embedder that its modules give; `hidden_dim` is the width of the Transformer.

    Raises:
        PresetError: Naming the file and the key that is wrong, or of which lmzoo does not support the value.
    """
    kinds = [module.kind for module in modules]
    file = modules[0].directory / MODULES_FILE
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & {*kinds[2:]}:
        raise PresetError(
            f"{file} lists {', '.join(kinds)}: expected one Transformer, then one Pooling, then other modules."
        )
    modes = _read_pooling(reader, modules[1], hidden_dim)
    layers = [*_read_layers(reader, modules[2:], hidden_dim * len(modes))]
    normalize = bool(layers) and layers[-1]["kind"] == "normalize"
    projection = layers[:-1] if normalize else layers
    return {"pooling": modes[0] if len(modes) == 1 else modes, "normalize": normalize, "projection": projection}


def _read_pooling(reader: KeyReader, module: Module, hidden_dim: int) -> list[str]:
    stored = read_json(module.directory, CONFIG_FILE)
    chosen = reader.read(_POOLING, stored, module.file)["pooling"]
    width = next((stored[key] for key in _WIDTHS if key in stored), hidden_dim)
    require_value(width == hidden_dim, module.file, _WIDTHS[1], f"the Transformer's, {hidden_dim}", width)
    if chosen is None:
        for key in POOLING_MODES.values():
            flag = stored.get(key, False)
            require_value(isinstance(flag, bool), module.file, key, "true or false", flag)
        chosen = [mode for mode, key in POOLING_MODES.items() if stored.get(key)] or ["mean"]
    modes = [chosen] if isinstance(chosen, str) else chosen
    valid = isinstance(modes, list) and modes and all(isinstance(mode, str) and mode in POOLING_MODES for mode in modes)
    valid = valid and len(set(modes)) == len(modes)
    require_value(valid, module.file, "pooling_mode", f"one of {', '.join(POOLING_MODES)}, or a list", chosen)
    return modes


def _read_layers(reader: KeyReader, modules: Sequence[Module], width: int) -> Iterator[dict[str, Any]]:
    """Yield the layers that a `TextEmbedder` calls `projection`, for vectors of a width."""
    for module in modules:
        layer = _read_layer(reader, module)
        if layer.pop("width", width) != width:
            raise PresetError(f"{module.file}: a {module.kind} must take vectors of width {width} here, got another.")
        width = layer.get("units", width)
        yield layer


def _read_layer(reader: KeyReader, module: Module) -> dict[str, Any]:
    kind = next(kind for kind, name in LAYER_CLASSES.items() if name == module.kind)
    needed = module.has_weights or has_file(module.directory, CONFIG_FILE)
    stored = read_json(module.directory, CONFIG_FILE) if needed else {}
    layer = {"kind": kind, **reader.read(_LAYERS[kind], stored, module.file)}
    for key, argument in _LAYERS[kind].keys.items():
        if argument == "activation":
            layer[argument] = read_activation(layer[argument], key, module.file)
        else:
            is_valid, allowed = _CHECKS[argument]
            require_value(is_valid(layer[argument]), module.file, key, allowed, layer[argument])
    return layer


def describe(arguments: Mapping[str, Any]) -> str:
    """Return the modules of an embedder in words, for reports."""
    modes = arguments["pooling"] if isinstance(arguments["pooling"], list) else [arguments["pooling"]]
    parts = ["Transformer", f"Pooling ({', '.join(modes)})"]
    for layer in arguments.get("projection", ()):
        settings = [str(value) for key, value in layer.items() if key in ("units", "activation", "rate")]
        name = LAYER_CLASSES.get(layer["kind"], "Truncate")
        parts.append(f"{name} ({', '.join(settings)})" if settings else name)
    return ", ".join([*parts, *(["Normalize"] if arguments["normalize"] else [])])
