"""Names of a family in other libraries: its record gives them where they differ from lmzoo's."""

from __future__ import annotations

import dataclasses
import json

import pytest

from lmzoo import save_checkpoint
from lmzoo.checkpoints.detect import find_checkpoint
from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.tokenizers.files import read_tokenizer, write_tokenizer
from lmzoo.errors import PresetError
from lmzoo.families.roberta import FAMILY
from lmzoo.files.preset_files import JsonFiles, read_json
from lmzoo.models import TextClassifier
from lmzoo.registry import family as registry
from lmzoo.testing import tiny_backbone, tiny_task
from lmzoo.text import BytePairTokenizer

NAMES = Names("Camembert", "camembert", "roberta", {"classification": "CamembertForTexts"})


END = "<|endoftext|>"
GPT2 = {"start_token": None, "pad_token": None, "end_token": None, "unk_token": END, "mask_token": None}


def tensor_names(directory) -> set[str]:
    return set(find_checkpoint(JsonFiles(directory)).weights.open().names())


@pytest.fixture
def renamed(monkeypatch):
    """Return a function that gives RoBERTa other names in a format."""

    def rename(format: str, **fields):
        layout = dataclasses.replace(FAMILY.checkpoints[format], **fields)
        family = dataclasses.replace(FAMILY, checkpoints={**FAMILY.checkpoints, format: layout})
        monkeypatch.setitem(registry._FAMILIES, "roberta", family)

    return rename


@pytest.mark.slow
def test_the_names_in_hugging_faces_files(renamed, tmp_path):
    renamed("hf", names=NAMES)
    task = tiny_task(TextClassifier, FAMILY)
    save_checkpoint(task, tmp_path, to="hf")
    config = read_json(tmp_path, "config.json")
    assert (config["model_type"], config["architectures"]) == ("camembert", ["CamembertForTexts"])
    assert read_json(tmp_path, "tokenizer_config.json")["tokenizer_class"] == "CamembertTokenizer"
    assert "roberta.embeddings.word_embeddings.weight" in tensor_names(tmp_path)
    assert TextClassifier.from_preset(tmp_path).classify(["fine film"]) == task.classify(["fine film"])


def test_the_prefix_of_keras_hubs_classes(renamed, tmp_path):
    renamed("keras_hub", prefix="Camembert")
    save_checkpoint(tiny_backbone(FAMILY), tmp_path, to="keras_hub")
    assert read_json(tmp_path, "config.json")["registered_name"] == "keras_hub>CamembertBackbone"
    assert find_checkpoint(JsonFiles(tmp_path)).family.name == "roberta"


def test_special_tokens_of_a_family_are_written(tmp_path):
    """Files with GPT-2's special token are read again, also by transformers, but not as RoBERTa's."""
    transformers = pytest.importorskip("transformers")
    tokenizer = BytePairTokenizer.of_words(["good", "film"], 271, **GPT2)
    write_tokenizer(tokenizer, tmp_path, 64, "GPT2Tokenizer")
    config = read_json(tmp_path, "tokenizer_config.json")
    assert {name: token for name, token in config.items() if name.endswith("_token")} == {"unk_token": END}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "RobertaTokenizer"}))
    reloaded = read_tokenizer(tmp_path, BytePairTokenizer, special_tokens=GPT2)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    texts = ["A good film", f"good{END} film", "<mask>"]
    assert reloaded.special_tokens == (END,)
    assert reloaded.tokenize(texts) == tokenizer.tokenize(texts) == theirs(texts)["input_ids"]
    with pytest.raises(PresetError, match="lacks the special tokens <s>, <pad>"):
        read_tokenizer(tmp_path, BytePairTokenizer)
