"""Search for the fine-tuning recipes of presets: learning rate, pooling and epochs for each kind of head.

    python -m benchmarks.fine_tuning_recipes --data DATA [--presets NAME ...] [--only sst2 wnut ...] [--write]

Runs train on up to 2,500 training examples of a dataset, and other training examples choose the settings; the
development set is not read. The search is greedy: all rates first, then the poolings, then the numbers of epochs, then
the rates next to the best one. Runs are stored in `results/fine_tuning_recipes.json`, so that a stopped search
continues; `--only` without a name starts no runs. A kind of head without runs takes the best settings in `quality`, or
else the settings of classifiers. `--write` stores the recipes in the presets (config.json, README.md and manifest.json)
and leaves their weights alone.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

import lmzoo
from benchmarks.common import RESULTS, SHARED, console, save
from benchmarks.quality import DATASETS, SEEDS, Dataset, Examples, take
from lmzoo.data.readers import read_table
from lmzoo.errors import NotFiniteError
from lmzoo.files.manifest import write_manifest
from lmzoo.files.preset_files import CONFIG_FILE, read_json, write_json
from lmzoo.presets.catalog import open_preset
from lmzoo.pretraining.card import make_recipe_table
from lmzoo.registry.family import families
from lmzoo.training import AdamW, FineTuningRecipe
from lmzoo.training.fine_tuning import recipes_to_json

TITLE = "## Fine-tuning recipes"
SAID = "The defaults of tasks that are built on this preset, as `python -m benchmarks.fine_tuning_recipes` found them."
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
PRESETS = ("bert_nano_en_uncased", "roberta_nano_en", "albert_nano_en_uncased", "elmo_nano_en")
Settings = dict[str, Any]  # a run's learning_rate, epochs and, if the head pools, pooling


def read_texts(folder: Path) -> tuple[Examples, Examples]:
    """Return the sentences of SST-2 for masked-token prediction, without labels."""
    examples = read_table(folder / "sst2/stsa.binary.train", format="labeled", label="label", label_type=int)
    return examples, ([], [])


def compute_minus_loss(task: Any, x: Any, y: Any) -> dict[str, float]:
    return {"minus loss": -task.evaluate(x, verbose=0, return_dict=True)["loss"]}


class Search(NamedTuple):
    """Settings to search for a kind of head, and the examples to use."""

    head: str
    dataset: Dataset
    training: int
    validation: int
    epochs: tuple[int, ...] = (3, 6)
    poolings: tuple[str, ...] = ()
    rates: tuple[float, ...] = RATES
    longer: tuple[str, ...] = ()  # the same dataset with more epochs, in `quality`
    again: bool = False  # whether to try the rates next to the best one again, with the best pooling and epochs


BOTH = ("mean", "first")
MASKED = Dataset("SST-2, filling in words", "MaskedLM", read_texts, compute_minus_loss, lambda train, dev: ("", {}))
SEARCHES = {
    "sst2": Search("classification", DATASETS["sst2"], 2500, 1500, poolings=BOTH, again=True),
    "wnut": Search(
        "token_classification", DATASETS["wnut"], 1200, 1000, (12, 24), rates=RATES[1:], longer=("wnut-long",)
    ),
    "stsb-vectors": Search("embedding", DATASETS["stsb-vectors"], 1000, 1000, rates=RATES[1:]),
    "stsb": Search("regression", DATASETS["stsb"], 1000, 1000, poolings=BOTH, rates=RATES[1:]),
    "squad": Search("question_answering", DATASETS["squad"], 350, 250, rates=RATES[1:]),
    "masked": Search("masked_lm", MASKED, 1000, 1000, (3,), rates=RATES[1:]),
    "cosmos": Search("multiple_choice", DATASETS["cosmos"], 250, 250, (3,), ("mean",), RATES[1:]),
}


def run(preset: str, search: Search, train: Examples, validation: Examples, settings: Settings) -> Settings:
    """Return settings with their score on the validation examples, which is None if the training diverged."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    arguments = {name: value for name, value in search.dataset.arguments.items() if name != "pooling"}
    if search.head == "token_classification":
        arguments["labels"] = sorted({tag for _, y in (train, validation) for tags in y for tag in tags})
    if search.poolings:
        arguments["pooling"] = settings["pooling"]
    task = getattr(lmzoo.models, search.dataset.task).from_preset(preset, **arguments)
    task.compile(AdamW(settings["learning_rate"], global_clipnorm=1.0))
    start = time.process_time()
    x, y = train
    try:
        task.fit(x, None if search.head == "masked_lm" else y, epochs=settings["epochs"], verbose=0)
        score = next(iter(search.dataset.score(task, *validation).values()))
    except NotFiniteError:
        score = math.nan
    return {**settings, "score": score if math.isfinite(score) else None, "seconds": time.process_time() - start}


def find_best_settings(search: Search, runs: list[Settings], run_once: Callable[[Settings], None]) -> Settings:
    """Do the missing runs of a search, and return the best settings."""
    best: Settings = {"learning_rate": search.rates[0], "epochs": search.epochs[0]}
    if search.poolings:
        best["pooling"] = search.poolings[0]
    rounds = {"learning_rate": search.rates, "pooling": search.poolings, "epochs": search.epochs}
    for name, values in [*rounds.items(), *([("again", ())] if search.again else [])]:
        if name == "again":
            i = search.rates.index(best["learning_rate"])
            name, values = "learning_rate", search.rates[max(0, i - 1) : i + 2]
        tried = [{**best, name: value} for value in values]
        for settings in tried:
            if not any(settings.items() <= row.items() for row in runs):
                run_once(settings)
        best = max([best, *tried], key=lambda settings: get_score(settings, runs))
    return best


def get_score(settings: Settings, runs: list[Settings]) -> float:
    score = next((row["score"] for row in runs if settings.items() <= row.items()), None)
    return -math.inf if score is None else score


def search_all(
    names: list[str], presets: list[str], folder: Path, rates: Sequence[float]
) -> dict[str, dict[str, list[Settings]]]:
    """Do the missing runs of all searches, and return all runs by dataset and preset."""
    path = RESULTS / "fine_tuning_recipes.json"
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else {}
    for name in names:
        search = SEARCHES[name]
        search = search._replace(rates=tuple(rate for rate in search.rates if rate in rates))
        examples, _ = search.dataset.read(folder)
        order = np.random.default_rng(1).permutation(len(examples[1]))
        parts = order[: search.training], order[search.training :][: search.validation]
        train, validation = (take(examples, np.sort(part)) for part in parts)
        for preset in presets:
            if search.head == "masked_lm" and "elmo" in preset:
                continue
            runs = rows.setdefault(name, {}).setdefault(preset, [])
            # ELMo always has the mean.
            reduced = search._replace(poolings=()) if "elmo" in preset else search

            def once(settings: Settings) -> None:
                runs.append(run(preset, reduced, train, validation, settings))  # noqa: B023 - called at once
                console.print(name, preset, runs[-1])  # noqa: B023
                save("fine_tuning_recipes", {"backend": keras.backend.backend()}, rows=rows)

            find_best_settings(reduced, runs, once)
    return rows


def make_table(rows: dict[str, dict[str, list[Settings]]]) -> str:
    """Return a table of all scores, with the best of each search in bold."""
    names = ["dataset", "preset", "epochs", "pooling", *(f"{rate:g}" for rate in RATES)]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for name, presets in rows.items():
        for preset, runs in presets.items():
            best = max(get_score(row, runs) for row in runs)
            for epochs, pooling in dict.fromkeys((row["epochs"], row.get("pooling")) for row in runs):
                part = {"epochs": epochs} | ({"pooling": pooling} if pooling else {})
                scores = [get_score({**part, "learning_rate": rate}, runs) for rate in RATES]
                cells = [f"{score:.3f}" if math.isfinite(score) else "" for score in scores]
                cells = [f"**{cell}**" if score == best else cell for cell, score in zip(cells, scores, strict=True)]
                lines.append(f"| {' | '.join([name, preset, str(epochs), pooling or '-', *cells])} |")
    return "\n".join(lines)


def choose_recipes(preset: str, rows: dict[str, dict[str, list[Settings]]]) -> dict[str, FineTuningRecipe]:
    """Return the best settings for each kind of head that the preset's family supports."""
    family = families()[lmzoo.list_presets()[preset].family]
    recipes = {}
    for name, search in SEARCHES.items():
        if getattr(lmzoo.models, search.dataset.task).supports(family):
            runs = rows.get(name, {}).get(preset)
            recipe = (
                choose_best(runs)
                if runs
                else find_quality_settings(preset, (name, *search.longer)) or choose_best(rows["sst2"][preset])
            )
            pooling = (recipe.pooling or "mean") if search.poolings else None  # ELMo always has the mean
            recipes[search.head] = replace(recipe, pooling=pooling)
    return recipes


def choose_best(runs: list[Settings]) -> FineTuningRecipe:
    best = max(runs, key=lambda row: get_score(row, runs))
    return FineTuningRecipe(best["learning_rate"], best["epochs"], pooling=best.get("pooling"))


def find_quality_settings(preset: str, names: tuple[str, ...]) -> FineTuningRecipe | None:
    """Return the best settings in `quality` on its validation examples, or None if it has no runs of the preset."""
    rows = json.loads((RESULTS / "quality.json").read_text("utf-8"))["rows"]
    runs = [
        (row["validation"], FineTuningRecipe(row["rate"], DATASETS[name].epochs, DATASETS[name].batch_size))
        for name in names
        for row in rows.get(f"{name} {preset} pre-trained", [])
        if row["seed"] == SEEDS[0]
    ]
    return max(runs, key=lambda run: run[0])[1] if runs else None


def write(preset: str, recipes: dict[str, FineTuningRecipe]) -> None:
    """Store recipes in a shipped preset: in its configuration, card and manifest."""
    folder = open_preset(preset)
    config = read_json(folder, CONFIG_FILE)
    config["config"]["fine_tuning"] = recipes_to_json(recipes)
    write_json(folder, CONFIG_FILE, config)
    card = folder / "README.md"
    before, heading, after = re.split(r"^(## Licen[cs]e and limits)$", card.read_text("utf-8"), flags=re.MULTILINE)
    before = before.partition(TITLE)[0]
    text = (
        f"{TITLE}\n\nThese are the defaults of tasks that are built on this preset. "
        "`python -m benchmarks.fine_tuning_recipes`\nfound the recipes of TextClassifier and TokenClassifier; "
        f"the other recipes come from\n`python -m benchmarks.quality`.\n\n{make_recipe_table(recipes)}\n\n"
    )
    card.write_text(f"{before}{text}{heading}{after}", "utf-8")
    write_manifest(folder)


def main() -> None:
    """Do the missing runs, print the table, and with `--write` store the recipes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="parent directory of the datasets")
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    parser.add_argument("--only", nargs="*", choices=SEARCHES, default=list(SEARCHES), metavar="SET")
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="only these learning rates")
    parser.add_argument("--write", action="store_true", help="put the recipes into the presets")
    args = parser.parse_args()
    rows = search_all(args.only, args.presets, args.data, args.rates)
    console.print(make_table(rows), highlight=False)
    for preset in args.presets:
        recipes = choose_recipes(preset, rows)
        console.print(f"\n{preset}\n{make_recipe_table(recipes)}", highlight=False)
        if args.write:
            write(preset, recipes)


if __name__ == "__main__":
    main()
