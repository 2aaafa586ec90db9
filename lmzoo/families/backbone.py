"""Base class of all backbones."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import keras
import numpy as np

from lmzoo.common.arguments import as_python_values, is_integer, refuse_arguments, require
from lmzoo.common.other_names import SAVE_TO_PRESET
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.input_checks import check_ids
from lmzoo.families.keras_hub_names import KerasHubBackboneNames
from lmzoo.families.lora import LoraModel
from lmzoo.families.resizing import copy_weights
from lmzoo.layers.adapted import stores_updates
from lmzoo.layers.finite import ReportsNotFinite
from lmzoo.layers.heads import MaskedLMHead, compute_tied_logits
from lmzoo.layers.rows import gather_positions
from lmzoo.layers.sublayers import sublayers
from lmzoo.presets.catalog import PresetInfo, PresetsOfClass, list_presets
from lmzoo.presets.keras_preset import save_preset
from lmzoo.presets.loading import load_backbone
from lmzoo.registry.family import get_family
from lmzoo.serving.export import export_backbone, file_format
from lmzoo.training.fine_tuning import FineTuningRecipe, StoredRecipes, read_recipes, recipes_to_json


class Backbone(ReportsNotFinite, KerasHubBackboneNames, LoraModel):
    """Pre-trained part of a task: a Functional model from token features to hidden states.

    A family defines a subclass with a frozen dataclass as `config_class` and an `assemble` method. The constructor
    takes the dataclass's fields as keyword arguments. The fields are also attributes of the model, such as
    `backbone.hidden_dim`, except where a layer has the same name.

    Args:
        dtype: dtype policy of all layers: a name, a `keras.DTypePolicy`, or None for Keras' global policy.
        name: name of the model; by default its class name in snake case, numbered to be unique.
        trainable: whether the weights are trained.
        remat: whether training stores only the inputs of each block and recomputes the rest in the backward pass. This
            takes about a third more computation, but a fraction of the memory.
        fine_tuning: recommended settings for fine-tuning, a dict from kinds of heads (the `head_kind` of a task) to an
            `lmzoo.training.FineTuningRecipe`. Presets store the recipes, and tasks take their defaults from them.
        **config: fields of `config_class`.

    Example:

    ```python
    import numpy as np
    import lmzoo

    backbone = lmzoo.models.Backbone.from_preset("bert_nano_en_uncased")  # a `BertBackbone`
    ids = np.array([[2, 43, 3]])  # [CLS] a [SEP]
    inputs = {"token_ids": ids, "padding_mask": ids > 0, "segment_ids": 0 * ids}
    backbone(inputs)["sequence_output"]  # (1, 3, 256)
    ```
    """

    config_class: ClassVar[type]
    causal: ClassVar[bool] = False  # whether each position sees only itself and earlier positions
    reads_source: ClassVar[bool] = False  # whether an encoder reads a second sequence, the source
    has_output_bias: ClassVar[bool] = True  # whether a task adds a bias to the logits of a target's tokens
    forces_end: ClassVar[bool] = False  # whether a generated text of the maximum length ends with the end token
    # How the token embeddings are tied to the table of a generator of replaced tokens: "shared", both losses train one
    # table (Clark et al., 2020); "disentangled", this model adds a trainable difference to the generator's table (He et
    # al., 2021); or None if the family cannot have a generator.
    generator_embeddings: ClassVar[Literal["shared", "disentangled"] | None] = None
    # Default recipes by kind of head. For other kinds, the default learning rate depends on the model's width.
    usual_recipes: ClassVar[Mapping[str, FineTuningRecipe]] = {}
    learning_rate_factor: ClassVar[float] = 1.0  # of these default learning rates, relative to BERT's
    encoder_class: ClassVar[type[Backbone] | None] = None  # class of an encoder-decoder's encoder as its own model
    presets = PresetsOfClass()
    # Optional parts, which a task may leave untrained.
    pooler: keras.layers.Layer | None = None
    scalar_mix: keras.layers.Layer | None = None
    _compiled_by_xla: bool | None = None  # the last argument of `set_compiled_by_xla`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "config_class" in cls.__dict__:
            # `help()` and notebooks show the dataclass's fields, then the arguments of all backbones.
            config_parameters = inspect.signature(cls.config_class).parameters.values()
            common_parameters = [
                p for p in inspect.signature(Backbone.__init__).parameters.values() if p.kind == p.KEYWORD_ONLY
            ]
            cls.__signature__ = inspect.Signature([*config_parameters, *common_parameters])

    def __init__(
        self,
        *,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
        remat: bool = False,
        fine_tuning: StoredRecipes | None = None,
        **config: Any,
    ) -> None:
        try:
            checked_config = self.config_class(**as_python_values(config))  # Keras refuses NumPy integers
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {str(error).split('__init__() ')[-1]}") from None
        policy = keras.dtype_policies.get(dtype)
        layer_policies: dict[str, keras.DTypePolicy] = {}  # by path, for single layers of a quantized model
        if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            layer_policies = dict(policy)
            policy = policy.default_policy
        layers, inputs, outputs = self.assemble(checked_config, policy)
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.default_name = self.name if name is None else None
        self.config = checked_config
        self.dtype_policy = policy
        for attribute, layer in layers.items():
            setattr(self, attribute, layer)
        self.trainable = trainable  # after the layers are attributes, so that Keras sets it on them as well
        # Each layer gets a single policy: a layer with the whole map as its policy could not be saved again.
        with np.errstate(all="ignore"):  # layers round their weights to int8, which may be uninitialized memory
            for layer in sublayers(self):
                if layer.path in layer_policies:
                    layer.dtype_policy = layer_policies[layer.path]
        blocks = [layer for layer in sublayers(self) if hasattr(layer, "remat")]
        if remat and not blocks:
            raise ValueError(f"This {type(self).__name__} has no blocks to compute again: leave `remat` False.")
        for block in blocks:
            block.remat = remat
        self.remat = remat
        self.fine_tuning = read_recipes(fine_tuning)

    @property
    def layouts(self) -> Mapping[str, tuple[str | None, ...]]:
        """Dict from patterns of weight paths to "split" or None for each axis, for model parallelism; see `Family`."""
        return get_family(self).layouts

    def __getattr__(self, name: str) -> Any:
        """Return a field of the configuration if the model has no attribute of this name."""
        config = self.__dict__.get("config")  # missing while the constructor runs
        if name.startswith("_") or not hasattr(config, name):
            return super().__getattr__(name)
        return getattr(config, name)

    @classmethod
    def assemble(cls, config: Any, dtype: keras.DTypePolicy) -> tuple[dict[str, Any], Features, Features]:
        """Build the graph, and return its layers by attribute name, its symbolic inputs and its symbolic outputs."""
        raise NotImplementedError(f"{cls.__name__} must define `assemble`.")

    def __call__(self, inputs: Features, *args: Any, **kwargs: Any) -> Any:
        """Check the inputs and call the model."""
        return super().__call__(self.check_inputs(inputs), *args, **kwargs)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Train the backbone alone, on token features; see `keras.Model.fit`."""
        self.check_not_text(x)
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss and the metrics of the backbone alone; see `keras.Model.evaluate`."""
        self.check_not_text(x)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs batch by batch; a dict of arrays is checked first. See `keras.Model.predict`."""
        self.check_not_text(x)
        if not isinstance(x, dict):
            return super().predict(x, *args, **kwargs)
        x = self.check_inputs(x)
        if not any(map(len, x.values())):  # Keras' `predict` fails for no examples
            return keras.tree.map_structure(keras.ops.convert_to_numpy, self(x))
        return super().predict(x, *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Compute the outputs for one batch of token features; see `keras.Model.predict_on_batch`."""
        self.check_not_text(x)
        return super().predict_on_batch(x)

    @property
    def id_counts(self) -> dict[str, int]:
        """Dict from each input whose values are checked to its number n of valid ids, which are 0 to n - 1."""
        return {}

    def check_inputs(self, inputs: Features) -> Features:
        """Check the names and values of inputs, and return the model's own inputs.

        While a graph is built, only the names are checked.

        Args:
            inputs: a dict of arrays or tensors. Inputs of other models are ignored.

        Raises:
            TypeError: If `inputs` is text, or an input is neither an array nor a tensor.
            ValueError: If `inputs` is not a dict, an input is missing or unknown, or an id is out of range; the message
                names the input and the position of the id.
        """
        inputs = self.select_inputs(inputs)
        for name, num_ids in self.id_counts.items():
            check_ids(name, inputs[name], num_ids, len(self.input[name].shape))
        return inputs

    def describe_inputs(self) -> str:
        rank = max(len(x.shape) for x in self.input.values())
        return f"{super().describe_inputs()}, int32 {'(B, T, W)' if rank == 3 else '(B, T)'}"

    def padding_mask(self, inputs: Features) -> Tensor:
        """Return the mask of real tokens, int or bool (B, T)."""
        return inputs["padding_mask"]

    def call(  # type: ignore[override]
        self,
        inputs: Features,
        training: bool | None = None,
        mask: Any = None,
        positions: Tensor | None = None,
        outputs: Features | None = None,
        vectors: Tensor | None = None,
        bias: Tensor | None = None,
        masked: bool = False,
    ) -> Any:
        """Compute the model's outputs or, in the graphs of tasks, vectors at chosen positions or token logits.

        Given `positions` and `outputs` (the model's outputs for `inputs`), return the result of `vectors_at` or, if
        `masked` is True, of `masked_vectors_at`. Given `vectors`, return their `token_logits`. Tasks call the model
        for all three, because Keras duplicates a layer that is used both inside and outside of a model when it copies
        or loads a graph.
        """
        if vectors is not None:
            return self.token_logits(vectors, bias)
        if positions is None or outputs is None:
            return super().call(inputs, training=training, mask=mask)
        compute = self.compute_masked_vectors_at if masked else self.compute_vectors_at
        return compute(inputs, positions, outputs)

    def compute_output_spec(
        self,
        inputs: Features,
        training: bool | None = None,
        mask: Any = None,
        positions: Tensor | None = None,
        outputs: Features | None = None,
        vectors: Tensor | None = None,
        bias: Tensor | None = None,
        masked: bool = False,
    ) -> Any:
        """Return the shapes and dtypes of the result of `call` for the same arguments."""
        if vectors is not None:
            return keras.KerasTensor((*vectors.shape[:-1], self.config.vocabulary_size), "float32")
        if positions is None or outputs is None:
            return super().compute_output_spec(inputs, training=training, mask=mask)
        return keras.KerasTensor((*positions.shape, outputs["sequence_output"].shape[-1]), self.compute_dtype)

    def vectors_at(self, inputs: Features, positions: Tensor, outputs: Features | None = None) -> Tensor:
        """Return the vectors of `sequence_output` at chosen positions.

        Args:
            inputs: the backbone's inputs.
            positions: int (B, M), M positions in each sequence.
            outputs: the backbone's outputs for `inputs`, or None to compute them.

        Returns:
            The vectors, float (B, M, H).
        """
        return self(inputs, positions=positions, outputs=self(inputs) if outputs is None else outputs)

    def compute_vectors_at(self, inputs: Features, positions: Tensor, outputs: Features) -> Tensor:
        """Compute the vectors at `positions` from the model's outputs; see `vectors_at` for shapes."""
        return gather_positions(outputs["sequence_output"], positions)

    def masked_vectors_at(self, inputs: Features, positions: Tensor, outputs: Features | None = None) -> Tensor:
        """Return the vectors from which a head predicts the tokens at masked positions.

        By default, this is the result of `vectors_at`; a backbone with a decoder for masked tokens overrides it. The
        arguments and shapes are the same as for `vectors_at`.
        """
        outputs = self(inputs) if outputs is None else outputs
        return self(inputs, positions=positions, outputs=outputs, masked=True)

    def compute_masked_vectors_at(self, inputs: Features, positions: Tensor, outputs: Features) -> Tensor:
        """Compute the vectors for masked `positions` from the model's outputs; see `vectors_at` for shapes."""
        return self.compute_vectors_at(inputs, positions, outputs)

    @property
    def mask_decoder_variables(self) -> list[keras.Variable]:
        """Variables that are used only to predict masked tokens; see `masked_vectors_at`."""
        return []

    def make_masked_lm_head(self, activation: str, layer_norm_epsilon: float, **settings: Any) -> MaskedLMHead:
        """Return a masked-LM head, which transforms the backbone's vectors for `token_logits`.

        Args:
            activation: str, name of the head's activation.
            layer_norm_epsilon: float, number added to the variance in the head's LayerNorm.
            **settings: other arguments of `lmzoo.layers.MaskedLMHead`.
        """
        table = self.embeddings.token_embedding
        settings = {"dtype": self.dtype_policy, "initializer_range": self.config.initializer_range, **settings}
        table_shape = (table.input_dim, table.output_dim)
        return MaskedLMHead(None, activation, layer_norm_epsilon, table_shape=table_shape, **settings)

    def token_logits(self, vectors: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the logits of all tokens: products of vectors and token embeddings.

        Args:
            vectors: float (..., E), vectors of the same width E as the token embeddings.
            bias: float (V,), bias of each of the V tokens, or None.

        Returns:
            The logits, float32 (..., V).
        """
        return compute_tied_logits(self.embeddings.token_embedding, vectors, bias)

    def set_compiled_by_xla(self, compiled: bool) -> None:
        """Tell character encoders whether XLA compiles the model; if not, they encode each distinct word only once."""
        if compiled == self._compiled_by_xla:
            return
        self._compiled_by_xla = compiled
        for layer in sublayers(self):
            if hasattr(layer, "dedupe"):
                layer.dedupe = not compiled

    def resize_token_embeddings(self, size: int, seed: int = 0) -> Self:
        """Return a copy of the backbone with embeddings for `size` tokens, for example after adding tokens.

        New rows are drawn from normal distributions with the mean and variance of each column of the old rows. A task
        has a method of the same name, which also keeps its head.

        Args:
            size: number of tokens; if it is lower than before, the last rows are dropped.
            seed: seed of the new rows.

        Raises:
            ValueError: If `size` is not a positive integer, or if the model has no token embeddings (an ELMo model that
                reads characters), is quantized or has LoRA.

        Example:

        ```python
        import lmzoo

        backbone = lmzoo.models.Backbone.from_preset("bert_nano_en_uncased")
        larger = backbone.resize_token_embeddings(backbone.vocabulary_size + 2)
        ```
        """
        require(is_integer(size, 1), "size", "a positive integer", size)
        class_name = type(self).__name__
        if getattr(self.config, "vocabulary_size", None) is None:
            raise ValueError(f"This {class_name} reads the characters of words: it has no table of tokens to resize.")
        if self.lora_rank or any(layer.quantization_mode for layer in sublayers(self)):
            raise ValueError(f"This {class_name} is quantized or has LoRA. Resize the embeddings first.")
        resized_backbone = type(self).from_config({**self.get_config(), "vocabulary_size": size})
        copy_weights(self, resized_backbone, seed)
        return resized_backbone

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments, with the settings of quantization, LoRA and frozen layers.

        The dtype policies of quantized layers are in `dtype`. The paths of layers with LoRA are under `lora`, and the
        paths of frozen layers under `frozen`.
        """
        dtype = self.dtype_policy
        quantized_policies = {
            layer.path: layer.dtype_policy for layer in sublayers(self) if layer.quantization_mode is not None
        }
        if quantized_policies:
            dtype = keras.dtype_policies.DTypePolicyMap(default_policy=dtype.name, policy_map=quantized_policies)
        config = {
            **as_python_values(dataclasses.asdict(self.config)),
            "dtype": keras.dtype_policies.serialize(dtype),
            "name": None if self.name == self.default_name else self.name,  # copies in one model need different names
            "trainable": self.trainable,
        }
        config |= {"remat": True} if self.remat else {}
        config |= {"fine_tuning": recipes_to_json(self.fine_tuning)} if self.fine_tuning else {}
        if self.lora_rank and (adapted_paths := [layer.path for layer in sublayers(self) if stores_updates(layer)]):
            config["lora"] = {"rank": self.lora_rank, "layers": adapted_paths}
        # With LoRA, all weights except the updates are frozen.
        if self.trainable and not self.lora_rank:
            frozen_paths = [layer.path for layer in sublayers(self) if layer.weights and not layer.trainable]
            config |= {"frozen": frozen_paths} if frozen_paths else {}
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, object] | None = None) -> Self:
        """Build a backbone from the output of `get_config`."""
        config = dict(config)
        frozen_paths = set(config.pop("frozen", ()))
        lora = config.pop("lora", None)
        backbone = cls(**config)
        if lora:
            backbone._adapt([layer for layer in sublayers(backbone) if layer.path in lora["layers"]], lora["rank"])
        for layer in sublayers(backbone) if frozen_paths else ():
            if layer.path in frozen_paths:
                layer.trainable = False
        return backbone

    @classmethod
    def from_preset(
        cls, preset: str | Path, load_weights: bool = True, family: str | None = None, **config_overrides: Any
    ) -> Backbone:
        """Load a backbone from a preset.

        `Backbone` loads presets of any family; a subclass only loads presets of its own family.

        Args:
            preset: a name from `lmzoo.list_presets()`, a local directory, `hf://org/name` or `kaggle://...`.
            load_weights: whether to load the weights; if False, they are random.
            family: name of the family, such as "bert", for a checkpoint that does not name its family.
            **config_overrides: constructor arguments to change, such as `dropout=0.2`, `dtype="bfloat16"` or `name`.

        Raises:
            ValueError: If the name is unknown (the message suggests similar names), a file is missing or altered, or
                the preset is of another family.

        Example:

        ```python
        import lmzoo

        backbone = lmzoo.models.Backbone.from_preset("bert_nano_en_uncased")
        ```
        """
        return load_backbone(preset, cls, load_weights=load_weights, family=family, **config_overrides)

    def save_to_preset(
        self,
        directory: str | Path,
        overwrite: bool = True,
        weights_dtype: str = "float32",
        tasks: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        """Write the backbone as a preset, in KerasHub's file layout with a manifest of checksums.

        With `tasks`, the preset also holds tasks on this backbone, such as the tasks of `lmzoo.training.fit_together`.
        To load one of these tasks, call `from_preset(directory, task=name)` on its class.

        Args:
            directory: directory to write. If writing fails, an existing directory is left unchanged.
            overwrite: whether to replace an existing preset.
            weights_dtype: dtype of the stored weights, "float32", "float16" or "int8"; see `Task.save_to_preset`.
            tasks: tasks on this backbone by name, or None. They must have the same tokenizer.
            **unknown: arguments of other libraries, which raise an error with advice.

        Raises:
            FileExistsError: If `directory` is not empty and `overwrite` is False, or if it is a file or the working
                directory.
            TypeError: If there is an unknown argument.
            ValueError: If `weights_dtype` is none of the three, if `tasks` is not a dict of at least one task, if a
                task has another backbone or another tokenizer, or if a task's name has characters other than letters,
                digits, `_`, `-` and `.` or differs from another name only in case.
        """
        refuse_arguments("save_to_preset", unknown, SAVE_TO_PRESET)
        save_preset(self, directory, overwrite, weights_dtype=weights_dtype, tasks=tasks)

    def export(self, filepath: str | Path, format: str | None = None, verbose: bool = True) -> None:
        """Export the model for other runtimes, with token features as inputs and all outputs by name.

        Outputs that are tuples become separate tensors: `hidden_states_0`, `hidden_states_1` and so on. Backends other
        than TensorFlow export in a child process, which needs TensorFlow.

        Args:
            filepath: a directory for a TensorFlow SavedModel, or a file that ends in `.onnx` (needs
                `pip install 'lmzoo[onnx]'`) or `.tflite`, both for models in float32. If writing fails, an existing
                file or directory is left unchanged.
            format: "tf_saved_model", "onnx" or "litert" (Keras' names); by default, the format that fits `filepath`.
            verbose: whether to print what was written.

        Raises:
            ImportError: If a package that writes the format is not installed.
            NotFiniteError: If weights are NaN or infinite.
            RuntimeError: If the child process fails.
            ValueError: If `filepath` is a directory of model versions or does not fit `format`, if the format does not
                support the model's dtype (ONNX and LiteRT), its quantization (LiteRT) or one of its operations.
        """
        path_format = file_format(filepath) or "tf_saved_model"
        require(format in (None, path_format), "format", f"{path_format!r} for the path {str(filepath)!r}", format)
        export_backbone(self, filepath, verbose)

    @classmethod
    def list_presets(cls) -> dict[str, PresetInfo]:
        """Return the presets that the class can load, by name."""
        if cls is Backbone:
            return list_presets()
        name = get_family(cls).name
        return {key: info for key, info in list_presets().items() if info.family == name}
