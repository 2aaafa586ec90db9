"""Pre-training of bidirectional language models that predict words, such as ELMo."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmzoo.data.corpora.document_store import StoredDocuments
from lmzoo.data.corpora.word_vocabulary import train_words
from lmzoo.families.backbone import Backbone
from lmzoo.files.atomic import atomic_file
from lmzoo.parallel.processes import main_process_first
from lmzoo.pretraining.recipe import Recipe
from lmzoo.pretraining.run import Facts, Run
from lmzoo.pretraining.training_texts import MixedDocuments, TrainingDocuments, describe_shares
from lmzoo.tasks import BidirectionalLM, Task
from lmzoo.text import Preprocessor, WordTokenizer
from lmzoo.training import Adagrad

_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
# Widths of the LSTMs and of their projections, (width, count) of the filters. "small" and larger sizes were published.
WORD_SIZES = {
    "nano": (256, 64, ((1, 16), (2, 16), (3, 32), (4, 64))),
    "mini": (512, 128, _FILTERS[:5]),
    "small": (1024, 128, _FILTERS),
    "medium": (2048, 256, _FILTERS),
    "base": (4096, 512, _FILTERS),
}


def build_language_model_backbone(recipe: Recipe) -> Backbone:
    """Build the backbone that a recipe describes, with random weights."""
    lstm_dim, projection_dim, filters = WORD_SIZES[recipe.size]
    return recipe.family_record.backbone(
        lstm_dim=lstm_dim, projection_dim=projection_dim, filters=filters, dropout=0.1, dtype=recipe.dtype
    )


def count_sampled_words(vocabulary_size: int) -> int:
    """Return the number of words in the sampled softmax of a training step."""
    return max(1, min(8192, vocabulary_size // 8))


def train_language_model(
    run: Run, train: Sequence[TrainingDocuments], held_out: Sequence[TrainingDocuments]
) -> tuple[Task, Facts]:
    """Train a bidirectional language model on documents, and evaluate it on held-out documents.

    In a mixture of texts, documents are repeated or skipped so that each text has its share.

    Args:
        run: settings and files of the run.
        train: documents to train on, one `TrainingDocuments` per text.
        held_out: documents to evaluate on, one `TrainingDocuments` per text.

    Returns:
        The model, and the results for its model card.

    Raises:
        InterruptedError: After SIGTERM.
        KeyboardInterrupt: After Ctrl-C.
    """
    recipe = run.recipe
    words_file = run.work / "words.txt"
    run.say("reading the text")
    with main_process_first():
        # Store the held-out documents now, since the files may change before the evaluation at the end.
        held_out_stores = []
        for text in held_out:
            name = "_".join(filter(None, ("held_out", text.name)))
            held_out_stores.append(StoredDocuments.store(text, run.work / f"{name}.jsonl", run.verbose))
        documents = StoredDocuments.store(MixedDocuments(train), run.work / "train.jsonl", run.verbose)
        run.say(f"train: {len(documents):,} documents")
        if not words_file.exists():
            run.say(f"learning {recipe.vocabulary_size:,} words")
            with run.redirect_warnings():
                word_tokenizer = train_words(documents, recipe.vocabulary_size, verbose=run.verbose)
            with atomic_file(words_file) as temporary:
                temporary.write_text("\n".join(word_tokenizer.vocabulary), "utf-8")
    word_tokenizer = WordTokenizer(words_file.read_text("utf-8").split("\n"))
    run.say("building the model")
    family = recipe.family_record
    backbone = build_language_model_backbone(recipe)
    preprocessor = Preprocessor(family.tokenizer(), family.packing)
    unroll_steps, batch_size, learning_rate = recipe.batch_settings
    num_sampled = count_sampled_words(len(word_tokenizer.vocabulary))
    model = BidirectionalLM(backbone, preprocessor, word_tokenizer, num_sampled=num_sampled, unroll_steps=unroll_steps)
    model.compile(optimizer=Adagrad(learning_rate, initial_accumulator_value=1.0, global_clipnorm=10.0))
    num_steps = run.count_batches(recipe.tokens, batch_size * unroll_steps)
    run.say(f"training on {batch_size} streams: {num_steps:,} steps of {unroll_steps} words of each")
    seconds = run.fit(model, documents, num_steps, batch_size * unroll_steps, batch_size=batch_size)
    text_scores = []
    for held_out_documents in held_out_stores:
        run.say(f"evaluating on {len(held_out_documents):,} documents")
        text_scores.append(
            {
                name: model.perplexity(held_out_documents, direction=direction, verbose=run.verbose)
                for name, direction in (("perplexity", None), ("forward_perplexity", "forward"))
            }
        )
    shares = [text.share for text in held_out]
    return model, {
        # geometric means of the texts' perplexities
        "scores": {
            name: float(np.exp(np.dot(shares, [np.log(s[name]) for s in text_scores]))) for name in text_scores[0]
        },
        "of_texts": {text.name: scores for text, scores in zip(held_out, text_scores, strict=True)}
        if len(held_out) > 1
        else {},
        "text": f"{len(documents):,} documents{describe_shares(train)}",
        "held_out": "all words of other documents",
        "tokens": batch_size * unroll_steps * num_steps,
        "steps": num_steps,
        "seconds": seconds,
        "fixed": {"optimizer": "adagrad", "vocabulary_size": f"{len(word_tokenizer.vocabulary):,}"},
    }
