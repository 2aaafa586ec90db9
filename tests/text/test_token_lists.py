"""Vocabularies in JSON files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmzoo.text import BytePairTokenizer, CharacterPairTokenizer, MarianTokenizer
from lmzoo.text.tokenizers import bpe, sentencepiece_pair
from lmzoo.text.tokenizers.token_lists import in_order
from lmzoo.text.tokenizers.tokenizer import Tokenizer

FILES = {
    BytePairTokenizer: bpe.VOCABULARY_FILE,
    CharacterPairTokenizer: bpe.VOCABULARY_FILE,
    MarianTokenizer: sentencepiece_pair.VOCABULARY_FILE,
}


@pytest.mark.parametrize("content", ['{"a": 0', '["a"]', '{"a": "b"}', '{"a": true}'])
@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_holds_no_vocabulary_is_named(kind: type[Tokenizer], content: str, tmp_path: Path) -> None:
    file = tmp_path / FILES[kind]
    file.write_text(content, "utf-8")
    with pytest.raises(ValueError, match=f"^{file} (does not hold JSON|must hold an object with an id for each token)"):
        kind().load_assets(tmp_path)


@pytest.mark.parametrize("kind", FILES)
def test_a_missing_file_is_named(kind: type[Tokenizer], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=FILES[kind]):
        kind().load_assets(tmp_path)


def test_the_empty_token_needs_a_valid_id() -> None:
    with pytest.raises(ValueError, match=r"^'' has the id 1000003, but 2 tokens must have ids from 0 to 3"):
        in_order({"a": 0, "": 1_000_003}, allow_gaps=True)
