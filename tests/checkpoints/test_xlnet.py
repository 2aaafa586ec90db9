"""XLNet's checkpoints and tokenizer: read with the numbers of transformers, and written for it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tokenizers

from lmzoo.checkpoints.formats.tensorflow import TensorFlowCheckpoint, write_tensorflow_checkpoint
from lmzoo.checkpoints.tokenizers.files import read_tokenizer, write_tokenizer
from lmzoo.data.corpora import train_tokenizer
from lmzoo.models import Backbone, Pretrainer, TextClassifier, TokenClassifier
from lmzoo.presets import PresetError
from lmzoo.presets.converting import save_checkpoint
from lmzoo.presets.source import open_source
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone
from lmzoo.text import Preprocessor, XlnetTokenizer
from tests.checkpoints.model_files import (
    assert_same_state,
    configure,
    load,
    load_with_transformers,
    peer,
    read_state,
    run_peer,
)
from tests.reference.weights import difference, run, to_numpy
from tests.text.trained import assert_equal_or_tied, reviews

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5


def make_batch():
    rng = np.random.default_rng(7)
    ids = rng.integers(0, 131, (2, 11)).astype("int32")
    segments = np.repeat([[0, 1, 2]], [5, 5, 1], axis=1).repeat(2, axis=0).astype("int32")
    return {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": segments}


# tests/conformance/test_checkpoints.py compares the other heads.
@pytest.mark.parametrize("tied", [True, False])
def test_the_head_for_permutations_is_read_and_written(tied, tmp_path):
    theirs = peer("xlnet", "LMHeadModel", tmp_path / "theirs", tie_word_embeddings=tied)
    left_out = open_source(tmp_path / "theirs").plan(load(tmp_path / "theirs")).left_out
    assert ("lm_loss.weight" in left_out) == (not tied)
    ours = load(tmp_path / "theirs", Pretrainer)
    batch = make_batch()
    positions = np.array([[3, 7], [10, 0]], "int32")
    order = np.zeros((2, 11), "int32")
    np.put_along_axis(order, positions, 1, axis=1)
    logits = run(ours, {**batch, "mask_positions": positions, "order": order})["masked_lm"]
    hidden = torch.tensor(np.repeat(order[:, None], 11, axis=1), dtype=torch.float32)
    mapping = torch.tensor(np.eye(11)[positions], dtype=torch.float32)
    expected = run_peer(theirs, batch, use_mems=False, perm_mask=hidden, target_mapping=mapping).logits.numpy()
    assert difference(logits, expected) <= TOLERANCE
    save_checkpoint(ours, tmp_path / "ours", to="hf")
    load_with_transformers(type(theirs), tmp_path / "ours")
    assert_same_state(tmp_path / "ours", tmp_path / "theirs")


@pytest.mark.parametrize(
    ("key", "value"),
    [("attn_type", "uni"), ("bi_data", True), ("clamp_len", 40), ("same_length", True)],
)
def test_unsupported_keys_are_refused(key, value, tmp_path):
    peer("xlnet", "Model", tmp_path)
    configure(tmp_path, **{key: value})
    with pytest.raises(PresetError, match=key):
        Backbone.from_preset(tmp_path)


def test_summary_keys_of_other_heads_are_not_read(tmp_path):
    """Only classifiers and regressors of texts, and multiple choice, have a summary."""
    theirs = peer("xlnet", "ForTokenClassification", tmp_path / "tokens", summary_type="mean", summary_use_proj=False)
    task = load(tmp_path / "tokens", TokenClassifier)
    assert difference(to_numpy(task.head.logits.kernel).T, theirs.classifier.weight.detach().numpy()) == 0
    load(tmp_path / "tokens")
    peer("xlnet", "ForSequenceClassification", tmp_path / "texts", summary_type="mean")
    load(tmp_path / "texts")
    with pytest.raises(PresetError, match="`summary_type` must be 'last', got 'mean'"):
        load(tmp_path / "texts", TextClassifier)


@pytest.fixture(scope="module")
def tokenizer(root):
    return train_tokenizer(reviews(root), XlnetTokenizer, 700, verbose=False)


def test_written_tokenizers_give_transformers_ids(tokenizer, root, tmp_path):
    """Packed ids, segments and the sides of sequences are equal; ids of texts may differ at equal scores."""
    write_tokenizer(tokenizer, tmp_path, 64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__.startswith("XLNetTokenizer")
    reloaded = read_tokenizer(tmp_path, XlnetTokenizer)
    assert reloaded.get_config() == tokenizer.get_config()
    assert reloaded.vocabulary == tokenizer.vocabulary
    ids = [tokenizer.token_to_id(token) for token in ("<cls>", "<sep>")]
    assert [theirs.cls_token_id, theirs.sep_token_id] == ids
    texts = [*reviews(root)[:300], "A ``naïve''  Ünïcode <sep>text", "<mask> Ends", "", "日本 ﬁlm"]
    expected = theirs(texts, add_special_tokens=False)["input_ids"]
    assert_equal_or_tied(tokenizer, texts, tokenizer.tokenize(texts), expected)
    features = Preprocessor(tokenizer, families()["xlnet"].packing, 64)((["A film"], ["a plot"]))
    expected = theirs("A film", "a plot", return_token_type_ids=True)
    assert features["token_ids"][0].tolist() == expected["input_ids"]
    assert features["segment_ids"][0].tolist() == expected["token_type_ids"]
    pipeline = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("A film", "a plot")
    assert (pipeline.ids, pipeline.type_ids) == (expected["input_ids"], expected["token_type_ids"])


def test_the_default_tokenizer_keeps_case(tokenizer, tmp_path):
    (tmp_path / "spiece.model").write_bytes(tokenizer.model)
    (tmp_path / "config.json").write_text('{"model_type": "xlnet"}', "utf-8")
    assert read_tokenizer(tmp_path, XlnetTokenizer).lowercase is False
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}', "utf-8")
    assert read_tokenizer(tmp_path, XlnetTokenizer).lowercase is True


@pytest.mark.parametrize("family", ["xlnet", "lstm_lm"])
def test_sequences_have_no_longest_length(family, tmp_path):
    backbone = tiny_backbone(families()[family], max_sequence_length=5000)
    backbone.save_to_preset(tmp_path)
    assert Backbone.from_preset(tmp_path).config == backbone.config


def original_names(state):
    """Return the tensors of a transformers model under the names of XLNet's own code."""
    tensors, stacks = {}, {}
    for name, array in state.items():
        name = name.removeprefix("transformer.")
        if match := re.fullmatch(r"layer\.(\d+)\.rel_attn\.(r_\w_bias|seg_embed)", name):
            stacks.setdefault(match[2], {})[int(match[1])] = array
        elif match := re.fullmatch(r"layer\.(\d+)\.rel_attn\.([qkvor])", name):
            tensors[f"model/transformer/layer_{match[1]}/rel_attn/{match[2]}/kernel"] = array
        elif match := re.fullmatch(r"layer\.(\d+)\.(rel_attn|ff)\.layer_norm\.(weight|bias)", name):
            kind = {"weight": "gamma", "bias": "beta"}[match[3]]
            tensors[f"model/transformer/layer_{match[1]}/{match[2]}/LayerNorm/{kind}"] = array
        elif match := re.fullmatch(r"layer\.(\d+)\.ff\.(layer_\d)\.(weight|bias)", name):
            kind = {"weight": "kernel", "bias": "bias"}[match[3]]
            tensors[f"model/transformer/layer_{match[1]}/ff/{match[2]}/{kind}"] = array.T
        else:
            remaining_names = {
                "word_embedding.weight": "model/transformer/word_embedding/lookup_table",
                "mask_emb": "model/transformer/mask_emb/mask_emb",
                "lm_loss.bias": "model/lm_loss/bias",
            }
            tensors[remaining_names[name]] = array
    for name, layers in stacks.items():
        tensors[f"model/transformer/{name}"] = np.stack([layers[i] for i in range(len(layers))])
    return tensors


CONFIG = {
    "d_head": 12, "d_inner": 53, "d_model": 36, "ff_activation": "gelu", "n_head": 3, "n_layer": 3, "n_token": 131,
}  # fmt: skip


def test_checkpoints_of_the_authors_are_read_and_written(tmp_path):
    theirs = peer("xlnet", "LMHeadModel", tmp_path / "theirs", ff_activation="gelu_new")  # the authors' gelu
    stored = original_names(read_state(tmp_path / "theirs"))
    (tmp_path / "original").mkdir()
    ignored = {"global_step": np.array(7), "model/lm_loss/bias/Adam": np.zeros(131, "float32")}
    write_tensorflow_checkpoint(tmp_path / "original/xlnet_model.ckpt", {**stored, **ignored}.items())
    (tmp_path / "original/xlnet_config.json").write_text(json.dumps({**CONFIG, "untie_r": True}), "utf-8")
    ours = load(tmp_path / "original", Pretrainer)
    batch = make_batch()
    expected = run_peer(theirs.transformer, batch, use_mems=False)[0].numpy()
    assert difference(run(ours.backbone, batch)["sequence_output"], expected) <= TOLERANCE
    save_checkpoint(ours, tmp_path / "ours", to="tf1")
    written = TensorFlowCheckpoint(tmp_path / "ours/xlnet_model.ckpt")
    assert set(written.names()) == stored.keys()
    assert all(np.array_equal(written.read(name), array) for name, array in stored.items())
    save_checkpoint(ours.backbone, tmp_path / "backbone", to="tf1")
    assert load(tmp_path / "backbone").config == ours.backbone.config
    (tmp_path / "original/xlnet_config.json").write_text(json.dumps({**CONFIG, "untie_r": False}), "utf-8")
    with pytest.raises(PresetError, match="`untie_r` must be True"):
        load(tmp_path / "original")
