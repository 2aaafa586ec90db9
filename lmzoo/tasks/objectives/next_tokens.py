"""The base of tasks that predict the next tokens: inputs and head, and training examples from running text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import keras
import numpy as np

from lmzoo.common.tensor_types import Tensor
from lmzoo.data.corpora.sequences import pack_continuously
from lmzoo.evaluation.reports import Report
from lmzoo.families.backbone import Backbone
from lmzoo.layers.carried_state import StreamedBackbone
from lmzoo.registry.family import Family, family_of
from lmzoo.tasks.base.examples import (
    Batch,
    BatchOptions,
    Examples,
    FeatureArrays,
    Labels,
    Texts,
    TrainingData,
    Weights,
    example_weights,
)
from lmzoo.tasks.base.reports import report_masked
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.inputs import TaskInputs, TextsInMemory, TokenFeatures
from lmzoo.text import EncodedTexts, LengthBatches, Preprocessor
from lmzoo.text.batching import stream_steps
from lmzoo.training.span_metrics import TokenAccuracy

BATCH_SIZE = 32


class NextTokensTask(Task):
    """Predicts each token of running text from those before it.

    Args:
        backbone: `lmzoo.models.Backbone` of a causal family.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        carries_state: whether a batch continues from the states in which the one before it ended.
        name: name of the model.

    Raises:
        ValueError: for a backbone whose positions see later ones, or that has no state to carry.
    """

    predicts_tokens = True
    replaceable = True
    learns_from = "texts alone"
    splits_examples = True
    per_token = True
    uses_pooler = False

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        return report_masked(self, parts, y, batch_size, **measured)

    def __init__(
        self, backbone: Backbone, preprocessor: Preprocessor | None, carries_state: bool, name: str | None
    ) -> None:
        kind = type(backbone).__name__
        if not self.supports(family_of(backbone)):
            raise ValueError(
                f"A {kind} cannot predict next tokens: its positions see later ones. A {type(self).__name__} needs a "
                "causal family, such as GPT-2."
            )
        if carries_state and not hasattr(backbone, "call_with_state"):
            raise ValueError(
                f"`carries_state` is for recurrent models, such as LstmLmBackbone: a {kind} has no state to carry."
            )
        inputs, streams = backbone.input, None
        if carries_state:
            inputs = {**inputs, "goes_on": keras.Input((), dtype="int32", name="goes_on")}
            streams = StreamedBackbone(backbone, dtype=backbone.dtype_policy, name="streams")
        if streams:
            logits = streams(**inputs, vectors=streams(**inputs))  # (B, T, V)
        else:
            logits = backbone(inputs, vectors=backbone(inputs)["sequence_output"])  # (B, T, V)
        super().__init__(backbone, preprocessor, inputs, logits, None, name)
        self.streams = streams
        if streams:
            self.independent_rows = self.splits_batches = False

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family's models see only what comes before."""
        return bool(family.backbone.causal)

    forces_end = False  # whether generated text that reaches its limit ends with the end token

    def next_token_logits(self, vectors: Tensor) -> Tensor:
        """Return the logits of the next tokens from vectors, float (B, T, H): float32 (B, T, V)."""
        return self.backbone.token_logits(vectors)

    @property
    def longest_sequence(self) -> int:
        """The most tokens of a sequence: one more than it reads, which is only predicted."""
        return super().longest_sequence + 1

    @property
    def carries_state(self) -> bool:
        """Whether a batch continues from the states in which the one before it ended."""
        return self.streams is not None

    def default_loss(self) -> keras.losses.Loss:
        """Return cross-entropy, its mean over the tokens that count."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return accuracy on the next tokens."""
        return [TokenAccuracy()]

    def batches(self, inputs: TaskInputs, options: BatchOptions) -> TrainingData:
        """Return the data as `Task.batches`; with `carries_state` each batch continues the sequences of the one before.

        Raises:
            ValueError: with `carries_state`, for data of which only a part is known at a time.
        """
        if self.streams is None or (isinstance(inputs, TokenFeatures) and inputs.made_by_fit):
            return super().batches(inputs, options)
        if isinstance(inputs, TokenFeatures) and not inputs.streams:
            self._make_room(options)
            return super().batches(inputs, options)
        if not isinstance(inputs, TextsInMemory):
            raise ValueError(
                "With `carries_state` data that streams cannot be read: which sequences follow one another is only "
                "known of a whole text. Pass texts in a list, a `TokenCorpus`, or token features as arrays."
            )
        examples = self.encode_examples(inputs.x, inputs.y, inputs.sample_weight)
        lengths, size = examples.encoded.lengths, self._make_room(options)
        make_batch = partial(self._make_stream_batch, examples, stream_steps(len(lengths), size))
        return LengthBatches(lengths, make_batch, size, [self.longest_sequence], "streams", options.seed), None, None

    def _make_room(self, options: BatchOptions) -> int:
        """Make room for the states of a batch, and return its size."""
        size = options.batch_size or BATCH_SIZE
        if self.streams is not None and self.streams.make_room(size, options.training):
            self.train_function = self.test_function = None
        return size

    def _make_stream_batch(
        self, examples: Examples, steps: int, indices: np.ndarray, width: int, rng: np.random.Generator
    ) -> Batch:
        batch = self.make_batch(examples, indices, width, rng)
        batch[0]["goes_on"] = (indices % steps > 0).astype("int32")  # (b,)
        return batch

    def features(self, encoded: EncodedTexts, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the features of sequences, each of which begins anew."""
        found = super().features(encoded, indices, width)
        return {**found, "goes_on": np.zeros(len(indices), "int32")} if self.carries_state else found

    def encode_examples(self, x: Any, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Return texts and documents as full sequences; sequences of `pack_continuously` are returned unchanged.

        Raises:
            TypeError: naming the position of a document that is not text.
            ValueError: for labels, for weights of documents, or if there is no text.
        """
        self.check_takes_text()
        self.check_unlabeled(y)
        weights = example_weights(sample_weight)
        if not isinstance(x, EncodedTexts):
            if weights is not None:
                raise ValueError(
                    "A text has no weight, since its sequences hold parts of others: make sequences with "
                    "`lmzoo.data.corpora.pack_continuously`, and pass them with a weight for each."
                )
            x = pack_continuously(x, self.text_preprocessor)
        self.check_counts(len(x), None, weights)
        return Examples(x, None, weights)

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return sequences without their last token, the next tokens int32 (b, t), and their weights float32 (b, t)."""
        features = self.features(examples.encoded, indices, width)
        ids, real = features["token_ids"], features["padding_mask"]  # (b, t + 1)
        read, following = ids[:, :-1], ids[:, 1:]
        tokenizer = self.text_preprocessor.tokenizer
        weights = real[:, 1:] > 0
        if tokenizer.end_token is not None:
            border = read == tokenizer.token_to_id(tokenizer.end_token)
            if tokenizer.start_token == tokenizer.end_token:  # then what follows one may also be a text's first token
                border &= following == read
            weights &= ~border
        if examples.weights is not None:
            weights = weights * examples.weights[indices][:, None]
        inputs = {name: values[:, :-1] if values.ndim > 1 else values for name, values in features.items()}
        inputs["padding_mask"] = real[:, 1:]  # of the last token nothing is predicted
        return inputs, following, weights.astype("float32")
