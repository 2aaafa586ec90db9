"""One label, or any number of labels, for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import keras
import numpy as np

from lmzoo.common.arguments import is_number, require
from lmzoo.evaluation.reports import Judged, Report, compare_classes, compare_label_sets
from lmzoo.families.backbone import Backbone
from lmzoo.serving.export import class_answers
from lmzoo.tasks.base.arguments import check_top_k
from lmzoo.tasks.base.examples import Labels, Texts
from lmzoo.tasks.base.labels import check_classes, encode_classes, encode_label_sets
from lmzoo.tasks.base.task_encoders import TextVector, TextVectorTask
from lmzoo.text import Preprocessor
from lmzoo.text.probabilities import sigmoid, softmax
from lmzoo.training import MicroF1

if TYPE_CHECKING:
    import tensorflow as tf


class ClassAnswer(TypedDict):
    """A class of a text."""

    label: str
    score: float


@keras.saving.register_keras_serializable(package="lmzoo")
class TextClassifier(TextVectorTask):
    """A classifier of texts or pairs of texts (Devlin et al., 2019, section 4.1).

    The model's output is logits, float32 (B, num_classes). With `multi_label` a text has any number of classes, also
    none, and each logit decides on its class alone; `fit` then takes for each text a list, tuple or set of classes, by
    name or number, or for all texts an array (n, num_classes) of 0 and 1.

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        num_classes: int; may be left out when `labels` are given.
        labels: names of the classes. With them `fit` takes string labels and `classify` returns names.
        dropout: float, rate on the pooled vector in training; the backbone's by default.
        pooling: `"first"`, the backbone's `pooled_output` as in the paper, or `"mean"`, the mean over the tokens
            without padding. The mean learns faster from few examples if pre-training had no objective for the first
            token. `from_preset` takes what the preset's recipe for fine-tuning says.
        encoder: `"bilstm"` for LSTMs in both directions over the backbone's vectors and the task's own word vectors,
            as on ELMo in Peters et al. (2018), with a classifier on the mean of their outputs; None for the backbone
            alone.
        encoder_dim: int, width of each direction of the encoder.
        multi_label: whether a text may have any number of classes instead of exactly one.
        name: name of the model.

    Raises:
        ValueError: if neither `num_classes` nor `labels` is given, if they disagree, or for an unknown `pooling` or
            `encoder`.

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
    commands = (("classifier", "classes"), ("multi-label", "sets of classes"))
    serves = (
        "`label`, `score` (n,), `probabilities` (n, classes); with `multi_label` all labels (n, classes), the"
        " most probable first"
    )
    instead_of: ClassVar[Mapping[str, str]] = {
        "activation": "`predict` returns logits, and `classify` returns probabilities.",
        "hidden_dim": "The family determines the layers of the head.",
        "pooling_mode": 'Pass `pooling`: "first" or "mean".',
    }

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        num_classes: int | None = None,
        labels: Sequence[str] | None = None,
        dropout: float | None = None,
        pooling: str = "first",
        encoder: str | None = None,
        encoder_dim: int = 256,
        multi_label: bool = False,
        name: str | None = None,
    ) -> None:
        num_classes, labels = check_classes(num_classes, labels, preprocessor)
        vector = TextVector(dropout=dropout, pooling=pooling, encoder=encoder, encoder_dim=encoder_dim)
        head = vector.head(backbone, num_classes)
        inputs = backbone.input
        outputs = head(vector.of(backbone, inputs))  # (B, C)
        super().__init__(backbone, preprocessor, inputs, outputs, labels, name, vector, head)
        self.num_classes = num_classes
        self.multi_label = multi_label
        self.compile()

    def default_loss(self) -> keras.losses.Loss:
        """Return cross-entropy of the logits; with `multi_label` binary cross-entropy, its mean over classes."""
        if self.multi_label:
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return accuracy; with `multi_label` micro F1."""
        if self.multi_label:
            return [MicroF1()]
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def encode_labels(self, y: Labels | None) -> np.ndarray | None:
        """Labels as int32 (n,), with `multi_label` as float32 (n, C), each checked to be a class of this model."""
        encode = encode_label_sets if self.multi_label else encode_classes
        return None if y is None else encode(y, self.num_classes, self.labels)

    def classify(
        self, texts: Texts, batch_size: int = 32, top_k: int = 1, threshold: float = 0.5
    ) -> list[ClassAnswer] | list[list[ClassAnswer]]:
        """Return the most probable class of each text; with `multi_label` all probable ones.

        Args:
            texts: a list of strings, or pairs as a tuple of two lists or a list of 2-tuples.
            batch_size: int.
            top_k: int, how many classes to return for each text; not with `multi_label`.
            threshold: float, the lowest probability of the classes to return; only with `multi_label`.

        Returns:
            For each text `{"label": str, "score": float}`, the score being the softmax probability; with `top_k` above
            1, a list of them, best first. With `multi_label` a list, which may be empty, of the classes whose score,
            the sigmoid, is at least `threshold`, best first. The label of a class without a name is its number.

        Raises:
            ValueError: for `top_k` with `multi_label` or below 1, or `threshold` without `multi_label`; for one that
                is not a number.
        """
        check_top_k(top_k)
        advice = "With `multi_label` all classes that reach `threshold` are returned: leave out `top_k`."
        require(top_k == 1 or not self.multi_label, "top_k", "1", top_k, advice)
        require(is_number(threshold), "threshold", "a number", threshold)
        advice = "`threshold` is for `multi_label`; the most probable classes are returned by `top_k`."
        require(threshold == 0.5 or self.multi_label, "threshold", "0.5", threshold, advice)
        logits = self.predict(texts, batch_size=batch_size, verbose=0)  # (n, C)
        scores = sigmoid(logits) if self.multi_label else softmax(logits)
        names, count = self.class_names, None if self.multi_label else top_k
        ranked: list[list[ClassAnswer]] = [
            [{"label": names[i], "score": float(row[i])} for i in np.argsort(-row, kind="stable")[:count]]
            for row in scores
        ]
        if self.multi_label:
            return [[answer for answer in row if answer["score"] >= threshold] for row in ranked]
        return [classes[0] for classes in ranked] if top_k == 1 else ranked

    answers = classify

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        if self.multi_label:
            return self._compare_sets(parts, y, batch_size)
        names = self.class_names
        labels: Any = self.encode_labels(y)
        actual = [names[k] for k in labels.tolist()]
        found: list[Any] = [answer for part in parts for answer in self.classify(part, batch_size=batch_size)]
        predicted = [answer["label"] for answer in found]
        judged = Judged.of_classes(actual, predicted, [answer["score"] for answer in found])
        return replace(compare_classes(actual, predicted, names), judged=judged)

    def _compare_sets(self, parts: Iterable[Texts], y: Any, batch_size: int) -> Report:
        """Compare sets of classes, and judge each class of each text as an answer of its own, yes or no."""
        names = self.class_names
        labels: Any = self.encode_labels(y)  # (n, C)
        actual = [[names[k] for k in np.flatnonzero(flags).tolist()] for flags in labels]
        answers: list[Any] = [
            row for part in parts for row in self.classify(part, batch_size=batch_size, threshold=0.0)
        ]
        found = [{answer["label"]: answer["score"] for answer in row} for row in answers]
        predicted = [[name for name, score in row.items() if score >= 0.5] for row in found]
        sides = [
            [name if name in row else f"not {name}" for row in side for name in names] for side in (actual, predicted)
        ]
        scores = np.array([[row[name] for name in names] for row in found]).reshape(-1)
        decisions = Judged.of_classes(sides[0], sides[1], np.maximum(scores, 1 - scores))
        decisions = replace(decisions, example=np.repeat(np.arange(len(found)), len(names)))
        return replace(compare_label_sets(actual, predicted, names), judged=decisions)

    served_outputs = ("label", "score", "probabilities")

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers, in TensorFlow ops: `label`, `score` and `probabilities`.

        With `multi_label` the first two are (B, C): all classes, the most probable first; the client applies a
        threshold.
        """
        return class_answers(self(features, training=False), self.class_names, self.multi_label)
