"""Arguments of backbones that are refused, with the argument and its value in the message."""

from __future__ import annotations

import math
import re

import keras
import numpy as np
import pytest

from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone

POSITIVE = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "max_sequence_length")
# Arguments that the Transformers share.
SHARED = [
    *((name, value) for name in POSITIVE for value in (0, 2.5)),
    ("dropout", 1.0),
    ("dropout", -0.1),
    ("num_segments", -1),
    ("hidden_dim", 36),
    ("num_layers", 1_000_000),
    ("layer_norm_epsilon", -5),
    ("layer_norm_epsilon", 0),
    ("layer_norm_epsilon", math.nan),
    ("initializer_range", math.inf),
]
ELMO = [
    *((name, 0) for name in ("lstm_dim", "projection_dim", "num_layers", "char_embedding_dim", "max_characters")),
    *((name, 2.5) for name in ("lstm_dim", "num_highway", "max_characters")),
    ("num_highway", -1),
    ("num_layers", True),
    ("filters", ()),
    ("filters", 3),
    ("filters", ((1, 2), (3,))),
    ("filters", ((0, 40),)),
    ("filters", ((1, 12),)),
    ("max_characters", 2),
    ("activation", "gelu"),
    ("cell_clip", 0),
    ("cell_clip", math.inf),
    ("projection_clip", -3.0),
    ("vocabulary_size", 2),
    ("dropout", 1.0),
    ("layer_norm", "batch"),
    ("skip_connections", None),
    ("freeze_bilm", "yes"),
]
CASES = [
    *(("bert", {name: value}, f"`{name}`.*{value}") for name, value in SHARED),
    ("bert", {"activation": "gelu_new"}, "Unknown activation 'gelu_new'; known: 'gelu'"),
    *(("elmo", {name: value}, f"`{name}` must be.*{re.escape(repr(value))}") for name, value in ELMO),
    ("elmo", {"vocabulary_size": 31, "end_token_id": 31}, r"`end_token_id` must be an integer in 1\.\.30, got 31"),
    ("albert", {"num_groups": 3}, r"`num_layers` \(4\) must be a multiple of `num_groups` \(3\)"),
    ("albert", {"num_inner_repetitions": 0}, "`num_inner_repetitions` must be a positive integer, got 0"),
    ("albert", {"embedding_dim": 1.5}, "`embedding_dim` must be a positive integer, got 1.5"),
    ("albert", {"embedding_projection": False}, r"can only be False if `embedding_dim` \(13\) equals"),
    ("deberta_v3", {"bucket_size": 1}, "`bucket_size` must be at least 2, got 1"),
    ("deberta_v3", {"max_relative_positions": 0}, "`max_relative_positions` must be an integer of at least 2, or -1"),
    (
        "deberta_v3",
        {"max_sequence_length": 1, "max_relative_positions": -1},
        "`max_sequence_length` must be at least 2, got 1",
    ),
    ("distilbert", {"num_segments": 1}, "`num_segments` must be 0, since the family has no segments, got 1"),
    *(("mpnet", {"num_buckets": number}, "`num_buckets` must be") for number in (3, 7, 512, 32.0)),
    ("xlnet", {"hidden_dim": 33}, "`hidden_dim` must be even"),
    ("marian", {"decoder_heads": 3}, r"`hidden_dim` \(35\) must be a multiple of `decoder_heads` \(3\)"),
    ("marian", {"decoder_layers": 0}, "`decoder_layers` must be a positive integer"),
    ("marian", {"attention_dropout": 1.5}, "`attention_dropout`"),
    ("marian", {"scale_embeddings": 2}, "`scale_embeddings` must be True or False"),
    ("t5", {"head_dim": 0}, "`head_dim` must be an integer from 1 to 473, got 0"),
    ("t5", {"head_dim": None}, r"`hidden_dim` \(37\) must be a multiple of `num_heads` \(5\)"),
    ("t5", {"decoder_layers": 0}, "`decoder_layers` must be a positive integer"),
    ("t5", {"num_buckets": 7}, "`num_buckets` must be an even integer of at least 4, got 7"),
    ("t5", {"max_distance": 4}, "`max_distance` must be an integer of at least 5, got 4"),
    ("t5", {"gated": 1}, "`gated` must be True or False, got 1"),
    ("t5", {"tie_embeddings": None}, "`tie_embeddings` must be True or False, got None"),
    ("lstm_lm", {"cell": "LSTM"}, "`cell` must be 'rnn' or 'gru' or 'lstm', got 'LSTM'"),
    ("lstm_lm", {"num_layers": 0}, "`num_layers` must be a positive integer, got 0"),
    ("lstm_lm", {"dropout": 1}, r"`dropout` must be a number in \[0, 1\), got 1"),
    ("ffnn_lm", {"window": 0}, "`window` must be a positive integer, got 0"),
    ("ffnn_lm", {"direct": "yes"}, "`direct` must be True or False, got 'yes'"),
    ("ffnn_lm", {"initializer_range": -1}, "`initializer_range` must be a finite number of at least 0, got -1"),
    ("static_words", {"initializer_range": math.inf}, "`initializer_range` must be a finite number of at least 0, got"),
    ("modernbert", {"rotary_max_wavelength": math.inf}, "`rotary_max_wavelength` must be a finite number of at least"),
]


@pytest.mark.parametrize(("family", "arguments", "message"), CASES)
def test_wrong_arguments_are_refused(family, arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny_backbone(families()[family], **arguments)


NUMPY_CASES = [
    ("bert", {"hidden_dim": np.int64(35), "dropout": np.float32(0.25)}),
    ("gpt2", {"hidden_dim": np.int64(35), "intermediate_dim": None}),
    ("elmo", {"lstm_dim": np.int64(11), "filters": ((np.int64(2), np.int64(29)),)}),
    ("lstm_lm", {"num_layers": np.int32(1), "hidden_dim": np.int64(13)}),
    ("static_words", {"hidden_dim": np.int64(13)}),
]


@pytest.mark.parametrize(("family", "arguments"), NUMPY_CASES)
def test_numpy_numbers_become_python_numbers(family, arguments):
    """Keras refuses sizes that are NumPy integers."""
    backbone = tiny_backbone(families()[family], **arguments)
    values = {name: getattr(backbone.config, name) for name in arguments}
    expected = {**arguments, "intermediate_dim": 140} if "intermediate_dim" in arguments else arguments
    assert values == expected
    assert not any(isinstance(value, np.generic) for value in keras.tree.flatten(values))
