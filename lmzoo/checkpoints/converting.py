"""From any format to any other, and what a checkpoint holds."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.checkpoint import Checkpoint
from lmzoo.checkpoints.engine import plan
from lmzoo.checkpoints.recognise import find_checkpoint
from lmzoo.checkpoints.writing import save_checkpoint
from lmzoo.layers.initializers import skip_initial_values
from lmzoo.presets import open_preset, verify_manifest
from lmzoo.presets.store import TASK_FILE, MissingTokenizerError, read_json


def convert(source: str | Path, target: str | Path, to: str = "keras", overwrite: bool = False) -> None:
    """Loads a checkpoint or preset and writes it in another format: weights, head, labels and tokenizer.

    Args:
        source: whatever `from_preset` takes.
        target: the directory to write.
        to: see `lmzoo.checkpoints.writing.save_checkpoint`.
        overwrite: whether an existing directory may be replaced.

    Raises:
        ValueError: for a source that cannot be loaded, or a format that cannot hold the model.
    """
    model, preprocessor = load(source)
    if preprocessor is None:
        warnings.warn(f"{source} holds no tokenizer files: only the model is written.", stacklevel=2)
    save_checkpoint(model, target, to, overwrite, preprocessor)


def load(source: str | Path) -> tuple[Any, Any]:
    """The task whose head a source holds, or else the backbone; and the preprocessor, or None."""
    from lmzoo import tasks
    from lmzoo.presets.loading import open_source

    opened = open_source(source)
    preprocessor = _preprocessor(opened)
    if isinstance(opened, Checkpoint):
        name = opened.head
    else:
        stored = opened.directory / TASK_FILE
        name = read_json(opened.directory, TASK_FILE)["class_name"] if stored.exists() else None
    cls = getattr(tasks, name or "", None)
    arguments = None if cls is None else opened.head_of(cls)
    with skip_initial_values():
        backbone = opened.build({})
    if arguments is None:
        opened.load(backbone)
        return backbone, preprocessor
    task = cls(backbone, preprocessor, **arguments)
    opened.load(backbone, task)
    return task, preprocessor


def _preprocessor(opened: Any) -> Any:
    try:
        return opened.preprocessor()
    except MissingTokenizerError:
        return None


def inspect(source: str | Path) -> dict[str, str]:
    """What is in a checkpoint or preset, every part of it checked as in loading, apart from the values.

    Args:
        source: whatever `from_preset` takes.

    Returns:
        What was found, by the name of the part, in the order of checking.

    Raises:
        ValueError: naming the first thing that is wrong.

    Example:

    ```python
    from lmzoo.checkpoints.converting import inspect

    inspect("bert_nano_en_uncased")["tokenizer"]  # 'WordPieceTokenizer, 8,000 tokens'
    ```
    """
    directory = open_preset(source)
    checkpoint = find_checkpoint(directory)
    found = {"directory": str(directory)}
    if checkpoint is None:
        found |= {"format": "a preset of lmzoo", "manifest": "matches" if verify_manifest(directory) else "none"}
        model, preprocessor = load(directory)
        backbone = getattr(model, "backbone", model)
        found["model"] = type(backbone).__name__
        found["head"] = "none" if backbone is model else type(model).__name__
        found["tensors"] = f"{len(model.weights)}, all assigned"
    else:
        with skip_initial_values():
            backbone = checkpoint.build({})
        tensors = checkpoint.open_tensors()
        weights = {weight.path: weight for weight in backbone.weights if "seed_generator" not in weight.path}
        done = plan(checkpoint.format, tensors, weights)
        found["format"] = _KINDS[checkpoint.kind]
        found["model"] = checkpoint.family.backbone.__name__
        found["head"] = checkpoint.head or "none"
        found["tensors"] = f"{len(done.assignments)} of the backbone in {tensors.path.name}"
        for reason in sorted(set(done.left_out.values())):
            names = [name for name, why in done.left_out.items() if why == reason]
            part = "tensors of the head" if reason == f"the head of a {checkpoint.head}" else f"not read: {reason}"
            found[part] = f"{len(names)}: {names[0]}" + (", …" if len(names) > 1 else "")
        preprocessor = _preprocessor(checkpoint)
    found["parameters"] = f"{backbone.count_params():,}"
    tokenizer = getattr(preprocessor, "tokenizer", None)
    found["tokenizer"] = (
        f"{type(tokenizer).__name__}, {tokenizer.vocabulary_size:,} tokens" if tokenizer is not None else "none"
    )
    return found


_KINDS = {
    "hf": "Hugging Face transformers",
    "google": "TensorFlow checkpoint of Google's code",
    "fairseq": "fairseq",
    "keras_hub": "a preset of KerasHub",
    "bilm": "bilm-tf",
    "bilm_tokens": "bilm-tf, token vocabulary",
}
