"""Reports what a checkpoint or preset holds, and checks all of it."""

from __future__ import annotations

from pathlib import Path

from lmzoo.conversion.converting import build
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
    found = {"directory": str(opened.directory), "model": type(backbone).__name__, "head": head}
    found |= opened.report(model)
    found["parameters"] = f"{backbone.count_params():,}"
    tokenizer = getattr(preprocessor, "tokenizer", None)
    found["tokenizer"] = (
        f"{type(tokenizer).__name__}, {tokenizer.vocabulary_size:,} tokens" if tokenizer is not None else "none"
    )
    return found
