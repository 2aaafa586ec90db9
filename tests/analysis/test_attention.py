"""Attention scores, their statistics, and the page that shows them."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

from lmzoo.analysis import Attention, attention, head_statistics, join_words, write_attention
from lmzoo.families.bert import FAMILY
from lmzoo.models import Seq2SeqLM, TextClassifier, TextEmbedder
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from tests.analysis.html_page import Page

TEXTS = ["the film was good", "a", "the plot was never dull ."]
WITH_ATTENTION = [family for family in families().values() if hasattr(family.backbone, "attention_scores")]


@pytest.fixture(scope="module")
def task():
    """Return a task that tests must not change."""
    return tiny_task(TextClassifier, FAMILY)


def random_attention(texts, tokens, offsets, segments, seed=3):
    scores = np.random.default_rng(seed).random((2, 3, len(tokens), len(tokens)))
    return Attention(texts, tokens, np.array(offsets), np.array(segments), scores / scores.sum(axis=-1, keepdims=True))


@pytest.mark.quick_cases("t5_encoder")
@pytest.mark.parametrize("family", WITH_ATTENTION, ids=lambda family: family.name)
def test_scores_equal_those_of_the_backbone(family):
    """Each text is read alone, and rows sum to 1."""
    backbone, preprocessor = tiny_backbone(family), tiny_preprocessor(family)
    attentions = attention(backbone, TEXTS, batch_size=2, preprocessor=preprocessor)
    assert len(attentions) == len(TEXTS)
    for text, text_attention in zip(TEXTS, attentions, strict=True):
        features = preprocessor([text])
        expected = np.stack([keras.ops.convert_to_numpy(x)[0] for x in backbone.attention_scores(features)])
        assert text_attention.scores.shape == expected.shape
        assert expected.shape[2:] == (len(text_attention.tokens), len(text_attention.tokens))
        np.testing.assert_allclose(text_attention.scores, expected, atol=1e-5)
        np.testing.assert_allclose(text_attention.scores.sum(axis=-1), 1, atol=1e-5)
        ids = [preprocessor.tokenizer.token_to_id(token) for token in text_attention.tokens]
        assert ids == features["token_ids"][0].tolist()
        assert text_attention.texts == (text,)


def test_tokens_have_their_places_in_the_texts(task):
    (pair_attention,) = attention(task, [("the film", "was good .")])
    assert pair_attention.tokens == ["[CLS]", "the", "film", "[SEP]", "was", "good", ".", "[SEP]"]
    assert pair_attention.segments.tolist() == [-1, 0, 0, -1, 1, 1, 1, -1]
    places = zip(pair_attention.segments, pair_attention.offsets, strict=True)
    tokens = [pair_attention.texts[s][start:end] for s, (start, end) in places if s >= 0]
    assert tokens == ["the", "film", "was", "good", "."]
    assert pair_attention.offsets[pair_attention.segments < 0].tolist() == [[-1, -1]] * 3


def test_words_pay_the_mean_and_get_the_sum_of_their_tokens_attention():
    by_tokens = random_attention(("unlike it",), ["[CLS]", "un", "##like", "it", "[SEP]"],
                             [(-1, -1), (0, 2), (2, 6), (7, 9), (-1, -1)], [-1, 0, 0, 0, -1])  # fmt: skip
    by_words = join_words(by_tokens)
    assert by_words.tokens == ["[CLS]", "unlike", "it", "[SEP]"]
    assert by_words.offsets.tolist() == [[-1, -1], [0, 6], [7, 9], [-1, -1]]
    assert by_words.segments.tolist() == [-1, 0, 0, -1]
    np.testing.assert_allclose(by_words.scores.sum(axis=-1), 1, atol=1e-6)
    np.testing.assert_allclose(by_words.scores[..., 2, 1], by_tokens.scores[..., 3, 1:3].sum(-1), rtol=1e-6)
    np.testing.assert_allclose(by_words.scores[..., 1, 3], by_tokens.scores[..., 1:3, 4].mean(-1), rtol=1e-6)


def test_statistics_are_means_over_all_tokens():
    first = random_attention(("a b",), ["[CLS]", "a", "b"], [(-1, -1), (0, 1), (2, 3)], [-1, 0, 0])
    second = random_attention(("c",), ["[CLS]", "c"], [(-1, -1), (0, 1)], [-1, 0], seed=5)
    statistics = head_statistics([first, second])
    rows = [(text.scores[1, 2, i], i, text.segments) for text in (first, second) for i in range(len(text.tokens))]
    distance = [sum(p * abs(i - j) for j, p in enumerate(row)) for row, i, _ in rows]
    entropy = [-sum(p * np.log(p) for p in row) for row, _, _ in rows]
    special = [row[segments < 0].sum() for row, _, segments in rows]
    assert np.array_equal(head_statistics([first, second], special="[CLS]").special, statistics.special)
    with pytest.raises(ValueError, match=r"`special` must be one of \[CLS\], got 'a'"):
        head_statistics([first, second], special="a")
    for actual, expected in zip(statistics, (distance, entropy, special), strict=True):
        assert actual.shape == (2, 3)
        assert actual[1, 2] == pytest.approx(np.mean(expected))


def test_wrong_models_texts_and_pages_are_refused(task, tmp_path):
    with pytest.raises(TypeError, match="ElmoBackbone has no attention"):
        attention(tiny_task(TextEmbedder, families()["elmo"]), TEXTS)
    with pytest.raises(ValueError, match="without a preprocessor cannot read texts: pass `preprocessor`"):
        attention(task.backbone, TEXTS)
    with pytest.raises(TypeError, match="Expected a task or a backbone"):
        attention("bert_nano_en_uncased", TEXTS)
    with pytest.raises(ValueError, match=r"reads a source and a target, .*Seq2SeqLM\.source_attention"):
        attention(tiny_task(Seq2SeqLM, families()["marian"]), TEXTS)
    with pytest.raises(ValueError, match="`texts` is empty"):
        attention(task, [])
    with pytest.raises(TypeError, match=r"texts\[1\]"):
        attention(task, ["a", None])
    with pytest.raises(ValueError, match="There is no attention"):
        head_statistics([])
    empty = random_attention(("",), [], np.zeros((0, 2)), np.zeros(0, "int64"))
    with pytest.raises(ValueError, match=r"the texts have no tokens\. Pass a text that is not empty"):
        head_statistics([empty, empty])
    one_token = random_attention(("a",), ["a"], [(0, 1)], [0])
    np.testing.assert_array_equal(head_statistics([empty, one_token]).distance, np.zeros((2, 3)))
    with pytest.raises(ValueError, match="There is no attention"):
        write_attention(tmp_path / "page.html", [])
    long = random_attention(("a " * 257,), ["a"] * 257, [(2 * i, 2 * i + 1) for i in range(257)], [0] * 257)
    with pytest.raises(ValueError, match="Text 0 has 257 tokens: the page shows at most 256"):
        write_attention(tmp_path / "page.html", [long])
    wide = random_attention(("a " * 250,), ["a"] * 250, [(2 * i, 2 * i + 1) for i in range(250)], [0] * 250)
    with pytest.raises(ValueError, match=r"The page would have 3\.0 MB"):
        write_attention(tmp_path / "page.html", [wide] * 2)
    assert not list(tmp_path.iterdir())


def test_the_page_holds_the_scores_and_escapes_hostile_text(tmp_path):
    hostile = '</script><script>alert("1")</script><!--'
    hostile_attention = random_attention(
        (hostile + " it",), [hostile, "TITLE", "\u2028DATA"], [(0, 40), (41, 43), (41, 43)], [0, 0, 0]
    )
    write_attention(tmp_path / "page.html", [hostile_attention], title="<b>DATA & more")
    text = (tmp_path / "page.html").read_text("utf-8")
    page = Page(text)
    assert page.texts["title"].strip() == "<b>DATA & more"
    assert page.tags.count("script") == 2
    assert "b" not in page.tags
    assert page.addresses == []
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    (data,) = json.loads(page.texts["data"])
    tokens, words = data["views"]
    assert data["name"] == hostile + " it"
    assert tokens["tokens"] == hostile_attention.tokens
    assert (tokens["layers"], tokens["heads"], tokens["length"]) == (2, 3, 3)
    values = [int(tokens["scores"][i : i + 2]) for i in range(0, len(tokens["scores"]), 2)]
    expected = hostile_attention.scores
    np.testing.assert_allclose(np.reshape(values, expected.shape) / 99, expected, atol=0.006)
    assert words["length"] <= 3
