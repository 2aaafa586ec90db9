"""Log-probabilities of tokens in texts of any length, which are read in overlapping windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.families.named_inputs import NamedInputsModel
from lmzoo.tasks.base.prediction import predict_encoded
from lmzoo.tasks.base.task import Task
from lmzoo.text import EncodedTexts


def make_scoring_model(backbone: Backbone, compute_logits: Callable[[Features, Tensor], Tensor]) -> NamedInputsModel:
    """Build a model that takes a backbone's inputs and computes the log-probability of each token.

    Each token is predicted from all tokens before it. The log-probability of the first token is set to 0. The output is
    float32 (B, T), for B sequences of T tokens.

    Args:
        backbone: a causal backbone.
        compute_logits: function from the model's inputs and the hidden states of M tokens of each sequence, (B, M, H),
            to the logits of the token after each, (B, M, V).
    """
    inputs: Features = backbone.input
    vectors = backbone(inputs)["sequence_output"][:, :-1]  # (B, T - 1, H)
    next_ids = inputs["token_ids"][:, 1:]  # (B, T - 1)
    logits = compute_logits(inputs, vectors)  # (B, T - 1, V)
    return NamedInputsModel(inputs, ops.pad(log_probabilities(logits, next_ids), ((0, 0), (1, 0))))


def log_probabilities(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probabilities, float32 (B, T), of the tokens `ids`, int (B, T), under `logits`, (B, T, V)."""
    chosen_logits = ops.take_along_axis(logits, ops.expand_dims(ids, 2), axis=2)[:, :, 0]  # (B, T)
    return chosen_logits - ops.logsumexp(logits, axis=2)


def score_sequences(
    model: NamedInputsModel,
    task: Task,
    sequences: Sequence[Sequence[int]],
    length: int,
    batch_size: int,
) -> list[np.ndarray]:
    """Return the log-probabilities of each sequence's tokens, float32, with 0 for the first token.

    A sequence of more than `length` tokens is read in windows of that length that overlap by half. Each token then has
    at least half a window before it, except in the first window. A `length` of 1 is raised to 2, since nothing is
    predicted in a window of one token.

    Args:
        model: model that `make_scoring_model` built.
        task: task whose preprocessor pads the windows.
        sequences: token ids of each sequence.
        length: int, maximum number of tokens that the model reads at once.
        batch_size: int, windows per batch.
    """
    length = max(2, length)
    stride = length // 2
    starts_by_sequence = [range(0, max(1, len(sequence) - length + stride), stride) for sequence in sequences]
    windows = [(i, start) for i, starts in enumerate(starts_by_sequence) for start in starts]
    tokens_by_window = [sequences[i][start : start + length] for i, start in windows]
    encoded = EncodedTexts.of_ids(tokens_by_window)
    scores = predict_encoded(task, model, encoded, batch_size, per_token=True, verbose=0) if windows else []
    all_scores = [np.zeros(len(sequence), "float32") for sequence in sequences]
    for (i, start), window_tokens, row_scores in zip(windows, tokens_by_window, scores, strict=True):
        # The first tokens of the window already have a score.
        scored_count = 1 if start == 0 else length - stride
        all_scores[i][start + scored_count : start + len(window_tokens)] = row_scores[scored_count : len(window_tokens)]
    return all_scores
