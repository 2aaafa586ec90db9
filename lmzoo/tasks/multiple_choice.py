"""Selection of the best of several choices for a prompt."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import keras
import numpy as np

from lmzoo.common.tensor_types import Features
from lmzoo.evaluation.reports import Judged, Report
from lmzoo.families.backbone import Backbone
from lmzoo.layers import MergeChoices, SplitChoices
from lmzoo.serving.export import signature, strings, tokens_signature
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.base.arguments import check_top_k
from lmzoo.tasks.base.examples import Examples, FeatureArrays, Labels, Texts, Weights
from lmzoo.tasks.base.labels import refuse_first, squeeze_labels
from lmzoo.tasks.task_encoders import TextVector, TextVectorTask
from lmzoo.tasks.word_features import WordFeatures
from lmzoo.text import EncodedChoices, Preprocessor
from lmzoo.text.encoded_choices import encode_choices, split_choices
from lmzoo.text.probabilities import softmax
from lmzoo.text.validate_text import Text

if TYPE_CHECKING:
    import tensorflow as tf

# Prompts with their choices, as a list of pairs or a tuple of two lists.
Prompts: TypeAlias = Iterable[tuple[Text, Sequence[Text]]] | tuple[Iterable[Text], Iterable[Sequence[Text]]]


class ChoiceAnswer(TypedDict):
    """The choice predicted for an example, with its index and probability."""

    index: int
    choice: Text  # as it was passed
    score: float


@keras.saving.register_keras_serializable(package="lmzoo")
class MultipleChoice(TextVectorTask):
    """A model that picks the best of several continuations or answers for a prompt (Devlin et al., 2019, section 4.4).

    Every choice is packed with its prompt as a pair, and a score is computed from the pair's vector. Examples may have
    different numbers of choices.

    The inputs are the backbone's inputs with an axis for the C choices of each example, (B, C, T), or (B, C, T, W) for
    ELMo, which reads W characters of each word. The outputs are logits, float32 (B, C), with -30,000 for a choice that
    is all padding, so that its softmax is 0.

    Args:
        backbone: `lmzoo.models.Backbone`, the layers below the head.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        dropout: float, dropout rate on the pooled vector; the backbone's by default.
        pooling: `"first"`, `"mean"` or a list; see `lmzoo.models.TextClassifier`.
        encoder: `"bilstm"`, `"esim"`, or None for the backbone alone; see `lmzoo.models.TextClassifier`.
        encoder_dim: int, width of each direction of the encoder.
        name: name of the model.
        word_vectors: `lmzoo.models.StaticEmbedder`, whose vectors are concatenated with the backbone's vectors, below
            the encoder if there is one; None for the backbone's vectors alone. Tokens that the embedder lacks get
            zeros.

    Raises:
        ValueError: If `pooling` or `encoder` is unknown, or if `dropout` or `encoder_dim` is out of range.

    Example:

    ```python
    import lmzoo

    model = lmzoo.models.MultipleChoice.from_preset("bert_nano_en_uncased")
    examples = [("He opens the door.", ["He goes in.", "It is made of soup."]), ("Is it late?", ["Yes.", "Red."])]
    model.fit(examples, [0, 0], epochs=1, verbose=0)
    model.choose([("She sits down.", ["She reads.", "She flies."])])  # [{"index": ..., "choice": ..., "score": ...}]
    ```
    """

    predicts = "logits (n, choices)"
    head_kind = "multiple_choice"
    pipeline_tag = "multiple-choice"
    commands = (("choice", "choices"),)
    takes = "`prompt` (n,), `choices` (n, C)"
    serves = (
        '`choice`, `index`, `score` (n,), `probabilities` (n, C); `""` at the end of a list of choices is '
        "padding (in Python, where lists may have different lengths, it is an empty choice)"
    )
    input_names = ("prompt",)

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        dropout: float | None = None,
        pooling: str | Sequence[str] = "first",
        encoder: str | None = None,
        encoder_dim: int = 256,
        labels: None = None,
        name: str | None = None,
        word_vectors: Any = None,
    ) -> None:
        vector_settings = TextVector(
            dropout=dropout,
            pooling=pooling,
            encoder=encoder,
            encoder_dim=encoder_dim,
            word_vectors=WordFeatures.of(word_vectors, preprocessor),
        )
        # The bias cancels in the softmax, but checkpoints contain it.
        head = vector_settings.head(backbone, 1, bias_trainable=False)
        merge = MergeChoices(name="merge_choices")
        sequence_inputs = vector_settings.inputs(backbone)
        inputs = {key: keras.Input((None, *x.shape[1:]), dtype=x.dtype, name=key) for key, x in sequence_inputs.items()}
        merged_inputs = {key: merge(x) for key, x in inputs.items()}
        scores = head(
            vector_settings.of(backbone, merged_inputs, vector_settings.features(backbone, merged_inputs, preprocessor))
        )  # (B·C, 1)
        logits = SplitChoices(name="split_choices")(scores, backbone.padding_mask(inputs))  # (B, C)
        super().__init__(backbone, preprocessor, inputs, logits, None, name, vector_settings, head)
        self.compile()

    def default_loss(self) -> keras.losses.Loss:
        """Return the loss, the cross-entropy over each example's choices."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics, the accuracy of the choices."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def encode_inputs(self, x: Texts | Prompts) -> EncodedChoices:
        """Encode examples as packed sequences, one for each choice.

        Args:
            x: a list of `(prompt, choices)`, or a tuple of the prompts and a list of choices for each. Encoded
                examples are returned unchanged.

        Raises:
            TypeError: If `x` or the choices of an example are not a list, or if an entry is not text (the message names
                its position).
            ValueError: If an entry is not a pair or has no choices (the message names the first), if the columns differ
                in length, or if the task has no preprocessor.
        """
        self.check_takes_text()
        return x if isinstance(x, EncodedChoices) else encode_choices(self.text_preprocessor, *split_choices(x))

    def encode_examples(self, x: Texts, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Encode examples, labels and weights, and check that each label is the index of one of its example's choices.

        Raises:
            ValueError: If a label exceeds the last index of its example's choices; see also `Task.encode_examples`.
        """
        examples = super().encode_examples(x, y, sample_weight)
        labels = examples.labels
        choice_counts = examples.encoded.counts
        is_out_of_range = labels >= choice_counts
        if is_out_of_range.any():
            i = int(is_out_of_range.argmax())
            raise ValueError(
                f"Label {labels[i]} at position {i} is outside [0, {choice_counts[i]}): that example has "
                f"{choice_counts[i]} choices."
            )
        return examples

    def encode_labels(self, y: Labels | None) -> np.ndarray | None:
        """Check the indices of the right choices, and return them as int32 (n,), or None if `y` is None.

        Raises:
            TypeError: If `y` is not a list or an array, or if a label is not a whole number (the message names the
                first).
            ValueError: If a label is negative or does not fit into int32 (the message names the first), or if an
                example has several labels.
        """
        if y is None:
            return None
        indices = squeeze_labels(y, "the index of one choice for each example")
        if indices.dtype.kind not in "iub":
            for position, label in enumerate(y):
                if not isinstance(label, numbers.Real) or not float(label).is_integer():
                    raise TypeError(
                        f"Label {label!r:.60} at position {position} is not an integer: a label is the index of the "
                        "right choice, from 0."
                    )
        is_out_of_range = (indices < 0) | (indices > np.iinfo("int32").max)
        refuse_first(is_out_of_range, indices, "is not the index of a choice: choices count from 0.")
        return indices.astype("int32")

    def encode_feature_labels(self, features: Features, y: Labels | None) -> np.ndarray | None:
        """Check that the indices of the right choices are below the number of choices, and return them.

        See `encode_labels`.

        Raises:
            ValueError: If an index is not below the number of choices; the message names the first.
        """
        indices = self.encode_labels(y)
        if indices is not None:
            choice_count = next(iter(features.values())).shape[1]
            refuse_first(indices >= choice_count, indices, f"is outside [0, {choice_count}), the choices.")
        return indices

    def features(self, encoded: EncodedChoices, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the model's inputs for b examples, int32 (b, C, width, ...); C is the largest number of choices."""
        rows = encoded.rows(indices)  # (b, C)
        flat_features = self.text_preprocessor.features(encoded.texts, rows.reshape(-1), width)
        return {name: values.reshape(*rows.shape, *values.shape[1:]) for name, values in flat_features.items()}

    def backbone_inputs(self, features: Features) -> Features:
        """Return the features that the backbone takes, with each choice as a separate sequence.

        Raises:
            ValueError: If an input has a wrong number of axes, for example none for the choices.
        """
        inputs = super().backbone_inputs(features)
        for name in inputs.keys() & self.input.keys():
            array = np.asarray(inputs[name])
            rank = len(self.input[name].shape)
            if array.ndim != rank:
                raise ValueError(f"`{name}` must have {rank} axes, examples and choices first; got {array.shape}.")
            inputs[name] = array.reshape(-1, *array.shape[2:])
        return inputs

    def choose(
        self, examples: Prompts, batch_size: int = 32, top_k: int = 1
    ) -> list[ChoiceAnswer] | list[list[ChoiceAnswer]]:
        """Return the most probable choice of each example.

        Args:
            examples: a list of `(prompt, choices)`, or a tuple of the prompts and a list of choices for each.
            batch_size: int, examples per batch, each with all its choices.
            top_k: int, number of choices to return for each example.

        Returns:
            For each example, `{"index": int, "choice": str, "score": float}`: the index, the text and the softmax
            probability of the best choice among the example's choices. With `top_k` above 1, a list of such dicts,
            best first.

        Raises:
            TypeError: See `encode_inputs`.
            ValueError: If `top_k` is below 1; see also `encode_inputs`.
        """
        check_top_k(top_k)
        prompts, choices = split_choices(examples)
        encoded = self.encode_inputs((prompts, choices))
        logits = self.predict(encoded, batch_size=batch_size, verbose=0)  # (n, C)
        ranked_choices: list[list[ChoiceAnswer]] = []
        for row, texts in zip(logits, choices, strict=True):
            scores = softmax(row[: len(texts)])
            best_indices = np.argsort(-row[: len(texts)], kind="stable")[:top_k].tolist()
            ranked_choices.append([{"index": i, "choice": texts[i], "score": float(scores[i])} for i in best_indices])
        return [answers[0] for answers in ranked_choices] if top_k == 1 else ranked_choices

    answers = choose

    def compare(self, parts: Iterable[Any], y: Any, batch_size: int, **measured: float) -> Report:
        labels: Any = self.encode_labels(y)
        actual_choices = [str(index) for index in labels.tolist()]
        answers: list[Any] = [answer for part in parts for answer in self.choose(part, batch_size=batch_size)]
        predicted_choices = [str(answer["index"]) for answer in answers]
        decisions = Judged.of_classes(actual_choices, predicted_choices, [answer["score"] for answer in answers])
        return Report({"accuracy": float(np.mean(decisions.error == 0))}, judged=decisions)

    served_outputs = ("choice", "index", "score", "probabilities")

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers to token features, in TensorFlow ops.

        They are `index` int32 and `score` float32, both (B,), and `probabilities` float32 (B, C).
        """
        import tensorflow as tf

        probabilities = tf.nn.softmax(self(features, training=False))  # (B, C)
        best_indices = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        return {"index": best_indices, "score": tf.reduce_max(probabilities, axis=-1), "probabilities": probabilities}

    def signatures(self) -> Signatures:
        """Return the exported model's signatures; the default signature does the same as `choose`.

        The default signature takes prompts, `tf.string` (n,), and choices, `tf.string` (n, C), padded with empty
        strings at the end. Its output `choice` is the chosen text, `tf.string` (n,).
        """
        import tensorflow as tf

        from lmzoo.text.graphs import graph_packer

        pack = graph_packer(self.text_preprocessor)

        def choose(prompt: tf.Tensor, choices: tf.Tensor) -> dict[str, tf.Tensor]:
            shape = tf.shape(choices)  # n, C
            features = pack(tf.repeat(prompt, shape[1]), tf.reshape(choices, [-1]))
            is_truncated = tf.reshape(features.pop("truncated"), shape)  # (n, C)
            # The number of choices that are not empty from each choice on, (n, C).
            num_remaining = tf.cumsum(tf.cast(choices != "", tf.int32), axis=1, reverse=True)
            is_choice = (num_remaining > 0) | (tf.range(shape[1]) == 0)  # (n, C), False for padding

            def arrange_by_choice(values: tf.Tensor) -> tf.Tensor:
                mask = tf.reshape(is_choice, [-1] + [1] * (values.shape.rank - 1))
                return tf.reshape(tf.where(mask, values, 0), tf.concat([shape, tf.shape(values)[1:]], axis=0))

            answers = self.serve(
                {name: arrange_by_choice(values) for name, values in features.items()}
            )  # (n, C, t[, W])
            choice = tf.gather(choices, answers["index"], batch_dims=1)
            return {"choice": choice, **answers, "truncated": tf.reduce_any(is_truncated & is_choice, axis=1)}

        specs = [*strings("prompt"), *strings("choices", axes=2)]
        return pack, {"serving_default": signature(choose, specs), "tokens": tokens_signature(self)}
