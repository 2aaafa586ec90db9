"""Masked language modeling: training on masked tokens, and filling in masks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import keras
import numpy as np

from lmzoo.evaluation.reports import Report
from lmzoo.families.backbone import Backbone
from lmzoo.registry.family import Family
from lmzoo.tasks.base.arguments import check_top_k
from lmzoo.tasks.base.examples import Batch, Examples, FeatureArrays, Texts
from lmzoo.tasks.objectives.masked_tokens import MaskedTokensTask
from lmzoo.tasks.token_labels import TokenLabelsTask
from lmzoo.tasks.token_losses import make_perplexity_report, measure_by_token
from lmzoo.text import EncodedTexts, Masking, Preprocessor
from lmzoo.text.mask_tokens import find_masks, maskable
from lmzoo.text.probabilities import log_softmax
from lmzoo.text.segments import clean_segments
from lmzoo.text.token_scores import TokenScore
from lmzoo.text.validate_text import Text, clean_columns, warn
from lmzoo.training.distillation import ComparedOutputs, DistillationSettings
from lmzoo.training.span_metrics import TokenAccuracy

if TYPE_CHECKING:
    import tensorflow as tf

_MAX_MASKS = 1024  # masks predicted at once, which limits the memory for logits


class MaskAnswer(TypedDict):
    """A candidate token for a mask, with its probability and the completed text."""

    token: str
    score: float
    text: str


@keras.saving.register_keras_serializable(package="lmzoo")
class MaskedLM(TokenLabelsTask, MaskedTokensTask):
    """A masked language model (Devlin et al., 2019, section 3.1).

    Inputs are the backbone's inputs and `mask_positions`, the positions of up to M masks in each of B sequences, int32
    (B, M). The outputs are the logits of all V tokens of the vocabulary at these positions, float32 (B, M, V). `fit`
    takes texts without labels, and draws new masks in every epoch if `masking` is dynamic. `predict` takes texts with
    mask tokens, and warns about texts without any. With token features, labels are the masked tokens, int (B, M),
    -100 for positions that do not count.

    Args:
        backbone: `lmzoo.models.Backbone`, the layers below the head.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        masking: `lmzoo.text.Masking` or a dict of its arguments, the masking in `fit`; the family's by default.
        activation: str, activation of the head's layer, see `lmzoo.layers.get_activation`; the backbone's by default.
        layer_norm_epsilon: float, epsilon of the head's LayerNorm; the backbone's by default.
        name: name of the model.
        tie_embeddings: bool, whether logits are products with the token embeddings. If False, the head has a kernel of
            its own in their place, as in transformers' models with `tie_word_embeddings=False`.

    Example:

    ```python
    import lmzoo

    model = lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased")
    model.fill(["The king sat on his [MASK]."], top_k=3)
    ```
    """

    predicts = "logits of the masks (n, M, V)"
    head_kind = "masked_lm"
    pipeline_tag = "fill-mask"
    reads_heads = ("pretraining", "span_boundaries")
    commands = (("masked-lm", "texts"),)
    serves = "`token`, `score` (n, masks, 5): the most probable tokens at each mask"
    uses_pooler = False
    distillation = DistillationSettings((5.0, 2.0, 1.0), per_token=True, takes_labels=False, makes_labels=True)
    instead_of: ClassVar[Mapping[str, str]] = {
        **MaskedTokensTask.instead_of,
        "mask_selection_rate": "Pass `masking`, such as `lmzoo.text.Masking(0.2)`.",
    }

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        masking: Masking | dict[str, Any] | None = None,
        labels: None = None,
        activation: str | None = None,
        layer_norm_epsilon: float | None = None,
        name: str | None = None,
        tie_embeddings: bool = True,
    ) -> None:
        head_settings = (masking, activation, layer_norm_epsilon)
        super().__init__(
            backbone, preprocessor, *head_settings, lambda logits, outputs: logits, name, tie_embeddings=tie_embeddings
        )
        self.compile()

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family's models are trained to fill masks."""
        # Permutation language models are trained without masks.
        return super().supports(family) and family.objective != "plm"

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics, the accuracy of predictions for masked tokens."""
        return [TokenAccuracy()]

    def compared_outputs(self) -> ComparedOutputs:
        """Return the logits of the masked tokens and the hidden states of all tokens."""
        padding_mask = self.backbone.padding_mask(self.input)  # (B, T)
        return ComparedOutputs(self.output, self.input["mask_positions"], self.token_vectors, padding_mask)

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return `(features, targets, weights)` for masked sequences: targets int32 (b, M), weights float32 (b, M)."""
        features, targets, weights = self.mask(examples.encoded, indices, width, rng)
        if examples.weights is not None:
            weights *= examples.weights[indices][:, None]
        return features, targets, weights

    def extra_features(self, encoded: EncodedTexts) -> FeatureArrays:
        """Return `mask_positions` int32 (n, M), and warn about texts without mask tokens."""
        tokenizer = self.text_preprocessor.tokenizer
        maskless_indices = np.flatnonzero(np.bincount(find_masks(tokenizer, encoded)[0], minlength=len(encoded)) == 0)
        if len(maskless_indices):
            warn(
                f"{len(maskless_indices)} of {len(encoded)} texts, the first at position {maskless_indices[0]}, hold "
                f"no {tokenizer.mask_token}, so their outputs predict no masked token. Put one in place of each token "
                "to predict."
            )
        return super().extra_features(encoded)

    def fill(
        self, texts: Texts, top_k: int = 5, batch_size: int = 32, whole_words: bool = False
    ) -> list[list[MaskAnswer] | list[list[MaskAnswer]]]:
        """Return the most probable tokens at each mask.

        With `whole_words`, special tokens, parts of characters and parts of words are left out. With WordPiece, parts
        of words are the tokens that continue a word. With byte-level BPE and SentencePiece, they are the tokens that do
        not begin with a space, if the mask follows a space. If the mask does not follow a space (after a bracket or,
        for BPE, at the beginning of a text), tokens do not show whether they are whole words, and none is left out as
        a part of a word. Punctuation marks count as words.

        Args:
            texts: a list of strings (or pairs), each with at least one mask token.
            top_k: int, number of candidates for each mask.
            batch_size: int, texts per batch.
            whole_words: whether a candidate must be a whole word.

        Returns:
            For each text, a list of candidates, best first: `{"token": str, "score": float, "text": str}`, where the
            score is the token's probability among all tokens, and the text is the input with the mask replaced. For a
            text with several masks, a list of candidates for each mask, as in transformers' fill-mask.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If a text has no mask or a mask was truncated (the message names the first such text), or if
                `top_k` is below 1.
        """
        check_top_k(top_k)
        examples, encoded, mask_counts = self._encode_masks(texts)
        candidates_by_text = []
        is_whole_word = self._find_whole_word_masks() if whole_words else None
        chunk_size = max(1, _MAX_MASKS // mask_counts.max(initial=1))
        for start in range(0, len(encoded), chunk_size):
            chunk = slice(start, start + chunk_size)
            logits = self.predict(encoded[chunk], batch_size, verbose=0)  # (n, M, V)
            candidates_by_text += [
                self._rank_candidates(segments, log_softmax(row[:mask_count]), top_k, is_whole_word)
                for segments, row, mask_count in zip(examples[chunk], logits, mask_counts[chunk], strict=True)
            ]
        return candidates_by_text

    answers = fill

    def check_answerable(self, x: Texts, **options: Any) -> None:
        self._encode_masks(x)

    def _encode_masks(self, texts: Texts) -> tuple[list[tuple[str, ...]], EncodedTexts, np.ndarray]:
        """Return the strings of each of n texts, the encoded texts, and their numbers of masks, int (n,).

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If a text has no mask or a mask was truncated; the message names the first such text.
        """
        columns = clean_segments(texts)
        encoded = self.encode_inputs(columns[0] if len(columns) == 1 else tuple(columns))
        mask_counts = np.bincount(find_masks(self.text_preprocessor.tokenizer, encoded)[0], minlength=len(encoded))
        mask_token = self.text_preprocessor.tokenizer.mask_token
        examples = list(zip(*columns, strict=True))
        for i, (segments, mask_count) in enumerate(zip(examples, mask_counts.tolist(), strict=True)):
            if not mask_count or mask_count < sum(segment.count(mask_token) for segment in segments):
                problem = f"not every {mask_token}" if mask_count else f"no {mask_token}"
                length = self.text_preprocessor.sequence_length
                raise ValueError(f"`texts[{i}]` holds {problem} within the {length} tokens that are read.")
        return examples, encoded, mask_counts

    def _find_whole_word_masks(self) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each token is a whole word at a mask after a space, and at any other mask, both bool (V,)."""
        tokenizer = self.text_preprocessor.tokenizer
        token_texts = [tokenizer.text_of(token) for token in tokenizer.vocabulary]
        # The replacement character marks tokens that are only some of a character's bytes.
        is_word = np.array([bool(text.strip()) and "\ufffd" not in text for text in token_texts])
        is_word &= ~np.isin(tokenizer.vocabulary, tokenizer.special_tokens)
        begins_with_space = np.array([text.startswith(" ") for text in token_texts])
        if begins_with_space.any():
            return is_word & begins_with_space, is_word
        return (is_word & tokenizer.word_starts(),) * 2

    def _rank_candidates(
        self,
        segments: tuple[str, ...],
        log_probabilities: np.ndarray,
        top_k: int,
        is_whole_word: tuple[np.ndarray, np.ndarray] | None,
    ) -> list[MaskAnswer] | list[list[MaskAnswer]]:
        """Return a list of the best candidates for a text's only mask, or one such list for each of its M masks.

        Args:
            segments: the text, or both texts of a pair.
            log_probabilities: float (M, V), log-probabilities of tokens at each mask.
            top_k: int, number of candidates for a mask.
            is_whole_word: whether each token may fill a mask after a space, and any other mask, both bool (V,); None if
                all tokens may fill every mask.
        """
        tokenizer = self.text_preprocessor.tokenizer
        mask_token = str(tokenizer.mask_token)
        candidates_by_mask: list[list[MaskAnswer]] = []
        text_parts = " ".join(segments).split(mask_token)
        prefix = "" if tokenizer.space_of_words else " "  # the tokenizer may itself put a space in front of a text
        follows_space = [
            part[-1:].isspace() for segment in segments for part in (prefix + segment).split(mask_token)[:-1]
        ]
        for mask_index, row in enumerate(log_probabilities):  # (V,)
            before_mask = mask_token.join(text_parts[: mask_index + 1])
            after_mask = mask_token.join(text_parts[mask_index + 1 :])
            # Leave out token embeddings beyond the tokenizer's vocabulary.
            ranked_ids = np.argsort(-row[: tokenizer.vocabulary_size], kind="stable")
            if is_whole_word:
                ranked_ids = ranked_ids[is_whole_word[0 if follows_space[mask_index] else 1][ranked_ids]]
            candidates: list[MaskAnswer] = []
            for token_id in ranked_ids[:top_k]:
                token = tokenizer.id_to_token(int(token_id))
                filling = tokenizer.text_of(token)
                # A space at the start of the token replaces the space before the mask, and is dropped at the beginning
                # of the text.
                text_before = before_mask.rstrip(" ") if filling.startswith(" ") else before_mask
                filling = filling if before_mask else filling.lstrip(" ")
                candidates.append(
                    {"token": token, "score": float(np.exp(row[token_id])), "text": text_before + filling + after_mask}
                )
            candidates_by_mask.append(candidates)
        return candidates_by_mask[0] if len(candidates_by_mask) == 1 else [*candidates_by_mask]

    def measure(self, x: Any, y: Any, batch_size: int, verbose: bool | int | str = "auto") -> dict[str, float]:
        return measure_by_token(self, x, batch_size, verbose)

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        return make_perplexity_report(measured["loss"])

    served_outputs = ("token", "score")

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers, in TensorFlow ops: `token` string and `score` float32, both (B, M, 5).

        These hold the most probable tokens at each mask and their probabilities, best first. Texts with fewer masks are
        padded with "" and 0.
        """
        import tensorflow as tf

        tokenizer = self.text_preprocessor.tokenizer
        ids = features["token_ids"]  # (B, T)
        is_masked = tf.equal(ids, tokenizer.mask_id)  # (B, T)
        all_positions = tf.broadcast_to(tf.range(tf.shape(ids)[1]), tf.shape(ids))  # (B, T)
        positions = tf.ragged.boolean_mask(all_positions, is_masked).to_tensor()  # (B, M)
        mask_counts = tf.math.count_nonzero(is_masked, axis=1)  # (B,)
        is_not_padding = tf.sequence_mask(mask_counts, tf.shape(positions)[1])[..., None]  # (B, M, 1)
        logits = self({**features, "mask_positions": positions}, training=False)  # (B, M, V)
        vocabulary_size = tokenizer.vocabulary_size  # the model may have more token embeddings
        top_scores, top_ids = tf.math.top_k(
            tf.nn.softmax(logits)[..., :vocabulary_size], min(5, vocabulary_size)
        )  # (B, M, 5)
        top_tokens = tf.gather(tf.constant(tokenizer.vocabulary), top_ids)
        return {"token": tf.where(is_not_padding, top_tokens, ""), "score": tf.where(is_not_padding, top_scores, 0.0)}

    def pseudo_perplexity(self, texts: Texts, batch_size: int = 32) -> float:
        """Return the pseudo-perplexity of texts (Salazar et al., 2020).

        It is the exponential of the mean negative log-likelihood of each token given all other tokens. Every token is
        masked in turn, so a text of n tokens costs n forward passes.

        Args:
            texts: a list of strings.
            batch_size: int, masked copies per batch.

        Returns:
            The pseudo-perplexity over all tokens of all texts, without special tokens.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If there is no token to predict, or a text holds a mask token.
        """
        log_probabilities = [
            value for _, _, value in self._compute_log_probabilities(self.encode_inputs(texts), batch_size)
        ]
        if not log_probabilities:
            raise ValueError("`texts` hold no tokens to predict.")
        return float(np.exp(-np.mean(log_probabilities)))

    def score(self, texts: Iterable[Text], batch_size: int = 32) -> list[list[TokenScore]]:
        """Return the log-probability of each token in each text, given all other tokens; see `pseudo_perplexity`.

        Args:
            texts: strings.
            batch_size: int, masked copies per batch.

        Returns:
            For each text, a list with `{"token": str, "start": int, "end": int, "log_probability": float}` for each
            token that is neither special nor truncated; `start` and `end` are the token's character offsets.

        Raises:
            TypeError: If an entry is not a string; the message names its position.
            ValueError: If a text holds a mask token.
        """
        (cleaned_texts,) = clean_columns({"texts": texts})
        if not cleaned_texts:
            return []
        preprocessor = self.text_preprocessor
        spans = preprocessor.tokenizer.tokenize_with_offsets(cleaned_texts)
        encoded = preprocessor.pack([[span.id for span in text_spans] for text_spans in spans])
        scores: list[list[TokenScore]] = [[] for _ in cleaned_texts]
        for i, position, log_probability in self._compute_log_probabilities(encoded, batch_size):
            span = spans[i][position - bool(preprocessor.packing.start)]
            scores[i].append(
                TokenScore(token=span.token, start=span.start, end=span.end, log_probability=log_probability)
            )
        return scores

    def _compute_log_probabilities(self, encoded: EncodedTexts, batch_size: int) -> Iterator[tuple[int, int, float]]:
        """Mask every token in turn, and yield `(index of the sequence, position, log-probability)` for each.

        Special tokens are skipped.

        Raises:
            ValueError: If a sequence holds a mask token.
        """
        tokenizer = self.text_preprocessor.tokenizer
        if len(find_masks(tokenizer, encoded)[0]):
            raise ValueError("`texts` must not hold mask tokens: every token is masked in turn.")
        flat_indices = np.flatnonzero(maskable(tokenizer, encoded.token_ids))
        for start in range(0, len(flat_indices), _MAX_MASKS):
            chunk_indices = flat_indices[start : start + _MAX_MASKS]
            sequence_indices = np.searchsorted(encoded.sequence_splits, chunk_indices, side="right") - 1
            masked_copies = encoded.select(sequence_indices)
            positions = chunk_indices - encoded.sequence_splits[sequence_indices]
            flat_positions = masked_copies.sequence_splits[:-1] + positions
            targets = masked_copies.token_ids[flat_positions]
            masked_copies.token_ids[flat_positions] = tokenizer.mask_id
            log_probabilities = log_softmax(self.predict(masked_copies, batch_size, verbose=0)[:, 0])  # (b, V)
            target_log_probabilities = log_probabilities[np.arange(len(chunk_indices)), targets].tolist()
            yield from zip(sequence_indices.tolist(), positions.tolist(), target_log_probabilities, strict=True)
