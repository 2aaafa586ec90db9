"""A language model from left to right: trained to predict the next token, it continues texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from lmzoo.arguments import is_integer, is_number, require
from lmzoo.data.corpora.sequences import pack_continuously
from lmzoo.data.corpora.tokenized_documents import groups_of
from lmzoo.families.backbone import Backbone
from lmzoo.family import Family, family_of
from lmzoo.tasks.base.arguments import check_arguments
from lmzoo.tasks.base.examples import Batch, Examples, Labels, Weights, example_weights
from lmzoo.tasks.base.reports import report_masked
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.generation import Sampler, TokenGenerator, sampler_called
from lmzoo.tasks.sequence_scores import next_token_logits, score_sequences, scoring_model
from lmzoo.text import EncodedTexts, Preprocessor, Tokenizer
from lmzoo.text.text_pieces import TextPieces
from lmzoo.text.token_scores import TokenScore
from lmzoo.text.validate_text import Text, clean_columns
from lmzoo.training.span_metrics import TokenAccuracy

BATCH_SIZE = 32


@keras.saving.register_keras_serializable(package="lmzoo")
class CausalLM(Task):
    """Predicts each token from those before it (Radford et al., 2018, 2019).

    Inputs are those of the backbone. The output is logits, float32 (B, T, V): at each position those of the next token,
    by the backbone's table of token embeddings. The head has no weights of its own.

    `fit` and `evaluate` take texts, or documents as lists of sentences, without labels. They are packed into full
    sequences (`lmzoo.data.corpora.pack_continuously`). Padding does not count in the loss, nor does what follows the
    end of a document. With token features, `y` are the next tokens, int (B, T), and `sample_weight` says which of them
    count.

    Args:
        backbone: `lmzoo.models.Backbone` of a causal family, such as `Gpt2Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        name: name of the model.

    Raises:
        ValueError: for a backbone whose positions see later ones.

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

    head_kind, pretrains = "causal_lm", True
    learns_from = "texts alone"
    splits_examples = True
    per_token = True
    uses_pooler = False
    verb = "generate"
    compare = report_masked

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        labels: None = None,
        name: str = "causal_lm",
    ) -> None:
        if not self.supports(family_of(backbone)):
            raise ValueError(
                f"A {type(backbone).__name__} cannot predict next tokens: its positions see later ones. A CausalLM "
                "needs a causal family, such as GPT-2."
            )
        inputs = backbone.input
        logits = next_token_logits(backbone, backbone(inputs)["sequence_output"])  # (B, T, V)
        super().__init__(backbone, preprocessor, inputs, logits, None, name)
        self._made: dict[str, Any] = {}  # what is compiled when it is first needed

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Whether the family's models see only what comes before."""
        return bool(family.backbone.causal)

    def default_loss(self) -> keras.losses.Loss:
        """Cross-entropy, its mean over the tokens that count."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Accuracy on the next tokens."""
        return [TokenAccuracy()]

    def forget_compiled(self) -> None:
        super().forget_compiled()
        self._made = {}

    # === Fit and evaluate ===

    def encode_examples(self, x: Any, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Texts and documents as full sequences; encoded sequences, of `pack_continuously`, are returned as they are.

        Raises:
            TypeError: naming the position of a document that is not text.
            ValueError: for labels, for weights of documents, or if there is no text.
        """
        self.check_takes_text()
        self.check_unlabelled(y)
        weights = example_weights(sample_weight)
        if not isinstance(x, EncodedTexts):
            if weights is not None:
                raise ValueError(
                    "A text has no weight, since its sequences hold parts of others: make sequences with "
                    "`lmzoo.data.corpora.pack_continuously`, and pass them with a weight for each."
                )
            x = pack_continuously(x, self.text_preprocessor)
        self.check_counts(len(x), None, weights)
        return Examples(x, None, weights)

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Sequences without their last token, the next tokens int32 (b, t), and which of them count, float32 (b, t)."""
        features = self.features(examples.encoded, indices, width)
        ids, real = features["token_ids"], features["padding_mask"]  # (b, t + 1)
        read, following = ids[:, :-1], ids[:, 1:]
        tokenizer = self.text_preprocessor.tokenizer
        border = read == tokenizer.token_to_id(tokenizer.end_token)
        if tokenizer.start_token == tokenizer.end_token:  # then what follows one may also be the beginning of a text
            border &= following == read
        weights = (real[:, 1:] > 0) & ~border
        if examples.weights is not None:
            weights = weights * examples.weights[indices][:, None]
        inputs = {name: values[:, :-1] for name, values in features.items()}
        inputs["padding_mask"] = real[:, 1:]  # of the last token nothing is predicted
        return inputs, following, weights.astype("float32")

    # === Scores ===

    def score(self, texts: Iterable[Text], batch_size: int = BATCH_SIZE) -> list[list[TokenScore]]:
        """The log-probability of each token of texts, after all tokens before it.

        The first token follows the start token of the family. A family without one gives it no score: the list begins
        with the second token. Texts may be longer than the model's sequences: then they are read in windows that
        overlap by half, and a token has at least half a window before it.

        Args:
            texts: strings.
            batch_size: int.

        Returns:
            For each text, `{"token": str, "start": int, "end": int, "log_probability": float}` for each token, with the
            characters of the text that it came from.

        Raises:
            TypeError: naming the position of an entry that is not a string.
        """
        (cleaned,) = clean_columns({"texts": texts})
        tokenizer = self.text_preprocessor.tokenizer
        ids, spans = tokenizer.tokenize_with_spans(cleaned)
        bounds = np.cumsum([0, *map(len, ids)])
        first = 0 if self._start() else 1
        return [
            [
                TokenScore(
                    token=tokenizer.id_to_token(token), start=start, end=end, log_probability=float(log_probability)
                )
                for token, (start, end), log_probability in zip(of_text, places.tolist(), found, strict=True)
            ][first:]
            for of_text, places, found in zip(
                ids, np.split(spans, bounds[1:-1]), self._log_probabilities(ids, batch_size), strict=True
            )
        ]

    def perplexity(self, texts: Iterable[Text], batch_size: int = BATCH_SIZE) -> float:
        """Exponential of the mean negative log-probability of all tokens of texts; see `score`.

        Raises:
            TypeError: naming the position of an entry that is not a string.
            ValueError: if there are no tokens.
        """
        (cleaned,) = clean_columns({"texts": texts})
        first = 0 if self._start() else 1
        ids = self.text_preprocessor.tokenizer.tokenize(cleaned)
        count = sum(max(0, len(of_text) - first) for of_text in ids)
        if not count:
            raise ValueError("`texts` hold no tokens to predict.")
        total = sum(float(found.sum(dtype="float64")) for found in self._log_probabilities(ids, batch_size))
        return math.exp(-total / count)

    def _start(self) -> list[int]:
        """The start token, or nothing if the family has none."""
        tokenizer = self.text_preprocessor.tokenizer
        return [] if tokenizer.start_token is None else [tokenizer.token_to_id(tokenizer.start_token)]

    def _log_probabilities(self, ids: Sequence[Sequence[int]], batch_size: int) -> list[np.ndarray]:
        """Log-probabilities of the tokens of texts; without a start token, that of the first is 0."""
        check_arguments(batch_size=batch_size)
        self.check_takes_text()
        self.compile_by_default()
        if "scores" not in self._made:
            self._made["scores"] = scoring_model(self.backbone)
        start, length = self._start(), self.text_preprocessor.sequence_length
        found = score_sequences(self, self._made["scores"], [[*start, *text] for text in ids], length, batch_size)
        return [row[len(start) :] for row in found]

    # === Generate ===

    def generate(
        self,
        prompts: Iterable[Text],
        max_new_tokens: int = 64,
        sampler: str | Sampler = "greedy",
        temperature: float = 1.0,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
        stream: bool = False,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Continues texts.

        Prompts of different lengths share batches. With "greedy", "beam" and "contrastive" the result for a prompt does
        not depend on the others. Code is compiled for at most four widths of prompts, for each number of new tokens
        and of prompts.

        Args:
            prompts: strings. The empty one stands for the beginning of a text, if the family has a start token.
            max_new_tokens: int, the most tokens that are added to each prompt.
            sampler: "greedy", "random", "top_k", "top_p", "beam" or "contrastive", with the settings of
                `keras_hub.samplers`, except that "beam" is `lmzoo.tasks.beam_search.BeamSampler`; or a sampler of
                `keras_hub.samplers` with settings of yours.
            temperature: float, what logits are divided by: below 1 the likely tokens become more likely.
            stop: a string, or several. A text ends before the first of them, and at the family's end token. None to
                ignore that, too: then every text gets `max_new_tokens`.
            seed: int, which makes samples repeatable; None for others in each call. A stream has samples of its own.
            stream: whether to return an iterator over lists of pieces, one piece for each prompt, as they come.
                Beam search knows its text only at the end.
            batch_size: int.

        Returns:
            For each prompt the text that follows it, or such an iterator.

        Raises:
            TypeError: naming the position of a prompt that is not a string; for a `sampler` that is none.
            ValueError: before the first step, for a prompt that leaves no room for `max_new_tokens`, an empty prompt
                of a family without a start token, an unknown sampler, and numbers out of range.
        """
        require(is_integer(max_new_tokens, 1), "max_new_tokens", "a positive integer", max_new_tokens)
        check_arguments(batch_size=batch_size)
        require(seed is None or is_integer(seed, 0), "seed", "an integer of at least 0, or None", seed)
        valid = is_number(temperature, 0) and 0 < temperature < math.inf
        require(valid, "temperature", "a positive number", temperature, 'The limit of 0 is `sampler="greedy"`.')
        sampler_called(sampler)  # an error for an unknown one
        stops = _listed(stop)
        ids = self._prompt_ids(prompts, max_new_tokens)
        ends = stop is not None
        pieces = self._pieces(ids, max_new_tokens, sampler, temperature, ends, stops, seed, stream, batch_size)
        if stream:
            return pieces
        return ["".join(parts) for parts in zip(*pieces, strict=True)] if ids else []

    def _prompt_ids(self, prompts: Iterable[Text], new: int) -> list[list[int]]:
        """The tokens of prompts, checked."""
        self.check_takes_text()
        (cleaned,) = clean_columns({"prompts": prompts})
        preprocessor, most = self.text_preprocessor, self.backbone.config.max_sequence_length
        before = preprocessor.special_ids()[0]
        ids = [[*before, *text] or self._start() for text in preprocessor.tokenizer.tokenize(cleaned)]
        for i, of_prompt in enumerate(ids):
            count = len(of_prompt)
            if not count:
                raise ValueError(
                    f"`prompts[{i}]` is empty, and the family has no start token to begin a text with: write at least "
                    "one word."
                )
            if count + new > most:
                room = most - count
                advice = f"`max_new_tokens` may be at most {room}" if room > 0 else "Shorten the prompt"
                raise ValueError(
                    f"`prompts[{i}]` has {count} tokens, which with `max_new_tokens={new}` is more than the "
                    f"{most} positions of the model. {advice}."
                )
        return ids

    def _pieces(
        self,
        ids: list[list[int]],
        new: int,
        sampler: str | Sampler,
        temperature: float,
        ends: bool,
        stops: Sequence[str],
        seed: int | None,
        stream: bool,
        batch_size: int,
    ) -> Iterator[list[str]]:
        """Iterates over pieces of text, one for each prompt."""
        tokenizer = self.text_preprocessor.tokenizer
        self.compile_by_default()
        if "generator" not in self._made:
            self._made["generator"] = TokenGenerator(self, tokenizer.vocabulary_size)
        generator: TokenGenerator = self._made["generator"]
        chosen = generator.sampler(sampler, seed)
        end = {tokenizer.token_to_id(tokenizer.end_token)} if ends and tokenizer.end_token else set()
        stop_ids = [*end, *_holding(tokenizer, stops)]
        order = np.argsort([len(of_prompt) for of_prompt in ids], kind="stable").tolist()
        for batch in groups_of(order, batch_size):
            rows = min(batch_size, 1 << (len(batch) - 1).bit_length())
            prompts = [ids[i] for i in batch]
            texts = {i: TextPieces(tokenizer, ids[i], stops) for i in batch}
            for found in generator.generate(prompts, new, chosen, stop_ids, temperature, stream, rows):
                pieces = [""] * len(ids)
                for i, tokens in zip(batch, found, strict=True):
                    pieces[i] = texts[i].add([token for token in tokens if token not in end])
                yield pieces
                if all(text.ended for text in texts.values()):
                    break
            pieces = [""] * len(ids)
            for i, text in texts.items():
                pieces[i] = text.rest()
            yield pieces


def _listed(stop: Any) -> list[str]:
    """The strings that end a text, checked."""
    stops = [stop] if isinstance(stop, str) else [*(() if stop is None else stop)]
    for text in stops:
        require(isinstance(text, str) and text, "stop", "a string, a list of strings or None", text)
    return stops


def _holding(tokenizer: Tokenizer, stops: Sequence[str]) -> list[int]:
    """The ids of the tokens that hold one of these strings."""
    if not stops:
        return []
    texts = map(tokenizer.text_of, tokenizer.vocabulary)
    return [id for id, text in enumerate(texts) if any(stop in text for stop in stops)]
