"""Marian against transformers on random weights: states, logits, tokens and beams, read from its files and written."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.errors import PresetError
from lmzoo.families.marian import FAMILY
from lmzoo.layers.embeddings import sinusoids
from lmzoo.models import MarianEncoderBackbone, Seq2SeqLM, StaticEmbedder, TextEmbedder, TokenClassifier
from lmzoo.pretraining.recipe import Recipe
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task, tiny_texts
from tests.families.encoder_decoder_parity import TOLERANCE, check_states_and_logits, padded_batch

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Odd widths and different numbers of layers, heads and columns in the encoder and the decoder.
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


def their_model(**options):
    torch.manual_seed(17)
    model = transformers.MarianMTModel(transformers.MarianConfig(**SHAPE, init_std=0.1, **options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
        model.final_logits_bias.normal_()
    return model


@pytest.mark.quick_cases("relu-False")
@pytest.mark.parametrize(("activation", "scale"), [("swish", True), ("relu", False)])
def test_states_and_logits(tmp_path, activation, scale):
    theirs = their_model(activation_function=activation, scale_embedding=scale)
    theirs.save_pretrained(tmp_path)
    check_states_and_logits(theirs, tmp_path, FAMILY, padded_batch(131))


@pytest.mark.slow
def test_beams_tokens_and_files(tmp_path):
    """A saved task is transformers' model with the same tokens and, for texts of various lengths, the same beams."""
    task, texts = tiny_task(Seq2SeqLM, FAMILY, max_new_tokens=None), tiny_texts(40)
    bias = np.random.default_rng(5).normal(size=131).astype("float32")
    bias[2] += 4  # the end token: some translations end early, and beams that have ended compete with others
    task.output_bias.bias.assign(bias)
    for weight in task.weights:  # so that translations depend on their sources
        if weight.path.endswith("kernel"):
            weight.assign(3 * keras.ops.convert_to_numpy(weight))
    lmzoo.save_checkpoint(task, tmp_path / "hf", to="hf")
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "hf").eval()
    with pytest.warns(UserWarning, match="sacremoses"):
        tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "hf")
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    np.testing.assert_array_equal(inputs.input_ids, task.preprocessor(texts)["token_ids"])
    assert theirs.generation_config.num_beams == 4
    for penalty in (1.0, 0.3):
        with torch.no_grad():
            made = theirs.generate(**inputs, max_new_tokens=17, max_length=None, length_penalty=penalty)
        expected = tokenizer.batch_decode(made, skip_special_tokens=True)
        found = task.translate(texts, max_new_tokens=17, length_penalty=penalty)
        assert found == expected
        lengths = {len(text.split()) for text in found}
        assert min(lengths) < 2 < max(lengths)
    again = Seq2SeqLM.from_preset(tmp_path / "hf")
    for weight, other in zip(again.weights, task.weights, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), keras.ops.convert_to_numpy(other))
    assert again.translate(texts[:3], max_new_tokens=17) == task.translate(texts[:3], max_new_tokens=17)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_the_search_of_a_checkpoint(tmp_path, name):
    """Newer checkpoints have a file for it."""
    task = tiny_task(Seq2SeqLM, FAMILY)
    lmzoo.save_checkpoint(task, tmp_path / "it", to="hf")
    usual = tmp_path / "it/generation_config.json"
    config = json.loads((tmp_path / "it" / name).read_text())
    if name == "config.json":
        usual.unlink()
    (tmp_path / "it" / name).write_text(json.dumps({**config, "num_beams": 7, "length_penalty": 0.3}))
    again = Seq2SeqLM.from_preset(tmp_path / "it")
    assert (again.num_beams, again.length_penalty) == (7, 0.3)
    assert Seq2SeqLM.from_preset(tmp_path / "it", num_beams=2).num_beams == 2
    (tmp_path / "it" / name).write_text(json.dumps({**config, "num_beams": 0}))
    with pytest.raises(PresetError, match="`num_beams` must be a positive integer, got 0"):
        Seq2SeqLM.from_preset(tmp_path / "it")


@pytest.mark.slow
def test_beams_alone_and_in_a_batch():
    task, texts = tiny_task(Seq2SeqLM, FAMILY, max_new_tokens=None), tiny_texts(9)
    bias = np.zeros(131, "float32")
    bias[2] = 7
    task.output_bias.bias.assign(bias)
    together = task.translate(texts)
    assert [task.translate([text])[0] for text in texts[:3]] == together[:3]
    assert task.translate(texts[::-1], batch_size=4) == together[::-1]


@pytest.mark.slow
def test_step_by_step_is_at_once():
    backbone, batch = tiny_backbone(FAMILY), padded_batch(131)
    expected = backbone.predict(batch, verbose=0)["sequence_output"]
    source = backbone.read_source(*(keras.ops.convert_to_tensor(batch[n]) for n in ("token_ids", "padding_mask")))
    cache, parts = backbone.empty_cache(3, 7), []
    for first, last in ((0, 4), (4, 5), (5, 7)):
        ids = keras.ops.convert_to_tensor(batch["decoder_token_ids"][:, first:last])
        vectors, cache = backbone.call_with_cache(ids, cache, first, source)
        parts.append(keras.ops.convert_to_numpy(vectors))
    real = batch["decoder_padding_mask"].astype(bool)
    np.testing.assert_allclose(np.concatenate(parts, axis=1)[real], expected[real], atol=TOLERANCE)


@pytest.mark.slow
def test_attention_to_the_source():
    batch = padded_batch(131)
    scores = tiny_backbone(FAMILY).source_attention_scores(batch)
    assert [tuple(s.shape) for s in scores] == [(3, 7, 7, 11)] * 2
    for layer in map(keras.ops.convert_to_numpy, scores):
        np.testing.assert_allclose(layer.sum(axis=-1), 1, atol=1e-5)
        assert (np.moveaxis(layer, -1, 1)[~batch["padding_mask"].astype(bool)] == 0).all()
    read, written, mean = tiny_task(Seq2SeqLM, FAMILY).source_attention("the film", "a plot was")
    assert (read, written, mean.shape) == (["▁the", "▁film", "</s>"], ["▁a", "▁plot", "▁was", "</s>"], (4, 3))
    with pytest.raises(ValueError, match="`layer` must be an integer from -2 to 1, got 2"):
        tiny_task(Seq2SeqLM, FAMILY).source_attention("the film", "a plot", layer=2)


def test_positions():
    theirs = transformers.models.marian.modeling_marian.MarianSinusoidalPositionalEmbedding(19, 7)
    np.testing.assert_allclose(sinusoids(19, 7), theirs.create_weight().numpy(), atol=1e-6)


# === The encoder, whose vectors are features of other tasks: CoVe ===


@pytest.mark.parametrize(("head", "activation", "scale"), [(True, "swish", True), (False, "relu", False)])
def test_the_encoder_of_a_checkpoint(tmp_path, head, activation, scale):
    theirs = their_model(activation_function=activation, scale_embedding=scale, attention_dropout=0.3)
    (theirs if head else theirs.model).save_pretrained(tmp_path)
    batch = padded_batch(131)
    ids, mask = (torch.tensor(batch[name].astype("int64")) for name in ("token_ids", "padding_mask"))
    with torch.no_grad():
        expected = theirs.model.encoder(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    backbone = TextEmbedder.from_preset(tmp_path, preprocessor=tiny_preprocessor(FAMILY)).backbone
    assert type(backbone) is MarianEncoderBackbone
    assert backbone.blocks[-1].attention.dropout.rate == 0.3
    outputs = backbone({name: keras.ops.convert_to_tensor(batch[name]) for name in ("token_ids", "padding_mask")})
    real = batch["padding_mask"].astype(bool)
    assert len(outputs["hidden_states"]) == len(expected) == 4
    for values, peer_values in zip(outputs["hidden_states"], expected, strict=True):
        found = keras.ops.convert_to_numpy(values)
        np.testing.assert_allclose(found[real], peer_values.numpy()[real], atol=TOLERANCE, rtol=TOLERANCE)
    means = [rows[is_real].mean(axis=0) for rows, is_real in zip(expected[-1].numpy(), real, strict=True)]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(outputs["pooled_output"]), means, atol=TOLERANCE)


def test_frozen_vectors_next_to_word_vectors(tmp_path):
    """As in McCann et al. (2017), a tagger of LSTMs reads a word's own vector and the vector of the frozen encoder."""
    task = tiny_task(Seq2SeqLM, FAMILY)
    task.save_to_preset(tmp_path / "it")
    glove = StaticEmbedder(["film", "plot"], np.random.default_rng(5).normal(size=(2, 7)).astype("float32"))
    tagger = TokenClassifier.from_preset(
        tmp_path / "it", labels=["O", "B-X"], encoder="bilstm", encoder_dim=3, word_vectors=glove
    )
    tagger.backbone.trainable = False
    trained = {weight.path for weight in tagger.trainable_weights}
    assert trained == {weight.path for part in ("encoder", "classifier") for weight in tagger.get_layer(part).weights}
    for weight, own in zip(tagger.backbone.weights, task.backbone.make_encoder().weights, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), keras.ops.convert_to_numpy(own))
    cove = keras.Model(tagger.input, tagger.get_layer("word_features").input[0])
    features = tagger.preprocessor(["a dull plot"])
    expected = task.backbone.make_encoder()(features)["sequence_output"]
    found = keras.ops.convert_to_numpy(cove(features))
    np.testing.assert_allclose(found, keras.ops.convert_to_numpy(expected), atol=1e-6)


WRONG = {
    "decoder_heads": ({"decoder_heads": 3}, r"`hidden_dim` \(35\) must be a multiple of `decoder_heads` \(3\)"),
    "decoder_layers": ({"decoder_layers": 0}, "`decoder_layers` must be a positive integer"),
    "attention_dropout": ({"attention_dropout": 1.5}, "`attention_dropout`"),
    "scale": ({"scale_embeddings": 2}, "`scale_embeddings` must be True or False"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny_backbone(FAMILY, **arguments)


def test_what_reads_a_source():
    with pytest.raises(ValueError, match="it is for a Seq2SeqLM, not for a TextClassifier"):
        lmzoo.models.TextClassifier(tiny_backbone(FAMILY), num_classes=2)
    with pytest.raises(ValueError, match="marian learns from pairs of texts"):
        Recipe(family="marian")
