"""Distillation: how good half of a model's layers are before and after training, with and without the teacher.

    python -m benchmarks.distillation --data DATA [--preset NAME] [--tokens N]

The students have every second layer of the teacher, or as many layers with random weights. All read equally many tokens
of Wikipedia, and learn to predict masked tokens, alone or with the two further losses of Sanh et al. (2019),
https://arxiv.org/abs/1910.01108. "loss" is measured on the same masked tokens of held-out text for all models; "SST-2"
is the accuracy of a linear classifier on the mean vectors of the last layer. Runs are stored in
`results/distillation.json`; a stopped run continues.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.table import Table

from benchmarks.common import RESULTS, SHARED, console, save
from benchmarks.pretraining_trials import probe
from lmzoo.data.corpora import pack_sentences, read_documents
from lmzoo.models import MaskedLM
from lmzoo.text import Masking
from lmzoo.training import AdamW, distill, smaller

TRAIN, HELD_OUT = (
    [f"pretrain_modern/{name}-{part}.txt.xz" for name in ("wikiculture", "wikipedia")] for part in ("train-00", "dev")
)
LENGTH = 128  # tokens in a sequence
HELD_OUT_TOKENS = 200_000
# Measure, factor and digits in the table.
MEASURES = (("loss", 1, 3), ("SST-2", 100, 1), ("SST-2, 300", 100, 1))


@dataclasses.dataclass(frozen=True)
class Student:
    """The initial weights of a student, and its training.

    Attributes:
        begin: "layers" for every second layer of the teacher, "random" for random weights, None for the teacher itself.
        learn: "masked" for masked tokens alone, "distilled" for the losses of distillation in addition, or None for no
            training.
    """

    begin: str | None
    learn: str | None = None


STUDENTS = {
    "teacher": Student(None),
    "every second layer, not trained": Student("layers"),
    "every second layer, masked tokens alone": Student("layers", "masked"),
    "every second layer, distilled": Student("layers", "distilled"),
    "random weights, masked tokens alone": Student("random", "masked"),
    "random weights, distilled": Student("random", "distilled"),
}


def sample_sequences(model: MaskedLM, data: Path, files: list[str], tokens: float) -> Any:
    """Return random sequences of whole sentences from some files, with about `tokens` tokens in total."""
    packed = pack_sentences(read_documents([str(data / name) for name in files]), model.preprocessor)
    count = round(tokens / float(packed.lengths.mean()))
    return packed.select(np.sort(np.random.default_rng(0).permutation(len(packed))[:count]))


def make_student(teacher: MaskedLM, kind: Student) -> MaskedLM:
    """Return a student with its initial weights, or the teacher itself if `kind.begin` is None."""
    if kind.begin is None:
        return teacher
    student = smaller(teacher)
    if kind.begin == "layers":
        return student
    fresh = type(student.backbone)(**student.backbone.get_config())
    return MaskedLM(fresh, student.preprocessor)


def measure(kind: Student, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train a student and evaluate it."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    teacher = MaskedLM.from_preset(options.preset, sequence_length=LENGTH)
    student, seconds = make_student(teacher, kind), 0.0
    if kind.learn is not None:
        train = sample_sequences(student, options.data, TRAIN, options.tokens)
        optimizer = AdamW(options.learning_rate, global_clipnorm=1.0)
        start = time.perf_counter()
        settings = {"epochs": 1, "batch_size": options.batch_size, "verbose": 0}
        if kind.learn == "distilled":
            distill(student, teacher, train, optimizer=optimizer, seed=seed, **settings)
        else:
            student.compile(optimizer)
            student.fit(train, seed=seed, **settings)
        seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "student"
        student.save_to_preset(path)
        model = MaskedLM.from_preset(str(path), sequence_length=LENGTH, masking=Masking(dynamic=False))
        model.compile()
        held_out = sample_sequences(model, options.data, HELD_OUT, HELD_OUT_TOKENS)
        scores = model.evaluate(held_out, batch_size=options.batch_size, verbose=0, return_dict=True)
        return {
            "seed": seed,
            "loss": float(scores["loss"]),
            **probe(path, options.data),
            "parameters": student.backbone.count_params(),
            "seconds": round(seconds, 1),
        }


def show(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Print the table."""

    def mean(runs: list[dict[str, Any]], name: str, factor: int, digits: int) -> str:
        values = [factor * row[name] for row in runs]
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.{digits}f}{spread}"

    table = Table("model", "parameters", "loss", "SST-2", "SST-2, 300 labels", "training, s")
    for name, runs in rows.items():
        columns = [mean(runs, measure, factor, digits) for measure, factor, digits in MEASURES]
        seconds = statistics.median(row["seconds"] for row in runs)
        table.add_row(name, f"{runs[0]['parameters']:,}", *columns, f"{seconds:.0f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="parent directory of the datasets")
    parser.add_argument("--preset", default="bert_nano_en_uncased", help="the teacher")
    parser.add_argument("--students", nargs="+", choices=STUDENTS, default=list(STUDENTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tokens", type=float, default=2e6, help="of the training, each seen once")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    options = parser.parse_args()
    path = RESULTS / "distillation.json"
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else {}
    settings = {name: getattr(options, name) for name in ("preset", "tokens", "batch_size", "learning_rate")}
    for seed in options.seeds:
        for name in options.students:
            finished = rows.setdefault(name, [])
            kind = STUDENTS[name]
            repeats = kind.learn is None and bool(finished)  # a student that is not trained does not depend on the seed
            if not repeats and all(row["seed"] != seed for row in finished):
                console.rule(f"{name}, seed {seed}")
                finished.append(measure(kind, seed, options))
                save("distillation", {**settings, "backend": keras.backend.backend()}, rows=rows)
    show(rows)


if __name__ == "__main__":
    main()
