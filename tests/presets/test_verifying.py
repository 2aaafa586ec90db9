"""`verify`: its report on a directory, and errors wherever loading would fail."""

from __future__ import annotations

import json

import h5py
import pytest

from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles, write_safetensors
from lmzoo.models import MaskedLM, TextClassifier
from lmzoo.presets import PresetError
from lmzoo.presets.converting import save_checkpoint
from lmzoo.presets.verifying import verify
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task


@pytest.fixture(scope="module")
def classifier():
    return tiny_task(TextClassifier, families()["bert"])


def rewrite(directory, change) -> None:
    """Change the tensors in `directory`."""
    tensors = SafetensorsFiles(directory)
    write_safetensors(directory / "model.safetensors", change({n: tensors.read(n) for n in tensors.names()}).items())


def test_a_checkpoint_is_described(tmp_path):
    task = tiny_task(TextClassifier, families()["roberta"])
    save_checkpoint(task, tmp_path, to="hf")
    report = verify(tmp_path)
    assert report["format"] == "Hugging Face transformers"
    assert (report["model"], report["head"]) == ("RobertaBackbone", "TextClassifier")
    assert report["tensors"].startswith(f"{len(task.backbone.weights) + 1} ")  # and the zero row of segments
    assert report["tensors"].endswith(" of the backbone, 4 of the head, in model.safetensors")
    assert report["tokenizer"] == "BytePairTokenizer, 313 tokens"
    assert report["parameters"] == f"{task.backbone.count_params() + 49:,}"
    (tmp_path / "vocab.json").write_text("{")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(PresetError, match=r"vocab\.json"):
        verify(tmp_path)


@pytest.mark.slow
def test_presets_are_described_and_checked(classifier, tmp_path):
    report = verify("bert_nano_en_uncased")
    assert (report["format"], report["manifest"], report["head"]) == ("lmzoo", "matches", "Pretrainer")
    assert report["tokenizer"] == "WordPieceTokenizer, 8,000 tokens"
    classifier.save_to_preset(tmp_path)
    assert verify(tmp_path)["head"] == "TextClassifier"
    (tmp_path / "manifest.json").unlink()
    with h5py.File(tmp_path / "task.weights.h5", "a") as file:
        del file["classifier/logits/bias"]
    with pytest.raises(PresetError, match=r"task.weights.h5 holds \['classifier/logits/kernel'\], the task needs"):
        verify(tmp_path)


def test_a_missing_pooler_is_reported(tmp_path):
    save_checkpoint(tiny_task(MaskedLM, families()["bert"]), tmp_path, to="hf")
    report = verify(tmp_path)
    assert report["not there"] == "pooler/dense/kernel, pooler/dense/bias: random at first"
    assert report["tensors"].endswith(" of the backbone, 5 of the head, in model.safetensors")


HEADS = {
    "lacks": (lambda s: {n: a for n, a in s.items() if n != "classifier.bias"}, "lacks 'classifier.bias'"),
    "shape": (lambda s: {**s, "classifier.bias": s["classifier.bias"][1:]}, r"'classifier.bias' has shape \(2,\)"),
    "dtype": (lambda s: {**s, "classifier.bias": s["classifier.bias"].astype("int32")}, "holds int32, expected floats"),
}


@pytest.mark.parametrize("case", HEADS)
def test_a_damaged_head_is_refused(case, classifier, tmp_path):
    change, message = HEADS[case]
    save_checkpoint(classifier, tmp_path, to="hf")
    verify(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(PresetError, match=message):
        verify(tmp_path)


def test_a_head_that_is_not_loaded_is_reported(classifier, tmp_path):
    save_checkpoint(classifier.backbone, tmp_path, to="hf")
    rewrite(tmp_path, lambda s: {**s, "qa_outputs.bias": s["pooler.dense.bias"][:2]})
    assert verify(tmp_path)["not read: the head of a QuestionAnswerer"] == "1: qa_outputs.bias"
    classifier.save_to_preset(tmp_path / "ours")
    (tmp_path / "ours/manifest.json").unlink()
    stored = json.loads((tmp_path / "ours/task.json").read_text())
    unknown = {"class_name": "Paraphraser", "registered_name": "other>Paraphraser", "head_kind": "paraphrasing"}
    (tmp_path / "ours/task.json").write_text(json.dumps({**stored, **unknown}))
    assert verify(tmp_path / "ours")["head"] == "of a Paraphraser, which is not loaded"


def test_contradictory_vocabularies_give_a_warning(classifier, tmp_path):
    save_checkpoint(classifier, tmp_path, to="hf")
    tokens = classifier.preprocessor.tokenizer.vocabulary
    (tmp_path / "vocab.txt").write_text("\n".join([*tokens[:-2], tokens[-1], tokens[-2], ""]))
    with pytest.warns(UserWarning, match=r"tokenizer.json and vocab.txt hold different tokens: number \d+ is"):
        verify(tmp_path)


def flip_bit(path) -> None:
    """Change a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_manifest_is_written_and_compared(classifier, tmp_path):
    save_checkpoint(classifier, tmp_path, to="hf")
    assert verify(tmp_path)["manifest"] == "none: damage to files may go unnoticed"
    assert verify(tmp_path, write_manifest=True)["manifest"] == "written"
    assert verify(tmp_path)["manifest"] == "matches"
    flip_bit(tmp_path / "model.safetensors")
    for load in (verify, TextClassifier.from_preset):
        with pytest.raises(PresetError, match=r"model\.safetensors was altered"):
            load(tmp_path)
    save_checkpoint(classifier, tmp_path, to="hf")  # removes the manifest of the old files
    assert verify(tmp_path)["manifest"].startswith("none")


def test_no_manifest_is_written_for_a_damaged_checkpoint(classifier, tmp_path):
    save_checkpoint(classifier, tmp_path, to="hf")
    rewrite(tmp_path, HEADS["lacks"][0])
    with pytest.raises(PresetError, match=r"lacks 'classifier\.bias'"):
        verify(tmp_path, write_manifest=True)
    assert not (tmp_path / "manifest.json").exists()


def test_values_are_compared_with_the_checksums_of_the_file(classifier, tmp_path):
    torch = pytest.importorskip("torch")
    save_checkpoint(classifier, tmp_path, to="hf")
    tensors = SafetensorsFiles(tmp_path)
    torch.save({n: torch.from_numpy(tensors.read(n)) for n in tensors.names()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    verify(tmp_path)
    flip_bit(tmp_path / "pytorch_model.bin")
    with pytest.raises(PresetError, match=r"pytorch_model\.bin was altered: the checksum of"):
        verify(tmp_path)
