"""Attribution of predictions to tokens and words."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.analysis import attribution, integrated_gradients, leave_out
from lmzoo.analysis.explained import _list_words, _remove_word
from lmzoo.families.albert import FAMILY as ALBERT
from lmzoo.families.bert import FAMILY
from lmzoo.families.distilbert import FAMILY as DISTILBERT
from lmzoo.families.elmo import FAMILY as ELMO
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.models import (
    QuestionAnswerer,
    StaticEmbedder,
    TextClassifier,
    TextEmbedder,
    TextRegressor,
    TokenClassifier,
)
from lmzoo.testing import randomize, tiny_task

PAIRS = [("the film", "was good ."), ("a", "the plot was dull")]


def make_task(task_class, family):
    task = tiny_task(task_class, family)
    randomize(task)
    return task


# The classifier of DistilBERT has a kink, its ReLU.
@pytest.mark.quick_cases("bert")
@pytest.mark.parametrize("family", [FAMILY, ALBERT, GPT2, DISTILBERT], ids=lambda family: family.name)
def test_attributions_add_up_to_the_score(family):
    """Within one percent of the difference."""
    task = make_task(TextClassifier, family)
    logits = task.predict(PAIRS, verbose=0)
    for explained, row in zip(integrated_gradients(task, PAIRS), logits, strict=True):
        assert explained.target == task.class_names[row.argmax()]
        assert explained.score == pytest.approx(row.max(), abs=1e-5)
        assert explained.values.sum() == pytest.approx(explained.score - explained.baseline, rel=0.01, abs=1e-4)
        assert explained.values.shape == (len(explained.tokens),)
    (explained, _) = integrated_gradients(task, PAIRS, target=2)
    assert (explained.target, explained.score) == (task.class_names[2], pytest.approx(logits[0, 2], abs=1e-5))


@pytest.mark.slow
def test_too_few_steps_are_warned_of(monkeypatch):
    task, texts = make_task(TextRegressor, FAMILY), ["the film was good"]
    (exact,) = integrated_gradients(task, texts)
    assert exact.target == "score"
    assert abs(exact.values.sum() - (exact.score - exact.baseline)) < 1e-4
    is_special = exact.segments < 0
    assert np.abs(exact.values[is_special]).max() < 1e-6  # special tokens are the same in the baseline
    assert np.abs(exact.values[~is_special]).min() > 1e-6
    (coarse,) = integrated_gradients(task, texts, steps=2)  # up to eight times as many, if needed
    np.testing.assert_allclose(coarse.values, exact.values, atol=0.02 * np.abs(exact.values).max())
    monkeypatch.setattr(attribution, "_PART_COUNTS", (1,))
    with pytest.warns(UserWarning, match=r"text 0 do not add up to its score, by [\d.e-]+: raise `steps`"):
        integrated_gradients(task, texts, steps=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoder", "word_features"])
def test_tasks_that_also_look_up_tokens_elsewhere_are_refused(name):
    """Contributions of the encoder's own word vectors, or of static ones, cannot be seen in the embeddings."""
    vectors = StaticEmbedder(["the", "film", "good"], np.random.default_rng(3).normal(size=(3, 7)).astype("float32"))
    settings = {"encoder": "bilstm", "encoder_dim": 5} if name == "encoder" else {"word_vectors": vectors}
    task = tiny_task(TextClassifier, FAMILY, pooling="mean", **settings)
    randomize(task)
    with pytest.raises(ValueError, match=r"looks up its tokens also in its `encoder` or `word_vectors`.*`leave_out`"):
        integrated_gradients(task, ["the film was good"])
    layer = task.get_layer(name)
    table = layer.word_embedding.embeddings if name == "encoder" else layer.vectors
    table.assign(np.zeros(table.shape))
    (explained,) = integrated_gradients(task, ["the film was good"])
    check_sum(explained)


@pytest.mark.slow
def test_words_are_left_out():
    task = make_task(TextClassifier, FAMILY)
    (first, second) = leave_out(task, PAIRS, target="B-PER")
    assert first.tokens == ["the", "film", "was", "good", "."]
    assert first.segments.tolist() == [0, 0, 1, 1, 1]
    assert [first.texts[s][b:e] for s, (b, e) in zip(first.segments, first.offsets, strict=True)] == first.tokens
    full_score = task.predict([PAIRS[0]], verbose=0)[0, 1]
    shorter_score = task.predict([("the film", "was .")], verbose=0)[0, 1]
    assert first.values[3] == pytest.approx(full_score - shorter_score, abs=1e-5)
    assert first.baseline is None
    assert len(second.tokens) == 5
    (elmo_words,) = leave_out(make_task(TextRegressor, ELMO), ["a film"])
    assert elmo_words.tokens == ["a", "film"]
    (empty,) = leave_out(task, [""])
    assert empty.values.shape == (0,)


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        ("a dull film", "a", "dull film"),
        ("a dull film", "dull", "a film"),
        ("a dull film", "film", "a dull"),
        ("a film.", "film", "a."),
        ("(dull film", "dull", "( film"),
        ("I don't", "do", "I n't"),
        ("don't know", "n't", "do know"),
        ("film", "film", ""),
    ],
)
def test_a_word_is_removed_with_its_space(text, word, expected):
    """Except where that would join two words."""
    assert [_remove_word((text,), part) for part in _list_words((text,)) if part[1] == word] == [(expected,)]


@pytest.mark.slow
def test_lists_of_words_equal_their_text():
    """Some families take lists of words."""
    task, words, text = make_task(TextClassifier, ELMO), ["a", "good", "film"], "a good film"
    for count in (2, 3):
        from_words, from_text = leave_out(task, [words[:count], text[: [6, 11][count - 2]]])
        assert (from_words.texts, from_words.tokens) == (from_text.texts, words[:count])
        np.testing.assert_array_equal(from_words.offsets, from_text.offsets)
        np.testing.assert_allclose(from_words.values, from_text.values, atol=1e-6)
    (from_words,), (from_text,) = leave_out(task, [(words, words)]), leave_out(task, [(text, text)])
    np.testing.assert_allclose(from_words.values, from_text.values, atol=1e-6)
    answerer, words = make_task(QuestionAnswerer, ELMO), ["the", "plot", "was", "never", "dull"]
    (from_words,) = leave_out(answerer, [(words[:2], words)])
    (from_text,) = leave_out(answerer, [("the plot", "the plot was never dull")])
    for name in ("texts", "target", "tokens"):
        assert getattr(from_words, name) == getattr(from_text, name)
    np.testing.assert_allclose(from_words.values, from_text.values, atol=1e-6)


def check_sum(explained):
    """Check that attributions add up to the difference of the scores, within one percent."""
    assert np.abs(explained.values).max() > 1e-4
    assert explained.values.sum() == pytest.approx(explained.score - explained.baseline, rel=0.01, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", [FAMILY, GPT2], ids=lambda family: family.name)
def test_the_label_of_a_word_is_explained(family):
    """The score is the logit at the word's first token; other words are left out one by one."""
    task, words = make_task(TokenClassifier, family), ["the", "filmgood", "was", "good"]
    encoded = task.encode_inputs([words])
    logits = task.predict(encoded, verbose=0)[0, encoded.first[2]]
    (explained,) = integrated_gradients(task, [words], word="was")
    check_sum(explained)
    assert (explained.texts, explained.target) == (("the filmgood was good",), task.class_names[logits.argmax()])
    assert explained.score == pytest.approx(logits.max(), abs=1e-5)
    pieces = [explained.texts[0][start:end] for start, end in explained.offsets[explained.segments == 0]]
    assert "".join(pieces).replace(" ", "") == "thefilmgoodwasgood"
    assert "was" in explained.tokens[encoded.first[2]]
    (by_words,) = leave_out(task, [words], word=2, target=1)
    assert by_words.tokens == ["the", "filmgood", "good"]
    assert [by_words.texts[0][b:e] for b, e in by_words.offsets] == by_words.tokens
    shorter = task.encode_inputs([["the", "was", "good"]])
    shorter_logit = task.predict(shorter, verbose=0)[0, shorter.first[1], 1]
    assert by_words.values[1] == pytest.approx(logits[1] - shorter_logit, abs=1e-5)


def answer_of(context, text):
    start = context.index(text)
    return {"text": text, "start": start, "end": start + len(text), "score": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("null", [False, True], ids=["answer", "no answer"])
def test_the_answer_to_a_question_is_explained(null, monkeypatch):
    """The score is the sum of the logits of its start and end, in the best of several windows."""
    task = make_task(QuestionAnswerer, FAMILY)
    task.doc_stride, task.null_score_threshold = 3, -1e9 if null else None
    task.preprocessor.sequence_length = 16
    pairs = [("the film was", "the film was good . " * 3), ("the plot", "a plot was dull")]
    if not null:  # a window without the answer has a higher score
        monkeypatch.setattr(task, "answer", lambda pairs, **_: [answer_of(context, ".") for _, context in pairs])
        pairs[1] = ("the plot", "a good plot .")
    answers, encoded = task.answer(pairs), task.encode_inputs(pairs)
    logits = task.predict(encoded, verbose=0)
    assert len(encoded) > 2
    all_explained = integrated_gradients(task, pairs)
    for i, (explained, answer) in enumerate(zip(all_explained, answers, strict=True)):
        check_sum(explained)
        assert (explained.target, null) == (answer["text"], answer["text"] == "")
        windows, windows_of_text = encoded.of_example(i)
        ends = windows_of_text.positions(np.array([[answer["start"], answer["end"]]]))
        sums = [logits[w, start, 0] + logits[w, end, 1] for w, (start, end) in zip(windows, ends, strict=True)]
        window_scores = [x for x, (start, _) in zip(sums, ends, strict=True) if start or null]
        assert explained.score == pytest.approx(min(window_scores) if null else max(window_scores), abs=1e-4)
        for token, s, (start, end) in zip(explained.tokens, explained.segments, explained.offsets, strict=True):
            assert s < 0 or explained.texts[s][start:end] == token
    parts = [integrated_gradients(task, pairs[1:], target=target)[0] for target in ("start", "end")]
    np.testing.assert_allclose(parts[0].values + parts[1].values, all_explained[1].values, atol=1e-4)
    _, by_words = leave_out(task, pairs)
    assert by_words.score == pytest.approx(all_explained[1].score, abs=1e-5)
    (answer,), shorter = answers[1:], [("plot", pairs[1][1])]
    shorter_windows = task.encode_inputs(shorter)
    ((start, end),) = shorter_windows.positions(np.array([[answer["start"], answer["end"]]]))
    (row,) = task.predict(shorter_windows, verbose=0)
    assert by_words.values[0] == pytest.approx(by_words.score - row[start, 0] - row[end, 1], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("context", "text"), [("a plot was dull and bad", "was dull"), ("the plot a film", "a")])
def test_leaving_out_a_word_moves_the_answer(context, text, monkeypatch):
    task = make_task(QuestionAnswerer, FAMILY)
    pairs = [("the plot", context)]
    monkeypatch.setattr(task, "answer", lambda pairs, **_: [answer_of(pairs[0][1], text)])
    (answer,), (by_words,) = task.answer(pairs), leave_out(task, pairs)
    words_outside = context[: answer["start"]].split() + context[answer["end"] :].split()
    assert by_words.tokens == ["the", "plot", *words_outside]
    for k, (segment, (start, end)) in enumerate(zip(by_words.segments, by_words.offsets, strict=True)):
        if segment:
            shift = (end + 1 - start) * (end <= answer["start"])
            shorter = " ".join(word for word in context.split() if word != by_words.tokens[k])
            encoded = task.encode_inputs([("the plot", shorter)])
            ((first, last),) = encoded.positions(np.array([[answer["start"] - shift, answer["end"] - shift]]))
            (row,) = task.predict(encoded, verbose=0)
            expected = row[first, 0] + row[last, 1]
            assert by_words.values[k] == pytest.approx(by_words.score - expected, abs=1e-5)


@pytest.mark.slow
def test_wrong_tasks_targets_and_words_are_refused():
    task = tiny_task(TextClassifier, FAMILY)
    for function in (integrated_gradients, leave_out):
        with pytest.raises(TypeError, match="of a TextClassifier, TextRegressor, Token"):
            function(tiny_task(TextEmbedder, FAMILY), ["a"])
        message = "`target` must be one of the classes O, B-PER, I-PER, or its number, got 'good'"
        with pytest.raises(ValueError, match=message):
            function(task, ["a"], target="good")
        with pytest.raises(ValueError, match="text"):
            function(task, [])
    with pytest.raises(ValueError, match="`target` must be None for a TextRegressor"):
        leave_out(tiny_task(TextRegressor, FAMILY), ["a"], target=0)
    tagger, crf = tiny_task(TokenClassifier, FAMILY), tiny_task(TokenClassifier, FAMILY, crf=True)
    for function in (integrated_gradients, leave_out):
        with pytest.raises(ValueError, match=r"Name the word whose label is to be explained"):
            function(tagger, ["a film"])
        with pytest.raises(ValueError, match="Text 0 has no word 'plot': its words are 'a', 'film'"):
            function(tagger, ["a film"], word="plot")
        with pytest.raises(ValueError, match="Text 0 has no word 2"):
            function(tagger, ["a film"], word=2)
        with pytest.raises(ValueError, match="With `crf` labels are scored together"):
            function(crf, ["a film"], word=0)
        with pytest.raises(ValueError, match="`word` must be None, but for a TokenClassifier"):
            function(task, ["a film"], word=0)
        with pytest.raises(ValueError, match='`target` must be "start", "end" or None'):
            function(tiny_task(QuestionAnswerer, FAMILY), [("a", "film")], target=0)
    with pytest.warns(UserWarning, match="truncated"), pytest.raises(ValueError, match="The word was truncated"):
        leave_out(tagger, ["a " * 99 + "film"], word="film")
    with pytest.raises(ValueError, match="ElmoBackbone has no embeddings of tokens to fade in: use `leave_out`"):
        integrated_gradients(tiny_task(TextClassifier, ELMO), ["a"])
