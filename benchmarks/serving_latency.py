"""Latency of an exported classifier, from strings to labels.

The requests are SST-2's sentences in the order of the file, so that batches have realistic lengths. Models have random
weights and BERT's vocabulary of 30,522 tokens. lmzoo's SavedModel takes the strings. KerasHub's takes ids from its
preprocessor, which pads all sequences to 128 tokens, or to its default of 512. transformers tokenizes in Rust and pads
to the longest of a batch; `onnxruntime` runs the same network and tokenizer. `lmzoo-1-thread` computes each request in
one thread; the other peers use all cores. Loading and the first requests are not measured. With several clients, the
time of a text is the total time divided by the number of texts.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import SHARED, TENSORFLOW, TORCH, interleave, ready, save, show, time_call
from benchmarks.models import SIZES, keras_hub_classifier, lmzoo_classifier, transformers_classifier

PEERS = {
    "lmzoo": TENSORFLOW,
    "lmzoo-1-thread": {**TENSORFLOW, "TF_NUM_INTRAOP_THREADS": "1"},
    "keras_hub-128": TENSORFLOW,
    "keras_hub-512": TENSORFLOW,
    "transformers": TORCH,
    "onnxruntime": TORCH,
}
BATCHES = (1, 32)
REQUESTS = {"base": (40, 4)}  # requests in a round for each of BATCHES, by model size; (100, 20) for other sizes
CLIENTS = 4
MEASURES = [
    *(f"{percentile} ms, batch {batch}" for batch in BATCHES for percentile in ("p50", "p99")),
    f"ms, {CLIENTS} clients",
]
VOCABULARY = SHARED / "data/tokenizers/bert-base-uncased/vocab.txt"
SENTENCES = SHARED / "data/sst2/stsa.binary.dev"

Answer = Callable[[list[str]], list[Any]]


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build and load the model; a round consists of requests of each size."""
    texts = [line.split(" ", 1)[1] for line in SENTENCES.read_text("utf-8").splitlines()]
    vocabulary = VOCABULARY.read_text("utf-8").split("\n")[:-1]
    build = {
        "lmzoo": _build_lmzoo,
        "keras_hub": _build_keras_hub,
        "transformers": _build_transformers,
        "onnxruntime": _build_onnx,
    }
    name, _, length = peer.partition("-")
    with tempfile.TemporaryDirectory() as folder:
        answer = build[name](options, vocabulary, Path(folder), int(length) if length.isdecimal() else 0)
    counts = zip(BATCHES, REQUESTS.get(options["size"], (100, 20)), strict=True)
    requests = {batch: [texts[i : i + batch] for i in range(0, batch * count, batch)] for batch, count in counts}
    for batch, parts in requests.items():
        assert len(answer(parts[0])) == batch
        answer(max(parts, key=lambda part: max(map(len, part))))

    def run_round() -> dict[str, float]:
        percentiles = {}
        for batch, parts in requests.items():
            times = [1000 * time_call(lambda part=part: answer(part)) for part in parts]
            percentiles |= {f"p{p} ms, batch {batch}": float(np.percentile(times, p)) for p in (50, 99)}
        with ThreadPoolExecutor(CLIENTS) as pool:
            seconds = time_call(lambda: list(pool.map(answer, requests[1])))
        return {**percentiles, f"ms, {CLIENTS} clients": 1000 * seconds / len(requests[1])}

    return run_round


def _build_lmzoo(options: dict[str, Any], vocabulary: list[str], folder: Path, length: int) -> Answer:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - the tokenizer's ops

    task = lmzoo_classifier(options["size"], len(vocabulary), options["dtype"], vocabulary)
    task.export(folder / "1", verbose=False)
    loaded = tf.saved_model.load(str(folder / "1"))
    return lambda texts: loaded.signatures["serving_default"](text=tf.constant(texts))["label"].numpy().tolist()


def _build_keras_hub(options: dict[str, Any], vocabulary: list[str], folder: Path, length: int) -> Answer:
    import tensorflow as tf

    task = keras_hub_classifier(options["size"], len(vocabulary), options["dtype"], vocabulary, length)
    preprocessor = task.preprocessor
    task.export(str(folder / "1"))
    loaded = tf.saved_model.load(str(folder / "1"))

    def answer(texts: list[str]) -> list[int]:
        features = {name: tf.cast(x, tf.int32) for name, x in preprocessor(texts).items()}  # as its export requires
        return tf.argmax(loaded.serve(features), axis=-1).numpy().tolist()

    return answer


def _build_tokenizer(vocabulary: list[str]) -> Any:
    from transformers import BertTokenizerFast

    return BertTokenizerFast(vocab={token: i for i, token in enumerate(vocabulary)}, do_lower_case=True)


def _build_transformers(options: dict[str, Any], vocabulary: list[str], folder: Path, length: int) -> Answer:
    import torch

    tokenizer, model = _build_tokenizer(vocabulary), transformers_classifier(options["size"], len(vocabulary)).eval()
    model = model.to(getattr(torch, options["dtype"]))

    @torch.inference_mode()
    def answer(texts: list[str]) -> list[int]:
        inputs = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
        return model(**inputs).logits.argmax(-1).tolist()

    return answer


def _build_onnx(options: dict[str, Any], vocabulary: list[str], folder: Path, length: int) -> Answer:
    import onnxruntime
    import torch

    if options["dtype"] != "float32":
        raise ImportError("ONNX Runtime's CPU kernels are for float32")
    tokenizer, model = _build_tokenizer(vocabulary), transformers_classifier(options["size"], len(vocabulary)).eval()
    example = dict(tokenizer(["a film"], return_tensors="pt"))
    axes = {0: "batch", 1: "length"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(
            model,
            (example,),
            str(folder / "model.onnx"),
            input_names=list(example),
            output_names=["logits"],
            dynamic_axes=dict.fromkeys(example, axes),
            dynamo=False,
        )
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])

    def answer(texts: list[str]) -> list[int]:
        inputs = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="np")
        return session.run(["logits"], dict(inputs))[0].argmax(-1).tolist()

    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["nano", "base"])
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--name", default="serving_latency", help="name of the result file")
    options = vars(parser.parse_args())
    if not ready(VOCABULARY, SENTENCES):
        return
    results: dict[str, Any] = {"rows": {}, "summary": {}}
    chosen = {peer: PEERS[peer] for peer in options["peers"]}
    for size in options["sizes"]:
        for dtype in options["dtypes"]:
            model = f"{size}, {dtype}"
            rows = interleave("serving_latency", chosen, {"size": size, "dtype": dtype}, options["rounds"])
            results["rows"][model], results["summary"][model] = rows, show(model, rows, MEASURES)
    save(options["name"], options, **results)


if __name__ == "__main__":
    main()
