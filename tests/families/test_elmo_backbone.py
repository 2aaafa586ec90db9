"""ELMo: repeated, compiled and rounded calls, gradients, dropout, files, states, and errors for wrong input."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

from lmzoo.families.elmo import ElmoBackbone, ElmoConfig
from tests.families.comparing import cosines
from tests.families.elmo_models import LENGTHS, TINY, WIDTH, arrays, layers_and_state, tiny_batch, tiny_elmo
from tests.reference.gradients import gradients
from tests.reference.weights import difference, run

TOLERANCE = 1e-5
CLIPS = {"cell_clip": 0.4, "projection_clip": 0.05}  # bounds that these weights reach
TOKENS = {"vocabulary_size": 31}


@pytest.fixture(scope="module")
def backbone():
    return tiny_elmo()


@pytest.fixture(scope="module")
def batch(backbone):
    return tiny_batch(backbone)


@pytest.fixture(scope="module")
def outputs(backbone, batch):
    return run(backbone, batch)


def loss(outputs):
    parts = (outputs["sequence_output"], outputs["pooled_output"])
    return sum(keras.ops.sum(keras.ops.sin(part * 3 + 1)) for part in parts)


# === Calls ===


@pytest.mark.slow
def test_repeated_calls_are_bit_identical(backbone, batch):
    other_batch, call = tiny_batch(backbone, (2, 3), seed=31), backbone
    if keras.backend.backend() == "jax":
        import jax

        call = jax.jit(lambda inputs: backbone(inputs))
    expected, state = arrays(call(batch)), None
    for i in range(100):
        if i % 5 == 0:
            call(other_batch)
            if keras.backend.backend() == "tensorflow":
                _, state = backbone.call_with_state(other_batch, state)
        assert difference(arrays(call(batch)), expected) == 0


VARIANTS = {"as released": {}, "tokens": TOKENS, "clips": {"layer_norm": "allennlp", **CLIPS}}


@pytest.mark.slow
@pytest.mark.tf_only
@pytest.mark.parametrize("mode", ["jit", "graph", "unknown shapes"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_graphs_and_compiled_equal_eager(variant, mode):
    import tensorflow as tf

    backbone = tiny_elmo(**VARIANTS[variant])
    batch = {name: tf.constant(ids) for name, ids in tiny_batch(backbone).items()}
    eager = arrays(backbone(batch))
    options = {
        "jit": {"jit_compile": True},
        "graph": {"jit_compile": False},
        "unknown shapes": {"input_signature": [make_signature(batch)]},
    }[mode]
    assert difference(arrays(tf.function(lambda x: backbone(x), **options)(batch)), eager) <= TOLERANCE
    if variant == "as released" and mode != "jit":
        backbone.bilm.encoder.dedupe = True
        function = tf.function(lambda x: backbone(x), **options)
        assert difference(arrays(function(batch)), eager) <= TOLERANCE
        graph = function.get_concrete_function(batch).graph
        assert "UniqueV2" in {operation.type for operation in graph.get_operations()}


def make_signature(batch):
    """Return specs of a batch in which no dimension is known."""
    import tensorflow as tf

    return {name: tf.TensorSpec([None] * len(ids.shape), ids.dtype) for name, ids in batch.items()}


@pytest.mark.tf_only
def test_each_word_is_encoded_once(backbone, monkeypatch):
    batch, shapes = tiny_batch(backbone, longest=5), []
    encode = backbone.bilm.encoder._encode
    monkeypatch.setattr(backbone.bilm.encoder, "_encode", lambda ids: (shapes.append(ids.shape), encode(ids))[1])
    words = np.tile(batch["character_ids"], (5, 3, 1))[:, : LENGTHS[0]]
    words[:] = words[:1]
    backbone({"character_ids": words})
    # Five words and two markers of at most 7 symbols; the widest filter spans 3.
    assert shapes == [(7, 10)]


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_bfloat16_points_the_same_way(backbone, batch, outputs, dtype):
    half = tiny_elmo(dtype=dtype)
    rounded_outputs = run(half, batch)
    assert keras.backend.standardize_dtype(half.output["sequence_output"].dtype) == "bfloat16"
    for exact, rounded in zip(outputs["hidden_states"], rounded_outputs["hidden_states"], strict=True):
        assert difference(exact, rounded) > 1e-5  # the precision really was lower
        real = np.abs(exact).max(-1) > 0
        assert real.sum() == sum(LENGTHS)
        assert cosines(exact[real], rounded[real]).min() >= 0.999


# === Gradients ===


@pytest.mark.parametrize(
    "variant", [{}, CLIPS, {"cell_clip": None, "projection_clip": None}, {"lstm_dim": 13, **CLIPS}, TOKENS]
)
def test_gradients_are_those_that_the_backend_derives(variant, monkeypatch):
    backbone = tiny_elmo(**variant)
    batch = tiny_batch(backbone, lengths=(3, 0, 1), extra=0)
    actual = gradients(backbone, loss, batch)
    monkeypatch.setattr(keras.ops, "custom_gradient", lambda run: lambda *arguments: run(*arguments)[0])
    expected = gradients(backbone, loss, batch)
    for path, gradient in expected.items():
        np.testing.assert_allclose(actual[path], gradient, atol=1e-4, rtol=1e-4, err_msg=path)
        assert np.abs(gradient).max() > 1e-3, path
    (table,) = (path for path in actual if path.endswith(("embedding", "embeddings")))
    assert not actual[table][0].any()  # the vector for no token stays zero


@pytest.mark.slow
def test_gradients_of_padding_are_finite():
    for norm in (None, "allennlp", "bilm_tf"):
        backbone = tiny_elmo(layer_norm=norm)
        batch = {"character_ids": np.zeros((2, 3, WIDTH), "int32")}
        assert all(not array.any() for array in keras.tree.flatten(run(backbone, batch)))
        assert all(np.isfinite(g).all() for g in gradients(backbone, loss, batch).values())


@pytest.mark.tf_only
def test_no_gradient_flows_through_a_state(backbone, batch):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        _, state = backbone.call_with_state(batch)
        total = sum(tf.reduce_sum(part) for part in keras.tree.flatten(state))
    assert tape.gradient(total, next(w.value for w in backbone.bilm.trainable_weights)) is None


def test_dropout_acts_in_training_only(outputs, batch):
    noisy = tiny_elmo(dropout=0.5)
    assert difference(run(noisy, batch), outputs) <= 1e-6
    assert keras.ops.max(keras.ops.abs(noisy(batch, training=True)["pooled_output"] - outputs["pooled_output"])) > 0.01


def test_dropout_acts_on_the_input_and_on_the_skip_connection():
    """With weights of zero, the last layer outputs its input after dropout, scaled."""
    backbone = tiny_elmo(dropout=0.5)
    for lstm in backbone.bilm.lstms[1:]:
        for weight in lstm.weights:
            weight.assign(np.zeros(weight.shape))
    batch = tiny_batch(backbone, lengths=(7,), extra=0)
    first, last = arrays(backbone(batch, training=True)["hidden_states"][1:])
    is_kept = last != 0
    assert 0.3 < is_kept.mean() < 0.7
    np.testing.assert_allclose(last[is_kept], 2 * first[is_kept], rtol=1e-4)


# === Freezing and files ===


def test_freezing_leaves_the_mix():
    frozen = tiny_elmo()
    frozen.bilm.trainable = False
    for backbone in (frozen, tiny_elmo(freeze_bilm=True)):
        assert [w.path for w in backbone.trainable_weights] == ["scalar_mix/scalars", "scalar_mix/gamma"]
    assert len(tiny_elmo().trainable_weights) == 2 + len(tiny_elmo().bilm.weights)
    assert ElmoBackbone(**TINY, trainable=False).trainable_weights == []


def test_an_unfrozen_language_model_stays_unfrozen(tmp_path):
    backbone = tiny_elmo(freeze_bilm=True)
    backbone.bilm.trainable = True
    backbone.save(tmp_path / "elmo.keras")
    for copy in (type(backbone).from_config(backbone.get_config()), keras.saving.load_model(tmp_path / "elmo.keras")):
        assert len(copy.trainable_weights) == len(backbone.trainable_weights) == len(backbone.weights)


@pytest.mark.quick_cases("variant1")
@pytest.mark.parametrize("variant", [{"freeze_bilm": True, "cell_clip": None, "layer_norm": "allennlp"}, TOKENS])
def test_files_restore_the_model(tmp_path, variant):
    backbone = tiny_elmo(**variant)
    copy = ElmoBackbone.from_config(json.loads(json.dumps(backbone.get_config())))
    assert copy.config == backbone.config
    assert copy.get_config() == backbone.get_config()
    backbone.save(tmp_path / "elmo.keras")
    loaded = keras.saving.load_model(tmp_path / "elmo.keras")
    assert type(loaded) is ElmoBackbone
    assert loaded.config == backbone.config
    assert [w.path for w in loaded.trainable_weights] == [w.path for w in backbone.trainable_weights]
    batch = tiny_batch(backbone)
    assert difference(run(loaded, batch), run(backbone, batch)) == 0


def test_the_padding_mask_is_of_real_words(backbone, batch):
    mask = arrays(backbone.padding_mask(batch))
    assert mask.sum(1).tolist() == list(LENGTHS)
    tokens = tiny_elmo(**TOKENS)
    assert arrays(tokens.padding_mask(tiny_batch(tokens))).sum(1).tolist() == list(LENGTHS)


# === Errors ===


def test_filters_may_be_lists():
    assert ElmoConfig(**{**TINY, "filters": [[1, 40]]}).filters == ((1, 40),)


def test_inputs_of_the_other_kind_are_refused(backbone, batch):
    tokens = tiny_elmo(**TOKENS)
    with pytest.raises(ValueError, match=r"takes a dict of 'character_ids', int32 \(B, T, W\); got 'token_ids'"):
        backbone(tiny_batch(tokens))
    with pytest.raises(ValueError, match=r"takes a dict of 'token_ids', int32 \(B, T\); got 'character_ids'"):
        tokens(batch)
    with pytest.raises(ValueError, match=r"takes a dict of 'character_ids'.*got ndarray"):
        backbone(batch["character_ids"])


@pytest.mark.parametrize("columns", [2, WIDTH + 1])
def test_too_few_or_many_characters_are_refused(backbone, columns):
    with pytest.raises(ValueError, match=f"3 to {WIDTH} characters per word, got {columns}"):
        backbone({"character_ids": np.zeros((1, 2, columns), "int32")})


def test_tokens_out_of_range_are_refused():
    backbone = tiny_elmo(**TOKENS)
    with pytest.raises(ValueError, match=r"`token_ids` must be in 0\.\.30, got 31 in sequence 1 at position 0"):
        backbone({"token_ids": np.array([[1, 30], [31, 0]], "int32")})


@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_states_of_other_shapes_are_refused(backbone, batch, batch_size):
    def zeros(width):
        return np.zeros((batch_size, width), "float32")

    def state_of(memory=17, output=13, layers=2, directions=("forward", "backward")):
        return {direction: [(zeros(memory), zeros(output))] * layers for direction in directions}

    backbone.call_with_state(batch, state_of())
    expected = r"`state` must have the shapes \{'forward': \(\(\(None, 17\), \(None, 13\)\), \("
    for wrong in (
        state_of(memory=19),
        state_of(memory=13, output=17),
        state_of(layers=3),
        state_of(directions=("forward",)),
        state_of()["forward"],
        (zeros(17), zeros(13)),
        "state",
    ):
        with pytest.raises(ValueError, match=expected):
            backbone.call_with_state(batch, wrong)


@pytest.mark.tf_only
def test_graphs_skip_the_checks(backbone, batch):
    import tensorflow as tf

    ids = batch["character_ids"].copy()
    ids[1, 0] = 0  # padding before a token
    assert np.isfinite(arrays(tf.function(lambda x: backbone(x))({"character_ids": ids}))["pooled_output"]).all()


@pytest.mark.half_precision
def test_memories_stay_in_float32(batch):
    half = tiny_elmo(dtype="mixed_bfloat16")
    _, _, state = layers_and_state(half, batch)
    exact = layers_and_state(tiny_elmo(), batch)[2]
    assert difference(state, exact) < 0.1
    assert np.isfinite(layers_and_state(half, batch, state)[0][2]).all()
    # Rounding errors of the memory would add up.
    _, _, state = half.marked_layers(tiny_batch(half, (1,), extra=0), state)
    memory, output = state["forward"][0]
    assert keras.backend.standardize_dtype(memory.dtype) == "float32"
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"


@pytest.mark.tf_only
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
@pytest.mark.usefixtures("no_garbage_collection")
def test_int8_stays_close(backbone, batch, outputs):
    quantized = tiny_elmo()
    quantized.set_weights(backbone.get_weights())
    quantized.quantize("int8")
    assert 0 < difference(run(quantized, batch)["sequence_output"], outputs["sequence_output"]) < 0.05
