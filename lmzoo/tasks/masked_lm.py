"""Predicting masked tokens: for pre-training, and for filling in blanks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypedDict

import keras
import numpy as np

from lmzoo.evaluation.reports import Report
from lmzoo.families.backbone import Backbone
from lmzoo.registry.family import Family
from lmzoo.tasks.base.arguments import check_top_k
from lmzoo.tasks.base.examples import Batch, Examples, FeatureArrays, Texts
from lmzoo.tasks.base.reports import perplexity_report
from lmzoo.tasks.objectives.masked_tokens import MaskedTokensTask
from lmzoo.text import EncodedTexts, Masking, Preprocessor
from lmzoo.text.mask_tokens import find_masks, maskable
from lmzoo.text.probabilities import log_softmax
from lmzoo.text.segments import clean_segments
from lmzoo.text.token_scores import TokenScore
from lmzoo.text.validate_text import Text, clean_columns, warn
from lmzoo.training.span_metrics import TokenAccuracy

if TYPE_CHECKING:
    import tensorflow as tf

_COPIES = 1024  # masks predicted at once: bounds the memory of the logits


class MaskAnswer(TypedDict):
    """A token for a mask."""

    token: str
    score: float
    text: str


@keras.saving.register_keras_serializable(package="lmzoo")
class MaskedLM(MaskedTokensTask):
    """A masked language model (Devlin et al., 2019, section 3.1).

    Inputs are those of the backbone and `mask_positions` int32 (B, M); the output is logits, float32 (B, M, V). `fit`
    takes texts without labels and masks them again in every batch. `predict` takes texts that hold mask tokens, and
    warns of others.

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        masking: `lmzoo.text.Masking`, how `fit` corrupts text; by default as in the family's pre-training.
        activation: str, of the head's layer, see `lmzoo.layers.get_activation`; the backbone's by default.
        layer_norm_epsilon: float, of the head's LayerNorm; the backbone's by default.
        name: name of the model.

    Example:

    ```python
    import lmzoo

    model = lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased")
    model.fill(["The king sat on his [MASK]."], top_k=3)
    ```
    """

    predicts = "logits of the masks (n, M, V)"
    head_kind, reads_heads = "masked_lm", ("pretraining",)
    commands = (("masked-lm", "texts"),)
    serves = "`token`, `score` (n, masks, 5): the most probable tokens at each mask"
    uses_pooler = False

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        masking: Masking | dict[str, Any] | None = None,
        labels: None = None,
        activation: str | None = None,
        layer_norm_epsilon: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            backbone, preprocessor, masking, activation, layer_norm_epsilon, lambda logits, found: logits, name
        )
        self.compile()

    @classmethod
    def supports(cls, family: Family) -> bool:
        """See `MaskedTokensTask.supports`; models that predict tokens in any order have not learned to read masks."""
        return super().supports(family) and family.objective != "plm"

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return accuracy on masked tokens."""
        return [TokenAccuracy()]

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return masked sequences: `(features, targets (b, M), weights (b, M))`."""
        features, targets, weights = self.mask(examples.encoded, indices, width, rng)
        if examples.weights is not None:
            weights *= examples.weights[indices][:, None]
        return features, targets, weights

    def extra_features(self, encoded: EncodedTexts) -> FeatureArrays:
        """Return the positions of the mask tokens, and warn of texts that have none."""
        tokenizer = self.text_preprocessor.tokenizer
        lacking = np.flatnonzero(np.bincount(find_masks(tokenizer, encoded)[0], minlength=len(encoded)) == 0)
        if len(lacking):
            warn(
                f"{len(lacking)} of {len(encoded)} texts, the first at position {lacking[0]}, hold no "
                f"{tokenizer.mask_token}, so their outputs predict no masked token. Put one in place of each token to "
                "predict."
            )
        return super().extra_features(encoded)

    def fill(
        self, texts: Texts, top_k: int = 5, batch_size: int = 32, whole_words: bool = False
    ) -> list[list[MaskAnswer] | list[list[MaskAnswer]]]:
        """Return the most probable tokens at each mask.

        With `whole_words` parts of words are left out. With WordPiece these are the tokens that continue a word; with
        byte-level BPE and SentencePiece, where the mask follows a space, those that do not begin with a space. Where
        no space precedes the mask, as after a bracket and, for BPE, at the beginning of a text, tokens of the latter
        two do not show whether they are whole words, and all of them are candidates. Punctuation marks are words.

        Args:
            texts: a list of strings (or pairs), each with at least one mask token.
            top_k: int, candidates for each mask.
            batch_size: int.
            whole_words: whether a candidate must be a whole word.

        Returns:
            For each text a list of candidates, best first: `{"token": str, "score": float, "text": str}`, where the
            score is the token's probability among all tokens, and the text is the input with the mask replaced. For a
            text with several masks, one such list for each of them, as in transformers' fill-mask.

        Raises:
            ValueError: naming the first text without a mask, or with one that was truncated; for a `top_k` below 1.
        """
        check_top_k(top_k)
        columns = clean_segments(texts)
        encoded = self.encode_inputs(columns[0] if len(columns) == 1 else tuple(columns))
        counts = np.bincount(find_masks(self.text_preprocessor.tokenizer, encoded)[0], minlength=len(encoded))
        mask, lines, filled = self.text_preprocessor.tokenizer.mask_token, list(zip(*columns, strict=True)), []
        for i, (line, kept) in enumerate(zip(lines, counts.tolist(), strict=True)):
            if not kept or kept < sum(segment.count(mask) for segment in line):
                missing = f"not every {mask}" if kept else f"no {mask}"
                length = self.text_preprocessor.sequence_length
                raise ValueError(f"`texts[{i}]` holds {missing} within the {length} tokens that are read.")
        words = self._words() if whole_words else None
        size = max(1, _COPIES // counts.max(initial=1))
        for start in range(0, len(encoded), size):
            part = slice(start, start + size)
            logits = self.predict(encoded[part], batch_size, verbose=0)  # (n, M, V)
            filled += [
                self._candidates(line, log_softmax(row[:count]), top_k, words)
                for line, row, count in zip(lines[part], logits, counts[part], strict=True)
            ]
        return filled

    answers = fill

    def _words(self) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each token is a whole word, bool (V,): after a space, and after anything else."""
        tokenizer = self.text_preprocessor.tokenizer
        texts = [tokenizer.text_of(token) for token in tokenizer.vocabulary]
        whole = np.array(
            [bool(text.strip()) and "\ufffd" not in text for text in texts]
        )  # bytes may be a part of a letter
        whole &= ~np.isin(tokenizer.vocabulary, tokenizer.special_tokens)
        spaced = np.array([text.startswith(" ") for text in texts])
        return (whole & spaced, whole) if spaced.any() else (whole & tokenizer.word_starts(),) * 2

    def _candidates(
        self,
        segments: tuple[str, ...],
        log_probabilities: np.ndarray,
        top_k: int,
        words: tuple[np.ndarray, np.ndarray] | None,
    ) -> list[MaskAnswer] | list[list[MaskAnswer]]:
        tokenizer = self.text_preprocessor.tokenizer
        mask = str(tokenizer.mask_token)
        results: list[list[MaskAnswer]] = []
        parts = " ".join(segments).split(mask)
        first = "" if tokenizer.space_of_words else " "  # what the tokenizer itself puts in front of a text
        spaced = [part[-1:].isspace() for segment in segments for part in (first + segment).split(mask)[:-1]]
        for k, row in enumerate(log_probabilities):  # (V,)
            before, after = mask.join(parts[: k + 1]), mask.join(parts[k + 1 :])
            order = np.argsort(-row[: tokenizer.vocabulary_size], kind="stable")  # the embedding table may be longer
            if words:
                order = order[words[0 if spaced[k] else 1][order]]
            candidates: list[MaskAnswer] = []
            for i in order[:top_k]:
                token = tokenizer.id_to_token(int(i))
                filling = tokenizer.text_of(token)
                # A token's own space replaces the one before the mask. At the beginning of the text it is dropped.
                kept = before.rstrip(" ") if filling.startswith(" ") else before
                filling = filling if before else filling.lstrip(" ")
                candidates.append({"token": token, "score": float(np.exp(row[i])), "text": kept + filling + after})
            results.append(candidates)
        return results[0] if len(results) == 1 else [*results]

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        return perplexity_report(measured["loss"])

    served_outputs = ("token", "score")

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers, in TensorFlow ops: `token` string and `score` float32, both (B, M, 5).

        They are the most probable tokens behind each mask, best first, padded with "" and 0 for texts with fewer masks.
        """
        import tensorflow as tf

        tokenizer = self.text_preprocessor.tokenizer
        ids = features["token_ids"]  # (B, T)
        masked = tf.equal(ids, tokenizer.mask_id)  # (B, T)
        columns = tf.broadcast_to(tf.range(tf.shape(ids)[1]), tf.shape(ids))  # (B, T)
        positions = tf.ragged.boolean_mask(columns, masked).to_tensor()  # (B, M)
        there = tf.sequence_mask(tf.math.count_nonzero(masked, axis=1), tf.shape(positions)[1])[..., None]  # (B, M, 1)
        logits = self({**features, "mask_positions": positions}, training=False)  # (B, M, V)
        size = tokenizer.vocabulary_size  # the model may have more
        score, best = tf.math.top_k(tf.nn.softmax(logits)[..., :size], min(5, size))  # (B, M, 5)
        token = tf.gather(tf.constant(tokenizer.vocabulary), best)
        return {"token": tf.where(there, token, ""), "score": tf.where(there, score, 0.0)}

    def pseudo_perplexity(self, texts: Texts, batch_size: int = 32) -> float:
        """Return the exponential of the mean negative log-likelihood of each token given all others (Salazar et al.).

        Every token is masked in turn, so a text of n tokens costs n forward passes.

        Args:
            texts: a list of strings.
            batch_size: int.

        Returns:
            The perplexity over all tokens of all texts, without special tokens.

        Raises:
            ValueError: if there is no token to predict, or a text holds a mask token.
        """
        found = [found for _, _, found in self._log_probabilities(self.encode_inputs(texts), batch_size)]
        if not found:
            raise ValueError("`texts` hold no tokens to predict.")
        return float(np.exp(-np.mean(found)))

    def score(self, texts: Iterable[Text], batch_size: int = 32) -> list[list[TokenScore]]:
        """Return the log-probability of each token of texts, given all others; see `pseudo_perplexity`.

        Args:
            texts: strings.
            batch_size: int.

        Returns:
            For each text, `{"token": str, "start": int, "end": int, "log_probability": float}` for each token, with the
            characters of the text that it came from, without special tokens.

        Raises:
            TypeError: naming the position of an entry that is not a string.
            ValueError: if a text holds a mask token.
        """
        (cleaned,) = clean_columns({"texts": texts})
        if not cleaned:
            return []
        preprocessor = self.text_preprocessor
        spans = preprocessor.tokenizer.tokenize_with_offsets(cleaned)
        encoded = preprocessor.pack([[span.id for span in of_text] for of_text in spans])
        found: list[list[TokenScore]] = [[] for _ in cleaned]
        for i, place, log_probability in self._log_probabilities(encoded, batch_size):
            span = spans[i][place - bool(preprocessor.packing.start)]
            found[i].append(
                TokenScore(token=span.token, start=span.start, end=span.end, log_probability=log_probability)
            )
        return found

    def _log_probabilities(self, encoded: EncodedTexts, batch_size: int) -> Iterator[tuple[int, int, float]]:
        """Mask every token in turn: its sequence, its place there, and its log-probability."""
        tokenizer = self.text_preprocessor.tokenizer
        if len(find_masks(tokenizer, encoded)[0]):
            raise ValueError("`texts` must not hold mask tokens: every token is masked in turn.")
        flat = np.flatnonzero(maskable(tokenizer, encoded.token_ids))
        for start in range(0, len(flat), _COPIES):
            part = flat[start : start + _COPIES]
            source = np.searchsorted(encoded.sequence_splits, part, side="right") - 1
            copies, places = encoded.select(source), part - encoded.sequence_splits[source]
            where = copies.sequence_splits[:-1] + places
            targets = copies.token_ids[where]
            copies.token_ids[where] = tokenizer.mask_id
            log_probabilities = log_softmax(self.predict(copies, batch_size, verbose=0)[:, 0])  # (b, V)
            chosen = log_probabilities[np.arange(len(part)), targets].tolist()
            yield from zip(source.tolist(), places.tolist(), chosen, strict=True)
