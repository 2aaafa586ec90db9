"""A test with many threads on one exported model: answers equal those of a single thread, and memory does not grow.

    python -m benchmarks.serving_threads                     # 32 threads, 500 requests each, the shipped preset
    python -m benchmarks.serving_threads --model my.keras --threads 8

Requests hold 1 to 4 texts of 0 to 200 words. Every answer of every thread is compared, bit for bit, with the answer of
a single thread. The script counts the functions that TensorFlow traces, and measures the memory of the process at the
end and after warming up, when all threads have answered the longest texts and each request has been answered once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import console, save, warn_if_busy

WORDS = ["good", "bad", "film", "plot", "the", "was", "very", "never", ".", "!", "She", "quietly", "naïve", "世界", "ß"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help=".keras file or preset of a text classifier; a shipped one by default")
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--requests", type=int, default=500, help="of each thread")
    parser.add_argument("--name", default="serving_threads")
    arguments = parser.parse_args()
    warn_if_busy()

    import keras
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - the tokenizer's ops
    from tensorflow.python.eager import context  # no public API counts functions

    import lmzoo

    if arguments.model and arguments.model.endswith(".keras"):
        task = keras.saving.load_model(arguments.model, compile=False)
    else:
        task = lmzoo.models.TextClassifier.from_preset(arguments.model or "bert_nano_en_uncased", num_classes=2)
    with tempfile.TemporaryDirectory() as folder:
        task.export(Path(folder, "1"), verbose=False)
        loaded = tf.saved_model.load(str(Path(folder, "1")))
    rng = np.random.default_rng(1)
    requests = [_draw_texts(rng) for _ in range(arguments.requests)]

    def classify(texts: list[str]) -> dict[str, np.ndarray]:
        return {name: x.numpy() for name, x in loaded.signatures["serving_default"](text=tf.constant(texts)).items()}

    def count_differences(thread: int) -> int:
        order = np.random.default_rng(thread).permutation(len(requests))
        return sum(not _are_equal(classify(requests[i]), expected[i]) for i in order)

    expected = [classify(texts) for texts in requests]
    with ThreadPoolExecutor(arguments.threads) as pool:
        # Warm up with the largest request in all threads, then with each shape, since oneDNN caches its kernels.
        list(pool.map(classify, [[" ".join(WORDS * 14)] * 4] * arguments.threads * 2))
        list(pool.map(classify, requests))
        functions, memory, start = len(context.context().list_function_names()), _measure_memory(), time.perf_counter()
        num_wrong = sum(pool.map(count_differences, range(arguments.threads)))
        seconds = time.perf_counter() - start
    rows: dict[str, Any] = {
        "answers": arguments.threads * arguments.requests,
        "answers that differ": num_wrong,
        "functions traced meanwhile": len(context.context().list_function_names()) - functions,
        "memory after warming up, MB": memory / 1e6,
        "memory, after / before": _measure_memory() / memory,
        "requests per second": arguments.threads * arguments.requests / seconds,
    }
    for name, value in rows.items():
        console.print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    save(arguments.name, vars(arguments), rows=rows)
    return int(num_wrong > 0)


def _draw_texts(rng: np.random.Generator) -> list[str]:
    return [" ".join(rng.choice(WORDS, int(rng.integers(0, 201)))) for _ in range(rng.integers(1, 5))]


def _are_equal(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def _measure_memory() -> int:
    """Return the bytes of memory that this process uses."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


if __name__ == "__main__":
    raise SystemExit(main())
