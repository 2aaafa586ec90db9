"""Preparing pre-training data: tokens per second and core, from files to shards and from shards to sequences.

Core seconds are the processor time of all threads together, which hardly changes if the machine is busy. Padding is
measured in the batches of 32 that `fit` makes of the sequences.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.common import SHARED, console, save, warn_if_busy
from lmzoo.data.corpora import (
    pack_documents,
    pack_sentences,
    read_documents,
    segment_pairs,
    train_tokenizer,
    write_corpus,
)
from lmzoo.registry.family import families
from lmzoo.text import EncodedTexts, LengthBatches, Preprocessor
from lmzoo.text.batching import fit_buckets

FAMILIES = ("bert", "roberta", "albert")


def list_packers(length: int) -> dict[str, Callable[[Any, Preprocessor], Any]]:
    """Return functions that pack a corpus into sequences of up to `length` tokens, by name."""
    rng = np.random.default_rng(0)
    return {
        f"full sequences, {length}": pack_documents,
        f"full sentences, {length}": pack_sentences,
        f"document sentences, {length}": lambda corpus, pack: pack_sentences(corpus, pack, across_documents=False),
        f"nsp, {length}": lambda corpus, pack: segment_pairs(corpus, pack, "nsp", rng),
        f"sop, {length}": lambda corpus, pack: segment_pairs(corpus, pack, "sop", rng),
    }


def measure_padding(sequences: EncodedTexts, length: int) -> float:
    """Return the fraction of padding in the batches of an epoch."""
    buckets = fit_buckets(sequences.lengths, length)
    sizes = LengthBatches(sequences.lengths, lambda batch, width, rng: len(batch) * width, 32, buckets)
    return 1 - len(sequences.token_ids) / sum(sizes.batches())


def measure(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """Call a function, and return its result, its seconds, and its seconds of processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data/pretrain", help="directory of text files")
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--name", default="prepare", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    table = Table("what", "tokens", "seconds", "tokens/s", "tokens/s/core", "padding")
    rows: list[dict[str, Any]] = []

    def record(label: str, tokens: int, wall: float, processor: float, padded: float | None = None) -> None:
        rows.append({"what": label, "tokens": tokens, "seconds": wall, "core seconds": processor, "padding": padded})
        rates = (f"{tokens / seconds:,.0f}" for seconds in (wall, processor))
        table.add_row(label, f"{tokens:,}", f"{wall:.2f}", *rates, "" if padded is None else f"{padded:.2%}")

    def documents() -> Any:
        return itertools.islice(read_documents(options["data"]), options["documents"])

    with tempfile.TemporaryDirectory() as folder:
        for name in FAMILIES:
            family = families()[name]
            tokenizer = train_tokenizer(documents(), family.tokenizer, options["vocabulary_size"], verbose=False)
            corpus, *seconds = measure(lambda t=tokenizer, n=name: write_corpus(documents(), t, Path(folder, n)))
            record(f"{name}: files to shards", corpus.num_tokens, *seconds)
            for length in options["lengths"]:
                for recipe, pack in list_packers(length).items():
                    preprocessor = Preprocessor(tokenizer, family.packing, length)
                    sequences, *seconds = measure(lambda c=corpus, p=preprocessor, pack=pack: pack(c, p))
                    record(f"{name}: {recipe}", len(sequences.token_ids), *seconds, measure_padding(sequences, length))
    console.print(table)
    console.print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    save(options["name"], {**options, "data": str(options["data"].name)}, rows=rows)


if __name__ == "__main__":
    main()
