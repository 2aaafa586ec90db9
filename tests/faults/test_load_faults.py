"""Damaged files: a load returns the original content, or raises an error of lmzoo's that names the file.

A training run continues from the previous state, with a warning that names the damaged one. Kinds without a checksum
(`ArtifactKind.vouched` is False) may load with other content: docs/trust.md lists them.
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

MAX_SECONDS = 20  # for files of kilobytes, on a busy machine
MAX_MEGABYTES = 120
COUNT = 40  # mutations of each kind, 1,880 in all
# A damaged training run continues, which takes seconds; its states are also "state". lmzoo does not read the last two.
SLOW = {"saved model": 30, "training": 10, "onnx": 0, "litert": 0}
# Mutations of each kind in `make test`: one kind for each container format, and kinds that load quickly.
SHORT = {
    "state": 5, "corpus": 5, "safetensors": 5, "sharded safetensors": 5,
    "hdf5": 5, "old torch": 5, "tensorflow": 5, "zip": 5, "tar.gz": 5, "word pieces": 4, "byte pairs": 4,
    "sentence pieces": 4, "arpa": 4, "arpa.gz": 4, "csv": 4, "csv.gz": 4, "jsonl": 4, "conll": 4, "squad": 4,
    "choices": 4, "documents": 4, "hf of two languages": 4, "sentence transformers": 9, "tf_model": 4,
    "sharded tf_model": 5, "word2vec": 4, "word2vec, binary": 5, "fasttext": 5, "word vectors": 4,
}  # fmt: skip


def find_problem(name: str, outcome: Outcome) -> str:
    """Return what is wrong with the outcome of a load, or "" if nothing is."""
    kind = KINDS[name]
    file_names = set(Path(kind.path).parts) | {Path(kind.path).stem}
    names_file = any(name in outcome.message for name in file_names)
    if outcome.ended == "done":
        falls_back = names_file and "A checkpoint is damaged, and the one before is used" in outcome.message
        return "" if outcome.value or not kind.vouched or falls_back else "other numbers"
    if outcome.ended != "error":
        return outcome.ended
    if not outcome.ours:
        return "a foreign exception"
    return "" if names_file else "an error that does not name the file"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *SHORT.items(),
        *(pytest.param(name, SLOW.get(name, COUNT), marks=pytest.mark.slow) for name in KINDS if SLOW.get(name, 1)),
    ],
)
def test_a_damaged_file_loads_unchanged_or_is_named_in_the_error(
    name: str, count: int, process: WatchedProcess
) -> None:
    kind, folder = KINDS[name], process.folder / f"{name} {count} loads"
    if kind.needs not in ("", keras.backend.backend()):
        pytest.skip(f"needs {kind.needs}")
    (folder / "whole").mkdir(parents=True)
    assert process.ask("save", kind=name, folder=str(folder / "whole"), version=0).ended == "done"
    draw = random.Random(f"{name} {count}")
    endings = Counter[str]()
    problems = []
    prepared_process = 0  # number of the process that has loaded the original
    for _ in range(count):
        if prepared_process != process.number:
            outcome = process.ask("remember", kind=name, folder=str(folder / "whole"), version=0)
            assert outcome.ended == "done", outcome
            assert process.ask("load", kind=name, folder=str(folder / "whole")).value == [0]
            prepared_process = process.number
        shutil.rmtree(folder / "damaged", ignore_errors=True)
        shutil.copytree(folder / "whole", folder / "damaged")
        mutation = mutate(folder / "damaged" / kind.path, draw)
        outcome = process.ask("load", seconds=MAX_SECONDS, kind=name, folder=str(folder / "damaged"))
        endings["error" if outcome.ended == "error" else "same" if outcome.value else "other numbers"] += 1
        problem = find_problem(name, outcome)
        if not problem and outcome.megabytes > MAX_MEGABYTES:
            problem = f"{outcome.megabytes:.0f} MB"
        if problem:
            problems.append(
                f"{problem} after {mutation}: {outcome.error}: {outcome.message[:300]}\n{outcome.trace[-600:]}"
            )
    print(name, count, dict(endings))
    assert not problems, "\n".join(problems)
    assert process.leftovers() == []
