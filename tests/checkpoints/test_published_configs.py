"""120 published configurations: models are loaded with the numbers of transformers, or refused with the reason."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from lmzoo.checkpoints.bilm import open_bilm
from lmzoo.checkpoints.checkpoint import read_arguments
from lmzoo.checkpoints.family_names import names_in_transformers
from lmzoo.errors import PresetError
from lmzoo.models import Backbone
from lmzoo.presets.converting import save_checkpoint
from lmzoo.registry.family import Family, families, find_families_by_format
from tests.checkpoints.published import batch_of, hidden_states_of, shrink, write_peer
from tests.conftest import SHARED
from tests.reference.weights import difference, run

pytest.importorskip("torch")
pytest.importorskip("transformers")

CONFIGS = SHARED / "data/hub_configs"
EXPECTED = json.loads((CONFIGS / "expected.json").read_text()) if CONFIGS.is_dir() else {}
NEEDS_DATA = pytest.mark.skipif(not CONFIGS.is_dir(), reason="needs ../shared/data/hub_configs")
# Configurations of custom code could be read with a warning or refused; these two are read.
CUSTOM = {"bert/48_chinese-no-model-type-pinyin": "same", "google-bert/04_olfmlm-custom-keys": "read"}
OTHER_TYPE = "refuse: another type of model"
BY_TYPE = {names_in_transformers(family).model_type: family for family in find_families_by_format("hf")}


def get_expectation(case: str) -> str:
    """Return what should happen to a case; other types of models may have become families since."""
    text = CUSTOM.get(case, EXPECTED[case])
    return "same" if text == OTHER_TYPE and get_model_type(case) in BY_TYPE else text


def get_model_type(case: str) -> str | None:
    """Return the `model_type` of a case, if it has one."""
    file = CONFIGS / case / "config.json"
    return json.loads(file.read_text()).get("model_type") if file.is_file() else None


SAME = [case for case in EXPECTED if get_expectation(case).startswith("same")]
READ = [case for case in EXPECTED if get_expectation(case) == "read"]
REFUSED = [case for case in EXPECTED if get_expectation(case).startswith("refuse: ")]
TOLERANCE = 1.5e-6
FORMATS = {
    "bert_config.json": "google", "albert_config.json": "google", "config.json": "hf", "options.json": "bilm",
    "xlnet_config.json": "google",
}  # fmt: skip


def get_family_and_file(case: str) -> tuple[Family, Path]:
    """Return the family of a case, by its type or else its directory, and its configuration file."""
    name = case.partition("/")[0]
    family = {"openai-gpt": "gpt"}.get(name, name.removeprefix("google-"))
    file = next(file for file in sorted((CONFIGS / case).glob("*.json")) if file.name in FORMATS)
    return BY_TYPE.get(get_model_type(case)) or families()[family], file


def load_with_one_warning(directory: Path, keys: set[str], family: str | None = None) -> keras.Model:
    """Load a backbone, and check that one warning names its file and each of the unknown keys."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        backbone = Backbone.from_preset(directory, family=family)
    messages = [str(warning.message) for warning in caught if "unknown keys" in str(warning.message)]
    assert len(messages) == 1
    assert messages[0].startswith(f"{directory}/")
    assert all(f"`{key}` (" in messages[0] for key in keys)
    return backbone


def mark_slow_cases(cases: list[str]) -> list[object]:
    """Mark all cases but the first of each family as slow."""
    families_of = [case.partition("/")[0] for case in cases]
    return [
        pytest.param(case, marks=[pytest.mark.slow] if family in families_of[:number] else [], id=case)
        for number, (case, family) in enumerate(zip(cases, families_of, strict=True))
    ]


@NEEDS_DATA
@pytest.mark.parametrize("case", mark_slow_cases(SAME))
def test_numbers_equal_those_of_transformers(case, tmp_path):
    family, file = get_family_and_file(case)
    config = shrink(json.loads(file.read_text()), family, "hf")
    theirs = write_peer({**config, "invented_key": 7}, family, tmp_path)
    table = family.checkpoints["hf"].config
    keys = {*table.unknown(config), "invented_key"}
    backbone = load_with_one_warning(tmp_path, keys, None if config.get("model_type") else family.name)
    batch = batch_of(backbone.input)
    outputs = run(backbone, batch)
    ours = [*outputs.get("encoder_hidden_states", ()), *outputs["hidden_states"]]
    expected = hidden_states_of(theirs, batch)
    assert len(ours) == len(expected) > 2
    real = batch["padding_mask"] > 0
    assert max(difference(np.asarray(a)[real], b[real]) for a, b in zip(ours, expected, strict=True)) <= TOLERANCE


@NEEDS_DATA
@pytest.mark.parametrize("case", mark_slow_cases(READ))
def test_other_formats_are_read(case, tmp_path):
    """Write weights of a model with the configuration of TensorFlow's or bilm-tf's code next to it."""
    family, file = get_family_and_file(case)
    format = FORMATS[file.name]
    config = shrink(json.loads(file.read_text()), family, format)
    (tmp_path / file.name).write_text(json.dumps(config))
    if format == "bilm":
        arguments = open_bilm(tmp_path / file.name, tmp_path / "weights.hdf5").arguments
    else:
        arguments = read_arguments(family, format, config, file, ignore_unknown=True)
    backbone = family.backbone(**arguments)
    save_checkpoint(backbone, tmp_path / "model", to={"google": "tf1"}.get(format, format))
    (tmp_path / "model" / file.name).write_text(json.dumps({**config, "invented_key": 7}))
    reloaded = load_with_one_warning(tmp_path / "model", {"invented_key"})
    assert reloaded.config == backbone.config
    assert difference(reloaded.get_weights(), backbone.get_weights()) == 0


REASONS = {
    "an encoder and a decoder": "models of type 'encoder-decoder' are not supported",
    "cross-attention": "`add_cross_attention` must be False",
    "scale_attn_by_inverse_layer_idx": "`scale_attn_by_inverse_layer_idx` must be False",
    "another type of model": "models of type '[a-z_-]+(-v2)?' are not supported",
    "custom code, position_embedding_type alibi": r"`(auto_map|position_embedding_type)` must be|names 'JinaBert",
    "custom architecture with more embeddings": "`architectures` names 'ChineseBertForMaskedLM', a class of another",
    "position_embedding_type relative_key": "`position_embedding_type` must be 'absolute' or None, got 'relative_key'",
    "hidden_act silu": "`hidden_act` must be one of gelu, .*, got 'silu'",
    "quantization_config": "`quantization_config` must be None or {}, got {",
    "another library's ELMo": "options.json lacks the key 'lstm.dim'",
}


@NEEDS_DATA
@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_models_are_refused_with_the_reason(case, tmp_path):
    reason = EXPECTED[case].removeprefix("refuse: ")
    for file in (CONFIGS / case).glob("*.json"):
        shutil.copy(file, tmp_path)
    with h5py.File(tmp_path / "weights.hdf5", "w") as weights:
        weights["embedding"] = np.zeros((5, 3), "float32")
    with pytest.raises(PresetError, match=REASONS[reason]) as error:
        Backbone.from_preset(tmp_path, load_weights=False)
    assert str(tmp_path) in str(error.value)


@NEEDS_DATA
def test_every_configuration_is_tried():
    became_families = sum(text == OTHER_TYPE and get_model_type(case) in BY_TYPE for case, text in EXPECTED.items())
    assert (len(SAME) - became_families, len(READ), len(REFUSED) + became_families) == (93, 12, 15)
    assert {*SAME, *READ, *REFUSED} == EXPECTED.keys()
