"""The base class of tokenizer file formats."""

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
    from tokenizers.processors import PostProcessor, TemplateProcessing

T = TypeVar("T", bound=Tokenizer)
PIPELINE_FILE = "tokenizer.json"  # a complete tokenizer, written by Hugging Face's `tokenizers`
KERAS_HUB_IGNORED = ("name", "trainable", "dtype", "config_file", "sequence_length", "special_tokens_in_strings")


class TokenizerFormat(ABC, Generic[T]):
    """The format of one tokenizer class in the files of transformers, Google, fairseq and KerasHub.

    Parts of `tokenizer.json` that would change the ids that lmzoo's tokenizer produces are errors.

    Attributes:
        tokenizer: Tokenizer class in lmzoo.
        files: Alternative sets of files that together hold a vocabulary. Messages name the first file of a set.
        written: Dict from the name of a vocabulary file in lmzoo's presets to its name in other libraries.
        file_counts: Whether the vocabulary files take precedence over `tokenizer.json`.
        alternative: Another tokenizer class that models of the same family may have, or None.
        model_type: Type of the model in `tokenizer.json`.
        tokens: Dict from a transformers tokenizer's attribute for a special token to the attribute in lmzoo.
        settings: Dict from a key of tokenizer_config.json to the constructor argument and transformers' default value.
        allowed: Dict from a key of tokenizer_config.json to the supported values; the first one is written.
        without_effect: Dict from a key of tokenizer_config.json that lmzoo ignores to the values that match lmzoo's
            behavior. Other values cause a warning.
        extra_settings: Additional keys to write into tokenizer_config.json, and their values.
        token_flags: Flags of special tokens that affect ids.
        keras_hub: Table of the tokenizer's configuration in KerasHub.
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
    settings: ClassVar[Mapping[str, tuple[str, bool | int | None]]] = {}
    allowed: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    without_effect: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    extra_settings: ClassVar[Mapping[str, object]] = {}
    token_flags: ClassVar[tuple[str, ...]] = (
        "single_word",
        "normalized",
    )  # few tokenizers use "lstrip" and "rstrip"
    keras_hub: ClassVar[ConfigTable]

    def find_files(self, directory: Path) -> list[Path]:
        """Return the paths of the first set of `files` in a directory, or an empty list if no set is complete.

        Raises:
            PresetError: If a file is a link to a file outside the directory.
        """
        complete_sets = (names for names in self.files if all(has_file(directory, name) for name in names))
        return [directory / name for name in next(complete_sets, ())]

    @abstractmethod
    def read_vocabulary_files(self, files: Sequence[Path]) -> Arguments:
        """Read the constructor arguments that hold the vocabulary from one set of `files`."""

    @abstractmethod
    def read_pipeline_vocabulary(self, pipeline: JsonObject, special_tokens: Collection[str]) -> Arguments:
        """Read the constructor arguments that hold the vocabulary from the content of `tokenizer.json`."""

    def fits(self, pipeline: JsonObject) -> bool:
        """Return whether a `tokenizer.json` with the right `model_type` may hold a tokenizer of this class."""
        return True

    def fits_tokens(self, tokens: Sequence[str]) -> bool:
        """Return whether a vocabulary may belong to a tokenizer of this class."""
        return True

    def write_vocabulary(self, tokenizer: T, directory: Path) -> None:
        """Write the vocabulary files of a tokenizer into a directory."""
        tokenizer.save_assets(directory)
        for preset_name, stored_name in self.written.items():
            (directory / preset_name).replace(directory / stored_name)

    @abstractmethod
    def read_pipeline_settings(self, pipeline: JsonObject, file: Path) -> Arguments:
        """Read the constructor arguments other than the vocabulary from the content of `tokenizer.json`.

        Raises:
            PresetError: If a part of the file is not supported; the message names the part.
        """

    @abstractmethod
    def pipeline(self, tokenizer: T) -> tokenizers.Tokenizer | None:
        """Return the tokenizer to write into `tokenizer.json`, or None if the file cannot express it."""

    def packing(self, tokenizer: T) -> Packing | None:
        """Return the packing that the post-processor in `pipeline`'s tokenizer applies.

        None means that the post-processor never has to be replaced when a checkpoint is written.
        """
        return None

    def processor(self, packing: Packing, tokenizer: T) -> PostProcessor:
        """Return the post-processor for `tokenizer.json` that applies a packing."""
        return make_template(packing, tokenizer)

    def oddities(self, file: Path, vocabulary: Arguments) -> list[str]:
        """Describe the anomalies of a vocabulary file and how they are handled, for a warning."""
        return []

    def lists(self, vocabulary: Arguments) -> dict[str, list[str]]:
        """Return the "tokens" and, if there are any, the "merges" of a vocabulary, for comparison with another file."""
        lists = {"tokens": [token.rstrip() for token in vocabulary["vocabulary"]]}
        if "merges" in vocabulary:
            lists["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in vocabulary["merges"]]
        return lists

    def symbols(self, tokenizer: T) -> set[str]:
        """Return the non-special tokens that transformers never splits, but that lmzoo's tokenizer may split."""
        return set()

    def with_flags(self, token: AddedToken, flags: JsonObject) -> AddedToken:
        """Return a copy of a special token that has the values in `flags` for flags that affect ids (`token_flags`)."""
        stored_flags: Arguments = {name: bool(flags[name]) for name in self.token_flags if name in flags}
        return replace(token, **stored_flags)

    def of_keras_hub(self, tokenizer: T, lowercase: Callable[[], bool]) -> Tokenizer:
        """Complete a tokenizer read from a KerasHub checkpoint with the settings that KerasHub does not store.

        Args:
            tokenizer: Tokenizer with KerasHub's settings.
            lowercase: Function that guesses whether to lowercase text.
        """
        return tokenizer

    def to_keras_hub(self, tokenizer: T, name: str) -> tuple[Arguments, Tokenizer]:
        """Convert a tokenizer for KerasHub's class `name`.

        Returns:
            The configuration in KerasHub, and the tokenizer whose files to write.

        Raises:
            PresetError: If KerasHub's class cannot produce the same ids.
        """
        for token in tokenizer.added_tokens:
            if token != special_token(token.content):
                raise PresetError(f"KerasHub's {name} cannot find the token {token.content!r} as lmzoo does: {token}.")
        settings = {argument: getattr(tokenizer, argument) for argument in self.keras_hub.keys.values()}
        return self.keras_hub.write(settings, "KerasHub"), tokenizer


def require(file: Path, part: str, stored: object, expected: Mapping[str, tuple[object, ...]]) -> None:
    """Check the values of keys in a part of a tokenizer file.

    Args:
        file: Path of the file, for messages.
        part: Prefix of the keys in messages, such as "normalizer.".
        stored: Object that holds the keys. A value that is not an object counts as the value of "type".
        expected: Dict from key to the supported values. The first one is the default, except for "type".

    Raises:
        PresetError: If a key has an unsupported value; the message names the first such key.
    """
    stored = stored if isinstance(stored, dict) else {"type": stored}
    for key, allowed_values in expected.items():
        if (value := stored.get(key, None if key == "type" else allowed_values[0])) not in allowed_values:
            raise PresetError(
                f"{file}: `{part}{key}` is {value!r:.80}, but lmzoo supports only "
                f"{' or '.join(map(repr, allowed_values))}."
            )


def segmented_packing(tokenizer: Tokenizer) -> Packing:
    """Return a packing with two segments and the start and end tokens of a tokenizer."""
    end = tokenizer.end_token or ""
    return Packing(tokenizer.start_token or "", end, (end,) if end else (), segments=True)


def make_template(packing: Packing, tokenizer: Tokenizer) -> TemplateProcessing:
    """Convert a packing to a post-processor of the `tokenizers` library."""
    from tokenizers import processors

    single_template, pair_template = (
        [f"{token}:{segment}" for token, segment in items] for items in list_template_items(packing)
    )
    tokens = dict.fromkeys(filter(None, (packing.start, *packing.between, *packing.closing)))
    special_tokens = [(token, tokenizer.token_to_id(token)) for token in tokens]
    return processors.TemplateProcessing(single_template, pair_template, special_tokens)


def list_template_items(packing: Packing) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the templates of a packing for one text ("$A") and a pair ("$A", "$B"): two lists of (token, segment)."""
    second_segment = int(packing.segments)
    start_item = (packing.start, 0)
    last_item = (packing.last, LAST_SEGMENT)
    between = [(token, 0) for token in packing.between]
    single_items = [start_item, ("$A", 0), (packing.end, 0), last_item]
    pair_items = [start_item, ("$A", 0), *between, ("$B", second_segment), (packing.end, second_segment), last_item]
    return [item for item in single_items if item[0]], [item for item in pair_items if item[0]]
