"""Language models whose tokens are whole words: the tokenizer, scores, training, generation, export."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.data.corpora import train_tokenizer, train_words
from lmzoo.families.ffnn_lm import FAMILY as FFNN_LM
from lmzoo.families.lstm_lm import FAMILY as LSTM_LM
from lmzoo.models import CausalLM, FfnnLmBackbone, LstmLmBackbone
from lmzoo.testing import tiny_texts
from lmzoo.text import Preprocessor, TextWarning, TextWordTokenizer
from lmzoo.text.probabilities import log_softmax

TEXTS = tiny_texts(13)
PROMPTS = [" ".join(text.split()[:count]) for text, count in zip(TEXTS, (2, 5), strict=False)]
FAMILIES = pytest.mark.parametrize("family", [LSTM_LM, FFNN_LM], ids=lambda family: family.name)


def make_model(family):
    tokenizer = train_words([[text] for text in TEXTS], 11, kind=TextWordTokenizer)
    keras.utils.set_random_seed(3)
    arguments = {"vocabulary_size": 11, "hidden_dim": 17, "max_sequence_length": 29, "dropout": 0.0}
    if family is LSTM_LM:
        backbone = LstmLmBackbone(num_layers=2, **arguments)
    else:
        backbone = FfnnLmBackbone(window=5, intermediate_dim=13, **arguments)
    return CausalLM(backbone, Preprocessor(tokenizer, family.packing, 29), max_new_tokens=5)


def test_ids_are_positions_in_the_vocabulary(tmp_path):
    tokenizer = TextWordTokenizer(["<|endoftext|>", "<unk>", "a", "film"])
    assert tokenizer.tokenize(["A  film, a film", ""]) == [[1, 3, 1, 2, 3], []]
    assert tokenizer.vocabulary_size == 4
    assert [tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("film")] == [0, 3]
    assert tokenizer.detokenize([2, 3, 0, 1]) == "a film <|endoftext|> <unk>"
    assert TextWordTokenizer.of_words(["film"], 5).vocabulary_size == 5
    tokenizer.save_assets(tmp_path)
    reloaded = TextWordTokenizer.from_config(tokenizer.get_config())
    reloaded.load_assets(tmp_path)
    assert reloaded.vocabulary == tokenizer.vocabulary
    with pytest.raises(ValueError, match="lacks the special tokens <unk>"):
        TextWordTokenizer(["<|endoftext|>", "a"])


def test_the_vocabulary_has_the_most_frequent_words():
    texts = ["a film , a plot", "a film ; <unk>"]
    tokenizer = train_tokenizer(texts, TextWordTokenizer, 5, verbose=False)
    assert tokenizer.vocabulary == ["<|endoftext|>", "<unk>", "a", "film", ","]
    with pytest.warns(TextWarning, match="support 10 tokens, not the 19") as notices:  # < and > are words
        train_tokenizer(texts, TextWordTokenizer, 19, verbose=False)
    assert len(notices) == 1


@pytest.mark.quick_cases("ffnn_lm")
@FAMILIES
def test_scores_do_not_depend_on_padding(family):
    """Padding has the id of a word."""
    model = make_model(family)
    features = model.preprocessor(TEXTS)
    assert features["padding_mask"].min() == 0
    scores = [score["log_probability"] for text_scores in model.score(TEXTS) for score in text_scores]
    expected = []
    for ids in model.preprocessor.tokenizer.tokenize(TEXTS):
        row = np.array([[0, *ids]], "int32")
        logits = log_softmax(model.predict_on_batch({"token_ids": row, "padding_mask": np.ones_like(row)})[0])
        expected += logits[np.arange(len(ids)), ids].tolist()
    np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.fixture(scope="module", params=[LSTM_LM, FFNN_LM], ids=lambda family: family.name)
def trained_model(request):
    """Return a model that was trained on the first text."""
    model = make_model(request.param)
    model.compile(keras.optimizers.Adam(0.03))
    model.fit(TEXTS[:1] * 13, epochs=5, batch_size=2, verbose=0)
    return model


@pytest.mark.slow
def test_models_learn(trained_model):
    untrained_model = make_model(trained_model.family)
    assert trained_model.perplexity(TEXTS[:1]) < 0.8 * untrained_model.perplexity(TEXTS[:1])


@pytest.mark.slow
def test_models_generate_words(trained_model):
    words = trained_model.preprocessor.tokenizer.vocabulary
    texts = trained_model.generate(PROMPTS)
    assert texts == [trained_model.generate([prompt])[0] for prompt in PROMPTS]
    assert all(text.startswith(" ") and {*text.split()} <= {*words[1:]} for text in texts)
    word = texts[0].split()[-1]
    assert trained_model.generate(PROMPTS[:1], stop=word) == [texts[0][: texts[0].index(word)]]


@pytest.mark.slow
def test_saved_models_generate_the_same_texts(trained_model, tmp_path):
    trained_model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.generate(PROMPTS) == trained_model.generate(PROMPTS)


@pytest.mark.slow
@pytest.mark.tf_only
def test_exported_models_generate_the_same_texts(tmp_path):
    import tensorflow as tf

    model = make_model(LSTM_LM)
    model.fit(TEXTS, verbose=0)
    model.export(tmp_path / "1", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    assert [t.decode() for t in served(text=tf.constant(TEXTS[:3]))["text"].numpy()] == model.generate(TEXTS[:3])
