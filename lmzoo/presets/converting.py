"""Writing of models in any format, and conversion from one to another."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import keras

from lmzoo.checkpoints.checkpoint_writer import write_checkpoint
from lmzoo.errors import MissingTokenizerError
from lmzoo.layers.initializers import skip_initial_values
from lmzoo.presets.keras_preset import save_preset
from lmzoo.presets.source import Source, open_source
from lmzoo.registry.head_kinds import task_of
from lmzoo.text import Preprocessor


def save_checkpoint(
    model: keras.Model,
    directory: str | Path,
    to: str,
    overwrite: bool = True,
    preprocessor: Preprocessor | None = None,
) -> None:
    """Write a model in another library's format, tokenizer included.

    Args:
        model: A backbone or a task.
        directory: The directory to write. If writing fails, an existing one stays untouched.
        to: `"hf"` for Hugging Face's transformers and, of a `TextEmbedder`, Sentence Transformers; `"keras_hub"` for
            KerasHub (backbones, and embedders of BERT); `"tf1"` for the original code of BERT, ALBERT and XLNet;
            `"bilm"` for AllenNLP's and bilm-tf's ELMo; `"keras"` for a preset of lmzoo.
        overwrite: Whether an existing directory may be replaced.
        preprocessor: The tokenizer to write, by default the task's.

    A model with the exact GELU can be written in a format that stands for the tanh approximation, KerasHub's of BERT
    and ALBERT and Google's of ALBERT. A warning then says how much its results change.

    Raises:
        ValueError: For an unknown format, or a model that the format cannot hold.

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
    """Load a checkpoint or preset and write it in another format: weights, head, labels and tokenizer.

    Args:
        source: Whatever `from_preset` takes.
        target: The directory to write.
        to: The format; see `lmzoo.save_checkpoint`.
        overwrite: Whether an existing directory may be replaced.
        family: Name of the family, such as "bert", for a checkpoint that does not tell it.

    Raises:
        ValueError: For a source that cannot be loaded, or a format that cannot hold the model.

    Example:

    ```python
    import lmzoo

    lmzoo.convert("bert_nano_en_uncased", "for_transformers", to="hf")
    lmzoo.models.MaskedLM.from_preset("for_transformers").fill(["She opened the [MASK]."])
    ```
    """
    with contextlib.closing(open_source(source, family)) as opened:
        model, preprocessor = build(opened)
        opened.load(model)
    if preprocessor is None:
        warnings.warn(f"{source} holds no tokenizer files: only the model is written.", stacklevel=2)
    save_checkpoint(model, target, to, overwrite, preprocessor)


def build(opened: Source) -> tuple[keras.Model, Preprocessor | None]:
    """Build the model in a source, without reading the values of its weights.

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
