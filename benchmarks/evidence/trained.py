"""Claims about pre-training: BERTs of 2 × 128, and variants of them, on 2 million tokens of Wikipedia."""

from __future__ import annotations

import dataclasses
import os
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import lmzoo
from benchmarks.evidence.claim import Claim, Comparison, Setting
from benchmarks.evidence.variants import get_family_of_tokens, get_or_register_family
from benchmarks.evidence.words import embed_parts_of_speech
from benchmarks.pretraining_trials import probe
from lmzoo.data.corpora import pack_sentences, read_documents
from lmzoo.pretraining import Recipe, pretrain
from lmzoo.text import Masking
from lmzoo.training import AdamW

TEXT, HELD_OUT = (
    [f"pretrain_modern/{name}-{part}.txt.xz" for name in ("wikiculture", "wikipedia")] for part in ("train-00", "dev")
)
LENGTH, VOCABULARY, NUM_HELD_OUT = 64, 4000, 3000
LOSS, SST2, POS = "held-out loss", "SST-2", "parts of speech"
NEXT, ORDER = "next or random sentence", "order of sentences"
ROBERTA, ALBERT = "https://arxiv.org/abs/1907.11692", "https://arxiv.org/abs/1909.11942"


@dataclasses.dataclass(frozen=True)
class Training:
    """Settings of a training, as in `Recipe`; `documents` limits the text, which is then read more than once."""

    family: str = "bert"
    size: str = "2x128"
    tokens: int = 2_000_000
    batch_size: int = 32
    learning_rate: float = 1e-3
    objective: str = "none"
    dynamic: bool = True
    documents: int | None = None

    def recipe(self, seed: int, setting: Setting) -> Recipe:
        """Return the recipe, smaller for a trial."""
        fields = {key: value for key, value in dataclasses.asdict(self).items() if key != "documents"}
        fields |= {"tokens": setting.size(self.tokens, 4000), "vocabulary_size": setting.size(VOCABULARY, 500)}
        if get_or_register_family(self.family).backbone.causal:
            fields.pop("objective")  # causal models have only one
        return Recipe(**fields, sequence_length=LENGTH, positions=LENGTH, seed=seed)

    @property
    def folder(self) -> str:
        """Directory name of the runs with these settings."""
        values = [str(getattr(self, field.name)) for field in dataclasses.fields(self)]
        return "_".join(values).replace(".", "")


def train(arm: Training, seed: int, setting: Setting) -> Path:
    """Return the path of an arm's preset, which is first trained if it does not exist; a stopped run continues."""
    get_or_register_family(arm.family)
    folder = setting.work / f"{arm.folder}_{seed}"
    preset, run_folder = folder / "preset", folder / "run"
    if preset.exists():
        return preset
    files = [str(setting.data / name) for name in TEXT]
    count = setting.size(arm.documents or 0, 40)
    text: Any = list(islice(read_documents(files), count)) if count else files
    held_out = [str(setting.data / name) for name in HELD_OUT]
    if not run_folder.exists():
        for part in prepare_texts(arm, setting).iterdir():
            if part.name == "tokenizer" or not arm.documents:
                shutil.copytree(part, run_folder / part.name, copy_function=os.link)
    pretrain(text, preset, arm.recipe(seed, setting), held_out, run_folder, overwrite=True, verbose=False)
    shutil.rmtree(run_folder)
    return preset


def prepare_texts(arm: Training, setting: Setting) -> Path:
    """Return the directory with the vocabulary and tokenized texts that all arms with the same tokenizer share.

    If it does not exist, it is created by a training of one step.
    """
    family = get_or_register_family(arm.family)
    folder = setting.work / f"texts_{family.tokenizer.__name__}{'_causal' * family.backbone.causal}"
    if not folder.exists():
        # Not the variants themselves, since some of them do not fit the default size.
        training = Training(family=get_family_of_tokens(arm.family).name, objective=arm.objective)
        run = folder.with_suffix(".run")
        recipe = dataclasses.replace(training.recipe(0, setting), tokens=1)
        files, held_out = ([str(setting.data / name) for name in names] for names in (TEXT, HELD_OUT))
        text: Any = list(islice(read_documents(files), 40)) if setting.trial else files
        pretrain(text, folder.with_suffix(".preset"), recipe, held_out, run, overwrite=True, verbose=False)
        for part in run.iterdir():
            if part.is_dir() and part.name.startswith(("train", "held_out", "tokenizer")):
                shutil.copytree(part, folder.with_suffix(".part") / part.name)
        folder.with_suffix(".part").rename(folder)
    return folder


def measure(arm: Training, seed: int, setting: Setting) -> dict[str, float]:
    """Return the held-out loss, on the same masked tokens for all arms, and the accuracies of linear classifiers."""
    preset, scores = str(train(arm, seed, setting)), {}
    if not get_or_register_family(arm.family).backbone.causal:
        model = lmzoo.models.MaskedLM.from_preset(preset, masking=Masking(dynamic=False))
        model.compile()
        sequences = sample_held_out_sequences(model, setting)
        scores[LOSS] = float(model.evaluate(sequences, verbose=0, return_dict=True)["loss"])
    speech = embed_parts_of_speech.__wrapped__(preset, seed, setting)  # not cached, as there are many models
    return {**scores, SST2: probe(Path(preset), setting.data)["SST-2"], POS: speech.accuracy(-1)}


def sample_held_out_sequences(model: Any, setting: Setting) -> Any:
    """Return sequences of whole sentences of the held-out text."""
    documents = read_documents([str(setting.data / name) for name in HELD_OUT])
    sequences = pack_sentences(documents, model.preprocessor)
    count = min(len(sequences), setting.size(NUM_HELD_OUT, 64))
    return sequences.select(np.sort(np.random.default_rng(0).permutation(len(sequences))[:count]))


def make_sentence_pairs(
    files: list[str], random: bool, count: int, rng: np.random.Generator
) -> tuple[tuple[list[str], list[str]], list[int]]:
    """Return pairs of neighboring sentences; in half of them (label 1) the second is random, or the two are swapped."""
    documents = [document for document in islice(read_documents(files), count) if len(document) > 1]
    firsts, seconds, labels = [], [], []
    for number in range(count):
        document, next_document = (documents[(number + step) % len(documents)] for step in (0, 1))
        position, label = int(rng.integers(len(document) - 1)), number % 2
        first, second = document[position : position + 2]
        if label and random:
            second = next_document[int(rng.integers(len(next_document)))]
        elif label:
            first, second = second, first
        firsts.append(first)
        seconds.append(second)
        labels.append(label)
    return (firsts, seconds), labels


def judge_pairs(arm: Training, seed: int, setting: Setting) -> dict[str, float]:
    """Return the accuracies of linear classifiers on the first token's vector, which judge pairs of sentences."""
    preset, accuracies = str(train(arm, seed, setting)), {}
    for name in (NEXT, ORDER):
        task = lmzoo.models.TextClassifier.from_preset(preset, num_classes=2, pooling="first")
        task.backbone.trainable = False
        task.compile(AdamW(3e-3))
        rng = np.random.default_rng(seed)
        (pairs, labels), tests = (
            make_sentence_pairs(
                [str(setting.data / file) for file in files], name == NEXT, setting.size(count, 40), rng
            )
            for files, count in ((TEXT, 4000), (HELD_OUT, 2000))
        )
        task.fit(pairs, labels, epochs=3, batch_size=64, seed=seed, verbose=0)
        accuracies[name] = float(task.evaluate(*tests, verbose=0, return_dict=True)["accuracy"])
    return accuracies


BASE = Training()
SMALL = Training(documents=150)
DEEP = "4x128"
SHARED = Training(family="shared_all", size=DEEP)
COMMON = f"""The following experiments use `lmzoo pretrain` to pre-train BERTs of 2 layers and width 128, with a
vocabulary of {VOCABULARY:,} tokens. Unless an arm says otherwise, the models read 2 million tokens of Wikipedia in
sequences of {LENGTH} and batches of 32, with AdamW at a peak learning rate of 0.001, masked tokens as the only
objective, and no dropout. The held-out loss is measured on single masked tokens, the same ones for all arms, in
{NUM_HELD_OUT:,} other sequences. SST-2 is the accuracy of a linear classifier on the mean of the last layer; parts of
speech is the accuracy of a linear classifier on the vectors of words (EWT, 1,000 sentences).

2 million tokens are too few for a good model, so effects that only better models show cannot be seen in any of these
experiments."""
HOW = "See [the common setting](#common)."

CLAIMS = (
    Claim(
        name="masks",
        title="Masks: static or dynamic",
        says="Masks that are drawn anew in every pass are as good as static masks, or slightly better.",
        source="Liu et al. (2019), table 1",
        url=ROBERTA,
        arms={"dynamic": SMALL, "static": dataclasses.replace(SMALL, dynamic=False)},
        run=measure,
        rule=(Comparison("dynamic", "static", LOSS, -0.02),),
        common=COMMON,
        how=f"{HOW} The text is {SMALL.documents} articles, read about ten times: in one pass, all masks would be new.",
        limits="The paper had ten static masks for each sequence. With one, static masks have a greater disadvantage.",
        reading="""With one set of masks, the loss on other text is 0.37 nats higher: in ten passes, the model
memorizes what was masked. Linear classifiers show little of this: 1.4 points for parts of speech, and nothing for
SST-2.""",
    ),
    Claim(
        name="nsp",
        title="Next-sentence prediction",
        says="Models without next-sentence prediction are as good, or slightly better.",
        source="Liu et al. (2019), table 2",
        url=ROBERTA,
        arms={"masked tokens alone": BASE, "with NSP": dataclasses.replace(BASE, objective="nsp")},
        run=measure,
        rule=(
            Comparison("masked tokens alone", "with NSP", SST2, -0.01),
            Comparison("masked tokens alone", "with NSP", POS, -0.01),
        ),
        common=COMMON,
        how=f"{HOW} The rule allows the model without NSP to be one point worse.",
        limits="The paper also used tasks on pairs of texts, which networks of this size do not learn.",
        reading="""For parts of speech, the model without NSP is better by 0.8 points. For SST-2 it is better by 1.4
points, but with NSP the three seeds are so far apart (58 to 65) that this says little. The loss of masked tokens is
0.17 nats higher with NSP: this model has learned from pairs of shorter texts, while the held-out sequences are
single texts.""",
    ),
    Claim(
        name="sop",
        title="Sentence order and next sentences",
        says="SOP also teaches a model to tell next from random sentences; NSP teaches it nothing about their order.",
        source="Lan et al. (2020), table 5",
        url=ALBERT,
        arms={
            "masked tokens alone": BASE,
            "with NSP": dataclasses.replace(BASE, objective="nsp"),
            "with SOP": dataclasses.replace(BASE, objective="sop"),
        },
        run=judge_pairs,
        rule=(
            Comparison("with SOP", "with NSP", ORDER, 0.02),
            Comparison("with SOP", "masked tokens alone", NEXT, 0.02),
        ),
        common=COMMON,
        how=f"""{HOW} Each model is then tested on both objectives, sentence-order prediction (SOP) and next-sentence
prediction (NSP): a linear classifier on the pooled vector of the first token learns from 4,000 pairs of neighboring
sentences. In half of the pairs, the sentences are swapped (SOP), or the second one is replaced by a sentence of another
article (NSP). The classifier is tested on 2,000 held-out pairs; by chance, half of the answers are right.""",
        limits="The paper's tasks on pairs of texts are left out: networks of this size do not learn them.",
        reading="""No run recognizes the order of sentences, or next sentences, in more than 57% of the pairs. The
model that has never seen pairs is best at their order, so the classifiers do not measure what the objectives teach.""",
    ),
    Claim(
        name="more_text",
        title="More text, and longer training",
        says="More text helps at equal steps, and more steps help further.",
        source="Liu et al. (2019), table 4",
        url=ROBERTA,
        arms={
            "little text, ten times": SMALL,
            "2M tokens once": BASE,
            "6M tokens once": dataclasses.replace(BASE, tokens=6_000_000),
        },
        run=measure,
        rule=tuple(
            Comparison(better, worse, measure_)
            for better, worse in (("2M tokens once", "little text, ten times"), ("6M tokens once", "2M tokens once"))
            for measure_ in (LOSS, SST2)
        ),
        common=COMMON,
        how=f"{HOW} The little text consists of {SMALL.documents} articles.",
        limits="By the paper's measure, all three arms are at the very beginning of training.",
        reading="""At equal steps, new text lowers the loss by 0.07 nats. Three times as many steps lower it by
almost one nat, and raise the accuracy for parts of speech by seven points. The verdict is due to SST-2: more steps
make a linear classifier on the mean of the last layer two points worse. A likely reason is that a model that has
begun to use neighboring words is less of a bag of words, and a bag of words is a good start for the sentiment of a
sentence. The three seeds reach this point at different times, so their losses are far apart.""",
    ),
    Claim(
        name="batch_size",
        title="Batch size at equal tokens",
        says="At equal tokens, larger batches give a better language model.",
        source="Liu et al. (2019), table 3",
        url=ROBERTA,
        arms={
            "8": dataclasses.replace(BASE, batch_size=8, learning_rate=5e-4),
            "32": BASE,
            "128": dataclasses.replace(BASE, batch_size=128, learning_rate=2e-3),
        },
        run=measure,
        rule=(Comparison("128", "32", LOSS), Comparison("32", "8", LOSS)),
        common=COMMON,
        how=f"{HOW} Peak learning rates grow with the square root of the batch size: 0.0005, 0.001 and 0.002.",
        limits="With batches of 128 there are 240 steps; the paper has 31,000 or more. Learning rates were not tuned.",
        reading="""At equal tokens, smaller batches are better here because they allow more steps: 3,840 with
batches of 8, and 240 with batches of 128. The paper compares batches of 256 to 8,000 sequences, with 31,000 steps
or more.""",
    ),
    Claim(
        name="dropout",
        title="Dropout in pre-training",
        says="Pre-training without dropout is better.",
        source="Lan et al. (2020), table 8",
        url=ALBERT,
        arms={"without dropout": BASE, "with dropout of 0.1": Training(family="dropout")},
        run=measure,
        rule=(Comparison("without dropout", "with dropout of 0.1", LOSS),),
        common=COMMON,
        how=HOW,
        limits="No text is seen twice, so there is nothing to overfit.",
        reading="""Without dropout, the loss is 0.03 nats lower, several times the deviation over seeds. The vectors
are equally good with and without dropout.""",
    ),
    Claim(
        name="ngrams",
        title="Masks of tokens, words and several words",
        says="Masking several words in a row gives better vectors than masking single tokens.",
        source="Joshi et al. (2020), section 6.1; used by Lan et al. (2020)",
        url="https://arxiv.org/abs/1907.10529",
        arms={
            "single tokens": BASE,
            "whole words": Training(family="whole_words"),
            "one to three words": Training(family="ngrams"),
        },
        run=measure,
        rule=tuple(Comparison("one to three words", "single tokens", measure_) for measure_ in (SST2, POS)),
        common=COMMON,
        how=f"{HOW} The loss of single tokens favors the arm that was trained on them, so it is not in the rule.",
        limits="In the paper, question answering gains most.",
        reading="""All three kinds of masks give equally good vectors: the arms differ by at most 0.7 points, less
than the seeds do.""",
    ),
    Claim(
        name="left_to_right",
        title="Left to right, or masked",
        says="A model that sees both sides of a word is better than one that reads from left to right.",
        source="Devlin et al. (2019), table 5",
        url="https://arxiv.org/abs/1810.04805",
        arms={"masked tokens": Training(family="roberta"), "left to right": Training(family="gpt2")},
        run=measure,
        rule=tuple(Comparison("masked tokens", "left to right", measure_) for measure_ in (POS, SST2)),
        common=COMMON,
        how=f"""{HOW} Both models read byte-level BPE tokens. One is a RoBERTa, the other a GPT-2 of the same size,
which has LayerNorm before its sublayers.""",
        limits="At equal tokens, the left-to-right model predicts seven times as many, so it learns faster.",
        reading="""At equal tokens, the model that reads from left to right is far ahead, by 15 points for parts of
speech and by two for SST-2. It predicts every token, while the masked model predicts one in seven, and has hardly
begun to use neighboring words after 2 million tokens. Three times as many tokens bring a masked model [seven
points](#more_text).""",
    ),
    Claim(
        name="sharing",
        title="Parameter sharing between layers",
        says="Sharing all parameters costs quality, mainly in feed-forward networks; sharing attention costs little.",
        source="Lan et al. (2020), table 4",
        url=ALBERT,
        arms={
            "nothing shared": Training(family="shared_nothing", size=DEEP),
            "attention shared": Training(family="shared_attention", size=DEEP),
            "feed-forward shared": Training(family="shared_feed_forward", size=DEEP),
            "all shared": SHARED,
        },
        run=measure,
        rule=(
            Comparison("nothing shared", "all shared", LOSS),
            Comparison("attention shared", "feed-forward shared", LOSS),
            Comparison("attention shared", "nothing shared", LOSS, -0.03),
        ),
        common=COMMON,
        how=f"{HOW} The models have 4 layers of width 128, and embeddings of width 128.",
        limits="The paper's models have 12 layers.",
        reading="""Sharing everything costs 0.02 nats, sharing only attention 0.01 or nothing, and sharing
feed-forward networks as much as sharing everything. The order is the same as in the paper, but the difference
between attention and feed-forward networks is less than twice its standard error.""",
    ),
    Claim(
        name="embedding_size",
        title="Embeddings of 32 to 256",
        says="With shared parameters, embeddings of 128 are enough: larger ones are no better, smaller ones worse.",
        source="Lan et al. (2020), table 3",
        url=ALBERT,
        arms={
            str(size): SHARED if size == 128 else Training(family=f"embeddings_{size}", size=DEEP)
            for size in (32, 64, 128, 256)
        },
        run=measure,
        rule=(Comparison("128", "256", LOSS, -0.02), Comparison("128", "32", LOSS)),
        common=COMMON,
        how=f"{HOW} The models have 4 layers of width 128 that share all parameters.",
        limits="Embeddings of 256 are wider than the model, whose width is 128; the paper's has 768.",
        reading="""Halving the size from 128 costs 0.15 nats, and halving it again 0.17 more; doubling it changes
nothing, as far as three seeds can tell. Here, sizes below the model's width compress the vectors of tokens; in the
paper, 128 already does. SST-2 varies by up to 4 points from seed to seed, and does not rank the sizes.""",
    ),
)
