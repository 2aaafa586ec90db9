"""Replaced token detection: what the generator draws, both losses, and where their gradients go."""

from __future__ import annotations

import dataclasses
import warnings

import keras
import numpy as np
import pytest

from lmzoo.models import MaskedLM, Pretrainer, Task, TextClassifier
from lmzoo.registry.family import families
from lmzoo.tasks.base.examples import Examples
from lmzoo.tasks.objectives.replaced_tokens import fill, narrow_config, sample
from lmzoo.testing import randomize, tiny_backbone, tiny_preprocessor, tiny_task, tiny_texts
from lmzoo.training import AdamW

to_numpy = keras.ops.convert_to_numpy
NAMES = ["electra", "albert", "deberta_v3"]


@pytest.fixture(params=NAMES)
def task(request):
    found = tiny_task(Pretrainer, families()[request.param], objective="rtd")
    randomize(found)
    found.merge_weights()  # merges embeddings
    return found


def documents():
    texts = tiny_texts(30)
    return [texts[i : i + 5] for i in range(0, 30, 5)]


def batch_of(task, sample_weight=None):
    encoded = task.encode_examples(documents()).encoded
    rows = np.arange(len(encoded))
    width = int(encoded.lengths.max())
    return task.make_batch(Examples(encoded, None, sample_weight), rows, width, np.random.default_rng(7))


def test_draws_follow_the_probabilities():
    logits = np.random.default_rng(0).normal(size=(2, 3, 7)).astype("float32")
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    draws = np.array([[0, 0.3, 0.999999], [0.5, 0.77, -1]], "float32")
    ends = probabilities.cumsum(axis=-1)
    expected = (ends <= draws[..., None]).sum(axis=-1).clip(max=6)
    expected[1, 2] = logits[1, 2].argmax()
    found = to_numpy(sample(logits, draws))
    assert found.dtype == "int32"
    np.testing.assert_array_equal(found, expected)
    many = np.linspace(0, 1, 10_001, dtype="float32")[None, :-1]
    shares = np.bincount(to_numpy(sample(np.repeat(logits[:1, :1], 10_000, axis=1), many))[0], minlength=7) / 10_000
    np.testing.assert_allclose(shares, probabilities[0, 0], atol=2e-4)


def test_a_sum_that_is_rounded_to_less_than_1():
    logits = np.full((1, 1, 3), -1e-4, "float32")
    assert to_numpy(sample(logits, np.array([[1.0]], "float32"))).item() == 2


def test_position_0_stands_for_no_token():
    ids = np.arange(10, 20, dtype="int32").reshape(2, 5)
    positions, tokens = np.array([[3, 0, 1], [4, 0, 0]], "int32"), np.array([[1, 2, 3], [4, 5, 6]], "int32")
    expected = [[10, 3, 12, 1, 14], [15, 16, 17, 18, 4]]
    np.testing.assert_array_equal(to_numpy(fill(ids, positions, tokens)), expected)


@pytest.mark.quick_cases("electra-True", "deberta_v3-False", "deberta_v3-True")
@pytest.mark.parametrize("weighted", [False, True])
def test_the_losses(task, weighted):
    count = len(task.encode_examples(documents()).encoded)
    given = np.linspace(0.5, 3, count) if weighted else None
    features, targets, weights = batch_of(task, sample_weight=given)
    found = task.predict(features, verbose=0)
    logits = found["masked_lm"].astype("float64")
    chosen = np.take_along_axis(logits, targets["masked_lm"][..., None], axis=-1)[..., 0]
    entropy = np.log(np.exp(logits).sum(axis=-1)) - chosen  # (B, M)
    masked = np.average(entropy, weights=weights["masked_lm"])
    original, judged = targets["replaced_tokens"], found["corrupted_ids"]
    replaced, z = judged != original, found["replaced_tokens"].astype("float64")  # (B, T)
    detection = np.average(np.log1p(np.exp(-np.where(replaced, z, -z))), weights=weights["replaced_tokens"])
    result = task.evaluate(features, targets, sample_weight=weights, batch_size=count, verbose=0, return_dict=True)
    assert result["masked_lm_loss"] == pytest.approx(masked, rel=1e-5)
    assert result["replaced_tokens_loss"] == pytest.approx(detection, rel=1e-5)
    assert result["loss"] == pytest.approx(masked + 50 * detection, rel=1e-5)
    right = np.average((z > 0) == replaced, weights=weights["replaced_tokens"])
    assert result["replaced_tokens_accuracy"] == pytest.approx(right, rel=1e-5)
    said, real = weights["replaced_tokens"] * (z > 0), weights["replaced_tokens"] * replaced
    both = (said * replaced).sum()
    assert result["replaced_tokens_precision"] == pytest.approx(both / said.sum(), rel=1e-5)
    assert result["replaced_tokens_recall"] == pytest.approx(both / real.sum(), rel=1e-5)
    assert 0 in weights["replaced_tokens"], "padding"


@pytest.mark.slow_cases("albert")
def test_what_is_judged(task):
    """Tokens that the generator draws, at the chosen positions only; one that it draws right is original."""
    features, targets, weights = batch_of(task)
    judged, original = task.predict(features, verbose=0)["corrupted_ids"], targets["replaced_tokens"]
    places = np.zeros(judged.shape, bool)
    rows, slots = np.nonzero(weights["masked_lm"])
    places[rows, features["mask_positions"][rows, slots]] = True
    np.testing.assert_array_equal(judged[~places], original[~places])
    assert (judged[places] != original[places]).mean() > 0.5
    mask = task.preprocessor.tokenizer.mask_id
    assert mask in features["token_ids"][places]
    assert mask not in original
    # With draws at the place of the original token nothing is replaced.
    logits = task.predict(features, verbose=0)["masked_lm"].astype("float64")
    ends = (np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)).cumsum(axis=-1)
    starts = np.concatenate([np.zeros_like(ends[..., :1]), ends[..., :-1]], axis=-1)
    middle = np.take_along_axis((starts + ends) / 2, targets["masked_lm"][..., None], axis=-1)[..., 0]
    same = task.predict({**features, "draws": middle.astype("float32")}, verbose=0)["corrupted_ids"]
    np.testing.assert_array_equal(same, original)


@pytest.mark.slow_cases("albert")
def test_the_generator_alone(task):
    features, *_ = batch_of(task)
    generator = task.make_generator()
    assert isinstance(generator, MaskedLM)
    expected = generator.predict({name: features[name] for name in generator.input}, verbose=0)
    np.testing.assert_allclose(task.predict(features, verbose=0)["masked_lm"], expected, atol=1e-6)
    own, theirs = task.backbone.config, generator.backbone.config
    if task.backbone.generator_embeddings == "shared":
        assert theirs.hidden_dim < own.hidden_dim / 3
        assert (theirs.embedding_dim, theirs.num_layers) == (own.embedding_dim, own.num_layers)
    else:
        assert theirs == dataclasses.replace(own, num_layers=own.num_layers // 2)
    before = to_numpy(task.backbone.embeddings.token_embedding.embeddings)
    generator.backbone.embeddings.token_embedding.embeddings.assign(0 * before)  # copies
    np.testing.assert_array_equal(to_numpy(task.backbone.embeddings.token_embedding.embeddings), before)
    with pytest.raises(ValueError, match='`objective="rtd"` has a generator, None has none'):
        tiny_task(Pretrainer, families()["roberta"]).make_generator()


@pytest.mark.slow_cases("albert-masked_lm", "albert-replaced_tokens")
@pytest.mark.parametrize("trained", ["masked_lm", "replaced_tokens"])
def test_each_loss_trains_its_own_model(task, trained):
    """The discriminator's loss does not reach the generator, which is not an adversary, but perhaps its embeddings."""
    other = {"masked_lm": "replaced_tokens", "replaced_tokens": "masked_lm"}[trained]
    task.compile(keras.optimizers.SGD(1.0), loss_weights={trained: 1.0, other: 0.0})
    before = [to_numpy(weight) for weight in task.weights]
    features, targets, weights = batch_of(task)
    # Without `fit`, which adds the generator's embeddings to the discriminator's at its end.
    task.train_on_batch(features, targets, sample_weight=weights)
    changed = {
        weight.path: not np.array_equal(to_numpy(weight), old) for weight, old in zip(task.weights, before, strict=True)
    }
    of_generator = {path: new for path, new in changed.items() if path.startswith("replaced_tokens/generator/")}
    assert any(of_generator.values()) == (trained == "masked_lm")
    assert changed["replaced_tokens/head/logits/kernel"] == (trained == "replaced_tokens")
    is_shared = task.backbone.generator_embeddings == "shared"
    assert changed["embeddings/token_embedding/embeddings"] == (is_shared or trained == "replaced_tokens")


def test_disentangled_embeddings():
    """The discriminator's table is the generator's and a difference; after `fit` the backbone's table is their sum."""
    family = families()["deberta_v3"]
    task = Pretrainer(tiny_backbone(family, dropout=0.0), tiny_preprocessor(family))
    layer = task.get_layer("replaced_tokens")
    own, of_generator = task.backbone.embeddings.token_embedding, layer.generator.embeddings.token_embedding
    start = np.array(own.embeddings)  # a copy: JAX uses the memory again
    np.testing.assert_array_equal(to_numpy(of_generator.embeddings), start)
    task.compile(keras.optimizers.SGD(0.5))
    features, targets, weights = batch_of(task)
    for _ in range(2):
        task.train_on_batch(features, targets, sample_weight=weights)
    difference = np.array(own.embeddings) - start
    learned = np.array(of_generator.embeddings) - start
    assert min(np.abs(difference).max(), np.abs(learned).max()) > 1e-3
    expected = task.predict(features, verbose=0)
    layer.merge_embeddings()
    np.testing.assert_allclose(to_numpy(own.embeddings), start + difference + learned, atol=1e-6)
    found = task.predict(features, verbose=0)
    for name, output in found.items():
        np.testing.assert_allclose(output, expected[name], rtol=1e-5, atol=1e-5)
    states = task.backbone({**features_of(task, features), "token_ids": found["corrupted_ids"]})["sequence_output"]
    np.testing.assert_allclose(to_numpy(layer.head(states)), found["replaced_tokens"], rtol=1e-5)
    task.fit(documents(), verbose=0)
    np.testing.assert_array_equal(to_numpy(layer.merged_table), to_numpy(of_generator.embeddings))
    resized = task.resize_token_embeddings(task.backbone.vocabulary_size + 3)
    layer = resized.get_layer("replaced_tokens")
    table = layer.generator.embeddings.token_embedding.embeddings
    np.testing.assert_array_equal(to_numpy(layer.merged_table), to_numpy(table))
    with pytest.raises(ValueError, match="`generator_width` must be 35, the width of the embeddings, got 7"):
        Pretrainer(task.backbone, generator_width=7)


def features_of(task, features):
    return {name: features[name] for name in task.backbone.input}


@pytest.mark.quick_cases("deberta_v3")
def test_predictions_of_texts(task):
    """Masks are filled with the generator's most probable tokens; a text without masks is judged as it is."""
    texts = ["a good [MASK]", "the film was dull"]
    found = task.predict(texts, verbose=0)
    filled = task.make_generator().predict(texts[:1], verbose=0)[0, 0].argmax()
    mask = task.preprocessor.tokenizer.mask_id
    ids = task.preprocessor(texts)["token_ids"]
    width = ids.shape[1]
    np.testing.assert_array_equal(found["corrupted_ids"][:, :width], np.where(ids == mask, filled, ids))
    features = {**task.preprocessor(texts), "token_ids": np.where(ids == mask, filled, ids)}
    logits = task.get_layer("replaced_tokens").head(task.backbone(features)["sequence_output"])
    np.testing.assert_allclose(found["replaced_tokens"][:, :width], to_numpy(logits), atol=1e-5)
    assert {name: output.shape for name, output in task.predict([], verbose=0).items()} == {
        "masked_lm": (0, 0, task.backbone.vocabulary_size),
        "replaced_tokens": (0, 0),
        "corrupted_ids": (0, 0),
    }


@pytest.mark.slow_cases("albert")
def test_evaluation_is_the_same_twice(task):
    first, again = (task.evaluate(documents(), verbose=0, return_dict=True) for _ in range(2))
    assert first == again


@pytest.mark.slow
@pytest.mark.compiled
def test_it_learns_both():
    """Two sentences, in which a word tells which one it is: another word in its place is found in each of them."""
    family = families()["electra"]
    size = {"num_layers": 2, "num_heads": 4, "hidden_dim": 64, "intermediate_dim": 128, "embedding_dim": 64}
    size |= {"vocabulary_size": family.tiny.vocabulary_size, "max_sequence_length": 71}
    backbone = family.backbone(**size, dropout=0.0)
    task = Pretrainer(backbone, tiny_preprocessor(family), objective="rtd")
    task.compile(AdamW(0.002, global_clipnorm=1.0))
    sentences = ["good bad film plot . films a", "plot a bad films good . film"]
    history = task.fit([[sentence] for sentence in sentences * 60], epochs=30, batch_size=12, verbose=0).history
    for name in ("masked_lm_loss", "replaced_tokens_loss"):
        assert history[name][-1] < 0.5 * history[name][0], name
    for sentence in sentences:
        for place in (2, 4):
            words = sentence.split()
            words[place] = "bad" if words[place] == "plot" else "plot"
            scores = task.predict([" ".join(words)], verbose=0)["replaced_tokens"][0, 1:8]
            assert scores[place] > np.delete(scores, place).max() + 0.5


@pytest.mark.slow
def test_files(tmp_path):
    family = families()["electra"]
    task = Pretrainer(tiny_backbone(family), tiny_preprocessor(family), generator_width=6)
    randomize(task)
    expected = task.evaluate(documents(), verbose=0)
    task.save(tmp_path / "it.keras")
    task.save_to_preset(tmp_path / "it")
    for again in (Task.load(tmp_path / "it.keras"), Pretrainer.from_preset(tmp_path / "it")):
        assert (again.objective, again.generator_width) == ("rtd", 6)
        assert again.evaluate(documents(), verbose=0) == expected
    with pytest.warns(UserWarning, match="holds no head of a MaskedLM, so it starts from scratch"):
        MaskedLM.from_preset(tmp_path / "it")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TextClassifier.from_preset(tmp_path / "it", num_classes=3)
    task.make_generator().save_to_preset(tmp_path / "generator")
    assert MaskedLM.from_preset(tmp_path / "generator").fill(["a [MASK]"], top_k=1)


def test_the_familys_masking():
    """As in Google's code: most of the tokens are masked, the others stay, and none is replaced at random."""
    masking = families()["electra"].masking
    rng, targets = np.random.default_rng(1), np.full((1, 10_000), 17)
    corrupted = masking.corrupt(targets, np.ones(targets.shape, bool), 3, 137, rng)
    assert set(np.unique(corrupted)) == {3, 17}
    assert (corrupted == 3).mean() == pytest.approx(0.85, abs=0.01)


@pytest.mark.slow
def test_widths():
    config = families()["electra"].tiny
    assert (config.num_heads, config.hidden_dim, config.intermediate_dim) == (5, 35, 47)
    small, given = narrow_config(config), narrow_config(config, 14)
    assert (small.num_heads, small.hidden_dim, small.intermediate_dim) == (1, 8, 10)
    assert (given.num_heads, given.hidden_dim, given.intermediate_dim) == (2, 14, 18)
    for width, message in ((0, "a positive integer, got 0"), (15, "a multiple of the number of heads, 2, got 15")):
        with pytest.raises(ValueError, match=f"`generator_width` must be {message}"):
            tiny_task(Pretrainer, families()["electra"], generator_width=width)
    with pytest.raises(ValueError, match=r"This BertBackbone has embeddings of its own width, .* choose None"):
        tiny_task(Pretrainer, families()["bert"], objective="rtd")
