"""The base class of formats of tokenizers in other libraries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from lmzoo.checkpoints.config_table import Arguments, ConfigTable, JsonObject
from lmzoo.errors import PresetError
from lmzoo.files.inside import has_file
from lmzoo.text import AddedToken, Packing, Tokenizer
from lmzoo.text.packing import LAST_SEGMENT
from lmzoo.text.tokenizers.added_tokens import special_token

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.processors import TemplateProcessing

T = TypeVar("T", bound=Tokenizer)
PIPELINE_FILE = "tokenizer.json"  # a whole tokenizer, as Hugging Face's `tokenizers` writes it
KERAS_HUB_IGNORED = ("name", "trainable", "dtype", "config_file", "sequence_length", "special_tokens_in_strings")


class TokenizerFormat(ABC, Generic[T]):
    """The format of one of our tokenizers in the files of transformers, Google, fairseq and KerasHub.

    `tokenizer.json` must do what ours does: whatever would give other ids is an error that names the part.

    Attributes:
        tokenizer: Our class.
        files: Sets of files that hold a vocabulary together; messages name the first file of a set.
        written: Our files -> their names in other libraries.
        file_counts: Whether the vocabulary's own file takes precedence over `tokenizer.json`.
        alternative: Another class of tokenizers that the family's models may have.
        model_type: Type of the model in `tokenizer.json`.
        tokens: Attribute of a tokenizer in transformers -> ours.
        settings: Key of tokenizer_config.json -> our argument, and the value that transformers assumes for a missing
            key.
        allowed: Key of tokenizer_config.json -> the values that it may have; the first one is written.
        without_effect: Key of tokenizer_config.json that transformers' fast tokenizers ignore -> the values that do not
            ask for anything else than what they do.
        extra_settings: Other keys to write into tokenizer_config.json.
        token_flags: Flags of special tokens that change ids.
        keras_hub: The table of its configuration in KerasHub.
    """

    tokenizer: type[T]
    files: ClassVar[tuple[tuple[str, ...], ...]]
    written: ClassVar[Mapping[str, str]]
    file_counts: ClassVar[bool] = False
    alternative: ClassVar[type[Tokenizer] | None] = None
    model_type: ClassVar[str]
    tokens: ClassVar[Mapping[str, str]] = {
        "bos_token": "start_token",
        "eos_token": "end_token",
        "cls_token": "start_token",
        "sep_token": "end_token",
        "mask_token": "mask_token",
        "pad_token": "pad_token",
        "unk_token": "unk_token",
    }
    settings: ClassVar[Mapping[str, tuple[str, bool | None]]] = {}
    allowed: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    without_effect: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    extra_settings: ClassVar[Mapping[str, object]] = {}
    token_flags: ClassVar[tuple[str, ...]] = ("single_word", "normalized")  # most tokenizers ignore white space
    keras_hub: ClassVar[ConfigTable]

    def find_files(self, directory: Path) -> list[Path]:
        """Return the first set of `files` that a directory holds, or an empty list if it holds none.

        Raises:
            PresetError: If a file is a link out of the directory.
        """
        sets = (names for names in self.files if all(has_file(directory, name) for name in names))
        return [directory / name for name in next(sets, ())]

    @abstractmethod
    def vocabulary_of_files(self, files: Sequence[Path]) -> Arguments:
        """Read the constructor's arguments that hold the vocabulary from one of the sets of `files`."""

    @abstractmethod
    def vocabulary_of_pipeline(self, pipeline: JsonObject, special_tokens: Collection[str]) -> Arguments:
        """Read these arguments from the content of `tokenizer.json`, for a tokenizer with these special tokens."""

    def fits(self, pipeline: JsonObject) -> bool:
        """Return whether `tokenizer.json`, whose model is of `model_type`, may hold such a tokenizer."""
        return True

    def fits_tokens(self, tokens: Sequence[str]) -> bool:
        """Return whether these may be the tokens of such a tokenizer, as far as they show."""
        return True

    def write_vocabulary(self, tokenizer: T, directory: Path) -> None:
        """Write the files of the vocabulary."""
        tokenizer.save_assets(directory)
        for ours, theirs in self.written.items():
            (directory / ours).replace(directory / theirs)

    @abstractmethod
    def settings_of_pipeline(self, pipeline: JsonObject, file: Path) -> Arguments:
        """Read the constructor's other arguments from the content of `tokenizer.json`.

        Raises:
            PresetError: Naming the part of the file that ours does not support.
        """

    @abstractmethod
    def pipeline(self, tokenizer: T) -> tokenizers.Tokenizer | None:
        """Return the tokenizer to write into `tokenizer.json`, or None if no such file can hold it."""

    def packing(self, tokenizer: T) -> Packing | None:
        """Return how `pipeline` packs texts, or None if all classes with such a tokenizer pack them in the same way."""
        return None

    def oddities(self, file: Path, vocabulary: Arguments) -> list[str]:
        """Describe what is unusual in a file that holds a vocabulary, and how it was read."""
        return []

    def lists(self, vocabulary: Arguments) -> dict[str, list[str]]:
        """Return the lists that must be equal in two files of the same vocabulary, by their names in messages."""
        lists = {"tokens": [token.rstrip() for token in vocabulary["vocabulary"]]}
        if "merges" in vocabulary:
            lists["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in vocabulary["merges"]]
        return lists

    def symbols(self, tokenizer: T) -> set[str]:
        """Return tokens other than the special ones that transformers keeps whole, and ours may split."""
        return set()

    def with_flags(self, token: AddedToken, flags: JsonObject) -> AddedToken:
        """Return a special token with the flags in a file that change ids."""
        given: Arguments = {name: bool(flags[name]) for name in self.token_flags if name in flags}
        return replace(token, **given)

    def of_keras_hub(self, tokenizer: T, lowercase: Callable[[], bool]) -> Tokenizer:
        """Complete a tokenizer from a preset of KerasHub's with settings that its configuration does not hold.

        `lowercase` guesses whether to lower-case.
        """
        return tokenizer

    def to_keras_hub(self, tokenizer: T, name: str) -> tuple[Arguments, Tokenizer]:
        """Return the configuration, and the tokenizer whose files to write, for KerasHub's class `name`.

        Raises:
            PresetError: If that class cannot do the same.
        """
        for token in tokenizer.added_tokens:
            if token != special_token(token.content):
                raise PresetError(f"KerasHub's {name} cannot find the token {token.content!r} as lmzoo does: {token}.")
        settings = {argument: getattr(tokenizer, argument) for argument in self.keras_hub.keys.values()}
        return self.keras_hub.write(settings, "KerasHub"), tokenizer


def require(file: Path, part: str, stored: object, expected: Mapping[str, tuple[object, ...]]) -> None:
    """Check the values of some keys. A missing key, other than the type, has the first of the expected values.

    Raises:
        PresetError: Naming the first key with another value.
    """
    stored = stored if isinstance(stored, dict) else {"type": stored}
    for key, allowed in expected.items():
        if (value := stored.get(key, None if key == "type" else allowed[0])) not in allowed:
            raise PresetError(
                f"{file}: `{part}{key}` is {value!r:.80}, but lmzoo supports only {' or '.join(map(repr, allowed))}."
            )


def segmented_packing(tokenizer: Tokenizer) -> Packing:
    """Return the packing of two segments with the start and end tokens of a tokenizer."""
    end = tokenizer.end_token or ""
    return Packing(tokenizer.start_token or "", end, (end,) if end else (), segments=True)


def template_of(packing: Packing, tokenizer: Tokenizer) -> TemplateProcessing:
    """Return the step of `tokenizers` that packs texts in a way."""
    from tokenizers import processors

    single, pair = ([f"{token}:{segment}" for token, segment in items] for items in packed_items(packing))
    tokens = dict.fromkeys(filter(None, (packing.start, *packing.between, *packing.closing)))
    special_tokens = [(token, tokenizer.token_to_id(token)) for token in tokens]
    return processors.TemplateProcessing(single, pair, special_tokens)


def packed_items(packing: Packing) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the tokens in a sequence of one text, "$A", and of a pair, "$A" and "$B", each with its segment."""
    second = int(packing.segments)
    start = (packing.start, 0)
    last = (packing.last, LAST_SEGMENT)
    between = [(token, 0) for token in packing.between]
    single = [start, ("$A", 0), (packing.end, 0), last]
    pair = [start, ("$A", 0), *between, ("$B", second), (packing.end, second), last]
    return [item for item in single if item[0]], [item for item in pair if item[0]]
