"""Replaced token detection: the generator's draws, both losses, and the weights that each loss trains."""

from __future__ import annotations

import dataclasses
import warnings

import keras
import numpy as np
import pytest

from lmzoo.models import MaskedLM, Pretrainer, Task, TextClassifier
from lmzoo.registry.family import families
from lmzoo.tasks.base.examples import Examples
from lmzoo.tasks.objectives.replaced_tokens import fill, make_narrow_config, sample
from lmzoo.testing import randomize, tiny_backbone, tiny_preprocessor, tiny_task, tiny_texts
from tests.tasks.interruptions import Interrupted, Spy

to_numpy = keras.ops.convert_to_numpy
NAMES = ["electra", "albert", "deberta_v3"]


@pytest.fixture(params=NAMES)
def task(request):
    task = tiny_task(Pretrainer, families()[request.param], objective="rtd")
    randomize(task)
    task.merge_weights()  # merges embeddings
    return task


def make_documents():
    texts = tiny_texts(30)
    return [texts[i : i + 5] for i in range(0, 30, 5)]


def make_batch(task, sample_weight=None):
    encoded = task.encode_examples(make_documents()).encoded
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
    tokens = to_numpy(sample(logits, draws))
    assert tokens.dtype == "int32"
    np.testing.assert_array_equal(tokens, expected)
    uniform_draws = np.linspace(0, 1, 10_001, dtype="float32")[None, :-1]
    samples = to_numpy(sample(np.repeat(logits[:1, :1], 10_000, axis=1), uniform_draws))[0]
    frequencies = np.bincount(samples, minlength=7) / 10_000
    np.testing.assert_allclose(frequencies, probabilities[0, 0], atol=2e-4)


def test_a_draw_above_a_rounded_sum_selects_the_last_token():
    logits = np.full((1, 1, 3), -1e-4, "float32")
    assert to_numpy(sample(logits, np.array([[1.0]], "float32"))).item() == 2


def test_position_0_stands_for_no_token():
    ids = np.arange(10, 20, dtype="int32").reshape(2, 5)
    positions, tokens = np.array([[3, 0, 1], [4, 0, 0]], "int32"), np.array([[1, 2, 3], [4, 5, 6]], "int32")
    expected = [[10, 3, 12, 1, 14], [15, 16, 17, 18, 4]]
    np.testing.assert_array_equal(to_numpy(fill(ids, positions, tokens)), expected)


@pytest.mark.quick_cases("electra-True", "deberta_v3-False", "deberta_v3-True")
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_and_metrics_agree_with_numpy(task, weighted):
    count = len(task.encode_examples(make_documents()).encoded)
    sample_weight = np.linspace(0.5, 3, count) if weighted else None
    features, targets, weights = make_batch(task, sample_weight=sample_weight)
    outputs = task.predict(features, verbose=0)
    logits = outputs["masked_lm"].astype("float64")
    target_logits = np.take_along_axis(logits, targets["masked_lm"][..., None], axis=-1)[..., 0]
    entropy = np.log(np.exp(logits).sum(axis=-1)) - target_logits  # (B, M)
    masked_lm_loss = np.average(entropy, weights=weights["masked_lm"])
    original, corrupted = targets["replaced_tokens"], outputs["corrupted_ids"]
    replaced, z = corrupted != original, outputs["replaced_tokens"].astype("float64")  # (B, T)
    detection = np.average(np.log1p(np.exp(-np.where(replaced, z, -z))), weights=weights["replaced_tokens"])
    scores = task.evaluate(features, targets, sample_weight=weights, batch_size=count, verbose=0, return_dict=True)
    assert scores["masked_lm_loss"] == pytest.approx(masked_lm_loss, rel=1e-5)
    assert scores["replaced_tokens_loss"] == pytest.approx(detection, rel=1e-5)
    assert scores["loss"] == pytest.approx(masked_lm_loss + 50 * detection, rel=1e-5)
    accuracy = np.average((z > 0) == replaced, weights=weights["replaced_tokens"])
    assert scores["replaced_tokens_accuracy"] == pytest.approx(accuracy, rel=1e-5)
    positives, actual = weights["replaced_tokens"] * (z > 0), weights["replaced_tokens"] * replaced
    true_positives = (positives * replaced).sum()
    assert scores["replaced_tokens_precision"] == pytest.approx(true_positives / positives.sum(), rel=1e-5)
    assert scores["replaced_tokens_recall"] == pytest.approx(true_positives / actual.sum(), rel=1e-5)
    assert 0 in weights["replaced_tokens"], "padding"


@pytest.mark.slow_cases("albert")
def test_the_discriminator_reads_the_generators_tokens(task):
    """They replace tokens at masked positions only; a token that is drawn correctly counts as original."""
    features, targets, weights = make_batch(task)
    corrupted, original = task.predict(features, verbose=0)["corrupted_ids"], targets["replaced_tokens"]
    is_masked = np.zeros(corrupted.shape, bool)
    rows, slots = np.nonzero(weights["masked_lm"])
    is_masked[rows, features["mask_positions"][rows, slots]] = True
    np.testing.assert_array_equal(corrupted[~is_masked], original[~is_masked])
    assert (corrupted[is_masked] != original[is_masked]).mean() > 0.5
    mask = task.preprocessor.tokenizer.mask_id
    assert mask in features["token_ids"][is_masked]
    assert mask not in original
    # Draws that select the original tokens replace nothing.
    logits = task.predict(features, verbose=0)["masked_lm"].astype("float64")
    ends = (np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)).cumsum(axis=-1)
    starts = np.concatenate([np.zeros_like(ends[..., :1]), ends[..., :-1]], axis=-1)
    draws = np.take_along_axis((starts + ends) / 2, targets["masked_lm"][..., None], axis=-1)[..., 0]
    unchanged = task.predict({**features, "draws": draws.astype("float32")}, verbose=0)["corrupted_ids"]
    np.testing.assert_array_equal(unchanged, original)


@pytest.mark.slow_cases("albert")
def test_make_generator_returns_a_masked_lm_with_its_own_weights(task):
    features, *_ = make_batch(task)
    generator = task.make_generator()
    assert isinstance(generator, MaskedLM)
    expected = generator.predict({name: features[name] for name in generator.input}, verbose=0)
    np.testing.assert_allclose(task.predict(features, verbose=0)["masked_lm"], expected, atol=1e-6)
    config, narrow = task.backbone.config, generator.backbone.config
    if task.backbone.generator_embeddings == "shared":
        assert narrow.hidden_dim < config.hidden_dim / 3
        assert (narrow.embedding_dim, narrow.num_layers) == (config.embedding_dim, config.num_layers)
    else:
        assert narrow == dataclasses.replace(config, num_layers=config.num_layers // 2)
    before = to_numpy(task.backbone.embeddings.token_embedding.embeddings)
    generator.backbone.embeddings.token_embedding.embeddings.assign(0 * before)  # a copy
    np.testing.assert_array_equal(to_numpy(task.backbone.embeddings.token_embedding.embeddings), before)
    with pytest.raises(ValueError, match='`objective="rtd"` has a generator, None has none'):
        tiny_task(Pretrainer, families()["roberta"]).make_generator()


@pytest.mark.slow_cases("albert-masked_lm", "albert-replaced_tokens")
@pytest.mark.parametrize("trained", ["masked_lm", "replaced_tokens"])
def test_each_loss_trains_its_own_model(task, trained):
    """The discriminator's loss changes at most the embeddings of the generator."""
    other = {"masked_lm": "replaced_tokens", "replaced_tokens": "masked_lm"}[trained]
    task.compile(keras.optimizers.SGD(1.0), loss_weights={trained: 1.0, other: 0.0})
    before = [to_numpy(weight) for weight in task.weights]
    features, targets, weights = make_batch(task)
    # `fit` would add the generator's embeddings to the discriminator's at its end.
    task.train_on_batch(features, targets, sample_weight=weights)
    changed = {
        weight.path: not np.array_equal(to_numpy(weight), old) for weight, old in zip(task.weights, before, strict=True)
    }
    generator_changes = [changed[path] for path in changed if path.startswith("replaced_tokens/generator/")]
    assert any(generator_changes) == (trained == "masked_lm")
    assert changed["replaced_tokens/head/logits/kernel"] == (trained == "replaced_tokens")
    is_shared = task.backbone.generator_embeddings == "shared"
    assert changed["embeddings/token_embedding/embeddings"] == (is_shared or trained == "replaced_tokens")


def test_disentangled_embeddings_are_merged_after_fit():
    """The discriminator's table is the generator's plus a difference; after `fit`, the backbone has the sum."""
    family = families()["deberta_v3"]
    task = Pretrainer(tiny_backbone(family, dropout=0.0), tiny_preprocessor(family))
    layer = task.get_layer("replaced_tokens")
    table, generator_table = task.backbone.embeddings.token_embedding, layer.generator.embeddings.token_embedding
    start = np.array(table.embeddings)  # a copy: JAX uses the memory again
    np.testing.assert_array_equal(to_numpy(generator_table.embeddings), start)
    task.compile(keras.optimizers.SGD(0.5))
    features, targets, weights = make_batch(task)
    for _ in range(2):
        task.train_on_batch(features, targets, sample_weight=weights)
    difference = np.array(table.embeddings) - start
    learned = np.array(generator_table.embeddings) - start
    assert min(np.abs(difference).max(), np.abs(learned).max()) > 1e-3
    expected = task.predict(features, verbose=0)
    layer.merge_embeddings()
    np.testing.assert_allclose(to_numpy(table.embeddings), start + difference + learned, atol=1e-6)
    outputs = task.predict(features, verbose=0)
    for name, output in outputs.items():
        np.testing.assert_allclose(output, expected[name], rtol=1e-5, atol=1e-5)
    states = task.backbone({**select_inputs(task, features), "token_ids": outputs["corrupted_ids"]})["sequence_output"]
    np.testing.assert_allclose(to_numpy(layer.head(states)), outputs["replaced_tokens"], rtol=1e-5)
    task.fit(make_documents(), verbose=0)
    np.testing.assert_array_equal(to_numpy(layer.merged_table), to_numpy(generator_table.embeddings))
    before = np.array(generator_table.embeddings)
    with pytest.raises(Interrupted):
        task.fit(make_documents(), callbacks=[Spy(int(task.optimizer.iterations) + 1)], verbose=0)
    assert np.abs(to_numpy(generator_table.embeddings) - before).max() > 0
    np.testing.assert_array_equal(to_numpy(layer.merged_table), to_numpy(generator_table.embeddings))
    resized = task.resize_token_embeddings(task.backbone.vocabulary_size + 3)
    layer = resized.get_layer("replaced_tokens")
    generator_table = layer.generator.embeddings.token_embedding
    np.testing.assert_array_equal(to_numpy(layer.merged_table), to_numpy(generator_table.embeddings))
    with pytest.raises(ValueError, match="`generator_width` must be 35, the width of the embeddings, got 7"):
        Pretrainer(task.backbone, generator_width=7)


def select_inputs(task, features):
    return {name: features[name] for name in task.backbone.input}


@pytest.mark.quick_cases("deberta_v3")
def test_predict_on_texts_fills_masks_and_detects_tokens(task):
    """Masks are filled with the generator's most probable tokens; texts without masks stay as they are."""
    texts = ["a good [MASK]", "the film was dull"]
    outputs = task.predict(texts, verbose=0)
    best_token = task.make_generator().predict(texts[:1], verbose=0)[0, 0].argmax()
    mask = task.preprocessor.tokenizer.mask_id
    ids = task.preprocessor(texts)["token_ids"]
    width = ids.shape[1]
    np.testing.assert_array_equal(outputs["corrupted_ids"][:, :width], np.where(ids == mask, best_token, ids))
    features = {**task.preprocessor(texts), "token_ids": np.where(ids == mask, best_token, ids)}
    logits = task.get_layer("replaced_tokens").head(task.backbone(features)["sequence_output"])
    np.testing.assert_allclose(outputs["replaced_tokens"][:, :width], to_numpy(logits), atol=1e-5)
    assert {name: output.shape for name, output in task.predict([], verbose=0).items()} == {
        "masked_lm": (0, 0, task.backbone.vocabulary_size),
        "replaced_tokens": (0, 0),
        "corrupted_ids": (0, 0),
    }


@pytest.mark.slow_cases("albert")
def test_evaluate_always_draws_the_same_tokens(task):
    first, second = (task.evaluate(make_documents(), verbose=0, return_dict=True) for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_files_restore_the_task_and_its_generator(tmp_path):
    family = families()["electra"]
    task = Pretrainer(tiny_backbone(family), tiny_preprocessor(family), generator_width=6)
    randomize(task)
    expected = task.evaluate(make_documents(), verbose=0)
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "task")
    for clone in (Task.load(tmp_path / "task.keras"), Pretrainer.from_preset(tmp_path / "task")):
        assert (clone.objective, clone.generator_width) == ("rtd", 6)
        assert clone.evaluate(make_documents(), verbose=0) == expected
    with pytest.warns(UserWarning, match="holds no head of a MaskedLM, so it starts from scratch"):
        MaskedLM.from_preset(tmp_path / "task")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TextClassifier.from_preset(tmp_path / "task", num_classes=3)
    task.make_generator().save_to_preset(tmp_path / "generator")
    assert MaskedLM.from_preset(tmp_path / "generator").fill(["a [MASK]"], top_k=1)


def test_electra_masks_85_percent_of_the_selected_tokens():
    """The other selected tokens stay as they are, and none is replaced at random, as in Google's code."""
    masking = families()["electra"].masking
    rng, targets = np.random.default_rng(1), np.full((1, 10_000), 17)
    corrupted = masking.corrupt(targets, np.ones(targets.shape, bool), 3, 137, rng)
    assert set(np.unique(corrupted)) == {3, 17}
    assert (corrupted == 3).mean() == pytest.approx(0.85, abs=0.01)


@pytest.mark.slow
def test_generator_width_narrows_the_configuration():
    config = families()["electra"].tiny
    assert (config.num_heads, config.hidden_dim, config.intermediate_dim) == (5, 35, 47)
    default, chosen = make_narrow_config(config), make_narrow_config(config, 14)
    assert (default.num_heads, default.hidden_dim, default.intermediate_dim) == (1, 8, 10)
    assert (chosen.num_heads, chosen.hidden_dim, chosen.intermediate_dim) == (2, 14, 18)
    for width, message in ((0, "a positive integer, got 0"), (15, "a multiple of the number of heads, 2, got 15")):
        with pytest.raises(ValueError, match=f"`generator_width` must be {message}"):
            tiny_task(Pretrainer, families()["electra"], generator_width=width)
    with pytest.raises(ValueError, match=r"This BertBackbone has embeddings of its own width, .* choose None"):
        tiny_task(Pretrainer, families()["bert"], objective="rtd")
