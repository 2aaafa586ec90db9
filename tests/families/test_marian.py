"""Marian against transformers on random weights: states, logits, tokens, beams and files."""

from __future__ import annotations

import json
import warnings

import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.checkpoints.hugging_face.checkpoint import find_hugging_face
from lmzoo.errors import PresetError
from lmzoo.families.marian import FAMILY
from lmzoo.files.preset_files import JsonFiles
from lmzoo.layers.embeddings import make_sinusoids
from lmzoo.models import MarianEncoderBackbone, Seq2SeqLM, StaticEmbedder, TextEmbedder, TokenClassifier
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task, tiny_texts
from tests.families.comparing import add_noise
from tests.families.encoder_decoder_parity import (
    check_encoder_states,
    check_states_and_logits,
    check_steps,
    check_weights,
    padded_batch,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Odd widths; the encoder and the decoder differ in their layers, heads and feed-forward widths.
SHAPE = {
    "vocab_size": 131,
    "d_model": 35,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 7,
    "encoder_ffn_dim": 41,
    "decoder_ffn_dim": 29,
    "max_position_embeddings": 73,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": 2,
}


def make_peer(**options):
    torch.manual_seed(17)
    model = transformers.MarianMTModel(transformers.MarianConfig(**SHAPE, init_std=0.1, **options)).eval()
    add_noise(model)
    model.final_logits_bias.normal_()
    return model


@pytest.mark.quick_cases("relu-False")
@pytest.mark.parametrize(("activation", "scale"), [("swish", True), ("relu", False)])
def test_states_and_logits_equal_transformers(tmp_path, activation, scale):
    peer = make_peer(activation_function=activation, scale_embedding=scale)
    peer.save_pretrained(tmp_path)
    check_states_and_logits(peer, tmp_path, FAMILY, padded_batch(131))


@pytest.mark.slow
def test_written_tasks_have_the_tokens_and_beams_of_transformers(tmp_path):
    """Texts of various lengths are translated alike; the files restore the task."""
    task, texts = tiny_task(Seq2SeqLM, FAMILY, max_new_tokens=None), tiny_texts(40)
    bias = np.random.default_rng(5).normal(size=131).astype("float32")
    bias[2] += 4  # the end token: some translations end early, and ended beams compete with unfinished ones
    task.output_bias.bias.assign(bias)
    for weight in task.weights:  # so that translations depend on their sources
        if weight.path.endswith("kernel"):
            weight.assign(3 * keras.ops.convert_to_numpy(weight))
    lmzoo.save_checkpoint(task, tmp_path / "hf", to="hf")
    peer = transformers.MarianMTModel.from_pretrained(tmp_path / "hf").eval()
    with pytest.warns(UserWarning, match="sacremoses"):
        tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "hf")
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    np.testing.assert_array_equal(inputs.input_ids, task.preprocessor(texts)["token_ids"])
    assert peer.generation_config.num_beams == 4
    for penalty in (1.0, 0.3):
        with torch.no_grad():
            ids = peer.generate(**inputs, max_new_tokens=17, max_length=None, length_penalty=penalty)
        expected = tokenizer.batch_decode(ids, skip_special_tokens=True)
        translations = task.translate(texts, max_new_tokens=17, length_penalty=penalty)
        assert translations == expected
        lengths = {len(text.split()) for text in translations}
        assert min(lengths) < 2 < max(lengths)
    reloaded = Seq2SeqLM.from_preset(tmp_path / "hf")
    check_weights(reloaded, task)
    assert reloaded.translate(texts[:3], max_new_tokens=17) == task.translate(texts[:3], max_new_tokens=17)


def test_transformers_reads_a_backbone_without_tokenizer(tmp_path):
    lmzoo.save_checkpoint(tiny_backbone(FAMILY), tmp_path / "hf", to="hf")
    peer = transformers.AutoModel.from_pretrained(tmp_path / "hf")  # the default padding id is not in the vocabulary
    assert peer.shared.weight.shape[0] == FAMILY.tiny.vocabulary_size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_search_settings_are_read_from_a_checkpoint(tmp_path, name):
    """Newer checkpoints have a file for them."""
    task = tiny_task(Seq2SeqLM, FAMILY)
    lmzoo.save_checkpoint(task, tmp_path / "hf", to="hf")
    file = tmp_path / "hf" / name
    config = json.loads(file.read_text())
    if name == "config.json":
        (tmp_path / "hf/generation_config.json").unlink()
    file.write_text(json.dumps({**config, "num_beams": 7, "length_penalty": 0.3}))
    reloaded = Seq2SeqLM.from_preset(tmp_path / "hf")
    assert (reloaded.num_beams, reloaded.length_penalty) == (7, 0.3)
    assert Seq2SeqLM.from_preset(tmp_path / "hf", num_beams=2).num_beams == 2
    file.write_text(json.dumps({**config, "num_beams": 0}))
    with pytest.raises(PresetError, match="`num_beams` must be a positive integer, got 0"):
        Seq2SeqLM.from_preset(tmp_path / "hf")


def test_generation_settings_that_lmzoo_lacks_give_a_warning(tmp_path):
    """The settings of published models, which lmzoo writes, give none."""
    lmzoo.save_checkpoint(tiny_task(Seq2SeqLM, FAMILY), tmp_path, to="hf")
    file = tmp_path / "generation_config.json"
    config = json.loads(file.read_text())
    pad_id = config["pad_token_id"]
    for changes in ({}, {"repetition_penalty": 1.0, "min_length": 0, "suppress_tokens": [], "do_sample": False}):
        file.write_text(json.dumps({**config, **changes}))
        checkpoint = find_hugging_face(JsonFiles(tmp_path))
        assert checkpoint.get_head_arguments(Seq2SeqLM) == {"num_beams": 4, "length_penalty": 1.0}
        checkpoint.close()
    changes = {"no_repeat_ngram_size": 3, "min_length": 5, "forced_bos_token_id": 7, "bad_words_ids": [[pad_id], [11]]}
    file.write_text(json.dumps({**config, **changes}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Seq2SeqLM.from_preset(tmp_path)
    (message,) = (str(warning.message) for warning in caught if "generation settings" in str(warning.message))
    assert message.startswith(f"{file}: ignoring generation settings that lmzoo lacks: `forced_bos_token_id` (7), ")
    assert all(f"`{key}` ({value!r})" in message for key, value in changes.items())


@pytest.mark.parametrize("changes", [{}, {"pad_token_id": None}], ids=["", "padding in config.json"])
def test_targets_must_begin_with_the_padding_token(changes, tmp_path):
    lmzoo.save_checkpoint(tiny_task(Seq2SeqLM, FAMILY), tmp_path, to="hf")
    file = tmp_path / "generation_config.json"
    config = json.loads(file.read_text())
    pad_id = config["pad_token_id"]
    file.write_text(json.dumps({**config, "decoder_start_token_id": pad_id + 1, **changes}))
    message = f"`decoder_start_token_id` must be `pad_token_id`, which is {pad_id}, got {pad_id + 1}"
    with pytest.raises(PresetError, match=message):
        Seq2SeqLM.from_preset(tmp_path)


@pytest.mark.slow
def test_translations_do_not_depend_on_the_batch():
    task, texts = tiny_task(Seq2SeqLM, FAMILY, max_new_tokens=None), tiny_texts(9)
    bias = np.zeros(131, "float32")
    bias[2] = 7
    task.output_bias.bias.assign(bias)
    translations = task.translate(texts)
    assert [task.translate([text])[0] for text in texts[:3]] == translations[:3]
    assert task.translate(texts[::-1], batch_size=4) == translations[::-1]


@pytest.mark.slow
def test_steps_equal_one_call():
    check_steps(tiny_backbone(FAMILY), padded_batch(131), ends=[4, 5, 7])


@pytest.mark.slow
def test_attention_to_the_source_ignores_padding():
    batch = padded_batch(131)
    scores = tiny_backbone(FAMILY).source_attention_scores(batch)
    assert [tuple(s.shape) for s in scores] == [(3, 7, 7, 11)] * 2
    for layer in map(keras.ops.convert_to_numpy, scores):
        np.testing.assert_allclose(layer.sum(axis=-1), 1, atol=1e-5)
        assert (np.moveaxis(layer, -1, 1)[~batch["padding_mask"].astype(bool)] == 0).all()
    source_tokens, target_tokens, mean = tiny_task(Seq2SeqLM, FAMILY).source_attention("the film", "a plot was")
    assert source_tokens == ["▁the", "▁film", "</s>"]
    assert target_tokens == ["▁a", "▁plot", "▁was", "</s>"]
    assert mean.shape == (4, 3)
    with pytest.raises(ValueError, match="`layer` must be an integer from -2 to 1, got 2"):
        tiny_task(Seq2SeqLM, FAMILY).source_attention("the film", "a plot", layer=2)


def test_positions_equal_transformers():
    peer = transformers.models.marian.modeling_marian.MarianSinusoidalPositionalEmbedding(19, 7)
    np.testing.assert_allclose(make_sinusoids(19, 7), peer.create_weight().numpy(), atol=1e-6)


# === The encoder, whose vectors are features for other tasks (CoVe) ===


@pytest.mark.parametrize(("head", "activation", "scale"), [(True, "swish", True), (False, "relu", False)])
def test_other_tasks_read_the_encoder_of_a_checkpoint(tmp_path, head, activation, scale):
    peer = make_peer(activation_function=activation, scale_embedding=scale, attention_dropout=0.3)
    (peer if head else peer.model).save_pretrained(tmp_path)
    backbone = TextEmbedder.from_preset(tmp_path, preprocessor=tiny_preprocessor(FAMILY)).backbone
    assert type(backbone) is MarianEncoderBackbone
    assert backbone.blocks[-1].attention.dropout.rate == 0.3
    assert len(backbone.output["hidden_states"]) == 4
    check_encoder_states(backbone, peer.model.encoder, padded_batch(131))


def test_a_tagger_reads_frozen_vectors_and_word_vectors(tmp_path):
    """As in McCann et al. (2017), LSTMs read a word's own vector and the vector of the frozen encoder."""
    task = tiny_task(Seq2SeqLM, FAMILY)
    task.save_to_preset(tmp_path / "preset")
    glove = StaticEmbedder(["film", "plot"], np.random.default_rng(5).normal(size=(2, 7)).astype("float32"))
    tagger = TokenClassifier.from_preset(
        tmp_path / "preset", labels=["O", "B-X"], encoder="bilstm", encoder_dim=3, word_vectors=glove
    )
    tagger.backbone.trainable = False
    trained = {weight.path for weight in tagger.trainable_weights}
    assert trained == {weight.path for part in ("encoder", "classifier") for weight in tagger.get_layer(part).weights}
    check_weights(tagger.backbone, task.backbone.make_encoder())
    cove = keras.Model(tagger.input, tagger.get_layer("word_features").input[0])
    features = tagger.preprocessor(["a dull plot"])
    expected = task.backbone.make_encoder()(features)["sequence_output"]
    vectors = keras.ops.convert_to_numpy(cove(features))
    np.testing.assert_allclose(vectors, keras.ops.convert_to_numpy(expected), atol=1e-6)


def test_tasks_of_one_text_are_refused():
    with pytest.raises(ValueError, match="it is for a Seq2SeqLM, not for a TextClassifier"):
        lmzoo.models.TextClassifier(tiny_backbone(FAMILY), num_classes=2)
