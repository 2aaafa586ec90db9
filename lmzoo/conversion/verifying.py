"""Reports what a checkpoint or preset holds, and checks all of it."""

from __future__ import annotations

from pathlib import Path

import keras

from lmzoo.checkpoints.checkpoint import Checkpoint
from lmzoo.conversion.converting import build
from lmzoo.files.manifest import verify_manifest
from lmzoo.head_kinds import task_name
from lmzoo.presets.source import open_source


def verify(source: str | Path) -> dict[str, str]:
    """Reports what is in a checkpoint or preset, and checks every part as loading does.

    For another library's checkpoint, names, shapes and dtypes of the tensors are checked, but no values are read.

    Args:
        source: whatever `from_preset` takes.

    Returns:
        Name of a part -> what was found.

    Raises:
        ValueError: naming the first thing that is wrong.

    Example:

    ```python
    import lmzoo

    lmzoo.verify("bert_nano_en_uncased")["tokenizer"]  # 'WordPieceTokenizer, 8,000 tokens'
    ```
    """
    opened = open_source(source)
    model, preprocessor = build(opened)
    backbone = getattr(model, "backbone", model)
    head = "none" if backbone is model else type(model).__name__
    if backbone is model and opened.head is not None:
        head = f"of a {task_name(opened.head)}, which is not loaded"
    found = {"directory": str(opened.directory)}
    if isinstance(opened, Checkpoint):
        found["format"] = opened.format.name
        weights = _tensors(opened, model, backbone)
    else:
        found |= {"format": "lmzoo", "manifest": "matches" if verify_manifest(opened.directory) else "none"}
        opened.load(model)
        weights = {"tensors": f"{len(model.weights)}, all assigned"}
    found |= {"model": type(backbone).__name__, "head": head, **weights}
    found["parameters"] = f"{backbone.count_params():,}"
    tokenizer = getattr(preprocessor, "tokenizer", None)
    found["tokenizer"] = (
        f"{type(tokenizer).__name__}, {tokenizer.vocabulary_size:,} tokens" if tokenizer is not None else "none"
    )
    return found


def _tensors(checkpoint: Checkpoint, model: keras.Model, backbone: keras.Model) -> dict[str, str]:
    done = checkpoint.plan(model)
    own = {id(weight) for weight in backbone.weights}
    of_backbone = sum(id(weights[0]) in own for weights, *_ in done.assignments)
    of_head = len(done.assignments) - of_backbone
    files = sorted({done.tensors.file_of(name).name for _, name, _ in done.assignments})
    found = {"tensors": f"{of_backbone} of the backbone, {of_head} of the head, in {_first(files)}"}
    if done.missing:
        found["not there"] = f"{', '.join(done.missing)}: random at first"
    for reason in sorted(set(done.left_out.values())):
        names = [name for name, why in done.left_out.items() if why == reason]
        found[f"not read: {reason}"] = f"{len(names)}: {_first(names)}"
    return found


def _first(names: list[str]) -> str:
    return names[0] + (", …" if len(names) > 1 else "")
