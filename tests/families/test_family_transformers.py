"""RoBERTa, ALBERT and DistilBERT against torch transformers on random weights, copied by name."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest

from lmzoo.models import AlbertBackbone, DistilBertBackbone, MaskedLM, RobertaBackbone, TextClassifier
from tests.reference.weights import MASK_POSITIONS, difference, padded_batch, randomise, run, to_numpy

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
NUM_CLASSES = 7
TINY = {
    "vocabulary_size": 131,
    "num_layers": 4,
    "num_heads": 5,
    "hidden_dim": 35,
    "intermediate_dim": 53,
    "max_sequence_length": 67,
    "dropout": 0.0,
}
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}  # ours -> theirs

# pattern of a path inside the product -> name in transformers, for what all families call alike
SHARED = {
    r"embeddings/token_embedding/embeddings": "embeddings.word_embeddings.weight",
    r"embeddings/position_embedding/embeddings": "embeddings.position_embeddings.weight",
    r"embeddings/segment_embedding/embeddings": "embeddings.token_type_embeddings.weight",
    r"embeddings/layer_norm/": "embeddings.LayerNorm.",
}
ROBERTA = {
    r"block_(\d+)/attention/(query|key|value)/": r"encoder.layer.\1.attention.self.\2.",
    r"block_(\d+)/attention/output_dense/": r"encoder.layer.\1.attention.output.dense.",
    r"block_(\d+)/attention_layer_norm/": r"encoder.layer.\1.attention.output.LayerNorm.",
    r"block_(\d+)/intermediate_dense/": r"encoder.layer.\1.intermediate.dense.",
    r"block_(\d+)/output_dense/": r"encoder.layer.\1.output.dense.",
    r"block_(\d+)/output_layer_norm/": r"encoder.layer.\1.output.LayerNorm.",
    r"masked_lm_head/output_bias": "lm_head.bias",
    r"masked_lm_head/": "lm_head.",
    r"classifier/dense/": "classifier.dense.",
    r"classifier/logits/": "classifier.out_proj.",
}
DISTILBERT = {
    r"block_(\d+)/attention/(q|k|v)[a-z]+/": r"transformer.layer.\1.attention.\2_lin.",
    r"block_(\d+)/attention/output_dense/": r"transformer.layer.\1.attention.out_lin.",
    r"block_(\d+)/attention_layer_norm/": r"transformer.layer.\1.sa_layer_norm.",
    r"block_(\d+)/intermediate_dense/": r"transformer.layer.\1.ffn.lin1.",
    r"block_(\d+)/output_dense/": r"transformer.layer.\1.ffn.lin2.",
    r"block_(\d+)/output_layer_norm/": r"transformer.layer.\1.output_layer_norm.",
    r"masked_lm_head/output_bias": "vocab_projector.bias",
    r"masked_lm_head/dense/": "vocab_transform.",
    r"masked_lm_head/layer_norm/": "vocab_layer_norm.",
    r"classifier/dense/": "pre_classifier.",
    r"classifier/logits/": "classifier.",
}
_ALBERT_BLOCK = r"encoder/group_(\d+)_block_(\d+)/"
_ALBERT_LAYER = r"encoder.albert_layer_groups.\1.albert_layers.\2."
ALBERT = {
    r"embedding_projection/": "encoder.embedding_hidden_mapping_in.",
    _ALBERT_BLOCK + r"attention/(query|key|value)/": _ALBERT_LAYER + r"attention.\3.",
    _ALBERT_BLOCK + r"attention/output_dense/": _ALBERT_LAYER + "attention.dense.",
    _ALBERT_BLOCK + r"attention_layer_norm/": _ALBERT_LAYER + "attention.LayerNorm.",
    _ALBERT_BLOCK + r"intermediate_dense/": _ALBERT_LAYER + "ffn.",
    _ALBERT_BLOCK + r"output_dense/": _ALBERT_LAYER + "ffn_output.",
    _ALBERT_BLOCK + r"output_layer_norm/": _ALBERT_LAYER + "full_layer_layer_norm.",
    r"pooler/dense/": "pooler.",
    r"masked_lm_head/output_bias": "predictions.bias",
    r"masked_lm_head/dense/": "predictions.dense.",
    r"masked_lm_head/layer_norm/": "predictions.LayerNorm.",
    r"classifier/logits/": "classifier.",
}
ENDS = {"kernel": "weight", "gamma": "weight", "beta": "bias"}
# transformers' names outside of its base model; the others take the base model's prefix in models with a head
HEADS = ("lm_head", "classifier", "vocab_", "pre_classifier", "predictions")
# the output layer that shares the word table, and its bias
DECODERS = {
    "Roberta": ("lm_head.decoder", "lm_head.bias"),
    "DistilBert": ("vocab_projector", "vocab_projector.bias"),
    "Albert": ("predictions.decoder", "predictions.bias"),
}


def theirs(path: str, table: dict[str, str]) -> str:
    for pattern, name in {**SHARED, **table}.items():
        new, found = re.subn("^" + pattern, name, path)
        if found:
            head, _, end = new.replace("/", ".").rpartition(".")
            return f"{head}.{ENDS.get(end, end)}"
    raise AssertionError(f"{path} has no name")


def peer(family, head, config, model, table):
    """A transformers model that holds the weights of `model`, each used exactly once."""
    kind, prefix, state = getattr(transformers, f"{family}{head}"), f"{family.lower()}.", {}
    for weight in model.weights:
        array, name = to_numpy(weight.value), theirs(weight.path, table)
        key = name if head == "Model" or name.startswith(HEADS) else prefix + name
        assert key not in state
        state[key] = torch.tensor(array.T if weight.path.endswith("kernel") else array)
    if head == "ForMaskedLM":  # tied, and no pooler
        decoder, bias = DECODERS[family]
        state[f"{decoder}.weight"] = state[f"{prefix}embeddings.word_embeddings.weight"]
        state[f"{decoder}.bias"] = state[bias]
        state = {name: tensor for name, tensor in state.items() if "pooler" not in name}
    arguments = {"add_pooling_layer": False} if family == "Roberta" and head == "Model" else {}
    peer = kind(config, **arguments).eval()
    assert sorted(state) == sorted(peer.state_dict())
    peer.load_state_dict(state, strict=True)
    return peer


def run_peer(model, batch, **kwargs):
    inputs = {"input_ids": batch["token_ids"], "attention_mask": batch["padding_mask"]}
    if "segment_ids" in batch:
        inputs["token_type_ids"] = batch["segment_ids"]
    with torch.no_grad():
        return model(**{name: torch.tensor(value, dtype=torch.long) for name, value in inputs.items()}, **kwargs)


def batch_for(backbone: keras.Model) -> dict[str, np.ndarray]:
    batch = padded_batch()
    # Their RoBERTa counts positions by the padding id, 1; elsewhere it is an id like any other.
    batch["token_ids"] = np.where(batch["padding_mask"] > 0, np.maximum(batch["token_ids"], 2), 1).astype("int32")
    return {name: batch[name] for name in backbone.input}


def common(activation: str) -> dict[str, object]:
    return {
        "vocab_size": TINY["vocabulary_size"],
        "num_hidden_layers": TINY["num_layers"],
        "num_attention_heads": TINY["num_heads"],
        "hidden_size": TINY["hidden_dim"],
        "intermediate_size": TINY["intermediate_dim"],
        "max_position_embeddings": TINY["max_sequence_length"],
        "hidden_act": ACTIVATIONS[activation],
        "attn_implementation": "eager",
        "num_labels": NUM_CLASSES,
    }


def roberta():
    # Theirs always has a row of segments; fairseq's, and so `num_segments=0`, never.
    config = {**common("gelu"), "max_position_embeddings": 69, "layer_norm_eps": 1e-5, "type_vocab_size": 1}
    return RobertaBackbone(**TINY, num_segments=1), transformers.RobertaConfig(**config, pad_token_id=1), ROBERTA


def distilbert(activation="gelu"):
    config = transformers.DistilBertConfig(
        vocab_size=TINY["vocabulary_size"],
        n_layers=TINY["num_layers"],
        n_heads=TINY["num_heads"],
        dim=TINY["hidden_dim"],
        hidden_dim=TINY["intermediate_dim"],
        max_position_embeddings=TINY["max_sequence_length"],
        activation=ACTIVATIONS[activation],
        attn_implementation="eager",
        num_labels=NUM_CLASSES,
    )
    return DistilBertBackbone(**TINY, activation=activation), config, DISTILBERT


def albert(activation="gelu", groups=1, inner=1, unroll=False, embedding_dim=13):
    backbone = AlbertBackbone(
        **TINY,
        activation=activation,
        num_groups=groups,
        num_inner_repetitions=inner,
        embedding_dim=embedding_dim,
        embedding_projection=True,
        unroll=unroll,
    )
    config = transformers.AlbertConfig(
        **common(activation),
        embedding_size=embedding_dim,
        num_hidden_groups=groups,
        inner_group_num=inner,
        classifier_dropout_prob=0.0,
    )
    return backbone, config, ALBERT


CASES = {
    "roberta": (roberta, {}, "Roberta"),
    "distilbert": (distilbert, {}, "DistilBert"),
    "distilbert relu": (distilbert, {"activation": "relu"}, "DistilBert"),
    "albert": (albert, {}, "Albert"),
    "albert unrolled": (albert, {"unroll": True}, "Albert"),
    "albert tanh": (albert, {"activation": "gelu_tanh"}, "Albert"),
    "albert relu": (albert, {"activation": "relu"}, "Albert"),
    "albert 2x2": (albert, {"groups": 2, "inner": 2}, "Albert"),
    "albert 2x2 tanh unrolled": (
        albert,
        {"groups": 2, "inner": 2, "activation": "gelu_tanh", "unroll": True},
        "Albert",
    ),
    "albert 4x1 relu": (albert, {"groups": 4, "activation": "relu"}, "Albert"),
    "albert E = H": (albert, {"embedding_dim": 35}, "Albert"),
}


# Cases in which heads, which know little of the layers below them, are compared with theirs every time.
HEADED = ("roberta", "distilbert relu", "albert 2x2 tanh unrolled", "albert E = H")
with_heads = pytest.mark.parametrize(
    "case", [pytest.param(name, marks=() if name in HEADED else pytest.mark.slow) for name in CASES], indirect=True
)


@pytest.fixture
def case(request):
    """(name of the family there, random backbone, their config, table of names)"""
    make, arguments, family = CASES[request.param]
    backbone, config, table = make(**arguments)
    randomise(backbone)
    return family, backbone, config, table


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_backbone(case):
    family, backbone, config, table = case
    batch = batch_for(backbone)
    model = peer(family, "Model", config, backbone, table)
    expected = run_peer(model, batch, output_hidden_states=True, output_attentions=True)
    outputs = run(backbone, batch)
    assert difference(outputs["hidden_states"], tuple(h.numpy() for h in expected.hidden_states)) <= TOLERANCE
    assert difference(outputs["sequence_output"], expected.last_hidden_state.numpy()) <= TOLERANCE
    pooled = expected.pooler_output if family == "Albert" else expected.last_hidden_state[:, 0]
    assert difference(outputs["pooled_output"], pooled.numpy()) <= TOLERANCE
    scores = tuple(to_numpy(backbone.attention_scores(batch)))
    assert difference(scores, tuple(a.numpy() for a in expected.attentions)) <= TOLERANCE


@with_heads
def test_masked_lm(case):
    family, backbone, config, table = case
    model, batch = MaskedLM(backbone), batch_for(backbone)
    randomise(model)
    expected = run_peer(peer(family, "ForMaskedLM", config, model, table), batch).logits.numpy()
    logits = run(model, {**batch, "mask_positions": MASK_POSITIONS})
    assert difference(logits, np.take_along_axis(expected, MASK_POSITIONS[:, :, None], axis=1)) <= TOLERANCE


@with_heads
def test_classifier(case):
    family, backbone, config, table = case
    model, batch = TextClassifier(backbone, num_classes=NUM_CLASSES), batch_for(backbone)
    randomise(model)
    expected = run_peer(peer(family, "ForSequenceClassification", config, model, table), batch).logits.numpy()
    assert difference(run(model, batch), expected) <= TOLERANCE
