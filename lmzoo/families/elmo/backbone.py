"""ELMo (Peters et al., 2018, https://arxiv.org/abs/1802.05365)."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Features, Tensor, Tensors
from lmzoo.families.backbone import Backbone
from lmzoo.families.elmo.config import MARKER_LENGTH, ElmoConfig
from lmzoo.families.elmo.layers import BiLM
from lmzoo.families.input_checks import check_structure, get_concrete_values
from lmzoo.layers import MeanPooler, ScalarMix
from lmzoo.text.tokenizers.characters import NUM_SYMBOLS


@keras.saving.register_keras_serializable(package="lmzoo")
class ElmoBackbone(Backbone):
    """ELMo: a bidirectional language model that reads words as characters, and a learned mix of its layers.

    The inputs are a dict with `character_ids`, int32 (B, T, W), for B sentences of T words with W characters each. A
    word is encoded as 259, its UTF-8 bytes plus one, 260, and then 261 up to `max_characters`. Trailing columns that
    hold only 261 may be dropped, as long as three columns remain. A model with a vocabulary takes `token_ids` instead,
    int32 (B, T). Padding is 0, on the right. Pass sentences without sentence markers, which the model adds.

    The outputs are a dict: `sequence_output`, the mix of the layers (B, T, 2P); `pooled_output`, the mean of the mix
    over each sentence (B, 2P); and `hidden_states`, a tuple of num_layers + 1 tensors (B, T, 2P), the first of which
    holds each word's vector twice. Outputs at padding are zero. A call starts from a state of zeros; to continue from
    an earlier call, use `call_with_state`.

    `backbone.bilm.trainable = False`, or `freeze_bilm=True`, leaves only the mix trainable.

    On TensorFlow, an eager call encodes each distinct word once. With `backbone.bilm.encoder.dedupe = True`, graphs do
    the same, but XLA cannot compile these graphs.

    Args:
        lstm_dim: width of an LSTM's memory, D.
        projection_dim: width of a word's vector and of an LSTM's output, P. If it equals D, there is no projection.
        num_layers: number of LSTMs in each direction.
        num_highway: number of highway layers after the convolutions.
        char_embedding_dim: width of a character's embedding.
        filters: a pair (width, count) for each convolution. The counts must sum to at least P; if they sum to P, the
            outputs of the convolutions are not projected.
        activation: activation of the convolutions, `"relu"` or `"tanh"`.
        max_characters: maximum of W, the number of columns of `character_ids`.
        cell_clip: bound on absolute values in the LSTMs' memory, or None for no bound.
        projection_clip: bound on absolute values in the LSTMs' projected output, or None for no bound.
        skip_connections: whether an LSTM's input is added to its output, from the second layer on.
        vocabulary_size: number of token ids, including 0 for padding; None for a model that reads characters.
        start_token_id: id of the marker before a sentence, in a model with a vocabulary.
        end_token_id: id of the marker after a sentence, in a model with a vocabulary.
        dropout: rate in [0, 1) on the input of every LSTM.
        layer_norm: normalization of the mixed layers; see `lmzoo.layers.ScalarMix`.
        freeze_bilm: whether the language model is frozen, so that only the mix is trained.
        dtype: dtype policy of all layers: a name, a `keras.DTypePolicy`, or None for Keras' global policy.
        name: name of the model.
        trainable: whether the weights are trained.
        remat: must be False, since there are no blocks to recompute in the backward pass.
        fine_tuning: recommended settings for fine-tuning, by kind of head; see `Backbone`.

    Raises:
        ValueError: If an argument is out of range, or if the inputs of an eager call have an id out of range or a token
            after padding. The message names the argument, or the sequence and position.

    Example:

    ```python
    import numpy as np
    import lmzoo

    backbone = lmzoo.models.ElmoBackbone(lstm_dim=12, projection_dim=6, filters=((1, 5), (2, 8)))
    ids = np.array([[[259, 73, 260, 261], [259, 98, 110, 260], [0, 0, 0, 0]]], "int32")  # "I am", between markers
    outputs = backbone({"character_ids": ids})
    outputs["sequence_output"].shape  # (1, 3, 12)
    ```
    """

    config_class = ElmoConfig
    scalar_mix: ScalarMix

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bilm.trainable = self.bilm.trainable and not self.config.freeze_bilm

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments; `freeze_bilm` is False once the language model has been unfrozen."""
        return super().get_config() | {"freeze_bilm": self.config.freeze_bilm and not self.bilm.trainable}

    @classmethod
    def assemble(cls, config: ElmoConfig, dtype: keras.DTypePolicy) -> tuple[dict[str, Any], Features, Features]:
        """Build the graph, and return its layers by attribute name, its symbolic inputs and its symbolic outputs."""
        # === Layers ===
        layers: dict[str, Any] = {
            "bilm": BiLM(config, dtype=dtype, name="bilm"),
            "scalar_mix": ScalarMix(config.layer_norm, dtype=dtype, name="scalar_mix"),
            "mean_pooler": MeanPooler(dtype=dtype, name="mean_pooler"),
        }

        # === Functional Model ===
        name = _get_input_name(config)
        inputs = {name: keras.Input((None, None) if name == "character_ids" else (None,), dtype="int32", name=name)}
        mask = _make_mask(inputs)
        states, marked_mask, _ = layers["bilm"](inputs[name], mask)
        return layers, inputs, _make_outputs(layers["scalar_mix"], layers["mean_pooler"], states, marked_mask, mask)

    def padding_mask(self, inputs: Features) -> Tensor:
        """Return the mask of real tokens, bool (B, T)."""
        return _make_mask(inputs)

    def call_with_state(self, inputs: Features, state: Tensors = None) -> tuple[Features, Tensors]:
        """Call the model with LSTMs that continue from the state of an earlier call.

        The original implementations always continue from the previous state.

        Args:
            inputs: the backbone's inputs, or a dict with `word_vectors`, float (B, T, P), and `padding_mask`, bool
                (B, T).
            state: the state returned by the previous call, or None for zeros. The batch sizes of the two calls may
                differ: additional sequences start from zeros, and missing sequences keep their state.

        Returns:
            The outputs, a dict, and the new state, a dict with the directions `"forward"` and `"backward"`. Each holds
            one pair per layer: the memory (B, D) and the output (B, P) after the last step of each sequence. No
            gradients flow through a state.

        Raises:
            ValueError: If the inputs are not valid for the backbone, or `state` has the wrong structure.

        Example:

        ```python
        import lmzoo
        from lmzoo.text import batch_to_ids

        backbone = lmzoo.models.ElmoBackbone(lstm_dim=12, projection_dim=6, filters=((1, 5), (2, 8)))
        outputs, state = backbone.call_with_state({"character_ids": batch_to_ids([["A", "sentence"]])})
        outputs, state = backbone.call_with_state({"character_ids": batch_to_ids([["The", "next"]])}, state)
        ```
        """
        inputs = inputs if "word_vectors" in inputs else self.select_inputs(inputs)
        marked_states, marked_mask, state = self.marked_layers(inputs, state)
        return _make_outputs(self.scalar_mix, self.mean_pooler, marked_states, marked_mask, _make_mask(inputs)), state

    def marked_layers(
        self, inputs: Features, state: Tensors = None, training: bool = False
    ) -> tuple[Tensors, Tensor, Tensors]:
        """Return the hidden states of the language model's layers, including sentence markers.

        Args:
            inputs: inputs as in `call_with_state`.
            state: state as in `call_with_state`.
            training: whether to apply dropout.

        Returns:
            A tuple of num_layers + 1 tensors, float (B, T + 2, 2P), which are zero at padding; their mask, bool
            (B, T + 2); and the new state.
        """
        inputs = inputs if "word_vectors" in inputs else self.check_inputs(inputs)
        if state is not None:
            check_structure("state", state, self.bilm.state_spec())
        word_inputs = ops.convert_to_tensor(inputs.get("word_vectors", inputs.get(_get_input_name(self.config))))
        return self.bilm(word_inputs, _make_mask(inputs), state, training=training)

    def word_vectors(self, ids: Tensor) -> Tensor:
        """Return the context-independent vectors of words, which can be cached.

        Args:
            ids: character ids of N words, int32 (N, W), or in a model with a vocabulary, their token ids, int32 (N,).

        Returns:
            One vector per word, float (N, P).
        """
        return self.bilm.encoder(ops.convert_to_tensor(ids))

    @property
    def id_counts(self) -> dict[str, int]:
        """Dict from each input whose values are checked to its number n of valid ids, which are 0 to n - 1."""
        return {_get_input_name(self.config): self.config.vocabulary_size or NUM_SYMBOLS}

    def check_inputs(self, inputs: Features) -> Features:
        """Check that inputs are valid and that no token follows padding, and return the model's own inputs."""
        inputs = super().check_inputs(inputs)
        ((name, ids),) = inputs.items()
        width = ids.shape[-1] if name == "character_ids" else None
        if width is not None and not MARKER_LENGTH <= width <= self.config.max_characters:
            allowed = f"{MARKER_LENGTH} to {self.config.max_characters}"
            raise ValueError(f"`character_ids` must have {allowed} characters per word, got {width}.")
        if (values := get_concrete_values(ids)) is None:
            return inputs
        is_real = np.any(values != 0, axis=tuple(range(2, values.ndim)))  # (B, T)
        gap_positions = np.argwhere(~is_real[:, :-1] & is_real[:, 1:])
        for sequence, position in gap_positions[:1]:
            raise ValueError(f"`{name}` has a token after the padding at position {position} of sequence {sequence}.")
        return inputs


def _get_input_name(config: ElmoConfig) -> str:
    return "character_ids" if config.vocabulary_size is None else "token_ids"


def _make_mask(inputs: Features) -> Tensor:
    """Return the mask of real tokens, bool (B, T)."""
    if "padding_mask" in inputs:
        return ops.cast(inputs["padding_mask"], "bool")
    if "character_ids" in inputs:
        return ops.any(ops.greater(inputs["character_ids"], 0), axis=-1)
    return ops.greater(inputs["token_ids"], 0)


def _make_outputs(mix: ScalarMix, pooler: MeanPooler, states: Tensors, marked_mask: Tensor, mask: Tensor) -> Features:
    """Return the backbone's outputs, given the hidden states of the language model's layers and the masks.

    `states` and `marked_mask` include sentence markers; `mask` does not.
    """
    float_mask = ops.expand_dims(ops.cast(mask, states[0].dtype), 2)  # (B, T, 1)
    hidden_states = tuple(layer_states[:, 1:-1] * float_mask for layer_states in states)  # (B, T, 2P)
    # AllenNLP's normalization includes the markers.
    mixed_states = mix(states, marked_mask)[:, 1:-1] if mix.layer_norm == "allennlp" else mix(hidden_states, mask)
    sequence = mixed_states * float_mask
    return {
        "sequence_output": sequence,
        "pooled_output": pooler(sequence, mask),  # (B, 2P)
        "hidden_states": hidden_states,
    }
