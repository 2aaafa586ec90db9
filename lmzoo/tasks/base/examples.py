"""Encoded examples, and how they become batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lmzoo.text import Encoded


class Examples(NamedTuple):
    """Encoded examples with their labels and weights.

    Attributes:
        encoded: n examples.
        labels: one for each example, as the task's `encode_labels` returns them; None where there are none.
        weights: float (n,), or None.
    """

    encoded: Any
    labels: Any = None
    weights: np.ndarray | None = None

    def split(self, share: float) -> tuple[Examples, Examples]:
        """The first examples for training and the last `share` of them for validation, as Keras does.

        Raises:
            ValueError: if one of the two would be empty.
        """
        encoded: Encoded = self.encoded
        count = len(encoded)
        cut = int(count * (1 - share))
        cut = encoded.cut_before(cut) if 0 < cut < count else cut
        if not 0 < cut < count:
            raise ValueError(f"`validation_split={share}` leaves no examples for training or validation of {count}.")
        first, last = (
            Examples(encoded[part], *(a if a is None else a[part] for a in self[1:]))
            for part in (slice(cut), slice(cut, None))
        )
        return first, last


@dataclass(frozen=True)
class BatchOptions:
    """How `fit` and `evaluate` want their batches.

    Attributes:
        batch_size: examples of a batch; None for the task's default.
        order: `"shuffle"`, `"sorted"` by length, or `"given"`; see `lmzoo.text.LengthBatches`.
        seed: of the order, and of whatever else is drawn.
        training: whether the batches are to be learned from.
        steps: batches of an epoch, where the caller says so.
        verbose: whether progress is shown.
    """

    batch_size: int | None = None
    order: str = "sorted"
    seed: tuple[int, ...] = (0,)
    training: bool = False
    steps: int | None = None
    verbose: bool = True
