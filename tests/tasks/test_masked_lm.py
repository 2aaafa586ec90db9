"""`MaskedLM`: masked batches, training, `fill`, `pseudo_perplexity`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import BertBackbone, MaskedLM
from lmzoo.registry.family import families
from lmzoo.tasks.base.examples import Examples
from lmzoo.testing import tiny_task
from lmzoo.text import Masking, TextWarning


@pytest.fixture(scope="module")
def task(tiny):
    return tiny.masked_lm()


def record_batches(task, monkeypatch):
    batches, original = [], task.make_batch

    def make_batch(*arguments):
        batches.append(original(*arguments))
        return batches[-1]

    monkeypatch.setattr(task, "make_batch", make_batch)
    return batches


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("kind", ["list", "dataset"])
def test_each_epoch_draws_new_masks_from_the_seed(tiny, task, strings_dataset, monkeypatch, kind):
    texts = tiny.texts(8)
    data = texts if kind == "list" else strings_dataset(texts).batch(8)
    batches = record_batches(task, monkeypatch)

    def fit_and_list_ids(seed):
        batches.clear()
        task.optimizer.iterations.assign(0)
        task.fit(data, batch_size=8, epochs=3, shuffle=False, verbose=0, seed=seed)
        return [features["token_ids"] for features, *_ in batches[-3:]]

    first = fit_and_list_ids(seed=3)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[1], first[2])
    np.testing.assert_array_equal(fit_and_list_ids(seed=3), first)
    assert any(not np.array_equal(a, b) for a, b in zip(fit_and_list_ids(seed=4), first, strict=True))


def test_batches_hold_what_was_masked(tiny, task, monkeypatch):
    texts = tiny.texts(8, longest=30)
    batches = record_batches(task, monkeypatch)
    weight = np.arange(8, dtype="float32")
    task.fit(texts, batch_size=8, shuffle=False, sample_weight=weight, verbose=0)
    features, targets, weights = batches[-1]
    original = tiny.preprocessor()(texts)["token_ids"]
    positions = features["mask_positions"]
    np.testing.assert_array_equal(targets, np.take_along_axis(original, positions, axis=1)[:, : targets.shape[1]])
    expected = np.maximum(1, np.rint((original > 0).sum(axis=1) * 0.15))
    np.testing.assert_array_equal(weights.sum(axis=1), expected * weight)
    ids = np.take_along_axis(features["token_ids"], positions, axis=1)[:, : targets.shape[1]][weights > 0]
    assert 0.5 < (ids == task.preprocessor.tokenizer.mask_id).mean() < 1  # 80% by default
    changed = features["token_ids"][:, : original.shape[1]] != original
    changed[np.arange(8)[:, None], positions] = False
    assert not changed.any()


def test_evaluate_always_draws_the_same_masks(tiny, task):
    texts = tiny.texts(8)
    assert task.evaluate(texts, verbose=0) == task.evaluate(texts, verbose=0)


def test_fill_one_mask(task):
    answers = task.fill(["the film was [MASK] .", "[MASK]"], top_k=3)
    assert [len(candidates) for candidates in answers] == [3, 3]
    for candidates in answers:
        scores = [candidate["score"] for candidate in candidates]
        assert scores == sorted(scores, reverse=True)
    best = answers[0][0]
    assert best["text"] == f"the film was {best['token'].removeprefix('##')} ."
    candidates = task.fill(["the film was [MASK] ."], top_k=20)[0]
    assert sum(candidate["score"] for candidate in candidates) == pytest.approx(1, abs=1e-5)


@pytest.mark.quick_cases("roberta")
@pytest.mark.parametrize("family", ["albert", "roberta"])
def test_a_filled_text_begins_as_it_was_written(family):
    """In these families, a word's first token includes the space before the word."""
    task = tiny_task(MaskedLM, families()[family])
    tokenizer = task.preprocessor.tokenizer
    mask, size = tokenizer.mask_token, tokenizer.vocabulary_size
    texts = [f"{mask} film", f" {mask} film", f"the {mask}", f"{mask}"]
    first, spaced, last, single = ({c["token"]: c["text"] for c in answer} for answer in task.fill(texts, top_k=size))
    word = "▁good" if family == "albert" else "Ġgood"
    assert (first[word], spaced[word], last[word], single[word]) == ("good film", " good film", "the good", "good")
    plain_token = next(token for token in first if tokenizer.text_of(token)[:1] not in (" ", "") and token in last)
    assert first[plain_token] == f"{tokenizer.text_of(plain_token)} film"
    assert last[plain_token] == f"the {tokenizer.text_of(plain_token)}"
    words = {token: text for token, text in first.items() if tokenizer.text_of(token).strip()}
    assert len(words) > size / 2
    assert not any(text.startswith(" ") for text in words.values())


def test_fill_several_masks_and_pairs(tiny, task):
    (answer,) = task.fill(["[MASK] film was [MASK] ."], top_k=2)
    assert [len(candidates) for candidates in answer] == [2, 2]
    assert answer[0][0]["text"].endswith("film was [MASK] .")
    assert answer[1][0]["text"].startswith("[MASK] film was ")
    features = tiny.preprocessor()(["[MASK] film was [MASK] ."])
    logits = task.predict({**features, "mask_positions": np.array([[1, 4]], "int32")}, verbose=0)[0]
    best = task.preprocessor.tokenizer.id_to_token(int(logits[1].argmax()))
    assert answer[1][0]["token"] == best
    (pair,) = task.fill([("the film", "was [MASK]")], top_k=1)
    assert pair[0]["text"].startswith("the film was ")
    (pair,) = task.fill(([b"the film"], [b"was [MASK]"]), top_k=1)
    assert pair[0]["text"].startswith("the film was ")


def test_whole_words_leave_out_word_parts_and_special_tokens(task):
    texts = ["the film was [MASK] .", "[MASK] film was [MASK] ."]
    answers, word_answers = (task.fill(texts, top_k=20, whole_words=value) for value in (False, True))
    for candidates, words in zip([answers[0], *answers[1]], [word_answers[0], *word_answers[1]], strict=True):
        special = task.preprocessor.tokenizer.special_tokens
        assert words == [c for c in candidates if not c["token"].startswith("##") and c["token"] not in special]
        assert len(words) == 13
    first, second = task.fill(texts, top_k=3, whole_words=True)
    assert (first, second) == (word_answers[0][:3], [word_answers[1][0][:3], word_answers[1][1][:3]])


@pytest.mark.quick_cases("roberta")
@pytest.mark.parametrize("family", ["albert", "roberta"])
def test_whole_words_begin_with_a_space_if_the_text_has_one(family):
    task = tiny_task(MaskedLM, families()[family])
    tokenizer = task.preprocessor.tokenizer
    mask, size = tokenizer.mask_token, tokenizer.vocabulary_size
    if family == "albert":
        tokenizer._tokens[-1] = "ing"  # its tiny vocabulary has no parts of words
    texts_of = {token: tokenizer.text_of(token) for token in tokenizer.vocabulary}
    real = {token for token, text in texts_of.items() if text.strip() and "\ufffd" not in text}
    real -= set(tokenizer.special_tokens)
    spaced = {token for token in real if token[0] in "Ġ▁"}
    assert 0 < len(spaced) < len(real)
    first = real if family == "roberta" else spaced  # SentencePiece puts a space in front of every text
    texts = [f"the {mask} film", f"{mask} film", f"({mask})", f"the\n{mask}", f"{mask} {mask}{mask}"]
    results = task.fill(texts, top_k=size, whole_words=True)
    for answers, expected in zip(
        [*results[:4], *results[4]], [spaced, first, real, spaced, first, spaced, real], strict=True
    ):
        assert {answer["token"] for answer in answers} == expected
        scores = [answer["score"] for answer in answers]
        assert scores == sorted(scores, reverse=True)
        assert sum(scores) < 1
    ((before, after),) = task.fill(([f"the {mask}"], [f"{mask} film"]), top_k=size, whole_words=True)
    assert {answer["token"] for answer in before} == spaced
    assert {answer["token"] for answer in after} == first


def test_fill_needs_a_mask(task):
    assert task.fill([]) == []
    with pytest.raises(ValueError, match=r"`texts\[1\]` holds no \[MASK\]"):
        task.fill(["a [MASK]", "good film"])
    with pytest.warns(TextWarning), pytest.raises(ValueError, match=r"`texts\[0\]` holds no \[MASK\]"):
        task.fill(["good " * 50 + "[MASK]"])
    # The text after the second mask must not appear as if it came after the first.
    for texts in ([("good " * 60 + "[MASK]", "film [MASK]")], ["the [MASK] " + "good " * 50 + "[MASK]"]):
        with pytest.warns(TextWarning), pytest.raises(ValueError, match=r"`texts\[0\]` holds not every \[MASK\]"):
            task.fill(texts)


def test_fill_warns_once_of_invalid_text(task):
    with pytest.warns(TextWarning) as notices:
        answers = task.fill([b"good \xff [MASK]"], top_k=1)
    assert len(notices) == 1
    assert answers[0][0]["text"].startswith("good � ")


def test_the_perplexity_of_a_report_does_not_depend_on_the_batch_size():
    """The masks depend on the texts alone."""
    task = tiny_task(MaskedLM, families()["bert"], masking=Masking(dynamic=False))
    texts = ["good film", "the plot was never dull . " * 4, "a very bad film " * 7, "the end", *["a film"] * 3]
    reports = [task.report(texts, batch_size=size, verbose=0).scores for size in (1, 2, 5, 7)]
    unbatched, expected = (task.evaluate(texts, batch_size=size, verbose=0, return_dict=True) for size in (1, 7))
    for report in reports:
        assert report["perplexity"] == pytest.approx(np.exp(expected["loss"]), rel=1e-5)
    assert abs(unbatched["loss"] - expected["loss"]) > 1e-3


def test_pseudo_perplexity_is_that_of_a_loop(tiny, task):
    texts = ["the film was good .", "dull", "a plot is zzz !"]
    mask_id, losses = task.preprocessor.tokenizer.mask_id, []
    for text in texts:
        ids = tiny.preprocessor()([text])
        for position in range(1, ids["token_ids"].shape[1] - 1):
            masked = {name: values.copy() for name, values in ids.items()}
            target = masked["token_ids"][0, position]
            masked["token_ids"][0, position] = mask_id
            logits = task.predict({**masked, "mask_positions": np.array([[position]], "int32")}, verbose=0)[0, 0]
            log_softmax = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            losses.append(-log_softmax[target])
    assert len(losses) == 11
    assert task.pseudo_perplexity(texts) == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    with pytest.raises(ValueError, match="must not hold mask tokens"):
        task.pseudo_perplexity(["good [MASK]"])
    with pytest.raises(ValueError, match="no tokens to predict"):
        task.pseudo_perplexity([""])


@pytest.mark.slow
def test_masking_is_saved_with_the_task(tiny, tmp_path):
    task = tiny.masked_lm(masking={"probability": 0.3, "whole_word": True})
    task.save(tmp_path / "task.keras")
    assert keras.saving.load_model(tmp_path / "task.keras").masking == task.masking
    texts = tiny.texts(5)
    assert np.isfinite(task.fit(texts, verbose=0).history["loss"]).all()


def test_the_loss_does_not_depend_on_padding(task):
    encoded = task.encode_inputs(["good film"])
    features, targets, weights = task.make_batch(Examples(encoded), np.arange(1), 4, np.random.default_rng(0))
    expected = task.test_on_batch(features, targets, weights)[0]
    padded = {**features, "mask_positions": np.pad(features["mask_positions"], ((0, 0), (0, 3)))}
    actual = task.test_on_batch(padded, *(np.pad(a, ((0, 0), (0, 3))) for a in (targets, weights)))[0]
    assert actual == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_validation_on_a_dataset_has_the_same_masks_each_epoch(tiny, strings_dataset):
    task = tiny.masked_lm(optimizer=keras.optimizers.SGD(0.0))
    texts = tiny.texts(longest=31)
    losses = task.fit(texts, validation_data=strings_dataset(texts), epochs=3, verbose=0).history["val_loss"]
    assert losses == [pytest.approx(losses[0], rel=1e-5)] * 3


def test_predict_pads_the_masks_of_a_whole_dataset(task, strings_dataset):
    texts = ["good [MASK]", "[MASK] [MASK] bad [MASK]", "a [MASK] film"]
    logits = task.predict(strings_dataset(texts).batch(1), verbose=0)
    np.testing.assert_allclose(logits, task.predict(texts, verbose=0), atol=1e-6)


def test_fill_in_parts_gives_the_same_answers(task, monkeypatch):
    texts = ["good [MASK]", "[MASK] [MASK] bad", "a [MASK] film", "[MASK]"]
    expected = task.fill(texts, top_k=1)
    monkeypatch.setattr("lmzoo.tasks.masked_lm._MAX_MASKS", 4)
    parts = task.fill(texts, top_k=1)
    assert [str(p)[:30] for p in parts] == [str(e)[:30] for e in expected]


@pytest.mark.slow
def test_token_features_take_labels_but_texts_do_not(tiny):
    task = tiny.masked_lm()
    for call in (
        lambda: task.evaluate(["good film"], [1], verbose=0),
        lambda: task.fit(["good film"], validation_data=(["good"], ["film"]), verbose=0),
    ):
        with pytest.raises(ValueError, match=r"learns from texts alone: .* are \(\(firsts, seconds\),\)"):
            call()
    with pytest.raises(ValueError, match="learns from texts alone"):
        task.fit(["good film"], [1], verbose=0)
    encoded = task.encode_inputs(["good film", "bad plot"])
    features, targets, weights = task.make_batch(Examples(encoded), np.arange(2), 4, np.random.default_rng(3))
    assert task.fit(features, targets, sample_weight=weights, verbose=0).history["loss"][0] > 0


def test_fill_ignores_embeddings_beyond_the_vocabulary(tiny):
    backbone = BertBackbone(vocabulary_size=29, num_layers=1, num_heads=1, hidden_dim=7, intermediate_dim=5)
    task = MaskedLM(backbone, tiny.preprocessor())
    expected, candidates = (task.fill(["a [MASK]"], top_k=k)[0] for k in (20, 29))
    assert len(expected) == task.preprocessor.tokenizer.vocabulary_size == 20
    assert candidates == expected


@pytest.mark.tf_only
def test_serving_ignores_embeddings_beyond_the_vocabulary(tiny):
    backbone = BertBackbone(vocabulary_size=29, num_layers=1, num_heads=1, hidden_dim=7, intermediate_dim=5)
    task = MaskedLM(backbone, tiny.preprocessor())
    task.head.output_bias.assign(9.0 * (np.arange(29) >= 20))
    features = {name: keras.ops.convert_to_tensor(x) for name, x in task.preprocessor(["a [MASK]"]).items()}
    served = {name: x.numpy()[0, 0].tolist() for name, x in task.serve(features).items()}
    expected = task.fill(["a [MASK]"], top_k=5)[0]
    assert [token.decode() for token in served["token"]] == [answer["token"] for answer in expected]
    assert served["score"] == pytest.approx([answer["score"] for answer in expected], rel=1e-4)


def make_masked_batch(task, encoded, rows, width, seed):
    features, targets, weights = task.make_batch(Examples(encoded), rows, width, np.random.default_rng(seed))
    return features["token_ids"], features["mask_positions"], targets, weights


def test_static_masks_depend_on_the_sequence_alone(tiny):
    """They do not depend on the batch, the order, the width and the seed."""
    task = tiny.masked_lm(masking={"probability": 0.4, "dynamic": False})
    encoded = task.encode_inputs(tiny.texts(11, longest=9))
    ids, positions, targets, weights = make_masked_batch(task, encoded, np.arange(11), 16, 3)
    rows = np.array([7, 2, 10])
    subset = make_masked_batch(task, encoded, rows, 24, 5)
    for full, part in zip((ids, positions, targets, weights), subset, strict=True):
        width = min(full.shape[1], part.shape[1])  # beyond it there is padding only
        np.testing.assert_array_equal(part[:, :width], full[rows, :width])
    equal_sequences = encoded.select([0, 0])
    assert len({tuple(row) for row in make_masked_batch(task, equal_sequences, np.arange(2), 16, 3)[0].tolist()}) == 1
    assert len({tuple(row) for row in positions.tolist()}) > 3
    dynamic_task = tiny.masked_lm(masking={"probability": 0.4})
    first, second = (make_masked_batch(dynamic_task, encoded, rows, 16, seed)[0] for seed in (3, 5))
    assert (first != second).any()
