"""Pre-training of Transformers: masked tokens, with or without pairs of segments."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from typing import Any

import keras
import numpy as np

from lmzoo.data.corpora.corpus_writer import write_corpus
from lmzoo.data.corpora.segment_pairing import segment_pairs
from lmzoo.data.corpora.sequences import pack_sentences
from lmzoo.data.corpora.token_corpus import TokenCorpus
from lmzoo.data.corpora.train_tokenizers import train_tokenizer
from lmzoo.files.atomic import atomic_file
from lmzoo.files.preset_files import write_json
from lmzoo.pretraining.interleaved import Interleaved
from lmzoo.pretraining.recipe import OPTIMIZERS, SIZES, Recipe
from lmzoo.pretraining.run import Run
from lmzoo.pretraining.training_texts import TrainingDocuments
from lmzoo.tasks import Pretrainer, Task
from lmzoo.tasks.base.examples import BatchOptions
from lmzoo.text import EncodedTexts, Preprocessor, Tokenizer
from lmzoo.training import WarmUp
from lmzoo.training.throughput import Throughput

_LONG = 0.1  # share of the tokens that come in rows of full length, as in BERT's own recipe
_TESTED = 1024  # rows at most


def train_encoder(run: Run, train: TrainingDocuments, held: TrainingDocuments) -> tuple[Task, dict[str, Any]]:
    """Trains a Transformer.

    Args:
        run: its recipe and folder.
        train: documents to train on.
        held: documents to evaluate on.

    Returns:
        The model, and what its card says.

    Raises:
        InterruptedError: if it was told to stop.
    """
    recipe, tokenizer = run.recipe, _tokenizer(run, train)
    corpora = []
    for name, documents in (("held_out", held), ("train", train)):  # what may be too little first
        corpora.append(write_corpus(documents, tokenizer, run.work / name, verbose=run.verbose))
        run.say(f"{name}: {len(corpora[-1]):,} documents, {corpora[-1].num_tokens:,} tokens")
    held_out, corpus = corpora
    model, full = _build(recipe, tokenizer), recipe.positions
    short, batch_size = min(recipe.sequence_length, full), recipe.batch_size
    parts = []
    for length, share in [(full, 1.0)] if short == full else [(short, 1 - _LONG), (full, _LONG)]:
        rows = _rows(model, corpus, length, share * recipe.tokens, run)
        size = max(1, batch_size * short // length)
        tokens = size * float(rows.lengths.mean())
        parts.append((length, rows, size, tokens, run.batches(share * recipe.tokens, tokens)))
    total = sum(steps for *_, steps in parts)
    decay = keras.optimizers.schedules.PolynomialDecay(recipe.learning_rate, total, end_learning_rate=0.0)
    gathered = recipe.accumulate if recipe.accumulate > 1 else None
    rate = WarmUp(decay, total // 10)
    model.compile(OPTIMIZERS[recipe.optimizer](rate, global_clipnorm=1.0, gradient_accumulation_steps=gathered))
    for length, rows, size, _, steps in parts:
        run.say(f"{len(rows):,} rows of up to {length} tokens: {steps:,} batches of {size} rows")
    # In turns: positions that are met only at the end, when the rate is low, would not be learnt.
    batches = [model.batches(rows, None, None, BatchOptions(size, "shuffle"))[0] for _, rows, size, *_ in parts]
    tokens = sum(tokens * steps for *_, tokens, steps in parts)
    begun = time.perf_counter()
    turns = Interleaved(batches, [steps for *_, steps in parts])
    turns.seed = (recipe.seed, 0)
    steps = total // recipe.accumulate
    run.fit(model, turns, total, "states", Throughput(tokens / steps, steps, run.verbose, run.say))
    seconds = time.perf_counter() - begun
    scores: dict[str, float] = {}
    for length, _, size, *_ in parts:  # what holds for short rows need not hold for positions that they lack
        tested = some_rows(_rows(model, held_out, length, 1.0, run), max(1, _TESTED * short // length))
        run.say(f"evaluating on {len(tested):,} rows of up to {length} tokens")
        found = model.evaluate(tested, batch_size=size, verbose=0, return_dict=True)
        of_length = "" if length == short else f"_at_{length}"
        scores |= {f"{name}{of_length}": float(value) for name, value in found.items()}
    return model, {
        "scores": scores,
        "text": f"{len(corpus):,} documents, {corpus.num_tokens:,} tokens",
        "held out": f"up to {_TESTED:,} rows of {short} tokens, drawn from {len(held_out):,} other documents",
        "tokens": tokens,
        "steps": steps,
        "seconds": seconds,
        "fixed": {"vocabulary_size": f"{corpus.tokenizer.vocabulary_size:,}", "objective": model.objective or "none"},
    }


def _tokenizer(run: Run, documents: TrainingDocuments) -> Tokenizer:
    """The tokenizer of an earlier start of the run, or a new one."""
    recipe, folder = run.recipe, run.work / "tokenizer"
    kind = recipe.of.tokenizer
    file = folder / "tokenizer.json"
    if file.exists():
        tokenizer = kind.from_config(json.loads(file.read_text("utf-8")))
        tokenizer.load_assets(folder)
        return tokenizer
    run.say(f"learning {recipe.vocabulary_size:,} tokens")
    with run.said_warnings():
        tokenizer = train_tokenizer(
            documents, kind, recipe.vocabulary_size, verbose=run.verbose, **recipe.of.special_tokens
        )
    folder.mkdir(exist_ok=True)
    tokenizer.save_assets(folder)
    with atomic_file(file) as temporary:  # the last one: where it is, the others are
        write_json(folder, temporary.name, tokenizer.get_config())
    return tokenizer


def _build(recipe: Recipe, tokenizer: Tokenizer) -> Pretrainer:
    family, (layers, width) = recipe.of, SIZES[recipe.size]
    backbone = family.backbone(
        vocabulary_size=tokenizer.vocabulary_size,
        num_layers=layers,
        num_heads=width // 64,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=recipe.positions,
        initializer_range=0.02 * math.sqrt(768 / width),  # keeps attention scores as wide as at a width of 768
        dropout=0.0,  # no token is seen often enough to be learnt by heart
        dtype=recipe.dtype,
        remat=recipe.remat,
    )
    table = backbone.embeddings.position_embedding.embeddings
    rows, size = table.shape
    table.assign(sinusoids(rows, size, backbone.config.initializer_range))
    objective = None if recipe.objective == "none" else recipe.objective
    preprocessor = Preprocessor(tokenizer, family.packing, recipe.positions)
    masking = dataclasses.replace(family.masking, dynamic=recipe.dynamic)
    return Pretrainer(backbone, preprocessor, objective, masking)


def sinusoids(positions: int, width: int, deviation: float) -> np.ndarray:
    """Start of a position table: the sines of Vaswani et al. (2017), as large as the other tables.

    From random positions a small model stays a bag of words for millions of tokens before it learns to look at
    neighbours; from these it need not.

    Args:
        positions: int, rows.
        width: int, even.
        deviation: float, standard deviation of a row.

    Returns:
        float64 (positions, width).
    """
    rate = 10_000.0 ** (-2 * np.arange(width // 2) / width)
    angle = np.arange(positions)[:, None] * rate  # (T, H / 2)
    return np.sqrt(2) * deviation * np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def _rows(model: Pretrainer, corpus: TokenCorpus, length: int, tokens: float, run: Run) -> EncodedTexts:
    """Rows of up to `length` tokens; pairs are drawn anew until there are `tokens`."""
    preprocessor = Preprocessor(corpus.tokenizer, model.preprocessor.packing, length)
    if model.objective is None:
        return pack_sentences(corpus, preprocessor)
    passes, rng = math.ceil(tokens / corpus.num_tokens), np.random.default_rng(run.recipe.seed)
    with run.said_warnings():
        return segment_pairs(corpus, preprocessor, model.objective, rng, passes)


def some_rows(rows: EncodedTexts, count: int) -> EncodedTexts:
    """Rows drawn from all of them, the same ones each time, in the order in which they stand.

    Args:
        rows: all.
        count: int, how many at most.
    """
    return rows.select(np.sort(np.random.default_rng(0).permutation(len(rows))[:count]))
