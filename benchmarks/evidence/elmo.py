"""Claims about ELMo's layers and directions, and how tasks use them, tested on the shipped preset."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

import numpy as np

import lmzoo
from benchmarks.evidence.claim import Claim, Comparison, Setting
from benchmarks.evidence.words import embed_parts_of_speech, embed_pseudo_words
from benchmarks.quality import DATASETS, sample, take
from lmzoo.training import AdamW

PRESET = "elmo_nano_en"
ELMO = "https://arxiv.org/abs/1802.05365"
POS, SENSES, SENTIMENT = "parts of speech", "senses", "SST-2"
BATCH = 16


def probe_layer(layer: int, seed: int, setting: Setting) -> dict[str, float]:
    """Return the accuracies of linear classifiers on a layer, for parts of speech and for senses of pseudo-words."""
    senses = [words.accuracy(layer) for words in embed_pseudo_words(PRESET, seed, setting)]
    return {POS: embed_parts_of_speech(PRESET, seed, setting).accuracy(layer), SENSES: statistics.mean(senses)}


class Half(NamedTuple):
    """The columns of a direction, and the number of principal components to keep."""

    begin: int
    end: int
    components: int | None = None


def probe_direction(half: Half, seed: int, setting: Setting) -> dict[str, float]:
    """Return the accuracies of `probe_layer` on columns of the last layer; the first half is the forward direction."""
    columns, dims = slice(half.begin, half.end), half.components
    senses = [words.accuracy(-1, columns, dims) for words in embed_pseudo_words(PRESET, seed, setting)]
    speech = embed_parts_of_speech(PRESET, seed, setting).accuracy(-1, columns, dims)
    return {POS: speech, SENSES: statistics.mean(senses)}


class Features(NamedTuple):
    """Frozen vectors below a task's own LSTMs."""

    preset: str
    learning_rate: float = 3e-3


def train_on_features(arm: Features, seed: int, setting: Setting) -> dict[str, float]:
    """Return the accuracies of LSTMs over frozen vectors, for parts of speech and for the sentiment of reviews."""
    results = {}
    for dataset, cls, measure in (
        ("ewt", lmzoo.models.TokenClassifier, POS),
        ("sst2", lmzoo.models.TextClassifier, SENTIMENT),
    ):
        (x, y), dev = DATASETS[dataset].read(setting.data)
        dev = sample(dev, setting.size(1000, 10))
        classes = (
            {"num_classes": 2} if measure == SENTIMENT else {"labels": sorted({tag for tags in y for tag in tags})}
        )
        chosen = np.random.default_rng(seed).permutation(len(x))[: setting.size(1000, 20)]
        task = cls.from_preset(arm.preset, encoder="bilstm", encoder_dim=64, **classes)
        (task.backbone.bilm if arm.preset == PRESET else task.backbone.token_embedding).trainable = False
        task.compile(optimizer=AdamW(arm.learning_rate, global_clipnorm=1.0))
        task.fit(*take((x, y), chosen), epochs=setting.size(5, 1), batch_size=BATCH, seed=seed, verbose=0)
        results[measure] = float(task.evaluate(*dev, verbose=0, return_dict=True)["accuracy"])
    return results


class Tagging(NamedTuple):
    """Settings of a tagger on ELMo: the only layer that it reads, or None for the learned mix, and the training."""

    layer: int | None = None
    tuned: bool = False
    sentences: int = 1000
    epochs: int = 5


def tag(arm: Tagging, seed: int, setting: Setting) -> dict[str, float]:
    """Return the accuracy of a part-of-speech tagger with bidirectional LSTMs, as in the paper."""
    (x, y), dev = DATASETS["ewt"].read(setting.data)
    labels, dev = sorted({tag for tags in y for tag in tags}), sample(dev, setting.size(1000, 10))
    chosen = np.random.default_rng(seed).permutation(len(x))[: setting.size(arm.sentences, 20)]
    task = lmzoo.models.TokenClassifier.from_preset(PRESET, labels=labels, encoder="bilstm", encoder_dim=64)
    backbone: Any = task.backbone
    backbone.bilm.trainable = arm.tuned
    if arm.layer is not None:
        backbone.scalar_mix.scalars.assign(100.0 * np.eye(3)[arm.layer])  # the softmax of these is 1 for the layer
        backbone.scalar_mix.trainable = False
    task.compile(optimizer=AdamW(1e-3 if arm.tuned else 3e-3, global_clipnorm=1.0))
    epochs = setting.size(arm.epochs, 1)
    task.fit(*take((x, y), chosen), epochs=epochs, batch_size=BATCH, seed=seed, verbose=0)
    return {POS: float(task.evaluate(*dev, verbose=0, return_dict=True)["accuracy"])}


SIZES = {100: 30, 300: 12, 1000: 5}  # epochs by number of sentences, so that the number of steps differs little
FROZEN = Tagging()
TAGGER = """The tagger is the one in the paper: one bidirectional LSTM layer, of width 64 in each direction, over
ELMo's vectors and word vectors of its own (`TokenClassifier(encoder="bilstm")`). It learns parts of speech from
1,000 sentences of UD English-EWT, which each seed draws, for 5 epochs, and is tested on 1,000 others. The optimizer
is AdamW with a peak learning rate of 0.003, in batches of 16."""
SAME_TAGGER = "The tagger, its task and its training are the same as for [all layers or the last one](#elmo_mix)"

CLAIMS = (
    Claim(
        name="static_vectors",
        title="One vector per word, or vectors that depend on the context",
        says="Vectors that depend on the context are better features than one vector per word.",
        source="Peters et al. (2018), table 1",
        url=ELMO,
        arms={"one vector per word": Features("word2vec_nano_en"), "ELMo": Features(PRESET)},
        run=train_on_features,
        rule=(Comparison("ELMo", "one vector per word", POS), Comparison("ELMo", "one vector per word", SENTIMENT)),
        how="""A bidirectional LSTM of width 64 in each direction reads frozen vectors, either of `word2vec_nano_en` or
of `elmo_nano_en`, and word vectors of its own, as in the paper. It learns parts of speech from 1,000 sentences of UD
English-EWT, and the sentiment of 1,000 sentences of SST-2, which each seed draws; it is tested on 1,000 and 872 others.
It is trained for five epochs with AdamW, at a peak learning rate of 0.003, in batches of 16.""",
        limits="""The static vectors were trained on more text than ELMo, 72M words instead of 23M, which
favors them; they do not tell uppercase from lowercase. The paper adds ELMo to static vectors instead of comparing the
two.""",
        reading="""For parts of speech, ELMo is more than two points better, which avoids a fifth of the errors. For
sentiment, it is two points worse, which is less than twice the standard error. A possible reason is that ELMo, unlike
the static vectors, was not trained on modern texts.""",
    ),
    Claim(
        name="elmo_layers",
        title="ELMo: syntax in the first layer, meaning in the second",
        says="The first LSTM layer captures more syntax, the second more meaning.",
        source="Peters et al. (2018), tables 5 and 6",
        url=ELMO,
        arms={"characters": 0, "first LSTM": 1, "second LSTM": 2},
        run=probe_layer,
        rule=(Comparison("first LSTM", "second LSTM", POS), Comparison("second LSTM", "first LSTM", SENSES)),
        how="""A logistic regression is trained on the vectors of single words in each layer of `elmo_nano_en`.
Syntax is tested with the parts of speech of UD English-EWT, on 1,000 training sentences, which each seed draws, and
500 test sentences. Meaning is tested with ten made-up ambiguous words such as river/church: in sentences from
Wikipedia, both words of such a pair are replaced by "thing", and the classifier has to tell from the vector of
"thing" which of the two it was. There are 200 sentences for each word, half of them for training. The paper
disambiguated the words of SemCor.""",
        limits="""Made-up words test the topic of a sentence more than shades of meaning. The
characters of "thing" give the same vector everywhere, so their accuracy is the fraction of the more frequent word
of a pair; it is above one half because some words occur in fewer than 200 sentences.""",
        reading="""The result is the same as in the paper, and the differences are about as small: half a point for
parts of speech, two points for senses. Both LSTM layers are far better than the characters alone.""",
    ),
    Claim(
        name="elmo_directions",
        title="ELMo: forward, backward, or both",
        says="A language model in both directions gives better vectors than one in a single direction.",
        source="Peters et al. (2017), section 4; Peters et al. (2018), section 3.1",
        url="https://arxiv.org/abs/1705.00108",
        arms={
            "forward": Half(0, 64),
            "backward": Half(64, 128),
            "both, reduced to 64 dimensions": Half(0, 128, 64),
            "both": Half(0, 128),
        },
        run=probe_direction,
        rule=tuple(
            Comparison("both, reduced to 64 dimensions", arm, measure)
            for arm in ("forward", "backward")
            for measure in (POS, SENSES)
        ),
        how="""The vectors of ELMo's last layer join the outputs of a forward and a backward language model, with 64
dimensions each. The classifiers are the same as for [the layers](#elmo_layers), on one half, on the other, and on
both. Since more dimensions alone may help, the rule uses both halves reduced to 64 principal components.""",
        limits="A language model in one direction with twice the width was not trained.",
        reading="""With the same number of dimensions, both directions together are three points better than either
one for parts of speech, and four to six points better for senses.""",
    ),
    Claim(
        name="elmo_mix",
        title="ELMo: all layers or the last one",
        says="A learned mix of all layers is better than the last layer alone.",
        source="Peters et al. (2018), table 2",
        url=ELMO,
        arms={"mix, frozen": FROZEN, "last layer, frozen": Tagging(layer=2)},
        run=tag,
        rule=(Comparison("mix, frozen", "last layer, frozen", POS),),
        how=TAGGER,
        limits="There is only one task, a syntactic one, for which the last layer is expected to be worse.",
        reading="""The mix is a quarter of a point better, as in the paper, but the difference is less than twice its
standard error.""",
    ),
    Claim(
        name="elmo_frozen",
        title="ELMo: frozen or fine-tuned",
        says="ELMo does better as frozen features below a task's own LSTMs than when it is fine-tuned.",
        source="Peters et al. (2019), table 2",
        url="https://arxiv.org/abs/1903.05987",
        arms={"mix, frozen": FROZEN, "mix, fine-tuned": Tagging(tuned=True)},
        run=tag,
        rule=(Comparison("mix, frozen", "mix, fine-tuned", POS),),
        how=f"{SAME_TAGGER}, except for a peak learning rate of 0.001 if the language model is also trained.",
        limits="""The paper unfroze the language model step by step, with learning rates that differ
by layer; here everything is trained from the first step. The learning rates were not tuned, and the lower one also
applies to the tagger's own layers, which may account for part of the difference.""",
        reading="""Fine-tuning, at its lower learning rate, is nearly a point worse.""",
    ),
    Claim(
        name="few_labels",
        title="ELMo or static vectors, with few labels",
        says="With ELMo, a tenth of the labels is enough to do as well as with static vectors.",
        source="Peters et al. (2018), figure 1",
        url=ELMO,
        arms={
            f"{name}, {sentences:,} sentences": Tagging(layer, False, sentences, epochs)
            for sentences, epochs in SIZES.items()
            for name, layer in {"static": 0, "ELMo": None}.items()
        },
        run=tag,
        rule=(
            Comparison("ELMo, 100 sentences", "static, 100 sentences", POS),
            Comparison("ELMo, 1,000 sentences", "static, 1,000 sentences", POS),
            Comparison("ELMo, 100 sentences", "static, 1,000 sentences", POS, -0.01),
        ),
        how=f"""{SAME_TAGGER}, except for the number of sentences: 100 for 30 epochs, 300 for 12, or 1,000 for 5. The
static vectors come from below ELMo's LSTMs: they are computed from the characters of a word alone, and were trained on
the same text. In the last comparison, the rule allows ELMo with a tenth of the sentences to be one point
worse.""",
        limits="""Static vectors from characters capture the endings of words, unlike the paper's
vectors from a table, so they are a strong baseline for parts of speech.""",
        reading="""ELMo is better with every number of sentences, by 1.7 points with 100 and by 1.3 with 1,000. With
300 sentences it is nearly as good as static vectors with 1,000; with 100 sentences, a tenth, it is almost two
points worse.""",
    ),
)
