"""`convert` in Python, and `convert` and `verify` on the command line."""

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
def test_a_task_survives_hugging_faces_files(family, tmp_path):
    """Head, labels and tokenizer give the same scores after conversions to Hugging Face's files and back."""
    task = tiny_task(TextClassifier, families()[family], labels=["bad", "so so", "good"])
    task.save_to_preset(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", to="hf")
    convert(tmp_path / "theirs", tmp_path / "converted")
    texts = tiny_texts(7)
    expected = task.predict(texts, verbose=0)
    for directory in ("theirs", "converted"):
        loaded = TextClassifier.from_preset(tmp_path / directory)
        assert loaded.class_names == ["bad", "so so", "good"]
        np.testing.assert_allclose(loaded.predict(texts, verbose=0), expected, atol=1e-6, err_msg=directory)


def test_a_backbone_keeps_its_tokenizer(tmp_path):
    task = tiny_task(MaskedLM, families()["bert"])
    save_checkpoint(task.backbone, tmp_path / "theirs", to="hf", preprocessor=task.preprocessor)
    convert(tmp_path / "theirs", tmp_path / "ours")
    classifier = TextClassifier.from_preset(tmp_path / "ours", num_classes=2)
    assert classifier.preprocessor.tokenizer.vocabulary == task.preprocessor.tokenizer.vocabulary


def test_a_missing_tokenizer_gives_a_warning(tmp_path):
    save_checkpoint(tiny_backbone(families()["bert"]), tmp_path / "bare", to="hf")
    with pytest.warns(UserWarning, match="no tokenizer files: only the model is written"):
        convert(tmp_path / "bare", tmp_path / "ours")
    assert isinstance(Backbone.from_preset(tmp_path / "ours"), lmzoo.models.BertBackbone)
    assert verify(tmp_path / "bare")["tokenizer"] == "none"


def test_heads_that_are_not_converted_are_named(tmp_path):
    task = tiny_task(TextClassifier, families()["bert"])
    task.backbone.save_to_preset(tmp_path / "several", tasks={"moods": task, "topics": task})
    with pytest.warns(UserWarning, match="Only the backbone of .*several is written, not the head of moods and topics"):
        convert(tmp_path / "several", tmp_path / "theirs", to="hf")
    assert verify(tmp_path / "several")["head"] == "of moods and topics, which is not loaded"


def test_format_and_target_are_checked_before_the_source_is_loaded(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").touch()
    with pytest.raises(FileExistsError, match=r"old exists already; pass `overwrite=True` or another directory"):
        convert("nowhere", tmp_path / "old")
    with pytest.raises(ValueError, match="`to` must be one of keras, hf, tf1, keras_hub, bilm, got 'onnx'"):
        convert("nowhere", tmp_path / "new", to="onnx")


@pytest.mark.slow
def test_the_command_line_converts_and_verifies(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments)])

    directory = tmp_path / "hf"
    converted = run("convert", "bert_nano_en_uncased", directory, "--to", "hf")
    assert converted.exit_code == 0, converted.output
    assert f"Wrote {directory}." in converted.stderr.replace("\n", "")
    verified = run("verify", directory, "--write-manifest")
    assert {"head\tMaskedLM", "manifest\twritten"} <= set(verified.stdout.splitlines())
    assert verified.stderr.count(f"Note: {directory} has no manifest.json, so damage to its files may go") == 1
    refused = run("convert", "bert_nano_en_uncased", directory, "--to", "hf")
    assert refused.exit_code == 1
    assert "exists already; pass `overwrite=True` or another directory. Option: --overwrite." in refused.stderr
    (directory / "model.safetensors").write_bytes(b"short")
    damaged = run("verify", directory)
    assert damaged.exit_code == 1
    assert "Error:" in damaged.stderr
    assert "model.safetensors" in damaged.stderr
    assert isinstance(damaged.exception, SystemExit)  # no traceback
