"""Claims about other ways to reuse a model: translation encoders (CoVe), ULMFiT, and several tasks on one backbone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import fmean

import keras
import numpy as np

import lmzoo
from benchmarks import multi30k, several_tasks, ulmfit
from benchmarks.evidence.claim import Claim, Comparison, Setting
from benchmarks.quality import DATASETS, sample, split
from lmzoo.training import AdamW

QUESTIONS, SENTIMENT, MEAN = "TREC, 100 labels", "SST-2, 100 labels", "mean accuracy"
KINDS_OF_QUESTIONS = "kinds of questions"
WORDS, COVE, ALL_WORDS = "word vectors", "with CoVe", "vectors of all words"
STATIC = "word2vec_nano_en"
PLAIN, ULMFIT = "plain, after the texts", "ULMFiT"
ALONE, TOGETHER = "alone", "together"
TITLES = {"trec": "TREC", "sst2": "SST-2", "mnli": "MNLI"}
EPOCHS_OF_TRANSLATION = 8
EXAMPLES = 2000  # of each task that is trained together with others


@cache
def train_translator(setting: Setting) -> Path:
    """Train a translator from English to German on Multi30k, and return its preset; a stored one is reused."""
    work = setting.work / ("cove_trial" if setting.trial else "cove")
    preset = work / "preset"
    if preset.exists():
        return preset
    german, english = multi30k.read(setting.data / "mt_multi30k", "train", setting.size(29_000, 60))
    keras.utils.set_random_seed(0)
    tokenizer = multi30k.load_or_train_tokenizer(work, english, german, setting.size(8000, 300))
    model = multi30k.build_model(tokenizer, layers=2, width=128, dropout=0.1, learning_rate=3e-3)
    epochs = setting.size(EPOCHS_OF_TRANSLATION, 1)
    model.fit((english, german), batch_size=setting.size(128, 20), epochs=epochs, verbose=0)
    model.save_to_preset(preset)
    return preset


def classify_questions(arm: str, seed: int, setting: Setting) -> dict[str, float]:
    """Return the accuracy of a BiLSTM on TREC, on word vectors alone or joined with those of a translator's encoder."""
    train, test = DATASETS["trec"].read(setting.data)
    arguments = {"num_classes": max(train[1]) + 1, "encoder": "bilstm", "encoder_dim": 64}
    if arm != ALL_WORDS:
        arguments["word_vectors"] = lmzoo.models.StaticEmbedder.from_preset(STATIC)
    preset = STATIC if arm == ALL_WORDS else str(train_translator(setting))
    task = lmzoo.models.TextClassifier.from_preset(preset, sequence_length=64, **arguments)
    if arm == WORDS:  # the encoder's vectors are zero
        norm = task.backbone.get_layer("block_1").output_layer_norm
        norm.set_weights([np.zeros(weight.shape) for weight in norm.weights])
    task.backbone.trainable = False
    task.compile(AdamW(3e-3, global_clipnorm=1.0))
    task.fit(*sample(train, setting.size(len(train[1]), 40)), epochs=setting.size(8, 1), seed=seed, verbose=0)
    return {KINDS_OF_QUESTIONS: float(task.evaluate(*test, verbose=0, return_dict=True)["accuracy"])}


def tune_with_few_labels(method: str, seed: int, setting: Setting) -> dict[str, float]:
    """Return the accuracies with 100 labels, each at the learning rate that is best on the validation examples."""
    scores = {}
    for measure, name in ((QUESTIONS, "trec"), (SENTIMENT, "sst2")):
        train, dev = DATASETS[name].read(setting.data)
        parts = [*split(train), dev]
        adapted = setting.work / ("ulmfit_trial" if setting.trial else "ulmfit") / name
        ulmfit.adapt(parts[0][0][: setting.size(len(parts[0][0]), 50)], adapted, setting.size(3, 1))
        labeled = [sample(parts[0], 100), *parts[1:]]
        rates = ulmfit.RATES[: setting.size(len(ulmfit.RATES), 1)]
        runs = [ulmfit.run(method, adapted, max(train[1]) + 1, 100, rate, seed, labeled) for rate in rates]
        scores[measure] = max(runs, key=lambda run: run["validation"])["accuracy"]
    return scores


def train_tasks(together: bool, seed: int, setting: Setting) -> dict[str, float]:
    """Return the accuracies on TREC, SST-2 and MNLI, whose models share a backbone or are trained one by one."""
    count = setting.size(EXAMPLES, 30)
    parts = {}
    for name, read in several_tasks.READ.items():
        train, dev = read(setting.data)
        parts[name] = sample(train, count), sample(dev, setting.size(len(dev[1]), 20))
    groups = [parts] if together else [{name: part} for name, part in parts.items()]
    scores: dict[str, float] = {}
    for group in groups:
        scores |= several_tasks.run("bert_nano_en_uncased", group, 1.0, setting.size(3, 1), seed)
    accuracies = {TITLES[name]: scores[name] for name in parts}
    return {**accuracies, MEAN: fmean(accuracies.values())}


CLAIMS = (
    Claim(
        name="cove",
        title="CoVe: vectors from a translator",
        says="Word vectors are better features if the vectors of a translation model's encoder are joined to them.",
        source="McCann et al. (2017), section 6",
        url="https://arxiv.org/abs/1708.00107",
        arms={arm: arm for arm in (WORDS, COVE, ALL_WORDS)},
        run=classify_questions,
        rule=(Comparison(COVE, WORDS, KINDS_OF_QUESTIONS),),
        how=f"""A Marian with two blocks of width 128 in its encoder and in its decoder learns to translate the 29,000
captions of Multi30k from English to German, for {EPOCHS_OF_TRANSLATION} epochs. A classifier with a BiLSTM of width 64
in each direction then learns TREC's six kinds of questions for 8 epochs. It reads the vectors of `{STATIC}`, joined
with the frozen encoder's vectors or, as word vectors alone, with zeros. Both arms read the translator's tokens, of
which only whole words have word vectors; the third arm reads words, nearly all of which have one. In the paper, an
encoder that was trained on up to 7 million pairs of sentences improves sentiment analysis, question classification,
entailment and question answering.""",
        limits="There is only one translator. It was trained on captions of images, whose words seldom occur in"
        " questions. The arm with zeros was added after a first run, in which the arm without the translator read"
        " words.",
        reading="""The translator's vectors add half a point, which is less than the spread over seeds. Which words have
a vector matters more: the translator's vocabulary, learned from captions, splits more than half of the questions'
words, and a classifier without the translator that knows nearly all words is three points better.""",
    ),
    Claim(
        name="ulmfit",
        title="ULMFiT with few labels",
        says="With 100 labels, ULMFiT is better than plain fine-tuning of the same language model.",
        source="Howard & Ruder (2018), table 7",
        url="https://arxiv.org/abs/1801.06146",
        arms={PLAIN: PLAIN, ULMFIT: ULMFIT},
        run=tune_with_few_labels,
        rule=(Comparison(ULMFIT, PLAIN, QUESTIONS), Comparison(ULMFIT, PLAIN, SENTIMENT)),
        how="""In both arms, `lstm_nano_en` has first read the training texts without labels for 3 epochs, with
AWD-LSTM's dropouts. ULMFiT adds learning rates by layer, slanted triangles, gradual unfreezing and concatenated
pooling. Each arm is trained for 20 epochs, at the best of the peak learning rates 0.001, 0.003, 0.01 and 0.03 on
held-out training examples. The paper compares the two arms with all labels; with 100 labels, its ULMFiT does as well as
training from scratch with 10 to 20 times as many (figure 3).""",
        limits="The language model is small, and the 100 labels were drawn only once. The learning rate of 0.03 was"
        " added after a first run, in which 0.01, the highest, was often the best for ULMFiT.",
        reading="""With 100 labels, ULMFiT is no better on TREC, and four points worse on SST-2. With 1,000 labels it is
[two points better](../quality.md#recipes-from-papers) than plain fine-tuning of the preset. The language model is small
and has read little text, so it has less to lose by fine-tuning all layers at once.""",
    ),
    Claim(
        name="several_tasks",
        title="MT-DNN: several tasks on one backbone",
        says="Tasks that are trained together on one backbone are better than each alone.",
        source="Liu et al. (2019), table 2",
        url="https://arxiv.org/abs/1901.11504",
        arms={ALONE: False, TOGETHER: True},
        run=train_tasks,
        rule=(Comparison(TOGETHER, ALONE, MEAN),),
        how=f"""`bert_nano_en_uncased` learns TREC, SST-2 and MNLI (the public development part, split by premises),
{EXAMPLES:,} examples of each, for 3 epochs with batches of 32 and a peak learning rate of 0.001, one by one or together
(`fit_together`). The rule is about the mean of the three accuracies. MT-DNN, trained on all of GLUE and then fine-tuned
on each task, gained 2.2 points over BERT-large (80.5 to 82.7).""",
        limits="There are only three tasks, the training sets are small, the learning rate was not tuned, and no task"
        " is fine-tuned alone after the common training.",
        reading="""All three tasks are worse together: TREC by two points, SST-2 by three, MNLI by five. For each task,
two thirds of the backbone's steps are spent on the other two tasks, which have little in common with it, and a network
of this size has little capacity to spare. On MNLI, always giving the same answer is right in 34% of the pairs.""",
    ),
)
