"""Columns and tables of Hugging Face's `datasets` and of pandas as data for tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lmzoo import data, models
from lmzoo.families.bert import FAMILY
from lmzoo.testing import tiny_examples, tiny_task
from lmzoo.testing.tiny import public_tasks


class Column(Sequence):
    """Sequence like `dataset["name"]`, which reads its rows on demand and is not a list."""

    def __init__(self, rows):
        self._rows = rows

    def __getitem__(self, key):
        return self._rows[key]

    def __len__(self):
        return len(self._rows)


class Dataset:
    """Table like one of Hugging Face, with names of columns and an array's shape."""

    def __init__(self, **columns):
        self._columns = columns
        self.column_names = list(columns)
        self.shape = (len(next(iter(columns.values()))), len(columns))

    def __getitem__(self, name):
        return Column(self._columns[name])

    def __len__(self):
        return self.shape[0]


PAIRS = {models.QuestionAnswerer, models.TextEmbedder, models.MultipleChoice}
TASKS = [task for task in public_tasks() if task.supports(FAMILY)]


# One task for each kind of input: texts, words, pairs.
QUICK = {models.TextClassifier, models.TokenClassifier, models.QuestionAnswerer}


@pytest.mark.slow_cases("QuestionAnswerer", "TextClassifier", "TokenClassifier")
@pytest.mark.parametrize(
    "task_class", [pytest.param(task, marks=[pytest.mark.slow] * (task not in QUICK)) for task in TASKS]
)
def test_columns_are_read_like_lists(task_class):
    task = tiny_task(task_class, FAMILY)
    task.compile(run_eagerly=True)  # quicker for one batch
    x, y = tiny_examples(task, 5)
    columns = tuple(Column(list(side)) for side in zip(*x, strict=True)) if task_class in PAIRS else Column(x)
    labels = y if y is None else Column(y)
    expected = task.fit(x, y, verbose=0).history["loss"]
    column_task = tiny_task(task_class, FAMILY)
    column_task.compile(run_eagerly=True)
    assert column_task.fit(columns, labels, verbose=0).history["loss"] == expected
    np.testing.assert_array_equal(column_task.encode_inputs(columns).lengths, task.encode_inputs(x).lengths)


@pytest.mark.slow
def test_columns_of_pairs_and_of_label_names_are_read_like_lists():
    task = tiny_task(models.TextClassifier, FAMILY, num_classes=None, labels=["a", "b"])
    task.compile(run_eagerly=True)
    texts, names = ["good film", "bad", "dull plot"], ["a", "b", "a"]
    table = Dataset(text=texts, other=texts[::-1], label=names)
    assert task.evaluate(table["text"], table["label"], verbose=0) == task.evaluate(texts, names, verbose=0)
    pairs = task.evaluate((texts, texts[::-1]), names, verbose=0)
    assert task.evaluate((table["text"], table["other"]), table["label"], verbose=0) == pairs


class Frame:
    """Table like a DataFrame of pandas: an index of names, and columns that iterate over numpy's scalars."""

    def __init__(self, **columns):
        self._columns = {name: np.array(column, object) for name, column in columns.items()}
        self.columns = np.array([*columns], object)

    def __getitem__(self, name):
        return self._columns[name]

    def __len__(self):
        return len(next(iter(self._columns.values())))


TEXTS, NAMES = ["good film", "bad", "dull plot", "never", "a fine film"], ["a", "b", "a", "b", "a"]


@pytest.fixture
def task():
    return tiny_task(models.TextClassifier, FAMILY, num_classes=None, labels=["a", "b"])


@pytest.mark.quick_cases("Dataset")
@pytest.mark.parametrize("table_class", [Frame, Dataset])
def test_from_table_selects_columns_by_name(task, table_class):
    table = table_class(review=TEXTS, title=TEXTS[::-1], stars=NAMES)
    validation = table_class(review=TEXTS[:2], stars=NAMES[:2])
    assert data.from_table(table, "review", "stars") == (TEXTS, NAMES)
    assert data.from_table(table, ("review", "title")) == ((TEXTS, TEXTS[::-1]), None)
    held_out = data.from_table(validation, "review", "stars")
    history = task.fit(*data.from_table(table, "review", "stars"), validation_data=held_out, verbose=0).history
    assert history.keys() >= {"loss", "val_loss"}


def test_from_table_takes_a_list_of_columns_like_a_tuple():
    table = Dataset(review=TEXTS, title=TEXTS[::-1])
    assert data.from_table(table, ["review", "title"]) == ((TEXTS, TEXTS[::-1]), None)


def test_from_table_selects_the_column_text_by_default():
    task = tiny_task(models.MaskedLM, FAMILY)
    table = Dataset(text=TEXTS, label=NAMES)
    assert data.from_table(table) == (TEXTS, None)
    history = task.fit(*data.from_table(table), verbose=0, validation_data=data.from_table(table)).history
    assert history.keys() >= {"loss", "val_loss"}


class Streamed:
    """Table like a streaming dataset of Hugging Face."""

    column_names = ("text", "label")

    def __iter__(self):
        return iter([{"text": "good", "label": "a"}])


class Splits(dict):
    """Dict of tables like all parts of a dataset of Hugging Face."""

    @property
    def column_names(self):
        return {name: table.column_names for name, table in self.items()}


class RepeatedFrame(Frame):
    """Table like a DataFrame of pandas whose columns share a name, so that the name selects a table."""

    def __init__(self, name):
        super().__init__(**{name: TEXTS})
        self.columns = np.repeat(self.columns, 2)

    def __getitem__(self, name):
        return self.columns  # a DataFrame iterates over its names


@pytest.mark.parametrize(
    ("error", "message", "table", "columns"),
    [
        (ValueError, "The table has several columns 'review'. Rename", RepeatedFrame("review"), ("review",)),
        (ValueError, r"no column 'text': pass one of \['review', 'stars'\] as `text`", Frame(review=[], stars=[]), ()),
        (ValueError, "no column 'label': pass one of .* as `label`", Frame(text=[], stars=[]), ("text", "label")),
        (TypeError, "Expected a table in memory, got list", TEXTS, ()),
        (TypeError, "Expected a table in memory, got Streamed.*`lmzoo.data.stream` reads rows", Streamed(), ()),
        (
            TypeError,
            r"got all of \['train', 'test'\]: pass one, such as `data\['train'\]`",
            Splits(train=Dataset(text=TEXTS), test=Dataset(text=TEXTS)),
            (),
        ),
    ],
)
def test_errors_of_from_table(error, message, table, columns):
    with pytest.raises(error, match=message):
        data.from_table(table, *columns)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (Frame(text=TEXTS, label=NAMES), r"\['text', 'label'\]: pass one of them, or what `lmzoo.data.from_table`"),
        (Dataset(text=TEXTS, label=NAMES), r"\['text', 'label'\]: pass one of them, or what `lmzoo.data.from_table`"),
        (Streamed(), r"\['text', 'label'\]: pass what `lmzoo.data.stream` returns"),
    ],
)
def test_whole_tables_are_not_texts(task, table, message):
    for call in (task.fit, task.evaluate, task.predict):
        with pytest.raises(TypeError, match=message):
            call(table, verbose=0)
    with pytest.raises(TypeError, match=f"In `validation_data`: .*{message}"):
        task.fit(TEXTS, NAMES, validation_data=table, verbose=0)


@pytest.mark.tf_only
def test_tensorflow_datasets_of_records_are_refused():
    import tensorflow as tf

    records = tf.data.Dataset.from_tensor_slices({"text": ["good", "bad"], "label": [0, 1]}).batch(2)
    task = tiny_task(models.TextClassifier, FAMILY)
    for dataset in (records, records.map(lambda row: (row, row["label"]))):
        with pytest.raises(TypeError, match=r"records of \['text', 'label'\]: `lmzoo.data.stream` .*\(row\['text'\], "):
            task.evaluate(dataset)
