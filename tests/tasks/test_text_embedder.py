"""`TextEmbedder`: pooling, prompts, training on pairs, errors."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import BertBackbone, TextEmbedder
from lmzoo.registry.family import families
from lmzoo.tasks.base.examples import BatchOptions
from lmzoo.tasks.inputs import TokenFeatures
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.training import AdamW

FAMILIES = families()
NAMES = ["bert", pytest.param("elmo", marks=pytest.mark.slow)]
SUPPORTED = [
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
PAIRS = [*zip(TEXTS, [f"{text} is" for text in TEXTS[3:] + TEXTS[:3]], strict=True)]  # 14 different texts
LABELS = [0.9, -0.3, 0.1, 1.0, 0.0, 0.45, -1.0]


def make(name="bert", **arguments):
    return tiny_task(TextEmbedder, FAMILIES[name], **arguments)


def compute_cosines(task, pairs):
    firsts, seconds = (task.embed([pair[side] for pair in pairs]).astype("float64") for side in (0, 1))
    lengths = np.linalg.norm(firsts, axis=1) * np.linalg.norm(seconds, axis=1)
    return (firsts * seconds).sum(axis=1) / lengths


# === Pooling ===


REFERENCE_POOLINGS = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(axis=0),
    "max": lambda states: states.max(axis=0),
    "mean_sqrt_len_tokens": lambda states: states.sum(axis=0) / len(states) ** 0.5,
    "weightedmean": lambda states: np.average(states, axis=0, weights=np.arange(len(states)) + 1),
    "lasttoken": lambda states: states[-1],
}


def poolings():
    """Yield every pooling for BERT, and two for each other family in turn."""
    modes = list(REFERENCE_POOLINGS)
    for index, family in enumerate(SUPPORTED):
        (name,) = family.values
        for kind in modes if name == "bert" else (modes[index % 6], modes[(index + 3) % 6]):
            yield pytest.param(name, kind, marks=family.marks, id=f"{name}-{kind}")


@pytest.mark.slow_cases(
    "bert-cls", "bert-lasttoken", "bert-max", "bert-mean", "bert-mean_sqrt_len_tokens", "elmo-lasttoken", "elmo-max"
)
@pytest.mark.parametrize(("name", "pooling"), list(poolings()))
def test_pooling_is_numpys_over_each_text_alone(name, pooling):
    if pooling == "cls" and not FAMILIES[name].packing.start:
        with pytest.raises(ValueError, match="no first token that represents the text"):
            make(name, pooling=pooling)
        return
    raw_task, task = make(name, pooling=pooling, normalize=False), make(name, pooling=pooling)
    expected = []
    for text in TEXTS:
        features = {k: keras.ops.convert_to_tensor(v) for k, v in raw_task.preprocessor([text]).items()}
        (states,) = keras.ops.convert_to_numpy(raw_task.backbone(features)["sequence_output"])  # (T, H), no padding
        expected.append(REFERENCE_POOLINGS[pooling](states))
    vectors, unit_vectors = raw_task.embed(TEXTS), task.embed(TEXTS, batch_size=3)
    np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-5)
    assert vectors.dtype == unit_vectors.dtype == "float32"
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(lengths - 1).max() > 0.1
    np.testing.assert_allclose(unit_vectors, np.array(expected) / lengths, rtol=1e-5, atol=1e-5)


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
    kernel, bias, gamma, beta, last_kernel = map(keras.ops.convert_to_numpy, task.weights[len(task.backbone.weights) :])
    x = np.concatenate([make(pooling=mode, normalize=False).embed(TEXTS) for mode in modes], axis=1).astype("float64")
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    x = 1 / (1 + np.exp(-(x @ kernel + bias)))
    x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * gamma + beta
    np.testing.assert_allclose(task.embed(TEXTS, batch_size=3), (x @ last_kernel)[:, :7], rtol=1e-4, atol=1e-5)


# === Prompts ===


def test_a_prompt_is_put_before_each_text():
    prompts = {"query": "good film ", "passage": "the "}
    task, plain = make(prompts=prompts, default_prompt="query"), make()
    prompted = [prompts["query"] + text for text in TEXTS]
    np.testing.assert_array_equal(task.embed(TEXTS), plain.embed(prompted))
    np.testing.assert_array_equal(task.predict(TEXTS, verbose=0), plain.embed(prompted))
    np.testing.assert_array_equal(task.embed(TEXTS, prompt_name="passage"), plain.embed([f"the {t}" for t in TEXTS]))
    np.testing.assert_array_equal(task.embed(TEXTS, prompt="bad "), plain.embed([f"bad {t}" for t in TEXTS]))
    np.testing.assert_array_equal(task.embed(TEXTS, prompt=""), plain.embed(TEXTS))
    np.testing.assert_array_equal(task.embed((TEXTS, TEXTS[::-1])), plain.embed((prompted, TEXTS[::-1])))
    prompted_pairs = [(f"good film {a}", f"good film {b}") for a, b in PAIRS]
    assert task.evaluate(PAIRS, verbose=0) == plain.evaluate(prompted_pairs, verbose=0)
    task.default_prompt = None
    np.testing.assert_array_equal(task.embed(TEXTS), plain.embed(TEXTS))


@pytest.mark.slow
def test_a_prompt_is_put_before_words():
    task, plain = make("elmo", prompts={"it": "good film "}, default_prompt="it"), make("elmo")
    np.testing.assert_array_equal(
        task.embed([["a", "b"], "a b", []]), plain.embed([["good", "film", "a", "b"], "good film a b", "good film"])
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": "sentence"}, '`level` must be "text" or "word", got \'sentence\''),
        ({"layers": -1}, '`layers` are for `level="word"`'),
        ({"prompt_name": "it"}, "There is no prompt 'it'; `prompts` has 'query'"),
        ({"prompt": "a", "prompt_name": "query"}, "Pass `prompt` or `prompt_name`, not both"),
        ({"prompt": 7}, "`prompt` must be a string, got 7"),
        ({"prompt": "a", "level": "word"}, 'A prompt is for `level="text"`'),
    ],
)
def test_wrong_arguments_of_embed(arguments, message):
    with pytest.raises(ValueError, match=message):
        make(prompts={"query": "the "}).embed(TEXTS, **arguments)


@pytest.mark.slow
def test_a_prompt_is_not_put_before_what_is_no_text():
    task = make(prompts={"query": "the "}, default_prompt="query")
    for texts in (["a", None], [7], "a"):
        with pytest.raises(TypeError):
            task.embed(texts)


@pytest.mark.quick_cases(
    "cls-elmo", "mean-elmo", "max-elmo", "mean_sqrt_len_tokens-elmo", "weightedmean-elmo", "lasttoken-elmo"
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pooling", REFERENCE_POOLINGS)
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


def test_pairs_are_embedded_as_one_text():
    task = make()
    assert task.embed([]).shape == (0, task.backbone.config.hidden_dim)
    pair_vectors = task.embed((TEXTS, TEXTS[::-1]))
    np.testing.assert_array_equal(pair_vectors, task.embed([*zip(TEXTS, TEXTS[::-1], strict=True)]))
    features = task.preprocessor((TEXTS, TEXTS[::-1]))
    np.testing.assert_allclose(task.predict(features, verbose=0), pair_vectors, rtol=1e-5, atol=1e-5)
    assert np.abs(pair_vectors - task.embed(TEXTS)).max() > 0.01


# === Training ===


@pytest.mark.slow
def test_evaluation_of_cosines_does_not_depend_on_batches():
    task = make(objective="cosine", normalize=False)
    cosines, weights = compute_cosines(task, PAIRS), np.array([0, 1, 0.5, 3, 0, 1, 2], "float32")
    covariance = np.cov(cosines, LABELS, aweights=weights)
    correlation = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    for batch_size in (7, 3):
        loss, pearson = task.evaluate(PAIRS, LABELS, batch_size=batch_size, sample_weight=weights, verbose=0)
        assert loss == pytest.approx(np.mean(weights * (cosines - LABELS) ** 2), rel=1e-4)
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
    selection = encoded.select([1, 1])
    for column, selected_column in zip(encoded.columns, selection.columns, strict=True):
        np.testing.assert_array_equal(selected_column.token_ids, np.tile(column[1:2].token_ids, 2))
    examples = make(objective="cosine").encode_examples(pairs, [0.5, 0, -1])
    _, labels = task.make_batch(examples, np.array([2, 0]), 7, np.random.default_rng(0))
    assert labels.tolist() == [-1, -1, 0.5, 0.5]


@pytest.mark.slow
def test_every_form_of_pairs_trains_alike(strings_dataset):
    firsts, seconds = map(list, zip(*PAIRS, strict=True))
    dataset = strings_dataset(((firsts, seconds), LABELS)).batch(7)
    losses = []
    for data in (PAIRS, (firsts, seconds), (np.array(firsts), np.array(seconds, object))):
        task = make(objective="cosine")
        losses.append(task.fit(data, LABELS, batch_size=7, shuffle=False, epochs=2, verbose=0).history["loss"])
    task = make(objective="cosine")
    losses.append(task.fit(dataset, epochs=2, verbose=0).history["loss"])
    assert task.evaluate(dataset, verbose=0) == pytest.approx(task.evaluate(PAIRS, LABELS, verbose=0), rel=1e-4)
    for loss in losses:
        np.testing.assert_allclose(loss, losses[0], rtol=1e-4)


@pytest.mark.quick_cases("cosine")
@pytest.mark.parametrize("objective", ["contrastive", pytest.param("cosine", marks=pytest.mark.slow)])
def test_shuffling_keeps_pairs_of_token_features(objective):
    task, rows = make(objective=objective), [text for pair in PAIRS for text in pair]
    task.compile(keras.optimizers.SGD(0.0))
    y = LABELS if objective == "cosine" else None
    targets = np.arange(14) if y is None else np.repeat(y, 2).astype("float32")
    expected = task.evaluate(PAIRS, y, batch_size=2, verbose=0) if y else None
    features = task.preprocessor(rows)
    losses = task.fit(features, targets, batch_size=4, epochs=3, verbose=0).history["loss"]
    assert losses == [pytest.approx(losses[0], rel=1e-5)] * 3  # shuffled sequences would form different pairs
    if y:
        assert losses[0] == pytest.approx(expected[0], rel=1e-4)


@pytest.mark.parametrize(
    ("objective", "targets", "size", "held_out"),
    [
        ("contrastive", np.arange(26), 2, 6),  # 17% are 5 rows, counted from the end
        ("cosine", np.repeat(np.linspace(-1, 1, 13), 2), 2, 6),
        ("triplet", np.zeros(21, int), 3, 6),
        ("contrastive", np.arange(20).reshape(4, 5).repeat(5, axis=0), 5, 5),
    ],
)
def test_token_features_are_split_between_groups(objective, targets, size, held_out):
    task = make(objective=objective)
    features = {name: np.ones((len(targets), 3), "int32") for name in task.input}
    features["token_ids"][:] = np.arange(len(targets))[:, None]
    training, validation = task.split_validation(TokenFeatures(features, targets), 0.17)
    assert len(validation.y) == held_out
    assert validation.x["token_ids"][0, 0] == len(training.y) == len(targets) - held_out
    batches = task.batches(training, BatchOptions())[0]
    assert batches.batch_size == {2: 32, 3: 30, 5: 30}[size]
    batches = task.batches(training, BatchOptions(2 * size))[0]
    assert [len(batches[i][1]) % size for i in range(len(batches))] == [0] * len(batches)


@pytest.mark.parametrize(("objective", "size"), [("contrastive", 2), ("triplet", 3)])
def test_token_features_have_whole_groups(objective, size, steps):
    task = make(objective=objective)
    features = {name: np.ones((13, 3), "int32") for name in task.input}
    targets = np.arange(13)
    message = f"Token features must have {size} rows for each example, but 13 is not a multiple of {size}"
    for arguments in ({}, {"validation_split": 0.3}):
        with pytest.raises(ValueError, match=message):
            task.fit(features, targets, callbacks=[steps], verbose=0, **arguments)
    features = {name: array[:12] for name, array in features.items()}
    message = rf"`batch_size` must be a multiple of {size}, got 7\. An example has {size} rows"
    with pytest.raises(ValueError, match=message):
        task.fit(features, targets[:12], batch_size=7, callbacks=[steps], verbose=0)
    assert steps.count == 0


def test_token_features_may_be_single_texts_for_other_losses():
    task = make()
    task.compile(keras.optimizers.SGD(0.0), "mse", metrics=None)
    features = {name: np.ones((3, 5), "int32") for name in task.input}
    expected = np.square(task.predict(features, verbose=0)).mean()
    loss = task.fit(features, np.zeros((3, task.output.shape[-1])), verbose=0).history["loss"][0]
    assert loss == pytest.approx(expected, rel=1e-5)


def test_elmo_reads_texts_and_words_alike():
    task = make("elmo")
    expected = task.evaluate([("good film", "bad plot"), ("dull", "a b")], verbose=0)
    scores = task.evaluate([(["good", "film"], ["bad", "plot"]), ("dull", ["a", "b"])], verbose=0)
    assert scores == pytest.approx(expected)


@pytest.mark.slow_cases("bert-contrastive", "elmo-contrastive")
@pytest.mark.parametrize(("name", "objective"), [("bert", "cosine"), ("bert", "contrastive"), ("elmo", "contrastive")])
def test_training_changes_the_trainable_weights_only(name, objective, weights_of):
    projection = [{"kind": "dense", "units": 11, "activation": "tanh"}, {"kind": "layer_norm"}]
    arguments = {"projection": projection} if objective == "cosine" else {}
    task = make(name, pooling="cls" if name == "bert" else "max", objective=objective, **arguments)
    task.compile(AdamW(0.01, weight_decay=0.0))
    before = weights_of(task)
    task.fit(PAIRS, LABELS if objective == "cosine" else None, batch_size=7, verbose=0)
    trained = {id(weight) for weight in task.trainable_weights}
    wrong_paths = [
        weight.path
        for weight, old, new in zip(task.weights, before, weights_of(task), strict=True)
        if np.array_equal(old, new) == (id(weight) in trained) and not weight.path.endswith("key/bias")
    ]
    assert wrong_paths == []
    pooler = getattr(task.backbone, "pooler", None)
    assert not {id(weight) for weight in (pooler.weights if pooler else [])} & trained


def test_gamma_is_frozen_if_vectors_are_normalized():
    for normalize in (True, False):
        task = make("elmo", normalize=normalize)
        gamma = {id(task.backbone.scalar_mix.gamma)}
        assert gamma <= {id(w) for w in (task.non_trainable_weights if normalize else task.trainable_weights)}
        assert gamma.isdisjoint({id(w) for w in (task.trainable_weights if normalize else task.non_trainable_weights)})


# === Precision ===


def test_half_precision_gives_float32():
    backbone = tiny_backbone(FAMILIES["bert"], dtype="mixed_bfloat16")
    task = TextEmbedder(backbone, tiny_preprocessor(FAMILIES["bert"]))
    vectors = task.embed(TEXTS)
    assert vectors.dtype == "float32"
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors, make().embed(TEXTS), atol=0.05)


# === Errors ===


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "first"}, "`pooling` must be one of \"cls\", .*, or a list of several, got 'first'"),
        ({"matryoshka_widths": [3, 5000]}, "`matryoshka_widths` must be .* of at most \\d+, the width of the vectors"),
        ({"matryoshka_widths": []}, "`matryoshka_widths` must be a list of distinct positive integers"),
        ({"pair_prompts": "query"}, "`pair_prompts` must be None, or two names"),
        (
            {"pair_prompts": ("query", None)},
            "There is no prompt 'query'; `prompts` has none. Set them .*'query': \"...\"}.",
        ),
        (
            {"prompts": {"pair": "a "}, "pair_prompts": (None, "pair")},
            "`pair_prompts` must be names other than those of exported signatures, serving_default, pair, tokens",
        ),
    ],
)
def test_invalid_settings(arguments, message):
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
        ([], ValueError, "There are no examples"),
        (([], []), ValueError, "no examples"),
    ],
)
def test_inputs_that_are_not_pairs(contrastive, assert_refused, x, error, message):
    assert_refused(contrastive, (x,), (PAIRS,), error, message)


def test_contrastive_training_takes_no_labels(contrastive, strings_dataset):
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
        (
            [0.5, 3.8, *[0.0] * 5],
            ValueError,
            r"Label 3.8 at position 1 is not a cosine: .*between -1 and 1.*STS-B's by 5",
        ),
        ([0.5, -1.01, *[0.0] * 5], ValueError, "Label -1.01 at position 1"),
        (["alike", *[0.0] * 6], TypeError, "Label 'alike' at position 0 is not a number"),
    ],
)
def test_labels_that_are_not_cosines(cosine, assert_refused, labels, error, message):
    assert_refused(cosine, (PAIRS, labels), (PAIRS, LABELS), error, message)


def test_texts_need_a_preprocessor():
    task = TextEmbedder(BertBackbone(vocabulary_size=11, num_layers=1, num_heads=1, hidden_dim=7, intermediate_dim=5))
    for call in (lambda: task.fit(PAIRS), lambda: task.embed(TEXTS), lambda: task.embed(TEXTS, level="word")):
        with pytest.raises(ValueError, match="has no preprocessor"):
            call()
