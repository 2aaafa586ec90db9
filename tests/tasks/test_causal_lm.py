"""`CausalLM`: packed sequences, the loss and its weights, scores of texts, files."""

from __future__ import annotations

import itertools
import json

import keras
import numpy as np
import pytest

from lmzoo.data import stream
from lmzoo.data.corpora import TokenCorpus, pack_continuously, write_corpus
from lmzoo.data.readers import TableStream
from lmzoo.families.bert import FAMILY as BERT
from lmzoo.families.gpt import FAMILY as GPT
from lmzoo.families.gpt2 import FAMILY
from lmzoo.models import CausalLM, TextClassifier
from lmzoo.presets import PresetError
from lmzoo.presets.converting import convert
from lmzoo.tasks.generation import TokenGenerator
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task, tiny_texts
from lmzoo.text import Preprocessor, TextWarning
from lmzoo.text.probabilities import log_softmax

TEXTS = ["the film", "a", "the plot was never dull ."]


@pytest.fixture(scope="module")
def model():
    """Return a model that the tests do not change."""
    return tiny_task(CausalLM, FAMILY)


def make_preprocessor(length: int) -> Preprocessor:
    return Preprocessor(tiny_preprocessor(FAMILY).tokenizer, FAMILY.packing, length)


# === Packing and the loss ===


def test_documents_are_packed_without_gaps(tmp_path):
    preprocessor = make_preprocessor(7)
    tokenizer = preprocessor.tokenizer
    end = tokenizer.token_to_id(tokenizer.end_token)
    stream = [i for ids in tokenizer.tokenize(TEXTS) for i in [end, *ids, end]]
    packed = pack_continuously(TEXTS, preprocessor)
    rows = np.split(packed.token_ids, packed.sequence_splits[1:-1])
    assert [len(row) for row in rows[:-1]] == [8] * (len(rows) - 1)
    assert [*rows[0], *(token for row in rows[1:] for token in row[1:])] == stream  # only borders are repeated
    assert all(row[0] == before[-1] for before, row in itertools.pairwise(rows))
    # Sentences are joined by spaces; a corpus in files gives the same.
    documents = [text.split() for text in TEXTS]
    write_corpus(TEXTS, tokenizer, tmp_path, verbose=False)
    for corpus in (documents, TokenCorpus(tmp_path)):
        np.testing.assert_array_equal(pack_continuously(corpus, preprocessor).token_ids, packed.token_ids)


def test_padding_and_borders_have_no_weight(model):
    examples = model.encode_examples(TEXTS)
    features, targets, weights = model.make_batch(examples, np.array([0]), 74, np.random.default_rng(0))
    tokenizer = model.preprocessor.tokenizer
    end = tokenizer.token_to_id(tokenizer.end_token)
    expected = [(token, 1) for ids in tokenizer.tokenize(TEXTS) for token in [*ids, end]]
    counted = [(token, int(w)) for token, w in zip(targets[0], weights[0], strict=True) if w]
    assert counted == expected  # ends are predicted, beginnings of documents are not
    ids, mask = features["token_ids"][0], features["padding_mask"][0]
    assert ids.shape == (73,)
    assert mask.sum() == len(expected) + 2  # the two borders
    assert not weights[0][mask == 0].any()
    assert [token for token, before in zip(targets[0], ids, strict=True) if before == end == token] == [end, end]


def test_the_loss_is_the_weighted_mean_over_tokens(model):
    features, targets, weights = model.make_batch(model.encode_examples(TEXTS), np.array([0]), 74, None)
    log_probabilities = log_softmax(model.predict_on_batch(features).astype("float64"))
    target_scores = np.take_along_axis(log_probabilities, targets[:, :, None], axis=2)[..., 0]
    scores = model.evaluate(TEXTS, verbose=0, return_dict=True)
    assert scores["loss"] == pytest.approx(-(target_scores * weights).sum() / weights.sum(), rel=1e-5)
    assert model.report(TEXTS, verbose=0).scores["perplexity"] == pytest.approx(np.exp(scores["loss"]), rel=1e-4)


def test_the_scores_of_a_report_do_not_depend_on_the_batch_size():
    model = CausalLM(tiny_backbone(FAMILY), make_preprocessor(7))
    model.compile(weighted_metrics=[keras.metrics.SparseTopKCategoricalAccuracy(67, name="top")])
    texts = [*TEXTS, "the film was good . " * 3, "a", "never"]
    examples = model.encode_examples(texts)
    count = len(examples.encoded.lengths)
    assert count > 5
    assert len({*examples.encoded.lengths.tolist()}) > 1  # batches are padded
    reports = [model.report(texts, batch_size=size, verbose=0).scores for size in (1, 2, 5, count)]
    expected = model.evaluate(texts, batch_size=count, verbose=0, return_dict=True)
    assert 0 < expected["top"] < 1
    for report in reports:
        assert report["perplexity"] == pytest.approx(np.exp(expected["loss"]), rel=1e-5)
        assert report == pytest.approx({**expected, "perplexity": report["perplexity"]}, rel=1e-5)
    unbatched = model.evaluate(texts, batch_size=1, verbose=0, return_dict=True)
    assert abs(unbatched["loss"] - expected["loss"]) > 1e-3


def test_the_weight_of_a_sequence_counts_for_its_tokens(model):
    ids = np.arange(4 * 4).reshape(4, 4) % 7 + 3  # as many sequences as positions
    features, y = {"token_ids": ids.astype("int32"), "padding_mask": np.ones((4, 4), "int32")}, np.roll(ids, -1, 1)
    weights = np.array([2, 0, 1, 0.5], "float32")
    expected = model.evaluate(features, y, sample_weight=np.repeat(weights[:, None], 4, axis=1), verbose=0)
    assert model.evaluate(features, y, sample_weight=weights, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert model.evaluate(features, y, sample_weight=np.ones(4), verbose=0) == pytest.approx(
        model.evaluate(features, y, verbose=0), rel=1e-5
    )


@pytest.mark.slow
def test_fit_validates_and_takes_token_features():
    model = tiny_task(CausalLM, FAMILY)
    history = model.fit(TEXTS * 20, validation_data=TEXTS, verbose=0).history
    assert {"val_loss", "val_accuracy"} <= history.keys()
    features, targets, weights = model.make_batch(model.encode_examples(TEXTS), np.array([0]), 74, None)
    model.fit(features, targets, sample_weight=weights, verbose=0)


@pytest.mark.slow
@pytest.mark.tf_only
def test_datasets_whose_texts_fill_sequences():
    import tensorflow as tf

    model = tiny_task(CausalLM, FAMILY)
    documents = ["the film was good and bad"] * 40
    dataset = tf.data.Dataset.from_tensor_slices(documents).batch(20)
    history = model.fit(dataset, validation_data=dataset, verbose=0).history
    assert np.isfinite(history["val_loss"][0])


@pytest.mark.slow
@pytest.mark.tf_only
def test_dataset_batches_without_tokens():
    """The last batch of a file's lines may be one blank line."""
    import tensorflow as tf

    model = tiny_task(CausalLM, FAMILY)
    dataset = tf.data.Dataset.from_tensor_slices(["the film was", "good", ""]).batch(2)
    with pytest.warns(TextWarning, match="1 of 1 documents held no tokens"):
        model.fit(dataset, verbose=0)
    with pytest.warns(TextWarning, match="1 of 1 documents held no tokens"):
        scores = model.evaluate(dataset, verbose=0)
    assert np.isfinite(scores).all()
    assert scores == model.evaluate(dataset.take(1), verbose=0)


@pytest.mark.slow
def test_later_texts_of_a_table_may_be_longer(tmp_path):
    model = tiny_task(CausalLM, FAMILY)
    texts = ["a film"] * 8 + ["the film was good and bad"] * 40
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(texts))
    table = TableStream(tmp_path / "texts.csv")
    model.fit(stream(table, shuffle_buffer=8), batch_size=2, steps_per_epoch=6, verbose=0)


# === Scores ===


def compute_log_probabilities(model, ids):
    """Return the log-probability of each token of a sequence except the first."""
    features = {"token_ids": np.array([ids], "int32"), "padding_mask": np.ones((1, len(ids)), "int32")}
    logits = log_softmax(model.predict_on_batch(features)[0])
    return logits[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.slow
def test_scores_are_log_probabilities_with_spans(model):
    tokenizer = model.preprocessor.tokenizer
    end = tokenizer.token_to_id(tokenizer.end_token)
    texts = [*TEXTS, "", "the é  film"]
    scores = model.score(texts)
    for text, tokens, spans in zip(texts, scores, tokenizer.tokenize_with_offsets(texts), strict=True):
        assert [(s["token"], s["start"], s["end"]) for s in tokens] == [tuple(span[1:]) for span in spans]
        expected = compute_log_probabilities(model, [end, *(span.id for span in spans)])
        np.testing.assert_allclose([s["log_probability"] for s in tokens], expected, rtol=1e-5, atol=1e-5)
        assert all(text[s["start"] : s["end"]].strip() == text[s["start"] : s["end"]] for s in tokens)
    log_probabilities = [s["log_probability"] for tokens in scores for s in tokens]
    assert model.perplexity(texts) == pytest.approx(np.exp(-np.mean(log_probabilities)), rel=1e-5)
    np.testing.assert_allclose(
        log_probabilities, [s["log_probability"] for tokens in model.score(texts, 1) for s in tokens], atol=1e-5
    )
    assert model.score([]) == []


@pytest.mark.slow
def test_a_quantized_model_keeps_its_perplexity():
    model = tiny_task(CausalLM, FAMILY)
    before = model.perplexity(TEXTS)
    model.quantize("int8")
    assert model.perplexity(TEXTS) == pytest.approx(before, rel=0.1)


@pytest.mark.slow
def test_long_texts_are_scored_in_windows():
    """Each token is predicted from at least half a window, or from the whole text before it."""
    model = CausalLM(tiny_backbone(FAMILY), make_preprocessor(11))
    tokenizer = model.preprocessor.tokenizer
    text = " ".join(tiny_texts(11))
    ids = [tokenizer.token_to_id(tokenizer.end_token), *tokenizer.tokenize([text])[0]]
    assert len(ids) > 40
    expected = [compute_log_probabilities(model, ids[:11])]
    for begin in range(5, len(ids), 5):
        expected.append(compute_log_probabilities(model, ids[begin : begin + 11])[5:])
        if begin + 11 >= len(ids):
            break
    log_probabilities = [s["log_probability"] for s in model.score([text])[0]]
    np.testing.assert_allclose(log_probabilities, np.concatenate(expected), rtol=1e-5, atol=1e-5)


def test_a_sequence_length_of_1_leaves_one_token_of_context():
    """As in training, where a sequence of one token has the next token as its target."""
    model = CausalLM(tiny_backbone(FAMILY), make_preprocessor(1))
    tokenizer = model.preprocessor.tokenizer
    ids = [tokenizer.token_to_id(tokenizer.end_token), *tokenizer.tokenize([TEXTS[0]])[0]]
    expected = [compute_log_probabilities(model, list(pair))[0] for pair in itertools.pairwise(ids)]
    log_probabilities = [s["log_probability"] for s in model.score(TEXTS[:1])[0]]
    np.testing.assert_allclose(log_probabilities, expected, rtol=1e-5, atol=1e-5)
    assert model.perplexity(TEXTS[:1]) == pytest.approx(np.exp(-np.mean(expected)), rel=1e-5)


# === Errors ===


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.score(["a", None]), TypeError, r"`texts\[1\]` must be a string, got None"),
        (lambda m: m.perplexity([""]), ValueError, "`texts` hold no tokens to predict"),
        (lambda m: m.fit(TEXTS, [0, 1, 2]), ValueError, "learns from texts alone: it takes no labels"),
        (lambda m: m.fit(["a", None]), TypeError, r"`documents\[1\]` must be a string or a list of strings, got None"),
        (lambda m: m.fit(TEXTS, sample_weight=[1, 1, 1]), ValueError, "A document has no weight"),
        (lambda m: m.fit("the film", verbose=0), TypeError, "list of documents"),
        (lambda m: CausalLM(tiny_backbone(BERT)), ValueError, "This BertBackbone cannot predict next tokens"),
        (lambda m: CausalLM(m.backbone).generate(["a"]), ValueError, "This CausalLM has no preprocessor"),
        (lambda m: tiny_backbone(BERT).call_with_cache(None, [], 0), ValueError, "This BertBackbone is not causal"),
    ],
)
def test_errors_of_texts_and_models(model, call, error, message):
    with pytest.raises(error, match=message):
        call(model)


def test_a_batch_size_of_none_stands_for_32(model, monkeypatch):
    sizes = []

    def generate(self, prompts, *_, **__):
        sizes.append(len(prompts))
        return [[[] for _ in prompts]]

    monkeypatch.setattr(TokenGenerator, "generate", generate)
    assert len(model.generate(["the film"] * 37, batch_size=None)) == 37
    assert sizes == [32, 5]
    assert model.score(TEXTS, batch_size=None) == model.score(TEXTS)
    assert model.perplexity(TEXTS, batch_size=None) == model.perplexity(TEXTS)
    choices = ["good", "dull plot"]
    assert model.classify(TEXTS, choices, batch_size=None) == model.classify(TEXTS, choices)


# === GPT, without start and end tokens ===


@pytest.mark.slow
def test_documents_without_start_and_end_tokens():
    """Each token except the first is predicted, and a text's first token has no score."""
    model = tiny_task(CausalLM, GPT)
    tokenizer = model.preprocessor.tokenizer
    ids = tokenizer.tokenize(TEXTS)
    packed = pack_continuously(TEXTS, Preprocessor(tokenizer, GPT.packing, 4))
    rows = np.split(packed.token_ids, packed.sequence_splits[1:-1])
    assert [*rows[0], *(token for row in rows[1:] for token in row[1:])] == [i for row in ids for i in row]
    features, _, weights = model.make_batch(model.encode_examples(TEXTS), np.array([0]), 74, None)
    assert weights.sum() == features["padding_mask"].sum() == sum(map(len, ids)) - 1
    assert [len(scores) for scores in model.score([*TEXTS, ""])] == [*(len(row) - 1 for row in ids), 0]
    with pytest.raises(ValueError, match=r"`prompts\[1\]` is empty, and the family has no start token"):
        model.generate(["a", ""])
    (text,) = model.generate(["the film"], 5)
    assert len(tokenizer.tokenize([text])[0]) >= 1


@pytest.mark.slow
def test_gpt_round_trip_through_transformers_files(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = tiny_task(CausalLM, GPT)
    model.save_to_preset(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", to="hf")
    reloaded = CausalLM.from_preset(tmp_path / "theirs")
    np.testing.assert_array_equal(reloaded.predict(TEXTS, verbose=0), model.predict(TEXTS, verbose=0))
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    texts = [*TEXTS, "The é  FILM<unk>!"]
    assert peer(texts)["input_ids"] == reloaded.preprocessor.tokenizer.tokenize(texts)
    file = tmp_path / "theirs/tokenizer.json"
    pipeline = json.loads(file.read_text("utf-8"))
    for part, key, value in (("model", "end_of_word_suffix", ""), ("normalizer", "lowercase", False)):
        file.write_text(json.dumps({**pipeline, part: {**pipeline[part], key: value}}), "utf-8")
        with pytest.raises(PresetError, match=f"`{part}.{key}` is {value!r}"):
            CausalLM.from_preset(tmp_path / "theirs")
    del pipeline["model"]["end_of_word_suffix"]
    file.write_text(json.dumps(pipeline), "utf-8")
    with pytest.raises(PresetError, match=r"`model\.end_of_word_suffix` is missing"):
        CausalLM.from_preset(tmp_path / "theirs")


# === Files ===


@pytest.mark.slow
def test_gpt2_round_trip_through_transformers_files(model, tmp_path, recwarn):
    """Predictions stay the same, and transformers' tokenizer gives the same ids."""
    transformers = pytest.importorskip("transformers")
    model.save_to_preset(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", to="hf")
    reloaded = CausalLM.from_preset(tmp_path / "theirs")
    np.testing.assert_array_equal(reloaded.predict(TEXTS, verbose=0), model.predict(TEXTS, verbose=0))
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    texts = [*TEXTS, "the é<|endoftext|>  a film"]
    assert peer(texts)["input_ids"] == model.preprocessor.tokenizer.tokenize(texts)
    assert (peer.bos_token, peer.eos_token, peer.unk_token, peer.pad_token) == (*["<|endoftext|>"] * 3, None)
    # The head has no weights, so no task that loads these files warns that it starts from scratch.
    model.backbone.save_to_preset(tmp_path / "backbone")
    recwarn.clear()
    CausalLM.from_preset(tmp_path / "backbone", preprocessor=model.preprocessor)
    TextClassifier.from_preset(tmp_path / "ours", num_classes=2)
    assert not [str(w.message) for w in recwarn if "scratch" in str(w.message)]
