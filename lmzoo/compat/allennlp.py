"""Drop-in replacements for AllenNLP's `Elmo` and `batch_to_ids`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import keras
import numpy as np
from keras import ops

from lmzoo.checkpoints.bilm import load_bilm
from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Shape, Tensor
from lmzoo.families.input_checks import check_structure, get_concrete_values
from lmzoo.layers import Dropout, ScalarMix
from lmzoo.models import ElmoBackbone
from lmzoo.text import batch_to_ids

__all__ = ["Elmo", "batch_to_ids"]


class Representations(TypedDict):
    """Outputs of `Elmo` for sequences of T tokens.

    Attributes:
        elmo_representations: list with a tensor for each mix, float (..., T, 2P), the representations of the tokens,
            where P is the width of one direction.
        mask: bool (..., T), True for tokens and False for padding.
    """

    elmo_representations: list[Tensor]
    mask: Tensor


@keras.saving.register_keras_serializable(package="lmzoo")
class Elmo(keras.layers.Layer):
    """ELMo representations of sentences: learned mixes of the language model's layers (Peters et al., 2018).

    The layer behaves like AllenNLP's module of the same name, except that every call starts from states of zeros.
    AllenNLP's LSTMs continue from the states after the previous batch, so that a sentence gets different vectors in
    each call; for this behavior, use `ElmoBackbone.call_with_state`.

    Args:
        options_file: path of an `*options.json` file.
        weight_file: path of a `*weights.hdf5` file.
        num_output_representations: int, number of mixes to return.
        requires_grad: whether to train the language model as well.
        do_layer_norm: whether to normalize layers before they are mixed; see `lmzoo.layers.ScalarMix`.
        dropout: float, dropout rate of each representation in training.
        vocab_to_cache: words whose vectors are computed once, in the constructor; the first word is padding. Pass the
            indices of these words as `word_inputs`. Vectors of words with other indices are computed from characters.
        keep_sentence_boundaries: whether the representations include the two boundary markers.
        scalar_mix_parameters: fixed values, before the softmax, for the scalars of every mix; None for trained scalars.
        module: a backbone to use instead of the two files.

    Call arguments: `inputs`, the character ids that `batch_to_ids` returns for B sentences of T tokens, int32
    (B, T, 50), and optionally `word_inputs`, indices in `vocab_to_cache`, int32 (B, T). Both may have more axes before
    T. Returns a dict: `elmo_representations`, a list of float (B, T, 2P), where P is the width of one direction
    (`projection_dim`), and `mask`, bool (B, T). With `keep_sentence_boundaries`, both have T + 2 positions.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If both the files and `module` are passed, or neither, if a file has the wrong format, or if
            `num_output_representations` is below 1. In a call, if the shapes of `word_inputs` and `inputs` do not
            match, or if a word is neither in the cache nor has characters in `inputs`. In graphs, where this cannot be
            checked, such a word gets the vector of padding.

    Example:

    ```python
    import lmzoo
    from lmzoo.compat.allennlp import Elmo, batch_to_ids

    backbone = lmzoo.models.ElmoBackbone(lstm_dim=12, projection_dim=6, filters=((1, 5), (2, 8)))
    elmo = Elmo(None, None, num_output_representations=2, dropout=0.0, module=backbone)
    character_ids = batch_to_ids([["First", "sentence", "."], ["Another", "."]])
    embeddings = elmo(character_ids)
    embeddings["elmo_representations"][0].shape  # (2, 3, 12)
    ```
    """

    def __init__(
        self,
        options_file: str | Path | None = None,
        weight_file: str | Path | None = None,
        num_output_representations: int = 1,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        module: ElmoBackbone | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        num_mixes = num_output_representations
        require(is_integer(num_mixes, 1), "num_output_representations", "an integer of at least 1", num_mixes)
        if (module is None) != (options_file is not None and weight_file is not None):
            raise ValueError("Pass `options_file` and `weight_file`, or `module` and None for both.")
        if options_file is not None and weight_file is not None:
            _check_files(options_file, weight_file)
            module = load_bilm(options_file, weight_file, dtype=self.dtype_policy, dropout=0.0)
        assert module is not None  # checked above; for mypy
        self.backbone = module
        self.backbone.trainable = requires_grad
        self.do_layer_norm = do_layer_norm
        self.keep_sentence_boundaries = keep_sentence_boundaries
        self.scalar_mix_parameters = None if scalar_mix_parameters is None else list(scalar_mix_parameters)
        norm_mode = "allennlp" if do_layer_norm else None
        self.scalar_mixes = [
            ScalarMix(norm_mode, parameters=scalar_mix_parameters, dtype=self.dtype_policy, name=f"scalar_mix_{i}")
            for i in range(num_output_representations)
        ]
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.vocab_to_cache = None if vocab_to_cache is None else list(vocab_to_cache)
        self._cache = None if vocab_to_cache is None else self._compute_word_vectors(list(vocab_to_cache))

    def _compute_word_vectors(self, words: list[str]) -> np.ndarray:
        """Compute the vectors of n words, float (n, P) of width P, with zeros for the first word, which is padding."""
        batches = [batch_to_ids([[word] for word in words[i : i + 1024]])[:, 0] for i in range(0, len(words), 1024)]
        vectors = np.concatenate([ops.convert_to_numpy(self.backbone.word_vectors(batch)) for batch in batches])
        vectors[0] = 0
        return vectors

    def build(self, inputs_shape: Shape | None = None, word_inputs_shape: Shape | None = None) -> None:
        """Create the scalars of the mixes."""
        layer_shapes = [(None, None, self.get_output_dim())] * (self.backbone.config.num_layers + 1)
        for mix in self.scalar_mixes:
            mix.build(layer_shapes)
        self.built = True

    def call(self, inputs: Tensor, word_inputs: Tensor | None = None, training: bool = False) -> Representations:
        """Compute the representations and their mask."""
        if word_inputs is not None and self._cache is None:
            warnings.warn("`word_inputs` needs `vocab_to_cache`; the characters are used instead.", stacklevel=2)
            word_inputs = None
        leading_shape = ops.shape(inputs)[:-2] if word_inputs is None else ops.shape(word_inputs)[:-1]
        if word_inputs is None:
            ids = ops.reshape(ops.cast(inputs, "int32"), (-1, *ops.shape(inputs)[-2:]))  # (B, T, 50)
            features = {"character_ids": ids}
        else:
            assert self._cache is not None  # without a cache, `word_inputs` is None here; for mypy
            features = self._make_word_features(self._cache, inputs, word_inputs)
        layers, mask, _ = self.backbone.marked_layers(features, training=training)  # each (B, T + 2, 2P)
        positions = slice(None)
        token_mask = mask
        if not self.keep_sentence_boundaries:
            positions = slice(1, -1)
            token_mask = ops.cast(self.backbone.padding_mask(features), "bool")
        float_mask = ops.cast(token_mask, layers[0].dtype)[:, :, None]
        representations = []
        for mix in self.scalar_mixes:
            mixed_layers = mix(layers, mask)[:, positions] * float_mask  # (B, T, 2P)
            mixed_layers = self.dropout(mixed_layers, training=training)
            representations.append(ops.reshape(mixed_layers, (*leading_shape, *ops.shape(mixed_layers)[1:])))
        output_mask = ops.reshape(token_mask, (*leading_shape, ops.shape(token_mask)[1]))
        return {"elmo_representations": representations, "mask": output_mask}

    def _make_word_features(self, cache: np.ndarray, inputs: Tensor, word_inputs: Tensor) -> Features:
        """Return the backbone's inputs, with word vectors from the cache or, for words that it lacks, from characters.

        Raises:
            ValueError: If the shapes of `inputs` and `word_inputs` do not match, or, in eager mode, if a word is not in
                the cache and has no characters.
        """
        check_structure("inputs", inputs, keras.KerasTensor((*word_inputs.shape, None), "int32"))
        ids = ops.reshape(ops.cast(word_inputs, "int32"), (-1, ops.shape(word_inputs)[-1]))  # (B, T)
        characters = ops.reshape(ops.cast(inputs, "int32"), (-1, ops.shape(inputs)[-1]))  # (B * T, 50)
        is_cached = (ids >= 0) & (ids < len(cache))  # (B, T)
        cached_vectors = ops.take(ops.cast(cache, self.backbone.compute_dtype), ops.where(is_cached, ids, 0), axis=0)

        def encode_missing() -> Tensor:
            encoded_vectors = ops.reshape(self.backbone.word_vectors(characters), ops.shape(cached_vectors))
            return ops.where(is_cached[:, :, None], cached_vectors, encoded_vectors)  # (B, T, P)

        # As in AllenNLP, the convolutions are computed only if a word needs them.
        is_cached_array = get_concrete_values(is_cached)
        if is_cached_array is None:
            vectors = ops.cond(ops.all(is_cached), lambda: cached_vectors, encode_missing)
        else:
            is_valid = is_cached | ops.reshape(ops.any(characters > 0, axis=-1), ops.shape(ids))
            for sequence, position in np.argwhere(~ops.convert_to_numpy(is_valid))[:1]:
                raise ValueError(
                    f"`word_inputs` must be in 0..{len(cache) - 1}, the ids of `vocab_to_cache`, except for words with "
                    f"characters in `inputs`, got {int(ids[sequence, position])} without characters in sequence "
                    f"{sequence} at position {position}."
                )
            vectors = cached_vectors if is_cached_array.all() else encode_missing()
        return {"word_vectors": vectors, "padding_mask": ids != 0}

    def compute_output_spec(
        self, inputs: Tensor, word_inputs: Tensor | None = None, training: bool = False
    ) -> Representations:
        """Return the shapes and dtypes of the outputs."""
        word_ids = None if self._cache is None else word_inputs
        *leading_axes, length = inputs.shape[:-1] if word_ids is None else word_ids.shape
        if self.keep_sentence_boundaries and length is not None:
            length += 2
        shape = (*leading_axes, length, self.get_output_dim())
        representations = [keras.KerasTensor(shape, self.compute_dtype) for _ in self.scalar_mixes]
        return {"elmo_representations": representations, "mask": keras.KerasTensor(shape[:-1], "bool")}

    def get_output_dim(self) -> int:
        """Return the width of the representations, twice the width of one direction."""
        return self.backbone.config.hidden_dim

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments except `vocab_to_cache`, with the backbone instead of the files."""
        return {
            **super().get_config(),
            "num_output_representations": len(self.scalar_mixes),
            "requires_grad": self.backbone.trainable,
            "do_layer_norm": self.do_layer_norm,
            "dropout": self.dropout.rate,
            "keep_sentence_boundaries": self.keep_sentence_boundaries,
            "scalar_mix_parameters": self.scalar_mix_parameters,
            "module": keras.saving.serialize_keras_object(self.backbone),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Elmo:
        """Build the layer without cached words, since their vectors depend on weights that are loaded later."""
        return cls(**{**config, "module": keras.saving.deserialize_keras_object(config["module"])})


def _check_files(options_file: str | Path, weight_file: str | Path) -> None:
    """Check that both files exist and that only `weight_file` is in HDF5, so that swapped arguments are noticed.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If `options_file` is in HDF5, or `weight_file` is not.
    """
    import h5py

    files = {"options_file": (options_file, "*options.json"), "weight_file": (weight_file, "*weights.hdf5")}
    for name, (path, pattern) in files.items():
        if not Path(path).is_file():
            raise FileNotFoundError(f"`{name}` must be the path of an {pattern}, but there is no file {str(path)!r}.")
        if h5py.is_hdf5(path) != pattern.endswith("hdf5"):
            raise ValueError(
                f"`{name}` must be an {pattern}, and {str(path)!r} is something else. The order is `options_file`, "
                "`weight_file`."
            )
