"""Detection of the family of a transformers checkpoint, from `config.json` or the tensor names."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from lmzoo.checkpoints.config_table import JsonObject, require_value
from lmzoo.checkpoints.engine import TOKEN_TABLE, Layout, canonical_names, list_tensors, name_pattern
from lmzoo.checkpoints.family_names import ARCHITECTURES, names_in_transformers
from lmzoo.checkpoints.formats.tensor_file import LazyTensors, TensorFile
from lmzoo.checkpoints.tokenizers.formats import holds_tokenizer
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE
from lmzoo.registry.family import Family, find_families_by_format

_FAMILY_AND_HEAD = re.compile(
    rf"(\w+?)(For({'|'.join(ARCHITECTURES.values())})|(DoubleHeads|Encoder|(With)?LMHead|MT)?Model)"
)


def read_architecture(file: Path, config: JsonObject) -> str | None:
    """Return the first class name in `architectures` of `config.json`, or None if there is none.

    TensorFlow class names, such as `TFBertModel`, are returned without "TF".

    Args:
        file: Path of `config.json`, for messages.
        config: Content of `config.json`.

    Raises:
        PresetError: If `architectures` is not a list of names.
    """
    architectures = config.get("architectures")
    if not architectures:
        return None
    names = [architectures] if isinstance(architectures, str) else architectures
    is_valid = isinstance(names, list) and all(isinstance(name, str) for name in names)
    require_value(is_valid, file, "architectures", "a list of names of classes", architectures)
    return str(names[0]).removeprefix("TF")


def detect_family(directory: Path, config: JsonObject, weights: LazyTensors, requested: str | None) -> Family:
    """Return the family of a transformers checkpoint.

    The first of these that is present decides: `model_type`, `requested`, `architectures`, the names of the tensors.
    If several families have the same `model_type`, `requested` and `architectures` choose between them.

    Args:
        directory: Directory of the checkpoint.
        config: Content of `config.json`.
        weights: Tensors of the checkpoint.
        requested: Name of the family for a checkpoint whose `model_type` is missing or ambiguous, or None.

    Raises:
        PresetError: If the family is not supported, several families match, or `architectures` or the tensor names
            contradict the family.
    """
    file = directory / CONFIG_FILE
    architecture = read_architecture(file, config)
    model_type = config.get("model_type")
    candidates = find_families_by_format("hf")
    if model_type is not None:
        matches = [family for family in candidates if names_in_transformers(family).model_type == model_type]
        matches = _choose_family(matches, architecture, requested)
        if not matches:
            supported_names = ", ".join(
                dict.fromkeys(names_in_transformers(family).model_type for family in candidates)
            )
            raise PresetError(
                f"{file}: models of type {model_type!r:.60} are not supported; supported are {supported_names}."
            )
    else:
        matches = [family for family in candidates if family.name == requested] or match_prefixes(architecture)
        matches = matches or _match_tensors(directory, weights.open(), candidates)
    if len(matches) != 1:
        hints = " or ".join(f'`family="{family.name}"`' for family in matches or candidates)
        names = " or ".join(family.name for family in matches) or "no supported family"
        message = f"{file} has no `model_type`, and the tensors' names are those of {names}. Pass {hints}."
        raise PresetError(message, "family")
    _refuse_other_class(file, architecture, matches[0])
    if model_type is None and requested is not None:
        _refuse_other_prefix(directory, weights.open(), matches[0])
    return matches[0]


def match_prefixes(architecture: str | None) -> list[Family]:
    """Return a list with the family whose class prefix, such as "Bert", is the longest that `architecture` starts with.

    The list is empty if `architecture` is None or starts with no family's prefix.
    """
    prefixes = {names_in_transformers(family).prefix: family for family in find_families_by_format("hf")}
    matches = {
        prefix: family for prefix, family in prefixes.items() if architecture and architecture.startswith(prefix)
    }
    max_length = max(map(len, matches), default=0)
    return [family for prefix, family in matches.items() if len(prefix) == max_length]


def _choose_family(matches: list[Family], architecture: str | None, requested: str | None) -> list[Family]:
    """Choose one of several families with the same `model_type`, such as a family and the family of its encoders.

    Returns:
        A list of one family: the requested family, else the first one with `architecture` among its irregular class
        names, else the first of `matches`. The list is empty if `matches` is empty.
    """
    preferred_families = [family for family in matches if family.name == requested] or [
        family for family in matches if architecture in names_in_transformers(family).architectures.values()
    ]
    return (preferred_families or matches)[:1]


def _refuse_other_class(file: Path, architecture: str | None, family: Family) -> None:
    """Raise an error if `architectures` names a class of another family, or warn if the class is unknown.

    An unknown class is also an error if it has a head, or if its name contains the prefix of a family, as in
    "ChineseBertModel", since it stands for another network.
    """
    names = names_in_transformers(family)
    if architecture is None:
        return
    # Families of the same model type may read each other's checkpoints, such as the encoder of a larger model.
    family_names = [*map(names_in_transformers, find_families_by_format("hf"))]
    prefixes = {names.prefix, *(other.prefix for other in family_names if other.model_type == names.model_type)}
    match = _FAMILY_AND_HEAD.fullmatch(architecture)
    is_other = not architecture.startswith(tuple(prefixes)) and bool(match_prefixes(architecture))
    is_unknown = match is not None and match[1] not in {*prefixes, "Auto"} and not match[1].endswith("Model")
    is_variant = any(other.prefix.lower() in architecture.lower() for other in family_names)
    if is_other or (match and is_unknown and (match[3] or is_variant)):
        raise PresetError(
            f"{file}: `architectures` names {architecture!r}, a class of another family than {family.name}. If the "
            "model computes what that family does, remove `architectures` from the file."
        )
    if is_unknown:
        warnings.warn(
            f"{file}: `architectures` names {architecture!r}, which is no class of {family.name}. The model is read as "
            "one, as the rest of the file says.",
            stacklevel=2,
        )


def _match_tensors(directory: Path, tensors: TensorFile, candidates: Sequence[Family]) -> list[Family]:
    """Return the families that match the most tensor names, narrowed down by name prefixes and tokenizer files."""
    match_counts = {family.name: _count_names(family.checkpoints["hf"], tensors) for family in candidates}
    max_count = max(match_counts.values(), default=0)
    matches = [family for family in candidates if max_count and match_counts[family.name] == max_count]
    stored_prefixes = {name.partition(".")[0] for name in tensors.names()}
    matches = [family for family in matches if names_in_transformers(family).base in stored_prefixes] or matches
    if len({names_in_transformers(family).model_type for family in matches}) == 1:  # such as a model and its encoder
        matches = [max(matches, key=lambda family: _rate_completeness(family.checkpoints["hf"], tensors))]
    if len(matches) == 1:
        return matches
    confirmed_families = [family for family in matches if holds_tokenizer(directory, family.tokenizer)]
    if len(confirmed_families) == 1:
        names = " or ".join(family.name for family in matches)
        warnings.warn(
            f"{directory / CONFIG_FILE} has no `model_type`, and the tensors' names are those of {names}. The files of "
            f'the tokenizer are those of {confirmed_families[0].name}: pass `family="{confirmed_families[0].name}"` to '
            "confirm this.",
            stacklevel=2,
        )
    return confirmed_families or matches


def _rate_completeness(layout: Layout, tensors: TensorFile) -> tuple[int, int]:
    """Return a rating of a layout, higher if it fits the stored tensors better.

    Returns:
        The number of stored tensors that the layout reads, and minus the number of its tensors that the file lacks.
    """
    names = canonical_names(layout, tensors)
    templates = list_tensors(layout.backbone)
    patterns = [*map(name_pattern, templates)]
    num_read = sum(any(pattern.fullmatch(name) for pattern in patterns) for name in names)
    return num_read, -sum("{" not in template and template not in names for template in templates)


def _refuse_other_prefix(directory: Path, tensors: TensorFile, requested_family: Family) -> None:
    """Raise an error if the tensor names have another family's prefix and none has the prefix of `requested_family`."""
    module_names = {name.partition(".")[0] for name in list_tensors(requested_family.checkpoints["hf"].backbone)}
    stored_prefixes = {name.partition(".")[0] for name in tensors.names()} - module_names
    expected_prefix = names_in_transformers(requested_family).base
    names_by_prefix = {names_in_transformers(family).base: family.name for family in find_families_by_format("hf")}
    if expected_prefix in stored_prefixes or not (
        other_families := [
            name for prefix, name in names_by_prefix.items() if prefix in stored_prefixes and prefix != expected_prefix
        ]
    ):
        return
    raise PresetError(
        f"{directory}: the tensors' names are those of {other_families[0]}, but `family` is {requested_family.name!r}.",
        "family",
    )


def _count_names(layout: Layout, tensors: TensorFile) -> int:
    """Return the number of stored tensors that a layout lists or ignores.

    Return 0 if the token embeddings are not stored, or the layout has one name for two stored tensors.
    """
    try:
        names = canonical_names(layout, tensors)
    except PresetError:  # the layout has one name for two tensors
        return 0
    if layout.backbone[TOKEN_TABLE].name not in names:
        return 0
    templates = {name for table in (layout.backbone, *layout.heads.values()) for name in list_tensors(table)}
    patterns = [*map(name_pattern, templates), *map(re.compile, layout.ignored)]
    return sum(name in layout.copies or any(p.fullmatch(name) for p in patterns) for name in names)
