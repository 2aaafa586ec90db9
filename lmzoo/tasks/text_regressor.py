"""Regression: prediction of a number for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from lmzoo.evaluation.reports import Judged, Report, compare_numbers
from lmzoo.families.backbone import Backbone
from lmzoo.layers import get_output_activation
from lmzoo.search.nearest import Hit, as_hits, check_top_k
from lmzoo.tasks.base.examples import BatchOptions, Labels, Texts, TrainingData
from lmzoo.tasks.base.labels import encode_exact_numbers, encode_numbers, refuse_first
from lmzoo.tasks.inputs import TaskInputs, TextDataset
from lmzoo.tasks.task_encoders import TextVector, TextVectorTask
from lmzoo.tasks.word_features import WordFeatures
from lmzoo.text import Preprocessor
from lmzoo.text.buffered_batches import BufferedBatches
from lmzoo.text.segments import clean_single_texts
from lmzoo.training import PearsonCorrelation

if TYPE_CHECKING:
    import tensorflow as tf

_MAX_SAMPLED_ELEMENTS = 256  # the labels of at most this many elements of a dataset set the initial bias


@keras.saving.register_keras_serializable(package="lmzoo")
class TextRegressor(TextVectorTask):
    """A model that predicts a number for a text or a pair of texts, such as a similarity (Cer et al., 2017).

    The model's output is that number, float32 (B, 1), in the units of the labels. Labels are not scaled, but `fit` sets
    the bias of a new head with a linear output to the mean of the labels, or of the first labels of a stream or a
    dataset. Learning a bias far from zero would push the vectors of all texts in the same direction.

    Args:
        backbone: `lmzoo.models.Backbone`, the layers below the head.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        dropout: float, dropout rate on the pooled vector; the backbone's by default.
        pooling: `"first"`, `"mean"` or a list; see `lmzoo.models.TextClassifier`.
        encoder: `"bilstm"`, `"esim"` for pairs, or None for the backbone alone; see `lmzoo.models.TextClassifier`.
        encoder_dim: int, width of each direction of the encoder.
        output_activation: `"linear"`, or `"sigmoid"` for labels and answers between 0 and 1, which losses such as
            `"binary_crossentropy"` take as probabilities. The files of a Sentence Transformers cross-encoder specify
            its activation.
        name: name of the model.
        word_vectors: `lmzoo.models.StaticEmbedder`, whose vectors are concatenated with the backbone's vectors, below
            the encoder if there is one; None for the backbone's vectors alone. Tokens that the embedder lacks get
            zeros.

    Raises:
        ValueError: If `pooling`, `encoder` or `output_activation` is unknown, or if `dropout` or `encoder_dim` is out
            of range.

    Example:

    ```python
    import lmzoo

    regressor = lmzoo.models.TextRegressor.from_preset("bert_nano_en_uncased")
    pairs = [("A man plays.", "Someone is playing."), ("A man plays.", "It rains.")]
    regressor.fit(pairs, [4.2, 0.4], epochs=1, verbose=0)
    regressor.score([("He sings.", "He is singing.")])  # [...], one float
    ```
    """

    predicts = "numbers (n, 1)"
    head_kind = "regression"
    pipeline_tag = "text-classification"
    commands = (("regressor", "numbers"),)
    serves = "`score` (n,)"

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        dropout: float | None = None,
        pooling: str | Sequence[str] = "first",
        encoder: str | None = None,
        encoder_dim: int = 256,
        output_activation: str = "linear",
        labels: None = None,
        name: str | None = None,
        word_vectors: Any = None,
    ) -> None:
        activation = get_output_activation(output_activation)
        vector_settings = TextVector(
            dropout=dropout,
            pooling=pooling,
            encoder=encoder,
            encoder_dim=encoder_dim,
            word_vectors=WordFeatures.of(word_vectors, preprocessor),
        )
        head = vector_settings.head(backbone, 1)
        inputs = vector_settings.inputs(backbone)
        features = vector_settings.features(backbone, inputs, preprocessor)
        outputs = activation(head(vector_settings.of(backbone, inputs, features)))  # (B, 1)
        super().__init__(backbone, preprocessor, inputs, outputs, None, name, vector_settings, head)
        self.output_activation: str = output_activation
        self.outputs_logits = output_activation != "sigmoid"
        self.compile()

    def default_loss(self) -> keras.losses.Loss:
        """Return the loss, the mean squared error."""
        return keras.losses.MeanSquaredError()

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics, Pearson's correlation between predictions and labels."""
        return [PearsonCorrelation()]

    def batches(self, inputs: TaskInputs, options: BatchOptions) -> TrainingData:
        """Return the data of `fit` and `evaluate`; for `fit`, set the bias of a new linear head to the labels' mean."""
        data = super().batches(inputs, options)
        if options.training and self.output_activation == "linear":
            labels = self.encode_labels(_read_first_labels(inputs, data[0]))
            bias = self.head.logits.bias
            if labels is not None and len(labels) and not np.any(keras.ops.convert_to_numpy(bias)):
                bias.assign([labels.mean()])
        return data

    def encode_labels(self, y: Labels | None) -> np.ndarray | None:
        """Check that labels are finite numbers, and return them as float32 (n,), or None if `y` is None.

        Raises:
            TypeError: If `y` is not a list or an array, or if a label is not a number (the message names the first).
            ValueError: If a label is not finite or, with a sigmoid, not between 0 and 1 (the message names the first),
                or if there are several numbers per text.
        """
        if y is None:
            return None
        labels = encode_numbers(y)
        if self.output_activation == "sigmoid":
            problem = (
                "is not between 0 and 1, as the answers of a sigmoid are. Divide the labels by their highest value, or "
                'load the task with `output_activation="linear"`.'
            )
            refuse_first((labels < 0) | (labels > 1), labels, problem)
        return labels

    def score(self, texts: Texts, batch_size: int = 32) -> list[float]:
        """Return the predicted number for each text.

        Args:
            texts: a list of strings, or pairs as a tuple of two lists or a list of 2-tuples.
            batch_size: int, texts per batch.

        Returns:
            A float for each text, in the units of the labels. Without a sigmoid, it may lie outside of their range.
        """
        return self.predict(texts, batch_size=batch_size, verbose=0)[:, 0].tolist()

    answers = score

    def rank(self, query: str, texts: Sequence[str], top_k: int | None = None, batch_size: int = 32) -> list[Hit]:
        """Return the texts ordered by their scores with a query, best first (Nogueira and Cho, 2019).

        The model reads each text together with the query, as a pair, so this takes far longer than comparing vectors.
        Use it to reorder the best results of a `TextEmbedder`.

        Args:
            query: str, the first text of each pair.
            texts: a list of strings, the second texts.
            top_k: int, number of texts to return; all by default.
            batch_size: int, pairs per batch.

        Returns:
            A list of `{"index": int, "text": str, "score": float}`, with the scores that `score` returns for the pairs.
            Equal scores are ordered by index.

        Raises:
            TypeError: If `query` is not a string, or if an entry of `texts` is not text (the message names its
                position).
            ValueError: If there are no texts, or if `top_k` is not from 1 to their number.

        Example:

        ```python
        import lmzoo

        reranker = lmzoo.models.TextRegressor.from_preset("bert_nano_en_uncased")
        reranker.fit([("How old is it?", "Ten years."), ("How old is it?", "It is red.")], [1, 0], verbose=0)
        reranker.rank("How old are you?", ["In the garden.", "I am nine."])  # [{"index": ..., "text": ...}, ...]
        ```
        """
        if not isinstance(query, str):
            raise TypeError(f"`query` must be one string, got {query!r:.60}. Call `rank` for each query.")
        candidates = clean_single_texts("texts", texts)
        hit_count = check_top_k(len(candidates) if top_k is None else top_k, len(candidates), "texts")
        scores = np.array(self.score([(query, text) for text in candidates], batch_size))
        order = np.argsort(-scores, kind="stable")[:hit_count]
        (hits,) = as_hits(scores[None, order], order[None], candidates)
        return hits

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        y = encode_exact_numbers(y)
        predicted_scores = [answer for part in parts for answer in self.score(part, batch_size=batch_size)]
        return replace(compare_numbers(y, predicted_scores), judged=Judged.of_numbers(y, predicted_scores))

    served_outputs = ("score",)

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers, in TensorFlow ops: `score`, float32 (B,)."""
        return {"score": self(features, training=False)[:, 0]}


def _read_first_labels(inputs: TaskInputs, batches: Any) -> Any:
    """Return the labels of `inputs`, or only the first labels of a stream or a dataset; None if there are no labels.

    Args:
        inputs: the user's inputs.
        batches: the batches made from `inputs`.
    """
    if inputs.y is not None:
        return inputs.y
    if isinstance(batches, BufferedBatches):
        lengths, make_batch = batches.first()
        return make_batch(np.arange(len(lengths)), int(lengths.max()), np.random.default_rng(0))[1]
    return inputs.first_labels(_MAX_SAMPLED_ELEMENTS) if isinstance(inputs, TextDataset) else None
