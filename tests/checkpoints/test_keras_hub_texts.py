"""From texts to numbers through KerasHub's own tasks and, loaded from what they save, through lmzoo's.

Numbers from token features are compared in `test_formats.py` and `test_keras_hub_heads.py`, embeddings in the latter,
ids of tokenizers in `test_keras_hub_tokenizers.py`.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from lmzoo.models import CausalLM, MaskedLM, TextClassifier
from lmzoo.text import TextWarning
from tests.checkpoints.keras_hub_models import peer_backbone, peer_task, peer_tokenizer
from tests.reference.weights import difference, run, to_numpy

# KerasHub leaves it to be closed when it is forgotten.
pytestmark = [pytest.mark.tf_only, pytest.mark.filterwarnings("ignore:unclosed file .*vocabulary.spm:ResourceWarning")]

LENGTH = 13  # of the preprocessors, which truncate some of the texts
TEXTS = ["good film", "the plot was never dull .", "", "good film bad film " * 9]
SECONDS = ["the plot was bad", "good", "never dull " * 7, "bad"]
FAMILIES = ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "albert", "distilbert"))]


@pytest.fixture(scope="module")
def made():
    """Makes a backbone of KerasHub's with random weights, and a tokenizer, both once per family."""
    pytest.importorskip("keras_hub")
    return functools.cache(lambda name: (peer_backbone(name), peer_tokenizer(name)))


@pytest.fixture
def task(made, tmp_path):
    """Makes a task of KerasHub's with its preprocessor, and saves its preset in `tmp_path`."""

    def make(name, kind, **arguments):
        made_task = peer_task(name, kind, *made(name), LENGTH, **arguments)
        made_task.save_to_preset(str(tmp_path))
        return made_task

    return make


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", FAMILIES)
def test_text_classifier(name, task, tmp_path):
    theirs = task(name, "TextClassifier", num_classes=7)
    ours = TextClassifier.from_preset(tmp_path)
    for x in (TEXTS, (TEXTS, SECONDS)):
        expected = theirs.predict(x, verbose=0)
        with pytest.warns(TextWarning, match=f"texts were truncated to {LENGTH} tokens"):
            actual = ours.predict(x, verbose=0)
        assert actual.shape == (4, 7)
        assert difference(actual, expected) <= 2e-5


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", FAMILIES)
def test_masked_lm(name, task, tmp_path):
    """The words that fill a mask. KerasHub's tokenizers do not find masks in texts, so its ids are put together."""
    theirs = task(name, "MaskedLM")
    ours = MaskedLM.from_preset(tmp_path)
    tokenizer, mask = theirs.preprocessor.tokenizer, ours.preprocessor.tokenizer.mask_token
    before, after = ([int(id) for id in tokenizer(part)] for part in ("the plot was", " dull ."))
    ids = [tokenizer.start_token_id, *before, tokenizer.mask_token_id, *after, tokenizer.end_token_id]
    features = {"token_ids": ids, "segment_ids": [0] * len(ids), "padding_mask": [1] * len(ids)}
    features["mask_positions"] = [1 + len(before)]
    batch = {key: np.array([features[key]], "int32") for key in theirs.input}
    logits = to_numpy(theirs(batch))[0, 0].astype("float64")
    expected = logits - np.log(np.exp(logits).sum())
    (answers,) = ours.fill([f"the plot was {mask} dull ."], top_k=5)
    best = np.argsort(-expected)[:5]
    assert [answer["token"] for answer in answers] == [ours.preprocessor.tokenizer.id_to_token(id) for id in best]
    assert difference(np.log([answer["score"] for answer in answers]), expected[best]) <= 2e-5


@pytest.fixture
def causal_lm(made, tmp_path):
    """A GPT-2 of KerasHub's that generates greedily, and the same here."""
    theirs = peer_task("gpt2", "CausalLM", *made("gpt2"), 23)
    theirs.compile(sampler="greedy", run_eagerly=True)
    theirs.save_to_preset(str(tmp_path))
    return theirs, CausalLM.from_preset(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_gpt2(causal_lm):
    theirs, ours = causal_lm
    texts = ["good film", "the plot was never dull ."]
    features, targets, _ = theirs.preprocessor(texts)
    batch = {key: np.array(value, "int32") for key, value in features.items()}
    real = batch["padding_mask"] > 0
    logits = theirs.score(batch["token_ids"], batch["padding_mask"])
    assert difference(run(ours, batch)[real], to_numpy(logits)[real]) <= 2e-5
    # Their losses are of all positions, the text's end included; our scores are of the text's tokens.
    losses = theirs.score(batch["token_ids"], batch["padding_mask"], scoring_mode="loss", target_ids=targets)
    for scores, row in zip(ours.score(texts), -to_numpy(losses), strict=True):
        assert difference(np.array([score["log_probability"] for score in scores]), row[: len(scores)]) <= 2e-5
    # KerasHub puts the end of a text before each prompt.
    generated = theirs.generate(texts, max_length=19, strip_prompt=True)
    lengths = [19 - 1 - len(ids) for ids in ours.preprocessor.tokenizer.tokenize(texts)]
    for text, expected, length in zip(texts, generated, lengths, strict=True):
        assert ours.generate([f"<|endoftext|>{text}"], max_new_tokens=length) == [expected]
        assert len(expected) > 2
