"""Pre-training: masked tokens, alone or with an objective on pairs of segments; random orders; replaced tokens."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.data.corpora.segment_pairing import SegmentPairs, clean_documents, segment_pairs
from lmzoo.data.corpora.sequences import pack_sentences
from lmzoo.families.backbone import Backbone
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.registry.family import family_of
from lmzoo.tasks.base.examples import Batch, Examples, Labels, Weights, as_array
from lmzoo.tasks.masked_lm import MaskedLM
from lmzoo.tasks.objectives.masked_tokens import MaskedTokensTask
from lmzoo.text import EncodedTexts, Masking, Preprocessor
from lmzoo.training.span_metrics import TokenAccuracy

_PAIRED = ("nsp", "sop")  # objectives on pairs of segments
_OBJECTIVES = (*_PAIRED, "plm", "rtd", None)
_DETECTION_WEIGHT = 50.0  # of the discriminator's loss (Clark et al., 2020, appendix A)


@keras.saving.register_keras_serializable(package="lmzoo")
class Pretrainer(MaskedTokensTask):
    """Masked language model with, on pairs of segments, next-sentence or sentence-order prediction.

    Next-sentence prediction (`"nsp"`, Devlin et al., 2019) distinguishes the segment that follows from a segment of
    another document, sentence-order prediction (`"sop"`, Lan et al., 2020) two segments in order from two swapped ones.
    Label 0 is "is next" or "in order", 1 "random" or "swapped".

    Permutation language modeling (`"plm"`, Yang et al., 2019) masks nothing: some tokens, chosen as for a mask, are
    predicted in a random order, each from all tokens that are not to be predicted and from those that precede it in
    that order. It needs a backbone with a query stream, and is the only objective for one.

    Replaced token detection (`"rtd"`, Clark et al., 2020) trains two models: a generator of a quarter of the width,
    which shares the backbone's embeddings, fills the masks with tokens drawn by their probabilities; the backbone, the
    discriminator, tells for every token whether it is the original one. It needs a backbone with an `embedding_dim`.

    Inputs are those of the backbone, `mask_positions` int32 (B, M), the tokens to predict, padded with 0; for `"plm"`
    `order` int32 (B, T), see `lmzoo.text.permutation.factorization_order`; for `"rtd"` `draws` float32 (B, M), uniform
    random numbers in [0, 1), or negative for the generator's most probable tokens. The output is a dict of logits:
    `masked_lm` float32 (B, M, V); for pairs, `sentence` float32 (B, 2) on the pooled output; for `"rtd"`
    `replaced_tokens` float32 (B, T), and `corrupted_ids` int32 (B, T), the tokens that are judged. The loss is the sum
    of both means, of which that of replaced tokens has the weight 50.

    `fit` and `evaluate` take documents, each a list of sentences, without labels. Once in each call, and always in the
    same way, they are cut into pairs (`lmzoo.data.corpora.segment_pairs`) or, without an objective, packed
    (`lmzoo.data.corpora.pack_sentences`); masks are random in every batch. For random pairs, too, pass what
    `segment_pairs` makes with `passes=` or with another generator. `predict` takes texts or pairs of texts that hold
    mask tokens, as `MaskedLM` does.

    With token features, labels are a dict like the output, of `masked_lm` int (B, M), `sentence` int (B,) and
    `replaced_tokens` int (B, T), the ids of the original text; and so are weights.

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        objective: `"nsp"`, `"sop"`, `"plm"`, `"rtd"`, or None for masked tokens alone; by default that of the family.
        masking, activation, layer_norm_epsilon, name: see `MaskedLM`.
        generator_width: of the hidden states of the generator of `"rtd"`; by default a quarter of the backbone's.

    Raises:
        ValueError: for an unknown `objective`; for one that the backbone cannot learn, because it has no pooler or no
            segment ids, no query stream, or no embeddings of a width of their own; for a family without a mask token.

    Example:

    ```python
    import lmzoo

    documents = [
        ["The ship left the harbour at dawn.", "Nobody had seen the island before.", "It lay far to the west."],
        ["At noon the wind turned.", "The sea grew rough.", "They reached the island after nine days."],
    ]
    model = lmzoo.models.Pretrainer.from_preset("bert_nano_en_uncased", objective="sop", load_weights=False)
    history = model.fit(documents, verbose=0)
    history.history["masked_lm_loss"], history.history["sentence_loss"]
    ```
    """

    predicts = "a dict: `masked_lm` (n, M, V) and `sentence` (n, 2), or `replaced_tokens` (n, T)"
    head_kind, other_head_kinds = "pretraining", ("replaced_tokens",)
    learns_from = "documents alone"
    splits_examples = True

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        objective: str | None = "auto",
        masking: Masking | dict[str, Any] | None = None,
        labels: None = None,
        activation: str | None = None,
        layer_norm_epsilon: float | None = None,
        name: str | None = None,
        generator_width: int | None = None,
    ) -> None:
        objective = family_of(backbone).objective if objective == "auto" else objective
        _check_objective(backbone, objective)

        def outputs(logits: Tensor, found: Features) -> Features:
            if objective == "rtd":
                return found
            if objective not in _PAIRED:
                return {"masked_lm": logits}
            initializer, policy = TruncatedNormal(stddev=backbone.config.initializer_range), backbone.dtype_policy
            layer = keras.layers.Dense(2, kernel_initializer=initializer, dtype=policy, name="sentence_head")
            # The second cast changes nothing. With it this layer comes before the other head among the model's layers,
            # in whose order files hold the state of the optimizer.
            sentence = ops.cast(ops.cast(layer(found["pooled_output"]), "float32"), "float32")  # (B, 2)
            return {"masked_lm": logits, "sentence": sentence}

        head = (masking, activation, layer_norm_epsilon)
        super().__init__(backbone, preprocessor, *head, outputs, name, objective, generator_width)
        self.generator_width = generator_width
        # Without another objective the head holds nothing else.
        self.head_kind = {None: "masked_lm", "rtd": "replaced_tokens"}.get(objective, self.head_kind)
        self.per_token = objective == "rtd"
        self.uses_pooler = objective in _PAIRED
        self.compile()

    def default_loss(self) -> dict[str, keras.losses.Loss]:
        """Return the mean over masked tokens, and the mean over pairs or over all tokens."""
        loss = super().default_loss
        losses = {name: loss() for name in self.output if name != "corrupted_ids"}
        if "replaced_tokens" in losses:
            losses["replaced_tokens"] = keras.losses.BinaryCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            )
        return losses

    def default_loss_weights(self) -> dict[str, float] | None:
        """Return a higher weight for the discriminator, whose loss is low, since most tokens are not replaced."""
        return {"masked_lm": 1.0, "replaced_tokens": _DETECTION_WEIGHT} if self.objective == "rtd" else None

    def default_metrics(self) -> dict[str, list[keras.metrics.Metric]]:
        """Return the accuracy of each output, and precision and recall where most tokens are not replaced."""
        metrics = {
            "masked_lm": [TokenAccuracy()],
            "sentence": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            "replaced_tokens": [
                keras.metrics.BinaryAccuracy(name="accuracy", threshold=0),
                keras.metrics.Precision(name="precision", thresholds=0),
                keras.metrics.Recall(name="recall", thresholds=0),
            ],
        }
        return {name: metrics[name] for name in self.output if name != "corrupted_ids"}

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Tensor:
        """See `keras.Model.compute_loss`."""
        return super().compute_loss(x, *self._judged(y, y_pred, sample_weight), training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """See `keras.Model.compute_metrics`."""
        return super().compute_metrics(x, *self._judged(y, y_pred, sample_weight))

    def _judged(self, y: Any, y_pred: Features, sample_weight: Any) -> tuple[Any, Features, Any]:
        """Return labels, outputs and weights in which each token that was judged is an example.

        Only the outputs tell which tokens are replaced: one that the generator drew right counts as original.
        """
        if self.objective != "rtd" or y is None or "corrupted_ids" not in y_pred:
            return y, y_pred, sample_weight
        name = "replaced_tokens"
        replaced = ops.cast(y_pred["corrupted_ids"] != ops.cast(y[name], "int32"), "float32")  # (B, T)
        y = {**y, name: ops.reshape(replaced, (-1, 1))}  # (B·T, 1)
        y_pred = {"masked_lm": y_pred["masked_lm"], name: ops.reshape(y_pred[name], (-1, 1))}  # (B·T, 1)
        if sample_weight is not None:
            sample_weight = {**sample_weight, name: ops.reshape(sample_weight[name], (-1,))}  # (B·T,)
        return y, y_pred, sample_weight

    def make_generator(self) -> MaskedLM:
        """Return the generator of `"rtd"`, a masked language model, with copies of its weights.

        Raises:
            ValueError: for another objective.

        Example:

        ```python
        import lmzoo

        backbone = lmzoo.models.ElectraBackbone(
            vocabulary_size=101, num_layers=2, num_heads=4, hidden_dim=16, intermediate_dim=24, embedding_dim=8
        )
        generator = lmzoo.models.Pretrainer(backbone, objective="rtd").make_generator()
        generator.backbone.hidden_dim  # 4
        ```
        """
        if self.objective != "rtd":
            raise ValueError(f'`objective="rtd"` has a generator, {self.objective!r} has none.')
        generator = self.get_layer("replaced_tokens").generator
        model = MaskedLM(
            generator.make_backbone(),
            self.preprocessor,
            self.masking,
            activation=self.activation,
            layer_norm_epsilon=self.layer_norm_epsilon,
        )
        model.head.set_weights(self.head.get_weights())
        return model

    def encode_examples(self, x: Any, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Return documents as sequences for training; encoded sequences are returned as they are.

        Raises:
            TypeError: naming the position of a document that is not a list of strings.
            ValueError: for labels, for weights of documents, or for single sequences if there is an objective.
        """
        if self.objective not in _PAIRED:
            return self._pack_documents(x, y, sample_weight, lambda x, by: pack_sentences(clean_documents(x), by))
        if isinstance(x, EncodedTexts) and not isinstance(x, SegmentPairs):
            raise ValueError(
                f'With `objective="{self.objective}"` sequences are pairs: make them with '
                "`lmzoo.data.corpora.segment_pairs`."
            )
        kind, rng = str(self.objective), np.random.default_rng(0)
        return self._pack_documents(x, y, sample_weight, lambda x, by: segment_pairs(x, by, kind, rng))

    def encode_labels(self, y: Labels | None) -> Any:
        """Return labels of token features as arrays."""
        return None if y is None else keras.tree.map_structure(as_array, y)

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Masked sequences: `(features, targets, weights)`, the last two as dicts like the output: (b, M), and (b,)."""
        encoded, weights = examples.encoded, examples.weights
        features, tokens, chosen = self.mask(encoded, indices, width, rng)
        weight = np.ones(len(indices), "float32") if weights is None else weights[indices].astype("float32")  # (b,)
        targets, of_targets = {"masked_lm": tokens}, {"masked_lm": chosen * weight[:, None]}
        if isinstance(encoded, SegmentPairs) and self.objective in _PAIRED:
            targets["sentence"], of_targets["sentence"] = encoded.labels[indices], weight
        if self.objective == "rtd":
            original = self.text_preprocessor.features(encoded, indices, width)
            targets["replaced_tokens"] = original["token_ids"]
            of_targets["replaced_tokens"] = original["padding_mask"].astype("float32") * weight[:, None]
        return features, targets, of_targets


def _check_objective(backbone: Backbone, objective: str | None) -> None:
    require(objective in _OBJECTIVES, "objective", '"nsp", "sop", "plm", "rtd" or None', objective)
    name, permuted = type(backbone).__name__, hasattr(backbone, "query_stream")
    if permuted and objective != "plm":
        raise ValueError(f'A {name} predicts tokens in a random order: choose `objective="plm"`, not {objective!r}.')
    if objective == "plm" and not permuted:
        raise ValueError(f'A {name} has no query stream, and so cannot learn `objective="plm"`, as XLNet does.')
    if objective == "rtd" and not hasattr(backbone.config, "embedding_dim"):
        raise ValueError(
            f"A {name} has embeddings of its own width, which a narrower generator cannot share, and so cannot learn "
            '`objective="rtd"`: choose None.'
        )
    if objective not in _PAIRED or (getattr(backbone, "pooler", None) is not None and "segment_ids" in backbone.input):
        return
    raise ValueError(
        f"A {name} with this configuration has no pooler or no segment ids, and so cannot learn "
        f'`objective="{objective}"`: choose None.'
    )
