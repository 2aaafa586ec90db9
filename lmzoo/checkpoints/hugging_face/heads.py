"""The head in a checkpoint of transformers, if `config.json` does not name it, and the names of its classes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from lmzoo.checkpoints.config_table import Arguments, JsonObject
from lmzoo.checkpoints.engine import SAME, TRANSPOSED, Layout, Row, Table
from lmzoo.checkpoints.formats.tensor_file import Shape
from lmzoo.common.arguments import is_integer
from lmzoo.common.span_marks import marks_spans

# Of embedders, in folders of Sentence Transformers: `modules.i.*` are the tensors of module number i after Pooling.
EMBEDDING_HEAD: Table = {
    "projection_{i}/kernel": Row("modules.{i}.linear.weight", TRANSPOSED),
    "projection_{i}/bias": Row("modules.{i}.linear.bias", SAME),
    "projection_{i}/gamma": Row("modules.{i}.norm.weight", SAME),
    "projection_{i}/beta": Row("modules.{i}.norm.bias", SAME),
}
_DEFAULT_COUNT = 2  # of classes, which transformers assumes if `config.json` says nothing


def find_heads(layout: Layout, tensors: Mapping[str, Shape], config: JsonObject) -> list[str]:
    """Return the kinds of heads that the tensors may be, the most likely one first.

    Of a damaged head, of which only a part is stored, these are the kinds with its last layer.

    Args:
        layout: the family's.
        tensors: names as the layout spells them -> shapes.
        config: the content of `config.json`.
    """
    tables = {kind: {row.name for row in table.values()} for kind, table in layout.heads.items()}
    tables |= {kind: {name} for kind, name in layout.unread_heads.items()}
    stored = {kind: names for kind, names in tables.items() if names and names <= tensors.keys()}
    if not stored:
        ends = {kind: _last_kernel(table) for kind, table in layout.heads.items()}
        stored = {kind: tables[kind] for kind, end in ends.items() if end in tensors}
    kinds = [
        kind
        for kind, names in stored.items()
        if not any(names < larger for larger in stored.values())
        and _fits(kind, count_outputs(layout, kind, tensors), config)
    ]
    if "token_classification" in kinds and _is_of_tokens(layout, tensors, config):
        kinds.sort(key=lambda kind: kind != "token_classification")
    return kinds


def is_regression(config: JsonObject, count: int) -> bool:
    """Return whether a model of the class for regression and classification, of `count` outputs, is for regression."""
    return count == 1 or config.get("problem_type") == "regression"


def _last_kernel(table: Table) -> str | None:
    return next((row.name for path, row in table.items() if path.endswith("/logits/kernel")), None)


def _fits(kind: str, count: int | None, config: JsonObject) -> bool:
    if kind == "multiple_choice":
        return count in (None, 1)
    if count is None or kind not in ("classification", "regression"):
        return True
    return is_regression(config, count) == (kind == "regression")


def _is_of_tokens(layout: Layout, tensors: Mapping[str, Shape], config: JsonObject) -> bool:
    """Return whether a head has labels of spans, or no pooler below it, so that it labels tokens and not texts."""
    names = config.get("id2label")
    labels = list(names.values()) if isinstance(names, Mapping) else []
    if all(isinstance(label, str) for label in labels) and marks_spans(labels or None):
        return True
    pooler = {row.name for path, row in layout.backbone.items() if path.startswith(layout.optional)}
    return bool(pooler) and not pooler & tensors.keys()


def count_outputs(layout: Layout, kind: str, tensors: Mapping[str, Shape]) -> int | None:
    """Return the number of a stored head's logits, or None if no such head is stored."""
    row = layout.heads.get(kind, {}).get("classifier/logits/kernel")
    shape = tensors.get(row.name) if row else None
    return shape[0] if shape else None  # PyTorch's kernels have outputs first


def count_classes(config: JsonObject) -> int:
    """Return the number of classes that `config.json` states, for a checkpoint without tensors."""
    names = config.get("id2label")
    stated = (config.get("num_labels"), config.get("_num_labels"), len(names) if isinstance(names, Mapping) else None)
    return next((number for number in stated if number is not None and is_integer(number, 1)), _DEFAULT_COUNT)


def read_classes(file: Path, config: JsonObject, count: int) -> Arguments:
    """Read the arguments of a classifier of `count` classes: `num_classes`, and `labels` if the classes have names.

    Names that do not fit are ignored with a warning.
    """
    names = config.get("id2label")
    labels = _labels(names, count) if names else [f"LABEL_{i}" for i in range(count)]
    if labels is None:
        warnings.warn(
            f"{file}: `id2label` must give each number from 0 to {count - 1} a name of its own, got {names!r:.80}. It "
            "is ignored: without `labels=` the classes are called by their numbers.",
            stacklevel=2,
        )
    if labels is None or labels == [f"LABEL_{i}" for i in range(count)]:  # transformers' placeholders
        return {"num_classes": count}
    return {"num_classes": count, "labels": labels}


def _labels(names: object, count: int) -> list[str] | None:
    """Return the names of the classes in their order, or None if they do not fit."""
    if not isinstance(names, Mapping) or names.keys() != {str(i) for i in range(count)}:
        return None
    labels = [names[str(i)] for i in range(count)]
    if not all(isinstance(label, (str, int, float)) for label in labels):
        return None
    return [str(label) for label in labels] if len({str(label) for label in labels}) == count else None
