"""Checkpoints of transformers: loaded with its numbers, written for it again, and refused if anything is wrong."""

from __future__ import annotations

import json
import re
import shutil
import warnings

import numpy as np
import pytest

from lmzoo.models import (
    Backbone,
    CausalLM,
    GptBackbone,
    MaskedLM,
    QuestionAnswerer,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
)
from lmzoo.presets import PresetError
from lmzoo.presets.converting import save_checkpoint
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from tests.checkpoints.model_files import check_hidden_states, configure, load, peer, rewrite
from tests.reference.weights import to_numpy

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def bert_files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bert")
    peer("bert", "Model", directory)
    return directory


@pytest.fixture
def bert(bert_files, tmp_path):
    """Return a directory with the files of a BERT, which a test may change."""
    return shutil.copytree(bert_files, tmp_path, dirs_exist_ok=True)


def test_old_files_of_gpt2_are_read(tmp_path):
    """Old files lack the prefix, and hold the masks of attention."""
    theirs = peer("gpt2", "LMHeadModel", tmp_path)
    rewrite(
        tmp_path,
        lambda state: {
            **{name.removeprefix("transformer."): tensor for name, tensor in state.items()},
            "h.0.attn.bias": torch.ones(1, 1, 67, 67),
            "lm_head.weight": state["transformer.wte.weight"].clone(),
        },
    )
    check_hidden_states(theirs, load(tmp_path))
    assert load(tmp_path).intermediate_dim == 53
    configure(tmp_path, scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(PresetError, match="`scale_attn_by_inverse_layer_idx` must be False, got True"):
        load(tmp_path)


def test_the_end_of_gpt2s_texts_is_written(tmp_path):
    task = tiny_task(CausalLM, families()["gpt2"])
    save_checkpoint(task, tmp_path, to="hf")
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert [config.bos_token_id, config.eos_token_id] == [task.preprocessor.tokenizer.end_token_id] * 2
    save_checkpoint(task.backbone, tmp_path, to="hf")
    assert transformers.AutoConfig.from_pretrained(tmp_path).eos_token_id is None


def test_gpts_feed_forward_layers_have_four_times_the_width(tmp_path):
    """Other widths cannot be written."""
    backbone = GptBackbone(vocabulary_size=131, num_layers=1, num_heads=2, hidden_dim=6, intermediate_dim=7)
    with pytest.raises(PresetError, match="intermediate_dim"):
        save_checkpoint(backbone, tmp_path, to="hf")


def test_label_names_without_meaning_are_left_out(tmp_path):
    peer("bert", "ForSequenceClassification", tmp_path)
    configure(tmp_path, id2label={str(i): f"LABEL_{i}" for i in range(5)})
    task = load(tmp_path, TextClassifier)
    assert task.labels is None
    assert task.class_names == ["0", "1", "2", "3", "4"]


def test_roberta_without_segments_is_written_with_a_zero_row(tmp_path):
    from lmzoo.families.roberta import FAMILY
    from lmzoo.testing import tiny_backbone

    backbone = tiny_backbone(FAMILY)
    assert backbone.config.num_segments == 0
    save_checkpoint(backbone, tmp_path, to="hf")
    check_hidden_states(transformers.RobertaModel.from_pretrained(tmp_path, add_pooling_layer=False).eval(), backbone)


def test_shards_are_loaded(tmp_path):
    theirs = peer("bert", "Model", tmp_path, {"max_shard_size": "20KB"})
    assert (tmp_path / "model.safetensors.index.json").exists()
    check_hidden_states(theirs, load(tmp_path))


def test_pickled_shards_are_loaded(tmp_path):
    theirs = peer("bert", "Model", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    state = theirs.state_dict()
    weight_map = {name: f"pytorch_model-0000{number % 2 + 1}-of-00002.bin" for number, name in enumerate(state)}
    for shard in set(weight_map.values()):
        torch.save({name: state[name] for name in state if weight_map[name] == shard}, tmp_path / shard)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    check_hidden_states(theirs, load(tmp_path))


def test_a_missing_pooler_is_reported_once_to_tasks_that_use_it(tmp_path):
    peer("bert", "ForMaskedLM", tmp_path)
    cases = [
        (TextClassifier, {"num_classes": 2, "pooling": "first"}, 1),
        (TextClassifier, {"num_classes": 2, "pooling": "mean"}, 0),
        (TokenClassifier, {"num_classes": 3}, 0),
        (QuestionAnswerer, {}, 0),
        (MaskedLM, {}, 0),
        (TextEmbedder, {}, 0),
    ]
    for cls, arguments, count in cases:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            task = load(tmp_path, cls, **arguments)
        assert sum("pooler" in str(warning.message) for warning in caught) == count, cls
        assert np.abs(to_numpy(task.backbone.pooler.variables[0])).max() > 0


def test_old_names_of_tensors_are_read(tmp_path):
    """Old files have no prefix, `gamma` and `beta`, a buffer of positions, and a copy of the decoder."""
    theirs = peer("bert", "ForPreTraining", tmp_path)

    def age(state):
        old = {re.sub("LayerNorm.weight$", "LayerNorm.gamma", name): tensor for name, tensor in state.items()}
        old = {re.sub("LayerNorm.bias$", "LayerNorm.beta", name): tensor for name, tensor in old.items()}
        old["bert.embeddings.position_ids"] = torch.arange(67)[None]
        old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
        return old

    rewrite(tmp_path, age)
    check_hidden_states(theirs, load(tmp_path))
    rewrite(tmp_path, lambda state: {n.removeprefix("bert."): t for n, t in state.items() if n.startswith("bert.")})
    check_hidden_states(theirs, load(tmp_path))


def test_weights_in_half_precision_are_loaded(tmp_path):
    theirs = peer("bert", "Model", tmp_path)
    rewrite(tmp_path, lambda state: {name: tensor.bfloat16() for name, tensor in state.items()})
    check_hidden_states(theirs.bfloat16().float(), load(tmp_path))


QUERY = "encoder.layer.1.attention.self.query.weight"
REFUSED_TENSORS = {
    "missing": (lambda s: {n: t for n, t in s.items() if n != QUERY}, f"lacks '{QUERY}'"),
    "extra": (lambda s: {**s, "adapter.weight": torch.ones(3)}, "holds 'adapter.weight' .*not part of the model"),
    "layer too many": (lambda s: {**s, QUERY.replace("1", "3"): s[QUERY].clone()}, "not part of the model"),
    "transposed": (
        lambda s: {**s, "encoder.layer.0.output.dense.weight": s["encoder.layer.0.output.dense.weight"].T.contiguous()},
        r"'encoder.layer.0.output.dense.weight' has shape \(53, 35\), expected \(35, 53\)",
    ),
    "half a pooler": (lambda s: {n: t for n, t in s.items() if n != "pooler.dense.bias"}, "lacks 'pooler.dense.bias'"),
    "integers": (lambda s: {**s, QUERY: s[QUERY].to(torch.int32)}, "holds int32, expected floats"),
    "twice": (lambda s: {**s, f"bert.{QUERY}": s[QUERY].clone()}, "the same tensor twice"),
}


@pytest.mark.parametrize("name", REFUSED_TENSORS)
def test_wrong_tensors_are_refused(name, bert):
    change, message = REFUSED_TENSORS[name]
    rewrite(bert, change)
    with pytest.raises(PresetError, match=message) as error:
        load(bert)
    assert str(bert) in str(error.value)


def test_a_decoder_that_differs_from_the_embeddings_is_refused(tmp_path):
    peer("bert", "ForMaskedLM", tmp_path)
    table = "bert.embeddings.word_embeddings.weight"
    rewrite(tmp_path, lambda s: {**s, "cls.predictions.decoder.weight": s[table] + 1})
    with pytest.raises(PresetError, match=r"cls.predictions.decoder.weight differs from .*word_embeddings"):
        load(tmp_path, MaskedLM)


REFUSED_CONFIGS = {
    "custom code": ({"auto_map": {"AutoModel": "modeling.py"}}, "`auto_map` must be None or {}, got {'AutoModel'"),
    "quantized": ({"quantization_config": {"bits": 8}}, "`quantization_config` must be None or {}, got {'bits': 8}"),
    "pruned": ({"pruned_heads": {"0": [1]}}, r"`pruned_heads` must be {} or None, got {'0': \[1\]}"),
    "layers of their own": ({"per_layer_config": {"1": {"hidden_act": "relu"}}}, "`per_layer_config` must be None or"),
    "norms before": ({"ln_type": "preln"}, "`ln_type` must be 'postln', got 'preln'"),
    "vocabulary": ({"vocab_size": 137}, r"word_embeddings.weight' has shape \(131, 35\), expected \(137, 35\)"),
    "positions": ({"position_embedding_type": "relative_key"}, "`position_embedding_type` must be 'absolute'"),
    "decoder": ({"is_decoder": True}, "`is_decoder` must be False"),
    "activation": ({"hidden_act": "swish"}, "`hidden_act` must be one of gelu, .* got 'swish'"),
    "family": (
        {"model_type": "no_such_type"},
        "models of type 'no_such_type' are not supported; supported are albert",
    ),
    "heads": (
        {"num_attention_heads": 4},
        "a multiple of `num_heads` .4.. In the file, `num_heads` is `num_attention_heads`",
    ),
    "layers": ({"num_hidden_layers": 4}, "lacks 'encoder.layer.3.attention"),
    "a number as text": (
        {"num_hidden_layers": "3"},
        "must be a positive integer, got '3'. In the file, .* is `num_hidden_layers`",
    ),
    "NaN": (
        {"layer_norm_eps": float("nan")},
        r"must be a number in \(0, 1\), got nan. In the file, .* is `layer_norm_eps`",
    ),
    "a million layers": (
        {"num_hidden_layers": 1_000_000},
        "must be at most 1,000, got 1000000. In the file, .* is `num_hidden_layers`",
    ),
    "no rate": (
        dict.fromkeys(["hidden_dropout_prob", "attention_probs_dropout_prob"]),
        r"must be a number in \[0, 1\), got None",
    ),
    "no type": ({"model_type": ["bert"]}, r"models of type \['bert'\] are not supported"),
}


@pytest.mark.parametrize("name", REFUSED_CONFIGS)
def test_wrong_configurations_are_refused(name, bert):
    change, message = REFUSED_CONFIGS[name]
    configure(bert, **change)
    with pytest.raises(PresetError, match=message) as error:
        load(bert)
    assert str(bert) in str(error.value)


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("bert", {"num_hidden_layers": 900}, "`num_hidden_layers` is 900, but .* holds 3 of them"),
        ("bert", {"vocab_size": 10**9}, "`vocab_size` is 1,000,000,000, but .* holds 131 at most in one tensor"),
        ("albert 2x2 relu", {"num_hidden_groups": 100, "num_hidden_layers": 100}, "`num_hidden_groups` is 100, but"),
        ("albert 2x2 relu", {"inner_group_num": 5}, "`inner_group_num` is 5, but .* holds 2 of them"),
        ("roberta", {"max_position_embeddings": 3000}, "`max_position_embeddings` minus 2 is 2,998, but"),
    ],
)
def test_sizes_that_the_file_cannot_hold_are_refused_before_building(case, change, message, tmp_path, monkeypatch):
    def build(*_):
        raise AssertionError("built")

    peer(case, "Model", tmp_path)
    configure(tmp_path, **change)
    monkeypatch.setattr(Backbone, "__init__", build)
    with pytest.raises(PresetError, match=message):
        load(tmp_path)


def test_weights_that_are_not_finite_are_loaded_with_a_warning(bert):
    def spoil(tensors):
        tensors["embeddings.word_embeddings.weight"][7, 3] = np.nan
        tensors["encoder.layer.1.output.dense.bias"][5] = np.inf
        return tensors

    rewrite(bert, spoil)
    with pytest.warns(UserWarning, match="word_embeddings.weight' is NaN or infinite in 1 of 4585 values") as caught:
        load(bert)
    assert sum("NaN or infinite" in str(w.message) for w in caught) == 1


def test_equal_copies_may_hold_nan(tmp_path):
    peer("bert", "ForMaskedLM", tmp_path)

    def spoil(tensors):
        bias = tensors["cls.predictions.bias"]
        bias[7] = np.nan
        return {**tensors, "cls.predictions.decoder.bias": bias.clone()}

    rewrite(tmp_path, spoil)
    with pytest.warns(UserWarning, match="cls.predictions.*bias' is NaN or infinite in 1 of 131 values"):
        task = load(tmp_path, MaskedLM)
    assert np.flatnonzero(np.isnan(to_numpy(task.head.output_bias))).tolist() == [7]


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        (
            "roberta",
            {"max_position_embeddings": 2},
            "must be a positive .*, got 0. In the file, .* is `max_position_embeddings` minus 2",
        ),
        ("roberta", {"max_position_embeddings": "69"}, "`max_position_embeddings` must be an integer, got '69'"),
        ("distilbert", {"dim": 36}, r"must be a multiple of `num_heads` \(5\). In the file, `num_heads` is `n_heads`"),
        ("distilbert", {"hidden_dim": 0}, "must be a positive integer, got 0. .*, `intermediate_dim` is `hidden_dim`"),
        ("albert", {"embedding_size": 0}, "must be a positive integer, got 0. .*, `embedding_dim` is `embedding_size`"),
    ],
)
def test_errors_give_the_files_name_of_a_key(case, change, message, tmp_path):
    peer(case, "Model", tmp_path)
    configure(tmp_path, **change)
    with pytest.raises(PresetError, match=f"{tmp_path}/config.json: .*{message}"):
        load(tmp_path)


def test_another_dropout_for_attention_gives_a_warning(bert):
    configure(bert, attention_probs_dropout_prob=0.3)
    with pytest.warns(UserWarning, match="`attention_probs_dropout_prob` is 0.3, but training will use"):
        load(bert)
