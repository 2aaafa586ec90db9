"""Reading and writing of the tokenizer in a checkpoint's directory, in any format."""

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
    SETTINGS_FILE,
    TokenizerClass,
    find_class,
    find_tokenizer_classes,
    get_family_class,
    get_family_packing,
    list_tokenizer_classes,
)
from lmzoo.checkpoints.tokenizers.config import find_file_that_adds, read_roles, read_settings, read_tokens
from lmzoo.checkpoints.tokenizers.format import PIPELINE_FILE, TokenizerFormat, segmented_packing
from lmzoo.checkpoints.tokenizers.formats import get_format
from lmzoo.checkpoints.tokenizers.keras_hub import read_keras_hub_tokenizer
from lmzoo.checkpoints.tokenizers.packing import read_packing
from lmzoo.checkpoints.tokenizers.vocabulary_files import add_file_to_errors, read_lines
from lmzoo.errors import MissingTokenizerError, PresetError
from lmzoo.files.inside import has_file, resolve_inside
from lmzoo.files.preset_files import CONFIG_FILE, JsonFiles, read_json, write_json
from lmzoo.registry.family import Family
from lmzoo.text import CharacterTokenizer, Packing, SpecialTokens, Tokenizer, WordTokenizer
from lmzoo.text.tokenizers.word_level import VOCABULARY_FILE, WordLevelTokenizer

# Embedding tables are often padded to a multiple of up to 128 rows, so fewer unused rows than this are normal.
_MAX_PADDING_ROWS = 128
_ANY_CLASS = f"{ANY_CLASS[0]}Fast"
_FAIRSEQ_URL = "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe/"


class _Stored(NamedTuple):
    """A tokenizer read from a checkpoint.

    Attributes:
        tokenizer: The tokenizer.
        file: Path of the vocabulary file, for messages.
        peer: Class in transformers, or None for files of other libraries.
        pipeline: Content of transformers' tokenizer.json, or None if the file is missing.
        packing: Packing in KerasHub if the tokenizer is of another family's class, else None.
    """

    tokenizer: Tokenizer
    file: Path
    peer: TokenizerClass | None = None
    pipeline: JsonObject | None = None
    packing: Packing | None = None


def read_tokenizer(
    directory: Path,
    cls: type[Tokenizer],
    vocabulary_size: int | None = None,
    max_characters: int = 50,
    special_tokens: SpecialTokens | None = None,
) -> Tokenizer:
    """Read the tokenizer in a checkpoint's directory.

    The files determine the tokenizer class: by the name of the class, by the content of tokenizer.json, or by the names
    of the vocabulary files. The default is the family's class.

    If the files do not specify whether to lowercase text, transformers' files imply lowercasing, except for XLNet. For
    files of other libraries, "cased" or "uncased" in the name of the directory or the checkpoint decides; otherwise
    text is lowercased if the vocabulary has no capital letters.

    Args:
        directory: Directory of the checkpoint.
        cls: Tokenizer class of the family.
        vocabulary_size: Number of rows in the model's token embeddings, or None to accept any number of tokens. For an
            ELMo that reads characters, pass None. As in transformers, there may be more rows than tokens, except for
            ELMo.
        max_characters: Maximum number of characters in a word, for an ELMo that reads characters.
        special_tokens: Special tokens of the family that differ from the defaults of `cls`, by role.

    Raises:
        PresetError: If a file is missing or damaged, a token is repeated, there are too many tokens, or special tokens
            or settings are not supported; the message names the file.
    """
    family_class = _find_transformers_class(cls, special_tokens or {})
    return _read_stored_tokenizer(JsonFiles(directory), family_class, vocabulary_size, max_characters).tokenizer


def read_tokenizer_and_packing(
    files: JsonFiles, family: Family, vocabulary_size: int | None = None, max_characters: int = 50
) -> tuple[Tokenizer, Packing]:
    """Read the tokenizer and the packing in a checkpoint's directory.

    In transformers, decoders' tokenizers add no special tokens to texts. In lmzoo, they use the family's packing if
    their files specify none.

    Args:
        files: JSON files of the checkpoint.
        family: Family of the model.
        vocabulary_size: Number of rows in the model's token embeddings, as for `read_tokenizer`.
        max_characters: Maximum number of characters in a word, for an ELMo that reads characters.

    Raises:
        PresetError: If a file is missing or damaged, or the tokenizer or the packing is not supported.
    """
    family_class = get_family_class(family)
    stored_tokenizer = _read_stored_tokenizer(files, family_class, vocabulary_size, max_characters)
    if stored_tokenizer.peer is None:
        return stored_tokenizer.tokenizer, stored_tokenizer.packing or family.packing
    with add_file_to_errors(files.directory / PIPELINE_FILE):
        packing = read_packing(
            files, stored_tokenizer.peer, family_class, stored_tokenizer.tokenizer, stored_tokenizer.pipeline
        )
    if stored_tokenizer.peer.name == family_class.name and not packing.overhead(pair=True) and family_class.is_decoder:
        return stored_tokenizer.tokenizer, get_family_packing(family, stored_tokenizer.tokenizer)
    return stored_tokenizer.tokenizer, packing


def _find_transformers_class(cls: type[Tokenizer], special_tokens: SpecialTokens) -> TokenizerClass:
    candidates = [candidate for candidate in list_tokenizer_classes().values() if candidate.tokenizer is cls]
    return next(
        (candidate for candidate in candidates if candidate.special_tokens == special_tokens),
        TokenizerClass("", cls, special_tokens),
    )


def _read_stored_tokenizer(
    files: JsonFiles, family_class: TokenizerClass, vocabulary_size: int | None, max_characters: int
) -> _Stored:
    is_word_level = issubclass(family_class.tokenizer, WordLevelTokenizer)
    with add_file_to_errors(files.directory):
        if is_word_level:
            stored_tokenizer = _Stored(
                *_read_word_tokenizer(files.directory, family_class.tokenizer, vocabulary_size, max_characters)
            )
        else:
            stored_tokenizer = _read_subword_tokenizer(files, family_class)
    if vocabulary_size is not None:
        _check_size(files, stored_tokenizer.tokenizer, vocabulary_size, stored_tokenizer.file, exact=is_word_level)
    return stored_tokenizer


def write_tokenizer(
    tokenizer: Tokenizer,
    directory: Path,
    sequence_length: int,
    peer_class: str | None = None,
    packing: Packing | None = None,
) -> None:
    """Write a tokenizer's files for transformers and for Google's code into a checkpoint's directory.

    The vocabulary is written to vocab.txt, to vocab.json and merges.txt, or to SentencePiece models, next to
    tokenizer_config.json and tokenizer.json (unless that file cannot express the tokenizer). For ELMo, only vocab.txt
    is written, or nothing for a model that reads characters.

    Args:
        tokenizer: Tokenizer to write.
        directory: Directory to write to.
        sequence_length: Maximum number of tokens in a sequence.
        peer_class: Name of the class in transformers. The default is the class of the first family with such a
            tokenizer or, if there is no such family, a generic class that is defined by tokenizer.json.
        packing: Packing to write if it differs from the packing of the class, else None. With a packing, the written
            class is a generic one, which reads its packing from tokenizer.json.

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
        if (file := directory / VOCABULARY_FILE).is_file():  # a `CharacterTokenizer` writes none
            file.replace(directory / "vocab.txt")
        return
    tokenizer_format = get_format(type(tokenizer))
    tokenizer_format.write_vocabulary(tokenizer, directory)
    config = tokenizer.get_config()
    tokens = {
        attribute: getattr(tokenizer, tokenizer_attribute)
        for attribute, tokenizer_attribute in tokenizer_format.tokens.items()
    }
    class_name = peer_class or next((cls.name for cls in find_tokenizer_classes(tokenizer)), _ANY_CLASS)
    tokenizer_class = list_tokenizer_classes().get(class_name)
    class_tokens = {} if tokenizer_class is None else tokenizer_class.tokens_by_role
    # With null for their roles, transformers does not add these tokens of its class to the vocabulary.
    unwanted_roles = {role for role, token in class_tokens.items() if token not in (None, *tokenizer.vocabulary)}
    settings = {
        "tokenizer_class": class_name,
        "model_max_length": sequence_length,
        **{name: token for name, token in tokens.items() if token or tokenizer_format.tokens[name] in unwanted_roles},
        **{key: config.get(argument, default) for key, (argument, default) in tokenizer_format.settings.items()},
        **{key: values[0] for key, values in tokenizer_format.allowed.items() if values[0] is not None},
        **tokenizer_format.extra_settings,
    }
    special_tokens = [token.content for token in tokenizer.added_tokens if token.special]
    if additional_tokens := [token for token in special_tokens if token not in tokens.values()]:
        settings["additional_special_tokens"] = additional_tokens
    pipeline = tokenizer_format.pipeline(tokenizer)
    if packing is not None and pipeline is not None:
        settings["tokenizer_class"] = _ANY_CLASS
        # By default, transformers 5 omits the segments for this class, and transformers 4 does not.
        segments = ["token_type_ids"] if packing.segments else []
        settings["model_input_names"] = ["input_ids", *segments, "attention_mask"]
    else:
        packing = _find_packing_to_write(tokenizer, settings["tokenizer_class"])
    if packing is not None and pipeline is not None:
        pipeline.post_processor = tokenizer_format.processor(packing, tokenizer)
    write_json(directory, SETTINGS_FILE, settings)
    if pipeline is not None:
        pipeline.save(str(directory / PIPELINE_FILE))


def _find_packing_to_write(tokenizer: Tokenizer, name: str) -> Packing | None:
    """Return the packing of the transformers class `name` if it differs from the packing of the format, else None."""
    tokenizer_class = list_tokenizer_classes().get(name)
    written_packing = get_format(type(tokenizer)).packing(tokenizer)
    if tokenizer_class is None or written_packing is None or not tokenizer_class.can_be(tokenizer.special_tokens):
        return None
    is_same = dataclasses.replace(tokenizer_class.packing, segments=written_packing.segments) == written_packing
    return None if is_same else tokenizer_class.packing


def _read_word_tokenizer(
    directory: Path, cls: type[Tokenizer], vocabulary_size: int | None, max_characters: int
) -> tuple[Tokenizer, Path]:
    """Read the word-level tokenizer of an ELMo checkpoint, and return it with the path of its file.

    Args:
        directory: Directory of the checkpoint.
        cls: Tokenizer class of the family.
        vocabulary_size: Number of words in the model's vocabulary, or None if the model reads characters or the number
            is unknown.
        max_characters: Maximum number of characters in a word, for a model that reads characters.

    Raises:
        PresetError: If there is no vocab*.txt or more than one, or the file is damaged.
    """
    if cls is CharacterTokenizer and vocabulary_size is None:
        return CharacterTokenizer(max_characters), directory
    files = sorted(directory.glob("vocab*.txt"))
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise MissingTokenizerError(
            f"{directory} must hold one vocab*.txt for its tokens, found {names}. Pass `preprocessor=`."
        )
    with add_file_to_errors(files[0]):
        lines = read_lines(resolve_inside(directory, files[0].name))
        return WordTokenizer([line.strip() for line in lines]), files[0]


def _read_subword_tokenizer(files: JsonFiles, family_class: TokenizerClass) -> _Stored:
    directory = files.directory
    pipeline = read_json(directory, PIPELINE_FILE) if has_file(directory, PIPELINE_FILE) else None
    if pipeline is None or "class_name" not in pipeline:
        return _read_transformers_tokenizer(files, family_class, pipeline)
    tokenizer, file = read_keras_hub_tokenizer(directory, pipeline, family_class.special_tokens)
    keras_hub_tokenizer = tokenizer
    tokenizer = get_format(type(keras_hub_tokenizer)).of_keras_hub(
        keras_hub_tokenizer, lambda: _guess_lowercase(files, file, keras_hub_tokenizer)
    )
    if type(tokenizer) in (family_class.tokenizer, get_format(family_class.tokenizer).alternative):
        return _Stored(tokenizer, file)
    if not (family_class.packing.segments and tokenizer.start_token and tokenizer.end_token):
        raise PresetError(
            f"{file} is of a {type(tokenizer).__name__}, but the model needs a {family_class.tokenizer.__name__}."
        )
    # As in KerasHub, where the preprocessor packs texts with the tokenizer's start and end tokens.
    return _Stored(tokenizer, file, packing=segmented_packing(tokenizer))


def _read_transformers_tokenizer(
    files: JsonFiles, family_class: TokenizerClass, pipeline: JsonObject | None
) -> _Stored:
    tokenizer_class = find_class(files, family_class, pipeline)
    tokenizer_format = get_format(tokenizer_class.tokenizer)
    if not family_class.is_decoder:  # decoders have the special tokens of their family
        special_tokens: Any = {**tokenizer_class.special_tokens, **read_roles(files, tokenizer_format)}
        tokenizer_class = dataclasses.replace(tokenizer_class, special_tokens=special_tokens)
    file, vocabulary = _find_vocabulary(files.directory, tokenizer_class, family_class, pipeline)
    if (
        family_class.tokenizer is tokenizer_class.tokenizer
        and family_class.special_tokens != tokenizer_class.special_tokens
    ):
        tokens = _get_lists(tokenizer_format, file, vocabulary)["tokens"]
        if family_class.can_be(tokens) and not tokenizer_class.can_be(tokens):
            tokenizer_class = dataclasses.replace(tokenizer_class, special_tokens=family_class.special_tokens)
    settings = read_settings(files, tokenizer_format, pipeline)
    arguments = {**vocabulary, **tokenizer_class.special_tokens, **settings}
    if oddities := tokenizer_format.oddities(file, arguments):
        warnings.warn(f"{file}: {'; '.join(oddities)}.", stacklevel=2)
    with add_file_to_errors(file):
        tokenizer = tokenizer_format.tokenizer(**arguments)
        if "lowercase" in tokenizer.get_config() and "lowercase" not in settings:
            arguments["lowercase"] = _guess_lowercase(files, file, tokenizer)
            tokenizer = tokenizer_format.tokenizer(**arguments)
        if token_arguments := read_tokens(files, tokenizer, pipeline, family_class.is_decoder):
            tokenizer = tokenizer_format.tokenizer(**{**arguments, **token_arguments})
    return _Stored(tokenizer, file, tokenizer_class, pipeline)


def _find_vocabulary(
    directory: Path, peer: TokenizerClass, family_class: TokenizerClass, pipeline: JsonObject | None
) -> tuple[Path, Arguments]:
    """Return the path of the vocabulary file and the constructor arguments that hold the vocabulary.

    As in transformers, tokenizer.json takes precedence over vocabulary files, except in formats in which the vocabulary
    files hold more information. A difference between the vocabularies causes a warning.

    Args:
        directory: Directory of the checkpoint.
        peer: Class of the tokenizer in transformers.
        family_class: Class of the family's tokenizers, for messages.
        pipeline: Content of tokenizer.json, or None if the file is missing.

    Raises:
        PresetError: If there is no vocabulary, or a file is damaged.
    """
    tokenizer_format = get_format(peer.tokenizer)
    files = tokenizer_format.find_files(directory)
    if not files and pipeline is None:
        alternatives = [
            get_format(alternative) for alternative in (get_format(family_class.tokenizer).alternative,) if alternative
        ]
        expected_formats = [tokenizer_format, *(alternatives if peer.tokenizer is family_class.tokenizer else [])]
        raise MissingTokenizerError(
            _describe_missing_files(
                directory, [names for expected_format in expected_formats for names in expected_format.files]
            )
        )
    sources: list[tuple[Path, Arguments]] = []
    if pipeline is not None:
        file = directory / PIPELINE_FILE
        tokenizer_class: Any = tokenizer_format.tokenizer
        special_tokens = tokenizer_class(**peer.special_tokens).special_tokens
        with add_file_to_errors(file):
            sources.append((file, tokenizer_format.read_pipeline_vocabulary(pipeline, special_tokens)))
    if files:
        with add_file_to_errors(files[0]):
            sources.append((files[0], tokenizer_format.read_vocabulary_files(files)))
    file, vocabulary = sources[-1 if tokenizer_format.file_counts else 0]
    if len(sources) == 2:
        _warn_about_differences(tokenizer_format, sources, file)
    return file, vocabulary


def _warn_about_differences(
    tokenizer_format: TokenizerFormat[Any], sources: Sequence[tuple[Path, Arguments]], used_file: Path
) -> None:
    """Warn if two files in a directory hold different vocabularies.

    Args:
        tokenizer_format: Format of the tokenizer.
        sources: Paths and vocabularies of the two files.
        used_file: Path of the file that lmzoo reads.
    """
    (pipeline_file, first_lists), (vocabulary_file, second_lists) = (
        (path, _get_lists(tokenizer_format, path, vocabulary)) for path, vocabulary in sources
    )
    for name, values in first_lists.items():
        pairs = enumerate(itertools.zip_longest(values, second_lists[name]))
        if difference := next(((index, a, b) for index, (a, b) in pairs if a != b), None):
            index, a, b = difference
            warnings.warn(
                f"{pipeline_file} and {vocabulary_file.name} hold different {name}: number {index} is {a!r:.60} and "
                f"{b!r:.60}. Ids depend on the file that a library reads; lmzoo reads {used_file.name}. Delete the one "
                "that was not used in training.",
                stacklevel=2,
            )
            return


def _get_lists(tokenizer_format: TokenizerFormat[Any], file: Path, vocabulary: Arguments) -> dict[str, list[str]]:
    with add_file_to_errors(file):
        return tokenizer_format.lists(vocabulary)


def _describe_missing_files(directory: Path, file_sets: list[tuple[str, ...]]) -> str:
    existing_names = [name for names in file_sets for name in names if has_file(directory, name)]
    expected = " or ".join(dict.fromkeys([PIPELINE_FILE, *(" and ".join(names) for names in file_sets)]))
    remark = f"; there is only {', '.join(existing_names)}" if existing_names else ""
    advice = f" Fetch encoder.json and vocab.bpe from {_FAIRSEQ_URL} into it." if "dict.txt" in existing_names else ""
    return f"{directory} holds no tokenizer files: expected {expected}{remark}. Pass `preprocessor=`.{advice}"


def _guess_lowercase(files: JsonFiles, file: Path, tokenizer: Tokenizer) -> bool:
    """Guess whether to lowercase text for a tokenizer whose files do not specify it; see `read_tokenizer`."""
    directory = files.directory
    capitalized_token = next((token for token in tokenizer.vocabulary if re.match("(##|▁)?[A-Z]", token)), None)
    if "model_type" in files.read_if_present(CONFIG_FILE):  # a checkpoint of transformers
        default_lowercase = bool(get_format(type(tokenizer)).settings["do_lower_case"][1])
        if default_lowercase and capitalized_token is not None:
            warnings.warn(
                f"{directory}: text is lower-cased, as in transformers, since {SETTINGS_FILE} lacks `do_lower_case`. "
                f"But {file.name} has tokens with capitals, such as {capitalized_token!r}. If text should keep its "
                "case, set it to false there.",
                stacklevel=2,
            )
        return default_lowercase
    for name in (directory.resolve().name, *(path.name for path in directory.glob("*.index"))):
        if match := re.search("(?<![a-z])(un)?cased(?![a-z])", name.lower()):
            return match[1] is not None
    return capitalized_token is None


def _check_size(files: JsonFiles, tokenizer: Tokenizer, vocabulary_size: int, file: Path, exact: bool) -> None:
    size = tokenizer.vocabulary_size
    if tokenizer.added_tokens and len(tokenizer.base_vocabulary) <= vocabulary_size < size:
        token = tokenizer.vocabulary[vocabulary_size]
        raise PresetError(
            f"{find_file_that_adds(token, files)} adds the token {token!r}, for which the model has no embedding: it "
            f"has {vocabulary_size:,}. Remove the token from the files."
        )
    message = f"{file} holds {size:,} tokens, but the model has embeddings for {vocabulary_size:,}"
    if size > vocabulary_size or (exact and size < vocabulary_size):
        raise PresetError(f"{message}: they do not belong together.")
    if size <= vocabulary_size - _MAX_PADDING_ROWS:
        warnings.warn(f"{message}. That works, as in transformers, but they may not belong together.", stacklevel=3)
