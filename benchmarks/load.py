"""Loading BERT-base from Hugging Face's files: seconds, and the increase of peak memory after the imports.

Every round is a new process, which imports its library before the clock starts. The weights are random and take 440 MB.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import JAX, TENSORFLOW, TORCH, console, interleave, save, show, time_call, warn_if_busy

PEERS = {
    "lmzoo-tf": TENSORFLOW,
    "lmzoo-jax": JAX,
    "kerashub-tf": TENSORFLOW,
    "kerashub-jax": JAX,
    "transformers": TORCH,
}


def write_checkpoint(folder: Path, layers: int) -> None:
    """Save a BERT of `layers` layers with random weights as transformers does."""
    import transformers

    transformers.BertModel(transformers.BertConfig(num_hidden_layers=layers)).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(30_517))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Import the library; a round loads the model."""
    folder = options["folder"]
    if peer == "transformers":
        import torch
        import transformers

        torch.zeros(1)
        load = transformers.BertModel.from_pretrained
    elif peer.startswith("kerashub"):
        import keras
        import keras_hub

        keras.ops.zeros(1)
        load = keras_hub.models.BertBackbone.from_preset
    else:
        import keras

        import lmzoo

        keras.ops.zeros(1)
        load = lmzoo.models.Backbone.from_preset

    def round() -> dict[str, float]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        before = pages * os.sysconf("SC_PAGE_SIZE")
        seconds = time_call(lambda: load(folder))
        return {"seconds": seconds, "MB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / 1e6}

    return round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--name", default="load", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), options["layers"])
        peers = {peer: PEERS[peer] for peer in options["peers"]}
        rows = interleave("load", peers, {**options, "folder": folder}, options["rounds"], fresh=True)
    summary = show("BERT-base from safetensors", rows, ("seconds", "MB"))
    console.print("A ratio above 1 says how many times slower than lmzoo on TensorFlow a peer is.")
    save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
