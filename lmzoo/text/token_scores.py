"""Scores that language models give to the tokens of texts."""

from __future__ import annotations

from typing import TypedDict


class TokenScore(TypedDict):
    """A token `text[start:end]` and its log-probability, a natural logarithm.

    A `CausalLM` predicts a token from the preceding tokens, a `MaskedLM` from all other tokens.

    Example: see `lmzoo.analysis.surprisal`.
    """

    token: str
    start: int
    end: int
    log_probability: float
