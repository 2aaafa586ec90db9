"""Pre-training of a language model in each direction, on words."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console

from lmzoo.data.corpora.document_store import StoredDocuments
from lmzoo.data.corpora.word_vocabulary import train_words
from lmzoo.files.atomic import atomic_file
from lmzoo.pretraining.run import Run
from lmzoo.pretraining.training_texts import TrainingDocuments
from lmzoo.tasks import BidirectionalLM, Task
from lmzoo.text import Preprocessor, WordTokenizer
from lmzoo.training import Adagrad
from lmzoo.training.throughput import Throughput

_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# The LSTMs' memory, the projection, (width, count) of the filters. From "small" on as they were published.
WORD_SIZES = {
    "nano": (256, 64, ((1, 16), (2, 16), (3, 32), (4, 64))),
    "mini": (512, 128, _FILTERS[:5]),
    "small": (1024, 128, _FILTERS),
    "medium": (2048, 256, _FILTERS),
    "base": (4096, 512, _FILTERS),
}


def train_language_model(run: Run, train: TrainingDocuments, held: TrainingDocuments) -> tuple[Task, dict[str, Any]]:
    """Trains a bidirectional language model; arguments and result as of `lmzoo.pretraining.encoders.train_encoder`."""
    recipe, file = run.recipe, run.work / "words.txt"
    # At once, though it is read at the end: by then the files may be others.
    held_out = StoredDocuments.store(held, run.work / "held_out.jsonl", run.verbose)
    documents = StoredDocuments.store(train, run.work / "train.jsonl", run.verbose)
    run.say(f"train: {len(documents):,} documents")
    if not file.exists():
        run.say(f"learning {recipe.vocabulary_size:,} words")
        with run.said_warnings():
            words = train_words(documents, recipe.vocabulary_size, verbose=run.verbose)
        with atomic_file(file) as temporary:
            temporary.write_text("\n".join(words.vocabulary), "utf-8")
    words = WordTokenizer(file.read_text("utf-8").split("\n"))
    family = recipe.of
    lstm_dim, projection_dim, filters = WORD_SIZES[recipe.size]
    backbone = family.backbone(
        lstm_dim=lstm_dim, projection_dim=projection_dim, filters=filters, dropout=0.1, dtype=recipe.dtype
    )
    preprocessor = Preprocessor(family.tokenizer(), family.packing)
    batch_size, unroll = recipe.batch_size, recipe.sequence_length
    sampled = max(1, min(8192, len(words.vocabulary) // 8))
    model = BidirectionalLM(backbone, preprocessor, words, num_sampled=sampled, unroll_steps=unroll)
    model.compile(optimizer=Adagrad(recipe.learning_rate, initial_accumulator_value=1.0, global_clipnorm=10.0))
    steps = run.batches(recipe.tokens, batch_size * unroll)
    run.say(f"training on streams of {unroll} words: {steps:,} steps of {batch_size} rows")
    begun = time.perf_counter()
    shown = Throughput(batch_size * unroll, steps, run.verbose, run.say)
    run.fit(model, documents, steps, "states", shown, batch_size=batch_size)
    seconds = time.perf_counter() - begun
    run.say(f"evaluating on {len(held_out):,} documents")
    scores = {
        name: model.perplexity(held_out, direction=direction, verbose=run.verbose and Console(stderr=True).is_terminal)
        for name, direction in (("perplexity", None), ("forward_perplexity", "forward"))
    }
    facts = {
        "scores": scores,
        "text": f"{len(documents):,} documents",
        "held out": "all words of other documents",
        "tokens": batch_size * unroll * steps,
        "steps": steps,
        "seconds": seconds,
        "fixed": {
            **dict.fromkeys(recipe.method.unused),
            "optimizer": "adagrad",
            "vocabulary_size": f"{len(words.vocabulary):,}",
        },
    }
    return model, facts
