"""Checks of a backbone's inputs: names and ids are checked wherever their values are known."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect

import keras
import numpy as np
import pytest

from lmzoo.families.input_checks import check_structure
from lmzoo.families.named_inputs import OTHER_MODELS_INPUTS
from lmzoo.models import (
    BidirectionalLM,
    CausalLM,
    ElmoBackbone,
    MaskedLM,
    Pretrainer,
    RobertaBackbone,
    TextClassifier,
)
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task, tiny_texts

FAMILIES = list(families())
TRANSFORMERS = [name for name in FAMILIES if name != "elmo"]


@pytest.fixture(scope="module")
def backbones():
    return {name: tiny_backbone(family) for name, family in families().items()}


def features_of(name):
    features = tiny_preprocessor(families()[name])(tiny_texts())
    if families()[name].backbone.reads_source:  # the same texts as targets
        features |= {f"decoder_{key}": ids.copy() for key, ids in features.items()}
    return features


def changed(name, input_name, value, as_tensor=False):
    """Return features with another value in sequence 2 at position 3 (and, of characters, in column 5)."""
    features = features_of(name)
    features[input_name][(2, 3, 5)[: features[input_name].ndim]] = value
    return {key: keras.ops.convert_to_tensor(ids) for key, ids in features.items()} if as_tensor else features


def calls_of(backbone):
    """Return the methods that take the backbone's inputs outside of graphs."""
    calls = {"call": backbone, "predict": lambda inputs: backbone.predict(inputs, verbose=0)}
    for name in ("call_with_state", "attention_scores", "source_attention_scores"):
        calls |= {name: getattr(backbone, name)} if hasattr(backbone, name) else {}
    if backbone.causal or isinstance(backbone, ElmoBackbone):
        return calls
    return {**calls, "vectors_at": lambda inputs: backbone.vectors_at(inputs, np.zeros((7, 1), "int32"))}


@pytest.mark.slow_cases("albert--1-False", "albert-high-True")
@pytest.mark.parametrize(("value", "as_tensor"), [(-1, False), ("high", True)])
@pytest.mark.parametrize("name", FAMILIES)
def test_ids_out_of_range_are_refused(backbones, name, value, as_tensor):
    backbone = backbones[name]
    tiny = families()[name].tiny
    tokens, segments = tiny.vocabulary_size, getattr(tiny, "num_segments", 2)
    sizes = {"token_ids": tokens, "decoder_token_ids": tokens, "character_ids": 262, "segment_ids": segments}
    for input_name in backbone.input:
        size = sizes.get(input_name, 2)
        wrong = size if value == "high" else value
        inputs = changed(name, input_name, wrong, as_tensor)
        message = rf"`{input_name}` must be in 0\.\.{size - 1}, got {wrong} in sequence 2 at position 3"
        for call in calls_of(backbone).values():
            with pytest.raises(ValueError, match=message):
                call(inputs)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_lowest_and_the_highest_id_are_valid(backbones, name):
    size = families()[name].tiny.vocabulary_size
    for value in (0, size - 1):
        assert np.isfinite(backbones[name](changed(name, "token_ids", value))["pooled_output"]).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_inputs_by_other_names_are_refused(backbones, name):
    backbone, features = backbones[name], features_of(name)
    first = next(iter(features.values()))
    for call in calls_of(backbone).values():
        with pytest.raises(ValueError, match=rf"This {type(backbone).__name__} takes a dict of .*; got 'input_ids'\."):
            call({"input_ids": first})
    with pytest.raises(ValueError, match=r"takes a dict of .*; got ndarray\."):
        backbone(first)
    with pytest.raises(TypeError, match=f"`{next(iter(backbone.input))}` must be an array or a tensor, got list"):
        backbone({key: ids.tolist() for key, ids in features.items()})
    with pytest.raises(ValueError, match=r"must have \d axes, got the shape \(\)"):
        backbone({key: np.int32(1) for key in features})


@pytest.mark.parametrize("name", [name for name in TRANSFORMERS if name != "static_words"])  # it has one input
def test_a_missing_input_is_refused_everywhere(backbones, name):
    backbone, features = backbones[name], features_of(name)
    del features["padding_mask"]
    for call in calls_of(backbone).values():
        with pytest.raises(ValueError, match=r"takes a dict of 'token_ids', 'padding_mask'.*; got 'token_ids'"):
            call(features)
    with pytest.raises(ValueError, match="got ndarray"):
        calls_of(backbone).get("attention_scores", backbone)(features["token_ids"])


def test_booleans_and_long_integers_are_valid_but_nan_is_not(backbones):
    backbone, features = backbones["distilbert"], features_of("distilbert")
    expected = backbone(features)["pooled_output"]
    cast = {"token_ids": features["token_ids"].astype("int64"), "padding_mask": features["padding_mask"].astype(bool)}
    np.testing.assert_array_equal(backbone(cast)["pooled_output"], expected)
    cast["token_ids"] = np.where(np.arange(7)[:, None] == 5, np.nan, features["token_ids"])
    with pytest.raises(ValueError, match="got nan in sequence 5 at position 0"):
        backbone(cast)


def test_elmo_takes_no_padding_mask(backbones):
    features = features_of("elmo")
    mask = np.ones(features["character_ids"].shape[:2], "int32")
    with pytest.raises(ValueError, match="no input 'padding_mask'"):
        backbones["elmo"].call_with_state({**features, "padding_mask": mask})


@pytest.mark.slow_cases("marian", "t5", "t5_encoder")
@pytest.mark.parametrize("family", families().values(), ids=lambda family: family.name)
def test_an_empty_batch_has_empty_outputs(family):
    backbone = tiny_backbone(family)
    features = {name: np.zeros((0, 5, 50)[: len(x.shape)], "int32") for name, x in backbone.input.items()}
    for call in (backbone, keras.Model(backbone.input, backbone.output), backbone.predict):
        outputs = call(features)
        assert outputs["sequence_output"].shape[:2] == (0, 5)
        assert outputs["pooled_output"].shape[0] == 0


@pytest.mark.parametrize("settings", [{}, {"vocabulary_size": 31, "start_token_id": 1, "end_token_id": 2}])
@pytest.mark.parametrize("shape", [(0, 5), (0, 0), (2, 0)])
def test_elmo_takes_batches_without_words(settings, shape):
    backbone = tiny_backbone(families()["elmo"], **settings)
    ((name, x),) = backbone.input.items()
    ids = np.zeros((*shape, 50)[: len(x.shape)], "int32")
    assert backbone({name: ids})["sequence_output"].shape[:2] == shape
    assert backbone.call_with_state({name: ids})[0]["pooled_output"].shape[0] == shape[0]


def test_elmo_refuses_tokens_after_padding(backbones):
    features = features_of("elmo")
    features["character_ids"][3, 0] = 0
    for call in (backbones["elmo"], lambda inputs: backbones["elmo"].predict(inputs, verbose=0)):
        with pytest.raises(ValueError, match="has a token after the padding at position 0 of sequence 3"):
            call(features)


def test_elmo_has_no_attention_scores(backbones):
    assert not hasattr(backbones["elmo"], "attention_scores")
    with pytest.raises(AttributeError, match="'attention_scores': models of its family have no attention"):
        backbones["elmo"].attention_scores(features_of("elmo"))


# === Symbolic values ===


@contextlib.contextmanager
def forbid_reading_values(monkeypatch):
    """Fail if the values of a tensor are read."""
    with monkeypatch.context() as patch:
        patch.setattr(keras.ops, "convert_to_numpy", lambda x: pytest.fail("read the values of a tensor"))
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "elmo"])
def test_no_value_is_read_while_a_graph_is_made(backbones, name, monkeypatch):
    backbone = backbones[name]
    key = next(iter(backbone.input))
    features = {input_name: keras.ops.convert_to_tensor(values) for input_name, values in features_of(name).items()}
    compiled = compile_(lambda inputs: backbone(inputs)["pooled_output"])
    with forbid_reading_values(monkeypatch):
        pooled = compiled(features)
        backbone({key: keras.Input(x.shape[1:], dtype="int32") for key, x in backbone.input.items()})
    np.testing.assert_allclose(pooled, backbone(features)["pooled_output"], atol=1e-5)
    with pytest.raises(ValueError, match="takes a dict of"):
        compile_(lambda inputs: backbone(inputs)["pooled_output"])({f"{key}s": features[key]})


def compile_(function):
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function)


# === Tasks on token features ===


@pytest.fixture(scope="module")
def task():
    return tiny_task(TextClassifier, families()["roberta"])


@pytest.mark.parametrize("verb", ["predict", "evaluate", "fit", "validation"])
def test_tasks_check_features_before_the_first_step(task, verb):
    labels = np.zeros(7, "int32")
    right, wrong = features_of("roberta"), changed("roberta", "token_ids", -1)
    calls = {
        "predict": lambda: task.predict(wrong, verbose=0),
        "evaluate": lambda: task.evaluate(wrong, labels, verbose=0),
        "fit": lambda: task.fit(wrong, labels, verbose=0),
        "validation": lambda: task.fit(right, labels, validation_data=(wrong, labels), verbose=0),
    }
    with pytest.raises(ValueError, match=r"`token_ids` must be in 0\.\.\d+, got -1 in sequence 2 at position 3"):
        calls[verb]()
    assert int(keras.ops.convert_to_numpy(task.optimizer.iterations)) == 0


@pytest.mark.slow
def test_tasks_take_a_generator_of_batches(task):
    features = features_of("roberta")
    batches = (({name: values[rows] for name, values in features.items()},) for rows in (slice(4), slice(4, 7)))
    logits = task.predict(batches, steps=2, verbose=0)
    np.testing.assert_allclose(logits, task.predict(features, verbose=0), atol=1e-5)
    examples = ((features, np.zeros(7, "int32")) for _ in range(2))
    assert task.evaluate(examples, steps=2, verbose=0, return_dict=True)["loss"] > 0


@pytest.mark.slow
def test_inputs_of_all_models_are_listed():
    """A model ignores the inputs of other models, rather than raise an error."""
    names = {name for family in families().values() for name in tiny_backbone(family).input}
    for task, family in ((MaskedLM, "bert"), (Pretrainer, "xlnet"), (BidirectionalLM, "elmo"), (CausalLM, "lstm_lm")):
        names |= tiny_task(task, families()[family]).input.keys()
    assert names - OTHER_MODELS_INPUTS == {"padding_mask"}  # which could contradict ELMo's characters


def test_inputs_of_the_head_are_not_checked_as_ids():
    task, features = tiny_task(MaskedLM, families()["bert"]), features_of("bert")
    positions = {"mask_positions": np.full((7, 1), 200, "int32")}  # more than any of the backbone's ids
    del features["token_ids"]
    with pytest.raises(ValueError, match=r"'token_ids', .*; got 'padding_mask', 'segment_ids', 'mask_positions'\.$"):
        task.predict({**features, **positions}, verbose=0)


# === Tensors of given shapes ===

SPEC = {"a": ((keras.KerasTensor((None, 3)), keras.KerasTensor((None, 5))),)}


@pytest.mark.parametrize(
    "value",
    [
        {"a": ((np.zeros((2, 3)), np.zeros((2, 7))),)},
        {"a": ((np.zeros((2, 5)), np.zeros((2, 3))),)},
        {"a": ((np.zeros(3), np.zeros((2, 5))),)},
        {"a": ((np.zeros((2, 3)),),)},
        {"a": ()},
        {"b": ((np.zeros((2, 3)), np.zeros((2, 5))),)},
        np.zeros((2, 3)),
        7,
    ],
)
def test_tensors_of_other_shapes_are_refused(value):
    with pytest.raises(ValueError, match=r"`x` must have the shapes \{'a': \(\(\(None, 3\), \(None, 5\)\),\)\}, got"):
        check_structure("x", value, SPEC)


def test_tensors_of_the_same_shapes_are_valid():
    check_structure("x", {"a": [[np.zeros((2, 3)), np.zeros((2, 5))]]}, SPEC)
    check_structure("x", {"a": ((keras.KerasTensor((None, None)), np.zeros((2, 5))),)}, SPEC)


# === Configurations and their descriptions ===


@pytest.mark.parametrize("name", FAMILIES)
def test_docstrings_describe_every_argument(name):
    cls = families()[name].backbone
    section = inspect.getdoc(cls).partition("\nArgs:\n")[2].partition("\n\nRaises:\n")[0]
    described = [line.strip().partition(":") for line in section.splitlines() if not line.startswith(" " * 5)]
    fields = [field.name for field in dataclasses.fields(cls.config_class)]
    assert [argument for argument, _, _ in described] == [*fields, "dtype", "name", "trainable", "remat", "fine_tuning"]
    assert all(len(text) > 5 for _, _, text in described)


def test_families_may_describe_arguments_in_their_own_words():
    shared_description = "the position table has as many rows"
    assert "the position table has two more rows" in RobertaBackbone.__doc__
    assert shared_description not in RobertaBackbone.__doc__
    assert shared_description in families()["bert"].backbone.__doc__
