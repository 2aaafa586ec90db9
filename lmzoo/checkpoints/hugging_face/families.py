"""The family of a checkpoint of transformers: from its `config.json`, or from the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lmzoo.checkpoints.config_table import JsonObject, require_value
from lmzoo.checkpoints.engine import Layout, canonical_names, name_pattern
from lmzoo.checkpoints.family_names import ARCHITECTURES, names_in_transformers
from lmzoo.checkpoints.formats.tensor_file import LazyTensors, TensorFile
from lmzoo.checkpoints.tokenizers.formats import holds_tokenizer
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE
from lmzoo.registry.family import Family, families_with

_TOKEN_TABLE = "embeddings/token_embedding/embeddings"
_FAMILY_AND_HEAD = re.compile(rf"(\w+?)For({'|'.join(ARCHITECTURES.values())})")


def architecture_in(file: Path, config: JsonObject) -> str | None:
    """Return the name of the class that `config.json` gives in `architectures`, or None if it gives none.

    A class for TensorFlow, such as `TFBertModel`, goes by the name of the class for PyTorch.

    Raises:
        PresetError: If `architectures` is not a list of names.
    """
    stored = config.get("architectures")
    if not stored:
        return None
    names = [stored] if isinstance(stored, str) else stored
    are_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    require_value(are_names, file, "architectures", "a list of names of classes", stored)
    return str(names[0]).removeprefix("TF")


def detect_family(directory: Path, config: JsonObject, weights: LazyTensors, wanted: str | None) -> Family:
    """Return the family of a checkpoint.

    `model_type` decides. Without it, `wanted` does, a family's name, then `architectures`, then the tensors' names.

    Raises:
        PresetError: If the family is not supported, or several families fit.
    """
    file = directory / CONFIG_FILE
    architecture = architecture_in(file, config)
    model_type = config.get("model_type")
    candidates = families_with("hf")
    if model_type is not None:
        fitting = [family for family in candidates if names_in_transformers(family).model_type == model_type]
        if not fitting:
            supported = ", ".join(names_in_transformers(family).model_type for family in candidates)
            raise PresetError(
                f"{file}: models of type {model_type!r:.60} are not supported; supported are {supported}."
            )
    else:
        fitting = [family for family in candidates if family.name == wanted] or named_by(architecture)
        fitting = fitting or _families_of_tensors(directory, weights.open(), candidates)
    if len(fitting) != 1:
        hints = " or ".join(f'`family="{family.name}"`' for family in fitting or candidates)
        names = " or ".join(family.name for family in fitting) or "no supported family"
        message = f"{file} has no `model_type`, and the tensors' names are those of {names}. Pass {hints}."
        raise PresetError(message, "family")
    _refuse_other_class(file, architecture, fitting[0])
    return fitting[0]


def named_by(architecture: str | None) -> list[Family]:
    """Return the families of whose classes `architecture` may be one, by its beginning."""
    prefixes = {names_in_transformers(family).prefix: family for family in families_with("hf")}
    return [family for prefix, family in prefixes.items() if architecture and architecture.startswith(prefix)]


def _refuse_other_class(file: Path, architecture: str | None, family: Family) -> None:
    """Check that `architectures` does not name the class of another family; any other name may be a user's class."""
    prefix = names_in_transformers(family).prefix
    if architecture is None or architecture.startswith(prefix):
        return
    match = _FAMILY_AND_HEAD.fullmatch(architecture)
    if named_by(architecture) or (match and not match[1].endswith("Model")):
        raise PresetError(
            f"{file}: `architectures` names {architecture!r}, a class of another family than {family.name}. If the "
            "model computes what that family does, remove `architectures` from the file."
        )


def _families_of_tensors(directory: Path, tensors: TensorFile, candidates: Sequence[Family]) -> list[Family]:
    """Return the families that have most of the tensors' names, as far as the files can tell them apart."""
    counts = {family.name: _count_names(family.checkpoints["hf"], tensors) for family in candidates}
    most = max(counts.values(), default=0)
    fitting = [family for family in candidates if most and counts[family.name] == most]
    bases = {name.partition(".")[0] for name in tensors.names()}
    fitting = [family for family in fitting if names_in_transformers(family).base in bases] or fitting
    if len(fitting) > 1:
        fitting = [family for family in fitting if holds_tokenizer(directory, family.tokenizer)] or fitting
    return fitting


def _count_names(layout: Layout, tensors: TensorFile) -> int:
    """Return how many of the tensors have names of a layout; 0 if the token embeddings are not among them."""
    try:
        names = canonical_names(layout, tensors)
    except PresetError:  # the layout's spellings are not those of the file
        return 0
    if layout.backbone[_TOKEN_TABLE].name not in names:
        return 0
    rows = {row.name for table in (layout.backbone, *layout.heads.values()) for row in table.values()}
    patterns = [*map(name_pattern, rows), *map(re.compile, layout.ignored)]
    return sum(name in layout.copies or any(p.fullmatch(name) for p in patterns) for name in names)
