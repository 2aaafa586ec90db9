"""Sequence-to-sequence modeling: generation of a target text from a source, such as translation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import as_python_values, is_integer, is_number, refuse_arguments, require, require_share
from lmzoo.common.tensor_types import Tensor
from lmzoo.data.corpora.sequences import pack_running_text
from lmzoo.data.corpora.tokenized_documents import group_items
from lmzoo.errors import ArgumentError
from lmzoo.evaluation.reports import Report
from lmzoo.evaluation.translations import compare_translations, import_sacrebleu
from lmzoo.families.backbone import Backbone
from lmzoo.layers.heads import OutputBias
from lmzoo.registry.family import Family, get_family
from lmzoo.serving.export import signature, text_signatures
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.base.examples import Batch, Examples, FeatureArrays, Labels, Texts, Weights
from lmzoo.tasks.beam_search import BeamSampler
from lmzoo.tasks.generation import NEVER, Sampler, TokenGenerator, check_sampling, get_generator
from lmzoo.tasks.inputs import TokenIds, are_pairs, as_id_lists, list_target_ids, list_texts
from lmzoo.tasks.prompts import GENERATE_ARGUMENT_ADVICE, check_prompt_ids, check_reads_text, split_stops
from lmzoo.tasks.token_labels import TokenLabelsTask
from lmzoo.tasks.token_losses import make_perplexity_report, measure_by_token
from lmzoo.text import EncodedTexts, Preprocessor, SpanCorruption
from lmzoo.text.batching import ladder_buckets
from lmzoo.text.packing import EncodedPairs
from lmzoo.text.segments import split_segments
from lmzoo.text.tokenizers.sentencepiece_pair import LANGUAGE
from lmzoo.text.validate_text import Text, clean_columns, clean_texts
from lmzoo.training import AdamW
from lmzoo.training.losses import SmoothedCrossEntropy
from lmzoo.training.span_metrics import TokenAccuracy

if TYPE_CHECKING:
    import tensorflow as tf

BATCH_SIZE = 32
# By default, a target has at most 2·n + 16 tokens for a source of n tokens.
_MAX_TARGET_RATIO = 2
_EXTRA_TARGET_TOKENS = 16


@keras.saving.register_keras_serializable(package="lmzoo")
class Seq2SeqLM(TokenLabelsTask):
    """A model that generates a target text from a source text, such as its translation.

    See Sutskever et al. (2014) and Vaswani et al. (2017).

    The inputs are the backbone's inputs. The outputs are the logits of the next token at each of the S positions of the
    target, over a vocabulary of V tokens, float32 (B, S, V). They are computed with the backbone's token embeddings
    and, in most families, a bias.

    `fit` and `evaluate` take pairs of texts without labels: a list of `(source, target)`, or a tuple of two lists. With
    token features, pass the targets' tokens as `y`, int (B, S), with -100, or a `sample_weight` of 0, for tokens that
    should not count.

    With `span_corruption`, T5's pre-training objective (Raffel et al., 2020), `fit` and `evaluate` take documents, each
    a string or a list of sentences. `lmzoo.data.corpora.pack_running_text` joins the documents and splits them into
    sequences. Each time a sequence is read, different spans of its tokens are dropped, and the model learns to generate
    these spans.

    Args:
        backbone: `lmzoo.models.Backbone` of a family that reads a source, such as `MarianBackbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        num_beams: int, number of beams, the translations that are continued at the same time; 1 for greedy search.
        length_penalty: float; beam search divides the log-probability of a translation by its number of tokens to
            this power.
        max_new_tokens: int, maximum number of tokens in a translation, counting the end token; by default 2·n + 16 for
            a source of n tokens. At the limit, a translation by a Marian model ends with the end token, and a
            translation by a T5 model is truncated. Settable.
        label_smoothing: float in [0, 1), the fraction of the target probability that is spread over all tokens. Not
            used with span corruption.
        span_corruption: `lmzoo.text.SpanCorruption`, or a dict of its arguments, to learn from documents; None to learn
            from pairs.
        name: name of the model.

    Raises:
        TypeError: If `span_corruption` is neither a `SpanCorruption` nor a dict.
        ValueError: If the backbone reads no source; if the preprocessor has no padding token, no end token or, with
            `span_corruption`, no sentinels; or if a number is out of range.

    Example:

    ```python
    import lmzoo
    from lmzoo.families.marian import FAMILY
    from lmzoo.text import MarianTokenizer, Preprocessor

    tokenizer = MarianTokenizer.of_words(["der", "Film", "the", "film"], size=11)
    backbone = lmzoo.models.MarianBackbone(
        vocabulary_size=11, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=32
    )
    model = lmzoo.models.Seq2SeqLM(backbone, Preprocessor(tokenizer, FAMILY.packing, sequence_length=32))
    model.fit([("der Film", "the film")] * 4, epochs=2, verbose=0)
    model.translate(["der Film"])
    ```
    """

    predicts = "logits of all target tokens (n, T, V)"
    head_kind = "seq2seq_lm"
    pipeline_tag = "translation"
    commands = (("translation", "translations"),)
    serves = "`text` (n,): the translations"
    learns_from = "pairs alone, `fit((sources, targets))`"
    per_token = True
    uses_pooler = False

    def measure(self, x: Any, y: Any, batch_size: int, verbose: bool | int | str = "auto") -> dict[str, float]:
        if self.span_corruption is None:
            import_sacrebleu()  # `compare` needs it, after all sources are translated
            return super().measure(x, y, batch_size, verbose)
        return measure_by_token(self, x, batch_size, verbose)

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        """Return a report with BLEU and chrF of translations or, with span corruption, the perplexity."""
        if self.span_corruption is not None:
            return make_perplexity_report(measured["loss"])
        translations: list[str] = []
        references: list[Any] = []
        for part in parts:
            sources, targets = split_segments(part)
            translations += self.translate(sources, batch_size=batch_size)
            references += [] if targets is None else clean_texts(targets, "targets")
        return compare_translations(translations, references)

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        num_beams: int = 4,
        length_penalty: float = 1.0,
        max_new_tokens: int | None = None,
        label_smoothing: float = 0.1,
        span_corruption: SpanCorruption | Mapping[str, Any] | None = None,
        labels: None = None,
        name: str | None = None,
    ) -> None:
        if not self.supports(get_family(backbone)):
            raise ValueError(
                f"This {type(backbone).__name__} reads no source: a Seq2SeqLM needs an encoder and a decoder, such as "
                "MarianBackbone."
            )
        require(is_integer(num_beams, 1), "num_beams", "a positive integer", num_beams)
        require(is_number(length_penalty), "length_penalty", "a number", length_penalty)
        require_share("label_smoothing", label_smoothing)
        if isinstance(span_corruption, Mapping):
            span_corruption = SpanCorruption(**span_corruption)
        if not isinstance(span_corruption, SpanCorruption | None):
            raise TypeError(f"`span_corruption` must be a `lmzoo.text.SpanCorruption`, got {span_corruption!r:.60}.")
        output_bias = None
        inputs = backbone.input
        logits = backbone(inputs, vectors=backbone(inputs)["sequence_output"])  # (B, S, V)
        if backbone.has_output_bias:
            output_bias = OutputBias(backbone.config.vocabulary_size, name="output_bias")
            logits = output_bias(logits)
        super().__init__(backbone, preprocessor, inputs, logits, None, name)
        self.output_bias = output_bias
        self.num_beams = int(num_beams)
        self.length_penalty = float(length_penalty)
        self.max_new_tokens = max_new_tokens
        self.label_smoothing = label_smoothing
        self.span_corruption = span_corruption
        if span_corruption is not None:
            self.learns_from = "documents alone, with span corruption"
            self.splits_examples = True
        if preprocessor is not None and not (preprocessor.tokenizer.pad_token and preprocessor.packing.end):
            raise ValueError(
                "A Seq2SeqLM needs a tokenizer with a padding token, with which targets begin, and a packing with an "
                "end token."
            )
        if span_corruption is not None and preprocessor is not None and not self._sentinels:
            raise ValueError(
                f"Span corruption needs a tokenizer with sentinels, such as T5Tokenizer: this "
                f"{type(preprocessor.tokenizer).__name__} has none."
            )
        self.compile()

    @property
    def max_new_tokens(self) -> int | None:
        """The maximum number of tokens in a translation; None for a maximum that depends on the source's length."""
        return self._max_new_tokens

    @max_new_tokens.setter
    def max_new_tokens(self, count: int | None) -> None:
        max_length = self.backbone.config.max_sequence_length
        is_valid = count is None or (is_integer(count, 1) and count < max_length)
        require(
            is_valid, "max_new_tokens", f"None or a positive integer below the model's {max_length} positions", count
        )
        self._max_new_tokens = None if count is None else int(count)

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family's models read a separate source sequence."""
        return bool(family.backbone.reads_source)

    def default_loss(self) -> keras.losses.Loss:
        """Return the loss, the mean cross-entropy over the targets' tokens; for pairs, labels are smoothed."""
        return SmoothedCrossEntropy(self.label_smoothing if self.span_corruption is None else 0.0)

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics, the accuracy of next-token predictions."""
        return [TokenAccuracy()]

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """Return AdamW with clipped gradients, the recipe's peak learning rate and a schedule by inverse square root.

        The schedule, `beta_2` and `epsilon` are those of Vaswani et al. (2017, section 5.3).
        """
        learning_rate = self.recipe.learning_rate
        return AdamW(learning_rate, beta_2=0.98, epsilon=1e-9, global_clipnorm=1.0, schedule="inverse_square_root")

    # === Examples ===

    @property
    def longest_sequence(self) -> int:
        """The maximum number of tokens in a sequence; with span corruption, before its spans are dropped."""
        length = super().longest_sequence
        return length if self.span_corruption is None else self.span_corruption.text_length(length)

    @property
    def _sentinels(self) -> tuple[str, ...]:
        """The sentinels of the tokenizer in their order in texts; empty for a tokenizer without sentinels."""
        return tuple(getattr(self.text_preprocessor.tokenizer, "sentinels", ()))

    def encode_examples(self, x: Any, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Encode pairs or, with span corruption, pack documents into sequences.

        Encoded examples are returned unchanged.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If labels are passed; see also `encode_inputs`. With span corruption, if `x` holds pairs, if
                documents have weights, if a sequence is too short or too long, or if there are too few sentinels.
        """
        if self.span_corruption is None:
            return super().encode_examples(x, y, sample_weight)
        if isinstance(x, EncodedPairs) or are_pairs(x):
            raise ValueError(
                "With `span_corruption` a Seq2SeqLM learns from documents, each a string or a list of sentences, but "
                "got pairs. To learn from pairs, build or load the model with `span_corruption=None`."
            )
        examples = self._pack_documents(
            x,
            y,
            sample_weight,
            lambda x, preprocessor: pack_running_text(
                x, Preprocessor(preprocessor.tokenizer, preprocessor.packing, self.longest_sequence)
            ),
        )
        self._check_corruptible(examples.encoded.lengths, self.span_corruption)
        return examples

    def _check_corruptible(self, lengths: np.ndarray, corruption: SpanCorruption) -> None:
        """Check that span corruption can be applied to sequences of the given lengths.

        Args:
            lengths: int (n,), numbers of tokens of the sequences.
            corruption: settings of span corruption.

        Raises:
            ValueError: If a sequence is too short or too long, or if there are too few sentinels for the longest
                sequence.
        """
        if not len(lengths):
            return  # the caller says that there is no text
        max_length = self.longest_sequence
        if lengths.min() < 2 or lengths.max() > max_length:
            raise ValueError(
                f"Span corruption takes sequences of 2 to {max_length} tokens, got {lengths.min()} to {lengths.max()}. "
                "Make them with `lmzoo.data.corpora.pack_running_text`, from a preprocessor with "
                f"`sequence_length={max_length}`."
            )
        span_count = int(corruption.counts(lengths.max(keepdims=True))[1][0])
        if span_count + 1 > len(self._sentinels):
            raise ValueError(
                f"Sequences of {lengths.max()} tokens have {span_count} dropped spans, for which {span_count + 1} "
                f"sentinels are needed, but the tokenizer has {len(self._sentinels)}. Use shorter sequences, longer or "
                "fewer spans (`mean_length`, `probability`), or a tokenizer with more sentinels."
            )

    def encode_inputs(self, x: Any) -> EncodedPairs:
        """Encode pairs of sources and targets as sequences of token ids; return encoded pairs unchanged.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If there are no targets, if lists differ in length, if a source is too long for the model, if
                the model cannot write a source's target language, or if the task has no preprocessor.
        """
        self.check_takes_text()
        if isinstance(x, EncodedPairs):
            return x
        sources, targets = split_segments(x)
        if targets is None:
            raise ValueError(
                "A Seq2SeqLM learns from pairs: pass a list of (source, target), or a tuple of two lists. Sources "
                "alone are for `translate`."
            )
        sources, targets = clean_columns({"sources": sources, "targets": targets})
        if len(sources) != len(targets):
            raise ValueError(
                f"Pairs need as many targets as sources: got {len(sources)} sources, {len(targets)} targets."
            )
        preprocessor = self.text_preprocessor
        target_preprocessor = Preprocessor(
            preprocessor.tokenizer.target_side, preprocessor.packing, preprocessor.sequence_length
        )
        return EncodedPairs(self.encode_sources(sources), target_preprocessor.encode(targets))

    def encode_sources(self, texts: Iterable[Text]) -> EncodedTexts:
        """Encode sources as sequences of token ids.

        A source that is longer than `sequence_length`, but fits into the model, is truncated with a warning.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If a source is too long for the model, or if the model cannot write its target language.
        """
        preprocessor = self.text_preprocessor
        max_length = self.backbone.config.max_sequence_length
        (cleaned_texts,) = clean_columns({"texts": texts})
        languages = self.languages
        for i, text in enumerate(cleaned_texts if languages else ()):
            language_match = LANGUAGE.match(text)
            if language_match and language_match[0] not in languages:
                raise ValueError(
                    f"The source at position {i} asks for {language_match[0]}, but the model writes "
                    f"{', '.join(languages)}."
                )
        ids = preprocessor.tokenizer.tokenize(cleaned_texts)
        overhead = preprocessor.packing.overhead(False)
        for i, tokens in enumerate(ids):
            if len(tokens) + overhead > max_length:
                raise ValueError(
                    f"The source at position {i} has {len(tokens) + overhead} tokens, more than the {max_length} "
                    "positions of the model. Split it into sentences (`lmzoo.text.split_sentences`)."
                )
        return preprocessor.pack(ids)

    @property
    def languages(self) -> tuple[str, ...]:
        """The codes of the target languages, such as ">>fra<<"; empty for a model with a single target language."""
        return tuple(getattr(self.text_preprocessor.tokenizer, "languages", ()))

    def features(self, encoded: EncodedPairs, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the model's inputs for the pairs at `indices`, padded to `width`.

        The decoder's inputs are the targets shifted by one position, with a padding token in front.
        """
        return self._make_pair_features(encoded, indices, width, width)[0]

    def _make_pair_features(
        self, pairs: EncodedPairs, indices: np.ndarray, source_width: int, target_width: int
    ) -> tuple[FeatureArrays, np.ndarray]:
        """Return the model's inputs for the pairs at `indices`, and the padded targets, int32 (b, target_width)."""
        pad_id = self.text_preprocessor.tokenizer.pad_id
        ids, mask = pairs.targets.padded(indices, target_width, pad_id)  # (b, target_width)
        features = {
            **self.text_preprocessor.features(pairs.sources, indices, source_width),
            "decoder_token_ids": np.concatenate([np.full_like(ids[:, :1], pad_id), ids[:, :-1]], axis=1),
            "decoder_padding_mask": mask,
        }
        return features, ids

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return `(features, targets, weights)` for the pairs or sequences at `indices`.

        Targets are int32 (b, t), and weights are float32 (b, t). With span corruption, `width` is the padded length of
        the text, from which the lengths of sources and targets follow.
        """
        corruption = self.span_corruption
        if corruption is None:
            features, ids = self._make_pair_features(examples.encoded, indices, width, width)
        else:
            tokenizer = self.text_preprocessor.tokenizer
            sentinel_ids = [tokenizer.token_to_id(sentinel) for sentinel in self._sentinels]
            (end_id,) = self.text_preprocessor.special_ids()[2]
            pairs = corruption.corrupt(examples.encoded.select(indices), sentinel_ids, end_id, rng)
            widths = corruption.source_length(width), corruption.target_length(width)
            features, ids = self._make_pair_features(pairs, np.arange(len(indices)), *widths)
        weights = features["decoder_padding_mask"].astype("float32")
        if examples.weights is not None:
            weights = weights * examples.weights[indices][:, None].astype("float32")
        return features, ids, weights

    def get_config(self) -> dict[str, Any]:
        span_corruption = None if self.span_corruption is None else as_python_values(asdict(self.span_corruption))
        return {**super().get_config(), "span_corruption": span_corruption}

    # === Translate ===

    def translate(
        self,
        texts: Text | Iterable[Text] | TokenIds,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
        language: str | None = None,
        batch_size: int | None = BATCH_SIZE,
        **unknown: Any,
    ) -> list[str] | Any:
        """Translate texts by beam search, each independently of the others.

        Args:
            texts: strings, or one string; or token ids, see `generate`.
            num_beams: int, number of beams; the model's by default.
            length_penalty: float, exponent of the length; the model's by default.
            max_new_tokens: int, maximum number of tokens in a translation; the model's by default.
            language: target language, such as "fra", for a model with several; not for token ids, which hold its code.
            batch_size: int, texts per batch; None for 32.
            **unknown: arguments of other libraries, which raise an error with advice.

        Returns:
            The translation of each text, or a single string if `texts` is one string; see `generate`.

        Raises:
            TypeError: If an entry is not a string (the message names its position), or if an argument is unknown.
            ValueError: If a text is too long for the model, if the model cannot write the target language, or if a
                number is out of range; all are checked before the first step.
        """
        refuse_arguments("translate", unknown, GENERATE_ARGUMENT_ADVICE)
        beam_count = self.num_beams if num_beams is None else num_beams
        penalty = self.length_penalty if length_penalty is None else length_penalty
        sampler = BeamSampler(beam_count, penalty)
        return self.generate(texts, max_new_tokens, sampler, language=language, batch_size=batch_size)

    answers = translate

    def generate(
        self,
        texts: Text | Iterable[Text] | TokenIds | None = None,
        max_new_tokens: int | None = None,
        sampler: str | Sampler = "greedy",
        temperature: float = 1.0,
        seed: int | None = None,
        language: str | None = None,
        batch_size: int | None = BATCH_SIZE,
        stop: int | Sequence[int] | None = (),
        **unknown: Any,
    ) -> list[str] | Any:
        """Generate a target for each source text with any sampler, such as top-k sampling.

        Sources passed as token ids must already be packed, with their special tokens. A model without a preprocessor
        knows neither the token that begins a target nor the token that ends it: pass the first in `decoder_token_ids`,
        and the second as `stop`. Such a model may also generate padding.

        Args:
            texts: strings, or one string. Or token ids: a list of ints, a list of such lists, an int array (n, T), or a
                dict of `token_ids`, `padding_mask` (n, T) and optionally `decoder_token_ids`, `decoder_padding_mask`
                (n, S), targets to continue, each beginning with the padding token.
            max_new_tokens: int, maximum number of tokens in a target; the model's by default.
            sampler: "greedy", "random", "top_k", "top_p", "beam" or "contrastive", or a sampler; see
                `CausalLM.generate`.
            temperature: float, divisor of the logits.
            seed: int, seed that makes samples repeatable.
            language: target language, such as "fra", for a model with several; not for token ids, which hold its code.
            batch_size: int, texts per batch; None for 32.
            stop: token ids that end a target, in addition to the tokenizer's end token; None to also ignore the end
                token.
            **unknown: `inputs`, KerasHub's name for `texts`; other arguments of other libraries raise an error with
                advice.

        Returns:
            The target of each text, or a single string if `texts` is one string. For token ids, lists of the new ids
            instead of strings.

        Raises:
            TypeError: If an entry is not a string (the message names its position), if `sampler` is neither a name nor
                a sampler, or if an argument is unknown.
            ValueError: See `translate`; also if an id is invalid, or if token ids come without `decoder_token_ids` and
                the model has no preprocessor.
        """
        if texts is None:
            texts = unknown.pop("inputs", None)
        refuse_arguments("generate", unknown, GENERATE_ARGUMENT_ADVICE)
        require(texts is not None, "texts", "texts or token ids", texts)
        max_target_length = self.backbone.config.max_sequence_length - 1
        is_valid = max_new_tokens is None or is_integer(max_new_tokens, 1, max_target_length)
        require(is_valid, "max_new_tokens", f"an integer from 1 to {max_target_length}", max_new_tokens)
        is_valid_language = language is None or isinstance(language, str)
        require(is_valid_language, "language", 'a language code such as "fra", or None', language)
        check_sampling(sampler, temperature, seed, batch_size)
        batch_size = batch_size or BATCH_SIZE
        tokenizer = None if self.preprocessor is None else self.preprocessor.tokenizer
        vocabulary_size = self.backbone.config.vocabulary_size if tokenizer is None else tokenizer.vocabulary_size
        end_ids, stop_texts = split_stops(stop, vocabulary_size)
        require(not stop_texts, "stop", "token ids or None", stop)
        if stop is not None and self.preprocessor is not None:
            end_ids = [*self.preprocessor.special_ids()[2], *end_ids]
        sequences = as_id_lists(texts)
        is_allowed = language is None or sequences is None
        require(is_allowed, "language", "None for token ids", language, "Put the id of its code first in the sources.")
        if sequences is None:
            texts, is_single = list_texts(texts)
            encoded, target_starts = self._encode_texts(texts, language)
        else:
            is_single = sequences[1]
            encoded, target_starts = self._encode_ids(sequences[0], list_target_ids(texts), vocabulary_size)
        lengths = encoded.lengths
        generator = get_generator(self, vocabulary_size, self.compiled_parts)
        seeded_sampler = generator.sampler(sampler, seed)
        outputs: list[Any] = [None] * len(encoded)
        pad_id = 0 if tokenizer is None else tokenizer.pad_id
        for batch_indices in group_items(np.argsort(lengths, kind="stable").tolist(), batch_size):
            width = int(lengths[batch_indices].max())
            if generator.compiles_each_shape:
                width = next(bucket for bucket in ladder_buckets(max_target_length + 1) if bucket >= width)
            prompts = [target_starts[i] for i in batch_indices]
            room = max_target_length + 1 - np.array([len(prompt) for prompt in prompts])
            source = dict(
                zip(("token_ids", "padding_mask"), encoded.padded(np.array(batch_indices), width, pad_id), strict=True)
            )
            (targets,) = generator.generate(
                prompts,
                np.minimum(self.most_new_tokens(lengths[batch_indices], max_new_tokens), room),
                seeded_sampler,
                end_ids,
                float(temperature),
                stream=False,
                batch_size=batch_size,
                room=int(np.asarray(self.most_new_tokens(np.array([width]), max_new_tokens))[0]),
                source=source,  # (n, T)
            )
            for i, tokens in zip(batch_indices, targets, strict=True):
                tokens = [token for token in tokens if token not in end_ids]
                outputs[i] = tokens if sequences else self.text_preprocessor.tokenizer.detokenize(tokens)
        return outputs[0] if is_single else outputs

    def _encode_texts(self, texts: Iterable[Text], language: str | None) -> tuple[EncodedTexts, list[list[int]]]:
        """Return packed sources, and the token ids with which each target begins."""
        check_reads_text(self)
        (cleaned_texts,) = clean_columns({"texts": texts})
        if language is not None:
            language_code = language if language.startswith(">>") else f">>{language}<<"
            if language_code not in self.languages:
                languages = ", ".join(self.languages) or "one language, which takes no code"
                raise ValueError(f"The model does not write {language_code}: it writes {languages}.")
            cleaned_texts = [f"{language_code} {text}" for text in cleaned_texts]
        return self.encode_sources(cleaned_texts), [[self.text_preprocessor.tokenizer.pad_id]] * len(cleaned_texts)

    def _encode_ids(
        self, ids: list[list[int]], targets: list[list[int]] | None, vocabulary_size: int
    ) -> tuple[EncodedTexts, list[list[int]]]:
        """Return encoded sources, and the token ids with which each target begins.

        Args:
            ids: token ids of each source.
            targets: token ids of each target so far, or None for the padding token.
            vocabulary_size: int, number of token ids.

        Raises:
            ValueError: If an id is invalid, if a sequence is too long for the model, if `targets` is None and the model
                has no preprocessor, or if the numbers of sources and targets differ.
        """
        if targets is None:
            if self.preprocessor is None:
                raise ValueError(
                    f"This {type(self).__name__} has no preprocessor, so it does not know the token that begins a "
                    "target. Pass a dict of `token_ids`, `padding_mask` and `decoder_token_ids`."
                )
            targets = [[self.preprocessor.tokenizer.pad_id]] * len(ids)
        if len(targets) != len(ids):
            raise ArgumentError(
                f"`decoder_token_ids` must have a row for each of the {len(ids)} sources in `token_ids`, got "
                f"{len(targets)}.",
                "decoder_token_ids",
            )
        max_length = self.backbone.config.max_sequence_length
        check_prompt_ids("token_ids", ids, vocabulary_size, max_length)
        check_prompt_ids("decoder_token_ids", targets, vocabulary_size, max_length - 1)
        return EncodedTexts.of_ids(ids), targets

    def most_new_tokens(self, lengths: Any, new: int | None = None) -> Any:
        """Return the maximum number of tokens in each target, ints (B,).

        Args:
            lengths: int array or tensor (B,), number of tokens in each source.
            new: int, maximum for all targets; the model's `max_new_tokens` by default. If both are None, the maximum
                is 2·n + 16 for a source of n tokens. It never exceeds the model's positions.
        """
        shared_limit = self.max_new_tokens if new is None else new
        max_limit = self.backbone.config.max_sequence_length - 1
        limits = (
            lengths * 0 + shared_limit
            if shared_limit is not None
            else _MAX_TARGET_RATIO * lengths + _EXTRA_TARGET_TOKENS
        )
        return np.minimum(limits, max_limit) if isinstance(lengths, np.ndarray) else ops.minimum(limits, max_limit)

    def next_token_logits(self, vectors: Tensor) -> Tensor:
        """Return the logits of the next tokens, float32 (B, S, V), from hidden states, float (B, S, H).

        The padding token is excluded if the model has a preprocessor, which knows its id.
        """
        logits = self.backbone.token_logits(vectors)
        if self.output_bias is not None:
            logits = self.output_bias(logits)
        if self.preprocessor is None:
            return logits
        is_padding = ops.arange(logits.shape[-1]) == self.text_preprocessor.tokenizer.pad_id  # (V,)
        return ops.where(is_padding, NEVER, logits)

    def source_attention(self, source: Text, target: Text, layer: int = -1) -> tuple[list[str], list[str], np.ndarray]:
        """Return the attention weights from a target's tokens to its source's tokens, averaged over heads.

        Args:
            source: source text.
            target: target text, such as the result of `translate`.
            layer: int, index of the decoder's block; a negative index counts from the last block.

        Returns:
            The T tokens of the source, the S tokens of the target, and the attention weights, float (S, T). Row i holds
            the weights at the position that predicts token i of the target.

        Raises:
            ValueError: If the decoder has no block `layer`; see also `encode_inputs`.
        """
        block_count = self.backbone.config.decoder_layers
        require(
            is_integer(layer, -block_count, block_count - 1),
            "layer",
            f"an integer from {-block_count} to {block_count - 1}",
            layer,
        )
        encoded = self.encode_inputs([(source, target)])
        tokenizer = self.text_preprocessor.tokenizer
        width = int(encoded.lengths.max())
        features = self.features(encoded, np.array([0]), width)
        scores = self.backbone.source_attention_scores(
            {name: ops.convert_to_tensor(values) for name, values in features.items()}
        )
        source_tokens, target_tokens = (
            [tokenizer.id_to_token(int(id)) for id in side.token_ids] for side in (encoded.sources, encoded.targets)
        )
        weights = ops.convert_to_numpy(scores[layer]).mean(axis=(0, 1))  # (S, T)
        return source_tokens, target_tokens, weights[: len(target_tokens), : len(source_tokens)]

    # === Export ===

    served_outputs = ("text",)

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers to sources: `text`, strings (B,), the same as from `translate`."""
        import tensorflow as tf

        from lmzoo.text.graphs import graph_detokenizer

        tokenizer = self.text_preprocessor.tokenizer
        (end_id,) = self.text_preprocessor.special_ids()[2]
        source = {name: features[name] for name in ("token_ids", "padding_mask")}
        source_lengths = tf.reduce_sum(source["padding_mask"], axis=1)  # (B,)
        limits = 1 + self.most_new_tokens(source_lengths)  # (B,)
        max_length = tf.reduce_max(tf.concat([limits, [2]], axis=0))
        tokens = TokenGenerator(self, tokenizer.vocabulary_size).generate_in_graph(
            BeamSampler(self.num_beams, self.length_penalty),
            prompt=tf.fill(tf.stack([tf.size(source_lengths), max_length]), tokenizer.pad_id),
            read=tf.fill(tf.stack([tf.size(source_lengths), 1]), tokenizer.pad_id),
            length=tf.ones_like(source_lengths),
            limit=limits,
            start=tf.constant(1),
            end=max_length,
            stops=tf.constant([end_id]),
            temperature=tf.constant(1.0),
            source=source,
        )  # (B, S)
        positions = tf.range(tf.shape(tokens)[1])  # (S,)
        in_target = (positions >= 1) & (positions < limits[:, None])  # (B, S)
        is_end = in_target & ((tokens == end_id) | (tokens >= tokenizer.vocabulary_size))
        before_end = in_target & (tf.cumsum(tf.cast(is_end, tf.int32), axis=1) == 0)
        return {"text": graph_detokenizer(tokenizer)(tf.ragged.boolean_mask(tokens, before_end))}

    def signatures(self) -> Signatures:
        """Return the exported model's signatures, which do the same as `translate` with the model's settings."""
        import tensorflow as tf

        pack, signatures = text_signatures(self)
        specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in ("token_ids", "padding_mask")}
        return pack, {
            "serving_default": signatures["serving_default"],
            "tokens": signature(lambda features: self.serve(features), [specs]),
        }
