"""Distillation: what half of a model's layers know before and after training, with and without the teacher.

    python -m benchmarks.distillation --data DATA [--preset NAME] [--tokens N]

The students have every second layer of the teacher, or as many with random weights. They are trained on Wikipedia, on
equally many tokens: to predict masked tokens alone, or with the two further losses of Sanh et al. (2019),
https://arxiv.org/abs/1910.01108. The loss is that of the same masked tokens of held-out text for all; SST-2 is the
accuracy of a linear classifier on the mean vectors of the last layer. Runs are stored in `results/distillation.json`,
so that a stopped one continues.
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
LENGTH, TESTED = 128, 200_000  # tokens
# Measure, factor and digits of the table.
MEASURES = (("loss", 1, 3), ("SST-2", 100, 1), ("SST-2, 300", 100, 1))


@dataclasses.dataclass(frozen=True)
class Student:
    """How a student begins and learns; the teacher itself, if `begin` is None."""

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


def sequences(model: MaskedLM, data: Path, files: list[str], tokens: float) -> Any:
    """Return sequences of whole sentences, drawn from the text in some files, of about so many tokens."""
    found = pack_sentences(read_documents([str(data / name) for name in files]), model.preprocessor)
    count = round(tokens / float(found.lengths.mean()))
    return found.select(np.sort(np.random.default_rng(0).permutation(len(found))[:count]))


def student_of(teacher: MaskedLM, kind: Student) -> MaskedLM:
    """Return the model of an arm before its training."""
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
    student, seconds = student_of(teacher, kind), 0.0
    if kind.learn is not None:
        train = sequences(student, options.data, TRAIN, options.tokens)
        optimizer = AdamW(options.learning_rate, global_clipnorm=1.0)
        begun, how = time.perf_counter(), {"epochs": 1, "batch_size": options.batch_size, "verbose": 0}
        if kind.learn == "distilled":
            distill(student, teacher, train, optimizer=optimizer, seed=seed, **how)
        else:
            student.compile(optimizer)
            student.fit(train, seed=seed, **how)
        seconds = time.perf_counter() - begun
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "student"
        student.save_to_preset(path)
        tested = MaskedLM.from_preset(str(path), sequence_length=LENGTH, masking=Masking(dynamic=False))
        tested.compile()
        held_out = sequences(tested, options.data, HELD_OUT, TESTED)
        found = tested.evaluate(held_out, batch_size=options.batch_size, verbose=0, return_dict=True)
        return {
            "seed": seed,
            "loss": float(found["loss"]),
            **probe(path, options.data),
            "parameters": student.backbone.count_params(),
            "seconds": round(seconds, 1),
        }


def show(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Print the table."""

    def mean(found: list[dict[str, Any]], name: str, factor: int, digits: int) -> str:
        values = [factor * row[name] for row in found]
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.{digits}f}{spread}"

    table = Table("model", "parameters", "loss", "SST-2", "SST-2, 300 labels", "training, s")
    for name, found in rows.items():
        columns = [mean(found, measure, factor, digits) for measure, factor, digits in MEASURES]
        seconds = statistics.median(row["seconds"] for row in found)
        table.add_row(name, f"{found[0]['parameters']:,}", *columns, f"{seconds:.0f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="folder with a folder for each dataset")
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
            done, kind = rows.setdefault(name, []), STUDENTS[name]
            again = kind.learn is None and bool(done)  # no randomness in it
            if not again and all(row["seed"] != seed for row in done):
                console.rule(f"{name}, seed {seed}")
                done.append(measure(kind, seed, options))
                save("distillation", {**settings, "backend": keras.backend.backend()}, rows=rows)
    show(rows)


if __name__ == "__main__":
    main()
