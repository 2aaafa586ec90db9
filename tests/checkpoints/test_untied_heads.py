"""Heads that predict tokens with a kernel of their own, as `tie_word_embeddings` is false in files of transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lmzoo.models import CausalLM, MaskedLM, Pretrainer
from lmzoo.presets import PresetError
from lmzoo.presets.converting import save_checkpoint
from lmzoo.presets.source import open_source
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from tests.checkpoints.model_files import (
    TOLERANCE,
    batch_for,
    check_hidden_states,
    configure,
    load,
    load_with_transformers,
    peer,
    rewrite,
    run_peer,
)
from tests.reference.weights import MASK_POSITIONS, difference, randomise, run

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CASES = ["bert", "roberta", "albert", "distilbert"]
OWN_KERNEL = "masked_lm_head/output_projection/kernel"


def untied_peer(case, head, directory):
    return peer(case, head, directory, tie_word_embeddings=False)


def get_peer_logits(theirs, batch):
    outputs = run_peer(theirs, batch)
    logits = outputs["logits"] if "logits" in outputs else outputs["prediction_logits"]
    return np.take_along_axis(logits.numpy(), MASK_POSITIONS[:, :, None], axis=1)


def get_logits(task, batch):
    outputs = run(task, {**batch, "mask_positions": MASK_POSITIONS})
    return outputs["masked_lm"] if isinstance(outputs, dict) else outputs


NO_POOLER = pytest.mark.filterwarnings("ignore:.* holds no pooler")  # models that predict tokens have none


@NO_POOLER
@pytest.mark.parametrize("case", CASES)
def test_untied_heads_are_read_and_written(case, tmp_path):
    theirs = untied_peer(case, "ForMaskedLM", tmp_path / "theirs")
    check_hidden_states(theirs.base_model, load(tmp_path / "theirs"))
    task = load(tmp_path / "theirs", MaskedLM)
    assert OWN_KERNEL in {weight.path for weight in task.weights}
    batch = batch_for(task.backbone)
    expected = get_peer_logits(theirs, batch)
    assert difference(get_logits(task, batch), expected) <= TOLERANCE
    save_checkpoint(task, tmp_path / "ours", to="hf")
    assert json.loads((tmp_path / "ours/config.json").read_text())["tie_word_embeddings"] is False
    # transformers has a second bias, which an untied head does not use.
    written_peer = load_with_transformers(type(theirs), tmp_path / "ours", without="bias")
    assert difference(get_peer_logits(written_peer, batch), expected) <= TOLERANCE
    assert difference(get_logits(load(tmp_path / "ours", MaskedLM), batch), expected) <= TOLERANCE


def test_an_untied_head_of_pretraining_is_read(tmp_path):
    theirs = untied_peer("bert", "ForPreTraining", tmp_path)
    for cls in (Pretrainer, MaskedLM):
        task = load(tmp_path, cls)
        batch = batch_for(task.backbone)
        assert difference(get_logits(task, batch), get_peer_logits(theirs, batch)) <= TOLERANCE


def test_the_shared_bias_of_version_4_is_read(tmp_path):
    theirs = untied_peer("bert", "ForMaskedLM", tmp_path)
    theirs.cls.predictions.bias.data = theirs.cls.predictions.decoder.bias.data
    bias = theirs.cls.predictions.decoder.bias.detach().clone()
    removed = {"cls.predictions.decoder.bias"}
    added = {"cls.predictions.bias": bias}
    rewrite(tmp_path, lambda state: {name: t for name, t in state.items() if name not in removed} | added)
    task = load(tmp_path, MaskedLM)
    batch = batch_for(task.backbone)
    assert difference(get_logits(task, batch), get_peer_logits(theirs, batch)) <= TOLERANCE


@pytest.mark.parametrize("case", ["gpt2", "gpt"])
def test_untied_causal_models_are_read_and_written(case, tmp_path):
    """The kernel is never silently ignored, whether the class is named or not."""
    theirs = untied_peer(case, "LMHeadModel", tmp_path / "theirs")
    backbone = load(tmp_path / "theirs")
    check_hidden_states(theirs.base_model, backbone)
    assert "lm_head.weight" in open_source(tmp_path / "theirs").plan(backbone).left_out
    task = load(tmp_path / "theirs", CausalLM)
    batch = batch_for(task.backbone)
    real = batch["padding_mask"] > 0
    expected = run_peer(theirs, batch)["logits"].numpy()[real]
    assert difference(run(task, batch)[real], expected) <= TOLERANCE
    save_checkpoint(task, tmp_path / "ours", to="hf")
    written_peer = load_with_transformers(type(theirs), tmp_path / "ours")
    assert difference(run_peer(written_peer, batch)["logits"].numpy()[real], expected) <= TOLERANCE
    for architectures in (None, [type(theirs.base_model).__name__]):
        configure(tmp_path / "ours", architectures=architectures)
        assert difference(run(load(tmp_path / "ours", CausalLM), batch)[real], expected) <= TOLERANCE
    configure(tmp_path / "ours", tie_word_embeddings=True)
    with pytest.raises(PresetError, match=r"lm_head.weight differs from .*, but the model has one weight for both"):
        load(tmp_path / "ours", CausalLM)


@pytest.mark.slow
def test_untied_causal_models_score_choose_and_generate(tmp_path):
    """Each of them computes logits in its own way."""
    task = tiny_task(CausalLM, families()["gpt2"], tie_embeddings=False, add_start_token=True)
    randomise(task)
    ids = np.array([[*task.start_ids, *task.preprocessor.tokenizer.tokenize(["a good film"])[0]]])
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    logits = run(task, inputs)[0]
    scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    actual = [token["log_probability"] for token in task.score(["a good film"])[0]]
    assert difference(np.array(actual), scores[np.arange(len(actual)), ids[0, -len(actual) :]]) <= TOLERANCE
    choices = {choice["label"]: choice["score"] for choice in task.classify(["a good"], ["film", "good"], top_k=2)[0]}
    film, good = (task.preprocessor.tokenizer.tokenize([f"a {word}"])[0][-1] for word in ("film", "good"))
    assert abs(np.log(choices["film"] / choices["good"]) - scores[-2, film] + scores[-2, good]) <= TOLERANCE
    assert task.generate(ids, max_new_tokens=1)[0][-1] == logits[-1].argmax()
    task.save_to_preset(tmp_path)
    assert difference(run(CausalLM.from_preset(tmp_path), inputs)[0], logits) == 0
    with pytest.raises(ValueError, match="`tie_embeddings` must be True with `carries_state`, got False"):
        tiny_task(CausalLM, families()["lstm_lm"], carries_state=True, tie_embeddings=False)


@NO_POOLER
def test_a_tied_kernel_that_differs_is_refused(tmp_path):
    theirs = untied_peer("bert", "ForMaskedLM", tmp_path)
    configure(tmp_path, tie_word_embeddings=True)
    check_hidden_states(theirs.base_model, load(tmp_path))
    with pytest.raises(PresetError, match=r"cls.predictions.decoder.\w+ differs from .*, but the model has one weight"):
        load(tmp_path, MaskedLM)
    task = load(tmp_path, MaskedLM, tie_embeddings=False)
    batch = batch_for(task.backbone)
    assert difference(get_logits(task, batch), get_peer_logits(theirs, batch)) <= TOLERANCE


def test_a_missing_kernel_is_refused(tmp_path):
    untied_peer("bert", "ForMaskedLM", tmp_path)
    rewrite(tmp_path, lambda state: {name: t for name, t in state.items() if not name.endswith("decoder.weight")})
    with pytest.raises(PresetError, match=r"lacks 'cls\.predictions\.decoder\.weight'"):
        load(tmp_path, MaskedLM)


def test_untied_heads_are_saved_and_resized(tmp_path):
    task = tiny_task(MaskedLM, families()["bert"], tie_embeddings=False)
    randomise(task)
    text = f"a {task.preprocessor.tokenizer.mask_token}"
    expected = task.fill([text], top_k=3)
    task.save_to_preset(tmp_path)
    reloaded = MaskedLM.from_preset(tmp_path)
    assert reloaded.tie_embeddings is False
    assert reloaded.fill([text], top_k=3) == expected
    reloaded.preprocessor.tokenizer.add_tokens(["mRNA", "tRNA"])
    size = reloaded.preprocessor.tokenizer.vocabulary_size
    larger = reloaded.resize_token_embeddings(size)
    shapes = {weight.path: weight.shape for weight in larger.weights}
    assert shapes[OWN_KERNEL] == (larger.backbone.hidden_dim, size)
    with pytest.raises(PresetError, match="has no place for the weight 'masked_lm_head/output_projection/kernel'"):
        save_checkpoint(task, tmp_path / "tf1", to="tf1")


@pytest.mark.parametrize("objective", ["sbo", "rtd"])
def test_objectives_that_need_tied_embeddings(objective):
    family = families()[{"sbo": "bert", "rtd": "electra"}[objective]]
    with pytest.raises(ValueError, match="`tie_embeddings` must be True, got False"):
        tiny_task(Pretrainer, family, objective=objective, tie_embeddings=False)
    with pytest.raises(ValueError, match="`tie_embeddings` must be True or False, got 1"):
        tiny_task(MaskedLM, family, tie_embeddings=1)
