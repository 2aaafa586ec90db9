"""Linear-chain conditional random field over the labels of words (Lafferty et al., 2001; Lample et al., 2016).

Letters in shape comments: B texts, T tokens, C labels, S = C + 1 states: the labels and "no word".

All public functions take `scores`, float (B, T, S, S), computed by `TransitionScores`, and `words`, bool (B, T), True
at the first token of each word. They skip all other tokens, such as padding and tokens that continue a word, so that
each word's label follows the previous word's label.
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

_FORBIDDEN = -1e4  # its exponential is 0 in float32, and sums with it keep three decimals of the other scores


@keras.saving.register_keras_serializable(package="lmzoo")
class TransitionScores(ConfiguredLayer):
    """Layer that adds a learned score for each pair of consecutive labels to the labels' logits.

    The learned scores start at zero: an untrained layer ranks allowed label sequences by their logits alone.

    Args:
        num_classes: int, number of labels C.
        allowed: bool (S, S), array or nested lists: whether the column's label may follow the row's label. The last
            row is the beginning of a text, the last column its end. By default, any label may follow any other.

    Call argument: `logits` float (B, T, C), the logits of the labels. Returns float32 (B, T, S, S): for each word, the
    score of the column's label after the row's label. The last row scores the label of a text's first word. The last
    column scores the end of the text after the row's label; it is the same for all words.
    """

    def __init__(self, num_classes: int, allowed: ArrayLike | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.allowed = None if allowed is None else np.array(allowed, bool).tolist()

    def build(self, input_shape: Shape) -> None:
        """Create the transition scores."""
        num_states = self.num_classes + 1
        self.transitions = self.add_weight(shape=(num_states, num_states), initializer="zeros", name="transitions")

    def call(self, logits: Tensor) -> Tensor:
        """Add the transition scores to the logits."""
        transitions = ops.cast(self.transitions, "float32")  # (S, S)
        if self.allowed is not None:
            transitions = transitions + np.where(self.allowed, 0, _FORBIDDEN).astype("float32")
        padded_logits = ops.pad(ops.cast(logits, "float32"), ((0, 0), (0, 0), (0, 1)))  # (B, T, S)
        return ops.expand_dims(padded_logits, 2) + transitions

    def compute_output_spec(self, logits: Tensor) -> keras.KerasTensor:
        """Return the output spec, which is float32 under every dtype policy."""
        num_states = self.num_classes + 1
        return keras.KerasTensor((*logits.shape[:2], num_states, num_states), "float32")


def negative_log_likelihood(scores: Tensor, labels: Tensor, words: Tensor) -> Tensor:
    """Return the negative log-likelihood of each text's labels, float32 (B,).

    Forbidden transitions in `labels`, such as in truncated texts, are scored as if they were allowed; only then can the
    result be negative. It is 0 for a text without words.

    Args:
        scores: float (B, T, S, S), computed by `TransitionScores`.
        labels: int (B, T), the label of each word.
        words: bool (B, T), True at the first token of each word.
    """
    positions = ops.arange(ops.shape(words)[1], dtype="int32")  # (T,)
    is_earlier_word = ops.expand_dims(words, 1) & (ops.expand_dims(positions, 1) > positions)  # (B, T, T)
    previous_positions = ops.max(ops.where(is_earlier_word, positions, -1), axis=2)  # (B, T)
    no_word = scores.shape[-1] - 1
    labels = ops.where(words, ops.cast(labels, "int32"), 0)  # (B, T)
    previous_labels = ops.take_along_axis(labels, ops.maximum(previous_positions, 0), axis=1)  # (B, T)
    previous_labels = ops.where(previous_positions < 0, no_word, previous_labels)
    step_scores = _take_states(_take_states(scores, previous_labels), labels)  # (B, T)
    last_positions = ops.max(ops.where(words, positions, -1), axis=1, keepdims=True)  # (B, 1)
    last_labels = ops.where(
        last_positions < 0, no_word, ops.take_along_axis(labels, ops.maximum(last_positions, 0), axis=1)
    )  # (B, 1)
    end_scores = ops.take_along_axis(_get_end_scores(scores), last_labels, axis=1)[:, 0]  # (B,)
    label_scores = ops.sum(ops.where(words, _unmask(step_scores), 0.0), axis=1) + _unmask(end_scores)  # (B,)
    last_alpha, _ = _compute_forward_variables(scores, words)
    return ops.logsumexp(last_alpha + _get_end_scores(scores), axis=1) - label_scores


def compute_label_probabilities(scores: Tensor, words: Tensor) -> Tensor:
    """Return the marginal probabilities of each word's labels, float32 (B, T, C), with 0 where no word begins."""
    last_alpha, alphas = _compute_forward_variables(scores, words)  # (B, S), (T, B, S)
    step_scores, is_word = _to_time_major(scores, words)

    def step(beta: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        scores, is_word = x  # (B, S, S), (B, 1)
        return ops.where(is_word, ops.logsumexp(scores + beta[:, None, :], axis=2), beta), beta

    betas = scan(step, _get_end_scores(scores), (step_scores, is_word), reverse=True)[1]  # (T, B, S)
    log_partition = ops.logsumexp(last_alpha + _get_end_scores(scores), axis=1)[:, None]  # (B, 1)
    probabilities = ops.exp(ops.minimum(alphas + betas - log_partition, 0.0))[:, :, :-1]  # (T, B, C)
    return ops.where(words[:, :, None], ops.transpose(probabilities, (1, 0, 2)), 0.0)


def find_best_labels(scores: Tensor, words: Tensor) -> Tensor:
    """Return each text's most probable label sequence (Viterbi, 1967), int32 (B, T), with C where no word begins."""
    no_word = scores.shape[-1] - 1

    def step(best_scores: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        scores, is_word = x  # (B, S, S), (B, 1)
        path_scores = best_scores[:, :, None] + scores  # (B, S, S)
        backpointers = ops.cast(ops.argmax(path_scores, axis=1), "int32")  # (B, S)
        return ops.where(is_word, ops.max(path_scores, axis=1), best_scores), backpointers

    step_scores, is_word = _to_time_major(scores, words)
    best_scores, all_backpointers = scan(step, _make_start_scores(scores), (step_scores, is_word))  # (B, S), (T, B, S)
    last_labels = ops.cast(ops.argmax(best_scores + _get_end_scores(scores), axis=1), "int32")  # (B,)

    def step_back(labels: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        backpointers, is_word = x  # (B, S), (B, 1)
        is_word = is_word[:, 0]  # (B,)
        previous_labels = ops.take_along_axis(backpointers, labels[:, None], axis=1)[:, 0]  # (B,)
        return ops.where(is_word, previous_labels, labels), ops.where(is_word, labels, no_word)

    return ops.transpose(scan(step_back, last_labels, (all_backpointers, is_word), reverse=True)[1])


def decode(scores: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return each text's best label sequence, int32 (B, T), and its labels' marginal probabilities, float32 (B, T)."""
    scores = ops.convert_to_tensor(scores)
    words = ops.convert_to_tensor(words)
    labels = find_best_labels(scores, words)  # (B, T)
    probabilities = ops.pad(compute_label_probabilities(scores, words), ((0, 0), (0, 0), (0, 1)))  # (B, T, S)
    return labels, ops.take_along_axis(probabilities, labels[:, :, None], axis=2)[:, :, 0]


def _compute_forward_variables(scores: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the forward variables in log space: after the last token (B, S), and after each token (T, B, S)."""

    def step(alpha: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        scores, is_word = x  # (B, S, S), (B, 1)
        alpha = ops.where(is_word, ops.logsumexp(alpha[:, :, None] + scores, axis=1), alpha)  # (B, S)
        return alpha, alpha

    return scan(step, _make_start_scores(scores), _to_time_major(scores, words))


def _to_time_major(scores: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Transpose `scores` to (T, B, S, S) and `words` to (T, B, 1), and forbid the state "no word" in all steps."""
    num_states = scores.shape[-1]
    step_scores = ops.where(np.arange(num_states) == num_states - 1, _FORBIDDEN, scores)  # (B, T, S, S)
    return ops.transpose(step_scores, (1, 0, 2, 3)), ops.transpose(words)[:, :, None]


def _make_start_scores(scores: Tensor) -> Tensor:
    """Return the scores of the states before the first word, float32 (B, S): 0 for "no word", all labels forbidden."""
    num_states = scores.shape[-1]
    return ops.zeros_like(scores[:, 0, 0]) + np.where(np.arange(num_states) == num_states - 1, 0, _FORBIDDEN).astype(
        "float32"
    )


def _get_end_scores(scores: Tensor) -> Tensor:
    """Return the score of ending a text after each state, float32 (B, S)."""
    return scores[:, 0, :, -1]


def _unmask(scores: Tensor) -> Tensor:
    """Remove the penalty for forbidden transitions from scores."""
    return ops.where(scores < _FORBIDDEN / 2, scores - _FORBIDDEN, scores)


def _take_states(x: Tensor, indices: Tensor) -> Tensor:
    """Return the entry of one state for each token, (B, T, ...).

    Args:
        x: tensor (B, T, S, ...), entries of all states.
        indices: int (B, T), the state of each token.
    """
    indices = ops.reshape(indices, (*ops.shape(indices), *[1] * (len(x.shape) - 2)))
    return ops.squeeze(ops.take_along_axis(x, indices, axis=2), axis=2)
