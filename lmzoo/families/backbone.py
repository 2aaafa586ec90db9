"""The base of all backbones."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.input_checks import check_ids
from lmzoo.families.keras_hub_names import KerasHubBackboneNames
from lmzoo.families.lora import LoraModel
from lmzoo.families.resizing import copy_weights
from lmzoo.layers.adapted import stores_updates
from lmzoo.layers.finite import ReportsNotFinite
from lmzoo.layers.heads import MaskedLMHead, tied_logits
from lmzoo.layers.rows import at_positions
from lmzoo.layers.sublayers import sublayers
from lmzoo.presets.catalog import PresetInfo, list_presets
from lmzoo.presets.keras_preset import save_preset
from lmzoo.presets.loading import load_backbone
from lmzoo.registry.family import family_of
from lmzoo.serving.export import export_backbone, file_format
from lmzoo.training.fine_tuning import FineTuningRecipe, StoredRecipes, read_recipes, stored_recipes


class Backbone(ReportsNotFinite, KerasHubBackboneNames, LoraModel):
    """A Functional model from token features to hidden states; the part of a task that is pre-trained.

    A family subclasses it with a frozen dataclass as `config_class` and an `assemble` method. The constructor takes
    the dataclass's fields as keyword arguments. They are also attributes of the model, such as `backbone.hidden_dim`,
    unless a layer has the same name.

    Args:
        dtype: dtype policy of all layers: a name, a `keras.DTypePolicy`, or None for Keras' global one.
        name: name of the model; by default that of its class, numbered if there are several.
        trainable: whether the weights are trained.
        remat: whether training keeps only the inputs of each block, and computes the rest again in the backward pass:
            about a third more work for a fraction of the memory.
        fine_tuning: recommended settings for fine-tuning, a dict from kinds of heads (`head_kind` of a task) to
            `lmzoo.training.FineTuningRecipe`. Presets hold them, and tasks take their defaults from them.
        **config: the fields of `config_class`.

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
    causal: ClassVar[bool] = False  # whether each position sees only itself and earlier ones
    reads_source: ClassVar[bool] = False  # whether an encoder reads another sequence, the source
    # By kind of head, for models that recommend none; for other heads the rate depends on the width.
    usual_recipes: ClassVar[Mapping[str, FineTuningRecipe]] = {}
    # Parts that not every backbone has, and that a task may leave untrained.
    pooler: keras.layers.Layer | None = None
    scalar_mix: keras.layers.Layer | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "config_class" in cls.__dict__:
            # For help() and notebooks: the dataclass's fields, then what every backbone takes.
            fields = inspect.signature(cls.config_class).parameters.values()
            common = [p for p in inspect.signature(Backbone.__init__).parameters.values() if p.kind == p.KEYWORD_ONLY]
            cls.__signature__ = inspect.Signature([*fields, *common])

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
            parsed = self.config_class(**config)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {str(error).split('__init__() ')[-1]}") from None
        policy = keras.dtype_policies.get(dtype)
        special: dict[str, keras.DTypePolicy] = {}  # policies of single layers of a quantized model, by path
        if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            special, policy = dict(policy), policy.default_policy
        layers, inputs, outputs = self.assemble(parsed, policy)
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.default_name = self.name if name is None else None
        self.config = parsed
        self.dtype_policy = policy
        for attribute, layer in layers.items():
            setattr(self, attribute, layer)
        self.trainable = trainable  # only now, so that Keras passes it on to the layers
        # A layer with the map itself as its policy could be loaded, but not saved again.
        with np.errstate(all="ignore"):  # what is rounded to int8 may be memory that no weights have been read into yet
            for layer in sublayers(self):
                if layer.path in special:
                    layer.dtype_policy = special[layer.path]
        blocks = [layer for layer in sublayers(self) if hasattr(layer, "remat")]
        if remat and not blocks:
            raise ValueError(f"A {type(self).__name__} has no blocks to compute again: leave `remat` False.")
        for block in blocks:
            block.remat = remat
        self.remat = remat
        self.fine_tuning = read_recipes(fine_tuning)

    @property
    def layouts(self) -> Mapping[str, tuple[str | None, ...]]:
        """Which axes of the weights several devices may split, by patterns of the weights' paths; see `Family`."""
        return family_of(self).layouts

    def __getattr__(self, name: str) -> Any:
        """Look up attributes of the configuration that the model itself does not have."""
        config = self.__dict__.get("config")  # missing while the model is built
        if name.startswith("_") or not hasattr(config, name):
            return super().__getattr__(name)
        return getattr(config, name)

    @classmethod
    def assemble(cls, config: Any, dtype: keras.DTypePolicy) -> tuple[dict[str, Any], Features, Features]:
        """Build the graph, and return its layers by attribute name, its symbolic inputs and its outputs."""
        raise NotImplementedError(f"{cls.__name__} must define `assemble`.")

    def __call__(self, inputs: Features, *args: Any, **kwargs: Any) -> Any:
        """Call the model, after `check_inputs`; see `call`."""
        return super().__call__(self.check_inputs(inputs), *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs for whole arrays; see `keras.Model.predict`. A dict of arrays is checked as by a call."""
        if not isinstance(x, dict):
            return super().predict(x, *args, **kwargs)
        x = self.check_inputs(x)
        if not any(map(len, x.values())):  # Keras fails where there is no batch
            return keras.tree.map_structure(keras.ops.convert_to_numpy, self(x))
        return super().predict(x, *args, **kwargs)

    @property
    def id_counts(self) -> dict[str, int]:
        """The inputs whose values are checked, by name, and the number n of ids of each: they are 0 to n - 1."""
        return {}

    def check_inputs(self, inputs: Features) -> Features:
        """Return the model's own inputs, checked; while a graph is built, only their names are.

        Args:
            inputs: a dict of arrays or tensors. Names of other models' inputs are left out.

        Raises:
            TypeError: if an input is neither an array nor a tensor.
            ValueError: naming an input that is missing or unknown, or an id that the model does not have and its
                position.
        """
        inputs = self.select_inputs(inputs)
        for name, count in self.id_counts.items():
            check_ids(name, inputs[name], count, len(self.input[name].shape))
        return inputs

    def describe_inputs(self) -> str:
        rank = max(len(x.shape) for x in self.input.values())
        return f"{super().describe_inputs()}, int32 {'(B, T, W)' if rank == 3 else '(B, T)'}"

    def padding_mask(self, inputs: Features) -> Tensor:
        """Where the tokens of `inputs` are real: int or bool (B, T)."""
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
    ) -> Any:
        """Compute the outputs, or what else the graphs of tasks take from the model.

        With `positions` and `outputs`, those of the model for the inputs, this is `vectors_at`; with `vectors` it is
        `token_logits`. Both are calls of the model, since a layer that is in the model and again next to it becomes two
        layers when Keras copies or loads a graph.
        """
        if vectors is not None:
            return self.token_logits(vectors, bias)
        if positions is None or outputs is None:
            return super().call(inputs, training=training, mask=mask)
        return self.compute_vectors_at(inputs, positions, outputs)

    def compute_output_spec(
        self,
        inputs: Features,
        training: bool | None = None,
        mask: Any = None,
        positions: Tensor | None = None,
        outputs: Features | None = None,
        vectors: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Any:
        """Return the shapes and dtypes of the results of `call`."""
        if vectors is not None:
            return keras.KerasTensor((*vectors.shape[:-1], self.config.vocabulary_size), "float32")
        if positions is None or outputs is None:
            return super().compute_output_spec(inputs, training=training, mask=mask)
        return keras.KerasTensor((*positions.shape, outputs["sequence_output"].shape[-1]), self.compute_dtype)

    def vectors_at(self, inputs: Features, positions: Tensor, outputs: Features | None = None) -> Tensor:
        """Return `sequence_output` at chosen positions.

        Args:
            inputs: the backbone's inputs.
            positions: int (B, M).
            outputs: those of the backbone for the inputs, if it has been called already.

        Returns:
            Float (B, M, H).
        """
        return self(inputs, positions=positions, outputs=self(inputs) if outputs is None else outputs)

    def compute_vectors_at(self, inputs: Features, positions: Tensor, outputs: Features) -> Tensor:
        """Compute `vectors_at` from the model's outputs."""
        return at_positions(outputs["sequence_output"], positions)

    def make_masked_lm_head(self, activation: str, layer_norm_epsilon: float, **settings: Any) -> MaskedLMHead:
        """Return the layers of a masked-LM head between vectors of the backbone and `token_logits`.

        Args:
            activation: str, of the head.
            layer_norm_epsilon: float, of the head.
            **settings: other arguments of `lmzoo.layers.MaskedLMHead`.
        """
        table = self.embeddings.token_embedding
        settings = {"dtype": self.dtype_policy, "initializer_range": self.config.initializer_range, **settings}
        shape = (table.input_dim, table.output_dim)
        return MaskedLMHead(None, activation, layer_norm_epsilon, table_shape=shape, **settings)

    def token_logits(self, vectors: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the logits of all tokens by the table of token embeddings, float32 (..., V).

        Args:
            vectors: float (..., E), of the table's width.
            bias: float (V,), added to the logits, or None.
        """
        return tied_logits(self.embeddings.token_embedding, vectors, bias)

    def set_compiled_by_xla(self, compiled: bool) -> None:
        """Tell the layers whether XLA compiles the model; if not, they may skip repeated words."""
        for layer in sublayers(self):
            if hasattr(layer, "dedupe"):
                layer.dedupe = not compiled

    def resize_token_embeddings(self, size: int, seed: int = 0) -> Self:
        """Return a copy of the backbone with embeddings for `size` tokens, such as for those added to its tokenizer.

        New rows are drawn from normal distributions, with the mean and the variance of each column of the old rows.
        A task has a method of the same name, which keeps its head.

        Args:
            size: number of tokens; if it is lower than before, the last rows are left out.
            seed: seed of the new rows.

        Raises:
            ValueError: if `size` is not a positive integer, if the model has no table of tokens (an ELMo that reads
                characters), is quantized, or has LoRA.

        Example:

        ```python
        import lmzoo

        backbone = lmzoo.models.Backbone.from_preset("bert_nano_en_uncased")
        larger = backbone.resize_token_embeddings(backbone.vocabulary_size + 2)
        ```
        """
        require(is_integer(size, 1), "size", "a positive integer", size)
        kind = type(self).__name__
        if getattr(self.config, "vocabulary_size", None) is None:
            raise ValueError(f"This {kind} reads the characters of words: it has no table of tokens to resize.")
        if self.lora_rank or any(layer.quantization_mode for layer in sublayers(self)):
            raise ValueError(f"This {kind} is quantized or has LoRA. Resize the embeddings first.")
        resized = type(self).from_config({**self.get_config(), "vocabulary_size": size})
        copy_weights(self, resized, seed)
        return resized

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, the dtype policies of quantized layers, and the frozen layers."""
        dtype = self.dtype_policy
        quantized = {layer.path: layer.dtype_policy for layer in sublayers(self) if layer.quantization_mode is not None}
        if quantized:
            dtype = keras.dtype_policies.DTypePolicyMap(default_policy=dtype.name, policy_map=quantized)
        config = {
            **dataclasses.asdict(self.config),
            "dtype": keras.dtype_policies.serialize(dtype),
            "name": None if self.name == self.default_name else self.name,  # so that copies can be in one model
            "trainable": self.trainable,
        }
        config |= {"remat": True} if self.remat else {}
        config |= {"fine_tuning": stored_recipes(self.fine_tuning)} if self.fine_tuning else {}
        if self.lora_rank and (adapted := [layer.path for layer in sublayers(self) if stores_updates(layer)]):
            config["lora"] = {"rank": self.lora_rank, "layers": adapted}
        # With LoRA everything but the updates is frozen.
        if self.trainable and not self.lora_rank:
            frozen = [layer.path for layer in sublayers(self) if layer.weights and not layer.trainable]
            config |= {"frozen": frozen} if frozen else {}
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, object] | None = None) -> Self:
        """Build a backbone from `get_config`'s output."""
        config = dict(config)
        frozen = set(config.pop("frozen", ()))
        lora = config.pop("lora", None)
        backbone = cls(**config)
        if lora:
            backbone._adapt([layer for layer in sublayers(backbone) if layer.path in lora["layers"]], lora["rank"])
        for layer in sublayers(backbone) if frozen else ():
            if layer.path in frozen:
                layer.trainable = False
        return backbone

    @classmethod
    def from_preset(
        cls, preset: str | Path, load_weights: bool = True, family: str | None = None, **config_overrides: Any
    ) -> Backbone:
        """Load a backbone from a preset.

        `Backbone` takes presets of any family, a family's class only those of the family.

        Args:
            preset: a name from `lmzoo.list_presets()`, a local directory, `hf://org/name` or `kaggle://...`.
            load_weights: False for the architecture with random weights.
            family: name of the family, such as "bert", for a checkpoint that does not tell it.
            **config_overrides: constructor arguments to change, such as `dropout=0.2`, `dtype="bfloat16"` or `name`.

        Raises:
            ValueError: for an unknown name (similar ones are suggested), an altered or missing file, or a preset of
                another family.

        Example:

        ```python
        import lmzoo

        backbone = lmzoo.models.Backbone.from_preset("bert_nano_en_uncased")
        ```
        """
        return load_backbone(preset, cls, load_weights=load_weights, family=family, **config_overrides)

    def save_to_preset(self, directory: str | Path, overwrite: bool = True) -> None:
        """Write the backbone as a preset: KerasHub's file layout with a manifest of checksums.

        Args:
            directory: the directory to write. A failure leaves an existing one untouched.
            overwrite: whether an existing directory may be replaced.
        """
        save_preset(self, directory, overwrite)

    def export(self, filepath: str | Path, format: str | None = None, verbose: bool = True) -> None:
        """Write the model for other runtimes: token features in, all outputs out by name.

        Outputs that are tuples become single tensors: `hidden_states_0`, `hidden_states_1` and so on. Other backends
        than TensorFlow export in a child process, for which TensorFlow must be installed.

        Args:
            filepath: a directory for a TensorFlow SavedModel, or a file that ends in `.onnx` (needs
                `pip install 'lmzoo[onnx]'`) or `.tflite`, both for models in float32. If writing fails, an existing one
                stays as it was.
            format: "tf_saved_model", "onnx" or "litert", as Keras calls them; by default what the path stands for.
            verbose: whether to print what was written.

        Raises:
            ImportError: if a package that writes the format is not installed.
            NotFiniteError: if weights are NaN or infinite.
            RuntimeError: if the process that exports for another backend fails.
            ValueError: if the path holds versions of a model or does not fit the format, or if the format has no op for
                a part of the model, such as LiteRT for recurrent layers.
        """
        of_path = file_format(filepath) or "tf_saved_model"
        require(format in (None, of_path), "format", f"{of_path!r} for the path {str(filepath)!r}", format)
        export_backbone(self, filepath, verbose)

    @classmethod
    def list_presets(cls) -> dict[str, PresetInfo]:
        """Return the presets that this class can load, by name."""
        if cls is Backbone:
            return list_presets()
        name = family_of(cls).name
        return {key: info for key, info in list_presets().items() if info.family == name}
