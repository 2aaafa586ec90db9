"""One label for a text or a pair of texts."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from lmzoo.layers import BiLSTMEncoder, ClassificationHead, MeanPooler
from lmzoo.models.backbone import Backbone
from lmzoo.models.family import family_of
from lmzoo.tasks.task import Task
from lmzoo.text import Preprocessor


@keras.saving.register_keras_serializable(package="lmzoo")
class TextClassifier(Task):
    """Assigns one of several classes to a text or a pair of texts (Devlin et al., 2019, section 4.1).

    The model's output is logits, float32 (B, num_classes).

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        num_classes: int; may be left out when `labels` are given.
        labels: names of the classes. With them `fit` takes string labels and `classify` returns names.
        dropout: float, rate on the pooled vector in training; the backbone's by default.
        pooling: `"first"`, the backbone's `pooled_output` as in the paper, or `"mean"`, the mean over the real tokens.
            The mean learns faster from few examples if pre-training had no objective for the first token.
        encoder: `"bilstm"` for LSTMs in both directions over the backbone's vectors and the task's own word vectors,
            as on ELMo in Peters et al. (2018), whose outputs' mean is then classified; None for the backbone alone.
        encoder_dim: int, width of each direction of the encoder.
        name: name of the model.

    Raises:
        ValueError: if neither `num_classes` nor `labels` are given, or they disagree, or for an unknown `pooling` or
            `encoder`.

    Example:

    ```python
    import lmzoo

    classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    classifier.fit(["A fine film.", "Dull and slow."], ["good", "bad"], epochs=1, verbose=0)
    classifier.classify(["Lovely."])  # [{"label": ..., "score": ...}]
    ```
    """

    default_loss = staticmethod(lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    default_metrics = staticmethod(lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")])

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
        name: str = "text_classifier",
    ) -> None:
        own = family_of(backbone).classifier
        if isinstance(labels, (str, set, frozenset)):
            raise TypeError(f"`labels` must be a list, whose order numbers the classes; got {labels!r:.60}.")
        if labels is not None:
            if wrong := [label for label in labels if not isinstance(label, str)]:
                raise TypeError(f"`labels` are the names of the classes, strings; got {wrong[0]!r}.")
            labels = [str(label) for label in labels]
            if len(set(labels)) != len(labels):
                raise ValueError(f"`labels` holds a name twice: {labels}.")
            num_classes = len(labels) if num_classes is None else num_classes
            if num_classes != len(labels):
                raise ValueError(f"`num_classes` is {num_classes}, but `labels` names {len(labels)} classes.")
        if num_classes is None or num_classes < 2:
            raise ValueError(f"Pass `num_classes` (at least 2) or `labels`; got num_classes={num_classes}.")
        if pooling not in ("first", "mean"):
            raise ValueError(f'`pooling` must be "first" or "mean", got {pooling!r}.')
        if encoder not in (None, "bilstm"):
            raise ValueError(f'`encoder` must be "bilstm" or None, got {encoder!r}.')
        rate = backbone.config.dropout if dropout is None else dropout
        head = ClassificationHead(num_classes, rate, dtype=backbone.dtype_policy, name="classifier", **own)
        inputs = backbone.input
        outputs = backbone(inputs)
        if encoder or pooling == "mean":
            sequence, mask = outputs["sequence_output"], backbone.padding_mask(inputs)  # (B, T, H), (B, T)
            if encoder:
                layer = BiLSTMEncoder(encoder_dim, dropout=rate, dtype=backbone.dtype_policy, name="encoder")
                ids = next(inputs[name] for name in ("character_ids", "token_ids") if name in inputs)
                sequence = layer(sequence, ids, mask)  # (B, T, 2 encoder_dim)
            pooled = MeanPooler(dtype=backbone.dtype_policy, name="mean_pooler")(sequence, mask)  # (B, H)
        else:
            pooled = outputs["pooled_output"]  # (B, H)
        super().__init__(backbone, preprocessor, inputs, head(pooled), labels, name)
        self.uses_pooler = pooling == "first" and not encoder
        self.pooling = pooling
        self.encoder, self.encoder_dim = encoder, encoder_dim
        self.head = head
        self._dropout = dropout

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.head.num_classes

    def encode_labels(self, y: Any) -> np.ndarray | None:
        """Labels as int32, each checked to be a class of this model."""
        if y is None:
            return None
        array = np.asarray(y)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise ValueError(f"Expected one class for each text, got labels of shape {array.shape}.")
        if array.dtype.kind == "O" and all(isinstance(label, numbers.Integral) for label in array):
            array = array.astype("int64")
        if array.dtype.kind in "USO":
            return self._encode_names(array)
        if array.dtype.kind not in "iub" and not np.array_equal(array, np.round(array)):
            raise ValueError(f"Labels must be whole numbers or strings, got {array.dtype}.")
        wrong = np.flatnonzero((array < 0) | (array >= self.num_classes))
        if len(wrong):
            position = int(wrong[0])
            raise ValueError(
                f"Label {array.flat[position]} at position {position} is outside [0, {self.num_classes}), the classes "
                "of this model. Build it with a larger `num_classes`, or number the labels from 0."
            )
        return array.astype("int32")

    def _encode_names(self, array: np.ndarray) -> np.ndarray:
        names = [n.decode() if isinstance(n, bytes) else n for n in array.tolist()]
        for position, name in enumerate(names):
            if not isinstance(name, str):
                raise TypeError(f"Label {name!r} at position {position} is not a string, as others are.")
        if self.labels is None:
            raise ValueError(
                f"Got string labels such as {names[0]!r}, but this model's classes have no names. Pass "
                f"`labels=[...]` when building it, for example labels={sorted(set(map(str, names)))[:5]}."
            )
        index = {label: i for i, label in enumerate(self.labels)}
        for position, name in enumerate(names):
            if name not in index:
                raise ValueError(f"Label {name!r} at position {position} is not one of {list(self.labels)}.")
        return np.array([index[name] for name in names], "int32")

    def classify(self, texts: Any, batch_size: int = 32, top_k: int = 1) -> list[Any]:
        """The most probable class of each text.

        Args:
            texts: a list of strings, or pairs as a tuple of two lists or a list of 2-tuples.
            batch_size: int.
            top_k: int, how many classes to return for each text.

        Returns:
            For each text `{"label": str, "score": float}`, the score being the softmax probability; with `top_k` above
            1, a list of them, best first. A class without a name is called by its number.
        """
        logits = self.predict(texts, batch_size=batch_size, verbose=0)  # (n, C)
        exp = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities = exp / exp.sum(axis=-1, keepdims=True)
        names = self.class_names
        ranked = [
            [{"label": names[i], "score": float(row[i])} for i in np.argsort(-row, kind="stable")[:top_k]]
            for row in probabilities
        ]
        return [row[0] for row in ranked] if top_k == 1 else ranked

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; their numbers as strings where there are none."""
        return list(self.labels or map(str, range(self.num_classes)))

    served_outputs = ("label", "score", "probabilities")

    def serve(self, features: dict[str, Any]) -> dict[str, Any]:
        """The exported model's answers, as TensorFlow ops."""
        from lmzoo.serving.export import class_answers

        return class_answers(self(features, training=False), self.class_names)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "dropout": self._dropout,
            "pooling": self.pooling,
            "encoder": self.encoder,
            "encoder_dim": self.encoder_dim,
        }
