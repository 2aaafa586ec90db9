"""Choosing the next token from the probabilities of all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lmzoo.common.arguments import is_integer, is_number, require

SAMPLERS = ("greedy", "random", "top_k", "top_p")


def make_sampler(
    sampler: str, temperature: float, top_k: int, top_p: float, rng: np.random.Generator
) -> Callable[[np.ndarray], int]:
    """Return a function that chooses a token, given log-probabilities (V,); of equal ones the first is greedy's.

    Args:
        sampler: "greedy" for the most probable; "random" for any, by its probability; "top_k" or "top_p" for one of the
            most probable, by its probability.
        temperature: float above 0, by which logarithms are divided before anything is drawn.
        top_k: int, how many of the most probable are drawn from.
        top_p: float in (0, 1]; the fewest of the most probable that together have this probability are drawn from.
        rng: draws the tokens.

    Raises:
        ValueError: for an unknown sampler, or a number that is out of range.
    """
    require(sampler in SAMPLERS, "sampler", f"one of {', '.join(SAMPLERS)}", sampler)
    above = is_number(temperature, 0) and 0 < temperature < np.inf
    require(above, "temperature", "a number above 0", temperature)
    require(is_integer(top_k, 1), "top_k", "an integer of at least 1", top_k)
    require(is_number(top_p, 0, 1) and top_p > 0, "top_p", "a number in (0, 1]", top_p)

    def choose(log_probabilities: np.ndarray) -> int:
        if sampler == "greedy":
            return int(np.argmax(log_probabilities))
        scaled = log_probabilities / temperature
        best = np.argsort(-scaled, kind="stable")  # (V,)
        chances = np.exp(scaled[best] - scaled[best[0]])
        chances /= chances.sum()
        if sampler == "top_k":
            chances = chances[:top_k]
        elif sampler == "top_p":
            chances = chances[: np.searchsorted(np.cumsum(chances), top_p) + 1]
        return int(rng.choice(best[: len(chances)], p=chances / chances.sum()))

    return choose
