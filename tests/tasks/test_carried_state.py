"""`CausalLM(carries_state=True)`: recurrent models whose state goes on in the next batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from lmzoo.data import stream
from lmzoo.data.readers import TableStream
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.families.lstm_lm import FAMILY
from lmzoo.models import CausalLM
from lmzoo.testing import tiny_backbone, tiny_preprocessor
from lmzoo.text import LengthBatches, Preprocessor
from lmzoo.text.probabilities import log_softmax
from lmzoo.training import ResumableCheckpoint
from tests.tasks.interruptions import Interrupted, Spy, assert_same, assign, state_of

TEXTS = ["the film was good", "the plot was never dull .", "a quiet film", "good ."] * 2
LENGTH, ROWS = 5, 3


@pytest.fixture(params=["lstm", pytest.param("gru", marks=pytest.mark.slow)])
def model(request):
    backbone = tiny_backbone(FAMILY, cell=request.param, dropout=0.0)
    tokenizer = tiny_preprocessor(FAMILY).tokenizer
    return CausalLM(backbone, Preprocessor(tokenizer, FAMILY.packing, LENGTH), carries_state=True)


def compute_stream_loss(model) -> float:
    """Return the mean loss over tokens if each stream is read at once, from zero states."""
    packed = model.encode_examples(TEXTS).encoded
    rows = np.split(packed.token_ids, packed.sequence_splits[1:-1])
    steps = -(-len(rows) // ROWS)
    total, count = 0.0, 0.0
    end = model.preprocessor.tokenizer.token_to_id(model.preprocessor.tokenizer.end_token)
    for begin in range(0, len(rows), steps):
        stream = [rows[begin][0], *(token for row in rows[begin : begin + steps] for token in row[1:])]
        ids = np.array([stream], "int32")
        inputs = {"token_ids": ids[:, :-1], "padding_mask": np.ones_like(ids[:, :-1])}
        vectors = model.backbone(inputs)["sequence_output"]
        logits = ops.convert_to_numpy(model.backbone.embeddings.token_embedding(vectors, reverse=True))
        target_scores = np.take_along_axis(log_softmax(logits.astype("float64")), ids[:, 1:, None], axis=2)[0, :, 0]
        weights = (ids[0, :-1] != end) | (ids[0, 1:] != end)
        total, count = total - (target_scores * weights).sum(), count + weights.sum()
    return total / count


def compile_with_mean(model) -> None:
    """Compile the model with a metric that is the mean over tokens (the loss is one over batches) and rate 0."""
    mean = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="mean")
    model.compile(keras.optimizers.SGD(0.0), weighted_metrics=[mean])


def evaluate(model) -> float:
    return model.evaluate(TEXTS, batch_size=ROWS, verbose=0, return_dict=True)["mean"]


def test_streams_go_on_in_the_next_batch():
    batches = LengthBatches(np.full(8, 6), lambda indices, width, rng: indices, 3, [6], "streams")
    assert [batch.tolist() for batch in batches.batches()] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert len(batches) == 3


@pytest.mark.quick_cases("lstm")
def test_the_loss_does_not_depend_on_how_streams_are_cut(model):
    expected = compute_stream_loss(model)
    compile_with_mean(model)
    history = model.fit(TEXTS, batch_size=ROWS, epochs=2, verbose=0).history["mean"]
    np.testing.assert_allclose(history, [expected] * 2, rtol=1e-5)  # an epoch begins with zeros
    model.fit(TEXTS[:2], batch_size=1, verbose=0)  # leaves other states behind
    assert evaluate(model) == pytest.approx(expected, rel=1e-5)
    stateless = CausalLM(model.backbone, model.preprocessor)
    compile_with_mean(stateless)
    assert abs(evaluate(stateless) - expected) > 1e-4


@pytest.mark.quick_cases("gru")
def test_validation_carries_its_state(model):
    compile_with_mean(model)
    history = model.fit(TEXTS, validation_data=TEXTS, batch_size=ROWS, epochs=2, verbose=0).history
    np.testing.assert_allclose(history["val_mean"], [evaluate(model)] * 2, rtol=1e-6)
    history = model.fit(TEXTS, validation_split=0.5, batch_size=ROWS, verbose=0).history
    assert np.isfinite(history["val_mean"]).all()


@pytest.mark.slow
def test_texts_are_scored_and_continued_from_zeros(model):
    model.fit(TEXTS, batch_size=ROWS, verbose=0)
    stateless = CausalLM(model.backbone, model.preprocessor)
    assert model.perplexity(TEXTS) == pytest.approx(stateless.perplexity(TEXTS), rel=1e-6)
    assert model.generate(["the film"], 5) == stateless.generate(["the film"], 5)
    np.testing.assert_allclose(
        model.predict(["the film", "good"], verbose=0), stateless.predict(["the film", "good"], verbose=0), atol=1e-6
    )


@pytest.mark.quick_cases("gru")
def test_files_do_not_contain_the_states(model, tmp_path):
    model.fit(TEXTS, batch_size=ROWS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.carries_state
    assert loaded.evaluate(TEXTS, verbose=0) == pytest.approx(model.evaluate(TEXTS, verbose=0), rel=1e-6)


@pytest.mark.slow
def test_an_interrupted_run_goes_on(model, tmp_path):
    model.compile(keras.optimizers.SGD(0.5))
    model.fit(TEXTS, batch_size=ROWS, verbose=0)  # makes room for states
    begin = state_of(model)
    full_run = Spy()
    model.fit(TEXTS, batch_size=ROWS, epochs=2, verbose=0, callbacks=[full_run])
    assign(model, begin)
    callbacks = [ResumableCheckpoint(tmp_path, every=1), Spy(at=sorted(full_run.states)[3])]
    with pytest.raises(Interrupted):
        model.fit(TEXTS, batch_size=ROWS, epochs=2, verbose=0, callbacks=callbacks)
    assign(model, begin)
    resumed = Spy()
    model.fit(TEXTS, batch_size=ROWS, epochs=2, verbose=0, callbacks=[ResumableCheckpoint(tmp_path, every=1), resumed])
    assert len(resumed.states) < len(full_run.states)
    assert_same(resumed.states, full_run.states)


@pytest.mark.quick_cases("gru")
def test_an_evaluation_between_two_runs_does_not_matter(model, tmp_path):
    """The evaluation has its own state, which is not saved."""
    model.compile(keras.optimizers.SGD(0.5))
    model.fit(TEXTS, batch_size=ROWS, verbose=0, callbacks=[ResumableCheckpoint(tmp_path, every=1)])
    model.evaluate(TEXTS, batch_size=ROWS, verbose=0)
    history = model.fit(TEXTS, batch_size=ROWS, epochs=2, verbose=0, callbacks=[ResumableCheckpoint(tmp_path, every=1)])
    assert history.epoch == [1]


def test_models_without_a_state_are_refused():
    with pytest.raises(ValueError, match="Gpt2Backbone has no state to carry"):
        CausalLM(tiny_backbone(GPT2), tiny_preprocessor(GPT2), carries_state=True)


@pytest.mark.quick_cases("gru")
def test_larger_batches_start_from_zeros(model):
    """Streams beyond the size of the earlier batches have no state yet."""
    compile_with_mean(model)
    model.evaluate(TEXTS, batch_size=2, verbose=0)
    stateless = CausalLM(model.backbone, model.preprocessor)
    texts = ["the film", "good", "a", "film", "the"]
    np.testing.assert_allclose(model.predict(texts, verbose=0), stateless.predict(texts, verbose=0), atol=1e-6)


@pytest.mark.quick_cases("gru")
def test_token_features_say_whether_streams_go_on(model):
    encoded = model.encode_examples(TEXTS)
    features, y, weights = model.make_batch(encoded, np.arange(2), LENGTH + 1, None)
    compile_with_mean(model)
    losses = []
    for goes_on in (0, 0, 1):
        x = {**features, "goes_on": np.full(2, goes_on, "int32")}
        losses.append(model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)["mean"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert abs(losses[2] - losses[0]) > 1e-4


def test_streamed_data_is_refused(model, tmp_path):
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(TEXTS))
    table = TableStream(tmp_path / "texts.csv")
    with pytest.raises(ValueError, match=r"data that streams cannot be read: .*`lmzoo.data.corpora.pack_continuously`"):
        model.fit(stream(table), steps_per_epoch=2, verbose=0)
