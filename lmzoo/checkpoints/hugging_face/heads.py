"""Detection of the head in a transformers checkpoint, and of the number and names of its classes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmzoo.checkpoints.config_table import Arguments, JsonObject
from lmzoo.checkpoints.engine import SAME, TRANSPOSED, Layout, Row, Table, list_head_tensors
from lmzoo.checkpoints.formats.tensor_file import Shape
from lmzoo.common.arguments import is_integer
from lmzoo.common.span_marks import marks_spans

# Embedders of Sentence Transformers: `modules.{i}.*` are the tensors of module i after Pooling, counted from 0.
EMBEDDING_HEAD: Table = {
    "projection_{i}/kernel": Row("modules.{i}.linear.weight", TRANSPOSED),
    "projection_{i}/bias": Row("modules.{i}.linear.bias", SAME),
    "projection_{i}/gamma": Row("modules.{i}.norm.weight", SAME),
    "projection_{i}/beta": Row("modules.{i}.norm.bias", SAME),
}
_DEFAULT_CLASSES = 2  # transformers' default for the number of classes


def find_heads(layout: Layout, tensors: Mapping[str, Shape], config: JsonObject) -> list[str]:
    """Return the kinds of head that the stored tensors match, most likely first.

    If no head is complete, return the kinds whose last layer is stored.

    Args:
        layout: Layout of the family.
        tensors: Dict from tensor name in the layout to shape.
        config: Content of `config.json`.
    """
    # The only tensor of a causal language model's head may be a copy of the token embeddings. It still identifies the
    # head, since files of other models lack it.
    tensor_names = {
        kind: names or {row.name for row in layout.heads[kind].values()}
        for kind, names in _list_tensor_names(layout).items()
    }
    tensor_names |= {kind: {name} for kind, name in layout.unread_heads.items()}
    candidates = {kind: names for kind, names in tensor_names.items() if names and names <= tensors.keys()}
    if not candidates:
        last_kernels = {kind: _find_last_kernel(table) for kind, table in layout.heads.items()}
        candidates = {kind: tensor_names[kind] for kind, kernel in last_kernels.items() if kernel in tensors}
    kinds = [
        kind
        for kind, names in candidates.items()
        if not any(names < other_names for other_names in candidates.values())
        and _fits_count(kind, count_outputs(layout, kind, tensors), config)
    ]
    if "token_classification" in kinds and _labels_tokens(layout, tensors, config):
        kinds.sort(key=lambda kind: kind != "token_classification")
    return kinds


def put_named_head_first(
    layout: Layout, tensors: Mapping[str, Shape], named_kind: str, kinds: Sequence[str]
) -> list[str]:
    """Return the kinds of head in a file, beginning with the kind that `architectures` names.

    The named kind is left out if only tensors of other heads are stored. Kinds that share a tensor with the named kind
    are also left out, since they merely interpret the same tensors in another way.

    Args:
        layout: Layout of the family.
        tensors: Dict from tensor name in the layout to shape.
        named_kind: Kind of head of the class that `architectures` names.
        kinds: Kinds that the stored tensors match; see `find_heads`.
    """
    tensor_names = _list_tensor_names(layout)
    named_tensors = tensor_names.get(named_kind, set())
    other_kinds = [kind for kind in kinds if not named_tensors & tensor_names.get(kind, named_tensors)]
    is_stored = not named_tensors or bool(named_tensors & tensors.keys())
    return [named_kind, *other_kinds] if is_stored or not other_kinds else other_kinds


def is_regression(config: JsonObject, count: int) -> bool:
    """Return whether a sequence classification model with `count` outputs is a regression model."""
    return count == 1 or config.get("problem_type") == "regression"


def _list_tensor_names(layout: Layout) -> dict[str, set[str]]:
    """Return the tensor names of each kind of head that lmzoo reads, as in `list_head_tensors`."""
    return {kind: list_head_tensors(layout, kind) for kind in layout.heads}


def _find_last_kernel(table: Table) -> str | None:
    return next((row.name for path, row in table.items() if path.endswith("/logits/kernel")), None)


def _fits_count(kind: str, count: int | None, config: JsonObject) -> bool:
    if kind == "multiple_choice":
        return count in (None, 1)
    if count is None or kind not in ("classification", "regression"):
        return True
    return is_regression(config, count) == (kind == "regression")


def _labels_tokens(layout: Layout, tensors: Mapping[str, Shape], config: JsonObject) -> bool:
    """Return whether a head classifies tokens, not texts: its labels mark spans, or the file lacks the pooler."""
    names_by_id = config.get("id2label")
    labels = list(names_by_id.values()) if isinstance(names_by_id, Mapping) else []
    if all(isinstance(label, str) for label in labels) and marks_spans(labels or None):
        return True
    pooler_names = {row.name for path, row in layout.backbone.items() if path.startswith(layout.optional)}
    return bool(pooler_names) and not pooler_names & tensors.keys()


def count_outputs(layout: Layout, kind: str, tensors: Mapping[str, Shape]) -> int | None:
    """Return the number of logits of a stored classifier, or None if no classifier of this kind is stored."""
    row = layout.heads.get(kind, {}).get("classifier/logits/kernel")
    shape = tensors.get(row.name) if row else None
    return shape[0] if shape else None  # kernels have shape (outputs, inputs) in PyTorch


def count_classes(config: JsonObject) -> int:
    """Return the number of classes according to `config.json`, 2 by default."""
    names_by_id = config.get("id2label")
    stated_counts = (
        config.get("num_labels"),
        config.get("_num_labels"),
        len(names_by_id) if isinstance(names_by_id, Mapping) else None,
    )
    return next((count for count in stated_counts if count is not None and is_integer(count, 1)), _DEFAULT_CLASSES)


def read_classes(file: Path, config: JsonObject, count: int) -> Arguments:
    """Return the arguments `num_classes` and, if the classes have names, `labels` of a classifier.

    An invalid `id2label` is ignored with a warning.

    Args:
        file: Path of `config.json`, for messages.
        config: Content of `config.json`.
        count: Number of classes.
    """
    names_by_id = config.get("id2label")
    labels = _sort_labels(names_by_id, count) if names_by_id else [f"LABEL_{i}" for i in range(count)]
    if labels is None:
        warnings.warn(
            f"{file}: `id2label` must give each number from 0 to {count - 1} a name of its own, got "
            f"{names_by_id!r:.80}. It is ignored: without `labels=` the classes are called by their numbers.",
            stacklevel=2,
        )
    if labels is None or labels == [f"LABEL_{i}" for i in range(count)]:  # transformers' placeholders
        return {"num_classes": count}
    return {"num_classes": count, "labels": labels}


def _sort_labels(names: object, count: int) -> list[str] | None:
    """Return the class names in the order of their ids, or None if `names` lacks a distinct name for each id."""
    if not isinstance(names, Mapping) or names.keys() != {str(i) for i in range(count)}:
        return None
    labels = [names[str(i)] for i in range(count)]
    if not all(isinstance(label, (str, int, float)) for label in labels):
        return None
    return [str(label) for label in labels] if len({str(label) for label in labels}) == count else None
