"""Columns of Hugging Face's `datasets`, which are sequences of their own kind, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lmzoo import models
from lmzoo.families.bert import FAMILY
from lmzoo.testing import tiny_examples, tiny_task
from lmzoo.testing.tiny import public_tasks


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

    def __len__(self):
        return self.shape[0]


PAIRS = {models.QuestionAnswerer, models.TextEmbedder, models.MultipleChoice}
TASKS = [task for task in public_tasks() if task.supports(FAMILY)]


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


class Frame:
    """A DataFrame of pandas, as far as it is used: an index of names, and columns that iterate over numpy's scalars."""

    def __init__(self, **columns):
        self._columns = {name: np.array(column, object) for name, column in columns.items()}
        self.columns = np.array([*columns], object)

    def __getitem__(self, name):
        return self._columns[name]

    def __len__(self):
        return len(next(iter(self._columns.values())))


TEXTS, NAMES = ["good film", "bad", "dull plot", "never", "a fine film"], ["a", "b", "a", "b", "a"]


@pytest.fixture
def task(eager):
    return tiny_task(models.TextClassifier, FAMILY, num_classes=None, labels=["a", "b"])


@pytest.mark.parametrize("kind", [Frame, Dataset])
def test_columns_of_a_table_are_named(task, kind):
    table, validation = (kind(review=t, title=t[::-1], stars=n) for t, n in ((TEXTS, NAMES), (TEXTS[:2], NAMES[:2])))
    options = {"verbose": 0, "shuffle": False}
    weights = task.get_weights()
    found = task.fit(table, text="review", label="stars", validation_data=validation, **options).history
    task.set_weights(weights)
    task.compile()
    assert found == task.fit(TEXTS, NAMES, validation_data=(TEXTS[:2], NAMES[:2]), **options).history
    assert task.evaluate(table, text="review", label="stars", verbose=0) == task.evaluate(TEXTS, NAMES, verbose=0)
    pairs = task.evaluate((TEXTS, TEXTS[::-1]), NAMES, verbose=0)
    assert task.evaluate(table, text=("review", "title"), label="stars", verbose=0) == pairs
    assert task.evaluate(table, NAMES, text=("review", "title"), verbose=0) == pairs
    assert task.report(table, text="review", label="stars", verbose=0) == task.report(TEXTS, NAMES, verbose=0)


def test_columns_have_the_command_lines_names_by_default(task, eager):
    table = Dataset(text=TEXTS, label=NAMES)
    assert task.evaluate(table, verbose=0) == task.evaluate(TEXTS, NAMES, verbose=0)
    unlabelled = tiny_task(models.MaskedLM, FAMILY)
    seen = unlabelled.fit(table, verbose=0, validation_data=table).history
    assert seen.keys() >= {"loss", "val_loss"}


def test_wrong_columns_are_errors_before_the_first_step(task):
    table = Frame(review=TEXTS, stars=NAMES)
    cases = [
        (ValueError, r"The table has no column 'text': pass one of \['review', 'stars'\] as `text`", table, {}),
        (ValueError, r"no column 'label': pass one of .* as `label`", table, {"text": "review"}),
        (ValueError, "not both", table, {"text": "review", "label": "stars", "y": NAMES}),
        (TypeError, "name columns of a table, got list instead", TEXTS, {"text": "review"}),
        (TypeError, "name columns of a table, got list instead", TEXTS, {"label": "stars", "y": NAMES}),
    ]
    for error, message, x, options in cases:
        for call in (task.fit, task.evaluate, task.report):
            with pytest.raises(error, match=message):
                call(x, **options)
    with pytest.raises(ValueError, match="In `validation_data`: The table has no column 'review'"):
        task.fit(table, text="review", label="stars", validation_data=Frame(text=TEXTS, stars=NAMES))


def test_other_things_with_columns(task):
    class Streamed:
        column_names = ("text", "label")

        def __iter__(self):
            return iter([{"text": "good", "label": "a"}])

    class Splits(dict):
        @property
        def column_names(self):
            return {name: table.column_names for name, table in self.items()}

    with pytest.raises(ValueError, match=r"Pass `steps_per_epoch`, .*: this Streamed has no known length"):
        task.fit(Streamed())
    with pytest.raises(TypeError, match=r"got all of \['train', 'test'\]: pass one, such as `data\['train'\]`"):
        task.fit(Splits(train=Dataset(text=TEXTS, label=NAMES), test=Dataset(text=TEXTS, label=NAMES)))


def test_a_whole_dataset_is_told_from_a_column():
    task = tiny_task(models.TextClassifier, FAMILY)
    data = Dataset(text=["good"], label=[0])
    with pytest.raises(TypeError, match=r"got a table: pass one column, or two for pairs, of \['text', 'label'\]"):
        task.predict(data)


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
