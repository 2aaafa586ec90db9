"""Claims about task models on ELMo or on static vectors: text pairs, questions and names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import lmzoo
from benchmarks.evidence.claim import Claim, Comparison, Setting
from benchmarks.evidence.elmo import ELMO, PRESET
from benchmarks.quality import DATASETS, Examples, sample, take
from lmzoo.data.readers import read_table
from lmzoo.training import AdamW

PAIRS, ANSWERS, NAMES = "entailment", "answers, F1", "names, F1"
ARMS = {"static": 0, "ELMo": None}  # index of the only layer, or None for the learned mix
FROZEN = """ELMo is `elmo_nano_en`, frozen; only the mix of its layers and the layers on top are trained. The static
vectors come from below ELMo's LSTMs: they are computed from the characters of a word alone, and were trained on the
same text. Both arms also have word vectors of the task's own. The optimizer is AdamW with a peak learning rate of
0.003."""
SAME = "The vectors and the optimizer are the same as for [ESIM](#elmo_pairs)."


def load(task: str, layer: int | None, **arguments: Any) -> Any:
    """Load a task on the frozen preset; it reads only `layer`, or the learned mix of layers if that is None."""
    model = getattr(lmzoo.models, task).from_preset(PRESET, **arguments)
    backbone = model.backbone
    backbone.bilm.trainable = False
    if layer is not None:
        backbone.scalar_mix.scalars.assign(100.0 * np.eye(3)[layer])  # the softmax of these is 1 for the layer
        backbone.scalar_mix.trainable = False
    model.compile(optimizer=AdamW(3e-3, global_clipnorm=1.0))
    return model


def read_snli(folder: Path) -> tuple[Examples, Examples]:
    """Read SNLI's public part; the pairs of every fifth premise are for testing."""
    x, y = read_table(folder / "nli/snli_dev.open.csv.gz", text="premise", pair="hypothesis", label="label")
    number = {premise: i for i, premise in enumerate(dict.fromkeys(x[0]))}
    is_test = np.array([number[premise] % 5 == 0 for premise in x[0]])
    return take((x, y), np.flatnonzero(~is_test)), take((x, y), np.flatnonzero(is_test))


def classify_pairs(layer: int | None, seed: int, setting: Setting) -> dict[str, float]:
    """Return the accuracy of ESIM on SNLI."""
    train, test = read_snli(setting.data)
    chosen = np.random.default_rng(seed).permutation(len(train[1]))[: setting.size(5000, 40)]
    task = load("TextClassifier", layer, labels=sorted(set(train[1])), encoder="esim", encoder_dim=64)
    task.fit(*take(train, chosen), epochs=setting.size(6, 1), batch_size=32, seed=seed, verbose=0)
    test = sample(test, setting.size(len(test[1]), 20))
    return {PAIRS: float(task.evaluate(*test, verbose=0, return_dict=True)["accuracy"])}


def answer_questions(layer: int | None, seed: int, setting: Setting) -> dict[str, float]:
    """Return the F1 of BiDAF on SQuAD."""
    dataset = DATASETS["squad"]
    train, test = dataset.read(setting.data)
    order = np.random.default_rng(seed).permutation(len(train[1]))[: setting.size(1200, 10)]
    task = load("QuestionAnswerer", layer, encoder="bidaf", encoder_dim=64, sequence_length=256)
    task.fit(*take(train, order), epochs=setting.size(6, 1), batch_size=32, seed=seed, verbose=0)
    return {ANSWERS: dataset.score(task, *sample(test, setting.size(500, 5)))["F1"]}


def tag_names(layer: int | None, seed: int, setting: Setting) -> dict[str, float]:
    """Return the span F1 of a tagger with LSTMs and a CRF on Wikigold."""
    train, test = DATASETS["wikigold"].read(setting.data)
    chosen = np.random.default_rng(seed).permutation(len(train[1]))[: setting.size(len(train[1]), 20)]
    labels = sorted({label for row in train[1] for label in row})
    task = load("TokenClassifier", layer, labels=labels, encoder="bilstm", encoder_dim=128, crf=True)
    task.fit(*take(train, chosen), epochs=setting.size(10, 1), batch_size=32, seed=seed, verbose=0)
    scores = task.evaluate(*sample(test, setting.size(len(test[1]), 10)), verbose=0, return_dict=True)
    return {NAMES: float(scores["span_f1"])}


CLAIMS = (
    Claim(
        name="elmo_pairs",
        title="ELMo or static vectors below ESIM",
        says="With ELMo, ESIM is better at entailment than with static vectors.",
        source="Peters et al. (2018), table 1",
        url=ELMO,
        arms=ARMS,
        run=classify_pairs,
        rule=(Comparison("ELMo", "static", PAIRS),),
        how=f"""ESIM (`encoder="esim"`), of width 64 in each direction, learns from 5,000 pairs of SNLI's development
set, which each seed draws, for 6 epochs, and is tested on the pairs of every fifth premise. {FROZEN} The paper trained
on 550,000 pairs, and gained 0.7 points (88.0 to 88.7).""",
        limits="""The static vectors are trained on the same text as ELMo, not on 840 billion words as in the paper.
Here ELMo reads both texts as one sequence; in the paper, each text alone.""",
        reading="""With ELMo, ESIM is four points worse. A likely reason is that ESIM aligns the words of two texts by
the similarity of their vectors. A word that occurs in both texts has the same static vector in both, but two different
ELMo vectors, and 5,000 pairs are too few to learn that these belong together. BiDAF, which also aligns words,
[is worse as well](#elmo_questions), while taggers, which do not align words, are better with ELMo.""",
    ),
    Claim(
        name="elmo_questions",
        title="ELMo or static vectors below BiDAF",
        says="With ELMo, BiDAF is better at questions than with static vectors.",
        source="Peters et al. (2018), table 1",
        url=ELMO,
        arms=ARMS,
        run=answer_questions,
        rule=(Comparison("ELMo", "static", ANSWERS),),
        how=f"""BiDAF (`encoder="bidaf"`), of width 64 in each direction, learns from 1,200 questions of SQuAD 1.1,
shuffled by each seed, for 6 epochs, and is tested on 500 questions of the development set. {SAME} The paper trained a
variant of BiDAF with self-attention on 87,599 questions, and gained 4.7 points (81.1 to 85.8).""",
        limits="From so few questions, BiDAF learns little with either kind of vectors. As for ESIM, the static vectors"
        " are trained on the same text as ELMo.",
        reading="""From 1,200 questions, neither arm learns to answer: returning the sentence that is most like the
question has an F1 of 17. With ELMo, whose three layers are mixed, F1 is even three points lower than with its lowest
layer alone.""",
    ),
    Claim(
        name="taglm",
        title="TagLM: a frozen language model below LSTMs and a CRF",
        says="A tagger of names is better with the last layer of a bidirectional language model.",
        source="Peters et al. (2017), table 1",
        url="https://arxiv.org/abs/1705.00108",
        arms={"static": 0, "last layer": 2, "ELMo": None},
        run=tag_names,
        rule=(Comparison("last layer", "static", NAMES),),
        how=f"""The tagger has LSTMs in both directions, of width 128, and a CRF
(`TokenClassifier(encoder="bilstm", crf=True)`). It learns the names of Wikigold for 10 epochs, and is tested on the
last fifth of its sentences. {SAME} In TagLM, the tagger read the last layer of the language model; ELMo's mix of all
layers is the third arm. On CoNLL-2003, TagLM gained 1.1 points (90.9 to 91.9), and ELMo 2.1 (90.2 to 92.2).""",
        limits="TagLM joined the language model to the tagger's second layer of LSTMs; here there is one layer. As"
        " for ESIM, the static vectors are trained on the same text as ELMo.",
        reading="""The last layer is four points better than the static vectors, and the mix of all layers five. Both
papers' gains are smaller, since their static vectors and taggers are far better.""",
    ),
)
