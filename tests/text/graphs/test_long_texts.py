"""Windows over long texts as TensorFlow ops: the same as in Python."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from lmzoo.text import CharacterTokenizer, Packing, Preprocessor, TextWarning, WordPieceTokenizer  # noqa: E402
from lmzoo.text.graphs.long_texts import LongTextGraph, LongWordsGraph, pool_windows  # noqa: E402
from lmzoo.text.long_texts import encode_in_windows, encode_words_in_windows  # noqa: E402

LETTERS = "abcdefghijklm"
WORDPIECE = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, *LETTERS, *(f"##{c}" for c in LETTERS)])
PACKINGS = {
    "bert": (WORDPIECE, Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True)),
    "xlnet": (WORDPIECE, Packing("", "[SEP]", ("[SEP]",), segments=True, last="[CLS]")),
    "elmo": (CharacterTokenizer(), Packing("", "", (), segments=False)),
}


def texts(seed):
    rng = random.Random(seed)
    words = ("".join(rng.choices(LETTERS, k=rng.choice((1, 1, 3)))) for _ in iter(int, 1))
    return [" ".join(next(words) for _ in range(n)) for n in (3, 10, 11, 0, 37, 5)]


def quietly(function, *arguments, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TextWarning)
        return function(*arguments, **settings)


@pytest.mark.slow_cases("2-bert-auto-None", "2-xlnet-2-3")
@pytest.mark.parametrize(
    ("family", "windows", "stride"), [("bert", "auto", None), ("xlnet", 2, 3), ("elmo", "auto", 5)]
)
@pytest.mark.parametrize("columns", [1, 2])
def test_windows_of_texts_are_those_of_python(family, windows, stride, columns):
    preprocessor = Preprocessor(*PACKINGS[family], 13)
    inputs = [texts(seed)[::step] for seed, step in ((1, 1), (2, -1))][:columns]
    for prompt in ("", "b a "):
        prompted = [[prompt + text for text in inputs[0]], *inputs[1:]]
        encoded = quietly(encode_in_windows, preprocessor, *prompted, windows=windows, stride=stride, prompt=prompt)
        flat = encoded.flat()
        expected = preprocessor.features(flat, np.arange(len(flat)), int(flat.lengths.max()))
        result = LongTextGraph(preprocessor, windows, stride)(*map(tf.constant, inputs), prompt=prompt)
        np.testing.assert_array_equal(result.pop("text"), np.repeat(np.arange(len(encoded)), encoded.counts))
        np.testing.assert_array_equal(result.pop("length"), flat.lengths)
        truncated = result.pop("truncated").numpy()
        assert truncated.any() == (windows == 2 or columns == 2)
        assert result.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(result[name], values, name)


@pytest.mark.slow_cases("bert-auto-None")
@pytest.mark.parametrize(
    ("family", "windows", "stride"), [("bert", "auto", None), ("xlnet", 2, 3), ("elmo", "auto", 13)]
)
def test_windows_of_words_are_those_of_python(family, windows, stride):
    preprocessor = Preprocessor(*PACKINGS[family], 13)
    encoded = quietly(encode_words_in_windows, preprocessor, texts(3), windows, stride)
    flat = encoded.flat()
    expected = preprocessor.features(flat, np.arange(len(flat)), int(flat.lengths.max()))
    result = LongWordsGraph(preprocessor, windows, stride)(tf.constant(texts(3)))
    for name, values in expected.items():
        np.testing.assert_array_equal(result[name], values, name)
    is_kept = encoded.first >= 0
    assert is_kept.all() == (windows == "auto")
    text = np.repeat(np.arange(len(encoded)), np.diff(encoded.word_splits))[is_kept]
    window, position = divmod(encoded.first[is_kept], 13)
    np.testing.assert_array_equal(result["place"], np.stack([encoded.splits[text] + window, position], axis=1))
    spans = np.array([(start, end) for words in encoded.words for _, start, end in words])[is_kept]
    np.testing.assert_array_equal(result["span"].values, spans)
    assert result["truncated"].numpy().tolist() == [(encoded.first[a:b] < 0).any() for a, b in _ends(encoded)]


def _ends(encoded):
    return list(zip(encoded.word_splits, encoded.word_splits[1:], strict=False))


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_windows_are_pooled_as_in_python(pooling):
    encoded = encode_in_windows(Preprocessor(*PACKINGS["elmo"], 13), texts(5))  # one of the texts has no tokens
    flat = encoded.flat()
    outputs = np.random.default_rng(1).normal(size=(len(flat), 5)).astype("float32")
    text = np.repeat(np.arange(len(encoded)), encoded.counts)
    result = pool_windows(tf.constant(outputs), tf.constant(text), tf.constant(flat.lengths), pooling)
    np.testing.assert_allclose(result, encoded.pool(outputs, pooling), atol=1e-6)
