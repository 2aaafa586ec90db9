"""From texts to numbers: KerasHub's tasks, and lmzoo's tasks that are loaded from their presets.

Other files compare outputs for token features (`test_formats.py`, `test_keras_hub_heads.py`), embeddings
(`test_keras_hub_heads.py`), the ids of tokenizers (`test_keras_hub_tokenizers.py`), and generated texts
(`tests/coming_from/test_keras_hub_calls.py`).
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from lmzoo.models import MaskedLM, TextClassifier
from lmzoo.text import TextWarning
from tests.checkpoints.keras_hub_models import peer_backbone, peer_task, peer_tokenizer
from tests.reference.weights import difference, to_numpy

# KerasHub leaves the file to the garbage collector.
pytestmark = [pytest.mark.tf_only, pytest.mark.filterwarnings("ignore:unclosed file .*vocabulary.spm:ResourceWarning")]

LENGTH = 13  # sequence length of the preprocessors, which truncate some texts
TEXTS = ["good film", "the plot was never dull .", "", "good film bad film " * 9]
SECONDS = ["the plot was bad", "good", "never dull " * 7, "bad"]
FAMILIES = ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "albert", "distilbert"))]


@pytest.fixture(scope="module")
def peers():
    """Return a cached function that makes a KerasHub backbone with random weights, and a tokenizer."""
    pytest.importorskip("keras_hub")
    return functools.cache(lambda name: (peer_backbone(name), peer_tokenizer(name)))


@pytest.fixture
def save_peer(peers, tmp_path):
    """Return a function that makes a KerasHub task with its preprocessor, and saves its preset in `tmp_path`."""

    def make(name, kind, **arguments):
        task = peer_task(name, kind, *peers(name), LENGTH, **arguments)
        task.save_to_preset(str(tmp_path))
        return task

    return make


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", FAMILIES)
def test_classifiers_compute_the_same_logits(name, save_peer, tmp_path):
    theirs = save_peer(name, "TextClassifier", num_classes=7)
    ours = TextClassifier.from_preset(tmp_path)
    for inputs in (TEXTS, (TEXTS, SECONDS)):
        expected = theirs.predict(inputs, verbose=0)
        with pytest.warns(TextWarning, match=f"texts were truncated to {LENGTH} tokens"):
            actual = ours.predict(inputs, verbose=0)
        assert actual.shape == (4, 7)
        assert difference(actual, expected) <= 2e-5


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", FAMILIES)
def test_masked_lms_fill_masks_with_the_same_words(name, save_peer, tmp_path):
    """Compare the words that fill a mask. KerasHub's tokenizers find no masks in texts, so join its ids here."""
    theirs = save_peer(name, "MaskedLM")
    ours = MaskedLM.from_preset(tmp_path)
    tokenizer, mask = theirs.preprocessor.tokenizer, ours.preprocessor.tokenizer.mask_token
    before, after = ([int(id) for id in tokenizer(part)] for part in ("the plot was", " dull ."))
    ids = [tokenizer.start_token_id, *before, tokenizer.mask_token_id, *after, tokenizer.end_token_id]
    features = {"token_ids": ids, "segment_ids": [0] * len(ids), "padding_mask": [1] * len(ids)}
    features["mask_positions"] = [1 + len(before)]
    batch = {key: np.array([features[key]], "int32") for key in theirs.input}
    logits = to_numpy(theirs(batch))[0, 0].astype("float64")
    expected = logits - np.log(np.exp(logits).sum())
    (predictions,) = ours.fill([f"the plot was {mask} dull ."], top_k=5)
    best = np.argsort(-expected)[:5]
    assert [prediction["token"] for prediction in predictions] == [
        ours.preprocessor.tokenizer.id_to_token(id) for id in best
    ]
    assert difference(np.log([prediction["score"] for prediction in predictions]), expected[best]) <= 2e-5
