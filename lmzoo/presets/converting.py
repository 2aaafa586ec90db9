"""Writing and conversion of models in any supported format."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import keras

from lmzoo.checkpoints.checkpoint_writer import check_format, write_checkpoint
from lmzoo.errors import MissingTokenizerError
from lmzoo.files.atomic import check_replaceable
from lmzoo.layers.initializers import skip_initial_values
from lmzoo.presets.keras_preset import KerasPreset, save_preset
from lmzoo.presets.source import Source, open_source
from lmzoo.registry.head_kinds import get_task_class, task_name
from lmzoo.text import Preprocessor


def save_checkpoint(
    model: keras.Model,
    directory: str | Path,
    to: str,
    overwrite: bool = True,
    preprocessor: Preprocessor | None = None,
) -> None:
    """Write a model and its tokenizer in the format of another library.

    Two formats always use the tanh approximation of GELU: "keras_hub" for BERT and ALBERT, and "tf1" for ALBERT. If the
    model has the exact GELU, a warning states how much its results change.

    Args:
        model: Backbone or task.
        directory: Directory to write. An existing directory stays unchanged if writing fails.
        to: `"hf"` for transformers and, for a `TextEmbedder`, Sentence Transformers; `"keras_hub"` for KerasHub
            (backbones, and embedders of BERT); `"tf1"` for the original code of BERT, ALBERT and XLNet; `"bilm"` for
            ELMo in AllenNLP and bilm-tf; `"keras"` for a preset of lmzoo.
        overwrite: Whether to replace an existing directory.
        preprocessor: Preprocessor whose tokenizer to write, by default the task's.

    Raises:
        FileExistsError: If `directory` exists, and `overwrite` is False or the directory is of another kind.
        ValueError: If the format is unknown or cannot hold the model.

    Example:

    ```python
    import lmzoo

    model = lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased")
    lmzoo.save_checkpoint(model, "bert_nano", to="hf")  # transformers.AutoModelForMaskedLM.from_pretrained("bert_nano")
    ```
    """
    preprocessor = preprocessor or getattr(model, "preprocessor", None)
    if to == "keras":
        save_preset(model, directory, overwrite, preprocessor)
    else:
        write_checkpoint(model, directory, to, overwrite, preprocessor)


def convert(
    source: str | Path, target: str | Path, to: str = "keras", overwrite: bool = False, family: str | None = None
) -> None:
    """Convert a preset or checkpoint to another format, with its head, labels and tokenizer.

    Args:
        source: Name, handle or path, as for `from_preset`.
        target: Directory to write.
        to: Name of the format, as for `lmzoo.save_checkpoint`.
        overwrite: Whether to replace an existing directory.
        family: Name of the family, such as "bert", for a checkpoint that does not specify it.

    Raises:
        FileExistsError: If `target` exists, and `overwrite` is False or the directory is of another kind.
        ValueError: If the source cannot be loaded, or the format is unknown or cannot hold the model.

    Example:

    ```python
    import lmzoo

    lmzoo.convert("bert_nano_en_uncased", "for_transformers", to="hf")
    lmzoo.models.MaskedLM.from_preset("for_transformers").fill(["She opened the [MASK]."])
    ```
    """
    # Before a download; writing checks again, with the names of the files.
    check_format(to)
    check_replaceable(target, marker="", owns=(), overwrite=overwrite)
    with contextlib.closing(open_source(source, family)) as model_source:
        model, preprocessor = build(model_source)
        if owners := find_unloaded_heads(model_source, model):
            warnings.warn(
                f"Only the backbone of {source} is written, not the head of {' and '.join(owners)}.", stacklevel=2
            )
        model_source.load(model)
    if preprocessor is None:
        warnings.warn(f"{source} holds no tokenizer files: only the model is written.", stacklevel=2)
    save_checkpoint(model, target, to, overwrite, preprocessor)


def find_unloaded_heads(opened: Source, model: keras.Model) -> list[str]:
    """Describe the tasks whose heads are stored but are not part of `model`, which `build` returned.

    The list is empty if `model` is a task or no head is stored. Otherwise, it holds the names of a preset's several
    tasks, or one entry such as "a TextClassifier" for a task with an unregistered class or an unreadable head.
    """
    if hasattr(model, "backbone"):
        return []
    if isinstance(opened, KerasPreset) and opened.task_names:
        return opened.task_names
    return [] if opened.head is None else [f"a {task_name(opened.head)}"]


def build(opened: Source) -> tuple[keras.Model, Preprocessor | None]:
    """Build the stored model and its preprocessor, without loading the weights.

    Returns:
        The stored task, or only the backbone if no supported head is stored; and the preprocessor, or None if there are
        no tokenizer files.
    """
    try:
        preprocessor = opened.preprocessor()
    except MissingTokenizerError:
        preprocessor = None
    cls: type[keras.Model] | None = get_task_class(opened.head)
    arguments = None if cls is None else opened.get_head_arguments(cls)
    with skip_initial_values():
        backbone = opened.build({})
    return backbone if cls is None or arguments is None else cls(backbone, preprocessor, **arguments), preprocessor
