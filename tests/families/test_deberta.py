"""DeBERTa-v3 against transformers on random weights: long sequences, heads, files, unsupported settings."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lmzoo.checkpoints.tokenizers.files import read_tokenizer, write_tokenizer
from lmzoo.errors import PresetError
from lmzoo.families.deberta_v3 import FAMILY
from lmzoo.layers.sublayers import sublayers
from lmzoo.models import Backbone, DebertaV3Backbone, MaskedLM, Pretrainer, TextClassifier
from lmzoo.presets.converting import save_checkpoint
from lmzoo.testing import (
    randomize,
    tiny_backbone,
    tiny_preprocessor,
    tiny_task,
    tiny_texts,
)
from lmzoo.text import DebertaV3Tokenizer
from tests.checkpoints.model_files import load
from tests.families.comparing import add_noise
from tests.families.config_files import edit_config
from tests.reference.weights import difference, randomise, run, to_numpy
from tests.text.trained import train_deberta

pytestmark = pytest.mark.usefixtures("eager")

# Widths are multiples of the heads. Sequences are longer than half a bucket, the buckets, and the scale.
TINY = {
    "vocabulary_size": 131,
    "num_layers": 3,
    "num_heads": 3,
    "hidden_dim": 21,
    "intermediate_dim": 17,
    "max_sequence_length": 29,
    "bucket_size": 7,
    "max_relative_positions": -1,
    "dropout": 0.0,
}
T = 43
LENGTHS = np.array([[43], [19], [1]])


@pytest.fixture
def transformers() -> Any:
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


def batch() -> dict[str, np.ndarray]:
    mask = np.arange(T) < LENGTHS
    ids = np.random.default_rng(3).integers(5, 131, mask.shape)
    return {"token_ids": np.where(mask, ids, 7).astype("int32"), "padding_mask": mask.astype("int32")}


def peer_of(transformers: Any, head: str, directory: Path, **changes: Any) -> Any:
    """Save a transformers model with random weights to a directory, and return it."""
    import torch

    config = transformers.DebertaV2Config(
        vocab_size=131, hidden_size=21, num_hidden_layers=3, num_attention_heads=3, intermediate_size=17,
        max_position_embeddings=29, relative_attention=True, position_buckets=7, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type="c2p|p2c", position_biased_input=False, **changes,
    )  # fmt: skip
    torch.manual_seed(5)
    model = getattr(transformers, f"DebertaV2{head}")(config).eval()
    add_noise(model)
    model.save_pretrained(directory)
    return model


def run_peer(model: Any, batch: dict[str, np.ndarray]) -> Any:
    import torch

    ids, mask = (torch.tensor(values).long() for values in batch.values())
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, output_hidden_states=True)


def test_sequences_longer_than_the_scale(transformers: Any, tmp_path: Path) -> None:
    expected = run_peer(peer_of(transformers, "Model", tmp_path), batch())
    backbone = Backbone.from_preset(tmp_path)
    assert backbone.config == DebertaV3Backbone(**{**TINY, "dropout": 0.1}).config
    outputs, real = run(backbone, batch()), batch()["padding_mask"] > 0
    for ours, theirs in zip(outputs["hidden_states"], expected.hidden_states, strict=True):
        assert difference(np.asarray(ours)[real], theirs.numpy()[real]) < 1e-5
    assert difference(outputs["pooled_output"], expected.last_hidden_state[:, 0].numpy()) < 1e-5
    positions = np.array([[42, 3], [0, 18], [0, 0]], "int32")
    vectors = to_numpy(backbone.vectors_at(batch(), positions))
    assert difference(vectors, np.take_along_axis(expected.last_hidden_state.numpy(), positions[..., None], 1)) < 1e-5


@pytest.mark.parametrize("stored", ["preset", "old preset", "hf", "old hf", "keras_hub"])
def test_another_maximum_length_does_not_change_the_vectors(stored: str, tmp_path: Path) -> None:
    """The stored maximum length is the scale of distances, also in files that do not hold it a second time."""
    backbone = tiny_backbone(FAMILY, **TINY)
    expected = run(backbone, batch())["sequence_output"]
    if stored.endswith("preset"):
        backbone.save_to_preset(tmp_path / "model")
    else:
        save_checkpoint(backbone, tmp_path / "model", to=stored.removeprefix("old "))
    file = tmp_path / "model/config.json"
    config = json.loads(file.read_text())
    values = config if stored.endswith("hf") else config["config"]
    if stored == "keras_hub":
        assert "max_relative_positions" not in values
    else:
        assert values["max_relative_positions"] == 29
    if stored.startswith("old "):
        values["max_relative_positions"] = -1
        file.write_text(json.dumps(config))
        (tmp_path / "model/manifest.json").unlink(missing_ok=True)
    for max_length in (29, 57):
        loaded = Backbone.from_preset(tmp_path / "model", max_sequence_length=max_length)
        assert loaded.max_sequence_length == max_length
        np.testing.assert_array_equal(run(loaded, batch())["sequence_output"], expected)


def test_copies_with_another_maximum_length_have_the_same_vectors() -> None:
    task = MaskedLM(tiny_backbone(FAMILY, **TINY))
    copy = task.copy_with(max_sequence_length=57)
    assert copy.backbone.max_sequence_length == 57
    expected = run(task.backbone, batch())["sequence_output"]
    np.testing.assert_array_equal(run(copy.backbone, batch())["sequence_output"], expected)


def test_the_enhanced_mask_decoder() -> None:
    """The last block is applied twice; its first queries hold absolute positions (He et al., 2020, 3.2)."""
    backbone = DebertaV3Backbone(**{**TINY, "max_sequence_length": 47, "enhanced_mask_decoder": True})
    randomize(backbone)
    positions = np.array([[42, 3], [0, 18], [0, 0]], "int32")
    outputs = backbone(batch())
    decoded = to_numpy(backbone.masked_vectors_at(batch(), positions, outputs))
    weights = {weight.path: to_numpy(weight).astype("float64") for weight in backbone.weights}
    states = to_numpy(outputs["hidden_states"][-2]).astype("float64")
    table = to_numpy(backbone.distances(states)).astype("float64")  # (2T + 1, H)
    queries = np.take_along_axis(states, positions[..., None], 1)
    expected = queries + weights["absolute_positions/embeddings"][positions]
    for _ in range(2):
        expected = last_block(weights, states, table, expected, positions)
    np.testing.assert_allclose(decoded, expected, atol=1e-5)
    plain = to_numpy(backbone.vectors_at(batch(), positions, outputs))
    np.testing.assert_allclose(plain, last_block(weights, states, table, queries, positions), atol=1e-5)
    shorter = DebertaV3Backbone(**{**TINY, "max_sequence_length": 41, "enhanced_mask_decoder": True})
    with pytest.raises(ValueError, match="43 tokens long, but the model has positions for 41"):
        shorter.masked_vectors_at(batch(), positions)


@pytest.mark.parametrize(
    ("task_class", "arguments", "is_used"),
    [(TextClassifier, {"num_classes": 2}, False), (MaskedLM, {}, True), (Pretrainer, {"objective": "rtd"}, False)],
)
def test_only_mask_prediction_trains_absolute_positions(task_class: Any, arguments: Any, is_used: bool) -> None:
    """Keras would warn about a trainable variable without a gradient."""
    preprocessor = tiny_preprocessor(FAMILY)
    backbone = tiny_backbone(FAMILY, enhanced_mask_decoder=True)
    task = task_class(backbone, preprocessor, **arguments)
    assert any(v is backbone.mask_decoder_variables[0] for v in task.trainable_variables) == is_used
    before = to_numpy(backbone.mask_decoder_variables[0])
    task.compile(keras.optimizers.SGD(0.1))
    labels = {"y": [0, 1, 1]} if "num_classes" in arguments else {}
    texts = tiny_texts(3)
    task.fit([[text] for text in texts] if task_class is Pretrainer else texts, **labels, epochs=1, verbose=0)
    assert (difference(to_numpy(backbone.mask_decoder_variables[0]), before) > 0) == is_used


def last_block(
    weights: dict[str, np.ndarray], x: np.ndarray, table: np.ndarray, queries: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    """Return the last block's outputs for `queries` (3, M, H), computed in numpy."""

    def dense(path: str, x: np.ndarray) -> np.ndarray:
        return x @ weights[f"block_2/{path}/kernel"] + weights[f"block_2/{path}/bias"]

    def normalized(path: str, x: np.ndarray) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-7)
        return x * weights[f"block_2/{path}/gamma"] + weights[f"block_2/{path}/beta"]

    def heads(path: str, x: np.ndarray) -> np.ndarray:
        x = dense(f"attention/{path}", x)
        return x.reshape(*x.shape[:-1], 3, 7)

    q, k, v = heads("query", queries), heads("key", x), heads("value", x)
    rows = T - (positions[..., None] - np.arange(T))  # (3, M, T): distance of each key to the query
    query_rows, key_rows = heads("query", table)[rows], heads("key", table)[rows]  # (3, M, T, 3, 7)
    scores = np.einsum("bmnd,btnd->bnmt", q, k)
    scores += np.einsum("bmnd,bmtnd->bnmt", q, key_rows) + np.einsum("btnd,bmtnd->bnmt", k, query_rows)
    scores = np.where((np.arange(T) < LENGTHS)[:, None, None], scores / np.sqrt(3 * 7), -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    context = np.einsum("bnmt,btnd->bmnd", p / p.sum(-1, keepdims=True), v).reshape(queries.shape)
    attended = normalized("attention_layer_norm", queries + dense("attention/output_dense", context))
    inner = dense("intermediate_dense", attended)
    inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
    return normalized("output_layer_norm", attended + dense("output_dense", inner))


@pytest.mark.filterwarnings("ignore:.* holds no head of a Pretrainer")
def test_checkpoints_with_a_segment_table(transformers: Any, root: Path, tmp_path: Path) -> None:
    import torch

    model = peer_of(transformers, "ForSequenceClassification", tmp_path, type_vocab_size=2)
    (tmp_path / "spm.model").write_bytes(train_deberta(root, ["Un café"] * 9))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path)
    task = TextClassifier.from_preset(tmp_path)
    columns = (["a", "a b a b", ""], ["ab", "b", "a"])
    for x in (columns[0], columns):
        texts = x if isinstance(x, tuple) else (x,)
        with torch.no_grad():
            expected = model(**tokenizer(*texts, padding=True, return_tensors="pt")).logits.numpy()
        assert difference(task.predict(x, verbose=0), expected) < 1e-5
    features = task.preprocessor(columns)
    assert features["segment_ids"].max() == 1
    zeros = {**features, "segment_ids": 0 * features["segment_ids"]}
    assert difference(task.predict(zeros, verbose=0), task.predict(columns, verbose=0)) > 1e-4
    save_checkpoint(task, tmp_path / "rewritten", to="hf", preprocessor=task.preprocessor)
    reloaded = TextClassifier.from_preset(tmp_path / "rewritten")
    assert difference(reloaded.predict(columns, verbose=0), task.predict(columns, verbose=0)) == 0
    detector = Pretrainer(task.backbone, task.preprocessor, objective="rtd")
    detector.fit([["a b", "b"], ["a"]], epochs=1, verbose=0)


@pytest.mark.quick_cases("False")
@pytest.mark.parametrize("legacy", [False, True])
def test_both_versions_of_the_masked_lm_head(legacy: bool, transformers: Any, tmp_path: Path) -> None:
    expected = run_peer(peer_of(transformers, "ForMaskedLM", tmp_path, legacy=legacy), batch())
    task = load(tmp_path, MaskedLM)
    positions = np.array([[42, 3], [0, 18], [0, 0]], "int32")
    logits = run(task, {**batch(), "mask_positions": positions})
    assert difference(logits, np.take_along_axis(expected.logits.numpy(), positions[..., None], 1)) < 1e-5


def test_published_files_hold_extra_tensors(transformers: Any, tmp_path: Path) -> None:
    """Microsoft's files hold tensors of pre-training, and no `architectures`."""
    peer = peer_of(transformers, "ForMaskedLM", tmp_path, legacy=False)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["deberta.embeddings.position_embeddings.weight"] = np.ones((29, 21), "float32")
    for name, shape in {"dense.weight": (21, 21), "LayerNorm.bias": (21,), "classifier.weight": (1, 21)}.items():
        tensors[f"mask_predictions.{name}"] = np.ones(shape, "float32")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    edit_config(tmp_path, "architectures")
    task = load(tmp_path, MaskedLM)
    logits = run(task, {**batch(), "mask_positions": np.zeros((3, 1), "int32")})
    assert difference(logits, run_peer(peer, batch()).logits.numpy()[:, :1]) < 1e-5


REFUSED: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "convolution": ((), {"conv_kernel_size": 3}, "`conv_kernel_size` must be 0, got 3"),
    "own projections": ((), {"share_att_key": False}, "`share_att_key` must be True, got False"),
    "one term": ((), {"pos_att_type": ["c2p"]}, r"`pos_att_type` must be \['p2c', 'c2p'\] or .*, got \['c2p'\]"),
    "no terms": (("pos_att_type",), {}, "`pos_att_type` must be .*, got None"),
    "positions": (("position_biased_input",), {}, "`position_biased_input` must be False, got True"),
    "no distances": (("relative_attention",), {}, "`relative_attention` must be True, got False"),
    "no buckets": (("position_buckets",), {}, "lacks the key 'position_buckets'"),
    "buckets": ((), {"position_buckets": -1}, "must be a positive integer, got -1. In .* is `position_buckets`"),
    "distances as they are": ((), {"norm_rel_ebd": "none"}, "`norm_rel_ebd` must be 'layer_norm', got 'none'"),
    "pooler": ((), {"pooler_hidden_act": "tanh"}, "`pooler_hidden_act` must be 'gelu', got 'tanh'"),
    "many buckets": ((), {"position_buckets": 10**6}, "`position_buckets` is 1,000,000, but .* holds 131 at most"),
    "version 1": ((), {"model_type": "deberta"}, "models of type 'deberta' are not supported"),
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(tiny_backbone(FAMILY, **TINY), directory / "hf", to="hf")
    return directory / "hf"


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_configurations_are_refused(case: str, checkpoint: Path, tmp_path: Path) -> None:
    removed, changes, message = REFUSED[case]
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    edit_config(tmp_path, *removed, **changes)
    with pytest.raises(PresetError, match=message):
        Backbone.from_preset(tmp_path)


# === Tokenizers ===

TEXTS = ["The film's ``good'', 9,200!", "Un café", "", "a [MASK] [SEP]b", "un cafe\u0301"]


def write_model_only(directory: Path, transformers: Any) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "vocab_type": "spm"}))


def write_version_5(directory: Path, transformers: Any) -> None:
    """Write what transformers 5 saves: no SentencePiece model."""
    transformers.DebertaV2Tokenizer.from_pretrained(directory).save_pretrained(directory)
    (directory / "spm.model").unlink()


def write_version_4(directory: Path, transformers: Any) -> None:
    """Write what transformers 4 saved without the SentencePiece model, for any tokenizer class."""
    tokenizer = DebertaV3Tokenizer((directory / "spm.model").read_bytes())
    (directory / "spm.model").unlink()
    write_tokenizer(tokenizer, directory, 512, "PreTrainedTokenizerFast")
    (directory / "spm.model").unlink()


@pytest.mark.parametrize("write", [write_model_only, write_version_5, write_version_4])
def test_tokenizer_files_of_all_versions_are_read(
    write: Callable[..., None], root: Path, transformers: Any, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))
    (tmp_path / "spm.model").write_bytes(train_deberta(root, ["Un café"] * 9))
    write(tmp_path, transformers)
    ours, theirs = read_tokenizer(tmp_path, DebertaV3Tokenizer), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours) is DebertaV3Tokenizer
    assert (ours.mask_id, ours.vocabulary_size) == (theirs.mask_token_id, theirs.mask_token_id + 1)
    assert ours.tokenize(TEXTS) == theirs(TEXTS, add_special_tokens=False)["input_ids"]
    # Only the SentencePiece model's own rules normalize full-width letters.
    assert (ours.tokenize(["Ｕｎ"]) == ours.tokenize(["Un"])) == (write is not write_version_5)


def test_published_tokenizer_files_are_written_unchanged(root: Path, transformers: Any, tmp_path: Path) -> None:
    published = train_deberta(root, ["Un café"] * 9)
    task = tiny_task(TextClassifier, FAMILY)
    task.preprocessor.tokenizer = DebertaV3Tokenizer(published)
    save_checkpoint(task, tmp_path / "hf", to="hf", preprocessor=task.preprocessor)
    assert (tmp_path / "hf" / "spm.model").read_bytes() == published
    peer_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert type(peer_tokenizer) is transformers.DebertaV2Tokenizer
    encoded = task.preprocessor.encode(TEXTS, TEXTS[::-1])
    ids = [row.tolist() for row in encoded.by_sequence(encoded.token_ids)]
    assert ids == peer_tokenizer(TEXTS, TEXTS[::-1])["input_ids"]


# === Training and other precisions ===


def test_lora_adapts_contents_and_distances() -> None:
    """Contents and distances share their projections, so that updates change both."""
    backbone = tiny_backbone(FAMILY, **TINY)
    backbone.enable_lora(2)
    adapted = [layer.name for layer in sublayers(backbone) if getattr(layer, "lora_enabled", False)]
    assert sorted(set(adapted)) == ["query", "value"]
    before = run(backbone, batch())["pooled_output"]
    randomize(backbone)
    assert difference(run(backbone, batch())["pooled_output"], before) > 1e-3


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method implemented:UserWarning")
def test_int8_stays_close() -> None:
    backbone = tiny_backbone(FAMILY, **TINY)
    before = np.asarray(run(backbone, batch())["pooled_output"])
    backbone.quantize("int8")
    after = np.asarray(run(backbone, batch())["pooled_output"])
    assert 1e-5 < difference(after, before) < 0.1


def test_half_precision_stays_close() -> None:
    backbone = tiny_backbone(FAMILY, **TINY)
    half = DebertaV3Backbone.from_config({**backbone.get_config(), "dtype": "bfloat16"})
    half.set_weights([to_numpy(weight) for weight in backbone.weights])
    expected = np.asarray(run(backbone, batch())["pooled_output"])
    pooled = np.asarray(run(half, batch())["pooled_output"]).astype("float32")
    assert difference(pooled, expected) < 0.1 * math.sqrt(np.square(expected).mean()) + 0.05


def test_sequences_may_be_shorter_than_the_distance_table() -> None:
    """KerasHub's examples have tables larger than their sequences."""
    backbone = DebertaV3Backbone(**{**TINY, "bucket_size": 256})
    assert backbone.distances.embeddings.shape == (512, 21)
    assert np.isfinite(run(backbone, batch())["pooled_output"]).all()


# === KerasHub ===


@pytest.mark.slow
@pytest.mark.tf_only  # KerasHub's tokenizer
@pytest.mark.filterwarnings("ignore:unclosed file .*vocabulary.spm:ResourceWarning")
def test_keras_hub_reads_and_writes_the_same_presets(root: Path, tmp_path: Path) -> None:
    """A classifier of KerasHub is read with its tokenizer, and KerasHub reads what is written for it."""
    models = pytest.importorskip("keras_hub").models
    published = train_deberta(root, ["Un café"] * 9)
    tokenizer = models.DebertaV3Tokenizer(proto=published)
    sizes = {**TINY, "vocabulary_size": tokenizer.vocabulary_size()}
    theirs = models.DebertaV3TextClassifier(
        models.DebertaV3Backbone(**sizes),
        num_classes=3,
        preprocessor=models.DebertaV3TextClassifierPreprocessor(tokenizer, sequence_length=29),
    )
    randomise(theirs)
    theirs.save_to_preset(str(tmp_path / "theirs"))
    ours = TextClassifier.from_preset(tmp_path / "theirs")
    assert type(ours.preprocessor.tokenizer) is DebertaV3Tokenizer
    assert ours.preprocessor.tokenizer.mask_id == tokenizer.mask_token_id
    texts = [*TEXTS[:3], "a film " * 11]
    assert difference(ours.predict(texts, verbose=0), theirs.predict(texts, verbose=0)) < 1e-5
    assert ours.predict(texts, verbose=0).std() > 0.01
    save_checkpoint(ours.backbone, tmp_path / "ours", to="keras_hub", preprocessor=ours.preprocessor)
    rewritten = models.DebertaV3Tokenizer.from_preset(str(tmp_path / "ours"))
    assert [list(map(int, rewritten(text))) for text in texts] == ours.preprocessor.tokenizer.tokenize(texts)
    assert (tmp_path / "ours/assets/tokenizer/vocabulary.spm").read_bytes() == published
