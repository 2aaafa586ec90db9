"""Draw the pictures of the documentation, with the presets that come with the package.

    python examples/pictures.py [--data DATA] [--output docs/assets] [--only attention fill ...]

Five pictures need public datasets and are skipped without `--data`: home, classify, tag, score and mix. DATA is a
directory with `sst2/stsa.{binary,fine}.{train,dev}` and `ner_wnut17/{wnut17train,emerging.dev}.conll`; "mix" also needs
`trec/TREC.train` and `pos_ewt/en_ewt-ud-train.conllu.gz`.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import keras
import matplotlib as mpl
import matplotlib.pyplot as plt
import next_tokens
import numpy as np
import permutation
import quickstart
import road
import word_senses

import lmzoo
from lmzoo.data.readers import read_conll, read_table
from lmzoo.training import AdamW

mpl.use("Agg")

PRESET = "bert_nano_en_uncased"
EMBEDDER = "bert_nano_embedder_en"
SENTENCE = (
    "The animal didn't cross the street because it was too tired."  # from Jakob Uszkoreit's article on the Transformer
)
QUESTIONS = ["When do you close?", "How can I pay?", "Where is my parcel?", "Can I send it back?"]
ANSWERS = [
    "Our shop is open until six.",
    "You can pay by card or in cash.",
    "Your parcel will arrive on Friday.",
    "You can return it within thirty days.",
    "We are closed on Sundays.",
]
MAX_EXAMPLES = 2000  # of each task on ELMo
COLORS = {"": "#cfe3ff", "person": "#cfe3ff", "location": "#d5f2d0", "corporation": "#ffe2b8", "group": "#f3d3f7"}


def train_task(
    name: str, train: tuple[Any, Any], epochs: int, held_out: Any = None, **arguments: Any
) -> tuple[Any, Any]:
    """Train a task, and return it with the history of the training."""
    task = getattr(lmzoo.models, name).from_preset(PRESET, **arguments)
    history = task.fit(*train, validation_data=held_out, epochs=epochs, batch_size=32, seed=0, verbose=2).history
    return task, history


def classify(data: Path, path: Path) -> None:
    """Draw the learning curve and the confusion matrix of a sentiment classifier."""
    names = ["negative", "positive"]
    (x, y), (dev, expected) = (
        read_table(data / f"sst2/stsa.binary.{part}", label="label", label_type=int, format="labeled")
        for part in ("train", "dev")
    )
    task, history = train_task("TextClassifier", (x, y), 4, (dev, expected), labels=names, pooling="mean")
    counts = np.zeros((2, 2), int)
    np.add.at(counts, (np.array(expected), task.predict(dev, verbose=0).argmax(-1)), 1)
    figure, (curve, matrix) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    epochs = range(1, 1 + len(history["loss"]))
    curve.plot(epochs, history["accuracy"], "o-", label="training")
    curve.plot(epochs, history["val_accuracy"], "o-", label="held out")
    curve.set(xlabel="epoch", ylabel="accuracy", xticks=epochs, title="Learning curve")
    curve.grid(alpha=0.3)
    curve.legend()
    matrix.imshow(counts, cmap="Blues", vmin=0)
    for (row, column), count in np.ndenumerate(counts):
        matrix.text(column, row, count, ha="center", va="center", color="w" if count > counts.max() / 2 else "k")
    matrix.set(xticks=(0, 1), xticklabels=names, yticks=(0, 1), yticklabels=names, title="Held-out sentences")
    matrix.set(xlabel="predicted", ylabel="labeled")
    save_figure(figure, path)


def home(data: Path, path: Path) -> None:
    """Draw three tasks with one preset: names in a sentence, words for a mask, the sentiment of sentences."""
    figure = plt.figure(figsize=(8.6, 4), layout="constrained")
    panels = figure.subplot_mosaic([["tag", "tag"], ["fill", "classify"]], height_ratios=(1, 2.2))
    texts = ["Justin Bieber is playing in Boston on Friday, and Taylor Swift in New York."]
    draw_spans(panels["tag"], texts, train_tagger(data).tag(texts))
    panels["tag"].set_title("tag")
    (candidates,) = lmzoo.models.MaskedLM.from_preset(PRESET).fill(["She opened the [MASK] and went in."], top_k=4)
    draw_bars(
        panels["fill"],
        [candidate["token"] for candidate in candidates],
        [candidate["score"] for candidate in candidates],
    )
    panels["fill"].set(title="fill", xlabel="She opened the [MASK] and went in.")
    train = read_table(data / "sst2/stsa.binary.train", label="label", label_type=int, format="labeled")
    labels = ["negative", "positive"]
    classifier, _ = train_task("TextClassifier", train, 4, labels=labels, pooling="mean")
    reviews = [
        "A warm and funny film.",
        "A lovely story, well told.",
        "Dull from start to end.",
        "Slow and silly.",
    ]
    scores = [
        {candidate["label"]: candidate["score"] for candidate in answers}
        for answers in classifier.classify(reviews, top_k=2)
    ]
    draw_bars(panels["classify"], reviews, [score["positive"] for score in scores])
    panels["classify"].set(title="classify", xlabel="probability of “positive”", xlim=(0, 1))
    save_figure(figure, path)


def draw_bars(axes: plt.Axes, names: list[str], values: list[float]) -> None:
    """Draw horizontal bars, the first one on top."""
    axes.barh(names[::-1], values[::-1], color="#7aa6d8")


def train_tagger(data: Path) -> Any:
    """Train a tagger of names on WNUT-17."""
    train, held_out = (read_conll(data / f"ner_wnut17/{name}.conll") for name in ("wnut17train", "emerging.dev"))
    labels = sorted({label for part in (train, held_out) for labels in part[1] for label in labels})
    return train_task("TokenClassifier", train, 8, held_out, labels=labels)[0]


def tag(data: Path, path: Path) -> None:
    """Draw names in sentences, colored by their types."""
    texts = [
        "Ada Byron met Charles Babbage in London before she wrote about his engine.",
        "Justin Bieber is playing in Boston on Friday, and Taylor Swift in New York.",
        "I saw Toy Story in Chicago with Anna last night and bought an iPhone at Apple.",
    ]
    draw_highlighted(texts, train_tagger(data).tag(texts), path)


def draw_highlighted(texts: list[str], spans: list[list[dict[str, Any]]], path: Path) -> None:
    """Draw texts with colored spans and their labels, and save the figure."""
    figure, axes = plt.subplots(figsize=(8.6, 0.75 * len(texts)), layout="constrained")
    draw_spans(axes, texts, spans)
    save_figure(figure, path)


def draw_spans(axes: plt.Axes, texts: list[str], spans: list[list[dict[str, Any]]]) -> None:
    """Draw texts with colored spans and the labels below them."""
    axes.set_axis_off()
    width = max(map(len, texts)) + 1
    axes.set(xlim=(0, width), ylim=(0, 2 * len(texts)))
    for row, (text, text_spans) in enumerate(zip(texts, spans, strict=True)):
        height = 2 * (len(texts) - row) - 0.7
        for position, letter in enumerate(text):  # one column per letter, so that spans have known positions
            axes.text(position + 0.5, height, letter, family="monospace", ha="center", va="center", fontsize=10)
        for span in text_spans:
            start, length, label = span["start"], span["end"] - span["start"], span.get("label", "")
            color = COLORS.get(label, "#eeeeee")
            axes.add_patch(plt.Rectangle((start, height - 0.55), length, 1.1, color=color, zorder=0))
            note = f"{label} {span['score']:.2f}".strip()
            axes.text(start + length / 2, height - 0.95, note, ha="center", va="center", fontsize=7, color="#555555")


def answer(data: Path, path: Path) -> None:
    """Draw answers to questions in their contexts: the memorized example of the guide."""
    contexts = [
        "Ada Byron was born in London in 1815. She met Charles Babbage when she was seventeen.",
        "The bridge is 512 metres long. It was opened in 1934, two years late.",
    ]
    pairs = [
        ("Where was Ada born?", contexts[0]),
        ("Whom did she meet?", contexts[0]),
        ("How long is the bridge?", contexts[1]),
    ]
    answers = [
        {"text": "London", "answer_start": 22},
        {"text": "Charles Babbage", "answer_start": 46},
        {"text": "512 metres", "answer_start": 14},
    ]
    task, _ = train_task("QuestionAnswerer", (pairs, answers), 40)
    texts = [text for pair in pairs for text in pair]
    draw_highlighted(texts, [spans for span in task.answer(pairs) for spans in ([], [span])], path)


def score(data: Path, path: Path) -> None:
    """Draw the scores of held-out sentences for each of the annotators' five grades."""
    train, (texts, grades) = (
        read_table(data / f"sst2/stsa.fine.{part}", label="label", label_type=float, format="labeled")
        for part in ("train", "dev")
    )
    task, _ = train_task("TextRegressor", train, 4, (texts, grades), pooling="mean")
    scores, names = np.array(task.score(texts)), ["very\nnegative", "negative", "neutral", "positive", "very\npositive"]
    figure, axes = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
    axes.boxplot([scores[np.array(grades) == grade] for grade in range(5)], tick_labels=names, showfliers=False)
    axes.plot(range(1, 6), range(5), "o", color="#d9822b", label="the grade itself")
    axes.set(xlabel="grade of the annotators", ylabel="score of the model")
    axes.set(title=f"{len(scores):,} held-out sentences, Pearson {np.corrcoef(scores, grades)[0, 1]:.2f}")
    axes.legend()
    save_figure(figure, path)


def choose(data: Path, path: Path) -> None:
    """Draw the probabilities of the choices for two prompts: the memorized example of the guide."""
    examples = [
        ("The kettle whistles. She", ["pours the tea.", "paints it green.", "files a report."]),
        ("The bus has left. He", ["swims after it.", "waits for the next one."]),
        ("It is dark in the room. They", ["turn on a lamp.", "turn off the moon.", "read the small print."]),
        ("The phone rings. I", ["answer it.", "eat it."]),
    ]
    task, _ = train_task("MultipleChoice", (examples, [0, 1, 0, 0]), 30, sequence_length=64, pooling="mean")
    figure, panels = plt.subplots(1, 2, figsize=(8, 1.9), layout="constrained")
    for axes, example, choices in zip(panels, examples[1:3], task.choose(examples[1:3], top_k=3), strict=True):
        axes.barh(
            [choice["choice"] for choice in choices][::-1],
            [choice["score"] for choice in choices][::-1],
            color="#7aa6d8",
        )
        axes.set(title=example[0], xlabel="probability", xlim=(0, 1))
    save_figure(figure, path)


def fill(data: Path, path: Path) -> None:
    """Draw the most probable words for a mask."""
    task = lmzoo.models.MaskedLM.from_preset(PRESET)
    texts = ["She opened the [MASK] and went in.", "They sailed across the [MASK] ."]
    figure, panels = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained")
    for axes, text, candidates in zip(panels, texts, task.fill(texts, top_k=7), strict=True):
        draw_bars(
            axes, [candidate["token"] for candidate in candidates], [candidate["score"] for candidate in candidates]
        )
        axes.set(title=text, xlabel="probability")
    save_figure(figure, path)


def vectors(data: Path, path: Path) -> None:
    """Draw the vectors of "bank" in sentences that use it in four senses."""
    embedder = lmzoo.models.TextEmbedder.from_preset(PRESET)
    texts = [text for sentences in word_senses.SENTENCES["bank"].values() for text in sentences]
    labels = [sense for sense, sentences in word_senses.SENTENCES["bank"].items() for _ in sentences]
    uses = lmzoo.analysis.senses(embedder, "bank", texts)
    figure = lmzoo.analysis.plot_vectors([use.vector for use in uses], [labels[use.text] for use in uses])
    save_figure(figure, path)


def search(data: Path, path: Path) -> None:
    """Draw the cosines of questions and answers, with the best answer to each question."""
    embedder = lmzoo.models.TextEmbedder.from_preset(EMBEDDER)
    hits = embedder.search(QUESTIONS, ANSWERS)
    cosines = np.array([[hit["score"] for hit in sorted(row, key=lambda hit: hit["index"])] for row in hits])
    figure, axes = plt.subplots(figsize=(8.6, 3), layout="constrained")
    axes.imshow(cosines, cmap="Blues", aspect="auto")
    middle = (cosines.min() + cosines.max()) / 2
    for (row, column), cosine in np.ndenumerate(cosines):
        weight = "bold" if column == hits[row][0]["index"] else "normal"
        axes.text(
            column, row, f"{cosine:.2f}", ha="center", va="center", weight=weight, color="w" if cosine > middle else "k"
        )
    axes.set_xticks(range(len(ANSWERS)), ANSWERS, rotation=20, ha="right")
    axes.set_yticks(range(len(QUESTIONS)), QUESTIONS)
    save_figure(figure, path)


def quantized(data: Path, path: Path) -> None:
    """Draw how many of the ten nearest reviews an index of bytes or bits finds, by the number of candidates."""
    texts, _ = read_table(Path(__file__).with_name("data") / "reviews.csv", text="text")
    vectors = lmzoo.models.TextEmbedder.from_preset(PRESET).embed_documents(texts)
    exact = lmzoo.search.search_vectors(vectors, vectors)
    relevant = [[hit["index"] for hit in row] for row in exact]
    oversampling = (1, 2, 4, 8, 16)
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    for precision, marker in (("int8", "o"), ("binary", "s")):
        recalls = []
        for factor in oversampling:
            index = lmzoo.search.QuantizedIndex.quantize(vectors, precision, originals=vectors, oversampling=factor)
            rankings = lmzoo.search.search_vectors(vectors, index)
            recalls.append(lmzoo.evaluation.retrieval_metrics(rankings, relevant)["recall@10"])
        size = index.codes.shape[1]
        axes.plot(oversampling, recalls, f"{marker}-", label=f"{precision}, {size} bytes a vector")
    axes.set(xlabel="candidates for each result (oversampling)", ylabel="recall@10", xscale="log", ylim=(None, 1.01))
    axes.set_xticks(oversampling, oversampling)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    save_figure(figure, path)


def long_texts(data: Path, path: Path) -> None:
    """Draw how often a review finds its document, by its place in the document, with and without windows."""
    reviews, _ = read_table(Path(__file__).with_name("data") / "reviews.csv", text="text")
    size = 24
    documents = [" ".join(reviews[k : k + size]) for k in range(0, len(reviews) - size + 1, size)]
    queries = reviews[: size * len(documents)]
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    embedder = lmzoo.models.TextEmbedder.from_preset(PRESET, sequence_length=128)
    for windows, marker in ((None, "s"), ("auto", "o")):
        embedder.windows = windows
        hits = embedder.search(queries, documents, top_k=1)
        is_found = np.array([row[0]["index"] for row in hits]).reshape(-1, size) == np.arange(len(documents))[:, None]
        fractions = is_found.reshape(len(documents), 6, -1).mean(axis=(0, 2))  # (6,), over four places in all documents
        axes.plot(range(1, size, 4), fractions, f"{marker}-", label="windows" if windows else "truncated")
        print(f"{windows}: {np.round(fractions, 2).tolist()}")
    axes.axhline(1 / len(documents), color="0.6", linestyle="--", label="chance")
    axes.set(xlabel="place of the review in its document", ylabel="documents found", ylim=(0, 1.02))
    axes.set_xticks(range(1, size, 4), [f"{k} to {k + 3}" for k in range(1, size, 4)])
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)


def agreement(data: Path, path: Path) -> None:
    """Draw the cosines of reviews that lmzoo and Sentence Transformers compute with the same model."""
    from sentence_transformers import SentenceTransformer

    texts, _ = read_table(Path(__file__).with_name("data") / "reviews.csv", text="text")
    embedder = lmzoo.models.TextEmbedder.from_preset(PRESET)
    with tempfile.TemporaryDirectory() as folder:
        lmzoo.save_checkpoint(embedder, f"{folder}/embedder", to="hf")
        peer_embeddings = SentenceTransformer(f"{folder}/embedder", device="cpu").encode(texts[:60])
    embeddings = embedder.embed(texts[:60])
    pairs = np.triu_indices(60, 1)
    cosines, peer_cosines = ((vectors @ vectors.T)[pairs] for vectors in (embeddings, peer_embeddings))
    print(f"largest difference of two cosines: {np.abs(cosines - peer_cosines).max():.1e}")
    figure, axes = plt.subplots(figsize=(3.6, 3.4), layout="constrained")
    axes.plot(peer_cosines, cosines, ".", markersize=3, alpha=0.5)
    axes.set(xlabel="cosines in Sentence Transformers", ylabel="cosines in lmzoo", aspect="equal")
    axes.grid(alpha=0.3)
    save_figure(figure, path)


def attention(data: Path, path: Path) -> None:
    """Draw the attention of "it" to the tokens of a sentence, in every head of the preset."""
    embedder = lmzoo.models.TextEmbedder.from_preset(PRESET)
    result = lmzoo.analysis.join_words(lmzoo.analysis.attention(embedder, [SENTENCE])[0])
    layers, heads = result.scores.shape[:2]
    scores = result.scores[:, :, result.tokens.index("it")].reshape(layers * heads, -1)  # (L * N, T)
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    axes.imshow(scores, cmap="Blues", vmin=0, aspect="auto")
    axes.set_xticks(range(len(result.tokens)), result.tokens, rotation=45, ha="right")
    names = [f"layer {layer}, head {head}" for layer in range(1, layers + 1) for head in range(1, heads + 1)]
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_title("What “it” attends to")
    save_figure(figure, path)


def layers(data: Path, path: Path) -> None:
    """Draw how far each layer moves the hidden states, for BERT and for ALBERT, whose layers share weights."""
    texts = [text for sentences in word_senses.SENTENCES["bank"].values() for text in sentences]
    figure, panels = plt.subplots(1, 2, figsize=(8, 2.9), layout="constrained")
    for name, marker in (("albert_nano_en_uncased", "o"), (PRESET, "s")):
        changes = lmzoo.analysis.layer_changes(lmzoo.models.TextEmbedder.from_preset(name), texts)
        for axes, values in zip(panels, changes, strict=True):
            axes.plot(range(1, 1 + len(values)), values, f"{marker}-", label=name)
    panels[0].set(title="L2 distance of a layer's input and output", xlabel="layer", ylim=(0, None))
    panels[1].set(title="angle between them, in degrees", xlabel="layer", ylim=(0, 90))
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
    panels[0].legend()
    save_figure(figure, path)


def surprisal(data: Path, path: Path) -> None:
    """Draw the surprisal of each word of two sentences."""
    texts = [
        "She opened the door and went into the room.",
        "She opened the door and went into the banana.",
    ]
    model = lmzoo.models.CausalLM.from_preset("gpt2_nano_en")
    figure, panels = plt.subplots(2, 1, figsize=(8, 3.8), sharey=True, layout="constrained")
    for axes, words in zip(panels, lmzoo.analysis.surprisal(model, texts), strict=True):
        axes.bar(range(len(words)), [word.surprisal for word in words], color="#7aa6d8")
        axes.set_xticks(range(len(words)), [word.word for word in words])
        axes.set_ylabel("surprisal (nats)")
    save_figure(figure, path)


@cache
def train_reviewer() -> Any:
    """Train the classifier of the quickstart on a hundred reviews."""
    texts, labels = (part[: quickstart.LABELED] for part in quickstart.read_reviews("train"))
    return quickstart.fine_tune(texts, labels, pretrained=True, seed=0, epochs=10)


def why(data: Path, path: Path) -> None:
    """Draw texts in which color shows how much the score of the predicted class falls without each word."""
    texts = ["A dull start, but a lovely and funny end.", "The actors are good, and I was bored to tears."]
    attributions = lmzoo.analysis.leave_out(train_reviewer(), texts)
    largest = max(float(np.abs(attribution.values).max()) for attribution in attributions)
    figure, axes = plt.subplots(figsize=(8.6, 1.6), layout="constrained")
    axes.set_axis_off()
    axes.set(xlim=(0, max(map(len, texts)) + 12), ylim=(0, 2 * len(texts)))
    for row, (text, attribution) in enumerate(zip(texts, attributions, strict=True)):
        height = 2 * (len(texts) - row) - 1
        for (start, end), value in zip(attribution.offsets.tolist(), attribution.values, strict=True):
            color = "tab:blue" if value > 0 else "tab:orange"
            box = plt.Rectangle((start, height - 0.6), end - start, 1.2, color=color, alpha=0.8 * abs(value) / largest)
            axes.add_patch(box)
        for position, letter in enumerate(text):
            axes.text(position + 0.5, height, letter, family="monospace", ha="center", va="center", fontsize=10)
        axes.text(len(text) + 1, height, attribution.target, va="center", fontsize=8, color="#555555")
    save_figure(figure, path)


def calibration(data: Path, path: Path) -> None:
    """Draw the accuracy of answers by the probability that the classifier gives them."""
    texts, labels = quickstart.read_reviews("test")
    report = lmzoo.evaluation.report(train_reviewer(), texts, labels, verbose=0)
    titles, rows = report.tables["calibration"]
    count, confidence, accuracy = ([row[titles.index(name)] for row in rows] for name in titles[1:])
    figure, axes = plt.subplots(figsize=(4.4, 3.6), layout="constrained")
    axes.plot([0.5, 1], [0.5, 1], "--", color="#888888", label="if they were right as often as expected")
    axes.scatter(confidence, accuracy, [4 * n for n in count], label="answers; larger if there are more of them")
    axes.set(xlabel="probability of the answer", ylabel="share of right answers", xlim=(0.48, 1.02), ylim=(0, 1.05))
    axes.set_title(f"Expected calibration error {report.scores['ece']:.2f}")
    axes.legend(loc="lower right", fontsize=7)
    axes.grid(alpha=0.3)
    save_figure(figure, path)


def mix(data: Path, path: Path) -> None:
    """Draw the weights that four tasks give the layers of a frozen ELMo."""
    labeled: dict[str, Any] = {"format": "labeled", "label": "label"}
    datasets = {
        "parts of speech": ("TokenClassifier", read_conll(data / "pos_ewt/en_ewt-ud-train.conllu.gz", conllu=True)),
        "names": ("TokenClassifier", read_conll(data / "ner_wnut17/wnut17train.conll")),
        "types of questions": ("TextClassifier", read_table(data / "trec/TREC.train", **labeled, encoding="latin-1")),
        "sentiment": ("TextClassifier", read_table(data / "sst2/stsa.binary.train", **labeled)),
    }
    rows = []
    for name, (kind, (x, y)) in datasets.items():
        x, y = x[:MAX_EXAMPLES], y[:MAX_EXAMPLES]
        labels_words = kind == "TokenClassifier"
        labels = sorted({label for text_labels in y for label in text_labels} if labels_words else {*y})
        task = getattr(lmzoo.models, kind).from_preset(
            "elmo_nano_en", labels=labels, **({} if labels_words else {"pooling": "mean"})
        )
        task.backbone.bilm.trainable = False
        task.compile(optimizer=AdamW(1e-2, global_clipnorm=1.0))
        task.fit(x, y, epochs=6, batch_size=32, seed=0, verbose=2)
        rows.append(lmzoo.analysis.mix_weights(task).weights)
        print(name, rows[-1])
    figure, axes = plt.subplots(figsize=(5.4, 2.8), layout="constrained")
    axes.imshow(rows, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), weight in np.ndenumerate(np.array(rows)):
        axes.text(column, row, f"{weight:.2f}", ha="center", va="center", color="w" if weight > 0.6 else "k")
    axes.set(xticks=range(3), xticklabels=["characters", "layer 1", "layer 2"])
    axes.set(yticks=range(len(rows)), yticklabels=[*datasets])
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """Save a figure without the date, so that the file is reproducible."""
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(f"written to {path}")


def word_sense_gaps(data: Path, path: Path) -> None:
    """Draw how well each layer separates the senses of words, with `examples/word_senses.py`."""
    word_senses.main(["--plot", str(path)])


FROM_PRESETS = {
    "road": lambda data, path: road.draw(path),
    "permutation": lambda data, path: permutation.draw(path),
    "samplers": lambda data, path: save_figure(next_tokens.draw_samplers(), path),
    "orders": lambda data, path: save_figure(next_tokens.draw_orders(), path),
    "fill": fill,
    "answer": answer,
    "choose": choose,
    "attention": attention,
    "layers": layers,
    "surprisal": surprisal,
    "vectors": vectors,
    "search": search,
    "long_texts": long_texts,
    "quantized": quantized,
    "agreement": agreement,
    "word_senses": word_sense_gaps,
    "why": why,
    "calibration": calibration,
}
FROM_DATA = {draw.__name__: draw for draw in (home, classify, tag, score, mix)}
PICTURES = FROM_PRESETS | FROM_DATA


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory of public datasets")
    parser.add_argument("--output", type=Path, default=Path("docs/assets"))
    parser.add_argument("--only", nargs="+", choices=PICTURES)
    args = parser.parse_args(arguments)
    names = args.only or (PICTURES if args.data else FROM_PRESETS)
    if not args.data and (missing := [name for name in names if name in FROM_DATA]):
        parser.error(f"{', '.join(missing)}: need public datasets, --data says where they are")
    args.output.mkdir(parents=True, exist_ok=True)
    for name in names:
        keras.utils.set_random_seed(0)
        mpl.rcParams["svg.hashsalt"] = "pictures"  # makes the files reproducible
        PICTURES[name](args.data, args.output / f"{name}.svg")
    if names is FROM_PRESETS:
        print(f"left out, for want of --data: {', '.join(FROM_DATA)}")


if __name__ == "__main__":
    main()
