"""A claim as a record: its source, what is compared, and the rule of its verdict, stated before any measurement."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

SEEDS = (0, 1, 2)
REPRODUCED, OPEN, CONTRADICTED = "reproduced", "not at this scale", "contradicted"
NOT_RUN = "not run yet"

# "arm", "seed", the measures, "seconds", "load", that of the machine before the run, and "machine" if it is a GPU.
Row = dict[str, Any]


class Setting(NamedTuple):
    """What every run is given: the folder with the datasets, one for intermediate results, and whether to only try."""

    data: Path
    work: Path
    trial: bool = False

    def size(self, full: int, trial: int) -> int:
        """Return the number of examples, steps or tokens: a small one for a trial."""
        return trial if self.trial else full


class Comparison(NamedTuple):
    """That one arm has a better value of a measure than another one, by more than `least`.

    `least` is below 0 for an arm that only must not be worse by more than that.
    """

    better: str
    worse: str
    measure: str
    least: float = 0.0


@dataclass(frozen=True)
class Claim:
    """A claim and its experiment.

    Attributes:
        name: of the results, and for the command line.
        title: heading on the page.
        says: the claim, in a sentence.
        source: paper, and table or figure.
        url: of the paper.
        arms: name -> what differs, as `run` takes it. Equal arms of claims with the same `run` are run once.
        run: measures one arm with one seed: of an arm, a seed and the setting, name -> value.
        rule: the comparisons that must hold.
        how: what was done, for the page.
        limits: what the experiment does not show.
        reading: what the numbers say, written after they were there.
        common: what was done in the same way for several claims; the page says it once, before the first of them.
    """

    name: str
    title: str
    says: str
    source: str
    url: str
    arms: Mapping[str, Any]
    run: Callable[[Any, int, Setting], dict[str, float]]
    rule: tuple[Comparison, ...]
    how: str
    limits: str
    reading: str = ""
    common: str = ""

    def __post_init__(self) -> None:
        named = {arm for comparison in self.rule for arm in comparison[:2]}
        if not self.rule or named - set(self.arms):
            raise ValueError(f"The rule of {self.name} compares {sorted(named)}, its arms are {sorted(self.arms)}.")


class Spread(NamedTuple):
    """Mean and standard deviation of a measure over seeds."""

    mean: float
    deviation: float
    count: int


def lower_is_better(measure: str) -> bool:
    """Return whether a measure is a loss; the others are accuracies."""
    return "loss" in measure


def spread(rows: list[Row], arm: str, measure: str) -> Spread | None:
    """Return a measure of an arm; None if it has not been run."""
    values = [row[measure] for row in rows if row["arm"] == arm and measure in row]
    if not values:
        return None
    return Spread(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else math.nan, len(values))


def judge(comparison: Comparison, rows: list[Row]) -> str:
    """Return whether a comparison holds, by the difference d of the means and twice its standard error e.

    It holds if d - e is above `least`, and is contradicted if d + e is below both `least` and 0. The standard error is
    √(s₁²/n₁ + s₂²/n₂), of the standard deviations over n seeds.
    """
    found = [spread(rows, arm, comparison.measure) for arm in (comparison.better, comparison.worse)]
    if any(one is None or one.count < len(SEEDS) for one in found):
        return NOT_RUN
    better, worse = found
    difference = (better.mean - worse.mean) * (-1 if lower_is_better(comparison.measure) else 1)
    error = 2 * math.sqrt(better.deviation**2 / better.count + worse.deviation**2 / worse.count)
    if difference - error > comparison.least:
        return REPRODUCED
    return CONTRADICTED if difference + error < min(comparison.least, 0) else OPEN


def verdict(claim: Claim, rows: list[Row]) -> str:
    """Reproduced if every comparison of the rule holds, contradicted if one is, and otherwise not at this scale."""
    found = [judge(comparison, rows) for comparison in claim.rule]
    for one in (NOT_RUN, CONTRADICTED, OPEN):
        if one in found:
            return one
    return REPRODUCED
