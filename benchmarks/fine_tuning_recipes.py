"""The fine-tuning recipes of presets: a search over learning rate, pooling and epochs for each kind of head.

    python -m benchmarks.fine_tuning_recipes --data DATA [--presets NAME ...] [--only sst2 wnut ...] [--write]

Up to 2,500 training examples of a dataset are trained on, and others of its training examples choose the settings; its
development set is not read. The search is greedy: all rates first, then the poolings, then the numbers of epochs, then
the rates next to the best one. Runs are stored in `results/fine_tuning_recipes.json`, so that a stopped search
continues; `--only` without a name starts none. For a kind of head without runs the best run of `quality` decides, or
else that of classifiers. `--write` puts the recipes into the presets (config.json, README.md and manifest.json); their
weights stay as they are.
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
from lmzoo.pretraining.card import recipe_table
from lmzoo.registry.family import families
from lmzoo.training import AdamW, FineTuningRecipe
from lmzoo.training.fine_tuning import recipes_to_json

TITLE = "## Fine-tuning recipes"
SAID = "The defaults of tasks that are built on this preset, as `python -m benchmarks.fine_tuning_recipes` found them."
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
PRESETS = ("bert_nano_en_uncased", "roberta_nano_en", "albert_nano_en_uncased", "elmo_nano_en")
Settings = dict[str, Any]  # of a run: learning_rate, epochs and, if the head pools, pooling


def read_texts(folder: Path) -> tuple[Examples, Examples]:
    """Return the sentences of SST-2, to fill in words; the labels are not used."""
    examples = read_table(folder / "sst2/stsa.binary.train", format="labeled", label="label", label_type=int)
    return examples, ([], [])


def minus_loss(task: Any, x: Any, y: Any) -> dict[str, float]:
    return {"minus loss": -task.evaluate(x, verbose=0, return_dict=True)["loss"]}


class Search(NamedTuple):
    """What is searched for a kind of head, and on which examples."""

    head: str
    dataset: Dataset
    training: int
    validation: int
    epochs: tuple[int, ...] = (3, 6)
    poolings: tuple[str, ...] = ()
    rates: tuple[float, ...] = RATES
    longer: tuple[str, ...] = ()  # the same dataset with more epochs, in `quality`
    again: bool = False  # whether the rates next to the best one are tried with the best pooling and epochs, too


BOTH = ("mean", "first")
MASKED = Dataset("SST-2, filling in words", "MaskedLM", read_texts, minus_loss, lambda train, dev: ("", {}))
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
    """Return settings with the score that they lead to on the validation examples; None if the training diverged."""
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


def find(search: Search, done: list[Settings], once: Callable[[Settings], None]) -> Settings:
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
            if not any(settings.items() <= row.items() for row in done):
                once(settings)
        best = max([best, *tried], key=lambda settings: score_of(settings, done))
    return best


def score_of(settings: Settings, done: list[Settings]) -> float:
    found = next((row["score"] for row in done if settings.items() <= row.items()), None)
    return -math.inf if found is None else found


def search_all(
    names: list[str], presets: list[str], folder: Path, rates: Sequence[float]
) -> dict[str, dict[str, list[Settings]]]:
    """Do the missing runs, and return the runs by dataset and preset."""
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
            done = rows.setdefault(name, {}).setdefault(preset, [])
            # ELMo always has the mean.
            reduced = search._replace(poolings=()) if "elmo" in preset else search

            def once(settings: Settings) -> None:
                done.append(run(preset, reduced, train, validation, settings))  # noqa: B023 - called at once
                console.print(name, preset, done[-1])  # noqa: B023
                save("fine_tuning_recipes", {"backend": keras.backend.backend()}, rows=rows)

            find(reduced, done, once)
    return rows


def markdown(rows: dict[str, dict[str, list[Settings]]]) -> str:
    """Return the scores of all runs; the best of each search is bold."""
    names = ["dataset", "preset", "epochs", "pooling", *(f"{rate:g}" for rate in RATES)]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for name, presets in rows.items():
        for preset, done in presets.items():
            best = max(score_of(row, done) for row in done)
            for epochs, pooling in dict.fromkeys((row["epochs"], row.get("pooling")) for row in done):
                part = {"epochs": epochs} | ({"pooling": pooling} if pooling else {})
                scores = [score_of({**part, "learning_rate": rate}, done) for rate in RATES]
                cells = [f"{score:.3f}" if math.isfinite(score) else "" for score in scores]
                cells = [f"**{cell}**" if score == best else cell for cell, score in zip(cells, scores, strict=True)]
                lines.append(f"| {' | '.join([name, preset, str(epochs), pooling or '-', *cells])} |")
    return "\n".join(lines)


def recipes_of(preset: str, rows: dict[str, dict[str, list[Settings]]]) -> dict[str, FineTuningRecipe]:
    """Return the best settings for each kind of head that the preset's family supports."""
    family = families()[lmzoo.list_presets()[preset].family]
    found = {}
    for name, search in SEARCHES.items():
        if getattr(lmzoo.models, search.dataset.task).supports(family):
            done = rows.get(name, {}).get(preset)
            recipe = (
                best_of(done) if done else measured(preset, (name, *search.longer)) or best_of(rows["sst2"][preset])
            )
            pooling = (recipe.pooling or "mean") if search.poolings else None  # ELMo always has the mean
            found[search.head] = replace(recipe, pooling=pooling)
    return found


def best_of(done: list[Settings]) -> FineTuningRecipe:
    best = max(done, key=lambda row: score_of(row, done))
    return FineTuningRecipe(best["learning_rate"], best["epochs"], pooling=best.get("pooling"))


def measured(preset: str, names: tuple[str, ...]) -> FineTuningRecipe | None:
    """Return what was best on the validation examples of `quality`, which tries two rates for each dataset."""
    rows = json.loads((RESULTS / "quality.json").read_text("utf-8"))["rows"]
    runs = [
        (row["validation"], FineTuningRecipe(row["rate"], DATASETS[name].epochs, DATASETS[name].batch_size))
        for name in names
        for row in rows.get(f"{name} {preset} pre-trained", [])
        if row["seed"] == SEEDS[0]
    ]
    return max(runs, key=lambda run: run[0])[1] if runs else None


def write(preset: str, recipes: dict[str, FineTuningRecipe]) -> None:
    """Put recipes into a shipped preset: its configuration, its card, its manifest."""
    folder = open_preset(preset)
    config = read_json(folder, CONFIG_FILE)
    config["config"]["fine_tuning"] = recipes_to_json(recipes)
    write_json(folder, CONFIG_FILE, config)
    card = folder / "README.md"
    before, heading, after = re.split(r"^(## Licen[cs]e and limits)$", card.read_text("utf-8"), flags=re.MULTILINE)
    before = before.partition(TITLE)[0]
    text = (
        f"{TITLE}\n\nThese are the defaults of tasks that are built on this preset. "
        "`python -m benchmarks.fine_tuning_recipes` found those of\nTextClassifier and TokenClassifier, "
        f"and the others are those of `python -m benchmarks.quality`.\n\n{recipe_table(recipes)}\n\n"
    )
    card.write_text(f"{before}{text}{heading}{after}", "utf-8")
    write_manifest(folder)


def main() -> None:
    """Do the missing runs, print the table, and write the recipes if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="folder with a folder for each dataset")
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    parser.add_argument("--only", nargs="*", choices=SEARCHES, default=list(SEARCHES), metavar="SET")
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="only these learning rates")
    parser.add_argument("--write", action="store_true", help="put the recipes into the presets")
    args = parser.parse_args()
    rows = search_all(args.only, args.presets, args.data, args.rates)
    console.print(markdown(rows), highlight=False)
    for preset in args.presets:
        recipes = recipes_of(preset, rows)
        console.print(f"\n{preset}\n{recipe_table(recipes)}", highlight=False)
        if args.write:
            write(preset, recipes)


if __name__ == "__main__":
    main()
