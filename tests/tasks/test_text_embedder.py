"""Vectors of texts: pooling, training on pairs, what is an error."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import BertBackbone, TextEmbedder
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task, tiny_texts
from lmzoo.training import AdamW

FAMILIES = families()
ELMO = pytest.param("elmo", marks=pytest.mark.slow)
NAMES = ["bert", ELMO]
EACH = [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in ("bert", "elmo")))
    for name, family in FAMILIES.items()
    if TextEmbedder.supports(family)
]
TEXTS = [
    "good film",
    "the plot was never dull .",
    "a fine film !",
    "bad",
    "very very bad plot , dull film",
    "is",
    "fine",
]
PAIRS = [*zip(TEXTS, [f"{text} is" for text in TEXTS[3:] + TEXTS[:3]], strict=True)]  # no text twice
LABELS = [0.9, -0.3, 0.1, 1.0, 0.0, 0.45, -1.0]


def make(name="bert", **arguments):
    return tiny_task(TextEmbedder, FAMILIES[name], **arguments)


def cosines(task, pairs):
    firsts, seconds = (task.embed([pair[side] for pair in pairs]).astype("float64") for side in (0, 1))
    lengths = np.linalg.norm(firsts, axis=1) * np.linalg.norm(seconds, axis=1)
    return (firsts * seconds).sum(axis=1) / lengths


def ranking(task, pairs):
    """The loss of each row of pairs of different texts, by the formula of the paper."""
    firsts, seconds = (task.embed([pair[side] for pair in pairs]).astype("float64") for side in (0, 1))
    scores = np.exp(firsts @ seconds.T / task.temperature)  # (n, n)
    return -np.log(np.diag(scores) / scores.sum(axis=1)), -np.log(np.diag(scores) / scores.sum(axis=0))


# === Pooling ===


POOLED = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(axis=0),
    "max": lambda states: states.max(axis=0),
    "mean_sqrt_len_tokens": lambda states: states.sum(axis=0) / len(states) ** 0.5,
    "weightedmean": lambda states: np.average(states, axis=0, weights=np.arange(len(states)) + 1),
    "lasttoken": lambda states: states[-1],
}


def poolings():
    """Every pooling on BERT, and two on each other family, in turn."""
    kinds = list(POOLED)
    for number, parameter in enumerate(EACH):
        (name,) = parameter.values
        for kind in kinds if name == "bert" else (kinds[number % 6], kinds[(number + 3) % 6]):
            yield pytest.param(name, kind, marks=parameter.marks, id=f"{name}-{kind}")


@pytest.mark.slow_cases(
    "bert-cls", "bert-lasttoken", "bert-max", "bert-mean", "bert-mean_sqrt_len_tokens", "elmo-lasttoken", "elmo-max"
)
@pytest.mark.parametrize(("name", "pooling"), list(poolings()))
def test_pooling_is_numpys_over_each_text_alone(name, pooling):
    if pooling == "cls" and not FAMILIES[name].packing.start:
        with pytest.raises(ValueError, match="no first token that represents the text"):
            make(name, pooling=pooling)
        return
    raw, unit = make(name, pooling=pooling, normalize=False), make(name, pooling=pooling)
    expected = []
    for text in TEXTS:
        features = {k: keras.ops.convert_to_tensor(v) for k, v in raw.preprocessor([text]).items()}
        (states,) = keras.ops.convert_to_numpy(raw.backbone(features)["sequence_output"])  # (T, H), no padding
        expected.append(POOLED[pooling](states))
    found, normalized = raw.embed(TEXTS), unit.embed(TEXTS, batch_size=3)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert found.dtype == normalized.dtype == "float32"
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(lengths - 1).max() > 0.1
    np.testing.assert_allclose(normalized, np.array(expected) / lengths, rtol=1e-5, atol=1e-5)


def test_several_poolings_and_a_projection():
    layers = [
        {"kind": "normalize"},
        {"kind": "dense", "units": 13, "activation": "sigmoid"},
        {"kind": "layer_norm"},
        {"kind": "dropout", "rate": 0.5},
        {"kind": "dense", "units": 11, "use_bias": False},
        {"kind": "truncate", "units": 7},
    ]
    modes = ["lasttoken", "cls", "mean"]
    task = make(pooling=modes, projection=layers, normalize=False)
    for weight in task.weights[len(task.backbone.weights) :]:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape) + 0.3)
    kernel, bias, gamma, beta, last = map(keras.ops.convert_to_numpy, task.weights[len(task.backbone.weights) :])
    x = np.concatenate([make(pooling=mode, normalize=False).embed(TEXTS) for mode in modes], axis=1).astype("float64")
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    x = 1 / (1 + np.exp(-(x @ kernel + bias)))
    x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * gamma + beta
    np.testing.assert_allclose(task.embed(TEXTS, batch_size=3), (x @ last)[:, :7], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_projection_is_trained(weights_of):
    task = make(projection=[{"kind": "dense", "units": 11, "activation": "tanh"}, {"kind": "layer_norm"}])
    task.compile(AdamW(0.01, weight_decay=0.0))
    before = weights_of(task)
    task.fit(PAIRS, batch_size=7, verbose=0)
    changed = [not np.array_equal(a, b) for a, b in zip(before, weights_of(task), strict=True)]
    assert all(changed[-4:])


# === Prompts ===


def test_a_prompt_is_put_before_each_text():
    prompts = {"query": "good film ", "passage": "the "}
    task, plain = make(prompts=prompts, default_prompt="query"), make()
    said = [prompts["query"] + text for text in TEXTS]
    np.testing.assert_array_equal(task.embed(TEXTS), plain.embed(said))
    np.testing.assert_array_equal(task.predict(TEXTS, verbose=0), plain.embed(said))
    np.testing.assert_array_equal(task.embed(TEXTS, prompt_name="passage"), plain.embed([f"the {t}" for t in TEXTS]))
    np.testing.assert_array_equal(task.embed(TEXTS, prompt="bad "), plain.embed([f"bad {t}" for t in TEXTS]))
    np.testing.assert_array_equal(task.embed(TEXTS, prompt=""), plain.embed(TEXTS))
    np.testing.assert_array_equal(task.embed((TEXTS, TEXTS[::-1])), plain.embed((said, TEXTS[::-1])))
    both = [(f"good film {a}", f"good film {b}") for a, b in PAIRS]
    assert task.evaluate(PAIRS, verbose=0) == plain.evaluate(both, verbose=0)
    task.default_prompt = None
    np.testing.assert_array_equal(task.embed(TEXTS), plain.embed(TEXTS))


@pytest.mark.slow
def test_a_prompt_before_words():
    task, plain = make("elmo", prompts={"it": "good film "}, default_prompt="it"), make("elmo")
    np.testing.assert_array_equal(
        task.embed([["a", "b"], "a b", []]), plain.embed([["good", "film", "a", "b"], "good film a b", "good film"])
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt_name": "it"}, "There is no prompt 'it'; `prompts` has 'query'"),
        ({"prompt": "a", "prompt_name": "query"}, "Pass `prompt` or `prompt_name`, not both"),
        ({"prompt": 7}, "`prompt` must be a string, got 7"),
        ({"prompt": "a", "level": "word"}, 'A prompt is for `level="text"`'),
    ],
)
def test_wrong_prompts(arguments, message):
    with pytest.raises(ValueError, match=message):
        make(prompts={"query": "the "}).embed(TEXTS, **arguments)
    for texts in (["a", None], [7], "a"):
        with pytest.raises(TypeError):
            make(prompts={"query": "the "}, default_prompt="query").embed(texts)


@pytest.mark.quick_cases(
    "cls-elmo", "mean-elmo", "max-elmo", "mean_sqrt_len_tokens-elmo", "weightedmean-elmo", "lasttoken-elmo"
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pooling", POOLED)
def test_rows_of_padding_are_finite_and_train(name, pooling):
    if pooling == "cls" and not FAMILIES[name].packing.start:
        return
    task = make(name, pooling=pooling)
    features = task.preprocessor(TEXTS[:4])
    for values in features.values():
        values[1] = 0
    vectors = task.predict(features, verbose=0)
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(vectors[2:], task.embed(TEXTS[2:4]), rtol=1e-5, atol=1e-5)
    if pooling != "cls":
        np.testing.assert_array_equal(vectors[1], 0)
    task.compile(keras.optimizers.SGD(0.1))
    assert np.isfinite(task.train_on_batch(features, np.arange(4))).all()
    assert all(np.isfinite(keras.ops.convert_to_numpy(weight)).all() for weight in task.weights)


def test_an_empty_text_has_a_vector(recwarn):
    task = make("elmo")
    np.testing.assert_array_equal(task.embed(["", "good"])[0], 0)
    task.fit([("", "good"), ("bad", ""), ("fine film", "dull")], verbose=0)
    assert np.isfinite(task.embed(TEXTS)).all()


def test_lists_and_pairs_as_one_text():
    task = make()
    assert task.embed([]).shape == (0, task.backbone.config.hidden_dim)
    together = task.embed((TEXTS, TEXTS[::-1]))
    np.testing.assert_array_equal(together, task.embed([*zip(TEXTS, TEXTS[::-1], strict=True)]))
    features = task.preprocessor((TEXTS, TEXTS[::-1]))
    np.testing.assert_allclose(task.predict(features, verbose=0), together, rtol=1e-5, atol=1e-5)
    assert np.abs(together - task.embed(TEXTS)).max() > 0.01


# === Training ===


@pytest.mark.slow  # `check_task_fit` trains with this objective
@pytest.mark.compiled
@pytest.mark.parametrize("name", ["bert", "elmo"])
def test_contrastive_training_lets_partners_find_each_other(name):
    task = make(name)
    task.compile(keras.optimizers.Adam(1e-3))
    texts = tiny_texts(8)
    history = task.fit([(text, text.split()[0]) for text in texts], batch_size=8, epochs=25, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["accuracy"][-1] > history["accuracy"][0]


@pytest.mark.quick_cases("elmo")
@pytest.mark.compiled
@pytest.mark.parametrize("name", NAMES)
def test_cosine_training_fits_the_labels(name):
    task = make(name, objective="cosine")
    task.compile(keras.optimizers.Adam(3e-3))
    history = task.fit(PAIRS, LABELS, batch_size=7, epochs=40, verbose=0).history
    assert history["loss"][-1] < 0.3 * history["loss"][0]
    assert history["pearson"][-1] > 0.8


@pytest.mark.slow_cases("bert-None")
@pytest.mark.parametrize("weights", [None, [0, 1, 0.5, 3, 0, 1, 2]])
@pytest.mark.parametrize("name", NAMES)
def test_evaluation_is_the_papers_formula(name, weights):
    task = make(name)
    there, back = ranking(task, PAIRS)
    expected = np.mean((there + back) / 2 * (1 if weights is None else weights))
    sample_weight = None if weights is None else np.array(weights, "float32")
    loss, accuracy = task.evaluate(PAIRS, batch_size=7, sample_weight=sample_weight, verbose=0)
    assert loss == pytest.approx(expected, rel=1e-4)
    firsts, seconds = (task.embed([pair[side] for pair in PAIRS]) for side in (0, 1))
    scores, index = firsts @ seconds.T, np.arange(7)
    right = (scores.argmax(axis=1) == index) * 0.5 + (scores.argmax(axis=0) == index) * 0.5
    assert accuracy == pytest.approx(np.average(right, weights=weights), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, [0, 1, 0.5, 3, 0, 1, 2]])
def test_evaluation_of_cosines_does_not_depend_on_batches(weights):
    task = make(objective="cosine", normalize=False)
    found, share = cosines(task, PAIRS), np.ones(7) if weights is None else np.array(weights)
    covariance = np.cov(found, LABELS, aweights=share)
    correlation = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    sample_weight = None if weights is None else share.astype("float32")
    for batch_size in (7, 3):
        loss, pearson = task.evaluate(PAIRS, LABELS, batch_size=batch_size, sample_weight=sample_weight, verbose=0)
        assert loss == pytest.approx(np.mean(share * (found - LABELS) ** 2), rel=1e-4)
        assert pearson == pytest.approx(correlation, abs=1e-5)


def test_batches_hold_both_texts_of_each_pair():
    task = make()
    pairs = ([b"good film", "bad", "good film"], ["dull plot is bad", "good film", "a"])
    examples = task.encode_examples(pairs, None, [1.0, 2.0, 4.0])
    encoded = examples.encoded
    assert len(encoded) == 3
    assert encoded.lengths.tolist() == [6, 4, 4]
    features, texts, weights = task.make_batch(examples, np.array([2, 0]), 7, np.random.default_rng(0))
    expected = task.preprocessor(["good film", "a", "good film", "dull plot is bad"])
    for name, values in expected.items():
        np.testing.assert_array_equal(features[name][:, : values.shape[1]], values)
    assert features["token_ids"].shape == (4, 7)
    assert texts.tolist() == [0, 1, 0, 2]
    assert weights.tolist() == [4, 4, 1, 1]
    part = encoded.select([1, 1])
    for column, chosen in zip(encoded.columns, part.columns, strict=True):
        np.testing.assert_array_equal(chosen.token_ids, np.tile(column[1:2].token_ids, 2))
    examples = make(objective="cosine").encode_examples(pairs, [0.5, 0, -1])
    _, labels = task.make_batch(examples, np.array([2, 0]), 7, np.random.default_rng(0))
    assert labels.tolist() == [-1, -1, 0.5, 0.5]


def test_equal_texts_are_no_wrong_answers():
    task = make()
    assert task.evaluate([("good film", "bad")] * 5, verbose=0) == [0, 1]
    few = [("good film", "bad"), ("good film", "dull"), ("fine plot", "a")]
    (a, _, c), (x, y, z) = (task.embed([pair[side] for pair in few]) for side in (0, 1))

    def loss(own, partner, *wrong):
        scores = np.exp([own @ other / 0.05 for other in (partner, *wrong)])
        return -np.log(scores[0] / scores.sum())

    there = [loss(a, x, z), loss(a, y, z), loss(c, z, x, y)]  # both answers to "good film" are right
    back = [loss(x, a, c), loss(y, a, c), loss(z, c, a, a)]
    assert task.evaluate(few, verbose=0)[0] == pytest.approx(np.mean(there + back), rel=1e-4)


@pytest.mark.quick_cases("contrastive")
@pytest.mark.parametrize("objective", [pytest.param("contrastive", marks=pytest.mark.slow), "cosine"])
def test_every_form_of_the_same_pairs(objective, strings_dataset):
    y, losses = (LABELS if objective == "cosine" else None), []
    firsts, seconds = map(list, zip(*PAIRS, strict=True))
    element = ((firsts, seconds), y) if y else ((firsts, seconds),)
    dataset = strings_dataset(element).batch(7)
    for data in (PAIRS, (firsts, seconds), (np.array(firsts), np.array(seconds, object))):
        task = make(objective=objective)
        losses.append(task.fit(data, y, batch_size=7, shuffle=False, epochs=2, verbose=0).history["loss"])
    task = make(objective=objective)
    losses.append(task.fit(dataset, epochs=2, verbose=0).history["loss"])
    assert task.evaluate(dataset, verbose=0) == pytest.approx(task.evaluate(PAIRS, y, verbose=0), rel=1e-4)
    for loss in losses:
        np.testing.assert_allclose(loss, losses[0], rtol=1e-4)


@pytest.mark.quick_cases("cosine")
@pytest.mark.parametrize("objective", ["contrastive", pytest.param("cosine", marks=pytest.mark.slow)])
def test_token_features_are_pairs_of_rows_and_stay_so(objective):
    task, rows = make(objective=objective), [text for pair in PAIRS for text in pair]
    task.compile(keras.optimizers.SGD(0.0))
    y = LABELS if objective == "cosine" else None
    targets = np.arange(14) if y is None else np.repeat(y, 2).astype("float32")
    expected = task.evaluate(PAIRS, y, batch_size=2, verbose=0) if y else None
    features = task.preprocessor(rows)
    losses = task.fit(features, targets, batch_size=4, epochs=3, verbose=0).history["loss"]
    assert losses == [pytest.approx(losses[0], rel=1e-5)] * 3  # shuffled rows would not be the same pairs
    if y:
        assert losses[0] == pytest.approx(expected[0], rel=1e-4)


@pytest.mark.slow
def test_validation_split_and_data():
    task = make(objective="cosine")
    expected = task.evaluate(PAIRS[4:], LABELS[4:], verbose=0)
    task.compile(keras.optimizers.SGD(0.0))
    split = task.fit(PAIRS, LABELS, validation_split=0.4, verbose=0).history
    given = task.fit(PAIRS[:4], LABELS[:4], validation_data=(PAIRS[4:], LABELS[4:]), verbose=0).history
    for history in (split, given):
        assert history["val_loss"] == pytest.approx(expected[:1], rel=1e-4)
    contrastive = make()
    history = contrastive.fit(PAIRS, validation_split=0.4, verbose=0).history
    assert history["val_loss"][0] > 0


def test_words_for_elmo():
    task = make("elmo")
    expected = task.evaluate([("good film", "bad plot"), ("dull", "a b")], verbose=0)
    found = task.evaluate([(["good", "film"], ["bad", "plot"]), ("dull", ["a", "b"])], verbose=0)
    assert found == pytest.approx(expected)


@pytest.mark.slow_cases("bert-contrastive", "elmo-contrastive")
@pytest.mark.parametrize(
    ("name", "objective"),
    [("bert", "cosine"), *(pytest.param(*each.values, "contrastive", marks=each.marks) for each in EACH)],
)
def test_gradients_reach_all_that_is_trained(name, objective, weights_of):
    task = make(name, pooling="cls" if FAMILIES[name].packing.start else "max", objective=objective)
    task.compile(AdamW(0.01, weight_decay=0.0))
    before = weights_of(task)
    task.fit(PAIRS, LABELS if objective == "cosine" else None, batch_size=7, verbose=0)
    trained = {id(weight) for weight in task.trainable_weights}
    still = [
        weight.path
        for weight, was, now in zip(task.weights, before, weights_of(task), strict=True)
        if np.array_equal(was, now) == (id(weight) in trained) and not weight.path.endswith("key/bias")
    ]
    assert still == []
    pooler = getattr(task.backbone, "pooler", None)
    assert not {id(weight) for weight in (pooler.weights if pooler else [])} & trained


def test_gamma_is_trained_where_it_shows():
    for normalize in (True, False):
        task = make("elmo", normalize=normalize)
        gamma = {id(task.backbone.scalar_mix.gamma)}
        assert gamma <= {id(w) for w in (task.non_trainable_weights if normalize else task.trainable_weights)}
        assert gamma.isdisjoint({id(w) for w in (task.trainable_weights if normalize else task.non_trainable_weights)})


# === Keeping ===


@pytest.mark.slow
def test_settings_travel_with_the_model(tmp_path):
    settings = {"pooling": "max", "normalize": False, "objective": "cosine", "temperature": 0.5}
    task = make(**settings)
    expected = task.embed(TEXTS)
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "preset")
    for clone in (keras.saving.load_model(tmp_path / "task.keras"), TextEmbedder.from_preset(tmp_path / "preset")):
        assert {name: getattr(clone, name) for name in settings} == settings
        np.testing.assert_array_equal(clone.embed(TEXTS), expected)
        assert clone.fit(PAIRS, LABELS, verbose=0).history["pearson"]
    other = TextEmbedder.from_preset(tmp_path / "preset", objective="contrastive", pooling="mean")
    assert other.fit(PAIRS, verbose=0).history["accuracy"]
    assert other.loss.temperature == 0.5


def test_half_precision_gives_float32():
    backbone = tiny_backbone(FAMILIES["bert"], dtype="mixed_bfloat16")
    task = TextEmbedder(backbone, tiny_preprocessor(FAMILIES["bert"]))
    found = task.embed(TEXTS)
    assert found.dtype == "float32"
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found, make().embed(TEXTS), atol=0.05)


# === Errors ===


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "first"}, "`pooling` must be one of \"cls\", .*, or a list of several, got 'first'"),
        ({"objective": "pairs"}, '`objective` must be one of "contrastive", "triplet", .*, got \'pairs\''),
        ({"matryoshka_widths": [3, 5000]}, "`matryoshka_widths` must be .* of at most \\d+, the width of the vectors"),
        ({"matryoshka_widths": []}, "`matryoshka_widths` must be a list of distinct positive integers"),
        ({"pair_prompts": "query"}, "`pair_prompts` must be None, or two names"),
        ({"pair_prompts": ("query", None)}, "There is no prompt 'query'; `prompts` has none"),
        (
            {"prompts": {"pair": "a "}, "pair_prompts": (None, "pair")},
            "`pair_prompts` must be names other than those of exported signatures, serving_default, pair, tokens",
        ),
        ({"temperature": 0}, "`temperature` must be a positive number, got 0"),
        ({"temperature": "0.05"}, "`temperature` must be a positive number"),
    ],
)
def test_unknown_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


@pytest.fixture(scope="module")
def contrastive():
    return make()


@pytest.fixture(scope="module")
def cosine():
    return make(objective="cosine")


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (TEXTS, ValueError, r"trained on pairs of texts: pass \(firsts, seconds\)"),
        ((["good"], ["bad", "dull"]), ValueError, r"columns of equal length, got \[1, 2\] texts"),
        ((["good", "a"], ["bad", None]), TypeError, r"`pairs\[1\]` must be a string, got None"),
        ((["good", 3], ["bad", "a"]), TypeError, r"`texts\[1\]` must be a string, got 3"),
        ([("good", "bad"), "dull"], ValueError, r"`x\[1\]` must be a pair"),
        ([("good", "bad", "dull"), ("a", "is")], ValueError, r"`x\[1\]` must have 3 texts, as `x\[0\]` has"),
        ([("good", "bad"), ("a", "is", "film")], ValueError, r"`x\[1\]` must be a pair"),
        ([("good",)], ValueError, r"`x\[0\]` must be a pair"),
        ((["good", "a"], ["bad", "is"], ["dull", None]), TypeError, r"`negatives\[1\]` must be a string, got None"),
        ((["good"], ["bad"], ["dull"], [3]), TypeError, r"`negatives_2\[0\]` must be a string, got 3"),
        ((["good"], ["bad"], ["bad"]), ValueError, "negative of example 0, 'bad', is its second text: .* Remove"),
        ((["good"], ["bad"], ["good"]), ValueError, "negative of example 0, 'good', is its first text"),
        (
            [("good", "bad", "dull"), ("good", "fine", "is"), ("good", "plot", "bad")],
            ValueError,
            "negative of example 2, 'bad', is the second text of example 0",
        ),
        ([], ValueError, "trained on pairs"),
        (([], []), ValueError, "no examples"),
    ],
)
def test_what_is_no_pair(contrastive, steps, x, error, message):
    for call in (contrastive.fit, contrastive.evaluate):
        with pytest.raises(error, match=message):
            call(x, callbacks=[steps], verbose=0)
    assert steps.count == 0


def test_labels_that_nobody_needs(contrastive, strings_dataset):
    for call in (contrastive.fit, contrastive.evaluate):
        with pytest.raises(ValueError, match=r'with `objective="cosine"` from pairs.*: it takes no labels \(`y`\)'):
            call(PAIRS, LABELS, verbose=0)
    with pytest.raises(ValueError, match=r'objective="cosine"'):
        contrastive.fit(PAIRS, validation_data=(PAIRS, LABELS), verbose=0)
    with pytest.raises(ValueError, match=r"in a `tf.data.Dataset` .* are \(\(firsts, seconds\),\)"):
        contrastive.fit(strings_dataset((TEXTS, TEXTS)).batch(7))
    with pytest.raises(ValueError, match=r"needs exactly one class per text, .* pass `sample_weight`"):
        contrastive.fit(PAIRS, class_weight={0: 2.0})


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (None, ValueError, "needs a label for each text"),
        ([0.5] * 6, ValueError, "7 texts but 6 labels"),
        (
            [0.5, 3.8, *[0.0] * 5],
            ValueError,
            r"Label 3.8 at position 1 is not a cosine: .*between -1 and 1.*STS-B's by 5",
        ),
        ([0.5, -1.01, *[0.0] * 5], ValueError, "Label -1.01 at position 1"),
        ([0.5, np.nan, *[0.0] * 5], ValueError, "Label nan at position 1 is not a finite number"),
        (["alike", *[0.0] * 6], TypeError, "Label 'alike' at position 0 is not a number"),
        (np.zeros((7, 2)), ValueError, r"labels of shape \(7, 2\)"),
    ],
)
def test_labels_that_are_no_cosines(cosine, steps, labels, error, message):
    for call in (cosine.fit, cosine.evaluate):
        with pytest.raises(error, match=message):
            call(PAIRS, labels, callbacks=[steps], verbose=0)
    assert steps.count == 0


def test_there_must_be_a_preprocessor():
    task = TextEmbedder(BertBackbone(vocabulary_size=11, num_layers=1, num_heads=1, hidden_dim=7, intermediate_dim=5))
    for call in (lambda: task.fit(PAIRS), lambda: task.embed(TEXTS), lambda: task.embed(TEXTS, level="word")):
        with pytest.raises(ValueError, match="has no preprocessor"):
            call()


def test_levels_and_layers(contrastive):
    with pytest.raises(ValueError, match='`level` must be "text" or "word", got \'sentence\''):
        contrastive.embed(TEXTS, level="sentence")
    with pytest.raises(ValueError, match='`layers` are for `level="word"`'):
        contrastive.embed(TEXTS, layers=-1)
