"""Choices as rows: their tokens, the rows of each example, errors."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.registry.family import families
from lmzoo.testing import tiny_preprocessor
from lmzoo.text import EncodedChoices, TextWarning
from lmzoo.text.encoded_choices import encode_choices, split_choices

PROMPTS = ["the film was", "", "a dull plot"]
CHOICES = [["good .", "never !"], ["bad"], ["is", "", "fine", "very very very bad ."]]
COUNTS = [2, 1, 4]


@pytest.fixture(scope="module", params=families())
def preprocessor(request):
    return tiny_preprocessor(families()[request.param])


def test_each_choice_is_packed_as_a_pair_with_its_prompt(preprocessor):
    encoded = encode_choices(preprocessor, PROMPTS, CHOICES)
    pairs = [(p, c) for p, row in zip(PROMPTS, CHOICES, strict=True) for c in row]
    expected = preprocessor.encode(*map(list, zip(*pairs, strict=True)))
    np.testing.assert_array_equal(encoded.texts.token_ids, expected.token_ids)
    np.testing.assert_array_equal(encoded.texts.lengths, [*expected.lengths, 0])
    np.testing.assert_array_equal(encoded.texts.second, [*expected.second, 0])
    np.testing.assert_array_equal(encoded.counts, COUNTS)
    np.testing.assert_array_equal(encoded.rows(), [[0, 1, 7, 7], [2, 7, 7, 7], [3, 4, 5, 6]])
    by_example = [expected.lengths[:2].max(), expected.lengths[2], expected.lengths[3:].max()]
    np.testing.assert_array_equal(encoded.lengths, by_example)
    assert len(encoded) == 3


def test_selected_examples(preprocessor):
    encoded = encode_choices(preprocessor, PROMPTS, CHOICES)
    part = encoded.select(np.array([1, 0, 1]))
    assert isinstance(part, EncodedChoices)
    np.testing.assert_array_equal(part.rows(), [[2, 7], [0, 1], [2, 7]])
    np.testing.assert_array_equal(part.lengths, encoded.lengths[[1, 0, 1]])
    np.testing.assert_array_equal(encoded[1:].rows(np.array([1])), [[3, 4, 5, 6]])


def test_no_examples(preprocessor):
    encoded = encode_choices(preprocessor, *split_choices([]))
    assert len(encoded) == 0
    assert encoded.rows().shape == (0, 0)


def test_choices_may_be_lists_of_words():
    preprocessor = tiny_preprocessor(families()["elmo"])
    expected = encode_choices(preprocessor, ["the film", "a"], [["was good", "is"], ["plot"]])
    actual = encode_choices(preprocessor, [["the", "film"], "a"], [[["was", "good"], "is"], [["plot"]]])
    np.testing.assert_array_equal(actual.texts.token_ids, expected.texts.token_ids)


def test_one_warning_per_call():
    preprocessor = tiny_preprocessor(families()["bert"])
    with pytest.warns(TextWarning, match="2 of 6 texts held invalid UTF-8") as caught:
        encode_choices(preprocessor, ["a", b"\xff"], [["b", "c"], [b"\xfe", "d"]])
    assert len(caught) == 1
    preprocessor.sequence_length = 11
    with pytest.warns(TextWarning, match=r"2 of 3 texts were truncated to 11 tokens") as caught:
        encoded = encode_choices(preprocessor, ["the film was good"], [["bad", "was very bad and dull", "is " * 9]])
    assert len(caught) == 1
    assert encoded.lengths.tolist() == [11]


EXAMPLES = [("a", ["b", "c"]), ["d", ("e",)]]


@pytest.mark.parametrize(
    "x",
    [
        EXAMPLES,
        (["a", "d"], [["b", "c"], ("e",)]),
        (np.array(["a", "d"]), [np.array(["b", "c"]), np.array(["e"])]),
        (("a", "d"), (["b", "c"], ["e"])),
    ],
)
def test_forms_of_examples(x):
    prompts, choices = split_choices(x)
    assert list(prompts) == ["a", "d"]
    assert choices == [["b", "c"], ["e"]]


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ("a", TypeError, r"a list of examples \(prompt, choices\), got str"),
        ({"a": ["b"]}, TypeError, "got dict"),
        (np.array([["a", "b"]]), TypeError, "got ndarray"),
        (("a", ["b"]), ValueError, r"Write \[\(prompt, choices\)\] for one example"),
        ((["a"], [["b"]], ["c"]), ValueError, "two columns, .* got 3 entries"),
        ((["a", "b"], [["c"]]), ValueError, "Got 2 prompts but 1 lists of choices"),
        (["a"], ValueError, r"`x\[0\]` must be a pair \(prompt, choices\), got 'a'"),
        ([EXAMPLES[0], ("a", ["b"], "c")], ValueError, r"`x\[1\]` must be a pair"),
        ([EXAMPLES[0], ("a", [])], ValueError, r"`choices\[1\]` is empty: every example needs a choice"),
        ([EXAMPLES[0], ("a", "b")], TypeError, r"`choices\[1\]` must be a list of strings, got 'b'"),
        ([("a", None)], TypeError, r"`choices\[0\]` must be a list of strings, got None"),
    ],
)
def test_errors_of_examples(x, error, message):
    with pytest.raises(error, match=message):
        split_choices(x)


@pytest.mark.parametrize(
    ("prompts", "choices", "message"),
    [
        (["a", None], [["b"], ["c"]], r"`prompts\[1\]` must be a string, got None"),
        (["a", "b"], [["c"], ["d", 3.5]], r"`choices\[1\]\[1\]` must be a string, got 3.5"),
        ([["a", "b"]], [["c"]], r"`prompts\[0\]` must be a string, got \['a', 'b'\]"),
    ],
)
def test_errors_of_texts(prompts, choices, message):
    with pytest.raises(TypeError, match=message):
        encode_choices(tiny_preprocessor(families()["bert"]), prompts, choices)
