"""Tokenizers from the files in a checkpoint's directory, whatever its format, and back to such files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.formats.sharded import file_beside
from lmzoo.checkpoints.keras_hub_tokenizers import read_keras_hub_tokenizer
from lmzoo.checkpoints.sentencepiece_rules import clean_up_in
from lmzoo.checkpoints.tokenizer_pipelines import PIPELINE_FILE
from lmzoo.checkpoints.tokenizer_settings import SETTINGS_FILE, check_tokens, read_settings, write_settings
from lmzoo.checkpoints.vocabularies import find_vocabulary, has_file, naming, read_lines
from lmzoo.errors import MissingTokenizerError, PresetError
from lmzoo.files.preset_files import CONFIG_FILE, read_json
from lmzoo.text import CharacterTokenizer, SentencePieceTokenizer, Tokenizer, WordPieceTokenizer, WordTokenizer

# A table of embeddings is made larger by less than this, to be a multiple of some number.
_PADDING = 128
# ALBERT's Chinese models are of WordPiece.
_INSTEAD: dict[type[Tokenizer], type[Tokenizer]] = {SentencePieceTokenizer: WordPieceTokenizer}
_NAMES = {"vocabulary.txt": "vocab.txt", "vocabulary.json": "vocab.json", "vocabulary.spm": "spiece.model"}


def read_tokenizer(
    directory: Path, cls: type[Tokenizer], vocabulary_size: int | None = None, max_characters: int = 50
) -> Tokenizer:
    """The tokenizer whose files are in a checkpoint's directory.

    Where they do not say whether to lower-case: with Hugging Face's files text is lower-cased, as in transformers. With
    others, "cased" or "uncased" in the name of the directory or the checkpoint counts, and where neither is there, text
    is lower-cased unless the vocabulary has capital letters.

    Args:
        directory: the checkpoint's.
        cls: the family's tokenizer. For ALBERT's, files of WordPiece are taken, too.
        vocabulary_size: rows of the model's table of tokens, which may be more than there are tokens, as in
            transformers, but for ELMo. None to accept any, and for an ELMo that reads characters.
        max_characters: symbols of a word, for such an ELMo.

    Raises:
        PresetError: naming the file and what is wrong: nothing there, damaged, a repeated token, too many tokens, other
            special tokens than ours, or settings that ours cannot follow.
    """
    if cls is CharacterTokenizer and vocabulary_size is None:
        return CharacterTokenizer(max_characters)
    with naming(directory):
        if issubclass(cls, (CharacterTokenizer, WordTokenizer)):
            tokenizer, file = _read_words(directory)
        else:
            tokenizer, file = _read(directory, cls)
    if vocabulary_size is not None:
        _check_size(tokenizer, vocabulary_size, file)
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, directory: Path, sequence_length: int, peer_class: str | None = None) -> None:
    """Writes a tokenizer's files into a checkpoint's directory, for transformers and for Google's code.

    They are vocab.txt, vocab.json and merges.txt, or spiece.model, each with tokenizer.json and tokenizer_config.json;
    for ELMo vocab.txt alone, or nothing if it reads characters.

    Args:
        tokenizer: one of `lmzoo.text`.
        directory: where to.
        sequence_length: the most tokens of a row.
        peer_class: name of the tokenizer's class in transformers, if it is not the usual one.

    Example:

    ```python
    from pathlib import Path

    from lmzoo.checkpoints.tokenizers import read_tokenizer, write_tokenizer
    from lmzoo.text import WordPieceTokenizer

    Path("checkpoint").mkdir()
    write_tokenizer(WordPieceTokenizer.of_words(["film"], 11), Path("checkpoint"), 512)
    read_tokenizer(Path("checkpoint"), WordPieceTokenizer).tokenize(["A film"])  # [[1, 5]]
    ```
    """
    tokenizer.save_assets(directory)
    for ours, theirs in _NAMES.items():
        if (directory / ours).is_file():
            (directory / ours).replace(directory / theirs)
    if not isinstance(tokenizer, (CharacterTokenizer, WordTokenizer)):
        write_settings(tokenizer, directory, sequence_length, peer_class)


def _read(directory: Path, cls: type[Tokenizer]) -> tuple[Tokenizer, Path]:
    pipeline = read_json(directory, PIPELINE_FILE) if has_file(directory, PIPELINE_FILE) else None
    if pipeline is not None and "class_name" in pipeline:
        tokenizer, file = read_keras_hub_tokenizer(directory, pipeline)
        if isinstance(tokenizer, SentencePieceTokenizer):  # KerasHub has no settings for it
            told = clean_up_in(tokenizer.model) or {"lowercase": _lowercase(directory, file, tokenizer)}
            tokenizer = SentencePieceTokenizer(tokenizer.model, **told)
    else:
        kinds = [cls, *([_INSTEAD[cls]] if cls in _INSTEAD else [])]
        tokenizer, file = _read_others(directory, kinds, pipeline)
    if type(tokenizer) not in (cls, _INSTEAD.get(cls)):
        raise PresetError(f"{file} is of a {type(tokenizer).__name__}, but the model needs a {cls.__name__}.")
    return tokenizer, file


def _read_others(
    directory: Path, kinds: Sequence[type[Tokenizer]], pipeline: Mapping[str, Any] | None
) -> tuple[Tokenizer, Path]:
    kind, file, vocabulary = find_vocabulary(directory, kinds, pipeline)
    build: Callable[..., Tokenizer] = kind
    settings = read_settings(directory, kind, pipeline)
    with naming(file):
        tokenizer = build(**vocabulary, **settings)
        if "lowercase" in tokenizer.get_config() and "lowercase" not in settings:
            tokenizer = build(**vocabulary, **settings, lowercase=_lowercase(directory, file, tokenizer))
    check_tokens(directory, tokenizer, pipeline)
    return tokenizer, file


def _lowercase(directory: Path, file: Path, tokenizer: Tokenizer) -> bool:
    """Whether to lower-case, for files that do not say."""
    capital = next((token for token in tokenizer.vocabulary if re.match("(##|▁)?[A-Z]", token)), None)
    if has_file(directory, CONFIG_FILE) and "model_type" in read_json(directory, CONFIG_FILE):  # Hugging Face's
        if capital is not None:
            warnings.warn(
                f"{directory}: text is lower-cased, as in transformers, for want of `do_lower_case` in "
                f"{SETTINGS_FILE}. But {file.name} has tokens with capitals, such as {capital!r}. If it should not be, "
                "say so there.",
                stacklevel=2,
            )
        return True
    for name in (directory.resolve().name, *(path.name for path in directory.glob("*.index"))):
        if match := re.search("(?<![a-z])(un)?cased(?![a-z])", name.lower()):
            return match[1] is not None
    return capital is None


def _read_words(directory: Path) -> tuple[Tokenizer, Path]:
    files = sorted(directory.glob("vocab*.txt"))
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        raise MissingTokenizerError(
            f"{directory} must hold one vocab*.txt for its tokens, found {found}. Pass `preprocessor=`."
        )
    with naming(files[0]):
        return WordTokenizer(read_lines(file_beside(directory, files[0].name))), files[0]


def _check_size(tokenizer: Tokenizer, vocabulary_size: int, file: Path) -> None:
    size = tokenizer.vocabulary_size
    counts = f"{file} holds {size:,} tokens, but the model has embeddings for {vocabulary_size:,}"
    if size > vocabulary_size or (size < vocabulary_size and isinstance(tokenizer, WordTokenizer)):
        raise PresetError(f"{counts}: they do not belong together.")
    if size <= vocabulary_size - _PADDING:
        warnings.warn(f"{counts}. That works, as in transformers, but they may not belong together.", stacklevel=3)
