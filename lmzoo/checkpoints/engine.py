"""Mapping of weights to the tensors of files, for reading and writing, by one table for each family and format.

Nothing is guessed. Before the first tensor is read, every weight of the model has exactly one tensor of its shape, and
every tensor of the file belongs to a weight, is a copy of another one, or is listed as ignored, with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np

from lmzoo.checkpoints.config_table import Arguments, ConfigTable
from lmzoo.checkpoints.formats.tensor_file import Shape, TensorFile
from lmzoo.errors import PresetError
from lmzoo.layers.finite import not_finite, warn_of_not_finite
from lmzoo.registry.head_kinds import task_name

Weights: TypeAlias = Mapping[str, keras.Variable]  # by path

# Arguments that count what has a number in the names of tensors, by the number's letter in tables. A configuration
# class whose letters mean something else has an attribute `numbered` of its own.
_NUMBERED = {"h": "num_highway", "i": "num_layers"}
# Arguments that are the length of an axis of some tensor, but for those in `without_axis` of a configuration class.
_AXES = (
    "embedding_dim", "filters", "hidden_dim", "intermediate_dim", "lstm_dim", "max_sequence_length", "num_buckets",
    "projection_dim", "vocabulary_size",
)  # fmt: skip


@dataclass(frozen=True)
class Transform:
    """The difference between the layout of a stored tensor and of our weight, whose values are the same.

    Attributes:
        shape: From a weight's shape to that of the stored tensor.
        load: From the stored tensor to the weight.
        store: From the weight to the stored tensor.
    """

    shape: Callable[[Shape], Shape]
    load: Callable[[np.ndarray], np.ndarray]
    store: Callable[[np.ndarray], np.ndarray]


SAME = Transform(lambda shape: shape, lambda a: a, lambda a: a)


def _transposed(matrix: np.ndarray) -> np.ndarray:
    """Return a transposed copy.

    Copying in strips that fit the cache is several times faster than letting a framework copy a transposed view.
    """
    result = np.empty(matrix.shape[::-1], matrix.dtype)
    for start in range(0, len(matrix), 32):
        result[:, start : start + 32] = matrix[start : start + 32].T
    return result


TRANSPOSED = Transform(lambda shape: shape[::-1], _transposed, lambda a: a.T)
ONE_AXIS_MORE = Transform(lambda shape: (1, *shape), lambda a: a[0], lambda a: a[None])


def without_rows(count: int) -> Transform:
    """Return the transform of a table stored without its first `count` rows, which are zero after loading."""
    return Transform(
        lambda shape: (shape[0] - count, *shape[1:]),
        lambda a: np.concatenate([np.zeros((count, *a.shape[1:]), a.dtype), a]),
        lambda a: a[count:],
    )


@dataclass(frozen=True)
class Row:
    """Where a weight is stored.

    Attributes:
        name: The tensor's name, a template as the row's key in the table.
        transform: The tensor's layout.
        part: The weight's place, counted from 0, in a tensor that holds several weights; None if it holds only this
            one. GPT-2's `c_attn`, for example, holds the kernels of query, key and value. In our layout the parts are
            concatenated along the last axis.
    """

    name: str
    transform: Transform = SAME
    part: int | None = None


# Where each weight is stored. A key is a weight's path, with `{i}` for a number that the tensor's name repeats.
Table = Mapping[str, Row]


_WEIGHTS = ("kernel", "bias", "gamma", "beta", "embeddings")  # of layers


def torch_modules(modules: Mapping[str, str], kernel: Transform = TRANSPOSED) -> dict[str, Row]:
    """Return the rows of layers in PyTorch's naming; `modules` maps a layer's path to the module's name."""
    return _rows_of(modules, (".weight", ".bias", ".weight", ".bias", ".weight"), kernel)


def tensorflow_modules(modules: Mapping[str, str]) -> dict[str, Row]:
    """Return the rows of layers in TensorFlow 1's naming; `modules` maps a layer's path to the scope's name."""
    return _rows_of(modules, ("/kernel", "/bias", "/gamma", "/beta", ""))


def keras_layers(places: Mapping[str, str], prefix: str = "") -> dict[str, Row]:
    """Return the rows of a model's layers in Keras' naming; `places` maps a layer's path to its name there.

    `prefix` stands before the names of all tensors.
    """
    places = {layer: f"{prefix}layers/{place}" for layer, place in places.items()}
    return _rows_of(places, ("/vars/0", "/vars/1", "/vars/0", "/vars/1", "/vars/0"))


def _rows_of(modules: Mapping[str, str], endings: Sequence[str], kernel: Transform = SAME) -> dict[str, Row]:
    return {
        f"{layer}/{weight}": Row(f"{module}{ending}", kernel if weight == "kernel" else SAME)
        for layer, module in modules.items()
        for weight, ending in zip(_WEIGHTS, endings, strict=True)
    }


@dataclass(frozen=True)
class Layout:
    """The layout of a family's models in one format.

    Attributes:
        name: The format's name, for messages.
        config: The table of its configuration files.
        backbone: Where the backbone's weights are.
        heads: Kind of head -> where its weights are.
        unread_heads: Kind of head that the format may hold, but lmzoo does not read -> a tensor that only it has.
        aliases: Other spellings of tensor names: regular expression -> replacement.
        copies: Tensors that may be stored twice: name -> name of the original, which must hold the same values.
        optional: Prefixes of paths of weights that may be missing together, such as an untrained pooler's. Without rows
            in the tables no file holds them.
        absent: Prefixes of paths of weights that no file holds, and that keep their values.
        ignored: Tensors to ignore: regular expression -> the reason.
        complete: From a configuration to what files need in addition and does not change the model: arguments to write
            in place of ours, and tensors by name.
    """

    name: str
    config: ConfigTable
    backbone: Table
    heads: Mapping[str, Table] = field(default_factory=dict)
    unread_heads: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    complete: Callable[[Any], tuple[Arguments, dict[str, np.ndarray]]] = lambda config: ({}, {})


@dataclass(frozen=True)
class Plan:
    """A plan of loading, complete and checked, except for the values of the copies.

    Attributes:
        tensors: The file.
        assignments: For each tensor, the weights that it holds, in order, its name in the file, and its layout.
        copies: Pairs of names of tensors that must be equal.
        left_out: Names of tensors that are not read -> the reason.
        missing: Paths of optional weights that the file lacks.
    """

    tensors: TensorFile
    assignments: list[tuple[list[keras.Variable], str, Transform]]
    copies: list[tuple[str, str]]
    left_out: dict[str, str]
    missing: list[str]

    def run(self) -> None:
        """Read one tensor at a time and assign the weights.

        Values that are NaN or infinite are assigned with a warning, not refused: a file may use them for what is never
        read, such as the bias of padding in a vocabulary, and whoever wants to repair a model has to load it.

        Raises:
            PresetError: If two tensors that must be equal are not.
        """
        for copy, original in self.copies:
            if not np.array_equal(self.tensors.read(copy), self.tensors.read(original)):
                raise PresetError(
                    f"{self.tensors.path}: {copy} differs from {original}, but the model has one weight for both."
                )
        problem = None
        for weights, name, transform in self.assignments:
            parts = [transform.load(self.tensors.read(name))]
            problem = problem or not_finite(name, parts[0])
            if len(weights) > 1:
                ends = np.cumsum([weight.shape[-1] for weight in weights])
                parts = np.split(parts[0], ends[:-1], axis=-1)
            for weight, part in zip(weights, parts, strict=True):
                weight.assign(part)
        warn_of_not_finite(self.tensors.path, problem)


def weights_of(model: keras.Model) -> dict[str, keras.Variable]:
    """Return the variables of a model that files hold, by path: all but the states of random number generators."""
    return {weight.path: weight for weight in model.weights}


def check_sizes(layout: Layout, tensors: TensorFile, config: Any) -> None:
    """Check, before a model is built, that a configuration does not make it far larger than what a file holds.

    Up to twice the size is left to `plan`, which names the tensor that is missing or has another shape.

    Raises:
        PresetError: Naming the configuration's key whose value is too large.
    """
    names = canonical_names(layout, tensors)
    keys = layout.config.stored_keys
    numbers: dict[str, set[str]] = {}
    for pattern in map(name_pattern, {row.name for row in layout.backbone.values()}):
        for letter in pattern.groupindex:
            numbers.setdefault(letter, set()).update(m[letter] for name in names if (m := pattern.fullmatch(name)))
    for letter, argument in getattr(config, "numbered", _NUMBERED).items():
        if letter in numbers:
            _check_size(keys, argument, getattr(config, argument), len(numbers[letter]), "of them", tensors.path)
    check_axes(type(config), vars(config), map(tensors.shape, names.values()), tensors.path, keys)


def check_axes(
    cls: type, arguments: Mapping[str, Any], shapes: Iterable[Shape], path: Path, keys: Mapping[str, str]
) -> None:
    """Check that the axes of a configuration are not far longer than the axes of a file's tensors; see `check_sizes`.

    Args:
        cls: The family's configuration class.
        arguments: Arguments of the class.
        shapes: Shapes of the tensors.
        path: The file, for messages.
        keys: What messages call the arguments that they do not call by their names.

    Raises:
        PresetError: Naming the argument that is too large.
    """
    longest = max((length for shape in shapes for length in shape), default=0)
    for argument in (name for name in _AXES if name not in getattr(cls, "without_axis", ())):
        if argument != "filters" or not arguments.get("vocabulary_size"):  # of characters, where words have no vectors
            _check_size(keys, argument, arguments.get(argument), longest, "at most in one tensor", path)


def _check_size(keys: Mapping[str, str], argument: str, size: Any, most: int, what: str, path: Path) -> None:
    largest = max((value for value in keras.tree.flatten(size) if isinstance(value, int)), default=0)
    if largest > 2 * most:
        key = keys.get(argument, f"`{argument}`")
        raise PresetError(
            f"According to its configuration {key} is {largest:,}, but {path} holds {most:,} {what}: "
            "configuration and weights do not belong together. Nothing was built."
        )


def plan(layout: Layout, tensors: TensorFile, weights: Weights, head: str | None = None) -> Plan:
    """Find the tensor of every weight, and the reason to ignore every other tensor.

    `weights` are the backbone's by path and, if `head` is given, those of a head of that kind.

    Raises:
        PresetError: Naming the file and the first tensor that is missing, left over, or of another shape or dtype.
    """
    rows = _rows(layout, weights, head)
    stored_names = canonical_names(layout, tensors)
    missing = [path for path, row in rows.items() if row.name not in stored_names]
    for path in missing:
        group = next((prefix for prefix in layout.optional if path.startswith(prefix)), None)
        if group is None or any(other.startswith(group) for other in rows.keys() - set(missing)):
            raise PresetError(f"{tensors.path} lacks {rows[path].name!r} (the model's {path}).")
    missing += [path for path in weights if path.startswith(layout.optional) and path not in rows]
    # In the table -> in the file.
    names = {row.name: stored_names[row.name] for row in rows.values() if row.name in stored_names}
    assignments = []
    for name, paths in _sharing(layout, rows).items():
        if name in names:
            variables = [weights[path] for path in paths]
            transform = rows[paths[0]].transform
            shape = tuple(variables[0].shape)
            if len(variables) > 1:
                shape = (*shape[:-1], sum(variable.shape[-1] for variable in variables))
            _check(tensors, names[name], transform.shape(shape), " and ".join(paths))
            assignments.append((variables, names[name], transform))
    copies = []
    left_out = {}
    for canonical, name in stored_names.items():
        original = layout.copies.get(canonical)
        if canonical in names:
            continue
        if original in names:
            _check(tensors, name, tensors.shape(names[original]), f"a copy of {original}")
            copies.append((name, names[original]))
        elif reason := _reason(layout, canonical, head):
            left_out[name] = reason
        else:
            raise PresetError(
                f"{tensors.file_of(name)} holds {name!r} {tensors.shape(name)}, which is not part of the model: it "
                "does not match the configuration, or it is another kind of model. Nothing was loaded."
            )
    return Plan(tensors, assignments, copies, left_out, missing)


def tensors_of(layout: Layout, weights: Weights, head: str | None = None) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and arrays that a file holds for weights by path, a `head` of that kind included."""
    rows = _rows(layout, weights, head)
    problem = None
    for name, paths in _sharing(layout, rows).items():
        arrays = [keras.ops.convert_to_numpy(weights[path]) for path in paths]
        array = np.concatenate(arrays, axis=-1) if len(arrays) > 1 else arrays[0]
        problem = problem or not_finite(name, array)
        yield name, np.ascontiguousarray(rows[paths[0]].transform.store(array))
    warn_of_not_finite("The model that is saved", problem)


def _rows(layout: Layout, paths: Iterable[str], head: str | None) -> dict[str, Row]:
    """Return the row of each weight that files hold, the numbers in its name filled in.

    Raises:
        PresetError: If the format has no place for a weight.
    """
    table = {**layout.backbone, **(layout.heads[head] if head else {})}
    rows = {}
    for path in paths:
        if path.startswith(layout.absent):
            continue
        for template, row in table.items():
            if match := name_pattern(template).fullmatch(path):
                rows[path] = replace(row, name=row.name.format(**match.groupdict()))
                break
        else:
            if not path.startswith(layout.optional):
                raise PresetError(f"The format {layout.name!r} has no place for the weight {path!r}.")
    return rows


def _sharing(layout: Layout, rows: Mapping[str, Row]) -> dict[str, list[str]]:
    """Return the paths of the weights that each tensor holds, in the order of its parts.

    Raises:
        PresetError: If the table gives one tensor to two weights, or omits a part of a tensor.
    """
    paths_by_tensor: dict[str, list[str]] = {}
    for path, row in rows.items():
        paths_by_tensor.setdefault(row.name, []).append(path)
    for name, paths in paths_by_tensor.items():
        paths.sort(key=lambda path: rows[path].part or 0)
        parts = [rows[path].part for path in paths]
        layouts = {rows[path].transform for path in paths}
        if parts not in ([None], list(range(len(paths)))) or len(layouts) > 1:
            raise PresetError(f"The format {layout.name!r} does not say which part of {name!r} is {', '.join(paths)}.")
    return paths_by_tensor


def name_pattern(template: str) -> re.Pattern[str]:
    """Turn `block_{i}/kernel` into a regular expression with a group i."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+)", re.escape(template)))


def canonical_names(layout: Layout, tensors: TensorFile) -> dict[str, str]:
    """Return the names of tensors: as the table spells them -> as the file spells them.

    Raises:
        PresetError: If the table has one spelling for two tensors of the file.
    """
    stored_names: dict[str, str] = {}
    for name in tensors.names():
        canonical = name
        for pattern, replacement in layout.aliases.items():
            canonical = re.sub(pattern, replacement, canonical)
        if canonical in stored_names:
            raise PresetError(f"{tensors.path} holds the same tensor twice: {stored_names[canonical]!r} and {name!r}.")
        stored_names[canonical] = name
    return stored_names


def _check(tensors: TensorFile, name: str, shape: Shape, purpose: str) -> None:
    if tensors.shape(name) != shape:
        raise PresetError(
            f"{tensors.file_of(name)}: {name!r} has shape {tensors.shape(name)}, expected {shape} for {purpose}."
        )
    if tensors.dtype(name) not in ("float16", "bfloat16", "float32", "float64"):
        raise PresetError(f"{tensors.file_of(name)}: {name!r} holds {tensors.dtype(name)}, expected floats.")


def _reason(layout: Layout, canonical: str, head: str | None) -> str | None:
    """Return the reason to ignore a tensor, or None if it must not be ignored."""
    if reason := next((why for pattern, why in layout.ignored.items() if re.fullmatch(pattern, canonical)), None):
        return reason
    for kind, table in layout.heads.items():
        if kind != head and any(name_pattern(row.name).fullmatch(canonical) for row in table.values()):
            return f"the head of a {task_name(kind)}"
    return f"a copy of {layout.copies[canonical]}" if canonical in layout.copies else None
