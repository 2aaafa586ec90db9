"""The LSTM and the feed-forward language model: the papers' formulas, states, caches, generation, errors."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from lmzoo.families.ffnn_lm import FAMILY as FFNN
from lmzoo.families.lstm_lm import FAMILY as LSTM
from lmzoo.models import BidirectionalLM, CausalLM, MaskedLM, Pretrainer
from lmzoo.tasks.prompts import encode_prompts
from lmzoo.testing import tiny_backbone, tiny_preprocessor
from lmzoo.training import FineTuningRecipe
from tests.reference import left_to_right

B, T = 3, 9
RNG = np.random.default_rng(1907)
CELLS = ("lstm", "gru", "rnn")
MODELS = [(LSTM, {"cell": cell}) for cell in CELLS] + [(FFNN, {"direct": direct}) for direct in (True, False)]


def make_id(value):
    return value.name if hasattr(value, "name") else "-".join(map(str, value.values()))


def make_inputs(lengths=(T, 4, 6), width=T):
    ids = RNG.integers(0, 300, (len(lengths), width)).astype("int32")
    return {"token_ids": ids, "padding_mask": (np.arange(width) < np.array(lengths)[:, None]).astype("int32")}


def to_arrays(tensors):
    return keras.tree.map_structure(ops.convert_to_numpy, tensors)


@pytest.mark.parametrize("direct", [True, False])
def test_probabilities_follow_the_formulas_of_bengio(direct):
    backbone = tiny_backbone(FFNN, window=4, direct=direct)
    w = {"/".join(v.path.split("/")[-2:]): np.array(ops.convert_to_numpy(v), "float64") for v in backbone.weights}
    table = w["token_embedding/embeddings"]
    paper = {
        "C": table,
        "H": w["intermediate_dense/kernel"].T,
        "d": w["intermediate_dense/bias"],
        "U": table @ w["output_dense/kernel"].T,
        "W": table @ w["direct_dense/kernel"].T if direct else np.zeros((len(table), 4 * table.shape[1])),
        "b": table @ w["output_dense/bias"],
    }
    ids = RNG.integers(0, len(table), T)
    features = {"token_ids": ids[None].astype("int32"), "padding_mask": np.ones((1, T), "int32")}
    scores = CausalLM(backbone).predict_on_batch(features)[0]
    expected = [left_to_right.bengio(ids[: t + 1], paper, 4) for t in range(T)]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.quick_cases("rnn")
@pytest.mark.parametrize("cell", CELLS)
def test_a_state_continues_each_text(cell):
    """Texts come in two parts, of which the first ends at another position in each sequence."""
    backbone, first = tiny_backbone(LSTM, cell=cell), make_inputs((T, 4, 6))
    second = make_inputs((5, T, 2))
    _, state = backbone.call_with_state(first)
    outputs, after = backbone.call_with_state(second, state)
    for k, (a, b) in enumerate(((T, 5), (4, T), (6, 2))):
        ids = np.concatenate([first["token_ids"][k, :a], second["token_ids"][k, :b]])[None]
        whole, end = backbone.call_with_state({"token_ids": ids, "padding_mask": np.ones_like(ids)})
        vectors, expected = (ops.convert_to_numpy(x["sequence_output"]) for x in (outputs, whole))
        np.testing.assert_allclose(vectors[k, :b], expected[0, a:], rtol=1e-5, atol=1e-5)
        for row, alone in zip(keras.tree.flatten(to_arrays(after)), keras.tree.flatten(to_arrays(end)), strict=True):
            np.testing.assert_allclose(row[k], alone[0], rtol=1e-5, atol=1e-5)
    outputs, _ = backbone.call_with_state(first)
    expected = keras.tree.flatten(backbone.predict_on_batch(first))
    for actual, desired in zip(keras.tree.flatten(to_arrays(outputs)), expected, strict=True):
        np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=1e-5)


def test_a_sequence_without_tokens_keeps_its_state():
    backbone = tiny_backbone(LSTM)
    _, state = backbone.call_with_state(make_inputs())
    _, after = backbone.call_with_state(make_inputs((3, 0, 1)), state)
    for before, result in zip(keras.tree.flatten(to_arrays(state)), keras.tree.flatten(to_arrays(after)), strict=True):
        np.testing.assert_array_equal(result[1], before[1])
        assert np.abs(result[0] - before[0]).max() > 1e-3


@pytest.mark.half_precision
def test_memories_are_not_rounded():
    backbone = tiny_backbone(LSTM, dtype="mixed_bfloat16")
    _, state = backbone.call_with_state(make_inputs())
    cache = backbone.call_with_cache(make_inputs()["token_ids"], backbone.empty_cache(B, T), 0)[1]
    for memory, output in (*state, *cache):
        assert [keras.backend.standardize_dtype(x.dtype) for x in (memory, output)] == ["float32", "bfloat16"]
    rounded = ops.cast(ops.cast(state[0][0], "bfloat16"), "float32")
    assert np.abs(ops.convert_to_numpy(state[0][0]) - ops.convert_to_numpy(rounded)).max() > 0


def test_a_state_of_another_model_is_refused():
    backbone = tiny_backbone(LSTM)
    _, state = tiny_backbone(LSTM, cell="gru").call_with_state(make_inputs())
    with pytest.raises(ValueError, match="`state` must have the shapes"):
        backbone.call_with_state(make_inputs(), state)
    _, state = backbone.call_with_state(make_inputs())
    with pytest.raises(ValueError, match="`state` must have the shapes"):
        backbone.call_with_state(make_inputs((1, 2)), state)


@pytest.mark.slow_cases("lstm_lm-lstm")
@pytest.mark.parametrize(("family", "changes"), MODELS, ids=make_id)
def test_a_cache_does_not_change_the_vectors(family, changes):
    """Padded prompts are read at once, then continued from any position, as in `TokenGenerator`."""
    backbone, inputs = tiny_backbone(family, **changes), make_inputs((T,) * B)
    expected = backbone.predict_on_batch(inputs)["sequence_output"]
    ids = ops.convert_to_tensor(inputs["token_ids"])
    padded = ops.concatenate([ids[:, :4], ops.zeros_like(ids[:, 4:7])], axis=1)  # padded after the fourth token
    vectors, cache = backbone.call_with_cache(padded, backbone.empty_cache(B, T), 0)
    np.testing.assert_allclose(ops.convert_to_numpy(vectors)[:, :4], expected[:, :4], rtol=1e-5, atol=1e-5)
    for t in range(3, T):  # the token before the first new one is read again
        vectors, cache = backbone.call_with_cache(ids[:, t : t + 1], cache, t)
        np.testing.assert_allclose(ops.convert_to_numpy(vectors)[:, 0], expected[:, t], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", [LSTM, FFNN], ids=make_id)
def test_a_cache_without_room_is_refused(family):
    backbone = tiny_backbone(family)
    ids = np.zeros((B, 2), "int32")
    vectors, cache = backbone.call_with_cache(ids, backbone.empty_cache(B, 5), np.int64(3))
    assert vectors.shape[:2] == (B, 2)
    for index in (4, np.int64(4), -1):
        with pytest.raises(ValueError, match=rf"2 positions from {index} on do not fit into a cache of 5\. Pass a lar"):
            backbone.call_with_cache(ids, cache, index)


PROMPTS = ["the film", "a", "the plot was never dull . the good", ""]
NEW = 6


@pytest.fixture
def tokens(monkeypatch):
    """Make `generate` return token ids as text, since single bytes may not be characters."""
    name = "lmzoo.text.tokenizers.bpe.BytePairTokenizer.detokenize"
    monkeypatch.setattr(name, lambda self, ids: "".join(f"{i} " for i in ids))


def without_cache(model, prompt):
    """Return the most probable tokens, each from a call of the model on all tokens before it."""
    ids = encode_prompts(model.preprocessor, [prompt], model.start_ids)[0]
    count = len(ids)
    for _ in range(NEW):
        features = {"token_ids": np.zeros((1, 31), "int32"), "padding_mask": np.zeros((1, 31), "int32")}
        features["token_ids"][0, : len(ids)], features["padding_mask"][0, : len(ids)] = ids, 1
        logits = model.predict_on_batch(features)
        ids.append(int(logits[0, len(ids) - 1, : model.preprocessor.tokenizer.vocabulary_size].argmax()))
    return "".join(f"{i} " for i in ids[count:])


@pytest.mark.slow
@pytest.mark.parametrize(("family", "changes"), MODELS, ids=make_id)
def test_generation_equals_calls_without_a_cache(tokens, family, changes):
    """Prompts of different lengths are continued in one batch as each alone."""
    model = CausalLM(tiny_backbone(family, **changes), tiny_preprocessor(family))
    texts = model.generate(PROMPTS, NEW, stop=None)
    assert texts == [without_cache(model, prompt) for prompt in PROMPTS]
    assert len(set(texts)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["beam", "contrastive", "top_k"])
@pytest.mark.parametrize("family", [LSTM, FFNN], ids=make_id)
def test_samplers_take_these_models(tokens, family, sampler):
    model = CausalLM(tiny_backbone(family), tiny_preprocessor(family))
    texts = model.generate(PROMPTS, NEW, sampler, stop=None, seed=3)
    if sampler != "top_k":
        assert [model.generate([prompt], NEW, sampler, stop=None)[0] for prompt in PROMPTS] == texts
    assert "".join(map("".join, zip(*model.generate(PROMPTS, NEW, sampler, stop=None, stream=True), strict=True)))


@pytest.mark.parametrize("family", [LSTM, FFNN], ids=make_id)
def test_tasks_for_other_models_are_refused(family):
    backbone, preprocessor = tiny_backbone(family), tiny_preprocessor(family)
    for task in (MaskedLM, Pretrainer):
        with pytest.raises(ValueError, match=f"{type(backbone).__name__} cannot fill masks: it is causal"):
            task(backbone, preprocessor)
    with pytest.raises(ValueError, match=f"{type(backbone).__name__} has no LSTMs in both directions"):
        BidirectionalLM(backbone, preprocessor, ["<S>", "</S>", "<UNK>"])
    with pytest.raises(AttributeError, match="have no attention"):
        backbone.attention_scores({})
    with pytest.raises(ValueError, match="no blocks to compute again"):
        tiny_backbone(family, remat=True)


@pytest.mark.parametrize("family", [LSTM, FFNN], ids=make_id)
def test_the_default_learning_rate_is_for_training_from_scratch(family):
    expected = family.backbone.usual_recipes["causal_lm"].learning_rate
    task = CausalLM(tiny_backbone(family), tiny_preprocessor(family))
    assert float(task.optimizer.learning_rate) == pytest.approx(expected)
    backbone = tiny_backbone(family, fine_tuning={"causal_lm": FineTuningRecipe(0.25)})
    assert CausalLM(backbone).recipe.learning_rate == 0.25
