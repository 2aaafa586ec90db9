"""Classification of texts or pairs of texts, with one label or several labels each."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import is_number, require
from lmzoo.evaluation.reports import Judged, Report, compare_classes, compare_label_sets
from lmzoo.families.backbone import Backbone
from lmzoo.serving.export import class_answers
from lmzoo.tasks.base.arguments import check_top_k
from lmzoo.tasks.base.examples import Labels, Texts
from lmzoo.tasks.base.labels import check_classes, encode_classes
from lmzoo.tasks.class_answers import ClassAnswer, rank_classes
from lmzoo.tasks.inputs import TaskInputs
from lmzoo.tasks.label_sets import encode_label_sets
from lmzoo.tasks.long_texts import LongTextTask
from lmzoo.tasks.missing_classes import describe_missing_classes
from lmzoo.tasks.task_encoders import TextVector, TextVectorTask
from lmzoo.tasks.word_features import WordFeatures
from lmzoo.text import Preprocessor
from lmzoo.text.long_texts import Windows, check_windows
from lmzoo.text.probabilities import sigmoid, softmax
from lmzoo.training import MicroF1
from lmzoo.training.distillation import ComparedOutputs, DistillationSettings

if TYPE_CHECKING:
    import tensorflow as tf


@keras.saving.register_keras_serializable(package="lmzoo")
class TextClassifier(LongTextTask, TextVectorTask):
    """A classifier of texts or pairs of texts (Devlin et al., 2019, section 4.1).

    The model's outputs are logits, float32 (B, num_classes). With `multi_label`, a text may have any number of classes,
    or none, and each class is decided independently; `fit` then takes a list, tuple or set of classes for each text, by
    name or number, or an array (n, num_classes) of zeros and ones.

    Args:
        backbone: `lmzoo.models.Backbone`, the layers below the head.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        num_classes: int, number of classes; by default the number of `labels`.
        labels: names of the classes. If given, `fit` also takes string labels, and `classify` returns names.
        dropout: float, dropout rate on the pooled vector; the backbone's by default.
        pooling: `"first"`, the backbone's `pooled_output` as in the paper, or `"mean"`, the mean over the tokens
            without padding. The mean learns faster from few examples if pre-training had no objective for the first
            token. Or a list of poolings of `TextEmbedder`, to concatenate their vectors, such as `["lasttoken", "max",
            "mean"]` (Howard & Ruder, 2018, section 3.3). `from_preset` uses the pooling of the preset's fine-tuning
            recipe.
        encoder: `"bilstm"` for LSTMs in both directions over the backbone's vectors and the task's own word vectors,
            as on ELMo in Peters et al. (2018), with a classifier on the mean of their outputs; `"esim"`, for pairs, for
            LSTMs that read each text separately and align their words (Chen et al., 2017); None for the backbone alone.
        encoder_dim: int, width of each direction of the encoder.
        multi_label: whether a text may have any number of classes instead of exactly one.
        name: name of the model.
        windows: maximum number of windows in which a long text is read, also in training; `"auto"` for as many as it
            needs. By default, long texts are truncated. Settable.
        stride: int, number of tokens from one window to the next; by default, windows do not overlap. Settable.
        window_pooling: `"mean"`, the mean of the windows' logits, weighted by their numbers of tokens; or `"max"`, each
            class's highest logit in any window, for classes that one passage of a text decides.
        word_vectors: `lmzoo.models.StaticEmbedder`, whose vectors are concatenated with the backbone's vectors, below
            the encoder if there is one; None for the backbone's vectors alone. Tokens that the embedder lacks get
            zeros.

    Raises:
        ValueError: If neither `num_classes` nor `labels` is given, if they disagree, or if `pooling`, `encoder` or a
            setting of windows is invalid.

    Example:

    ```python
    import lmzoo

    classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    classifier.fit(["A fine film.", "Dull and slow."], ["good", "bad"], epochs=1, verbose=0)
    classifier.classify(["Lovely."])  # [{"label": ..., "score": ...}]

    tagger = lmzoo.models.TextClassifier.from_preset(
        "bert_nano_en_uncased", labels=["art", "sport", "war"], multi_label=True
    )
    tagger.fit(["A painter at the front.", "Rain."], [["art", "war"], []], epochs=1, verbose=0)
    tagger.classify(["They play in the cup final."])  # [[{"label": ..., "score": ...}, ...]], any number of classes
    ```
    """

    predicts = "logits (n, C)"
    head_kind = "classification"
    pipeline_tag = "text-classification"
    commands = (("classifier", "classes"), ("multi-label", "sets of classes"))
    serves = (
        "`label`, `score` (n,), `probabilities` (n, classes); with `multi_label` all labels (n, classes), the"
        " most probable first"
    )
    distillation = DistillationSettings()
    instead_of: ClassVar[Mapping[str, str]] = {
        **TextVectorTask.instead_of,
        "activation": "`predict` returns logits, and `classify` returns probabilities.",
        "hidden_dim": "The family determines the layers of the head.",
        "pooling_mode": 'Pass `pooling`: "first", "mean" or a list.',
    }

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        num_classes: int | None = None,
        labels: Sequence[str] | None = None,
        dropout: float | None = None,
        pooling: str | Sequence[str] = "first",
        encoder: str | None = None,
        encoder_dim: int = 256,
        multi_label: bool = False,
        name: str | None = None,
        windows: Windows = None,
        stride: int | None = None,
        window_pooling: Literal["mean", "max"] = "mean",
        word_vectors: Any = None,
    ) -> None:
        check_windows(windows, stride)
        require(window_pooling in ("mean", "max"), "window_pooling", '"mean" or "max"', window_pooling)
        num_classes, labels = check_classes(num_classes, labels, preprocessor)
        vector_settings = TextVector(
            dropout=dropout,
            pooling=pooling,
            encoder=encoder,
            encoder_dim=encoder_dim,
            word_vectors=WordFeatures.of(word_vectors, preprocessor),
        )
        head = vector_settings.head(backbone, num_classes)
        inputs = vector_settings.inputs(backbone)
        features = vector_settings.features(backbone, inputs, preprocessor)
        outputs = head(vector_settings.of(backbone, inputs, features))  # (B, C)
        super().__init__(backbone, preprocessor, inputs, outputs, labels, name, vector_settings, head)
        self.num_classes = num_classes
        self.multi_label = multi_label
        self.windows = windows
        self.stride = stride
        self.window_pooling = window_pooling
        self.token_vectors = features["sequence_output"]
        self.compile()

    def compared_outputs(self) -> ComparedOutputs:
        """Return the logits of the classes and the hidden states of the tokens."""
        prediction_mask = ops.ones_like(self.output if self.multi_label else self.output[:, 0])  # (B, C) or (B,)
        return ComparedOutputs(self.output, prediction_mask, self.token_vectors, self.backbone.padding_mask(self.input))

    def default_loss(self) -> keras.losses.Loss:
        """Return the loss: cross-entropy, or with `multi_label` the mean binary cross-entropy over classes."""
        if self.multi_label:
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics: accuracy, or micro F1 with `multi_label`."""
        if self.multi_label:
            return [MicroF1()]
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def encode_labels(self, y: Labels | None) -> np.ndarray | None:
        """Check labels and return them as int32 (n,), or as float32 indicators (n, C) with `multi_label`.

        Return None if `y` is None.

        Raises:
            TypeError: See `encode_classes` and, for `multi_label`, `encode_label_sets`.
            ValueError: See `encode_classes` and, for `multi_label`, `encode_label_sets`.
        """
        encode = encode_label_sets if self.multi_label else encode_classes
        return None if y is None else encode(y, self.num_classes, self.labels)

    def split_validation(self, inputs: TaskInputs, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        """Hold out the last `fraction` of the examples; see `Task.split_validation`.

        Without `multi_label`, warn if they lack a class that is frequent enough to be expected in them.
        """
        training, validation = super().split_validation(inputs, fraction)
        if not self.multi_label and training.y is not None:
            class_counts = [np.bincount(part.y, minlength=self.num_classes).tolist() for part in (training, validation)]
            counts_by_name = [dict(zip(self.class_names, part, strict=True)) for part in class_counts]
            if sentence := describe_missing_classes(*counts_by_name):
                warnings.warn(
                    f"{sentence} `validation_split` holds out the last examples: shuffle the data first, or pass "
                    "`validation_data`.",
                    stacklevel=4,  # the caller of `fit`
                )
            if self.labels is not None:
                # Labels are checked again when batches are made, and the number of one class may be another's name.
                names = np.array(self.labels)
                return replace(training, y=names[training.y]), replace(validation, y=names[validation.y])
        return training, validation

    def classify(
        self, texts: Texts, batch_size: int = 32, top_k: int = 1, threshold: float = 0.5
    ) -> list[ClassAnswer] | list[list[ClassAnswer]]:
        """Return the most probable class of each text, or with `multi_label` all classes that reach the threshold.

        Args:
            texts: a list of strings, or pairs as a tuple of two lists or a list of 2-tuples.
            batch_size: int, texts per batch.
            top_k: int, number of classes to return for each text; not with `multi_label`.
            threshold: float, smallest probability of a returned class; only with `multi_label`.

        Returns:
            For each text, `{"label": str, "score": float}`, where the score is the softmax probability; with `top_k`
            above 1, a list of such dicts, best first. With `multi_label`, a list, possibly empty, of all classes with a
            sigmoid score of at least `threshold`, best first. The label of a class without a name is its number.

        Raises:
            ValueError: If `top_k` is below 1, if it is set with `multi_label`, if `threshold` is set without
                `multi_label`, or if `threshold` is not a number.
        """
        check_top_k(top_k)
        advice = "With `multi_label` all classes that reach `threshold` are returned: leave out `top_k`."
        require(top_k == 1 or not self.multi_label, "top_k", "1", top_k, advice)
        require(is_number(threshold), "threshold", "a number", threshold)
        advice = "`threshold` is for `multi_label`; the most probable classes are returned by `top_k`."
        require(threshold == 0.5 or self.multi_label, "threshold", "0.5", threshold, advice)
        logits = self.predict(texts, batch_size=batch_size, verbose=0)  # (n, C)
        scores = sigmoid(logits) if self.multi_label else softmax(logits)
        if self.multi_label:
            return rank_classes(scores, self.class_names, threshold=threshold)
        ranked_classes = rank_classes(scores, self.class_names, top_k)
        return [classes[0] for classes in ranked_classes] if top_k == 1 else ranked_classes

    answers = classify

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        if self.multi_label:
            return self._compare_sets(parts, y, batch_size)
        names = self.class_names
        labels: Any = self.encode_labels(y)
        actual_names = [names[class_number] for class_number in labels.tolist()]
        answers: list[Any] = [answer for part in parts for answer in self.classify(part, batch_size=batch_size)]
        predicted_names = [answer["label"] for answer in answers]
        decisions = Judged.of_classes(actual_names, predicted_names, [answer["score"] for answer in answers])
        return replace(compare_classes(actual_names, predicted_names, names), judged=decisions)

    def _compare_sets(self, parts: Iterable[Texts], y: Any, batch_size: int) -> Report:
        """Return a report that compares sets of classes, with a separate decision for each class of each text."""
        names = self.class_names
        labels: Any = self.encode_labels(y)  # (n, C)
        logits = [self.predict(part, batch_size=batch_size, verbose=0) for part in parts]
        scores = sigmoid(np.concatenate(logits)).astype("float64")  # (n, C)
        indicators = (labels > 0, scores >= 0.5)  # each (n, C)
        actual_sets, predicted_sets = (
            [[names[class_number] for class_number in np.flatnonzero(row).tolist()] for row in rows]
            for rows in indicators
        )
        name_if_true = np.array(names, object)
        name_if_false = np.array([f"not {name}" for name in names], object)
        actual_decisions, predicted_decisions = (
            np.where(rows, name_if_true, name_if_false).reshape(-1).tolist() for rows in indicators
        )
        probabilities = np.maximum(scores, 1 - scores).reshape(-1)
        decisions = Judged.of_classes(actual_decisions, predicted_decisions, probabilities)
        decisions = replace(decisions, example=np.repeat(np.arange(len(scores)), len(names)))
        return replace(compare_label_sets(actual_sets, predicted_sets, names), judged=decisions)

    served_outputs = ("label", "score", "probabilities")

    def named_answers(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the exported model's answers in TensorFlow ops: `label` and `score` (B,), `probabilities` (B, C).

        With `multi_label`, `label` and `score` are (B, C): all classes, the most probable first. The client applies a
        threshold.
        """
        return class_answers(outputs, self.class_names, self.multi_label)
