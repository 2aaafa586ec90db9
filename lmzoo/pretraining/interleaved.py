"""Batches with sequences of several texts in a fixed proportion."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.data.corpora.sequence_storage import join_blocks
from lmzoo.data.corpora.tokenized_documents import make_splits
from lmzoo.text import EncodedTexts
from lmzoo.text.batching import LengthBatches
from lmzoo.text.interleaved import count_turns

_EPOCH_BATCHES = 50  # batches per epoch of a mixture; their sequences are drawn together


class MixedBatches(LengthBatches):
    """An endless stream of full batches with sequences of several texts in a fixed proportion.

    Each pass over a text has a new order. An epoch is 50 batches, whose sequences are drawn together and then grouped
    by length.

    Args:
        batches: batches over the sequences of all texts, which are concatenated.
        counts: list of int, number of sequences of each text.
        rates: list of float, relative number of sequences of each text in the stream.
    """

    def __init__(self, batches: LengthBatches, counts: Sequence[int], rates: Sequence[float]) -> None:
        self.splits = make_splits(counts)
        self.rates = np.asarray(rates, "float64")
        self._orders: dict[int, tuple[tuple[int, ...], np.ndarray]] = {}
        super().__init__(
            batches.lengths, batches.make_batch, batches.batch_size, batches.buckets.tolist(), seed=batches.seed
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return _EPOCH_BATCHES

    def _plan(self, epoch: int) -> list[np.ndarray]:
        """Return the indices of the sequences in each batch of an epoch."""
        batch_size = self.batch_size
        rng = np.random.default_rng((*self.seed, epoch))
        num_sequences = len(self) * batch_size
        bounds = zip(
            *(count_turns(self.rates, num_epochs * num_sequences) for num_epochs in (epoch, epoch + 1)), strict=True
        )
        indices = np.concatenate(
            [self._read_text(text_index, *map(int, text_bounds)) for text_index, text_bounds in enumerate(bounds)]
        )
        indices = rng.permutation(indices)
        indices = indices[np.argsort(self.lengths[indices], kind="stable")]
        return [indices[begin : begin + batch_size] for begin in rng.permutation(range(0, num_sequences, batch_size))]

    def _read_text(self, text_index: int, first: int, last: int) -> np.ndarray:
        """Return the indices, int64, of the sequences at positions `first` to `last - 1` of a text's endless stream."""
        text_begin = self.splits[text_index]
        num_sequences = int(self.splits[text_index + 1] - self.splits[text_index])
        index_blocks = [np.zeros(0, "int64")]
        while first < last:
            pass_index, position = divmod(first, num_sequences)
            order_seed = (*self.seed, text_index, pass_index, 1)
            if self._orders.get(text_index, ((), None))[0] != order_seed:
                self._orders[text_index] = order_seed, np.random.default_rng(order_seed).permutation(num_sequences)
            index_blocks.append(text_begin + self._orders[text_index][1][position : position + last - first])
            first += len(index_blocks[-1])
        return np.concatenate(index_blocks)

    def identity(self) -> dict[str, object]:
        """Return the values that identify the batches in a saved run, including the texts' proportions."""
        shares = (self.rates / self.rates.sum()).round(9).tolist()
        return {**super().identity(), "number of sequences": self.splits.tolist(), "share of sequences": shares}


def join_sequences(sequences: Sequence[EncodedTexts], folder: Path) -> EncodedTexts:
    """Concatenate the sequences of several texts; the tokens are stored in a temporary file in `folder`."""
    token_ids, sequence_splits = join_blocks(
        ((text_sequences.token_ids, text_sequences.lengths) for text_sequences in sequences), folder
    )
    joined_fields: dict[str, Any] = {"token_ids": token_ids, "sequence_splits": sequence_splits}
    for name, value in vars(sequences[0]).items():
        if name not in joined_fields and isinstance(value, np.ndarray):  # arrays with one entry per sequence
            joined_fields[name] = np.concatenate([getattr(text_sequences, name) for text_sequences in sequences])
    return dataclasses.replace(sequences[0], **joined_fields)
