"""From sequence to sequence: trained on pairs of texts, it writes the second from the first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, refuse_arguments, require, require_share
from lmzoo.common.tensor_types import Tensor
from lmzoo.data.corpora.tokenized_documents import groups_of
from lmzoo.evaluation.reports import Report
from lmzoo.evaluation.translations import compare_translations
from lmzoo.families.backbone import Backbone
from lmzoo.layers.heads import OutputBias
from lmzoo.registry.family import Family, family_of
from lmzoo.serving.export import signature, text_signatures
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.base.examples import Batch, Examples, FeatureArrays, Texts
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.beam_search import BeamSampler
from lmzoo.tasks.generation import NEVER, Sampler, TokenGenerator, check_sampling
from lmzoo.tasks.inputs import list_texts
from lmzoo.tasks.prompts import INSTEAD_OF_KERAS_HUBS
from lmzoo.text import EncodedTexts, Preprocessor
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
_FACTOR, _MORE = 2, 16  # by default a target has at most 2·n + 16 tokens, for n of its source


@keras.saving.register_keras_serializable(package="lmzoo")
class Seq2SeqLM(Task):
    """A model from one text to another, such as its translation (Sutskever et al., 2014; Vaswani et al., 2017).

    Inputs are those of the backbone. The output is logits, float32 (B, S, V): at each position of the target those of
    its next token, by the backbone's table of token embeddings and a bias.

    `fit` and `evaluate` take pairs of texts without labels: a list of `(source, target)`, or a tuple of two lists. With
    token features, `y` are the targets' tokens, int (B, S), and `sample_weight` says which of them count.

    Args:
        backbone: `lmzoo.models.Backbone` of a family that reads a source, such as `MarianBackbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        num_beams: int, translations that beam search continues at the same time; 1 for greedy search.
        length_penalty: float; beam search divides the log-probability of a translation by its number of tokens to
            this power.
        max_new_tokens: int, the most tokens of a translation; by default 2·n + 16, for n of the source.
        label_smoothing: float in [0, 1), the share of the probability that the loss spreads over all tokens.
        name: name of the model.

    Raises:
        ValueError: for a backbone that reads no source, or a preprocessor without padding or an end token; for numbers
            out of range.

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
    commands = (("translation", "translations"),)
    serves = "`text` (n,): the translations"
    learns_from = "pairs alone, `fit((sources, targets))`"
    per_token = True
    uses_pooler = False

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
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
        labels: None = None,
        name: str | None = None,
    ) -> None:
        if not self.supports(family_of(backbone)):
            raise ValueError(
                f"A {type(backbone).__name__} reads no source: a Seq2SeqLM needs an encoder and a decoder, such as "
                "MarianBackbone."
            )
        require(is_integer(num_beams, 1), "num_beams", "a positive integer", num_beams)
        require(is_number(length_penalty), "length_penalty", "a number", length_penalty)
        require_share("label_smoothing", label_smoothing)
        most = backbone.config.max_sequence_length
        fits = max_new_tokens is None or (is_integer(max_new_tokens, 1) and max_new_tokens < most)
        require(fits, "max_new_tokens", f"a positive integer below the model's {most} positions", max_new_tokens)
        bias = OutputBias(backbone.config.vocabulary_size, name="output_bias")
        inputs = backbone.input
        logits = bias(backbone(inputs, vectors=backbone(inputs)["sequence_output"]))  # (B, S, V)
        super().__init__(backbone, preprocessor, inputs, logits, None, name)
        self.output_bias = bias
        self.num_beams, self.length_penalty = int(num_beams), float(length_penalty)
        self.max_new_tokens, self.label_smoothing = max_new_tokens, label_smoothing
        self._made: dict[str, Any] = {}  # what is compiled when it is first needed
        if preprocessor is not None and not (preprocessor.tokenizer.pad_token and preprocessor.packing.end):
            raise ValueError(
                "A Seq2SeqLM needs a tokenizer with a padding token, with which targets begin, and a packing with an "
                "end token."
            )
        self.compile()

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family's models read a source."""
        return bool(family.backbone.reads_source)

    def default_loss(self) -> keras.losses.Loss:
        """Return cross-entropy with label smoothing, its mean over the tokens of the targets."""
        return SmoothedCrossEntropy(self.label_smoothing)

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return accuracy on the next tokens."""
        return [TokenAccuracy()]

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """Adam with the inverse-square-root schedule, as in the paper (Vaswani et al., 2017, section 5.3)."""
        rate = self.recipe.learning_rate
        return AdamW(rate, beta_2=0.98, epsilon=1e-9, global_clipnorm=1.0, schedule="inverse_square_root")

    def forget_compiled(self) -> None:
        super().forget_compiled()
        self._made = {}

    # === Examples ===

    def encode_inputs(self, x: Any) -> EncodedPairs:
        """Return pairs of texts as sequences of token ids.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: for texts without targets, lists of different lengths, a source that is longer than the model, a
                language that the vocabulary lacks.
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
        sources, targets = list(sources), list(targets)
        if len(sources) != len(targets):
            raise ValueError(
                f"Pairs need as many targets as sources: got {len(sources)} sources, {len(targets)} targets."
            )
        sources, targets = clean_columns({"sources": sources, "targets": targets})
        given = self.text_preprocessor
        writer = Preprocessor(given.tokenizer.target_side, given.packing, given.sequence_length)
        return EncodedPairs(self.encode_sources(sources), writer.encode(targets))

    def encode_sources(self, texts: Iterable[Text]) -> EncodedTexts:
        """Return sources as sequences of token ids; see `encode_inputs`.

        A source that is longer than `sequence_length`, but not than the model, is truncated with a warning.
        """
        preprocessor, most = self.text_preprocessor, self.backbone.config.max_sequence_length
        (cleaned,) = clean_columns({"texts": texts})
        known = self.languages
        for i, text in enumerate(cleaned if known else ()):
            code = LANGUAGE.match(text)
            if code and code[0] not in known:
                raise ValueError(
                    f"The source at position {i} asks for {code[0]}, but the model writes {', '.join(known)}."
                )
        ids, overhead = preprocessor.tokenizer.tokenize(cleaned), preprocessor.packing.overhead(False)
        for i, tokens in enumerate(ids):
            if len(tokens) + overhead > most:
                raise ValueError(
                    f"The source at position {i} has {len(tokens) + overhead} tokens, more than the {most} positions "
                    "of the model. Split it into sentences (`lmzoo.text.split_sentences`)."
                )
        return preprocessor.pack(ids)

    @property
    def languages(self) -> tuple[str, ...]:
        """The codes of the languages that the model can write, such as ">>fra<<"; none for a model of one language."""
        return tuple(getattr(self.text_preprocessor.tokenizer, "languages", ()))

    def features(self, encoded: EncodedPairs, indices: np.ndarray, width: int) -> FeatureArrays:
        """See `Task.features`; targets follow padding's token, and lack their end."""
        pad = self.text_preprocessor.tokenizer.pad_id
        ids, mask = encoded.targets.padded(indices, width, pad)  # (b, width)
        return {
            **self.text_preprocessor.features(encoded.sources, indices, width),
            "decoder_token_ids": np.concatenate([np.full_like(ids[:, :1], pad), ids[:, :-1]], axis=1),
            "decoder_padding_mask": mask,
        }

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return features, the targets int32 (b, t), and which of their tokens count, float32 (b, t)."""
        pairs: EncodedPairs = examples.encoded
        ids, mask = pairs.targets.padded(indices, width, self.text_preprocessor.tokenizer.pad_id)
        weights = mask.astype("float32")
        if examples.weights is not None:
            weights = weights * examples.weights[indices][:, None].astype("float32")
        return self.features(pairs, indices, width), ids, weights

    # === Translate ===

    def translate(
        self,
        texts: Text | Iterable[Text],
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
        language: str | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> list[str] | Any:
        """Translate texts by beam search; a translation does not depend on the other texts.

        Args:
            texts: strings, or one string.
            num_beams: int; by default that of the model.
            length_penalty: float; by default that of the model.
            max_new_tokens: int, the most tokens of a translation; by default that of the model.
            language: the language to translate to, such as "fra", for a model that writes several.
            batch_size: int.

        Returns:
            The translation of each text, or for one string its translation.

        Raises:
            TypeError: naming the position of an entry that is not a string.
            ValueError: before the first step, for a text that is longer than the model, a language that it does not
                write, and numbers out of range.
        """
        beams = self.num_beams if num_beams is None else num_beams
        penalty = self.length_penalty if length_penalty is None else length_penalty
        sampler = BeamSampler(beams, penalty)
        return self.generate(texts, max_new_tokens, sampler, language=language, batch_size=batch_size)

    answers = translate

    def generate(
        self,
        texts: Text | Iterable[Text],
        max_new_tokens: int | None = None,
        sampler: str | Sampler = "greedy",
        temperature: float = 1.0,
        seed: int | None = None,
        language: str | None = None,
        batch_size: int = BATCH_SIZE,
        **unknown: Any,
    ) -> list[str] | Any:
        """Write a text from each of some texts, with a sampler; see `translate`, and `CausalLM.generate`.

        Args:
            texts: strings, or one string.
            max_new_tokens: int, the most tokens of a text; by default that of the model.
            sampler: "greedy", "random", "top_k", "top_p", "beam" or "contrastive", or a sampler.
            temperature: float, what logits are divided by.
            seed: int, which makes samples repeatable.
            language: see `translate`.
            batch_size: int.
            **unknown: refused; for KerasHub's arguments the error says what to pass instead.

        Returns:
            The new text of each text, or for one string its new text.

        Raises:
            TypeError: naming the position of an entry that is not a string; for a `sampler` that is not one; for an
                argument of another name.
            ValueError: see `translate`.
        """
        refuse_arguments("generate", unknown, INSTEAD_OF_KERAS_HUBS)
        most = self.backbone.config.max_sequence_length - 1
        known = max_new_tokens is None or is_integer(max_new_tokens, 1, most)
        require(known, "max_new_tokens", f"an integer from 1 to {most}", max_new_tokens)
        check_sampling(sampler, temperature, seed, batch_size)
        texts, single = list_texts(texts)
        self.check_takes_text()
        (cleaned,) = clean_columns({"texts": texts})
        if language is not None:
            code = language if language.startswith(">>") else f">>{language}<<"
            if code not in self.languages:
                written = ", ".join(self.languages) or "one language, which takes no code"
                raise ValueError(f"The model does not write {code}: it writes {written}.")
            cleaned = [f"{code} {text}" for text in cleaned]
        encoded = self.encode_sources(cleaned)
        preprocessor, lengths = self.text_preprocessor, encoded.lengths
        tokenizer = preprocessor.tokenizer
        if "generator" not in self._made:
            self._made["generator"] = TokenGenerator(self, tokenizer.vocabulary_size)
        generator: TokenGenerator = self._made["generator"]
        chosen, (end,) = generator.sampler(sampler, seed), preprocessor.special_ids()[2]
        results = [""] * len(encoded)
        for batch in groups_of(np.argsort(lengths, kind="stable").tolist(), batch_size):
            width = int(lengths[batch].max())
            if generator.static_shapes:
                width = next(bucket for bucket in ladder_buckets(most + 1) if bucket >= width)
            (made,) = generator.generate(
                [[tokenizer.pad_id]] * len(batch),
                np.asarray(self.most_new_tokens(lengths[batch], max_new_tokens)),
                chosen,
                [end],
                float(temperature),
                stream=False,
                batch_size=batch_size,
                room=int(np.asarray(self.most_new_tokens(np.array([width]), max_new_tokens))[0]),
                source=preprocessor.features(encoded, np.array(batch), width),  # (n, T)
            )
            for i, tokens in zip(batch, made, strict=True):
                results[i] = tokenizer.detokenize([token for token in tokens if token != end])
        return results[0] if single else results

    def most_new_tokens(self, lengths: Any, new: int | None = None) -> Any:
        """Return the most tokens of targets, by the tokens of their sources: ints (B,), numpy or a tensor."""
        new = self.max_new_tokens if new is None else new
        most = self.backbone.config.max_sequence_length - 1
        found = lengths * 0 + new if new is not None else _FACTOR * lengths + _MORE
        return np.minimum(found, most) if isinstance(lengths, np.ndarray) else ops.minimum(found, most)

    forces_end = True  # a target that reaches the limit ends there

    def next_token_logits(self, vectors: Tensor) -> Tensor:
        """Return the logits of the tokens that may follow, float32 (B, S, V), from the vectors, float (B, S, H)."""
        logits = self.output_bias(self.backbone.token_logits(vectors))
        padding = ops.arange(logits.shape[-1]) == self.text_preprocessor.tokenizer.pad_id  # (V,)
        return ops.where(padding, NEVER, logits)

    def source_attention(self, source: Text, target: Text, layer: int = -1) -> tuple[list[str], list[str], np.ndarray]:
        """Return how the tokens of a target attend to those of its source, for a picture.

        Args:
            source: a text.
            target: its translation, such as `translate` returns.
            layer: int, block of the decoder, from 0; by default the last one.

        Returns:
            The tokens of the source and of the target, and float (S, T), the probabilities with which each token of the
            target was predicted from those of the source: the mean over all heads.
        """
        blocks = self.backbone.config.decoder_layers
        require(is_integer(layer, -blocks, blocks - 1), "layer", f"an integer from {-blocks} to {blocks - 1}", layer)
        encoded = self.encode_inputs([(source, target)])
        tokenizer, width = self.text_preprocessor.tokenizer, int(encoded.lengths.max())
        features = self.features(encoded, np.array([0]), width)
        scores = self.backbone.source_attention_scores(
            {name: ops.convert_to_tensor(values) for name, values in features.items()}
        )
        read, written = (
            [tokenizer.id_to_token(int(id)) for id in part.token_ids] for part in (encoded.sources, encoded.targets)
        )
        mean = ops.convert_to_numpy(scores[layer]).mean(axis=(0, 1))  # (S, T)
        return read, written, mean[: len(written), : len(read)]

    # === Export ===

    served_outputs = ("text",)

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers to sources: `text`, strings (B,), as `translate` returns them."""
        import tensorflow as tf

        from lmzoo.text.graphs import graph_detokenizer

        tokenizer = self.text_preprocessor.tokenizer
        (end,) = self.text_preprocessor.special_ids()[2]
        source = {name: features[name] for name in ("token_ids", "padding_mask")}
        length = tf.reduce_sum(source["padding_mask"], axis=1)  # (B,)
        limit = 1 + self.most_new_tokens(length)  # (B,)
        last = tf.reduce_max(tf.concat([limit, [2]], axis=0))
        made = TokenGenerator(self, tokenizer.vocabulary_size).generate_in_graph(
            BeamSampler(self.num_beams, self.length_penalty),
            prompt=tf.fill(tf.stack([tf.size(length), last]), tokenizer.pad_id),
            read=tf.fill(tf.stack([tf.size(length), 1]), tokenizer.pad_id),
            length=tf.ones_like(length),
            limit=limit,
            start=tf.constant(1),
            end=last,
            stops=tf.constant([end]),
            temperature=tf.constant(1.0),
            source=source,
        )  # (B, S)
        place = tf.range(tf.shape(made)[1])  # (S,)
        within = (place >= 1) & (place < limit[:, None])  # (B, S)
        ended = within & ((made == end) | (made >= tokenizer.vocabulary_size))
        kept = within & (tf.cumsum(tf.cast(ended, tf.int32), axis=1) == 0)
        return {"text": graph_detokenizer(tokenizer)(tf.ragged.boolean_mask(made, kept))}

    def signatures(self) -> Signatures:
        """See `Task.signatures`: `translate` with the settings of the model."""
        import tensorflow as tf

        pack, found = text_signatures(self)
        specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in ("token_ids", "padding_mask")}
        return pack, {
            "serving_default": found["serving_default"],
            "tokens": signature(lambda features: self.serve(features), [specs]),
        }
