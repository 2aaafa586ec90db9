"""Several processes train one model: they compute the same as one, continue from states, and name what differs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from lmzoo.parallel import initialize
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone
from tests.parallel import processes_probe
from tests.processes import Ended, copy_vocabulary, run_processes

BACKEND = keras.backend.backend()
jax_only = pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")


def assert_same(actual: Any, expected: Any, place: str = "") -> None:
    """Compare numbers in dicts and lists; dicts are compared by the keys of `actual`."""
    if isinstance(expected, dict):
        assert actual.keys() <= expected.keys()
        for name, value in actual.items():
            assert_same(value, expected[name], f"{place} {name}")
    elif isinstance(expected, list) and not _is_array(expected):
        for i, (item, expected_item) in enumerate(zip(actual, expected, strict=True)):
            assert_same(item, expected_item, f"{place} {i}")
    else:
        np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=1e-5, err_msg=place)


def _is_array(values: list[Any]) -> bool:
    return all(isinstance(value, float) for value in values)


ANOTHER_HAS_ENDED = (
    "Process 0 ends, because another process of the run has ended or cannot be reached. Start all processes again: a "
    "run with saved states continues from the last one."
)


def lines(process: Ended) -> list[str]:
    """Return the lines that a process printed, without log lines of JAX's network and of TensorFlow."""
    logged = re.compile(r"\[Gloo\]|WARNING: All log messages|[IWE]\d{4} ")
    return [line for line in process.output.splitlines() if not logged.match(line)]


def results(ended: list[Ended]) -> list[Any]:
    assert [process.code for process in ended] == [0] * len(ended), ended[0].output[-2000:] + ended[-1].output[-2000:]
    return [process.results for process in ended]


@pytest.mark.slow
@jax_only
@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_compute_what_one_computes(root, tmp_path, count):
    expected = processes_probe.fit()
    assert len(expected["losses"]) == 4
    for actual in results(run_processes(root, tmp_path / "several", count, "fit")):
        assert actual.keys() == expected.keys()
        assert_same(actual, expected)


@jax_only
@pytest.mark.slow  # JAX takes long to notice; `make test` covers a process that leaves
def test_a_killed_process_ends_the_others_and_the_run_continues(root, tmp_path):
    expected = processes_probe.masked_lm(tmp_path / "one")["losses"]
    states = tmp_path / "states"
    first, killed = run_processes(root, tmp_path / "two", 2, "masked_lm", states, 3, 5, "kill 1")
    assert (first.code, killed.code) == (os.EX_TEMPFAIL, -9)
    assert lines(first) == [ANOTHER_HAS_ENDED]
    assert sorted(path.name for path in states.iterdir())[-1] == "step-000000000004"
    main_results, second_results = results(run_processes(root, tmp_path / "two", 2, "masked_lm", states))
    assert main_results["losses"] == second_results["losses"]
    assert [*main_results["losses"]] == ["5", "6", "7", "8", "9"]
    assert_same(main_results["losses"], expected)
    assert (main_results["written"], second_results["written"]) == ([6, 8, 9], [])


@pytest.mark.slow
@jax_only
@pytest.mark.parametrize(("when", "code", "words"), [("before", 1, ["There is no data."]), ("during", 0, [])])
def test_a_process_that_leaves_ends_the_others(root, tmp_path, when, code, words):
    """JAX alone would wait for minutes, and print more."""
    first, second = run_processes(root, tmp_path, 2, "leave", when)
    assert (second.code, lines(second)) == (code, words)
    assert (first.code, lines(first)) == (os.EX_TEMPFAIL, [ANOTHER_HAS_ENDED])


@jax_only
@pytest.mark.slow
def test_differences_between_processes_are_named(root, tmp_path):
    for index in range(2):
        backbone = tiny_backbone(families()["bert"])
        backbone.weights[0].assign(backbone.weights[0] + index)
        backbone.save_to_preset(tmp_path / str(index))
    for index, messages in enumerate(results(run_processes(root, tmp_path / "two", 2, "refusals", tmp_path))):
        assert messages["other_data"].startswith("Process 1 differs from process 0 in texts (")
        assert messages["other_features"].startswith("Process 1 differs from process 0 in content of the batches (")
        assert messages["other_preset"].startswith("Process 1 differs from process 0 in ")
        assert "model.weights.h5 of the preset (" in messages["other_preset"]
        assert messages["first_fails"] == ("Process 0 failed. See its error message." if index else "no text")


@jax_only
@pytest.mark.slow
def test_other_versions_are_refused(root, tmp_path):
    for process in run_processes(root, tmp_path, 2, "other_version"):
        assert process.code == os.EX_TEMPFAIL
        assert process.output.splitlines()[-1] == (
            f"Process 1 differs from process 0 in version of Keras (3.0.0, not {keras.__version__}). All processes of "
            "a run need the same."
        )


@pytest.mark.slow
@jax_only
def test_missing_processes_are_not_waited_for(root, tmp_path):
    (first,) = run_processes(root, tmp_path, 1, "fit", KERAS_DISTRIBUTION_NUM_PROCESSES="2", LMZOO_TEST_TIMEOUT="2")
    assert first.code == os.EX_TEMPFAIL
    assert first.output.startswith("Process 0 has waited 2 seconds for 2 processes to meet at 127.0.0.1:")


@jax_only
def test_wrong_numbers_of_processes_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="`num_processes` must be an integer of at least 1, got 0"):
        initialize("127.0.0.1:1", num_processes=0, process_id=0)
    with pytest.raises(ValueError, match="`process_id` must be an integer from 0 to 1, got 2"):
        initialize("127.0.0.1:1", num_processes=2, process_id=2)
    with pytest.raises(ValueError, match="`timeout` must be a number of seconds above 0, got 0"):
        initialize("127.0.0.1:1", num_processes=2, process_id=1, timeout=0)
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "two")
    with pytest.raises(ValueError, match="KERAS_DISTRIBUTION_NUM_PROCESSES must be an integer, got 'two'"):
        initialize("127.0.0.1:1", process_id=1)


@pytest.mark.tf_only
def test_tensorflow_is_refused():
    with pytest.raises(ValueError, match="on the JAX backend, this is tensorflow: set KERAS_BACKEND=jax"):
        initialize("127.0.0.1:1", num_processes=2, process_id=0)


@jax_only
@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_two_processes_train_tasks_like_one(root, tmp_path, part):
    expected = processes_probe.some_tasks(part)
    for actual in results(run_processes(root, tmp_path / "two", 2, "some_tasks", part)):
        assert actual.keys() == expected.keys()
        assert_same(actual, expected)


@jax_only
@pytest.mark.slow
def test_other_numbers_of_processes_read_the_states(root, tmp_path):
    expected = processes_probe.masked_lm(tmp_path / "one", 6)["losses"]
    states, steps = tmp_path / "states", []
    for count, *stop in ((4, 5, "stop 3"), (2, 11, "stop 1"), (4, 0, "")):
        process_results = results(run_processes(root, tmp_path / "some", count, "masked_lm", states, 6, *stop))
        assert all(process["losses"] == process_results[0]["losses"] for process in process_results)
        assert_same(process_results[0]["losses"], expected)
        steps += process_results[0]["losses"]
    assert steps == [*expected]


@jax_only
@pytest.mark.slow
@pytest.mark.parametrize("devices", ["2x2", "1x4"])
def test_weights_may_be_split_between_devices_and_processes(root, tmp_path, monkeypatch, devices):
    """Two processes have two devices each: a process has all weights, or half of them."""
    expected = processes_probe.masked_lm(tmp_path / "one", 3)["losses"]
    monkeypatch.setenv("XLA_FLAGS", f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2")
    states = tmp_path / "states"
    (beginning, _) = results(run_processes(root, tmp_path / "two", 2, "masked_lm", states, 3, 5, "stop 1", devices))
    rest = processes_probe.masked_lm(states, 3)  # one process also reads the states
    assert [*beginning["losses"], *rest["losses"]] == [*expected]
    assert_same(beginning["losses"] | rest["losses"], expected)


@jax_only
@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "albert", "elmo"])
def test_two_processes_pretrain_like_one(root, tmp_path, family):
    expected = processes_probe.pretraining(family, tmp_path / "one")
    copy_vocabulary(tmp_path / "one.work", tmp_path / "two.work")
    first, second = run_processes(root, tmp_path / "processes", 2, "pretraining", family, tmp_path / "two")
    for actual in results([first, second]):
        assert actual.pop("preset") == expected["preset"]
        assert_same(actual, expected)
    assert "step 6 of 6" in first.output
    assert lines(second) == []


@jax_only
@pytest.mark.slow
def test_the_death_of_the_main_process_ends_the_others(root, tmp_path):
    killed, *survivors = run_processes(root, tmp_path / "four", 4, "masked_lm", tmp_path / "states", 3, 5, "kill 0")
    assert killed.code == -9
    for process in survivors:
        # JAX's own thread may be faster than Python, and prints more.
        assert process.code in (os.EX_TEMPFAIL, -6)
        assert "another process of the run has ended" in process.output or "another task died" in process.output
    assert Path(tmp_path / "states" / "step-000000000004").exists()
