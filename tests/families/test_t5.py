"""T5 against transformers on random weights: states, logits, tokens, beams and files."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import safetensors.numpy

import lmzoo
from lmzoo.families.t5 import FAMILY
from lmzoo.models import Backbone, Seq2SeqLM, T5Backbone, T5EncoderBackbone, TextClassifier, TextEmbedder
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task, tiny_texts
from lmzoo.text import Preprocessor
from tests.families.comparing import add_noise
from tests.families.config_files import edit_config
from tests.families.encoder_decoder_parity import (
    TOLERANCE,
    check_encoder_states,
    check_states_and_logits,
    check_steps,
    check_weights,
    padded_batch,
)
from tests.reference.weights import randomise

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": 149,
    "d_model": 37,
    "d_kv": 7,
    "d_ff": 43,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 5,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 11,
    "decoder_start_token_id": 0,
}
# Settings of transformers' configurations; with untied embeddings, the logits have a kernel of their own.
VERSIONS = {
    "1.0": {"feed_forward_proj": "relu"},
    "1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "silu": {"feed_forward_proj": "silu", "num_decoder_layers": None},
}


def make_peer(version, peer_class=None, **changes):
    torch.manual_seed(17)
    options = VERSIONS[version]
    config = transformers.T5Config(**{**SHAPE, **options, **changes})
    model = (peer_class or transformers.T5ForConditionalGeneration)(config).eval()
    if "tie_word_embeddings" in options and hasattr(model, "lm_head"):
        model.lm_head.weight = torch.nn.Parameter(torch.randn(149, 37) / 6)
    add_noise(model)
    return model


def save(model, directory, version):
    """Save a model as transformers 4 did: version 5 always writes `tie_word_embeddings` as true."""
    model.save_pretrained(directory)
    if "tie_word_embeddings" in VERSIONS[version]:
        edit_config(directory, "scale_decoder_outputs", tie_word_embeddings=False)


@pytest.mark.quick_cases("1.1")
@pytest.mark.parametrize("version", VERSIONS)
def test_states_and_logits_equal_transformers(tmp_path, version):
    """Sequences are longer than `relative_attention_max_distance`, so the last relative-position bucket is used."""
    peer = make_peer(version)
    save(peer, tmp_path, version)
    check_states_and_logits(peer, tmp_path, FAMILY, padded_batch(149, (41, 29)))


@pytest.mark.quick_cases("1.0")
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_written_tasks_have_the_tokens_and_beams_of_transformers(tmp_path, version):
    """Texts of various lengths are continued alike; the files restore the task.

    Neither T5's own configuration nor the written one forces a text to end at the limit.
    """
    original, texts = make_peer(version), tiny_texts(200)
    with torch.no_grad():  # some texts end early, and ended beams compete with unfinished ones
        original.lm_head.weight *= 2
        original.lm_head.weight[1] *= 3
    save(original, tmp_path / "peer", version)
    task = Seq2SeqLM.from_preset(tmp_path / "peer", preprocessor=tiny_preprocessor(FAMILY), num_beams=4)
    lmzoo.save_checkpoint(task, tmp_path / "hf", to="hf")
    peer = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    assert peer.config.scale_decoder_outputs is (version == "1.0")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    np.testing.assert_array_equal(inputs.input_ids, task.preprocessor(texts)["token_ids"])
    # lmzoo never writes tokens that its vocabulary lacks, and neither does transformers here.
    assert task.preprocessor.tokenizer.vocabulary_size == 149
    no_padding = {"bad_words_ids": [[0]], "renormalize_logits": True}  # lmzoo never writes padding
    for beams, count, limit in ((1, 200, 9), (4, 40, 9), (1, 40, 1), (4, 40, 1), (4, 40, 2)):
        part = {name: values[:count] for name, values in inputs.items()}
        outputs = task.translate(texts[:count], max_new_tokens=limit, num_beams=beams)
        for model, options in ((peer, {}), (original, no_padding)):
            with torch.no_grad():
                ids = model.generate(**part, max_new_tokens=limit, max_length=None, num_beams=beams, **options)
            expected = tokenizer.batch_decode(ids, skip_special_tokens=False)
            expected = [text.replace("<pad>", "").partition("</s>")[0].strip() for text in expected]
            assert outputs == expected
        if limit == 9:
            lengths = {len(text.split()) for text in outputs}
            assert min(lengths) < 2 < max(lengths)
        else:
            assert "" in outputs
            assert any(outputs)
    reloaded = Seq2SeqLM.from_preset(tmp_path / "hf")
    assert reloaded.preprocessor.tokenizer.get_config() == task.preprocessor.tokenizer.get_config()
    check_weights(reloaded, task)


@pytest.mark.quick_cases("False")
@pytest.mark.parametrize("tied", [True, False])
def test_steps_equal_one_call(tied):
    check_steps(tiny_backbone(FAMILY, tie_embeddings=tied), padded_batch(149, (17, 23)), ends=[4, 5, 20, 23])


@pytest.mark.slow
def test_attention_to_the_source_equals_transformers(tmp_path):
    peer, batch = make_peer("1.0", attn_implementation="eager"), padded_batch(149)
    save(peer, tmp_path, "1.0")
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    tensors = {name: torch.tensor(values.astype("int64")) for name, values in zip(names, batch.values(), strict=True)}
    with torch.no_grad():
        expected = peer(**tensors, output_attentions=True).cross_attentions
    real = batch["decoder_padding_mask"].astype(bool)
    scores = Backbone.from_preset(tmp_path).source_attention_scores(batch)
    for actual, desired in zip(map(keras.ops.convert_to_numpy, scores), expected, strict=True):
        actual, desired = (np.moveaxis(np.asarray(values), 1, 2)[real] for values in (actual, desired))
        np.testing.assert_allclose(actual, desired, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer '(self|cross)_attention':UserWarning")  # KerasHub's own
@pytest.mark.parametrize(
    "options",
    [
        {"activation": "relu", "use_gated_activation": False},
        {"activation": "gelu", "use_gated_activation": True, "tie_embedding_weights": False},
    ],
    ids=["1.0", "1.1"],
)
def test_keras_hub_reads_and_writes_the_same_models(tmp_path, options):
    keras_hub = pytest.importorskip("keras_hub")
    sizes = {"num_layers": 2, "num_heads": 5, "hidden_dim": 35, "intermediate_dim": 53, "key_value_dim": 11}
    theirs = keras_hub.models.T5Backbone(vocabulary_size=149, dropout=0.0, **sizes, **options)
    randomise(theirs)
    theirs.save_to_preset(str(tmp_path / "theirs"))
    ours = Backbone.from_preset(tmp_path / "theirs")
    preprocessor = Preprocessor(tiny_preprocessor(FAMILY).tokenizer, FAMILY.packing, 67)
    lmzoo.save_checkpoint(ours, tmp_path / "ours", to="keras_hub", preprocessor=preprocessor)
    rewritten = keras_hub.models.Backbone.from_preset(str(tmp_path / "ours"))
    # KerasHub's `from_preset` leaves the file open.
    tokenizer = keras_hub.models.T5Tokenizer((tmp_path / "ours/assets/tokenizer/vocabulary.spm").read_bytes())
    assert list(tokenizer("the film")) == preprocessor.tokenizer.tokenize(["the film"])[0]
    assert Seq2SeqLM.from_preset(tmp_path / "ours").preprocessor.tokenizer.vocabulary_size == 149
    batch = padded_batch(149, (41, 29))
    outputs = ours.predict(batch, verbose=0)
    hub_names = {"token_ids": "encoder_token_ids", "padding_mask": "encoder_padding_mask"}
    inputs = {hub_names.get(name, name): values for name, values in batch.items()}
    for hub_model in (theirs, rewritten):
        expected = hub_model.predict(inputs, verbose=0)
        for name, hub_name, mask_name in (
            ("encoder_output", "encoder_sequence_output", "padding_mask"),
            ("sequence_output", "decoder_sequence_output", "decoder_padding_mask"),
        ):
            real = batch[mask_name].astype(bool)
            np.testing.assert_allclose(outputs[name][real], expected[hub_name][real], atol=TOLERANCE, rtol=TOLERANCE)
    if ours.output_projection is not None:
        kernel = keras.ops.convert_to_numpy(rewritten.token_embedding.reverse_embeddings)
        np.testing.assert_array_equal(kernel, keras.ops.convert_to_numpy(ours.output_projection.kernel))


@pytest.mark.quick_cases("4")
@pytest.mark.parametrize("version", [5, 4])
def test_version_1_1_may_tie_its_logits(tmp_path, version):
    """transformers 5 ties and omits the kernel of new models; version 4 tied it only if the file said so."""
    torch.manual_seed(17)
    config = transformers.T5Config(**SHAPE, **VERSIONS["1.1"])
    peer = transformers.T5ForConditionalGeneration(config).eval()
    peer.save_pretrained(tmp_path)
    assert "lm_head.weight" not in safetensors.numpy.load_file(tmp_path / "model.safetensors")
    if version == 4:
        edit_config(tmp_path, "scale_decoder_outputs", tie_word_embeddings=False)
        with pytest.raises(ValueError, match=r"lacks 'lm_head\.weight'"):
            Backbone.from_preset(tmp_path)
        return
    check_states_and_logits(peer, tmp_path, FAMILY, padded_batch(149, (41, 29)))
    assert not Backbone.from_preset(tmp_path).config.tie_embeddings
    encoder = Backbone.from_preset(tmp_path, family="t5_encoder")
    assert type(encoder) is T5EncoderBackbone


# === The encoder ===


def test_the_encoder_has_the_same_states():
    backbone, batch = tiny_backbone(FAMILY), padded_batch(149)
    encoder = backbone.make_encoder()
    assert type(encoder) is T5EncoderBackbone
    real = batch["padding_mask"].astype(bool)
    inputs = {name: batch[name] for name in ("token_ids", "padding_mask")}
    outputs, expected = encoder.predict(inputs, verbose=0), backbone.predict(batch, verbose=0)
    for actual, desired in zip(outputs["hidden_states"], expected["encoder_hidden_states"], strict=True):
        np.testing.assert_allclose(actual[real], desired[real], atol=1e-6)


def test_the_encoder_has_the_updates_of_lora():
    backbone, batch = tiny_backbone(FAMILY), padded_batch(149)
    backbone.enable_lora(2, ("query", "token_embedding"))
    for weight in backbone.trainable_weights:
        weight.assign(np.random.default_rng(3).normal(scale=0.1, size=weight.shape))
    inputs = {name: batch[name] for name in ("token_ids", "padding_mask")}
    real = batch["padding_mask"].astype(bool)
    encoder = backbone.make_encoder()
    assert not [weight.path for weight in encoder.weights if "lora" in weight.path]
    actual, expected = encoder.predict(inputs, verbose=0), backbone.predict(batch, verbose=0)
    np.testing.assert_allclose(actual["sequence_output"][real], expected["encoder_output"][real], atol=1e-5)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
@pytest.mark.usefixtures("no_garbage_collection")
def test_an_int8_model_makes_no_encoder():
    backbone = tiny_backbone(FAMILY)
    backbone.quantize("int8")
    with pytest.raises(ValueError, match=r"^This T5Backbone is quantized\. Make the encoder before `quantize`\.$"):
        backbone.make_encoder()


def test_families_may_have_no_model_of_their_encoder(monkeypatch):
    backbone = tiny_backbone(FAMILY)
    monkeypatch.setattr(T5Backbone, "encoder_class", None)
    with pytest.raises(ValueError, match="encoder of a T5Backbone is not a model of its own"):
        backbone.make_encoder()


@pytest.mark.quick_cases("1.1")
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_files_of_encoders_equal_transformers(tmp_path, version):
    peer = make_peer(version, transformers.T5EncoderModel)
    save(peer, tmp_path, version)
    encoder = Backbone.from_preset(tmp_path)
    assert type(encoder) is T5EncoderBackbone
    check_encoder_states(encoder, peer, padded_batch(149, (29, 7)))


@pytest.mark.quick_cases("hf")
@pytest.mark.parametrize("stored", ["hf", "keras"])
def test_tasks_of_one_text_use_the_encoder(tmp_path, stored):
    task = tiny_task(Seq2SeqLM, FAMILY)
    if stored == "hf":
        lmzoo.save_checkpoint(task, tmp_path / "preset", to="hf")
    else:
        task.save_to_preset(tmp_path / "preset")
    classifier = TextClassifier.from_preset(tmp_path / "preset", num_classes=3)
    embedder = TextEmbedder.from_preset(tmp_path / "preset")
    encoders = [classifier.backbone, embedder.backbone]
    if stored == "hf":  # with `family`, the decoder of a checkpoint is not read
        encoders.append(Backbone.from_preset(tmp_path / "preset", family="t5_encoder"))
    expected = task.backbone.make_encoder()
    for encoder in encoders:
        assert type(encoder) is T5EncoderBackbone
        check_weights(encoder, expected)
    assert classifier.preprocessor.tokenizer.vocabulary == task.preprocessor.tokenizer.vocabulary
    features = embedder.preprocessor(["the film"])
    vectors = keras.ops.convert_to_numpy(expected(features)["sequence_output"])[0]
    mean = vectors.mean(axis=0)
    np.testing.assert_allclose(embedder.embed(["the film"])[0], mean / np.linalg.norm(mean), atol=1e-5)
    with pytest.raises(ValueError, match="it is for a Seq2SeqLM, not for a TextClassifier"):
        TextClassifier(task.backbone, num_classes=2)


def test_initial_values_have_the_deviations_of_the_original():
    """The widths are large enough to tell deviations apart; see the code of Raffel et al."""
    backbone = T5Backbone(
        vocabulary_size=997, num_layers=1, num_heads=8, hidden_dim=144, intermediate_dim=576, head_dim=25
    )
    block = backbone.decoder_blocks[0]
    expected = [
        (backbone.embeddings.token_embedding.embeddings, 1),
        (block.attention.query.kernel, (144 * 25) ** -0.5),
        (block.attention.key.kernel, 144**-0.5),
        (block.source_attention.output_dense.kernel, (8 * 25) ** -0.5),
        (block.intermediate_dense.kernel, 144**-0.5),
        (block.output_dense.kernel, 576**-0.5),
    ]
    for weight, deviation in expected:
        # Truncation at two standard deviations leaves 0.88 of a normal distribution's deviation.
        np.testing.assert_allclose(keras.ops.convert_to_numpy(weight).std(), 0.88 * deviation, rtol=0.03)
