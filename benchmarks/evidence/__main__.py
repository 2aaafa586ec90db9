"""Test claims of papers and lectures, and write the page with the verdicts.

    python -m benchmarks.evidence [CLAIM ...] --data DATA --work WORK   do the missing runs, by default of all claims
    python -m benchmarks.evidence --list                                print the claims and their verdicts
    python -m benchmarks.evidence --table                               write docs/evidence from the results

Finished runs are stored in `results/evidence_<claim>.json`; a stopped command continues. `--trial` shows within minutes
that an experiment works, with tiny sizes and results in WORK.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import common
from benchmarks.evidence import page
from benchmarks.evidence.claim import SEEDS, Setting, verdict
from benchmarks.evidence.claims import CLAIMS
from benchmarks.evidence.runner import run_missing, stored_rows


def main() -> None:
    names = {claim.name: claim for claim in CLAIMS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help=f"which of {', '.join(names)}")
    parser.add_argument("--data", type=Path, default=common.SHARED / "data", help="parent directory of the datasets")
    parser.add_argument("--work", type=Path, default=common.ROOT / "runs/evidence", help="directory for trained models")
    parser.add_argument("--trial", action="store_true", help="tiny sizes, results in the work directory")
    parser.add_argument("--list", action="store_true", help="list the claims, and run nothing")
    parser.add_argument("--table", action="store_true", help="write the page from the results, and run nothing")
    args = parser.parse_args()
    if unknown := set(args.claims) - set(names):
        parser.error(f"unknown claim {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
    chosen = [names[name] for name in args.claims or names]
    if args.trial:
        common.RESULTS = args.work / "trial"
        args.work = args.work / "trial_models"
    if args.list:
        for claim in chosen:
            rows = stored_rows(claim)
            runs = f"{len(rows)} of {len(claim.arms) * len(SEEDS)} runs"
            common.console.print(
                f"{claim.name}: {claim.says} {claim.source}; {runs}: {verdict(claim, rows)}", highlight=False
            )
        return
    if not args.table:
        common.RESULTS.mkdir(parents=True, exist_ok=True)
        common.warn_if_busy()
        run_missing(chosen, CLAIMS, Setting(args.data, args.work, args.trial))
    if args.table:
        page.write(CLAIMS)


if __name__ == "__main__":
    main()
