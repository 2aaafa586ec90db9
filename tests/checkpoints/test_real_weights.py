"""Published weights of `make minilm` and `make mpnet`: embeddings equal those of transformers, also after saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmzoo.models import TextEmbedder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NORMALIZED, UNNORMALIZED = 1e-6, 1e-5
# From 1 to 34 tokens, so that batches are padded: accents, capitals, digits, symbols, another script, an empty text.
SENTENCES = [
    "A man with a hard hat is dancing.",
    "Über 3,500 people visited the café on Mont-Blanc's north face in 1987 (up from 2,100!).",
    "The quarterly results, which had been postponed twice because of an audit, disappointed investors more than "
    "analysts had expected.",
    "",
    "Wonderful",
    "今日はいい天気ですね",
    "She said: \"It isn't the antidisestablishmentarianism that's worrying me...\" 😀",
]


@pytest.fixture(scope="module")
def expected(real_weights: Path) -> dict[str, Any]:
    """Return ids and mask (B, T), hidden states (B, T, H) and means of the last states (B, H) of transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(real_weights)
    model = transformers.AutoModel.from_pretrained(real_weights).eval()
    batch = tokenizer(SENTENCES, padding="longest", return_tensors="pt")
    with torch.no_grad():
        outputs = model(**batch, output_hidden_states=True)
    mask = batch["attention_mask"].numpy()
    states = [state.numpy() for state in outputs.hidden_states]
    means = (states[-1] * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    return {"ids": batch["input_ids"].numpy(), "mask": mask, "states": states, "means": means}


@pytest.fixture(scope="module")
def embedder(real_weights: Path) -> TextEmbedder:
    return TextEmbedder.from_preset(real_weights)


def normalize(embeddings: np.ndarray) -> np.ndarray:
    return embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)


def test_hidden_states_equal_those_of_transformers(embedder, expected):
    features = embedder.preprocessor(SENTENCES)
    features = {name: np.asarray(array)[:, : expected["mask"].shape[1]] for name, array in features.items()}
    assert np.array_equal(features["token_ids"], expected["ids"])
    outputs = embedder.backbone.predict(features, verbose=0)
    assert len(outputs["hidden_states"]) == len(expected["states"]) == embedder.backbone.num_layers + 1
    real = expected["mask"] > 0
    for ours, theirs in zip(outputs["hidden_states"], expected["states"], strict=True):
        assert np.abs(ours - theirs)[real].max() <= UNNORMALIZED


def test_embeddings_equal_those_of_transformers(embedder, expected, real_weights):
    embeddings = embedder.embed(SENTENCES)
    assert np.abs(embeddings - normalize(expected["means"])).max() <= NORMALIZED
    assert np.abs(np.linalg.norm(embeddings, axis=1) - 1).max() <= NORMALIZED
    assert np.abs(embeddings[4:5] - embedder.embed(SENTENCES[4:5])).max() <= NORMALIZED
    plain = TextEmbedder.from_preset(real_weights, normalize=False).embed(SENTENCES)
    assert np.abs(plain - expected["means"]).max() <= UNNORMALIZED


def test_a_saved_preset_gives_the_same_embeddings(embedder, expected, tmp_path):
    embedder.save_to_preset(tmp_path / "preset")
    embeddings = TextEmbedder.from_preset(tmp_path / "preset").embed(SENTENCES)
    assert np.array_equal(embeddings, embedder.embed(SENTENCES))
    assert np.abs(embeddings - normalize(expected["means"])).max() <= NORMALIZED


@pytest.mark.slow
@pytest.mark.tf_only
def test_an_export_gives_the_same_embeddings(embedder, expected, tmp_path):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - the tokenizer's ops

    embedder.export(tmp_path / "1", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "1"))
    embeddings = served.signatures["serving_default"](text=tf.constant(SENTENCES))["embedding"].numpy()
    assert np.abs(embeddings - normalize(expected["means"])).max() <= NORMALIZED
