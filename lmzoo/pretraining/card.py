"""Model cards of pre-trained presets, with a plot of the training loss."""

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
from lmzoo.registry.head_kinds import find_task_for_head, task_name
from lmzoo.tasks import Task
from lmzoo.training import FineTuningRecipe

_PLOT_FILE = "loss.png"


def write_card(
    task: Task, folder: Path, name: str, recipe: Recipe, facts: Facts, metadata: Mapping[str, Any], log: Path
) -> None:
    """Write a model card and, if matplotlib is installed and the log has rows, a plot of the loss or perplexity.

    Args:
        task: the pre-trained model.
        folder: folder of the preset.
        name: str, name of the preset.
        recipe: settings of the training.
        facts: results of the training.
        metadata: metadata of the preset, including `description`.
        log: path of the run's log.csv.
    """
    score_rows = "\n".join(f"| {name.replace('_', ' ')} | {value:.4g} |" for name, value in facts["scores"].items())
    num_cores = os.cpu_count()
    devices = ", ".join(keras.distribution.list_devices())
    settings = {
        "text": facts["text"],
        **{name: value for name, value in dataclasses.asdict(recipe).items() if name not in recipe.method.unused},
        **facts["fixed"],
        "steps": f"{facts['steps']:,}",
        "machine": f"{num_cores} CPU cores, {keras.backend.backend()} backend on {devices}",
        "time": f"{facts['seconds'] / 60:.0f} minutes of training in the last run",
    }
    recipe_rows = "\n".join(
        f"| {name.replace('_', ' ')} | {value} |" for name, value in settings.items() if value is not None
    )
    plot_markdown = ""
    if importlib.util.find_spec("matplotlib") and _read_log(log):
        plot_loss(log, folder / _PLOT_FILE, facts["tokens"], name)
        plot_markdown = f"\n![Loss over tokens seen]({_PLOT_FILE})\n"
    task_class = find_task_for_head(task.head_kind) or type(task)
    languages = ", ".join(metadata.get("languages", ())) or "not stated"
    card = f"""# {name}

{metadata["description"]} {task.count_params():,} parameters.

```python
import lmzoo

model = lmzoo.models.{task_class.__name__}.from_preset("{name}")
```

where "{name}" is the path of this folder.

| held out: {facts["held_out"]} | |
|---|---|
{score_rows}
{_format_text_scores(facts["of_texts"])}
| recipe | |
|---|---|
{recipe_rows}
{plot_markdown}
## Fine-tuning recipes

{make_recipe_table(task.backbone.fine_tuning)}

These are the defaults of tasks that are built on this preset. They follow from the model's size; a search on your own
data may find better ones.

## License and limits

Language: {languages}. License of the weights: {metadata.get("license", "not stated")}.

The model repeats what is in its training text, including mistakes and prejudices. The scores say little about kinds of
text that were not in the held-out documents. Do not use the model for decisions about people.

Written by `lmzoo pretrain`.
"""
    (folder / "README.md").write_text(card, "utf-8")


def _format_text_scores(scores_by_text: Mapping[str, Mapping[str, float]]) -> str:
    """Return a Markdown table with the scores on each text of a mixture, or "" for a single text."""
    if not scores_by_text:
        return ""
    metric_names = next(iter(scores_by_text.values()))
    lines = [
        f"| held out from | {' | '.join(name.replace('_', ' ') for name in metric_names)} |",
        "|---" * (len(metric_names) + 1) + "|",
    ]
    lines += [
        f"| {text} | {' | '.join(f'{scores[name]:.4g}' for name in metric_names)} |"
        for text, scores in scores_by_text.items()
    ]
    return "\n".join(["", *lines, ""])


def make_recipe_table(recipes: Mapping[str, FineTuningRecipe]) -> str:
    """Return a Markdown table of fine-tuning recipes, with one row per kind of head."""
    lines = ["| task | peak learning rate | epochs | batch size | pooling |", "|---|---|---|---|---|"]
    for head, recipe in recipes.items():
        settings = (f"{recipe.learning_rate:g}", recipe.epochs, recipe.batch_size, recipe.pooling or "-")
        lines.append(f"| {' | '.join(map(str, (task_name(head), *settings)))} |")
    return "\n".join(lines)


def plot_loss(log: Path, target: Path, tokens: float, title: str) -> None:
    """Plot a run's losses, or its perplexity on a sample of words, against the number of tokens seen.

    Args:
        log: path of the run's log.csv.
        target: path of the image to write.
        tokens: float, number of tokens in the whole training.
        title: str, title of the plot.
    """
    from matplotlib.figure import Figure  # optional; `pyplot` would initialize a GUI backend

    rows = [*{row["epoch"]: row for row in _read_log(log)}.values()]  # an interrupted epoch has several rows
    metric_names = [name for name in rows[0] if name.endswith("_loss") and not name.startswith("val_")] or ["loss"]
    metric_names, axis_label = (["perplexity"], None) if "perplexity" in rows[0] else (metric_names, "loss (nats)")
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for name in metric_names:
        tokens_seen = np.linspace(0, tokens / 1e6, len(rows) + 1)[1:]
        axes.plot(
            tokens_seen,
            [float(row[name]) for row in rows],
            label=name.replace("_", " "),
            marker="." if len(rows) < 10 else "",
        )
    axes.set(xlabel="tokens seen (millions)", ylabel=axis_label, title=title)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(target, dpi=110)


def _read_log(log: Path) -> list[dict[str, str]]:
    """Read the rows of a log.csv, without repeated headers."""
    with open(log, newline="") as file:
        return [row for row in csv.DictReader(file) if row["epoch"] != "epoch"]
