"""Many threads on one exported model: do they get the answers of a single thread, and does anything grow?

    python -m benchmarks.serving_threads                     # 32 threads, 500 requests each, the shipped preset
    python -m benchmarks.serving_threads --model my.keras --threads 8

Requests hold 1 to 4 texts of 0 to 200 words. Every answer of every thread is compared, to the bit, with the answer that
a single thread got. The functions that TensorFlow has traced are counted. The memory of the process is measured twice:
after all threads have answered the longest texts and each request has been answered once, and at the end.
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
    from tensorflow.python.eager import context  # nothing public counts functions

    import lmzoo

    if arguments.model and arguments.model.endswith(".keras"):
        task = keras.saving.load_model(arguments.model, compile=False)
    else:
        task = lmzoo.models.TextClassifier.from_preset(arguments.model or "bert_nano_en_uncased", num_classes=2)
    with tempfile.TemporaryDirectory() as folder:
        task.export(Path(folder, "1"), verbose=False)
        loaded = tf.saved_model.load(str(Path(folder, "1")))
    rng = np.random.default_rng(1)
    distinct = [_texts(rng) for _ in range(arguments.requests)]

    def ask(texts: list[str]) -> dict[str, np.ndarray]:
        return {name: x.numpy() for name, x in loaded.signatures["serving_default"](text=tf.constant(texts)).items()}

    def ask_all(thread: int) -> int:
        order = np.random.default_rng(thread).permutation(len(distinct))
        return sum(not _same(ask(distinct[i]), expected[i]) for i in order)

    expected = [ask(texts) for texts in distinct]
    with ThreadPoolExecutor(arguments.threads) as pool:
        # Warm up: the largest request in all threads at once, then each shape once, since oneDNN caches its kernels.
        list(pool.map(ask, [[" ".join(WORDS * 14)] * 4] * arguments.threads * 2))
        list(pool.map(ask, distinct))
        functions, memory, start = len(context.context().list_function_names()), _resident(), time.perf_counter()
        wrong = sum(pool.map(ask_all, range(arguments.threads)))
        seconds = time.perf_counter() - start
    rows: dict[str, Any] = {
        "answers": arguments.threads * arguments.requests,
        "answers that differ": wrong,
        "functions traced meanwhile": len(context.context().list_function_names()) - functions,
        "memory after warming up, MB": memory / 1e6,
        "memory, after / before": _resident() / memory,
        "requests per second": arguments.threads * arguments.requests / seconds,
    }
    for what, value in rows.items():
        console.print(f"{what}: {value:.4g}" if isinstance(value, float) else f"{what}: {value}")
    save(arguments.name, vars(arguments), rows=rows)
    return int(wrong > 0)


def _texts(rng: np.random.Generator) -> list[str]:
    return [" ".join(rng.choice(WORDS, int(rng.integers(0, 201)))) for _ in range(rng.integers(1, 5))]


def _same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _resident() -> int:
    """Return the bytes of memory that this process uses."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


if __name__ == "__main__":
    raise SystemExit(main())
