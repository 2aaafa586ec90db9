"""A tour from a pre-trained model to a served classifier.

Run with `make quickstart` or `python examples/quickstart.py [--output FOLDER] [--epochs N] [--seeds N]`.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import lmzoo  # before Keras, so that TensorFlow is fast on every processor

# isort: split
import keras
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from lmzoo.data.readers import read_conll
from lmzoo.serving.rest_api import RestApi
from lmzoo.serving.server import running_server

PRESET = "bert_nano_en_uncased"
DATA = Path(__file__).parent / "data"
REVIEWS = DATA / "reviews.csv"
LABELED = 100  # number of reviews for training; the learning rates were chosen on the reviews after them
RATES = {True: 1e-4, False: 1e-3}  # best of 1e-4, 3e-4 and 1e-3, by whether the weights are pre-trained
QUIET = {"verbose": 1 if sys.stdout.isatty() else 0}  # progress bars only on terminals
KINDS = {True: "pre-trained", False: "random weights"}
QUESTIONS = [
    "A warm and funny film, I loved every minute.",
    "It broke after two days, a waste of money.",
    "The food was cold and the waiter was rude.",
    "Not a single dull moment, I would go again.",
    "I expected to love it, and I was wrong.",
]

WORD = "bank"
SENTENCES = [
    "She opened an account at the bank on Monday.",
    "The boat drifted towards the muddy bank.",
    "The bank refused to lend them the money for a house.",
    "They sat on the bank and watched the river go by.",
    "Willows grew along the bank of the stream.",
    "He works as a cashier in a small bank.",
]

# A serving process, which needs TensorFlow and its text ops but not lmzoo.
SERVE = """
import json, sys
import tensorflow as tf
import tensorflow_text
assert "lmzoo" not in sys.modules
model = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
answers = model(text=tf.constant(json.loads(sys.argv[2])))
print(json.dumps({"label": [x.decode() for x in answers["label"].numpy()], "score": answers["score"].numpy().tolist()}))
"""


def read_reviews(split: str) -> tuple[list[str], list[str]]:
    """Return texts and labels of one split of the reviews."""
    with open(REVIEWS, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    return [row["text"] for row in rows], [row["label"] for row in rows]


def fine_tune(
    texts: list[str], labels: list[str], pretrained: bool, seed: int, epochs: int
) -> lmzoo.models.TextClassifier:
    """Train a classifier from the preset's weights, or from random weights."""
    keras.utils.set_random_seed(seed)
    classifier = lmzoo.models.TextClassifier.from_preset(
        PRESET, labels=["negative", "positive"], load_weights=pretrained
    )
    classifier.compile(optimizer=lmzoo.training.AdamW(RATES[pretrained], global_clipnorm=1.0))
    classifier.fit(texts, labels, epochs=epochs, batch_size=8, **QUIET)
    return classifier


def train_tagger(pretrained: bool, epochs: int) -> lmzoo.models.TokenClassifier:
    """Train a token classifier that tags persons, places and organizations."""
    keras.utils.set_random_seed(1)
    words, tags = read_conll(DATA / "entities-train.conll")
    labels = sorted({tag for sentence_tags in tags for tag in sentence_tags})
    model = lmzoo.models.TokenClassifier.from_preset(PRESET, labels=labels, load_weights=pretrained)
    model.compile(optimizer=lmzoo.training.AdamW(1e-3, global_clipnorm=1.0))
    model.fit(words, tags, epochs=epochs, batch_size=16, **QUIET)
    return model


def compute_accuracy(predicted: list[str], labels: list[str]) -> float:
    """Return the fraction of right predictions."""
    return float(np.mean(np.array(predicted) == np.array(labels)))


def predict(classifier: lmzoo.models.TextClassifier, texts: list[str]) -> list[str]:
    """Predict the label of each text."""
    return [answer["label"] for answer in classifier.classify(texts)]


def main() -> None:
    """Run the tour."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("quickstart_output"), help="where files go")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of fine-tuning")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each classifier")
    arguments = parser.parse_args()
    output, epochs, seeds = arguments.output, arguments.epochs, range(1, arguments.seeds + 1)
    output.mkdir(parents=True, exist_ok=True)
    lmzoo.use_compilation_cache()  # speeds up a second tour on JAX

    print(f"\n1. Fill a mask with {PRESET}")
    masked_lm = lmzoo.models.MaskedLM.from_preset(PRESET)
    for text in ("He opened the [MASK] and went in.", "The heart pumps [MASK] through the body."):
        guesses = ", ".join(f"{g['token']} {g['score']:.2f}" for g in masked_lm.fill([text], top_k=4)[0])
        print(f"   {text:45s} -> {guesses}")

    texts, labels = (part[:LABELED] for part in read_reviews("train"))
    test_texts, test_labels = read_reviews("test")
    print(f"\n2. Fine-tune a sentiment classifier on {len(texts)} reviews ({REVIEWS.name}), with {len(seeds)} seeds")
    bag_of_words = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=10)).fit(texts, labels)
    accuracies = {
        "bag of words, logistic regression": [compute_accuracy(list(bag_of_words.predict(test_texts)), test_labels)]
    }
    for pretrained, name in ((False, "same network, random weights"), (True, f"{PRESET}, fine-tuned")):
        accuracies[name] = []
        for seed in seeds:
            classifier = fine_tune(texts, labels, pretrained, seed, epochs)
            accuracies[name].append(compute_accuracy(predict(classifier, test_texts), test_labels))
    print(f"\n   accuracy on {len(test_texts)} held-out reviews: mean, and range over the seeds")
    for name, values in accuracies.items():
        spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
        print(f"   {name:40s} {np.mean(values):.2f}{spread}")

    print(f"\n3. Ask the last one (do not trust labels or scores after {len(texts)} reviews)")
    for text, answer in zip(QUESTIONS, classifier.classify(QUESTIONS), strict=True):
        print(f"   {text!r:50s} -> {answer['label']} ({answer['score']:.2f})")

    print("\n4. Tag persons, places and organizations after 80 sentences (entities-train.conll)")
    test_examples = read_conll(DATA / "entities-test.conll")
    for pretrained in (False, True):
        model = train_tagger(pretrained, 2 * epochs)
        score = model.evaluate(*test_examples, verbose=0, return_dict=True)["span_f1"]
        print(f"   span F1 on {len(test_examples[0])} sentences with other names, {KINDS[pretrained]:15s} {score:.2f}")
    entities = ", ".join(
        f"{span['text']} ({span['label']})" for span in model.tag(["Anna Kovacs left Porto for Oslo."])[0]
    )
    print(f"   'Anna Kovacs left Porto for Oslo.' -> {entities}")

    print(f"\n5. One word in two senses: the vectors of {WORD!r}, grouped")
    embedder = lmzoo.models.TextEmbedder.from_preset(PRESET)
    for sense in sorted(lmzoo.analysis.senses(embedder, WORD, SENTENCES), key=lambda sense: sense.group):
        print(f"   {sense.group + 1}  {SENTENCES[sense.text]}")

    print("\n6. Save, reload, compare")
    classifier.save(output / "sentiment.keras")
    reloaded = keras.saving.load_model(output / "sentiment.keras")
    logits, reloaded_logits = (model.predict(test_texts, verbose=0) for model in (classifier, reloaded))
    difference = np.abs(logits - reloaded_logits).max()
    print(f"   {output / 'sentiment.keras'}: largest difference of {logits.size} logits {difference:.1e}")

    print("\n7. Export for TF Serving and run in a process with only tensorflow and tensorflow_text")
    classifier.export(output / "serving" / "sentiment" / "1")
    command = [sys.executable, "-c", SERVE, str(output / "serving" / "sentiment" / "1"), json.dumps(test_texts)]
    served_answers = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    answers = classifier.classify(test_texts)
    differences = [abs(a["score"] - s) for a, s in zip(answers, served_answers["score"], strict=True)]
    agree = [a["label"] == label for a, label in zip(answers, served_answers["label"], strict=True)]
    print(f"   {sum(agree)} of {len(agree)} labels equal, largest difference of a score {max(differences):.1e}")
    if difference > 0 or not all(agree) or max(differences) > 1e-5:
        sys.exit("The reloaded or the served model does not agree with the one in memory.")

    print("\n8. Serve it over HTTP, as TensorFlow Serving would (`lmzoo serve` does this on the command line)")
    with running_server(RestApi(output / "serving" / "sentiment")) as url:
        body = json.dumps({"instances": QUESTIONS[:1]}).encode()
        with urllib.request.urlopen(f"{url}/v1/models/sentiment:predict", body) as response:
            (prediction,) = json.load(response)["predictions"]
    print(f"   POST {url}/v1/models/sentiment:predict -> {prediction['label']} ({prediction['score']:.2f})")


if __name__ == "__main__":
    main()
