"""The base of tasks that mask tokens and predict them: inputs and head, and the masking of training examples."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import keras
import numpy as np

from lmzoo.common.arguments import is_number, require
from lmzoo.common.tensor_types import Features, Tensor, Tensors
from lmzoo.families.backbone import Backbone
from lmzoo.layers.activations import get_activation
from lmzoo.registry.family import Family, family_of
from lmzoo.tasks.base.examples import FeatureArrays
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.objectives.permutation_lm import QueryStream
from lmzoo.tasks.objectives.replaced_tokens import Generator, ReplacedTokens
from lmzoo.text import EncodedTexts, Masking, Preprocessor, Tokenizer
from lmzoo.text.mask_tokens import mask_positions, maskable
from lmzoo.text.permutation import factorization_order


class MaskedTokensTask(Task):
    """The base of tasks that predict masked tokens, alone or together with another objective.

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        masking: how sequences are corrupted, also as a dict; by default as in the family's pre-training.
        activation: of the head's layer; the backbone's by default.
        layer_norm_epsilon: of the head's LayerNorm; the backbone's by default.
        outputs: from logits (B, M, V) and the backbone's outputs to those of the task.
        name: name of the model.
        objective: "plm" if tokens are predicted in a random order, by the backbone's query stream, instead of masked;
            "rtd" if a generator predicts them, and the backbone tells its tokens from the original ones.
        generator_width: of the generator.

    Raises:
        TypeError: if `masking` is something else.
        ValueError: if the family or the tokenizer has no mask token, or the models do not see what comes after one; for
            an unknown `activation` or an epsilon outside of (0, 1).
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
    ) -> None:
        family, config = family_of(backbone), backbone.config
        if not self.supports(family):
            reason = "it is causal" if backbone.causal else "its family has no mask token"
            raise ValueError(f"{type(backbone).__name__} cannot fill masks: {reason}.")
        masking = Masking(**masking) if isinstance(masking, dict) else masking or family.masking
        if not isinstance(masking, Masking):
            raise TypeError(f"`masking` must be a `lmzoo.text.Masking`, got {masking!r:.60}.")
        activation = config.activation if activation is None else activation
        get_activation(activation)  # an error for an unknown one
        epsilon = config.layer_norm_epsilon if layer_norm_epsilon is None else layer_norm_epsilon
        require(is_number(epsilon, 0, 1) and 0 < epsilon < 1, "layer_norm_epsilon", "a number in (0, 1)", epsilon)
        positions = keras.Input((None,), dtype="int32", name="mask_positions")
        inputs, found = {**backbone.input, "mask_positions": positions}, {}
        if objective == "rtd":
            inputs["draws"] = keras.Input((None,), name="draws")
            generator = Generator(backbone, activation, epsilon, generator_width, name="generator")
            found = ReplacedTokens(generator, name="replaced_tokens")(backbone.input, positions, inputs["draws"])
            head = generator.head
            logits = found["masked_lm"]  # (B, M, V)
        elif objective == "plm":
            inputs["order"] = keras.Input((None,), dtype="int32", name="order")
            head = backbone.make_masked_lm_head(activation, epsilon, name="masked_lm_head", transform=False)
            stream = QueryStream(backbone, name="query_stream")
            arguments = (backbone.input, inputs["order"], positions)
            vectors, bias = head(stream(*arguments))  # (B, M, E), (V,)
            logits = stream(*arguments, vectors=vectors, bias=bias)  # (B, M, V)
        else:
            head = backbone.make_masked_lm_head(activation, epsilon, name="masked_lm_head")
            found = backbone(backbone.input)
            vectors, bias = head(backbone.vectors_at(backbone.input, positions, found))  # (B, M, E), (V,)
            logits = backbone(backbone.input, vectors=vectors, bias=bias)  # (B, M, V)
        super().__init__(backbone, preprocessor, inputs, outputs(logits, found), None, name)
        if preprocessor is not None:
            preprocessor.tokenizer.check_has_mask()
        self.head, self.activation, self.layer_norm_epsilon = head, activation, epsilon
        self.masking = masking
        self.objective = objective

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family's tokenizer has a mask token, and its models see what comes after one."""
        return family.mask_token is not None and not family.backbone.causal

    def default_loss(self) -> Any:
        """Return cross-entropy, its mean over masked tokens; padding and slots without a mask do not count."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")

    def mask(
        self, encoded: EncodedTexts, indices: np.ndarray, width: int, rng: np.random.Generator
    ) -> tuple[FeatureArrays, np.ndarray, np.ndarray]:
        """Mask sequences for training; see `Task.make_batch`.

        Returns:
            The task's inputs, targets int32 (b, M), and float32 (b, M), 1 where there is a token to predict.
        """
        preprocessor = self.text_preprocessor
        features, lengths = preprocessor.features(encoded, indices, width), encoded.lengths_of(indices)
        tokenizer, ids = preprocessor.tokenizer, features["token_ids"]
        if self.masking.dynamic:
            positions, chosen, corrupted = self._draw(tokenizer, ids, lengths, rng)
        else:  # by the content of a sequence, wherever it is in the data
            parts = [row[None, :length] for row, length in zip(ids, lengths, strict=True)]
            drawn = [self._draw(tokenizer, part, np.array([part.size]), _seeded_by(part)) for part in parts]
            slots = self.masking.slots(width)
            positions, chosen, corrupted = (
                np.concatenate([np.pad(part, ((0, 0), (0, slots - part.shape[1]))) for part in column])
                for column in zip(*drawn, strict=True)
            )
        targets = np.take_along_axis(ids, positions, axis=1)  # (b, M)
        row, column = np.nonzero(chosen)
        if self.objective == "plm":
            known = maskable(tokenizer, ids)
            known[row, positions[row, column]] = False
            features["order"] = factorization_order(known, lengths, rng)
        else:
            ids[row, positions[row, column]] = corrupted[row, column]
        if self.objective == "rtd":
            features["draws"] = np.zeros(positions.shape, "float32")
            features["draws"][row, column] = rng.random(len(row), "float32")  # the width of the padding decides nothing
        return {**features, "mask_positions": positions}, targets, chosen.astype("float32")

    def features(self, encoded: EncodedTexts, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the inputs for predictions; see `Task.features`.

        Of texts that hold mask tokens; a query stream sees all tokens but these.
        """
        features = super().features(encoded, indices, width)
        if self.objective == "plm":
            features["order"] = (features["token_ids"] == self.text_preprocessor.tokenizer.mask_id).astype("int32")
        return features

    def extra_features(self, encoded: EncodedTexts) -> FeatureArrays:
        """Return `mask_positions` int32 (n, M), those of the mask tokens, padded with 0.

        A generator fills these masks with its most probable tokens.
        """
        found = {"mask_positions": mask_positions(self.text_preprocessor.tokenizer, encoded)}
        if self.objective == "rtd":
            found["draws"] = np.full(found["mask_positions"].shape, -1, "float32")
        return found

    def _draw(
        self, tokenizer: Tokenizer, ids: np.ndarray, lengths: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return positions, whether each is chosen, and its corrupted token, all (b, M), for ids (b, T)."""
        # Iterating over the vocabulary takes as long as all the rest.
        starts = tokenizer.word_starts()[ids] if self.masking.whole_word else np.ones(ids.shape, bool)
        positions, chosen = self.masking.choose(maskable(tokenizer, ids), lengths, starts, rng)
        targets = np.take_along_axis(ids, positions, axis=1)
        corrupted = self.masking.corrupt(targets, chosen, tokenizer.mask_id, tokenizer.vocabulary_size, rng)
        return positions, chosen, corrupted

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "masking": asdict(self.masking)}


def _seeded_by(ids: np.ndarray) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(np.ascontiguousarray(ids, "<i4").tobytes()))
