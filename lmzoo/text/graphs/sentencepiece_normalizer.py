"""A SentencePiece model's own normalization as TensorFlow ops."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from lmzoo.text.graphs.token_ops import compute_row_indices, find_bytes, find_first_from, size_in_bytes
from lmzoo.text.tokenizers.precompiled_rules import compile_rules
from lmzoo.text.tokenizers.sentencepiece import SPACE, model_proto, read_model

# SentencePiece's types of tokens and of models:
_NORMAL = 1
_UNKNOWN = 2
_USER_DEFINED = 4
_BYTE = 6
_CHARACTER_MODEL = 4


class NormalizedTexts(NamedTuple):
    """Normalized texts and the origins of their u units, which are bytes, spaces and user-defined tokens.

    Attributes:
        texts: `tf.string` (n,), the normalized texts.
        sizes: int64 (n, None), size of each unit in bytes; the end of a text counts as one more unit of one byte.
        is_visible: bool (u,), whether each unit is something other than a space.
        origins: int64 (u,), flat index of the input character that each unit comes from, non-decreasing.
    """

    texts: tf.Tensor
    sizes: tf.RaggedTensor
    is_visible: tf.Tensor
    origins: tf.Tensor

    def find_letters(
        self, rows: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, last_part_counts: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the range of input characters that each of t tokens comes from.

        Args:
            rows: int64 (t,), index of each token's text.
            begin: int (t,), byte of the normalized text at which each token begins.
            end: int (t,), byte of the normalized text at which each token ends.
            last_part_counts: bool, see `SentencePieceTokenizer.last_part_counts`.

        Returns:
            Three tensors (t,): the flat index of each token's first character after leading spaces, int64; the index
            after its last character, int64; and whether the token is only a space, bool. The range of a token that is
            only a space is the next character.
        """
        unit_ends = find_bytes(self.sizes, rows, end)  # (t,)
        first_units = tf.minimum(
            find_first_from(self.is_visible, find_bytes(self.sizes, rows, begin)), unit_ends
        )  # (t,)
        last_units = tf.maximum(first_units, unit_ends - 1)  # (t,)
        text_ends = tf.gather(self.sizes.row_limits(), rows) - 1  # (t,)
        starts = tf.gather(self.origins, first_units)
        last_origins = tf.gather(self.origins, last_units)
        # A unit's characters end where the origin of another unit begins.
        next_units = tf.searchsorted(self.origins, last_origins, side="right", out_type=tf.int64)
        stops = tf.gather(self.origins, tf.minimum(next_units, text_ends))
        if last_part_counts:
            is_shared = tf.gather(self.origins, tf.minimum(last_units + 1, text_ends)) == last_origins
            stops = tf.where(is_shared, tf.maximum(last_origins, starts + 1), stops)
        return starts, stops, first_units == unit_ends


class SentencePieceNormalizer(tf.Module):
    """The normalization of a SentencePiece model.

    Texts are normalized by an auxiliary model that splits them into bytes. If several characters replace
    a single one, the offsets of longer tokens would not show at which of them a token ends.

    Args:
        model: bytes of the SentencePiece model.
    """

    def __init__(self, model: bytes) -> None:
        super().__init__()
        source_proto = read_model(model)
        types_by_piece = {SPACE: _NORMAL}
        types_by_piece |= {
            piece.piece: piece.type for piece in source_proto.pieces if piece.type in (_UNKNOWN, _USER_DEFINED)
        }
        proto = model_proto()()
        proto.normalizer_spec.CopyFrom(source_proto.normalizer_spec)
        proto.trainer_spec.model_type = _CHARACTER_MODEL
        proto.trainer_spec.byte_fallback = True
        proto.trainer_spec.treat_whitespace_as_suffix = source_proto.trainer_spec.treat_whitespace_as_suffix
        for byte in range(256):
            proto.pieces.add(piece=f"<0x{byte:02X}>", type=_BYTE)
        for piece, piece_type in types_by_piece.items():
            proto.pieces.add(piece=piece, type=piece_type)
        self._model = make_model_ops(proto.SerializeToString(deterministic=True))
        units = [*(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in types_by_piece)]
        self._units = np.array(units, object)  # other arrays lose the null byte
        self._is_visible = np.array([*[True] * 256, *(piece.strip(SPACE) != "" for piece in types_by_piece)])

    def __call__(self, letters: tf.RaggedTensor) -> NormalizedTexts:
        """Normalize texts.

        Args:
            letters: int32 (n, None), code points of the texts.
        """
        units, begins, ends = self._model.tokenize_with_offsets(tf.strings.unicode_encode(letters, "UTF-8"))
        unit_texts = units.with_values(tf.gather(self._units, units.values))  # (n, None)
        unit_sizes = units.with_values(tf.cast(tf.strings.length(unit_texts.values), tf.int64))  # (n, None)
        text_ends = tf.maximum(tf.reduce_max(ends, axis=1), 0)[:, None]  # (n, 1)
        begins = tf.concat([begins, text_ends], axis=1)  # (n, None)
        is_visible = units.with_values(tf.gather(self._is_visible, units.values))  # (n, None)
        character_sizes = letters.with_values(size_in_bytes(letters.values))  # (n, None)
        return NormalizedTexts(
            tf.strings.reduce_join(unit_texts, axis=1),
            tf.concat([unit_sizes, tf.ones_like(text_ends, tf.int64)], axis=1),
            tf.concat([is_visible, tf.ones_like(text_ends, tf.bool)], axis=1).values,
            find_bytes(character_sizes, compute_row_indices(begins), begins.values),
        )


def make_model_ops(model: bytes) -> tf_text.SentencepieceTokenizer:
    """Return a SentencePiece model as TensorFlow ops."""
    # Models with the same name would share one resource when a SavedModel is loaded.
    name = f"SentencePiece_{hashlib.sha256(model).hexdigest()[:16]}"
    return tf_text.SentencepieceTokenizer(model, out_type=tf.int32, name=name)


def remove_normalization(model: bytes) -> bytes:
    """Return a copy of a SentencePiece model that does not normalize texts, apart from replacing spaces with "▁"."""
    proto = read_model(model)
    # The library logs a line about a model without any rule.
    proto.normalizer_spec.precompiled_charsmap = compile_rules([(" ", SPACE)])
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.DiscardUnknownFields()  # such as samples of normalized texts, with which the library tests the model
    return bytes(proto.SerializeToString(deterministic=True))
