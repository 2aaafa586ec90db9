"""Time from the start of a process to its first prediction: import, local preset and one sentence.

Every round starts each peer once. `keras alone` is the lower bound: it only imports Keras.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import JAX, TENSORFLOW, Rows, console, run_alone, save, show, warn_if_busy
from benchmarks.models import SIZES, keras_hub_classifier, lmzoo_classifier

LMZOO = """
import sys, lmzoo
classifier = lmzoo.models.TextClassifier.from_preset(sys.argv[1] + "/lmzoo")
print(classifier.predict(["a quiet , lovely film"], verbose=0))
"""
KERAS_HUB = """
import sys, keras_hub
classifier = keras_hub.models.BertTextClassifier.from_preset(sys.argv[1] + "/keras_hub")
print(classifier.predict(["a quiet , lovely film"], verbose=0))
"""
PEERS = {
    "lmzoo-tf": (TENSORFLOW, LMZOO),
    "lmzoo-jax": (JAX, LMZOO),
    "kerashub-tf": (TENSORFLOW, KERAS_HUB),
    "kerashub-jax": (JAX, KERAS_HUB),
    "keras-tf alone": (TENSORFLOW, "import keras"),
    "keras-jax alone": (JAX, "import keras"),
}
VOCABULARY = 30_522


def write_presets(size: str, folder: Path) -> None:
    """Save the same architecture as a preset of both libraries."""
    words = [f"w{i}" for i in range(VOCABULARY - 10)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "quiet", ",", "lovely", "film", *words]
    lmzoo_classifier(size, VOCABULARY, vocabulary=vocabulary).save_to_preset(folder / "lmzoo")
    try:
        keras_hub_classifier(size, VOCABULARY, vocabulary=vocabulary).save_to_preset(str(folder / "keras_hub"))
    except ImportError as error:
        console.print(f"[yellow]kerashub left out:[/] {error}")


def measure_start(peer: str, folder: str) -> dict[str, float] | None:
    """Run a peer's code in a new process, and return `{"seconds": duration}`, or None if the process failed."""
    environment, code = PEERS[peer]
    start_time = time.perf_counter()
    output = run_alone(peer, environment, code, folder)
    return None if output is None else {"seconds": time.perf_counter() - start_time}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--name", default="startup", help="name of the result file")
    options: dict[str, Any] = vars(parser.parse_args())
    warn_if_busy()
    peers = [peer for peer in PEERS if peer in options["peers"]]
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder, console.status("writing presets") as status:
        write_presets(options["size"], Path(folder))
        # Round 0 fills the file cache and is not counted.
        for number in range(options["rounds"] + 1):
            for peer in list(peers):
                status.update(f"startup: round {number} of {options['rounds']}, {peer}")
                numbers = measure_start(peer, folder)
                if numbers is None:
                    peers.remove(peer)
                elif number:
                    rows.setdefault(peer, []).append(numbers)
    save(options["name"], options, rows=rows, summary=show(f"start-up, {options['size']}", rows, ["seconds"]))


if __name__ == "__main__":
    main()
