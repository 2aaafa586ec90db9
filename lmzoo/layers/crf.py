"""A linear-chain conditional random field over the labels of words (Lafferty et al., 2001; Lample et al., 2016).

Letters in shape comments: B texts, T tokens, C labels, S = C + 1 states, the labels and "no word".

Functions take the scores that `TransitionScores` computes, float (B, T, S, S), and which tokens are words, bool (B, T).
Other tokens, such as padding and those that continue a word, are passed over: the label of a word follows that of the
word before it.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.scan import scan

_NEVER = -1e4  # its exponential is 0, and differences of scores keep three decimals beside it


@keras.saving.register_keras_serializable(package="lmzoo")
class TransitionScores(ConfiguredLayer):
    """Learned scores of each label after each other one, added to the labels' logits.

    The scores begin with zeros: then the most probable labels are those of the logits, as far as they are allowed.

    Args:
        num_classes: int, C.
        allowed: bool (S, S), whether the column's label may follow the row's, as nested lists; the last row is the
            beginning of a text, the last column its end. By default everything is allowed.

    Call argument: `logits` float (B, T, C). Returns float32 (B, T, S, S): at each word the score of the column's label
    after the row's. In the last row they are those of a text's first word; the last column has those of ending after
    the row's label, which are the same at all words.
    """

    def __init__(self, num_classes: int, allowed: ArrayLike | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.allowed = None if allowed is None else np.array(allowed, bool).tolist()

    def build(self, input_shape: Shape) -> None:
        """Create the scores of the transitions."""
        states = self.num_classes + 1
        self.transitions = self.add_weight(shape=(states, states), initializer="zeros", name="transitions")

    def call(self, logits: Tensor) -> Tensor:
        """Add the scores."""
        transitions = ops.cast(self.transitions, "float32")  # (S, S)
        if self.allowed is not None:
            transitions = transitions + np.where(self.allowed, 0, _NEVER).astype("float32")
        padded = ops.pad(ops.cast(logits, "float32"), ((0, 0), (0, 0), (0, 1)))  # (B, T, S)
        return padded[:, :, None, :] + transitions

    def compute_output_spec(self, logits: Tensor) -> keras.KerasTensor:
        """Return float32 scores, whatever the compute dtype."""
        states = self.num_classes + 1
        return keras.KerasTensor((*logits.shape[:2], states, states), "float32")


def negative_log_likelihood(scores: Tensor, labels: Tensor, words: Tensor) -> Tensor:
    """Of the labels of each text, int (B, T): float32 (B,), at least 0 unless a transition is not allowed.

    A transition that is not allowed costs as much as one that is, so that the labels of a text that was truncated are
    possible. That of a text without words is 0.
    """
    place = ops.arange(ops.shape(words)[1], dtype="int32")  # (T,)
    earlier = ops.expand_dims(words, 1) & (ops.expand_dims(place, 1) > place)  # (B, T, T)
    last = ops.max(ops.where(earlier, place, -1), axis=2)  # (B, T), the word before
    none = scores.shape[-1] - 1
    labels = ops.where(words, ops.cast(labels, "int32"), 0)  # (B, T)
    before = ops.where(last < 0, none, ops.take_along_axis(labels, ops.maximum(last, 0), axis=1))  # (B, T)
    steps = _at(_at(scores, before), labels)  # (B, T)
    ends = ops.max(ops.where(words, place, -1), axis=1, keepdims=True)  # (B, 1), the last word
    end = ops.where(ends < 0, none, ops.take_along_axis(labels, ops.maximum(ends, 0), axis=1))  # (B, 1)
    end = ops.take_along_axis(_endings(scores), end, axis=1)[:, 0]  # (B,)
    found = ops.sum(ops.where(words, _possible(steps), 0.0), axis=1) + _possible(end)  # (B,)
    last_alpha, _ = _forward(scores, words)
    return ops.logsumexp(last_alpha + _endings(scores), axis=1) - found


def label_probabilities(scores: Tensor, words: Tensor) -> Tensor:
    """Return the marginal probability of each label of each word: float32 (B, T, C), 0 where no word is."""
    last, alphas = _forward(scores, words)  # (B, S), (T, B, S)
    steps, flags = _time_major(scores, words)

    def step(beta: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        scores, word = x  # (B, S, S), (B, 1)
        return ops.where(word, ops.logsumexp(scores + beta[:, None, :], axis=2), beta), beta

    betas = scan(step, _endings(scores), (steps, flags), reverse=True)[1]  # (T, B, S)
    total = ops.logsumexp(last + _endings(scores), axis=1)[:, None]  # (B, 1)
    found = ops.exp(ops.minimum(alphas + betas - total, 0.0))[:, :, :-1]  # (T, B, C)
    return ops.where(words[:, :, None], ops.transpose(found, (1, 0, 2)), 0.0)


def best_labels(scores: Tensor, words: Tensor) -> Tensor:
    """Return the most probable labels of each text (Viterbi, 1967): int32 (B, T), C where no word is."""
    none = scores.shape[-1] - 1

    def step(best: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        scores, word = x  # (B, S, S), (B, 1)
        paths = best[:, :, None] + scores  # (B, S, S)
        origin = ops.cast(ops.argmax(paths, axis=1), "int32")  # (B, S)
        return ops.where(word, ops.max(paths, axis=1), best), origin

    steps, flags = _time_major(scores, words)
    best, origins = scan(step, _begin(scores), (steps, flags))  # (B, S), (T, B, S)
    end = ops.cast(ops.argmax(best + _endings(scores), axis=1), "int32")  # (B,)

    def back(label: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        origin, word = x  # (B, S), (B, 1)
        word = word[:, 0]  # (B,)
        before = ops.take_along_axis(origin, label[:, None], axis=1)[:, 0]  # (B,)
        return ops.where(word, before, label), ops.where(word, label, none)

    return ops.transpose(scan(back, end, (origins, flags), reverse=True)[1])


def decode(scores: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the `best_labels` of each text, int32 (B, T), and their `label_probabilities`, float32 (B, T)."""
    scores, words = ops.convert_to_tensor(scores), ops.convert_to_tensor(words)
    best = best_labels(scores, words)  # (B, T)
    probabilities = ops.pad(label_probabilities(scores, words), ((0, 0), (0, 0), (0, 1)))  # (B, T, S)
    return best, ops.take_along_axis(probabilities, best[:, :, None], axis=2)[:, :, 0]


def _forward(scores: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-sums of the scores of all paths to each state: at the end (B, S), and at each token (T, B, S)."""

    def step(alpha: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        scores, word = x  # (B, S, S), (B, 1)
        alpha = ops.where(word, ops.logsumexp(alpha[:, :, None] + scores, axis=1), alpha)  # (B, S)
        return alpha, alpha

    return scan(step, _begin(scores), _time_major(scores, words))


def _time_major(scores: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores of labels, float (T, B, S, S), where none is "no word"; and where words are, bool (T, B, 1)."""
    states = scores.shape[-1]
    steps = ops.where(np.arange(states) == states - 1, _NEVER, scores)  # (B, T, S, S)
    return ops.transpose(steps, (1, 0, 2, 3)), ops.transpose(words)[:, :, None]


def _begin(scores: Tensor) -> Tensor:
    """No word is before the first: float32 (B, S)."""
    states = scores.shape[-1]
    return ops.zeros_like(scores[:, 0, 0]) + np.where(np.arange(states) == states - 1, 0, _NEVER).astype("float32")


def _endings(scores: Tensor) -> Tensor:
    """Return the scores of ending after each state: float32 (B, S)."""
    return scores[:, 0, :, -1]


def _possible(scores: Tensor) -> Tensor:
    """Return the scores of transitions as if all were allowed."""
    return ops.where(scores < _NEVER / 2, scores - _NEVER, scores)


def _at(x: Tensor, indices: Tensor) -> Tensor:
    """Return the entries (B, T, ...) of the third axis of a tensor (B, T, S, ...), by int (B, T)."""
    indices = ops.reshape(indices, (*ops.shape(indices), *[1] * (len(x.shape) - 2)))
    return ops.squeeze(ops.take_along_axis(x, indices, axis=2), axis=2)
