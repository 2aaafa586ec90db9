"""Reports what a checkpoint or preset holds, and checks all of it."""

from __future__ import annotations

from pathlib import Path

import keras

from lmzoo.checkpoints.checkpoint import Checkpoint
from lmzoo.conversion.converting import build
from lmzoo.files import manifest
from lmzoo.head_kinds import task_name
from lmzoo.presets.source import open_source


def verify(source: str | Path, write_manifest: bool = False) -> dict[str, str]:
    """Reports what is in a checkpoint or preset, and checks every part as loading does, values included.

    If there is a `manifest.json`, all files are compared with it. Without one, values can only be compared with the
    checksums that some formats hold: PyTorch's zip files and TensorFlow's checkpoints do, safetensors and HDF5 do not.

    Args:
        source: whatever `from_preset` takes.
        write_manifest: whether to write a `manifest.json` with the checksums of all files, if nothing is wrong with
            them. From then on, loading and `verify` compare the files with it.

    Returns:
        Name of a part -> what was found.

    Raises:
        ValueError: naming the first thing that is wrong.
        OSError: if the manifest cannot be written.

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
    found["format"] = opened.format.name if isinstance(opened, Checkpoint) else "lmzoo"
    matches = manifest.verify_manifest(opened.directory)
    found["manifest"] = "matches" if matches else "none: damage to files may go unnoticed"
    if isinstance(opened, Checkpoint):
        weights = _tensors(opened, model, backbone)
    else:
        opened.load(model)
        weights = {"tensors": f"{len(model.weights)}, all assigned"}
    found |= {"model": type(backbone).__name__, "head": head, **weights}
    found["parameters"] = f"{backbone.count_params():,}"
    tokenizer = getattr(preprocessor, "tokenizer", None)
    found["tokenizer"] = (
        f"{type(tokenizer).__name__}, {tokenizer.vocabulary_size:,} tokens" if tokenizer is not None else "none"
    )
    if write_manifest:
        manifest.write_manifest(opened.directory)
        found["manifest"] = "written"
    return found


def _tensors(checkpoint: Checkpoint, model: keras.Model, backbone: keras.Model) -> dict[str, str]:
    done = checkpoint.plan(model)
    done.run()
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
