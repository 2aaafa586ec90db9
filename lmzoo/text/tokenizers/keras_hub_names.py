"""Attributes and methods of tokenizers under KerasHub's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from lmzoo.common.arguments import refuse_arguments
from lmzoo.common.other_names import AdvisesOnNames
from lmzoo.text.preset_storage import PRESET_STORAGE
from lmzoo.text.tf_data import ids_in_graph, is_symbolic
from lmzoo.text.validate_text import as_single_text

_SETTINGS = "The preset determines the settings of its tokenizer; pass others to the constructor of its class."


class KerasHubTokenizerNames(AdvisesOnNames):
    """Mixin that gives `lmzoo.text.Tokenizer` the attributes and methods of KerasHub's tokenizers."""

    names_instead: ClassVar[Mapping[str, str]] = {
        "call": "call the tokenizer itself",
        "export_to_transformers": '`lmzoo.save_checkpoint(task, directory, to="hf")` also writes the tokenizer',
        "presets": "see `lmzoo.list_presets()`",
        "set_vocabulary": "pass the vocabulary to the constructor",
    }

    if TYPE_CHECKING:
        unk_token: str | None
        start_token: str | None
        end_token: str | None
        mask_token: str | None
        special_tokens: tuple[str, ...]

        @property
        def pad_id(self) -> int: ...
        @property
        def vocabulary(self) -> list[str]: ...
        def tokenize(self, texts: Sequence[Any]) -> list[list[Any]]: ...
        def as_array(self, tokens: Any, count: int) -> Any: ...
        def token_to_id(self, token: str | None) -> Any: ...

    def __call__(self, texts: Any) -> Any:
        """Return the token ids of one text or of several texts.

        Args:
            texts: one string, or n strings. In `tf.data` functions, a `tf.string` tensor of shape () or (n,).

        Returns:
            A list of ids, or a list of n such lists. In `tf.data` an int32 tensor, (t,) or ragged (n, None).
        """
        if is_symbolic(texts):
            return ids_in_graph(self.tokenize, self.as_array, texts)
        text = as_single_text(texts)
        return self.tokenize(texts) if text is None else self.tokenize([text])[0]

    def get_vocabulary(self) -> list[str]:
        """Return all tokens in order of their ids; same as `vocabulary`."""
        return self.vocabulary

    @property
    def pad_token_id(self) -> int:
        """Id of the padding token, or 0 without one; same as `pad_id`."""
        return self.pad_id

    @property
    def unk_token_id(self) -> int | None:
        """Id of the unknown token, or None without one."""
        return self._get_id(self.unk_token)

    @property
    def start_token_id(self) -> int | None:
        """Id of the token at the beginning of a sequence, or None without one."""
        return self._get_id(self.start_token)

    @property
    def end_token_id(self) -> int | None:
        """Id of the token at the end of a text, or None without one."""
        return self._get_id(self.end_token)

    @property
    def mask_token_id(self) -> int | None:
        """Id of the mask token, or None without one."""
        return self._get_id(self.mask_token)

    @property
    def special_token_ids(self) -> list[int]:
        """Ids of `special_tokens`, in the same order."""
        return [self.token_to_id(token) for token in self.special_tokens]

    def _get_id(self, token: str | None) -> Any:
        """Return the id of a token, or None for None."""
        return None if token is None else self.token_to_id(token)

    @classmethod
    def from_preset(cls, preset: str | Path, family: str | None = None, **unknown: Any) -> Self:
        """Load the tokenizer of a preset or checkpoint.

        Called on `Tokenizer`, it loads any tokenizer; called on a subclass, it accepts only that class.

        Args:
            preset: str, a name from `lmzoo.list_presets()`, a local directory, `hf://org/name` or `kaggle://...`.
            family: str, name of the model family, such as "bert"; needed if a checkpoint does not state its family.
            **unknown: arguments of other libraries, which raise an error.

        Raises:
            TypeError: If an argument is unknown.
            ValueError: If the preset is unknown, a file is altered or missing, or the tokenizer is not an instance of
                the class.

        Example:

        ```python
        from lmzoo.text import Tokenizer

        tokenizer = Tokenizer.from_preset("bert_nano_en_uncased")
        tokenizer.detokenize(tokenizer("A quiet film."))  # "a quiet film ."
        ```
        """
        refuse_arguments("from_preset", unknown, dict.fromkeys(unknown, _SETTINGS))
        return PRESET_STORAGE["load_tokenizer"](preset, cls, family)

    def save_to_preset(self, directory: str | Path, overwrite: bool = True) -> None:
        """Write the tokenizer as a preset, or into an existing preset without changing its model.

        Args:
            directory: str or path, the directory to write. If saving fails, an existing directory is unchanged.
            overwrite: bool, whether an existing directory may be changed.

        Raises:
            FileExistsError: If `directory` is not empty and `overwrite` is False, or it holds something other than a
                preset.
            ValueError: If `directory` holds a preprocessor or several tasks, or the class is not registered with Keras.
        """
        PRESET_STORAGE["save"](self, directory, overwrite)


class ClsAndSepNames(KerasHubTokenizerNames):
    """Mixin with the names of start and end tokens in KerasHub's BERT, DistilBERT and ALBERT tokenizers."""

    @property
    def cls_token(self) -> str | None:
        """Token at the beginning of a sequence, or None without one: `start_token` under KerasHub's name."""
        return self.start_token

    @property
    def cls_token_id(self) -> int | None:
        """Id of `cls_token`, or None without one."""
        return self.start_token_id

    @property
    def sep_token(self) -> str | None:
        """Token at the end of a text, or None without one: `end_token` under KerasHub's name."""
        return self.end_token

    @property
    def sep_token_id(self) -> int | None:
        """Id of `sep_token`, or None without one."""
        return self.end_token_id
