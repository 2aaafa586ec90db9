"""Formats other than Hugging Face's: written, read back bit by bit, and read by the library that they come from."""

from __future__ import annotations

import argparse
import functools
import json
import re

import h5py
import numpy as np
import pytest

from lmzoo.checkpoints.engine import TRANSPOSED
from lmzoo.checkpoints.family_names import keras_hub_prefix
from lmzoo.models import (
    Backbone,
    ElmoBackbone,
    MaskedLM,
    QuestionAnswerer,
    RobertaBackbone,
    TextClassifier,
    TextRegressor,
    XlmRobertaBackbone,
)
from lmzoo.presets import PresetError
from lmzoo.presets.converting import save_checkpoint
from lmzoo.registry.family import Family, families, find_families_by_format
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from tests.checkpoints.model_files import configure
from tests.reference.elmo import product_paths, to_product
from tests.reference.weights import difference, padded_batch, randomise, run, to_numpy

FORMATS = [
    (family.name, to)
    for family in families().values()
    for to, kind in (("hf", "hf"), ("tf1", "google"), ("keras_hub", "keras_hub"), ("bilm", "bilm"))
    if kind in family.checkpoints
]


def starts_after_0(family: Family) -> bool:
    """Return whether the first position of a family is not 0; KerasHub has no rows for the positions before it."""
    return bool(getattr(family.tiny, "first_position", 0))


# Arguments that a format can express: KerasHub's BERT has no exact GELU, and no file holds XLNet's longest sequence.
EXPRESSIBLE = {
    ("bert", "keras_hub"): {"activation": "gelu_tanh"},
    ("albert", "keras_hub"): {"activation": "gelu_tanh"},
    ("electra", "keras_hub"): {"activation": "gelu_tanh"},
    ("albert", "tf1"): {"activation": "gelu_tanh"},
    **{(f.name, "hf"): {"num_segments": 1} for f in families().values() if starts_after_0(f) and f.tiny.has_segments},
    ("modernbert", "keras_hub"): {"max_sequence_length": 8192},
    ("t5", "keras_hub"): {"num_buckets": 32, "max_distance": 128, "decoder_layers": 3, "max_sequence_length": 512},
    ("xlnet", "hf"): {"max_sequence_length": 512},
    ("xlnet", "keras_hub"): {"max_sequence_length": 512},
    ("xlnet", "tf1"): {"max_sequence_length": 512, "activation": "gelu_tanh", "dropout": 0.1},
}


@pytest.fixture(scope="module")
def backbone_of():
    """Return a cached function that builds a family's tiny backbone, which tests must not change."""
    return functools.cache(lambda name, **arguments: tiny_backbone(families()[name], **arguments))


def get_weights(model) -> dict[str, np.ndarray]:
    return {weight.path: to_numpy(weight.value) for weight in model.weights if "seed_generator" not in weight.path}


def assert_same(ours, theirs, leaving_out: tuple[str, ...] = ()) -> None:
    actual = get_weights(ours)
    expected = get_weights(theirs)
    assert actual.keys() == expected.keys()
    for path in actual:
        if not path.startswith(leaving_out):
            np.testing.assert_array_equal(actual[path], expected[path], err_msg=path)


def clear_first_row(table) -> None:
    array = to_numpy(table.value)
    table.assign(np.concatenate([np.zeros_like(array[:1]), array[1:]]))


@pytest.mark.parametrize("shape", [(2, 3), (31, 5), (67, 7)])
def test_transposed_matrices_have_every_value(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(3).normal(size=shape).astype("float32")
    loaded = TRANSPOSED.load(matrix)
    np.testing.assert_array_equal(loaded, matrix.T)
    np.testing.assert_array_equal(TRANSPOSED.store(loaded), matrix)


@pytest.mark.slow_cases("marian-hf", "t5-hf", "t5-keras_hub", "t5_encoder-hf")
@pytest.mark.parametrize(("name", "to"), FORMATS)
def test_backbones_are_written_and_read(name, to, backbone_of, tmp_path):
    if to == "tf1":
        pytest.importorskip("tensorflow")
    lacks_rows = to == "bilm" or (to == "keras_hub" and starts_after_0(families()[name]))
    make = functools.partial(tiny_backbone, families()[name]) if lacks_rows else functools.partial(backbone_of, name)
    backbone = make(**EXPRESSIBLE.get((name, to), {}))
    if lacks_rows and to == "keras_hub":  # counts positions from 0, so that two rows do not exist
        table = backbone.embeddings.position_embedding.embeddings
        table.assign(np.concatenate([np.zeros((2, table.shape[1])), to_numpy(table.value)[2:]]))
    if to == "bilm":  # holds no row for the absence of a character, and no mix of layers
        clear_first_row(backbone.bilm.encoder.embedding)
    save_checkpoint(backbone, tmp_path, to=to)
    reloaded = Backbone.from_preset(tmp_path)
    omitted = {"dropout": reloaded.config.dropout} if to == "bilm" else {}
    assert reloaded.config == type(backbone.config)(**{**vars(backbone.config), **omitted})
    assert_same(reloaded, backbone, leaving_out=("scalar_mix",) if to == "bilm" else ())


@pytest.mark.parametrize("name", ["bert", "albert"])
@pytest.mark.parametrize("task_class", [MaskedLM, TextClassifier, QuestionAnswerer])
def test_heads_in_tensorflow_checkpoints(name, task_class, backbone_of, tmp_path):
    pytest.importorskip("tensorflow")
    family = families()[name]
    backbone = backbone_of(name, **EXPRESSIBLE.get((name, "tf1"), {}))
    arguments = {"num_classes": 5} if task_class is TextClassifier else {}
    task = task_class(backbone, tiny_preprocessor(family), **arguments)
    randomise(task.head)
    save_checkpoint(task, tmp_path, to="tf1")
    reloaded = task_class.from_preset(tmp_path, preprocessor=task.preprocessor)
    assert_same(reloaded, task, leaving_out=() if task.uses_pooler else ("pooler",))


def test_tensorflow_checkpoints_have_no_label_names(backbone_of, tmp_path):
    pytest.importorskip("tensorflow")
    family = families()["bert"]
    task = TextClassifier(backbone_of("bert"), tiny_preprocessor(family), labels=["no", "yes", "who knows"])
    with pytest.warns(UserWarning, match="no place for the names of labels: pass `labels=`"):
        save_checkpoint(task, tmp_path, to="tf1")
    reloaded = TextClassifier.from_preset(tmp_path, preprocessor=task.preprocessor)
    assert (reloaded.labels, reloaded.num_classes) == (None, 3)


def test_optimizer_slots_and_other_heads_are_left_out(backbone_of, tmp_path):
    tf = pytest.importorskip("tensorflow")
    from lmzoo.checkpoints.formats.tensorflow import write_tensorflow_checkpoint

    backbone = backbone_of("bert")
    save_checkpoint(backbone, tmp_path, to="tf1")
    reader = tf.train.load_checkpoint(str(tmp_path / "bert_model.ckpt"))
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    ignored = {f"{name}/adam_{slot}": array for name, array in tensors.items() for slot in "mv"}
    ignored |= {"global_step": np.int64(7), "cls/seq_relationship/output_weights": np.ones((2, 35), "float32")}
    write_tensorflow_checkpoint(tmp_path / "bert_model.ckpt", [*tensors.items(), *ignored.items()])
    assert_same(Backbone.from_preset(tmp_path), backbone)
    write_tensorflow_checkpoint(tmp_path / "bert_model.ckpt", [*tensors.items(), ("surprise", np.ones(3, "float32"))])
    with pytest.raises(PresetError, match=r"holds 'surprise' .* which is not part of the model"):
        Backbone.from_preset(tmp_path)


def test_a_configuration_for_transformers_does_not_hide_other_weights(backbone_of, tmp_path):
    """Guides to converting TensorFlow's files had users copy the configuration."""
    pytest.importorskip("tensorflow")
    backbone = backbone_of("bert")
    save_checkpoint(backbone, tmp_path, to="tf1")
    config = json.loads((tmp_path / "bert_config.json").read_text())
    for model_type, family in (({}, None), ({}, "bert"), ({"model_type": "bert"}, None)):
        (tmp_path / "config.json").write_text(json.dumps({**config, **model_type}))
        assert_same(Backbone.from_preset(tmp_path, family=family), backbone)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "bert_config.json").write_text(json.dumps({**config, "hidden_act": "swish"}))
    with pytest.raises(PresetError, match=r"bert_config\.json: `hidden_act` must be one of"):
        Backbone.from_preset(tmp_path)


def test_other_files_next_to_a_configuration_are_ignored(backbone_of, tmp_path):
    torch = pytest.importorskip("torch")
    save_checkpoint(backbone_of("bert"), tmp_path, to="hf")
    torch.save({"weight": torch.ones(3)}, tmp_path / "model.pt")
    assert_same(Backbone.from_preset(tmp_path), backbone_of("bert"))
    (tmp_path / "model.safetensors").unlink()
    assert isinstance(Backbone.from_preset(tmp_path, load_weights=False), type(backbone_of("bert")))
    with pytest.raises(PresetError, match="holds a configuration but no weights"):
        Backbone.from_preset(tmp_path)


def test_a_configuration_of_googles_code_is_enough_for_random_weights(backbone_of, tmp_path):
    pytest.importorskip("tensorflow")
    save_checkpoint(backbone_of("bert"), tmp_path, to="tf1")
    for file in tmp_path.glob("bert_model.ckpt.*"):
        file.unlink()
    assert Backbone.from_preset(tmp_path, load_weights=False).config == backbone_of("bert").config
    with pytest.raises(PresetError, match=r"must hold one checkpoint \(a file \*\.index\); found none"):
        Backbone.from_preset(tmp_path)


GARDEN = {
    "attention/self/query": "_attention_layer/_query_dense",
    "attention/self/key": "_attention_layer/_key_dense",
    "attention/self/value": "_attention_layer/_value_dense",
    "attention/output/LayerNorm": "_attention_layer_norm",
    "intermediate/dense": "_intermediate_dense",
    "output/dense": "_output_dense",
    "output/LayerNorm": "_output_layer_norm",
}


@pytest.mark.parametrize("output", ["_attention_layer/_output_dense", "_attention_output_dense"])
def test_checkpoints_of_the_model_garden_are_read(output, backbone_of, tmp_path):
    """Layers have numbers, from the embeddings to the pooler; heads are an axis."""
    tf = pytest.importorskip("tensorflow")
    from lmzoo.checkpoints.formats.tensorflow import write_tensorflow_checkpoint

    backbone = backbone_of("bert")
    save_checkpoint(backbone, tmp_path, to="tf1")
    reader = tf.train.load_checkpoint(str(tmp_path / "bert_model.ckpt"))
    tensors = []
    for name in reader.get_variable_to_shape_map():
        array, new_name = reader.get_tensor(name), name.removeprefix("bert/")
        for number, table in enumerate(("word_embeddings", "position_embeddings", "token_type_embeddings")):
            new_name = new_name.replace(f"embeddings/{table}", f"{number}/embeddings")
        new_name = new_name.replace("embeddings/LayerNorm", "3").replace("pooler/dense", "7")
        for layer in range(2):
            for theirs, garden in {**GARDEN, "attention/output/dense": output}.items():
                new_name = new_name.replace(f"encoder/layer_{layer}/{theirs}/", f"{layer + 4}/{garden}/")
        if "/self/" in name:
            array = array.reshape(*array.shape[:-1], 5, 7)
        elif name.endswith("attention/output/dense/kernel"):
            array = array.reshape(5, 7, 35)
        tensors.append((f"model/layer_with_weights-{new_name}/.ATTRIBUTES/VARIABLE_VALUE", array))
    counter = ("save_counter/.ATTRIBUTES/VARIABLE_VALUE", np.int64(3))
    write_tensorflow_checkpoint(tmp_path / "bert_model.ckpt", [*tensors, counter])
    reloaded = Backbone.from_preset(tmp_path)
    assert reloaded.config.activation == "gelu_tanh"
    assert_same(reloaded, backbone)
    configure(tmp_path, num_attention_heads=7)
    message = r"bert_model.ckpt.index: 'model/layer_with_weights-4/\S+' has shape .*, expected 7 heads on axis [01]"
    with pytest.raises(PresetError, match=message):
        Backbone.from_preset(tmp_path)


KERAS_HUB_SIZES = {
    "num_layers": 3,
    "num_heads": 5,
    "hidden_dim": 35,
    "intermediate_dim": 53,
    "max_sequence_length": 67,
}
NARROW = {**KERAS_HUB_SIZES, "embedding_dim": 13}
# Files number the blocks of all groups consecutively: groups of three would reveal a wrong order.
GROUPS = {**KERAS_HUB_SIZES, "num_layers": 4, "embedding_dim": 13, "num_groups": 2, "num_inner_repetitions": 3}
SHORT_BUCKETS = {**KERAS_HUB_SIZES, "bucket_size": 6}  # shorter than the sequences
XLNET_SIZES = {"num_layers": 3, "num_heads": 3, "hidden_dim": 42, "intermediate_dim": 47}


# Models with an encoder and a decoder have other inputs; tests/families compares them.
@pytest.mark.quick_cases("deberta_v3")
@pytest.mark.parametrize(
    "name", [family.name for family in find_families_by_format("keras_hub") if not family.backbone.reads_source]
)
def test_keras_hub_backbones_compute_the_same(name, tmp_path):
    """Load KerasHub's preset here, and our preset there."""
    keras_hub = pytest.importorskip("keras_hub")
    sizes_by_family = {"albert": GROUPS, "electra": NARROW, "xlnet": XLNET_SIZES, "deberta_v3": SHORT_BUCKETS}
    sizes = sizes_by_family.get(name, KERAS_HUB_SIZES)
    class_name = f"{keras_hub_prefix(families()[name])}Backbone"
    if not hasattr(keras_hub.models, class_name):
        pytest.skip(f"KerasHub {keras_hub.__version__} has no {class_name}")
    cls = getattr(keras_hub.models, class_name)
    keys = families()[name].checkpoints["keras_hub"].config.keys
    theirs = cls(**{key: 131 for key, argument in keys.items() if argument == "vocabulary_size"}, **sizes)
    randomise(theirs)
    theirs.save_to_preset(str(tmp_path / "theirs"))
    ours = Backbone.from_preset(tmp_path / "theirs")
    check_keras_hub(ours, theirs)
    save_checkpoint(ours, tmp_path / "ours", to="keras_hub")
    check_keras_hub(ours, keras_hub.models.Backbone.from_preset(str(tmp_path / "ours")))


@pytest.mark.parametrize("name", ["roberta", "xlm_roberta"])
def test_the_only_segment_becomes_part_of_keras_hubs_positions(name, tmp_path):
    """Every model of transformers has a segment, and KerasHub's models have none."""
    keras_hub = pytest.importorskip("keras_hub")
    ours = tiny_backbone(families()[name], num_segments=1)
    randomise(ours)
    save_checkpoint(ours, tmp_path, to="keras_hub")
    batch = {**padded_batch(), "segment_ids": np.zeros_like(padded_batch()["segment_ids"])}
    real = batch["padding_mask"] > 0
    expected = np.asarray(run(ours, {key: batch[key] for key in ours.input})["sequence_output"])
    theirs = keras_hub.models.Backbone.from_preset(str(tmp_path))
    assert difference(to_numpy(theirs({key: batch[key] for key in theirs.input}))[real], expected[real]) <= 1e-5
    assert Backbone.from_preset(tmp_path).config.num_segments == 0
    with pytest.raises(PresetError, match="cannot express `num_segments=2`"):
        save_checkpoint(tiny_backbone(families()[name], num_segments=2), tmp_path / "two", to="keras_hub")


def test_keras_hubs_files_may_hold_bfloat16(backbone_of, tmp_path):
    backbone = backbone_of("bert", **EXPRESSIBLE["bert", "keras_hub"])
    save_checkpoint(backbone, tmp_path, to="keras_hub")
    arrays = {}
    with h5py.File(tmp_path / "model.weights.h5", "r+") as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
        for name, array in arrays.items():
            del file[name]
            file.create_dataset(name, data=array.astype("bfloat16")).attrs["dtype"] = "bfloat16"
    actual = get_weights(Backbone.from_preset(tmp_path))
    for path, array in get_weights(backbone).items():
        np.testing.assert_array_equal(actual[path], array.astype("bfloat16").astype("float32"), err_msg=path)


def test_a_wrong_number_of_heads_is_refused(backbone_of, tmp_path):
    save_checkpoint(backbone_of("distilbert"), tmp_path, to="keras_hub")
    config = json.loads((tmp_path / "config.json").read_text())["config"]
    configure(tmp_path, config={**config, "num_heads": config["hidden_dim"]})  # one column each
    message = rf"model.weights.h5: '\S+_dense/vars/0' has shape .*, expected {config['hidden_dim']} heads on axis"
    with pytest.raises(PresetError, match=message):
        Backbone.from_preset(tmp_path)


def test_wrong_groups_in_keras_hubs_files_are_refused(backbone_of, tmp_path):
    save_checkpoint(backbone_of("albert", activation="gelu_tanh"), tmp_path, to="keras_hub")
    config = json.loads((tmp_path / "config.json").read_text())["config"]
    with h5py.File(tmp_path / "model.weights.h5") as file:  # two groups of two blocks
        numbers = [name for name in file["layers"] if name.startswith("transformer_encoder")]
    assert sorted(numbers) == ["transformer_encoder", *(f"transformer_encoder_{i}" for i in (1, 2, 3))]
    configure(tmp_path, config={**config, "num_inner_repetitions": 1000})
    with pytest.raises(PresetError, match=r"`num_inner_repetitions` is 1,000, but .* holds 4 of them"):
        Backbone.from_preset(tmp_path)
    configure(tmp_path, config={**config, "num_groups": 1})  # as many as its numbers allow
    with pytest.raises(PresetError, match=r"holds 'layers/transformer_encoder_1_0/\S+' .* not part of the model"):
        Backbone.from_preset(tmp_path)
    configure(tmp_path, config=config)
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        file["layers"].copy("transformer_encoder_1", "transformer_encoder_0_1")
    with pytest.raises(PresetError, match=r"holds the same tensor twice: '\S+encoder_\S+' and '\S+encoder_\S+'"):
        Backbone.from_preset(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "mish"}, "`activation` must be one of gelu, relu, silu, swish, tanh, got 'mish'"),
        ({"num_heads": 5}, r"`hidden_dim` \(42\) must be a multiple of `num_heads` \(5\)"),  # the heads have 8 columns
        ({"attn_type": "uni"}, "`attn_type` must be 'bi', got 'uni'"),  # a key of transformers, not of KerasHub
    ],
)
def test_unsupported_settings_of_keras_hubs_xlnet_are_refused(changes, message, backbone_of, tmp_path):
    save_checkpoint(backbone_of("xlnet", max_sequence_length=512), tmp_path, to="keras_hub")
    config = json.loads((tmp_path / "config.json").read_text())["config"]
    configure(tmp_path, config={**config, **changes})
    with pytest.raises(PresetError, match=message):
        Backbone.from_preset(tmp_path)


def test_xlnets_tokenizer_is_not_written_for_keras_hub(backbone_of, tmp_path):
    backbone, preprocessor = backbone_of("xlnet", max_sequence_length=512), tiny_preprocessor(families()["xlnet"])
    with pytest.warns(UserWarning, match="KerasHub has no tokenizer for 'xlnet': only the model is written"):
        save_checkpoint(backbone, tmp_path, to="keras_hub", preprocessor=preprocessor)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "metadata.json", "model.weights.h5"}


def check_keras_hub(ours, theirs) -> None:
    batch = padded_batch()
    real = batch["padding_mask"] > 0
    if type(theirs).__name__ == "XLNetBackbone":  # mixes up the texts of a batch: see `KERAS_HUB` of XLNet
        rows = [{name: array[i : i + 1] for name, array in batch.items()} for i in range(len(real))]
        expected = np.concatenate([to_numpy(theirs(row)) for row in rows])
    else:
        expected = to_numpy(theirs({name: batch[name] for name in theirs.input}))
        expected = expected["sequence_output"] if isinstance(expected, dict) else expected
    actual = run(ours, {name: batch[name] for name in ours.input})["sequence_output"]
    assert difference(np.asarray(actual)[real], expected[real]) <= 1e-5


def fairseq_state(task, prefix: str, fused: bool) -> dict[str, np.ndarray]:
    """Return the weights of a RoBERTa under fairseq's names, written down here from its published layout."""
    state = {}
    names = {
        "embeddings/token_embedding/embeddings": "embed_tokens.weight",
        "embeddings/position_embedding/embeddings": "embed_positions.weight",
        "embeddings/layer_norm/gamma": "emb_layer_norm.weight",
        "embeddings/layer_norm/beta": "emb_layer_norm.bias",
    }
    parts = {
        "attention/output_dense": "self_attn.out_proj",
        "attention_layer_norm": "self_attn_layer_norm",
        "intermediate_dense": "fc1",
        "output_dense": "fc2",
        "output_layer_norm": "final_layer_norm",
        "attention/query": "self_attn.q_proj",
        "attention/key": "self_attn.k_proj",
        "attention/value": "self_attn.v_proj",
    }
    weights = get_weights(task)
    for path, name in names.items():
        state[f"{prefix}sentence_encoder.{name}"] = weights.pop(path)
    for layer in range(task.backbone.config.num_layers):
        for ours, theirs in parts.items():
            for kind, end in {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}.items():
                if (array := weights.pop(f"block_{layer}/{ours}/{kind}", None)) is not None:
                    state[f"{prefix}sentence_encoder.layers.{layer}.{theirs}.{end}"] = array.T
        if fused:
            attention = f"{prefix}sentence_encoder.layers.{layer}.self_attn."
            for end in ("weight", "bias"):
                thirds = [state.pop(f"{attention}{part}_proj.{end}") for part in "qkv"]
                state[f"{attention}in_proj_{end}"] = np.concatenate(thirds)
    for part in ("dense", "layer_norm"):
        for kind, end in {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}.items():
            if (array := weights.pop(f"masked_lm_head/{part}/{kind}", None)) is not None:
                state[f"{prefix}lm_head.{part}.{end}"] = array.T
    state[f"{prefix}lm_head.bias"] = weights.pop("masked_lm_head/output_bias")
    state[f"{prefix}lm_head.weight"] = state[f"{prefix}sentence_encoder.embed_tokens.weight"]
    assert not weights
    return state


FAIRSEQ_ARGUMENTS = {
    "arch": "roberta_base", "encoder_layers": 3, "encoder_attention_heads": 7, "encoder_embed_dim": 49,
    "encoder_ffn_embed_dim": 43, "max_positions": 71, "dropout": 0.1, "attention_dropout": 0.1, "activation_fn": "gelu",
    "lr": [0.1],
}  # fmt: skip


@pytest.mark.parametrize(("prefix", "fused"), [("decoder.", True), ("encoder.", False)])
def test_roberta_of_fairseq_is_read(prefix, fused, tmp_path):
    torch = pytest.importorskip("torch")
    task = tiny_task(MaskedLM, families()["roberta"])
    randomise(task)
    arguments = argparse.Namespace(**FAIRSEQ_ARGUMENTS)
    state = {name: torch.tensor(array) for name, array in fairseq_state(task, prefix, fused).items()}
    legacy = {"_use_new_zipfile_serialization": not fused}  # as the first releases were saved
    torch.save({"model": state, "args": arguments}, tmp_path / "model.pt", **legacy)
    reloaded = MaskedLM.from_preset(tmp_path, preprocessor=task.preprocessor)
    assert isinstance(reloaded.backbone, RobertaBackbone)
    assert_same(reloaded, task)
    # The files of the tokenizer tell the family.
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"a model")
    assert isinstance(Backbone.from_preset(tmp_path), XlmRobertaBackbone)
    (tmp_path / "sentencepiece.bpe.model").unlink()
    arguments.encoder_normalize_before = True
    torch.save({"model": state, "args": arguments}, tmp_path / "model.pt", **legacy)
    with pytest.raises(PresetError, match="`encoder_normalize_before` must be False, got True"):
        MaskedLM.from_preset(tmp_path, preprocessor=task.preprocessor)


@pytest.mark.parametrize(("cls", "other_cls"), [(TextClassifier, TextRegressor), (TextRegressor, TextClassifier)])
def test_heads_for_texts_of_fairseq_are_read(cls, other_cls, tmp_path):
    """One output is a number, as in STS-B."""
    torch = pytest.importorskip("torch")
    pretrained = tiny_task(MaskedLM, families()["roberta"])
    task = cls(pretrained.backbone, pretrained.preprocessor, **({"num_classes": 5} if cls is TextClassifier else {}))
    randomise(task)
    state = fairseq_state(pretrained, "encoder.", fused=False)
    for ours, theirs in (("dense", "dense"), ("logits", "out_proj")):
        for kind, end in (("kernel", "weight"), ("bias", "bias")):
            name = f"classification_heads.sentence_classification_head.{theirs}.{end}"
            state[name] = get_weights(task)[f"classifier/{ours}/{kind}"].T
    state = {name: torch.tensor(array) for name, array in state.items()}
    torch.save({"model": state, "args": argparse.Namespace(**FAIRSEQ_ARGUMENTS)}, tmp_path / "model.pt")
    assert_same(cls.from_preset(tmp_path, preprocessor=task.preprocessor), task)
    with pytest.raises(PresetError, match=f"holds the head of a {cls.__name__}, not of a {other_cls.__name__}"):
        other_cls.from_preset(tmp_path, preprocessor=task.preprocessor)


ELMOS = [{}, {"lstm_dim": 13}, {"filters": ((1, 5), (2, 8))}, {"num_layers": 1, "num_highway": 0}]


@pytest.mark.parametrize("sizes", ELMOS)
def test_elmo_is_written_and_read_in_every_form(sizes, tmp_path):
    """D = P has no projection after the memory; F = P has none after the characters."""
    sizes = {"lstm_dim": 17, "projection_dim": 13, "char_embedding_dim": 3, "filters": ((1, 5), (2, 11)), **sizes}
    backbone = ElmoBackbone(**sizes)
    randomise(backbone)
    clear_first_row(backbone.bilm.encoder.embedding)
    save_checkpoint(backbone, tmp_path, to="bilm")
    assert_same(Backbone.from_preset(tmp_path), backbone, leaving_out=("scalar_mix",))
    paths, weights = product_paths(backbone.config), {weight.path: weight for weight in backbone.weights}
    with h5py.File(tmp_path / "weights.hdf5") as file:
        for name, path in paths.items():
            np.testing.assert_array_equal(to_product(name, file[name][()]), to_numpy(weights.pop(path)), err_msg=name)
    assert all(path.startswith("scalar_mix/") for path in weights)


def test_an_elmo_of_tokens_is_written_and_read(tmp_path):
    backbone = ElmoBackbone(lstm_dim=17, projection_dim=13, vocabulary_size=31)
    randomise(backbone)
    clear_first_row(backbone.bilm.encoder.embeddings)
    save_checkpoint(backbone, tmp_path, to="bilm")
    reloaded = Backbone.from_preset(tmp_path)
    assert reloaded.config.vocabulary_size == 31
    assert_same(reloaded, backbone, leaving_out=("scalar_mix",))


def test_arguments_that_a_format_cannot_express_are_refused(backbone_of, tmp_path):
    backbone = tiny_backbone(families()["bert"], layer_norm_epsilon=1e-5)
    message = "of Google's code\" cannot express `layer_norm_epsilon=1e-05`: there it is 1e-12"
    with pytest.raises(PresetError, match=message):
        save_checkpoint(backbone, tmp_path / "new", to="tf1")
    backbone = backbone_of("bert", activation="gelu_tanh")
    with pytest.raises(PresetError, match="of Google's code\" cannot express `activation='gelu_tanh'`"):
        save_checkpoint(backbone, tmp_path / "new", to="tf1")
    with pytest.raises(PresetError, match="The family 'bert' has no format 'bilm': it has hf, tf1, keras_hub"):
        save_checkpoint(backbone, tmp_path / "new", to="bilm")
    with pytest.raises(ValueError, match="`to` must be one of keras, hf"):
        save_checkpoint(backbone, tmp_path / "new", to="onnx")
    assert not (tmp_path / "new").exists()


def test_an_omitted_initializer_range_gives_a_warning(backbone_of, tmp_path):
    backbone = backbone_of("bert", activation="gelu_tanh", initializer_range=0.05)
    with pytest.warns(UserWarning, match=r"holds no `initializer_range`: .* a deviation of 0\.02, not 0\.05"):
        save_checkpoint(backbone, tmp_path, to="keras_hub")
    assert_same(Backbone.from_preset(tmp_path), backbone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "albert"])
def test_the_warning_of_an_approximate_gelu_gives_the_difference(name, tmp_path):
    backbone = tiny_backbone(families()[name], activation="gelu")
    with pytest.warns(UserWarning, match="the exact GELU, for which the format 'keras_hub' always") as caught:
        save_checkpoint(backbone, tmp_path, to="keras_hub")
    reloaded = Backbone.from_preset(tmp_path)
    assert reloaded.config.activation == "gelu_tanh"
    assert_same(reloaded, backbone)
    numbers = r"by up to (\S+), at a standard deviation of (\S+)\.$"
    error, deviation = next(map(float, m.groups()) for w in caught if (m := re.search(numbers, str(w.message))))
    rng = np.random.default_rng(7)
    ids = rng.integers(0, backbone.config.vocabulary_size, (4, 61), "int32")
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    exact, approximate = (run(model, inputs)["sequence_output"] for model in (backbone, reloaded))
    assert 0 < error < 0.1 * deviation
    assert error / 4 < difference(exact, approximate) < 4 * error
    assert deviation == pytest.approx(exact.std(), rel=0.1)


@pytest.mark.parametrize("to", ["hf", "keras_hub"])
def test_a_directory_of_another_format_is_not_overwritten(to, backbone_of, tmp_path):
    backbone = backbone_of("bert")
    old_format = {"hf": "keras", "keras_hub": "hf"}[to]
    save_checkpoint(backbone, tmp_path, to=old_format)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(FileExistsError):
        save_checkpoint(backbone, tmp_path, to=to)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    save_checkpoint(backbone, tmp_path, to=old_format)


def test_damaged_presets_without_a_manifest_are_refused(backbone_of, tmp_path):
    backbone_of("bert").save_to_preset(tmp_path)
    (tmp_path / "manifest.json").unlink()
    path, config = tmp_path / "model.weights.h5", tmp_path / "config.json"
    weights, stored = path.read_bytes(), json.loads(config.read_text())
    path.write_bytes(b"<!DOCTYPE html>")
    with pytest.raises(PresetError, match=f"{path}.*is a web page"):
        Backbone.from_preset(tmp_path)
    path.write_bytes(weights)
    for inner in ({}, {"config": 5}):
        config.write_text(json.dumps({"registered_name": stored["registered_name"], **inner}))
        with pytest.raises(PresetError, match=f"{config} is malformed"):
            Backbone.from_preset(tmp_path)


def test_a_configuration_that_names_no_backbone_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    message = "names no backbone of lmzoo: it has neither `model_type`, as in Hugging Face's"
    with pytest.raises(PresetError, match=message):
        Backbone.from_preset(tmp_path)
