"""T5's pre-training objective: `Seq2SeqLM(span_corruption=...)` learns from documents."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.data.corpora import pack_running_text
from lmzoo.families.marian import FAMILY as MARIAN
from lmzoo.families.t5 import FAMILY
from lmzoo.models import Pretrainer, Seq2SeqLM
from lmzoo.tasks.base.examples import BatchOptions
from lmzoo.tasks.inputs import TextsInMemory
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.text import EncodedTexts, Preprocessor, SpanCorruption, T5Tokenizer
from lmzoo.text.probabilities import log_softmax
from lmzoo.training.losses import SmoothedCrossEntropy

WORDS = ["the", "film", "was", "good", "a", "plot", "never", "dull"]
DOCUMENTS = [["the film was good", "a plot was never dull"], "the good film was never good", ["a", "the film"]] * 7
LENGTH = 13


def make_task(num_sentinels=5, length=LENGTH, **arguments):
    tokenizer = T5Tokenizer.of_words(WORDS, FAMILY.tiny.vocabulary_size, num_sentinels=num_sentinels)
    arguments = {"span_corruption": SpanCorruption(0.3, 2.0), **arguments}
    return Seq2SeqLM(tiny_backbone(FAMILY), Preprocessor(tokenizer, FAMILY.packing, length), **arguments)


@pytest.fixture(scope="module")
def model():
    """Return a model that the tests do not change."""
    return make_task()


def restore_texts(features, targets):
    """Return the tokens of a batch's texts, with the target's spans in place of the source's sentinels."""
    texts = []
    for source, mask, target in zip(features["token_ids"], features["padding_mask"], targets, strict=True):
        spans = {}
        for token in target:
            if token >= FAMILY.tiny.vocabulary_size - 5:
                span = spans[int(token)] = []
            elif token == 1:
                break
            else:
                span.append(int(token))
        source = source[mask > 0].tolist()
        assert source.pop() == 1
        texts.append([token for entry in source for token in spans.get(entry, [entry])])
    return texts


def test_batches_move_spans_from_the_source_to_the_target(model):
    examples = model.encode_examples(DOCUMENTS)
    text_length = model.span_corruption.text_length(LENGTH)
    assert set(examples.encoded.lengths[:-1]) == {text_length}
    assert model.longest_sequence == text_length > LENGTH
    indices = np.array([3, 0, len(examples.encoded) - 1, 5])
    features, targets, weights = model.make_batch(examples, indices, text_length, np.random.default_rng(5))
    assert features["token_ids"].shape == (4, LENGTH)
    assert targets.shape == weights.shape == (4, model.span_corruption.target_length(text_length))
    expected = [examples.encoded.select([i]).token_ids.tolist() for i in indices]
    assert restore_texts(features, targets) == expected
    np.testing.assert_array_equal(features["decoder_token_ids"][:, 1:], targets[:, :-1])
    assert (features["decoder_token_ids"][:, 0] == 0).all()
    np.testing.assert_array_equal(features["decoder_padding_mask"], weights > 0)
    real = targets[weights > 0]
    assert (targets[weights == 0] == 0).all()
    assert np.count_nonzero(real == 1) == 4  # the end of each target
    other_features = model.make_batch(examples, indices, text_length, np.random.default_rng(6))[0]
    assert (other_features["token_ids"] != features["token_ids"]).any()  # other spans


def test_padding_changes_no_spans(model):
    """The longest sequence of a batch determines the width."""
    examples = model.encode_examples(DOCUMENTS)
    narrow, wide = (model.make_batch(examples, np.array([2, 4]), width, np.random.default_rng(5)) for width in (15, 29))
    assert narrow[0]["token_ids"].shape[1] < wide[0]["token_ids"].shape[1]
    assert restore_texts(*narrow[:2]) == restore_texts(*wide[:2])
    for narrow_values, wide_values in ((narrow[0]["token_ids"], wide[0]["token_ids"]), narrow[1:2] + wide[1:2]):
        np.testing.assert_array_equal(narrow_values, wide_values[:, : narrow_values.shape[1]])
        assert (wide_values[:, narrow_values.shape[1] :] == 0).all()


def test_weights_of_sequences_are_weights_of_their_tokens(model):
    examples = model.encode_examples(DOCUMENTS)
    weights = np.arange(len(examples.encoded)) / 7
    weighted = model.encode_examples(examples.encoded, sample_weight=weights)
    indices = np.array([4, 1])
    *_, token_weights = model.make_batch(weighted, indices, 20, np.random.default_rng(5))
    *_, unweighted = model.make_batch(examples, indices, 20, np.random.default_rng(5))
    np.testing.assert_allclose(token_weights, unweighted * weights[indices, None])


def test_the_loss_is_smoothed_for_pairs_only(model):
    examples = model.encode_examples(DOCUMENTS)
    features, targets, weights = model.make_batch(examples, np.array([0, 1, 2]), 20, np.random.default_rng(0))
    logits = model.predict_on_batch(features).astype("float64")
    scores = np.take_along_axis(log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    loss = model.test_on_batch(features, targets, weights, return_dict=True)["loss"]
    assert loss == pytest.approx(-(scores * weights).sum() / weights.sum(), rel=1e-4)
    pairs = Seq2SeqLM(model.backbone, model.preprocessor)
    assert isinstance(pairs.loss, SmoothedCrossEntropy)
    assert pairs.test_on_batch(features, targets, weights, return_dict=True)["loss"] != pytest.approx(loss, rel=1e-4)


def test_a_report_has_the_perplexity_of_the_dropped_spans(model, monkeypatch):
    """Documents have no translations, so none are generated."""
    monkeypatch.setattr(Seq2SeqLM, "generate", None)
    report = model.report(DOCUMENTS, batch_size=4, verbose=0)
    assert report.scores.keys() == {"loss", "accuracy", "perplexity"}
    assert report.scores["perplexity"] == pytest.approx(np.exp(report.scores["loss"]))
    examples = model.encode_examples(DOCUMENTS)
    in_one_batch = model.report(DOCUMENTS, batch_size=len(examples.encoded), verbose=0).scores["loss"]
    assert in_one_batch == pytest.approx(model.evaluate(DOCUMENTS, batch_size=len(examples.encoded), verbose=0)[0])
    losses = []
    counts = []
    for features, targets, weights in model.batches(TextsInMemory(DOCUMENTS), BatchOptions(4, "sorted"))[0].batches():
        losses.append(model.test_on_batch(features, targets, weights, return_dict=True)["loss"])
        counts.append(weights.sum())
    assert len(set(counts)) > 1
    assert report.scores["loss"] == pytest.approx(np.average(losses, weights=counts), rel=1e-5)


@pytest.mark.slow
def test_training_lowers_the_loss():
    model = make_task()
    model.compile(keras.optimizers.Adam(0.01))
    history = model.fit(DOCUMENTS, epochs=10, batch_size=3, verbose=0, validation_split=0.3).history
    assert history["loss"][-1] < history["loss"][0] / 1.5
    assert {"val_loss", "val_accuracy"} <= history.keys()
    scores = [model.evaluate(DOCUMENTS, verbose=0) for _ in range(2)]
    assert scores[0] == scores[1]  # evaluation always drops the same spans
    pairs = Seq2SeqLM(model.backbone, model.preprocessor)
    pairs.fit([("the film", "a plot")] * 3, verbose=0)


def test_files_restore_the_setting(model, tmp_path):
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.span_corruption == model.span_corruption
    model.save_to_preset(tmp_path / "preset")
    assert Seq2SeqLM.from_preset(tmp_path / "preset").span_corruption == model.span_corruption
    for_pairs = Seq2SeqLM.from_preset(tmp_path / "preset", span_corruption=None)
    assert for_pairs.span_corruption is None
    for actual, expected in zip(for_pairs.weights, model.weights, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert make_task(span_corruption={"mean_length": 5}).span_corruption == SpanCorruption(mean_length=5)


@pytest.mark.slow
def test_streams_of_documents_are_packed_batch_by_batch(model):
    """So the number of sequences is not known before."""
    from lmzoo.data import stream

    rows = [{"text": " ".join(document) if isinstance(document, list) else document} for document in DOCUMENTS]
    task = make_task()
    with pytest.raises(ValueError, match="Pass `steps_per_epoch`"):
        task.fit(stream(rows, "text"), verbose=0)
    history = task.fit(stream(rows, "text"), batch_size=2, steps_per_epoch=3, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_too_few_sentinels_are_an_error_before_the_first_step():
    task = make_task(num_sentinels=2)
    text_length = task.longest_sequence
    _, (spans,) = task.span_corruption.counts(np.array([text_length]))
    message = (
        f"Sequences of {text_length} tokens have {spans} dropped spans, for which {spans + 1} sentinels are needed, "
        "but the tokenizer has 2"
    )
    for call in (task.fit, task.evaluate):
        with pytest.raises(ValueError, match=message):
            call(DOCUMENTS, verbose=0)
    assert int(task.optimizer.iterations) == 0
    make_task(num_sentinels=int(spans) + 1).encode_examples(DOCUMENTS)  # as many as needed


SEQUENCES = pack_running_text(DOCUMENTS, Preprocessor(make_task().preprocessor.tokenizer, FAMILY.packing, 31))
ERRORS = {
    "pairs": ([("a", "the film")], "learns from documents, .* but got pairs"),
    "columns": ((["a"], ["the film"]), "learns from documents, .* but got pairs"),
    "encoded pairs": (tiny_task(Seq2SeqLM, FAMILY).encode_inputs([("a", "film")]), "but got pairs"),
    "long": (SEQUENCES, r"takes sequences of 2 to 14 tokens, got \d+ to 31\. .*`sequence_length=14`"),
    "short": (EncodedTexts.of_ids([[5, 6], [7]]), "takes sequences of 2 to 14 tokens, got 1 to 2"),
    "none": ([], "There are no examples"),
}


@pytest.mark.parametrize(("x", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_errors_of_examples(model, x, message):
    with pytest.raises(ValueError, match=message):
        model.fit(x, verbose=0)


def test_errors_of_arguments_and_models(model):
    with pytest.raises(ValueError, match="learns from documents alone, with span corruption: it takes no labels"):
        model.fit(DOCUMENTS, [1] * len(DOCUMENTS), verbose=0)
    with pytest.raises(TypeError, match=r"`documents\[1\]` must be a string or a list of strings, got 3"):
        model.fit(["the film", 3], verbose=0)
    with pytest.raises(TypeError, match=r"`span_corruption` must be a `lmzoo.text.SpanCorruption`, got 'yes'"):
        make_task(span_corruption="yes")
    with pytest.raises(ValueError, match="needs a tokenizer with sentinels, such as T5Tokenizer: this MarianTokenizer"):
        Seq2SeqLM(tiny_backbone(MARIAN), tiny_preprocessor(MARIAN), span_corruption=SpanCorruption())
    with pytest.raises(ValueError, match="T5Backbone cannot fill masks: its family has no mask token"):
        Pretrainer(tiny_backbone(FAMILY))
    short = make_task(length=3)
    with pytest.raises(ValueError, match="`sequence_length` must be at least 4 for span corruption, got 3"):
        short.fit(DOCUMENTS, verbose=0)


def test_token_features_need_no_tokenizer(model):
    """A model without a preprocessor trains on batches, but cannot make them."""
    examples = model.encode_examples(DOCUMENTS)
    x, y, weights = model.make_batch(examples, np.array([0, 1]), 20, np.random.default_rng(0))
    bare_model = Seq2SeqLM(model.backbone, None, span_corruption=SpanCorruption())
    scores = [task.evaluate(x, y, sample_weight=weights, verbose=0) for task in (model, bare_model)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    with pytest.raises(ValueError, match="has no preprocessor"):
        bare_model.fit(DOCUMENTS, verbose=0)
