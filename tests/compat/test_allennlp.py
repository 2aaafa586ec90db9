"""AllenNLP's interface to ELMo."""

from __future__ import annotations

import json

import h5py
import keras
import numpy as np
import pytest

from lmzoo.checkpoints.bilm import load_bilm
from lmzoo.compat.allennlp import Elmo, batch_to_ids
from lmzoo.models import ElmoBackbone
from tests.reference.weights import run, to_numpy

SENTENCES = [["First", "sentence", "."], ["Another", "."], []]
IDS = batch_to_ids(SENTENCES)
TINY = {"lstm_dim": 17, "projection_dim": 13, "char_embedding_dim": 3, "filters": ((1, 5), (2, 7), (3, 11))}
SCALARS = [0.1, 0.3, 0.5]


@pytest.fixture(scope="module")
def backbone():
    keras.utils.set_random_seed(3)
    model = ElmoBackbone(**TINY, dropout=0.0)
    rng = np.random.default_rng(5)
    for weight in model.bilm.weights:
        weight.assign(rng.normal(scale=0.3, size=weight.shape))
    return model


def elmo(backbone, count=1, **arguments):
    return Elmo(None, None, count, **{"dropout": 0.0, "module": backbone, **arguments})


def representations(layer, *inputs):
    outputs = to_numpy(layer(*inputs))
    return outputs["elmo_representations"], outputs["mask"]


def test_several_mixes_of_one_run(backbone):
    layer = elmo(backbone, 2)
    layer.build(IDS.shape)
    layer.scalar_mixes[1].scalars.assign(SCALARS)
    layer.scalar_mixes[1].gamma.assign(1.1)
    hidden = to_numpy(backbone({"character_ids": IDS})["hidden_states"])
    (first, second), mask = representations(layer, IDS)
    np.testing.assert_allclose(first, np.mean(hidden, 0), atol=1e-6)
    weights = np.exp(SCALARS) / np.exp(SCALARS).sum()
    np.testing.assert_allclose(second, 1.1 * np.tensordot(weights, np.array(hidden), 1), atol=1e-6)
    np.testing.assert_array_equal(mask, [[1, 1, 1], [1, 1, 0], [0, 0, 0]])
    assert layer.get_output_dim() == 26
    assert sorted(v.name for v in layer.trainable_variables) == ["gamma", "gamma", "scalars", "scalars"]


def test_fixed_scalars_choose_a_layer_and_are_not_trained(backbone):
    layer = elmo(backbone, scalar_mix_parameters=[-9e10, 1, -9e10])
    (chosen,), _ = representations(layer, IDS)
    hidden = to_numpy(backbone({"character_ids": IDS})["hidden_states"])
    np.testing.assert_allclose(chosen, hidden[1], atol=1e-6)
    assert not layer.trainable_variables


def test_cached_words_equal_characters(backbone):
    words = ["@@PADDING@@", *sorted({word for sentence in SENTENCES for word in sentence})]
    ids = np.zeros((3, 3), "int32")
    for row, sentence in zip(ids, SENTENCES, strict=True):
        row[: len(sentence)] = [words.index(word) for word in sentence]
    expected = representations(elmo(backbone), IDS)
    cached = representations(elmo(backbone, vocab_to_cache=words), IDS, ids)
    np.testing.assert_allclose(cached[0][0], expected[0][0], atol=1e-6)
    np.testing.assert_array_equal(cached[1], expected[1])
    with pytest.warns(UserWarning, match="`word_inputs` needs `vocab_to_cache`"):
        elmo(backbone)(IDS, ids)


WORDS = ["@@PADDING@@", "First", "sentence", "."]  # "Another" is not cached
WORD_IDS = np.array([[1, 2, 3], [9, 3, 0], [0, 0, 0]], "int32")


@pytest.fixture
def counted(backbone, monkeypatch):
    """Return an `Elmo` with cached words, and a list of the shapes that its convolutions encode."""
    layer, encoded = elmo(backbone, vocab_to_cache=WORDS), []
    word_vectors = backbone.word_vectors
    monkeypatch.setattr(backbone, "word_vectors", lambda ids: (encoded.append(ids.shape), word_vectors(ids))[1])
    return layer, encoded


@pytest.mark.slow_cases("-2147483648")
@pytest.mark.parametrize("unknown", [4, 9, 2**31 - 1, -1, -(2**31)])
def test_uncached_words_are_read_from_their_characters(backbone, counted, unknown):
    layer, encoded = counted
    (expected,), mask = representations(elmo(backbone), IDS)
    ids = np.where(WORD_IDS == 9, unknown, WORD_IDS)
    (actual,), actual_mask = representations(layer, IDS, ids)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    np.testing.assert_array_equal(actual_mask, mask)
    assert len(encoded) == 1
    (nested,), _ = representations(layer, IDS[None], ids[None])
    np.testing.assert_allclose(nested[0], expected, atol=1e-6)
    representations(layer, IDS, np.where(WORD_IDS == 9, 1, WORD_IDS))
    assert len(encoded) == 2  # nothing is encoded if all words are cached


@pytest.mark.slow
def test_uncached_words_are_read_in_a_graph(backbone):
    (expected,), _ = representations(elmo(backbone), IDS)
    layer = elmo(backbone, vocab_to_cache=WORDS)
    inputs = keras.Input((None, 50), dtype="int32"), keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, layer(*inputs)["elmo_representations"][0])
    np.testing.assert_allclose(model.predict((IDS, WORD_IDS), verbose=0), expected, atol=1e-6)
    # Graphs raise no error: a word without characters has no other word's vector, and its neighbors keep theirs.
    blank = np.where((WORD_IDS == 9)[:, :, None], 0, IDS)
    outputs = model.predict((blank, WORD_IDS), verbose=0)
    assert np.isfinite(outputs).all()
    np.testing.assert_allclose(outputs[[0, 2]], expected[[0, 2]], atol=1e-6)
    other_vectors = [model.predict((IDS, np.where(WORD_IDS == 9, i, WORD_IDS)), verbose=0)[1, 0] for i in (1, 2, 3, 9)]
    assert all(np.abs(outputs[1, 0] - vector).max() > 1e-3 for vector in other_vectors)
    assert np.abs(outputs[1, 1]).max() > 1e-3


def test_words_without_a_cached_vector_or_characters_are_refused(backbone):
    layer = elmo(backbone, vocab_to_cache=WORDS)
    for unknown in (9, -1):
        ids = np.where(WORD_IDS == 9, unknown, WORD_IDS)
        message = rf"must be in 0..3, .*got {unknown} without characters in sequence 1 at position 0"
        with pytest.raises(ValueError, match=message):
            layer(np.where((ids == unknown)[:, :, None], 0, IDS), ids)
    for inputs in (None, IDS[:, :2], IDS[:1, :1]):
        with pytest.raises(ValueError, match=r"`inputs` must have the shapes \(3, 3, None\), got"):
            layer(inputs, WORD_IDS)


def test_boundaries_are_optional_and_batches_may_be_nested(backbone):
    (words,), mask = representations(elmo(backbone), IDS)
    (with_boundaries,), boundary_mask = representations(elmo(backbone, keep_sentence_boundaries=True), IDS)
    assert with_boundaries.shape == (3, 5, 26)
    np.testing.assert_allclose(with_boundaries[:, 1:-1] * mask[:, :, None], words, atol=1e-6)
    np.testing.assert_array_equal(boundary_mask.sum(1), [5, 4, 2])
    (nested,), nested_mask = representations(elmo(backbone), np.stack([IDS, IDS[::-1]]))
    assert nested.shape == (2, 3, 3, 26)
    np.testing.assert_allclose(nested[1, ::-1], words, atol=1e-6)
    np.testing.assert_array_equal(nested_mask[0], mask)


def test_dropout_acts_in_training_only(backbone):
    layer = elmo(backbone, dropout=0.5)
    undropped, _ = representations(layer, IDS)
    dropped = to_numpy(layer(IDS, training=True)["elmo_representations"])
    dropped_fraction = np.mean(dropped[0][:1] == 0)
    assert 0.3 < dropped_fraction < 0.7
    np.testing.assert_allclose(dropped[0][dropped[0] != 0], 2 * undropped[0][dropped[0] != 0], atol=1e-5)


def predict(model, ids):
    return model.predict(ids, verbose=0)


@pytest.mark.parametrize("compute", [run, pytest.param(predict, marks=pytest.mark.slow)])
def test_a_keras_model_with_the_layer_is_saved(backbone, tmp_path, compute):
    inputs = keras.Input((None, 50), dtype="int32")
    layer = elmo(backbone, do_layer_norm=True)
    model = keras.Model(inputs, layer(inputs)["elmo_representations"][0])
    expected = compute(model, IDS)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(compute(keras.saving.load_model(tmp_path / "model.keras"), IDS), expected)


def test_requires_grad_trains_the_language_model():
    assert len(elmo(ElmoBackbone(**TINY), requires_grad=True).trainable_variables) > 20


def test_either_files_or_a_module_are_needed(backbone):
    with pytest.raises(ValueError, match="`options_file` and `weight_file`, or `module`"):
        Elmo()
    with pytest.raises(ValueError, match="`options_file` and `weight_file`, or `module`"):
        Elmo("options.json", "weights.hdf5", module=backbone)


def test_missing_and_swapped_files_are_named(tmp_path):
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    with pytest.raises(FileNotFoundError, match=rf"`options_file` must be .* \*options.json, .* no file '{options}'"):
        Elmo(options, weights)
    options.write_text("{}", "utf-8")
    with pytest.raises(FileNotFoundError, match=rf"`weight_file` must be .* \*weights.hdf5, .* no file '{weights}'"):
        Elmo(str(options), str(weights))
    with h5py.File(weights, "w") as file:
        file["x"] = np.zeros(3)
    with pytest.raises(ValueError, match=rf"`options_file` must be an \*options.json, and '{weights}' .*The order is"):
        Elmo(weights, options)
    with pytest.raises(ValueError, match=rf"`weight_file` must be an \*weights.hdf5, and '{options}' is something"):
        Elmo(options, options)


def test_files_of_the_original_give_its_embeddings(shared):
    folder = shared("fixtures/bilm_tf")
    reference = np.load(shared("fixtures/reference/bilm_tf.npz"))
    sentences = [s[0].split() for s in json.loads((folder / "lm_embeddings_sentences.json").read_text("utf-8"))]
    layer = Elmo(folder / "options.json", folder / "lm_weights.hdf5", 1, dropout=0.0, keep_sentence_boundaries=True)
    for k in range(3):
        scalars = [1 if i == k else -9e10 for i in range(3)]
        layer = elmo(layer.backbone, keep_sentence_boundaries=True, scalar_mix_parameters=scalars)
        (embeddings,), _ = representations(layer, batch_to_ids(sentences))
        for i, words in enumerate(sentences):
            expected = reference[f"stateless_{i}_0"][k]
            np.testing.assert_allclose(embeddings[i, : len(words) + 2], expected, atol=1e-5)


def options_of(shared):
    return json.loads(shared("fixtures/bilm_tf/options.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o["lstm"].pop("use_skip_connections"), r"lacks the key 'lstm.use_skip_connections'"),
        (lambda o: o["char_cnn"].update(n_characters=300), r"`char_cnn.n_characters` must be 261 or 262, got 300"),
        (lambda o: o["lstm"].update(dim=32), r"has shape .*, expected"),
        (lambda o: o["char_cnn"].update(n_highway=1), "holds 'CNN_high_1/.* not part of the model"),
    ],
)
def test_wrong_options_are_refused(shared, tmp_path, change, message):
    options = options_of(shared)
    change(options)
    (tmp_path / "options.json").write_text(json.dumps(options), "utf-8")
    with pytest.raises(ValueError, match=message):
        load_bilm(tmp_path / "options.json", shared("fixtures/bilm_tf/lm_weights.hdf5"))


def test_unknown_options_are_warned_of(shared, tmp_path):
    """Neither bilm-tf nor AllenNLP reads this option."""
    options = options_of(shared)
    options["lstm"]["peephole"] = True
    (tmp_path / "options.json").write_text(json.dumps(options), "utf-8")
    with pytest.warns(UserWarning, match=r"options\.json: ignoring unknown keys: `lstm\.peephole` \(True\)\."):
        load_bilm(tmp_path / "options.json", shared("fixtures/bilm_tf/lm_weights.hdf5"))


def test_a_missing_dataset_is_named(shared, tmp_path):
    (tmp_path / "options.json").write_text(json.dumps(options_of(shared)), "utf-8")
    with h5py.File(shared("fixtures/bilm_tf/lm_weights.hdf5")) as source, h5py.File(tmp_path / "w.hdf5", "w") as target:
        for name in source:
            source.copy(name, target)
        del target["CNN_proj/b_proj"]
    with pytest.raises(ValueError, match="lacks 'CNN_proj/b_proj'"):
        load_bilm(tmp_path / "options.json", tmp_path / "w.hdf5")
