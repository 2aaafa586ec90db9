"""Converts from any format to any other."""

from __future__ import annotations

import warnings
from pathlib import Path

import keras

import lmzoo.tasks  # noqa: F401 - registers the tasks
from lmzoo.conversion.checkpoint_writer import save_checkpoint
from lmzoo.errors import MissingTokenizerError
from lmzoo.head_kinds import task_of
from lmzoo.layers.initializers import skip_initial_values
from lmzoo.presets.source import Source, open_source
from lmzoo.text import Preprocessor


def convert(
    source: str | Path, target: str | Path, to: str = "keras", overwrite: bool = False, family: str | None = None
) -> None:
    """Loads a checkpoint or preset and writes it in another format: weights, head, labels and tokenizer.

    Args:
        source: whatever `from_preset` takes.
        target: the directory to write.
        to: see `lmzoo.save_checkpoint`.
        overwrite: whether an existing directory may be replaced.
        family: see `Backbone.from_preset`.

    Raises:
        ValueError: for a source that cannot be loaded, or a format that cannot hold the model.

    Example:

    ```python
    import lmzoo

    lmzoo.convert("bert_nano_en_uncased", "for_transformers", to="hf")
    lmzoo.models.MaskedLM.from_preset("for_transformers").fill(["She opened the [MASK]."])
    ```
    """
    opened = open_source(source, family)
    model, preprocessor = build(opened)
    opened.load(model)
    if preprocessor is None:
        warnings.warn(f"{source} holds no tokenizer files: only the model is written.", stacklevel=2)
    save_checkpoint(model, target, to, overwrite, preprocessor)


def build(opened: Source) -> tuple[keras.Model, Preprocessor | None]:
    """Builds the model in a source, without reading the values of its weights.

    Returns:
        The task whose head is stored, or the backbone if there is no head that can be loaded; and the preprocessor, or
        None without tokenizer files.
    """
    try:
        preprocessor = opened.preprocessor()
    except MissingTokenizerError:
        preprocessor = None
    cls: type[keras.Model] | None = task_of(opened.head)
    arguments = None if cls is None else opened.head_of(cls)
    with skip_initial_values():
        backbone = opened.build({})
    return backbone if cls is None or arguments is None else cls(backbone, preprocessor, **arguments), preprocessor
