"""Models whose inputs are matched by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmzoo.common.tensor_types import Features
from lmzoo.parallel.several_devices import SeveralDevicesModel

# Inputs of some families and tasks, and what tokenizers and collators of transformers return. A model that has none of
# a name computes the same without it. Names that would change what is computed, such as "position_ids", are not here.
OTHER_MODELS_INPUTS = frozenset({
    "attention_mask", "character_ids", "decoder_attention_mask", "decoder_input_ids", "decoder_padding_mask",
    "decoder_token_ids", "draws", "goes_on", "input_ids", "label", "label_ids", "labels", "length", "mask_positions",
    "offset_mapping", "order", "overflow_to_sample_mapping", "segment_ids", "special_tokens_mask",
    "targets", "token_ids", "token_type_ids",
})  # fmt: skip


class NamedInputsModel(SeveralDevicesModel):
    """A Functional model that takes a dict, and finds its inputs there by name.

    Keras 3.15 flattens a dict in the order of its names: with one name too many, inputs get the values of others.
    """

    def __call__(self, inputs: Features, *args: Any, **kwargs: Any) -> Any:
        """Call the model on its own inputs; see `select_inputs`."""
        return super().__call__(self.select_inputs(inputs), *args, **kwargs)

    def call(self, inputs: Features, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        """Compute the outputs. Keras' training loop on JAX calls this method, not the model."""
        return super().call(self.select_inputs(inputs), training=training, mask=mask, **kwargs)

    def select_inputs(self, inputs: Features) -> Features:
        """Return the model's own inputs, without those of other models.

        Args:
            inputs: a dict of arrays or tensors.

        Raises:
            ValueError: if `inputs` is not a dict; naming a missing input, or one that no model has.
        """
        if not isinstance(inputs, Mapping) or not self.input.keys() <= inputs.keys():
            given = ", ".join(map(repr, inputs)) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise ValueError(f"This {type(self).__name__} takes {self.describe_inputs()}; got {given}.")
        for name in inputs.keys() - self.input.keys() - OTHER_MODELS_INPUTS:
            raise ValueError(
                f"This {type(self).__name__} has no input {name!r}: it takes {self.describe_inputs()}. Leave {name!r} "
                "out."
            )
        return {name: inputs[name] for name in self.input}

    def describe_inputs(self) -> str:
        """Describe the inputs for messages."""
        return f"a dict of {', '.join(map(repr, self.input))}"
