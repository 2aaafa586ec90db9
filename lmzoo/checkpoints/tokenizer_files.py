"""Reads the tokenizer in a checkpoint's directory, whatever its format, and writes such files."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import Arguments, JsonObject
from lmzoo.checkpoints.formats.sharded import file_in
from lmzoo.checkpoints.keras_hub_tokenizers import read_keras_hub_tokenizer
from lmzoo.checkpoints.known_tokenizers import format_in, format_of
from lmzoo.checkpoints.tokenizer_config import SETTINGS_FILE, file_that_adds, read_settings, read_tokens, write_settings
from lmzoo.checkpoints.tokenizer_format import PIPELINE_FILE, TokenizerFormat
from lmzoo.checkpoints.vocabulary_files import has_file, naming
from lmzoo.checkpoints.word_format import read_words, write_words
from lmzoo.errors import MissingTokenizerError, PresetError
from lmzoo.files.preset_files import CONFIG_FILE, read_json
from lmzoo.text import SpecialTokens, Tokenizer
from lmzoo.text.tokenizers.word_level import WordLevelTokenizer

# Tables of embeddings are padded to a multiple of some number, by fewer rows than this.
_PADDING = 128
_FAIRSEQ = "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe/"


def read_tokenizer(
    directory: Path,
    cls: type[Tokenizer],
    vocabulary_size: int | None = None,
    max_characters: int = 50,
    special_tokens: SpecialTokens | None = None,
) -> Tokenizer:
    """Reads the tokenizer whose files are in a checkpoint's directory.

    If the files do not say whether to lower-case: with Hugging Face's files text is lower-cased, except for XLNet, as
    in transformers. With others, "cased" or "uncased" in the name of the directory or the checkpoint decides; if
    neither is there, text is lower-cased unless the vocabulary has capital letters.

    Args:
        directory: the checkpoint's.
        cls: the family's tokenizer. For ALBERT's, files of WordPiece are accepted, too.
        vocabulary_size: rows of the model's table of token embeddings. There may be more rows than tokens, as in
            transformers, except for ELMo. None to accept any number, and for an ELMo that reads characters.
        max_characters: characters of a word, for such an ELMo.
        special_tokens: the family's special tokens, if they are not those of the class.

    Raises:
        PresetError: naming the file and what is wrong: it is missing or damaged, a token is repeated, there are too
            many tokens, special tokens are not ours, or a setting is not supported.
    """
    words = issubclass(cls, WordLevelTokenizer)
    with naming(directory):
        if words:
            tokenizer, file = read_words(directory, cls, vocabulary_size, max_characters)
        else:
            tokenizer, file = _read(directory, cls, special_tokens or {})
    if vocabulary_size is not None:
        _check_size(directory, tokenizer, vocabulary_size, file, exact=words)
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, directory: Path, sequence_length: int, peer_class: str | None = None) -> None:
    """Writes a tokenizer's files into a checkpoint's directory, for transformers and for Google's code.

    They are vocab.txt, vocab.json and merges.txt, or spiece.model, each with tokenizer.json and tokenizer_config.json
    (see `write_settings`); for ELMo they are vocab.txt alone, or nothing if it reads characters.

    Example:

    ```python
    from pathlib import Path

    from lmzoo.checkpoints.tokenizer_files import read_tokenizer, write_tokenizer
    from lmzoo.text import WordPieceTokenizer

    Path("checkpoint").mkdir()
    write_tokenizer(WordPieceTokenizer.of_words(["film"], 11), Path("checkpoint"), 512)
    read_tokenizer(Path("checkpoint"), WordPieceTokenizer).tokenize(["A film"])  # [[1, 5]]
    ```
    """
    if isinstance(tokenizer, WordLevelTokenizer):
        write_words(tokenizer, directory)
        return
    tokenizer.save_assets(directory)
    for ours, theirs in format_of(type(tokenizer)).written.items():
        (directory / ours).replace(directory / theirs)
    write_settings(tokenizer, directory, sequence_length, peer_class)


def _read(directory: Path, cls: type[Tokenizer], special: SpecialTokens) -> tuple[Tokenizer, Path]:
    wanted = format_of(cls)
    pipeline = read_json(directory, PIPELINE_FILE) if has_file(directory, PIPELINE_FILE) else None
    if pipeline is not None and "class_name" in pipeline:
        tokenizer, file = read_keras_hub_tokenizer(directory, pipeline, special)
        read = tokenizer
        tokenizer = format_of(type(read)).of_keras_hub(read, lambda: _lowercase(directory, file, read))
    else:
        formats = [wanted, *([format_of(wanted.alternative)] if wanted.alternative else [])]
        tokenizer, file = _read_others(directory, formats, pipeline, special)
    if type(tokenizer) not in (cls, wanted.alternative):
        raise PresetError(f"{file} is of a {type(tokenizer).__name__}, but the model needs a {cls.__name__}.")
    return tokenizer, file


def _read_others(
    directory: Path, formats: Sequence[TokenizerFormat], pipeline: JsonObject | None, special: SpecialTokens
) -> tuple[Tokenizer, Path]:
    format, file, vocabulary = _find_vocabulary(directory, formats, pipeline, special)
    settings = read_settings(directory, format, pipeline)
    if format is formats[0]:
        settings = {**special, **settings}
    if oddities := format.oddities(file, vocabulary):
        warnings.warn(f"{file}: {'; '.join(oddities)}.", stacklevel=2)
    with naming(file):
        tokenizer = format.tokenizer(**vocabulary, **settings)
        if "lowercase" in tokenizer.get_config() and "lowercase" not in settings:
            settings["lowercase"] = _lowercase(directory, file, tokenizer)
            tokenizer = format.tokenizer(**vocabulary, **settings)
        if tokens := read_tokens(directory, tokenizer, pipeline):
            tokenizer = format.tokenizer(**vocabulary, **{**settings, **tokens})
    return tokenizer, file


def _find_vocabulary(
    directory: Path, formats: Sequence[TokenizerFormat], pipeline: JsonObject | None, special: SpecialTokens
) -> tuple[TokenizerFormat, Path, Arguments]:
    """Finds the format, the file of the vocabulary, and the constructor's arguments that hold it.

    Args:
        directory: the checkpoint's.
        formats: those to look for, the family's first; the first one whose files are there is taken.
        pipeline: the content of tokenizer.json, if there is one. Its class and vocabulary then take precedence, as in
            transformers, except over files that say more. If there are both, and they differ, a warning says so.
        special: special tokens of the family's format.

    Raises:
        PresetError: if there is none, or a file is damaged.
    """
    family = formats[0]
    if pipeline is not None:
        formats = [format_in(pipeline, directory, family)]
    sets = [(format, names) for format in formats for names in format.files]
    found = [(format, names) for format, names in sets if all(has_file(directory, name) for name in names)]
    if not found and pipeline is None:
        raise MissingTokenizerError(_nothing(directory, [names for _, names in sets]))
    format = found[0][0] if found else formats[0]
    sources: list[tuple[Path, Arguments]] = []
    if pipeline is not None:
        file = directory / PIPELINE_FILE
        blank: Any = format.tokenizer
        kept = blank(**(special if format is family else {})).special_tokens
        with naming(file):
            sources.append((file, format.vocabulary_of_pipeline(pipeline, kept)))
    if found:
        files = [file_in(directory, name) for name in found[0][1]]
        with naming(files[0]):
            sources.append((files[0], format.vocabulary_of_files(files)))
    file, vocabulary = sources[-1 if format.file_counts else 0]
    if len(sources) == 2:
        _compare(format, sources, file)
    return format, file, vocabulary


def _compare(format: TokenizerFormat, sources: Sequence[tuple[Path, Arguments]], kept: Path) -> None:
    """Warns if two files in a directory give different ids to the same text."""
    (pipeline, one), (file, other) = ((path, _lists(format, path, vocabulary)) for path, vocabulary in sources)
    for what, first in one.items():
        pairs = enumerate(itertools.zip_longest(first, other[what]))
        if differing := next(((number, a, b) for number, (a, b) in pairs if a != b), None):
            number, a, b = differing
            warnings.warn(
                f"{pipeline} and {file.name} hold different {what}: number {number} is {a!r:.60} and {b!r:.60}. Ids "
                f"depend on the file that a library reads; lmzoo reads {kept.name}. Delete the one that was not used "
                "in training.",
                stacklevel=2,
            )
            return


def _lists(format: TokenizerFormat, file: Path, vocabulary: Arguments) -> dict[str, list[str]]:
    with naming(file):
        return format.lists(vocabulary)


def _nothing(directory: Path, sets: list[tuple[str, ...]]) -> str:
    parts = [name for names in sets for name in names if has_file(directory, name)]
    known = " or ".join(dict.fromkeys([PIPELINE_FILE, *(" and ".join(names) for names in sets)]))
    there = f"; there is only {', '.join(parts)}" if parts else ""
    advice = f" Fetch encoder.json and vocab.bpe from {_FAIRSEQ} into it." if "dict.txt" in parts else ""
    return f"{directory} holds no tokenizer files: expected {known}{there}. Pass `preprocessor=`.{advice}"


def _lowercase(directory: Path, file: Path, tokenizer: Tokenizer) -> bool:
    """Guesses whether to lower-case, for files that do not say."""
    capital = next((token for token in tokenizer.vocabulary if re.match("(##|▁)?[A-Z]", token)), None)
    if has_file(directory, CONFIG_FILE) and "model_type" in read_json(directory, CONFIG_FILE):  # Hugging Face's
        assumed = bool(format_of(type(tokenizer)).settings["do_lower_case"][1])
        if assumed and capital is not None:
            warnings.warn(
                f"{directory}: text is lower-cased, as in transformers, since {SETTINGS_FILE} lacks `do_lower_case`. "
                f"But {file.name} has tokens with capitals, such as {capital!r}. If text should keep its case, set it "
                "to false there.",
                stacklevel=2,
            )
        return assumed
    for name in (directory.resolve().name, *(path.name for path in directory.glob("*.index"))):
        if match := re.search("(?<![a-z])(un)?cased(?![a-z])", name.lower()):
            return match[1] is not None
    return capital is None


def _check_size(directory: Path, tokenizer: Tokenizer, vocabulary_size: int, file: Path, exact: bool) -> None:
    size = tokenizer.vocabulary_size
    if len(tokenizer.base_vocabulary) <= vocabulary_size < size:
        token = tokenizer.vocabulary[vocabulary_size]
        raise PresetError(
            f"{file_that_adds(token, directory)} adds the token {token!r}, for which the model has no embedding: it has "
            f"{vocabulary_size:,}. Remove the token from the files."
        )
    counts = f"{file} holds {size:,} tokens, but the model has embeddings for {vocabulary_size:,}"
    if size > vocabulary_size or (exact and size < vocabulary_size):
        raise PresetError(f"{counts}: they do not belong together.")
    if size <= vocabulary_size - _PADDING:
        warnings.warn(f"{counts}. That works, as in transformers, but they may not belong together.", stacklevel=3)
