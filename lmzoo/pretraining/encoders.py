"""Pre-training Transformers on masked tokens, with or without pairs of segments."""

from __future__ import annotations

import dataclasses
import json
import math
import time

import keras
import numpy as np

from lmzoo.data.corpora.corpus_writer import write_corpus
from lmzoo.data.corpora.segment_pairing import segment_pairs
from lmzoo.data.corpora.sequences import pack_sentences
from lmzoo.data.corpora.token_corpus import TokenCorpus
from lmzoo.data.corpora.train_tokenizers import train_tokenizer
from lmzoo.families.backbone import Backbone
from lmzoo.files.atomic import atomic_file
from lmzoo.files.preset_files import write_json
from lmzoo.pretraining.interleaved import Interleaved
from lmzoo.pretraining.recipe import OPTIMIZERS, SIZES, Recipe
from lmzoo.pretraining.run import Facts, Run
from lmzoo.pretraining.training_texts import TrainingDocuments
from lmzoo.processes import first_process_first
from lmzoo.tasks import Pretrainer, Task
from lmzoo.tasks.base.examples import BatchOptions
from lmzoo.text import EncodedTexts, Preprocessor, Tokenizer
from lmzoo.training import WarmUp
from lmzoo.training.throughput import Throughput

_LONG = 0.1  # share of the tokens in sequences of full length, as in BERT's own recipe
_TESTED = 1024  # largest number of sequences to evaluate on


def train_encoder(run: Run, train: TrainingDocuments, held: TrainingDocuments) -> tuple[Task, Facts]:
    """Trains a Transformer on some documents, and evaluates it on held-out ones.

    Returns:
        The model, and the results for its model card.

    Raises:
        InterruptedError: after SIGTERM.
        KeyboardInterrupt: after Ctrl-C.
    """
    recipe, corpora = run.recipe, []
    with first_process_first():
        tokenizer = _tokenizer(run, train)
        run.say("tokenizing the text")
        for name, documents in (("held_out", held), ("train", train)):  # the held-out text first: it may be too little
            corpora.append(write_corpus(documents, tokenizer, run.work / name, verbose=run.verbose))
            run.say(f"{name}: {len(corpora[-1]):,} documents, {corpora[-1].num_tokens:,} tokens")
    held_out, corpus = corpora
    run.say("building the model and the sequences")
    model, full = _build(recipe, tokenizer), recipe.positions
    sequence_length, batch_size, learning_rate = recipe.batch_settings
    short = min(sequence_length, full)
    parts = []
    for length, share in [(full, 1.0)] if short == full else [(short, 1 - _LONG), (full, _LONG)]:
        sequences = _sequences(model, corpus, length, share * recipe.tokens, run)
        size = max(1, batch_size * short // length)
        tokens = size * float(sequences.lengths.mean())
        parts.append((length, sequences, size, tokens, run.batches(share * recipe.tokens, tokens)))
    total = sum(steps for *_, steps in parts)
    decay = keras.optimizers.schedules.PolynomialDecay(learning_rate, total, end_learning_rate=0.0)
    accumulate = recipe.accumulate if recipe.accumulate > 1 else None
    rate = WarmUp(decay, total // 10)
    model.compile(OPTIMIZERS[recipe.optimizer](rate, global_clipnorm=1.0, gradient_accumulation_steps=accumulate))
    for length, sequences, size, _, steps in parts:
        run.say(f"{len(sequences):,} sequences of up to {length} tokens: {steps:,} batches of {size}")
    # Interleaved: positions seen only at the end, when the learning rate is low, would not be learned.
    batches = [model.batches(part, None, None, BatchOptions(size, "shuffle"))[0] for _, part, size, *_ in parts]
    tokens = sum(tokens * steps for *_, tokens, steps in parts)
    begun = time.perf_counter()
    interleaved = Interleaved(batches, [steps for *_, steps in parts])
    interleaved.seed = (recipe.seed, 0)
    steps = total // recipe.accumulate
    run.fit(model, interleaved, total, Throughput(tokens / steps, steps, run.verbose, run.say))
    seconds = time.perf_counter() - begun
    scores: dict[str, float] = {}
    for length, _, size, *_ in parts:  # short sequences lack the later positions
        tested = sample_sequences(_sequences(model, held_out, length, 1.0, run), max(1, _TESTED * short // length))
        run.say(f"evaluating on {len(tested):,} sequences of up to {length} tokens")
        found = model.evaluate(tested, batch_size=size, verbose=0, return_dict=True)
        of_length = "" if length == short else f"_at_{length}"
        scores |= {f"{name}{of_length}": float(value) for name, value in found.items()}
    return model, {
        "scores": scores,
        "text": f"{len(corpus):,} documents, {corpus.num_tokens:,} tokens",
        "held_out": f"up to {_TESTED:,} sequences of {short} tokens, drawn from {len(held_out):,} other documents",
        "tokens": tokens,
        "steps": steps,
        "seconds": seconds,
        "fixed": {"vocabulary_size": f"{corpus.tokenizer.vocabulary_size:,}", "objective": model.objective or "none"},
    }


def _tokenizer(run: Run, documents: TrainingDocuments) -> Tokenizer:
    """Loads the tokenizer that the run trained before, or trains it."""
    recipe, folder = run.recipe, run.work / "tokenizer"
    kind = recipe.family_record.tokenizer
    file = folder / "tokenizer.json"
    if file.exists():
        tokenizer = kind.from_config(json.loads(file.read_text("utf-8")))
        tokenizer.load_assets(folder)
        return tokenizer
    run.say(f"learning {recipe.vocabulary_size:,} tokens")
    special = recipe.family_record.special_tokens
    with run.warnings_said():
        tokenizer = train_tokenizer(documents, kind, recipe.vocabulary_size, verbose=run.verbose, **special)
    folder.mkdir(exist_ok=True)
    tokenizer.save_assets(folder)
    with atomic_file(file) as temporary:  # written last: if it exists, the other files do
        write_json(folder, temporary.name, tokenizer.get_config())
    return tokenizer


def encoder_backbone(recipe: Recipe, vocabulary_size: int) -> Backbone:
    """The backbone of a recipe, with random weights."""
    layers, width = SIZES[recipe.size]
    return recipe.family_record.backbone(
        vocabulary_size=vocabulary_size,
        num_layers=layers,
        num_heads=width // 64,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=recipe.positions,
        initializer_range=0.02 * math.sqrt(768 / width),  # keeps attention scores as wide as at a width of 768
        dropout=0.0,  # no token is seen often enough to be memorized
        dtype=recipe.dtype,
        remat=recipe.remat,
    )


def _build(recipe: Recipe, tokenizer: Tokenizer) -> Pretrainer:
    family, backbone = recipe.family_record, encoder_backbone(recipe, tokenizer.vocabulary_size)
    table = backbone.embeddings.position_embedding.embeddings
    rows, size = table.shape
    table.assign(sinusoids(rows, size, backbone.config.initializer_range))
    objective = None if recipe.objective == "none" else recipe.objective
    preprocessor = Preprocessor(tokenizer, family.packing, recipe.positions)
    masking = dataclasses.replace(family.masking, dynamic=recipe.dynamic)
    return Pretrainer(backbone, preprocessor, objective, masking)


def sinusoids(positions: int, width: int, deviation: float) -> np.ndarray:
    """Initial position embeddings, float64 (positions, width): scaled sinusoids (Vaswani et al., 2017).

    With random position embeddings, a small model remains a bag of words for millions of tokens before it learns to
    look at neighbours. With these it does not. The width is even, and `deviation` the standard deviation of each
    embedding.
    """
    rate = 10_000.0 ** (-2 * np.arange(width // 2) / width)
    angle = np.arange(positions)[:, None] * rate  # (T, H / 2)
    return np.sqrt(2) * deviation * np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def _sequences(model: Pretrainer, corpus: TokenCorpus, length: int, tokens: float, run: Run) -> EncodedTexts:
    """Sequences of up to `length` tokens; pairs are drawn in as many passes as make `tokens`."""
    preprocessor = Preprocessor(corpus.tokenizer, run.recipe.family_record.packing, length)
    if model.objective is None:
        return pack_sentences(corpus, preprocessor)
    passes, rng = math.ceil(tokens / corpus.num_tokens), np.random.default_rng(run.recipe.seed)
    with run.warnings_said():
        return segment_pairs(corpus, preprocessor, model.objective, rng, passes)


def sample_sequences(sequences: EncodedTexts, count: int) -> EncodedTexts:
    """Draws at most `count` sequences, the same ones in every call, and keeps their order."""
    return sequences.select(np.sort(np.random.default_rng(0).permutation(len(sequences))[:count]))
