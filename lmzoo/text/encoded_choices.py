"""Multiple-choice examples: each choice is packed with its prompt into a sequence of its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmzoo.text.packing import Encoded, EncodedTexts, Indices
from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.validate_text import Text, clean_columns, is_column, is_text


@dataclass(frozen=True)
class EncodedChoices(Encoded):
    """Examples of a prompt and its choices; each pair of prompt and choice is a packed sequence.

    Attributes:
        texts: `EncodedTexts`, the sequences of all choices, followed by an empty sequence for missing choices.
        starts: int64 (n,), index of the sequence of each example's first choice; its other choices follow.
        counts: int64 (n,), number of choices of each example.
    """

    texts: EncodedTexts
    starts: np.ndarray
    counts: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each example's longest sequence: int64 (n,)."""
        return self.texts.lengths[self.rows()].max(axis=1, initial=0)

    def select(self, indices: Indices) -> EncodedChoices:
        return EncodedChoices(self.texts, self.starts[indices], self.counts[indices])

    def rows(self, examples: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the indices in `texts` of the choices of each of `examples`, by default of all examples.

        Returns:
            int64 (b, C), a row for each of b examples, where C is the largest number of choices of any example in this
            object; missing choices point at the empty sequence.
        """
        choice_indices = np.arange(self.counts.max(initial=0))  # (C,)
        exists = choice_indices < self.counts[examples][:, None]  # (b, C)
        return np.where(exists, self.starts[examples][:, None] + choice_indices, len(self.texts) - 1)


def encode_choices(
    preprocessor: Preprocessor, prompts: Sequence[Text], choices: Sequence[Sequence[Text]]
) -> EncodedChoices:
    """Tokenize prompts and choices, and pack each choice with its prompt as a pair, without padding.

    Args:
        preprocessor: `lmzoo.text.Preprocessor`.
        prompts: n texts.
        choices: n lists of texts, the choices of each prompt.

    Raises:
        TypeError: If an entry is not text; the message names its position.
        ValueError: If `sequence_length` leaves no room for text.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.text.encoded_choices import encode_choices

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "is", "it", "?", "yes", "no"])
    preprocessor = Preprocessor(tokenizer, Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True), sequence_length=16)
    encode_choices(preprocessor, ["Is it?"], [["Yes", "No", "It is"]]).lengths  # [8]
    ```
    """
    column_names = ("prompts", *(f"choices[{i}]" for i in range(len(choices))))
    columns = dict(zip(column_names, (prompts, *choices), strict=True))
    prompts, *choices = clean_columns(columns, preprocessor.tokenizer.takes_words)
    prompt_tokens = preprocessor.tokenizer.tokenize(prompts)
    choice_tokens = preprocessor.tokenizer.tokenize([*itertools.chain.from_iterable(choices)])
    choice_counts = np.array([*map(len, choices)], "int64")
    repeated_prompts = [
        ids
        for ids, choice_count in zip(prompt_tokens, choice_counts.tolist(), strict=True)
        for _ in range(choice_count)
    ]
    packed_choices = preprocessor.pack(repeated_prompts, choice_tokens)
    texts = EncodedTexts(
        packed_choices.token_ids,
        np.append(packed_choices.sequence_splits, packed_choices.sequence_splits[-1]),
        np.append(packed_choices.second, np.int32(0)),
        packed_choices.truncated,
    )
    return EncodedChoices(texts, np.cumsum(choice_counts) - choice_counts, choice_counts)


def split_choices(x: Any) -> tuple[Sequence[Text], list[list[Text]]]:
    """Split examples into their prompts and their choices.

    Args:
        x: list of pairs `(prompt, choices)`, or a tuple of two columns, the prompts and their lists of choices.

    Raises:
        TypeError: If `x` is a single example or not a list, or the choices of an example are not a list; the message
            names the example.
        ValueError: If an entry is not a pair, the columns differ in length, or an example has no choices; the message
            names the first such example.
    """
    if is_text(x) or isinstance(x, dict) or not isinstance(x, Sequence):
        raise TypeError(f"Expected a list of examples (prompt, choices), got {type(x).__name__}: {x!r:.60}.")
    if isinstance(x, tuple):
        if len(x) != 2 or not all(map(is_column, x)):
            raise ValueError(
                f"A tuple means two columns, the prompts and a list of choices for each; got {len(x)} entries. Write "
                "[(prompt, choices)] for one example."
            )
        prompts, choices = x
    else:
        for position, example in enumerate(x):
            if not isinstance(example, (tuple, list)) or len(example) != 2:
                raise ValueError(f"`x[{position}]` must be a pair (prompt, choices), got {example!r:.60}.")
        prompts = [example[0] for example in x]
        choices = [example[1] for example in x]
    # Ragged tensors of tf.data and columns of pandas become lists.
    prompts, choices = (column.to_list() if hasattr(column, "to_list") else column for column in (prompts, choices))
    choices = [_list_choices(entry, position) for position, entry in enumerate(choices)]
    if len(prompts) != len(choices):
        raise ValueError(f"Got {len(prompts)} prompts but {len(choices)} lists of choices.")
    return prompts, choices


def _list_choices(choices: object, position: int) -> list[Text]:
    """Return the choices of the example at `position` as a list.

    Raises:
        TypeError: If `choices` is not a list, tuple or array.
        ValueError: If `choices` is empty.
    """
    if isinstance(choices, np.ndarray):
        choices = choices.tolist()
    if not isinstance(choices, (list, tuple)):
        raise TypeError(f"`choices[{position}]` must be a list of strings, got {choices!r:.60}.")
    if not choices:
        raise ValueError(f"`choices[{position}]` is empty: every example needs a choice.")
    return list(choices)
