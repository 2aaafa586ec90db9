"""Columns of Hugging Face's `datasets`, which are sequences of their own kind, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lmzoo import models
from lmzoo.families.bert import FAMILY
from lmzoo.testing import tiny_examples, tiny_task


class Column(Sequence):
    """What `dataset["name"]` is: it reads its rows when asked, and is no list."""

    def __init__(self, rows):
        self._rows = rows

    def __getitem__(self, key):
        return self._rows[key]

    def __len__(self):
        return len(self._rows)


class Dataset:
    """What is said of a whole one: it has names of columns, and a shape like an array."""

    def __init__(self, **columns):
        self._columns = columns
        self.column_names = list(columns)
        self.shape = (len(next(iter(columns.values()))), len(columns))

    def __getitem__(self, name):
        return Column(self._columns[name])


PAIRS = {models.QuestionAnswerer, models.TextEmbedder, models.MultipleChoice}
TASKS = [getattr(models, name) for name in models.__all__ if "Backbone" not in name and name != "Task"]
TASKS = [task for task in TASKS if task.supports(FAMILY)]


# One of each kind of input: texts, words, pairs.
QUICK = {models.TextClassifier, models.TokenClassifier, models.QuestionAnswerer}


@pytest.mark.parametrize(
    "task_class", [pytest.param(task, marks=[pytest.mark.slow] * (task not in QUICK)) for task in TASKS]
)
def test_columns_are_as_good_as_lists(task_class):
    task = tiny_task(task_class, FAMILY)
    task.compile(run_eagerly=True)  # quicker for one batch
    x, y = tiny_examples(task, 5)
    columns = tuple(Column(list(side)) for side in zip(*x, strict=True)) if task_class in PAIRS else Column(x)
    labels = y if y is None else Column(y)
    expected = task.fit(x, y, verbose=0).history["loss"]
    again = tiny_task(task_class, FAMILY)
    again.compile(run_eagerly=True)
    assert again.fit(columns, labels, verbose=0).history["loss"] == expected
    np.testing.assert_array_equal(again.encode_inputs(columns).lengths, task.encode_inputs(x).lengths)


def test_names_of_classes_and_pairs():
    task = tiny_task(models.TextClassifier, FAMILY, num_classes=None, labels=["a", "b"])
    task.compile(run_eagerly=True)
    texts, names = ["good film", "bad", "dull plot"], ["a", "b", "a"]
    data = Dataset(text=texts, other=texts[::-1], label=names)
    assert task.evaluate(data["text"], data["label"], verbose=0) == task.evaluate(texts, names, verbose=0)
    pairs = task.evaluate((texts, texts[::-1]), names, verbose=0)
    assert task.evaluate((data["text"], data["other"]), data["label"], verbose=0) == pairs


def test_a_whole_dataset_is_told_from_a_column():
    task = tiny_task(models.TextClassifier, FAMILY)
    data = Dataset(text=["good"], label=[0])
    for call in (task.fit, task.evaluate, task.predict):
        with pytest.raises(TypeError, match=r"got a table: pass one column, or two for pairs, of \['text', 'label'\]"):
            call(data)


@pytest.mark.tf_only
def test_a_dataset_of_records_is_told_from_one_of_tuples():
    import tensorflow as tf

    records = tf.data.Dataset.from_tensor_slices({"text": ["good", "bad"], "label": [0, 1]}).batch(2)
    task = tiny_task(models.TextClassifier, FAMILY)
    for data in (records, records.map(lambda row: (row, row["label"]))):
        with pytest.raises(
            TypeError, match=r"records of \['text', 'label'\]: select .*lambda row: \(row\['text'\], \.\.\.\)"
        ):
            task.evaluate(data)
