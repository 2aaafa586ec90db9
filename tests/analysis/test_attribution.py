"""What contributes to an answer."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.analysis import attribution, integrated_gradients, leave_out
from lmzoo.analysis.explained import _remove_word, _words
from lmzoo.families.albert import FAMILY as ALBERT
from lmzoo.families.bert import FAMILY
from lmzoo.families.distilbert import FAMILY as DISTILBERT
from lmzoo.families.elmo import FAMILY as ELMO
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.models import QuestionAnswerer, TextClassifier, TextEmbedder, TextRegressor, TokenClassifier
from lmzoo.testing import randomize, tiny_task

PAIRS = [("the film", "was good ."), ("a", "the plot was dull")]


def get_task_class(kind, family):
    task = tiny_task(kind, family)
    randomize(task)
    return task


# The classifier of DistilBERT has a kink.
@pytest.mark.quick_cases("bert")
@pytest.mark.parametrize("family", [FAMILY, ALBERT, GPT2, DISTILBERT], ids=lambda family: family.name)
def test_contributions_add_up(family):
    """To one per cent of the difference."""
    task = get_task_class(TextClassifier, family)
    logits = task.predict(PAIRS, verbose=0)
    for found, row in zip(integrated_gradients(task, PAIRS), logits, strict=True):
        assert found.target == task.class_names[row.argmax()]
        assert found.score == pytest.approx(row.max(), abs=1e-5)
        assert found.values.sum() == pytest.approx(found.score - found.baseline, rel=0.01, abs=1e-4)
        assert found.values.shape == (len(found.tokens),)
    (one, _) = integrated_gradients(task, PAIRS, target=2)
    assert (one.target, one.score) == (task.class_names[2], pytest.approx(logits[0, 2], abs=1e-5))


@pytest.mark.slow
def test_points_on_the_way(monkeypatch):
    """With too few, there is a warning."""
    task, texts = get_task_class(TextRegressor, FAMILY), ["the film was good"]
    (found,) = integrated_gradients(task, texts)
    assert found.target == "score"
    assert abs(found.values.sum() - (found.score - found.baseline)) < 1e-4
    special = found.segments < 0
    assert np.abs(found.values[special]).max() < 1e-6  # they are the same in the baseline
    assert np.abs(found.values[~special]).min() > 1e-6
    (few,) = integrated_gradients(task, texts, steps=2)  # in eight parts, if need be
    np.testing.assert_allclose(few.values, found.values, atol=0.02 * np.abs(found.values).max())
    monkeypatch.setattr(attribution, "_PART_COUNTS", (1,))
    with pytest.warns(UserWarning, match=r"text 0 do not add up to its score, by [\d.e-]+: raise `steps`"):
        integrated_gradients(task, texts, steps=1)


@pytest.mark.slow
def test_words_are_left_out():
    task = get_task_class(TextClassifier, FAMILY)
    (first, second) = leave_out(task, PAIRS, target="B-PER")
    assert first.tokens == ["the", "film", "was", "good", "."]
    assert first.segments.tolist() == [0, 0, 1, 1, 1]
    assert [first.texts[s][b:e] for s, (b, e) in zip(first.segments, first.offsets, strict=True)] == first.tokens
    whole = task.predict([PAIRS[0]], verbose=0)[0, 1]
    without = task.predict([("the film", "was .")], verbose=0)[0, 1]
    assert first.values[3] == pytest.approx(whole - without, abs=1e-5)
    assert first.baseline is None
    assert len(second.tokens) == 5
    (found,) = leave_out(get_task_class(TextRegressor, ELMO), ["a film"])
    assert found.tokens == ["a", "film"]
    (empty,) = leave_out(task, [""])
    assert empty.values.shape == (0,)


@pytest.mark.parametrize(
    ("text", "word", "left"),
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
def test_a_space_goes_with_its_word(text, word, left):
    """Unless that joins two words."""
    assert [_remove_word((text,), part) for part in _words((text,)) if part[1] == word] == [(left,)]


@pytest.mark.slow
def test_lists_of_words_are_texts():
    """For families that take them, as a string of the same words."""
    task, words, text = get_task_class(TextClassifier, ELMO), ["a", "good", "film"], "a good film"
    for count in (2, 3):
        of_words, of_text = leave_out(task, [words[:count], text[: [6, 11][count - 2]]])
        assert (of_words.texts, of_words.tokens) == (of_text.texts, words[:count])
        np.testing.assert_array_equal(of_words.offsets, of_text.offsets)
        np.testing.assert_allclose(of_words.values, of_text.values, atol=1e-6)
    (of_words,), (of_text,) = leave_out(task, [(words, words)]), leave_out(task, [(text, text)])
    np.testing.assert_allclose(of_words.values, of_text.values, atol=1e-6)
    answerer, words = get_task_class(QuestionAnswerer, ELMO), ["the", "plot", "was", "never", "dull"]
    (of_words,) = leave_out(answerer, [(words[:2], words)])
    (of_text,) = leave_out(answerer, [("the plot", "the plot was never dull")])
    assert (of_words.texts, of_words.target, of_words.tokens) == (of_text.texts, of_text.target, of_text.tokens)
    np.testing.assert_allclose(of_words.values, of_text.values, atol=1e-6)


def completes(found):
    """Whether contributions add up, to one per cent."""
    assert np.abs(found.values).max() > 1e-4
    assert found.values.sum() == pytest.approx(found.score - found.baseline, rel=0.01, abs=1e-4)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("family", [FAMILY, GPT2], ids=lambda family: family.name)
def test_a_label_of_a_word(family):
    """The score is the logit at the word's first token, and every other word is left out in turn."""
    task, words = get_task_class(TokenClassifier, family), ["the", "filmgood", "was", "good"]
    encoded = task.encode_inputs([words])
    logits = task.predict(encoded, verbose=0)[0, encoded.first[2]]
    (found,) = integrated_gradients(task, [words], word="was")
    assert completes(found)
    assert (found.texts, found.target) == (("the filmgood was good",), task.class_names[logits.argmax()])
    assert found.score == pytest.approx(logits.max(), abs=1e-5)
    pieces = [found.texts[0][start:end] for start, end in found.offsets[found.segments == 0]]
    assert "".join(pieces).replace(" ", "") == "thefilmgoodwasgood"
    assert "was" in found.tokens[encoded.first[2]]
    (left,) = leave_out(task, [words], word=2, target=1)
    assert left.tokens == ["the", "filmgood", "good"]
    assert [left.texts[0][b:e] for b, e in left.offsets] == left.tokens
    shorter = task.encode_inputs([["the", "was", "good"]])
    without = task.predict(shorter, verbose=0)[0, shorter.first[1], 1]
    assert left.values[1] == pytest.approx(logits[1] - without, abs=1e-5)


def answer_of(context, text):
    start = context.index(text)
    return {"text": text, "start": start, "end": start + len(text), "score": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("null", [False, True], ids=["answer", "no answer"])
def test_an_answer_to_a_question(null, monkeypatch):
    """The score is the sum of the logits of its start and end, in the best of several windows."""
    task = get_task_class(QuestionAnswerer, FAMILY)
    task.doc_stride, task.null_score_threshold = 3, -1e9 if null else None
    task.preprocessor.sequence_length = 16
    pairs = [("the film was", "the film was good . " * 3), ("the plot", "a plot was dull")]
    if not null:  # a window that does not hold it has a higher score
        monkeypatch.setattr(task, "answer", lambda pairs, **_: [answer_of(context, ".") for _, context in pairs])
        pairs[1] = ("the plot", "a good plot .")
    answers, encoded = task.answer(pairs), task.encode_inputs(pairs)
    logits = task.predict(encoded, verbose=0)
    assert len(encoded) > 2
    both = integrated_gradients(task, pairs)
    for i, (found, answer) in enumerate(zip(both, answers, strict=True)):
        assert completes(found)
        assert (found.target, null) == (answer["text"], answer["text"] == "")
        windows, alone = encoded.of_example(i)
        ends = alone.positions(np.array([[answer["start"], answer["end"]]]))
        sums = [logits[w, start, 0] + logits[w, end, 1] for w, (start, end) in zip(windows, ends, strict=True)]
        held = [x for x, (start, _) in zip(sums, ends, strict=True) if start or null]
        assert found.score == pytest.approx(min(held) if null else max(held), abs=1e-4)
        assert [found.texts[s][b:e] for s, (b, e) in zip(found.segments, found.offsets, strict=True) if s >= 0] == [
            token for token, s in zip(found.tokens, found.segments, strict=True) if s >= 0
        ]
    parts = [integrated_gradients(task, pairs[1:], target=target)[0] for target in ("start", "end")]
    np.testing.assert_allclose(parts[0].values + parts[1].values, both[1].values, atol=1e-4)
    _, left = leave_out(task, pairs)
    assert left.score == pytest.approx(both[1].score, abs=1e-5)
    (answer,), shorter = answers[1:], [("plot", pairs[1][1])]
    fewer = task.encode_inputs(shorter)
    ((start, end),) = fewer.positions(np.array([[answer["start"], answer["end"]]]))
    (row,) = task.predict(fewer, verbose=0)
    assert left.values[0] == pytest.approx(left.score - row[start, 0] - row[end, 1], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("context", "text"), [("a plot was dull and bad", "was dull"), ("the plot a film", "a")])
def test_words_before_an_answer_move_it(context, text, monkeypatch):
    task = get_task_class(QuestionAnswerer, FAMILY)
    pairs = [("the plot", context)]
    monkeypatch.setattr(task, "answer", lambda pairs, **_: [answer_of(pairs[0][1], text)])
    (answer,), (found,) = task.answer(pairs), leave_out(task, pairs)
    rest = context[: answer["start"]].split() + context[answer["end"] :].split()
    assert found.tokens == ["the", "plot", *rest]
    for k, (segment, (start, end)) in enumerate(zip(found.segments, found.offsets, strict=True)):
        if segment:
            shift = (end + 1 - start) * (end <= answer["start"])
            left = " ".join(word for word in context.split() if word != found.tokens[k])
            encoded = task.encode_inputs([("the plot", left)])
            ((first, last),) = encoded.positions(np.array([[answer["start"] - shift, answer["end"] - shift]]))
            (row,) = task.predict(encoded, verbose=0)
            expected = row[first, 0] + row[last, 1]
            assert found.values[k] == pytest.approx(found.score - expected, abs=1e-5)


@pytest.mark.slow
def test_errors():
    task = tiny_task(TextClassifier, FAMILY)
    for function in (integrated_gradients, leave_out):
        with pytest.raises(TypeError, match="of a TextClassifier, TextRegressor, Token"):
            function(tiny_task(TextEmbedder, FAMILY), ["a"])
        with pytest.raises(
            ValueError, match="`target` must be one of the classes O, B-PER, I-PER, or its number, got 'good'"
        ):
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
