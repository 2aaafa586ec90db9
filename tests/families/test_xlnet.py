"""XLNet against transformers on random weights: visibility of tokens, memories, errors and adaptation."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest

from lmzoo.layers import RelativeAttention
from lmzoo.models import Pretrainer, XlnetBackbone
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_task
from lmzoo.text.permutation import factorization_order
from tests.families.comparing import cosines
from tests.reference.weights import difference, randomise, run, to_numpy

TOLERANCE = 1e-5
TINY = {
    "vocabulary_size": 131,
    "num_layers": 3,
    "num_heads": 3,
    "hidden_dim": 42,
    "intermediate_dim": 53,
    "max_sequence_length": 67,
    "dropout": 0.0,
}
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}  # ours -> theirs
LENGTHS = np.array([13, 7, 2])
WIDTH = 13
POSITIONS = np.array([[2, 7, 12], [0, 5, 0], [1, 0, 0]], "int32")
CHOSEN = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]], bool)

NAMES = {
    r"embeddings/token_embedding/embeddings": "transformer.word_embedding.weight",
    r"block_(\d+)/attention/(q|k|v)[a-z]+/kernel": r"transformer.layer.\1.rel_attn.\2",
    r"block_(\d+)/attention/output_dense/kernel": r"transformer.layer.\1.rel_attn.o",
    r"block_(\d+)/attention/distance/kernel": r"transformer.layer.\1.rel_attn.r",
    r"block_(\d+)/attention/content_bias": r"transformer.layer.\1.rel_attn.r_w_bias",
    r"block_(\d+)/attention/distance_bias": r"transformer.layer.\1.rel_attn.r_r_bias",
    r"block_(\d+)/attention/segment_bias": r"transformer.layer.\1.rel_attn.r_s_bias",
    r"block_(\d+)/attention/segments": r"transformer.layer.\1.rel_attn.seg_embed",
    r"block_(\d+)/attention_layer_norm/": r"transformer.layer.\1.rel_attn.layer_norm.",
    r"block_(\d+)/intermediate_dense/": r"transformer.layer.\1.ff.layer_1.",
    r"block_(\d+)/output_dense/": r"transformer.layer.\1.ff.layer_2.",
    r"block_(\d+)/output_layer_norm/": r"transformer.layer.\1.ff.layer_norm.",
    r"query_stream/vector": "transformer.mask_emb",
    r"masked_lm_head/output_bias": "lm_loss.bias",
    r"classifier/dense/": "sequence_summary.summary.",
    r"classifier/logits/": "logits_proj.",
}
ENDS = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}


def peer_name(path):
    for pattern, name in NAMES.items():
        if match := re.match(pattern, path):
            return match.expand(name) + (ENDS[path[match.end() :]] if name.endswith(".") else "")
    raise AssertionError(f"{path} has no name in transformers")


def backbone_of(**settings):
    backbone = XlnetBackbone(**{**TINY, **settings})
    randomise(backbone)
    return backbone


def peer(model, head="Model", **settings):
    """Return a transformers model that holds the weights of `model`, each used exactly once."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.XLNetConfig(
        vocab_size=TINY["vocabulary_size"],
        n_layer=TINY["num_layers"],
        n_head=TINY["num_heads"],
        d_model=TINY["hidden_dim"],
        d_inner=TINY["intermediate_dim"],
        **settings,
    )
    state = {}
    for weight in model.weights:
        name, array = peer_name(weight.path), to_numpy(weight.value)
        assert name not in state
        state[name] = torch.tensor(array.T if array.ndim == 2 and name.endswith("weight") else array)
    state["transformer.word_embedding.weight"] = state["transformer.word_embedding.weight"].T
    if head == "Model":
        state = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    if head == "LMHeadModel":
        state["lm_loss.weight"] = state["transformer.word_embedding.weight"]
    peer_model = getattr(transformers, f"XLNet{head}")(config).eval()
    initial_memory_names = {name for name in peer_model.state_dict() if name.endswith("mask_emb")}
    assert state.keys() | initial_memory_names == peer_model.state_dict().keys()
    peer_model.load_state_dict(state, strict=False)
    return peer_model


def run_peer(peer_model, batch, **arguments):
    import torch

    with torch.no_grad():
        return peer_model(
            input_ids=torch.tensor(batch["token_ids"], dtype=torch.long),
            attention_mask=torch.tensor(batch["padding_mask"], dtype=torch.float32),
            token_type_ids=torch.tensor(batch["segment_ids"], dtype=torch.long),
            **arguments,
        )


def batch_of(lengths=LENGTHS, width=WIDTH, seed=23):
    """Return rows whose last token is a segment of its own, with arbitrary values at padding."""
    rng = np.random.default_rng(seed)
    columns = np.arange(width)
    return {
        "token_ids": rng.integers(0, TINY["vocabulary_size"], (len(lengths), width)).astype("int32"),
        "padding_mask": (columns < lengths[:, None]).astype("int32"),
        "segment_ids": np.where(columns >= lengths[:, None] - 1, 2, columns > lengths[:, None] // 2).astype("int32"),
    }


def make_order(batch, seed=5):
    """Return an order in which to predict the tokens at `POSITIONS`, and which tokens it hides from which."""
    is_known = batch["padding_mask"] > 0
    rows, columns = np.nonzero(CHOSEN)
    is_known[rows, POSITIONS[rows, columns]] = False
    lengths = batch["padding_mask"].sum(axis=1)
    is_known[np.arange(len(is_known)), lengths - 1] = False
    order = factorization_order(is_known, lengths, np.random.default_rng(seed))
    both_known = is_known[:, None] & is_known[..., None] & (order[:, None] == order[..., None])
    return order, ~((order[:, None] < order[..., None]) | both_known)


def at_real(states, batch):
    return [np.asarray(state)[batch["padding_mask"] > 0] for state in states]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_hidden_states_and_attention_equal_transformers(activation):
    backbone, batch = backbone_of(activation=activation), batch_of()
    peer_model = peer(backbone, ff_activation=ACTIVATIONS[activation])
    expected = run_peer(peer_model, batch, output_hidden_states=True, output_attentions=True, use_mems=False)
    outputs = run(backbone, batch)
    assert difference(at_real(outputs["hidden_states"], batch), at_real(expected.hidden_states, batch)) <= TOLERANCE
    assert difference(at_real([outputs["sequence_output"]], batch), at_real([expected[0]], batch)) <= TOLERANCE
    last = expected[0].numpy()[np.arange(3), LENGTHS - 1]
    assert difference(outputs["pooled_output"], last) <= TOLERANCE
    scores = [score.transpose(0, 2, 1, 3) for score in to_numpy(backbone.attention_scores(batch))]
    peer_scores = [score.numpy().transpose(0, 2, 1, 3) for score in expected.attentions]
    assert difference(at_real(scores, batch), at_real(peer_scores, batch)) <= TOLERANCE


def test_memories_equal_transformers():
    """Each of three parts of a text sees the last seven tokens before it, as they were then."""
    backbone = backbone_of()
    peer_model, mems, state = peer(backbone, mem_len=7), None, None
    for seed, width in enumerate((9, 5, 11)):
        batch = batch_of(np.array([width, width]), width, seed)
        expected = run_peer(peer_model, batch, mems=mems, use_mems=True, output_hidden_states=True)
        outputs, state = backbone.call_with_state(batch, state, memory_length=7)
        mems = expected.mems
        peer_states = tuple(x.numpy() for x in expected.hidden_states)
        assert difference(to_numpy(outputs["hidden_states"]), peer_states) <= TOLERANCE
        assert difference(to_numpy(state[1]), tuple(x.numpy().transpose(1, 0, 2) for x in mems)) <= TOLERANCE


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("has_memory", [False, True])
def test_both_streams_equal_transformers_in_a_permuted_order(has_memory):
    torch = pytest.importorskip("torch")
    backbone = backbone_of()
    model, batch = Pretrainer(backbone), batch_of()
    randomise(model)
    peer_model, mems, state = peer(model, "LMHeadModel", mem_len=6), None, None
    if has_memory:
        before = batch_of(np.array([8, 8, 8]), 8, seed=3)
        mems = run_peer(peer_model, before, use_mems=True).mems
        _, state = backbone.call_with_state(before, memory_length=6)
    order, is_hidden = make_order(batch)
    mapping = np.eye(WIDTH)[POSITIONS] * CHOSEN[..., None]
    expected = run_peer(
        peer_model,
        batch,
        mems=mems,
        perm_mask=torch.tensor(is_hidden, dtype=torch.float32),
        target_mapping=torch.tensor(mapping, dtype=torch.float32),
        output_hidden_states=True,
        use_mems=has_memory,
    )
    starts = np.broadcast_to(to_numpy(model.get_layer("query_stream").vector), (*POSITIONS.shape, TINY["hidden_dim"]))
    contents, answers = backbone.query_stream(batch, order, starts, POSITIONS, state)
    states = [x.numpy() for x in expected.hidden_states]  # the two streams alternate
    assert difference(at_real(to_numpy(contents), batch), at_real(states[::2], batch)) <= TOLERANCE
    assert difference([x[CHOSEN] for x in to_numpy(answers)], [x[CHOSEN] for x in states[1::2]]) <= TOLERANCE
    if not has_memory:
        logits = run(model, {**batch, "mask_positions": POSITIONS, "order": order})
        assert difference(logits["masked_lm"][CHOSEN], expected.logits.numpy()[CHOSEN]) <= TOLERANCE


# === Visibility of tokens ===


def answers_of(model, batch, order):
    return to_numpy(model.predict_on_batch({**batch, "mask_positions": POSITIONS, "order": order}))["masked_lm"]


@pytest.mark.slow
def test_a_prediction_depends_only_on_tokens_of_a_lower_order():
    model, batch = Pretrainer(backbone_of()), batch_of()
    randomise(model)
    order, _ = make_order(batch)
    expected = answers_of(model, batch, order)
    for token in range(WIDTH):
        changed = {**batch, "token_ids": batch["token_ids"].copy()}
        changed["token_ids"][:, token] = (changed["token_ids"][:, token] + 1) % TINY["vocabulary_size"]
        changes = np.abs(answers_of(model, changed, order) - expected).max(axis=-1)  # (B, M)
        is_lower = order[:, [token]] < np.take_along_axis(order, POSITIONS, axis=1)  # (B, M)
        is_visible = is_lower & (token < LENGTHS)[:, None]
        assert (changes[is_visible & CHOSEN] > 1e-4).all(), "a prediction does not depend on a token that it may see"
        assert (changes[~is_visible & CHOSEN] == 0).all(), "a prediction depends on a token that it must not see"


@pytest.mark.slow
def test_padding_and_batches_do_not_matter_to_either_stream():
    model, batch = Pretrainer(backbone_of()), batch_of()
    randomise(model)
    order, _ = make_order(batch)
    order[2] = 0  # a token that sees nothing, not even a known token
    expected = answers_of(model, batch, order)
    wide = {name: np.pad(values, ((0, 0), (0, 4)), constant_values=1) for name, values in batch.items()}
    wide["padding_mask"][:, WIDTH:] = 0
    assert difference(answers_of(model, wide, np.pad(order, ((0, 0), (0, 4))))[CHOSEN], expected[CHOSEN]) <= TOLERANCE
    for i, n in enumerate(LENGTHS):
        alone = {name: values[i : i + 1, :n] for name, values in batch.items()}
        features = {**alone, "mask_positions": POSITIONS[i : i + 1], "order": order[i : i + 1, :n]}
        answers = to_numpy(model.predict_on_batch(features))["masked_lm"][0]
        assert difference(answers[CHOSEN[i]], expected[i][CHOSEN[i]]) <= TOLERANCE


@pytest.mark.slow
def test_masks_in_texts_are_predicted_from_all_unmasked_tokens():
    task = tiny_task(Pretrainer, families()["xlnet"])
    texts = ["good <mask> film", "bad <mask> film", "good <mask> <mask>"]
    logits = task.predict(texts, verbose=0)["masked_lm"]  # (3, 2, V)
    assert np.abs(logits[0, 0] - logits[1, 0]).max() > 1e-4
    encoded = task.encode_inputs(texts)
    inputs = {**task.features(encoded, np.arange(3), 5), **task.extra_features(encoded)}
    mask = task.preprocessor.tokenizer.mask_id
    inputs["token_ids"] = np.where(inputs["token_ids"] == mask, 11, inputs["token_ids"])
    assert difference(task.predict(inputs, verbose=0)["masked_lm"], logits) <= TOLERANCE, "what a mask reads matters"


@pytest.mark.slow
def test_each_padded_text_has_the_memory_that_it_has_alone():
    backbone, first, second = backbone_of(), batch_of(), batch_of(LENGTHS[::-1], seed=29)
    _, state = backbone.call_with_state(first, memory_length=9)
    outputs, state = backbone.call_with_state(second, state)
    assert np.array_equal(to_numpy(state[0]).sum(axis=1), np.minimum(9, LENGTHS + LENGTHS[::-1]))
    for i, lengths in enumerate(zip(LENGTHS, LENGTHS[::-1], strict=True)):
        own_state, num_read = None, 0
        for batch, n in zip((first, second), lengths, strict=True):
            alone = {name: values[i : i + 1, :n] for name, values in batch.items()}
            num_read += n
            own_outputs, own_state = backbone.call_with_state(alone, own_state, memory_length=min(9, int(num_read)))
        n = lengths[1]
        expected = to_numpy(outputs["sequence_output"])[i, :n]
        assert difference(to_numpy(own_outputs["sequence_output"])[0], expected) <= TOLERANCE
        is_token = to_numpy(state[0])[i] > 0
        assert difference(to_numpy(own_state[1][2])[0], to_numpy(state[1][2])[i][is_token]) <= TOLERANCE


def test_states_of_other_shapes_are_refused():
    backbone, batch = backbone_of(), batch_of()
    with pytest.raises(ValueError, match="memory_length"):
        backbone.call_with_state(batch, memory_length=0)
    _, state = backbone.call_with_state(batch)
    with pytest.raises(ValueError, match="`state` must have the shapes"):
        backbone.call_with_state(batch_of(LENGTHS[:2]), state)


@pytest.mark.parametrize(("objective", "family"), [("nsp", "xlnet"), (None, "xlnet"), ("plm", "bert")])
def test_objectives_of_other_families_are_refused(objective, family):
    with pytest.raises(ValueError, match="random order" if family == "xlnet" else "query stream"):
        Pretrainer(tiny_backbone(families()[family]), objective=objective)


# === Options of every backbone ===


@pytest.mark.slow
def test_remat_does_not_change_training():
    results = []
    for remat in (False, True):
        model = Pretrainer(backbone_of(dropout=0.2, num_layers=2, remat=remat))
        randomise(model)
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=keras.backend.backend() == "tensorflow")
        keras.utils.set_random_seed(3)
        for weight in model.non_trainable_variables:  # seeds of dropout
            weight.assign(np.full(weight.shape, 7, weight.dtype))
        batch = batch_of()
        features = {**batch, "mask_positions": POSITIONS, "order": make_order(batch)[0]}
        targets, weights = {"masked_lm": POSITIONS + 3}, {"masked_lm": CHOSEN.astype("float32")}
        losses = [float(model.train_on_batch(features, targets, weights)[0]) for _ in range(2)]
        results.append((losses, [to_numpy(weight.value) for weight in model.trainable_weights]))
    assert difference(*results) <= 1e-6


def test_lora_trains_only_queries_and_values():
    backbone = backbone_of()
    backbone.enable_lora(2)
    assert {weight.path.split("/")[-1] for weight in backbone.trainable_weights} == {"lora_kernel_a", "lora_kernel_b"}
    assert {weight.path.split("/")[2] for weight in backbone.trainable_weights} == {"query", "value"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method implemented:UserWarning")
def test_int8_is_saved_and_loaded(tmp_path):
    backbone, batch = backbone_of(num_layers=1), batch_of()
    float_vectors = run(backbone, batch)["sequence_output"]
    backbone.quantize("int8")
    assert {w.dtype for w in backbone.weights if w.path.endswith("/kernel")} == {"int8"}
    vectors = run(backbone, batch)["sequence_output"]
    assert cosines(float_vectors, vectors).min() > 0.99
    backbone.save(tmp_path / "int8.keras")
    assert difference(run(keras.saving.load_model(tmp_path / "int8.keras"), batch)["sequence_output"], vectors) == 0


def test_queries_need_their_masks():
    attention = RelativeAttention(5, 35)
    inputs, encodings = np.ones((2, 7, 35), "float32"), np.ones((14, 35), "float32")
    mask = np.ones((2, 7, 7), bool)
    with pytest.raises(ValueError, match="`queries` need `query_mask` and `query_apart`"):
        attention(inputs, encodings, mask, mask, queries=inputs)
