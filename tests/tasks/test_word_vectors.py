"""One vector for each word, from any layer."""

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
ELMO = pytest.param("elmo", marks=pytest.mark.slow)
NAMES = ["bert", ELMO]
EACH = [
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


def pieces_of(text, word, pieces):
    """Indices of the tokens that share a character with the word, but for those that share more with another."""
    words = split_words(text)
    shares = np.array([[max(0, min(e, p.end) - max(s, p.start)) for p in pieces] for _, s, e in words])
    own = [p for p in range(len(pieces)) if shares[word, p] and shares[:, p].argmax() == word]
    return own or np.flatnonzero(shares[word]).tolist()


def states_of(task, text):
    """All layers and the output of a text alone: float (L + 1, T, H), special tokens left out."""
    features = {name: keras.ops.convert_to_tensor(values) for name, values in task.preprocessor([text]).items()}
    outputs = task.backbone(features)
    states = [*outputs["hidden_states"], outputs["sequence_output"]]
    kept = slice(1, -1) if task.preprocessor.packing.start else slice(None)
    return np.array([keras.ops.convert_to_numpy(state)[0, kept] for state in states])


@pytest.mark.slow_cases("elmo")
@pytest.mark.parametrize("name", EACH)
def test_every_layer_of_every_word(name):
    task = make(name)
    found = {layers: task.embed(TEXTS, batch_size=2, level="word", layers=layers) for layers in (None, "all")}
    compared = 0
    for i, text in enumerate(TEXTS):
        words = split_words(text)
        for answer in (found[None][i], found["all"][i]):
            assert answer.words == [word for word, _, _ in words]
            assert answer.offsets.tolist() == [[start, end] for _, start, end in words]
            assert answer.vectors.dtype == "float32"
        pieces = task.preprocessor.tokenizer.tokenize_with_offsets([text])[0]
        layers = task.backbone.output["hidden_states"]
        assert found[None][i].vectors.shape == (len(words), layers[0].shape[-1])
        assert found["all"][i].vectors.shape == (len(words), len(layers), layers[0].shape[-1])
        if not words:
            continue
        states = states_of(task, text)
        for word in range(len(words)):
            expected = states[:, pieces_of(text, word, pieces)].mean(axis=1)  # (L + 1, H)
            np.testing.assert_allclose(found["all"][i].vectors[word], expected[:-1], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found[None][i].vectors[word], expected[-1], rtol=1e-4, atol=1e-5)
            compared += 1
    assert compared > 20


@pytest.mark.quick_cases("elmo")
@pytest.mark.parametrize("name", NAMES)
def test_mixes_of_layers(name):
    task = make(name)
    texts = TEXTS[:2]
    everything, output = (task.embed(texts, level="word", layers=layers) for layers in ("all", None))
    count = everything[0].vectors.shape[1]
    mixes = {
        0: np.eye(count)[0],
        -1: np.eye(count)[-1],
        np.int64(1): np.eye(count)[1],
        (-1, -2): np.array([*[0] * (count - 2), 0.5, 0.5]),
        range(count): np.full(count, 1 / count),
    }
    for layers, weights in mixes.items():
        for found, states in zip(task.embed(texts, level="word", layers=layers), everything, strict=True):
            expected = np.einsum("wlh,l->wh", states.vectors, weights)
            np.testing.assert_allclose(found.vectors, expected, rtol=1e-4, atol=1e-5)
    weighted = task.embed(texts[:1], level="word", layers={0: 0.25, -1: -2.0})[0].vectors
    expected = 0.25 * everything[0].vectors[:, 0] - 2 * everything[0].vectors[:, -1]
    np.testing.assert_allclose(weighted, expected, rtol=1e-4, atol=1e-5)
    same = np.allclose(output[0].vectors, everything[0].vectors[:, -1], atol=1e-5)
    assert same == (name == "bert")  # ELMo's output is a mix


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
def test_layers_that_are_not_there(layers, error, message):
    with pytest.raises(error, match=message):
        LayerMix.parse(layers, 5)


@pytest.mark.parametrize("name", ["bert", "roberta", "elmo"])
def test_words_that_are_split_already(name):
    task = make(name)
    words = ["The", "film", "is", "n't", "bad-ish", "."]
    (found,) = task.embed([words], level="word")
    assert found.words == words
    text = " ".join(words)
    assert [text[start:end] for start, end in found.offsets] == words
    source = words if name == "elmo" else text
    pieces = task.preprocessor.tokenizer.tokenize_with_offsets([source])[0]
    state = states_of(task, source)[-1]
    for vector, (_, start, end) in zip(found.vectors, place_words(words), strict=True):
        inside = [i for i, piece in enumerate(pieces) if piece.start < end and piece.end > start]
        np.testing.assert_allclose(vector, state[inside].mean(axis=0), rtol=1e-4, atol=1e-5)


def test_a_word_depends_on_its_text():
    task = make()
    (first, second, alone) = task.embed(["a fine film", "a dull film", "film"], level="word")
    assert np.abs(first.vectors[2] - second.vectors[2]).max() > 1e-2
    bottom = task.embed(["a fine film", "a dull film"], level="word", layers=0)
    np.testing.assert_allclose(bottom[0].vectors[2], bottom[1].vectors[2], rtol=1e-5, atol=1e-6)
    assert alone.vectors.shape == (1, task.backbone.config.hidden_dim)


def test_cut_words_are_zeros_with_one_notice():
    task = make()
    task.preprocessor.sequence_length = 5
    with pytest.warns(TextWarning) as notices:
        found = task.embed(["good film never was", "good film", "a \u200b a"], level="word")
    assert [str(notice.message) for notice in notices] == [
        "1 of 3 texts were truncated to 5 tokens (`sequence_length`). 2 of 9 words have no token in the model's input: "
        "their vectors are zeros."
    ]
    zeros = [(~vectors.any(axis=1)).tolist() for _, _, vectors in found]
    assert zeros == [[False, False, False, True], [False, False], [False, True, False]]


def test_a_word_that_is_cut_within_has_what_is_left():
    words = ["x", "##y", "##z", "a"]
    task = make()
    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, *words])
    task.preprocessor = Preprocessor(tokenizer, task.preprocessor.packing, 5)
    with pytest.warns(TextWarning, match="were truncated to 5"):
        (found,) = task.embed(["a xyz a"], level="word")
    features = {
        "token_ids": np.array([[2, 8, 5, 6, 3]]),
        "padding_mask": np.ones((1, 5), "int32"),
        "segment_ids": np.zeros((1, 5), "int32"),
    }
    state = keras.ops.convert_to_numpy(task.backbone(features)["sequence_output"])[0]
    np.testing.assert_allclose(found.vectors, [state[1], state[2:4].mean(axis=0), 0 * state[0]], rtol=1e-4, atol=1e-5)


@pytest.mark.quick_cases("elmo")
@pytest.mark.parametrize("name", NAMES)
def test_parts_in_memory_are_the_whole(name, monkeypatch):
    task = make(name)
    expected = task.embed(TEXTS * 3, level="word", layers="all")
    monkeypatch.setattr("lmzoo.tasks.word_vectors._MAX_VALUES", 1)
    for found, whole in zip(task.embed(TEXTS * 3, level="word", layers="all"), expected, strict=True):
        assert found.words == whole.words
        np.testing.assert_allclose(found.vectors, whole.vectors, rtol=1e-4, atol=1e-5)


def test_nothing_and_what_is_no_text():
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
        (found,) = task.embed([b"good \xff film"], level="word")
    assert len(notices) == 1
    assert found.words == ["good", "\ufffd", "film"]


def last_states(task, text):
    """What `embed` should say for a text whose words are its tokens."""
    return states_of(task, text)[-1]


def test_models_of_layers_are_kept_and_follow_the_weights():
    task, text = make(), "good film was never dull"
    before = task.embed([text], level="word")[0].vectors
    models = task._layer_models
    task.embed([text], level="word")
    assert models is task._layer_models
    assert models.of.cache_info()[:2] == (1, 1)  # hits, misses
    np.testing.assert_allclose(before, last_states(task, text), rtol=1e-4, atol=1e-5)
    task.backbone.enable_lora(2)
    task.compile()
    for weight in task.backbone.trainable_weights:
        weight.assign(keras.ops.ones(weight.shape))
    after = task.embed([text], level="word")[0].vectors
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(after, last_states(task, text), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_models_of_layers_follow_quantization():
    task, text = make(), "good film was never dull"
    before = task.embed([text], level="word")[0].vectors
    task.quantize("int8")
    after = task.embed([text], level="word")[0].vectors
    assert 1e-5 < np.abs(after - before).max() < 0.3
    np.testing.assert_allclose(after, last_states(task, text), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_models_of_layers_are_no_part_of_the_file(tmp_path):
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
def test_offsets_of_varied_texts(name, count):
    task = make(name)
    texts = varied_texts(count, 1709, ["can't", "U.S.", "good", "film", "[MASK]", "<mask>", " "])
    texts = [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in texts]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TextWarning)
        found = task.embed(texts, batch_size=256, level="word")
    assert len(found) == len(texts)
    words = 0
    for text, (parts, offsets, vectors) in zip(texts, found, strict=True):
        assert [text[start:end] for start, end in offsets] == parts
        assert vectors.shape == (len(parts), task.output_shape[-1])
        assert np.isfinite(vectors).all()
        words += len(parts)
    assert words > 2 * count
