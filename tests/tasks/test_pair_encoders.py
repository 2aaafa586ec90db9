"""Tasks with pair encoders: `encoder="esim"` and `encoder="bidaf"`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import MultipleChoice, QuestionAnswerer, TextClassifier
from lmzoo.registry.family import families
from lmzoo.testing import tiny_preprocessor, tiny_task
from lmzoo.testing.tiny import randomize, tiny_backbone

PAIRS = [("good film", "a good film !"), ("the plot was dull", ""), ("bad", "never bad"), ("", "")]
QUESTIONS = [("the film ?", "the film was good . a plot is bad !"), ("", "very fine"), ("is bad ?", "")]
EXAMPLES = {
    TextClassifier: (PAIRS, [0, 1, 2, 1]),
    QuestionAnswerer: ([("the film ?", "very good"), ("bad", "")], [{"text": "good", "answer_start": 5}, None]),
}


def build(cls=TextClassifier, family="static_words", **arguments):
    encoder = "bidaf" if cls is QuestionAnswerer else "esim"
    task = tiny_task(cls, families()[family], **{"encoder": encoder, "encoder_dim": 5, **arguments})
    randomize(task)  # so that predictions differ
    return task


@pytest.fixture(scope="module")
def classifier():
    return build(labels=["no", "yes"])


def test_padding_and_other_pairs_do_not_matter(classifier):
    expected = classifier.predict(PAIRS, verbose=0)
    single_logits = np.concatenate([classifier.predict([pair], verbose=0) for pair in PAIRS])
    np.testing.assert_allclose(single_logits, expected, atol=1e-5)
    swapped = classifier.predict([(b, a) for a, b in PAIRS[:1]], verbose=0)
    assert np.abs(swapped - expected[:1]).max() > 1e-3
    assert np.isfinite(expected).all()


def test_single_texts_are_refused(classifier):
    with pytest.raises(ValueError, match=r"encoder='esim' takes pairs, .* got single texts"):
        classifier.fit(["good", "bad"], [1, 0], verbose=0)
    assert classifier.classify([]) == []


@pytest.mark.parametrize("cls", EXAMPLES)
def test_all_weights_are_trained_and_saved(cls, save_and_load):
    task = build(cls)
    before = [np.array(variable) for variable in task.trainable_variables]
    x, y = EXAMPLES[cls]
    task.compile(keras.optimizers.SGD(1.0), run_eagerly=True)
    task.fit(x, y, batch_size=7, verbose=0)
    unchanged = [
        v.path for v, old in zip(task.trainable_variables, before, strict=True) if np.array_equal(np.array(v), old)
    ]
    assert unchanged == []
    expected = task.predict(x, verbose=0)
    for loaded in save_and_load(task):
        np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, atol=1e-6)
        for weight, saved in zip(loaded.weights, task.weights, strict=True):
            np.testing.assert_array_equal(np.array(weight), np.array(saved), err_msg=weight.path)
        assert loaded.get_config() == task.get_config()


def test_backbones_without_segments_get_zeros():
    family = families()["roberta"]
    backbone = tiny_backbone(family, num_segments=2)
    task = TextClassifier(backbone, tiny_preprocessor(family), num_classes=3, encoder="esim", encoder_dim=5)
    features = task.preprocessor(PAIRS)
    assert features["segment_ids"].max() == 1
    table = backbone.embeddings.segment_embedding.embeddings
    table.assign(np.array([[0.0], [np.nan]]) + np.zeros(table.shape))
    assert np.isfinite(keras.ops.convert_to_numpy(task(features))).all()
    plain = TextClassifier(backbone, task.preprocessor, num_classes=2)
    assert not plain.preprocessor(PAIRS)["segment_ids"].any()


def test_choices_do_not_depend_on_other_choices():
    task = build(MultipleChoice)
    logits = task.predict([("good film", ["!", "a plot"]), ("bad", ["a plot", "!", "is bad"])], verbose=0)
    expected = task.predict([("bad", ["!", "is bad"])], verbose=0)
    np.testing.assert_allclose(logits[1, 1:], expected[0], atol=1e-5)
    assert logits[0, 2] == -30_000


def test_answers_are_in_the_context():
    task = build(QuestionAnswerer, doc_stride=3, max_question_length=5)
    task.preprocessor.sequence_length = 11
    logits = task.predict(QUESTIONS, verbose=0)
    encoded = task.encode_inputs(QUESTIONS)
    positions = np.arange(logits.shape[1])
    is_context = (positions >= encoded.second[:, None]) & (positions < encoded.lengths[:, None])  # (w, T)
    is_token = positions < encoded.lengths[:, None]
    assert (logits[is_token & ~is_context & (positions > 0)] == -1e9).all()
    assert np.ptp(logits[is_context], axis=0).min() > 1e-3
    for (_, context), answer in zip(QUESTIONS, task.answer(QUESTIONS), strict=True):
        assert answer["text"] == context[answer["start"] : answer["end"]]
        assert bool(answer["text"]) == bool(context)


def test_encoders_of_other_tasks_are_refused():
    with pytest.raises(ValueError, match='`encoder` must be "bilstm", "esim" or None, got \'bidaf\''):
        build(encoder="bidaf")
    with pytest.raises(ValueError, match='`encoder` must be "bilstm", "bidaf" or None, got \'esim\''):
        build(QuestionAnswerer, encoder="esim")
