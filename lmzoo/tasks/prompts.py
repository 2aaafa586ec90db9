"""Tokenization and checks of prompts, and checks of the `stop` argument, for text generation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lmzoo.common.arguments import is_integer, list_stop_strings, require
from lmzoo.errors import ArgumentError
from lmzoo.text import Preprocessor
from lmzoo.text.validate_text import Text, clean_columns

# Argument of KerasHub's `generate` -> advice on lmzoo's `generate`.
GENERATE_ARGUMENT_ADVICE = {
    "max_length": "Pass `max_new_tokens`: the number of new tokens, not counting the prompt.",
    "stop_token_ids": "Pass `stop`: strings or token ids before which a text ends, or None to ignore the end token.",
    "strip_prompt": "The result is always the new text alone: add it to the prompt for the whole text.",
}

# Argument of KerasHub's `score` -> advice on lmzoo's `score`.
_PASS_TEXTS_ADVICE = "Pass the texts first: `score` tokenizes them."
SCORE_ARGUMENT_ADVICE = {
    "layer_intercept_fn": 'For vectors of all layers call the backbone: `backbone(features)["hidden_states"]`.',
    "padding_mask": _PASS_TEXTS_ADVICE,
    "scoring_mode": "The result is always log-probabilities. For logits call the task: `task(features)`.",
    "target_ids": "The targets are the tokens of the texts.",
    "token_ids": _PASS_TEXTS_ADVICE,
}


def encode_prompts(preprocessor: Preprocessor, prompts: Iterable[Text], start_ids: list[int]) -> list[list[int]]:
    """Return the token ids of each prompt, beginning with the preprocessor's start tokens, if any.

    A prompt without any ids becomes `start_ids`.

    Raises:
        TypeError: If a prompt is not a string; the message names its position.
        ValueError: If a prompt has no ids and `start_ids` is empty; the message names its position.
    """
    (cleaned_prompts,) = clean_columns({"prompts": prompts})
    prefix = preprocessor.special_ids()[0]
    ids_by_prompt = [[*prefix, *text_ids] or start_ids for text_ids in preprocessor.tokenizer.tokenize(cleaned_prompts)]
    for i, ids in enumerate(ids_by_prompt):
        if not ids:
            raise ValueError(
                f"`prompts[{i}]` is empty, and the family has no start token to begin a text with: write at least one "
                "word."
            )
    return ids_by_prompt


def check_reads_text(task: Any) -> None:
    """Check that a task can turn prompts into token ids and generated ids into text.

    Raises:
        ValueError: If the task has no preprocessor, or if its sequences do not fit the model.
    """
    if task.preprocessor is None:
        raise ValueError(
            f"This {type(task).__name__} has no preprocessor, so `generate` takes token ids, not text. Pass lists of "
            "ids, or set `preprocessor`."
        )
    task.check_takes_text()


def check_prompt_ids(name: str, ids: Sequence[Sequence[int]], vocabulary_size: int, max_length: int) -> None:
    """Check that prompts of token ids have 1 to `max_length` ids, each from 0 to `vocabulary_size` - 1.

    Raises:
        ValueError: If a prompt is invalid; the message begins with `name` and the position of the first.
    """
    for i, prompt in enumerate(ids):
        require(1 <= len(prompt) <= max_length, f"{name}[{i}]", f"a list of 1 to {max_length} token ids", prompt)
        for position, token_id in enumerate(prompt):
            require(
                is_integer(token_id, 0, vocabulary_size - 1),
                f"{name}[{i}][{position}]",
                f"a token id from 0 to {vocabulary_size - 1}",
                token_id,
            )


def split_stops(stop: Any, size: int) -> tuple[list[int], list[str]]:
    """Split the argument `stop` of `generate` into the token ids and the strings that end a text.

    Args:
        stop: a string or a token id, several of them, or None.
        size: int, vocabulary size; ids are below it.

    Raises:
        ValueError: If `stop` is anything else, or if a string is empty.
    """
    entries = [*stop] if isinstance(stop, Iterable) and not isinstance(stop, (str, bytes)) else [stop]
    ids = [int(entry) for entry in entries if is_integer(entry, 0, size - 1)]
    return ids, list_stop_strings(
        None if stop is None else [entry for entry in entries if not is_integer(entry, 0, size - 1)]
    )


def check_room(ids: list[list[int]], new_tokens: int | None, max_length: int) -> None:
    """Check that a model with `max_length` positions has room for each prompt and `new_tokens` more tokens.

    If `new_tokens` is None, there must be room for one new token.

    Raises:
        ValueError: If a prompt leaves too little room; the message names the first.
    """
    for i, num_tokens in enumerate(map(len, ids)):
        room = max_length - num_tokens
        if room >= (new_tokens or 1):
            continue
        if new_tokens is None:
            raise ArgumentError(
                f"`prompts[{i}]` has {num_tokens} tokens, and the model takes {max_length}: there is no room for a new "
                "token. Shorten the prompt.",
                "prompts",
            )
        advice = f"`max_new_tokens` may be at most {room}" if room > 0 else "Shorten the prompt"
        raise ArgumentError(
            f"`prompts[{i}]` has {num_tokens} tokens, which with `max_new_tokens={new_tokens}` is more than the "
            f"{max_length} tokens that the model takes. {advice}.",
            "max_new_tokens",
        )
