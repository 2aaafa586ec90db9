"""Heads of pre-training in files of transformers and of Google's code: loaded, written, told apart."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from lmzoo.models import MaskedLM, Pretrainer
from lmzoo.presets import PresetError
from lmzoo.presets.converting import convert, save_checkpoint
from lmzoo.presets.source import open_source
from lmzoo.presets.verifying import verify
from lmzoo.registry.family import families
from lmzoo.testing import check_peer_outputs, tiny_backbone, tiny_preprocessor, tiny_task
from tests.checkpoints.model_files import (
    assert_same_state,
    batch_for,
    configure,
    load,
    peer,
    read_state,
    rewrite,
    run_peer,
)
from tests.reference.weights import MASK_POSITIONS, difference, randomise, run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def get_outputs(task, batch):
    return run(task, {**batch, "mask_positions": MASK_POSITIONS})


def get_peer_outputs(model, batch):
    """Return what transformers computes in the form of our outputs, at the same masked positions."""
    outputs = run_peer(model, batch)
    sentence = outputs.seq_relationship_logits if "Bert" in type(model).__name__ else outputs.sop_logits
    masked = np.take_along_axis(outputs.prediction_logits.numpy(), MASK_POSITIONS[:, :, None], axis=1)
    return {"masked_lm": masked, "sentence": sentence.numpy()}


def test_a_masked_lm_is_read_from_both_heads(tmp_path):
    """The sentence head is left out without a warning."""
    theirs = peer("albert", "ForPreTraining", tmp_path)
    for cls, arguments in ((MaskedLM, {}), (Pretrainer, {"objective": None})):
        task = load(tmp_path, cls, **arguments)
        batch = batch_for(task.backbone)
        logits = get_outputs(task, batch)
        logits = logits if cls is MaskedLM else logits["masked_lm"]
        assert difference(logits, get_peer_outputs(theirs, batch)["masked_lm"]) <= 1e-5
    assert get_outputs(task, batch).keys() == {"masked_lm"}
    ignored = [name for name in read_state(tmp_path) if name.startswith("sop_classifier.classifier")]
    left_out = open_source(tmp_path).plan(load(tmp_path, MaskedLM)).left_out
    assert [left_out[name].split()[-1] for name in ignored] == ["prediction", "prediction"]


def test_both_heads_may_be_named_a_masked_lm(tmp_path):
    """Google's first BERTs on Hugging Face name less than the file holds."""
    theirs = peer("bert", "ForPreTraining", tmp_path)
    configure(tmp_path, architectures=["BertForMaskedLM"])
    task = load(tmp_path, Pretrainer)
    batch = batch_for(task.backbone)
    assert difference(get_outputs(task, batch)["sentence"], get_peer_outputs(theirs, batch)["sentence"]) <= 1e-5
    assert verify(tmp_path)["head"] == "MaskedLM"


@pytest.mark.quick_cases("albert", "distilbert")
@pytest.mark.parametrize("case", ["albert", "roberta", "distilbert"])  # test_stored_heads.py tries BERT
def test_unnamed_heads_are_read(case, tmp_path):
    """Google's small BERTs on Hugging Face do not name them."""
    theirs = peer(case, "ForMaskedLM", tmp_path)
    configure(tmp_path, architectures=None)
    task = load(tmp_path, MaskedLM)
    batch = batch_for(task.backbone)
    expected = np.take_along_axis(run_peer(theirs, batch).logits.numpy(), MASK_POSITIONS[:, :, None], axis=1)
    assert difference(get_outputs(task, batch), expected) <= 1e-5
    assert verify(tmp_path)["head"] == "MaskedLM"


def test_a_missing_sentence_head_gives_a_warning(tmp_path):
    peer("bert", "ForMaskedLM", tmp_path)
    with (
        pytest.warns(UserWarning, match="holds no pooler"),
        pytest.warns(UserWarning, match="no head of a Pretrainer, so it starts from scratch"),
    ):
        load(tmp_path, Pretrainer)


@pytest.mark.parametrize("end", ["weight", "bias"])
def test_half_a_head_is_refused(end, tmp_path):
    peer("bert", "ForPreTraining", tmp_path)
    rewrite(tmp_path, lambda state: {n: t for n, t in state.items() if n != f"cls.seq_relationship.{end}"})
    with pytest.raises(PresetError, match=rf"lacks 'cls.seq_relationship.{end}' \(the model's sentence_head/"):
        load(tmp_path, Pretrainer)


@pytest.mark.quick_cases("bert")
@pytest.mark.parametrize("name", ["bert", "albert"])
def test_heads_in_googles_checkpoints(name, tmp_path):
    tf = pytest.importorskip("tensorflow")
    family = families()[name]
    activation = {"bert": "gelu", "albert": "gelu_tanh"}[name]  # the function that its code computes for "gelu"
    task = Pretrainer(tiny_backbone(family, activation=activation), tiny_preprocessor(family))
    randomise(task)
    save_checkpoint(task, tmp_path, to="tf1")
    stored = tf.train.load_checkpoint(str(tmp_path / f"{name}_model.ckpt"))
    weights = {weight.path: np.asarray(weight) for weight in task.weights}
    heads = {
        "cls/seq_relationship/output_weights": weights["sentence_head/kernel"].T,
        "cls/seq_relationship/output_bias": weights["sentence_head/bias"],
        "cls/predictions/output_bias": weights["masked_lm_head/output_bias"],
        "cls/predictions/transform/dense/kernel": weights["masked_lm_head/dense/kernel"],
        "cls/predictions/transform/dense/bias": weights["masked_lm_head/dense/bias"],
        "cls/predictions/transform/LayerNorm/gamma": weights["masked_lm_head/layer_norm/gamma"],
        "cls/predictions/transform/LayerNorm/beta": weights["masked_lm_head/layer_norm/beta"],
    }
    assert {key for key in stored.get_variable_to_shape_map() if key.startswith("cls/")} == heads.keys()
    for key, array in heads.items():
        np.testing.assert_array_equal(stored.get_tensor(key), array, err_msg=key)
    reloaded = Pretrainer.from_preset(tmp_path, preprocessor=task.preprocessor)
    assert reloaded.objective == family.objective
    for weight in reloaded.weights:
        np.testing.assert_array_equal(weight, weights.pop(weight.path))
    assert not weights
    masked = MaskedLM.from_preset(tmp_path, preprocessor=task.preprocessor)
    np.testing.assert_array_equal(masked.head.output_bias, task.head.output_bias)


GENERATOR = "replaced_tokens/generator"
# Examples of tensors in Google's files of discriminators, and our paths of the weights.
DISCRIMINATOR = {
    "electra/embeddings/word_embeddings": "embeddings/token_embedding/embeddings",
    "electra/embeddings/LayerNorm/beta": "embeddings/layer_norm/beta",
    "electra/embeddings_project/kernel": "embedding_projection/kernel",
    "electra/encoder/layer_1/attention/self/query/kernel": "block_1/attention/query/kernel",
    "electra/encoder/layer_2/output/LayerNorm/gamma": "block_2/output_layer_norm/gamma",
    "discriminator_predictions/dense/kernel": "replaced_tokens/head/dense/kernel",
    "discriminator_predictions/dense_1/bias": "replaced_tokens/head/logits/bias",
    "generator/embeddings_project/bias": f"{GENERATOR}/embedding_projection/bias",
    "generator/encoder/layer_1/intermediate/dense/kernel": f"{GENERATOR}/block_1/intermediate_dense/kernel",
    "generator_predictions/dense/kernel": f"{GENERATOR}/head/dense/kernel",
    "generator_predictions/LayerNorm/gamma": f"{GENERATOR}/head/layer_norm/gamma",
    "generator_predictions/output_bias": f"{GENERATOR}/head/output_bias",
}


@pytest.mark.slow
@pytest.mark.parametrize("stated", [True, False])
def test_discriminators_in_googles_checkpoints(stated, tmp_path):
    """Both models are in one file, and its code writes no configuration, as heads have 64 dimensions."""
    tf = pytest.importorskip("tensorflow")
    family = families()["electra"]
    backbone = tiny_backbone(family, hidden_dim=192, num_heads=3, dropout=0.1)
    task = Pretrainer(backbone, tiny_preprocessor(family), generator_width=64)
    randomise(task)
    save_checkpoint(task, tmp_path, to="tf1")
    stored = tf.train.load_checkpoint(str(tmp_path / "electra_model.ckpt"))
    weights = {weight.path: np.asarray(weight) for weight in task.weights}
    for key, path in DISCRIMINATOR.items():
        np.testing.assert_array_equal(stored.get_tensor(key), weights[path], err_msg=key)
    assert len(stored.get_variable_to_shape_map()) == len(weights)
    if not stated:
        (tmp_path / "electra_config.json").unlink()
    reloaded = Pretrainer.from_preset(tmp_path, preprocessor=task.preprocessor)
    assert (reloaded.objective, reloaded.generator_width, reloaded.backbone.config) == ("rtd", 64, backbone.config)
    for weight in reloaded.weights:
        np.testing.assert_array_equal(weight, weights[weight.path])
    with pytest.warns(UserWarning, match="holds no head of a MaskedLM, so it starts from scratch"):
        MaskedLM.from_preset(tmp_path, preprocessor=task.preprocessor)


@pytest.mark.slow
def test_discriminators_in_transformers_files_lack_the_generator(tmp_path):
    task = tiny_task(Pretrainer, families()["electra"])
    save_checkpoint(task, tmp_path / "hf", to="hf")
    with pytest.warns(UserWarning, match="holds no generator: it starts with random weights"):
        reloaded = Pretrainer.from_preset(tmp_path / "hf")
    kernels = [np.asarray(w) for w in reloaded.weights if w.path.startswith(GENERATOR) and "kernel" in w.path]
    assert all(0 < np.abs(kernel).max() < 0.05 for kernel in kernels)
    task.make_generator().backbone.save_to_preset(tmp_path / "generator")
    with pytest.warns(UserWarning, match="holds no head of a MaskedLM"):
        MaskedLM.from_preset(tmp_path / "hf")


def test_heads_may_have_another_activation_than_the_backbone():
    """In transformers, heads of some families have GELU regardless of the configuration."""
    family = families()["roberta"]
    changed = dataclasses.replace(family, tiny=dataclasses.replace(family.tiny, activation="relu"))
    check_peer_outputs(changed, "masked_lm")


@pytest.mark.slow
def test_conversions_keep_both_heads(tmp_path):
    """The last format is a preset, from which a masked language model loads its part."""
    theirs = peer("bert", "ForPreTraining", tmp_path / "0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "lmzoo.checkpoints.checkpoint.Checkpoint.preprocessor", lambda self: tiny_preprocessor(families()["bert"])
        )
        for step, to in enumerate(["tf1", "hf", "keras"]):
            convert(tmp_path / f"{step}", tmp_path / f"{step + 1}", to)
    assert_same_state(tmp_path / "2", tmp_path / "0")
    pretrainer, masked_lm = Pretrainer.from_preset(tmp_path / "3"), MaskedLM.from_preset(tmp_path / "3")
    batch = batch_for(pretrainer.backbone)
    expected = get_peer_outputs(theirs, batch)
    outputs = get_outputs(pretrainer, batch)
    assert difference(outputs["sentence"], expected["sentence"]) <= 1e-5
    assert difference(outputs["masked_lm"], expected["masked_lm"]) <= 1e-5
    np.testing.assert_array_equal(get_outputs(masked_lm, batch), outputs["masked_lm"])
    assert re.fullmatch(r"masked_lm(_\d+)?", masked_lm.name)


@pytest.mark.slow
def test_heads_that_a_format_cannot_express_are_refused(tmp_path):
    task = tiny_task(Pretrainer, families()["bert"], objective="sop")
    with pytest.raises(PresetError, match=r"'hf' cannot express `objective='sop'` of a Pretrainer: .* always 'nsp'"):
        save_checkpoint(task, tmp_path, to="hf")
    task = tiny_task(MaskedLM, families()["roberta"], activation="relu")
    with pytest.raises(PresetError, match=r"'hf' cannot express `activation='relu'` of a MaskedLM: .* always 'gelu'"):
        save_checkpoint(task, tmp_path, to="hf")
    task = tiny_task(Pretrainer, families()["bert"], activation="relu")
    with pytest.raises(PresetError, match="'tf1' cannot express `activation='relu'` of a Pretrainer"):
        save_checkpoint(task, tmp_path, to="tf1")
    task = Pretrainer(tiny_backbone(families()["bert"], activation="gelu_tanh"))
    with pytest.raises(PresetError, match="'keras_hub' has no place for the head of a Pretrainer"):
        save_checkpoint(task, tmp_path, to="keras_hub")
