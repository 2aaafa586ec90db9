"""Causal language modeling: prediction of the next token, and generation of text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import is_integer, refuse_arguments, require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.data.corpora.sequences import pack_continuously
from lmzoo.data.corpora.tokenized_documents import group_items
from lmzoo.evaluation.reports import Report
from lmzoo.families.backbone import Backbone
from lmzoo.layers.adapted import Dense, make_normal_dense
from lmzoo.layers.carried_state import StreamedBackbone
from lmzoo.registry.family import Family, get_family
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.base.arguments import check_arguments, check_top_k
from lmzoo.tasks.base.examples import Batch, BatchOptions, Examples, FeatureArrays, Labels, Texts, TrainingData, Weights
from lmzoo.tasks.choice_scores import check_choices, encode_choices, join_examples, make_choice_model, score_choices
from lmzoo.tasks.class_answers import ClassAnswer, rank_classes
from lmzoo.tasks.generation import Sampler, check_sampling, get_generator
from lmzoo.tasks.inputs import TaskInputs, TextsInMemory, TokenFeatures, TokenIds, as_id_lists, list_texts
from lmzoo.tasks.prompts import (
    GENERATE_ARGUMENT_ADVICE,
    SCORE_ARGUMENT_ADVICE,
    check_prompt_ids,
    check_reads_text,
    check_room,
    encode_prompts,
    split_stops,
)
from lmzoo.tasks.sequence_scores import make_scoring_model, score_sequences
from lmzoo.tasks.served_generation import generate_in_ops, make_generation_signatures, mask_end_token
from lmzoo.tasks.token_labels import TokenLabelsTask
from lmzoo.tasks.token_losses import make_perplexity_report, measure_by_token
from lmzoo.text import EncodedTexts, LengthBatches, Preprocessor
from lmzoo.text.batching import stream_steps
from lmzoo.text.probabilities import softmax
from lmzoo.text.text_pieces import TextPieces, TokenPieces, tokens_holding
from lmzoo.text.token_scores import TokenScore
from lmzoo.text.validate_text import Text, clean_columns
from lmzoo.training.span_metrics import TokenAccuracy

if TYPE_CHECKING:
    import tensorflow as tf

BATCH_SIZE = 32
DEFAULT_NEW_TOKENS = 64  # if there is room for them


@keras.saving.register_keras_serializable(package="lmzoo")
class CausalLM(TokenLabelsTask):
    """A causal language model, which predicts each token from the tokens before it (Radford et al., 2018, 2019).

    The inputs are the backbone's inputs. The outputs are the logits of the next token at each of T positions, over a
    vocabulary of V tokens, float32 (B, T, V). They are computed with the backbone's token embeddings; the head has
    weights of its own only with `tie_embeddings=False`.

    `fit` and `evaluate` take texts, or documents as lists of sentences, without labels, and pack them into full
    sequences (`lmzoo.data.corpora.pack_continuously`). Padding does not count in the loss, nor does the token after the
    end of a document. With token features, pass the next tokens as `y`, int (B, T), with -100, or a `sample_weight` of
    0, for tokens that should not count.

    Args:
        backbone: `lmzoo.models.Backbone` of a causal family, such as `Gpt2Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        max_new_tokens: int, maximum number of tokens that the exported model, and by default `generate`, adds to a
            prompt; 64 by default, or half of the model's maximum length if that is less.
        carries_state: bool, for recurrent backbones: whether `fit` and `evaluate` read the text as `batch_size`
            streams, each of which continues in the next batch from its last state (Mikolov et al., 2010; Zaremba et
            al., 2014). Gradients stop at the beginning of a batch. An epoch begins with a state of zeros, and reads the
            text in the given order. Token features then also include `goes_on`, int32 (B,): 1 to continue from the
            last state, 0 to begin with zeros.
        add_start_token: bool, whether `generate` and the exported model put the tokenizer's start token before each
            prompt, as in KerasHub's GPT-2. By default, it only stands for an empty prompt. Settable.
        name: name of the model.
        tie_embeddings: bool, whether logits are products with the token embeddings. If False, the head has a kernel of
            its own in their place, as in transformers' models with `tie_word_embeddings=False`.

    Raises:
        ValueError: If the backbone is not causal, or has no state to carry although `carries_state` is True; if
            `max_new_tokens` leaves no room for a prompt; if `add_start_token` is True, but the tokenizer has no start
            token; or if `carries_state` is True and `tie_embeddings` is False.

    Example:

    ```python
    import lmzoo
    from lmzoo.families.gpt2 import FAMILY
    from lmzoo.text import BytePairTokenizer, Preprocessor

    tokenizer = BytePairTokenizer.of_words(["the", "film", "was", "good"], size=290, **FAMILY.special_tokens)
    backbone = lmzoo.models.Gpt2Backbone(
        vocabulary_size=290, num_layers=2, num_heads=2, hidden_dim=16, max_sequence_length=64
    )
    model = lmzoo.models.CausalLM(backbone, Preprocessor(tokenizer, FAMILY.packing, sequence_length=64))
    model.fit(["the film was good", "the film was very good"], epochs=2, verbose=0)
    model.perplexity(["the film was good"])
    model.generate(["the film"], max_new_tokens=3, sampler="top_k", seed=1)
    ```
    """

    predicts = "logits of all next tokens (n, T, V)"
    head_kind = "causal_lm"
    pipeline_tag = "text-generation"
    commands = (("causal-lm", "texts"),)
    serves = (
        "`text` (n,): the continuations; other signatures also take `seed` and `temperature`, see [Generate "
        "text](generate.md#export-and-serve)"
    )
    input_names = ("prompt",)
    predicts_tokens = True
    replaceable = True
    learns_from = "texts alone"
    splits_examples = True
    per_token = True
    uses_pooler = False

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        max_new_tokens: int | None = None,
        carries_state: bool = False,
        add_start_token: bool = False,
        labels: None = None,
        name: str | None = None,
        tie_embeddings: bool = True,
    ) -> None:
        backbone_name = type(backbone).__name__
        if not self.supports(get_family(backbone)):
            raise ValueError(
                f"This {backbone_name} cannot predict next tokens: its positions see later ones. A CausalLM needs a "
                "causal family, such as GPT-2."
            )
        if carries_state and not hasattr(backbone, "call_with_state"):
            raise ValueError(
                f"`carries_state` is for recurrent models, such as LstmLmBackbone: this {backbone_name} has no state "
                "to carry."
            )
        is_valid = isinstance(tie_embeddings, bool) and (tie_embeddings or not carries_state)
        allowed_values = "True with `carries_state`" if carries_state else "True or False"
        require(is_valid, "tie_embeddings", allowed_values, tie_embeddings)
        inputs = backbone.input
        streams = None
        projection = None
        if carries_state:
            inputs = {**inputs, "goes_on": keras.Input((), dtype="int32", name="goes_on")}
            streams = StreamedBackbone(backbone, dtype=backbone.dtype_policy, name="streams")
            logits = streams(**inputs, vectors=streams(**inputs))  # (B, T, V)
        elif tie_embeddings:
            logits = backbone(inputs, vectors=backbone(inputs)["sequence_output"])  # (B, T, V)
        else:
            projection_settings = {"use_bias": False, "dtype": backbone.dtype_policy, "name": "output_projection"}
            config = backbone.config
            projection = make_normal_dense(config.vocabulary_size, config.initializer_range, **projection_settings)
            logits = _project(projection, backbone(inputs)["sequence_output"])  # (B, T, V)
        super().__init__(backbone, preprocessor, inputs, logits, None, name)
        self.tie_embeddings = tie_embeddings
        self.output_projection = projection
        self.streams = streams
        if streams:
            self.independent_rows = False
        half_of_positions = backbone.config.max_sequence_length // 2
        self.max_new_tokens = min(DEFAULT_NEW_TOKENS, half_of_positions) if max_new_tokens is None else max_new_tokens
        self.add_start_token = add_start_token
        self.compile()

    @property
    def max_new_tokens(self) -> int:
        """The maximum number of tokens that the exported model, and by default `generate`, adds to a prompt."""
        return self._max_new_tokens

    @max_new_tokens.setter
    def max_new_tokens(self, count: int) -> None:
        max_length = self.backbone.config.max_sequence_length
        is_valid = is_integer(count, 1) and count < max_length
        require(is_valid, "max_new_tokens", f"a positive integer below the model's {max_length} positions", count)
        self._max_new_tokens = int(count)

    @property
    def add_start_token(self) -> bool:
        """Whether `generate` and the exported model put the start token before each prompt."""
        return self._add_start_token

    @add_start_token.setter
    def add_start_token(self, value: bool) -> None:
        require(isinstance(value, bool), "add_start_token", "True or False", value)
        if value and self.preprocessor is not None and self.preprocessor.tokenizer.start_token is None:
            tokenizer_name = type(self.preprocessor.tokenizer).__name__
            raise ValueError(
                f"This {tokenizer_name} has no start token to put before prompts. Leave `add_start_token` False."
            )
        self._add_start_token = value

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family's models are causal: each position depends only on itself and earlier positions."""
        return bool(family.backbone.causal)

    def next_token_logits(self, vectors: Tensor) -> Tensor:
        """Return the logits of the next tokens, float32 (B, T, V), from hidden states, float (B, T, H)."""
        if self.output_projection is None:
            return self.backbone.token_logits(vectors)
        return _project(self.output_projection, vectors)

    def _make_symbolic_logits(self, inputs: Features, vectors: Tensor) -> Tensor:
        """Build the logits (B, M, V) of hidden states (B, M, H) in a model with the symbolic inputs `inputs`."""
        if self.output_projection is None:
            return self.backbone(inputs, vectors=vectors)
        return _project(self.output_projection, vectors)

    @property
    def longest_sequence(self) -> int:
        """The maximum number of tokens in a sequence, including the last one, which is only a target."""
        return super().longest_sequence + 1

    @property
    def carries_state(self) -> bool:
        """Whether each batch continues from the last states of the previous batch."""
        return self.streams is not None

    def default_loss(self) -> keras.losses.Loss:
        """Return the loss, the weighted mean cross-entropy over tokens."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics, the accuracy of next-token predictions."""
        return [TokenAccuracy()]

    # === Examples ===

    def batches(self, inputs: TaskInputs, options: BatchOptions) -> TrainingData:
        """Return the data of `fit` and `evaluate` for Keras; see `Task.batches`.

        With `carries_state`, each batch continues the sequences of the previous batch.

        Raises:
            ValueError: With `carries_state`, for data that is not in memory.
        """
        if self.streams is None or (isinstance(inputs, TokenFeatures) and inputs.made_by_fit):
            return super().batches(inputs, options)
        if isinstance(inputs, TokenFeatures) and not inputs.streams:
            self._make_room(options)
            return super().batches(inputs, options)
        if not isinstance(inputs, TextsInMemory):
            raise ValueError(
                "With `carries_state` data that streams cannot be read: which sequences follow one another is only "
                "known of a whole text. Pass texts in a list, the output of `lmzoo.data.corpora.pack_continuously` "
                "for a `TokenCorpus`, or token features as arrays."
            )
        examples = self.encode_examples(inputs.x, inputs.y, inputs.sample_weight)
        lengths = examples.encoded.lengths
        batch_size = self._make_room(options)
        make_batch = partial(self._make_stream_batch, examples, stream_steps(len(lengths), batch_size))
        return (
            LengthBatches(lengths, make_batch, batch_size, [self.longest_sequence], "streams", options.seed),
            None,
            None,
        )

    def _make_room(self, options: BatchOptions) -> int:
        """Allocate the states for a batch of sequences, and return the batch size."""
        batch_size = options.batch_size or BATCH_SIZE
        if self.streams is not None and self.streams.make_room(batch_size, options.training):
            self.train_function = self.test_function = None
        return batch_size

    def _make_stream_batch(
        self, examples: Examples, steps: int, indices: np.ndarray, width: int, rng: np.random.Generator
    ) -> Batch:
        """Return the batch of `make_batch` with the feature `goes_on`, which is 0 where a stream begins, else 1.

        Each stream has `steps` consecutive sequences.
        """
        batch = self.make_batch(examples, indices, width, rng)
        batch[0]["goes_on"] = (indices % steps > 0).astype("int32")  # (b,)
        return batch

    def features(self, encoded: EncodedTexts, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the model's inputs for the sequences at `indices`, each beginning with a state of zeros."""
        features = super().features(encoded, indices, width)
        return {**features, "goes_on": np.zeros(len(indices), "int32")} if self.carries_state else features

    def encode_examples(self, x: Any, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Pack texts or documents into full sequences with `pack_continuously`.

        Encoded sequences are returned unchanged.

        Raises:
            TypeError: If a document is not text; the message names its position.
            ValueError: If labels are passed, if weights are passed for documents that are not encoded, or if the
                documents have no text.
        """
        return self._pack_documents(x, y, sample_weight, pack_continuously)

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return `(features, next_ids, weights)` for the sequences at `indices`.

        The features leave out the last token of each sequence, which is only a target. `next_ids`, int32 (b, t), are
        the tokens to predict, and `weights`, float32 (b, t), are 0 for tokens that do not count.
        """
        features = self.features(examples.encoded, indices, width)
        ids = features["token_ids"]  # (b, t + 1)
        mask = features["padding_mask"]  # (b, t + 1)
        current_ids = ids[:, :-1]
        next_ids = ids[:, 1:]
        tokenizer = self.text_preprocessor.tokenizer
        weights = mask[:, 1:] > 0
        if tokenizer.end_token is not None:
            is_end = current_ids == tokenizer.token_to_id(tokenizer.end_token)
            if tokenizer.start_token == tokenizer.end_token:
                # The same token also begins texts, whose first tokens count; two in a row mark an end and a start.
                is_end &= next_ids == current_ids
            weights &= ~is_end
        if examples.weights is not None:
            weights = weights * examples.weights[indices][:, None]
        inputs = {name: values[:, :-1] if values.ndim > 1 else values for name, values in features.items()}
        inputs["padding_mask"] = mask[:, 1:]  # nothing is predicted from a sequence's last token
        return inputs, next_ids, weights.astype("float32")

    # === Scores ===

    def measure(self, x: Any, y: Any, batch_size: int, verbose: bool | int | str = "auto") -> dict[str, float]:
        return measure_by_token(self, x, batch_size, verbose)

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        return make_perplexity_report(measured["loss"])

    def score(
        self, texts: Iterable[Text] | None = None, batch_size: int | None = BATCH_SIZE, **unknown: Any
    ) -> list[list[TokenScore]]:
        """Return the log-probability of each token in each text, given the tokens before it.

        The first token follows the tokenizer's start token. If there is no start token, the first token has no score,
        and the list begins with the second token. Texts longer than the model's sequences are read in windows that
        overlap by half, so that each token after the first window has at least half a window before it.

        Args:
            texts: strings.
            batch_size: int, sequences per batch; None for 32.
            **unknown: arguments of other libraries, which raise an error with advice.

        Returns:
            For each text, a list with `{"token": str, "start": int, "end": int, "log_probability": float}` for each
            token; `start` and `end` are its character offsets in the text.

        Raises:
            TypeError: If an entry is not a string (the message names its position), or an argument is unknown.
        """
        refuse_arguments("score", unknown, SCORE_ARGUMENT_ADVICE)
        require(texts is not None, "texts", "a list of strings", texts)
        assert texts is not None  # for mypy
        (cleaned_texts,) = clean_columns({"texts": texts})
        tokenizer = self.text_preprocessor.tokenizer
        spans = tokenizer.tokenize_with_offsets(cleaned_texts)
        unscored_count = 0 if self.start_ids else 1
        scores_by_text = []
        log_probabilities = self._compute_log_probabilities(
            [[span.id for span in text_spans] for text_spans in spans], batch_size
        )
        for text_spans, values in zip(spans, log_probabilities, strict=True):
            scores = [
                TokenScore(token=tokenizer.id_to_token(id), start=start, end=end, log_probability=log_probability)
                for (id, _, start, end), log_probability in zip(text_spans, values.tolist(), strict=True)
            ]
            scores_by_text.append(scores[unscored_count:])
        return scores_by_text

    def perplexity(self, texts: Iterable[Text], batch_size: int | None = BATCH_SIZE) -> float:
        """Return the perplexity of texts, the exponential of the mean negative log-probability of their tokens.

        The tokens are read in the same windows as in `score`.

        Raises:
            TypeError: If an entry is not a string; the message names its position.
            ValueError: If there are no tokens to predict.
        """
        (cleaned_texts,) = clean_columns({"texts": texts})
        unscored_count = 0 if self.start_ids else 1
        ids = self.text_preprocessor.tokenizer.tokenize(cleaned_texts)
        token_count = sum(max(0, len(text_ids) - unscored_count) for text_ids in ids)
        if not token_count:
            raise ValueError("`texts` hold no tokens to predict.")
        log_likelihood = sum(
            float(values.sum(dtype="float64")) for values in self._compute_log_probabilities(ids, batch_size)
        )
        return math.exp(-log_likelihood / token_count)

    def classify(
        self,
        prompts: Iterable[Text],
        choices: Iterable[Text],
        examples: Iterable[tuple[Text, Text]] = (),
        reduction: str = "sum",
        unconditional_prompt: Text | None = None,
        separator: str = " ",
        top_k: int = 1,
        batch_size: int | None = BATCH_SIZE,
    ) -> list[ClassAnswer] | list[list[ClassAnswer]]:
        """Return the choice that is the most likely continuation of each prompt (Brown et al., 2020).

        The log-likelihood of a choice is the sum of the log-probabilities of its tokens. If choices change the tokens
        of a prompt, which may happen without a space in between, the tokens of the prompt from the first one that
        differs are included for every choice. A prompt begins with the start token only if `add_start_token` is set, or
        if it is empty or its first token depends on the choice.

        Args:
            prompts: strings.
            choices: the possible continuations of every prompt, at least two strings.
            examples: solved examples to put before each prompt, pairs of a prompt and one of the choices, with an empty
                line after each.
            reduction: "sum", the log-likelihood of all tokens of a choice; or "mean", the log-likelihood per token,
                which does not favor short choices.
            unconditional_prompt: a prompt that says nothing about the answer, such as "Answer:" or "". The
                log-likelihood of each choice after it, without examples, is subtracted, so that choices which are
                likely in any context have no advantage (Holtzman et al., 2021). None to subtract nothing.
            separator: string between a prompt and its choice if neither has whitespace there; "" for languages
                written without spaces.
            top_k: int, number of choices to return for each prompt.
            batch_size: int, sequences per batch; None for 32. Choices of one token share the sequence of their prompt.

        Returns:
            For each prompt, `{"label": str, "score": float}`, where the score is the softmax over the log-likelihoods
            of the choices; with `top_k` above 1, a list of such dicts, best first.

        Raises:
            TypeError: If an entry is not a string, or not a pair in `examples`; the message names its position.
            ValueError: Before the first step, if choices are empty, equal or fewer than two, the choice of an example
                is not in `choices`, a prompt is longer than the model's maximum length, or `reduction` is unknown;
                without a start token, also if a prompt is empty, or its first token depends on the choice.

        Example:

        ```python
        import lmzoo

        model = lmzoo.models.CausalLM.from_preset("gpt2_nano_en")
        model.classify(["The king took his sword and"], ["fought", "photographed"])  # [{"label": ..., "score": ...}]
        ```
        """
        check_top_k(top_k)
        check_arguments(batch_size=batch_size)
        require(reduction in ("sum", "mean"), "reduction", '"sum" or "mean"', reduction)
        require(isinstance(separator, str), "separator", "a string", separator)
        cleaned_choices = check_choices(choices)
        context = join_examples(examples, cleaned_choices, separator)
        (cleaned_prompts,) = clean_columns({"prompts": prompts})
        suffix = " after `examples`" if context else ""
        named_prompts = {f"`prompts[{i}]`{suffix}": context + prompt for i, prompt in enumerate(cleaned_prompts)}
        if unconditional_prompt is not None:
            ((named_prompts["`unconditional_prompt`"],),) = clean_columns(
                {"unconditional_prompt": [unconditional_prompt]}
            )
        log_likelihoods, token_counts = self._score_choices(
            named_prompts, cleaned_choices, separator, batch_size or BATCH_SIZE
        )  # both (n, C)
        scores = log_likelihoods / token_counts if reduction == "mean" else log_likelihoods
        if unconditional_prompt is not None:
            scores = scores[:-1] - scores[-1]
        ranked_classes = rank_classes(softmax(scores), cleaned_choices, top_k)
        return [classes[0] for classes in ranked_classes] if top_k == 1 else ranked_classes

    def _score_choices(
        self, prompts: Mapping[str, str], choices: Sequence[str], separator: str, batch_size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-likelihood of each choice after each prompt, and its number of tokens, both (n, C).

        Args:
            prompts: dict from the names of the prompts in messages to the prompts.
            choices: the choices.
            separator: string between a prompt and its choice.
            batch_size: int, sequences per batch.
        """
        self.check_takes_text()
        preprocessor = self.prompt_preprocessor
        start_ids = self.start_ids
        max_length = self.backbone.config.max_sequence_length
        rows_by_prompt = [
            encode_choices(preprocessor, name, prompt, choices, separator, start_ids, max_length)
            for name, prompt in prompts.items()
        ]
        compiled_parts = self.compiled_parts
        if "choices" not in compiled_parts:
            # A partial for the same reason as in `_compute_log_probabilities`.
            compiled_parts["choices"] = partial(
                score_choices, make_choice_model(self.backbone, self._make_symbolic_logits)
            )
        return compiled_parts["choices"](self._make_stateless_model(), rows_by_prompt, len(choices), batch_size)

    def _make_stateless_model(
        self,
    ) -> CausalLM:  # not a property, because Keras would save the model as a part of this one
        """Return this model or, if it carries a state, a model with the same weights that carries none."""
        if not self.carries_state:
            return self
        return CausalLM(self.backbone, self.preprocessor, self.max_new_tokens, add_start_token=self.add_start_token)

    @property
    def start_ids(self) -> list[int]:
        """List with the id of the start token, or an empty list if the tokenizer has none."""
        tokenizer = self.text_preprocessor.tokenizer
        return [] if tokenizer.start_token is None else [tokenizer.token_to_id(tokenizer.start_token)]

    @property
    def prompt_preprocessor(self) -> Preprocessor:
        """The preprocessor for prompts, which puts the start token first if `add_start_token` is set."""
        preprocessor = self.text_preprocessor
        if preprocessor.packing.start or not self.add_start_token:
            return preprocessor
        packing = replace(preprocessor.packing, start=str(preprocessor.tokenizer.start_token))
        return Preprocessor(preprocessor.tokenizer, packing, preprocessor.sequence_length)

    def _compute_log_probabilities(self, ids: Sequence[Sequence[int]], batch_size: int | None) -> list[np.ndarray]:
        """Return the log-probability of each token in each text, 0 for first tokens if there is no start token."""
        check_arguments(batch_size=batch_size)
        self.check_takes_text()
        compiled_parts = self.compiled_parts
        if "scores" not in compiled_parts:
            # The partial hides the scoring model from Keras, which would track it as a part of this model and raise an
            # error once this model is quantized.
            model = make_scoring_model(self.backbone, self._make_symbolic_logits)
            compiled_parts["scores"] = partial(score_sequences, model)
        start_ids = self.start_ids
        max_length = self.text_preprocessor.sequence_length
        compute_scores = compiled_parts["scores"]
        scores = compute_scores(
            self._make_stateless_model(),
            [[*start_ids, *text_ids] for text_ids in ids],
            max_length,
            batch_size or BATCH_SIZE,
        )
        return [values[len(start_ids) :] for values in scores]

    # === Generate ===

    def generate(
        self,
        prompts: Text | Iterable[Text] | TokenIds | None = None,
        max_new_tokens: int | None = None,
        sampler: str | Sampler = "greedy",
        temperature: float = 1.0,
        stop: str | int | Sequence[str | int] | None = (),
        seed: int | None = None,
        stream: bool = False,
        batch_size: int | None = BATCH_SIZE,
        **unknown: Any,
    ) -> Any:
        """Continue prompts with generated text.

        Prompts of different lengths are batched together. With "greedy", "beam" and "contrastive", the result for a
        prompt does not depend on the other prompts. On TensorFlow, code is compiled once for each sampler; on JAX, or
        with `jit_compile=True`, it is compiled for at most four padded lengths of prompts, and for each number of new
        tokens and of prompts.

        Args:
            prompts: strings, or one string. An empty prompt stands for the beginning of a text, if the family has a
                start token. Or token ids, which are continued as they are: a list of ints, a list of such lists, an int
                array (n, T), or a dict of `token_ids` and `padding_mask` (n, T).
            max_new_tokens: int, maximum number of tokens to add to each prompt; the model's `max_new_tokens` by
                default, or fewer if the model has no room for them.
            sampler: "greedy", "random", "top_k", "top_p", "beam" or "contrastive" for a sampler of `keras_hub.samplers`
                (for "beam", `lmzoo.tasks.beam_search.BeamSampler`) with its default settings; or a sampler of
                `keras_hub.samplers` with your own settings.
            temperature: float, divisor of the logits; values below 1 make likely tokens even more likely.
            stop: a string or a token id, or several. A text ends before the first occurrence of any of them, and at the
                tokenizer's end token. None to also ignore the end token: every text then gets `max_new_tokens`.
            seed: int, seed that makes samples repeatable; None for different samples in each call. The samples with
                `stream` differ from the samples without it.
            stream: whether to return an iterator over lists of text pieces, one for each prompt, as they are generated.
                Beam search only yields its text at the end.
            batch_size: int, prompts per batch; None for 32.
            **unknown: `inputs`, KerasHub's name of `prompts`; other arguments of other libraries raise an error with
                advice.

        Returns:
            The continuation of each prompt, as a list of strings, or with `stream` an iterator over lists of text
            pieces. If `prompts` is a single prompt, its continuation or an iterator over its pieces. For token ids,
            lists of the new ids instead of strings; these need no preprocessor.

        Raises:
            TypeError: If a prompt is neither a string nor token ids (the message names its position), `sampler` is
                neither a name nor a sampler, or an argument is unknown.
            ValueError: Before the first step, if a prompt leaves no room for `max_new_tokens`, or is empty and the
                family has no start token; if the sampler is unknown or a number out of range; or if strings are passed
                but the model has no preprocessor.
        """
        if prompts is None:
            prompts = unknown.pop("inputs", None)
        refuse_arguments("generate", unknown, GENERATE_ARGUMENT_ADVICE)
        require(prompts is not None, "prompts", "texts or token ids", prompts)
        is_valid = max_new_tokens is None or is_integer(max_new_tokens, 1)
        require(is_valid, "max_new_tokens", "a positive integer", max_new_tokens)
        check_sampling(sampler, temperature, seed, batch_size)
        batch_size = batch_size or BATCH_SIZE
        tokenizer = None if self.preprocessor is None else self.preprocessor.tokenizer
        vocabulary_size = self.backbone.config.vocabulary_size if tokenizer is None else tokenizer.vocabulary_size
        end_ids, stop_texts = split_stops(stop, vocabulary_size)
        ids, is_single, are_ids = self._encode_prompts(prompts, vocabulary_size)
        require(not (are_ids and stop_texts), "stop", "token ids, as the prompts are", stop)
        max_length = self.backbone.config.max_sequence_length
        check_room(ids, max_new_tokens, max_length)
        new_token_limits = [max_new_tokens or min(self.max_new_tokens, max_length - len(prompt)) for prompt in ids]
        if stop is not None and tokenizer is not None and tokenizer.end_token:
            end_ids = [tokenizer.token_to_id(tokenizer.end_token), *end_ids]
        stop_ids = [*dict.fromkeys(end_ids)]
        if stop_texts:
            stop_ids += tokens_holding(self.text_preprocessor.tokenizer, stop_texts)
        generator = get_generator(self, vocabulary_size, self.compiled_parts)
        empty_piece: Any = [] if are_ids else ""
        order = np.argsort([len(prompt) for prompt in ids], kind="stable").tolist()

        def make_buffer(prompt: list[int]) -> TextPieces | TokenPieces:
            return TokenPieces() if are_ids else TextPieces(self.text_preprocessor.tokenizer, prompt, stop_texts)

        def generate_pieces(sampler: Sampler) -> Iterator[dict[int, Any]]:
            """Yield dicts from the indices of a batch's prompts to their next pieces, strings or lists of ids."""
            for batch_indices in group_items(order, batch_size):
                buffers = {i: make_buffer(ids[i]) for i in batch_indices}
                batch_limits = np.array([new_token_limits[i] for i in batch_indices])
                room = max(new_token_limits)  # the maximum over all batches, so that they share compiled code
                batch_ids = [ids[i] for i in batch_indices]
                tokens_by_step = generator.generate(
                    batch_ids, batch_limits, sampler, stop_ids, temperature, stream, batch_size, room
                )
                for new_tokens in tokens_by_step:
                    yield {
                        i: buffers[i].add([token for token in tokens if token not in end_ids])
                        for i, tokens in zip(batch_indices, new_tokens, strict=True)
                    }
                    if all(buffer.ended for buffer in buffers.values()):
                        break
                yield {i: buffer.rest() for i, buffer in buffers.items()}

        pieces_by_step = generator.isolate_random_state(sampler, seed, generate_pieces)
        if stream:
            piece_lists = ([pieces.get(i, empty_piece) for i in range(len(ids))] for pieces in pieces_by_step)
            return (piece for (piece,) in piece_lists) if is_single else piece_lists
        pieces_by_prompt: list[list[Any]] = [[] for _ in ids]
        for pieces in pieces_by_step:
            for i, piece in pieces.items():
                pieces_by_prompt[i].append(piece)
        continuations = [[*chain(*pieces)] if are_ids else "".join(pieces) for pieces in pieces_by_prompt]
        return continuations[0] if is_single else continuations

    answers = generate

    def check_answerable(self, x: Any, **options: Any) -> None:
        ids, _, _ = self._encode_prompts(x, self.backbone.config.vocabulary_size)
        check_room(ids, options.get("max_new_tokens"), self.backbone.config.max_sequence_length)

    def _encode_prompts(self, prompts: Any, vocabulary_size: int) -> tuple[list[list[int]], bool, bool]:
        """Return the token ids of each prompt, whether there is a single prompt, and whether ids were passed.

        Args:
            prompts: see `generate`.
            vocabulary_size: int, number of token ids.
        """
        if (sequences := as_id_lists(prompts)) is not None:
            check_prompt_ids("prompts", sequences[0], vocabulary_size, self.backbone.config.max_sequence_length)
            return *sequences, True
        prompts, is_single = list_texts(prompts)
        check_reads_text(self)
        return encode_prompts(self.prompt_preprocessor, prompts, self.start_ids), is_single, False

    # === Export ===

    served_outputs = ("text",)

    @property
    def served_length(self) -> int:
        """The maximum number of prompt tokens of the exported model, which leaves room for `max_new_tokens`."""
        return int(self.backbone.config.max_sequence_length) - self.max_new_tokens

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers to token features: `text`, greedy continuations, strings (B,).

        The end token that the preprocessor appends to a text is removed before generation.
        """
        return {
            "text": generate_in_ops(
                self._make_stateless_model(), mask_end_token(features, self.text_preprocessor), self.max_new_tokens
            )
        }

    def signatures(self) -> Signatures:
        """Return the exported model's signatures, which generate `max_new_tokens` tokens with several samplers.

        The default is greedy. The signatures `random`, `top_k` and `top_p` also take `seed`, int64 (n,), and
        `temperature`, float32 (n,). Each text equals the result of `generate` on TensorFlow for its prompt alone. A
        prompt that is too long is truncated to its last tokens, and `truncated` is True for it.
        """
        return make_generation_signatures(
            self._make_stateless_model(), self.prompt_preprocessor, self.max_new_tokens, self.start_ids
        )


def _project(projection: Dense, vectors: Tensor) -> Tensor:
    """Apply the kernel of an untied head to hidden states (B, T, H), and return the logits, float32 (B, T, V)."""
    return ops.cast(projection(vectors), "float32")
