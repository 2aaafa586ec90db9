"""`convert`, in Python, and with `verify` on the command line."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import lmzoo
from lmzoo.models import Backbone, MaskedLM, TextClassifier
from lmzoo.presets.converting import convert, save_checkpoint
from lmzoo.presets.verifying import verify
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_task, tiny_texts
from lmzoo_cli.main import app

pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert"])
def test_there_and_back(family, tmp_path):
    """Head, labels and tokenizer survive a round through Hugging Face's files: the same texts, the same scores."""
    task = tiny_task(TextClassifier, families()[family], labels=["bad", "so so", "good"])
    task.save_to_preset(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", to="hf")
    convert(tmp_path / "theirs", tmp_path / "again")
    texts = tiny_texts(7)
    expected = task.predict(texts, verbose=0)
    for directory in ("theirs", "again"):
        loaded = TextClassifier.from_preset(tmp_path / directory)
        assert loaded.class_names == ["bad", "so so", "good"]
        np.testing.assert_allclose(loaded.predict(texts, verbose=0), expected, atol=1e-6, err_msg=directory)


def test_a_backbone_keeps_its_tokenizer(tmp_path):
    task = tiny_task(MaskedLM, families()["bert"])
    save_checkpoint(task.backbone, tmp_path / "theirs", to="hf", preprocessor=task.preprocessor)
    convert(tmp_path / "theirs", tmp_path / "ours")
    classifier = TextClassifier.from_preset(tmp_path / "ours", num_classes=2)
    assert classifier.preprocessor.tokenizer.vocabulary == task.preprocessor.tokenizer.vocabulary


def test_no_tokenizer_is_said(tmp_path):
    save_checkpoint(tiny_backbone(families()["bert"]), tmp_path / "bare", to="hf")
    with pytest.warns(UserWarning, match="no tokenizer files: only the model is written"):
        convert(tmp_path / "bare", tmp_path / "ours")
    assert isinstance(Backbone.from_preset(tmp_path / "ours"), lmzoo.models.BertBackbone)
    assert verify(tmp_path / "bare")["tokenizer"] == "none"


@pytest.mark.slow
def test_an_existing_directory_is_kept(tmp_path):
    save_checkpoint(tiny_backbone(families()["bert"]), tmp_path / "it", to="hf")
    with pytest.raises(FileExistsError, match="exists already"):
        convert("bert_nano_en_uncased", tmp_path / "it", to="hf")


@pytest.mark.slow
def test_command_line(tmp_path):
    def command(*arguments):
        return CliRunner().invoke(app, arguments)

    done = command("convert", "bert_nano_en_uncased", str(tmp_path / "it"), "--to", "hf")
    assert done.exit_code == 0, done.output
    assert f"Wrote {tmp_path / 'it'}." in done.stderr.replace("\n", "")
    shown = command("verify", str(tmp_path / "it"), "--write-manifest")
    assert {"head\tMaskedLM", "manifest\twritten"} <= set(shown.stdout.splitlines())
    assert shown.stderr.count(f"Note: {tmp_path / 'it'} has no manifest.json, so damage to its files may go") == 1
    again = command("convert", "bert_nano_en_uncased", str(tmp_path / "it"))
    assert again.exit_code == 1
    assert "exists already; pass `overwrite=True` or another directory. Option: --overwrite." in again.stderr
    (tmp_path / "it/model.safetensors").write_bytes(b"short")
    failed = command("verify", str(tmp_path / "it"))
    assert failed.exit_code == 1
    assert "Error:" in failed.stderr
    assert "model.safetensors" in failed.stderr
    assert isinstance(failed.exception, SystemExit)  # not an error's traceback
