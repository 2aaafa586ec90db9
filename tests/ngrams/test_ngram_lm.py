"""The methods of an n-gram model: arguments, results, errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lmzoo.data.corpora import train_byte_pairs, train_sentencepiece, train_wordpiece, train_words
from lmzoo.models import NgramLM
from lmzoo.text import CharacterTokenizer, TextWarning

TRAINERS: dict[str, Callable[..., Any]] = {
    "words": lambda texts, size: train_words([texts], size, verbose=False),
    "byte pairs": lambda texts, size: train_byte_pairs(texts, size, verbose=False),
    "word pieces": lambda texts, size: train_wordpiece(texts, size, verbose=False),
    "sentence pieces": lambda texts, size: train_sentencepiece(texts, size, verbose=False),
}


def test_scores_have_tokens_and_offsets(trigrams):
    texts = ["The hotel  was great. ", "Zzyzx!", ""]
    answers = trigrams.score(texts)
    assert [[token["token"] for token in answer] for answer in answers] == [
        ["The", "hotel", "was", "great", ".", "</s>"],
        ["Zzyzx", "!", "</s>"],
        ["</s>"],
    ]
    for text, answer in zip(texts, answers, strict=True):
        assert [text[token["start"] : token["end"]] for token in answer[:-1]] == [t["token"] for t in answer[:-1]]
    assert answers[0][-1]["start"] == answers[0][-1]["end"] == 21
    words = trigrams.score([["The", "hotel", "was", "great", "."]])[0]
    assert [t["log_probability"] for t in words] == [t["log_probability"] for t in answers[0]]
    assert words[2] | {"log_probability": 0} == {"token": "was", "start": 10, "end": 13, "log_probability": 0}
    unknown = trigrams.score([["<unk>"], ["<s>"], ["</s>"]])  # markers in a text are unknown words
    assert len({answer[0]["log_probability"] for answer in [*unknown, answers[1]]}) == 1


def test_perplexity_is_that_of_the_scores(trigrams):
    texts = ["The hotel was great.", "A dull film!"]
    log_probabilities = [token["log_probability"] for answer in trigrams.score(texts) for token in answer]
    expected = pytest.approx(math.exp(-np.mean(log_probabilities)), rel=1e-12)
    for documents in (texts, [texts], iter([["", texts[0]], [["A", "dull", "film", "!"]]])):
        assert trigrams.perplexity(documents) == expected


def test_rare_words_are_unknown(reviews):
    model = NgramLM(order=2)
    model.fit(iter([reviews["train"]]), min_frequency=2, verbose=False)
    counts = Counter(word for sentence in reviews["train"] for word in sentence)
    frequent = [word for word, count in counts.items() if count > 1]
    assert model.vocabulary == ["<unk>", "<s>", "</s>", *sorted(frequent, key=lambda word: (-counts[word], word))]
    assert model.num_ngrams[0] == len(model.vocabulary)
    model.fit([reviews["train"]], verbose=False)
    assert len(model.vocabulary) == 3 + len(counts)


def test_an_order_above_the_length_of_all_sentences():
    """The longest n-grams are then whole sentences, for example of short commands."""
    log_probabilities = []
    for order in (4, 6):
        model = NgramLM(order)
        with pytest.warns(UserWarning, match="too small"):
            model.fit(["turn on", "turn off", "turn on"], verbose=False)
        log_probabilities.append(
            [token["log_probability"] for answer in model.score(["turn on", "on", ""]) for token in answer]
        )
        assert model.perplexity(["turn on"]) < 3
    assert log_probabilities[0] == pytest.approx(log_probabilities[1], rel=1e-6)


def test_fit_forgets_earlier_texts(reviews):
    model, fitted_once = NgramLM(order=2), NgramLM(order=2)
    model.fit([reviews["test"]], verbose=False)
    model.fit([reviews["train"]], verbose=False)
    fitted_once.fit([reviews["train"]], verbose=False)
    assert model.vocabulary == fitted_once.vocabulary
    perplexity = fitted_once.perplexity([reviews["test"]])
    assert model.perplexity([reviews["test"]]) == perplexity
    with pytest.raises(ValueError, match="hold no words"):
        model.fit([[]])
    assert model.perplexity([reviews["test"]]) == perplexity


def test_greedy_takes_the_most_probable(trigrams):
    (text,) = trigrams.generate(["The hotel"], max_new_tokens=4)
    words = ["The", "hotel", *text.split(" ")[1:]]
    assert len(words) == 6
    for n in range(2, 6):
        best = max(
            trigrams.vocabulary[3:], key=lambda word: trigrams.score([[*words[:n], word]])[0][n]["log_probability"]
        )
        assert words[n] == best
    assert trigrams.generate(["The hotel ", "  A"], max_new_tokens=4)[0] == text[1:]
    assert trigrams.generate(["", "Zzyzx"], max_new_tokens=1) == ["The", " ."]
    assert trigrams.generate("", max_new_tokens=1) == "The"  # a single text


def test_texts_end_at_a_stop_or_the_end_of_a_sentence(trigrams):
    prompts = ["The hotel"] * 50
    texts = trigrams.generate(prompts, sampler="random", seed=5)
    lengths = [len(text.split(" ")) for text in texts]
    assert len(set(lengths)) > 10
    assert sum(text.endswith((".", "!")) for text in texts) > 40
    assert not any("<" in text for text in texts)
    stopped = trigrams.generate(prompts, sampler="random", seed=5, stop=[" .", ","])
    assert stopped[0] == min((texts[0].split(mark)[0] for mark in (" .", ",")), key=len)
    assert not any("." in text or "," in text for text in stopped)
    endless = trigrams.generate(prompts, sampler="random", seed=5, stop=None, max_new_tokens=30)
    assert {len(text.split(" ")) for text in endless} == {31}


def test_samplers(trigrams):
    def continuations(**options: Any) -> list[str]:
        return trigrams.generate(["The"] * 200, max_new_tokens=1, seed=3, **options)

    (greedy,) = trigrams.generate(["The"], max_new_tokens=1)
    assert set(continuations(sampler="top_k", top_k=1)) == {greedy}
    assert set(continuations(sampler="top_p", top_p=0.01)) == {greedy}
    assert set(continuations(sampler="random", temperature=0.01)) == {greedy}
    assert len(set(continuations(sampler="top_k", top_k=3))) == 3
    kinds = [len(set(continuations(sampler="random", temperature=t))) for t in (0.5, 1, 2)]
    assert kinds == sorted(kinds)
    assert kinds[0] < kinds[1] < kinds[2]
    assert len(set(continuations(sampler="top_p", top_p=0.5))) < kinds[1]
    assert continuations(sampler="random") == continuations(sampler="random")
    assert trigrams.generate([""], sampler="random") != trigrams.generate([""], sampler="random")


@pytest.mark.parametrize("kind", TRAINERS)
def test_other_tokenizers(reviews, tmp_path, kind):
    train, test = ([" ".join(words) for words in reviews[split]] for split in ("train", "test"))
    tokenizer = TRAINERS[kind](train, 350)
    model = NgramLM(2, tokenizer)
    model.fit(train, verbose=False)
    assert model.perplexity(test) < len(model.vocabulary) / 4
    assert model.perplexity([test[0], "", *test[1:]]) == model.perplexity(test)
    with pytest.warns(TextWarning, match="invalid UTF-8"):
        model.perplexity([b"caf\xe9"])
    tokens = [span.token for span in tokenizer.tokenize_with_offsets(test[:1])[0]]
    assert [token["token"] for token in model.score(test[:1])[0]] == [*tokens, "</s>"]
    (text,) = model.generate([test[0][:9]], max_new_tokens=8, stop=None)
    assert len(text) >= 8
    model.save(tmp_path / "model.arpa", verbose=False)
    loaded = NgramLM.load(tmp_path / "model.arpa", tokenizer, verbose=False)
    assert loaded.perplexity(test) == model.perplexity(test)
    assert loaded.generate([test[0][:9]], max_new_tokens=8, stop=None) == [text]


def test_words_that_files_cannot_hold_are_unknown():
    model = NgramLM(1, train_words([["New York a b"], [["New York"]]], 7, verbose=False))
    with pytest.warns(UserWarning, match="too small"):
        model.fit(["a a b"], verbose=False)
    assert "New York" not in model.vocabulary
    words = NgramLM(1)
    with pytest.warns(UserWarning, match="too small"):
        words.fit([[["New York", "a", " ", ""]]], verbose=False)
    assert words.vocabulary == ["<unk>", "<s>", "</s>", "a"]
    with pytest.warns(UserWarning, match="too small"):
        words.fit([[["<s>", "a", "</s>", "<unk>"]]], verbose=False)
    assert words.vocabulary == ["<unk>", "<s>", "</s>", "a"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: NgramLM(0), ValueError, "`order` must be an integer of at least 1, got 0"),
        (lambda m: NgramLM(3, CharacterTokenizer()), ValueError, "`tokenizer` must be .* with a vocabulary"),
        (lambda m: NgramLM(3, ["a"]), ValueError, "`tokenizer` must be"),
        (lambda m: NgramLM().score(["a"]), ValueError, "no n-grams yet: call `fit`"),
        (lambda m: NgramLM().save("x.arpa"), ValueError, "no n-grams yet: call `fit`"),
        (lambda m: NgramLM().perplexity(["a"]), ValueError, "no n-grams yet: call `fit`"),
        (lambda m: NgramLM().generate(["a"]), ValueError, "no n-grams yet: call `fit`"),
        (lambda m: NgramLM().vocabulary, ValueError, "no n-grams yet: call `fit`"),
        (lambda m: NgramLM().fit([[""], []]), ValueError, "hold no words"),
        (lambda m: NgramLM().fit("a b"), TypeError, "list of documents"),
        (lambda m: NgramLM().fit(["a", 3]), TypeError, r"documents\[1\]"),
        (lambda m: NgramLM().fit(["a"], min_frequency=0), ValueError, "`min_frequency` must be"),
        (lambda m: m.perplexity([]), ValueError, "hold no words"),
        (lambda m: m.score("a b"), TypeError, "list of strings"),
        (lambda m: m.generate(5), TypeError, "`prompts` must be a list of strings"),
        (lambda m: m.generate(["a"], sampler="beam"), ValueError, "`sampler` must be one of greedy, random"),
        (lambda m: m.generate(["a"], temperature=0), ValueError, "`temperature` must be a number above 0"),
        (lambda m: m.generate(["a"], top_k=0), ValueError, "`top_k` must be"),
        (lambda m: m.generate(["a"], top_p=0.0), ValueError, "`top_p` must be"),
        (lambda m: m.generate(["a"], max_new_tokens=0), ValueError, "`max_new_tokens` must be"),
        (lambda m: m.generate(["a"], stop=["b", ""]), ValueError, "`stop` must be"),
        (lambda m: m.generate(["a"], stop=5), ValueError, "`stop` must be"),
        (lambda m: m.generate(["a"], seed=-1), ValueError, "`seed` must be"),
    ],
)
def test_errors_of_arguments(trigrams, call, error, message):
    with pytest.raises(error, match=message):
        call(trigrams)
