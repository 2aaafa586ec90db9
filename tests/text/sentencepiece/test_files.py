"""A SentencePiece tokenizer's files and configuration, and errors of other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmzoo.text import SentencePieceTokenizer


@pytest.mark.parametrize("name", ["vocabulary.spm", "spiece.model"])
def test_files_are_the_published_model(
    tokenizer: SentencePieceTokenizer, model: bytes, tmp_path: Path, name: str
) -> None:
    tokenizer.save_assets(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["vocabulary.spm"]
    path = (tmp_path / "vocabulary.spm").rename(tmp_path / name)
    assert path.read_bytes() == model
    loaded = SentencePieceTokenizer.from_config({"lowercase": False, "keep_accents": True})
    loaded.load_assets(tmp_path)
    assert loaded.vocabulary == tokenizer.vocabulary
    assert loaded.get_config() == {"lowercase": False, "keep_accents": True}
    assert SentencePieceTokenizer(path).tokenize(["the Book"]) == tokenizer.tokenize(["the Book"])
    assert SentencePieceTokenizer(str(path)).model == model


def cut_model(model: bytes, *absent: str) -> bytes:
    """Return the beginning of the model up to the parts that are absent."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for part in absent:
        proto.ClearField(part)
    content = proto.SerializeToString()
    assert len(content) < len(model)
    assert model.startswith(content)
    return content


def test_incomplete_models_are_named(model: bytes, tmp_path: Path) -> None:
    message = "is not a complete SentencePiece model"
    contents = {
        "empty": b"", "text": b"[PAD]\n[UNK]\nthe\n", "html": b"<!DOCTYPE html><p>404", "cut": model[:-1],
        "half": model[: len(model) // 2], "binary": bytes(range(256)) * 9,
        "pieces": cut_model(model, "trainer_spec", "normalizer_spec"), "trained": cut_model(model, "normalizer_spec"),
    }  # fmt: skip
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} {message} \({len(content):,} bytes\)"):
            SentencePieceTokenizer(path)
        path.rename(tmp_path / "vocabulary.spm")
        with pytest.raises(ValueError, match=rf"vocabulary\.spm {message}"):
            SentencePieceTokenizer().load_assets(tmp_path)
    with pytest.raises(ValueError, match=f"`model` {message}"):
        SentencePieceTokenizer(b"")
    with pytest.raises(FileNotFoundError, match="absent"):
        SentencePieceTokenizer(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"holds neither vocabulary\.spm nor spiece\.model"):
        SentencePieceTokenizer().load_assets(tmp_path / "absent")


def test_models_of_other_families_are_named(model: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.model").write_bytes(model.replace(b"[MASK]", b"[NASK]").replace(b"<pad>", b"<pod>"))
    message = r"x\.model belongs to another family's tokenizer\. .* lacks .* <pad>, \[MASK\]"
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer(tmp_path / "x.model")
