"""Modules of Sentence Transformers checkpoints: `modules.json` and the configuration of each module."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject, KeyReader, require_value
from lmzoo.checkpoints.torch_activations import read_activation
from lmzoo.common.arguments import is_integer, is_number
from lmzoo.errors import PresetError
from lmzoo.files.inside import check_inside, has_file, resolve_inside
from lmzoo.files.preset_files import CONFIG_FILE, read_json, read_json_list

MODULES_FILE = "modules.json"
POOLING_MODES = {  # mode -> its key in files before version 6, in the order of the concatenated vectors
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
MAX_MODULES = 34  # a Transformer, its pooling, and the 32 layers that a `TextEmbedder` supports

_PACKAGE = re.compile(r"sentence_transformers(\.[A-Za-z_]\w*)+")
_ENTRY = ConfigTable(
    keys={"name": "name", "path": "path", "type": "type"},
    defaults={"name": None},
    allowed={"kwargs": ({}, [], None)},
    ignored=("idx",),
)
_VECTOR = "sentence_embedding"  # the only input and output of lmzoo's layers
_INPUT_AND_OUTPUT = {"module_input_name": (_VECTOR,), "module_output_name": (_VECTOR, None)}
_WIDTHS = ("embedding_dimension", "word_embedding_dimension")  # the first one takes precedence
_POOLING = ConfigTable(
    keys={"pooling_mode": "pooling"},
    defaults={"pooling_mode": None},
    allowed={"include_prompt": (True,)},
    ignored=(*POOLING_MODES.values(), *_WIDTHS),
)
# Kind of layer in `TextEmbedder` -> the table of its configuration.
_LAYERS = {
    "dense": ConfigTable(
        keys={"in_features": "width", "out_features": "units", "bias": "use_bias", "activation_function": "activation"},
        defaults={"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"},
        allowed={**_INPUT_AND_OUTPUT, "use_residual": (False,)},
    ),
    "layer_norm": ConfigTable(keys={"dimension": "width"}),
    "dropout": ConfigTable(keys={"dropout": "rate"}, defaults={"dropout": 0.2}),
    "normalize": ConfigTable(keys={}, allowed=_INPUT_AND_OUTPUT),
}
# Argument of a layer -> its check, and a description of valid values.
_CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {
    "width": (lambda value: is_integer(value, 1), "a positive integer"),
    "units": (lambda value: is_integer(value, 1), "a positive integer"),
    "use_bias": (lambda value: isinstance(value, bool), "true or false"),
    "rate": (lambda value: is_number(value, 0, 1) and value != 1, "a number in [0, 1)"),
}
# Kind of layer in `TextEmbedder` -> the class in Sentence Transformers.
LAYER_CLASSES = {"dense": "Dense", "layer_norm": "LayerNorm", "dropout": "Dropout", "normalize": "Normalize"}
_KINDS = ("Transformer", "Pooling", *LAYER_CLASSES.values())


@dataclass(frozen=True)
class Module:
    """An entry of `modules.json`.

    Attributes:
        kind: Class name of the module, without the package.
        directory: Directory of the module's files, which need not exist if the module has no files.
    """

    kind: str
    directory: Path

    @property
    def file(self) -> Path:
        """Path of the module's configuration file."""
        return self.directory / CONFIG_FILE

    @property
    def has_weights(self) -> bool:
        """Whether the module's directory must hold weights."""
        return self.kind in ("Transformer", "Dense", "LayerNorm")


def read_modules(directory: Path, reader: KeyReader | None = None) -> list[Module]:
    """Return the modules of a Sentence Transformers checkpoint, in order, without importing their classes.

    Args:
        directory: Directory with `modules.json`.
        reader: Collector of unknown keys, or None to ignore them.

    Raises:
        PresetError: If `modules.json` is malformed, or a module is not supported or outside the directory.
    """
    file = directory / MODULES_FILE
    entries = read_json_list(directory, resolve_inside(directory, MODULES_FILE).name)
    if len(entries) > MAX_MODULES:
        raise PresetError(f"{file} lists {len(entries):,} modules, expected at most {MAX_MODULES}.")
    names = [entry.get("name") for entry in entries]
    for position, name in enumerate(names):
        if name is not None and name in names[:position]:
            raise PresetError(f"{file} lists two modules of the name {name!r:.60}.")
    reader = reader or KeyReader()
    return [_read_entry(reader, directory, entry, f"{file}, module {i}") for i, entry in enumerate(entries)]


def _read_entry(reader: KeyReader, directory: Path, stored_entry: JsonObject, label: str) -> Module:
    entry = reader.read(_ENTRY, stored_entry, label)
    type_name = entry["type"]
    kind = type_name.rpartition(".")[2] if isinstance(type_name, str) and _PACKAGE.fullmatch(type_name) else None
    if kind not in _KINDS:
        raise PresetError(
            f"{label}: {type_name!r:.100} is not supported; supported are {', '.join(_KINDS)}. No code of a folder is "
            "run."
        )
    path = entry["path"]
    parts = path.removesuffix("/").split("/") if isinstance(path, str) else [".."]
    is_outside = not isinstance(path, str) or ".." in parts or (path and "" in parts) or re.search(r"[\\:\0]", path)
    require_value(not is_outside, label, "path", f"the name of a folder inside of {directory}", path)
    check_inside(directory, directory / path)
    return Module(kind, directory / path)


def read_head(modules: Sequence[Module], hidden_dim: int, reader: KeyReader) -> Arguments:
    """Return the `TextEmbedder` arguments `pooling`, `normalize` and `projection` for the modules of an embedder.

    Args:
        modules: Modules of the embedder, in order.
        hidden_dim: Width of the Transformer.
        reader: Collector of unknown keys.

    Raises:
        PresetError: If a module or a setting is not supported; the message names the module or setting, and its file.
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
    config = read_json(module.directory, CONFIG_FILE)
    pooling = reader.read(_POOLING, config, module.file)["pooling"]
    width = next((config[key] for key in _WIDTHS if config.get(key) is not None), hidden_dim)
    require_value(width == hidden_dim, module.file, _WIDTHS[1], f"the Transformer's, {hidden_dim}", width)
    if pooling is None:
        for key in POOLING_MODES.values():
            flag = config.get(key)
            require_value(isinstance(flag, bool | None), module.file, key, "true or false", flag)
        pooling = [mode for mode, key in POOLING_MODES.items() if config.get(key)] or ["mean"]
    modes = [pooling] if isinstance(pooling, str) else pooling
    is_valid = (
        isinstance(modes, list) and modes and all(isinstance(mode, str) and mode in POOLING_MODES for mode in modes)
    )
    is_valid = is_valid and len(set(modes)) == len(modes)
    require_value(is_valid, module.file, "pooling_mode", f"one of {', '.join(POOLING_MODES)}, or a list", pooling)
    return modes


def _read_layers(reader: KeyReader, modules: Sequence[Module], width: int) -> Iterator[dict[str, Any]]:
    """Yield the entry of `TextEmbedder.projection` for each module.

    The first module takes vectors of width `width`.

    Raises:
        PresetError: If a module is not supported, or takes vectors of another width than the previous module returns.
    """
    for module in modules:
        layer = _read_layer(reader, module)
        if layer.pop("width", width) != width:
            raise PresetError(f"{module.file}: a {module.kind} must take vectors of width {width} here, got another.")
        width = layer.get("units", width)
        yield layer


def _read_layer(reader: KeyReader, module: Module) -> dict[str, Any]:
    kind = next(kind for kind, name in LAYER_CLASSES.items() if name == module.kind)
    has_config = module.has_weights or has_file(module.directory, CONFIG_FILE)
    config = read_json(module.directory, CONFIG_FILE) if has_config else {}
    layer = {"kind": kind, **reader.read(_LAYERS[kind], config, module.file)}
    for key, argument in _LAYERS[kind].keys.items():
        if argument == "activation":
            layer[argument] = read_activation(layer[argument], key, module.file)
        else:
            is_valid, expected = _CHECKS[argument]
            require_value(is_valid(layer[argument]), module.file, key, expected, layer[argument])
    return layer


def describe(arguments: Mapping[str, Any]) -> str:
    """Describe the modules of an embedder for reports, given its constructor arguments."""
    modes = arguments["pooling"] if isinstance(arguments["pooling"], list) else [arguments["pooling"]]
    descriptions = ["Transformer", f"Pooling ({', '.join(modes)})"]
    for layer in arguments.get("projection", ()):
        settings = [str(value) for key, value in layer.items() if key in ("units", "activation", "rate")]
        name = LAYER_CLASSES.get(layer["kind"], "Truncate")
        descriptions.append(f"{name} ({', '.join(settings)})" if settings else name)
    return ", ".join([*descriptions, *(["Normalize"] if arguments["normalize"] else [])])
