"""Reports about checkpoints and presets, and checks of all their parts."""

from __future__ import annotations

import contextlib
from pathlib import Path

from lmzoo.files import manifest
from lmzoo.presets.converting import build
from lmzoo.presets.source import open_source
from lmzoo.registry.head_kinds import task_name


def verify(source: str | Path, write_manifest: bool = False, family: str | None = None) -> dict[str, str]:
    """Report what is in a checkpoint or preset, and check every part as loading does, values included.

    If there is a `manifest.json`, all files are compared with it. Without one, values can only be compared with the
    checksums that some formats hold: PyTorch's zip files and TensorFlow's checkpoints do, safetensors and HDF5 do not.

    Args:
        source: Whatever `from_preset` takes.
        write_manifest: Whether to write a `manifest.json` with the checksums of all files, if nothing is wrong with
            them. From then on, loading and `verify` compare the files with it.
        family: Name of the family, such as "bert", for a checkpoint that does not tell it.

    Returns:
        Name of a part -> what was found.

    Raises:
        ValueError: Naming the first thing that is wrong.
        OSError: If the manifest cannot be written.

    Example:

    ```python
    import lmzoo

    lmzoo.verify("bert_nano_en_uncased")["tokenizer"]  # 'WordPieceTokenizer, 8,000 tokens'
    ```
    """
    with contextlib.closing(open_source(source, family)) as opened:
        model, preprocessor = build(opened)
        backbone = getattr(model, "backbone", model)
        head = "none" if backbone is model else type(model).__name__
        if backbone is model and opened.head is not None:
            head = f"of a {task_name(opened.head)}, which is not loaded"
        matches = manifest.verify_manifest(opened.directory)
        report = {
            "directory": str(opened.directory),
            "manifest": "matches" if matches else "none: damage to files may go unnoticed",
            "model": type(backbone).__name__,
            "head": head,
        }
        report |= opened.report(model)
    report["parameters"] = f"{backbone.count_params():,}"
    tokenizer = getattr(preprocessor, "tokenizer", None)
    report["tokenizer"] = (
        f"{type(tokenizer).__name__}, {tokenizer.vocabulary_size:,} tokens" if tokenizer is not None else "none"
    )
    if write_manifest:
        manifest.write_manifest(opened.directory)
        report["manifest"] = "written"
    return report
