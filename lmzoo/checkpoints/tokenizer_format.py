"""How one of our tokenizers stands in the files of other libraries: what a record of it says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from lmzoo.checkpoints.config_table import ConfigTable
from lmzoo.errors import PresetError
from lmzoo.text import Tokenizer

PIPELINE_FILE = "tokenizer.json"  # a whole tokenizer, as Hugging Face's `tokenizers` writes it
KERAS_HUB_IGNORED = ("name", "trainable", "dtype", "config_file", "sequence_length", "special_tokens_in_strings")
Json = Mapping[str, Any]


class TokenizerFormat(ABC):
    """One of our tokenizers in the files of transformers, Google, fairseq and KerasHub.

    `tokenizer.json` must do what ours does: whatever would give other ids is an error that names the part.

    Attributes:
        tokenizer: our class.
        files: sets of files that make a vocabulary together, the one to name in messages first.
        written: our files -> what they are called there.
        file_counts: whether the vocabulary's own file counts more than `tokenizer.json`.
        instead: another class whose files the family's models may have.
        model_type: type of the model in `tokenizer.json`.
        tokens: attribute of a tokenizer in transformers -> ours.
        settings: key of tokenizer_config.json -> our argument, and what transformers takes for a missing key.
        only: key of tokenizer_config.json -> the values that it may have, the first being the one to write.
        also: other keys of tokenizer_config.json to write.
        keras_hub: its settings in KerasHub.
    """

    tokenizer: ClassVar[type[Tokenizer]]
    files: ClassVar[tuple[tuple[str, ...], ...]]
    written: ClassVar[Mapping[str, str]]
    file_counts: ClassVar[bool] = False
    instead: ClassVar[type[Tokenizer] | None] = None
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
    settings: ClassVar[Mapping[str, tuple[str, Any]]] = {}
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    also: ClassVar[Mapping[str, Any]] = {}
    keras_hub: ClassVar[ConfigTable]

    @abstractmethod
    def vocabulary_of_files(self, files: Sequence[Path]) -> dict[str, Any]:
        """The constructor's arguments that hold the vocabulary, from one of the sets of `files`."""

    @abstractmethod
    def vocabulary_of_pipeline(self, pipeline: Json, special_tokens: Collection[str]) -> dict[str, Any]:
        """The same from the content of `tokenizer.json`, for a tokenizer with some special tokens."""

    @abstractmethod
    def settings_of_pipeline(self, pipeline: Json, file: Path) -> dict[str, Any]:
        """The constructor's other arguments, from the content of `tokenizer.json`.

        Raises:
            PresetError: naming the part of the file that ours cannot follow.
        """

    @abstractmethod
    def pipeline(self, tokenizer: Any) -> Any:
        """The `tokenizers.Tokenizer` that `tokenizer.json` holds."""

    def lists(self, vocabulary: Mapping[str, Any]) -> dict[str, list[str]]:
        """What two files of one vocabulary must have alike, in words for messages."""
        return {"tokens": [token.rstrip() for token in vocabulary["vocabulary"]]}

    def symbols(self, tokenizer: Any) -> set[str]:
        """Tokens beside the special ones that transformers keeps whole, and ours may split."""
        return set()

    def takes_space(self, tokenizer: Any, token: str, flags: Json, file: Path) -> bool:
        """Whether ours takes the space before an added token, of which a file says that it stays.

        Raises:
            PresetError: if ours leaves the space, and the file says that it goes.
        """
        return False  # to most, white space is nothing

    def of_keras_hub(self, tokenizer: Any, lowercase: Callable[[], bool]) -> Tokenizer:
        """A tokenizer as it was read from a preset of KerasHub's, with what is said elsewhere.

        Args:
            tokenizer: with its vocabulary.
            lowercase: guesses whether to lower-case.
        """
        return tokenizer

    def to_keras_hub(self, tokenizer: Any, name: str) -> tuple[dict[str, Any], Tokenizer]:
        """The configuration and the tokenizer whose files a class of KerasHub, called `name`, can read.

        Raises:
            PresetError: if there are none.
        """
        return self.keras_hub.write(tokenizer.get_config(), "KerasHub"), tokenizer


def require(file: Path, part: str, stored: Any, expected: Mapping[str, tuple[Any, ...]]) -> None:
    """Checks the values of some keys; one that is missing, but for the type, has the first of those expected.

    Raises:
        PresetError: naming the first key with another value.
    """
    stored = stored if isinstance(stored, dict) else {"type": stored}
    for key, allowed in expected.items():
        if (value := stored.get(key, None if key == "type" else allowed[0])) not in allowed:
            raise PresetError(
                f"{file}: `{part}{key}` is {value!r:.80}, but ours can only follow {' or '.join(map(repr, allowed))}."
            )


def template(tokenizer: Tokenizer) -> Any:
    """The step of `tokenizers` that puts the start and end tokens around one text or two."""
    from tokenizers import processors

    start, end = tokenizer.start_token, tokenizer.end_token
    before, after = f"{start}:0 " if start else "", (f" {end}:0", f" {end}:1") if end else ("", "")
    ids = {token: tokenizer.token_to_id(token) for token in (start, end) if token}
    single = f"{before}$A:0{after[0]}"
    return processors.TemplateProcessing(single=single, pair=f"{single} $B:1{after[1]}", special_tokens=[*ids.items()])
