"""The model card of a pre-trained preset, with a plot of its training."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from lmzoo.pretraining.recipe import Recipe
from lmzoo.pretraining.run import Facts
from lmzoo.registry.head_kinds import task_name, task_that_reads
from lmzoo.tasks import Task
from lmzoo.training import FineTuningRecipe

_PICTURE = "loss.png"


def write_card(
    task: Task, folder: Path, name: str, recipe: Recipe, facts: Facts, metadata: Mapping[str, Any], log: Path
) -> None:
    """Write README.md and, if matplotlib is installed, a plot of the loss next to it.

    `facts` are the results of the training, `metadata` is that of the preset with its `description`, and `log` the
    run's log.csv.
    """
    scores = "\n".join(f"| {name.replace('_', ' ')} | {value:.4g} |" for name, value in facts["scores"].items())
    cores, devices = os.cpu_count(), ", ".join(keras.distribution.list_devices())
    settings = {
        "text": facts["text"],
        **{name: value for name, value in dataclasses.asdict(recipe).items() if name not in recipe.method.unused},
        **facts["fixed"],
        "steps": f"{facts['steps']:,}",
        "machine": f"{cores} CPU cores, {keras.backend.backend()} backend on {devices}",
        "time": f"{facts['seconds'] / 60:.0f} minutes of training in the last run",
    }
    table = "\n".join(
        f"| {name.replace('_', ' ')} | {value} |" for name, value in settings.items() if value is not None
    )
    picture = ""
    if importlib.util.find_spec("matplotlib") and _rows(log):
        plot_loss(log, folder / _PICTURE, facts["tokens"], name)
        picture = f"\n![Loss over tokens seen]({_PICTURE})\n"
    user = task_that_reads(task.head_kind) or type(task)
    languages = ", ".join(metadata.get("languages", ())) or "not stated"
    card = f"""# {name}

{metadata["description"]} {task.count_params():,} parameters.

```python
import lmzoo

model = lmzoo.models.{user.__name__}.from_preset("{name}")
```

where "{name}" is the path of this folder.

| held out: {facts["held_out"]} | |
|---|---|
{scores}
{_scores_of_texts(facts["of_texts"])}
| recipe | |
|---|---|
{table}
{picture}
## Fine-tuning recipes

{recipe_table(task.backbone.fine_tuning)}

These are the defaults of tasks that are built on this preset. They follow from the model's size; a search on your own
data may find better ones.

## License and limits

Language: {languages}. License of the weights: {metadata.get("license", "not stated")}.

The model repeats what is in its training text, including mistakes and prejudices. The scores say little about kinds of
text that were not in the held-out documents. Do not use the model for decisions about people.

Written by `lmzoo pretrain`.
"""
    (folder / "README.md").write_text(card, "utf-8")


def _scores_of_texts(texts: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table with a row for each text of a mixture; nothing for one text."""
    if not texts:
        return ""
    names = next(iter(texts.values()))
    lines = [
        f"| held out from | {' | '.join(name.replace('_', ' ') for name in names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    lines += [f"| {text} | {' | '.join(f'{scores[name]:.4g}' for name in names)} |" for text, scores in texts.items()]
    return "\n".join(["", *lines, ""])


def recipe_table(recipes: Mapping[str, FineTuningRecipe]) -> str:
    """Return a table of fine-tuning recipes, by kind of head, in Markdown."""
    lines = ["| task | peak learning rate | epochs | batch size | pooling |", "|---|---|---|---|---|"]
    for head, recipe in recipes.items():
        settings = (f"{recipe.learning_rate:g}", recipe.epochs, recipe.batch_size, recipe.pooling or "-")
        lines.append(f"| {' | '.join(map(str, (task_name(head), *settings)))} |")
    return "\n".join(lines)


def plot_loss(log: Path, target: Path, tokens: float, title: str) -> None:
    """Plot each loss of a run's log.csv; for a language model, the perplexity over a sample of words.

    The axis is that of the tokens seen, of which the whole training has `tokens`.
    """
    from matplotlib.figure import Figure  # optional; not `pyplot`, which would open a window's backend

    rows = [*{row["epoch"]: row for row in _rows(log)}.values()]  # a round that was stopped has several rows
    names = [name for name in rows[0] if name.endswith("_loss") and not name.startswith("val_")] or ["loss"]
    names, unit = (["perplexity"], None) if "perplexity" in rows[0] else (names, "loss (nats)")
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for name in names:
        seen = np.linspace(0, tokens / 1e6, len(rows) + 1)[1:]
        axes.plot(
            seen, [float(row[name]) for row in rows], label=name.replace("_", " "), marker="." if len(rows) < 10 else ""
        )
    axes.set(xlabel="tokens seen (millions)", ylabel=unit, title=title)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(target, dpi=110)


def _rows(log: Path) -> list[dict[str, str]]:
    with open(log, newline="") as file:
        return [row for row in csv.DictReader(file) if row["epoch"] != "epoch"]
