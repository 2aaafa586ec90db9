"""Tasks that read long texts in windows: predictions, training, saved files and exports."""

from __future__ import annotations

import copy
import warnings

import keras
import numpy as np
import pytest
from keras import ops

import lmzoo
from lmzoo.models import TextClassifier, TextEmbedder, TokenClassifier
from lmzoo.registry import families
from lmzoo.testing import tiny_task
from lmzoo.text import TextWarning
from lmzoo.text.probabilities import softmax
from lmzoo.training import distill

LENGTH = 13
TOKENS = LENGTH - 2  # without special tokens
WORDS = ["good", "bad", "film", "plot", "the", "a", "was", "is", "very", "never", "dull", "fine"]
COUNTS = (3, TOKENS, TOKENS + 1, 29, 0, 5)
TOLERANCE = 1e-6 if keras.backend.backend() == "tensorflow" else 1e-5  # exported models compute on TensorFlow


def make(task_class, family="bert", **arguments):
    task = tiny_task(task_class, families()[family], **arguments)
    task.preprocessor = copy.copy(task.preprocessor)
    task.preprocessor.sequence_length = LENGTH
    return task


def make_texts(seed=7):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, count)) for count in COUNTS]


def split(text, size=TOKENS, stride=TOKENS):
    words = text.split()
    count = 1 + max(0, -(-(len(words) - size) // stride))
    return [" ".join(words[k * stride : k * stride + size]) for k in range(count)]


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("stride", [TOKENS, 7])
def test_logits_of_windows_are_pooled(pooling, stride):
    plain = make(TextClassifier)
    model = make(TextClassifier, windows="auto", stride=stride, window_pooling=pooling)
    predicted = model.predict(make_texts(), verbose=0)
    for text, logits in zip(make_texts(), predicted, strict=True):
        windows = split(text, stride=stride)
        expected = plain.predict(windows, verbose=0)
        weights = [len(window.split()) + 2 for window in windows]
        expected = expected.max(0) if pooling == "max" else np.average(expected, axis=0, weights=weights)
        np.testing.assert_allclose(logits, expected, atol=1e-6)
    # Training reads all windows of a batch at once, with padding in place of missing windows.
    np.testing.assert_allclose(ops.convert_to_numpy(model(make_texts())), predicted, atol=1e-6)
    np.testing.assert_allclose(model.predict_on_batch(make_texts()), predicted, atol=1e-6)
    short_texts = [make_texts()[i] for i in (0, 1, 4, 5)]
    np.testing.assert_array_equal(model.predict(short_texts, verbose=0), plain.predict(short_texts, verbose=0))


def test_vectors_of_windows_are_averaged():
    plain = make(TextEmbedder)
    model = make(TextEmbedder, windows="auto")
    vectors = model.embed(make_texts())
    for text, vector in zip(make_texts(), vectors, strict=True):
        windows = split(text)
        mean = np.average(plain.embed(windows), axis=0, weights=[len(window.split()) + 2 for window in windows])
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(model(make_texts())), vectors, atol=1e-6)
    np.testing.assert_allclose(model.embed_documents(make_texts()), vectors, atol=1e-6)


def test_windows_begin_with_the_prompt():
    arguments = {"prompts": {"film": "the film "}, "default_prompt": "film"}
    plain = make(TextEmbedder, normalize=False, **arguments)
    model = make(TextEmbedder, normalize=False, windows="auto", **arguments)
    windows = split(make_texts()[3], TOKENS - 2, TOKENS - 2)
    mean = np.average(plain.embed(windows), axis=0, weights=[len(window.split()) + 4 for window in windows])
    np.testing.assert_allclose(model.embed([make_texts()[3]])[0], mean, atol=1e-6)


def test_prompts_are_the_same_words_before_strings_and_lists_of_words():
    prompts = {"query": "query: "}
    model = make(TextEmbedder, "elmo", windows="auto", prompts=prompts, default_prompt="query")
    text = make_texts()[3]
    strings, words = model.encode_inputs([text]), model.encode_inputs([text.split()])
    np.testing.assert_array_equal(words.windows.token_ids, strings.windows.token_ids)
    assert words.counts.tolist() == strings.counts.tolist() == [3]  # 29 words, 11 of them after each prompt
    begins = strings.windows.sequence_splits[:3]
    assert strings.windows.token_ids[begins + 1, 1].tolist() == [ord(":") + 1] * 3  # the second word of each window


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_tags_come_from_the_window_with_most_context(family):
    overhead = 2 if family == "bert" else 0
    size = LENGTH - overhead
    stride = (size + 1) // 2
    plain = make(TokenClassifier, family)
    model = make(TokenClassifier, family, windows="auto")
    tags = model.tag(make_texts(), aggregation="none")
    assert [len(row) for row in tags] == [*COUNTS]  # nothing is truncated
    for text, row in zip(make_texts(), tags, strict=True):
        windows = split(text, size, stride)
        by_window = plain.tag(windows, aggregation="none")
        for k, word in enumerate(row):
            spans = [(j * stride, j * stride + len(window_tags)) for j, window_tags in enumerate(by_window)]
            contexts = [min(k - a, b - 1 - k) + 0.01 * (b - a) if a <= k < b else -1 for a, b in spans]
            best = int(np.argmax(contexts))
            expected = by_window[best][k - spans[best][0]]
            assert (word["text"], word["label"]) == (text.split()[k], expected["label"])
            assert abs(word["score"] - expected["score"]) < 1e-6
    simple = model.tag(make_texts(), aggregation="simple")  # each word is one token
    assert simple == model.tag(make_texts(), aggregation="first")


@pytest.mark.quick_cases("False")
@pytest.mark.parametrize("crf", [False, True])
def test_training_counts_each_word_once(crf):
    model = make(TokenClassifier, windows="auto", stride=4, crf=crf)
    labels = [["O", *["B-PER"] * (count - 1)][:count] for count in COUNTS]
    examples = model.encode_examples(make_texts(), labels)
    assert [int((row >= 0).sum()) for row in examples.labels] == [*COUNTS]
    features, batch_labels = model.make_batch(examples, np.arange(6), int(examples.encoded.lengths.max()), None)
    assert batch_labels.shape == (6, np.prod(features["token_ids"].shape[1:]))
    for row, words in zip(batch_labels, labels, strict=True):
        assert [model.labels[k] for k in row[row >= 0]] == words
    report = model.report([text.split() for text in make_texts()], labels, verbose=0)  # compares the results of `tag`
    evaluated = model.evaluate(make_texts(), labels, return_dict=True, verbose=0)
    assert report.scores["accuracy"] == pytest.approx(evaluated["accuracy"])


def test_a_span_across_windows_is_one_span():
    model = make(TokenClassifier, windows="auto", stride=TOKENS)  # windows without overlap
    labels = ["O"] * 9 + ["B-PER", *["I-PER"] * 4] + ["O"] * 9  # the second window begins within the span
    examples = model.encode_examples([make_texts()[3].split()[:23]], [labels])
    _, batch_labels = model.make_batch(examples, np.array([0]), int(examples.encoded.lengths[0]), None)
    predicted = np.maximum(batch_labels, 0)
    recalls = []
    for _ in range(2):
        recall = model.default_metrics()[2]
        recall.update_state(batch_labels, np.eye(3, dtype="float32")[predicted])
        recalls.append(float(recall.result()))
        predicted[batch_labels == 2] = 0  # leaves the part of the span in the first window
        predicted[0, np.flatnonzero(batch_labels[0] == 2)[0]] = 2
    assert recalls == [1, 0]


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_training_reaches_the_windows_that_determine_the_logits(pooling):
    model = make(TextClassifier, windows="auto", window_pooling=pooling)
    model.compile(keras.optimizers.SGD(0.1))
    windows = [" ".join([word] * TOKENS) for word in WORDS[:5]]  # a different word in each window
    logits = make(TextClassifier).predict(windows, verbose=0)  # (5, 3)
    winners = set(logits.argmax(0).tolist())
    assert len(winners) < 5
    table = model.backbone.embeddings.token_embedding.embeddings
    ids = [model.preprocessor.tokenizer.token_to_id(word) for word in WORDS[:5]]
    before = ops.convert_to_numpy(table)[ids].copy()
    model.train_on_batch([" ".join(windows), WORDS[7]], [2, 0])
    change = np.abs(ops.convert_to_numpy(table)[ids] - before).max(1)
    assert set(np.flatnonzero(change > 0).tolist()) == (winners if pooling == "max" else {0, 1, 2, 3, 4})


@pytest.mark.slow
def test_embedders_are_trained_on_windows():
    model = make(TextEmbedder, windows=2, mini_batch_size=2)
    pairs = (make_texts(1)[:4], make_texts(2)[:4])
    with pytest.warns(TextWarning, match="1 of 4 texts were truncated to 2 windows") as notices:
        loss = model.fit(pairs, batch_size=4, verbose=0).history["loss"][0]
    assert [warning.category for warning in notices].count(TextWarning) == 1
    task = make(TextEmbedder, windows=2)
    with pytest.warns(TextWarning):
        assert loss == pytest.approx(task.evaluate(pairs, batch_size=4, return_dict=True, verbose=0)["loss"], abs=1e-5)


def test_datasets_and_streams_are_read_in_windows():
    tf = pytest.importorskip("tensorflow")
    model = make(TextClassifier, windows="auto")
    labels = [0, 1, 2, 0, 1, 2]
    expected = model.evaluate(make_texts(), labels, verbose=0, return_dict=True)
    dataset = tf.data.Dataset.from_tensor_slices((make_texts(), labels)).batch(4)
    assert model.evaluate(dataset, verbose=0, return_dict=True) == pytest.approx(expected, abs=1e-5)
    np.testing.assert_allclose(
        model.predict(dataset.map(lambda x, y: x), verbose=0), model.predict(make_texts(), verbose=0), atol=1e-6
    )
    stream = lmzoo.data.stream(
        [{"text": text, "label": k} for text, k in zip(make_texts(), labels, strict=True)], label="label"
    )
    assert model.evaluate(stream, batch_size=2, verbose=0, return_dict=True) == pytest.approx(expected, abs=1e-5)


@pytest.mark.compiled
def test_windows_can_be_changed_after_training():
    texts = ["good film", "a very dull plot"]
    model = make(TextClassifier)
    eager = make(TextClassifier)
    eager.compile(run_eagerly=True)
    for windows in (None, "auto"):
        model.windows = windows
        history = model.fit(texts, [0, 1], verbose=0).history
        assert np.isfinite(history["loss"]).all()
    eager.set_weights(model.get_weights())
    for windows in ("auto", None):
        model.windows = eager.windows = windows
        expected = eager.evaluate(texts, [0, 1], verbose=0)[0]
        assert model.evaluate(texts, [0, 1], verbose=0)[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.compiled
def test_features_of_windows_are_predicted_after_texts():
    model = make(TextEmbedder, windows="auto")
    vectors = model.embed(make_texts())
    encoded = model.encode_inputs(make_texts())
    features = model.features(encoded, np.arange(len(encoded)), int(encoded.lengths.max()))
    np.testing.assert_allclose(model.predict(features, verbose=0), vectors, atol=1e-6)
    np.testing.assert_allclose(model.embed(make_texts()), vectors, atol=1e-6)


def test_settings_are_saved_and_can_be_changed(tmp_path):
    model = make(TextClassifier, windows=3, stride=5, window_pooling="max")
    model.save(tmp_path / "long.keras")
    model.save_to_preset(tmp_path / "preset")
    loaded = keras.saving.load_model(tmp_path / "long.keras")
    preset = TextClassifier.from_preset(tmp_path / "preset")
    changed = TextClassifier.from_preset(tmp_path / "preset", windows="auto")
    assert [(task.windows, task.stride, task.window_pooling) for task in (loaded, preset, changed)] == [
        (3, 5, "max"), (3, 5, "max"), ("auto", 5, "max"),
    ]  # fmt: skip
    long_text = make_texts()[2:3]
    for task in (loaded, preset, changed):
        np.testing.assert_allclose(task.predict(long_text, verbose=0), model.predict(long_text, verbose=0), atol=1e-6)
    # Tasks saved by earlier versions lack these settings, and truncate texts.
    config = {k: v for k, v in model.get_config().items() if k not in ("windows", "stride", "window_pooling")}
    earlier = TextClassifier.from_config(config)
    assert (earlier.windows, earlier.stride, earlier.window_pooling) == (None, None, "mean")
    loaded.windows = None
    with pytest.warns(TextWarning, match="1 of 1 texts were truncated to 13 tokens"):
        loaded.predict(long_text, verbose=0)
    loaded.windows = "some"
    with pytest.raises(ValueError, match="`windows` must be"):
        loaded.predict(long_text, verbose=0)


def test_a_stride_is_not_saved_without_windows(tmp_path):
    """The constructors refuse it."""
    model = make(TextClassifier, windows=3, stride=5)
    model.save_to_preset(tmp_path / "preset")
    model.windows = None
    model.save(tmp_path / "short.keras")
    loaded = keras.saving.load_model(tmp_path / "short.keras")
    changed = TextClassifier.from_preset(tmp_path / "preset", windows=None)
    assert [(task.windows, task.stride) for task in (loaded, changed)] == [(None, None)] * 2
    tagger = make(TokenClassifier, windows=3, stride=5)
    assert tagger.get_config()["stride"] == 5
    tagger.windows = None
    assert tagger.get_config()["stride"] is None


def test_invalid_settings_are_refused():
    with pytest.raises(ValueError, match="`window_pooling` must be"):
        make(TextClassifier, windows="auto", window_pooling="sum")
    for task_class in (TextClassifier, TextEmbedder, TokenClassifier):
        with pytest.raises(ValueError, match='pass `windows="auto"`'):
            make(task_class, stride=7)
    student = make(TextClassifier, windows="auto")
    with pytest.raises(ValueError, match=r"`student\.windows` must be None"):
        distill(student, make(TextClassifier), make_texts())


def export_and_load(task, folder):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    task.export(folder / "1", verbose=False)
    signatures = tf.saved_model.load(str(folder / "1")).signatures

    def serve(name, **inputs):
        tensors = signatures[name](**{key: tf.constant(values) for key, values in inputs.items()})
        return {key: tensor.numpy() for key, tensor in tensors.items()}

    return serve


@pytest.mark.slow
@pytest.mark.parametrize(("windows", "pooling"), [("auto", "max"), (2, "mean")])
def test_exported_classifiers_read_windows(windows, pooling, tmp_path):
    model = make(TextClassifier, windows=windows, window_pooling=pooling)
    serve = export_and_load(model, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TextWarning)
        single = softmax(model.predict(make_texts(), verbose=0))
        pairs = softmax(model.predict((make_texts(), make_texts(2)), verbose=0))
    outputs = serve("serving_default", text=make_texts())
    np.testing.assert_allclose(outputs["probabilities"], single, atol=TOLERANCE)
    assert outputs["truncated"].tolist() == [windows == 2 and count > 2 * TOKENS for count in COUNTS]
    np.testing.assert_allclose(
        serve("pair", text=make_texts(), text_pair=make_texts(2))["probabilities"], pairs, atol=TOLERANCE
    )
    np.testing.assert_allclose(
        serve("serving_default", text=make_texts()[:1])["probabilities"], single[:1], atol=TOLERANCE
    )
    assert "windows of 13 tokens" in (tmp_path / "1" / "README.md").read_text()


@pytest.mark.slow
def test_exported_embedders_read_windows(tmp_path):
    prompts = {"query": "good film ", "passage": "the "}
    model = make(TextEmbedder, windows="auto", prompts=prompts, pair_prompts=["query", "passage"])
    serve = export_and_load(model, tmp_path)
    for name, prompt_name in (("serving_default", None), ("query", "query"), ("passage", "passage")):
        expected = model.embed(make_texts(), prompt_name=prompt_name)
        np.testing.assert_allclose(serve(name, text=make_texts())["embedding"], expected, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("crf", [False, True])
def test_exported_taggers_read_windows(crf, tmp_path):
    model = make(TokenClassifier, windows="auto", crf=crf)
    outputs = export_and_load(model, tmp_path)("serving_default", text=make_texts())
    for i, spans in enumerate(model.tag(make_texts())):
        count = int((outputs["start"][i] >= 0).sum())
        served = zip(*(outputs[name][i, :count] for name in ("text", "label", "start", "end")), strict=True)
        assert [(text.decode(), label.decode(), start, end) for text, label, start, end in served] == [
            (span["text"], span["label"], span["start"], span["end"]) for span in spans
        ]
        np.testing.assert_allclose(outputs["score"][i, :count], [span["score"] for span in spans], atol=TOLERANCE)
    assert not outputs["truncated"].any()
