"""Base class of tasks that can read long texts in windows.

Letters in shapes: B texts, W windows of each text, T positions of a window, C outputs of a window, w windows of all
texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keras import ops

from lmzoo.common.tensor_types import Features, Tensor, Tensors
from lmzoo.layers.choice_axis import ABSENT
from lmzoo.tasks.base.examples import EncodedInputs, FeatureArrays, Texts
from lmzoo.tasks.base.prediction import predict_encoded
from lmzoo.tasks.base.task import Task
from lmzoo.text import Encoded
from lmzoo.text.long_texts import WindowedTexts, encode_in_windows

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf


class LongTextTask(Task):
    """Base class of tasks that can read a long text in several windows and join their outputs.

    With `windows`, the features of a batch of texts have an axis of windows, (B, W, T). `call` computes the outputs of
    all windows, and joins the outputs of each text: outputs per text are pooled, and outputs per token are
    concatenated. In `predict`, the windows of all texts are batched by length instead.

    A subclass takes `windows` and `stride` in its constructor, and stores them as attributes. It may define
    `window_pooling` and `finish_pooled`. To export its answers, it defines `named_answers`.
    """

    window_pooling: str = "mean"  # "mean" or "max" over the windows of a text, for outputs per text

    @property
    def input_spec(self) -> Any:
        """The specs with which Keras checks inputs; None with `windows`, as inputs may then have an axis of windows."""
        return None if self.windows is not None else super().input_spec

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments; `stride` is None without `windows`, where it has no effect."""
        config = super().get_config()
        return {**config, "stride": None} if self.windows is None else config

    def encode_inputs(self, x: Texts) -> EncodedInputs:
        return self.encode_texts(x)

    def encode_texts(self, x: Texts, prompt: str = "") -> EncodedInputs:
        """Encode texts or pairs as packed sequences or, if `windows` is set, as several windows each.

        Args:
            x: texts or pairs; encoded texts are returned unchanged.
            prompt: the prompt that each first text already begins with; every window repeats it.
        """
        if self.windows is None or isinstance(x, Encoded):
            return super().encode_inputs(x)
        self.check_takes_text()
        preprocessor = self.text_preprocessor
        firsts, seconds = self.split_texts(x)
        return encode_in_windows(preprocessor, firsts, seconds, self.windows, self.stride, prompt)

    def features(self, encoded: EncodedInputs, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the model's inputs for the examples at `indices`, with an axis of windows for texts in windows."""
        if isinstance(encoded, WindowedTexts):
            return encoded.features(self.text_preprocessor, indices, width)
        return super().features(encoded, indices, width)

    def call(self, inputs: Features, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        """Compute the outputs of sequences or, for inputs (B, W, T), of texts in W windows."""
        inputs = self.select_inputs(inputs)
        name, values = next(iter(inputs.items()))
        if len(values.shape) == len(self.input[name].shape):
            return super().call(inputs, training=training, mask=mask, **kwargs)
        flat_inputs = {key: ops.reshape(x, (-1, *ops.shape(x)[2:])) for key, x in inputs.items()}  # (B·W, T)
        outputs = super().call(flat_inputs, training=training, **kwargs)  # (B·W, ...)
        padding_mask = self.backbone.padding_mask(inputs)  # (B, W, T)
        batch_size, window_count = ops.shape(padding_mask)[:2]
        if self.per_token:
            return ops.reshape(outputs, (batch_size, -1, *outputs.shape[2:]))  # (B, W·T, ...)
        outputs = ops.reshape(outputs, (batch_size, window_count, *outputs.shape[1:]))  # (B, W, C)
        return self.finish_pooled(self._pool(ops.cast(outputs, "float32"), padding_mask))

    def _pool(self, outputs: Tensor, padding_mask: Tensor) -> Tensor:
        """Pool `outputs` (B, W, C) over the windows of each text, and return float32 (B, C).

        The result is the maximum, or the mean weighted by the windows' numbers of tokens, as in `WindowedTexts.pool`.
        """
        lengths = ops.sum(ops.cast(padding_mask, "float32"), axis=2)  # (B, W)
        # A text without tokens has one empty window.
        lengths = ops.maximum(lengths, ops.cast(ops.arange(ops.shape(lengths)[1]) == 0, "float32"))
        if self.window_pooling == "max":
            return ops.max(ops.where(ops.expand_dims(lengths > 0, 2), outputs, ABSENT), axis=1)
        shares = lengths / ops.sum(lengths, axis=1, keepdims=True)
        return ops.sum(outputs * ops.expand_dims(shares, 2), axis=1)

    def finish_pooled(self, outputs: Tensor) -> Tensor:
        """Convert pooled outputs of windows, (B, C), to outputs of texts; by default, return them unchanged."""
        return outputs

    def predict_encoded(self, encoded: EncodedInputs, batch_size: int, **kwargs: Any) -> Tensors:
        if not isinstance(encoded, WindowedTexts):
            return super().predict_encoded(encoded, batch_size, **kwargs)
        outputs = predict_encoded(self, self, encoded.flat(), batch_size, **kwargs)  # (w, ...)
        if self.per_token:
            return encoded.lay_out(outputs)
        pooled_outputs = encoded.pool(outputs, self.window_pooling)
        return ops.convert_to_numpy(self.finish_pooled(pooled_outputs))

    def named_answers(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Convert the model's outputs to the exported model's answers, a dict of tensors, in TensorFlow ops.

        Raises:
            NotImplementedError: If the subclass does not define this method.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `named_answers`.")

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers to token features, in TensorFlow ops; see `named_answers`.

        Args:
            features: features of sequences, or of the windows of texts from a `LongTextGraph`.
        """
        if "text" not in features:
            return self.named_answers(self(features, training=False))
        from lmzoo.text.graphs.long_texts import pool_windows
        from lmzoo.text.graphs.windows import compute_in_chunks

        text_indices = features.pop("text")
        lengths = features.pop("length")
        outputs = compute_in_chunks(self, features)  # (w, C)
        return self.named_answers(self.finish_pooled(pool_windows(outputs, text_indices, lengths, self.window_pooling)))
