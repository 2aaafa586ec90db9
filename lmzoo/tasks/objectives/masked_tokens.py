"""Base class of tasks that predict masked tokens: their inputs, their head, and the masking of training examples.

Letters in shapes: n, B or b sequences, T tokens, M masked tokens, V vocabulary size, H width of hidden states, E width
of token embeddings.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import keras
import numpy as np

from lmzoo.common.arguments import as_python_values, is_number, require
from lmzoo.common.tensor_types import Features, Tensor, Tensors
from lmzoo.families.backbone import Backbone
from lmzoo.layers import MaskedLMHead, SpanBoundaries
from lmzoo.layers.activations import get_activation
from lmzoo.registry.family import Family, get_family
from lmzoo.tasks.base.examples import FeatureArrays
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.objectives.permutation_lm import QueryStream
from lmzoo.tasks.objectives.replaced_tokens import Generator, ReplacedTokens
from lmzoo.text import EncodedTexts, Masking, Preprocessor, Tokenizer
from lmzoo.text.mask_tokens import mask_positions, maskable
from lmzoo.text.permutation import factorization_order

MAX_SPAN_LENGTH = 20  # later tokens of a span have no boundary loss, as in SpanBERT's code


class MaskedTokensTask(Task):
    """Base class of tasks that predict masked tokens, alone or together with another objective.

    Args:
        backbone: `lmzoo.models.Backbone`, the layers below the head.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        masking: `lmzoo.text.Masking` or a dict of its arguments; the masking of the family's pre-training by default.
        activation: str, activation of the head's layer; the backbone's by default.
        layer_norm_epsilon: float, epsilon of the head's LayerNorm; the backbone's by default.
        outputs: function that takes the logits of the masked tokens, (B, M, V), and a dict, and returns the task's
            outputs. With "rtd", the dict holds the outputs of `ReplacedTokens`; with "plm", it is empty; otherwise, it
            holds the backbone's outputs and, with "sbo", the logits `boundary`.
        name: name of the model.
        objective: "plm" to predict tokens in a random order, with the backbone's query stream, instead of masks; "rtd"
            to fill masks with a generator's tokens, which the backbone learns to distinguish from original tokens;
            "sbo" to predict masked tokens a second time, from the vectors at the boundaries of their spans. With any
            other value, masked tokens are predicted once.
        generator_width: int, width of the hidden states of the generator for "rtd"; None for its default.
        tie_embeddings: bool, whether logits are products with the token embeddings; if False, the head has its own
            kernel for the logits.

    Raises:
        TypeError: If `masking` is neither a `Masking` nor a dict.
        ValueError: If the family or the tokenizer has no mask token, if the backbone is causal, if `activation` is
            unknown, if `layer_norm_epsilon` is outside of (0, 1), or if `tie_embeddings` is False for "rtd" or "sbo".
    """

    predicts_tokens = True
    replaceable = True
    learns_from = "texts alone"

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None,
        masking: Masking | dict[str, Any] | None,
        activation: str | None,
        layer_norm_epsilon: float | None,
        outputs: Callable[[Tensor, Features], Tensors],
        name: str | None,
        objective: str | None = None,
        generator_width: int | None = None,
        tie_embeddings: bool = True,
    ) -> None:
        family = get_family(backbone)
        config = backbone.config
        if not self.supports(family):
            reason = "it is causal" if backbone.causal else "its family has no mask token"
            raise ValueError(f"{type(backbone).__name__} cannot fill masks: {reason}.")
        masking = Masking(**masking) if isinstance(masking, dict) else masking or family.masking
        if not isinstance(masking, Masking):
            raise TypeError(f"`masking` must be a `lmzoo.text.Masking`, got {masking!r:.60}.")
        activation = config.activation if activation is None else activation
        get_activation(activation)  # raises an error for an unknown activation
        epsilon = config.layer_norm_epsilon if layer_norm_epsilon is None else layer_norm_epsilon
        require(is_number(epsilon, 0, 1) and 0 < epsilon < 1, "layer_norm_epsilon", "a number in (0, 1)", epsilon)
        can_untie = objective not in ("rtd", "sbo")
        is_valid = isinstance(tie_embeddings, bool) and (tie_embeddings or can_untie)
        require(is_valid, "tie_embeddings", "True or False" if can_untie else "True", tie_embeddings)
        positions = keras.Input((None,), dtype="int32", name="mask_positions")
        inputs = {**backbone.input, "mask_positions": positions}
        features = {}
        head_settings = {"name": "masked_lm_head", "tie_embeddings": tie_embeddings}
        if objective == "rtd":
            inputs["draws"] = keras.Input((None,), name="draws")
            generator = Generator(backbone, activation, epsilon, generator_width, name="generator")
            features = ReplacedTokens(generator, name="replaced_tokens")(backbone.input, positions, inputs["draws"])
            head = generator.head
            logits = features["masked_lm"]  # (B, M, V)
        elif objective == "plm":
            inputs["order"] = keras.Input((None,), dtype="int32", name="order")
            head = backbone.make_masked_lm_head(activation, epsilon, transform=False, **head_settings)
            query_stream = QueryStream(backbone, name="query_stream")
            stream_inputs = (backbone.input, inputs["order"], positions)
            logits = head(query_stream(*stream_inputs))  # (B, M, V)
            if tie_embeddings:
                vectors, bias = logits  # (B, M, E), (V,)
                logits = query_stream(*stream_inputs, vectors=vectors, bias=bias)  # (B, M, V)
        else:
            head = backbone.make_masked_lm_head(activation, epsilon, **head_settings)
            features = backbone(backbone.input)
            vectors = backbone.masked_vectors_at(backbone.input, positions, features)  # (B, M, H)
            logits = _compute_logits(backbone, head, vectors)  # (B, M, V)
            if objective == "sbo":
                span_settings = (MAX_SPAN_LENGTH, activation, epsilon, config.initializer_range)
                boundaries = SpanBoundaries(*span_settings, dtype=backbone.dtype_policy, name="span_boundaries")
                boundary_head = backbone.make_masked_lm_head(activation, epsilon, name="boundary_head")
                span_vectors = boundaries(features["sequence_output"], positions)  # (B, M, H)
                features = {**features, "boundary": _compute_logits(backbone, boundary_head, span_vectors)}  # (B, M, V)
        super().__init__(backbone, preprocessor, inputs, outputs(logits, features), None, name)
        if preprocessor is not None:
            preprocessor.tokenizer.check_has_mask()
        self.head = head
        self.activation = activation
        self.layer_norm_epsilon = epsilon
        self.masking = masking
        self.objective = objective
        self.tie_embeddings = tie_embeddings
        self.decodes_masks = objective not in ("rtd", "plm")
        self.token_vectors: Any = features.get("sequence_output")  # (B, T, H); None for other objectives

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family has a mask token and its models are not causal."""
        return family.mask_token is not None and not family.backbone.causal

    def default_loss(self) -> Any:
        """Return the loss, the mean cross-entropy over masked tokens."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")

    def mask(
        self, encoded: EncodedTexts, indices: np.ndarray, width: int, rng: np.random.Generator
    ) -> tuple[FeatureArrays, np.ndarray, np.ndarray]:
        """Mask the sequences at `indices` for training.

        Args:
            encoded: encoded texts.
            indices: int (b,), indices of the sequences to mask.
            width: int, padded length of the sequences.
            rng: source of randomness; masks depend on it only if `masking` is dynamic.

        Returns:
            The task's inputs; the targets, int32 (b, M), which are the original ids of the masked tokens; and their
            weights, float32 (b, M), 1 for tokens to predict and 0 for padding.
        """
        preprocessor = self.text_preprocessor
        features = preprocessor.features(encoded, indices, width)
        lengths = encoded.lengths_of(indices)
        tokenizer = preprocessor.tokenizer
        ids = features["token_ids"]
        if self.masking.dynamic:
            positions, is_chosen, corrupted_ids = self._draw_masks(tokenizer, ids, lengths, rng)
        else:  # seeded by the content of each sequence, so that its masks do not depend on its position in the data
            sequences = [row[None, :length] for row, length in zip(ids, lengths, strict=True)]
            masks = [
                self._draw_masks(tokenizer, sequence, np.array([sequence.size]), _make_rng_from_ids(sequence))
                for sequence in sequences
            ]
            slot_count = self.masking.slots(width)
            positions, is_chosen, corrupted_ids = (
                np.concatenate([np.pad(array, ((0, 0), (0, slot_count - array.shape[1]))) for array in arrays])
                for arrays in zip(*masks, strict=True)
            )
        targets = np.take_along_axis(ids, positions, axis=1)  # (b, M)
        rows, slots = np.nonzero(is_chosen)
        if self.objective == "plm":
            is_visible = maskable(tokenizer, ids)
            is_visible[rows, positions[rows, slots]] = False
            features["order"] = factorization_order(is_visible, lengths, rng)
        else:
            ids[rows, positions[rows, slots]] = corrupted_ids[rows, slots]
        if self.objective == "rtd":
            features["draws"] = np.zeros(positions.shape, "float32")
            # Draw a number for each chosen token only, so that the draws do not depend on padding.
            features["draws"][rows, slots] = rng.random(len(rows), "float32")
        return {**features, "mask_positions": positions}, targets, is_chosen.astype("float32")

    def features(self, encoded: EncodedTexts, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the model's inputs for texts that contain mask tokens, except for `extra_features`.

        With "plm", the token at each mask is predicted from all tokens that are not masked.
        """
        features = super().features(encoded, indices, width)
        if self.objective == "plm":
            features["order"] = (features["token_ids"] == self.text_preprocessor.tokenizer.mask_id).astype("int32")
        return features

    def extra_features(self, encoded: EncodedTexts) -> FeatureArrays:
        """Return `mask_positions`, the positions of the mask tokens in each sequence, int32 (n, M), padded with 0.

        For "rtd", also return `draws` of -1, which make the generator fill masks with its most probable tokens.
        """
        features = {"mask_positions": mask_positions(self.text_preprocessor.tokenizer, encoded)}
        if self.objective == "rtd":
            features["draws"] = np.full(features["mask_positions"].shape, -1, "float32")
        return features

    def _draw_masks(
        self, tokenizer: Tokenizer, ids: np.ndarray, lengths: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw masks for token ids (b, T), and return `(positions, is_chosen, corrupted_ids)`, each (b, M)."""
        # `word_starts` iterates over the vocabulary, which takes as long as the rest of this function.
        is_word_start = tokenizer.word_starts()[ids] if self.masking.whole_word else np.ones(ids.shape, bool)
        positions, is_chosen = self.masking.choose(maskable(tokenizer, ids), lengths, is_word_start, rng)
        targets = np.take_along_axis(ids, positions, axis=1)
        corrupted_ids = self.masking.corrupt(
            targets, is_chosen, tokenizer.mask_id, tokenizer.vocabulary_size, rng, positions
        )
        return positions, is_chosen, corrupted_ids

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "masking": as_python_values(asdict(self.masking))}


def _compute_logits(backbone: Backbone, head: MaskedLMHead, vectors: Tensor) -> Tensor:
    """Compute logits, float32 (B, M, V), from vectors (B, M, H), with the token embeddings for a tied head."""
    if not head.tie_embeddings:
        return head(vectors)
    vectors, bias = head(vectors)  # (B, M, E), (V,)
    return backbone(backbone.input, vectors=vectors, bias=bias)


def _make_rng_from_ids(ids: np.ndarray) -> np.random.Generator:
    """Return a random generator that is seeded by a hash of token ids."""
    return np.random.default_rng(zlib.crc32(np.ascontiguousarray(ids, "<i4").tobytes()))
