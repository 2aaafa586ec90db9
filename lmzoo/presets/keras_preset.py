"""Reading and writing of lmzoo's presets, directories in KerasHub's layout."""

from __future__ import annotations

import contextlib
import datetime
import functools
import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np

from lmzoo.checkpoints.config_table import Arguments, JsonObject, resolve_arguments
from lmzoo.checkpoints.engine import check_axes
from lmzoo.checkpoints.formats.hdf5 import (
    BYTES_OF_METADATA,
    SCALE,
    Hdf5File,
    decode_int8_file,
    rewrite_in_half_precision,
    rewrite_in_int8,
    write_hdf5,
)
from lmzoo.checkpoints.formats.sharded import check_is_weights
from lmzoo.checkpoints.formats.tensor_file import convert_damage_errors
from lmzoo.checkpoints.tokenizers.vocabulary_files import add_file_to_errors
from lmzoo.common.arguments import require
from lmzoo.errors import ArgumentError, MissingTokenizerError, PresetError
from lmzoo.files.atomic import atomic_directory, check_room
from lmzoo.files.manifest import write_manifest
from lmzoo.files.preset_files import (
    CONFIG_FILE,
    HEADS_DIR,
    METADATA_FILE,
    MODEL_WEIGHTS_FILE,
    PREPROCESSOR_FILE,
    PRESET_ENTRIES,
    TASK_FILE,
    TASK_WEIGHTS_FILE,
    TOKENIZER_ASSETS_DIR,
    TOKENIZER_FILE,
    JsonFiles,
    write_json,
)
from lmzoo.layers.adapted import leave_out_merged_updates
from lmzoo.layers.finite import find_not_finite, warn_about_not_finite
from lmzoo.layers.sublayers import sublayers
from lmzoo.registry.family import get_family
from lmzoo.registry.head_kinds import HasHead, check_head_kind, get_task_class
from lmzoo.text import Preprocessor, Tokenizer
from lmzoo.version import __version__

T = TypeVar("T")
_Part = TypeVar("_Part", Preprocessor, Tokenizer)

# Functions that rewrite the file of weights, by the dtype in which a preset stores them.
_REWRITES: dict[str, Callable[[Path], None] | None] = {
    "float32": None,
    "float16": rewrite_in_half_precision,
    "int8": rewrite_in_int8,
}
WEIGHTS_DTYPES = tuple(_REWRITES)


class KerasPreset:
    """A preset of lmzoo in a directory; implements `lmzoo.presets.source.Source`.

    Args:
        files: JSON files of the directory.
        task: Name of the task to load from a preset with several tasks, or None for the only task.

    Raises:
        PresetError: If the preset has no task of this name.
    """

    def __init__(self, files: JsonFiles, task: str | None = None) -> None:
        self._files = files
        self.directory = files.directory
        if task is not None and task not in self.task_names:
            names = ", ".join(map(repr, self.task_names))
            problem = f"Its tasks are {names}." if names else "It holds no named tasks: leave out `task`."
            raise PresetError(f"{self.directory} has no task {task!r:.60}. {problem}")
        self._task_prefix = "" if task is None else f"{HEADS_DIR}/{task}/"  # of the names of the task's files

    @property
    def task_names(self) -> list[str]:
        """Names of the tasks in a preset with several tasks; an empty list for other presets."""
        return sorted(path.parent.name for path in (self.directory / HEADS_DIR).glob(f"*/{TASK_FILE}"))

    @property
    def backbone_class(self) -> type[keras.Model]:
        """Class of the stored backbone.

        Raises:
            PresetError: If the preset does not name a backbone class of lmzoo.
        """
        name = self._files.read(CONFIG_FILE).get("registered_name")
        if name is None:
            raise PresetError(
                f"{self.directory / CONFIG_FILE} names no backbone of lmzoo: it has neither `model_type`, as in "
                "Hugging Face's checkpoints, nor `registered_name`, as in KerasHub's and lmzoo's presets."
            )
        backbone_class = _find_registered(name, keras.Model)
        if backbone_class is None or not hasattr(backbone_class, "config_class"):
            raise PresetError(f"{self.directory / CONFIG_FILE} names no backbone of lmzoo: {name!r}.")
        return backbone_class

    @functools.cached_property
    def _stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the backbone's weights, and of the scales of int8 weights, by path in the file."""
        import h5py

        path = self.directory / MODEL_WEIGHTS_FILE
        check_is_weights(path)
        objects_by_name: dict[str, Any] = {}
        with convert_damage_errors(f"{path} cannot be read"), h5py.File(path, "r") as file:
            file.visititems(objects_by_name.__setitem__)
            return {
                name: h5_object.shape
                for name, h5_object in objects_by_name.items()
                if isinstance(h5_object, h5py.Dataset)
            }

    def build(self, overrides: Mapping[str, Any], load_weights: bool = True) -> keras.Model:
        """Build the backbone with random weights.

        Args:
            overrides: Constructor arguments that replace the stored ones.
            load_weights: Whether the stored weights will be loaded into the backbone. If so, their sizes are compared
                with the configuration first.

        Raises:
            PresetError: If the configuration is invalid, or describes a far larger model than the stored weights.
        """
        config_path = self.directory / CONFIG_FILE
        with add_file_to_errors(config_path):
            # Let Keras choose the name, so that one model can contain several copies of a preset.
            stored_arguments = {**self._files.read(CONFIG_FILE)["config"], "name": None}
        if load_weights:
            weights_path = self.directory / MODEL_WEIGHTS_FILE
            check_axes(
                self.backbone_class.config_class, stored_arguments, self._stored_shapes.values(), weights_path, {}
            )
            if overrides:
                with add_file_to_errors(config_path):
                    stored_arguments = resolve_arguments(self.backbone_class.config_class, stored_arguments)
        policy = keras.config.dtype_policy()
        # The error does not name the file if there are overrides, since one of them may cause it.
        with contextlib.nullcontext() if overrides else add_file_to_errors(config_path):
            if "dtype" not in overrides and policy.name != "float32" and _is_float32(stored_arguments.get("dtype")):
                overrides = {**overrides, "dtype": policy}
            return self.backbone_class.from_config({**stored_arguments, **overrides})

    def load(self, model: keras.Model, with_head: bool = True) -> None:
        """Load the stored weights into a backbone or task.

        Args:
            model: Backbone or task.
            with_head: Whether to load the head of a task; if False, only its backbone is loaded.

        Raises:
            PresetError: If the stored weights do not match the model's, a file is damaged, or there is no room for a
                decoded copy of int8 weights.
        """
        path = self.directory / MODEL_WEIGHTS_FILE
        backbone = _get_backbone(model)
        self._check_shapes(backbone)
        try:
            has_scales = any(name.endswith(SCALE) for name in self._stored_shapes)
            with decode_int8_file(path) if has_scales else contextlib.nullcontext(path) as weights_file:
                backbone.load_weights(weights_file)
        except PresetError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise PresetError(f"{path} cannot be read; fetch or save the preset again: {reason:.1000}") from error
        if with_head and isinstance(model, HasHead):
            _load_head(
                model, self.directory / self._task_prefix / TASK_WEIGHTS_FILE, in_part=self.head in model.reads_heads
            )

    def load_shared(self, model: HasHead) -> list[str]:
        """Load the backbone of a task, and the weights of its head that the stored head also has.

        Args:
            model: Task.

        Returns:
            The paths of the head's weights that are not loaded.

        Raises:
            PresetError: If the stored weights do not match the backbone's, or a file is damaged.
        """
        self.load(model, with_head=False)
        path = self.directory / self._task_prefix / TASK_WEIGHTS_FILE
        weights = _get_head_weights(model)
        with contextlib.closing(Hdf5File(path)) as file:
            stored_names = set(file.names())
            shared_weights = {
                name: weight
                for name, weight in weights.items()
                if name in stored_names and file.shape(name) == tuple(weight.shape)
            }
            for name, weight in shared_weights.items():
                weight.assign(file.read(name))
        warn_about_not_finite(path, find_not_finite(shared_weights.values()))
        return sorted(weights.keys() - shared_weights.keys())

    def _check_shapes(self, backbone: keras.Model) -> None:
        """Compare the number and the shapes of stored weights with the backbone's.

        Without this check, Keras might load only some of the weights, or fail without a clear message.

        Raises:
            PresetError: If the numbers or the shapes differ.
        """
        # The number of seeds depends on dropout.
        shapes = {name: shape for name, shape in self._stored_shapes.items() if not name.endswith(SCALE)}
        stored_counts = Counter(shape for name, shape in shapes.items() if "seed_generator" not in name)
        model_counts = Counter(tuple(weight.shape) for weight in backbone.weights)
        if stored_counts == model_counts:
            return
        stored_contents = f"{stored_counts.total()} weights"
        model_contents = f"{model_counts.total()}"
        if stored_counts.total() == model_counts.total():
            stored_contents = f"a weight of shape {next(iter(stored_counts - model_counts))}"
            model_contents = f"one of shape {next(iter(model_counts - stored_counts))}"
        raise PresetError(
            f"{self.directory / MODEL_WEIGHTS_FILE} holds {stored_contents}, but {type(backbone).__name__} as "
            f"configured has {model_contents}. Overrides must not change the architecture; pass `load_weights=False` "
            "for one with random weights. Without overrides, fetch or save the preset again."
        )

    def report(self, model: keras.Model) -> dict[str, str]:
        """Load all weights into `model`, and return descriptions of the preset's format and tensors, by name."""
        self.load(model)
        return {"format": "lmzoo", "tensors": f"{len(model.weights)}, all assigned"}

    def close(self) -> None:
        """Do nothing, since no file stays open."""

    @property
    def head(self) -> str | None:
        """Kind of the stored head, or its task's class name if no known task has this kind; None without a head."""
        if not (stored_task := self._task):
            return None
        # Presets written until November 2026 hold the kind only if it differs from the kind of the class.
        kind = stored_task.get("head_kind", getattr(self.task_class, "head_kind", None))
        return self.task_class_name if get_task_class(kind) is None else kind

    @property
    def task_class_name(self) -> str | None:
        """Name of the class of the stored task, which may not be registered, or None if no task is stored."""
        return self._task.get("class_name")

    @property
    def task_class(self) -> type[HasHead] | None:
        """Class of the stored task, or None if no task is stored or its class is not registered."""
        return _find_registered(self._task.get("registered_name"), HasHead)

    @property
    def _task(self) -> JsonObject:
        """Content of the task's JSON file, or an empty dict without the file."""
        task_path = self.directory / self._task_prefix / TASK_FILE
        if not task_path.exists():
            return {}
        stored_task = self._files.read(self._task_prefix + TASK_FILE)
        if not (isinstance(stored_task.get("registered_name"), str) and isinstance(stored_task.get("config"), dict)):
            raise PresetError(f"{task_path} does not describe a task: it must hold a `registered_name` and a `config`.")
        return stored_task

    def get_head_arguments(self, cls: type[HasHead]) -> Arguments | None:
        """Return the constructor arguments for task `cls` if its head is stored, else None."""
        stored_task = self._task
        if stored_task.get("registered_name") == keras.saving.get_registered_name(cls):
            return {key: value for key, value in stored_task["config"].items() if key != "name"}
        if self.head in (cls.head_kind, *cls.reads_heads):  # a task of another class with a compatible head
            parameters = inspect.signature(cls).parameters.keys() - {"name"}
            return {key: value for key, value in stored_task["config"].items() if key in parameters}
        return None

    def preprocessor(self) -> Preprocessor:
        """Return the stored preprocessor.

        Raises:
            PresetError: If a file is missing or invalid, or a class is not registered.
        """
        return self._read_part(Preprocessor, self._task_prefix + PREPROCESSOR_FILE, " Pass `preprocessor=`.")

    def tokenizer(self) -> Tokenizer:
        """Return the stored tokenizer.

        Raises:
            PresetError: If a file is missing or invalid, or a class is not registered.
        """
        return self._read_part(Tokenizer, TOKENIZER_FILE)  # type: ignore[type-abstract]

    def _read_part(self, base: type[_Part], name: str, advice: str = "") -> _Part:
        """Build a preprocessor or a tokenizer from its JSON file and load its assets.

        Args:
            base: `Preprocessor` or `Tokenizer`.
            name: Name of the JSON file.
            advice: Sentence to append to the error about a missing file.
        """
        json_path = self.directory / name
        kind = base.__name__.lower()
        if not json_path.exists():
            raise MissingTokenizerError(f"{self.directory} holds no {kind} ({name} is missing).{advice}")
        try:
            part = _build_text_part(self._files.read(name), base, json_path)
        except (AttributeError, KeyError, TypeError) as error:
            raise PresetError(f"{json_path} does not describe a {kind} of lmzoo: {error!r:.200}.") from error
        assets_path = self.directory / TOKENIZER_ASSETS_DIR
        with add_file_to_errors(assets_path):
            part.load_assets(assets_path)
        return part


def _build_text_part(serialized_part: JsonObject, base: type[_Part], json_path: Path) -> _Part:
    """Build a preprocessor or tokenizer from its configuration.

    Keras' own deserialization is not used, since it may call any function that the file names.

    Raises:
        PresetError: If the class is not registered with Keras.
    """
    name = serialized_part.get("registered_name")
    cls = _find_registered(name, base)
    if cls is None:
        raise PresetError(
            f"{json_path} names no {base.__name__.lower()} of lmzoo: {name!r:.60}. If the class is yours, first import "
            "the module that registers it with `keras.saving.register_keras_serializable`."
        )
    config = serialized_part["config"]
    if base is Preprocessor:
        config = {**config, "tokenizer": _build_text_part(config["tokenizer"], Tokenizer, json_path)}  # type: ignore[type-abstract]
    return cls.from_config(config)


def _find_registered(name: object, base: type[T]) -> type[T] | None:
    """Return the subclass of `base` registered with Keras under a name, or None if no such class is registered."""
    registered_object = keras.saving.get_registered_object(name) if isinstance(name, str) else None
    return registered_object if isinstance(registered_object, type) and issubclass(registered_object, base) else None


def _get_backbone(model: keras.Model) -> keras.Model:
    return getattr(model, "backbone", model)


def _is_float32(dtype: object) -> bool:
    return getattr(keras.dtype_policies.get(dtype), "name", None) == "float32"


def save_preset(
    model: keras.Model,
    directory: str | Path,
    overwrite: bool = True,
    preprocessor: Preprocessor | None = None,
    add_files: Callable[[Path], None] | None = None,
    weights_dtype: str = "float32",
    tasks: Mapping[str, HasHead] | None = None,
    **metadata: object,
) -> None:
    """Write a backbone or a task as a preset.

    Args:
        model: Backbone or task.
        directory: Directory to write.
        overwrite: Whether to replace an existing preset.
        preprocessor: Preprocessor to write; by default, the first preprocessor of a task in `tasks`, if any.
        add_files: Function that writes additional files into the directory it is given, before the manifest is written.
        weights_dtype: Dtype of the stored weights, which loading converts to the model's dtype: "float32" for the
            weights as they are; "float16", except for tensors with values beyond its range; or "int8" for matrices of
            the backbone in 255 steps with a float32 scale for each row, and float16 for the other weights.
        tasks: Dict from names to tasks on the backbone `model`, to write with it; or None.
        **metadata: Additional entries of `metadata.json`, such as `languages` and `license`.

    Raises:
        FileExistsError: If `directory` exists, and `overwrite` is False or the directory is not a preset.
        ValueError: If a class is not registered with Keras, a task has no `head_kind`, `weights_dtype` is unknown,
            `tasks` is not a dict or is empty, an entry is not a task on the backbone, two tasks have different
            tokenizers, a name cannot be the name of a directory, or two names differ only in case.
    """
    require(weights_dtype in WEIGHTS_DTYPES, "weights_dtype", f"one of {', '.join(WEIGHTS_DTYPES)}", weights_dtype)
    if preprocessor is not None:
        check_is_registered(preprocessor)
    check_is_registered(_get_backbone(model))
    if tasks is None:
        tasks = {}
    else:
        _check_tasks(model, tasks)
    for task in (*tasks.values(), model):
        if isinstance(task, HasHead):
            check_head_kind(type(task))
    if preprocessor is None and tasks:
        preprocessor = next((task.preprocessor for task in tasks.values() if task.preprocessor is not None), None)
    with atomic_directory(directory, marker=METADATA_FILE, owns=PRESET_ENTRIES, overwrite=overwrite) as target:
        backbone = _get_backbone(model)
        write_json(target, CONFIG_FILE, keras.saving.serialize_keras_object(backbone))
        sizes = (math.prod(weight.shape) * np.dtype(weight.dtype).itemsize for weight in backbone.weights)
        check_room(target, sum(sizes) + (len(backbone.weights) + 1) * BYTES_OF_METADATA)
        with leave_out_merged_updates(sublayers(backbone)):  # other libraries read the file
            backbone.save_weights(target / MODEL_WEIGHTS_FILE)
        model_metadata = {"family": get_family(backbone).name, "parameter_count": backbone.count_params()}
        write_json(target, METADATA_FILE, {**model_metadata, **get_versions(), **metadata})
        if rewrite := _REWRITES[weights_dtype]:
            rewrite(target / MODEL_WEIGHTS_FILE)
        if model is not backbone:
            _write_task(model, target, halve=rewrite is not None)
        for name, task in tasks.items():
            (target / HEADS_DIR / name).mkdir(parents=True)
            _write_task(task, target / HEADS_DIR / name, halve=rewrite is not None)
            if task.preprocessor is not None:
                serialized_preprocessor = keras.saving.serialize_keras_object(task.preprocessor)
                write_json(target / HEADS_DIR / name, PREPROCESSOR_FILE, serialized_preprocessor)
        if preprocessor is not None:
            write_text_part(preprocessor, target)
        if add_files is not None:
            add_files(target)
        write_manifest(target)


def _check_tasks(backbone: keras.Model, tasks: Mapping[str, HasHead]) -> None:
    """Check that `tasks` can be written into one preset.

    Raises:
        ValueError: If `tasks` is not a dict or is empty, an entry is not a task on the backbone, a class is not
            registered with Keras, two tasks have different tokenizers, a name cannot be the name of a directory, or two
            names differ only in case.
    """
    is_nonempty_dict = isinstance(tasks, Mapping) and tasks
    require(is_nonempty_dict, "tasks", "a dict of at least one task by its name, or None", tasks)
    tokenizers = {}
    names_by_lowercase: dict[str, str] = {}
    for name, task in tasks.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise ValueError(f"Tasks need names of letters, digits, `_`, `-` and `.`, got {name!r:.60}.")
        if getattr(task, "backbone", None) is not backbone:
            raise ValueError(f"`tasks[{name!r}]` must be a task on this backbone, got {task!r:.60}.")
        # Some file systems would write both names to one directory.
        similar_name = names_by_lowercase.setdefault(name.lower(), name)
        if similar_name != name:
            raise ArgumentError(
                f"The names {similar_name!r} and {name!r} differ only in upper and lower case. Rename one of them.",
                "tasks",
            )
        if task.preprocessor is not None:
            check_is_registered(task.preprocessor)
            tokenizer = task.preprocessor.tokenizer
            tokenizers[name] = (type(tokenizer), tokenizer.get_config(), list(tokenizer.vocabulary))
    names = list(tokenizers)
    for name in names[1:]:
        if tokenizers[name] != tokenizers[names[0]]:
            raise ValueError(f"The tasks {names[0]!r} and {name!r} have different tokenizers. Save them one by one.")


def _write_task(task: HasHead, target: Path, halve: bool) -> None:
    """Write the configuration of a task, and the weights of its head, into a directory.

    Floats are written as float32 or float16, and integers unchanged.

    Args:
        task: Task to write.
        target: Directory to write into.
        halve: Whether to store float weights as float16.
    """
    config = {key: value for key, value in task.get_config().items() if key not in ("backbone", "preprocessor")}
    registered_name = keras.saving.get_registered_name(type(task))
    task_config = {"class_name": type(task).__name__, "registered_name": registered_name, "config": config}
    write_json(target, TASK_FILE, {**task_config, "head_kind": task.head_kind})
    weights = _get_head_weights(task)
    warn_about_not_finite(f"The {type(task).__name__} that is saved", find_not_finite(weights.values()))
    # Integers, such as the hashes of words, would be rounded.
    weights_to_write = (
        keras.ops.cast(weight, "float32") if keras.backend.is_float_dtype(weight.dtype) else weight
        for weight in weights.values()
    )
    arrays = map(keras.ops.convert_to_numpy, weights_to_write)
    write_hdf5(target / TASK_WEIGHTS_FILE, zip(weights, arrays, strict=True))
    if halve:
        rewrite_in_half_precision(target / TASK_WEIGHTS_FILE)


def get_versions() -> dict[str, str]:
    """Return the versions of Keras and lmzoo and the current date (UTC), for `metadata.json`."""
    return {
        "keras_version": keras.__version__,
        "lmzoo_version": __version__,
        "date_saved": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def write_text_part(part: Preprocessor | Tokenizer, target: Path) -> None:
    """Write a preprocessor with its tokenizer, or only a tokenizer, into the directory of a preset."""
    tokenizer = part
    if isinstance(part, Preprocessor):
        tokenizer = part.tokenizer
        write_json(target, PREPROCESSOR_FILE, keras.saving.serialize_keras_object(part))
    write_json(target, TOKENIZER_FILE, keras.saving.serialize_keras_object(tokenizer))
    (target / TOKENIZER_ASSETS_DIR).mkdir(parents=True)
    part.save_assets(target / TOKENIZER_ASSETS_DIR)


def check_is_registered(part: keras.Model | Preprocessor | Tokenizer) -> None:
    """Check that the class of a model, tokenizer or preprocessor (and its tokenizer) is registered with Keras.

    Raises:
        ValueError: If a class is not registered, so that the preset could not be loaded.
    """
    parts = [part, part.tokenizer] if isinstance(part, Preprocessor) else [part]
    for cls in map(type, parts):
        if keras.saving.get_registered_object(keras.saving.get_registered_name(cls)) is None:
            raise ValueError(
                f"The class {cls.__name__} is not registered with Keras, so `from_preset` could not find it. Register "
                'it with `@keras.saving.register_keras_serializable(package="...")` before you save.'
            )


def _get_head_weights(task: keras.Model) -> dict[str, keras.Variable]:
    """Return the weights of a task's head by path: all weights except the backbone's."""
    backbone_ids = {id(weight) for weight in task.backbone.variables}
    return {weight.path: weight for weight in task.weights if id(weight) not in backbone_ids}


def _load_head(task: keras.Model, path: Path, in_part: bool) -> None:
    """Load the weights of a task's head.

    Args:
        task: Task to load the weights into.
        path: Path of the HDF5 file.
        in_part: Whether the file may hold additional weights, because the task's head is only a part of the stored
            head.

    Raises:
        PresetError: If the stored weights do not match the head's, or integers were stored as floats.
    """
    weights = _get_head_weights(task)
    with contextlib.closing(Hdf5File(path)) as file:
        stored_names = {name for name in file.names() if name in weights or not in_part}
        if stored_names != weights.keys():
            raise PresetError(f"{path} holds {sorted(stored_names)}, the task needs {sorted(weights)}.")
        for name, weight in weights.items():
            if file.shape(name) != tuple(weight.shape):
                raise PresetError(f"{path}: {name} has shape {file.shape(name)}, expected {tuple(weight.shape)}.")
            # Presets written until November 2026 hold the hashes of words as rounded floats.
            if weight.dtype == "int32" and "float" in file.dtype(name):
                raise PresetError(
                    f"{path}: {name} holds {file.dtype(name)}, which rounds the integers that the task needs. Save the "
                    "preset again from the task's `.keras` file, or build the task again with `word_vectors`."
                )
            weight.assign(file.read(name))
    warn_about_not_finite(path, find_not_finite(weights.values()))
