"""Log-probabilities of the tokens of texts, however long, in overlapping windows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Features
from lmzoo.families.backbone import Backbone
from lmzoo.parallel.several_devices import SeveralDevicesModel
from lmzoo.tasks.base.prediction import predict_encoded
from lmzoo.tasks.base.task import Task
from lmzoo.text import EncodedTexts


def scoring_model(backbone: Backbone) -> SeveralDevicesModel:
    """From a backbone's inputs to the log-probability of each token after those before it, float32 (B, T).

    That of the first token is 0.
    """
    inputs: Features = backbone.input
    vectors, following = backbone(inputs)["sequence_output"][:, :-1], inputs["token_ids"][:, 1:]  # (B, T - 1, H)
    logits = backbone(inputs, vectors=vectors)  # (B, T - 1, V)
    chosen = ops.take_along_axis(logits, ops.expand_dims(following, 2), axis=2)[:, :, 0]  # (B, T - 1)
    return SeveralDevicesModel(inputs, ops.pad(chosen - ops.logsumexp(logits, axis=2), ((0, 0), (1, 0))))


def score_sequences(
    model: SeveralDevicesModel,
    task: Task,
    sequences: Sequence[Sequence[int]],
    length: int,
    batch_size: int,
) -> list[np.ndarray]:
    """Return the log-probabilities of the tokens of sequences, float32 (n,) each, where that of the first token is 0.

    A sequence of more than `length` tokens is read in windows of that length that overlap by half, so that each token
    has at least half a window before it, unless the text begins there.

    Args:
        model: the `scoring_model`.
        task: encodes the windows.
        sequences: token ids.
        length: what the model reads at once.
        batch_size: windows of a batch.
    """
    step = max(1, length // 2)
    begins = [range(0, max(1, len(sequence) - length + step), step) for sequence in sequences]
    windows = [(k, begin) for k, of_sequence in enumerate(begins) for begin in of_sequence]
    parts = [sequences[k][begin : begin + length] for k, begin in windows]
    splits = np.cumsum([0, *map(len, parts)], dtype="int64")
    tokens = np.fromiter(itertools.chain.from_iterable(parts), "int32", int(splits[-1]))
    encoded = EncodedTexts(tokens, splits, np.diff(splits).astype("int32"))
    found = predict_encoded(task, model, encoded, batch_size, per_token=True, verbose=0) if windows else []
    results = [np.zeros(len(sequence), "float32") for sequence in sequences]
    for (k, begin), part, row in zip(windows, parts, found, strict=True):
        seen = 1 if begin == 0 else length - step  # tokens of the window that have been scored
        results[k][begin + seen : begin + len(part)] = row[seen : len(part)]
    return results
