"""Reading multiple choice: SWAG's columns, other columns, errors, and public datasets."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from lmzoo.data.readers import read_choices

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
SWAG = (
    HEADER
    + '3,lsmdc,17,"A man, old, sits. He","A man, old, sits.",He,gold,"flies, away.",opens a book.,is a tree.,rains.,1\n'
    + "5,anetv_a,19,It is late. Someone,It is late.,Someone,gen,sings.,goes home.,is green.,melts.,3\n"
)


@pytest.fixture
def write(write_file):
    return lambda content, name="swag.csv": write_file(name, content)


def test_columns_of_swag(write):
    x, y = read_choices(write(SWAG))
    assert x == [
        ("A man, old, sits.", ["He flies, away.", "He opens a book.", "He is a tree.", "He rains."]),
        ("It is late.", ["Someone sings.", "Someone goes home.", "Someone is green.", "Someone melts."]),
    ]
    assert y == [1, 3]
    assert read_choices(write(SWAG), label=None) == (x, None)


def test_other_columns(write):
    path = write("c,q,a,b,right\nOne.,Who?,Ada,Bob,B\nTwo.,Why?,so,no,A\n")
    x, y = read_choices(path, prompt=("c", "q"), start=None, choices=("a", "b"), label="right")
    assert x == [("One. Who?", ["Ada", "Bob"]), ("Two. Why?", ["so", "no"])]
    assert y == [1, 0]
    by_number = read_choices(path, prompt=0, start=None, choices=(2, 3), label=-1)
    assert by_number == ([("One.", ["Ada", "Bob"]), ("Two.", ["so", "no"])], y)


def test_lists_of_choices_of_any_length(write):
    rows = [{"p": "One.", "c": ["a", "b", "c"], "n": 2}, {"p": "Two.", "c": ["d", "e"], "n": 0}]
    path = write("\n".join(map(json.dumps, rows)), "rows.jsonl")
    x, y = read_choices(path, prompt="p", start=None, choices="c", label="n")
    assert x == [("One.", ["a", "b", "c"]), ("Two.", ["d", "e"])]
    assert y == [2, 0]
    path = write("\n".join(map(json.dumps, [rows[0], {**rows[1], "n": 2}])), "rows.jsonl")
    with pytest.raises(ValueError, match=r"jsonl, line 2: the label '2' is unknown\. There are: '0', '1', 'A', 'B'"):
        read_choices(path, prompt="p", start=None, choices="c", label="n")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",3\n", ",4\n", "swag.csv, line 3: the label '4' is unknown"),
        (",3\n", ",\n", "swag.csv, line 3: the label is missing"),
        ("melts.,3", "melts.", "swag.csv, line 3, read as csv, has 11 cells, the first line has 12"),
        ("sent2", "sent", "has no column 'sent2'. Did you mean 'sent'"),
    ],
)
def test_errors_of_cells(write, old, new, message):
    with pytest.raises(ValueError, match=message):
        read_choices(write(SWAG.replace(old, new)))


def test_choices_must_be_a_list(write):
    path = write(json.dumps({"p": "One.", "c": "a or b"}), "rows.jsonl")
    with pytest.raises(ValueError, match="line 1: 'c' must be a list of strings, got 'a or b'"):
        read_choices(path, prompt="p", start=None, choices="c", label=None)


MUTUAL = {"prompt": "article", "choices": "options", "label": "answers"}
COSMOS = {"prompt": ("context", "question"), "choices": tuple(f"answer{i}" for i in range(4))}


@pytest.mark.parametrize(
    ("file", "count", "arguments"),
    [("mc_mutual/mutual_train.decontam.jsonl.gz", 7061, MUTUAL), ("mc_cosmosqa/valid.open.csv.gz", 2197, COSMOS)],
)
def test_public_datasets(shared, file, count, arguments):
    x, y = read_choices(shared(f"data/{file}"), start=None, **arguments)
    assert len(x) == len(y) == count
    assert {len(choices) for _, choices in x} == {4}
    assert set(Counter(y)) == {0, 1, 2, 3}
