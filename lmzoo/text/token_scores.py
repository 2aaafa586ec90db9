"""What language models answer when they score texts."""

from __future__ import annotations

from typing import TypedDict


class TokenScore(TypedDict):
    """The log-probability of a token, `text[start:end]`: a natural logarithm.

    A `CausalLM` has read the tokens before it, a `MaskedLM` all others.

    Example: see `lmzoo.analysis.surprisal`.
    """

    token: str
    start: int
    end: int
    log_probability: float
