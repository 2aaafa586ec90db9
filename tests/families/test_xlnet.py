"""XLNet against torch transformers on random weights, copied by name; who sees whom; memories."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest

from lmzoo.layers import RelativeAttention
from lmzoo.models import Pretrainer, TextClassifier, XlnetBackbone
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_task
from lmzoo.text.permutation import factorization_order
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


def theirs(path):
    for pattern, name in NAMES.items():
        if match := re.match(pattern, path):
            return match.expand(name) + (ENDS[path[match.end() :]] if name.endswith(".") else "")
    raise AssertionError(f"{path} has no name")


def backbone_of(**settings):
    backbone = XlnetBackbone(**{**TINY, **settings})
    randomise(backbone)
    return backbone


def peer(model, head="Model", **settings):
    """A transformers model that holds the weights of `model`, each used exactly once."""
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
        name, array = theirs(weight.path), to_numpy(weight.value)
        assert name not in state
        state[name] = torch.tensor(array.T if array.ndim == 2 and name.endswith("weight") else array)
    state["transformer.word_embedding.weight"] = state["transformer.word_embedding.weight"].T
    if head == "Model":
        state = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    if head == "LMHeadModel":
        state["lm_loss.weight"] = state["transformer.word_embedding.weight"]
    there = getattr(transformers, f"XLNet{head}")(config).eval()
    start = {name for name in there.state_dict() if name.endswith("mask_emb")}
    assert state.keys() | start == there.state_dict().keys()
    there.load_state_dict(state, strict=False)
    return there


def ask(there, batch, **arguments):
    import torch

    with torch.no_grad():
        return there(
            input_ids=torch.tensor(batch["token_ids"], dtype=torch.long),
            attention_mask=torch.tensor(batch["padding_mask"], dtype=torch.float32),
            token_type_ids=torch.tensor(batch["segment_ids"], dtype=torch.long),
            **arguments,
        )


def batch_of(lengths=LENGTHS, width=WIDTH, seed=23):
    """Rows whose last token is a segment of its own. What stands in the padding is arbitrary."""
    rng = np.random.default_rng(seed)
    place = np.arange(width)
    return {
        "token_ids": rng.integers(0, TINY["vocabulary_size"], (len(lengths), width)).astype("int32"),
        "padding_mask": (place < lengths[:, None]).astype("int32"),
        "segment_ids": np.where(place >= lengths[:, None] - 1, 2, place > lengths[:, None] // 2).astype("int32"),
    }


def ordered(batch, seed=5):
    """The batch with the order in which the tokens at `POSITIONS` are predicted, and who is hidden from whom there."""
    known = batch["padding_mask"] > 0
    rows, columns = np.nonzero(CHOSEN)
    known[rows, POSITIONS[rows, columns]] = False
    lengths = batch["padding_mask"].sum(axis=1)
    known[np.arange(len(known)), lengths - 1] = False
    order = factorization_order(known, lengths, np.random.default_rng(seed))
    both = known[:, None] & known[..., None] & (order[:, None] == order[..., None])
    return order, ~((order[:, None] < order[..., None]) | both)


def at_real(states, batch):
    return [np.asarray(state)[batch["padding_mask"] > 0] for state in states]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_hidden_states_and_attention(activation):
    backbone, batch = backbone_of(activation=activation), batch_of()
    there = ask(
        peer(backbone, ff_activation=ACTIVATIONS[activation]),
        batch,
        output_hidden_states=True,
        output_attentions=True,
        use_mems=False,
    )
    found = run(backbone, batch)
    assert difference(at_real(found["hidden_states"], batch), at_real(there.hidden_states, batch)) <= TOLERANCE
    assert difference(at_real([found["sequence_output"]], batch), at_real([there[0]], batch)) <= TOLERANCE
    last = there[0].numpy()[np.arange(3), LENGTHS - 1]
    assert difference(found["pooled_output"], last) <= TOLERANCE
    scores = [score.transpose(0, 2, 1, 3) for score in to_numpy(backbone.attention_scores(batch))]
    expected = [score.numpy().transpose(0, 2, 1, 3) for score in there.attentions]
    assert difference(at_real(scores, batch), at_real(expected, batch)) <= TOLERANCE


def test_memories():
    """Three parts of a text, each of which sees the last seven tokens before it, as they were then."""
    backbone = backbone_of()
    there, mems, state = peer(backbone, mem_len=7), None, None
    for seed, width in enumerate((9, 5, 11)):
        batch = batch_of(np.array([width, width]), width, seed)
        expected = ask(there, batch, mems=mems, use_mems=True, output_hidden_states=True)
        outputs, state = backbone.call_with_state(batch, state, memory_length=7)
        mems = expected.mems
        assert (
            difference(to_numpy(outputs["hidden_states"]), tuple(x.numpy() for x in expected.hidden_states))
            <= TOLERANCE
        )
        assert difference(to_numpy(state[1]), tuple(x.numpy().transpose(1, 0, 2) for x in mems)) <= TOLERANCE


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("remembers", [False, True])
def test_both_streams_in_a_permuted_order(remembers):
    torch = pytest.importorskip("torch")
    backbone = backbone_of()
    model, batch = Pretrainer(backbone), batch_of()
    randomise(model)
    there, mems, state = peer(model, "LMHeadModel", mem_len=6), None, None
    if remembers:
        before = batch_of(np.array([8, 8, 8]), 8, seed=3)
        mems = ask(there, before, use_mems=True).mems
        _, state = backbone.call_with_state(before, memory_length=6)
    order, hidden = ordered(batch)
    mapping = np.eye(WIDTH)[POSITIONS] * CHOSEN[..., None]
    expected = ask(
        there,
        batch,
        mems=mems,
        perm_mask=torch.tensor(hidden, dtype=torch.float32),
        target_mapping=torch.tensor(mapping, dtype=torch.float32),
        output_hidden_states=True,
        use_mems=remembers,
    )
    starts = np.broadcast_to(to_numpy(model.get_layer("query_stream").vector), (*POSITIONS.shape, TINY["hidden_dim"]))
    contents, answers = backbone.query_stream(batch, order, starts, POSITIONS, state)
    states = [x.numpy() for x in expected.hidden_states]  # of the two streams in turn
    assert difference(at_real(to_numpy(contents), batch), at_real(states[::2], batch)) <= TOLERANCE
    assert difference([x[CHOSEN] for x in to_numpy(answers)], [x[CHOSEN] for x in states[1::2]]) <= TOLERANCE
    if not remembers:
        logits = run(model, {**batch, "mask_positions": POSITIONS, "order": order})
        assert difference(logits["masked_lm"][CHOSEN], expected.logits.numpy()[CHOSEN]) <= TOLERANCE


def test_classifier():
    """Theirs is padded on the left, so that the last token is last."""
    model, batch = TextClassifier(backbone_of(), num_classes=7), batch_of()
    randomise(model)
    shifted = {
        name: np.stack([np.roll(row, WIDTH - n) for row, n in zip(values, LENGTHS, strict=True)])
        for name, values in batch.items()
    }
    there = peer(model, "ForSequenceClassification", num_labels=7)
    assert difference(run(model, batch), ask(there, shifted, use_mems=False).logits.numpy()) <= TOLERANCE


# === Who sees whom ===


def answers_of(model, batch, order):
    return to_numpy(model.predict_on_batch({**batch, "mask_positions": POSITIONS, "order": order}))["masked_lm"]


@pytest.mark.slow
def test_a_prediction_depends_only_on_tokens_of_a_lower_order():
    model, batch = Pretrainer(backbone_of()), batch_of()
    randomise(model)
    order, _ = ordered(batch)
    expected = answers_of(model, batch, order)
    for token in range(WIDTH):
        changed = {**batch, "token_ids": batch["token_ids"].copy()}
        changed["token_ids"][:, token] = (changed["token_ids"][:, token] + 1) % TINY["vocabulary_size"]
        moved = np.abs(answers_of(model, changed, order) - expected).max(axis=-1)  # (B, M)
        lower = order[:, [token]] < np.take_along_axis(order, POSITIONS, axis=1)  # (B, M)
        sees = lower & (token < LENGTHS)[:, None]
        assert (moved[sees & CHOSEN] > 1e-4).all(), "a prediction does not depend on a token that it may see"
        assert (moved[~sees & CHOSEN] == 0).all(), "a prediction depends on a token that it must not see"


@pytest.mark.slow
def test_padding_and_batches_do_not_matter_to_either_stream():
    model, batch = Pretrainer(backbone_of()), batch_of()
    randomise(model)
    order, _ = ordered(batch)
    order[2] = 0  # a token that sees nothing, not even a known one
    expected = answers_of(model, batch, order)
    wide = {name: np.pad(values, ((0, 0), (0, 4)), constant_values=1) for name, values in batch.items()}
    wide["padding_mask"][:, WIDTH:] = 0
    assert difference(answers_of(model, wide, np.pad(order, ((0, 0), (0, 4))))[CHOSEN], expected[CHOSEN]) <= TOLERANCE
    for i, n in enumerate(LENGTHS):
        alone = {name: values[i : i + 1, :n] for name, values in batch.items()}
        features = {**alone, "mask_positions": POSITIONS[i : i + 1], "order": order[i : i + 1, :n]}
        found = to_numpy(model.predict_on_batch(features))["masked_lm"][0]
        assert difference(found[CHOSEN[i]], expected[i][CHOSEN[i]]) <= TOLERANCE


@pytest.mark.slow
def test_masks_in_texts_are_predicted_from_all_other_tokens():
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
def test_a_memory_of_padded_texts_is_that_of_each_alone():
    backbone, first, second = backbone_of(), batch_of(), batch_of(LENGTHS[::-1], seed=29)
    _, state = backbone.call_with_state(first, memory_length=9)
    outputs, state = backbone.call_with_state(second, state)
    assert np.array_equal(to_numpy(state[0]).sum(axis=1), np.minimum(9, LENGTHS + LENGTHS[::-1]))
    for i, lengths in enumerate(zip(LENGTHS, LENGTHS[::-1], strict=True)):
        own, read = None, 0
        for batch, n in zip((first, second), lengths, strict=True):
            alone, read = {name: values[i : i + 1, :n] for name, values in batch.items()}, read + n
            found, own = backbone.call_with_state(alone, own, memory_length=min(9, int(read)))
        n = lengths[1]
        expected = to_numpy(outputs["sequence_output"])[i, :n]
        assert difference(to_numpy(found["sequence_output"])[0], expected) <= TOLERANCE
        there = to_numpy(state[0])[i] > 0
        assert difference(to_numpy(own[1][2])[0], to_numpy(state[1][2])[i][there]) <= TOLERANCE


def test_errors_of_states():
    backbone, batch = backbone_of(), batch_of()
    with pytest.raises(ValueError, match="memory_length"):
        backbone.call_with_state(batch, memory_length=0)
    _, state = backbone.call_with_state(batch)
    with pytest.raises(ValueError, match="`state` must have the shapes"):
        backbone.call_with_state(batch_of(LENGTHS[:2]), state)
    with pytest.raises(ValueError, match="`hidden_dim` must be even"):
        XlnetBackbone(**{**TINY, "hidden_dim": 33})


@pytest.mark.parametrize(("objective", "family"), [("nsp", "xlnet"), (None, "xlnet"), ("plm", "bert")])
def test_errors_of_objectives(objective, family):
    with pytest.raises(ValueError, match="random order" if family == "xlnet" else "query stream"):
        Pretrainer(tiny_backbone(families()[family]), objective=objective)


# === Options of every backbone ===


@pytest.mark.slow
def test_blocks_that_are_computed_again_train_alike():
    found = []
    for remat in (False, True):
        model = Pretrainer(backbone_of(dropout=0.2, num_layers=2, remat=remat))
        randomise(model)
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=keras.backend.backend() == "tensorflow")
        keras.utils.set_random_seed(3)
        for weight in model.non_trainable_variables:  # seeds of dropout
            weight.assign(np.full(weight.shape, 7, weight.dtype))
        batch = batch_of()
        features = {**batch, "mask_positions": POSITIONS, "order": ordered(batch)[0]}
        targets, weights = {"masked_lm": POSITIONS + 3}, {"masked_lm": CHOSEN.astype("float32")}
        losses = [float(model.train_on_batch(features, targets, weights)[0]) for _ in range(2)]
        found.append((losses, [to_numpy(weight.value) for weight in model.trainable_weights]))
    assert difference(found[0], found[1]) <= 1e-6


def test_low_rank_updates_leave_everything_else_alone():
    backbone = backbone_of()
    backbone.enable_lora(2)
    assert {weight.path.split("/")[-1] for weight in backbone.trainable_weights} == {"lora_kernel_a", "lora_kernel_b"}
    assert {weight.path.split("/")[2] for weight in backbone.trainable_weights} == {"query", "value"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method implemented:UserWarning")
def test_int8_is_saved_and_loaded(tmp_path):
    backbone, batch = backbone_of(num_layers=1), batch_of()
    exact = run(backbone, batch)["sequence_output"]
    backbone.quantize("int8")
    assert {w.dtype for w in backbone.weights if w.path.endswith("/kernel")} == {"int8"}
    found = run(backbone, batch)["sequence_output"]
    cosine = (exact * found).sum(-1) / np.linalg.norm(exact, axis=-1) / np.linalg.norm(found, axis=-1)
    assert cosine.min() > 0.99
    backbone.save(tmp_path / "int8.keras")
    assert difference(run(keras.saving.load_model(tmp_path / "int8.keras"), batch)["sequence_output"], found) == 0


def test_queries_need_their_masks():
    attention = RelativeAttention(5, 35)
    inputs, encodings = np.ones((2, 7, 35), "float32"), np.ones((14, 35), "float32")
    seen = np.ones((2, 7, 7), bool)
    with pytest.raises(ValueError, match="`queries` need `query_mask` and `query_apart`"):
        attention(inputs, encodings, seen, seen, queries=inputs)
