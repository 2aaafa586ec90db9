"""`TokenClassifier`: labels of words, spans with offsets, weights, errors before the first step."""

from __future__ import annotations

import itertools
import re

import keras
import numpy as np
import pytest

import lmzoo.models  # noqa: F401 - registers the families
from lmzoo.models import TokenClassifier
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from lmzoo.text import TextWarning
from lmzoo.text.validate_text import collect_warnings
from lmzoo.training.span_metrics import IGNORED

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
# The first word has two tokens: "film", "##s".
WORDS = [["films", "was", "the", "plot"], ["dull", "film"], []]


@pytest.fixture
def task(tiny):
    return TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=LABELS)


def fix_predictions(task, monkeypatch, labels, confidence=3.0):
    """Make the task predict `labels`, which are the labels of each text's tokens without special tokens."""

    def predict(encoded, *_, **__):
        logits = np.zeros((len(encoded), int(encoded.lengths.max()), task.num_classes), "float32")
        for i, row in enumerate(labels):
            for k, label in enumerate(row):
                logits[i, 1 + k, task.class_names.index(label)] = confidence
        return logits

    monkeypatch.setattr(task, "predict", predict)


def test_the_label_of_a_word_is_at_its_first_token(task):
    encoded, labels, _ = examples = task.encode_examples(WORDS, [["B-PER", "O", -100, "B-LOC"], ["O", "B-LOC"], []])
    assert encoded.first.tolist() == [1, 3, 4, 5, 1, 2]
    assert [row.tolist() for row in labels] == [
        [IGNORED, 1, IGNORED, 0, IGNORED, 3, IGNORED],
        [IGNORED, 0, 3, IGNORED],
        [IGNORED, IGNORED],
    ]
    features, targets = task.make_batch(examples, np.array([1, 0]), 11, np.random.default_rng(0))
    assert features["token_ids"].shape == targets.shape == (2, 11)
    assert targets[0].tolist() == [IGNORED, 0, 3] + [IGNORED] * 8
    *_, weights = task.make_batch(examples._replace(weights=np.array([2.0, 3, 5])), np.array([1, 0]), 11, None)
    assert weights.tolist() == [[3.0] * 11, [2.0] * 11]


def test_a_tuple_holds_texts_not_pairs(task):
    texts = ["films was", "dull film", "plot"]
    tags = [["B-PER", "O"], ["O", "B-LOC"], ["O"]]
    columns = {"source": ["a", "b", "a"]}
    expected = task.report(texts, tags, verbose=0, errors=True, columns=columns)
    actual = task.report(tuple(texts), tags, verbose=0, errors=True, columns=columns)
    assert str(actual) == str(expected)
    assert actual.scores == expected.scores
    two_texts = task.evaluate(tuple(texts[:2]), tags[:2], verbose=0)
    assert two_texts == task.evaluate(texts[:2], tags[:2], verbose=0)


@pytest.mark.slow_cases("numbers")
@pytest.mark.parametrize(
    "y",
    [
        [[-100, 1], [0, -100]],
        [["O", -100], [-100, "B-PER"]],
        np.array([[3, -100], [-100, -100]]),
        np.array([["O", -100], [-100, "I-LOC"]], object),
        [np.array([-100, 2]), (np.int64(-100), 4)],
    ],
    ids=["numbers", "names", "array", "objects", "rows"],
)
def test_words_with_an_ignored_label_do_not_count(task, y):
    texts = [["films", "was"], ["dull", "plot"]]
    _, rows, _ = task.encode_examples(texts, y)
    numbers = [[LABELS.index(label) if isinstance(label, str) else int(label) for label in labels] for labels in y]
    assert [row.tolist() for row in rows] == [
        [IGNORED, numbers[0][0], IGNORED, numbers[0][1], IGNORED],  # "films" has two tokens
        [IGNORED, *numbers[1], IGNORED],
    ]
    counted = [(i, k) for i, labels in enumerate(numbers) for k, label in enumerate(labels) if label != IGNORED]
    logits = task.predict(texts, verbose=0)
    columns = [[1, 3], [1, 2]]
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = -np.mean([log_probabilities[i, columns[i][k], numbers[i][k]] for i, k in counted])
    assert task.evaluate(texts, y, return_dict=True, verbose=0)["loss"] == pytest.approx(expected, rel=1e-5)


def test_loss_is_the_mean_over_words(task):
    rng = np.random.default_rng(2)
    logits, labels, weights = rng.normal(size=(3, 5, 5)), rng.integers(0, 5, (3, 5)), np.array([1.0, 0.5, 2.0])
    labels[0, 2:], labels[2, :3] = IGNORED, IGNORED
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    losses = -np.take_along_axis(log_probabilities, np.maximum(labels, 0)[..., None], axis=2)[..., 0]
    is_labeled = labels != IGNORED
    loss = task.default_loss()
    assert float(loss(labels, logits)) == pytest.approx(losses[is_labeled].mean(), abs=1e-6)
    token_weights = is_labeled * weights[:, None]
    assert float(loss(labels, logits, token_weights)) == pytest.approx(
        (losses * token_weights).sum() / token_weights.sum(), abs=1e-6
    )
    assert float(loss(np.full((3, 5), IGNORED), logits)) == 0


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        keras.losses.sparse_categorical_crossentropy,
        keras.losses.SparseCategoricalCrossentropy,
    ],
)
def test_a_loss_given_by_name_leaves_out_tokens_without_a_label(task, loss):
    labels = [["B-PER", "O", -100, "B-LOC"], ["O", "B-LOC"], []]
    expected = task.evaluate(WORDS, labels, verbose=0, return_dict=True)["loss"]
    task.compile(loss=loss)
    assert task.evaluate(WORDS, labels, verbose=0, return_dict=True)["loss"] == pytest.approx(expected, rel=1e-6)


def test_a_loss_that_counts_tokens_without_a_label_is_refused(task):
    loss_class = keras.losses.SparseCategoricalCrossentropy
    message = r"label -100, which have no class: pass SparseCategoricalCrossentropy\(.*, ignore_class=-100\), or leave"
    for loss in (loss_class(from_logits=True), loss_class(from_logits=True, ignore_class=0)):
        with pytest.raises(ValueError, match=message):
            task.compile(loss=loss)
    with pytest.raises(ValueError, match="outputs are logits"):
        task.compile(loss=loss_class(ignore_class=-100))
    loss = loss_class(from_logits=True, ignore_class=-100)
    task.compile(loss=loss)
    assert task.loss is loss


def test_predictions_are_per_token_in_the_order_of_the_texts(task, tiny):
    texts = ["the plot was bad", "", *tiny.texts(9, longest=25), ["films"]]
    logits = task.predict(texts, batch_size=4, verbose=0)
    encoded = task.encode_inputs(texts)
    assert logits.shape[0] == len(texts)
    assert logits.shape[1] >= encoded.lengths.max()
    for i, length in enumerate(encoded.lengths):
        features = task.features(encoded, np.array([i]), int(length))
        np.testing.assert_allclose(logits[i, :length], task.predict(features, verbose=0)[0], atol=1e-5)
    assert task.predict([], verbose=0).shape == (0, 0, 5)


def test_aggregations_label_spans_tokens_or_words(task, monkeypatch):
    # By token: film ##s | was | the | plot
    fix_predictions(task, monkeypatch, [["B-PER", "I-LOC", "I-PER", "O", "B-LOC"], ["O", "I-LOC"], []])

    def tag(aggregation):
        return [
            [(s["text"], s["label"], s["start"], s["end"]) for s in row] for row in task.tag(WORDS, 32, aggregation)
        ]

    assert tag("first") == [[("films was", "PER", 0, 9), ("plot", "LOC", 14, 18)], [("film", "LOC", 5, 9)], []]
    assert tag("simple") == [
        [("film", "PER", 0, 4), ("s", "LOC", 4, 5), ("was", "PER", 6, 9), ("plot", "LOC", 14, 18)],
        [("film", "LOC", 5, 9)],
        [],
    ]
    words = [("films", "B-PER", 0, 5), ("was", "I-PER", 6, 9), ("the", "O", 10, 13), ("plot", "B-LOC", 14, 18)]
    assert tag("none")[0] == tag(None)[0] == words
    scores = [row["score"] for row in task.tag(WORDS)[0]]
    assert scores == pytest.approx([np.exp(3) / (np.exp(3) + 4)] * 2, abs=1e-6)
    with pytest.raises(ValueError, match="average"):
        task.tag(WORDS, aggregation="average")


def test_schemes_may_mark_the_last_words_and_single_words(tiny, monkeypatch):
    labels = ["O", "PER_B", "PER_I", "PER_L", "PER_U", "X"]
    with pytest.warns(TextWarning, match="such as 'PER_B' mark spans, but 'X' does not: .* are in no span"):
        task = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=labels)
    names = [metric.name for metric in task.default_metrics()]
    assert names == ["accuracy", "span_precision", "span_recall", "span_f1"]
    texts = ["films was the plot"]
    rows = [
        task.encode_examples(texts, [labels_of_text])[1][0].tolist()
        for labels_of_text in (
            ["PER_B", "PER_L", "O", "PER_U"],
            [{"start": 0, "end": 9, "label": "PER"}, {"start": 14, "end": 18, "label": "PER"}],
        )
    ]
    assert rows[0] == rows[1]
    # By token: film ##s | was | the | plot
    fix_predictions(task, monkeypatch, [["PER_B", "O", "PER_L", "X", "PER_U"]])
    spans = [(s["text"], s["label"], s["start"], s["end"]) for s in task.tag(texts)[0]]
    assert spans == [("films was", "PER", 0, 9), ("plot", "PER", 14, 18)]
    assert task.report(texts, [["PER_B", "PER_L", "O", "PER_U"]], verbose=0).scores["span_f1"] == 1
    fix_predictions(task, monkeypatch, [["PER_L", "O", "PER_I", "O", "PER_B"]])
    predicted = [word["label"] for word in task.tag(texts, aggregation="none", constrained=True)[0]]
    marks = "".join(label[-1] for label in predicted)
    assert re.fullmatch("(BI*L|U|O|X)*", marks), marks


def test_constrained_labels_are_well_formed(task, monkeypatch):
    fix_predictions(task, monkeypatch, [["I-PER", "O", "I-PER", "O", "I-LOC"], ["O", "I-LOC"], []])
    for row in task.tag(WORDS, aggregation="none", constrained=True):
        labels = ["O", *(word["label"] for word in row)]
        for before, label in itertools.pairwise(labels):
            assert not label.startswith("I-") or before[2:] == label[2:]
    with pytest.raises(ValueError, match="constrained"):
        task.tag(WORDS, aggregation="simple", constrained=True)


def test_labels_that_mark_no_spans_stay_on_words(tiny):
    task = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=["NOUN", "VERB"])
    assert [row["text"] for row in task.tag([["films", "was", "the", "plot"]])[0]] == ["films", "was", "the", "plot"]
    assert [metric.name for metric in task.default_metrics()] == ["accuracy"]
    with pytest.raises(ValueError, match="mark any"):
        task.fit(["films"], [[{"start": 0, "end": 5, "label": "X"}]], verbose=0)
    with pytest.raises(ValueError, match=r"`y\[1\]` holds 0 labels for 1 words"):
        task.fit(["", "films"], [[], []], verbose=0)
    assert np.isfinite(task.evaluate(["", "films"], [[], ["NOUN"]], verbose=0)[0])
    numbered = TokenClassifier(tiny.backbone(), tiny.preprocessor(), num_classes=3)
    assert {row["label"] for row in numbered.tag(["films was the plot"])[0]} <= {"0", "1", "2"}


def test_truncated_words_are_not_tagged(tiny):
    task = TokenClassifier(tiny.backbone(), tiny.preprocessor(7), labels=["NOUN", "VERB"])
    words = ["plot", "films", "was", "films", "the"]
    with pytest.warns(TextWarning, match="1 of 1"):
        tagged = task.tag([words])
    assert [word["text"] for word in tagged[0]] == ["plot", "films", "was", "films"][:4]
    with pytest.warns(TextWarning):
        encoded, labels, _ = task.encode_examples([words], [["NOUN"] * 5])
    assert encoded.first.tolist() == [1, 2, 4, 5, -1]
    assert (labels[0] >= 0).sum() == 4
    with pytest.warns(TextWarning):
        assert task.tag([["the", "the", "the", "the", "films", "the"]], aggregation="simple")[0][-1]["text"] == "film"


FAMILIES = [family for family in families().values() if TokenClassifier.supports(family)]


@pytest.mark.quick_cases(
    "electra", "ffnn_lm", "marian_encoder", "modernbert", "mpnet", "static_words", "t5_encoder", "xlm_roberta"
)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_word_has_a_token_in_every_family(family):
    task = tiny_task(TokenClassifier, family)
    words = ["good", "", "\u200b", "\0", "Straße", "👍🏽", "  ", "don't", "\ufffd", "film film", "한국어"]
    encoded = task.encode_inputs([words, [], ["film"]])
    assert (np.diff(encoded.first[: len(words)]) > 0).all()
    assert encoded.first[0] == bool(family.packing.start)
    for aggregation in ("none", "simple"):
        for word in task.tag([words, [], ["film"]], aggregation=aggregation)[0]:
            assert word["text"] == " ".join(words)[word["start"] : word["end"]]
    assert [word["text"] for word in task.tag([words], aggregation="none")[0]] == words


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_separate_words_have_the_tokens_of_the_text(family):
    tokenizer = tiny_task(TokenClassifier, family).preprocessor.tokenizer
    text = "the film was very good ! bad film"
    words = text.split()
    text_tokens = tokenizer.tokenize([" " * bool(tokenizer.space_of_words) + text])[0]
    assert [token for tokens in tokenizer.tokenize_words(words) for token in tokens] == text_tokens
    for tokens, token_spans in zip(
        tokenizer.tokenize_words(words), tokenizer.tokenize_words_with_offsets(words), strict=True
    ):
        assert [span.id for span in token_spans] == tokens
        assert (token_spans[0].start, token_spans[-1].end) == (0, len(words[0])) or len(words[0]) != token_spans[-1].end
        assert all(0 <= span.start <= span.end for span in token_spans)


@pytest.mark.parametrize(
    ("texts", "labels", "error", "message"),
    [
        ([["films", "was"]], [["O"]], ValueError, r"`y\[0\]` holds 1 labels for 2 words"),
        ([["films"], ["was"]], [["O"], ["X"]], ValueError, r"'X' at `y\[1\]\[0\]` is not one of"),
        ([["films", "was"]], [["O", 5]], ValueError, r"5"),
        ([["films", "was"]], [[0, 5]], ValueError, r"5 at `y\[0\]\[1\]` is outside \[0, 5\)"),
        ([["films", "was"]], [[]], ValueError, r"`y\[0\]` holds 0 labels for 2 words"),
        ([["films"]], ["O"], TypeError, r"`y\[0\]` must be a list"),
        ([["films", None]], [["O", "O"]], TypeError, r"texts\[0\]\[1\]"),
        (["films  was"], [[{"start": 5, "end": 7, "label": "PER"}]], ValueError, "no word of the text"),
        (["films"], [[{"start": 0, "end": 9, "label": "PER"}]], ValueError, "not within its text of 5 characters"),
        (
            ["films"],
            [[{"start": 0, "end": 5}]],
            ValueError,
            r'`y\[0\]`: a span is a dict with "start", "end" and "label"',
        ),
        (
            ["films"],
            [[{"start": 0, "end": 5, "label": "PER", "text": "film"}]],
            ValueError,
            "is another, 'films'",
        ),
        (["films"], [[{"start": 0, "end": 5, "label": "ORG"}]], ValueError, r"'B-ORG' at `y\[0\]\[0\]`"),
        (["films was"], [[{"start": 0, "end": 5, "label": "PER"}] * 2], ValueError, "shares a word"),
        ("films", [["O"]], TypeError, "one string"),
    ],
)
def test_errors_come_before_the_first_step(task, assert_refused, texts, labels, error, message):
    assert_refused(task, (texts, labels), ([["dull"]], [["O"]]), error, message)


def test_token_features_take_labels_of_tokens(tiny):
    task = TokenClassifier(tiny.backbone(), num_classes=5)
    features = tiny.preprocessor()(["films was bad", "the plot"])
    labels = np.where(features["padding_mask"] == 1, 2, IGNORED)
    task.fit(features, labels, epochs=1, verbose=0)
    for invalid in (labels + 5, labels[:, 0], labels.astype("float32")):
        with pytest.raises(ValueError, match=r"Label|Expected"):
            task.fit(features, invalid, epochs=1, verbose=0)


@pytest.mark.slow
def test_token_features_take_weights_of_texts_or_tokens(tiny):
    task = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=LABELS)
    texts, y = [["films", "was", "bad"], ["the", "plot"], ["dull"]], [["B-PER", "O", -100], ["O", "B-LOC"], ["O"]]
    features, targets = task.make_batch(task.encode_examples(texts, y), np.arange(3), 7, None)
    weights = np.array([0.5, 3.0, 0.0], "float32")
    expected = task.evaluate(texts, y, sample_weight=weights, verbose=0)
    token_weights = np.repeat(weights[:, None], 7, axis=1)
    for sample_weight in (weights, weights.tolist(), token_weights):
        assert task.evaluate(features, targets, sample_weight=sample_weight, verbose=0) == pytest.approx(
            expected, rel=1e-5
        )
    assert expected[0] != pytest.approx(task.evaluate(features, targets, verbose=0)[0], rel=1e-3)
    history = task.fit(
        features, targets, sample_weight=weights, validation_data=(features, targets, weights), epochs=1, verbose=0
    ).history
    assert history["loss"][0] == pytest.approx(expected[0], rel=1e-5)
    assert np.isfinite(history["val_loss"][0])


def test_errors_of_weights(task, steps, tiny):
    features, labels = tiny.preprocessor()(["films was bad", "the plot"]), np.full((2, 6), 1)
    for x, y, weights, message in (
        (features, labels, np.ones(3), r"for each text, of shape \(2,\), or for each token, \(2, 6\); got .* \(3,\)"),
        (features, labels, np.ones((2, 5)), r"got weights of shape \(2, 5\)"),
        ([["films"]], [["O"]], np.ones((1, 2)), r"`sample_weight\[0\]` holds 2 weights for 1 words"),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(x, y, sample_weight=weights, callbacks=[steps], verbose=0)
        with pytest.raises(ValueError, match=message):
            task.evaluate(x, y, sample_weight=weights, verbose=0)
    with pytest.raises(ValueError, match="In `class_weight`: Label 'X' at position 0 is not one of"):
        task.fit([["films"]], [["O"]], class_weight={"X": 2.0}, callbacks=[steps], verbose=0)
    assert steps.count == 0


@pytest.mark.slow
def test_a_bilstm_encoder_ignores_padding(tiny):
    task = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=LABELS, encoder="bilstm", encoder_dim=7)
    encoded = task.encode_inputs(WORDS)
    wide = task.features(encoded, np.arange(3), 13)
    narrow = task.features(encoded, np.arange(3), 7)
    np.testing.assert_allclose(task.predict(wide, verbose=0)[:, :7], task.predict(narrow, verbose=0), atol=1e-5)
    with pytest.raises(ValueError, match="gru"):
        TokenClassifier(tiny.backbone(), labels=LABELS, encoder="gru")


def test_a_warning_counts_truncated_words(task):
    words, labels = [["films"] * 61, ["was"]], [["B-PER"] * 60 + [IGNORED], ["O"]]
    with collect_warnings() as notices:
        _, rows, _ = task.encode_examples(words, labels)
    count = sum(int((row != IGNORED).sum()) for row in rows)
    assert 1 < count < 61
    assert notices[-1].startswith(
        f"{61 - count} of 61 labeled words were truncated and count neither in the loss nor in metrics"
    )


def test_spans_inside_words_are_widened_with_a_warning(task):
    expected = task.encode_examples(["films was"], [["B-PER", "O"]])[1][0]
    span = {"start": 1, "end": 5, "label": "PER"}
    with collect_warnings() as notices:
        labels = task.encode_examples(["films was"], [[span]])[1][0]
    np.testing.assert_array_equal(labels, expected)
    assert notices == ["1 spans began or ended inside a word and were widened to the whole word."]
    np.testing.assert_array_equal(task.encode_examples(["films was"], [[{**span, "start": 0}]])[1][0], expected)


def test_encoded_texts_take_labels_of_words_or_tokens(task):
    encoded, token_labels, _ = task.encode_examples(WORDS, y := [["B-PER", "O", -100, "B-LOC"], ["O", "B-LOC"], []])
    for labels in (y, token_labels, [row.tolist() for row in token_labels]):
        _, rows, _ = task.encode_examples(encoded, labels)
        assert [row.tolist() for row in rows] == [row.tolist() for row in token_labels]
    with pytest.raises(ValueError, match=r"`y\[1\]` holds 3 labels for 2 words"):
        task.encode_examples(encoded, [y[0], ["O"] * 3, []])
    with pytest.raises(ValueError, match=r"Label 5 is outside \[0, 5\)"):
        task.encode_examples(encoded, [np.full(len(row), 5) for row in token_labels])
    texts = task.preprocessor.encode(["films was"])
    with pytest.raises(ValueError, match=r"`y\[0\]` must be the labels of the 5 tokens of its sequence"):
        task.encode_examples(texts, [["O", "B-PER"]])


@pytest.mark.slow_cases("False-2", "False-None", "True-2")
@pytest.mark.parametrize(
    ("equal", "batch_size"),
    [
        (False, None),
        (True, 2),
        (False, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((True, None), (True, 1), (False, 1), (True, 3), (False, 3))
        ),
    ],
)
def test_datasets_of_words_are_read_like_lists(tiny, equal, batch_size):
    tf = pytest.importorskip("tensorflow")
    words = [["films", "was", "the"], ["dull", "film"][: 2 - equal] * (1 + 2 * equal), ["plot"] * 3]
    y = [[1, 0, 4], [0, 1, 3][: len(words[1])], [2, 0, 0]]
    task = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=LABELS)
    dataset = tf.data.Dataset.from_tensor_slices((tf.ragged.constant(words), tf.ragged.constant(y)))
    if batch_size:
        dataset = dataset.batch(batch_size)
    scores = [task.evaluate(*data, return_dict=True, verbose=0) for data in ((dataset,), (words, y, batch_size))]
    assert scores[0]["accuracy"] == scores[1]["accuracy"]
    np.testing.assert_allclose(task.predict(dataset, verbose=0), task.predict(words, verbose=0), atol=1e-5)
    task.fit(dataset, verbose=0)
    arrays = np.array([*map(np.array, words), None], object)[:-1]  # like a table's column of lists
    np.testing.assert_allclose(task.predict(arrays, verbose=0), task.predict(words, verbose=0), atol=1e-5)


def test_generated_datasets_keep_each_text_whole(tiny):
    tf = pytest.importorskip("tensorflow")
    spec = (tf.TensorSpec([None], "string"), tf.TensorSpec([None], "int32"))
    words, y = [["films", "was"], ["dull"]], [[1, 0], [4]]
    dataset = tf.data.Dataset.from_generator(lambda: zip(words, y, strict=True), output_signature=spec)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(2))  # Keras warns if the number is unknown
    task = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=LABELS)
    expected = task.evaluate(words, y, return_dict=True, verbose=0)
    assert task.evaluate(dataset, return_dict=True, verbose=0) == pytest.approx(expected, rel=1e-5)


def test_steps_of_predictions_are_batches_of_the_dataset(task):
    """Further texts are not read: there may be many."""
    tf = pytest.importorskip("tensorflow")
    texts = ["films was the plot", "dull", "good film", "bad", "a fine plot"] * 3
    read_texts = []

    def read():
        for text in texts:
            read_texts.append(text)
            yield text

    dataset = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([], "string"))
    for x, batch_size, count in ((dataset.batch(2), None, 4), (dataset, 3, 6)):
        read_texts.clear()
        logits = task.predict(x, batch_size=batch_size, steps=2, verbose=0)
        assert len(read_texts) <= count + 1
        np.testing.assert_allclose(logits, task.predict(texts[:count], verbose=0), atol=1e-5)
