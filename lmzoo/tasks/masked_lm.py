"""Filling in masked tokens; also the objective of pre-training."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from lmzoo.families.backbone import Backbone
from lmzoo.family import Family
from lmzoo.tasks.base.examples import Examples
from lmzoo.tasks.base.input_kinds import split_segments
from lmzoo.tasks.base.masked_lm_objective import MaskedTokens
from lmzoo.tasks.base.numpy_outputs import check_top_k, log_softmax
from lmzoo.tasks.base.task import Task
from lmzoo.text import EncodedTexts, Masking, Preprocessor
from lmzoo.text.mask_tokens import find_masks, mask_positions, maskable
from lmzoo.text.validate_text import clean_columns
from lmzoo.training.span_metrics import TokenAccuracy

_COPIES = 1024  # masks predicted at once: bounds the logits in memory


@keras.saving.register_keras_serializable(package="lmzoo")
class MaskedLM(Task):
    """Predicts the tokens behind a mask (Devlin et al., 2019, section 3.1).

    Inputs are the backbone's and `mask_positions` int32 (B, M); the output is logits, float32 (B, M, V). `fit` takes
    texts without labels and masks them anew in every batch.

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        masking: `lmzoo.text.Masking`, how `fit` corrupts text; by default as the family was pre-trained.
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

    head_kind, reads_heads, pretrains = "masked_lm", ("pretraining",), True
    needs_labels = False
    uses_pooler = False

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None = None,
        masking: Masking | dict[str, Any] | None = None,
        labels: None = None,
        activation: str | None = None,
        layer_norm_epsilon: float | None = None,
        name: str = "masked_lm",
    ) -> None:
        masked = MaskedTokens.of(backbone, masking, activation, layer_norm_epsilon)
        if preprocessor is not None:
            preprocessor.tokenizer.check_has_mask()
        head, inputs = masked.head(backbone), masked.inputs(backbone)
        vectors = backbone.vectors_at(backbone.input, inputs["mask_positions"])  # (B, M, H)
        super().__init__(backbone, preprocessor, inputs, head(vectors), None, name)
        self.masked, self.head = masked, head

    @property
    def masking(self) -> Masking:
        """How `fit` corrupts text."""
        return self.masked.masking

    def default_loss(self) -> Any:
        """The mean over masked tokens: a row's padding, and slots without a mask, do not count."""
        return self.masked.default_loss()

    def default_metrics(self) -> list[Any]:
        """Accuracy at masked tokens."""
        return [TokenAccuracy()]

    @classmethod
    def supports(cls, family: Family) -> bool:
        """See `MaskedTokens.supports`."""
        return MaskedTokens.supports(family)

    def make_batch(self, examples: Examples, rows: np.ndarray, width: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """Masks the rows: `(features, targets (B, M), weights (B, M))`."""
        features, targets, weights = self.masked.mask(self.text_preprocessor, examples.encoded, rows, width, rng)
        if examples.weights is not None:
            weights *= examples.weights[rows][:, None]
        return features, targets, weights

    def extra_features(self, encoded: EncodedTexts) -> dict[str, np.ndarray]:
        """`mask_positions` int32 (n, M): where the mask tokens stand, padded with 0."""
        return {"mask_positions": mask_positions(self.text_preprocessor.tokenizer, encoded)}

    def fill(self, texts: Any, top_k: int = 5, batch_size: int = 32, whole_words: bool = False) -> list[Any]:
        """The likeliest tokens behind each mask.

        With `whole_words` parts of words are left out: of WordPiece's tokens those that go on with a word, of
        byte-level BPE's and SentencePiece's, after a space, those that do not begin with one. Without a space in front
        of the mask, as after a bracket and, for BPE, at the beginning of a text, theirs do not tell, and all of them
        are candidates. Punctuation marks are words.

        Args:
            texts: a list of strings (or pairs), each holding the mask token at least once.
            top_k: int, candidates for each mask.
            batch_size: int.
            whole_words: whether a candidate has to be a word by itself.

        Returns:
            For each text a list of candidates, best first: `{"token": str, "score": float, "text": str}`, the score
            being the token's probability among all tokens, and the text the input with the mask replaced. For a
            text with several masks, one such list for each of them, as transformers' fill-mask does.

        Raises:
            ValueError: naming the first text without a mask, or with one that was cut off; for a `top_k` below 1.
        """
        check_top_k(top_k)
        firsts, seconds = split_segments(texts)
        columns = clean_columns({"texts": firsts} if seconds is None else {"texts": firsts, "pairs": seconds})
        encoded = self.encode_inputs(columns[0] if seconds is None else tuple(columns))
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

    def _words(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that are words by themselves, bool (V,): after a space, and after anything else."""
        tokenizer = self.text_preprocessor.tokenizer
        texts = [tokenizer.text_of(token) for token in tokenizer.vocabulary]
        whole = np.array([bool(text.strip()) and "\ufffd" not in text for text in texts])  # bytes may be half a letter
        whole &= ~np.isin(tokenizer.vocabulary, tokenizer.special_tokens)
        spaced = np.array([text.startswith(" ") for text in texts])
        return (whole & spaced, whole) if spaced.any() else (whole & tokenizer.word_starts(),) * 2

    def _candidates(
        self,
        segments: tuple[str, ...],
        log_probabilities: np.ndarray,
        top_k: int,
        words: tuple[np.ndarray, np.ndarray] | None,
    ) -> list[Any]:
        tokenizer = self.text_preprocessor.tokenizer
        mask, results = str(tokenizer.mask_token), []
        pieces = " ".join(segments).split(mask)
        first = "" if tokenizer.space_of_words else " "  # what the tokenizer itself puts in front of a text
        spaced = [piece[-1:].isspace() for segment in segments for piece in (first + segment).split(mask)[:-1]]
        for k, row in enumerate(log_probabilities):  # (V,)
            before, after = mask.join(pieces[: k + 1]), mask.join(pieces[k + 1 :])
            order = np.argsort(-row[: tokenizer.vocabulary_size], kind="stable")  # the table may be longer
            if words:
                order = order[words[0 if spaced[k] else 1][order]]
            candidates = []
            for i in order[:top_k]:
                token = tokenizer.id_to_token(int(i))
                piece = tokenizer.text_of(token)
                # A piece that brings its space takes the place of the one before the mask; a text begins without one.
                kept = before.rstrip(" ") if piece.startswith(" ") else before
                piece = piece if before else piece.lstrip(" ")
                candidates.append({"token": token, "score": float(np.exp(row[i])), "text": kept + piece + after})
            results.append(candidates)
        return results[0] if len(results) == 1 else results

    verb = "fill"
    served_outputs = ("token", "score")

    def serve(self, features: dict[str, Any]) -> dict[str, Any]:
        """The exported model's answers, as TensorFlow ops: `token` string and `score` float32, both (B, M, 5).

        They are the likeliest tokens behind each of a row's masks, best first; rows with fewer masks end in "" and 0.
        """
        import tensorflow as tf

        tokenizer = self.text_preprocessor.tokenizer
        ids = features["token_ids"]  # (B, T)
        masked = tf.equal(ids, tokenizer.mask_id)  # (B, T)
        columns = tf.broadcast_to(tf.range(tf.shape(ids)[1]), tf.shape(ids))  # (B, T)
        positions = tf.ragged.boolean_mask(columns, masked).to_tensor()  # (B, M)
        there = tf.sequence_mask(tf.math.count_nonzero(masked, axis=1), tf.shape(positions)[1])[..., None]  # (B, M, 1)
        logits = self({**features, "mask_positions": positions}, training=False)  # (B, M, V)
        score, best = tf.math.top_k(tf.nn.softmax(logits), min(5, tokenizer.vocabulary_size))  # (B, M, 5)
        token = tf.gather(tf.constant(tokenizer.vocabulary), best)
        return {"token": tf.where(there, token, ""), "score": tf.where(there, score, 0.0)}

    def pseudo_perplexity(self, texts: Any, batch_size: int = 32) -> float:
        """Exponential of the mean negative log-likelihood of each token given all others (Salazar et al.).

        Every token is masked in turn, so a text of n tokens costs n forward passes.

        Args:
            texts: a list of strings.
            batch_size: int.

        Returns:
            The perplexity over all tokens of all texts, special tokens aside.

        Raises:
            ValueError: if there is no token to predict, or a text holds a mask itself.
        """
        encoded, tokenizer = self.encode_inputs(texts), self.text_preprocessor.tokenizer
        if len(find_masks(tokenizer, encoded)[0]):
            raise ValueError("`texts` must not hold mask tokens: every token is masked in turn.")
        flat = np.flatnonzero(maskable(tokenizer, encoded.token_ids))
        if not len(flat):
            raise ValueError("`texts` hold no tokens to predict.")
        nll = 0.0
        for start in range(0, len(flat), _COPIES):
            part = flat[start : start + _COPIES]
            row = np.searchsorted(encoded.sequence_splits, part, side="right") - 1
            copies = encoded.select(row)
            where = copies.sequence_splits[:-1] + part - encoded.sequence_splits[row]
            targets = copies.token_ids[where]
            copies.token_ids[where] = tokenizer.mask_id
            log_probabilities = log_softmax(self.predict(copies, batch_size, verbose=0)[:, 0])  # (b, V)
            nll -= float(log_probabilities[np.arange(len(part)), targets].sum())
        return float(np.exp(nll / len(flat)))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), **self.masked.get_config()}
