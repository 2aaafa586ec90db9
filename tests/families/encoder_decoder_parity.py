"""Comparison of encoder-decoders with transformers, for the tests of each family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.models import Backbone, Seq2SeqLM
from lmzoo.registry.family import Family
from lmzoo.testing import tiny_preprocessor

TOLERANCE = 1e-5


def padded_batch(vocabulary_size: int, widths: tuple[int, int] = (11, 7)) -> dict[str, np.ndarray]:
    """Return three sources and targets of random tokens, padded to the widths by tokens that must not matter."""
    rng = np.random.default_rng(3)
    source, target = (rng.integers(3, vocabulary_size, (3, width)) for width in widths)
    lengths = ([widths[0], 7, 3], [5, widths[1], 2])
    masks = [np.arange(width) < np.array(rows)[:, None] for width, rows in zip(widths, lengths, strict=True)]
    return {
        "token_ids": source.astype("int32"),
        "padding_mask": masks[0].astype("int32"),
        "decoder_token_ids": target.astype("int32"),
        "decoder_padding_mask": masks[1].astype("int32"),
    }


def check_states_and_logits(peer: Any, directory: Path, family: Family, batch: dict[str, np.ndarray]) -> None:
    """Check that all hidden states and the logits equal those of the peer, whose files are in the directory."""
    import torch

    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    tensors = {name: torch.tensor(values.astype("int64")) for name, values in zip(names, batch.values(), strict=True)}
    with torch.no_grad():
        expected = peer(**tensors, output_hidden_states=True)
    backbone = Backbone.from_preset(directory)
    assert type(backbone) is family.backbone
    outputs = backbone.predict(batch, verbose=0)
    source, target = (batch[name].astype(bool) for name in ("padding_mask", "decoder_padding_mask"))
    task = Seq2SeqLM.from_preset(directory, preprocessor=tiny_preprocessor(family))
    for actual, desired, is_real in (
        (outputs["encoder_hidden_states"], expected.encoder_hidden_states, source),
        (outputs["hidden_states"], expected.decoder_hidden_states, target),
        ([task.predict(batch, verbose=0)], [expected.logits], target),
    ):
        for values, peer_values in zip(actual, desired, strict=True):
            np.testing.assert_allclose(values[is_real], peer_values.numpy()[is_real], atol=TOLERANCE, rtol=TOLERANCE)
