"""Damaged files: a load gives the same numbers as before, or an error of lmzoo's that names the file.

A training run continues from the state before, with a warning that names the damaged one. Where nothing vouches for the
bytes (`ArtifactKind.vouched`), a load may give other numbers: docs/trust.md says where.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import keras
import pytest

from tests.faults.artifact_kinds import KINDS
from tests.faults.mutations import mutate
from tests.faults.watched_process import Outcome, WatchedProcess

SECONDS, MEGABYTES = 20, 120  # for files of kilobytes, on a busy machine
COUNT = 40  # mutations of each kind, 1,880 in all
# A damaged training goes on, which takes seconds; its states are also "state". lmzoo does not read the last two.
SLOW = {"saved model": 30, "training": 10, "onnx": 0, "litert": 0}
# Mutations of each kind in `make test`: one of each container, and what is read in no time.
SHORT = {
    "keras": 4, "preset": 4, "hf": 4, "bilm": 4, "state": 5, "corpus": 5, "safetensors": 5, "sharded safetensors": 5,
    "hdf5": 5, "torch": 5, "old torch": 5, "tensorflow": 5, "zip": 5, "tar.gz": 5, "word pieces": 4, "byte pairs": 4,
    "sentence pieces": 4, "arpa": 4, "arpa.gz": 4, "csv": 4, "csv.gz": 4, "jsonl": 4, "conll": 4, "squad": 4,
    "choices": 4, "documents": 4, "hf of two languages": 4, "sentence transformers": 9, "tf_model": 4,
    "sharded tf_model": 5, "word2vec": 4, "word2vec, binary": 5, "fasttext": 5, "word vectors": 4,
}  # fmt: skip


def problem(name: str, outcome: Outcome) -> str:
    """What is wrong with what became of a load; "" if nothing."""
    kind = KINDS[name]
    names = set(Path(kind.path).parts) | {Path(kind.path).stem}
    named = any(part in outcome.message for part in names)
    if outcome.ended == "done":
        falls_back = named and "A checkpoint is damaged, and the one before is used" in outcome.message
        return "" if outcome.value or not kind.vouched or falls_back else "other numbers"
    if outcome.ended != "error":
        return outcome.ended
    if not outcome.ours:
        return "a foreign exception"
    return "" if named else "an error that does not name the file"


@pytest.mark.slow_cases("bilm-4", "hf-4", "keras-4", "preset-4", "torch-5")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        *SHORT.items(),
        *(pytest.param(name, SLOW.get(name, COUNT), marks=pytest.mark.slow) for name in KINDS if SLOW.get(name, 1)),
    ],
)
def test_damaged_files(name: str, count: int, process: WatchedProcess) -> None:
    kind, folder = KINDS[name], process.folder / f"{name} {count} loads"
    if kind.needs not in ("", keras.backend.backend()):
        pytest.skip(f"needs {kind.needs}")
    (folder / "whole").mkdir(parents=True)
    assert process.ask("save", kind=name, folder=str(folder / "whole"), version=0).ended == "done"
    draw, found, problems, known = random.Random(f"{name} {count}"), Counter[str](), [], 0
    for _ in range(count):
        if known != process.number:
            outcome = process.ask("remember", kind=name, folder=str(folder / "whole"), version=0)
            assert outcome.ended == "done", outcome
            assert process.ask("load", kind=name, folder=str(folder / "whole")).value == [0]
            known = process.number
        shutil.rmtree(folder / "damaged", ignore_errors=True)
        shutil.copytree(folder / "whole", folder / "damaged")
        mutation = mutate(folder / "damaged" / kind.path, draw)
        outcome = process.ask("load", seconds=SECONDS, kind=name, folder=str(folder / "damaged"))
        found["error" if outcome.ended == "error" else "same" if outcome.value else "other numbers"] += 1
        wrong = problem(name, outcome)
        if not wrong and outcome.megabytes > MEGABYTES:
            wrong = f"{outcome.megabytes:.0f} MB"
        if wrong:
            problems.append(
                f"{wrong} after {mutation}: {outcome.error}: {outcome.message[:300]}\n{outcome.trace[-600:]}"
            )
    print(name, count, dict(found))
    assert not problems, "\n".join(problems)
    assert process.leftovers() == []
