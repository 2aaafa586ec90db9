"""Marian's tokenizer as TensorFlow ops: the same ids as in Python for every string."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from lmzoo.data.corpora import train_joint_tokenizer  # noqa: E402
from lmzoo.text import MarianTokenizer, TextWarning  # noqa: E402
from lmzoo.text.graphs import graph_detokenizer, graph_tokenizer  # noqa: E402
from tests.text.varied import EVERY_CODE_POINT, SAYINGS, sizes, varied_texts  # noqa: E402

PARTS = ["</s>", "<pad>", "<unk>", "<s", ">>deu<<", ">>deu<<>>deu<<", ">>fra<<", ">>", "<<", "deu", "▁", "a", "é", "\n"]
NULLS = ["\0", "a\0", "\0a", "a \0 b", "\0\0", "</s>\0", ">>deu<<\0a"]


def make_texts(count: int) -> list[str | bytes]:
    return [*NULLS, *varied_texts(count, 1307, PARTS)]


@pytest.fixture(scope="module")
def tokenizer() -> MarianTokenizer:
    texts = [" ".join(SAYINGS[i::7]) for i in range(7)] * 9
    model = train_joint_tokenizer(texts, PARTS, 601)
    return MarianTokenizer(model.model, None, [*model.vocabulary, ">>deu<<"])


@pytest.mark.parametrize("count", sizes(14_000))
def test_ids_and_texts_equal_the_python_path(tokenizer: MarianTokenizer, count: int) -> None:
    texts = make_texts(count)
    with pytest.warns(TextWarning, match="invalid UTF-8"):
        ids = tokenizer.tokenize(texts)
    actual = graph_tokenizer(tokenizer)(tf.constant(texts)).to_list()
    for text, row, expected in zip(texts, actual, ids, strict=True):
        assert row == expected, repr(text)
    outputs = graph_detokenizer(tokenizer)(tf.ragged.constant(ids, dtype="int32")).numpy()
    assert [text.decode() for text in outputs] == tokenizer.detokenize(ids)


@EVERY_CODE_POINT
def test_every_code_point(tokenizer: MarianTokenizer, codes: list[str]) -> None:
    texts = [f"{code}a{code} b" for code in codes]
    assert graph_tokenizer(tokenizer)(tf.constant(texts)).to_list() == tokenizer.tokenize(texts)


def test_the_longest_of_tokens_with_the_same_beginning() -> None:
    model = train_joint_tokenizer(["a film", "the film"] * 9, ["ein Film"] * 9, 31)
    other_tokens = ("@user", "@user1")
    model = MarianTokenizer(model.model, None, [*model.vocabulary, *other_tokens], other_tokens=other_tokens)
    texts = ["the @user1 film", "@user @user1@user"]
    ids = model.tokenize(texts)
    assert [[i for i in row if i >= 31] for row in ids] == [[32], [31, 32, 31]]
    assert graph_tokenizer(model)(tf.constant(texts)).to_list() == ids


def test_long_texts_are_trained_on() -> None:
    texts = ["a film", "the film", "zebra quokka " * 400]
    model = train_joint_tokenizer(texts, ["ein Film"] * 9, 41)
    assert model.token_to_id(model.unk_token) not in model.tokenize(["zebra quokka"])[0]


def test_only_spaces_are_stripped_from_texts() -> None:
    model = train_joint_tokenizer(["a film", "the film"] * 9, ["ein Film"] * 9, 31)
    model = MarianTokenizer(model.model, None, [*model.vocabulary, "▁\n"])
    ids = [model.token_to_id("▁"), 31]
    assert model.detokenize(ids) == "\n"
    assert graph_detokenizer(model)(tf.ragged.constant([ids], dtype="int32")).numpy().tolist() == [b"\n"]


def test_a_model_without_languages() -> None:
    model = train_joint_tokenizer(["a film", "the film"] * 9, ["ein Film"] * 9, 31)
    texts = [">>deu<<a film", "the film</s>"]
    assert graph_tokenizer(model)(tf.constant(texts)).to_list() == model.tokenize(texts)
