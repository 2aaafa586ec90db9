"""`TextEmbedder.embed(level="word")`: a vector for each word, from any layer."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest

from lmzoo.models import TextEmbedder
from lmzoo.registry.family import families
from lmzoo.tasks.word_vectors import LayerMix
from lmzoo.testing import tiny_task
from lmzoo.text import Preprocessor, TextWarning, WordPieceTokenizer
from lmzoo.text.word_splitting import place_words, split_words
from tests.text.varied import varied_texts

FAMILIES = families()
NAMES = ["bert", pytest.param("elmo", marks=pytest.mark.slow)]
SUPPORTED = [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in ("bert", "elmo")))
    for name, family in FAMILIES.items()
    if TextEmbedder.supports(family)
]
TEXTS = [
    "The film isn't bad .",
    "",
    "a very fine, fine plot! It was never dull is the very good film and not a bad plot",
    "naïve 😀 film",
]


def make(name="bert", **arguments):
    return tiny_task(TextEmbedder, FAMILIES[name], **arguments)


def find_tokens(text, word, token_spans):
    """Return the indices of the tokens that share more characters with the word than with other words."""
    words = split_words(text)
    overlaps = np.array([[max(0, min(e, i.end) - max(s, i.start)) for i in token_spans] for _, s, e in words])
    own = [i for i in range(len(token_spans)) if overlaps[word, i] and overlaps[:, i].argmax() == word]
    return own or np.flatnonzero(overlaps[word]).tolist()


def compute_states(task, text):
    """Return all layers and the output for a single text without special tokens: float (L + 1, T, H)."""
    features = {name: keras.ops.convert_to_tensor(values) for name, values in task.preprocessor([text]).items()}
    outputs = task.backbone(features)
    states = [*outputs["hidden_states"], outputs["sequence_output"]]
    selection = slice(1, -1) if task.preprocessor.packing.start else slice(None)
    return np.array([keras.ops.convert_to_numpy(state)[0, selection] for state in states])


@pytest.mark.slow_cases("elmo")
@pytest.mark.parametrize("name", SUPPORTED)
def test_word_vectors_are_means_of_their_tokens_in_every_layer(name):
    task = make(name)
    embedded = {layers: task.embed(TEXTS, batch_size=2, level="word", layers=layers) for layers in (None, "all")}
    compared = 0
    for i, text in enumerate(TEXTS):
        words = split_words(text)
        for result in (embedded[None][i], embedded["all"][i]):
            assert result.words == [word for word, _, _ in words]
            assert result.offsets.tolist() == [[start, end] for _, start, end in words]
            assert result.vectors.dtype == "float32"
        token_spans = task.preprocessor.tokenizer.tokenize_with_offsets([text])[0]
        layers = task.backbone.output["hidden_states"]
        assert embedded[None][i].vectors.shape == (len(words), layers[0].shape[-1])
        assert embedded["all"][i].vectors.shape == (len(words), len(layers), layers[0].shape[-1])
        if not words:
            continue
        states = compute_states(task, text)
        for word in range(len(words)):
            expected = states[:, find_tokens(text, word, token_spans)].mean(axis=1)  # (L + 1, H)
            np.testing.assert_allclose(embedded["all"][i].vectors[word], expected[:-1], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(embedded[None][i].vectors[word], expected[-1], rtol=1e-4, atol=1e-5)
            compared += 1
    assert compared > 20


@pytest.mark.quick_cases("elmo")
@pytest.mark.parametrize("name", NAMES)
def test_layers_are_mixed_by_their_weights(name):
    task = make(name)
    texts = TEXTS[:2]
    all_layers, output = (task.embed(texts, level="word", layers=layers) for layers in ("all", None))
    count = all_layers[0].vectors.shape[1]
    mixes = {
        0: np.eye(count)[0],
        -1: np.eye(count)[-1],
        np.int64(1): np.eye(count)[1],
        (-1, -2): np.array([*[0] * (count - 2), 0.5, 0.5]),
        range(count): np.full(count, 1 / count),
    }
    for layers, weights in mixes.items():
        for result, states in zip(task.embed(texts, level="word", layers=layers), all_layers, strict=True):
            expected = np.einsum("wlh,l->wh", states.vectors, weights)
            np.testing.assert_allclose(result.vectors, expected, rtol=1e-4, atol=1e-5)
    weighted = task.embed(texts[:1], level="word", layers={0: 0.25, -1: -2.0})[0].vectors
    expected = 0.25 * all_layers[0].vectors[:, 0] - 2 * all_layers[0].vectors[:, -1]
    np.testing.assert_allclose(weighted, expected, rtol=1e-4, atol=1e-5)
    is_last_layer = np.allclose(output[0].vectors, all_layers[0].vectors[:, -1], atol=1e-5)
    assert is_last_layer == (name == "bert")  # ELMo's output is a mix


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        (5, ValueError, "no layer 5: this model has 5, 0 to 4, or -1 to -5"),
        ([0, -6], ValueError, "no layer -6"),
        ([], ValueError, "`layers` is empty"),
        ("last", TypeError, "`layers` is a number"),
        (1.0, TypeError, "`layers` is a number"),
        ([0.5, 0.5], TypeError, "holds 0.5, which is not the number of a layer; weights go into a dict"),
        ([True], TypeError, "holds True"),
    ],
)
def test_errors_of_layers(layers, error, message):
    with pytest.raises(error, match=message):
        LayerMix.parse(layers, 5)


@pytest.mark.parametrize("name", ["bert", "roberta", "elmo"])
def test_split_words_are_embedded_one_by_one(name):
    task = make(name)
    words = ["The", "film", "is", "n't", "bad-ish", "."]
    (result,) = task.embed([words], level="word")
    assert result.words == words
    text = " ".join(words)
    assert [text[start:end] for start, end in result.offsets] == words
    source = words if name == "elmo" else text
    token_spans = task.preprocessor.tokenizer.tokenize_with_offsets([source])[0]
    state = compute_states(task, source)[-1]
    for vector, (_, start, end) in zip(result.vectors, place_words(words), strict=True):
        inside = [i for i, span in enumerate(token_spans) if span.start < end and span.end > start]
        np.testing.assert_allclose(vector, state[inside].mean(axis=0), rtol=1e-4, atol=1e-5)


def test_word_vectors_depend_on_the_context():
    task = make()
    (first, second, alone) = task.embed(["a fine film", "a dull film", "film"], level="word")
    assert np.abs(first.vectors[2] - second.vectors[2]).max() > 1e-2
    bottom = task.embed(["a fine film", "a dull film"], level="word", layers=0)
    np.testing.assert_allclose(bottom[0].vectors[2], bottom[1].vectors[2], rtol=1e-5, atol=1e-6)
    assert alone.vectors.shape == (1, task.backbone.config.hidden_dim)


def test_truncated_words_have_zeros_with_one_warning():
    task = make()
    task.preprocessor.sequence_length = 5
    with pytest.warns(TextWarning) as notices:
        results = task.embed(["good film never was", "good film", "a \u200b a"], level="word")
    assert [str(notice.message) for notice in notices] == [
        "1 of 3 texts were truncated to 5 tokens (`sequence_length`). 2 of 9 words have no token in the model's input: "
        "their vectors are zeros."
    ]
    is_zero = [(~vectors.any(axis=1)).tolist() for _, _, vectors in results]
    assert is_zero == [[False, False, False, True], [False, False], [False, True, False]]


def test_a_partly_truncated_word_is_the_mean_of_its_other_tokens():
    words = ["x", "##y", "##z", "a"]
    task = make()
    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, *words])
    task.preprocessor = Preprocessor(tokenizer, task.preprocessor.packing, 5)
    with pytest.warns(TextWarning, match="were truncated to 5"):
        (result,) = task.embed(["a xyz a"], level="word")
    features = {
        "token_ids": np.array([[2, 8, 5, 6, 3]]),
        "padding_mask": np.ones((1, 5), "int32"),
        "segment_ids": np.zeros((1, 5), "int32"),
    }
    state = keras.ops.convert_to_numpy(task.backbone(features)["sequence_output"])[0]
    np.testing.assert_allclose(result.vectors, [state[1], state[2:4].mean(axis=0), 0 * state[0]], rtol=1e-4, atol=1e-5)


@pytest.mark.quick_cases("elmo")
@pytest.mark.parametrize("name", NAMES)
def test_limited_memory_gives_the_same_vectors(name, monkeypatch):
    task = make(name)
    expected = task.embed(TEXTS * 3, level="word", layers="all")
    monkeypatch.setattr("lmzoo.tasks.word_vectors._MAX_VALUES", 1)
    results = task.embed(TEXTS * 3, level="word", layers="all")
    for result, expected_result in zip(results, expected, strict=True):
        assert result.words == expected_result.words
        np.testing.assert_allclose(result.vectors, expected_result.vectors, rtol=1e-4, atol=1e-5)


def test_errors_and_warnings_of_texts():
    task = make()
    assert task.embed([], level="word") == []
    for x, error, message in (
        ([("good", "bad")], ValueError, "takes single texts"),
        ((["good"], ["bad"]), ValueError, "takes single texts"),
        (["good", None], TypeError, r"`texts\[1\]` must be a string"),
        ([["good", 3]], TypeError, r"`texts\[0\]\[1\]` must be a string"),
        ("good", TypeError, "got one string"),
    ):
        with pytest.raises(error, match=message):
            task.embed(x, level="word")
    with pytest.warns(TextWarning, match="invalid UTF-8") as notices:
        (result,) = task.embed([b"good \xff film"], level="word")
    assert len(notices) == 1
    assert result.words == ["good", "\ufffd", "film"]


def test_models_of_layers_are_cached_and_follow_the_weights():
    task, text = make(), "good film was never dull"
    before = task.embed([text], level="word")[0].vectors
    models = task.layer_models
    task.embed([text], level="word")
    assert models is task.layer_models
    assert models.get.cache_info()[:2] == (1, 1)  # hits, misses
    np.testing.assert_allclose(before, compute_states(task, text)[-1], rtol=1e-4, atol=1e-5)
    task.backbone.enable_lora(2)
    for weight in task.backbone.trainable_weights:
        weight.assign(keras.ops.ones(weight.shape))
    after = task.embed([text], level="word")[0].vectors
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(after, compute_states(task, text)[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_models_of_layers_follow_quantization():
    task, text = make(), "good film was never dull"
    before = task.embed([text], level="word")[0].vectors
    task.quantize("int8")
    after = task.embed([text], level="word")[0].vectors
    assert 1e-5 < np.abs(after - before).max() < 0.3
    np.testing.assert_allclose(after, compute_states(task, text)[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_models_of_layers_are_not_saved(tmp_path):
    task = make()
    task.save(tmp_path / "before.keras")
    task.embed(TEXTS, level="word", layers="all")
    task.save(tmp_path / "after.keras")
    count = len(task.weights)
    clone = keras.saving.load_model(tmp_path / "after.keras")
    assert len(clone.weights) == len(task.weights) == count
    assert (tmp_path / "after.keras").stat().st_size == pytest.approx(
        (tmp_path / "before.keras").stat().st_size, abs=99
    )


@pytest.mark.slow_cases("elmo-401", "roberta-401")
@pytest.mark.parametrize("count", [401, pytest.param(2003, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["bert", "roberta", "elmo"])
def test_offsets_cut_the_words_out_of_varied_texts(name, count):
    task = make(name)
    texts = varied_texts(count, 1709, ["can't", "U.S.", "good", "film", "[MASK]", "<mask>", " "])
    texts = [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in texts]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TextWarning)
        results = task.embed(texts, batch_size=256, level="word")
    assert len(results) == len(texts)
    word_count = 0
    for text, (words, offsets, vectors) in zip(texts, results, strict=True):
        assert [text[start:end] for start, end in offsets] == words
        assert vectors.shape == (len(words), task.output_shape[-1])
        assert np.isfinite(vectors).all()
        word_count += len(words)
    assert word_count > 2 * count
