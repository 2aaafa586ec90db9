"""Parts of backbones under the names that KerasHub uses."""

from __future__ import annotations

import pytest

from lmzoo.families.transformer import TransformerBackbone
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone

pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.parametrize("name", families())
def test_parts_have_the_names_of_keras_hub(name: str) -> None:
    backbone = tiny_backbone(families()[name])
    class_name = type(backbone).__name__
    has_positions = any("position_embedding" in weight.path for weight in backbone.weights)
    assert has_positions or name not in ("bert", "gpt2")

    def check_missing(part: str, reason: str) -> None:
        with pytest.raises(AttributeError, match=f"'{class_name}' object has no attribute '{part}': {reason}"):
            getattr(backbone, part)

    if name == "elmo":
        check_missing("token_embedding", "models of its family have no table of tokens")
    else:
        table = backbone.token_embedding
        assert (table.input_dim, table.built) == (backbone.config.vocabulary_size, True)
    if has_positions:
        assert backbone.position_embedding.input_dim >= backbone.config.max_sequence_length
    else:
        check_missing("position_embedding", "models of its family have no table of positions")
    if isinstance(backbone, TransformerBackbone):
        layers = backbone.transformer_layers
        first = layers[0]
        assert first.attention.built
        assert {w.path for w in first.weights} <= {w.path for w in backbone.weights}
        assert len(layers) == len(backbone.output["hidden_states"]) - 1
    elif backbone.reads_source:
        check_missing("transformer_layers", "see encoder_blocks and decoder_blocks")
    else:
        check_missing("transformer_layers", "models of its family have no Transformer blocks")
    with pytest.raises(AttributeError, match=f"'{class_name}' object has no attribute 'nothing'$"):
        _ = backbone.nothing
