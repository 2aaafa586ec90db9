"""Streamed examples: the same training as on lists, errors that name files, resumed training."""

from __future__ import annotations

import contextlib
import json
import warnings

import datasets
import grain
import numpy as np
import pytest

from lmzoo import models
from lmzoo.data import examples as examples_module
from lmzoo.data import stream
from lmzoo.data.readers import TableStream
from lmzoo.families.bert import FAMILY
from lmzoo.testing import tiny_examples, tiny_task
from lmzoo.testing.tiny import public_tasks
from lmzoo.training import ResumableCheckpoint
from tests.memory import memory_grows_less_than
from tests.tasks.interruptions import Interrupted, Spy, assert_same, assign, spoil, state_of

COUNT, BATCH = 23, 5


class Rows:
    """Table of a user's own class, which can be read more than once."""

    def __init__(self, rows):
        self._rows = rows

    def __iter__(self):
        return iter(self._rows)

    def __len__(self):
        return len(self._rows)


def make_table(x, y):
    """Return the rows of a table of the examples, and the names of its columns for `stream`."""
    pairs = isinstance(x[0], tuple)
    rows = [{"one": a, "two": b} for a, b in x] if pairs else [{"one": text} for text in x]
    if y is not None:
        rows = [{**row, "right": label} for row, label in zip(rows, y, strict=True)]
    names = {"text": ("one", "two") if pairs else "one"}
    return rows, names if y is None else {**names, "label": "right"}


PAIRS_OR_WORDS = {models.QuestionAnswerer, models.TokenClassifier}
TASKS = [task for task in public_tasks() if task.supports(FAMILY)]
TASKS = [pytest.param(task, marks=[pytest.mark.slow] * (task not in PAIRS_OR_WORDS)) for task in TASKS]


@pytest.mark.slow_cases("QuestionAnswerer", "TokenClassifier")
@pytest.mark.parametrize("task_class", TASKS)
def test_a_stream_of_one_buffer_trains_like_a_list(task_class):
    tasks = [tiny_task(task_class, FAMILY) for _ in range(2)]
    x, y = tiny_examples(tasks[0], COUNT)
    rows, names = make_table(x, y)
    if task_class is models.Pretrainer:  # a document is a list of sentences, not a pair
        rows, names = [{"one": [*document]} for document in x], {"text": "one"}
    steps = {"steps_per_epoch": 4}
    validation = (x[:9],) if y is None else (x[:9], y[:9])
    expected = tasks[0].fit(x, y, BATCH, verbose=0, validation_data=validation, **steps).history
    streamed, held_out = stream(Rows(rows), **names), stream(Rows(rows[:9]), **names)
    history = tasks[1].fit(streamed, batch_size=BATCH, verbose=0, validation_data=held_out, **steps).history
    assert history == expected
    evaluated = [tasks[0].evaluate(x, y, BATCH, verbose=0), tasks[1].evaluate(streamed, None, BATCH, verbose=0)]
    assert evaluated[0] == evaluated[1]


@pytest.fixture(scope="module")
def model():
    task = tiny_task(models.TextClassifier, FAMILY, labels=["a", "b", "c"], num_classes=None, dropout=0.2)
    task.optimizer.build(task.trainable_variables)
    return task


@pytest.fixture(scope="module")
def begin(model):
    """Return a function that restores the initial state of the model, and returns the model."""
    state = state_of(model)

    def restore():
        assign(model, state)
        return model

    return restore


@pytest.fixture
def examples(begin):
    texts, numbers = tiny_examples(begin(), COUNT)
    return texts, ["abc"[i] for i in numbers]


@pytest.fixture
def folder(examples, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    rows = [{"text": text, "label": label, "id": i} for i, (text, label) in enumerate(zip(*examples, strict=True))]
    for i in range(4):
        lines = map(json.dumps, rows[6 * i : 6 * i + 6])
        (folder / f"{i}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def stream_labeled(table, shuffle_buffer=10_000):
    return stream(table, "text", "label", shuffle_buffer)


def test_streamed_files_train_like_a_list(begin, examples, folder):
    streamed, options = stream_labeled(TableStream(folder)), {"batch_size": BATCH, "verbose": 0}
    model = begin()
    expected = [model.fit(*examples, **options, **extra).history for extra in ({"epochs": 2}, {"seed": 3})]
    model = begin()
    assert [model.fit(streamed, **options, **extra).history for extra in ({"epochs": 2}, {"seed": 3})] == expected


@pytest.mark.slow
def test_unshuffled_streams_keep_their_order(begin, examples, folder):
    expected = begin().fit(*examples, 6, verbose=0, shuffle=False).history
    history = begin().fit(stream_labeled(TableStream(folder), 12), batch_size=6, verbose=0, shuffle=False).history
    assert history["loss"] == pytest.approx(expected["loss"], rel=1e-5)  # padded to other widths


# === Resumed training ===


def read_datasets(folder):
    files = sorted(map(str, folder.glob("*.jsonl")))
    stream = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    return stream.shuffle(seed=2, buffer_size=4)  # in another order for each epoch


def read_grain(folder):
    return grain.MapDataset.source(list(TableStream(folder))).shuffle(seed=1).to_iter_dataset()


def read_tensorflow(folder):
    import tensorflow as tf

    rows = list(TableStream(folder))
    columns = {name: [row[name] for row in rows] for name in ("text", "label")}
    return tf.data.Dataset.from_tensor_slices(columns)


STREAMS = [
    TableStream,
    *(pytest.param(read, marks=pytest.mark.slow) for read in (read_datasets, read_grain, read_tensorflow)),
]


@pytest.mark.slow_cases("TableStream")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("read", STREAMS)
def test_interrupted_runs_go_on(begin, folder, tmp_path, read):
    """Interruptions come within a buffer and at its end, in the first epoch and later."""
    arguments = {"batch_size": BATCH, "epochs": 3, "verbose": 0, "steps_per_epoch": 5}
    full_run, resumed_states, model = Spy(), {}, begin()
    checkpoint = ResumableCheckpoint(tmp_path / "whole")
    model.fit(stream_labeled(read(folder), 10), callbacks=[checkpoint, full_run], **arguments)
    assert sorted(full_run.states) == [*range(1, 16)]
    begin()
    for step in (3, 6, 9, None):
        spy, checkpoint = Spy(step), ResumableCheckpoint(tmp_path / "parts", every=2)
        with pytest.raises(Interrupted) if step else contextlib.nullcontext():
            model.fit(stream_labeled(read(folder), 10), callbacks=[checkpoint, spy], **arguments)
        assert_same(spy.states, full_run.states)
        resumed_states |= spy.states
        spoil(model)
    assert sorted(resumed_states) == [*range(1, 16)]
    position = json.loads((tmp_path / "parts" / "step-000000000014" / "position.json").read_text())
    assert position["place"]["step"] in (12, 14)  # the first step of a buffer, possibly of the next one
    with pytest.raises(ValueError, match=r"holds a run that differs in .*shuffle buffer"):
        model.fit(stream_labeled(read(folder), 15), callbacks=[checkpoint], **arguments)


@pytest.mark.slow
def test_runs_on_examples_of_several_sequences_go_on(tmp_path):
    """The number of sequences does not follow from the number of rows."""
    tasks = [tiny_task(models.QuestionAnswerer, FAMILY, doc_stride=2) for _ in range(2)]
    x, y = tiny_examples(tasks[0], COUNT)
    for task in tasks:
        task.preprocessor.sequence_length = 9
    rows, names = make_table(x, y)
    streamed = stream(Rows(rows), **names, shuffle_buffer=10)
    arguments = {"batch_size": BATCH, "verbose": 0, "steps_per_epoch": 9, "epochs": 2}
    uninterrupted, interrupted, resumed = Spy(), Spy(12), Spy()
    tasks[0].fit(streamed, callbacks=[ResumableCheckpoint(tmp_path / "whole"), uninterrupted], **arguments)
    run = ResumableCheckpoint(tmp_path / "parts", every=5)
    with pytest.raises(Interrupted):
        tasks[1].fit(streamed, callbacks=[run, interrupted], **arguments)
    spoil(tasks[1])
    tasks[1].fit(streamed, callbacks=[run, resumed], **arguments)
    assert sorted(resumed.states) == [*range(11, 19)]
    assert_same({**interrupted.states, **resumed.states}, uninterrupted.states)


@pytest.mark.slow
def test_runs_do_not_go_on_with_changed_data(begin, folder, tmp_path):
    run = {"batch_size": BATCH, "verbose": 0, "steps_per_epoch": 3}
    checkpoint = ResumableCheckpoint(tmp_path / "run")
    begin().fit(stream_labeled(TableStream(folder)), callbacks=[checkpoint], **run)
    with (folder / "3.jsonl").open("a") as file:
        file.write('{"text": "more", "label": "a"}\n')
    with pytest.raises(ValueError, match=r"holds a run that differs in .*files"):
        begin().fit(stream_labeled(TableStream(folder)), callbacks=[checkpoint], **run, epochs=2)
    shuffled, checkpoint = read_tensorflow(folder).shuffle(40), ResumableCheckpoint(tmp_path / "other")
    with pytest.raises(ValueError, match="in another order each time it is read"):
        begin().fit(stream_labeled(shuffled), callbacks=[checkpoint], **run)


# === Errors ===


@pytest.mark.quick_cases("100")
@pytest.mark.parametrize("buffer", [10, 100])
def test_errors_name_the_file_and_line(begin, folder, buffer):
    path = folder / "2.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for line, message in [
        ('{"text": "good", "label": "d"}\n', "In .*2.jsonl, line 5: Label 'd' .* is not one of"),
        ('{"text": 3, "label": "a"}\n', r"In .*2.jsonl, line 5: .* must be a string, got 3"),
        ('{"texts": "good", "label": "a"}\n', "2.jsonl, line 5 has no column 'text'.*There are: 'texts', 'label'"),
        ('{"text": "good"}\n', "2.jsonl, line 5 has no column 'label'"),
        ('["good"]\n', "2.jsonl, line 5 is not a JSON object"),
    ]:
        path.write_text("".join([*lines[:4], line, *lines[5:]]))
        with pytest.raises(Exception, match=message):  # from within a dataset, TensorFlow's own error
            begin().fit(stream_labeled(TableStream(folder), buffer), batch_size=BATCH, verbose=0, shuffle=False)
        with pytest.raises(Exception, match=message):
            begin().evaluate(stream_labeled(TableStream(folder)), verbose=0)
    rows = [{"text": "good", "label": "a"}, {"text": "bad", "label": "e"}]
    with pytest.raises(ValueError, match="In row 1 of the stream: Label 'e'"):
        begin().fit(stream_labeled(Rows(rows)), verbose=0)


def test_errors_of_numbers_name_the_file_and_line(tmp_path):
    task = tiny_task(models.TextRegressor, FAMILY)
    (tmp_path / "a.csv").write_text("text,score\ngood,1\nbad,x\n")
    with pytest.raises(TypeError, match=r"In .*a.csv, line 3: Label None"):
        task.fit(stream(TableStream(tmp_path, types={"score": {"1": 1.0}.get}), label="score"), verbose=0)


def test_errors_of_streams_and_their_arguments(begin, folder, examples):
    streamed = stream_labeled(TableStream(folder))
    for error, message, options in [
        (ValueError, "are in a column: pass its name as `label` to `lmzoo.data.stream`", {"y": examples[1]}),
        (ValueError, "takes no `sample_weight`", {"sample_weight": np.ones(COUNT)}),
        (ValueError, "takes no `class_weight`", {"class_weight": {"a": 2.0}}),
        (ValueError, "`validation_split` needs examples in memory", {"validation_split": 0.1}),
    ]:
        with pytest.raises(error, match=message):
            begin().fit(streamed, verbose=0, **options)
    with pytest.raises(ValueError, match=r"this IterableDataset has no known length. Pass `steps_per_epoch`"):
        begin().fit(stream_labeled(read_datasets(folder)), verbose=0)
    with pytest.raises(ValueError, match="needs labels: pass the name of their column as `label`"):
        begin().fit(stream(TableStream(folder)), verbose=0)
    questions = stream(TableStream(folder), ("text", "text"), "label")
    with pytest.raises(ValueError, match=r"may make several sequences of an example. Pass `steps_per_epoch`"):
        tiny_task(models.QuestionAnswerer, FAMILY).fit(questions, verbose=0)
    with pytest.raises(ValueError, match="There are no examples: the stream is empty"):
        begin().fit(stream_labeled(Rows([])), verbose=0)
    with pytest.raises(TypeError, match="row 0 of the stream must be a dict"):
        begin().fit(stream_labeled(Rows(["good"])), verbose=0)
    with pytest.raises(TypeError, match="A report needs texts in memory, got ExampleStream"):
        begin().report(streamed, verbose=0)
    with pytest.raises(TypeError, match="A stream is for `fit` and `evaluate`"):
        begin().predict(streamed, verbose=0)


def test_streams_must_be_readable_more_than_once(folder):
    with pytest.raises(ValueError, match="`shuffle_buffer` must be an integer of at least 1"):
        stream_labeled(TableStream(folder), 0)
    with pytest.raises(TypeError, match=r"can be read again for each epoch, got .*generator"):
        stream(row for row in TableStream(folder))
    with pytest.raises(TypeError, match="can be read again for each epoch, got 3"):
        stream(3)


# === Memory ===


@pytest.mark.slow
def test_training_on_60_mb_of_text_uses_at_most_20_mb_more(begin, tmp_path):
    line = json.dumps({"text": "good " * 1000, "label": "a"}) + "\n"
    with (tmp_path / "a.jsonl").open("w") as file:
        file.writelines(line for _ in range(12_000))
    model, table = begin(), TableStream(tmp_path)
    model.preprocessor.sequence_length = 9
    arguments = {"batch_size": 32, "verbose": 0, "steps_per_epoch": 9}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* texts were truncated to 9 tokens")
        model.fit(stream_labeled(table, 128), **arguments)
        with memory_grows_less_than(20 << 20):
            model.fit(stream_labeled(table, 128), **arguments)
            assert sum(len(part["text"]) for part in table.iter(100)) == table.count_rows() == 12_000


def test_streams_yield_their_texts():
    rows = Rows([{"one": f"a{i}", "two": f"b{i}", "right": i} for i in range(3)])
    assert list(stream(rows, text="one", label="right")) == ["a0", "a1", "a2"]
    assert list(stream(rows, text=("two", "one"))) == [("b0", "a0"), ("b1", "a1"), ("b2", "a2")]
    assert list(stream(rows, text=["two", "one"])) == [("b0", "a0"), ("b1", "a1"), ("b2", "a2")]


def test_long_texts_fill_a_buffer_early(monkeypatch):
    monkeypatch.setattr(examples_module, "_MAX_BUFFER_CHARACTERS", 50)
    rows = Rows([{"text": ["good", "a" * i], "other": "x"} for i in range(23)])
    buffers = list(stream(rows, shuffle_buffer=12).buffers(0, 0, batch_size=3))
    assert [len(buffer) for buffer in buffers] == [9, 6, 3, 3, 2]
    assert [i for buffer in buffers for i, _ in buffer] == [*range(23)]
