"""ModernBERT against transformers: long sequences, configurations of both its versions, pooling of its heads."""

from __future__ import annotations

import json
import shutil

import keras
import numpy as np
import pytest

from lmzoo.errors import PresetError
from lmzoo.models import Backbone, MaskedLM, ModernBertBackbone, TextClassifier
from lmzoo.presets.converting import save_checkpoint
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_task
from lmzoo.testing.tiny import tiny_preprocessor
from tests.families.comparing import add_noise
from tests.families.config_files import edit_config
from tests.reference.weights import difference, to_numpy

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = families()["modernbert"]
LENGTHS = np.array([61, 29, 8, 0])  # windows are 7 wide; the last sequence is only padding
MASK = (np.arange(61) < LENGTHS[:, None]).astype("int32")
# Ids at padding are arbitrary, since nothing may depend on them.
BATCH = {"token_ids": np.random.default_rng(3).integers(5, 317, MASK.shape, "int32"), "padding_mask": MASK}


def write_peer(directory, **changes):
    """Save a transformers model with random weights to a directory, and return it."""
    settings = {
        "vocab_size": 317, "hidden_size": 70, "intermediate_size": 43, "num_hidden_layers": 5, "num_attention_heads": 5,
        "max_position_embeddings": 71, "local_attention": 7, "pad_token_id": None, "attn_implementation": "eager",
    }  # fmt: skip
    config = transformers.ModernBertConfig(**{**settings, **changes})
    torch.manual_seed(5)
    peer = transformers.ModernBertModel(config).eval()
    add_noise(peer)
    peer.save_pretrained(directory)
    return peer


def states_of(peer, batch=BATCH):
    ids, mask = (torch.tensor(batch[name]).long() for name in ("token_ids", "padding_mask"))
    with torch.no_grad():
        outputs = peer(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    return [state.numpy() for state in outputs.hidden_states]


@pytest.mark.parametrize("length", [61, pytest.param(8, marks=pytest.mark.tf_only)])
def test_sequences_longer_than_windows_equal_transformers(length, tmp_path):
    """Hidden states, and vectors at chosen positions, which include the last ones."""
    peer = write_peer(tmp_path)
    backbone = Backbone.from_preset(tmp_path)
    batch = {name: x[:, :length] for name, x in BATCH.items()}
    positions = np.array([[length - 1, 0, 3], [7, 2, 2], [1, 4, 0], [0, 5, 1]], "int32")
    outputs = backbone(batch)
    chosen = to_numpy(backbone.vectors_at(batch, positions, outputs))
    states = [to_numpy(state) for state in outputs["hidden_states"]]
    assert all(np.isfinite(state).all() for state in states)
    expected = states_of(peer, batch)
    real = batch["padding_mask"] > 0
    assert len(states) == len(expected) == 6
    for ours, theirs in zip(states, expected, strict=True):
        assert difference(ours[real], theirs[real]) <= 1e-5
    rows = np.take_along_axis(states[-1], positions[:, :, None], axis=1)
    assert difference(chosen[:3], rows[:3]) <= 1e-5
    assert difference(to_numpy(outputs["pooled_output"])[:3], states[-1][:3, 0]) <= 1e-5


@pytest.mark.tf_only  # on JAX, the layer has its own test
def test_a_local_last_block_knows_the_positions_of_queries():
    backbone = ModernBertBackbone(**{**FAMILY.tiny.__dict__, "num_layers": 3})
    assert backbone.blocks[-1].attention.window == 7
    outputs = backbone(BATCH)
    positions = np.array([[60, 0, 33], [28, 2, 2], [1, 4, 0], [0, 5, 1]], "int32")
    rows = np.take_along_axis(to_numpy(outputs["sequence_output"]), positions[:, :, None], axis=1)
    assert difference(to_numpy(backbone.vectors_at(BATCH, positions, outputs))[:3], rows[:3]) <= 1e-5
    assert difference(to_numpy(outputs["pooled_output"]), to_numpy(outputs["sequence_output"])[:, 0]) <= 1e-5


def test_attention_scores_are_zero_outside_of_windows():
    backbone = tiny_backbone(FAMILY)
    scores = to_numpy(backbone.attention_scores(BATCH))
    is_far = np.abs(np.arange(61)[:, None] - np.arange(61)) > 3
    for index, block_scores in enumerate(scores):
        assert block_scores.shape == (4, 5, 61, 61)
        assert (block_scores[0][:, is_far] == 0).all() == (index % 3 > 0)
        assert difference(block_scores[:3].sum(-1), np.ones((3, 5, 61))) <= 1e-5


def test_too_long_sequences_are_refused():
    backbone = tiny_backbone(FAMILY)
    ids = np.ones((1, 72), "int32")
    with pytest.raises(ValueError, match="72 tokens long, but the model has positions for 71"):
        backbone({"token_ids": ids, "padding_mask": ids})


# === Configurations ===

DEFAULT = {"rope_type": "default"}
VERSION_4 = {"global_rope_theta": 70_000.0, "local_rope_theta": 300.0, "global_attn_every_n_layers": 2}
VERSION_5 = {
    "rope_parameters": {
        "full_attention": {**DEFAULT, "rope_theta": 70_000.0},
        "sliding_attention": {**DEFAULT, "rope_theta": 300.0},
    },
    "layer_types": [("full", "sliding")[index % 2] + "_attention" for index in range(5)],
}
NEW_KEYS = ("layer_types", "rope_parameters")


@pytest.mark.quick_cases("5")
@pytest.mark.tf_only
@pytest.mark.parametrize("version", [4, 5])
def test_keys_of_both_versions_are_read(version, tmp_path):
    peer = write_peer(tmp_path, **VERSION_5)
    assert {*NEW_KEYS} <= json.loads((tmp_path / "config.json").read_text()).keys()
    if version == 4:
        edit_config(tmp_path, *NEW_KEYS, **VERSION_4)
    backbone = Backbone.from_preset(tmp_path)
    assert backbone.global_attention_every == 2
    assert (backbone.rotary_max_wavelength, backbone.local_rotary_max_wavelength) == (70_000, 300)
    real = MASK > 0
    for ours, theirs in zip(backbone(BATCH)["hidden_states"], states_of(peer), strict=True):
        assert difference(to_numpy(ours)[real], theirs[real]) <= 1e-5


@pytest.mark.parametrize(
    ("types", "expected"), [([1, 0, 0, 1, 0], 3), ([1, 0, 0, 0, 0], 5), ([1, 1, 1, 1, 1], 1), (None, 3)]
)
def test_layer_types_say_which_layers_are_global(types, expected):
    table = FAMILY.checkpoints["hf"].config
    names = None if types is None else [("sliding", "full")[type] + "_attention" for type in types]
    assert table.read({"layer_types": names, "num_hidden_layers": 5}, "x")["global_attention_every"] == expected
    stated = {"layer_types": names, "num_hidden_layers": 5, "global_attn_every_n_layers": 7}
    assert table.read(stated, "x")["global_attention_every"] == (7 if expected == 5 or types is None else expected)


@pytest.mark.parametrize(("stored", "expected"), [({}, 128), ({"sliding_window": 5}, 10)])
def test_the_window_may_be_stored_as_its_half(stored, expected):
    """In transformers, `sliding_window` is half of `local_attention`."""
    table = FAMILY.checkpoints["hf"].config
    assert table.read(stored, "x")["local_attention_window"] == expected
    assert table.read({**stored, "local_attention": expected}, "x")["local_attention_window"] == expected
    with pytest.raises(PresetError, match="`sliding_window` must be half of `local_attention`, which is 12, got 5"):
        table.read({"local_attention": 12, "sliding_window": 5}, "x")


@pytest.mark.parametrize("name", ["absolute", "sans_pos", None])
def test_names_of_positions_are_ignored(name):
    """Files of ModernBERT, Ettin and mmBERT have these names, which transformers ignores."""
    table = FAMILY.checkpoints["hf"].config
    assert table.read({"position_embedding_type": name}, "x") == table.read({}, "x")
    with pytest.raises(PresetError, match="`position_embedding_type` must be 'absolute' or 'sans_pos' or None, got 'r"):
        table.read({"position_embedding_type": "relative_key"}, "x")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(tiny_backbone(FAMILY), directory / "hf", to="hf")
    return directory / "hf"


def scaled(kind):
    return {**VERSION_5["rope_parameters"], kind: {"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_bias": True}, "`norm_bias` must be False, got True"),
        ({"attention_bias": True}, "`attention_bias` must be False, got True"),
        ({"mlp_bias": True}, "`mlp_bias` must be False, got True"),
        ({"rope_scaling": {"type": "linear"}}, "`rope_scaling` must be None"),
        ({"rope_parameters": scaled("full_attention")}, r"`rope_parameters\.full_attention` must be .*'default', got"),
        ({"rope_parameters": scaled("sliding_attention")}, r"`rope_parameters\.sliding_attention` must be"),
        ({"rope_parameters": {"rope_theta": 7.0}}, "`rope_parameters` must be an object with 'full_attention'"),
        ({"layer_types": ["sliding_attention"] * 5}, "`layer_types` must be 'full_attention' for block 0"),
        ({"layer_types": ["full_attention"] * 4}, "`layer_types` must be .* one for each block"),
        ({"local_attention": 1}, "`local_attention_window` must be an integer of at least 2.*is `local_attention`"),
        ({"global_attn_every_n_layers": 0}, "`global_attention_every` must be a positive integer"),
    ],
)
def test_unsupported_configurations_are_refused(changes, message, checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    edit_config(tmp_path, **changes)
    with pytest.raises(PresetError, match=message):
        Backbone.from_preset(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_bias": False}, "`decoder_bias` must be True, got False"),
        ({"classifier_activation": "silu"}, "`classifier_activation` must be 'gelu', got 'silu'"),
        ({"classifier_bias": True}, "`classifier_bias` must be False, got True"),
    ],
)
def test_settings_of_heads_matter_only_for_tasks(changes, message, tmp_path):
    save_checkpoint(tiny_task(MaskedLM, FAMILY), tmp_path, to="hf")
    edit_config(tmp_path, **changes)
    with pytest.raises(PresetError, match=message):
        MaskedLM.from_preset(tmp_path)
    assert isinstance(Backbone.from_preset(tmp_path), ModernBertBackbone)


def test_the_bias_of_the_decoder_matters_only_for_predictions_of_tokens(tmp_path):
    save_checkpoint(tiny_task(TextClassifier, FAMILY), tmp_path, to="hf")
    edit_config(tmp_path, decoder_bias=False)
    assert TextClassifier.from_preset(tmp_path).num_classes == 3


def test_written_ids_of_special_tokens_are_the_tokenizers(tmp_path):
    task = tiny_task(TextClassifier, FAMILY)
    save_checkpoint(task, tmp_path, to="hf")
    config = json.loads((tmp_path / "config.json").read_text())
    tokenizer = task.preprocessor.tokenizer
    assert config["pad_token_id"] == tokenizer.pad_id
    assert config["cls_token_id"] == config["bos_token_id"] == tokenizer.token_to_id("[CLS]")
    assert config["sep_token_id"] == config["eos_token_id"] == tokenizer.token_to_id("[SEP]")


def test_ids_of_a_foreign_tokenizer_are_written(tmp_path):
    preprocessor = tiny_preprocessor(families()["bert"])
    save_checkpoint(TextClassifier(tiny_backbone(FAMILY), preprocessor, num_classes=2), tmp_path, to="hf")
    config = json.loads((tmp_path / "config.json").read_text())
    assert [config[f"{token}_token_id"] for token in ("pad", "bos", "eos")] == [0, 2, 3]


# === Pooling of heads ===


@pytest.mark.tf_only
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("stored", "pooling"), [("mean", "mean"), ("cls", "first"), (None, "first")])
def test_classifiers_pool_as_their_files_say(stored, pooling, tmp_path):
    preprocessor = tiny_preprocessor(FAMILY)
    task = TextClassifier(tiny_backbone(FAMILY), preprocessor, num_classes=3, pooling=pooling)
    save_checkpoint(task, tmp_path, to="hf")
    assert json.loads((tmp_path / "config.json").read_text())["classifier_pooling"] == (stored or "cls")
    if stored is None:
        edit_config(tmp_path, "classifier_pooling")
    reloaded = TextClassifier.from_preset(tmp_path)
    assert reloaded.pooling == pooling
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    texts = ["a good film " * 5, "never"]
    features = preprocessor(texts)
    with torch.no_grad():
        tensors = (torch.tensor(keras.ops.convert_to_numpy(features[name])) for name in ("token_ids", "padding_mask"))
        expected = peer(*tensors).logits.numpy()
    assert difference(reloaded.predict(texts, verbose=0), expected) <= 1e-5


def test_other_pooling_is_refused(tmp_path):
    save_checkpoint(tiny_task(TextClassifier, FAMILY), tmp_path, to="hf")
    edit_config(tmp_path, classifier_pooling="max")
    with pytest.raises(PresetError, match="`classifier_pooling` must be 'cls' or 'mean', got 'max'"):
        TextClassifier.from_preset(tmp_path)


# === Adaptation ===


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method implemented:UserWarning")
def test_lora_and_int8_adapt_the_projections():
    backbone = tiny_backbone(FAMILY)
    backbone.enable_lora(2)
    attentions = [block.attention for block in backbone.blocks]
    assert sum(layer.lora_enabled for a in attentions for layer in (a.query, a.value)) == 10
    backbone = tiny_backbone(FAMILY)
    exact = to_numpy(backbone(BATCH)["sequence_output"])
    backbone.quantize("int8")
    assert backbone.blocks[1].gate_dense.quantization_mode == "int8"
    assert difference(to_numpy(backbone(BATCH)["sequence_output"])[MASK > 0], exact[MASK > 0]) <= 0.3
