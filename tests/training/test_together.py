"""Several tasks trained together on one backbone, and stored in one preset."""

from __future__ import annotations

import itertools
import math
import os
import signal

import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.models import BidirectionalLM, Pretrainer, QuestionAnswerer, Task, TextClassifier, TextRegressor
from lmzoo.presets import PresetError
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from lmzoo.text import Preprocessor, WordPieceTokenizer
from lmzoo.text.interleaved import Interleaved
from lmzoo.training import AdamW, ResumableCheckpoint, fit_together
from tests.reference.weights import to_numpy
from tests.tasks.conftest import Tiny
from tests.tasks.interruptions import Interrupted, Spy, assert_same

pytestmark = pytest.mark.usefixtures("eager")

RATE = 0.05


@pytest.fixture(scope="module")
def tiny():
    return Tiny()


def build(tiny, dropout=0.0):
    """Return tasks on one backbone with their examples: 10 texts with classes, and 5 pairs with numbers."""
    moods = tiny.classifier(labels=["bad", "good"], dropout=dropout)
    lengths = TextRegressor(moods.backbone, moods.preprocessor)
    texts = tiny.texts(10)
    labels = [["bad", "good"][label] for label in tiny.labels(texts)]
    pairs = [*zip(texts[:5], texts[5:], strict=True)]
    return {"moods": (moods, texts, labels), "lengths": (lengths, pairs, [0.5 * len(a) for a, _ in pairs])}


def weights_of(tasks):
    return [[to_numpy(v) for v in task.weights] for task, *_ in tasks.values()]


def assert_same_weights(actual, expected, tolerance):
    for arrays, expected_arrays in zip(actual, expected, strict=True):
        for array, desired in zip(arrays, expected_arrays, strict=True):
            np.testing.assert_allclose(array, desired, rtol=0, atol=tolerance)


def test_steps_equal_those_of_one_optimizer_for_all_heads(tiny):
    tasks = build(tiny)
    expected = build(tiny)
    parts = [task.training_batches(*examples, batch_size=5) for task, *examples in expected.values()]
    order = Interleaved(parts, [2, 1])
    variables = {id(v): v for task, *_ in expected.values() for v in task.trainable_variables}
    optimizer = AdamW(RATE, weight_decay=0.1)
    optimizer.build([*variables.values()])
    fit_together(tasks, batch_size=5, optimizer=AdamW(RATE, weight_decay=0.1), verbose=0)

    # The same three steps without `fit_together`.
    optimizer.start_schedule(1, 3)
    for x, y in itertools.islice(order.batches_from(0), 3):
        name = "moods" if np.issubdtype(np.asarray(y).dtype, np.integer) else "lengths"
        task = expected[name][0]
        apply_gradients(optimizer, [*variables.values()], task, x, y)
    assert_same_weights(weights_of(tasks), weights_of(expected), 1e-5)


def test_weights_end_as_their_moving_averages(tiny):
    tasks = build(tiny)
    variable = tasks["moods"][0].trainable_variables[-1]
    values = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: values.append(to_numpy(variable)))
    optimizer = keras.optimizers.SGD(RATE, use_ema=True, ema_momentum=0.75)
    fit_together(tasks, batch_size=5, optimizer=optimizer, callbacks=[callback], verbose=0)
    average = values[0]
    for value in values[1:]:
        average = 0.75 * average + 0.25 * value
    assert np.abs(average - values[-1]).max() > 1e-4
    np.testing.assert_allclose(to_numpy(variable), average, rtol=0, atol=1e-6)


def apply_gradients(optimizer, variables, task, x, y):
    """Update `variables`, with a gradient of 0 for those that the task does not have."""
    if keras.backend.backend() == "jax":
        import jax

        def loss_of(values):
            outputs, _ = task.stateless_call(values, [v.value for v in task.non_trainable_variables], x)
            return task.default_loss()(y, outputs)

        grads = jax.grad(loss_of)([v.value for v in task.trainable_variables])
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = task.default_loss()(y, task(x))
        grads = [tf.convert_to_tensor(g) for g in tape.gradient(loss, task.trainable_variables)]
    by_id = {id(v): gradient for v, gradient in zip(task.trainable_variables, grads, strict=True)}
    optimizer.apply([by_id[id(v)] if id(v) in by_id else keras.ops.zeros(v.shape) for v in variables], variables)


@pytest.mark.quick_cases("2-turns0")
@pytest.mark.parametrize(("temperature", "turns"), [(2, [2, 1]), (1, [4, 1]), (math.inf, [1, 1])])
def test_tasks_take_turns_by_temperature(tiny, temperature, turns):
    tasks = build(tiny)
    moods, texts, labels = tasks["moods"]
    tasks["moods"] = (moods, texts * 2, labels * 2)
    calls = []
    originals = {name: entry[0].compute_loss for name, entry in tasks.items()}
    for name, (task, *_) in tasks.items():
        task.compute_loss = lambda *a, _n=name, **k: calls.append(_n) or originals[_n](*a, **k)
        task.compile(run_eagerly=True, jit_compile=False)
    fit_together(tasks, batch_size=5, temperature=temperature, steps_per_epoch=2 * sum(turns), verbose=0)
    steps = calls[2:]  # the first two calls build the losses
    assert [steps.count(name) for name in tasks] == [2 * turn for turn in turns]


def test_the_history_has_each_tasks_losses(tiny):
    tasks = build(tiny)
    validation_data = {"moods": (["good film"], ["good"])}
    history = fit_together(tasks, epochs=2, batch_size=5, validation_data=validation_data, verbose=0).history
    assert sorted(history) == ["lengths_loss", "loss", "moods_loss", "val_moods_accuracy", "val_moods_loss"]
    mean = (2 * history["moods_loss"][1] + history["lengths_loss"][1]) / 3
    np.testing.assert_allclose(history["loss"][1], mean, rtol=1e-6)
    assert history["loss"][1] < history["loss"][0]
    expected = tasks["moods"][0].evaluate(["good film"], ["good"], return_dict=True, verbose=0)
    np.testing.assert_allclose(history["val_moods_loss"][1], expected["loss"], rtol=1e-6)


def test_a_bias_starts_at_the_mean_of_the_training_labels(tiny):
    tasks = build(tiny)
    lengths, pairs, labels = tasks["lengths"]
    validation_data = {"lengths": (pairs[:2], [97.0, 89.0])}
    fit_together(tasks, batch_size=5, validation_data=validation_data, optimizer=keras.optimizers.SGD(0.0), verbose=0)
    assert float(to_numpy(lengths.head.logits.bias)[0]) == pytest.approx(np.mean(labels))


@pytest.mark.slow
def test_a_resumed_run_is_exact(tiny, tmp_path):
    def run(*callbacks):
        tasks = build(tiny, dropout=0.2)
        for index, seed in enumerate(v for v in tasks["moods"][0].backbone.non_trainable_variables if "seed" in v.path):
            seed.assign([index, 7])
        for name, (task, *_) in tasks.items():  # Keras numbers the models' own names
            task.head.dropout.seed_generator.state.assign([5, len(name)])
            task.compile(run_eagerly=True, jit_compile=False)
        keras.utils.set_random_seed(3)
        spy = Spy(5 if callbacks and not any(tmp_path.iterdir()) else None)
        fit_together(tasks, epochs=2, batch_size=5, callbacks=[*callbacks, spy], verbose=0)
        return spy.states

    expected = run()
    with pytest.raises(Interrupted):
        run(ResumableCheckpoint(tmp_path, 2))
    resumed = run(ResumableCheckpoint(tmp_path, 2))
    assert sorted(resumed) == [5, 6]
    assert_same(resumed, expected)


def test_a_stopped_run_is_not_evaluated(tiny, tmp_path):
    tasks = build(tiny)
    callbacks = [ResumableCheckpoint(tmp_path), Spy(2, lambda model: os.kill(os.getpid(), signal.SIGTERM))]
    validation_data = {"moods": (["good film"], ["good"])}
    with pytest.warns(UserWarning, match="Stopped by SIGTERM after step 2"):
        history = fit_together(tasks, 3, 5, validation_data=validation_data, callbacks=callbacks, verbose=0).history
    assert len(history["loss"]) == 1
    assert not any(name.startswith("val_") for name in history)


def test_an_interrupted_run_merges_separately_stored_weights():
    """With `objective="rtd"`, the backbone of DeBERTa-v3 gets the changes of the generator's embeddings."""
    task = tiny_task(Pretrainer, families()["deberta_v3"], objective="rtd")
    layer = task.get_layer("replaced_tokens")
    before = np.array(to_numpy(layer.merged_table))
    documents = [["the film was good .", "a plot was never dull !"]] * 5
    with pytest.raises(Interrupted):
        fit_together({"pretraining": (task, documents)}, epochs=2, callbacks=[Spy(1)], verbose=0)
    table = to_numpy(layer.generator.embeddings.token_embedding.embeddings)
    assert np.abs(table - before).max() > 0
    np.testing.assert_array_equal(to_numpy(layer.merged_table), table)


def test_one_preset_holds_all_tasks(tiny, tmp_path):
    tasks = build(tiny)
    models = {name: entry[0] for name, entry in tasks.items()}
    moods = models["moods"]
    moods.head.logits.kernel.assign(np.random.default_rng(3).normal(size=moods.head.logits.kernel.shape))
    moods.backbone.save_to_preset(tmp_path / "both", tasks=models)
    loaded = Task.from_preset(tmp_path / "both", task="moods")
    assert type(loaded) is TextClassifier
    assert loaded.classify(["good film"]) == moods.classify(["good film"])
    pairs = [("good film", "bad plot")]
    regressor = TextRegressor.from_preset(tmp_path / "both", task="lengths")
    assert regressor.score(pairs) == models["lengths"].score(pairs)
    assert lmzoo.presets.verify_manifest(tmp_path / "both")
    # The directory is still a preset of the backbone, for new tasks.
    with pytest.warns(UserWarning, match="holds the tasks 'lengths', 'moods', and no `task` is chosen"):
        assert TextClassifier.from_preset(tmp_path / "both", num_classes=3).num_classes == 3
    with pytest.raises(PresetError, match=r"holds the tasks 'lengths', 'moods'\. Pass one of them as `task`"):
        Task.from_preset(tmp_path / "both")
    for name in ("mood", "../moods"):
        with pytest.raises(PresetError, match=r"has no task .* Its tasks are 'lengths', 'moods'"):
            Task.from_preset(tmp_path / "both", task=name)
    with pytest.raises(ValueError, match="holds several tasks, whose preprocessors share a tokenizer"):
        moods.preprocessor.save_to_preset(tmp_path / "both")
    moods.save_to_preset(tmp_path / "one")
    with pytest.raises(PresetError, match="It holds no named tasks: leave out `task`"):
        TextClassifier.from_preset(tmp_path / "one", task="moods")


def test_wrong_tasks_of_a_preset_are_refused(tiny, tmp_path):
    moods = build(tiny)["moods"][0]
    words = [*WordPieceTokenizer.special_tokens, *tiny.words[::-1]]
    other_preprocessor = Preprocessor(WordPieceTokenizer(words), moods.preprocessor.packing, tiny.length)
    regressor = TextRegressor(moods.backbone, other_preprocessor)
    for tasks, message in (
        ({"a/b": moods}, "Tasks need names of letters"),
        ({"a": build(tiny)["moods"][0]}, r"`tasks\['a'\]` must be a task on this backbone"),
        ({"a": moods, "b": regressor}, "The tasks 'a' and 'b' have different tokenizers"),
        ({"film": moods, "Film": moods}, "The names 'film' and 'Film' differ only in upper and lower case"),
        ([moods], r"`tasks` must be a dict of at least one task by its name, or None, got \[<TextClassifier"),
        ({}, r"`tasks` must be a dict of at least one task by its name, or None, got \{\}"),
    ):
        with pytest.raises(ValueError, match=message):
            moods.backbone.save_to_preset(tmp_path / "x", tasks=tasks)
        assert not (tmp_path / "x").exists()


def test_wrong_arguments_are_refused(tiny):
    tasks = build(tiny)
    moods = tasks["moods"]
    classifier = tiny.classifier(num_classes=3)
    bilm = tiny_task(BidirectionalLM, families()["elmo"])
    for arguments, message in (
        ({"tasks": {}}, "`tasks` must be a dict from names to"),
        ({"tasks": {"moods": moods[0]}}, r"`tasks\['moods'\]` must be a tuple"),
        ({"tasks": {"a": moods, "b": moods}}, "A task may have only one name"),
        ({"tasks": {"a": moods, "b": (classifier, ["x"], [0])}}, "The tasks 'a' and 'b' have different backbones"),
        ({"tasks": {"words": (bilm, [["good film"]])}}, "The task 'words' is a BidirectionalLM, .*: train it alone"),
        ({"tasks": {"a": (moods[0], ["good"], ["awful"])}}, "In the task 'a': .*awful"),
        ({"tasks": {"a": (moods[0], ["good", 7], ["bad", "bad"])}}, "In the task 'a': .*7"),
        ({"tasks": tasks, "temperature": 0.5}, "`temperature` must be a number of at least 1, got 0.5"),
        ({"tasks": tasks, "validation_data": {"mood": ((), ())}}, "`validation_data` must be a dict with some of"),
        ({"tasks": tasks, "validation_data": [1]}, "`validation_data` must be a dict from names of tasks"),
        ({"tasks": tasks, "validation_data": {"moods": (["good"], ["awful"])}}, "In the task 'moods': .*awful"),
        ({"tasks": tasks, "validation_data": {"moods": ([], [])}}, "In the task 'moods': There are no examples"),
        ({"tasks": tasks, "epochs": 0}, "`epochs` must be an integer of at least 1, got 0"),
    ):
        before = weights_of(tasks)
        with pytest.raises((TypeError, ValueError), match=message):
            fit_together(**arguments)
        assert_same_weights(weights_of(tasks), before, 0)


@pytest.mark.slow
@pytest.mark.tf_only
def test_a_task_of_a_preset_is_exported(tiny, tmp_path):
    import tensorflow as tf

    tasks = build(tiny)
    fit_together(tasks, batch_size=5, verbose=0)
    answers = QuestionAnswerer(tasks["moods"][0].backbone, tasks["moods"][0].preprocessor)
    models = {**{name: entry[0] for name, entry in tasks.items()}, "answers": answers}
    answers.backbone.save_to_preset(tmp_path / "all", tasks=models)
    loaded = TextClassifier.from_preset(tmp_path / "all", task="moods")
    loaded.export(tmp_path / "served" / "1", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"]
    label = served(text=tf.constant(["good film"]))["label"].numpy()[0].decode()
    assert label == tasks["moods"][0].classify(["good film"])[0]["label"]
