"""Resumed training: the same batches, masks and dropout as without an interruption, and bit-identical weights."""

from __future__ import annotations

import os
import shutil
import signal

import keras
import numpy as np
import pytest

from lmzoo.data.corpora import segment_pairs
from lmzoo.models import Pretrainer
from lmzoo.training import ResumableCheckpoint, resuming
from tests.reference.weights import to_numpy
from tests.tasks.interruptions import Interrupted, Spy, assert_same, assign, spoil, state_of

BATCHES, EPOCHS = 4, 3  # 20 texts in batches of 5
STEPS = BATCHES * EPOCHS


def run(model, data, folder, *callbacks, every=2, keep=2, epochs=EPOCHS, **arguments):
    checkpoint = ResumableCheckpoint(folder, every, keep)
    callbacks = [checkpoint, *callbacks]  # `fit` puts it last
    model.fit(data, epochs=epochs, batch_size=5, verbose=0, callbacks=callbacks, **arguments)
    return checkpoint


@pytest.fixture(scope="module")
def model(tiny):
    model = tiny.masked_lm(dropout=0.2)
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def data(tiny):
    return tiny.texts(20)


@pytest.fixture(scope="module")
def begin(model):
    """Return a function that sets the model to the state before the first step."""
    initial = state_of(model)
    return lambda: assign(model, initial)


@pytest.fixture
def expected(begin, uninterrupted):
    begin()
    return uninterrupted


@pytest.fixture(scope="module")
def uninterrupted(model, data, begin):
    """Return the state after each step of a run without checkpoints."""
    begin()
    spy = Spy()
    model.fit(data, epochs=EPOCHS, batch_size=5, verbose=0, callbacks=[spy])
    assert sorted(spy.states) == [*range(1, STEPS + 1)]
    return spy.states


@pytest.fixture
def interrupted(model, data, begin, uninterrupted, tmp_path):
    """Return the folder of a run that failed in step 7, with the states after steps 4 and 6; the model is spoiled."""
    begin()
    with pytest.raises(Interrupted):
        run(model, data, tmp_path, Spy(7))
    assert list_states(tmp_path) == ["step-000000000004", "step-000000000006"]
    spoil(model)
    return tmp_path


def list_states(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_many_interruptions_change_nothing(model, data, expected, begin, tmp_path):
    saved = 0  # the step of the newest state in the folder
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    for point in (1, 3, 8, STEPS):
        spoil(model) if list_states(tmp_path) else begin()
        spy = Spy(point)
        with pytest.raises(Interrupted):
            run(model, data, tmp_path, spy)
        assert sorted(spy.states) == [*range(saved + 1, point + 1)]  # steps that were not saved are repeated
        assert_same(spy.states, expected)
        saved = (point - 1) // 2 * 2
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    spoil(model)
    spy = Spy()
    run(model, data, tmp_path, spy)
    assert sorted(spy.states) == [STEPS - 1, STEPS]
    assert_same(spy.states, expected)


@pytest.mark.slow
def test_a_finished_run_trains_no_further_unless_there_are_more_epochs(model, data, expected, tmp_path):
    run(model, data, tmp_path, every=None, epochs=2)
    spoil(model)
    spy = Spy()
    run(model, data, tmp_path, spy, every=None, epochs=2)
    assert spy.states == {}
    before = state_of(model)
    # The learning rate had fallen to 0; now it falls over three epochs.
    run(model, data, tmp_path, spy, every=None)
    assert sorted(spy.states) == [*range(9, STEPS + 1)]
    assert max(np.abs(a - b).max() for a, b in zip(state_of(model)[:3], before[:3], strict=True)) > 0
    np.testing.assert_array_equal(to_numpy(model.optimizer._schedule.value), [0, 2, STEPS])


@pytest.mark.slow
def test_validation_and_other_callbacks_see_whole_epochs(model, data, uninterrupted, interrupted):
    epochs = []
    spy = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append((epoch, "val_loss" in logs)))
    run(model, data, interrupted, spy, validation_data=(data[:5],))
    assert epochs == [(1, True), (2, True)]
    assert_same({STEPS: state_of(model)}, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("at_batch", [False, True])
def test_a_callback_may_stop_training_at_the_end_of_a_resumed_epoch(model, data, interrupted, at_batch):
    def stop(*_):
        model.stop_training = True

    run(model, data, interrupted, Spy(8, stop) if at_batch else keras.callbacks.LambdaCallback(on_epoch_end=stop))
    assert int(model.optimizer.iterations) == 8
    assert list_states(interrupted)[-1] == "step-000000000008"


@pytest.mark.slow
def test_validation_ends_with_a_stopped_epoch(model, data, expected, tmp_path):
    """Its loss is NaN, so that no callback takes it for the loss of a whole epoch."""
    batches, losses = [], []
    batch_recorder = keras.callbacks.LambdaCallback()
    batch_recorder.on_test_batch_end = lambda batch, logs=None: batches.append(batch)
    loss_recorder = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["val_loss"]))
    stop = Spy(5, lambda model: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.warns(UserWarning, match="Stopped by SIGTERM after step 5"):
        run(model, data, tmp_path, stop, batch_recorder, loss_recorder, every=100, validation_data=(data * 2,))
    assert len(batches) > 2  # several batches in the first epoch, one in the second
    assert batches[-1] == 0
    assert [np.isnan(loss) for loss in losses] == [False, True]


def test_a_signal_ends_the_validation(model, data, begin, tmp_path):
    """The finished epoch is saved at once."""
    begin()
    batches, losses = [], []
    recorder = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["val_loss"]))

    def stop(batch, logs=None):
        batches.append(batch)
        os.kill(os.getpid(), signal.SIGTERM)

    recorder.on_test_batch_end = stop
    with pytest.warns(UserWarning, match=f"Stopped by SIGTERM after step {BATCHES}"):
        run(model, data, tmp_path, recorder, every=100, validation_data=(data[:11],))
    assert batches == [0]
    assert len(losses) == 1
    assert np.isnan(losses[0])
    assert list_states(tmp_path) == [f"step-{BATCHES:012d}"]


def test_effects_of_a_stopped_validation_on_other_callbacks_are_not_saved(model, data, expected, tmp_path):
    """As with `ReduceLROnPlateau`, which counts NaN as no improvement."""
    validation = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: spoil(model))
    validation.on_test_batch_end = lambda batch, logs=None: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.warns(UserWarning, match=f"Stopped by SIGTERM after step {BATCHES}"):
        run(model, data, tmp_path, validation, every=100, validation_data=(data[:11],))
    spy = Spy()
    run(model, data, tmp_path, spy, every=100)
    assert sorted(spy.states) == [*range(BATCHES + 1, STEPS + 1)]
    assert_same(spy.states, expected)


def test_weights_that_a_callback_sets_for_a_stopped_validation_are_not_saved(model, data, expected, tmp_path):
    """As with `SwapEMAWeights`, which validates with averages."""
    trained_weights = []

    def spoil_weights(logs=None):
        trained_weights[:] = model.get_weights()
        model.set_weights([0.5 * array for array in trained_weights])

    validation = keras.callbacks.LambdaCallback()
    validation.on_test_begin = spoil_weights
    validation.on_test_batch_end = lambda batch, logs=None: os.kill(os.getpid(), signal.SIGTERM)
    validation.on_test_end = lambda logs=None: model.set_weights(trained_weights)
    with pytest.warns(UserWarning, match=f"Stopped by SIGTERM after step {BATCHES}"):
        run(model, data, tmp_path, validation, every=100, validation_data=(data[:11],))
    spy = Spy()
    run(model, data, tmp_path, spy, every=100)
    assert_same(spy.states, expected)


def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.quick_cases("SIGINT-8")
@pytest.mark.parametrize(
    ("name", "at"), [("SIGTERM", 5), ("SIGTERM", 8), ("SIGTERM", 11), ("SIGINT", 5), ("SIGINT", 8)]
)
def test_a_signal_saves_and_stops(model, data, expected, tmp_path, capsys, name, at):
    number = signal.Signals[name]
    former = signal.getsignal(number)
    spy = Spy(at, lambda model: os.kill(os.getpid(), number))
    if name == "SIGTERM":
        with pytest.warns(UserWarning, match=f"Stopped by SIGTERM after step {at}"):
            assert run(model, data, tmp_path, spy, every=100).stopped
    else:
        with pytest.raises(KeyboardInterrupt, match=f"Stopped by Ctrl-C after step {at}: the same `fit` continues"):
            run(model, data, tmp_path, spy, every=100)
        assert "Press Ctrl-C again" in capsys.readouterr().err
    assert signal.getsignal(number) is former
    assert list_states(tmp_path) == [f"step-{at:012d}"]
    spoil(model)
    spy = Spy()
    assert not run(model, data, tmp_path, spy, every=100).stopped
    assert sorted(spy.states) == [*range(at + 1, STEPS + 1)]
    assert_same(spy.states, expected)


@pytest.mark.slow
def test_a_second_control_c_does_not_wait(model, data, interrupted):
    events = []

    def twice(model):
        interrupt()
        events.append("after one")
        interrupt()
        events.append("after two")

    with pytest.raises(KeyboardInterrupt):
        run(model, data, interrupted, Spy(9, twice))
    assert events == ["after one"]
    assert list_states(interrupted)[-1] == "step-000000000008"


@pytest.mark.slow
def test_an_ignored_control_c_remains_ignored(model, data, interrupted):
    """A shell script ignores it for its jobs in the background."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert not run(model, data, interrupted, Spy(7, interrupt)).stopped
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)
    assert list_states(interrupted)[-1] == f"step-{STEPS:012d}"


@pytest.mark.slow
def test_a_state_is_saved_after_some_minutes(model, data, begin, tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(resuming.time, "monotonic", lambda: now[0])

    class Minute(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            now[0] += 60

    def run_and_list_steps(every, minutes):
        begin()
        folder = tmp_path / f"{every} {minutes}"
        checkpoint = ResumableCheckpoint(folder, every, keep=99, minutes=minutes)
        model.fit(data, epochs=EPOCHS, batch_size=5, verbose=0, callbacks=[checkpoint, Minute()])
        return [int(name.removeprefix("step-")) for name in list_states(folder)]

    assert run_and_list_steps(None, 3) == [3, 4, 7, 8, 11, 12]
    assert run_and_list_steps(5, 3.5) == [4, 5, 9, 10, 12]  # 4 ends an epoch, 12 ends the training


@pytest.mark.slow
def test_a_damaged_state_is_skipped(model, data, uninterrupted, interrupted):
    file = interrupted / "step-000000000006" / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    spy = Spy()
    with pytest.warns(UserWarning, match="damaged, and the one before is used: .*000006/state.safetensors was altered"):
        run(model, data, interrupted, spy)
    assert sorted(spy.states) == [*range(5, STEPS + 1)]
    assert_same(spy.states, uninterrupted)
    assert list_states(interrupted) == ["step-000000000010", "step-000000000012"]


def test_a_changed_run_is_refused(tiny, model, data, interrupted):
    with pytest.raises(ValueError, match="holds a run that differs in texts"):
        run(model, data[1:], interrupted)
    with pytest.raises(ValueError, match="order, seed"):
        run(model, data, interrupted, shuffle=False, seed=3)
    with pytest.raises(ValueError, match="saved from another model"):
        run(tiny.masked_lm(rate=0.1), data, interrupted)
    features = {name: np.ones((2, 3), "int32") for name in model.input}
    with pytest.raises(ValueError, match="on a list of texts, documents or encoded sequences"):
        run(model, (batch for batch in [features]), interrupted, steps_per_epoch=1)
    with pytest.raises(ValueError, match="pass `sample_weight`"):
        run(model, data, interrupted, class_weight={0: 1.0})
    with pytest.raises(ValueError, match="`every` must be an integer of at least 1, got 0"):
        ResumableCheckpoint(interrupted, every=0)
    with pytest.raises(ValueError, match="`keep` must be an integer of at least 1, got 0"):
        ResumableCheckpoint(interrupted, keep=0)
    with pytest.raises(ValueError, match="`minutes` must be a number above 0, got nan"):
        ResumableCheckpoint(interrupted, minutes=float("nan"))


def test_only_the_fit_of_a_task_can_be_resumed(model, data, begin, tmp_path):
    """Also if the callback has been used in one."""
    begin()
    other = keras.Sequential([keras.layers.Dense(1)])
    other.compile("sgd", "mse", run_eagerly=True)
    for checkpoint in (ResumableCheckpoint(tmp_path / "unused"), run(model, data, tmp_path / "used", epochs=1)):
        with pytest.raises(ValueError, match=r"ResumableCheckpoint needs the `fit` of a task .* `fit` of Sequential"):
            other.fit(np.ones((3, 2)), np.ones((3, 1)), callbacks=[checkpoint], verbose=0)


@pytest.mark.slow
def test_steps_per_epoch_below_the_number_of_batches(model, begin, tiny, tmp_path):
    encoded = model.preprocessor.encode(tiny.texts(20))
    arguments = {"steps_per_epoch": 3, "every": 1}
    begin()
    spy, resumed = Spy(), Spy()
    run(model, encoded, tmp_path / "whole", spy, **arguments)
    begin()
    with pytest.raises(Interrupted):
        run(model, encoded, tmp_path / "parts", Spy(6), **arguments)
    spoil(model)
    run(model, encoded, tmp_path / "parts", resumed, **arguments)
    assert sorted(resumed.states) == [6, 7, 8, 9]
    assert_same(resumed.states, spy.states)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.tf_only
def test_compiled_training_resumes(tiny, tmp_path):
    model, data, spies = tiny.masked_lm(dropout=0.2, jit_compile=True), tiny.texts(15), (Spy(), Spy())
    run(model, data, tmp_path, spies[0], every=1, keep=99, epochs=2)
    for step in range(4, 7):
        shutil.rmtree(tmp_path / f"step-{step:012d}")
    spoil(model)
    run(model, data, tmp_path, spies[1], every=1, epochs=2)
    assert sorted(spies[1].states) == [4, 5, 6]
    assert_same(spies[1].states, spies[0].states)


@pytest.mark.slow
def test_a_new_model_resumes_training_on_pairs(tiny, tmp_path):
    """Another process would also begin with other weights."""
    texts, spies = tiny.texts(40), []
    documents = [texts[i::7] for i in range(7)]
    for seed in (11, 12):
        model = Pretrainer(tiny.backbone(dropout=0.2, seed=seed), tiny.preprocessor(length=16))
        pairs = segment_pairs(documents, model.preprocessor, "nsp", np.random.default_rng(3), short=0.0)
        pairs = pairs.select(np.flatnonzero(pairs.lengths > 8)[:10])  # of one width
        spies.append(Spy())
        run(model, pairs, tmp_path, spies[-1], every=1, keep=99)
        if seed == 11:
            assert sorted(spies[0].states) == [*range(1, 7)]
            for step in range(4, 7):
                shutil.rmtree(tmp_path / f"step-{step:012d}")
    assert sorted(spies[1].states) == [4, 5, 6]
    assert_same(spies[1].states, spies[0].states)
