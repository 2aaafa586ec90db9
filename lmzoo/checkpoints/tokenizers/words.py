"""Tokenizers of bilm-tf's and AllenNLP's ELMo: a list of words, or no file if the model reads characters."""

from __future__ import annotations

from pathlib import Path

from lmzoo.checkpoints.tokenizers.vocabulary_files import add_file_to_errors, read_lines
from lmzoo.errors import MissingTokenizerError
from lmzoo.files.inside import file_in
from lmzoo.text import CharacterTokenizer, Tokenizer, WordTokenizer
from lmzoo.text.tokenizers.word_level import VOCABULARY_FILE


def read_words(
    directory: Path, cls: type[Tokenizer], vocabulary_size: int | None, max_characters: int
) -> tuple[Tokenizer, Path]:
    """Read a tokenizer and return it with its file.

    A model that reads words has a `vocabulary_size`; it is None if the model reads characters, or if it is unknown.

    Raises:
        PresetError: Naming the file and what is wrong.
    """
    if cls is CharacterTokenizer and vocabulary_size is None:
        return CharacterTokenizer(max_characters), directory
    files = sorted(directory.glob("vocab*.txt"))
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        raise MissingTokenizerError(
            f"{directory} must hold one vocab*.txt for its tokens, found {found}. Pass `preprocessor=`."
        )
    with add_file_to_errors(files[0]):
        return WordTokenizer(read_lines(file_in(directory, files[0].name))), files[0]


def write_words(tokenizer: Tokenizer, directory: Path) -> None:
    """Write vocab.txt, or nothing for a tokenizer that splits words into characters."""
    tokenizer.save_assets(directory)
    if (file := directory / VOCABULARY_FILE).is_file():
        file.replace(directory / "vocab.txt")
