"""Tokenizers without a vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmzoo.text import BytePairTokenizer, SentencePieceTokenizer, Tokenizer, WordPieceTokenizer, WordTokenizer


@pytest.mark.parametrize(
    ("cls", "argument", "attributes"),
    [
        (WordPieceTokenizer, "vocabulary", []),
        (BytePairTokenizer, "vocabulary", ["merges"]),
        (SentencePieceTokenizer, "model", ["model", "splits", "backend", "pad_id"]),
        (WordTokenizer, "vocabulary", []),
    ],
)
def test_every_use_names_the_missing_argument(
    cls: type[Tokenizer], argument: str, attributes: list[str], tmp_path: Path
) -> None:
    tokenizer = cls()
    message = f"no vocabulary yet: pass `{argument}` or call `load_assets`"
    for method, value in (("tokenize", ["a"]), ("tokenize_with_offsets", ["a"]), ("save_assets", tmp_path)):
        with pytest.raises(ValueError, match=message):
            getattr(tokenizer, method)(value)
    for attribute in ["vocabulary", *attributes]:
        with pytest.raises(ValueError, match=message):
            getattr(tokenizer, attribute)
