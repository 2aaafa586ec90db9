"""What the tokens of a text attend to."""

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
    """The attention within a text, or a pair of texts.

    Attributes:
        texts: the text, or the two of a pair.
        tokens: T strings, special tokens included.
        offsets: int64 (T, 2), the first character of each token and the one after its last; -1 for special tokens.
        segments: int64 (T,), to which of the texts a token belongs; -1 for special tokens.
        scores: float32 (L, N, T, T): in each of L layers and N heads how much of its attention each token, along the
            rows, pays to each other one. Rows sum to 1.

    Example: see `attention`.
    """

    texts: tuple[str, ...]
    tokens: list[str]
    offsets: np.ndarray
    segments: np.ndarray
    scores: np.ndarray


class HeadStatistics(NamedTuple):
    """What each head does, averaged over all tokens: float64 (L, N) each.

    Attributes:
        distance: mean distance to the tokens that are attended to, in tokens.
        entropy: of the attention of a token, in nats: 0 if it is all on one token.
        special: share of the attention that goes to special tokens, or to one of them.

    Example: see `head_statistics`.
    """

    distance: np.ndarray
    entropy: np.ndarray
    special: np.ndarray


def attention(
    model: Task | Backbone, texts: Any, batch_size: int = 8, preprocessor: Preprocessor | None = None
) -> list[Attention]:
    """Return the attention of every head while a model reads texts (Vaswani et al., 2017).

    Args:
        model: a task, or a backbone with a `preprocessor`.
        texts: strings or pairs of them, as for `lmzoo.models.TextClassifier`.
        batch_size: int.
        preprocessor: of a backbone.

    Returns:
        One `Attention` for each text.

    Raises:
        TypeError: for a model without attention, such as ELMo; naming the position of an entry that is not text.
        ValueError: if there are no texts, or nothing that reads them.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    (found,) = lmzoo.analysis.attention(embedder, ["The animal was too tired."])
    found.scores.shape  # (6, 4, 8, 8)
    ```
    """
    check_arguments(batch_size=batch_size)
    reader = Reader.of(model, preprocessor)
    backbone = reader.backbone
    if not hasattr(backbone, "attention_scores"):
        raise WrongModelError(f"{type(backbone).__name__} has no attention to look at: models of its family have none.")
    scores = _Scores(backbone, backbone.attention_scores)(backbone.input)  # (B, L, N, T, T)
    read, encoded = reader.read(texts)
    model = keras.Model(backbone.input, scores)
    found = reader.outputs(model, encoded, batch_size, lambda values, length: values[:, :, :length, :length])
    return [Attention(*text, of_text) for text, of_text in zip(read, found, strict=True)]


class _Scores(keras.layers.Layer):
    """All attention scores of a backbone, float32 (B, L, N, T, T)."""

    def __init__(self, backbone: Backbone, scores: Any) -> None:
        super().__init__(autocast=False)
        self.shape = backbone.config.num_layers, backbone.config.num_heads
        self.scores = scores

    def call(self, inputs: Features) -> Tensor:
        """Compute the hidden states, and the scores from these."""
        return ops.stack([ops.cast(x, "float32") for x in self.scores(inputs)], axis=1)

    def compute_output_spec(self, inputs: Features) -> keras.KerasTensor:
        """Return the shape and dtype of the result."""
        batch, length = next(iter(inputs.values())).shape
        return keras.KerasTensor((batch, *self.shape, length, length), "float32")


def join_words(found: Attention) -> Attention:
    """Return the attention between words, which pay the mean of what their tokens pay and get the sum of what they get.

    Rows still sum to 1 (Clark et al., 2019, https://aclanthology.org/W19-4828). Special tokens stay as they are, and
    tokens that belong to no word as well.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    (found,) = lmzoo.analysis.attention(embedder, ["An unbelievable film."])
    lmzoo.analysis.join_words(found).tokens  # ["[CLS]", "An", "unbelievable", "film", ".", "[SEP]"]
    ```
    """
    groups: list[tuple[list[int], tuple[str, int, int]]] = []  # tokens, and what they are called
    for segment, text in enumerate(found.texts):
        tokens = np.flatnonzero(found.segments == segment)
        spans = [TokenSpan(0, found.tokens[i], *found.offsets[i].tolist()) for i in tokens]
        words = place_words(text)
        of_word, token = tokens_of_words(words, spans)
        token, first = np.unique(token, return_index=True)  # of words that share a token, the first one has it
        of_word = of_word[first]
        groups += [(tokens[token[of_word == word]].tolist(), words[word]) for word in np.unique(of_word).tolist()]
    grouped = {i for members, _ in groups for i in members}
    rest = [i for i in range(len(found.tokens)) if i not in grouped]
    groups += [([i], (found.tokens[i], *found.offsets[i].tolist())) for i in rest]
    groups.sort(key=lambda group: group[0])
    member = np.zeros((len(groups), len(found.tokens)), "float32")  # (W, T)
    for row, (members, _) in enumerate(groups):
        member[row, members] = 1
    paid = member / member.sum(axis=1, keepdims=True)
    scores = np.einsum("wt,lntu,vu->lnwv", paid, found.scores, member, optimize=True)  # (L, N, W, W)
    return Attention(
        found.texts,
        [name for _, (name, _, _) in groups],
        np.array([place for _, (_, *place) in groups], "int64"),
        found.segments[[members[0] for members, _ in groups]],
        scores.astype("float32"),
    )


def head_statistics(found: Sequence[Attention], special: str | None = None) -> HeadStatistics:
    """Return what each head does on average: how far it looks, how spread its attention is, what special tokens get.

    Args:
        found: what `attention` returned for texts.
        special: the special token whose share is reported, such as "[SEP]"; by default all of them together.

    Raises:
        ValueError: if there is nothing, or if `special` is no special token of the texts.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    found = lmzoo.analysis.attention(embedder, ["The animal was too tired.", "A quiet film."])
    lmzoo.analysis.head_statistics(found).entropy.shape  # (6, 4)
    lmzoo.analysis.head_statistics(found, special="[SEP]").special.shape  # (6, 4)
    ```
    """
    if not found:
        raise ValueError("There is no attention to look at: the list is empty.")
    known = {text.tokens[i] for text in found for i in np.flatnonzero(text.segments == SPECIAL)}
    require(special is None or special in known, "special", f"one of {', '.join(sorted(known))}", special)
    wanted = known if special is None else {special}
    sums, count = np.zeros((3, *found[0].scores.shape[:2])), 0
    for text in found:
        chosen = (text.segments == SPECIAL) & np.isin(text.tokens, [*wanted])
        scores, place = text.scores.astype("float64"), np.arange(len(text.tokens))
        distances = np.abs(place[:, None] - place)  # (T, T)
        logs = np.log(np.where(scores > 0, scores, 1))
        sums += np.stack(
            [
                (scores * distances).sum(axis=(2, 3)),
                -(scores * logs).sum(axis=(2, 3)),
                scores[..., chosen].sum(axis=(2, 3)),
            ]
        )
        count += len(place)
    return HeadStatistics(*(sums / count))
