"""Attention weights of tokens and words, and statistics of attention heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from lmzoo.analysis.reading import SPECIAL, Reader
from lmzoo.common.arguments import require
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.errors import WrongModelError
from lmzoo.families import Backbone
from lmzoo.tasks import Task
from lmzoo.tasks.base.arguments import check_arguments
from lmzoo.text import Preprocessor
from lmzoo.text.alignment import tokens_of_words
from lmzoo.text.tokenizers.tokenizer import TokenSpan
from lmzoo.text.word_splitting import place_words


class Attention(NamedTuple):
    """Attention weights of every head for a text, or a pair of texts.

    Attributes:
        texts: the text, or the two texts of a pair.
        tokens: the T tokens as strings, including special tokens.
        offsets: int64 (T, 2), start and end of each token in its text, in characters; -1 for special tokens.
        segments: int64 (T,), index of each token's text in `texts`; -1 for special tokens.
        scores: float32 (L, N, T, T), attention weights in L layers and N heads from each token (rows) to each token
            (columns). Rows sum to 1.

    Example: see `attention`.
    """

    texts: tuple[str, ...]
    tokens: list[str]
    offsets: np.ndarray
    segments: np.ndarray
    scores: np.ndarray


class HeadStatistics(NamedTuple):
    """Statistics of the N attention heads in each of L layers, averaged over all tokens.

    Attributes:
        distance: float64 (L, N), mean distance in tokens from a token to the tokens it attends to, weighted by
            attention.
        entropy: float64 (L, N), mean entropy of a token's attention weights in nats; 0 if one token gets all attention.
        special: float64 (L, N), mean fraction of attention to special tokens, or to one special token.

    Example: see `head_statistics`.
    """

    distance: np.ndarray
    entropy: np.ndarray
    special: np.ndarray


def attention(
    model: Task | Backbone, texts: Any, batch_size: int = 8, preprocessor: Preprocessor | None = None
) -> list[Attention]:
    """Return the attention weights of every head for each text (Vaswani et al., 2017).

    Args:
        model: a task, or a backbone with a `preprocessor`.
        texts: strings or pairs of strings, as for `lmzoo.models.TextClassifier`.
        batch_size: int, number of sequences in a batch.
        preprocessor: preprocessor of the texts; required if `model` is a backbone.

    Returns:
        One `Attention` for each text.

    Raises:
        TypeError: If `model` is neither a task nor a backbone, or has no attention (such as ELMo), or an entry is not
            text; the message gives the entry's position.
        ValueError: If there are no texts, there is no preprocessor or it does not fit the model, or the model reads a
            source and a target.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    (attention,) = lmzoo.analysis.attention(embedder, ["The animal was too tired."])
    attention.scores.shape  # (6, 4, 8, 8)
    ```
    """
    check_arguments(batch_size=batch_size)
    reader = Reader.of(model, preprocessor)
    backbone = reader.backbone
    if not hasattr(backbone, "attention_scores"):
        raise WrongModelError(f"{type(backbone).__name__} has no attention to look at: models of its family have none.")
    scores = _Scores(backbone, backbone.attention_scores)(backbone.input)  # (B, L, N, T, T)
    read_texts, encoded_texts = reader.read(texts)
    attention_model = keras.Model(backbone.input, scores)
    scores_by_text = reader.outputs(
        attention_model, encoded_texts, batch_size, lambda values, length: values[:, :, :length, :length]
    )
    return [
        Attention(*read_text, text_scores) for read_text, text_scores in zip(read_texts, scores_by_text, strict=True)
    ]


class _Scores(keras.layers.Layer):
    """Layer that computes a backbone's attention weights, float32 (B, L, N, T, T), for B sequences of T tokens."""

    def __init__(self, backbone: Backbone, scores: Any) -> None:
        super().__init__(autocast=False)
        self.shape = backbone.config.num_layers, backbone.config.num_heads
        self.scores = scores

    def call(self, inputs: Features) -> Tensor:
        """Compute the attention weights of every layer."""
        return ops.stack([ops.cast(x, "float32") for x in self.scores(inputs)], axis=1)

    def compute_output_spec(self, inputs: Features) -> keras.KerasTensor:
        """Return the shape and dtype of the attention weights."""
        batch, length = next(iter(inputs.values())).shape
        return keras.KerasTensor((batch, *self.shape, length, length), "float32")


def join_words(found: Attention) -> Attention:
    """Join the tokens of each word, averaging the attention weights from its tokens and summing the weights to them.

    Rows still sum to 1 (Clark et al., 2019, https://aclanthology.org/W19-4828). Special tokens and tokens outside of
    words stay separate.

    Args:
        found: attention between tokens, returned by `attention`.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    (attention,) = lmzoo.analysis.attention(embedder, ["An unbelievable film."])
    lmzoo.analysis.join_words(attention).tokens  # ["[CLS]", "An", "unbelievable", "film", ".", "[SEP]"]
    ```
    """
    groups: list[tuple[list[int], tuple[str, int, int]]] = []  # token indices; name, start and end of the group
    for segment, text in enumerate(found.texts):
        indices_in_text = np.flatnonzero(found.segments == segment)
        spans = [TokenSpan(0, found.tokens[i], *found.offsets[i].tolist()) for i in indices_in_text]
        words = place_words(text)
        word_indices, token_indices = tokens_of_words(words, spans)
        # A token shared by several words belongs to the first word.
        token_indices, first_positions = np.unique(token_indices, return_index=True)
        word_indices = word_indices[first_positions]
        for i in np.unique(word_indices).tolist():
            groups.append((indices_in_text[token_indices[word_indices == i]].tolist(), words[i]))
    grouped_indices = {i for members, _ in groups for i in members}
    ungrouped_indices = [i for i in range(len(found.tokens)) if i not in grouped_indices]
    groups += [([i], (found.tokens[i], *found.offsets[i].tolist())) for i in ungrouped_indices]
    groups.sort(key=lambda group: group[0])
    membership = np.zeros((len(groups), len(found.tokens)), "float32")  # (W, T)
    for row, (members, _) in enumerate(groups):
        membership[row, members] = 1
    averaging_weights = membership / membership.sum(axis=1, keepdims=True)
    scores = np.einsum("wt,lntu,vu->lnwv", averaging_weights, found.scores, membership, optimize=True)  # (L, N, W, W)
    return Attention(
        found.texts,
        [name for _, (name, _, _) in groups],
        np.array([span for _, (_, *span) in groups], "int64"),
        found.segments[[members[0] for members, _ in groups]],
        scores.astype("float32"),
    )


def head_statistics(found: Sequence[Attention], special: str | None = None) -> HeadStatistics:
    """Return each head's mean attention distance, entropy, and fraction of attention to special tokens.

    Args:
        found: attention of texts, returned by `attention`.
        special: special token for the fraction of attention, such as "[SEP]"; by default all special tokens together.

    Raises:
        ValueError: If `found` is empty, no text has tokens, or `special` is not a special token of the texts.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    attentions = lmzoo.analysis.attention(embedder, ["The animal was too tired.", "A quiet film."])
    lmzoo.analysis.head_statistics(attentions).entropy.shape  # (6, 4)
    lmzoo.analysis.head_statistics(attentions, special="[SEP]").special.shape  # (6, 4)
    ```
    """
    if not found:
        raise ValueError("There is no attention to look at: the list is empty.")
    if not any(text.tokens for text in found):
        raise ValueError("There is no attention to look at: the texts have no tokens. Pass a text that is not empty.")
    special_tokens = {text.tokens[i] for text in found for i in np.flatnonzero(text.segments == SPECIAL)}
    require(
        special is None or special in special_tokens, "special", f"one of {', '.join(sorted(special_tokens))}", special
    )
    counted_tokens = special_tokens if special is None else {special}
    sums = np.zeros((3, *found[0].scores.shape[:2]))
    num_tokens = 0
    for text in found:
        is_counted = (text.segments == SPECIAL) & np.isin(text.tokens, [*counted_tokens])
        scores = text.scores.astype("float64")
        positions = np.arange(len(text.tokens))
        distances = np.abs(positions[:, None] - positions)  # (T, T)
        log_scores = np.log(np.where(scores > 0, scores, 1))
        sums += np.stack(
            [
                (scores * distances).sum(axis=(2, 3)),
                -(scores * log_scores).sum(axis=(2, 3)),
                scores[..., is_counted].sum(axis=(2, 3)),
            ]
        )
        num_tokens += len(positions)
    return HeadStatistics(*(sums / num_tokens))
