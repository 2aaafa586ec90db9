"""Verification of presets and checkpoints."""

from __future__ import annotations

import contextlib
from pathlib import Path

from lmzoo.files import manifest
from lmzoo.presets.converting import build, find_unloaded_heads
from lmzoo.presets.source import open_source


def verify(source: str | Path, write_manifest: bool = False, family: str | None = None) -> dict[str, str]:
    """Check all parts of a preset or checkpoint by loading them, and return a report.

    All files are compared with `manifest.json`. Without a manifest, damage to values is found only in formats with
    checksums: PyTorch's zip files and TensorFlow's checkpoints, but not safetensors and HDF5.

    Args:
        source: Name, handle or path, as for `from_preset`.
        write_manifest: Whether to write a `manifest.json` with the checksums of all files after a successful check.
            Loading and `verify` then compare the files with it.
        family: Name of the family, such as "bert", for a checkpoint that does not specify it.

    Returns:
        A description of each part, by name.

    Raises:
        ValueError: If a part is invalid; the message describes the first problem.
        OSError: If the manifest cannot be written.

    Example:

    ```python
    import lmzoo

    lmzoo.verify("bert_nano_en_uncased")["tokenizer"]  # 'WordPieceTokenizer, 8,000 tokens'
    ```
    """
    with contextlib.closing(open_source(source, family)) as model_source:
        model, preprocessor = build(model_source)
        backbone = getattr(model, "backbone", model)
        head_description = "none" if backbone is model else type(model).__name__
        if owners := find_unloaded_heads(model_source, model):
            head_description = f"of {' and '.join(owners)}, which is not loaded"
        has_manifest = manifest.verify_manifest(model_source.directory)
        report = {
            "directory": str(model_source.directory),
            "manifest": "matches" if has_manifest else "none: damage to files may go unnoticed",
            "model": type(backbone).__name__,
            "head": head_description,
        }
        report |= model_source.report(model)
    report["parameters"] = f"{backbone.count_params():,}"
    tokenizer = getattr(preprocessor, "tokenizer", None)
    report["tokenizer"] = (
        f"{type(tokenizer).__name__}, {tokenizer.vocabulary_size:,} tokens" if tokenizer is not None else "none"
    )
    if write_manifest:
        manifest.write_manifest(model_source.directory)
        report["manifest"] = "written"
    return report
