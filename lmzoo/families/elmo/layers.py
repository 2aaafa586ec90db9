"""ELMo's language model: a word encoder and two stacks of LSTMs that read in opposite directions.

In shapes, B is the number of sequences, T the number of positions (including sentence markers), W the number of
characters per word, P the width of a word vector, and D the width of an LSTM's memory.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor, Tensors
from lmzoo.families.elmo.config import MARKER_LENGTH, ElmoConfig
from lmzoo.layers import Dropout, Embedding, GatherPositions
from lmzoo.layers.carried_state import fit_to_batch, keep_missing_sequences
from lmzoo.layers.character_encoder import CharacterEncoder, make_initializer_with_zero_row
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.lstm import DIRECTIONS, BidirectionalLSTM, get_memory_dtype
from lmzoo.layers.rows import as_rows
from lmzoo.text.tokenizers.characters import NO_BYTE, NUM_SYMBOLS, CharacterTokenizer


@keras.saving.register_keras_serializable(package="lmzoo")
class BiLM(ConfiguredLayer):
    """Bidirectional language model without its softmax: a word encoder, then `num_layers` LSTMs in each direction.

    Args:
        config: an `ElmoConfig`, or its fields as a dict.

    Call arguments:
        inputs: sentences without markers, as character ids, int32 (B, T-2, W), token ids, int32 (B, T-2), or word
            vectors, float (B, T-2, P).
        padding_mask: bool (B, T-2), True at real words.
        state: state as in `ElmoBackbone.call_with_state`.

    Returns:
        The hidden states of all layers with markers, a tuple of num_layers + 1 tensors, float (B, T, 2P), which are
        zero at padding; their mask, bool (B, T); and the state after the sentences.
    """

    def __init__(self, config: ElmoConfig | dict[str, Any], **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # autocasting would round the state's memory
        self.config = config = ElmoConfig(**config) if isinstance(config, dict) else config
        policy = self.dtype_policy
        if config.vocabulary_size is None:
            self.encoder = CharacterEncoder(
                NUM_SYMBOLS,
                config.char_embedding_dim,
                config.filters,
                config.projection_dim,
                config.num_highway,
                config.activation,
                config.max_characters,
                padding=NO_BYTE,
                dtype=policy,
                name="encoder",
            )
        else:
            initializer = make_initializer_with_zero_row(keras.initializers.GlorotUniform())
            self.encoder = Embedding(
                config.vocabulary_size, config.projection_dim, initializer, dtype=policy, name="token_embedding"
            )
        sizes = config.lstm_dim, config.projection_dim, config.cell_clip, config.projection_clip
        self.lstms = [BidirectionalLSTM(*sizes, dtype=policy, name=f"lstm_{i}") for i in range(config.num_layers)]
        self.dropout = Dropout(config.dropout, dtype=policy, name="dropout")
        self.gather = GatherPositions(dtype=policy, name="gather_positions")

    def build(self, inputs_shape: Shape, padding_mask_shape: Shape | None = None, state_shape: Tensors = None) -> None:
        """Create the weights of the word encoder and the LSTMs."""
        self.encoder.build((None, None))
        for layer in (*self.lstms, self.gather):  # Keras quantizes only layers that are built
            layer.build((None, None))
        self.restore_created_layers()

    def compute_output_spec(
        self, inputs: Tensor, padding_mask: Tensor, state: Tensors = None, training: bool = False
    ) -> tuple[Tensors, Tensor, Tensors]:
        """Return the shapes and dtypes of the outputs, which JAX cannot infer while W is unknown."""
        batch, length = inputs.shape[:2]
        length = None if length is None else length + 2
        shape = (batch, length, self.config.hidden_dim)
        layer_specs = tuple(keras.KerasTensor(shape, self.compute_dtype) for _ in range(self.config.num_layers + 1))
        return layer_specs, keras.KerasTensor((batch, length), "bool"), self.state_spec(batch)

    def state_spec(self, batch: int | None = None) -> Tensors:
        """Return the shapes and dtypes of the state for `batch` sequences."""
        memory_spec = (batch, self.config.lstm_dim), get_memory_dtype(self.compute_dtype)
        output_spec = (batch, self.config.projection_dim), self.compute_dtype
        return {
            direction: tuple((keras.KerasTensor(*memory_spec), keras.KerasTensor(*output_spec)) for _ in self.lstms)
            for direction in DIRECTIONS
        }

    def call(self, inputs: Tensor, padding_mask: Tensor, state: Tensors = None, training: bool = False) -> Tensors:
        """Add sentence markers, run the LSTMs, and return the hidden states, their mask and the new state."""
        lengths = ops.sum(ops.cast(padding_mask, "int32"), axis=1) + 2  # (B,)
        if keras.backend.is_float_dtype(inputs.dtype):
            inputs = ops.cast(inputs, self.compute_dtype)
            word_vectors = _add_markers(inputs, self.encoder(self._make_markers(MARKER_LENGTH)), lengths)  # (B, T, P)
        else:
            ids = _add_markers(inputs, self._make_markers(ops.shape(inputs)[-1]), lengths)  # (B, T) or (B, T, W)
            word_vectors = self.encoder(ops.reshape(ids, (-1, *ops.shape(ids)[2:])))
            word_vectors = ops.reshape(word_vectors, (*ops.shape(ids)[:2], self.config.projection_dim))  # (B, T, P)
        positions = ops.arange(ops.shape(word_vectors)[1])[None]  # (1, T)
        is_real = positions < lengths[:, None]  # (B, T)
        # These indices reverse each sequence within its length; applying them twice restores the order.
        reversed_positions = ops.where(is_real, lengths[:, None] - 1 - positions, positions)
        swapped_axes = (1, 0, 2)  # between (B, T, P) and (T, B, P)
        forward_steps = ops.transpose(word_vectors, swapped_axes)
        backward_steps = ops.transpose(self.gather(word_vectors, reversed_positions), swapped_axes)
        outputs, state = self.run_stacks(forward_steps, backward_steps, lengths, state, training)
        layer_states = [ops.concatenate([word_vectors, word_vectors], axis=2)]  # (B, T, 2P)
        for forward, backward in outputs:
            backward = self.gather(ops.transpose(backward, swapped_axes), reversed_positions)
            layer_states.append(ops.concatenate([ops.transpose(forward, swapped_axes), backward], axis=2))
        mask = ops.expand_dims(ops.cast(is_real, word_vectors.dtype), 2)  # (B, T, 1)
        return tuple(states * mask for states in layer_states), is_real, state

    def run_stacks(
        self, forward: Tensor, backward: Tensor, lengths: Tensor | None, state: Tensors, training: bool = False
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensors]:
        """Run the LSTMs of both directions over words; each direction may read a different text.

        Args:
            forward: float (T, B, P), word vectors for the forward LSTMs, time first.
            backward: float (T, B, P), word vectors in the order in which the backward LSTMs read them: the last word of
                a sentence comes first.
            lengths: int32 (B,), number of real steps of each sequence; None if all steps are real.
            state: state as in `ElmoBackbone.call_with_state`.
            training: whether to apply dropout to each layer's input.

        Returns:
            For each layer, the outputs of both directions, float (T, B, P), which are undefined at padding; and the
            state after the last real step of each sequence.
        """
        steps, batch = ops.shape(forward)[:2]
        last_steps = (steps if lengths is None else lengths) - 1
        last_rows = ops.arange(batch) + batch * last_steps  # (B,), in tensors (T * B, ...)
        zeros = keras.tree.map_structure(lambda spec: ops.zeros((batch, spec.shape[1]), spec.dtype), self.state_spec())
        initial_state = zeros if state is None else fit_to_batch(state, zeros)

        def select_last(steps: Tensor) -> Tensor:
            return ops.stop_gradient(ops.take(as_rows(steps), last_rows, axis=0))  # (B, D) or (B, P)

        inputs = (forward, backward)
        outputs = []
        last_states = []  # of each layer, a pair for each direction
        for k, lstm in enumerate(self.lstms):
            inputs = tuple(self.dropout(x, training=training) for x in inputs)
            lstm_outputs, memories = lstm(*inputs, [initial_state[direction][k] for direction in DIRECTIONS])
            # The state does not include the skip connection.
            pairs = tuple(zip(memories, lstm_outputs, strict=True))
            last_states.append(keras.tree.map_structure(select_last, pairs))
            if self.config.skip_connections and k:
                lstm_outputs = [lstm_output + x for lstm_output, x in zip(lstm_outputs, inputs, strict=True)]
            inputs = tuple(lstm_outputs)
            outputs.append(inputs)
        new_state = dict(zip(DIRECTIONS, zip(*last_states, strict=True), strict=True))
        return outputs, new_state if state is None else keep_missing_sequences(new_state, state)

    def _make_markers(self, width: int | Tensor) -> Tensor:
        """Return the ids of the two sentence markers: token ids (2,), or character ids (2, W) with W = `width`."""
        if self.config.vocabulary_size is not None:
            return ops.convert_to_tensor([self.config.start_token_id, self.config.end_token_id], "int32")
        character_ids = CharacterTokenizer(self.config.max_characters).as_array(("<S>", "</S>"), 2)  # (2, W)
        return ops.convert_to_tensor(character_ids)[:, :width]


def _add_markers(inputs: Tensor, markers: Tensor, lengths: Tensor) -> Tensor:
    """Add the two sentence markers around each sentence.

    Args:
        inputs: ids or vectors of the words, (B, T-2, ...).
        markers: ids or vectors of the start and end markers, (2, ...).
        lengths: int32 (B,), number of words in each sentence, including the markers.

    Returns:
        The ids or vectors with markers, (B, T, ...).
    """
    trailing_sizes = (1,) * (len(inputs.shape) - 2)
    inputs = ops.pad(inputs, [[0, 0], [1, 1], *([0, 0] for _ in trailing_sizes)])  # (B, T, ...)
    positions = ops.reshape(ops.arange(ops.shape(inputs)[1]), (1, -1, *trailing_sizes))
    end_positions = ops.reshape(lengths - 1, (-1, 1, *trailing_sizes))
    return ops.where(positions == 0, markers[0], ops.where(positions == end_positions, markers[1], inputs))
