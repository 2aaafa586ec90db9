"""Missing runs of claims: each finished run becomes a row of `results/evidence_<claim>.json`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from typing import Any

import keras
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import common
from benchmarks.evidence.claim import SEEDS, Claim, Row, Setting


def stored_rows(claim: Claim) -> list[Row]:
    """Return the finished runs of a claim."""
    file = common.RESULTS / f"evidence_{claim.name}.json"
    return json.loads(file.read_text("utf-8"))["rows"] if file.exists() else []


def run_missing(claims: Iterable[Claim], all_claims: Iterable[Claim], setting: Setting) -> None:
    """Run the missing arms of claims, seed by seed; a trial only uses the first seed.

    Equal runs of the claims in `all_claims` are copied instead.
    """
    claims, all_claims, seeds = list(claims), list(all_claims), SEEDS[:1] if setting.trial else SEEDS
    columns = (TextColumn("{task.description:<50}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=common.console, transient=True) as progress:
        bar = progress.add_task("evidence", total=sum(len(claim.arms) for claim in claims) * len(seeds))
        for claim in claims:
            rows = stored_rows(claim)
            for seed in seeds:
                for arm, changes in claim.arms.items():
                    progress.update(bar, description=f"{claim.name}: {arm}, seed {seed}")
                    if not any((row["arm"], row["seed"]) == (arm, seed) for row in rows):
                        rows.append(
                            {
                                "arm": arm,
                                **(
                                    _find_equal_run(claim, changes, seed, all_claims)
                                    or _run(claim, changes, seed, setting)
                                ),
                            }
                        )
                        common.save(
                            f"evidence_{claim.name}",
                            {"backend": keras.backend.backend(), "trial": setting.trial},
                            rows=rows,
                        )
                    progress.advance(bar)


def _run(claim: Claim, changes: Any, seed: int, setting: Setting) -> Row:
    load, start = os.getloadavg()[0], time.perf_counter()
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    measured = claim.run(changes, seed, setting)
    return {"seed": seed, **measured, "seconds": round(time.perf_counter() - start, 1), "load": round(load, 1)}


def _find_equal_run(claim: Claim, changes: Any, seed: int, all_claims: list[Claim]) -> Row | None:
    """Return the row of an equal run of another claim, without the arm's name, or None if there is none."""
    for claim_with_run in all_claims:
        if claim_with_run is claim or claim_with_run.run is not claim.run:
            continue
        names = [name for name, arm_changes in claim_with_run.arms.items() if arm_changes == changes]
        for row in stored_rows(claim_with_run):
            if row["arm"] in names and row["seed"] == seed:
                return {key: value for key, value in row.items() if key != "arm"} | {"from": claim_with_run.name}
    return None
