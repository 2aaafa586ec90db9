"""What libraries call a family stands in its record, where it is not what it is called here."""

from __future__ import annotations

import dataclasses

import pytest

from lmzoo import family as registry
from lmzoo import save_checkpoint
from lmzoo.checkpoints.detect import find_checkpoint
from lmzoo.checkpoints.hugging_face import Names
from lmzoo.families.roberta import FAMILY
from lmzoo.files.preset_files import read_json
from lmzoo.models import TextClassifier
from lmzoo.testing import tiny_backbone, tiny_task

NAMES = Names("XLMRoberta", "xlm-roberta", "roberta", {"classification": "XLMRobertaForTexts"})


def tensors(directory) -> set[str]:
    return set(find_checkpoint(directory).open_tensors().names())


@pytest.fixture
def renamed(monkeypatch):
    """RoBERTa by other names."""

    def rename(format: str, **fields):
        layout = dataclasses.replace(FAMILY.checkpoints[format], **fields)
        family = dataclasses.replace(FAMILY, checkpoints={**FAMILY.checkpoints, format: layout})
        monkeypatch.setitem(registry._FAMILIES, "roberta", family)

    return rename


def test_hugging_face(renamed, tmp_path):
    renamed("hf", names=NAMES)
    task = tiny_task(TextClassifier, FAMILY)
    save_checkpoint(task, tmp_path, to="hf")
    config = read_json(tmp_path, "config.json")
    assert (config["model_type"], config["architectures"]) == ("xlm-roberta", ["XLMRobertaForTexts"])
    assert read_json(tmp_path, "tokenizer_config.json")["tokenizer_class"] == "XLMRobertaTokenizer"
    assert "roberta.embeddings.word_embeddings.weight" in tensors(tmp_path)
    assert TextClassifier.from_preset(tmp_path).classify(["fine film"]) == task.classify(["fine film"])


def test_keras_hub(renamed, tmp_path):
    renamed("keras_hub", prefix="XLMRoberta")
    save_checkpoint(tiny_backbone(FAMILY), tmp_path, to="keras_hub")
    assert read_json(tmp_path, "config.json")["registered_name"] == "keras_hub>XLMRobertaBackbone"
    assert find_checkpoint(tmp_path).family.name == "roberta"
