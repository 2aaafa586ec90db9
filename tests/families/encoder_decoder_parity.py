"""Comparison of encoder-decoders with transformers, for the tests of each family."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from lmzoo.models import Backbone, Seq2SeqLM
from lmzoo.registry.family import Family
from lmzoo.testing import tiny_preprocessor

TOLERANCE = 1e-5


def padded_batch(vocabulary_size: int, widths: tuple[int, int] = (11, 7)) -> dict[str, np.ndarray]:
    """Return three random sources and targets of the given widths, with arbitrary tokens at padding."""
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


def check_steps(backbone: Any, batch: dict[str, np.ndarray], ends: list[int]) -> None:
    """Check that a decoder computes the same vectors in steps up to each of `ends` as all at once."""
    expected = backbone.predict(batch, verbose=0)["sequence_output"]
    source = backbone.read_source(*(ops.convert_to_tensor(batch[name]) for name in ("token_ids", "padding_mask")))
    cache = backbone.empty_cache(3, ends[-1])
    parts = []
    for start, end in itertools.pairwise([0, *ends]):
        ids = ops.convert_to_tensor(batch["decoder_token_ids"][:, start:end])
        vectors, cache = backbone.call_with_cache(ids, cache, start, source)
        parts.append(ops.convert_to_numpy(vectors))
    real = batch["decoder_padding_mask"].astype(bool)
    np.testing.assert_allclose(np.concatenate(parts, axis=1)[real], expected[real], atol=TOLERANCE)


def check_encoder_states(encoder: Backbone, peer: Any, batch: dict[str, np.ndarray]) -> None:
    """Check that the hidden states and the mean vectors of an encoder equal those of `peer`."""
    import torch

    inputs = {name: batch[name] for name in ("token_ids", "padding_mask")}
    ids, mask = (torch.tensor(values.astype("int64")) for values in inputs.values())
    with torch.no_grad():
        expected = peer(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    outputs = encoder.predict(inputs, verbose=0)
    real = batch["padding_mask"].astype(bool)
    for values, peer_values in zip(outputs["hidden_states"], expected, strict=True):
        np.testing.assert_allclose(values[real], peer_values.numpy()[real], atol=TOLERANCE, rtol=TOLERANCE)
    means = [rows[is_real].mean(axis=0) for rows, is_real in zip(expected[-1].numpy(), real, strict=True)]
    np.testing.assert_allclose(outputs["pooled_output"], means, atol=TOLERANCE, rtol=TOLERANCE)


def check_weights(model: Any, expected: Any) -> None:
    """Check that two models have equal weights."""
    for weight, desired in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(weight), ops.convert_to_numpy(desired))


def check_states_and_logits(peer: Any, directory: Path, family: Family, batch: dict[str, np.ndarray]) -> None:
    """Check that all hidden states and the logits equal those of `peer`, whose files are in `directory`."""
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
