"""Claims about BERT's vectors as features and about word senses, tested on shipped presets."""

from __future__ import annotations

import runpy
from functools import cache
from typing import Any, NamedTuple

import keras
import numpy as np
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

import lmzoo
from benchmarks.common import ROOT
from benchmarks.evidence.claim import Claim, Comparison, Setting
from benchmarks.evidence.words import load_embedder
from benchmarks.quality import WIKIGOLD, Examples, run, sample
from lmzoo.training import AdamW
from lmzoo.training.span_metrics import IGNORED, SpanScore

PRESET = "bert_nano_en_uncased"
F1, SAME = "F1 of entities", "nearest use has the same sense"
EPOCHS, BATCH = 10, 32
EXAMPLE = runpy.run_path(str(ROOT / "examples/word_senses.py"))


@cache
def read_wikigold(setting: Setting) -> tuple[Examples, Examples]:
    """Return the training and test sentences of Wikigold."""
    train, test = WIKIGOLD.read(setting.data)
    return sample(train, setting.size(len(train[1]), 24)), sample(test, setting.size(len(test[1]), 8))


@cache
def embed_wikigold(setting: Setting) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the vectors of the words of each sentence in all layers, float32 (w, L, H)."""
    embedder = load_embedder(PRESET)
    return tuple(
        [sentence.vectors for sentence in embedder.embed(x, level="word", layers="all")]
        for x, _ in read_wikigold(setting)
    )


def measure_entities(layers: tuple[int, ...] | None, seed: int, setting: Setting) -> dict[str, float]:
    """Return the F1 of LSTMs on the joined, frozen vectors of `layers`, or of the fine-tuned model if it is None."""
    train, test = read_wikigold(setting)
    if layers is None:
        dataset = WIKIGOLD._replace(epochs=setting.size(EPOCHS, 1))
        return {F1: run(PRESET, True, dataset, 3e-4, seed, [train, sample(test, 8), test])["span_f1"]}
    labels = sorted({tag for _, y in (train, test) for tags in y for tag in tags})
    numbers = {tag: i for i, tag in enumerate(labels)}

    def batches(vectors: list[np.ndarray], y: list[list[str]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return padded batches of sentences with similar lengths: float (b, w, K·H), int (b, w)."""
        order = np.argsort([len(tags) for tags in y], kind="stable")
        groups = np.split(order, range(BATCH, len(order), BATCH))
        results = []
        for group in groups:
            width = max(len(y[i]) for i in group)
            rows = [vectors[i][:, list(layers)].reshape(len(vectors[i]), -1) for i in group]
            x = np.stack([np.pad(row, ((0, width - len(row)), (0, 0))) for row in rows])
            padded = [[numbers[tag] for tag in y[i]] + [IGNORED] * (width - len(y[i])) for i in group]
            results.append((x, np.array(padded, "int32")))
        return results

    parts = [batches(vectors, y) for vectors, (_, y) in zip(embed_wikigold(setting), (train, test), strict=True)]
    inputs = keras.Input((None, parts[0][0][0].shape[-1]))
    x = keras.layers.Dropout(0.1)(inputs)
    x = keras.layers.Bidirectional(keras.layers.LSTM(128, return_sequences=True))(
        x, mask=keras.ops.any(inputs != 0, axis=-1)
    )
    model = keras.Model(inputs, keras.layers.Dense(len(labels))(x))
    epochs = setting.size(EPOCHS, 1)
    rate = keras.optimizers.schedules.PolynomialDecay(1e-3, epochs * len(parts[0]), end_learning_rate=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=IGNORED)
    model.compile(AdamW(rate, global_clipnorm=1.0), loss)
    rng, score = np.random.default_rng(seed), SpanScore(labels, "f1")
    for _ in range(epochs):
        for i in rng.permutation(len(parts[0])):
            model.train_on_batch(*parts[0][i])
    for vectors, right in parts[1]:
        score.update_state(right, model.predict_on_batch(vectors))
    return {F1: float(score.result())}


class Layer(NamedTuple):
    """A layer of a preset, or of a model of the same shape with random weights."""

    preset: str
    layer: int
    pretrained: bool = True


@cache
def embed_uses(preset: str, pretrained: bool, seed: int) -> dict[str, Any]:
    """Return the vectors in all layers and the senses of each word's uses; `seed` tells random weights apart."""
    embedder: lmzoo.models.TextEmbedder = load_embedder(preset, pretrained)
    return {word: EXAMPLE["embed_uses"](word, embedder) for word in EXAMPLE["SENTENCES"]}


def measure_nearest(arm: Layer, seed: int, setting: Setting) -> dict[str, float]:
    """Return how often the nearest use of a word has the same sense, among a random three quarters of the sentences."""
    scores, rng = [], np.random.default_rng(seed)
    for vectors, senses in embed_uses(arm.preset, arm.pretrained, seed if not arm.pretrained else 0).values():
        chosen = np.sort(rng.permutation(len(senses))[: len(senses) * 3 // 4])
        classifier = KNeighborsClassifier(1, metric="cosine")
        hits = cross_val_score(classifier, vectors[chosen, arm.layer], senses[chosen], cv=LeaveOneOut())
        scores.append(hits.mean())
    return {SAME: float(np.mean(scores))}


ELMO = "elmo_nano_en"
CLAIMS = (
    Claim(
        name="feature_based",
        title="BERT: features or fine-tuning",
        says="The last four layers, joined, are the best features, close to fine-tuning; embeddings are the worst.",
        source="Devlin et al. (2019), table 7",
        url="https://arxiv.org/abs/1810.04805",
        arms={
            "embeddings": (0,),
            "last layer but one": (-2,),
            "last layer": (-1,),
            "last four, joined": (-4, -3, -2, -1),
            "fine-tuned": None,
        },
        run=measure_entities,
        rule=(
            Comparison("last four, joined", "last layer", F1),
            Comparison("last layer", "embeddings", F1),
            Comparison("fine-tuned", "last four, joined", F1),
        ),
        how="""The task is to find the entities in Wikigold, with 1,101 training sentences and 276 test sentences.
The features are frozen vectors of `bert_nano_en_uncased`, averaged over the tokens of each word. One bidirectional
LSTM layer, of width 128 in each direction, reads them (AdamW, peak learning rate 0.001, 10 epochs in batches of
32). Fine-tuning trains all weights and a linear layer, at a peak learning rate of 0.0003, also for 10 epochs.""",
        limits="""The preset has six layers, so "the last four" are most of it. The paper used two LSTM layers, a
cased model and a larger dataset. Its table also has learned weighted sums of layers, which are left out here.""",
        reading="""Four layers joined are three points better than the last layer alone, which is six points better
than the embeddings. Fine-tuning, with a deviation of two points, is not better than the features: on 1,100
sentences, LSTMs over frozen vectors do as well. Unlike in the paper, the last layer but one is no better than the
last.""",
    ),
    Claim(
        name="word_senses",
        title="One word, two senses",
        says="The vector of a word depends on its sense: uses in the same sense are nearest to each other.",
        source="Peters et al. (2018), table 4",
        url="https://arxiv.org/abs/1802.05365",
        arms={
            "ELMo, characters": Layer(ELMO, 0),
            "ELMo, first LSTM": Layer(ELMO, 1),
            "ELMo, second LSTM": Layer(ELMO, 2),
            "ELMo, second LSTM, random weights": Layer(ELMO, 2, False),
            "BERT, embeddings": Layer(PRESET, 0),
            "BERT, last layer": Layer(PRESET, -1),
            "BERT, last layer, random weights": Layer(PRESET, -1, False),
        },
        run=measure_nearest,
        rule=(
            Comparison("ELMo, second LSTM", "ELMo, characters", SAME),
            Comparison("ELMo, second LSTM", "ELMo, second LSTM, random weights", SAME),
            Comparison("BERT, last layer", "BERT, embeddings", SAME),
            Comparison("BERT, last layer", "BERT, last layer, random weights", SAME),
        ),
        how="""The sentences are those of `examples/word_senses.py`: 32 with "bank" in four senses and 16 with
"apple" in two. For each use of a word, the experiment finds the nearest other use by cosine similarity. The measure
is how often both have the same sense, averaged over the two words. Each seed draws three quarters of the sentences.
By chance, the measure would be 23% and 47%, or 35% on average.""",
        limits="""There are only two words and 48 sentences, which were written for this experiment. BERT's
embeddings contain the position in the sentence, and ELMo's characters may contain a capital letter, so they are not at
chance. The paper shows examples, without counts.""",
        reading="""With trained models, the nearest use has the same sense more than four times out of five. With
random weights, which read the same neighboring words, it has the same sense half of the time. ELMo's first layer is
as good as its second.""",
    ),
)
