"""BERT against torch transformers on random weights, copied by name."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.models import TextClassifier
from tests.reference.weights import (
    ENCODER,
    MASK_POSITIONS,
    TINY,
    difference,
    named_weights,
    padded_batch,
    randomise,
    run,
    tiny_backbone,
    tiny_masked_lm,
    to_numpy,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
NUM_CLASSES = 7
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}  # ours -> theirs
# end of a name in the first TensorFlow release -> in transformers
ENDS = {
    "_embeddings": "_embeddings.weight",
    "/kernel": ".weight",
    "/gamma": ".weight",
    "/beta": ".bias",
    "/output_bias": ".bias",
    "/bias": ".bias",
}


def theirs(name: str) -> str:
    end = next(end for end in ENDS if name.endswith(end))
    return (name.removesuffix(end) + ENDS[end]).replace("layer_", "layer.").replace("/", ".")


def peer(kind, activation, weights, **kwargs):
    """A transformers model that holds exactly `weights`."""
    config = transformers.BertConfig(
        vocab_size=TINY["vocabulary_size"],
        num_hidden_layers=TINY["num_layers"],
        num_attention_heads=TINY["num_heads"],
        hidden_size=TINY["hidden_dim"],
        intermediate_size=TINY["intermediate_dim"],
        max_position_embeddings=TINY["max_sequence_length"],
        hidden_act=ACTIVATIONS[activation],
        attn_implementation="eager",
        **kwargs,
    )
    model = kind(config).eval()
    # torch kernels are (out, in)
    state = {theirs(name): torch.tensor(a.T if name.endswith("kernel") else a) for name, a in weights.items()}
    if kind is transformers.BertModel:
        state = {name.removeprefix("bert."): tensor for name, tensor in state.items()}
    if kind is transformers.BertForMaskedLM:  # tied, and no pooler
        state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
        state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
        state = {name: tensor for name, tensor in state.items() if "pooler" not in name}
    assert sorted(state) == sorted(model.state_dict())
    model.load_state_dict(state, strict=True)
    return model


def run_peer(model, batch, **kwargs):
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(batch["token_ids"], dtype=torch.long),
            attention_mask=torch.tensor(batch["padding_mask"], dtype=torch.long),
            token_type_ids=torch.tensor(batch["segment_ids"], dtype=torch.long),
            **kwargs,
        )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_backbone_equals_bert_model(activation):
    backbone, batch = tiny_backbone(activation=activation), padded_batch()
    expected = run_peer(
        peer(transformers.BertModel, activation, named_weights(backbone)),
        batch,
        output_hidden_states=True,
        output_attentions=True,
    )
    outputs = run(backbone, batch)
    assert difference(outputs["hidden_states"], tuple(h.numpy() for h in expected.hidden_states)) <= TOLERANCE
    assert difference(outputs["sequence_output"], expected.last_hidden_state.numpy()) <= TOLERANCE
    assert difference(outputs["pooled_output"], expected.pooler_output.numpy()) <= TOLERANCE
    scores = tuple(to_numpy(backbone.attention_scores(batch)))
    assert difference(scores, tuple(a.numpy() for a in expected.attentions)) <= TOLERANCE


@pytest.mark.parametrize("activation", ["gelu", pytest.param("gelu_tanh", marks=pytest.mark.slow)])
def test_masked_lm_equals_bert_for_masked_lm(activation):
    model, batch = tiny_masked_lm(activation=activation), padded_batch()
    expected = run_peer(peer(transformers.BertForMaskedLM, activation, named_weights(model)), batch).logits.numpy()
    logits = run(model, {**batch, "mask_positions": MASK_POSITIONS})
    assert difference(logits, np.take_along_axis(expected, MASK_POSITIONS[:, :, None], axis=1)) <= TOLERANCE


@pytest.mark.parametrize("activation", [pytest.param("gelu", marks=pytest.mark.slow), "gelu_tanh"])
def test_classifier_equals_bert_for_sequence_classification(activation):
    model, batch = TextClassifier(tiny_backbone(activation=activation), num_classes=NUM_CLASSES), padded_batch()
    randomise(model)
    kernel, bias = (to_numpy(model.head.logits.kernel), to_numpy(model.head.logits.bias))
    weights = {**named_weights(model.backbone), "classifier/kernel": kernel, "classifier/bias": bias}
    expected = run_peer(
        peer(transformers.BertForSequenceClassification, activation, weights, num_labels=NUM_CLASSES), batch
    ).logits.numpy()
    assert difference(run(model, batch), expected) <= TOLERANCE


def test_names_are_those_of_the_published_files():
    assert theirs("bert/encoder/layer_11/attention/output/LayerNorm/gamma") == (
        "bert.encoder.layer.11.attention.output.LayerNorm.weight"
    )
    assert theirs("cls/predictions/output_bias") == "cls.predictions.bias"
    assert all(theirs(name).startswith("bert.") for name in ENCODER)
