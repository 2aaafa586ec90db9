"""Texts as input: accepted types, errors, warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

from lmzoo.text import Preprocessor, TextWarning, WordPieceTokenizer
from lmzoo.text.validate_text import TextWarningFilter, clean_columns, clean_texts, collect_warnings, warn


def warnings_of(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(issubclass(warning.category, TextWarning) for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "texts",
    [
        ["é", "", "b"],
        ("é", "", "b"),
        ["é".encode(), b"", np.bytes_(b"b")],
        [np.str_("é"), "", "b"],
        np.array(["é", "", "b"]),
        np.array(["é", "", "b"], object),
        np.array(["é".encode(), b"", b"b"]),
        (text for text in ["é", "", "b"]),
    ],
    ids=["list", "tuple", "bytes", "numpy strings", "array", "objects", "array of bytes", "generator"],
)
def test_accepted_types(texts: object) -> None:
    assert clean_texts(texts) == ["é", "", "b"]


def test_tensors_of_strings() -> None:
    tf = pytest.importorskip("tensorflow")
    assert clean_texts(tf.constant(["é", "", "b"])) == ["é", "", "b"]
    with pytest.raises(TypeError, match="got one string"):
        clean_texts(tf.constant("é"))


@pytest.mark.parametrize("value", [None, 7, 1.5, float("nan"), ["a"], b"a"[0], bytearray(b"a"), ("a", "b")])
def test_errors_name_the_position(value: object) -> None:
    with pytest.raises(TypeError, match=rf"`reviews\[2\]` must be a string, got .*\({type(value).__name__}\)"):
        clean_texts(["a", "b", value, None], name="reviews")


def test_long_values_are_abbreviated() -> None:
    with pytest.raises(TypeError) as error:
        clean_texts([list(range(9999))])
    assert len(str(error.value)) < 150


@pytest.mark.parametrize("text", ["some text", b"some text", np.array("some text")])
def test_one_string_is_not_a_list(text: object) -> None:
    with pytest.raises(TypeError, match=r"`texts` must be a list of strings, got one string; write \[b?'some text'\]"):
        clean_texts(text)


@pytest.mark.parametrize("value", [None, 3])
def test_other_objects_are_no_list(value: object) -> None:
    with pytest.raises(TypeError, match=r"`texts` must be a list of strings, got (None|3)"):
        clean_texts(value)


class Table(list):
    """Table like a DataFrame: iterating over it yields the names of its columns."""

    columns = ("review", "stars")


@pytest.mark.parametrize("words", [False, True])
def test_a_table_is_not_a_list(words: bool) -> None:
    message = r"^`texts` must be a list of strings, got a table \(Table\)\. Pass one column\.$"
    with pytest.raises(TypeError, match=message):
        clean_columns({"texts": Table(["review", "stars"])}, words)


def test_rows_of_an_array_are_texts_split_into_words() -> None:
    rows = [["a", "b", "c"], ["d", "e", "f"]]
    assert clean_columns({"texts": np.array(rows)}, words=True) == [rows]
    with pytest.raises(TypeError, match=r"`texts\[0\]` must be a string, got \['a', 'b', 'c'\] \(list\)"):
        clean_columns({"texts": np.array(rows)})


INVALID = [
    (b"a\xffb", "a\ufffdb"),
    (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),  # a surrogate written as UTF-8
    (b"\xe2\x82", "\ufffd"),
    ("\ufffd".encode() + b"\xff", "\ufffd\ufffd"),
    ("a\ud800b", "a\ufffdb"),
    ("\udcff\udfff", "\ufffd\ufffd"),
]


@pytest.mark.parametrize(("text", "expected"), INVALID, ids=[ascii(text) for text, _ in INVALID])
def test_invalid_utf8_is_replaced(text: str | bytes, expected: str) -> None:
    with pytest.warns(TextWarning, match="1 of 2 texts held invalid UTF-8"):
        assert clean_texts(["ok", text]) == ["ok", expected]


def test_valid_text_gives_no_warning() -> None:
    texts = ["", "\ufffd", "\ufffd".encode(), "\0", "👍🏽", "\U0010ffff".encode()]
    assert warnings_of(lambda: clean_texts(texts)) == []


def test_one_warning_per_call(make_preprocessor: Callable[..., Preprocessor]) -> None:
    invalid = [b"\xff", "a", "\ud800"]
    preprocessor = make_preprocessor()
    tokenizer: WordPieceTokenizer = preprocessor.tokenizer
    for call in (tokenizer.tokenize, tokenizer.tokenize_with_offsets, preprocessor, clean_texts):
        assert warnings_of(lambda call=call: call(invalid)) == [
            "2 of 3 texts held invalid UTF-8; it was read as U+FFFD."
        ]
    assert warnings_of(lambda: preprocessor((invalid, invalid))) == [
        "4 of 6 texts held invalid UTF-8; it was read as U+FFFD."
    ]
    long_texts = ["a " * 50] * 5
    assert warnings_of(lambda: preprocessor(long_texts)) == [
        "5 of 5 texts were truncated to 11 tokens (`sequence_length`)."
    ]
    assert warnings_of(lambda: preprocessor((long_texts, long_texts))) == [
        "5 of 5 texts were truncated to 11 tokens (`sequence_length`)."
    ]


def test_errors_name_the_argument(make_preprocessor: Callable[..., Preprocessor]) -> None:
    with pytest.raises(TypeError, match=r"`texts\[1\]` must be a string, got None"):
        make_preprocessor()((["a", None], ["a", "b"]))
    with pytest.raises(TypeError, match=r"`pairs\[1\]` must be a string, got 3"):
        make_preprocessor()((["a", "b"], ["a", 3]))
    with pytest.raises(TypeError, match=r"`second` must be a list of strings"):
        clean_columns({"first": ["a"], "second": "a"})


def test_a_repeated_warning_is_shown_again_and_points_at_the_caller(
    make_preprocessor: Callable[..., Preprocessor],
) -> None:
    preprocessor = make_preprocessor()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            preprocessor([b"\xff"])
    assert [warning.filename for warning in caught] == [__file__] * 2


def test_warnings_are_collected_instead_of_issued():
    with collect_warnings() as messages:
        clean_texts([b"caf\xe9", "fine"])
    assert messages == ["1 of 2 texts held invalid UTF-8; it was read as U+FFFD."]
    with pytest.warns(TextWarning, match="1 of 1"):
        clean_texts([b"\xff"])


def test_the_first_warning_for_each_reason_is_issued():
    warning_filter = TextWarningFilter()

    def clean_all():
        for texts in (["fine"], [b"caf\xe9", "fine"], [b"\xff"]):
            with warning_filter.once_per_reason():
                clean_texts(texts)
                warn(f"{len(texts)} texts were truncated to 11 tokens.")
        with warning_filter.once_per_reason():
            warn("1,007 texts were truncated to 13 tokens.")

    assert warnings_of(clean_all) == [
        "1 texts were truncated to 11 tokens.",
        "1 of 2 texts held invalid UTF-8; it was read as U+FFFD.",
    ]
