"""Keys of configurations: every key of transformers' classes is handled, and any other is ignored with a warning."""

from __future__ import annotations

import json
import warnings

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

from lmzoo import verify
from lmzoo.checkpoints.family_names import names_in_transformers
from lmzoo.checkpoints.hugging_face.checkpoint import ACTIVATIONS, find_hugging_face
from lmzoo.checkpoints.hugging_face.keys import GENERATION_KEYS, UNSUPPORTED_GENERATION
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.layers import get_activation
from lmzoo.models import Backbone
from lmzoo.presets.converting import save_checkpoint
from lmzoo.registry.family import families, find_families_by_format
from lmzoo.testing import tiny_backbone
from lmzoo_cli.main import app
from tests.checkpoints.model_files import configure
from tests.checkpoints.published import batch_of, hidden_states_of
from tests.reference.weights import difference, run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Keys that no class of transformers declares; T5's are in its published files.
OWN_KEYS = {"deberta_v3": {"enhanced_mask_decoder"}, "t5": {"n_positions"}, "t5_encoder": {"n_positions"}}
FAMILIES = pytest.mark.parametrize("family", find_families_by_format("hf"), ids=lambda family: family.name)


def get_config_class(family):
    return transformers.CONFIG_MAPPING[names_in_transformers(family).model_type]


@FAMILIES
def test_every_declared_key_is_handled(family):
    """Each key is read, restricted or harmless, with the default of the class."""
    table, theirs = family.checkpoints["hf"].config, get_config_class(family)()
    assert table.unknown(theirs.to_dict()) == {}
    own = OWN_KEYS.get(family.name, set())
    assert {alias: key for alias, key in table.aliases.items() if key not in own} == type(theirs).attribute_map
    assert {key: getattr(theirs, key) for key in table.defaults.keys() - own} == without(table.defaults, own)
    assert not own & theirs.to_dict().keys()


def without(values, names):
    return {key: value for key, value in values.items() if key not in names}


def test_generation_keys_are_those_of_transformers():
    """Keys are harmless for a reason: these are settings of generation."""
    assert transformers.GenerationConfig().to_dict().keys() >= GENERATION_KEYS | UNSUPPORTED_GENERATION.keys()


@pytest.mark.parametrize("theirs", ACTIVATIONS)
def test_activations_compute_what_transformers_computes(theirs):
    x = np.linspace(-9, 9, 10_007, dtype="float32")
    expected = transformers.activations.ACT2FN[theirs](torch.tensor(x)).numpy()
    ours = keras.ops.convert_to_numpy(get_activation(ACTIVATIONS[theirs])(keras.ops.convert_to_tensor(x)))
    assert difference(ours, expected) <= 2e-6  # the two kinds of GELU differ by 5e-4


@pytest.fixture
def gpt2(tmp_path):
    """Return a transformers model of 4 heads, whose width also fits the default of 12, and its directory."""
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=131, n_embd=48, n_layer=2, n_head=4, n_positions=67)
    model = transformers.GPT2Model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tmp_path)
    return model, tmp_path


def test_common_names_of_keys_are_read(gpt2):
    theirs, directory = gpt2
    own = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    config = json.loads((directory / "config.json").read_text())
    configure(directory, *own, **{common: config[name] for name, common in own.items()})
    ours = Backbone.from_preset(directory)
    batch = batch_of(ours.input)
    real = batch["padding_mask"] > 0
    for a, b in zip(run(ours, batch)["hidden_states"], hidden_states_of(theirs, batch), strict=True):
        assert difference(np.asarray(a)[real], b[real]) <= 1e-5


def test_two_names_of_a_key_must_agree(gpt2):
    _, directory = gpt2
    configure(directory, num_attention_heads=4)
    Backbone.from_preset(directory)
    configure(directory, num_attention_heads=12)
    message = "config.json: `n_head` is 4, but `num_attention_heads`, another name for it, is 12. Remove the wrong one"
    with pytest.raises(PresetError, match=message):
        Backbone.from_preset(directory)


def test_unknown_keys_are_ignored_with_a_warning(tmp_path, monkeypatch):
    """Each load gives one warning for all keys; `verify` lists them."""
    save_checkpoint(tiny_backbone(families()["bert"]), tmp_path, to="hf")
    configure(tmp_path, adapters={}, unsloth_fixed=True, train_batch_size=None, alpha="a" * 99)
    listed = f"`adapters` ({{}}), `alpha` ('{'a' * 59}), `train_batch_size` (None), `unsloth_fixed` (True)"
    with pytest.warns(UserWarning, match="unknown keys") as caught:
        Backbone.from_preset(tmp_path)
    assert [str(warning.message) for warning in caught] == [f"{tmp_path}/config.json: ignoring unknown keys: {listed}."]
    with pytest.warns(UserWarning, match="ignoring unknown keys"):
        assert verify(tmp_path)["not read: keys of config.json"] == listed
    monkeypatch.setattr(warnings, "filters", [])  # warnings are errors elsewhere
    result = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert f"not read: keys of config.json\t{listed}" in result.stdout.splitlines()
    assert f"Warning: {tmp_path}/config.json: ignoring unknown keys: {listed}." in result.stderr.splitlines()


def test_unset_keys_are_accepted(tmp_path):
    save_checkpoint(tiny_backbone(families()["bert"]), tmp_path, to="hf")
    configure(tmp_path, auto_map=None, pruned_heads=None, quantization_config={}, is_decoder=None, ln_type="postln")
    configure(tmp_path, position_embedding_type=None)  # transformers 5 does not read it
    Backbone.from_preset(tmp_path)


def test_a_decoder_may_declare_itself(gpt2):
    _, directory = gpt2
    configure(directory, is_decoder=True)
    Backbone.from_preset(directory)


def test_unknown_keys_in_googles_format(tmp_path):
    save_checkpoint(tiny_backbone(families()["bert"]), tmp_path, to="tf1")
    configure(tmp_path, fp16=False)
    with pytest.warns(UserWarning, match=r"bert_config.json: ignoring unknown keys: `fp16` \(False\)\."):
        Backbone.from_preset(tmp_path)
    configure(tmp_path, ln_type="preln")
    with pytest.raises(PresetError, match=r"bert_config\.json: `ln_type` must be 'postln', got 'preln'"):
        Backbone.from_preset(tmp_path)


def test_unknown_keys_in_keras_hubs_format(tmp_path):
    """Keys by which transformers chooses another network are errors."""
    save_checkpoint(tiny_backbone(families()["distilbert"], activation="gelu"), tmp_path, to="keras_hub")
    config = json.loads((tmp_path / "config.json").read_text())["config"]
    configure(tmp_path, config={**config, "alpha": 7})
    with pytest.warns(UserWarning, match="unknown keys") as caught:
        Backbone.from_preset(tmp_path)
    assert [str(warning.message) for warning in caught] == [
        f"{tmp_path}/config.json: ignoring unknown keys: `alpha` (7)."
    ]
    configure(tmp_path, config={**config, "position_embedding_type": "relative_key"})
    with pytest.raises(PresetError, match="`position_embedding_type` must be 'absolute' or None, got 'relative_key'"):
        Backbone.from_preset(tmp_path)


def test_omitted_sizes_are_the_defaults_of_the_class(tmp_path):
    """Weights of other sizes do not fit then."""
    save_checkpoint(tiny_backbone(families()["bert"]), tmp_path, to="hf")
    configure(tmp_path, "num_attention_heads", "intermediate_size")
    table = families()["bert"].checkpoints["hf"].config
    arguments = table.read(json.loads((tmp_path / "config.json").read_text()), tmp_path, ignore_unknown=True)
    assert (arguments["num_heads"], arguments["intermediate_dim"]) == (12, 3072)
    with pytest.raises(PresetError, match=str(tmp_path)):
        Backbone.from_preset(tmp_path)


def test_keys_of_other_heads_are_not_read(tmp_path):
    """Only ELECTRA's head for multiple choice summarizes a text by them."""
    save_checkpoint(tiny_backbone(families()["electra"]), tmp_path, to="hf")
    configure(tmp_path, summary_type="last", architectures=["ElectraForMultipleChoice"])
    Backbone.from_preset(tmp_path)
    with pytest.raises(PresetError, match="`summary_type` must be 'first', got 'last'"):
        find_hugging_face(JsonFiles(tmp_path)).stored_head.arguments("multiple_choice")


def test_harmless_values_of_marians_keys(tmp_path):
    """Null counts as false, and dropout in training does not change predictions."""
    save_checkpoint(tiny_backbone(families()["marian"]), tmp_path, to="hf")
    configure(tmp_path, add_final_layer_norm=None, normalize_before=None, activation_dropout=0, encoder_layerdrop=None)
    Backbone.from_preset(tmp_path)
    configure(tmp_path, activation_dropout=0.1)
    with pytest.warns(UserWarning, match=r"`activation_dropout` is 0.1, but training will use 0.0"):
        Backbone.from_preset(tmp_path)
    configure(tmp_path, activation_dropout=0.0, normalize_before=True)
    with pytest.raises(PresetError, match="`normalize_before` must be False or None, got True"):
        Backbone.from_preset(tmp_path)
