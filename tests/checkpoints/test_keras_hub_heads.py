"""Tasks that KerasHub saved: loaded here, they give the same numbers."""

from __future__ import annotations

import functools
import json
import shutil
import warnings

import h5py
import numpy as np
import pytest

import lmzoo
from lmzoo.checkpoints.family_names import keras_hub_prefix
from lmzoo.models import Backbone, MaskedLM, TextClassifier, TextEmbedder
from lmzoo.presets import PresetError
from lmzoo.presets.converting import save_checkpoint
from lmzoo.presets.verifying import verify
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.text import TextWarning
from tests.checkpoints.keras_hub_models import peer_backbone, peer_task, peer_tokenizer
from tests.checkpoints.model_files import load
from tests.reference.weights import MASK_POSITIONS, difference, padded_batch, randomise, run, to_numpy

FAMILIES = ["bert", "roberta", "albert", "distilbert", "deberta_v3"]
CLASSES = 7
CLASSIFIER = {"num_classes": CLASSES, "dropout": 0.3}


@pytest.fixture(scope="module")
def keras_hub():
    return pytest.importorskip("keras_hub").models


@pytest.fixture(scope="module")
def make_peer(keras_hub, tmp_path_factory):
    """Return a cached function that makes a KerasHub task with random weights, and the directory of its preset."""

    @functools.cache
    def make(name, kind, **arguments):
        prefix = keras_hub_prefix(families()[name])
        sizes = {"num_layers": 3, "num_heads": 5, "hidden_dim": 35, "intermediate_dim": 53, "max_sequence_length": 67}
        sizes |= {"embedding_dim": 13} if name == "albert" else {}
        backbone = getattr(keras_hub, f"{prefix}Backbone")(vocabulary_size=131, **sizes)
        task = getattr(keras_hub, prefix + kind)(backbone=backbone, preprocessor=None, **arguments)
        randomise(task)
        for weight in task.weights:  # the variance before the head's LayerNorm is small, so that its epsilon counts
            if "mlm_head/intermediate_dense/" in weight.path:
                weight.assign(weight * 0.01)
        directory = tmp_path_factory.mktemp(f"{name}_{kind}")
        task.save_to_preset(str(directory))
        return task, directory

    return make


@pytest.fixture
def save_peer(make_peer, tmp_path):
    """Return a function that makes a KerasHub task and copies its preset to `tmp_path`."""

    def copy(name, kind, **arguments):
        task, directory = make_peer(name, kind, **arguments)
        shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
        return task

    return copy


def outputs_of_both(theirs, ours, batch):
    expected = to_numpy(theirs({name: batch[name] for name in theirs.input}))
    return run(ours, {name: batch[name] for name in ours.input}), expected


@pytest.mark.parametrize("name", ["albert", "deberta_v3"])  # test_keras_hub_texts.py compares the other families
def test_classifiers_compute_the_same_logits(name, save_peer, tmp_path):
    theirs = save_peer(name, "TextClassifier", **CLASSIFIER)
    ours = load(tmp_path, TextClassifier)
    actual, expected = outputs_of_both(theirs, ours, padded_batch())
    assert actual.shape == (3, CLASSES)
    assert difference(actual, expected) <= 1e-5
    assert ours.head.dropout.rate == 0.3


def test_a_classifier_of_kerasnlp_has_old_names(save_peer, tmp_path):
    """They are the names of the package and of the class and, in files of early versions of Keras, of the layers."""
    theirs = save_peer("albert", "TextClassifier", **CLASSIFIER)
    for name, class_name in (("config.json", "AlbertBackbone"), ("task.json", "AlbertClassifier")):
        stored = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps({**stored, "registered_name": f"keras_nlp>{class_name}"}))
    actual, expected = outputs_of_both(theirs, load(tmp_path, TextClassifier), padded_batch())
    assert difference(actual, expected) <= 1e-5
    for name in ("model.weights.h5", "task.weights.h5"):
        with h5py.File(tmp_path / name, "r+") as file:
            file.move("layers", "_layer_checkpoint_dependencies")
    actual, expected = outputs_of_both(theirs, load(tmp_path, TextClassifier), padded_batch())
    assert difference(actual, expected) <= 1e-5


def test_backbones_are_loaded_without_the_weights_of_the_head(save_peer, tmp_path):
    save_peer("albert", "TextClassifier", **CLASSIFIER)
    (tmp_path / "task.weights.h5").unlink()
    message = r"holds no task\.weights\.h5: the head that task\.json describes is not loaded"
    with pytest.warns(UserWarning, match=message):
        assert isinstance(load(tmp_path), Backbone)
    with pytest.warns(UserWarning, match=message):
        assert load(tmp_path, TextClassifier, num_classes=3).num_classes == 3
    (tmp_path / "model.weights.h5").unlink()  # a configuration alone gives the number of classes
    assert load(tmp_path, TextClassifier, load_weights=False).num_classes == CLASSES


@pytest.mark.quick_cases("albert")
@pytest.mark.parametrize("name", FAMILIES)
def test_masked_lms_compute_the_same_logits(name, save_peer, tmp_path):
    """The LayerNorm of the head adds 1e-5, while the backbone's adds 1e-12, and its GELU may differ."""
    theirs = save_peer(name, "MaskedLM")
    ours = load(tmp_path, MaskedLM)
    actual, expected = outputs_of_both(theirs, ours, {**padded_batch(), "mask_positions": MASK_POSITIONS})
    assert difference(actual, expected) <= 1e-5
    assert ours.head.layer_norm_epsilon == 1e-5
    assert (ours.head.activation != MaskedLM(ours.backbone).head.activation) == (name == "bert")


@pytest.fixture(scope="module")
def embedders(keras_hub, tmp_path_factory):
    """Return a cached function that makes a KerasHub embedder with a preprocessor, and the directory of its preset."""

    @functools.cache
    def make(**arguments):
        task = peer_task("bert", "TextEmbedder", peer_backbone("bert"), peer_tokenizer("bert"), 13, **arguments)
        directory = tmp_path_factory.mktemp("embedder")
        task.save_to_preset(str(directory))
        return task, directory

    return make


@pytest.mark.quick_cases("{}")
@pytest.mark.tf_only  # KerasHub's tokenizer
@pytest.mark.parametrize(
    "arguments", [{}, {"pooling_mode": "cls"}, {"pooling_mode": "max", "normalize": False}], ids=str
)
def test_embedders_compute_the_same_embeddings(arguments, embedders):
    theirs, directory = embedders(**arguments)
    ours = TextEmbedder.from_preset(directory)
    assert ours.pooling == arguments.get("pooling_mode", "mean")
    assert ours.preprocessor.sequence_length == 13
    texts = ["good film", "the plot was never dull .", "bad", "good film " * 9]
    with pytest.warns(TextWarning, match="1 of 4 texts were truncated to 13 tokens"):
        actual = ours.embed(texts)
    expected = theirs.encode_text(texts, verbose=0)
    assert difference(actual, expected) <= (1e-6 if ours.normalize else 1e-5)
    assert lmzoo.verify(directory)["modules"].startswith(f"Transformer, Pooling ({ours.pooling})")


@pytest.mark.parametrize("name", ["bert", "xlm_roberta"])
def test_an_embedder_without_a_preprocessor(name, keras_hub, save_peer, tmp_path):
    theirs = save_peer(name, "TextEmbedder", pooling_mode="cls", normalize=False)
    ours = load(tmp_path, TextEmbedder)
    actual, expected = outputs_of_both(theirs, ours, padded_batch())
    assert difference(actual, expected) <= 1e-5
    assert load(tmp_path, TextEmbedder, normalize=True).normalize
    save_checkpoint(ours, tmp_path / "ours", to="keras_hub")
    again = keras_hub.TextEmbedder.from_preset(str(tmp_path / "ours"), preprocessor=None)
    assert (again.pooling_mode, again.normalize) == ("cls", False)
    assert difference(outputs_of_both(again, ours, padded_batch())[1], expected) <= 1e-5


@pytest.mark.quick_cases("{}")
@pytest.mark.tf_only
@pytest.mark.parametrize("arguments", [{}, {"pooling": "cls", "normalize": False}], ids=str)
def test_keras_hub_loads_our_embedders(arguments, keras_hub, tmp_path):
    backbone = tiny_backbone(families()["bert"], activation="gelu_tanh")
    ours = TextEmbedder(backbone, tiny_preprocessor(families()["bert"]), **arguments)
    ours.preprocessor.sequence_length = 13
    save_checkpoint(ours, tmp_path / "hub", to="keras_hub")
    texts = ["good film", "the plot was never dull .", "bad"]
    expected = keras_hub.TextEmbedder.from_preset(str(tmp_path / "hub")).encode_text(texts, verbose=0)
    assert difference(ours.embed(texts), expected) <= (1e-6 if ours.normalize else 1e-5)
    reloaded = TextEmbedder.from_preset(tmp_path / "hub")
    assert (reloaded.pooling, reloaded.normalize) == (ours.pooling, ours.normalize)
    assert reloaded.preprocessor.sequence_length == 13


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "lasttoken"}, "KerasHub's embedders have the poolings mean, cls, max, not 'lasttoken'"),
        ({"pooling": ["cls", "max"]}, "KerasHub's embedders have the poolings mean, cls, max, not"),
        ({"projection": [{"kind": "normalize"}]}, "'keras_hub' cannot express `projection="),
        ({"prompts": {"query": "a "}, "default_prompt": "query"}, "cannot express `default_prompt='query'`"),
    ],
)
def test_embedders_that_cannot_be_written(arguments, message, tmp_path):
    backbone = tiny_backbone(families()["bert"], activation="gelu_tanh")
    with pytest.raises(PresetError, match=message):
        save_checkpoint(TextEmbedder(backbone, **arguments), tmp_path / "hub", to="keras_hub")
    assert not (tmp_path / "hub").exists()
    with pytest.raises(PresetError, match="'keras_hub' has no place for the head of a TextEmbedder"):
        save_checkpoint(tiny_task(TextEmbedder, families()["roberta"]), tmp_path / "hub", to="keras_hub")


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("task.json", "pooling_mode", "lasttoken", "`pooling_mode` must be one of mean, cls, max, got 'lasttoken'"),
        ("task.json", "normalize", 1, "`normalize` must be true or false, got 1"),
        ("preprocessor.json", "sequence_length", 0, "`sequence_length` must be a positive integer, got 0"),
    ],
)
def test_wrong_keys_of_embedders_are_refused(file, key, value, message, embedders, tmp_path):
    shutil.copytree(embedders()[1], tmp_path, dirs_exist_ok=True)
    stored = json.loads((tmp_path / file).read_text())
    stored["config"][key] = value
    (tmp_path / file).write_text(json.dumps(stored))
    with pytest.raises(PresetError, match=message):
        TextEmbedder.from_preset(tmp_path)


@pytest.mark.slow
def test_a_head_with_its_own_activation_is_kept(save_peer, tmp_path):
    save_peer("bert", "MaskedLM")
    ours = load(tmp_path, MaskedLM)
    ours.preprocessor = tiny_preprocessor(families()["bert"])
    ours.save_to_preset(tmp_path / "ours")
    reloaded = MaskedLM.from_preset(tmp_path / "ours")
    assert (reloaded.head.activation, reloaded.head.layer_norm_epsilon) == ("gelu", 1e-5)
    with pytest.raises(PresetError, match=r"cannot express `activation='gelu'` of a MaskedLM: .* always 'gelu_tanh'"):
        save_checkpoint(ours, tmp_path / "hf", to="hf")
    with pytest.raises(PresetError, match="'keras_hub' has no place for the head of a MaskedLM"):
        save_checkpoint(ours, tmp_path / "hub", to="keras_hub")


@pytest.mark.slow
def test_the_preset_of_a_classifier_starts_other_tasks(save_peer, tmp_path):
    save_peer("bert", "TextClassifier", **CLASSIFIER)
    assert isinstance(load(tmp_path, Backbone), Backbone)
    with pytest.warns(UserWarning, match="holds no head of a MaskedLM"):
        load(tmp_path, MaskedLM)
    with pytest.warns(UserWarning, match="The head of .* is not used"):
        assert load(tmp_path, TextClassifier, num_classes=3).num_classes == 3
    (tmp_path / "task.json").unlink()  # a preset of a backbone
    with pytest.raises(ValueError, match="Pass `num_classes`"):
        load(tmp_path, TextClassifier)


REFUSED = {
    "activation": ("activation", "sigmoid", "`activation` must be None or 'linear' or 'softmax', got 'sigmoid'"),
    "width": ("hidden_dim", 37, "`hidden_dim` must be the backbone's, 35, got 37"),
    "classes": ("num_classes", 5, r"task.weights.h5: 'head/layers/dense_1/vars/0' has shape \(35, 7\), expected"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_keys_of_classifiers_are_refused(case, save_peer, tmp_path):
    key, value, message = REFUSED[case]
    save_peer("distilbert", "TextClassifier", **CLASSIFIER)
    stored = json.loads((tmp_path / "task.json").read_text())
    stored["config"][key] = value
    (tmp_path / "task.json").write_text(json.dumps(stored))
    with pytest.raises(PresetError, match=message):
        load(tmp_path, TextClassifier)


def test_unknown_keys_of_each_file_give_one_warning(tmp_path):
    """They change nothing; keys of KerasHub's other versions give no warning."""
    family = families()["bert"]
    task = TextEmbedder(tiny_backbone(family, activation="gelu_tanh"), tiny_preprocessor(family))
    save_checkpoint(task, tmp_path, to="keras_hub", preprocessor=task.preprocessor)
    harmless = {"dtype": "float32", "trainable": True, "name": "any"}
    unknown = {"task.json": "temperature", "preprocessor.json": "shuffle", "tokenizer.json": "invented"}
    for name, key in unknown.items():
        stored = json.loads((tmp_path / name).read_text())
        stored["config"] = {**harmless, **stored["config"], key: 7}
        (tmp_path / name).write_text(json.dumps(stored))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reloaded = TextEmbedder.from_preset(tmp_path)
    expected = {f"{tmp_path / name}: ignoring unknown keys: `{key}` (7)." for name, key in unknown.items()}
    assert sorted(str(warning.message) for warning in caught) == sorted(expected)
    np.testing.assert_array_equal(reloaded.embed(["a b"]), task.embed(["a b"]))
    with pytest.warns(UserWarning, match="ignoring unknown keys"):
        report = verify(tmp_path)
    assert report["not read: keys of task.json"] == "`temperature` (7)"
    assert report["not read: keys of preprocessor.json"] == "`shuffle` (7)"


def test_probabilities_are_loaded_as_logits(save_peer, tmp_path):
    theirs = save_peer("bert", "TextClassifier", num_classes=CLASSES, activation="softmax")
    logits, expected = outputs_of_both(theirs, load(tmp_path, TextClassifier), padded_batch())
    assert difference(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), expected) <= 1e-5
