"""`Pretrainer` on masked tokens and pairs of sentences: losses, documents, masks, files, errors."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.data.corpora import pack_sentences, segment_pairs
from lmzoo.models import MaskedLM, Pretrainer, TextClassifier
from lmzoo.registry.family import families, get_family
from lmzoo.tasks.base.examples import Examples
from lmzoo.tasks.inputs import read_inputs
from lmzoo.testing import randomize, tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.text import TextWarning
from tests.reference.weights import to_numpy


def build(tiny, **arguments):
    compile_arguments = arguments.pop("compile", {})
    task = Pretrainer(tiny.backbone(), tiny.preprocessor(), **arguments)
    randomize(task)
    if compile_arguments:
        task.compile(**compile_arguments)
    return task


def make_documents(tiny, count=7, sentences=5):
    texts = tiny.texts(count * sentences)
    return [texts[i::count] for i in range(count)]


def pair_neighbors(tiny, task, objective="nsp", **arguments):
    return segment_pairs(
        make_documents(tiny, **arguments), task.preprocessor, objective, np.random.default_rng(3), passes=2
    )


def cross_entropy(logits, targets):
    logits = logits.astype("float64")
    chosen = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return np.log(np.exp(logits).sum(axis=-1)) - chosen


def make_batch(task, pairs, sample_weight=None):
    rows = np.arange(len(pairs))
    rng = np.random.default_rng(11)
    return task.make_batch(Examples(pairs, None, sample_weight), rows, int(pairs.lengths.max()), rng)


@pytest.mark.quick_cases("False")
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_the_sum_of_both_means(tiny, weighted):
    task = build(tiny)
    pairs = pair_neighbors(tiny, task)
    weight = np.linspace(0.5, 3, len(pairs)) if weighted else None
    features, targets, weights = make_batch(task, pairs, weight)
    outputs = task.predict(features, verbose=0)
    losses = {name: cross_entropy(outputs[name], targets[name]) for name in outputs}
    expected = {name: np.average(losses[name], weights=weights[name]) for name in outputs}
    sequence_weights = np.ones(len(pairs)) if weight is None else weight
    np.testing.assert_allclose(weights["sentence"], sequence_weights, rtol=1e-6)
    np.testing.assert_allclose(weights["masked_lm"].max(axis=1), sequence_weights, rtol=1e-6)
    assert 0 in weights["masked_lm"], "a slot without a mask"
    scores = task.evaluate(features, targets, sample_weight=weights, batch_size=len(pairs), verbose=0, return_dict=True)
    assert scores["masked_lm_loss"] == pytest.approx(expected["masked_lm"], rel=1e-5)
    assert scores["sentence_loss"] == pytest.approx(expected["sentence"], rel=1e-5)
    assert scores["loss"] == pytest.approx(sum(expected.values()), rel=1e-5)
    for name in outputs:
        is_correct = outputs[name].argmax(axis=-1) == targets[name]
        assert scores[f"{name}_accuracy"] == pytest.approx(np.average(is_correct, weights=weights[name]), rel=1e-5)


@pytest.mark.parametrize("objective", ["nsp", "rtd"])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_the_weight_of_a_sequence_counts_for_its_tokens(tiny, shape, objective):
    task = build(tiny) if objective == "nsp" else tiny_task(Pretrainer, families()["electra"])
    sequences = task.encode_examples(make_documents(tiny)).encoded
    features, targets, _ = make_batch(task, sequences)
    sample_weight = np.linspace(0.5, 3, len(sequences)).astype("float32")
    weights = {"masked_lm": np.broadcast_to(sample_weight[:, None], targets["masked_lm"].shape)}
    if objective == "nsp":
        weights["sentence"] = sample_weight
    else:
        weights["replaced_tokens"] = features["padding_mask"] * sample_weight[:, None]
        assert 0 in weights["replaced_tokens"], "padding"
    sequence_weights = sample_weight.reshape(shape)
    scores, expected = (
        task.evaluate(features, targets, sample_weight=w, batch_size=len(sequences), verbose=0, return_dict=True)
        for w in (sequence_weights, weights)
    )
    assert scores == pytest.approx(expected, rel=1e-5)
    batch_scores = task.test_on_batch(features, targets, sequence_weights, return_dict=True)
    assert batch_scores == pytest.approx(expected, rel=1e-5)
    expected = task.test_on_batch(features, targets, np.ones_like(sequence_weights), return_dict=True)
    assert task.test_on_batch(features, targets, return_dict=True) == pytest.approx(expected, rel=1e-5)


def test_batches_hold_the_labels_of_the_pairs(tiny):
    task = build(tiny)
    pairs = pair_neighbors(tiny, task)
    rows = np.array([3, 1, 4])
    _, targets, _ = task.make_batch(Examples(pairs), rows, 37, np.random.default_rng(0))
    np.testing.assert_array_equal(targets["sentence"], pairs.labels[rows])
    assert {0, 1} <= set(pairs.labels)


@pytest.mark.slow
def test_documents_are_paired_once_but_masked_in_each_epoch(tiny, monkeypatch):
    task = build(tiny)
    batches = []
    original = task.make_batch

    def record(*arguments):
        batch = original(*arguments)
        batches.append((arguments[0].encoded, batch))
        return batch

    monkeypatch.setattr(task, "make_batch", record)
    task.fit(make_documents(tiny), epochs=2, batch_size=64, shuffle=False, verbose=0)
    (pairs, first), (second_pairs, second) = batches[-2:]
    assert pairs is second_pairs
    expected = segment_pairs(make_documents(tiny), task.preprocessor, "nsp", np.random.default_rng(0))
    np.testing.assert_array_equal(pairs.token_ids, expected.token_ids)
    np.testing.assert_array_equal(first[1]["sentence"], second[1]["sentence"])
    assert not np.array_equal(first[0]["mask_positions"], second[0]["mask_positions"])


def test_evaluate_always_draws_the_same_masks(tiny):
    task, documents = build(tiny), make_documents(tiny)
    first, second = (task.evaluate(documents, verbose=0, return_dict=True) for _ in range(2))
    assert first == second
    assert first.keys() == {
        "loss", "masked_lm_loss", "sentence_loss", "masked_lm_accuracy", "sentence_accuracy",
    }  # fmt: skip


@pytest.mark.slow
def test_validation_data_and_splits_are_evaluated(tiny):
    task, documents = build(tiny), make_documents(tiny)
    expected = task.evaluate(documents, verbose=0, return_dict=True)["loss"]
    task.compile(keras.optimizers.SGD(0.0))
    history = task.fit(documents[:4], validation_data=(documents,), verbose=0).history
    assert history["val_loss"] == pytest.approx([expected])
    assert "val_sentence_accuracy" in task.fit(documents, validation_split=0.3, verbose=0).history


@pytest.mark.parametrize("objective", ["nsp", None])
def test_whole_documents_are_held_out(tiny, objective):
    task, documents = build(tiny, objective=objective), make_documents(tiny)
    for x in (documents, tuple(documents)):
        training, validation = task.split_validation(read_inputs(x), 0.3)
        assert [*training.x, *validation.x] == documents
        assert len(validation.x) == 3


def test_the_last_encoded_pairs_are_held_out(tiny):
    task = build(tiny)
    pairs = pair_neighbors(tiny, task)
    training, validation = task.split_validation(read_inputs(pairs), 0.3)
    for part, expected in ((training.x, pairs[: len(training.x)]), (validation.x, pairs[len(training.x) :])):
        np.testing.assert_array_equal(part.token_ids, expected.token_ids)
        np.testing.assert_array_equal(part.labels, expected.labels)


def test_the_backbone_runs_once(tiny, monkeypatch):
    """With two passes, the objectives would see different dropout, at twice the cost."""
    task = build(tiny)
    features, *_ = make_batch(task, pair_neighbors(tiny, task))
    calls = []
    call = task.backbone.embeddings.call
    monkeypatch.setattr(task.backbone.embeddings, "call", lambda *a, **k: calls.append(1) or call(*a, **k))
    task(features, training=True)
    assert calls == [1]


@pytest.mark.slow
def test_logits_are_those_of_masked_lm_and_of_the_sentence_head(tiny):
    task = build(tiny)
    masked = MaskedLM(task.backbone, task.preprocessor)
    for target, source in zip(masked.head.weights, task.head.weights, strict=True):
        target.assign(to_numpy(source))
    texts = [("the film [MASK] good", "[MASK]"), ("a plot", "was [MASK] [MASK] dull [MASK]")]
    outputs = task.predict(texts, verbose=0)
    np.testing.assert_array_equal(outputs["masked_lm"], masked.predict(texts, verbose=0))
    assert {name: logits.shape for name, logits in outputs.items()} == {"masked_lm": (2, 3, 20), "sentence": (2, 2)}
    pooled = to_numpy(task.backbone(task.preprocessor(texts)))["pooled_output"]
    layer = task.get_layer("sentence_head")
    expected = pooled @ to_numpy(layer.kernel) + to_numpy(layer.bias)
    np.testing.assert_allclose(outputs["sentence"], expected, atol=1e-6)
    assert {name: logits.shape for name, logits in task.predict([], verbose=0).items()} == {
        "masked_lm": (0, 0, 20),
        "sentence": (0, 2),
    }


def test_predict_reads_datasets_like_lists(tiny, strings_dataset):
    task, texts = build(tiny), ["the film [MASK] good", "dull", "a [MASK] plot was [MASK]"]
    expected = task.predict(texts, verbose=0)
    for name, logits in task.predict(strings_dataset(texts).batch(2), verbose=0).items():
        np.testing.assert_allclose(logits, expected[name], atol=1e-6)


@pytest.mark.slow
def test_without_an_objective_only_masked_tokens_are_predicted(tiny):
    task, documents = build(tiny, objective=None), make_documents(tiny)
    assert task.predict(["a [MASK]"], verbose=0).keys() == {"masked_lm"}
    assert not any(weight.path.startswith(("sentence_head", "pooler")) for weight in task.trainable_weights)
    sequences = pack_sentences(documents, task.preprocessor)
    scores = [task.evaluate(x, verbose=0, return_dict=True) for x in (documents, sequences)]
    assert scores[0] == scores[1]
    weights = np.ones(len(sequences))
    assert task.evaluate(sequences, sample_weight=weights, verbose=0, return_dict=True) == scores[0]
    task.fit(pair_neighbors(tiny, task), verbose=0)


@pytest.mark.parametrize(("name", "objective"), [("bert", "nsp"), ("albert", "sop"), ("roberta", None)])
def test_the_family_determines_the_default_objective(name, objective):
    task = tiny_task(Pretrainer, families()[name])
    assert task.objective == task.get_config()["objective"] == objective


def test_other_tasks_load_a_pretrainers_preset(tiny, tmp_path):
    task = build(tiny, objective="sop", masking={"probability": 0.3}, activation="relu")
    task.save_to_preset(tmp_path / "both")
    reloaded = Pretrainer.from_preset(tmp_path / "both")
    assert (reloaded.objective, reloaded.masking.probability, reloaded.head.activation) == ("sop", 0.3, "relu")
    texts = ["the film [MASK] good"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        masked = MaskedLM.from_preset(tmp_path / "both")
    assert (masked.masking.probability, masked.head.activation) == (0.3, "relu")
    assert masked.name.startswith("masked_lm")  # not with the name of the saved task
    np.testing.assert_array_equal(masked.predict(texts, verbose=0), task.predict(texts, verbose=0)["masked_lm"])
    TextClassifier.from_preset(tmp_path / "both", num_classes=3)
    masked.save_to_preset(tmp_path / "masked")
    with pytest.warns(UserWarning, match="no head of a Pretrainer, so it starts from scratch"):
        Pretrainer.from_preset(tmp_path / "masked")


@pytest.mark.parametrize("stored", ["preset", "hf"])
@pytest.mark.parametrize(
    ("before", "objective", "new_parts"),
    [
        (None, "sbo", "`boundary_head`, `span_boundaries` start from scratch"),
        (None, "auto", "`sentence_head` starts from scratch"),
        ("nsp", "sbo", "`boundary_head`, `span_boundaries` start from scratch"),
        ("nsp", None, ""),
        ("sbo", "nsp", "`sentence_head` starts from scratch"),
    ],
)
def test_another_objective_keeps_the_head_of_masked_tokens(tiny, tmp_path, stored, before, objective, new_parts):
    task = build(tiny, objective=before)
    if stored == "preset":
        task.save_to_preset(tmp_path / "stored")
    elif before == "nsp":
        lmzoo.save_checkpoint(task, tmp_path / "stored", to="hf")
        new_parts = new_parts.replace("`boundary_head`", "`boundary_head`, `masked_lm_head`")  # not read in part
    else:
        return  # transformers has no such head
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        loaded = Pretrainer.from_preset(tmp_path / "stored", objective=objective)
    messages = [str(notice.message) for notice in notices]
    if new_parts:
        assert messages == [f"The head of {str(tmp_path / 'stored')!r} is for another `objective`: {new_parts}."]
    else:
        assert messages == []
    assert loaded.objective == ("nsp" if objective == "auto" else objective)
    masking = get_family(task.backbone).masking
    assert loaded.masking == (masking.with_spans() if objective == "sbo" else masking)
    for weight, expected in zip(loaded.backbone.weights, task.backbone.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), to_numpy(expected))
    for weight, expected in zip(loaded.head.weights, task.head.weights, strict=True):
        is_equal = np.array_equal(to_numpy(weight), to_numpy(expected))
        assert is_equal == ("`masked_lm_head`" not in new_parts)
    loaded.fit(make_documents(tiny), verbose=0)


@pytest.mark.slow
def test_losses_and_metrics_of_compile_are_saved(tiny, tmp_path):
    """Losses given by name take logits, and metrics stay with their outputs."""
    loss = {"masked_lm": "sparse_categorical_crossentropy", "sentence": "sparse_categorical_crossentropy"}
    metrics = {"sentence": keras.metrics.SparseCategoricalAccuracy(name="right")}
    mean_loss = keras.metrics.MeanMetricWrapper(keras.losses.sparse_categorical_crossentropy, name="m")
    task = build(tiny, compile={"loss": loss, "metrics": metrics, "weighted_metrics": {"sentence": [mean_loss]}})
    assert all(output_loss.from_logits for output_loss in task.loss.values())
    task.evaluate(make_documents(tiny), verbose=0)
    task.save(tmp_path / "task.keras")
    reloaded = keras.saving.load_model(tmp_path / "task.keras")
    expected, actual = (model.evaluate(make_documents(tiny), verbose=0, return_dict=True) for model in (task, reloaded))
    assert expected == actual
    assert actual.keys() == {"loss", "masked_lm_loss", "sentence_loss", "sentence_right", "sentence_m"}
    with pytest.raises(ValueError, match="outputs are logits"):
        task.compile(loss={**loss, "sentence": keras.losses.SparseCategoricalCrossentropy()})


class Rows(list):
    """Table of documents in memory."""

    def __init__(self, documents):
        super().__init__({"text": document} for document in documents)


def test_a_buffer_of_a_stream_may_have_no_document_of_two_sentences(tiny):
    task = build(tiny)
    documents = [*make_documents(tiny, count=4), ["good"], ["bad", ""]]
    for streamed in (documents, [*documents[4:], *documents[:4]]):
        with pytest.warns(TextWarning, match="2 of 2 documents are one sentence"):
            scores = task.evaluate(lmzoo.data.stream(Rows(streamed), shuffle_buffer=2), batch_size=2, verbose=0)
        assert np.isfinite(scores).all()
    invalid = Rows([*documents[4:], ["dull", 3]])
    with pytest.raises(TypeError, match=r"In row 2 of the stream: .* must be a string, got 3"):
        task.evaluate(lmzoo.data.stream(invalid), verbose=0)


def test_a_stream_of_empty_documents_is_refused(tiny):
    for objective in ("nsp", None):
        task = build(tiny, objective=objective)
        with (
            pytest.warns(TextWarning, match="2 of 2 documents held no tokens"),
            pytest.raises(ValueError, match=r"There are no examples: .* too short"),
        ):
            task.fit(lmzoo.data.stream(Rows([[""], []])), steps_per_epoch=1, verbose=0)


@pytest.mark.tf_only
def test_a_batch_of_a_dataset_may_have_no_document_of_two_sentences(tiny):
    import tensorflow as tf

    documents = tf.ragged.constant([*make_documents(tiny, count=2), ["good"], ["bad"]])
    dataset = tf.data.Dataset.from_tensor_slices(documents).batch(2)
    with pytest.warns(TextWarning, match="2 of 2 documents are one sentence"):
        scores = build(tiny).evaluate(dataset, verbose=0)
    assert np.isfinite(scores).all()


def test_errors_of_documents_and_sequences(tiny):
    documents = make_documents(tiny)
    task = build(tiny)
    sequences = pack_sentences(documents, task.preprocessor)
    with pytest.raises(ValueError, match="learns from documents alone"):
        task.fit(documents, [0] * len(documents))
    with pytest.raises(ValueError, match="learns from documents alone"):
        task.evaluate(documents, [0] * len(documents))
    with pytest.raises(ValueError, match="A document has no weight"):
        task.fit(documents, sample_weight=np.ones(len(documents)))
    with pytest.raises(ValueError, match='With `objective="nsp"` sequences are pairs: make them with'):
        task.fit(sequences)
    with pytest.raises(ValueError, match=r"but 3 weights"):
        task.fit(pair_neighbors(tiny, task), sample_weight=np.ones(3))
    with pytest.raises(TypeError, match=r"`documents\[0\]` must be a list of strings, got one string"):
        task.fit(["a text", "another"])
    with (
        pytest.warns(TextWarning, match="2 of 2 documents held no tokens"),
        pytest.raises(ValueError, match="There are no examples"),
    ):
        task.fit([[], [""]])


def test_a_dataset_of_strings_is_refused(tiny, strings_dataset):
    with pytest.raises(TypeError, match=r"`documents\[0\]` must be a list of strings"):
        build(tiny).fit(strings_dataset(["a text", "another"]))


@pytest.mark.slow
def test_errors_of_objectives(tiny):
    with pytest.raises(ValueError, match='`objective` must be "nsp", "sop", "plm", "rtd", "sbo" or None, got \'mlm\''):
        build(tiny, objective="mlm")
    for name in ("roberta", "distilbert"):
        with pytest.raises(ValueError, match=r"no segment ids.* choose None"):
            tiny_task(Pretrainer, families()[name], objective="nsp")
    family = families()["bert"]
    with pytest.raises(ValueError, match="no segment ids"):
        Pretrainer(tiny_backbone(family, num_segments=1))
    Pretrainer(tiny_backbone(family, num_segments=1), tiny_preprocessor(family), objective=None)
    with pytest.raises(ValueError, match="has no mask token"):
        tiny_task(Pretrainer, families()["elmo"])
    assert not Pretrainer.supports(families()["elmo"])
