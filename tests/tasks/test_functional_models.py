"""Keras' functional models of tasks that the conformance kit does not build, and of trained tasks."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import SelfAttention
from lmzoo.models import (
    CausalLM,
    MaskedLM,
    Pretrainer,
    QuestionAnswerer,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
)
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_examples, tiny_preprocessor, tiny_task, tiny_texts
from lmzoo.testing.functional_models import assert_copies_agree

ACTIVATIONS = ("gelu", "gelu_tanh", "linear", "relu", "sigmoid", "swish", "tanh")
DENSE = [{"kind": "dense", "units": 5, "activation": name} for name in ACTIVATIONS]
CASES = {
    "carried state": (CausalLM, "lstm_lm", {"carries_state": True}),
    "LSTMs": (TokenClassifier, "ffnn_lm", {"encoder": "bilstm", "encoder_dim": 5}),
    "mean": (TextClassifier, "ffnn_lm", {"pooling": "mean"}),
    "first token": (TextEmbedder, "bert", {"pooling": "cls"}),
    "projection": (TextEmbedder, "ffnn_lm", {"projection": [*DENSE, {"kind": "layer_norm"}, {"kind": "normalize"}]}),
    "several poolings": (TextEmbedder, "ffnn_lm", {"pooling": ["mean", "max", "lasttoken"]}),
}


def make_batch(task):
    examples = task.encode_examples(*tiny_examples(task))
    lengths = examples.encoded.lengths
    return task.make_batch(examples, np.arange(len(lengths)), int(lengths.max()), np.random.default_rng(0))


@pytest.mark.quick_cases("mean")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.tf_only  # on JAX, the kit's check of one task is enough
def test_copies_compute_the_same(case):
    task_class, family, arguments = CASES[case]
    task = tiny_task(task_class, families()[family], **arguments)
    assert_copies_agree(task, make_batch(task)[0])


@pytest.fixture
def task():
    return tiny_task(MaskedLM, families()["bert"])


def test_copies_share_the_weights_that_the_model_shares(task):
    """The backbone and the head have the token embeddings and the last block in common."""
    model = keras.Model(task.input, keras.layers.Dense(3)(task.output))
    count = len(task.weights) - len(task.backbone.pooler.weights)
    for copy in (keras.models.clone_model(model), keras.models.model_from_json(model.to_json())):
        assert len(copy.weights) == len(model.weights) >= count
        assert sum(w.shape == (task.backbone.vocabulary_size, task.backbone.hidden_dim) for w in copy.weights) == 1


@pytest.mark.slow
@pytest.mark.tf_only
def test_a_loaded_model_continues_training(task, tmp_path):
    task.backbone.pooler.trainable = False  # the loss does not reach it, and Keras would warn
    features, targets, weights = make_batch(task)
    model = keras.Model(task.input, keras.layers.Softmax()(task.output))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", run_eagerly=True)
    losses = [model.train_on_batch(features, targets, weights)]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    losses += [trained_model.train_on_batch(features, targets, weights) for trained_model in (model, loaded)]
    assert losses[1] == losses[2] < losses[0]


def test_a_clone_of_a_task_is_compiled_like_the_task(task):
    task.compile("sgd")
    clone = keras.models.clone_model(task)
    assert type(clone) is not MaskedLM
    assert isinstance(clone.optimizer, keras.optimizers.SGD)
    assert clone.loss.get_config() == task.loss.get_config()


def test_copies_warn_that_they_have_no_lora(tmp_path):
    backbone = tiny_backbone(families()["bert"])
    backbone.enable_lora(2)
    for weight in backbone.trainable_weights:
        weight.assign(np.random.default_rng(0).normal(scale=0.1, size=weight.shape))
    with pytest.warns(UserWarning, match="a clone has no updates, and a saved model has them added") as notices:
        clone = keras.models.clone_model(backbone)
    assert len({str(warning.message) for warning in notices}) == 1
    assert not any("lora" in weight.path for weight in clone.weights)
    model = keras.Model(backbone.input, keras.layers.Dense(3)(backbone.output["pooled_output"]))
    with pytest.warns(UserWarning, match="a clone has no updates"):
        model.save(tmp_path / "model.keras")
    features = tiny_preprocessor(families()["bert"])(tiny_texts())
    inputs = {name: features[name] for name in model.input}
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights) - 4 * backbone.num_layers
    np.testing.assert_allclose(loaded.predict_on_batch(inputs), model.predict_on_batch(inputs), atol=1e-6)


@pytest.mark.tf_only
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.usefixtures("no_garbage_collection")
def test_int8_layers_are_copied(rank, tmp_path):
    backbone = tiny_backbone(families()["bert"])
    backbone.quantize("int8")
    if rank:
        backbone.enable_lora(rank)
        for weight in backbone.trainable_weights:
            weight.assign(np.random.default_rng(0).normal(scale=0.1, size=weight.shape))
    model = keras.Model(backbone.input, keras.layers.Dense(3)(backbone.output["hidden_states"][1]))
    model.run_eagerly = True
    features = tiny_preprocessor(families()["bert"])(tiny_texts())
    expected = model.predict_on_batch({name: features[name] for name in model.input})
    model.save(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for copy in (keras.saving.load_model(tmp_path / "model.keras"), clone):
        assert [w.dtype for w in copy.weights] == [w.dtype for w in model.weights]
        copy.run_eagerly = True
        actual = copy.predict_on_batch({name: features[name] for name in model.input})
        np.testing.assert_allclose(actual, expected, atol=1e-6)


BUILT_LATER = {  # layers that create layers when they are built
    "highways": (None, "elmo", {}),
    "classification": (TextClassifier, "roberta", {}),
    "answers": (QuestionAnswerer, "modernbert", {}),
    "spans": (Pretrainer, "bert", {"objective": "sbo"}),
    "replaced tokens": (Pretrainer, "electra", {"objective": "rtd"}),
}


@pytest.mark.tf_only
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
@pytest.mark.slow_cases("answers", "spans", "replaced tokens")
@pytest.mark.parametrize("case", BUILT_LATER)
@pytest.mark.usefixtures("no_garbage_collection")
def test_int8_layers_that_are_built_later_are_copied(case, tmp_path):
    task_class, family, arguments = BUILT_LATER[case]
    if task_class is None:
        graph = tiny_backbone(families()[family])
    else:
        graph = tiny_task(task_class, families()[family], **arguments)
    model = keras.Model(graph.input, keras.layers.Softmax()(keras.tree.flatten(graph.output)[0]))
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for copy in (keras.saving.load_model(tmp_path / "model.keras"), clone):
        for weight, expected in zip(copy.weights, model.weights, strict=True):
            assert weight.dtype == expected.dtype, expected.path
            np.testing.assert_array_equal(weight, expected, err_msg=expected.path)


def test_numbered_int8_layers_of_earlier_files_are_read():
    layer = SelfAttention(3, 6)
    layer.build((None, None, 6))
    layer.value.quantize("int8")
    config = layer.get_config()
    (state,) = config["quantized"]
    assert state.pop("path") == "value"
    loaded = SelfAttention.from_config({**config, "quantized": [{**state, "index": 2}]})
    assert [loaded.query.quantization_mode, loaded.value.quantization_mode] == [None, "int8"]
