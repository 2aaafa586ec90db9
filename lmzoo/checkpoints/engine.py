"""Weights to and from checkpoint files: one table of names for a family and a format, read in both directions.

Nothing is guessed. Before the first tensor is read, every weight of the model has exactly one tensor of its shape, and
every tensor of the file belongs to a weight, repeats one, or is listed as one to leave out, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np

from lmzoo.checkpoints.config_table import ConfigTable
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.errors import PresetError
from lmzoo.head_kinds import task_name

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Transform:
    """The same values in another layout.

    Attributes:
        shape: from a weight's shape to that of the stored tensor.
        load: from the stored tensor to the weight.
        store: back.
    """

    shape: Callable[[Shape], Shape]
    load: Callable[[np.ndarray], np.ndarray]
    store: Callable[[np.ndarray], np.ndarray]


def _itself(value: Any) -> Any:
    return value


SAME = Transform(_itself, _itself, _itself)


def _transposed(matrix: np.ndarray) -> np.ndarray:
    """A transposed copy.

    Copying in strips that fit the cache is several times faster than letting a framework copy a transposed view.
    """
    result = np.empty(matrix.shape[::-1], matrix.dtype)
    for start in range(0, len(matrix), 32):
        result[:, start : start + 32] = matrix[start : start + 32].T
    return result


TRANSPOSED = Transform(lambda shape: shape[::-1], _transposed, lambda a: a.T)
ONE_AXIS_MORE = Transform(lambda shape: (1, *shape), lambda a: a[0], lambda a: a[None])


def without_rows(count: int) -> Transform:
    """Without the first `count` rows, which are zero where they are loaded."""
    return Transform(
        lambda shape: (shape[0] - count, *shape[1:]),
        lambda a: np.concatenate([np.zeros((count, *a.shape[1:]), a.dtype), a]),
        lambda a: a[count:],
    )


@dataclass(frozen=True)
class Row:
    """Where a weight is stored.

    Attributes:
        name: the tensor's name, a template as the row's key in the table.
        transform: the tensor's layout.
        part: which of several weights in one tensor it is, counted from 0; None if the tensor holds no other. GPT-2's
            `c_attn`, for example, holds the kernels of query, key and value. In our layout the parts lie side by side
            on the last axis.
    """

    name: str
    transform: Transform = SAME
    part: int | None = None


# From weights to what is stored. A key is a weight's path, with `{i}` for a number that the name repeats.
Table = Mapping[str, Row]


def torch_modules(modules: Mapping[str, str]) -> dict[str, Row]:
    """The rows of layers that PyTorch wrote; `modules` maps a layer's path to the module's name."""
    kinds = {"kernel": ("weight", TRANSPOSED), "bias": ("bias", SAME), "embeddings": ("weight", SAME)}
    kinds |= {"gamma": ("weight", SAME), "beta": ("bias", SAME)}
    return {
        f"{layer}/{weight}": Row(f"{module}.{name}", transform)
        for layer, module in modules.items()
        for weight, (name, transform) in kinds.items()
    }


def tensorflow_modules(modules: Mapping[str, str]) -> dict[str, Row]:
    """The rows of layers that TensorFlow 1 wrote; `modules` maps a layer's path to the scope's name."""
    kinds = {name: f"/{name}" for name in ("kernel", "bias", "gamma", "beta")} | {"embeddings": ""}
    return {
        f"{layer}/{weight}": Row(f"{scope}{name}") for layer, scope in modules.items() for weight, name in kinds.items()
    }


@dataclass(frozen=True)
class Layout:
    """How a family's models are written in one file format.

    Attributes:
        name: what to call the format.
        config: between the file's configuration and the family's, see `ConfigTable`.
        backbone: the backbone's weights.
        heads: by its kind, the weights of a head.
        aliases: other spellings of names: regular expressions and what to put in their place.
        copies: tensors that may be stored once more: name -> that of the original, which must hold the same values.
        optional: paths before weights that may be missing together, such as those of a pooler that nobody trained.
        absent: paths before weights that no file holds, and that keep their values.
        ignored: tensors to leave out: regular expression -> the reason.
        complete: what files need beside our weights and change nothing, for a configuration: arguments to say instead,
            and tensors by name.
    """

    name: str
    config: ConfigTable
    backbone: Table
    heads: Mapping[str, Table] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    complete: Callable[[Any], tuple[dict[str, Any], dict[str, np.ndarray]]] = lambda config: ({}, {})


@dataclass(frozen=True)
class Plan:
    """What loading will do, checked and complete.

    Attributes:
        tensors: the file.
        assignments: the weights that a tensor holds, in order, its name in the file, and its layout.
        copies: names of tensors that must be equal.
        left_out: names of tensors that are not read, and why.
        missing: paths of weights that the file may lack, and does.
    """

    tensors: TensorFile
    assignments: list[tuple[list[Any], str, Transform]]
    copies: list[tuple[str, str]]
    left_out: dict[str, str]
    missing: list[str]

    def run(self) -> None:
        """Reads tensor by tensor and assigns the weights.

        Raises:
            PresetError: if two tensors that must be equal are not.
        """
        for copy, original in self.copies:
            if not np.array_equal(self.tensors.read(copy), self.tensors.read(original)):
                raise PresetError(
                    f"{self.tensors.path}: {copy} differs from {original}, but the model has one weight for both."
                )
        for weights, name, transform in self.assignments:
            parts = [transform.load(self.tensors.read(name))]
            if len(weights) > 1:
                ends = np.cumsum([weight.shape[-1] for weight in weights])
                parts = np.split(parts[0], ends[:-1], axis=-1)
            for weight, part in zip(weights, parts, strict=True):
                weight.assign(part)


def weights_of(model: Any) -> dict[str, Any]:
    """What a file holds of a model: its variables by path. Keras does not count the states of random numbers."""
    return {weight.path: weight for weight in model.weights}


def plan(format: Layout, tensors: TensorFile, weights: Mapping[str, Any], head: str | None = None) -> Plan:
    """Finds the tensor of every weight, and the reason for every other tensor.

    Args:
        format: the tables.
        tensors: the file.
        weights: path -> variable, the backbone's and, if `head` is given, the head's.
        head: kind of the head that is wanted, or None for none.

    Raises:
        PresetError: naming the file and the first tensor that is missing, left over, or of another shape or dtype.
    """
    table = {**format.backbone, **(format.heads[head] if head else {})}
    weights = {path: weight for path, weight in weights.items() if not path.startswith(format.absent)}
    rows = {path: lookup(format, table, path) for path in weights}
    found = canonical_names(format, tensors)
    missing = [path for path, row in rows.items() if row.name not in found]
    for path in missing:
        group = next((prefix for prefix in format.optional if path.startswith(prefix)), None)
        if group is None or any(other.startswith(group) for other in rows.keys() - set(missing)):
            raise PresetError(f"{tensors.path} lacks {rows[path].name!r} (the model's {path}).")
    names = {
        row.name: found[row.name] for path, row in rows.items() if path not in missing
    }  # in the table, in the file
    assignments = []
    for name, paths in _sharing(format, rows).items():
        if name in names:
            held, transform = [weights[path] for path in paths], rows[paths[0]].transform
            _check(tensors, names[name], transform.shape(_joined_shape(held)), " and ".join(paths))
            assignments.append((held, names[name], transform))
    copies, left_out = [], {}
    for canonical, name in found.items():
        original = format.copies.get(canonical)
        if canonical in names:
            continue
        if original in names:
            _check(tensors, name, tensors.shape(names[original]), f"a copy of {original}")
            copies.append((name, names[original]))
        elif reason := _reason(format, canonical, head):
            left_out[name] = reason
        else:
            raise PresetError(
                f"{tensors.file_of(name)} holds {name!r} {tensors.shape(name)}, which is no part of the model: its "
                "configuration says something else, or it is another kind of model. Nothing was loaded."
            )
    return Plan(tensors, assignments, copies, left_out, missing)


def tensors_of(format: Layout, weights: Mapping[str, Any], head: str | None = None) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors that a file of a format holds of these weights: pairs of a name and an array.

    Args:
        format: the tables.
        weights: path -> variable.
        head: kind of the head that is among them, or None.
    """
    rows = {}
    for path in weights:
        if not path.startswith(format.absent):
            in_head = head is not None and _matching(format.heads[head], path) is not None
            rows[path] = lookup(format, format.heads[head] if in_head else format.backbone, path)
    for name, paths in _sharing(format, rows).items():
        arrays = [keras.ops.convert_to_numpy(weights[path]) for path in paths]
        array = np.concatenate(arrays, axis=-1) if len(arrays) > 1 else arrays[0]
        yield name, np.ascontiguousarray(rows[paths[0]].transform.store(array))


def _sharing(format: Layout, rows: Mapping[str, Row]) -> dict[str, list[str]]:
    """The paths of the weights that each tensor holds, its parts in order.

    Raises:
        PresetError: if the table gives a tensor to two weights, or leaves out a part of one.
    """
    found: dict[str, list[str]] = {}
    for path, row in rows.items():
        found.setdefault(row.name, []).append(path)
    for name, paths in found.items():
        paths.sort(key=lambda path: rows[path].part or 0)
        parts, layouts = [rows[path].part for path in paths], {rows[path].transform for path in paths}
        if parts not in ([None], list(range(len(paths)))) or len(layouts) > 1:
            raise PresetError(f"The format {format.name!r} does not say which part of {name!r} is {', '.join(paths)}.")
    return found


def _joined_shape(weights: list[Any]) -> Shape:
    """The shape of weights side by side on the last axis."""
    if len(weights) == 1:
        return tuple(weights[0].shape)
    return (*weights[0].shape[:-1], sum(weight.shape[-1] for weight in weights))


def lookup(format: Layout, table: Table, path: str) -> Row:
    """The row of a weight in one of a format's tables, its numbers filled in.

    Raises:
        PresetError: if the format has no place for the weight.
    """
    row = _matching(table, path)
    if row is None:
        raise PresetError(f"The format {format.name!r} has no place for the weight {path!r}.")
    return row


def _matching(table: Table, path: str) -> Row | None:
    for template, row in table.items():
        if match := _pattern(template).fullmatch(path):
            return replace(row, name=row.name.format(**match.groupdict()))
    return None


def _pattern(template: str) -> re.Pattern[str]:
    """`block_{i}/kernel` as a regular expression with a group i."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+)", re.escape(template)))


def canonical_names(format: Layout, tensors: TensorFile) -> dict[str, str]:
    """The file's names by how the table spells them.

    Raises:
        PresetError: if two of them are spelt alike.
    """
    found: dict[str, str] = {}
    for name in tensors.names():
        canonical = name
        for pattern, replacement in format.aliases.items():
            canonical = re.sub(pattern, replacement, canonical)
        if canonical in found:
            raise PresetError(f"{tensors.path} holds the same tensor twice: {found[canonical]!r} and {name!r}.")
        found[canonical] = name
    return found


def _check(tensors: TensorFile, name: str, shape: Shape, purpose: str) -> None:
    if tensors.shape(name) != shape:
        raise PresetError(
            f"{tensors.file_of(name)}: {name!r} has shape {tensors.shape(name)}, expected {shape} for {purpose}."
        )
    if tensors.dtype(name) not in ("float16", "bfloat16", "float32", "float64"):
        raise PresetError(f"{tensors.file_of(name)}: {name!r} holds {tensors.dtype(name)}, expected floats.")


def _reason(format: Layout, canonical: str, head: str | None) -> str | None:
    """Why a tensor is not read; None if there is no reason not to."""
    if reason := next((why for pattern, why in format.ignored.items() if re.fullmatch(pattern, canonical)), None):
        return reason
    for kind, table in format.heads.items():
        if kind != head and any(_pattern(row.name).fullmatch(canonical) for row in table.values()):
            return f"the head of a {task_name(kind)}"
    return f"a copy of {format.copies[canonical]}" if canonical in format.copies else None
