"""`TokenClassifier(crf=True)`: training, tags, files, served models, errors."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest

from lmzoo.models import TokenClassifier
from lmzoo.testing import randomize
from lmzoo.text.span_labels import transition_table
from lmzoo.training import CrfLoss

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXTS = [["films", "was", "bad"], "the plot was fine", ["dull"], ""] * 4
TAGS = [["B-PER", "I-PER", "O"], [{"start": 4, "end": 8, "label": "LOC"}], ["O"], []] * 4


@pytest.fixture
def task(tiny):
    return TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=LABELS, crf=True)


@pytest.mark.slow
@pytest.mark.compiled
def test_fit_learns_spans(task):
    task.compile(keras.optimizers.Adam(0.01))
    assert isinstance(task.loss, CrfLoss)
    history = task.fit(TEXTS, TAGS, batch_size=8, epochs=40, verbose=0).history
    assert history["span_f1"][-1] == history["accuracy"][-1] == 1
    assert history["loss"][-1] < 0.2 * history["loss"][0]
    assert np.abs(keras.ops.convert_to_numpy(task.get_layer("transition_scores").transitions)).max() > 0.01
    tagged = task.tag(TEXTS[:4])
    assert [[(span["text"], span["label"]) for span in spans] for spans in tagged] == [
        [("films was", "PER")], [("plot", "LOC")], [], [],
    ]  # fmt: skip
    assert 0.5 < tagged[0][0]["score"] <= 1
    measured = task.evaluate(TEXTS, TAGS, return_dict=True, verbose=0)
    assert task.report(TEXTS, TAGS, verbose=0).scores["span_f1"] == measured["span_f1"] == 1


@pytest.mark.slow
def test_tags_are_well_formed_with_any_weights(task, tiny):
    randomize(task)
    texts, allowed = tiny.texts(13, longest=25), transition_table(LABELS)
    for text in task.tag(texts, aggregation="none"):
        path = [5, *(LABELS.index(word["label"]) for word in text), 5]
        assert all(allowed[step] for step in itertools.pairwise(path))
        assert all(0 <= word["score"] <= 1 for word in text)
    # Without transitions they would not be.
    labels = keras.Model(task.input, task.head.output).predict(task.preprocessor(texts), verbose=0).argmax(axis=-1)
    assert not all(allowed[step] for row in labels for step in itertools.pairwise(row.tolist()))


@pytest.mark.slow
def test_tags_do_not_depend_on_other_texts(task, tiny):
    randomize(task)
    texts = tiny.texts(4, longest=25)
    for text, spans in zip(texts, task.tag(texts), strict=True):
        (expected,) = task.tag([text])
        assert [span["label"] for span in spans] == [span["label"] for span in expected]
        np.testing.assert_allclose([s["score"] for s in spans], [s["score"] for s in expected], atol=1e-5)


@pytest.mark.slow
def test_many_texts_are_tagged_in_parts(task, tiny, monkeypatch):
    texts = tiny.texts(7, longest=25)
    expected = task.tag(texts, aggregation="none")
    monkeypatch.setattr("lmzoo.tasks.token_classifier._WINDOWS_PER_PREDICTION", 3)
    predict, counts = task.predict, []
    monkeypatch.setattr(
        task, "predict", lambda x, *args, **kwargs: counts.append(len(x)) or predict(x, *args, **kwargs)
    )
    tags = task.tag(texts, aggregation="none")
    assert counts == [3, 3, 1]
    for words, expected_words in zip(tags, expected, strict=True):
        assert [word["label"] for word in words] == [word["label"] for word in expected_words]
        expected_scores = [word["score"] for word in expected_words]
        assert [word["score"] for word in words] == pytest.approx(expected_scores, abs=1e-5)


@pytest.mark.slow
def test_files_restore_the_tags(task, save_and_load):
    randomize(task)
    for clone in save_and_load(task):
        assert clone.crf
        assert clone.tag(TEXTS) == task.tag(TEXTS)


@pytest.mark.slow
@pytest.mark.tf_only
def test_exported_models_give_the_same_tags(task, tmp_path, tiny):
    import tensorflow as tf

    randomize(task)
    texts = [text for text in TEXTS if isinstance(text, str)] + tiny.texts(7, longest=19)
    task.export(tmp_path / "1", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "1")).signatures
    assert set(served) == {"serving_default"}
    outputs = {name: x.numpy() for name, x in served["serving_default"](text=tf.constant(texts)).items()}
    for i, spans in enumerate(task.tag(texts)):
        count = len(spans)
        assert [label.decode() for label in outputs["label"][i][:count]] == [span["label"] for span in spans]
        assert outputs["start"][i][:count].tolist() == [span["start"] for span in spans]
        np.testing.assert_allclose(outputs["score"][i][:count], [span["score"] for span in spans], atol=1e-5)
        assert (outputs["start"][i][count:] == -1).all()


@pytest.mark.parametrize(
    ("labels", "tags", "message"),
    [
        (LABELS, [["O", "I-PER", "O"], ["O"]], r"`y\[0\]\[1\]`: 'I-PER' cannot follow 'O', in the scheme of"),
        (LABELS, [["O", "O", "O"], ["I-LOC"]], r"`y\[1\]\[0\]`: 'I-LOC' cannot begin a text"),
        (LABELS, [["B-PER", -100, "I-LOC"], ["O"]], r"`y\[0\]\[2\]`: 'I-LOC' cannot follow 'B-PER'"),
        (["O", "B-P", "L-P", "U-P"], [["U-P", "L-P", "O"], ["O"]], r"`y\[0\]\[1\]`: 'L-P' cannot follow 'U-P'"),
        (["B", "M", "E", "S"], [["B", "M", "E"], ["M"]], r"`y\[1\]\[0\]`: 'M' cannot begin a text"),
        (["O", "B-PER", "E-PER"], [["O", "O", "O"], ["B-PER"]], r"`y\[1\]`: a text cannot end with 'B-PER'"),
    ],
)
def test_impossible_sequences_of_labels_are_refused(tiny, labels, tags, message):
    task = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=labels, crf=True)
    with pytest.raises(ValueError, match=message):
        task.fit([["films", "was", "bad"], ["dull"]], tags, verbose=0)


def test_other_losses_are_refused(task):
    with pytest.raises(ValueError, match="With `crf` the outputs are scores of pairs of labels: leave `loss` out"):
        task.compile(loss="mse")
    task.compile(loss=CrfLoss(), jit_compile=False)


def test_labels_need_not_mark_spans(tiny):
    task = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=["NOUN", "VERB"], crf=True)
    task.fit([["films", "was"]], [["VERB", "NOUN"]], verbose=0)
    assert len(task.tag([["films", "was"]])[0]) == 2
    with pytest.raises(ValueError, match='`aggregation="simple"` labels tokens, but with `crf` only words have labels'):
        task.tag(["a"], aggregation="simple")


@pytest.mark.slow
def test_heads_with_and_without_transitions_do_not_replace_each_other(task, tiny, tmp_path):
    plain = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=LABELS)
    plain.save_to_preset(tmp_path / "plain")
    with pytest.warns(UserWarning, match="is not used, since `crf` is another: it starts from scratch"):
        crf_task = TokenClassifier.from_preset(tmp_path / "plain", crf=True)
    assert (crf_task.crf, crf_task.labels) == (True, tuple(LABELS))
    task.save_to_preset(tmp_path / "crf")
    with pytest.warns(UserWarning, match="since `crf` is another"):
        assert not TokenClassifier.from_preset(tmp_path / "crf", crf=False).crf
