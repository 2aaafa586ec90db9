"""What language models answer when they score texts."""

from __future__ import annotations

from typing import TypedDict


class TokenScore(TypedDict):
    """The log-probability of a token, `text[start:end]`, after the tokens before it: a natural logarithm."""

    token: str
    start: int
    end: int
    log_probability: float
