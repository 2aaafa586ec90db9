"""Examples of a prompt and several choices: each choice is packed with the prompt into a sequence of its own."""

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
    """Examples whose choices are packed sequences.

    Attributes:
        texts: the sequences of all choices, and last an empty sequence, which stands for a missing choice.
        starts: int64 (n,), index of the sequence of each example's first choice; the others follow it.
        counts: int64 (n,), number of choices of each example.
    """

    texts: EncodedTexts
    starts: np.ndarray
    counts: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Int64 (n,), tokens of each example's longest sequence."""
        return self.texts.lengths[self.rows()].max(axis=1, initial=0)

    def select(self, indices: Indices) -> EncodedChoices:
        return EncodedChoices(self.texts, self.starts[indices], self.counts[indices])

    def rows(self, examples: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return a table with a row for each of some examples, or for all: the indices of its choices' sequences.

        Returns:
            Int64 (b, C), where C is the largest number of choices of all examples; missing choices are the empty
            sequence.
        """
        choice = np.arange(self.counts.max(initial=0))  # (C,)
        there = choice < self.counts[examples][:, None]  # (b, C)
        return np.where(there, self.starts[examples][:, None] + choice, len(self.texts) - 1)


def encode_choices(
    preprocessor: Preprocessor, prompts: Sequence[Text], choices: Sequence[Sequence[Text]]
) -> EncodedChoices:
    """Tokenize prompts and choices, and pack each choice with its prompt as a pair, without padding.

    Raises:
        TypeError: naming the position of an entry that is not text.
        ValueError: if `sequence_length` leaves no room for text.

    Example:

    ```python
    from lmzoo.text import Packing, Preprocessor, WordPieceTokenizer
    from lmzoo.text.encoded_choices import encode_choices

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "is", "it", "?", "yes", "no"])
    preprocessor = Preprocessor(tokenizer, Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True), sequence_length=16)
    encode_choices(preprocessor, ["Is it?"], [["Yes", "No", "It is"]]).lengths  # [8]
    ```
    """
    names = ("prompts", *(f"choices[{i}]" for i in range(len(choices))))
    columns = dict(zip(names, (prompts, *choices), strict=True))
    prompts, *choices = clean_columns(columns, preprocessor.tokenizer.takes_words)
    first = preprocessor.tokenizer.tokenize(prompts)
    second = preprocessor.tokenizer.tokenize([*itertools.chain.from_iterable(choices)])
    counts = np.array([*map(len, choices)], "int64")
    repeated = [ids for ids, count in zip(first, counts.tolist(), strict=True) for _ in range(count)]
    packed = preprocessor.pack(repeated, second)
    texts = EncodedTexts(
        packed.token_ids,
        np.append(packed.sequence_splits, packed.sequence_splits[-1]),
        np.append(packed.second, np.int32(0)),
        packed.truncated,
    )
    return EncodedChoices(texts, np.cumsum(counts) - counts, counts)


def split_choices(x: Any) -> tuple[Sequence[Text], list[list[Text]]]:
    """Split examples, `(prompt, choices)`, or a tuple of two columns, into their prompts and their choices.

    Raises:
        TypeError: for a single example or anything else that is not a list, or naming an example whose choices are not
            a list.
        ValueError: for an entry that is not a pair, for columns of different lengths, or naming the first example
            without choices.
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
        prompts, choices = [example[0] for example in x], [example[1] for example in x]
    # Ragged tensors of tf.data, and pandas' columns, become lists.
    prompts, choices = (column.to_list() if hasattr(column, "to_list") else column for column in (prompts, choices))
    choices = [_listed(entry, position) for position, entry in enumerate(choices)]
    if len(prompts) != len(choices):
        raise ValueError(f"Got {len(prompts)} prompts but {len(choices)} lists of choices.")
    return prompts, choices


def _listed(choices: object, position: int) -> list[Text]:
    """Return the choices of one example as a list."""
    if isinstance(choices, np.ndarray):
        choices = choices.tolist()
    if not isinstance(choices, (list, tuple)):
        raise TypeError(f"`choices[{position}]` must be a list of strings, got {choices!r:.60}.")
    if not choices:
        raise ValueError(f"`choices[{position}]` is empty: every example needs a choice.")
    return list(choices)
