"""Choosing the next token from the probabilities of all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmzoo.common.arguments import is_integer, is_number, require

SAMPLERS = ("greedy", "random", "top_k", "top_p")


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Attributes:
        sampler: "greedy" for the most probable; "random" for any, by its probability; "top_k" or "top_p" for one of the
            most probable, by its probability.
        temperature: float above 0, by which logarithms are divided before anything is drawn.
        top_k: int, how many of the most probable are drawn from.
        top_p: float in (0, 1]; the fewest of the most probable that together have this probability are drawn from.

    Raises:
        ValueError: for an unknown sampler, or a number that is out of range.
    """

    sampler: str
    temperature: float
    top_k: int
    top_p: float

    def __post_init__(self) -> None:
        require(self.sampler in SAMPLERS, "sampler", f"one of {', '.join(SAMPLERS)}", self.sampler)
        above = is_number(self.temperature, 0) and 0 < self.temperature < np.inf
        require(above, "temperature", "a number above 0", self.temperature)
        require(is_integer(self.top_k, 1), "top_k", "an integer of at least 1", self.top_k)
        require(is_number(self.top_p, 0, 1) and self.top_p > 0, "top_p", "a number in (0, 1]", self.top_p)

    def choose(self, log_probabilities: np.ndarray, rng: np.random.Generator) -> int:
        """Return a token, given log-probabilities (V,); of equal ones the first is greedy's."""
        if self.sampler == "greedy":
            return int(np.argmax(log_probabilities))
        scaled = log_probabilities / self.temperature
        best = np.argsort(-scaled, kind="stable")  # (V,)
        chances = np.exp(scaled[best] - scaled[best[0]])
        chances /= chances.sum()
        if self.sampler == "top_k":
            chances = chances[: self.top_k]
        elif self.sampler == "top_p":
            chances = chances[: np.searchsorted(np.cumsum(chances), self.top_p) + 1]
        return int(rng.choice(best[: len(chances)], p=chances / chances.sum()))
