"""Files of other tools: states of training, prefixes of wrappers, buffers, and vocabularies out of order."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmzoo.checkpoints.tokenizers.files import read_tokenizer, write_tokenizer
from lmzoo.models import Backbone, MaskedLM, TextClassifier
from lmzoo.presets import PresetError
from lmzoo.presets.converting import save_checkpoint
from lmzoo.presets.verifying import verify
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone
from lmzoo.text import Preprocessor, Tokenizer, WordPieceTokenizer
from tests.checkpoints.model_files import batch_for, load, peer, rewrite
from tests.reference.weights import difference, run

# === TensorFlow 1 ===

SLOTS = [
    "Adam", "Adam_1", "Adam_2", "AdamWeightDecayOptimizer", "AdamWeightDecayOptimizer_1", "adam_m", "adam_v", "lamb_m",
    "lamb_v", "LAMB", "LAMB_1", "Momentum", "RMSProp", "RMSProp_1", "Adagrad", "ExponentialMovingAverage",
    "Adafactor/v", "Adafactor/vr", "Adafactor/vc",
]  # fmt: skip
SCALARS = [
    "beta1_power", "beta2_power", "beta1_power_1", "loss_scale", "current_loss_scale", "good_steps", "num_good_steps",
    "learning_rate",
]  # fmt: skip


def add_to_checkpoint(directory: Path, **more: Any) -> None:
    """Rewrite a checkpoint with slots of every tensor, variables of the run, and `more` tensors."""
    from lmzoo.checkpoints.formats.tensorflow import TensorFlowCheckpoint, write_tensorflow_checkpoint

    index = next(directory.glob("*.index"))
    stored = TensorFlowCheckpoint(index)
    tensors = {name: stored.read(name) for name in stored.names()}
    slots = {f"{name}/{slot}": array + 1 for name, array in tensors.items() for slot in SLOTS}
    run = dict.fromkeys([*SCALARS, "training/loss_scale"], np.float32(1)) | {"global_step": np.int64(343)}
    write_tensorflow_checkpoint(index.with_suffix(""), {**tensors, **slots, **run, **more}.items())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "activation"), [("bert", "gelu"), ("albert", "gelu_tanh"), ("xlnet", "gelu_tanh")])
def test_states_of_training_are_not_read(name: str, activation: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    backbone = tiny_backbone(families()[name], activation=activation)
    save_checkpoint(backbone, tmp_path, to="tf1")
    before = verify(tmp_path)
    add_to_checkpoint(tmp_path)
    for ours, theirs in zip(Backbone.from_preset(tmp_path).weights, backbone.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    after = verify(tmp_path)
    assert after["tensors"] == before["tensors"]
    assert after["not read: the optimizer's state"].split(":")[0].isdecimal()
    add_to_checkpoint(tmp_path, **{"bert/encoder/layer_0/output/gate": np.zeros(3, "float32")})
    with pytest.raises(PresetError, match="holds 'bert/encoder/layer_0/output/gate"):
        Backbone.from_preset(tmp_path)


# === Prefixes and buffers ===


def warnings_of(build: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        result = build()
    return result, [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]


@pytest.mark.parametrize(
    ("prefix", "pickled", "head"),
    [
        ("module.", False, "ForSequenceClassification"),
        ("_orig_mod.", False, "Model"),
        ("module._orig_mod.", True, "Model"),
        ("_orig_mod.module.", True, "ForSequenceClassification"),
        ("module.module.", False, "Model"),
    ],
)
def test_prefixes_of_wrappers_are_removed(prefix: str, pickled: bool, head: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    theirs = peer("bert", head, tmp_path)
    cls = None if head == "Model" else TextClassifier
    expected = load(tmp_path, cls)
    file = tmp_path / "model.safetensors"
    if pickled:
        file.unlink()
        file = tmp_path / "pytorch_model.bin"
        torch.save({prefix + name: tensor for name, tensor in theirs.state_dict().items()}, file)
    else:
        rewrite(tmp_path, lambda state: {prefix + name: tensor for name, tensor in state.items()})
    model, messages = warnings_of(lambda: load(tmp_path, cls))
    for actual, weight in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(actual, weight)
    assert len(messages) == 1
    assert messages[0].startswith(f"{file}: every name begins with {prefix!r}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert repr(prefix) in verify(tmp_path)["names"]


def test_a_prefix_of_some_names_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    peer("bert", "ForMaskedLM", tmp_path)
    rewrite(tmp_path, lambda s: {("module." if name.startswith("cls") else "") + name: t for name, t in s.items()})
    with pytest.raises(PresetError, match=r"module\.cls"):
        Backbone.from_preset(tmp_path)


@pytest.mark.quick_cases("albert")
@pytest.mark.parametrize("case", ["bert", "roberta", "albert"])
def test_buffers_are_not_read(case: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    theirs = peer(case, "ForSequenceClassification", tmp_path)
    expected = load(tmp_path)
    buffers = {
        "embeddings.token_type_ids": torch.zeros(1, 67).long(),
        "embeddings.position_ids": torch.arange(67)[None],
    }
    rewrite(tmp_path, lambda s: {**s, **{f"{theirs.base_model_prefix}.{name}": t for name, t in buffers.items()}})
    batch = batch_for(expected)
    assert difference(run(load(tmp_path), batch)["sequence_output"], run(expected, batch)["sequence_output"]) == 0
    assert verify(tmp_path)["not read: a buffer"].startswith("2: ")


# === vocab.txt ===

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "film", "good", "the", "##s", "a", ",", "bad"]
TEXTS = ["The good films, a [MASK]", "a bad film", "[SEP] unknown word [PAD]", "", "good\u00a0 film\tthe"]
LINES = {
    "blank lines": [*TOKENS[:6], "", *TOKENS[6:9], "", "", *TOKENS[9:], "", ""],
    "equal tokens": [*TOKENS, "film", "plot", "##s", "good", "film"],
    "both": [*TOKENS[:5], "bad", "", "bad", *TOKENS[5:]],
    "equal special tokens": ["[PAD]", "[UNK]", *TOKENS[1:]],
}


def write_lines(directory: Path, lines: list[str], end: str = "\n", start: str = "") -> Path:
    directory.mkdir(exist_ok=True)
    file = directory / "vocab.txt"
    file.write_bytes((start + "".join(line + end for line in lines)).encode())
    return file


def read(directory: Path, cls: type[Tokenizer] = WordPieceTokenizer) -> tuple[Any, list[str]]:
    return warnings_of(lambda: read_tokenizer(directory, cls, 31))


@pytest.mark.parametrize("case", LINES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_vocabularies_out_of_order_are_read_as_in_transformers(case: str, end: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file = write_lines(tmp_path / "theirs", LINES[case], end)
    tokenizer, messages = read(tmp_path / "theirs")
    peer = transformers.BertTokenizer(vocab=str(file))
    expected = peer(TEXTS, add_special_tokens=False)["input_ids"]
    assert tokenizer.tokenize(TEXTS) == expected
    assert [[span.id for span in spans] for spans in tokenizer.tokenize_with_offsets(TEXTS)] == expected
    assert len(messages) == 1
    assert str(file) in messages[0]
    assert ("is blank" in messages[0]) == (case in ("blank lines", "both"))
    assert ("twice" in messages[0]) == (case != "blank lines")
    # Both libraries read what is written, and so does a preset.
    (tmp_path / "ours").mkdir()
    write_tokenizer(tokenizer, tmp_path / "ours", 61)
    assert read(tmp_path / "ours")[0].tokenize(TEXTS) == expected
    written_peer = transformers.BertTokenizer.from_pretrained(tmp_path / "ours")
    assert written_peer(TEXTS, add_special_tokens=False)["input_ids"] == expected
    assert len(written_peer) == tokenizer.vocabulary_size
    tokenizer.save_assets(tmp_path)
    copy = WordPieceTokenizer()
    copy.load_assets(tmp_path)
    assert copy.vocabulary == tokenizer.vocabulary
    assert copy.tokenize(TEXTS) == expected


@pytest.mark.slow_cases("blank lines")
@pytest.mark.tf_only
@pytest.mark.parametrize("case", LINES)
def test_vocabularies_out_of_order_in_graphs(case: str, tmp_path: Path) -> None:
    from lmzoo.text.graphs import graph_tokenizer

    write_lines(tmp_path, LINES[case])
    tokenizer, _ = read(tmp_path)
    assert graph_tokenizer(tokenizer)(TEXTS).to_list() == tokenizer.tokenize(TEXTS)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_byte_order_mark_is_removed(end: str, tmp_path: Path) -> None:
    file = write_lines(tmp_path, TOKENS, end, "\ufeff")
    tokenizer, messages = read(tmp_path)
    assert tokenizer.vocabulary == TOKENS
    assert messages == [f"{file}: its byte order mark is left out."]
    write_lines(tmp_path, TOKENS, end)
    assert read(tmp_path)[1] == []


@pytest.mark.slow
def test_a_vocabulary_may_lack_a_mask(tmp_path: Path) -> None:
    lines = [token for token in TOKENS if token != "[MASK]"]
    file = write_lines(tmp_path, lines, start="\ufeff")
    tokenizer, messages = read(tmp_path)
    assert messages == [
        f"{file}: its byte order mark is left out; it lacks [MASK], without which no task can mask or fill masks."
    ]
    assert tokenizer.mask_token is None
    assert tokenizer.tokenize(["a bad film"]) == [[lines.index(word) for word in ("a", "bad", "film")]]
    family = families()["bert"]
    preprocessor, backbone = Preprocessor(tokenizer, family.packing, 17), tiny_backbone(family)
    assert len(TextClassifier(backbone, preprocessor, num_classes=2).classify(["a film"])) == 1
    with pytest.raises(ValueError, match="has no mask token: it can neither mask nor fill masks"):
        MaskedLM(backbone, preprocessor)
    # transformers names the mask in its files although the vocabulary lacks it.
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "[MASK]", "do_lower_case": true}')
    assert read(tmp_path)[0].tokenize(["a bad [MASK]"]) == tokenizer.tokenize(["a bad [MASK]"])
    for directory in ("again", "twice"):
        (tmp_path / directory).mkdir()
        write_tokenizer(tokenizer, tmp_path / directory, 61)
        tokenizer = read(tmp_path / directory)[0]
        assert (tokenizer.vocabulary, tokenizer.mask_token) == (lines, None)
    write_lines(tmp_path, [token for token in lines if token != "[SEP]"])
    with pytest.raises(PresetError, match=r"lacks the special tokens \[SEP\]"):
        read(tmp_path)


def test_keras_hub_needs_every_token(tmp_path: Path) -> None:
    pytest.importorskip("keras_hub")
    write_lines(tmp_path, LINES["blank lines"])
    family = families()["bert"]
    preprocessor = Preprocessor(read(tmp_path)[0], family.packing, 17)
    with pytest.raises(PresetError, match="needs a token for each id"):
        save_checkpoint(tiny_backbone(family), tmp_path / "hub", to="keras_hub", preprocessor=preprocessor)
