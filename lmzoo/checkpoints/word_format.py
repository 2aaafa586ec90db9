"""Tokenizers of words in the files of bilm-tf and AllenNLP: a list of words, or nothing for one of characters."""

from __future__ import annotations

from pathlib import Path

from lmzoo.checkpoints.formats.sharded import file_beside
from lmzoo.checkpoints.vocabulary_files import naming, read_lines
from lmzoo.errors import MissingTokenizerError
from lmzoo.text import CharacterTokenizer, Tokenizer, WordTokenizer
from lmzoo.text.tokenizers.word_level import VOCABULARY_FILE


def read_words(
    directory: Path, cls: type[Tokenizer], vocabulary_size: int | None, max_characters: int
) -> tuple[Tokenizer, Path]:
    """A tokenizer, and the file that it is from.

    Args:
        directory: the checkpoint's.
        cls: the family's.
        vocabulary_size: of a model that reads words, whatever the family's tokenizer is; None if it is not known.
        max_characters: symbols of a word, for such a model.

    Raises:
        PresetError: naming the file and what is wrong.
    """
    if cls is CharacterTokenizer and vocabulary_size is None:
        return CharacterTokenizer(max_characters), directory
    files = sorted(directory.glob("vocab*.txt"))
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        raise MissingTokenizerError(
            f"{directory} must hold one vocab*.txt for its tokens, found {found}. Pass `preprocessor=`."
        )
    with naming(files[0]):
        return WordTokenizer(read_lines(file_beside(directory, files[0].name))), files[0]


def write_words(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes vocab.txt, or nothing for a tokenizer of characters."""
    tokenizer.save_assets(directory)
    if (file := directory / VOCABULARY_FILE).is_file():
        file.replace(directory / "vocab.txt")
