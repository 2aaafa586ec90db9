"""Tokenization and checks of prompts for text generation."""

from __future__ import annotations

from collections.abc import Iterable

from lmzoo.errors import ArgumentError
from lmzoo.text import Preprocessor
from lmzoo.text.validate_text import Text, clean_columns

# Argument of KerasHub's `generate` -> advice on lmzoo's `generate`.
INSTEAD_OF_KERAS_HUBS = {
    "max_length": "Pass `max_new_tokens`: the number of new tokens, not counting the prompt.",
    "stop_token_ids": "A CausalLM takes `stop`: strings before which a text ends, or None to ignore the end token.",
    "strip_prompt": "The result is always the new text alone: add it to the prompt for the whole text.",
}


def prompt_ids(preprocessor: Preprocessor, prompts: Iterable[Text], start_ids: list[int]) -> list[list[int]]:
    """Return the token ids of each prompt; an empty prompt becomes `start_ids`.

    Raises:
        TypeError: for a prompt that is not a string; the message names its position.
        ValueError: for an empty prompt, if `start_ids` is empty.
    """
    (cleaned,) = clean_columns({"prompts": prompts})
    prefix = preprocessor.special_ids()[0]
    ids_by_prompt = [[*prefix, *text] or start_ids for text in preprocessor.tokenizer.tokenize(cleaned)]
    for i, ids in enumerate(ids_by_prompt):
        if not ids:
            raise ValueError(
                f"`prompts[{i}]` is empty, and the family has no start token to begin a text with: write at least one "
                "word."
            )
    return ids_by_prompt


def check_room(ids: list[list[int]], new: int, most: int) -> None:
    """Check that a model with `most` positions has room for each prompt and `new` more tokens.

    Raises:
        ValueError: for a prompt that leaves too little room; the message names the first.
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
