"""Mapping between the weights of a model and the tensors of a checkpoint, by a table for each family and format.

Nothing is guessed. Before the first tensor is read, every weight of the model that is not optional is matched with a
tensor of the right shape, and every other tensor of the file is a copy of a matched tensor or is ignored for a stated
reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np

from lmzoo.checkpoints.config_table import Arguments, ConfigTable
from lmzoo.checkpoints.formats.tensor_file import Shape, TensorFile
from lmzoo.common.tensor_types import Tensor
from lmzoo.errors import PresetError
from lmzoo.layers.finite import describe_not_finite, warn_about_not_finite
from lmzoo.registry.head_kinds import task_name

Weights: TypeAlias = Mapping[str, keras.Variable]  # by their paths

TOKEN_TABLE = "embeddings/token_embedding/embeddings"  # path of the token embeddings in backbones
# Placeholder in templates of tensor names -> the argument that gives the number of its values. A configuration class
# with other placeholders overrides this with its attribute `numbered`.
_NUMBERED = {"h": "num_highway", "i": "num_layers"}
# Arguments that equal the length of an axis of some tensor, except those in `without_axis` of a configuration class.
_AXES = (
    "bucket_size", "embedding_dim", "filters", "hidden_dim", "intermediate_dim", "lstm_dim", "max_sequence_length",
    "num_buckets", "projection_dim", "vocabulary_size",
)  # fmt: skip


@dataclass(frozen=True)
class Transform:
    """A conversion between a weight and a stored tensor with the same values in another shape or order.

    Attributes:
        shape: Function from the weight's shape to the stored tensor's shape.
        load: Function from the stored tensor to the weight's array.
        store: Function from the weight's array to the stored tensor.
    """

    shape: Callable[[Shape], Shape]
    load: Callable[[np.ndarray], np.ndarray]
    store: Callable[[np.ndarray], np.ndarray]


SAME = Transform(lambda shape: shape, lambda a: a, lambda a: a)


def _transpose_copy(matrix: np.ndarray) -> np.ndarray:
    """Return a transposed copy of a matrix.

    Copying strips that fit the CPU cache is several times faster than copying a transposed view.
    """
    transposed_matrix = np.empty(matrix.shape[::-1], matrix.dtype)
    for start in range(0, len(matrix), 32):
        transposed_matrix[:, start : start + 32] = matrix[start : start + 32].T
    return transposed_matrix


TRANSPOSED = Transform(lambda shape: shape[::-1], _transpose_copy, lambda a: a.T)
ONE_AXIS_MORE = Transform(lambda shape: (1, *shape), lambda a: a[0], lambda a: a[None])


def skip_rows(count: int) -> Transform:
    """Return the transform for a table stored without its first `count` rows, which are loaded as zeros."""
    return Transform(
        lambda shape: (shape[0] - count, *shape[1:]),
        lambda a: np.concatenate([np.zeros((count, *a.shape[1:]), a.dtype), a]),
        lambda a: a[count:],
    )


@dataclass(frozen=True)
class Row:
    """A row of a `Table`: the stored tensor of a weight.

    Attributes:
        name: Template of the tensor's name, with the same placeholders, such as `{i}`, as the weight's path.
        transform: Conversion between the weight and the tensor.
        alternative: A pair, the path template of another weight and the name template of the tensor in models that lack
            the other weight; or None if the tensor has the same name in all models.
        part: Index of the weight in a tensor that holds several weights, or None if the tensor holds only this weight.
            GPT-2's `c_attn`, for example, holds the kernels of query, key and value. In the array that
            `transform.load` returns, the weights are concatenated along the last axis.
    """

    name: str
    transform: Transform = SAME
    part: int | None = None
    alternative: tuple[str, str] | None = None


# Path of a weight -> its stored tensor. `{i}` in a path matches a number, which the name of the tensor repeats.
Table = Mapping[str, Row]


_WEIGHTS = ("kernel", "bias", "gamma", "beta", "embeddings")  # names of the weights in Keras layers


def torch_modules(modules: Mapping[str, str], kernel: Transform = TRANSPOSED) -> dict[str, Row]:
    """Return the table rows of layers that are stored under PyTorch's names.

    Args:
        modules: Dict from layer path to the name of the PyTorch module.
        kernel: Transform of the kernels.
    """
    return _make_rows(modules, (".weight", ".bias", ".weight", ".bias", ".weight"), kernel)


def tensorflow_modules(modules: Mapping[str, str]) -> dict[str, Row]:
    """Return the table rows of layers that are stored under TensorFlow 1's names.

    Args:
        modules: Dict from layer path to variable scope.
    """
    return _make_rows(modules, ("/kernel", "/bias", "/gamma", "/beta", ""))


def keras_layers(places: Mapping[str, str], prefix: str = "") -> dict[str, Row]:
    """Return the table rows of layers that are stored under the names of Keras weight files.

    Args:
        places: Dict from layer path to the path of the layer in the file, below `layers/`.
        prefix: Prefix of all tensor names.
    """
    places = {layer: f"{prefix}layers/{place}" for layer, place in places.items()}
    return _make_rows(places, ("/vars/0", "/vars/1", "/vars/0", "/vars/1", "/vars/0"))


def _make_rows(modules: Mapping[str, str], endings: Sequence[str], kernel: Transform = SAME) -> dict[str, Row]:
    return {
        f"{layer}/{weight}": Row(f"{module}{ending}", kernel if weight == "kernel" else SAME)
        for layer, module in modules.items()
        for weight, ending in zip(_WEIGHTS, endings, strict=True)
    }


@dataclass(frozen=True)
class Layout:
    """The mapping between one file format and a family's configuration and weights.

    Attributes:
        name: Name of the format, for messages.
        config: Table of the configuration file.
        backbone: Table of the backbone's weights.
        heads: Dict from kind of head to the table of its weights.
        unread_heads: Dict from a kind of head that lmzoo cannot read to the name of a tensor that only this head has.
        aliases: Dict from regular expression to replacement, to normalize the spelling of tensor names.
        copies: Dict from the name of a copy to the name of the original tensor, which must have the same values.
        optional: Path prefixes of weight groups that a file may lack, such as "pooler/". A file lacks all weights
            of a group or none. If the tables have no rows for a group, every file lacks it.
        absent: Path prefixes of weights that no file holds. Loading leaves them unchanged.
        ignored: Reason to ignore tensors, by regular expression for their names.
        complete: Function from a configuration to additions that files need and that do not change the model:
            arguments to replace when writing, and extra tensors by name.
        merge: Function from a configuration and the stored weights by path to the model that files can hold instead:
            arguments to replace when writing, and its weights by path.
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
    merge: Callable[[Any, dict[str, Tensor]], tuple[Arguments, dict[str, Tensor]]] = lambda _, weights: ({}, weights)


@dataclass(frozen=True)
class Plan:
    """A complete assignment of stored tensors to weights, with all names, shapes and dtypes checked.

    Attributes:
        tensors: Tensors of the file.
        assignments: A tuple for each tensor: the weights that it holds, in order; its name in the file; and its
            transform.
        copies: Names of a copy and its original, for each pair of tensors that must be equal.
        left_out: Reason why a tensor is not read, by its name.
        missing: Paths of optional weights that the file lacks.
    """

    tensors: TensorFile
    assignments: list[tuple[list[keras.Variable], str, Transform]]
    copies: list[tuple[str, str]]
    left_out: dict[str, str]
    missing: list[str]

    def run(self) -> None:
        """Read the tensors one at a time and assign them to the weights.

        NaN and infinite values are assigned with a warning: a file may hold them where they are never read, such as
        the output bias of padding tokens, and a model must be loaded to be repaired.

        Raises:
            PresetError: If a tensor differs from its copy.
        """
        for copy, original in self.copies:
            if not np.array_equal(self.tensors.read(copy), self.tensors.read(original), equal_nan=True):
                raise PresetError(
                    f"{self.tensors.path}: {copy} differs from {original}, but the model has one weight for both."
                )
        problem = None
        for weights, name, transform in self.assignments:
            arrays = [transform.load(self.tensors.read(name))]
            problem = problem or describe_not_finite(name, arrays[0])
            if len(weights) > 1:
                ends = np.cumsum([weight.shape[-1] for weight in weights])
                arrays = np.split(arrays[0], ends[:-1], axis=-1)
            for weight, array in zip(weights, arrays, strict=True):
                weight.assign(array)
        warn_about_not_finite(self.tensors.path, problem)


def get_weights_by_path(model: keras.Model) -> dict[str, keras.Variable]:
    """Return the weights of a model by path, without the states of random number generators."""
    return {weight.path: weight for weight in model.weights}


def check_sizes(layout: Layout, tensors: TensorFile, config: Any) -> None:
    """Check, before building a model, that the sizes in its configuration are not far larger than the stored sizes.

    Sizes up to twice the stored sizes pass; `plan` later reports the tensors that do not match.

    Args:
        layout: Layout of the file.
        tensors: Tensors of the file.
        config: Configuration of the backbone.

    Raises:
        PresetError: If a size in the configuration is too large; the message names its key.
    """
    names = canonical_names(layout, tensors)
    key_descriptions = layout.config.stored_keys
    numbers_by_placeholder: dict[str, set[str]] = {}
    for pattern in map(name_pattern, {row.name for row in layout.backbone.values()}):
        for placeholder in pattern.groupindex:
            numbers_by_placeholder.setdefault(placeholder, set()).update(
                match[placeholder] for name in names if (match := pattern.fullmatch(name))
            )
    for placeholder, argument in getattr(config, "numbered", _NUMBERED).items():
        if placeholder in numbers_by_placeholder:
            _check_size(
                key_descriptions,
                argument,
                getattr(config, argument),
                len(numbers_by_placeholder[placeholder]),
                "of them",
                tensors.path,
            )
    check_axes(type(config), vars(config), map(tensors.shape, names.values()), tensors.path, key_descriptions)


def check_axes(
    cls: type, arguments: Mapping[str, Any], shapes: Iterable[Shape], path: Path, keys: Mapping[str, str]
) -> None:
    """Check that no axis length in a configuration exceeds twice the longest axis of the stored tensors.

    Args:
        cls: Configuration class of the family.
        arguments: Arguments of the configuration class.
        shapes: Shapes of the stored tensors.
        path: Path of the file, for messages.
        keys: Dict from argument to its name in messages, where the two differ.

    Raises:
        PresetError: If an argument is too large; the message names it.
    """
    longest_axis = max((length for shape in shapes for length in shape), default=0)
    for argument in (name for name in _AXES if name not in getattr(cls, "without_axis", ())):
        # Models with a vocabulary have no character filters.
        if argument != "filters" or not arguments.get("vocabulary_size"):
            _check_size(keys, argument, arguments.get(argument), longest_axis, "at most in one tensor", path)


def _check_size(
    keys: Mapping[str, str], argument: str, size: Any, stored_size: int, description: str, path: Path
) -> None:
    largest_size = max((value for value in keras.tree.flatten(size) if isinstance(value, int)), default=0)
    if largest_size > 2 * stored_size:
        key = keys.get(argument, f"`{argument}`")
        raise PresetError(
            f"According to its configuration {key} is {largest_size:,}, but {path} holds {stored_size:,} "
            f"{description}: configuration and weights do not belong together. Nothing was built."
        )


def plan(layout: Layout, tensors: TensorFile, weights: Weights, head: str | None = None) -> Plan:
    """Match every weight with a stored tensor, and check that every other tensor is a copy or may be ignored.

    Args:
        layout: Layout of the file.
        tensors: Tensors of the file.
        weights: Weights of the backbone and of the head, by path.
        head: Kind of the head, or None if there is no head.

    Raises:
        PresetError: If a tensor is missing, unexpected, or of the wrong shape or dtype; the message names the file and
            the first such tensor.
    """
    stored_names = canonical_names(layout, tensors)
    rows = _match_rows(layout, weights, head)
    rows = {path: replace(row, name=_find_tensor_to_read(layout, row, stored_names)) for path, row in rows.items()}
    missing_paths = [path for path, row in rows.items() if row.name not in stored_names]
    for path in missing_paths:
        group = next((prefix for prefix in layout.optional if path.startswith(prefix)), None)
        if group is None or any(stored_path.startswith(group) for stored_path in rows.keys() - set(missing_paths)):
            raise PresetError(f"{tensors.path} lacks {rows[path].name!r} (the model's {path}).")
    missing_paths += [path for path in weights if path.startswith(layout.optional) and path not in rows]
    # Name in the table -> name in the file.
    matched_names = {row.name: stored_names[row.name] for row in rows.values() if row.name in stored_names}
    assignments = []
    for name, paths in _group_by_tensor(layout, rows).items():
        if name in matched_names:
            variables = [weights[path] for path in paths]
            transform = rows[paths[0]].transform
            shape = tuple(variables[0].shape)
            if len(variables) > 1:
                shape = (*shape[:-1], sum(variable.shape[-1] for variable in variables))
            _check_tensor(tensors, matched_names[name], transform.shape(shape), " and ".join(paths))
            assignments.append((variables, matched_names[name], transform))
    copies = []
    left_out = {}
    for canonical_name, name in stored_names.items():
        original_name = layout.copies.get(canonical_name)
        if canonical_name in matched_names:
            continue
        if reason := _find_reason_to_ignore(layout, canonical_name, head, matched_names):
            left_out[name] = reason
        elif original_name in matched_names:
            _check_tensor(tensors, name, tensors.shape(matched_names[original_name]), f"a copy of {original_name}")
            copies.append((name, matched_names[original_name]))
        else:
            raise PresetError(
                f"{tensors.file_of(name)} holds {name!r} {tensors.shape(name)}, which is not part of the model: it "
                "does not match the configuration, or it is another kind of model. Nothing was loaded."
            )
    return Plan(tensors, assignments, copies, left_out, missing_paths)


def convert_to_tensors(
    layout: Layout, weights: Mapping[str, Tensor], head: str | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and array of each tensor to write.

    Args:
        layout: Layout of the file.
        weights: Weights of the backbone and of the head, by path.
        head: Kind of the head, or None if there is no head.

    Raises:
        PresetError: If the format has no place for a weight.
    """
    rows = _match_rows(layout, weights, head)
    problem = None
    for name, paths in _group_by_tensor(layout, rows).items():
        arrays = [keras.ops.convert_to_numpy(weights[path]) for path in paths]
        array = np.concatenate(arrays, axis=-1) if len(arrays) > 1 else arrays[0]
        problem = problem or describe_not_finite(name, array)
        yield name, np.ascontiguousarray(rows[paths[0]].transform.store(array))
    warn_about_not_finite("The model that is saved", problem)


def _match_rows(layout: Layout, paths: Iterable[str], head: str | None) -> dict[str, Row]:
    """Return the row of each weight that the format stores, with the numbers in its path filled into the tensor name.

    Raises:
        PresetError: If the format has no place for a weight.
    """
    table = {**layout.backbone, **(layout.heads[head] if head else {})}
    paths = list(paths)
    existing_paths = set(paths)
    rows = {}
    for path in paths:
        if path.startswith(layout.absent):
            continue
        for template, row in table.items():
            if match := name_pattern(template).fullmatch(path):
                numbers_by_placeholder = match.groupdict()
                name = row.name
                if row.alternative and row.alternative[0].format(**numbers_by_placeholder) not in existing_paths:
                    name = row.alternative[1]
                rows[path] = replace(row, name=name.format(**numbers_by_placeholder))
                break
        else:
            if not path.startswith(layout.optional):
                raise PresetError(f"The format {layout.name!r} has no place for the weight {path!r}.")
    return rows


def _find_tensor_to_read(layout: Layout, row: Row, stored_names: Collection[str]) -> str:
    """Return the name of the tensor to read for a weight: its own tensor or, if the file lacks it, the original.

    Only rows with an alternative fall back to the original, for files of transformers 4, which always shared the output
    bias.
    """
    original_name = layout.copies.get(row.name)
    has_only_original = row.alternative is not None and row.name not in stored_names and original_name in stored_names
    return original_name if original_name is not None and has_only_original else row.name


def _group_by_tensor(layout: Layout, rows: Mapping[str, Row]) -> dict[str, list[str]]:
    """Group the paths of the weights by the name of the tensor that holds them, in the order of `Row.part`.

    Raises:
        PresetError: If two weights claim the same part of a tensor, no weight claims a part, or the transforms of the
            parts differ.
    """
    paths_by_tensor: dict[str, list[str]] = {}
    for path, row in rows.items():
        paths_by_tensor.setdefault(row.name, []).append(path)
    for name, paths in paths_by_tensor.items():
        paths.sort(key=lambda path: rows[path].part or 0)
        parts = [rows[path].part for path in paths]
        transforms = {rows[path].transform for path in paths}
        if parts not in ([None], list(range(len(paths)))) or len(transforms) > 1:
            raise PresetError(f"The format {layout.name!r} does not say which part of {name!r} is {', '.join(paths)}.")
    return paths_by_tensor


def name_pattern(template: str) -> re.Pattern[str]:
    """Compile a template such as `block_{i}/kernel` to a regular expression with a group `i` of digits."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+)", re.escape(template)))


def list_tensors(table: Table) -> set[str]:
    """Return the templates of all tensor names in a table."""
    alternatives = {row.alternative[1] for row in table.values() if row.alternative}
    return {row.name for row in table.values()} | alternatives


def list_head_tensors(layout: Layout, kind: str) -> set[str]:
    """Return the tensor names of a kind of head, except for copies of other tensors, since a file may lack copies."""
    return {row.name for row in layout.heads[kind].values() if row.name not in layout.copies}


def canonical_names(layout: Layout, tensors: TensorFile) -> dict[str, str]:
    """Return a mapping from each tensor's name in the table to its name in the file.

    Raises:
        PresetError: If two tensors of the file have the same name in the table.
    """
    stored_names: dict[str, str] = {}
    for name in tensors.names():
        canonical_name = name
        for pattern, replacement in layout.aliases.items():
            canonical_name = re.sub(pattern, replacement, canonical_name)
        if canonical_name in stored_names:
            raise PresetError(
                f"{tensors.path} holds the same tensor twice: {stored_names[canonical_name]!r} and {name!r}."
            )
        stored_names[canonical_name] = name
    return stored_names


def _check_tensor(tensors: TensorFile, name: str, shape: Shape, purpose: str) -> None:
    if tensors.shape(name) != shape:
        raise PresetError(
            f"{tensors.file_of(name)}: {name!r} has shape {tensors.shape(name)}, expected {shape} for {purpose}."
        )
    if tensors.dtype(name) not in ("float16", "bfloat16", "float32", "float64"):
        raise PresetError(f"{tensors.file_of(name)}: {name!r} holds {tensors.dtype(name)}, expected floats.")


def _find_reason_to_ignore(
    layout: Layout, canonical_name: str, head: str | None, read_names: Collection[str]
) -> str | None:
    """Return the reason to ignore a stored tensor, or None if there is no reason to ignore it.

    Args:
        layout: Layout of the file.
        canonical_name: Name of the tensor in the table.
        head: Kind of the head, or None if there is no head.
        read_names: Names of the tensors that are read.
    """
    if reason := next(
        (explanation for pattern, explanation in layout.ignored.items() if re.fullmatch(pattern, canonical_name)), None
    ):
        return reason
    kinds = [kind for kind, table in layout.heads.items() if _lists_tensor(table, canonical_name)]
    if kinds and head not in kinds:
        return f"the head of a {task_name(kinds[0])}"
    original_name = layout.copies.get(canonical_name)
    if original_name is not None and original_name not in read_names:
        return f"a copy of {original_name}"
    untied_copy = next((copy for copy in read_names if layout.copies.get(copy) == canonical_name), None)
    return f"{untied_copy}, which is not tied to it, is read in its place" if untied_copy else None


def _lists_tensor(table: Table, canonical_name: str) -> bool:
    return any(name_pattern(template).fullmatch(canonical_name) for template in list_tensors(table))
