"""Sampling of the next token from its probability distribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lmzoo.common.arguments import is_integer, is_number, require

SAMPLERS = ("greedy", "random", "top_k", "top_p")


def make_sampler(
    sampler: str, temperature: float, top_k: int, top_p: float, rng: np.random.Generator
) -> Callable[[np.ndarray], int]:
    """Return a function that samples a token, given the log-probabilities of all V tokens, float (V,).

    Args:
        sampler: "greedy" for the most probable token (the first of equally probable tokens); "random" for a random
            token; "top_k" or "top_p" for a random token among the most probable tokens.
        temperature: float above 0, divisor of log-probabilities before sampling.
        top_k: int, number of tokens for "top_k".
        top_p: float in (0, 1], minimum total probability of the tokens for "top_p".
        rng: random generator for sampling.

    Raises:
        ValueError: If `sampler` is unknown, or a number is out of range.
    """
    require(sampler in SAMPLERS, "sampler", f"one of {', '.join(SAMPLERS)}", sampler)
    is_valid = is_number(temperature, 0) and 0 < temperature < np.inf
    require(is_valid, "temperature", "a number above 0", temperature)
    require(is_integer(top_k, 1), "top_k", "an integer of at least 1", top_k)
    require(is_number(top_p, 0, 1) and top_p > 0, "top_p", "a number in (0, 1]", top_p)

    def choose(log_probabilities: np.ndarray) -> int:
        if sampler == "greedy":
            return int(np.argmax(log_probabilities))
        scaled_log_probabilities = log_probabilities / temperature
        ranking = np.argsort(-scaled_log_probabilities, kind="stable")  # (V,)
        probabilities = np.exp(scaled_log_probabilities[ranking] - scaled_log_probabilities[ranking[0]])
        probabilities /= probabilities.sum()
        if sampler == "top_k":
            probabilities = probabilities[:top_k]
        elif sampler == "top_p":
            probabilities = probabilities[: np.searchsorted(np.cumsum(probabilities), top_p) + 1]
        candidates = ranking[: len(probabilities)]
        return int(rng.choice(candidates, p=probabilities / probabilities.sum()))

    return choose
