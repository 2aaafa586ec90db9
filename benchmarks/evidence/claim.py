"""Records of claims: source, experiment, and the rule for the verdict, which is written before any measurement."""

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

# Keys: "arm", "seed", the measures, "seconds", "load" (of the machine before the run), and "machine" on a GPU.
Row = dict[str, Any]


class Setting(NamedTuple):
    """Directories of the datasets and of intermediate results, and whether this is only a trial."""

    data: Path
    work: Path
    trial: bool = False

    def size(self, full: int, trial: int) -> int:
        """Return a number of examples, steps or tokens, depending on whether this is a trial."""
        return trial if self.trial else full


class Comparison(NamedTuple):
    """The statement that one arm beats another in a measure, by more than `least`.

    If `least` is negative, the arm may be worse by up to that amount.
    """

    better: str
    worse: str
    measure: str
    least: float = 0.0


@dataclass(frozen=True)
class Claim:
    """A claim and its experiment.

    Attributes:
        name: Name in result files and on the command line.
        title: Heading on the page.
        says: The claim, in a sentence.
        source: Paper, and table or figure.
        url: Address of the paper.
        arms: The variants to compare, by name, in the form that `run` takes. Equal arms of claims with the same `run`
            are run only once.
        run: Function of an arm, a seed and the setting that returns the measures by name.
        rule: The comparisons that must hold.
        how: Description of the experiment.
        limits: What the experiment does not show.
        reading: Interpretation of the numbers, written after the runs.
        common: Description that several claims share; the page shows it once, before the first of them.
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
    """Return whether a measure is a loss, rather than an accuracy."""
    return "loss" in measure


def spread(rows: list[Row], arm: str, measure: str) -> Spread | None:
    """Return the mean and deviation of a measure for an arm, or None if it has not been run."""
    values = [row[measure] for row in rows if row["arm"] == arm and measure in row]
    if not values:
        return None
    return Spread(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else math.nan, len(values))


def judge(comparison: Comparison, rows: list[Row]) -> str:
    """Judge a comparison by the difference d of the means and twice its standard error e.

    It holds if d - e is above `least`, and is contradicted if d + e is below both `least` and 0. The standard error is
    √(s₁²/n₁ + s₂²/n₂), where s is the standard deviation over n seeds.
    """
    spreads = [spread(rows, arm, comparison.measure) for arm in (comparison.better, comparison.worse)]
    if any(arm_spread is None or arm_spread.count < len(SEEDS) for arm_spread in spreads):
        return NOT_RUN
    better, worse = spreads
    difference = (better.mean - worse.mean) * (-1 if lower_is_better(comparison.measure) else 1)
    error = 2 * math.sqrt(better.deviation**2 / better.count + worse.deviation**2 / worse.count)
    if difference - error > comparison.least:
        return REPRODUCED
    return CONTRADICTED if difference + error < min(comparison.least, 0) else OPEN


def verdict(claim: Claim, rows: list[Row]) -> str:
    """Return the verdict on a claim: the worst judgment of a comparison in its rule."""
    judgments = [judge(comparison, rows) for comparison in claim.rule]
    for judgment in (NOT_RUN, CONTRADICTED, OPEN):
        if judgment in judgments:
            return judgment
    return REPRODUCED
