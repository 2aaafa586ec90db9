"""From texts to numbers through KerasHub's own tasks and, loaded from what they save, through lmzoo's.

Numbers from token features are compared in `test_formats.py` and `test_keras_hub_heads.py`, embeddings in the latter,
ids of tokenizers in `test_keras_hub_tokenizers.py`.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from lmzoo.family import families
from lmzoo.models import CausalLM, MaskedLM, TextClassifier
from lmzoo.testing import tiny_preprocessor
from lmzoo.testing.tiny import WORDS
from lmzoo.text import TextWarning
from tests.reference.weights import difference, randomise, run, to_numpy

# KerasHub leaves it to be closed when it is forgotten.
pytestmark = [pytest.mark.tf_only, pytest.mark.filterwarnings("ignore:unclosed file .*vocabulary.spm:ResourceWarning")]

SIZES = {"num_layers": 2, "num_heads": 5, "hidden_dim": 35, "intermediate_dim": 53, "max_sequence_length": 67}
PREFIXES = {"bert": "Bert", "roberta": "Roberta", "albert": "Albert", "distilbert": "DistilBert", "gpt2": "GPT2"}
LENGTH = 13  # of the preprocessors, which truncate some of the texts
TEXTS = ["good film", "the plot was never dull .", "", "good film bad film " * 9]
SECONDS = ["the plot was bad", "good", "never dull " * 7, "bad"]
FAMILIES = ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "albert", "distilbert"))]


@pytest.fixture(scope="module")
def keras_hub():
    return pytest.importorskip("keras_hub").models


@pytest.fixture(scope="module")
def made(keras_hub):
    """Makes a backbone of KerasHub's with random weights, and a tokenizer, both once per family."""

    @functools.cache
    def make(name):
        tokenizer = tiny_preprocessor(families()[name]).tokenizer
        if name == "albert":
            vocabulary = {"proto": tokenizer.model}
        elif name in ("roberta", "gpt2"):
            vocabulary = {"vocabulary": {token: id for id, token in enumerate(tokenizer.vocabulary)}}
            vocabulary["merges"] = tokenizer.merges
        else:
            vocabulary = {"vocabulary": tokenizer.vocabulary, "lowercase": True, "strip_accents": True}
        sizes = {**SIZES, **({"embedding_dim": 17, "num_groups": 2} if name == "albert" else {})}
        backbone = getattr(keras_hub, f"{PREFIXES[name]}Backbone")(vocabulary_size=tokenizer.vocabulary_size, **sizes)
        randomise(backbone)
        return backbone, getattr(keras_hub, f"{PREFIXES[name]}Tokenizer")(**vocabulary)

    return make


@pytest.fixture
def task(made, keras_hub, tmp_path):
    """Makes a task of KerasHub's with its preprocessor, and saves its preset in `tmp_path`."""

    def make(name, kind, **arguments):
        backbone, tokenizer = made(name)
        prefix = PREFIXES[name] + kind
        preprocessor = getattr(keras_hub, f"{prefix}Preprocessor")(tokenizer, sequence_length=LENGTH)
        made_task = getattr(keras_hub, prefix)(backbone, preprocessor=preprocessor, **arguments)
        head = [weight for weight in made_task.weights if not any(weight is other for other in backbone.weights)]
        rng = np.random.default_rng(29)
        for weight in head:
            weight.assign(rng.normal(1.0 if weight.path.endswith("gamma") else 0.0, 0.2, weight.shape))
        made_task.save_to_preset(str(tmp_path))
        return made_task

    return make


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", FAMILIES)
def test_text_classifier(name, task, tmp_path):
    theirs = task(name, "TextClassifier", num_classes=7)
    theirs.run_eagerly = True
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
def causal_lm(made, keras_hub, tmp_path):
    """A GPT-2 of KerasHub's that generates greedily, and the same here."""
    backbone, tokenizer = made("gpt2")
    words = {id for word in WORDS for id in map(int, tokenizer(f" {word}"))}
    table = backbone.token_embedding.embeddings
    others = np.array([0.01 if id not in words else 1.0 for id in range(table.shape[0])])
    table.assign(to_numpy(table.value) * others[:, None])  # so that it generates words, not parts of characters
    theirs = keras_hub.GPT2CausalLM(backbone, keras_hub.GPT2CausalLMPreprocessor(tokenizer, sequence_length=23))
    theirs.compile(sampler="greedy", run_eagerly=True)
    theirs.save_to_preset(str(tmp_path))
    return theirs, CausalLM.from_preset(tmp_path)


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
