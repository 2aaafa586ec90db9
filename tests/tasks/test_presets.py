"""Presets of tasks: round trips, heads, overrides, wrong files."""

from __future__ import annotations

import json
import warnings

import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.models import Backbone, BertBackbone, MaskedLM, MultipleChoice, Task, TextClassifier
from lmzoo.presets import PresetError

pytestmark = pytest.mark.compiled  # saved and loaded tasks must have bit-identical predictions


@pytest.fixture(scope="module")
def classifier(tiny):
    task = tiny.classifier(labels=["bad", "fair", "good"])
    head = task.head.logits
    head.kernel.assign(np.random.default_rng(3).normal(size=head.kernel.shape))
    return task


@pytest.fixture(scope="module")
def preset(classifier, tmp_path_factory):
    path = tmp_path_factory.mktemp("presets") / "film"
    classifier.save_to_preset(path)
    return path


@pytest.fixture
def copy(classifier, tmp_path):
    classifier.save_to_preset(tmp_path / "film")
    return tmp_path / "film"


def predict(task, texts=("good film", "a bad plot .")):
    return task.predict(list(texts), verbose=0)


def test_round_trip_with_head_and_labels(classifier, preset):
    task = TextClassifier.from_preset(preset)
    np.testing.assert_array_equal(predict(task), predict(classifier))
    assert task.labels == ("bad", "fair", "good")
    assert task.classify(["good film"]) == classifier.classify(["good film"])
    assert task.get_config() == classifier.get_config()
    task = TextClassifier.from_preset(preset, labels=["bad", "fair", "good"])
    np.testing.assert_array_equal(predict(task), predict(classifier))
    assert {path.name for path in preset.rglob("*") if path.is_file()} == {
        "config.json", "manifest.json", "metadata.json", "model.weights.h5", "preprocessor.json", "task.json",
        "task.weights.h5", "tokenizer.json", "vocabulary.txt",
    }  # fmt: skip


@pytest.mark.slow
def test_one_model_may_contain_several_copies_of_a_preset(classifier, preset):
    backbones = [Backbone.from_preset(preset), Backbone.from_preset(preset), Backbone.from_preset(preset, name="third")]
    tasks = [TextClassifier.from_preset(preset), TextClassifier.from_preset(preset, name="teacher")]
    assert len({model.name for model in (*backbones, *tasks)}) == 5
    assert (backbones[2].name, tasks[1].name) == ("third", "teacher")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in backbones[0].input}
    outputs = [*(backbone(inputs)["pooled_output"] for backbone in backbones), *(task(inputs) for task in tasks)]
    model = keras.Model(inputs, outputs)
    features = classifier.preprocessor(["good film", "a bad plot ."])
    results = model(features)
    for vector in results[:3]:
        np.testing.assert_allclose(vector, classifier.backbone(features)["pooled_output"], atol=1e-6)
    for logits in results[3:]:
        np.testing.assert_allclose(logits, predict(classifier), atol=1e-5)
    clone = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone(features)[0], results[0], atol=1e-6)
    assert clone.get_layer("third").get_config()["name"] == "third"


@pytest.mark.slow
def test_other_classes_start_from_scratch_with_a_warning(classifier, preset):
    for arguments in ({"num_classes": 3}, {"num_classes": 5}, {"labels": ["no", "yes"]}, {"labels": ["a", "b", "c"]}):
        with pytest.warns(UserWarning, match="starts from scratch") as notices:
            task = TextClassifier.from_preset(preset, **arguments)
        assert len(notices) == 1
        assert notices[0].filename == __file__
        assert task.num_classes == arguments.get("num_classes", len(arguments.get("labels", "")))
        assert task.labels == (tuple(arguments["labels"]) if "labels" in arguments else None)
        if task.num_classes == 3:
            assert np.abs(predict(task) - predict(classifier)).max() > 1e-2


def test_another_task_loads_the_backbone_only(classifier, preset):
    with pytest.warns(UserWarning, match="holds no head of a MaskedLM, so it starts from scratch"):
        task = MaskedLM.from_preset(preset)
    for actual, expected in zip(task.backbone.weights, classifier.backbone.weights, strict=True):
        np.testing.assert_array_equal(actual, expected)
    with pytest.warns(
        UserWarning, match="holds the head of a TextClassifier, not of a MultipleChoice, so a new one starts"
    ):
        MultipleChoice.from_preset(preset)


def test_a_task_that_the_family_does_not_support_is_an_error_without_a_warning():
    with pytest.raises(ValueError, match="cannot fill masks"):
        MaskedLM.from_preset("elmo_nano_en")


@pytest.mark.slow
def test_the_masked_lm_head_is_saved(tiny, tmp_path):
    task = tiny.masked_lm(masking={"probability": 0.3})
    task.head.output_bias.assign(np.random.default_rng(3).normal(size=20))
    task.save_to_preset(tmp_path / "mlm")
    loaded = MaskedLM.from_preset(tmp_path / "mlm")
    assert loaded.masking.probability == 0.3
    np.testing.assert_array_equal(predict(loaded, ["a [MASK]"]), predict(task, ["a [MASK]"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a head for masks is dropped without a warning
        assert TextClassifier.from_preset(tmp_path / "mlm", num_classes=2).num_classes == 2


def test_load_weights_false_gives_random_weights(classifier, preset):
    task = TextClassifier.from_preset(preset, load_weights=False)
    assert task.labels == classifier.labels
    assert np.abs(predict(task) - predict(classifier)).max() > 1e-2


@pytest.mark.slow
@pytest.mark.half_precision
def test_overrides_change_the_backbone_the_head_and_the_preprocessor(tiny, classifier, preset):
    task = TextClassifier.from_preset(preset, dtype="mixed_bfloat16", dropout=0.3, sequence_length=13)
    assert task.backbone.dtype_policy.name == "mixed_bfloat16"
    assert task.head.dtype_policy.name == "mixed_bfloat16"
    assert task.backbone.config.dropout == 0.3
    assert task.head.dropout.rate == 0.3
    assert task.preprocessor.sequence_length == 13
    np.testing.assert_allclose(predict(task), predict(classifier), atol=0.5)
    with pytest.raises(ValueError, match="positions for 41 tokens"):
        TextClassifier.from_preset(preset, sequence_length=42)
    preprocessor = tiny.preprocessor(17)
    task = TextClassifier.from_preset(preset, preprocessor=preprocessor)
    assert task.preprocessor is preprocessor
    task = TextClassifier.from_preset(preset, preprocessor=preprocessor, sequence_length=11)
    assert task.preprocessor.sequence_length == 11
    assert preprocessor.sequence_length == 17, "the caller's object was changed"


def test_backbones_load_from_presets_of_tasks(preset):
    for cls in (Backbone, BertBackbone):
        backbone = cls.from_preset(preset, dropout=0.2)
        assert type(backbone) is BertBackbone
        assert backbone.config.dropout == 0.2
    with pytest.raises(TypeError, match="no_such"):
        Backbone.from_preset(preset, no_such=1)


@keras.saving.register_keras_serializable(package="films")
class FilmClassifier(TextClassifier):
    """A task of a user."""


@pytest.mark.slow
def test_the_base_class_loads_the_stored_task(tiny, classifier, preset, tmp_path):
    task = Task.from_preset(preset)
    assert type(task) is TextClassifier
    np.testing.assert_array_equal(predict(task), predict(classifier))
    FilmClassifier(tiny.backbone(), tiny.preprocessor(), num_classes=2).save_to_preset(tmp_path / "own")
    assert type(Task.from_preset(tmp_path / "own")) is FilmClassifier
    lmzoo.save_checkpoint(classifier, tmp_path / "hf", to="hf")
    assert type(Task.from_preset(tmp_path / "hf")) is TextClassifier


class Unregistered(TextClassifier):
    """A task of a user who has not registered it, whose head is its base class's."""


def test_the_base_class_loads_what_an_unregistered_class_saved(tiny, tmp_path):
    task = Unregistered(tiny.backbone(), tiny.preprocessor(), labels=["bad", "fair", "good"])
    task.head.logits.bias.assign([2, 3, 5])
    task.backbone.save_to_preset(tmp_path, tasks={"film": task})
    for cls in (Unregistered, TextClassifier):
        loaded = cls.from_preset(tmp_path, task="film")
        assert type(loaded) is cls
        np.testing.assert_array_equal(loaded.head.logits.bias, [2, 3, 5])
    with pytest.raises(PresetError, match=r"the task Unregistered, whose class .* or call its `from_preset`"):
        Task.from_preset(tmp_path, task="film")


def test_a_head_of_an_unknown_kind_is_named(classifier, copy):
    (copy / "manifest.json").unlink()
    stored = json.loads((copy / "task.json").read_text())
    own = {"registered_name": "Own", "class_name": "Own", "head_kind": "own"}
    (copy / "task.json").write_text(json.dumps({**stored, **own}))
    message = r"holds the head of the class Own \(not imported\), not of a TextClassifier, so a new one starts"
    with pytest.raises(PresetError, match=f"{message} from scratch. Pass `num_classes`"):
        TextClassifier.from_preset(copy)
    with pytest.warns(UserWarning, match=message):
        assert TextClassifier.from_preset(copy, num_classes=2).num_classes == 2


def test_errors_of_the_base_class_name_the_class_to_use(tiny, copy, tmp_path):
    tiny.backbone().save_to_preset(tmp_path / "bare")
    with pytest.raises(PresetError, match=r"holds BertBackbone without a head.*TextClassifier\.from_preset"):
        Task.from_preset(tmp_path / "bare")
    (copy / "manifest.json").unlink()
    stored = json.loads((copy / "task.json").read_text())
    (copy / "task.json").write_text(json.dumps({**stored, "registered_name": "films>Gone", "class_name": "Gone"}))
    with pytest.raises(PresetError, match="holds the task Gone, whose class is not registered"):
        Task.from_preset(copy)


@pytest.mark.slow
def test_presets_of_backbones_need_a_preprocessor(tiny, tmp_path):
    tiny.backbone().save_to_preset(tmp_path / "bare")
    with pytest.raises(ValueError, match="Pass `preprocessor=`"):
        TextClassifier.from_preset(tmp_path / "bare", num_classes=2)
    task = TextClassifier.from_preset(tmp_path / "bare", num_classes=2, preprocessor=tiny.preprocessor())
    np.testing.assert_allclose(
        task.backbone.predict(tiny.preprocessor()(["good"]), verbose=0)["pooled_output"],
        tiny.backbone().predict(tiny.preprocessor()(["good"]), verbose=0)["pooled_output"],
        rtol=1e-5,
    )


def test_a_task_without_preprocessor_is_saved_without_one(tiny, tmp_path):
    TextClassifier(tiny.backbone(), num_classes=2).save_to_preset(tmp_path / "bare")
    with pytest.raises(ValueError, match="Pass `preprocessor=`"):
        TextClassifier.from_preset(tmp_path / "bare")


def test_a_preset_is_overwritten_unless_forbidden(tiny, copy):
    with pytest.raises(FileExistsError):
        tiny.classifier().save_to_preset(copy, overwrite=False)
    tiny.masked_lm().save_to_preset(copy)
    assert not json.loads((copy / "task.json").read_text())["registered_name"].endswith("TextClassifier")


def test_a_head_whose_weights_have_other_shapes_is_an_error(copy):
    from lmzoo.presets import write_manifest

    stored = json.loads((copy / "task.json").read_text())
    stored["config"].update(num_classes=2, labels=None)
    (copy / "task.json").write_text(json.dumps(stored))
    write_manifest(copy)
    with pytest.raises(PresetError, match=r"task\.weights\.h5.*has shape"):
        TextClassifier.from_preset(copy)


def test_overrides_that_change_the_architecture_are_refused(copy):
    for layers in (1, 3):
        with pytest.raises(PresetError, match=r"holds 39 weights, but BertBackbone as configured has \d+"):
            Backbone.from_preset(copy, num_layers=layers)
    with pytest.raises(PresetError, match=r"of shape \(\d+, \d+\).* one of shape \(3, \d+\)\. Overrides must"):
        Backbone.from_preset(copy, max_sequence_length=3)
    assert Backbone.from_preset(copy, load_weights=False, num_layers=1).config.num_layers == 1


def test_backbones_follow_the_global_dtype_policy(preset):
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        assert Backbone.from_preset(preset).dtype_policy.name == "mixed_bfloat16"
        assert Backbone.from_preset(preset, dtype="float32").dtype_policy.name == "float32"
    finally:
        keras.config.set_dtype_policy(before)
    assert Backbone.from_preset(preset).dtype_policy.name == "float32"


def test_loading_a_head_draws_no_random_weights(preset, monkeypatch):
    draws = []
    monkeypatch.setattr(keras.initializers.TruncatedNormal, "__call__", lambda *_, **__: draws.append(1))
    monkeypatch.setattr(np.random, "default_rng", lambda *_: draws.append(1))  # draws on JAX
    assert TextClassifier.from_preset(preset).head.built
    assert not draws


def test_labels_leave_the_head_of_a_task_without_classes(tiny, weights_of, tmp_path):
    task = MultipleChoice(tiny.backbone(), tiny.preprocessor())
    task.save_to_preset(tmp_path / "preset")
    loaded_task = MultipleChoice.from_preset(tmp_path / "preset", labels=["bad", "fair", "good"])
    for actual, expected in zip(weights_of(loaded_task), weights_of(task), strict=True):
        np.testing.assert_array_equal(actual, expected)
