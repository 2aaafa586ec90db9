"""Base class of models that select their inputs by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmzoo.common.tensor_types import Features
from lmzoo.families.atomic_saving import AtomicSavingModel
from lmzoo.text.validate_text import holds_text

# Inputs of lmzoo's models, and outputs of transformers' tokenizers and collators. A model ignores such a name if it has
# no input of this name. Names that change the results of other libraries' models, such as "position_ids", are excluded.
OTHER_MODELS_INPUTS = frozenset({
    "attention_mask", "character_ids", "decoder_attention_mask", "decoder_input_ids", "decoder_padding_mask",
    "decoder_token_ids", "draws", "goes_on", "input_ids", "label", "label_ids", "labels", "length", "mask_positions",
    "offset_mapping", "order", "overflow_to_sample_mapping", "segment_ids", "special_tokens_mask",
    "targets", "token_ids", "token_type_ids",
})  # fmt: skip


class NamedInputsModel(AtomicSavingModel):
    """Functional model that selects its inputs by name from a dict, which may hold inputs of other models.

    Keras 3.15 flattens a dict in the order of its names, so with an extra name, inputs would get the wrong values.
    """

    def __call__(self, inputs: Features, *args: Any, **kwargs: Any) -> Any:
        """Select the model's inputs and call it."""
        return super().__call__(self.select_inputs(inputs), *args, **kwargs)

    def call(self, inputs: Features, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        """Select the model's inputs and compute its outputs; Keras' training loop on JAX calls this method directly."""
        return super().call(self.select_inputs(inputs), training=training, mask=mask, **kwargs)

    def select_inputs(self, inputs: Features) -> Features:
        """Return the model's inputs by name, without inputs of other models.

        Args:
            inputs: a dict of arrays or tensors.

        Raises:
            TypeError: If `inputs` is text.
            ValueError: If `inputs` is not a dict, or an input is missing or unknown; the message lists valid inputs.
        """
        self.check_not_text(inputs)
        if not isinstance(inputs, Mapping) or not self.input.keys() <= inputs.keys():
            input_description = ", ".join(map(repr, inputs)) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise ValueError(f"This {type(self).__name__} takes {self.describe_inputs()}; got {input_description}.")
        for name in inputs.keys() - self.input.keys() - OTHER_MODELS_INPUTS:
            raise ValueError(
                f"This {type(self).__name__} has no input {name!r}: it takes {self.describe_inputs()}. Leave {name!r} "
                "out."
            )
        return {name: inputs[name] for name in self.input}

    def check_not_text(self, inputs: Any) -> None:
        """Check that the inputs are not text.

        Raises:
            TypeError: If the inputs are texts or pairs of texts.
        """
        if any(map(holds_text, inputs if isinstance(inputs, tuple) else (inputs,))):
            raise TypeError(
                f"This {type(self).__name__} takes token features, not text. Call `preprocessor(texts)` first, or use "
                "a task, which takes text."
            )

    def describe_inputs(self) -> str:
        """Return a description of the inputs for error messages."""
        return f"a dict of {', '.join(map(repr, self.input))}"
