"""Pre-training Transformers: encoders on masked tokens, with or without pairs of segments, decoders on next tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import keras
import numpy as np

from lmzoo.data.corpora.corpus_writer import write_corpus
from lmzoo.data.corpora.segment_pairing import segment_pairs
from lmzoo.data.corpora.sequences import WithSpaces, pack_continuously, pack_sentences
from lmzoo.data.corpora.token_corpus import TokenCorpus
from lmzoo.data.corpora.train_tokenizers import train_tokenizer
from lmzoo.errors import ArgumentError
from lmzoo.families.backbone import Backbone
from lmzoo.files.atomic import atomic_file
from lmzoo.files.preset_files import write_json
from lmzoo.files.urls import copy_folder, exists, inside, is_url
from lmzoo.layers.embeddings import sinusoids
from lmzoo.parallel.processes import first_process_first
from lmzoo.presets.source import open_source
from lmzoo.pretraining.interleaved import Interleaved, MixedBatches, join_sequences
from lmzoo.pretraining.recipe import OPTIMIZERS, PAIRED, WSD_WARMUP, Recipe
from lmzoo.pretraining.run import Facts, Run
from lmzoo.pretraining.training_texts import MixedDocuments, TrainingDocuments, describe_shares
from lmzoo.tasks import CausalLM, MaskedLM, Pretrainer, Task
from lmzoo.tasks.base.examples import BatchOptions
from lmzoo.tasks.inputs import read_inputs
from lmzoo.text import EncodedTexts, LengthBatches, Preprocessor, TextWordTokenizer, Tokenizer
from lmzoo.text.batching import compiles_shapes
from lmzoo.training import LateDecay, WarmUp

_LONG = 0.1  # share of the tokens in sequences of full length, as in BERT's own recipe
_DECAY = 0.2  # share of a training with the schedule "wsd" in which the rate falls
_WINDOW = 5  # words that a feed-forward language model sees
_PASSES = 10  # in which pairs are drawn if the length of the training may change, as in BERT's own code
_NAMELESS = ("plm", "rtd")  # objectives without which a head is of no use
_TESTED = 1024  # largest number of sequences to evaluate on


def train_encoder(
    run: Run, train: Sequence[TrainingDocuments], held: Sequence[TrainingDocuments]
) -> tuple[Task, Facts]:
    """Train a Transformer on the documents of some texts, and evaluate it on held-out ones.

    Returns:
        The model, and the results for its model card.

    Raises:
        InterruptedError: after SIGTERM.
        KeyboardInterrupt: after Ctrl-C.
    """
    recipe = run.recipe
    with first_process_first():
        tokenizer = _tokenizer(run, train)
        run.say("tokenizing the text")
        # The held-out text first: it may be too little.
        held_out = _corpora(run, "held_out", held, tokenizer)
        corpora = _corpora(run, "train", train, tokenizer)
    run.say("building the model and the sequences")
    model, full, causal = _build(recipe, tokenizer), recipe.positions, recipe.method.causal
    sequence_length, batch_size, _ = recipe.batch_settings
    short = min(sequence_length, full)
    parts = []
    for length, share in [(full, 1.0)] if short == full else [(short, 1 - _LONG), (full, _LONG)]:
        size = max(1, batch_size * short // length)
        batches, tokens = _batches(run, model, train, corpora, length, share, size)
        parts.append(_Part(length, batches, size, share / tokens))
    rate = sum(part.rate for part in parts)
    total = run.batches(recipe.tokens, 1 / rate)
    model.compile(_optimizer(recipe, total))
    for part in parts:
        count = round(total * part.rate / rate)
        texts = f"{len(part.batches.lengths):,} sequences of up to {part.length} tokens"
        run.say(f"{texts}: {count:,} batches of {part.size}")
    tested = [
        [_held_out(model, text, documents, part.length, run) for part in parts]
        for text, documents in zip(held, held_out, strict=True)
    ]
    # Interleaved: positions seen only at the end, when the learning rate is low, would not be learned.
    interleaved = Interleaved([part.batches for part in parts], [part.rate for part in parts])
    interleaved.seed = (recipe.seed, 0)
    seconds = run.fit(model, interleaved, total, 1 / rate, decay_begin(recipe, total))
    found = []
    for text, of_text in zip(held, tested, strict=True):
        scores: dict[str, float] = {}
        for part, sequences in zip(parts, of_text, strict=True):  # short sequences lack the later positions
            size, count = part.size, max(1, _TESTED * short // part.length)
            if compiles_shapes():  # full batches only, small ones for a text that has few sequences
                size = min(size, 64, 1 << (min(count, len(sequences)).bit_length() - 1))
                count = min(count, len(sequences)) // size * size
            chosen = sample_sequences(sequences, count)
            name = f" of {text.name}" if text.name else ""
            run.say(f"evaluating on {len(chosen):,} sequences{name} of up to {part.length} tokens")
            options = BatchOptions(size, buckets=_buckets(model, chosen.lengths))
            measured = model.evaluate(model.batches(read_inputs(chosen), options)[0], verbose=0, return_dict=True)
            measured |= {"perplexity": math.exp(measured["loss"])} if causal else {}
            of_length = "" if part.length == short else f"_at_{part.length}"
            scores |= {f"{name}{of_length}": float(value) for name, value in measured.items()}
        found.append(scores)
    others = sum(map(len, held_out))
    scores = {name: sum(t.share * s[name] for t, s in zip(held, found, strict=True)) for name in found[0]}
    for name in scores if causal else ():
        if name.startswith("perplexity"):  # the mean of perplexities is that of their logarithms
            scores[name] = math.exp(scores[name.replace("perplexity", "loss")])
    read = f"{sum(map(len, corpora)):,} documents, {sum(corpus.num_tokens for corpus in corpora):,} tokens"
    return model, {
        "scores": scores,
        "of_texts": {text.name: scores for text, scores in zip(held, found, strict=True)} if len(held) > 1 else {},
        "text": read + describe_shares(train),
        "held_out": f"up to {_TESTED:,} sequences of {short} tokens"
        f"{', of each text' if len(held) > 1 else ''}, drawn from {others:,} other documents",
        "tokens": total / rate,
        "steps": total // recipe.accumulate,
        "seconds": seconds,
        "fixed": {
            "vocabulary_size": f"{tokenizer.vocabulary_size:,}",
            **({} if causal else {"objective": getattr(model, "objective", None) or "none"}),
        },
    }


@dataclass(frozen=True)
class _Part:
    """The sequences of up to `length` tokens: batches of `size`, and how many of them for a token of the training."""

    length: int
    batches: LengthBatches
    size: int
    rate: float


def _corpora(run: Run, kind: str, texts: Sequence[TrainingDocuments], tokenizer: Tokenizer) -> list[TokenCorpus]:
    """Return the tokenized texts to train on, or those that are held out."""
    corpora = []
    for text in texts:
        name = "_".join(filter(None, (kind, text.name)))
        documents = WithSpaces(text) if run.recipe.method.causal else text
        corpora.append(write_corpus(documents, tokenizer, run.work / name, verbose=run.verbose))
        run.say(f"{name}: {len(corpora[-1]):,} documents, {corpora[-1].num_tokens:,} tokens")
    return corpora


def _batches(
    run: Run,
    model: Task,
    texts: Sequence[TrainingDocuments],
    corpora: Sequence[TokenCorpus],
    length: int,
    share: float,
    size: int,
) -> tuple[LengthBatches, float]:
    """Return batches of sequences of up to `length` tokens, with a share of the training; and the tokens of a batch."""
    found = []
    for text, corpus in zip(texts, corpora, strict=True):
        passes = math.ceil(share * text.share * run.recipe.tokens / corpus.num_tokens)
        passes = _PASSES if run.recipe.schedule == "wsd" else passes  # whose tokens may become more
        found.append(_sequences(model, corpus, length, passes, run))
    longest = np.array([sequences.lengths.max() for sequences in found])
    options = BatchOptions(size, "shuffle", buckets=_buckets(model, longest))
    tokens = [float(sequences.lengths.mean()) for sequences in found]
    if len(found) == 1 and not compiles_shapes():  # an epoch may end with a smaller batch
        return model.batches(read_inputs(found[0]), options)[0], size * tokens[0]
    rates = [text.share / mean for text, mean in zip(texts, tokens, strict=True)]
    batches = model.batches(read_inputs(join_sequences(found, run.work)), options)[0]
    return MixedBatches(batches, list(map(len, found)), rates), size / sum(rates)


def _buckets(model: Task, lengths: np.ndarray) -> list[int] | None:
    """Return one width where most sequences are full and each width would cost too much; None for those that fit."""
    return [int(lengths.max())] if isinstance(model, CausalLM) or compiles_shapes() else None


def decay_begin(recipe: Recipe, total: int) -> int | None:
    """Return the batch after which the rate of a schedule "wsd" falls.

    Raises:
        ValueError: if it would still be rising then.
    """
    if recipe.schedule != "wsd":
        return None
    begin, warmup = total - math.ceil(total * _DECAY), WSD_WARMUP * recipe.accumulate
    if begin < warmup:
        raise ArgumentError(
            f"With the `schedule` wsd the learning rate rises for {WSD_WARMUP:,} steps and falls in the last "
            f"{_DECAY:.0%}: {total // recipe.accumulate:,} steps are too few. Pass more `tokens`, or choose linear.",
            "tokens",
        )
    return begin


def _optimizer(recipe: Recipe, total: int) -> keras.optimizers.Optimizer:
    """Return the optimizer for a training of `total` batches."""
    peak, begin, accumulate = recipe.batch_settings[-1], decay_begin(recipe, total), recipe.accumulate
    if begin is None:
        decay = keras.optimizers.schedules.PolynomialDecay(peak, total, end_learning_rate=0.0)
        rate = WarmUp(decay, total // 10)
    else:
        rate = WarmUp(LateDecay(peak, begin, total), WSD_WARMUP * accumulate)
    gathered = accumulate if accumulate > 1 else None
    return OPTIMIZERS[recipe.optimizer](rate, global_clipnorm=1.0, gradient_accumulation_steps=gathered)


def _tokenizer(run: Run, texts: Sequence[TrainingDocuments]) -> Tokenizer:
    """Load the tokenizer of the preset that the run begins with, or the one that it trained before, or trains it."""
    recipe, folder = run.recipe, run.work / "tokenizer"
    if recipe.init is not None:
        return open_source(recipe.init).preprocessor().tokenizer
    kind = TextWordTokenizer if recipe.words else recipe.family_record.tokenizer
    file = folder / "tokenizer.json"
    # Another training of it might choose others of equally frequent tokens: it is kept with remote states, too.
    kept = inside(run.states, folder.name) if is_url(run.states) else None
    if kept and not file.exists() and exists(inside(kept, file.name)):
        copy_folder(kept, folder, last=file.name)
    if file.exists():
        tokenizer = kind.from_config(json.loads(file.read_text("utf-8")))
        tokenizer.load_assets(folder)
        return tokenizer
    run.say(f"learning {recipe.vocabulary_size:,} {'words' if recipe.words else 'tokens'}")
    special = {} if recipe.words else recipe.family_record.special_tokens
    with run.warnings_said():
        tokenizer = train_tokenizer(MixedDocuments(texts), kind, recipe.vocabulary_size, verbose=run.verbose, **special)
    folder.mkdir(exist_ok=True)
    tokenizer.save_assets(folder)
    with atomic_file(file) as temporary:  # written last: if it exists, the other files do
        write_json(folder, temporary.name, tokenizer.get_config())
    if kept:
        copy_folder(folder, kept, last=file.name)
    return tokenizer


def encoder_backbone(recipe: Recipe, vocabulary_size: int) -> Backbone:
    """Return the backbone of a recipe, with random weights."""
    kept: dict[str, Any] = {"dtype": recipe.dtype, "remat": recipe.remat}
    if recipe.init is not None:
        return Backbone.from_preset(recipe.init, load_weights=False, dropout=0.0, **kept)
    layers, width = recipe.shape
    backbone = recipe.family_record.backbone
    settings: dict[str, Any] = {
        "vocabulary_size": vocabulary_size,
        "num_layers": layers,
        "hidden_dim": width,
        "intermediate_dim": 4 * width,
        "window": _WINDOW,
        "max_sequence_length": recipe.positions,
        "dropout": 0.0,  # no token is seen often enough to be memorized
    }
    if recipe.attends:
        settings["num_heads"] = width // 64
        settings["initializer_range"] = 0.02 * math.sqrt(768 / width)  # attention scores as wide as at a width of 768
    known = {field.name for field in fields(backbone.config_class)}
    settings = {name: value for name, value in settings.items() if name in known}
    return backbone(**settings, **kept)


def _continue(preset: str, recipe: Recipe) -> Task:
    """Return the model of a preset with its heads; one that is not stored has random weights.

    The objective is that of the recipe or, if this is "auto", of the stored heads.
    """
    source, own = open_source(preset), recipe.family_record.objective
    stored: str | None = (source.head_of(Pretrainer) or {}).get("objective")
    # Files of other libraries do not name it. What fills masks is a generator.
    usual = own if own in _NAMELESS and source.head != "masked_lm" else stored
    objective = {"auto": usual, "none": None}.get(recipe.objective, recipe.objective)
    settings: dict[str, Any] = {"dropout": 0.0, "dtype": recipe.dtype, "sequence_length": recipe.positions}
    base: Task
    if recipe.method.causal:
        base = CausalLM.from_preset(preset, **settings)
    else:
        kind = Pretrainer if objective in _NAMELESS or (stored and stored == objective) else MaskedLM
        base = kind.from_preset(preset, masking=recipe.masking, **settings)
    if recipe.remat:
        base = base.copy_with(remat=True)
    if not isinstance(base, MaskedLM):
        return base
    arguments = (base.masking, None, base.activation, base.layer_norm_epsilon)
    model = Pretrainer(base.backbone, base.preprocessor, objective, *arguments)
    model.head.set_weights(base.head.get_weights())
    return model


def _build(recipe: Recipe, tokenizer: Tokenizer) -> Task:
    if recipe.init is not None:
        return _continue(recipe.init, recipe)
    family, backbone = recipe.family_record, encoder_backbone(recipe, tokenizer.vocabulary_size)
    positions = backbone.embeddings.position_embedding
    if positions is not None:
        rows, size = positions.embeddings.shape
        # With random position embeddings, a small model remains a bag of words for millions of tokens before it learns
        # to look at neighbors. With sinusoids of the same standard deviation it does not.
        scale = np.sqrt(2) * backbone.config.initializer_range
        positions.embeddings.assign(scale * sinusoids(rows, size))
    objective = None if recipe.objective == "none" else recipe.objective
    preprocessor = Preprocessor(tokenizer, family.packing, recipe.positions)
    if recipe.method.causal:
        return CausalLM(backbone, preprocessor)
    return Pretrainer(backbone, preprocessor, objective, recipe.masking)


def _held_out(model: Task, text: TrainingDocuments, documents: TokenCorpus, length: int, run: Run) -> EncodedTexts:
    """Return the sequences of a held-out text, made before the training, which would otherwise be in vain."""
    try:
        return _sequences(model, documents, length, 1, run)
    except ValueError as error:
        raise ValueError(f"The held-out text{f' of {text.name}' if text.name else ''}: {error}") from None


def _sequences(model: Task, corpus: TokenCorpus, length: int, passes: int, run: Run) -> EncodedTexts:
    """Return sequences of up to `length` tokens; pairs are drawn in so many passes."""
    preprocessor = Preprocessor(corpus.tokenizer, run.recipe.family_record.packing, length)
    if isinstance(model, CausalLM):
        return pack_continuously(corpus, preprocessor)
    objective = getattr(model, "objective", None)
    if objective not in PAIRED:
        return pack_sentences(corpus, preprocessor)
    with run.warnings_said():
        return segment_pairs(corpus, preprocessor, objective, np.random.default_rng(run.recipe.seed), passes)


def sample_sequences(sequences: EncodedTexts, count: int) -> EncodedTexts:
    """Draw at most `count` sequences, the same ones in every call, in their order."""
    return sequences.select(np.sort(np.random.default_rng(0).permutation(len(sequences))[:count]))
