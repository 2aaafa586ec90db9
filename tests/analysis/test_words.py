"""Senses of words, and surprisals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lmzoo.analysis import senses, surprisal
from lmzoo.families.bert import FAMILY
from lmzoo.families.elmo import FAMILY as ELMO
from lmzoo.families.gpt import FAMILY as GPT
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.models import BidirectionalLM, CausalLM, MaskedLM, TextEmbedder
from lmzoo.tasks.word_vectors import WordVectors
from lmzoo.testing import tiny_task
from lmzoo.text import TextWarning

TEXTS = ["the film was good", "", "the plot was never dull ."]


@pytest.fixture(scope="module")
def embedder():
    """Return a task that tests must not change."""
    return tiny_task(TextEmbedder, FAMILY)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "family"), [(CausalLM, GPT2), (MaskedLM, FAMILY)])
def test_surprisals_of_words_are_sums_over_their_tokens(kind, family):
    model = tiny_task(kind, family)
    scores, all_words = model.score(TEXTS), surprisal(model, TEXTS)
    for text, tokens, words in zip(TEXTS, scores, all_words, strict=True):
        assert [text[w.start : w.end] for w in words] == [w.word for w in words] == text.split()
        assert sum(w.surprisal for w in words) == pytest.approx(-sum(t["log_probability"] for t in tokens), rel=1e-5)
    with pytest.raises(TypeError, match="of a CausalLM, a MaskedLM or a BidirectionalLM, got a TextEmbedder"):
        surprisal(tiny_task(TextEmbedder, FAMILY), TEXTS)


@pytest.mark.slow
def test_elmos_surprisals_average_both_directions():
    """One direction predicts a word from the words before it, the other from the words after it."""
    model = tiny_task(BidirectionalLM, ELMO)
    texts = ["the plot was never dull .", "", "a film"]
    all_words = surprisal(model, texts)
    assert [[word.word for word in words] for words in all_words] == [text.split() for text in texts]
    for text, words in zip(texts, all_words, strict=True):
        count = len(words)
        total = sum(word.surprisal for word in words)
        if count:
            (scores,) = model.predict([[text]], verbose=0)
            assert total == pytest.approx(-scores[:count].sum() / 2, rel=1e-5)
            assert words[-1].surprisal == pytest.approx(-(scores[count - 1, 0] + scores[0, 1]) / 2, rel=1e-5)


def test_a_partly_predicted_word_has_no_surprisal():
    """Without a start token, the first token of a text is not predicted."""
    model = tiny_task(CausalLM, GPT)
    tokens = model.preprocessor.tokenizer.tokenize_with_offsets(["gd film"])[0]
    assert sum(token.end <= 2 for token in tokens) > 1
    (scores,), (words,) = model.score(["gd film"]), surprisal(model, ["gd film"])
    assert len(scores) == len(tokens) - 1
    assert math.isnan(words[0].surprisal)
    assert words[1].surprisal == pytest.approx(-sum(t["log_probability"] for t in scores if t["start"] > 2))


def test_other_models_and_empty_lists_are_refused(embedder):
    with pytest.raises(TypeError, match="by the vectors of a TextEmbedder, got <MaskedLM"):
        senses(tiny_task(MaskedLM, FAMILY), "film", TEXTS)
    with pytest.raises(ValueError, match="`texts` is empty"):
        senses(embedder, "film", [])


def test_a_single_string_is_refused(embedder):
    for function, arguments in ((senses, (embedder, "film")), (surprisal, (tiny_task(MaskedLM, FAMILY),))):
        with pytest.raises(TypeError, match=r"got one string; write \['a film'\]"):
            function(*arguments, "a film")


@pytest.mark.slow
def test_scores_of_masked_tokens_equal_those_of_fill():
    model = tiny_task(MaskedLM, FAMILY)
    (tokens,) = model.score(["the film was good"])
    assert [t["token"] for t in tokens] == ["the", "film", "was", "good"]
    answers = model.fill(["the [MASK] was good"], top_k=model.preprocessor.tokenizer.vocabulary_size)[0]
    probability = next(answer["score"] for answer in answers if answer["token"] == "film")
    assert tokens[1]["log_probability"] == pytest.approx(math.log(probability), rel=1e-4)
    assert model.pseudo_perplexity(["the film was good"]) == pytest.approx(
        math.exp(-np.mean([t["log_probability"] for t in tokens]))
    )
    assert model.score([]) == []
    with pytest.raises(ValueError, match="must not hold mask tokens"):
        model.score(["a [MASK]"])


def test_senses_lists_the_occurrences_of_a_word(embedder):
    texts = ["The film .", "a plot", "film , films and FILM"]
    occurrences = senses(embedder, "Film", texts, groups=1)
    assert [(s.text, texts[s.text][s.start : s.end], s.group) for s in occurrences] == [
        (0, "film", 0), (2, "film", 0), (2, "FILM", 0),
    ]  # fmt: skip
    vectors = embedder.embed(texts, level="word")
    expected = vectors[2].vectors[0] / np.linalg.norm(vectors[2].vectors[0])
    np.testing.assert_allclose(occurrences[1].vector, expected, atol=1e-5)
    with pytest.raises(ValueError, match="'river' occurs in none of the 3 texts"):
        senses(embedder, "river", texts)
    with pytest.raises(ValueError, match=r"""must be one word, got "don't". It is read as \['do', "n't"\]"""):
        senses(embedder, "don't", ["I don't ."])
    assert [s[:3] for s in senses(embedder, "n't", ["I don't ."])] == [(0, 4, 7)]
    with pytest.raises(ValueError, match="`groups` must be a positive integer"):
        senses(embedder, "film", texts, groups=0)


def test_occurrences_beyond_the_sequence_length_are_left_out(embedder):
    """Their vectors are zeros, which have no cosine."""
    texts = ["film", "a " * 99 + "film", "the film"]
    for groups in (1, 2):
        with pytest.warns(TextWarning, match="their vectors are zeros"):
            occurrences = senses(embedder, "film", texts, groups=groups)
        assert [(s.text, s.start) for s in occurrences] == [(0, 0), (2, 4)]
        np.testing.assert_allclose([np.linalg.norm(s.vector) for s in occurrences], 1, rtol=1e-5)
    with pytest.warns(TextWarning), pytest.raises(ValueError, match="No occurrence of the word 'film' has a vector"):
        senses(embedder, "film", texts[1:2])


def test_a_sense_has_the_vector_of_one_layer_or_mix(embedder):
    with pytest.raises(ValueError, match="`layers` must be a layer, or several to mix, got 'all'"):
        senses(embedder, "film", TEXTS, layers="all")
    (occurrence,) = senses(embedder, "film", TEXTS, layers=[0, 1])
    assert occurrence.vector.shape == (embedder.backbone.config.hidden_dim,)


def test_similar_vectors_share_a_group(embedder, monkeypatch):
    directions = np.array([[0, 1], [1, 0.1], [1, 0], [0.9, 0.1]], "float32")

    def embed(texts, *_, **__):
        return [WordVectors(["bank"], np.array([[0, 4]]), 7 * directions[int(text[5:])][None]) for text in texts]

    monkeypatch.setattr(embedder, "embed", embed)
    occurrences = senses(embedder, "bank", [f"bank {i}" for i in range(4)])
    assert [s.group for s in occurrences] == [1, 0, 0, 0]  # the largest group is first
    assert [s.group for s in senses(embedder, "bank", ["bank 0"])] == [0]
