"""The gain from adapting a preset to a domain, without labels, before it is fine-tuned on few labels.

    python -m benchmarks.adaptation --data DATA --work FOLDER [--preset NAME] [--tokens N]

The domain is films, as in SST-2. `bert_nano_en_uncased` continues its pre-training on text about films (articles and
chats), or on the task's training sentences without their labels (Gururangan et al., 2020,
<https://arxiv.org/abs/2004.10964>). Each result, and the preset itself, is then fine-tuned as in `quality`, with 100,
300 and 1,000 labeled sentences. The development set is used only for the scores. Results are stored in
`results/adaptation.json`; a stopped run continues.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import keras
from rich.table import Table

from benchmarks.common import RESULTS, SHARED, console, save
from benchmarks.quality import DATASETS, compare, select_best_rate, spread
from lmzoo.pretraining import Recipe, pretrain

SETS = ("sst2-100", "sst2-300", "sst2-1000")
LENGTH = 64  # tokens in a sequence: the sentences are short
RATE = 3e-4  # less than half of the default peak, so that the weights change but keep what they have learned


def list_film_files(data: Path, work: Path) -> list[str]:
    """Return patterns of files with articles about films, music and games, and with chats about films."""
    return [str(data / f"pretrain_modern/{name}-train-*") for name in ("wikiculture", "selfdialogues")]


def write_unlabeled_sentences(data: Path, work: Path) -> list[str]:
    """Write the training sentences of SST-2 without their labels, and return the path."""
    file = work / "sentences.txt"
    if not file.exists():
        (sentences, _), _ = DATASETS["sst2"].read(data)
        file.write_text("\n\n".join(sentences), "utf-8")
    return [str(file)]


TEXTS = {"films": list_film_files, "unlabeled": write_unlabeled_sentences}
TITLES = {"": "preset as it is", "films": "and text about films", "unlabeled": "and the sentences without labels"}


def main() -> None:
    """Do the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="parent directory of the datasets")
    parser.add_argument("--work", type=Path, required=True, help="directory for the adapted presets")
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--tokens", type=int, default=2_000_000, help="of the adaptation")
    parser.add_argument("--only", nargs="+", choices=SETS, default=SETS, metavar="SET")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "adaptation.json"
    stored = json.loads(path.read_text("utf-8")) if path.exists() else {"rows": {}, "pretrained": {}}
    rows, pretrained = stored["rows"], stored["pretrained"]
    quality_rows = json.loads((RESULTS / "quality.json").read_text("utf-8"))["rows"]
    settings = {"preset": options.preset, "tokens": options.tokens, "backend": keras.backend.backend()}

    def store() -> None:
        save("adaptation", settings, rows=rows, pretrained=pretrained)

    recipe = Recipe.from_preset(
        options.preset, tokens=options.tokens, sequence_length=LENGTH, positions=LENGTH, learning_rate=RATE
    )
    for name, texts in TEXTS.items():
        folder = options.work / name
        if not folder.exists():
            pretrained[name] = pretrain(texts(options.data, options.work), folder, recipe, say=console.print)
            store()
    for data_set in options.only:
        for name in TEXTS:
            own_rows: dict[str, list[dict]] = {f"{data_set} baseline": [{}]}
            key = f"{data_set} {options.work / name} pre-trained"
            own_rows[key] = rows.setdefault(f"{data_set} {name}", [])
            compare(data_set, [str(options.work / name)], options.data, own_rows, store, {"pre-trained": True})
    table = Table("weights", *(DATASETS[name].title for name in options.only))
    for name, title in TITLES.items():
        runs_by_dataset = [
            rows[f"{data_set} {name}"] if name else quality_rows.get(f"{data_set} {options.preset} pre-trained", [])
            for data_set in options.only
        ]
        table.add_row(title, *(spread(select_best_rate(runs), "accuracy") for runs in runs_by_dataset))
    console.print(table)


if __name__ == "__main__":
    main()
