"""The preprocessor, which tokenizes, packs and pads strings into the backbone's inputs."""

from __future__ import annotations

import dataclasses
import itertools
import numbers
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import numpy as np

from lmzoo.common.arguments import is_integer, refuse_arguments, require
from lmzoo.common.other_names import AdvisesOnNames
from lmzoo.errors import ArgumentError
from lmzoo.text.packing import LAST_SEGMENT, EncodedTexts, EncodedWords, Packing, truncate_pair
from lmzoo.text.preset_storage import PRESET_STORAGE
from lmzoo.text.segments import split_segments
from lmzoo.text.tf_data import features_in_graph, is_symbolic
from lmzoo.text.tokenizers.tokenizer import Token, Tokenizer
from lmzoo.text.validate_text import as_single_text, clean_columns, holds_text, warn
from lmzoo.text.word_splitting import place_words

_MASKING = "`masking` of a task holds the rates: pass `masking=lmzoo.text.Masking(...)` to `MaskedLM`"
# Settings of KerasHub's preprocessors -> advice that ends an error message.
_SETTINGS = {
    "add_end_token": "the packing of the family says which tokens end a text: see `packing`",
    "add_start_token": "`CausalLM` takes it: `CausalLM.from_preset(preset, add_start_token=True)`",
    "mask_selection_length": _MASKING,
    "mask_selection_rate": _MASKING,
    "mask_token_rate": _MASKING,
    "masker": _MASKING,
    "random_token_rate": _MASKING,
    "truncate": "pairs are always truncated at the longer text, single texts at the end",
}


def check_is_preprocessor(value: object) -> None:
    """Check that an argument is a preprocessor.

    Raises:
        TypeError: If `value` is not a `Preprocessor`.
    """
    if not isinstance(value, Preprocessor):
        raise TypeError(
            f"`preprocessor` must be a `lmzoo.text.Preprocessor`, got {value!r:.60}. From a tokenizer: "
            "`Preprocessor(tokenizer, packing, sequence_length)`."
        )


@keras.saving.register_keras_serializable(package="lmzoo")
class Preprocessor(AdvisesOnNames):
    """Tokenizer, packing and maximum length: everything between strings and the model.

    Args:
        tokenizer: `lmzoo.text.Tokenizer`.
        packing: `lmzoo.text.Packing`, the family's special tokens and their places; or a dict of its fields.
        sequence_length: int, maximum number of tokens of a sequence, including special tokens. You can change it later.
        **unknown: arguments of other libraries, which raise an error with advice.

    Raises:
        TypeError: If `tokenizer` or `packing` has the wrong type, or an argument is unknown.
        ValueError: If `sequence_length` is not a positive integer.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "good", "film"])
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    preprocessor = Preprocessor(tokenizer, packing, sequence_length=8)
    preprocessor(["good film"])["token_ids"]  # [[2, 5, 6, 3]]
    ```
    """

    names_instead: ClassVar[Mapping[str, str]] = {
        **_SETTINGS,
        "call": "call the preprocessor itself",
        "decoder_sequence_length": "`sequence_length` holds for sources and targets",
        "encoder_sequence_length": "`sequence_length` holds for sources and targets",
        "generate_postprocess": "`generate` of a task takes and returns text",
        "generate_preprocess": "`generate` of a task takes and returns text",
        "packer": "see `packing` and `pack`",
        "presets": "see `lmzoo.list_presets()`",
    }

    def __init__(
        self,
        tokenizer: Tokenizer,
        packing: Packing | dict[str, Any] | None = None,
        sequence_length: int = 512,
        **unknown: Any,
    ) -> None:
        refuse_settings("Preprocessor", unknown)
        if not isinstance(tokenizer, Tokenizer):
            raise TypeError(f"`tokenizer` must be a tokenizer of `lmzoo.text`, got {tokenizer!r:.60}.")
        self.tokenizer = tokenizer
        if isinstance(packing, dict):
            packing = Packing(**{**packing, "between": tuple(packing["between"])})
        if not isinstance(packing, Packing):
            raise TypeError(
                f"`packing` must be a `lmzoo.text.Packing`, got {packing!r:.60}. Pass the packing of the model's "
                "family, `task.family.packing`, or load a whole preprocessor with `from_preset`."
            )
        require(is_integer(sequence_length, 1), "sequence_length", "a positive integer", sequence_length)
        self.packing = packing
        self.sequence_length = sequence_length

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> EncodedTexts:
        """Tokenize and pack texts without padding.

        Sequences that are too long are truncated, with one warning per call: single texts at the end, pairs by
        `lmzoo.text.packing.truncate_pair`.

        Args:
            texts: n strings; a text may also be a list of words if the tokenizer `takes_words`.
            pairs: n second texts, or None.

        Returns:
            n packed sequences.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If `texts` and `pairs` differ in number, or `sequence_length` leaves no room for text.
        """
        columns = {"texts": texts} if pairs is None else {"texts": texts, "pairs": pairs}
        cleaned_columns = clean_columns(columns, self.tokenizer.takes_words)
        return self.pack(*(self.tokenizer.tokenize(column) for column in cleaned_columns))

    def pack(self, first: list[list[Token]], second: list[list[Token]] | None = None) -> EncodedTexts:
        """Pack tokenized texts, or pairs of them, into sequences with special tokens, truncated to the maximum length.

        Args:
            first: n lists of tokens, from the tokenizer's `tokenize`.
            second: n lists of tokens of the second texts, or None for single texts.

        Raises:
            ValueError: If `first` and `second` differ in number, or `sequence_length` leaves no room for text.
        """
        if second is not None and len(first) != len(second):
            raise ValueError(f"Pairs need as many second texts as first: got {len(first)} and {len(second)}.")
        start, between, end = self.special_ids()
        overhead = self.packing.overhead(second is not None)
        budget = self.room(second is not None)
        num_before_second = len(start) + len(end if second is None else between)
        if second is None:
            second = [[]] * len(first)
            between = []
        first_lengths, second_lengths = (
            np.array([len(ids) for ids in segments], "int64") for segments in (first, second)
        )
        kept_first_lengths, kept_second_lengths = truncate_pair(first_lengths, second_lengths, budget)
        truncated_pairs = zip(first, second, kept_first_lengths.tolist(), kept_second_lengths.tolist(), strict=True)
        parts = (
            part
            for first_ids, second_ids, first_length, second_length in truncated_pairs
            for part in (start, first_ids[:first_length], between, second_ids[:second_length], end)
        )
        num_truncated = int(np.sum(kept_first_lengths + kept_second_lengths < first_lengths + second_lengths))
        if num_truncated:
            warn(
                f"{num_truncated} of {len(first)} texts were truncated to {self.sequence_length} tokens "
                "(`sequence_length`)."
            )
        splits = np.concatenate([[0], np.cumsum(kept_first_lengths + kept_second_lengths + overhead)])
        token_ids = self.tokenizer.as_array(itertools.chain.from_iterable(parts), int(splits[-1]))
        return EncodedTexts(token_ids, splits, (kept_first_lengths + num_before_second).astype("int32"), num_truncated)

    def room(self, pair: bool = False) -> int:
        """Return the maximum number of tokens of a text or, if `pair`, of both texts together, without special tokens.

        Raises:
            ValueError: If `sequence_length` leaves no room for text.
        """
        overhead = self.packing.overhead(pair)
        if self.sequence_length <= overhead:
            raise ArgumentError(
                f"`sequence_length` is {self.sequence_length}, but a sequence has {overhead} special tokens: it must "
                f"be at least {overhead + 1}.",
                "sequence_length",
            )
        return self.sequence_length - overhead

    def special_ids(self) -> tuple[list[int], list[int], list[int]]:
        """Return the ids of the special tokens at the start of a sequence, between two segments and at the end."""
        packing = self.packing
        token_groups = ((packing.start,), packing.between, packing.closing)
        start, between, end = (
            [self.tokenizer.token_to_id(token) for token in tokens if token] for tokens in token_groups
        )
        return start, between, end

    def encode_words(self, texts: Sequence[str | Sequence[str]]) -> EncodedWords:
        """Tokenize texts word by word and pack them without padding.

        A text is a list of words, or a string, which `lmzoo.text.word_splitting.split_words` splits.

        Returns:
            One packed sequence per text with its words; sequences that are too long are truncated at the end.

        Raises:
            TypeError: If a text or a word is not a string; the message names its position.
            ValueError: If `sequence_length` leaves no room for text.
        """
        joined_texts, words, ids = self.tokenize_words(texts)
        encoded = self.pack([list(itertools.chain.from_iterable(word_ids)) for word_ids in ids])
        kept_lengths = (encoded.lengths - self.packing.overhead(False)).tolist()
        first_tokens = [
            start + bool(self.packing.start) if start < kept_length else -1
            for word_ids, kept_length in zip(ids, kept_lengths, strict=True)
            for start in itertools.accumulate(map(len, word_ids[:-1]), initial=0)
            if word_ids
        ]
        return EncodedWords(**vars(encoded), texts=joined_texts, words=words, first=np.array(first_tokens, "int32"))

    def tokenize_words(
        self, texts: Sequence[str | Sequence[str]]
    ) -> tuple[tuple[str, ...], tuple[tuple[tuple[str, int, int], ...], ...], list[list[list[Token]]]]:
        """Tokenize texts word by word, for `encode_words`.

        Returns:
            The texts as strings; the words of each text, as tuples `(word, start, end)`; and the lists of tokens of
            each text's words.

        Raises:
            TypeError: If a text or a word is not a string; the message names its position.
        """
        cleaned_texts = clean_columns({"texts": texts}, words=True)[0]
        words = tuple(tuple(place_words(text)) for text in cleaned_texts)
        tokens = iter(self.tokenizer.tokenize_words([word for text_words in words for word, _, _ in text_words]))
        ids = [list(itertools.islice(tokens, len(text_words))) for text_words in words]  # [text][word][token]
        return tuple(text if isinstance(text, str) else " ".join(text) for text in cleaned_texts), words, ids

    def features(self, encoded: EncodedTexts, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Return the backbone's inputs for the packed sequences at `indices`, padded to `length`.

        Returns:
            Dict of int32 arrays (b, length), for b indices: `token_ids`, `padding_mask` and, if the family has them,
            `segment_ids`. ELMo has only `character_ids` (b, length, 50).

        Raises:
            ValueError: If a sequence is longer than `length`.
        """
        ids, mask = encoded.padded(indices, length, self.tokenizer.pad_id)
        features = self.tokenizer.features(ids, mask)
        if self.packing.segments:
            is_second = np.arange(length) >= encoded.second[indices][:, None]  # (b, length)
            features["segment_ids"] = is_second.astype("int32") * mask
            if self.packing.last:
                features["segment_ids"][np.arange(len(mask)), mask.sum(axis=1) - 1] = LAST_SEGMENT
        elif self.packing.zero_segments:
            features["segment_ids"] = np.zeros_like(mask)
        return features

    def __call__(self, x: Any, y: Any = None, sample_weight: Any = None, **unknown: Any) -> Any:
        """Tokenize, pack and pad texts, alone or with labels and weights.

        Sequences are padded to the length of the longest sequence. See also `encode` and `features`.

        Args:
            x: n texts; n pairs, as a tuple `(firsts, seconds)` or a list of tuples `(first, second)`; one text, a
                string; or one pair, a tuple of two strings. In `tf.data` functions, `tf.string` tensors of shape ()
                or (n,), or a tuple of two.
            y: labels, anything except text. Lists of numbers become arrays, other types are returned unchanged.
            sample_weight: weights, treated like `y`.
            **unknown: arguments of other libraries, which raise an error with advice.

        Returns:
            The features (n, t), or (t,) for one text or pair; with labels a tuple `(features, y)` or
            `(features, y, sample_weight)`. In `tf.data`, where only tensors of equal shapes can be batched, one text or
            pair is padded to `sequence_length`.

        Raises:
            TypeError: If an entry is not text (the message names its position), `y` is text, or an argument is unknown.
            ValueError: If `sample_weight` is passed without `y`, a tuple is not a pair, the texts of pairs differ in
                number, or `sequence_length` leaves no room for text.
        """
        refuse_settings("preprocessor", unknown)
        if y is None and sample_weight is not None:
            raise ValueError("`sample_weight` needs labels: pass `y`.")
        if holds_text(y):
            raise TypeError(
                f"`y` must be labels, got text: {y!r:.60}. Pass pairs of texts as a tuple: "
                "`preprocessor((first, second))`. Labels that are strings are for tasks, with `labels=`."
            )
        columns_or_texts = x if isinstance(x, tuple) else (x,)
        if any(map(is_symbolic, columns_or_texts)):
            features = features_in_graph(self._pad, columns_or_texts, self.sequence_length)
        else:
            features = self._make_input_features(x, [as_single_text(part) for part in columns_or_texts])
        return keras.utils.pack_x_y_sample_weight(features, _convert_to_column(y), _convert_to_column(sample_weight))

    def _make_input_features(self, x: Any, single_texts: list[str | bytes | None]) -> dict[str, np.ndarray]:
        """Return the features of `x`.

        Args:
            x: texts, as for `__call__`.
            single_texts: for each part of `x`, its text if it is a single text, else None.

        Raises:
            ValueError: If a tuple is not a pair, or holds both a single text and a column.
        """
        if isinstance(x, tuple) and any(single_texts) and (None in single_texts or len(single_texts) != 2):
            raise ValueError(
                f"A tuple means pairs, (firsts, seconds), both texts or both lists of texts; got {x!r:.60}."
            )
        if None in single_texts or len(single_texts) not in (1, 2):
            return self._pad(*split_segments(x, self.tokenizer.takes_words))
        columns: list[Any] = [[text] for text in single_texts]
        return {name: array[0] for name, array in self._pad(*columns).items()}

    def _pad(self, texts: Any, pairs: Any = None, length: int | None = None) -> dict[str, np.ndarray]:
        """Return the features of texts, padded to `length`, or to the longest sequence by default."""
        encoded = self.encode(texts, pairs)
        max_length = int(encoded.lengths.max(initial=1))
        return self.features(encoded, np.arange(len(encoded)), length or max_length)

    @classmethod
    def from_preset(
        cls, preset: str | Path, sequence_length: int | None = None, family: str | None = None, **unknown: Any
    ) -> Self:
        """Load the preprocessor of a preset or checkpoint.

        Called on `Preprocessor`, it loads any preprocessor; called on a subclass, it accepts only that class.

        Args:
            preset: str, a name from `lmzoo.list_presets()`, a local directory, `hf://org/name` or `kaggle://...`.
            sequence_length: int, maximum number of tokens of a sequence; None for the preset's maximum.
            family: str, name of the model family, such as "bert"; needed if a checkpoint does not state its family.
            **unknown: arguments of other libraries, which raise an error with advice.

        Raises:
            TypeError: If an argument is unknown.
            ValueError: If the preset is unknown, a file is altered or missing, or the preprocessor is not an instance
                of the class.

        Example:

        ```python
        from lmzoo.text import Preprocessor

        preprocessor = Preprocessor.from_preset("bert_nano_en_uncased", sequence_length=64)
        preprocessor("A quiet film.")["padding_mask"]  # [1, 1, 1, 1, 1, 1]
        ```
        """
        refuse_settings("from_preset", unknown)
        return PRESET_STORAGE["load_preprocessor"](preset, cls, family, sequence_length)

    def save_to_preset(self, directory: str | Path, overwrite: bool = True) -> None:
        """Write preprocessor and tokenizer as a preset, or into an existing preset without changing its model.

        Args:
            directory: str or path, the directory to write. If saving fails, an existing directory is unchanged.
            overwrite: bool, whether an existing directory may be changed.

        Raises:
            FileExistsError: If `directory` is not empty and `overwrite` is False, or it holds something other than a
                preset.
            ValueError: If the class of the preprocessor or tokenizer is not registered with Keras, or `directory`
                holds several tasks.
        """
        PRESET_STORAGE["save"](self, directory, overwrite)

    def save_assets(self, directory: str | Path) -> None:
        """Write the tokenizer's files into `directory`."""
        self.tokenizer.save_assets(directory)

    def load_assets(self, directory: str | Path) -> None:
        """Load the tokenizer's vocabulary from the files that `save_assets` writes."""
        self.tokenizer.load_assets(directory)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments, with the tokenizer as a serialized Keras object."""
        return {
            "tokenizer": keras.saving.serialize_keras_object(self.tokenizer),
            "packing": dataclasses.asdict(self.packing),
            "sequence_length": self.sequence_length,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create a preprocessor from the result of `get_config`.

        `config["tokenizer"]` is a tokenizer, or a serialized Keras object that yields one without a vocabulary.
        """
        tokenizer = config["tokenizer"]
        if not isinstance(tokenizer, Tokenizer):
            tokenizer = keras.saving.deserialize_keras_object(tokenizer)
        return cls(**{**config, "tokenizer": tokenizer})


def refuse_settings(call: str, names: Iterable[str]) -> None:
    """Raise a TypeError if there are unknown arguments, with advice for the arguments of KerasHub's preprocessors."""
    advice = {name: f"{text[0].upper()}{text[1:]}." for name, text in _SETTINGS.items()}
    refuse_arguments(call, names, {**advice, "sequence_length": "Set `preprocessor.sequence_length`, a limit."})


def _convert_to_column(values: Any) -> Any:
    """Return a list of numbers as an array, which Keras expects, and anything else unchanged."""
    is_column = isinstance(values, list) and all(isinstance(value, numbers.Number) for value in values)
    return np.asarray(values) if is_column else values
