"""Prompts of embedding models: texts to put before other texts, such as "query: "."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lmzoo.common.arguments import require
from lmzoo.text.word_splitting import list_words

_SIGNATURES = ("serving_default", "pair", "tokens")
# Names of a model's prompts for queries and for the texts to search; the first that the model has is used.
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")


def check_prompts(prompts: Mapping[str, str] | None, default_prompt: str | None) -> dict[str, str]:
    """Check a task's prompts, by name, and return a copy of them.

    Raises:
        ValueError: If `prompts` is not a dict of strings, holds invalid Unicode, or lacks the default prompt.
    """
    if not isinstance(prompts, Mapping | None):
        raise ValueError(f"`prompts` must be a dict of texts by name, got {prompts!r:.60}.")
    prompt_texts = dict(prompts or {})
    for name, text in prompt_texts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(f"`prompts` must hold texts by name, got {text!r:.60} as {name!r:.60}.")
        if re.search("[\ud800-\udfff]", name + text):
            raise ValueError(f"The prompt {name!r:.60} is not valid Unicode: {text!r:.60}.")
    if default_prompt is not None and default_prompt not in prompt_texts:
        names = ", ".join(map(repr, prompt_texts)) or "none"
        advice = (
            "" if prompt_texts else f' Set them when you load the model: prompts={{{default_prompt!r:.60}: "..."}}.'
        )
        raise ValueError(f"There is no prompt {default_prompt!r:.60}; `prompts` has {names:.300}.{advice}")
    return prompt_texts


def check_pair_prompts(
    pair_prompts: Sequence[str | None] | None, prompts: Mapping[str, str]
) -> list[str | None] | None:
    """Check the names of the two prompts of pairs, for first and for other texts, and return them as a list.

    None stays None.

    Raises:
        ValueError: If `pair_prompts` are not two names in `prompts` (or None in place of a name), or if a name is also
            the name of an exported signature.
    """
    if pair_prompts is None:
        return None
    is_pair = isinstance(pair_prompts, Sequence) and not isinstance(pair_prompts, str) and len(pair_prompts) == 2
    require(is_pair, "pair_prompts", "None, or two names of prompts or None", pair_prompts)
    for name in pair_prompts:
        check_prompts(prompts, name)
        allowed_values = f"names other than those of exported signatures, {', '.join(_SIGNATURES)}"
        require(name not in _SIGNATURES, "pair_prompts", allowed_values, pair_prompts)
    return [*pair_prompts]


def add_prompt(prompt: str, texts: Sequence[Any]) -> list[Any]:
    """Prepend a prompt to each text; before a text that is a list of words, the prompt is split into words."""
    if not prompt:
        return [*texts]
    words = list_words(prompt)
    return [prompt + text if isinstance(text, str) else [*words, *text] for text in texts]
