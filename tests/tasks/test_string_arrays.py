"""Texts and labels in numpy's `StringDType`, arrays of strings of variable length."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.models import (
    CausalLM,
    MaskedLM,
    MultipleChoice,
    QuestionAnswerer,
    Seq2SeqLM,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
)
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task

TEXTS = ["good film", "a bad plot .", "dull"]
LABELS = ["fair", "bad", "good"]


def make_strings(values, **arguments):
    return np.array(values, dtype=np.dtypes.StringDType(**arguments))


@pytest.mark.slow
@pytest.mark.parametrize("column", [False, True])
def test_text_classifier_takes_string_arrays(tiny, column):
    labels = make_strings(LABELS)[:, None] if column else make_strings(LABELS)
    task = TextClassifier(tiny.backbone(), tiny.preprocessor(), labels=make_strings(sorted(LABELS)))
    assert task.labels == ("bad", "fair", "good")
    expected = task.evaluate(TEXTS, LABELS, verbose=0)
    assert task.evaluate(make_strings(TEXTS), labels, verbose=0) == expected
    assert task.report(make_strings(TEXTS), labels, verbose=0).scores == task.report(TEXTS, LABELS, verbose=0).scores
    history = task.fit(make_strings(TEXTS), labels, validation_data=(make_strings(TEXTS), labels), verbose=0).history
    assert history["loss"][0] == pytest.approx(expected[0], abs=1e-5)
    assert task.classify(make_strings(TEXTS)) == task.classify(TEXTS)
    assert task.classify((make_strings(TEXTS), make_strings(TEXTS))) == task.classify((TEXTS, TEXTS))


def test_sets_of_labels_may_be_string_arrays(tiny):
    task = TextClassifier(tiny.backbone(), tiny.preprocessor(), labels=LABELS, multi_label=True)
    sets = [["fair"], ["bad", "good"], []]
    expected = task.evaluate(TEXTS, sets, verbose=0)
    assert task.evaluate(make_strings(TEXTS), [make_strings(labels) for labels in sets], verbose=0) == expected
    pairs = [["fair", "bad"], ["bad", "good"], ["good", "fair"]]
    assert task.evaluate(TEXTS, make_strings(pairs), verbose=0) == task.evaluate(TEXTS, pairs, verbose=0)


@pytest.mark.slow
def test_token_classifier_takes_string_arrays(tiny):
    task = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=["O", "B-PER"])
    words, labels = [["good", "film"], ["dull", "plot"]], [["O", "B-PER"], ["B-PER", "O"]]
    expected = task.evaluate(words, labels, verbose=0)
    texts = [" ".join(row) for row in words]
    for x in (make_strings(words), [make_strings(row) for row in words], make_strings(texts)):
        for y in (make_strings(labels), [make_strings(row) for row in labels]):
            assert task.evaluate(x, y, verbose=0) == expected
    assert task.tag(make_strings(words)) == task.tag(words)


@pytest.mark.quick_cases("TextEmbedder-bert-embed-texts0", "MaskedLM-bert-fill-texts1")
@pytest.mark.parametrize(
    ("cls", "family", "method", "texts"),
    [
        (TextEmbedder, "bert", "embed", TEXTS),
        (MaskedLM, "bert", "fill", ["a [MASK] film"]),
        (CausalLM, "gpt2", "perplexity", TEXTS),
        (TokenClassifier, "elmo", "tag", TEXTS),
    ],
)
def test_other_tasks_take_string_arrays(cls, family, method, texts):
    task = tiny_task(cls, families()[family])
    np.testing.assert_equal(getattr(task, method)(make_strings(texts)), getattr(task, method)(texts))


@pytest.mark.slow
def test_questions_and_choices_may_be_string_arrays(tiny):
    reader = QuestionAnswerer(tiny.backbone(), tiny.preprocessor(), max_question_length=9)
    assert reader.answer((make_strings(TEXTS), make_strings(TEXTS))) == reader.answer((TEXTS, TEXTS))
    chooser = MultipleChoice(tiny.backbone(), tiny.preprocessor())
    assert chooser.choose([("a", make_strings(TEXTS))]) == chooser.choose([("a", TEXTS)])


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_strings_are_refused(tiny, steps, missing):
    task = tiny.classifier(labels=LABELS)
    words = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=["O", "B-PER"])
    labels = make_strings(["bad", missing, "bad"], na_object=missing)
    texts = make_strings(["a", missing], na_object=missing)
    for call, message in (
        (
            lambda: task.fit(TEXTS, labels, callbacks=[steps], verbose=0),
            f"Label {missing} at position 1 is not a string",
        ),
        (lambda: task.fit(texts, LABELS[:2], callbacks=[steps], verbose=0), r"`texts\[1\]` must be a string, got"),
        (lambda: task.classify((TEXTS[:2], texts)), r"`pairs\[1\]` must be a string, got"),
        (lambda: words.tag([texts]), r"`texts\[0\]\[1\]` must be a string, got"),
        (lambda: words.fit(["a film"], [make_strings(["O", missing], na_object=missing)]), r"at `y\[0\]\[1\]` is not"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    assert steps.count == 0


def test_documents_and_columns_of_pairs_may_be_tensors():
    tf = pytest.importorskip("tensorflow")
    writer = tiny_task(CausalLM, families()["gpt2"])
    expected = writer.encode_examples(TEXTS).encoded
    actual = writer.encode_examples(tf.constant(TEXTS)).encoded
    np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
    translator = tiny_task(Seq2SeqLM, families()["marian"])
    expected = translator.encode_inputs((TEXTS, LABELS))
    actual = translator.encode_inputs((tf.constant(TEXTS), tf.constant(LABELS)))
    np.testing.assert_array_equal(actual.sources.token_ids, expected.sources.token_ids)
    np.testing.assert_array_equal(actual.targets.token_ids, expected.targets.token_ids)
    with pytest.raises(ValueError, match="got 3 sources, 2 targets"):
        translator.encode_inputs((TEXTS, tf.constant(LABELS[:2])))
