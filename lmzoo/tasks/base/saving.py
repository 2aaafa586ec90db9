"""How a task is saved and loaded: `.keras` files, presets and SavedModels."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import keras

from lmzoo.families.backbone import Backbone
from lmzoo.families.resizing import copy_weights
from lmzoo.files.archives import unpack
from lmzoo.files.atomic import atomic_file, check_path
from lmzoo.layers.adapted import stores_updates
from lmzoo.layers.configured import constructor_arguments
from lmzoo.layers.finite import ReportsNotFinite
from lmzoo.layers.sublayers import merged_weights, sublayers
from lmzoo.parallel.processes import alone
from lmzoo.presets.keras_preset import save_preset
from lmzoo.presets.loading import load_task
from lmzoo.serving.export import export_task, text_signatures
from lmzoo.serving.served_model import Signatures
from lmzoo.text import Preprocessor

if TYPE_CHECKING:
    import tensorflow as tf


class SavedTask(ReportsNotFinite):
    """The part of `lmzoo.models.Task` that saves and loads: `.keras` files, presets and SavedModels."""

    backbone: Backbone
    preprocessor: Preprocessor | None
    labels: tuple[str, ...] | None
    default_name: str | None  # the name that Keras chose

    verb: ClassVar[str] = ""  # name of the method that answers in plain Python objects
    served_outputs: ClassVar[tuple[str, ...]] = ()
    output_name: ClassVar[str] = "logits"  # of the outputs of `predict`, in files for other runtimes
    predicts: ClassVar[str] = ""  # what `predict` returns, with its shape, for tables of tasks
    serves: ClassVar[tuple[str, str]] = ("", "")  # what the exported model takes and returns, for tables of tasks
    # Names on the command line, each with how the examples are read there, see `lmzoo_cli.task_kinds`.
    commands: ClassVar[tuple[tuple[str, str], ...]] = ()
    input_names: ClassVar[tuple[str, ...]] = ("text", "text_pair")  # of the parts of an input, in files of predictions

    @property
    def served_length(self) -> int:
        """The most tokens of an input that the exported model reads."""
        return self.preprocessor.sequence_length if self.preprocessor else 0

    def save(self, filepath: str | Path, overwrite: bool = True, **kwargs: Any) -> None:
        """Writes a `.keras` file with weights, vocabulary, labels and optimizer state; see `keras.Model.save`.

        If writing fails, as on a full disk, an existing file stays as it was. Of several processes, only one should
        write.

        Raises:
            ValueError: if the path does not end in `.keras`.
            FileExistsError: if the file exists and may not be replaced.
        """
        check_path(filepath)
        if Path(filepath).suffix != ".keras":
            raise ValueError(f"Models are saved as `.keras` files, got {os.fspath(filepath)!r}.")
        if Path(filepath).expanduser().exists() and not overwrite:
            raise FileExistsError(f"{os.fspath(filepath)} exists; pass `overwrite=True` to replace it.")
        self._warn_of_merged_lora()
        # Keras makes an optimizer to compare with, and all processes take part in making variables.
        with atomic_file(filepath) as temporary, alone():
            super().save(temporary, **kwargs)

    @classmethod
    def load(cls, filepath: str | Path, compile: bool = True) -> Self:
        """Reads a `.keras` file from a source that is not trusted.

        `keras.saving.load_model` reads the same files, but it unpacks them itself, before lmzoo is called: it accepts a
        small file that unpacks to gigabytes, and a load that fails can leave a folder in the temporary directory. Here
        the limits are those of all archives, and no folder is left.

        Args:
            filepath: path of a `.keras` file that `save` wrote.
            compile: whether to compile the task as it was when it was saved.

        Returns:
            The task.

        Raises:
            ValueError: if the file is damaged, holds another class than this one or unpacks to more than 64 MiB plus 10
                times its size; or as for `keras.saving.load_model`.
            OSError: if the file cannot be read or unpacked.

        Example:

        ```python
        import lmzoo

        classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
        classifier.save("reviews.keras")
        again = lmzoo.models.Task.load("reviews.keras")
        ```
        """
        model = load_keras_file(filepath, compile)
        if not isinstance(model, cls):
            raise ValueError(f"{os.fspath(filepath)} holds a {type(model).__name__}, not a {cls.__name__}.")
        return model

    def export(self, path: str | Path, verbose: bool = True, dtype: Literal["int8"] | None = None) -> None:
        """Writes a TensorFlow SavedModel that takes strings, for TensorFlow Serving.

        `serving_default` takes `text`, a string tensor (n,); the signature `pair` takes `text` and `text_pair`;
        `tokens` takes the token features. All return a dict of named tensors: the task's answers and, for strings,
        `truncated`, bool (n,). The vocabulary is inside. Loading needs `tensorflow` and `tensorflow_text`, but not
        lmzoo.

        A path that ends in `.onnx` or `.tflite` gets one file for ONNX Runtime or LiteRT: token features in, the
        outputs of `predict` out under the name `logits` (`TextEmbedder`: `embedding`), without tokenizer and labels.
        ONNX needs `pip install 'lmzoo[onnx]'`, both need float32. With `dtype="int8"` an .onnx file takes a quarter of
        the space, and ONNX Runtime multiplies integers: the outputs change a little, so measure them.

        On other backends a child process exports, for which TensorFlow must be installed.

        Args:
            path: directory of the model, for TensorFlow Serving `<name>/<integer version>`, or a file. An existing one
                is replaced when the new one is complete, and stays as it was if writing fails.
            verbose: whether to print what was written.
            dtype: "int8" for an .onnx file with weights of int8, and activations that are rounded to int8; None for
                the dtype of the weights.

        Raises:
            ImportError: if a package that writes the format is not installed.
            NotFiniteError: if weights are NaN or infinite.
            RuntimeError: if the process that exports for another backend fails.
            ValueError: if the task has no preprocessor or serves nothing, if the path is a folder that holds versions
                or has another suffix, or if the model uses ops that the format's runtime does not have.
        """
        export_task(self, path, verbose, dtype)

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The exported model's answers to token features, in TensorFlow ops; `served_outputs` names them."""
        raise NotImplementedError(f"{type(self).__name__} must define `serve`.")

    def signatures(self) -> Signatures:
        """What is exported.

        Returns:
            A `tf.Module` that holds the tables used by the functions, and the functions by name of signature:
            `tf.function`s of named tensors that return a dict of tensors.
        """
        return text_signatures(self)

    def save_assets(self, directory: str) -> None:
        """Writes the vocabulary; Keras calls it when saving `.keras` files."""
        if self.preprocessor is not None:
            self.preprocessor.save_assets(directory)

    def load_assets(self, directory: str) -> None:
        """Reads the vocabulary; Keras calls it when loading `.keras` files."""
        if self.preprocessor is not None:
            self.preprocessor.load_assets(directory)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments: the task's attributes of the same names."""
        config = {name: getattr(self, name) for name in constructor_arguments(type(self))}
        parts = {name: keras.saving.serialize_keras_object(config[name]) for name in ("backbone", "preprocessor")}
        if self.name == self.default_name:  # so that copies can be in one model
            config["name"] = None
        return {**config, **parts, "labels": None if self.labels is None else list(self.labels)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Builds a task from `get_config`'s output."""
        parts = {name: keras.saving.deserialize_keras_object(config[name]) for name in ("backbone", "preprocessor")}
        return cls(**{**config, **parts})

    @classmethod
    def from_preset(
        cls,
        preset: str | Path,
        load_weights: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        dropout: float | None = None,
        sequence_length: int | None = None,
        labels: Sequence[str] | None = None,
        preprocessor: Preprocessor | None = None,
        family: str | None = None,
        **task_kwargs: Any,
    ) -> Self:
        """Builds the task on a preset's backbone, with the preset's head if it has one that fits.

        Args:
            preset: a name from `lmzoo.list_presets()`, a local directory, `hf://org/name` or `kaggle://...`.
            load_weights: False for the architecture with random weights.
            dtype: dtype policy, such as `"mixed_bfloat16"`.
            dropout: rate inside the backbone instead of the preset's.
            sequence_length: tokens of the longest sequence, instead of the preset's.
            labels: names of the classes.
            preprocessor: instead of the preset's.
            family: name of the family, such as "bert", for a checkpoint that does not tell it.
            **task_kwargs: of the task's constructor, such as `num_classes` or `name`.

        Returns:
            The task.

        Raises:
            ValueError: for an unknown preset (similar names are suggested), a changed or missing file, or a
                `sequence_length` above the model's.

        Example:

        ```python
        import lmzoo

        classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
        ```
        """
        if labels is not None:
            task_kwargs["labels"] = labels
        overrides = {key: value for key, value in (("dtype", dtype), ("dropout", dropout)) if value is not None}
        return load_task(
            preset,
            cls,
            Backbone,
            load_weights=load_weights,
            backbone_overrides=overrides,
            sequence_length=sequence_length,
            preprocessor=preprocessor,
            family=family,
            **task_kwargs,
        )

    def copy_with(self, **changes: Any) -> Self:
        """A copy of the task with the same weights, whose backbone has other arguments, such as another `dtype`.

        It is compiled with the defaults when that is first needed. Of a task with LoRA its weights have the updates
        added, and all of them are trained; to weights of int8 updates are not added, but copied.

        Args:
            **changes: arguments of the backbone's constructor that do not change the shapes of its weights.

        Example:

        ```python
        import lmzoo

        classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
        small = classifier.copy_with(dtype="bfloat16")
        ```
        """
        backbone = type(self.backbone).from_config({**self.backbone.get_config(), **changes})
        copy = type(self)(**{**self.get_config(), "backbone": backbone, "preprocessor": self.preprocessor})
        copy.set_weights([keras.ops.convert_to_numpy(value) for _, value in merged_weights(self)])
        return copy

    def resize_token_embeddings(self, size: int, seed: int = 0) -> Self:
        """Return a copy of the task with embeddings for `size` tokens, such as for those added to its tokenizer.

        The head keeps its weights. Weights with an axis of tokens, such as the bias of a masked language model, get new
        entries as the embeddings do: see `Backbone.resize_token_embeddings`. The copy is compiled with the defaults
        when that is first needed.

        Args:
            size: number of tokens; if it is lower than before, the last rows are left out.
            seed: seed of the new rows.

        Raises:
            ValueError: as for `Backbone.resize_token_embeddings`, or if the tokenizer has another number of tokens.

        Example:

        ```python
        import lmzoo

        model = lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased")
        model.preprocessor.tokenizer.add_tokens(["mRNA"])  # 1
        model = model.resize_token_embeddings(model.preprocessor.tokenizer.vocabulary_size)
        ```
        """
        backbone = self.backbone.resize_token_embeddings(size, seed)
        resized = type(self)(**{**self.get_config(), "backbone": backbone, "preprocessor": self.preprocessor})
        copy_weights(self, resized, seed)
        return resized

    def save_to_preset(self, directory: str | Path, overwrite: bool = True) -> None:
        """Writes backbone, head, labels and vocabulary as a preset.

        Args:
            directory: path of the preset. If writing fails, an existing one stays as it was.
            overwrite: whether an existing directory may be replaced.
        """
        self._warn_of_merged_lora()
        save_preset(self, directory, overwrite, self.preprocessor)

    def _warn_of_merged_lora(self) -> None:
        adapted = [layer for layer in sublayers(self.backbone) if getattr(layer, "lora_enabled", False)]
        if not all(map(stores_updates, adapted)):
            warnings.warn(
                "The file holds the weights with LoRA's updates added: a model loaded from it predicts the same, but "
                "all of its weights are trained until `backbone.enable_lora` is called again.",
                stacklevel=3,
            )


def load_keras_file(filepath: str | Path, compile: bool = True) -> keras.Model:
    """Any model in a `.keras` file; see `SavedTask.load`."""
    check_path(filepath)
    path = Path(filepath).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a directory, not a `.keras` file: `from_preset` loads a preset's directory.")
    with tempfile.TemporaryDirectory(prefix="lmzoo-") as folder:
        unpack(path, Path(folder))
        if not Path(folder, "config.json").is_file():
            raise ValueError(f"{path} is not a Keras model: it holds no config.json.")
        try:
            model = keras.saving.load_model(folder, compile=compile)
            if (preprocessor := getattr(model, "preprocessor", None)) is not None:
                _ = preprocessor.tokenizer.vocabulary  # an error if there is none
        except UnboundLocalError as error:  # Keras closes weights that it could not open
            raise ValueError(f"The weights in {path} cannot be read: {error.__context__}") from None
        except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{path} is damaged, or of classes that are not imported: {reason:.1000}") from error
        return model
