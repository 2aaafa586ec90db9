"""Reading semantic roles in CoNLL-2012's columns, and errors of wrong lines."""

from __future__ import annotations

import gzip
import itertools

import pytest

from lmzoo.data.readers import mark_predicate, read_roles
from lmzoo.text.span_labels import transition_table

HEAD = "#begin document (mine); part 000\n"
SENTENCE = """\
mine 0 0 The   DT (TOP(S(NP* -     -  - - * (ARG0* *      -
mine 0 1 cook  NN *)         -     -  - - * *)     (ARG0* (3)
mine 0 2 who   WP *          -     -  - - * *      *)     -
mine 0 3 sang  VB *          sing  01 - - * *      (V*)   -
mine 0 4 took  VB (VP*       take  02 1 - * (V*    *      -
mine 0 5 up    RP *          -     -  - - * *)     *      -
mine 0 6 #     XX (NP*)      -     -  - - * (ARG1*) *     -
mine 0 7 .     .  *))        -     -  - - * *      *      -
"""
SILENT = "mine 0 0 Silence NN (TOP*) - - - - * -\n\n"
WORDS = ["The", "cook", "who", "sang", "took", "up", "#", "."]


@pytest.fixture
def write(write_file):
    return lambda content: write_file("roles.v4_gold_conll", content)


def test_each_predicate_is_an_example(write):
    x, y = read_roles(write(HEAD + SILENT + SENTENCE + "#end document\n"))
    assert x == [mark_predicate(WORDS, 4), mark_predicate(WORDS, 3)]
    assert x[0][4:6] == ["*", "took"]
    assert y == [
        ["B-ARG0", "I-ARG0", "O", "O", "O", "B-V", "I-V", "B-ARG1", "O"],
        ["O", "B-ARG0", "I-ARG0", "O", "B-V", "O", "O", "O", "O"],
    ]
    labels = sorted({label for row in y for label in row})
    allowed = transition_table(labels)
    assert allowed is not None
    for row in y:  # the constraints of a CRF allow every pair of labels
        ids = [labels.index(label) for label in row]
        assert all(allowed[pair] for pair in itertools.pairwise(ids))
    assert not allowed[labels.index("O"), labels.index("I-ARG0")]


def test_markers_and_archives(write):
    path = write(SENTENCE)
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_roles(path, marker="[V]")[0][1][3] == "[V]"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(V*    *      -", "(V*    *", r"line 5 has 13 columns, other lines of the sentence have 14"),
        ("(V*    ", "V      ", r"line 5, column 11: 'V' does not continue a list of roles"),
        ("(V*    ", "(V*(X* ", r"line 5, column 11: .* does not continue"),
        ("*)     *      -", "*      *      -", r"line 7, column 11: '\(ARG1\*\)' does not continue"),
        ("(ARG0* *      -", "*      *      -", r"line 2, column 11: '\*\)' does not continue"),
        ("(ARG1*) *     -", "(ARG1* *     -", r"line 8, column 11: the role ARG1 has no closing bracket"),
        ("(V*)   -", "(X*)   -", r"line 1: no word of the sentence is the predicate, \(V\*\), in column 12"),
    ],
)
def test_wrong_lines_are_named(write, old, new, message):
    assert old in SENTENCE
    with pytest.raises(ValueError, match=message):
        read_roles(write(SENTENCE.replace(old, new)))


def test_files_without_roles(write):
    with pytest.raises(ValueError, match="holds no predicates"):
        read_roles(write(SILENT))
    with pytest.raises(ValueError, match="line 1 has 2 columns; CoNLL-2012's format has at least 12"):
        read_roles(write("Ada B-PER\n"))
    with pytest.raises(ValueError, match="`index` must be an integer from 0 to 7, got 8"):
        mark_predicate(WORDS, 8)


def test_predicates_are_marked_in_lists_of_words():
    assert mark_predicate(("Ada", "wrote"), 1) == ["Ada", "*", "wrote"]
    with pytest.raises(TypeError, match="`words` must be a list of strings, got one string"):
        mark_predicate("Ada wrote", 1)
    with pytest.raises(TypeError, match=r"`words\[1\]` must be a string, got 3"):
        mark_predicate(["Ada", 3], 1)
