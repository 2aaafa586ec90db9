"""Documents as the inputs of a language model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from lmzoo.data.corpora.lm_batches import Step
from lmzoo.tasks.base.examples import FeatureArrays
from lmzoo.text import Tokenizer, WordTokenizer
from lmzoo.text.tokenizers.characters import NO_BYTE

_COLUMNS = 16  # the characters of a batch's words are cut to a multiple of this, so that few shapes are compiled


def features_of_steps(
    tokenizer: Tokenizer, vocabulary: WordTokenizer, steps: Sequence[Sequence[Step]], width: int, goes_on: bool
) -> FeatureArrays:
    """Return the inputs of a `BidirectionalLM`, padded to a width of t.

    `steps` holds for each sequence the words that are read, and those that come next, which the vocabulary predicts;
    with `goes_on` sequences continue those of the previous batch.

    Returns:
        `character_ids` int32 (b, t, 2, W), without columns at the end that no word needs, or `token_ids` (b, t, 2);
        `targets` int32 (b, t, 2), -1 at padding; `goes_on` int32 (b,).
    """
    real = np.arange(width) < np.array([len(sequence) for sequence in steps])[:, None]  # (b, t)
    pairs = list(itertools.chain.from_iterable(itertools.chain.from_iterable(steps)))
    read: Any = [pair[0] for pair in pairs]
    following: Any = [pair[1] for pair in pairs]
    flat = tokenizer.as_array(tokenizer.tokenize([read])[0], len(pairs))  # (2n,) or (2n, W)
    ids = np.zeros((*real.shape, 2, *flat.shape[1:]), "int32")
    ids[real] = flat.reshape(-1, 2, *flat.shape[1:])
    targets = np.full((*real.shape, 2), -1, "int32")
    targets[real] = np.array(vocabulary.tokenize([following])[0], "int32").reshape(-1, 2) - 1
    ((name, ids),) = tokenizer.features(ids, real).items()
    if flat.ndim == 2:
        used = np.flatnonzero(np.any(flat != NO_BYTE, axis=0)).max(initial=2) + 1
        ids = ids[..., : -(-used // _COLUMNS) * _COLUMNS]
    return {name: ids, "targets": targets, "goes_on": np.full(len(steps), int(goes_on), "int32")}
