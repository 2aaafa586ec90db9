"""Pre-training on masked tokens, segment pairs, span boundaries, permuted token orders or replaced tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from lmzoo.registry.family import get_family
from lmzoo.tasks.base.examples import Batch, Examples, Labels, Weights
from lmzoo.tasks.base.labels import encode_classes
from lmzoo.tasks.inputs import TaskInputs, TextsInMemory, are_documents, list_rows, map_by_output, split_documents
from lmzoo.tasks.masked_lm import MaskedLM
from lmzoo.tasks.objectives.masked_tokens import MAX_SPAN_LENGTH, MaskedTokensTask
from lmzoo.tasks.token_labels import encode_token_ids, replace_ignored, weigh_tokens
from lmzoo.text import EncodedTexts, Masking, Preprocessor
from lmzoo.text.masking import span_offsets
from lmzoo.training.span_metrics import TokenAccuracy

_PAIR_OBJECTIVES = ("nsp", "sop")
_OBJECTIVES = (*_PAIR_OBJECTIVES, "plm", "rtd", "sbo", None)
_DETECTION_WEIGHT = 50.0  # weight of the discriminator's loss (Clark et al., 2020, appendix A)


@keras.saving.register_keras_serializable(package="lmzoo")
class Pretrainer(MaskedTokensTask):
    """A model for pre-training a backbone with its family's objective, such as masked tokens and segment pairs.

    Masked language modeling (Devlin et al., 2019) is used alone, or together with a prediction for pairs of segments.
    Next-sentence prediction (`"nsp"`, Devlin et al., 2019) distinguishes the segment that follows from a segment of
    another document; sentence-order prediction (`"sop"`, Lan et al., 2020) distinguishes two segments in order from two
    swapped ones. Label 0 is "is next" or "in order", 1 "random" or "swapped".

    Permutation language modeling (`"plm"`, Yang et al., 2019) has no masks: some tokens, chosen in the same way as
    masks, are predicted in a random order, each from all tokens that are not predicted and from the tokens that precede
    it in that order. It needs a backbone with a query stream, and is the only objective for such a backbone.

    Replaced token detection (`"rtd"`, Clark et al., 2020) trains two models. A generator, which shares the backbone's
    embeddings and by default has a quarter of its width, fills the masks with tokens sampled from its predictions. The
    backbone, as the discriminator, predicts for every token whether it was replaced. This objective needs a backbone
    with an `embedding_dim`, or DeBERTa-v3, whose generator has half as many blocks and embeddings of its own (He et
    al., 2021): the discriminator adds a difference to them, and its loss does not change them. After `fit`, the
    backbone's table holds the sum.

    The span boundary objective (`"sbo"`, Joshi et al., 2020) masks spans of words, and predicts each of their tokens a
    second time, from the vectors of the tokens just before and after the span and the token's offset in it. Tokens
    after the twentieth of a span have no second loss.

    Inputs are the backbone's inputs for B sequences of T tokens, and `mask_positions` int32 (B, M), the M positions to
    predict in each, padded with 0; for `"plm"` also `order` int32 (B, T), the factorization order (see
    `lmzoo.text.permutation.factorization_order`); for `"rtd"` also `draws` float32 (B, M), uniform random numbers in
    [0, 1), or negative for the generator's most probable tokens. The output is a dict of logits, over a vocabulary of V
    tokens: `masked_lm` float32 (B, M, V); for `"sbo"`, `boundary` float32 (B, M, V); for pairs, `sentence` float32
    (B, 2) on the pooled output; for `"rtd"`, `replaced_tokens` float32 (B, T), and `corrupted_ids` int32 (B, T), the
    discriminator's token ids. The loss is the sum of the outputs' mean losses; for `"rtd"`, the loss of
    `replaced_tokens` has weight 50.

    `fit` and `evaluate` take documents, each a list of sentences, without labels. Each call first cuts the documents
    into pairs (`lmzoo.data.corpora.segment_pairs`) or, without an objective on pairs, packs them
    (`lmzoo.data.corpora.pack_sentences`), always in the same way; masks are drawn anew in every epoch if
    `masking` is dynamic. For random pairs, pass the output of `segment_pairs` with `passes=` or with another generator.
    `validation_split` holds out the last documents; of encoded sequences, it holds out the last sequences, which may be
    from documents that are also trained on. `predict` takes texts or pairs of texts with mask tokens, see `MaskedLM`.

    With token features, labels are a dict by output: `masked_lm` and `boundary` int (B, M), -100 for positions that do
    not count, `sentence` int (B,) and `replaced_tokens` int (B, T), the ids of the original text. Weights are a dict
    with the same keys, or one weight for each sequence.

    Args:
        backbone: `lmzoo.models.Backbone`, the layers below the head.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        objective: `"nsp"`, `"sop"`, `"plm"`, `"rtd"`, `"sbo"`, or None for masked tokens alone; by default the
            family's.
        masking: `lmzoo.text.Masking` or a dict of its arguments, the masking in `fit`; the family's by default, for
            `"sbo"` with SpanBERT's spans, see `Masking.with_spans`.
        activation: str, activation of the head's layer, see `lmzoo.layers.get_activation`; the backbone's by default.
        layer_norm_epsilon: float, epsilon of the head's LayerNorm; the backbone's by default.
        name: name of the model.
        generator_width: int, width of the hidden states of the generator for `"rtd"`; by default a quarter of the
            backbone's. For DeBERTa-v3, it must be the backbone's width, which is the default.
        tie_embeddings: bool, whether logits are products with the token embeddings; see `MaskedLM`. The objectives
            `"rtd"` and `"sbo"` need True.

    Raises:
        TypeError: If `masking` is neither a `Masking` nor a dict.
        ValueError: If `objective` is unknown; if the backbone cannot learn the objective, because it has no pooler or
            no segment ids, no query stream, or no embeddings of a separate width; or if the family has no mask token.

    Example:

    ```python
    import lmzoo

    documents = [
        ["The ship left the harbor at dawn.", "Nobody had seen the island before.", "It lay far to the west."],
        ["At noon the wind turned.", "The sea grew rough.", "They reached the island after nine days."],
    ]
    model = lmzoo.models.Pretrainer.from_preset("bert_nano_en_uncased", objective="sop", load_weights=False)
    history = model.fit(documents, verbose=0)
    history.history["masked_lm_loss"], history.history["sentence_loss"]
    ```
    """

    predicts = "a dict: `masked_lm` (n, M, V) and `sentence` (n, 2), or `replaced_tokens` (n, T)"
    head_kind = "pretraining"
    other_head_kinds = ("replaced_tokens", "span_boundaries")
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
        tie_embeddings: bool = True,
    ) -> None:
        family = get_family(backbone)
        objective = family.objective if objective == "auto" else objective
        if self.supports(family):  # the base class refuses other families
            _check_objective(backbone, objective)
        if objective == "sbo" and masking is None:
            masking = get_family(backbone).masking.with_spans()

        def make_outputs(logits: Tensor, features: Features) -> Features:
            if objective == "rtd":
                return features
            if objective == "sbo":
                return {"masked_lm": logits, "boundary": features["boundary"]}
            if objective not in _PAIR_OBJECTIVES:
                return {"masked_lm": logits}
            initializer = TruncatedNormal(stddev=backbone.config.initializer_range)
            policy = backbone.dtype_policy
            sentence_head = keras.layers.Dense(2, kernel_initializer=initializer, dtype=policy, name="sentence_head")
            # The second cast does not change values, but it puts this layer before the other head in the order of the
            # model's layers. Files store the optimizer's state in that order.
            sentence_logits = ops.cast(
                ops.cast(sentence_head(features["pooled_output"]), "float32"), "float32"
            )  # (B, 2)
            return {"masked_lm": logits, "sentence": sentence_logits}

        head_settings = (masking, activation, layer_norm_epsilon)
        super().__init__(
            backbone, preprocessor, *head_settings, make_outputs, name, objective, generator_width, tie_embeddings
        )
        self.generator_width = generator_width
        # Without another objective, the head has the same weights as the head of a `MaskedLM`.
        self.head_kind = {None: "masked_lm", "rtd": "replaced_tokens", "sbo": "span_boundaries"}.get(
            objective, self.head_kind
        )
        self.per_token = objective == "rtd"
        self.uses_pooler = objective in _PAIR_OBJECTIVES
        self.compile()

    def default_loss(self) -> dict[str, keras.losses.Loss]:
        """Return a loss for each output: a mean over masked tokens, over pairs, or over all tokens."""
        make_loss = super().default_loss
        losses = {name: make_loss() for name in self.output if name != "corrupted_ids"}
        if "replaced_tokens" in losses:
            losses["replaced_tokens"] = keras.losses.BinaryCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            )
        return losses

    def default_loss_weights(self) -> dict[str, float] | None:
        """Return the weight of each output's loss for `"rtd"`, or None for equal weights."""
        # The discriminator's loss is low, since most tokens are not replaced, so it gets a higher weight.
        return {"masked_lm": 1.0, "replaced_tokens": _DETECTION_WEIGHT} if self.objective == "rtd" else None

    def default_metrics(self) -> dict[str, list[keras.metrics.Metric]]:
        """Return metrics for each output: accuracy, and for replaced tokens also precision and recall."""
        metrics = {
            "masked_lm": [TokenAccuracy()],
            "boundary": [TokenAccuracy()],
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
    ) -> Tensor | None:
        """Compute the total loss; see `keras.Model.compute_loss`."""
        sample_weight = self._weigh_tokens(x, y, sample_weight)
        y = keras.tree.map_structure(replace_ignored, y)
        return super().compute_loss(x, *self._label_replaced_tokens(y, y_pred, sample_weight), training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Compute the metrics of all outputs; see `keras.Model.compute_metrics`."""
        sample_weight = self._weigh_tokens(x, y, sample_weight)
        return super().compute_metrics(x, *self._label_replaced_tokens(y, y_pred, sample_weight))

    def _weigh_tokens(self, x: Any, y: Any, sample_weight: Any) -> Any:
        """Return the weights of the outputs, in which the weight of a sequence is repeated for each of its tokens.

        Padding gets the weight 0 in `replaced_tokens`, unless its weights are per token.
        """
        if not isinstance(y, Mapping):  # None, or the labels of the only output
            return weigh_tokens(y, sample_weight)
        if sample_weight is None:
            first_labels = keras.tree.flatten(y)[0]
            sample_weight = ops.ones((ops.shape(first_labels)[0],))  # (B,)
        if not isinstance(sample_weight, Mapping):
            sample_weight = dict.fromkeys(y, sample_weight)
        weights = {name: weigh_tokens(y[name], output_weights) for name, output_weights in sample_weight.items()}
        if "replaced_tokens" in weights and sample_weight["replaced_tokens"].shape[1:] in ((), (1,)):
            weights["replaced_tokens"] *= ops.cast(self.backbone.padding_mask(x), "float32")  # (B, T)
        return weights

    def _label_replaced_tokens(self, y: Any, y_pred: Features, sample_weight: Any) -> tuple[Any, Features, Any]:
        """Return labels, outputs and weights in which, for `"rtd"`, each token of the discriminator is an example.

        The labels depend on the outputs: if the generator sampled the original token, the token is not replaced.
        """
        if self.objective != "rtd" or y is None or "corrupted_ids" not in y_pred:
            return y, y_pred, sample_weight
        output_name = "replaced_tokens"
        is_replaced = ops.cast(y_pred["corrupted_ids"] != ops.cast(y[output_name], "int32"), "float32")  # (B, T)
        y = {**y, output_name: ops.reshape(is_replaced, (-1, 1))}  # (B·T, 1)
        y_pred = {"masked_lm": y_pred["masked_lm"], output_name: ops.reshape(y_pred[output_name], (-1, 1))}  # (B·T, 1)
        if sample_weight is not None:
            sample_weight = {**sample_weight, output_name: ops.reshape(sample_weight[output_name], (-1,))}  # (B·T,)
        return y, y_pred, sample_weight

    def merge_weights(self) -> None:
        """Merge into the backbone's token embeddings the changes of the generator's, if the objective is `"rtd"`."""
        if self.objective == "rtd":
            self.get_layer("replaced_tokens").merge_embeddings()

    def make_generator(self) -> MaskedLM:
        """Return a copy of the generator, trained with `"rtd"`, as a masked language model.

        Raises:
            ValueError: If the objective is not `"rtd"`.

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

    def split_validation(self, inputs: TaskInputs, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        """Hold out the last `fraction` of the documents or encoded sequences, and return `(training, validation)`.

        Raises:
            ValueError: If one of the sets would be empty, or if the examples are not in memory.
        """
        if not (isinstance(inputs, TextsInMemory) and are_documents(inputs.x)):
            return super().split_validation(inputs, fraction)
        training, validation = split_documents(list_rows(inputs.x, pairs=False), fraction)
        return replace(inputs, x=training), replace(inputs, x=validation)

    def encode_examples(self, x: Any, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Pack documents into training sequences, or into pairs for an objective on pairs.

        Encoded sequences are returned unchanged.

        Raises:
            TypeError: If a document is not a list of strings; the message names its position.
            ValueError: If labels are passed; if weights are passed for documents that are not encoded; or, with an
                objective on pairs, if encoded sequences are not pairs or no document has two sentences.
        """
        return self._encode_documents(x, y, sample_weight, is_part=False)

    def encode_part(self, x: Any, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Encode documents that are a part of the examples, even if none of them has two sentences."""
        return self._encode_documents(x, y, sample_weight, is_part=True)

    def _encode_documents(self, x: Any, y: Labels | None, sample_weight: Weights | None, is_part: bool) -> Examples:
        """Pack documents into training sequences or pairs; see `encode_examples` and `segment_pairs`."""
        if self.objective not in _PAIR_OBJECTIVES:
            return self._pack_documents(
                x, y, sample_weight, lambda x, preprocessor: pack_sentences(clean_documents(x), preprocessor)
            )
        if isinstance(x, EncodedTexts) and not isinstance(x, SegmentPairs):
            raise ValueError(
                f'With `objective="{self.objective}"` sequences are pairs: make them with '
                "`lmzoo.data.corpora.segment_pairs`."
            )
        objective = str(self.objective)
        rng = np.random.default_rng(0)
        return self._pack_documents(
            x, y, sample_weight, lambda x, preprocessor: segment_pairs(x, preprocessor, objective, rng, is_part=is_part)
        )

    def encode_labels(self, y: Labels | None) -> Any:
        """Check the labels of token features, a dict by output, and convert them to arrays; None stays None.

        The labels of a single output may also be an array.

        Raises:
            TypeError: If labels are not a list or an array.
            ValueError: If a label of `sentence` is neither 0 nor 1; see also `encode_token_ids`.
        """
        return None if y is None else map_by_output(self._encode_output_labels, y)

    def _encode_output_labels(self, labels: Labels, output_name: str | None) -> np.ndarray:
        """Check the labels of the output `output_name` (None for the only output), and return them as an array."""
        if output_name == "sentence":
            return encode_classes(labels, 2, None)
        return encode_token_ids(labels, self.output["masked_lm"].shape[-1])

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return `(features, targets, weights)` for the sequences at `indices`, masked for training.

        Targets and weights are dicts by output, of arrays (b, M) for `masked_lm` and `boundary`, (b,) for `sentence`
        and (b, t) for `replaced_tokens`.
        """
        encoded = examples.encoded
        example_weights = examples.weights
        features, target_ids, mask_weights = self.mask(encoded, indices, width, rng)
        # (b,)
        sequence_weights = (
            np.ones(len(indices), "float32") if example_weights is None else example_weights[indices].astype("float32")
        )
        targets = {"masked_lm": target_ids}
        target_weights = {"masked_lm": mask_weights * sequence_weights[:, None]}
        if isinstance(encoded, SegmentPairs) and self.objective in _PAIR_OBJECTIVES:
            targets["sentence"] = encoded.labels[indices]
            target_weights["sentence"] = sequence_weights
        if self.objective == "sbo":
            offsets = span_offsets(features["mask_positions"], mask_weights > 0)  # (b, M)
            targets["boundary"] = target_ids
            target_weights["boundary"] = target_weights["masked_lm"] * (offsets < MAX_SPAN_LENGTH)
        if self.objective == "rtd":
            original_features = self.text_preprocessor.features(encoded, indices, width)
            targets["replaced_tokens"] = original_features["token_ids"]
            target_weights["replaced_tokens"] = (
                original_features["padding_mask"].astype("float32") * sequence_weights[:, None]
            )
        return features, targets, target_weights


def _check_objective(backbone: Backbone, objective: str | None) -> None:
    """Check that the objective is known, and that the backbone has the parts that it needs; see `Pretrainer`.

    Raises:
        ValueError: If the objective is unknown, or if the backbone cannot learn it.
    """
    require(objective in _OBJECTIVES, "objective", '"nsp", "sop", "plm", "rtd", "sbo" or None', objective)
    name = type(backbone).__name__
    has_query_stream = hasattr(backbone, "query_stream")
    if has_query_stream and objective != "plm":
        raise ValueError(f'This {name} predicts tokens in a random order: choose `objective="plm"`, not {objective!r}.')
    if objective == "plm" and not has_query_stream:
        raise ValueError(f'This {name} has no query stream, and so cannot learn `objective="plm"`, as XLNet does.')
    if objective == "rtd" and backbone.generator_embeddings is None:
        raise ValueError(
            f"This {name} has embeddings of its own width, which a narrower generator cannot share, and so cannot "
            'learn `objective="rtd"`: choose None.'
        )
    if objective not in _PAIR_OBJECTIVES:
        return
    if getattr(backbone, "pooler", None) is not None and "segment_ids" in backbone.input:
        return
    raise ValueError(
        f"This {name} with this configuration has no pooler or no segment ids, and so cannot learn "
        f'`objective="{objective}"`: choose None.'
    )
