"""Pre-training of encoders, decoders (including LSTM and feed-forward language models) and encoder-decoders.

Encoders learn from masked tokens and pairs of segments, decoders from next tokens, encoder-decoders from dropped spans.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import keras
import numpy as np

from lmzoo.data.corpora.corpus_writer import write_corpus
from lmzoo.data.corpora.segment_pairing import segment_pairs
from lmzoo.data.corpora.sequences import WithSpaces, pack_continuously, pack_running_text, pack_sentences
from lmzoo.data.corpora.token_corpus import TokenCorpus
from lmzoo.data.corpora.train_tokenizers import train_tokenizer
from lmzoo.errors import ArgumentError
from lmzoo.families.backbone import Backbone
from lmzoo.files.atomic import atomic_file
from lmzoo.files.preset_files import write_json
from lmzoo.files.urls import copy_folder, exists, is_url, join_path
from lmzoo.layers.embeddings import make_sinusoids
from lmzoo.parallel.processes import main_process_first
from lmzoo.presets.source import open_source
from lmzoo.pretraining.interleaved import MixedBatches, join_sequences
from lmzoo.pretraining.recipe import OPTIMIZERS, PAIRED, WSD_WARMUP, Recipe
from lmzoo.pretraining.run import Facts, Run
from lmzoo.pretraining.training_texts import MixedDocuments, TrainingDocuments, describe_shares
from lmzoo.tasks import CausalLM, MaskedLM, Pretrainer, Seq2SeqLM, Task
from lmzoo.tasks.base.examples import BatchOptions
from lmzoo.tasks.inputs import read_inputs
from lmzoo.tasks.token_losses import measure_batches
from lmzoo.text import EncodedTexts, LengthBatches, Preprocessor, TextWordTokenizer, Tokenizer
from lmzoo.text.batching import prefers_few_shapes
from lmzoo.text.interleaved import Interleaved
from lmzoo.training import LateDecay, WarmUp

_LONG_FRACTION = 0.1  # fraction of tokens in sequences of full length, as in BERT's own recipe
_DECAY_FRACTION = 0.2  # fraction of the steps of a "wsd" run
_WINDOW = 5  # number of words that a feed-forward language model sees
_WSD_PASSES = 10  # passes over the corpus to draw pairs, as in BERT's own code, since a "wsd" run may be extended
_REQUIRED_OBJECTIVES = ("plm", "rtd")  # heads of these objectives cannot be used for other objectives
_MAX_HELD_OUT = 1024  # number of sequences to evaluate on


def train_encoder(
    run: Run, train: Sequence[TrainingDocuments], held_out: Sequence[TrainingDocuments]
) -> tuple[Task, Facts]:
    """Train an encoder, decoder or encoder-decoder on one or more texts, and evaluate it on held-out documents.

    Args:
        run: settings and files of the run.
        train: documents to train on, one `TrainingDocuments` per text.
        held_out: documents to evaluate on, one `TrainingDocuments` per text.

    Returns:
        The model, and the results for its model card.

    Raises:
        InterruptedError: After SIGTERM.
        KeyboardInterrupt: After Ctrl-C.
        ValueError: If a text is too short for a sequence, or the training is too short for the schedule "wsd".
    """
    recipe = run.recipe
    with main_process_first():
        tokenizer = _load_or_train_tokenizer(run, train)
        run.say("tokenizing the text")
        # Held-out text first, to fail early if there is too little.
        held_out_corpora = _tokenize_texts(run, "held_out", held_out, tokenizer)
        corpora = _tokenize_texts(run, "train", train, tokenizer)
    run.say("building the model and the sequences")
    model = _build_model(recipe, tokenizer)
    is_causal = recipe.method.causal
    parts = _make_parts(run, model, train, corpora)
    short_length = parts[0].length
    batches_per_token = sum(part.rate for part in parts)
    total_batches = run.count_batches(recipe.tokens, 1 / batches_per_token)
    model.compile(_make_optimizer(recipe, total_batches))
    for part in parts:
        num_batches = round(total_batches * part.rate / batches_per_token)
        description = f"{len(part.batches.lengths):,} sequences of up to {part.length} tokens"
        run.say(f"{description}: {num_batches:,} batches of {part.size}")
    held_out_sequences = [
        [_make_held_out_sequences(model, text, documents, part.length, run) for part in parts]
        for text, documents in zip(held_out, held_out_corpora, strict=True)
    ]
    # Interleave the lengths: at the end, the learning rate would be too low to learn the later positions.
    interleaved_batches = Interleaved([part.batches for part in parts], [part.rate for part in parts])
    interleaved_batches.seed = (recipe.seed, 0)
    seconds = run.fit(
        model, interleaved_batches, total_batches, 1 / batches_per_token, find_decay_begin(recipe, total_batches)
    )
    text_scores = [
        _evaluate_lengths(run, model, parts, text_sequences, text.name)
        for text, text_sequences in zip(held_out, held_out_sequences, strict=True)
    ]
    num_held_out_documents = sum(map(len, held_out_corpora))
    corpus_size = f"{sum(map(len, corpora)):,} documents, {sum(corpus.num_tokens for corpus in corpora):,} tokens"
    objective = getattr(model, "objective", None) or "none"
    if isinstance(model, Seq2SeqLM):
        objective = recipe.family_record.objective
        model = _make_pair_model(model)
    return model, {
        "scores": _average_scores(held_out, text_scores),
        "of_texts": {text.name: scores for text, scores in zip(held_out, text_scores, strict=True)}
        if len(held_out) > 1
        else {},
        "text": corpus_size + describe_shares(train),
        "held_out": f"up to {_MAX_HELD_OUT:,} sequences of {short_length} tokens"
        f"{', of each text' if len(held_out) > 1 else ''}, drawn from {num_held_out_documents:,} other documents",
        "tokens": total_batches / batches_per_token,
        "steps": total_batches // recipe.accumulate,
        "seconds": seconds,
        "fixed": {
            "vocabulary_size": f"{tokenizer.vocabulary_size:,}",
            **({} if is_causal else {"objective": objective}),
        },
    }


def _average_scores(texts: Sequence[TrainingDocuments], text_scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each score over the texts, weighted by share; for perplexities, the geometric mean."""
    mean_scores = {
        name: sum(text.share * scores[name] for text, scores in zip(texts, text_scores, strict=True))
        for name in text_scores[0]
    }
    for name in mean_scores:
        if name.startswith("perplexity"):
            mean_scores[name] = math.exp(mean_scores[name.replace("perplexity", "loss")])
    return mean_scores


@dataclass(frozen=True)
class _Part:
    """Batches of sequences of up to `length` tokens, and their share of the training.

    Attributes:
        length: int, maximum number of tokens of a sequence.
        batches: batches of these sequences.
        size: int, number of sequences in a batch.
        rate: float, number of these batches per token of the whole training.
    """

    length: int
    batches: LengthBatches
    size: int
    rate: float


def _tokenize_texts(run: Run, kind: str, texts: Sequence[TrainingDocuments], tokenizer: Tokenizer) -> list[TokenCorpus]:
    """Tokenize texts into corpora in the folder of the run; `kind` is "train" or "held_out"."""
    corpora = []
    for text in texts:
        corpus_name = "_".join(filter(None, (kind, text.name)))
        method = run.recipe.method
        documents = WithSpaces(text) if method.causal or method.spans else text
        corpora.append(write_corpus(documents, tokenizer, run.work / corpus_name, verbose=run.verbose))
        run.say(f"{corpus_name}: {len(corpora[-1]):,} documents, {corpora[-1].num_tokens:,} tokens")
    return corpora


def _make_parts(
    run: Run, model: Task, texts: Sequence[TrainingDocuments], corpora: Sequence[TokenCorpus]
) -> list[_Part]:
    """Return the batches of each maximum length, shortest sequences first.

    Args:
        run: settings and files of the run.
        model: the model to train.
        texts: documents to train on, one `TrainingDocuments` per text.
        corpora: the tokenized texts.
    """
    max_length = run.recipe.positions
    sequence_length, batch_size, _ = run.recipe.batch_settings
    short_length = min(sequence_length, max_length)
    length_shares = [(short_length, 1 - _LONG_FRACTION), (max_length, _LONG_FRACTION)]
    if short_length == max_length:
        length_shares = [(max_length, 1.0)]
    parts = []
    for length, share in length_shares:
        size = max(1, batch_size * short_length // length)
        batches, batch_tokens = _make_batches(run, model, texts, corpora, length, share, size)
        parts.append(_Part(length, batches, size, share / batch_tokens))
    return parts


def _evaluate_lengths(
    run: Run, model: Task, parts: Sequence[_Part], sequences: Sequence[EncodedTexts], text_name: str
) -> dict[str, float]:
    """Evaluate a model on held-out sequences of one text, and return the scores of each length.

    Lengths are evaluated separately, since short sequences lack the later positions.

    Args:
        run: settings and files of the run.
        model: the trained model.
        parts: batches of each maximum length, shortest sequences first.
        sequences: held-out sequences of the text, for each entry of `parts`.
        text_name: str, name of the text for messages; may be empty.
    """
    scores: dict[str, float] = {}
    short_length = parts[0].length
    for part, part_sequences in zip(parts, sequences, strict=True):
        num_sequences = max(1, _MAX_HELD_OUT * short_length // part.length)
        metrics = _evaluate(run, model, part, part_sequences, num_sequences, text_name)
        if run.recipe.method.causal:
            metrics["perplexity"] = math.exp(metrics["loss"])
        length_suffix = "" if part.length == short_length else f"_at_{part.length}"
        scores |= {f"{name}{length_suffix}": float(value) for name, value in metrics.items()}
    return scores


def _evaluate(
    run: Run, model: Task, part: _Part, sequences: EncodedTexts, num_sequences: int, text_name: str
) -> dict[str, float]:
    """Evaluate a model on a sample of the held-out sequences of one text, and return its metrics.

    Args:
        run: settings and files of the run.
        model: the trained model.
        part: batches of sequences of the same maximum length.
        sequences: held-out sequences of the text.
        num_sequences: int, number of sequences to draw; all if there are fewer.
        text_name: str, name of the text for messages; may be empty.
    """
    batch_size = part.size
    if prefers_few_shapes():  # use only full batches, and smaller ones for few sequences
        batch_size = min(batch_size, 64, 1 << (min(num_sequences, len(sequences)).bit_length() - 1))
        num_sequences = min(num_sequences, len(sequences)) // batch_size * batch_size
    sample = sample_sequences(sequences, num_sequences)
    text_suffix = f" of {text_name}" if text_name else ""
    run.say(f"evaluating on {len(sample):,} sequences{text_suffix} of up to {part.length} tokens")
    options = BatchOptions(batch_size, buckets=_choose_buckets(model, sample.lengths))
    batches = model.batches(read_inputs(sample), options)[0]
    if run.recipe.method.causal:
        return measure_batches(model, batches, verbose=0)
    metrics: dict[str, float] = model.evaluate(batches, verbose=0, return_dict=True)
    return metrics


def _make_batches(
    run: Run,
    model: Task,
    texts: Sequence[TrainingDocuments],
    corpora: Sequence[TokenCorpus],
    length: int,
    share: float,
    batch_size: int,
) -> tuple[LengthBatches, float]:
    """Return the batches for a fraction of the training, and the mean number of tokens in a batch.

    Args:
        run: settings and files of the run.
        model: the model to train.
        texts: documents to train on, one `TrainingDocuments` per text.
        corpora: the tokenized texts.
        length: int, maximum number of tokens of a sequence.
        share: float, fraction of the tokens of the training.
        batch_size: int, number of sequences in a batch.

    Raises:
        ValueError: If a text is too short for a sequence.
    """
    text_sequences = []
    for text, corpus in zip(texts, corpora, strict=True):
        passes = math.ceil(share * text.share * run.recipe.tokens / corpus.num_tokens)
        passes = _WSD_PASSES if run.recipe.schedule == "wsd" else passes  # a "wsd" run may be extended
        sequences = _pack_corpus(model, corpus, length, passes, run)
        _check_has_sequences(sequences, corpus, f"The corpus{f' {text.name}' if text.name else ''}", "corpus")
        text_sequences.append(sequences)
    max_lengths = np.array([sequences.lengths.max() for sequences in text_sequences])
    options = BatchOptions(batch_size, "shuffle", buckets=_choose_buckets(model, max_lengths))
    mean_lengths = [float(sequences.lengths.mean()) for sequences in text_sequences]
    if len(text_sequences) == 1 and not prefers_few_shapes():  # an epoch may end with a smaller batch
        return model.batches(read_inputs(text_sequences[0]), options)[0], batch_size * mean_lengths[0]
    rates = [text.share / mean_length for text, mean_length in zip(texts, mean_lengths, strict=True)]
    batches = model.batches(read_inputs(join_sequences(text_sequences, run.work)), options)[0]
    return MixedBatches(batches, list(map(len, text_sequences)), rates), batch_size / sum(rates)


def _choose_buckets(model: Task, lengths: np.ndarray) -> list[int] | None:
    """Return a single padded length if every length would be compiled or most sequences are full, else None."""
    return [int(lengths.max())] if isinstance(model, CausalLM | Seq2SeqLM) or prefers_few_shapes() else None


def find_decay_begin(recipe: Recipe, total: int) -> int | None:
    """Return the number of batches before the decay of the schedule "wsd", or None for other schedules.

    Args:
        recipe: settings of the training.
        total: int, number of batches in the whole training.

    Raises:
        ValueError: If the decay would begin before the end of the warm-up.
    """
    if recipe.schedule != "wsd":
        return None
    decay_begin = total - math.ceil(total * _DECAY_FRACTION)
    warmup_batches = WSD_WARMUP * recipe.accumulate
    if decay_begin < warmup_batches:
        raise ArgumentError(
            f"With the `schedule` wsd the learning rate rises for {WSD_WARMUP:,} steps and falls in the last "
            f"{_DECAY_FRACTION:.0%}: {total // recipe.accumulate:,} steps are too few. Pass more `tokens`, or choose "
            "linear.",
            "tokens",
        )
    return decay_begin


def _make_optimizer(recipe: Recipe, total_batches: int) -> keras.optimizers.Optimizer:
    """Return the optimizer for training on `total_batches` batches."""
    peak_learning_rate = recipe.batch_settings[-1]
    decay_begin = find_decay_begin(recipe, total_batches)
    accumulate = recipe.accumulate
    if decay_begin is None:
        decay_schedule = keras.optimizers.schedules.PolynomialDecay(
            peak_learning_rate, total_batches, end_learning_rate=0.0
        )
        learning_rate = WarmUp(decay_schedule, total_batches // 10)
    else:
        learning_rate = WarmUp(LateDecay(peak_learning_rate, decay_begin, total_batches), WSD_WARMUP * accumulate)
    accumulation_steps = accumulate if accumulate > 1 else None
    return OPTIMIZERS[recipe.optimizer](
        learning_rate, global_clipnorm=1.0, gradient_accumulation_steps=accumulation_steps
    )


def _load_or_train_tokenizer(run: Run, texts: Sequence[TrainingDocuments]) -> Tokenizer:
    """Return the run's tokenizer: loaded from the initial preset or the folder of the run, or newly trained."""
    recipe = run.recipe
    folder = run.work / "tokenizer"
    if recipe.init is not None:
        return open_source(recipe.init).preprocessor().tokenizer
    tokenizer_class = TextWordTokenizer if recipe.words else recipe.family_record.tokenizer
    config_file = folder / "tokenizer.json"
    # Also store the tokenizer with remote states: trained again, it might choose other, equally frequent tokens.
    remote_folder = join_path(run.states, folder.name) if is_url(run.states) else None
    if remote_folder and not config_file.exists() and exists(join_path(remote_folder, config_file.name)):
        copy_folder(remote_folder, folder, last=config_file.name)
    if config_file.exists():
        tokenizer = tokenizer_class.from_config(json.loads(config_file.read_text("utf-8")))
        tokenizer.load_assets(folder)
        return tokenizer
    run.say(f"learning {recipe.vocabulary_size:,} {'words' if recipe.words else 'tokens'}")
    special_tokens = {} if recipe.words else recipe.family_record.special_tokens
    with run.redirect_warnings():
        tokenizer = train_tokenizer(
            MixedDocuments(texts), tokenizer_class, recipe.vocabulary_size, verbose=run.verbose, **special_tokens
        )
    folder.mkdir(exist_ok=True)
    tokenizer.save_assets(folder)
    with atomic_file(config_file) as temporary:  # written last, so that it marks a complete tokenizer
        write_json(folder, temporary.name, tokenizer.get_config())
    if remote_folder:
        copy_folder(folder, remote_folder, last=config_file.name)
    return tokenizer


def build_encoder_backbone(recipe: Recipe, vocabulary_size: int) -> Backbone:
    """Build the backbone that a recipe describes, with random weights."""
    common_settings: dict[str, Any] = {"dtype": recipe.dtype, "remat": recipe.remat}
    if recipe.init is not None:
        return Backbone.from_preset(recipe.init, load_weights=False, dropout=0.0, **common_settings)
    num_layers, width = recipe.shape
    backbone = recipe.family_record.backbone
    settings: dict[str, Any] = {
        "vocabulary_size": vocabulary_size,
        "num_layers": num_layers,
        "hidden_dim": width,
        "intermediate_dim": 4 * width,
        "window": _WINDOW,
        "max_sequence_length": recipe.positions,
        "dropout": 0.0,  # no token is repeated often enough to be memorized
    }
    if recipe.attends:
        settings["num_heads"] = width // 64
        settings["initializer_range"] = 0.02 * math.sqrt(768 / width)  # keeps attention logits as large as at width 768
    config_fields = {field.name: field for field in fields(backbone.config_class)}
    settings = {name: value for name, value in settings.items() if name in config_fields}
    if recipe.attends and config_fields["initializer_range"].default is None:
        del settings["initializer_range"]  # the family's default depends on the width
    return backbone(**settings, **common_settings)


def _load_model(preset: str, recipe: Recipe) -> Task:
    """Load a preset's model with the heads that the recipe trains; missing heads get random weights.

    With the objective "auto", the stored heads determine the objective or, for "plm" and "rtd", the family does.
    """
    source = open_source(preset)
    family_objective = recipe.family_record.objective
    stored_objective: str | None = (source.get_head_arguments(Pretrainer) or {}).get("objective")
    # Checkpoints of other libraries do not name the objective. A masked-LM head belongs to a generator.
    default_objective = (
        family_objective
        if family_objective in _REQUIRED_OBJECTIVES and source.head != "masked_lm"
        else stored_objective
    )
    objective = {"auto": default_objective, "none": None}.get(recipe.objective, recipe.objective)
    settings: dict[str, Any] = {"dropout": 0.0, "dtype": recipe.dtype, "sequence_length": recipe.positions}
    task: Task
    if recipe.method.causal:
        task = CausalLM.from_preset(preset, **settings)
    elif recipe.method.spans:
        task = Seq2SeqLM.from_preset(preset, span_corruption=recipe.span_corruption, **settings)
    else:
        masking = recipe.masking.with_spans() if objective == "sbo" else recipe.masking
        if objective in _REQUIRED_OBJECTIVES or (stored_objective and stored_objective == objective):
            task = Pretrainer.from_preset(preset, masking=masking, objective=objective, **settings)
        else:
            task = MaskedLM.from_preset(preset, masking=masking, **settings)
    if recipe.remat:
        task = task.copy_with(remat=True)
    if not isinstance(task, MaskedLM):
        return task
    head_arguments = (task.masking, None, task.activation, task.layer_norm_epsilon)
    model = Pretrainer(task.backbone, task.preprocessor, objective, *head_arguments, tie_embeddings=task.tie_embeddings)
    model.head.set_weights(task.head.get_weights())
    return model


def _build_model(recipe: Recipe, tokenizer: Tokenizer) -> Task:
    """Build the model to train, with random weights or the weights of the initial preset."""
    if recipe.init is not None:
        return _load_model(recipe.init, recipe)
    family = recipe.family_record
    backbone = build_encoder_backbone(recipe, tokenizer.vocabulary_size)
    position_embedding = backbone.embeddings.position_embedding
    if position_embedding is not None:
        num_positions, width = position_embedding.embeddings.shape
        # With random position embeddings, a small model behaves like a bag of words for millions of tokens before it
        # learns to attend to neighbors. Sinusoids of the same standard deviation avoid this.
        scale = np.sqrt(2) * backbone.config.initializer_range
        position_embedding.embeddings.assign(scale * make_sinusoids(num_positions, width))
    objective = None if recipe.objective == "none" else recipe.objective
    preprocessor = Preprocessor(tokenizer, family.packing, recipe.positions)
    if recipe.method.causal:
        return CausalLM(backbone, preprocessor)
    if recipe.method.spans:
        return Seq2SeqLM(backbone, preprocessor, span_corruption=recipe.span_corruption)
    return Pretrainer(backbone, preprocessor, objective, recipe.masking)


def _make_pair_model(model: Seq2SeqLM) -> Seq2SeqLM:
    """Return a model with the same weights that learns from pairs of texts instead of from span corruption."""
    config = {**model.get_config(), "backbone": model.backbone, "preprocessor": model.preprocessor}
    pair_model = Seq2SeqLM(**{**config, "span_corruption": None})
    pair_model.set_weights(model.get_weights())
    return pair_model


def _make_held_out_sequences(
    model: Task, text: TrainingDocuments, corpus: TokenCorpus, length: int, run: Run
) -> EncodedTexts:
    """Return the sequences of a held-out text, made before training so that errors are raised early.

    Raises:
        ValueError: If the text is too small.
    """
    description = f"The held-out text{f' of {text.name}' if text.name else ''}"
    try:
        sequences = _pack_corpus(model, corpus, length, 1, run)
    except ValueError as error:
        raise ValueError(f"{description}: {error}") from None
    _check_has_sequences(sequences, corpus, description, "validation")
    return sequences


def _check_has_sequences(sequences: EncodedTexts, corpus: TokenCorpus, description: str, argument: str) -> None:
    """Check that a corpus is long enough for a sequence.

    Args:
        sequences: the sequences of the corpus.
        corpus: the tokenized text.
        description: str, description of the text, for the message.
        argument: str, name of the argument that holds the text.

    Raises:
        ValueError: If there are no sequences.
    """
    if not len(sequences):
        raise ArgumentError(
            f"{description} has too few tokens for a sequence ({corpus.num_tokens}). Pass longer text (`{argument}`).",
            argument,
        )


def _pack_corpus(model: Task, corpus: TokenCorpus, length: int, passes: int, run: Run) -> EncodedTexts:
    """Pack a corpus into sequences, from which the model's inputs of up to `length` tokens are made.

    Objectives on pairs of segments go through the corpus `passes` times.
    """
    preprocessor = Preprocessor(corpus.tokenizer, run.recipe.family_record.packing, length)
    if isinstance(model, CausalLM):
        return pack_continuously(corpus, preprocessor)
    if run.recipe.method.spans:
        preprocessor.sequence_length = run.recipe.span_corruption.text_length(length)
        return pack_running_text(corpus, preprocessor)
    objective = getattr(model, "objective", None)
    if objective not in PAIRED:
        return pack_sentences(corpus, preprocessor)
    with run.redirect_warnings():
        return segment_pairs(corpus, preprocessor, objective, np.random.default_rng(run.recipe.seed), passes)


def sample_sequences(sequences: EncodedTexts, count: int) -> EncodedTexts:
    """Return a random sample of at most `count` sequences in their original order; every call draws the same sample."""
    return sequences.select(np.sort(np.random.default_rng(0).permutation(len(sequences))[:count]))
