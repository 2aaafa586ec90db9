"""Smaller artifacts: size on disk, time of a request and accuracy of one fine-tuned classifier.

The preset is fine-tuned on SST-2 and exported in float32, in bfloat16 and with int8 weights (`quantize("int8")`), as an
ONNX file in float32 and in int8, and as a LiteRT file. SavedModels take strings; for ONNX and LiteRT files, a
request includes the preprocessor. Accuracy is measured on all 872 development sentences. The artifacts take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.table import Table

import lmzoo
from benchmarks.common import SHARED, console, ready, save, time_call
from lmzoo.data.readers import read_table

Answer = Callable[[list[str]], np.ndarray]
BATCHES = {1: 60, 32: 6}  # texts in a request -> requests in a round
LABELS = ("negative", "positive")


def load_saved_model(path: Path) -> Answer:
    """Return a function that predicts class indices with a SavedModel."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - the tokenizer's ops

    loaded = tf.saved_model.load(str(path))
    return lambda texts: (
        loaded.signatures["serving_default"](text=tf.constant(texts))["probabilities"].numpy().argmax(-1)
    )


def load_onnx(path: Path, preprocessor: Any) -> Answer:
    """Return a function that predicts class indices with an ONNX file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Idle threads would otherwise keep looking for work while other artifacts are measured.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), options)
    return lambda texts: session.run(None, preprocessor(texts))[0].argmax(-1)


def load_litert(path: Path, preprocessor: Any) -> Answer:
    """Return a function that predicts class indices with a LiteRT file."""
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow warns that the interpreter will move to another package
        run = tf.lite.Interpreter(str(path), num_threads=2).get_signature_runner()
    return lambda texts: next(iter(run(**preprocessor(texts)).values())).argmax(-1)


def build(preset: Path, folder: Path) -> dict[str, tuple[int, Answer]]:
    """Write every artifact, and return the size in bytes and the prediction function of each."""
    artifacts = {}

    def load(**arguments: Any) -> Any:
        return lmzoo.models.TextClassifier.from_preset(preset, **arguments)

    for name, arguments in (("SavedModel, float32", {}), ("bfloat16", {"dtype": "bfloat16"}), ("int8 weights", {})):
        task = load(**arguments)
        if name.startswith("int8"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras warns of layers without weights
                task.quantize("int8")
        task.export(path := folder / name.replace(" ", "_"), verbose=False)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        artifacts[name] = size, load_saved_model(path)
    task = load()
    for name, file, read, arguments in (
        ("ONNX", "model.onnx", load_onnx, {}),
        ("ONNX, int8", "int8.onnx", load_onnx, {"dtype": "int8"}),
        ("LiteRT", "model.tflite", load_litert, {}),
    ):
        task.export(folder / file, verbose=False, **arguments)
        artifacts[name] = (folder / file).stat().st_size, read(folder / file, task.preprocessor)
    return artifacts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="artifacts", help="name of the result file")
    options = vars(parser.parse_args())
    files = [SHARED / "data/sst2" / f"stsa.binary.{part}" for part in ("train", "dev")]
    if not ready(*files):
        return
    train, (texts, labels) = (read_table(f, format="labeled", label="label", label_type=int) for f in files)
    keras.utils.set_random_seed(0)
    task = lmzoo.models.TextClassifier.from_preset(options["preset"], labels=LABELS, pooling="mean")
    task.fit(*train, epochs=options["epochs"], verbose=2)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        task.save_to_preset(Path(folder, "preset"))
        artifacts = build(Path(folder, "preset"), Path(folder))
        for name, (size, answer) in artifacts.items():
            answers = np.concatenate([answer(texts[i : i + 32]) for i in range(0, len(texts), 32)])
            rows[name] = {"MB": size / 1e6, "accuracy": float(np.mean(answers == np.array(labels)))}
            rows[name] |= {f"ms, batch {batch}": [] for batch in BATCHES}
        for _ in range(options["rounds"]):
            for name, (_, answer) in artifacts.items():
                for batch, count in BATCHES.items():
                    requests = [texts[i : i + batch] for i in range(0, batch * count, batch)]
                    times = [
                        1000 * time_call(lambda texts=request, answer=answer: answer(texts)) for request in requests
                    ]
                    rows[name][f"ms, batch {batch}"].append(float(np.median(times)))
    table = Table("artifact", *rows["ONNX"], title=f"{options['preset']} on SST-2")
    for name, row in rows.items():
        table.add_row(name, *(f"{np.median(value):.4g}" for value in row.values()))
    console.print(table)
    save(options["name"], options, rows=rows)


if __name__ == "__main__":
    main()
