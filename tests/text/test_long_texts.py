"""Texts in windows, compared with slices by hand and with `tests/reference/squad.py`."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lmzoo.text import Packing, Preprocessor, TextWarning, WordPieceTokenizer
from lmzoo.text.batching import fit_buckets, smallest_bucket
from lmzoo.text.long_texts import check_windows, encode_in_windows, encode_words_in_windows
from tests.reference import squad as reference

LETTERS = "abcdefghijklm"
TOKENIZER = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, *LETTERS, *(f"##{c}" for c in LETTERS)])
PACKING = Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True)
TOKENS = 10  # of a text in a sequence of 12


def preprocessor(length=TOKENS + 2):
    return Preprocessor(TOKENIZER, PACKING, length)


def letters(count, seed=7):
    return " ".join(random.Random(seed).choices(LETTERS, k=count))


def rows(encoded, tokenizer=TOKENIZER):
    """Return the tokens of all windows as strings, one list for each text."""
    flat = encoded.flat()
    windows = [" ".join(map(tokenizer.id_to_token, row)) for row in flat.by_sequence(flat.token_ids)]
    return [windows[begin:end] for begin, end in zip(encoded.splits, encoded.splits[1:], strict=False)]


@pytest.mark.parametrize(("count", "stride"), [(0, None), (10, 3), (11, None), (11, 7), (31, None), (31, 7), (29, 99)])
def test_windows_are_slices_of_the_text(count, stride):
    words = letters(count).split()
    spans = reference.windows(count, TOKENS, stride or TOKENS) or [(0, 0)]
    expected = [" ".join(["[CLS]", *words[begin : begin + size], "[SEP]"]) for begin, size in spans]
    encoded = encode_in_windows(preprocessor(), ["a b", " ".join(words)], stride=stride)
    assert rows(encoded) == [["[CLS] a b [SEP]"], expected]
    assert encoded.lengths.tolist() == [4, 2 + count if len(spans) == 1 else len(spans) * 12]
    assert encoded.token_counts.tolist() == [4, count + 2] or len(spans) > 1


def test_a_text_that_fits_is_the_sequence_without_windows():
    texts = [letters(count, seed=count) for count in (0, 3, TOKENS)]
    plain = preprocessor().encode(texts)
    encoded = encode_in_windows(preprocessor(), texts)
    np.testing.assert_array_equal(encoded.flat().token_ids, plain.token_ids)
    np.testing.assert_array_equal(encoded.lengths, plain.lengths)


def test_the_longer_text_of_a_pair_is_split_and_the_shorter_one_repeated():
    pairs = [("a b", "c d e f g h i j k"), ("c d e f g h i j k", "a b"), ("a b c", "d e f"), ("", "a"), ("c" * 7, "")]
    encoded = encode_in_windows(preprocessor(), *map(list, zip(*pairs, strict=True)), stride=5)
    tail = "".join(" ##c" for _ in range(6))
    assert rows(encoded) == [
        ["[CLS] a b [SEP] c d e f g h i [SEP]", "[CLS] a b [SEP] h i j k [SEP]"],
        ["[CLS] c d e f g h i [SEP] a b [SEP]", "[CLS] h i j k [SEP] a b [SEP]"],
        ["[CLS] a b c [SEP] d e f [SEP]"],
        ["[CLS] [SEP] a [SEP]"],
        [f"[CLS] c{tail} [SEP] [SEP]"],
    ]
    features = encoded.features(preprocessor(), np.array([1, 0]), 24)
    np.testing.assert_array_equal(features["segment_ids"].sum(2), [[3, 3], [8, 5]])  # the second texts, with "[SEP]"


def test_of_two_long_texts_the_shorter_one_is_cut_to_half_a_window():
    with pytest.warns(TextWarning, match="1 of 2 pairs hold two long texts; the shorter one was truncated to 4 tokens"):
        encoded = encode_in_windows(preprocessor(), ["a b c d e f", "a"], ["g h i j k l m", "b"])
    assert rows(encoded)[0] == ["[CLS] a b c d [SEP] g h i j k [SEP]", "[CLS] a b c d [SEP] l m [SEP]"]


def test_a_maximum_of_windows_truncates_with_a_warning():
    texts = [letters(31), letters(20)]
    with pytest.warns(TextWarning, match=r"1 of 2 texts were truncated to 2 windows of 12 tokens \(`windows`\)"):
        encoded = encode_in_windows(preprocessor(), texts, windows=2)
    assert rows(encoded) == [windows[:2] for windows in rows(encode_in_windows(preprocessor(), texts))]


def test_the_prompt_begins_every_window():
    prompt, text = "a b: ", "c d e f g h i j k l m"
    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, *LETTERS, ":"])
    encoded = encode_in_windows(
        Preprocessor(tokenizer, PACKING, TOKENS + 2), [prompt + text, prompt + "c", "c"], prompt=prompt
    )
    assert rows(encoded, tokenizer) == [
        ["[CLS] a b : c d e f g h i [SEP]", "[CLS] a b : j k l m [SEP]"],
        ["[CLS] a b : c [SEP]"],
        ["[CLS] c [SEP]"],
    ]


def test_features_have_an_axis_of_windows_and_padding_for_missing_ones():
    encoded = encode_in_windows(preprocessor(), [letters(3), letters(23), letters(11)])
    features = encoded.features(preprocessor(), np.array([1, 0]), 36)
    assert features["token_ids"].shape == (2, 3, 12)
    np.testing.assert_array_equal(features["padding_mask"].sum(2), [[12, 12, 5], [5, 0, 0]])
    short = encoded.features(preprocessor(), np.array([0]), 7)
    np.testing.assert_array_equal(short["token_ids"][0], features["token_ids"][1, :1, :7])
    selected = encoded.select([2, 0])
    assert rows(selected) == [rows(encoded)[2], rows(encoded)[0]]


def test_outputs_of_windows_are_pooled_and_laid_out_by_text():
    encoded = encode_in_windows(preprocessor(), [letters(3), letters(23), ""])  # windows of 5; 12, 12, 5; 2 tokens
    outputs = np.random.default_rng(3).normal(size=(5, 7)).astype("float32")
    mean = (12 * outputs[1] + 12 * outputs[2] + 5 * outputs[3]) / 29
    np.testing.assert_array_equal(encoded.pool(outputs, "mean")[[0, 2]], outputs[[0, 4]])
    np.testing.assert_allclose(encoded.pool(outputs, "mean")[1], mean, atol=1e-6)
    np.testing.assert_array_equal(encoded.pool(outputs, "max")[1], outputs[1:4].max(0))
    tokens = np.random.default_rng(5).normal(size=(5, 12, 3))
    laid_out = encoded.lay_out(tokens)
    np.testing.assert_array_equal(laid_out[1], tokens[1:4].reshape(36, 3))
    np.testing.assert_array_equal(laid_out[2, :12], tokens[4])
    assert not laid_out[2, 12:].any()


@pytest.mark.parametrize("stride", [None, 1, 3, 10])
def test_words_are_read_in_the_window_with_most_context(stride):
    rng = random.Random(11)
    texts = [["".join(rng.choices(LETTERS, k=rng.randrange(1, 4))) for _ in range(n)] for n in (2, 17, 0, 5, 41)]
    encoded = encode_words_in_windows(preprocessor(), texts, stride=stride)
    ids = encoded.flat().by_sequence(encoded.flat().token_ids)
    for i, words in enumerate(texts):
        tokens = [token for word in TOKENIZER.tokenize_words(words) for token in word]
        spans = reference.windows(len(tokens), TOKENS, stride or 5) or [(0, 0)]
        assert encoded.counts[i] == len(spans)
        window_columns = [divmod(position, 12) for position in encoded.token_positions(i).tolist()]
        assert len(window_columns) == len(tokens)
        for k, (window, column) in enumerate(window_columns):
            assert reference.has_max_context(spans, window, k)
            assert ids[encoded.splits[i] + window][column] == tokens[k]
        assert sorted(window_columns) == window_columns
        starts = np.cumsum([0, *map(len, words)])[:-1]  # each letter is a token
        np.testing.assert_array_equal(
            encoded.first[encoded.word_splits[i] : encoded.word_splits[i + 1]], encoded.token_positions(i)[starts]
        )


def test_words_beyond_the_last_window_have_no_position():
    with pytest.warns(TextWarning, match="1 of 2 texts were truncated to 2 windows"):
        encoded = encode_words_in_windows(preprocessor(), [letters(19), letters(15)], windows=2, stride=5)
    assert (encoded.first[:15] >= 0).all()
    assert encoded.first[15:19].tolist() == [-1] * 4
    assert len(encoded.token_positions(0)) == 15


def test_widths_of_long_texts_are_whole_windows():
    lengths = np.array([5, 9, 13, 26, 26, 65])
    widths = fit_buckets(lengths, 13)
    assert widths[-1] == 65
    assert all(width % 13 == 0 for width in widths if width > 13)
    assert [smallest_bucket([8, 13], longest) for longest in (1, 8, 9, 26)] == [8, 8, 13, 26]
    assert len(fit_buckets(np.array([512 * 400, 3]), 512)) == 2  # no table of all multiples of 8


@pytest.mark.parametrize(
    ("windows", "stride", "argument"),
    [
        ("all", None, "windows"),
        (0, None, "windows"),
        (True, None, "windows"),
        ("auto", 0, "stride"),
        (None, 3, "stride"),
    ],
)
def test_errors_of_settings(windows, stride, argument):
    with pytest.raises(ValueError, match=f"`{argument}` must be"):
        check_windows(windows, stride)
