"""Prompts and sources, from which texts are generated: how they are passed, and their tokens."""

from __future__ import annotations

from collections.abc import Iterable

from lmzoo.errors import ArgumentError
from lmzoo.text import Preprocessor
from lmzoo.text.validate_text import Text, clean_columns

# What to do instead of passing the arguments that KerasHub's `generate` has.
INSTEAD_OF_KERAS_HUBS = {
    "max_length": "Pass `max_new_tokens`: the number of new tokens, not counting the prompt.",
    "stop_token_ids": "A CausalLM takes `stop`: strings before which a text ends, or None to ignore the end token.",
    "strip_prompt": "The result is always the new text alone: add it to the prompt for the whole text.",
}


def prompt_ids(preprocessor: Preprocessor, prompts: Iterable[Text], start_ids: list[int]) -> list[list[int]]:
    """Return the tokens of prompts; `start_ids` stand for the empty one.

    Raises:
        TypeError: naming the position of a prompt that is not a string.
        ValueError: for an empty prompt, if nothing stands for it.
    """
    (cleaned,) = clean_columns({"prompts": prompts})
    before = preprocessor.special_ids()[0]
    ids = [[*before, *text] or start_ids for text in preprocessor.tokenizer.tokenize(cleaned)]
    for i, of_prompt in enumerate(ids):
        if not of_prompt:
            raise ValueError(
                f"`prompts[{i}]` is empty, and the family has no start token to begin a text with: write at least one "
                "word."
            )
    return ids


def check_room(ids: list[list[int]], new: int, most: int) -> None:
    """Check that a model of `most` positions has room for prompts and `new` tokens more.

    Raises:
        ValueError: naming a prompt that leaves too little.
    """
    for i, count in enumerate(map(len, ids)):
        if count + new > most:
            room = most - count
            advice = f"`max_new_tokens` may be at most {room}" if room > 0 else "Shorten the prompt"
            raise ArgumentError(
                f"`prompts[{i}]` has {count} tokens, which with `max_new_tokens={new}` is more than the {most} "
                f"tokens that the model takes. {advice}.",
                "max_new_tokens",
            )
