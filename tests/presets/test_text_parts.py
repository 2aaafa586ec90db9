"""Tokenizers and preprocessors are loaded and saved without a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import keras
import pytest

from lmzoo.families.bert import FAMILY as BERT
from lmzoo.files.manifest import read_version
from lmzoo.models import Backbone, BertBackbone, TextClassifier
from lmzoo.presets import PresetError, verify_manifest, write_manifest
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.text import BytePairTokenizer, Preprocessor, Tokenizer, WordPieceTokenizer

TEXTS = ["A quiet film.", ""]
NAME = "bert_nano_en_uncased"


@keras.saving.register_keras_serializable(package="films")
class MarkupRemover(Preprocessor):
    """Preprocessor that replaces a mark by a space."""

    def __init__(self, *args, mark="<br>", **kwargs):
        super().__init__(*args, **kwargs)
        self.mark = mark

    def encode(self, texts, pairs=None):
        return super().encode([text.replace(self.mark, " ") for text in texts], pairs)

    def get_config(self):
        return {**super().get_config(), "mark": self.mark}


class Unregistered(Preprocessor):
    pass


class UnregisteredTokenizer(WordPieceTokenizer):
    pass


def make_preprocessor(cls, **arguments):
    preprocessor = tiny_preprocessor(BERT)
    return cls(preprocessor.tokenizer, preprocessor.packing, 13, **arguments)


def test_text_parts_are_loaded_from_presets_and_checkpoints(tmp_path: Path) -> None:
    preprocessor = Preprocessor.from_preset(NAME)
    for cls in (Tokenizer, WordPieceTokenizer):
        tokenizer = cls.from_preset(NAME)
        assert type(tokenizer) is WordPieceTokenizer
        assert tokenizer(TEXTS) == preprocessor.tokenizer(TEXTS) != [[], []]
    assert Preprocessor.from_preset(NAME, sequence_length=17).sequence_length == 17
    assert preprocessor.sequence_length > 17
    with pytest.raises(ValueError, match="`sequence_length` must be a positive integer, got 0"):
        Preprocessor.from_preset(NAME, sequence_length=0)
    message = "holds a WordPieceTokenizer, not a BytePairTokenizer.* `Tokenizer.from_preset`"
    with pytest.raises(ValueError, match=message):
        BytePairTokenizer.from_preset(NAME)
    with pytest.raises(ValueError, match=r"holds a Preprocessor, not a MarkupRemover.* `Preprocessor.from_preset`"):
        MarkupRemover.from_preset(NAME)
    import lmzoo

    task = tiny_task(TextClassifier, BERT)
    lmzoo.save_checkpoint(task.backbone, tmp_path / "hf", to="hf", preprocessor=task.preprocessor)
    assert Tokenizer.from_preset(tmp_path / "hf").vocabulary == task.preprocessor.tokenizer.vocabulary
    assert Preprocessor.from_preset(tmp_path / "hf").packing == task.preprocessor.packing


def test_a_tokenizer_is_saved_alone(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_preset(NAME)
    tokenizer.save_to_preset(tmp_path / "preset")
    assert verify_manifest(tmp_path / "preset")
    assert Tokenizer.from_preset(tmp_path / "preset")(TEXTS) == tokenizer(TEXTS)
    with pytest.raises(PresetError, match=r"holds no preprocessor \(preprocessor.json is missing\)"):
        Preprocessor.from_preset(tmp_path / "preset")
    with pytest.raises(PresetError, match=r"has no config\.json"):
        Backbone.from_preset(tmp_path / "preset")
    with pytest.raises(FileExistsError):
        tokenizer.save_to_preset(tmp_path / "preset", overwrite=False)


def test_a_preprocessor_is_added_to_a_model(tmp_path: Path) -> None:
    tiny_backbone(BERT).save_to_preset(tmp_path / "preset")
    weights = (tmp_path / "preset" / "model.weights.h5").read_bytes()
    write_manifest(tmp_path / "preset", version=3)
    preprocessor = tiny_preprocessor(BERT)
    preprocessor.sequence_length = 19
    preprocessor.save_to_preset(tmp_path / "preset")
    assert verify_manifest(tmp_path / "preset")
    assert read_version(tmp_path / "preset") == 3
    assert (tmp_path / "preset" / "model.weights.h5").read_bytes() == weights
    assert TextClassifier.from_preset(tmp_path / "preset", num_classes=2).preprocessor.sequence_length == 19
    with pytest.raises(ValueError, match="holds a preprocessor, of which the tokenizer is a part"):
        preprocessor.tokenizer.save_to_preset(tmp_path / "preset")


def test_a_registered_preprocessor_is_kept(tmp_path: Path) -> None:
    preprocessor = make_preprocessor(MarkupRemover, mark="<p>")
    task = TextClassifier(tiny_backbone(BERT), preprocessor, num_classes=2)
    task.save_to_preset(tmp_path / "preset")
    for loaded in (
        TextClassifier.from_preset(tmp_path / "preset").preprocessor,
        Preprocessor.from_preset(tmp_path / "preset"),
        MarkupRemover.from_preset(tmp_path / "preset"),
    ):
        assert type(loaded) is MarkupRemover
        assert (loaded.mark, loaded.sequence_length) == ("<p>", 13)
        texts = ["good<p>film", "bad<br>film"]
        assert loaded(texts)["token_ids"].tolist() == preprocessor(texts)["token_ids"].tolist()


def test_unknown_registered_names_are_refused(tmp_path: Path) -> None:
    TextClassifier(tiny_backbone(BERT), make_preprocessor(MarkupRemover), num_classes=2).save_to_preset(
        tmp_path / "preset"
    )
    (tmp_path / "preset" / "manifest.json").unlink()
    file = tmp_path / "preset" / "preprocessor.json"
    stored = json.loads(file.read_text())
    for name, message in (
        ("films>Gone", r"names no preprocessor of lmzoo: 'films>Gone'.*register_keras_serializable"),
        ("lmzoo>WordPieceTokenizer", "names no preprocessor of lmzoo: 'lmzoo>WordPieceTokenizer'"),
        (7, "names no preprocessor of lmzoo: 7"),
    ):
        file.write_text(json.dumps({**stored, "registered_name": name}))
        with pytest.raises(PresetError, match=message):
            TextClassifier.from_preset(tmp_path / "preset")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: make_preprocessor(Unregistered), "Unregistered"),
        (
            lambda: Preprocessor(UnregisteredTokenizer(WordPieceTokenizer.special_tokens), BERT.packing, 13),
            "UnregisteredTokenizer",
        ),
    ],
)
def test_an_unregistered_class_is_not_saved(tmp_path: Path, make: Callable[[], Preprocessor], name: str) -> None:
    preprocessor = make()
    task = TextClassifier(tiny_backbone(BERT), preprocessor, num_classes=2)
    for save in (task.save_to_preset, preprocessor.save_to_preset):
        with pytest.raises(ValueError, match=f"The class {name} is not registered with Keras"):
            save(tmp_path / "preset")
    assert not (tmp_path / "preset").exists()


def test_an_unregistered_backbone_is_not_saved(tmp_path: Path) -> None:
    class UnregisteredBackbone(BertBackbone):
        pass

    backbone = UnregisteredBackbone.from_config(tiny_backbone(BERT).get_config())
    with pytest.raises(ValueError, match="The class UnregisteredBackbone is not registered with Keras"):
        backbone.save_to_preset(tmp_path / "preset")
    assert not (tmp_path / "preset").exists()
