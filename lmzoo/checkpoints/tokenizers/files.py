"""The tokenizer in a checkpoint's directory, whatever its format, read and written."""

from __future__ import annotations

import dataclasses
import itertools
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lmzoo.checkpoints.config_table import Arguments, JsonObject
from lmzoo.checkpoints.tokenizers.classes import (
    ANY_CLASS,
    NO_PACKING,
    SETTINGS_FILE,
    TokenizerClass,
    class_of_family,
    classes_of_tokenizer,
    find_class,
    tokenizer_classes,
)
from lmzoo.checkpoints.tokenizers.config import file_that_adds, read_settings, read_tokens
from lmzoo.checkpoints.tokenizers.format import PIPELINE_FILE, TokenizerFormat, template_of
from lmzoo.checkpoints.tokenizers.formats import format_of
from lmzoo.checkpoints.tokenizers.keras_hub import read_keras_hub_tokenizer
from lmzoo.checkpoints.tokenizers.packing import read_packing
from lmzoo.checkpoints.tokenizers.vocabulary_files import add_file_to_errors, read_lines
from lmzoo.errors import MissingTokenizerError, PresetError
from lmzoo.files.inside import file_in, has_file
from lmzoo.files.preset_files import CONFIG_FILE, JsonFiles, read_json, write_json
from lmzoo.registry.family import Family
from lmzoo.text import CharacterTokenizer, Packing, SpecialTokens, Tokenizer, WordTokenizer
from lmzoo.text.tokenizers.word_level import VOCABULARY_FILE, WordLevelTokenizer

# Tables of embeddings are padded to a multiple of some number, by fewer rows than this.
_PADDING = 128
_FAIRSEQ = "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe/"


class _Stored(NamedTuple):
    """A tokenizer that was read.

    Attributes:
        tokenizer: The tokenizer.
        file: The file of its vocabulary, for messages.
        peer: Its class in transformers, or None if other libraries wrote the files.
        pipeline: The content of tokenizer.json, if there is one of Hugging Face's.
    """

    tokenizer: Tokenizer
    file: Path
    peer: TokenizerClass | None = None
    pipeline: JsonObject | None = None


def read_tokenizer(
    directory: Path,
    cls: type[Tokenizer],
    vocabulary_size: int | None = None,
    max_characters: int = 50,
    special_tokens: SpecialTokens | None = None,
) -> Tokenizer:
    """Read the tokenizer whose files are in a checkpoint's directory.

    The files decide which tokenizer it is: the class that they name, what tokenizer.json holds, or the names of the
    vocabulary's files. The family's tokenizer is the default.

    If the files do not say whether to lower-case: with Hugging Face's files text is lower-cased, except for XLNet, as
    in transformers. With others, "cased" or "uncased" in the name of the directory or the checkpoint decides; if
    neither is there, text is lower-cased unless the vocabulary has capital letters.

    Args:
        directory: The checkpoint's directory.
        cls: The family's tokenizer.
        vocabulary_size: Rows of the model's table of token embeddings. There may be more rows than tokens, as in
            transformers, except for ELMo. None to accept any number, and for an ELMo that reads characters.
        max_characters: Characters of a word, for such an ELMo.
        special_tokens: The family's special tokens, if they are not the special tokens of the class.

    Raises:
        PresetError: Naming the file and what is wrong: it is missing or damaged, a token is repeated, there are too
            many tokens, special tokens are not ours, or a setting is not supported.
    """
    own = _own_class(cls, special_tokens or {})
    return _read_stored(JsonFiles(directory), own, vocabulary_size, max_characters).tokenizer


def read_tokenizer_and_packing(
    files: JsonFiles, family: Family, vocabulary_size: int | None = None, max_characters: int = 50
) -> tuple[Tokenizer, Packing]:
    """Read the tokenizer of a checkpoint of a family, see `read_tokenizer`, and how it packs texts.

    Decoders' tokenizers add nothing to a text in transformers. Here they add what the family's packing adds, unless
    their files say otherwise.

    Raises:
        PresetError: As for `read_tokenizer`; if the files pack texts in a way that is not supported.
    """
    own = class_of_family(family)
    stored = _read_stored(files, own, vocabulary_size, max_characters)
    if stored.peer is None:
        return stored.tokenizer, family.packing
    with add_file_to_errors(files.directory / PIPELINE_FILE):
        packing = read_packing(files, stored.peer, own, stored.tokenizer, stored.pipeline)
    if stored.peer.name == own.name and not packing.overhead(pair=True) and own.packing == NO_PACKING:
        return stored.tokenizer, family.packing
    return stored.tokenizer, packing


def _own_class(cls: type[Tokenizer], special: SpecialTokens) -> TokenizerClass:
    same = [known for known in tokenizer_classes().values() if known.tokenizer is cls]
    return next((k for k in same if k.special_tokens == special), TokenizerClass("", cls, special))


def _read_stored(files: JsonFiles, own: TokenizerClass, vocabulary_size: int | None, max_characters: int) -> _Stored:
    words = issubclass(own.tokenizer, WordLevelTokenizer)
    with add_file_to_errors(files.directory):
        if words:
            stored = _Stored(*_read_words(files.directory, own.tokenizer, vocabulary_size, max_characters))
        else:
            stored = _read(files, own)
    if vocabulary_size is not None:
        _check_size(files, stored.tokenizer, vocabulary_size, stored.file, exact=words)
    return stored


def write_tokenizer(
    tokenizer: Tokenizer,
    directory: Path,
    sequence_length: int,
    peer_class: str | None = None,
    packing: Packing | None = None,
) -> None:
    """Write a tokenizer's files into a checkpoint's directory, for transformers and for Google's code.

    They are vocab.txt, vocab.json and merges.txt, or a model of SentencePiece, each with tokenizer.json and
    tokenizer_config.json; for ELMo they are vocab.txt alone, or nothing if it reads characters.

    Args:
        tokenizer: The tokenizer.
        directory: Where to write.
        sequence_length: The most tokens of a sequence.
        peer_class: The class in transformers, by default that of the first family with such a tokenizer.
        packing: How texts are packed, if not as that class does. The class is then one that does what tokenizer.json
            says.

    Example:

    ```python
    from pathlib import Path

    from lmzoo.checkpoints.tokenizers.files import read_tokenizer, write_tokenizer
    from lmzoo.text import WordPieceTokenizer

    Path("checkpoint").mkdir()
    write_tokenizer(WordPieceTokenizer.of_words(["film"], 11), Path("checkpoint"), 512)
    read_tokenizer(Path("checkpoint"), WordPieceTokenizer).tokenize(["A film"])  # [[1, 5]]
    ```
    """
    if isinstance(tokenizer, WordLevelTokenizer):
        tokenizer.save_assets(directory)
        if (file := directory / VOCABULARY_FILE).is_file():  # there is none if words are split into characters
            file.replace(directory / "vocab.txt")
        return
    format = format_of(type(tokenizer))
    format.write_vocabulary(tokenizer, directory)
    config = tokenizer.get_config()
    tokens = {attribute: getattr(tokenizer, ours) for attribute, ours in format.tokens.items()}
    settings = {
        "tokenizer_class": peer_class or classes_of_tokenizer(tokenizer)[0].name,
        "model_max_length": sequence_length,
        **{attribute: token for attribute, token in tokens.items() if token is not None},
        **{key: config.get(argument, default) for key, (argument, default) in format.settings.items()},
        **{key: values[0] for key, values in format.allowed.items() if values[0] is not None},
        **format.extra_settings,
    }
    special = [token.content for token in tokenizer.added_tokens if token.special]
    if more := [token for token in special if token not in tokens.values()]:
        settings["additional_special_tokens"] = more
    pipeline = format.pipeline(tokenizer)
    if packing is not None and pipeline is not None:
        settings["tokenizer_class"] = f"{ANY_CLASS[0]}Fast"
    else:
        packing = _packing_to_state(tokenizer, settings["tokenizer_class"])
    if packing is not None and pipeline is not None:
        pipeline.post_processor = template_of(packing, tokenizer)
    write_json(directory, SETTINGS_FILE, settings)
    if pipeline is not None:
        pipeline.save(str(directory / PIPELINE_FILE))


def _packing_to_state(tokenizer: Tokenizer, name: str) -> Packing | None:
    """Return how the class `name` of transformers packs texts, or None if that is how its format writes it."""
    peer = tokenizer_classes().get(name)
    written = format_of(type(tokenizer)).packing(tokenizer)
    if peer is None or written is None or not peer.can_be(tokenizer.special_tokens):
        return None
    same = dataclasses.replace(peer.packing, segments=written.segments) == written
    return None if same else peer.packing


def _read_words(
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


def _read(files: JsonFiles, own: TokenizerClass) -> _Stored:
    directory = files.directory
    pipeline = read_json(directory, PIPELINE_FILE) if has_file(directory, PIPELINE_FILE) else None
    if pipeline is None or "class_name" not in pipeline:
        return _read_others(files, own, pipeline)
    tokenizer, file = read_keras_hub_tokenizer(directory, pipeline, own.special_tokens)
    read = tokenizer
    tokenizer = format_of(type(read)).of_keras_hub(read, lambda: _lowercase(files, file, read))
    if type(tokenizer) not in (own.tokenizer, format_of(own.tokenizer).alternative):
        raise PresetError(f"{file} is of a {type(tokenizer).__name__}, but the model needs a {own.tokenizer.__name__}.")
    return _Stored(tokenizer, file)


def _read_others(files: JsonFiles, own: TokenizerClass, pipeline: JsonObject | None) -> _Stored:
    peer = find_class(files, own, pipeline)
    format = format_of(peer.tokenizer)
    file, vocabulary = _find_vocabulary(files.directory, peer, own, pipeline)
    if own.tokenizer is peer.tokenizer and own.special_tokens != peer.special_tokens:
        tokens = _lists(format, file, vocabulary)["tokens"]
        if own.can_be(tokens) and not peer.can_be(tokens):
            peer = dataclasses.replace(peer, special_tokens=own.special_tokens)
    settings = {**peer.special_tokens, **read_settings(files, format, pipeline)}
    if oddities := format.oddities(file, vocabulary):
        warnings.warn(f"{file}: {'; '.join(oddities)}.", stacklevel=2)
    with add_file_to_errors(file):
        tokenizer = format.tokenizer(**vocabulary, **settings)
        if "lowercase" in tokenizer.get_config() and "lowercase" not in settings:
            settings["lowercase"] = _lowercase(files, file, tokenizer)
            tokenizer = format.tokenizer(**vocabulary, **settings)
        if added := read_tokens(files, tokenizer, pipeline):
            tokenizer = format.tokenizer(**vocabulary, **{**settings, **added})
    return _Stored(tokenizer, file, peer, pipeline)


def _find_vocabulary(
    directory: Path, peer: TokenizerClass, own: TokenizerClass, pipeline: JsonObject | None
) -> tuple[Path, Arguments]:
    """Find the file of the vocabulary, and the constructor's arguments that hold it.

    Args:
        directory: The checkpoint's.
        peer: The class of the tokenizer.
        own: The class of the tokenizers of the model's family, whose files messages name.
        pipeline: The content of tokenizer.json, if there is one. Its vocabulary then takes precedence, as in
            transformers, except over files that say more. If there are both, and they differ, a warning says so.

    Raises:
        PresetError: If there is none, or a file is damaged.
    """
    format = format_of(peer.tokenizer)
    files = format.find_files(directory)
    if not files and pipeline is None:
        others = [format_of(other) for other in (format_of(own.tokenizer).alternative,) if other]
        expected = [format, *(others if peer.tokenizer is own.tokenizer else [])]
        raise MissingTokenizerError(_nothing(directory, [names for format in expected for names in format.files]))
    sources: list[tuple[Path, Arguments]] = []
    if pipeline is not None:
        file = directory / PIPELINE_FILE
        blank: Any = format.tokenizer
        special_tokens = blank(**peer.special_tokens).special_tokens
        with add_file_to_errors(file):
            sources.append((file, format.vocabulary_of_pipeline(pipeline, special_tokens)))
    if files:
        with add_file_to_errors(files[0]):
            sources.append((files[0], format.vocabulary_of_files(files)))
    file, vocabulary = sources[-1 if format.file_counts else 0]
    if len(sources) == 2:
        _compare(format, sources, file)
    return file, vocabulary


def _compare(format: TokenizerFormat[Any], sources: Sequence[tuple[Path, Arguments]], kept: Path) -> None:
    """Warn if two files in a directory give different ids to the same text."""
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


def _lists(format: TokenizerFormat[Any], file: Path, vocabulary: Arguments) -> dict[str, list[str]]:
    with add_file_to_errors(file):
        return format.lists(vocabulary)


def _nothing(directory: Path, sets: list[tuple[str, ...]]) -> str:
    parts = [name for names in sets for name in names if has_file(directory, name)]
    known = " or ".join(dict.fromkeys([PIPELINE_FILE, *(" and ".join(names) for names in sets)]))
    there = f"; there is only {', '.join(parts)}" if parts else ""
    advice = f" Fetch encoder.json and vocab.bpe from {_FAIRSEQ} into it." if "dict.txt" in parts else ""
    return f"{directory} holds no tokenizer files: expected {known}{there}. Pass `preprocessor=`.{advice}"


def _lowercase(files: JsonFiles, file: Path, tokenizer: Tokenizer) -> bool:
    """Guess whether to lowercase, for files that do not say."""
    directory = files.directory
    capital = next((token for token in tokenizer.vocabulary if re.match("(##|▁)?[A-Z]", token)), None)
    if "model_type" in files.read_if_present(CONFIG_FILE):  # Hugging Face's
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


def _check_size(files: JsonFiles, tokenizer: Tokenizer, vocabulary_size: int, file: Path, exact: bool) -> None:
    size = tokenizer.vocabulary_size
    if tokenizer.added_tokens and len(tokenizer.base_vocabulary) <= vocabulary_size < size:
        token = tokenizer.vocabulary[vocabulary_size]
        raise PresetError(
            f"{file_that_adds(token, files)} adds the token {token!r}, for which the model has no embedding: it "
            f"has {vocabulary_size:,}. Remove the token from the files."
        )
    counts = f"{file} holds {size:,} tokens, but the model has embeddings for {vocabulary_size:,}"
    if size > vocabulary_size or (exact and size < vocabulary_size):
        raise PresetError(f"{counts}: they do not belong together.")
    if size <= vocabulary_size - _PADDING:
        warnings.warn(f"{counts}. That works, as in transformers, but they may not belong together.", stacklevel=3)
