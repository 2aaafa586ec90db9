"""The first minute: a new process loads a small BERT, fine-tunes it on 300 texts and classifies 100 others.

All peers load the weights of `bert_nano_en_uncased` from their own files, and train on the reviews of `examples/data`
for 3 epochs with batches of 32. Every measurement starts a new process, which compiles anew. At the end, each process
classifies single texts, one after another.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import JAX, ROOT, TENSORFLOW, TORCH, Rows, console, run_alone, save, show, warn_if_busy

TRAINED, CLASSIFIED, SINGLE = 300, 100, 30
MEASURES = (
    "imports s",
    "load s",
    "first epoch s",
    "later epochs s",
    "first classify s",
    "second classify s",
    "one text ms",
    "whole process s",
)

# Code that all peers share: `stage(name)` records the time since the last stage.
BEGIN = """
import json, statistics, sys, time
folder, seconds, last = sys.argv[1], {}, [time.perf_counter()]
texts, labels, others, count = json.load(open(folder + "/texts.json"))

def stage(name):
    now = time.perf_counter()
    seconds.setdefault(name, []).append(now - last[0])
    last[0] = now
"""
END = """
classify(others)
stage("first classify s")
classify(others)
stage("second classify s")
classify(others[:1])
times = []
for text in others[:count]:
    began = time.perf_counter()
    classify([text])
    times.append(time.perf_counter() - began)
result = {name: statistics.fmean(values) for name, values in seconds.items()}
done = sum(map(sum, seconds.values()))
print(json.dumps({**result, "one text ms": 1000 * statistics.median(times), "whole process s": done}))
"""
KERAS = """
class Epochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        stage("later epochs s" if epoch else "first epoch s")

"""
LMZOO = f"""
import lmzoo
import keras
stage("imports s")
{KERAS}
classifier = lmzoo.models.TextClassifier.from_preset(folder + "/lmzoo")
classify = classifier.classify
stage("load s")
classifier.fit(texts, labels, epochs=3, batch_size=32, callbacks=[Epochs()], verbose=0)
"""
KERAS_HUB = f"""
import keras, keras_hub
stage("imports s")
{KERAS}
classifier = keras_hub.models.BertTextClassifier.from_preset(folder + "/keras_hub", num_classes=2)
classifier.preprocessor.sequence_length = 128
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
classifier.compile(optimizer=keras.optimizers.AdamW(3e-4), loss=loss)
classify = lambda texts: classifier.predict(texts, verbose=0).argmax(axis=1).tolist()
stage("load s")
classifier.fit(texts, labels, epochs=3, batch_size=32, callbacks=[Epochs()], verbose=0)
"""
TRANSFORMERS = """
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
stage("imports s")
tokenizer = AutoTokenizer.from_pretrained(folder + "/hf")
model = AutoModelForSequenceClassification.from_pretrained(folder + "/hf")
optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
stage("load s")
for epoch in range(3):
    model.train()
    for indices in torch.randperm(len(texts)).split(32):
        batch = tokenizer([texts[i] for i in indices], padding=True, truncation=True, return_tensors="pt")
        loss = model(**batch, labels=torch.tensor([labels[i] for i in indices])).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    stage("later epochs s" if epoch else "first epoch s")
model.eval()

def classify(texts):
    answers = []
    with torch.inference_mode():
        for start in range(0, len(texts), 32):
            batch = tokenizer(texts[start : start + 32], padding=True, truncation=True, return_tensors="pt")
            answers += model(**batch).logits.argmax(dim=1).tolist()
    return answers
"""
PEERS = {
    "lmzoo-tf": (TENSORFLOW, LMZOO),
    "lmzoo-jax": (JAX, LMZOO),
    "transformers": (TORCH, TRANSFORMERS),
    "kerashub-tf": (TENSORFLOW, KERAS_HUB),
}


def write_files(folder: Path) -> None:
    """Write the texts, and the same classifier for each library."""
    import lmzoo

    with (ROOT / "examples/data/reviews.csv").open(encoding="utf-8", newline="") as file:
        reviews = list(csv.DictReader(file))
    texts = [review["text"] for review in reviews]
    labels = [int(review["label"] == "positive") for review in reviews[:TRAINED]]
    data = texts[:TRAINED], labels, texts[TRAINED : TRAINED + CLASSIFIED], SINGLE
    (folder / "texts.json").write_text(json.dumps(data))
    # The pooling that all libraries support.
    classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2, pooling="first")
    classifier.save_to_preset(folder / "lmzoo")
    lmzoo.save_checkpoint(classifier, folder / "hf", to="hf")
    files = folder / "keras_hub"
    lmzoo.save_checkpoint(classifier.backbone, files, to="keras_hub", preprocessor=classifier.preprocessor)


def measure_process(peer: str, folder: str) -> dict[str, float] | None:
    """Return the seconds that a process and its stages take, or None if it failed."""
    environment, code = PEERS[peer]
    output = run_alone(peer, environment, BEGIN + code + END, folder)
    return None if output is None else json.loads(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--name", default="first_minute", help="name of the result file")
    options: dict[str, Any] = vars(parser.parse_args())
    warn_if_busy()
    peers = [peer for peer in PEERS if peer in options["peers"]]
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder, console.status("writing the model") as status:
        write_files(Path(folder))
        for number in range(options["rounds"]):
            for peer in list(peers):
                status.update(f"first_minute: round {number + 1} of {options['rounds']}, {peer}")
                numbers = measure_process(peer, folder)
                if numbers is None:
                    peers.remove(peer)
                else:
                    rows.setdefault(peer, []).append(numbers)
    save(options["name"], options, rows=rows, summary=show("the first minute", rows, MEASURES))


if __name__ == "__main__":
    main()
