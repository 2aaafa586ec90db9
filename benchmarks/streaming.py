"""Training on more text than fits into memory: peak memory, and the speed of reading.

The script writes files of random words from the preset's vocabulary into a temporary directory, reads all of them,
trains for some steps with `lmzoo.data.readers.TableStream`, and resumes the run. The peak memory of the process is
measured separately for each part.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.common import console, save, warn_if_busy

_CHUNK = 1000  # number of texts that are generated at once


def write(folder: Path, vocabulary: list[str], gigabytes: float, files: int, words: int) -> int:
    """Write JSON lines of random words with labels, and return the number of rows."""
    rng = np.random.default_rng(0)
    num_rows = 0
    for number in range(files):
        with (folder / f"{number:03d}.jsonl").open("w") as file:
            while file.tell() < gigabytes * 1e9 / files:
                lengths = rng.integers(words // 4, words * 7 // 4, _CHUNK)
                word_indices = iter(rng.integers(0, len(vocabulary), lengths.sum()).tolist())
                for length in lengths.tolist():
                    text = " ".join(vocabulary[next(word_indices)] for _ in range(length))
                    file.write(json.dumps({"text": text, "label": num_rows % 2}) + "\n")
                    num_rows += 1
    return num_rows


def reset_peak_memory() -> None:
    """Reset the peak of the memory."""
    descriptor = os.open("/proc/self/clear_refs", os.O_WRONLY)
    os.write(descriptor, b"5")
    os.close(descriptor)


def read_memory(name: str) -> float:
    """Return the memory of the process in MB: "VmRSS" is the current value, "VmHWM" the peak."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=5)
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--words", type=int, default=150, help="of a text, on average")
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--shuffle-buffer", type=int, default=10_000)
    parser.add_argument("--name", default="streaming", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()

    from lmzoo.data import ExampleStream
    from lmzoo.data import stream as stream_examples
    from lmzoo.data.readers import TableStream
    from lmzoo.models import TextClassifier
    from lmzoo.tasks.base.examples import BatchOptions
    from lmzoo.tasks.inputs import read_inputs
    from lmzoo.training import ResumableCheckpoint

    table = Table("what", "seconds", "MB/s", "memory before, MB", "peak, MB", "growth, MB")
    rows: list[dict[str, Any]] = []

    def measure(label: str, call: Callable[[], Any], size: float = 0) -> Any:
        reset_peak_memory()
        before, start = read_memory("VmRSS"), time.perf_counter()
        result = call()
        seconds, peak = time.perf_counter() - start, read_memory("VmHWM")
        rows.append({"what": label, "seconds": seconds, "megabytes": size, "before": before, "peak": peak})
        rate = f"{size / seconds:,.0f}" if size else ""
        table.add_row(label, f"{seconds:.1f}", rate, f"{before:,.0f}", f"{peak:,.0f}", f"{peak - before:,.0f}")
        console.print(f"{label}: {seconds:.1f} s, peak {peak:,.0f} MB")
        return result

    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name, "text"), Path(name, "run")
        folder.mkdir()
        model = TextClassifier.from_preset(options["preset"], num_classes=2)
        model.preprocessor.sequence_length = options["sequence_length"]
        vocabulary = [token for token in model.preprocessor.tokenizer.vocabulary if token.isalpha()]
        num_rows = write(folder, vocabulary, options["gigabytes"], options["files"], options["words"])
        size = total = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        stream, steps = TableStream(folder), options["steps"]
        assert measure("counting the rows", stream.count_rows, size) == num_rows
        assert measure("reading every row", lambda: sum(1 for _ in stream), size) == num_rows

        def examples_in(table: TableStream) -> ExampleStream:
            return stream_examples(table, "text", "label", options["shuffle_buffer"])

        measure("the first step", lambda: model.fit(examples_in(TableStream(folder)), steps_per_epoch=1, verbose=0))

        def train(epochs: int) -> None:
            callbacks = [ResumableCheckpoint(run)]
            examples = examples_in(TableStream(folder))
            model.fit(examples, steps_per_epoch=steps, epochs=epochs, verbose=0, callbacks=callbacks)

        measure(f"{steps} steps", lambda: train(1))
        measure(f"{steps} steps more, resumed", lambda: train(2))
        measure("finding the last row of an epoch", lambda: next(examples_in(stream).rows(0, num_rows - 1)))

        # Read and tokenize texts as a longer run would, without the steps of the model.
        part = TableStream(stream.files[: max(1, len(stream.files) // 10)])
        batching = BatchOptions(order="shuffle", training=True, verbose=False)
        batches = model.batches(read_inputs(examples_in(part)), batching)[0]

        def pass_over() -> int:
            return sum(len(batch[1]) for batch in batches.batches())

        size = sum(path.stat().st_size for path in part.files) / 1e6
        num_texts = measure("all batches of a tenth of the files", pass_over, size)
        assert num_texts == part.count_rows()
    console.print(table)
    save(options["name"], {**options, "rows": num_rows, "megabytes": total}, rows=rows)


if __name__ == "__main__":
    main()
