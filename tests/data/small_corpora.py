"""Words of small corpora, their tokenizer, its preprocessor, and the files of a directory."""

from __future__ import annotations

from pathlib import Path

from lmzoo.text import Packing, Preprocessor, Tokenizer, WordPieceTokenizer

WORDS = [f"w{i}" for i in range(53)]
TOKENIZER = WordPieceTokenizer.of_words(WORDS, 59)


def packer(length: int = 23, tokenizer: Tokenizer = TOKENIZER) -> Preprocessor:
    return Preprocessor(tokenizer, Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True), length)


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a directory."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
