"""The page with all verdicts, and its pictures, written from the results."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import ROOT
from benchmarks.evidence.claim import (
    CONTRADICTED,
    NOT_RUN,
    OPEN,
    REPRODUCED,
    SEEDS,
    Claim,
    Row,
    judge,
    lower_is_better,
    spread,
    verdict,
)
from benchmarks.evidence.runner import stored_rows

PAGE = ROOT / "docs/evidence/index.md"
INTRODUCTION = """# Evidence

This page shows which claims of papers and lectures about these models you can reproduce on a small machine.
{tally}

```console
$ python -m benchmarks.evidence --list   # prints the claims and their verdicts
```

Each claim is tested by one small experiment. An experiment compares two or more *arms*: ways to train or use a model
that differ in one thing. Where something else had to change as well, such as the learning rate, the text says so. Each
arm is run with three seeds. The *rule* for the verdict names the comparisons that must hold; it was written before the
first run.

## Verdicts

* **reproduced**: every comparison of the rule holds. A comparison holds if the difference of the means, minus twice its
  standard error, exceeds the margin that the rule asks for (0 unless stated).
* **contradicted**: in at least one comparison, the other arm is better, by more than twice the standard error and by
  more than the rule allows.
* **not at this scale**: the claim is neither reproduced nor contradicted. With small models and three seeds, a small
  effect can go unnoticed.
* **not run yet**: the experiment is written, but has no results yet, or not for all three seeds.

The standard error of a difference is √(s₁²/3 + s₂²/3), where s₁ and s₂ are the standard deviations over three seeds.
Numbers are percentages, except for losses, which are in nats per predicted token.

Two limits apply to many of the experiments:

* The models are small, and the claims are about large models: a verdict says what happens here, and does not refute a
  paper.
* Each shipped preset was trained once. In experiments on shipped presets, the deviations therefore come only from the
  drawn examples and from what is trained on top of the preset.

{table}

## Run the experiments

The runs so far took {minutes:.0f} minutes on one or two CPU cores, including pauses, while other programs were running.
Some of the runs that pre-train models took {on_gpu:.0f} minutes on a GPU, which up to 28 runs shared.

```console
$ python -m benchmarks.evidence word_senses elmo_layers --data DATA --work WORK
$ python -m benchmarks.evidence --table
```

DATA contains a directory for each dataset, as for [fine-tuning results](../quality.md). To resume a stopped run, use
the same command again; results in `benchmarks/results/evidence_*.json` are not measured again. `--table` writes this
page from these results. Every claim is a record in
[`benchmarks/evidence/`](https://github.com/lmzoo/lmzoo/blob/main/benchmarks/evidence).
"""


def format_value(rows: list[Row], arm: str, measure: str) -> str:
    """Format the mean ± deviation of a measure, in percent unless it is a loss."""
    value = spread(rows, arm, measure)
    if value is None:
        return "–"
    factor, digits = (1, 3) if lower_is_better(measure) else (100, 1)
    mean = f"{factor * value.mean:.{digits}f}"
    return mean if value.count == 1 else f"{mean} ± {factor * value.deviation:.{digits}f}"


def list_measures(claim: Claim, rows: list[Row]) -> list[str]:
    """Return the names of the measures in the rule, followed by all other measures in `rows`."""
    rule_measures = dict.fromkeys(comparison.measure for comparison in claim.rule)
    return [
        *rule_measures,
        *(
            name
            for row in rows[:1]
            for name, value in row.items()
            if _is_other(name, value) and name not in rule_measures
        ),
    ]


def _is_other(name: str, value: object) -> bool:
    return isinstance(value, float) and name not in ("seconds", "load")


def tally(claims: Sequence[Claim]) -> str:
    """Return a sentence with the number of claims for each verdict."""
    verdicts = [verdict(claim, stored_rows(claim)) for claim in claims]
    counts = {judgment: verdicts.count(judgment) for judgment in (REPRODUCED, CONTRADICTED, OPEN, NOT_RUN)}
    return (
        f"Of the {len(claims)} claims, {counts[REPRODUCED]} are reproduced, {counts[CONTRADICTED]} are contradicted, "
        f"{counts[OPEN]} are neither reproduced nor contradicted at this scale, and {counts[NOT_RUN]} have not been "
        "tested yet."
    )


def summary(claims: Sequence[Claim]) -> str:
    """Return the table of all claims, with a line for each comparison of their rules."""
    lines = ["| claim | source | comparisons, mean ± deviation | verdict |", "|---|---|---|---|"]
    for claim in claims:
        rows = stored_rows(claim)
        cells = []
        for better, worse, measure, _ in claim.rule:
            if rows:
                values = [f"{arm} {format_value(rows, arm, measure)}" for arm in (better, worse)]
                cells.append(f"{measure}: {'; '.join(values)}")
            else:
                cells.append(f"{better}; {worse}")
        lines.append(
            f"| [{claim.says}](#{claim.name}) | [{claim.source}]({claim.url}) "
            f"| {'<br>'.join(dict.fromkeys(cells))} | {_mark_verdict(verdict(claim, rows))} |"
        )
    return "\n".join(lines)


def section(claim: Claim) -> str:
    """Return the section about a claim: method, rule, verdict, results and limits."""
    rows, text = stored_rows(claim), [f"## {claim.title} {{#{claim.name}}}"]
    text.append(f"> {claim.says} [{claim.source}]({claim.url})")
    text.append(f"**Method.** {_join_lines(claim.how)}")
    comparisons = [
        f"*{better}* is better than *{worse}*"
        + (f" by more than {_format_margin(measure, least)}" if least > 0 else "")
        + (f", or at most {_format_margin(measure, -least)} worse" if least < 0 else "")
        + f" ({measure}): {judge(comparison, rows)}"
        for comparison in claim.rule
        for better, worse, measure, least in [comparison]
    ]
    text.append(_format_rule(comparisons, verdict(claim, rows)))
    if rows:
        measures = list_measures(claim, rows)
        table = [f"| | {' | '.join(measures)} |", "|---" * (len(measures) + 1) + "|"]
        table += [f"| {arm} | {' | '.join(format_value(rows, arm, m) for m in measures)} |" for arm in claim.arms]
        text.append("\n".join(table))
        if verdict(claim, rows) != NOT_RUN:
            text.append(f"![Results of each arm: {', '.join(measures)}]({claim.name}.svg)")
        if claim.reading:
            text.append(f"**Findings.** {_join_lines(claim.reading)}")
        text.append(f"**Time.** {_describe_time(claim, rows)}")
    text.append(f"**Limits.** {_join_lines(claim.limits)}")
    return "\n\n".join(text)


def page(claims: Sequence[Claim]) -> str:
    """Return the whole page."""
    own_rows = [row for claim in claims for row in stored_rows(claim) if "from" not in row]
    minutes = {"minutes": _sum_minutes(own_rows, gpu=False), "on_gpu": _sum_minutes(own_rows, gpu=True)}
    tally_lines = "\n".join(textwrap.wrap(tally(claims), 120))
    parts = [INTRODUCTION.format(tally=tally_lines, table=summary(claims), **minutes).rstrip()]
    for claim in claims:
        common = f"## Common setting of the pre-training experiments {{#common}}\n\n{_join_lines(claim.common)}"
        parts += [common] * (bool(claim.common) and common not in parts) + [section(claim)]
    return "\n\n".join(parts) + "\n"


def write(claims: Sequence[Claim]) -> None:
    """Write the page, and a picture for each claim with results."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(claims), "utf-8")
    for claim in claims:
        if verdict(claim, stored_rows(claim)) != NOT_RUN:
            draw(claim, PAGE.with_name(f"{claim.name}.svg"))


def draw(claim: Claim, path: Path) -> None:
    """Draw a panel for each measure, with a dot for every run and a line at each mean."""
    import matplotlib as mpl
    from matplotlib.figure import Figure  # `pyplot` would start a graphical backend

    rows, arms = stored_rows(claim), list(claim.arms)
    measures = list_measures(claim, rows)
    with mpl.rc_context({"svg.hashsalt": claim.name, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(
            figsize=(3 + 2.2 * len(measures), 0.7 + 0.3 * len(arms)), layout="constrained", facecolor="white"
        )
        for panel, measure in zip(
            figure.subplots(1, len(measures), sharey=True, squeeze=False)[0], measures, strict=True
        ):
            factor = 1 if lower_is_better(measure) else 100
            for y, arm in enumerate(arms):
                values = [factor * row[measure] for row in rows if row["arm"] == arm and measure in row]
                panel.plot(values, [y] * len(values), "o", color="tab:blue", alpha=0.4, markersize=4)
                if values:
                    panel.plot(statistics.mean(values), y, "|", color="black", markersize=12)
            panel.set(
                xlabel=measure + (" (nats)" if factor == 1 else " (%)"), yticks=range(len(arms)), yticklabels=arms
            )
            panel.grid(axis="x", alpha=0.3)
            panel.set_ylim(len(arms) - 0.5, -0.5)
        figure.savefig(path, metadata={"Date": None})


def _format_rule(comparisons: list[str], judgment: str) -> str:
    """Return the rule and the verdict: a single comparison in a line with it, several as a list."""
    if len(comparisons) == 1:
        return f"**Rule.** {comparisons[0]}. **Verdict: {judgment}.**"
    items = "\n".join(f"* {comparison}" for comparison in comparisons)
    return f"**Rule.** All of these comparisons must hold:\n\n{items}\n\n**Verdict: {judgment}.**"


def _describe_time(claim: Claim, rows: list[Row]) -> str:
    """Return the numbers of runs and minutes by machine, such as "6 runs, 32 minutes on a CPU."."""
    own_rows = [row for row in rows if "from" not in row]
    on_gpu = [row for row in own_rows if "machine" in row]
    parts = []
    if on_gpu:
        minutes = _pluralize(_sum_minutes(own_rows, gpu=True), "minute")
        parts.append(f"{_pluralize(len(on_gpu), 'run')}, {minutes} on an {on_gpu[0]['machine']}")
    if on_cpu := len(own_rows) - len(on_gpu):
        minutes = _pluralize(_sum_minutes(own_rows, gpu=False), "minute")
        parts.append(f"{_pluralize(on_cpu, 'run')}, {minutes} on a CPU")
    if shared := len(rows) - len(own_rows):
        parts.append(f"{_pluralize(shared, 'run')} made for other claims")
    if missing := len(claim.arms) * len(SEEDS) - len(rows):
        parts.append(f"{_pluralize(missing, 'run')} missing")
    return "; ".join(parts) + "."


def _sum_minutes(rows: list[Row], gpu: bool) -> float:
    """Return the minutes of all runs on a GPU, or of all runs on a processor."""
    return sum(row["seconds"] for row in rows if ("machine" in row) == gpu) / 60


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _format_margin(measure: str, least: float) -> str:
    return f"{least:g} nats" if lower_is_better(measure) else _pluralize(100 * least, "point")


def _pluralize(number: float, noun: str) -> str:
    return f"{number:.0f} {noun}" + "s" * (round(number) != 1)


def _mark_verdict(judgment: str) -> str:
    return judgment if judgment == NOT_RUN else f"**{judgment}**"
