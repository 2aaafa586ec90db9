"""BERT checkpoints of the TensorFlow Model Garden up to 2.3, with the tensor names of Google's original code."""

from __future__ import annotations

import re

from lmzoo.checkpoints.formats.reshaped import join_heads
from lmzoo.checkpoints.formats.tensor_file import Place, PlacedTensors, TensorFile

_NAME = re.compile(r"(?:model/)?layer_with_weights-(\d+)/(.+)/\.ATTRIBUTES/VARIABLE_VALUE")
_EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")  # in the order of the layers
_SUBLAYERS = {
    "_attention_layer/_query_dense": "attention/self/query",
    "_attention_layer/_key_dense": "attention/self/key",
    "_attention_layer/_value_dense": "attention/self/value",
    "_attention_layer/_output_dense": "attention/output/dense",
    "_attention_output_dense": "attention/output/dense",  # in the first versions
    "_attention_layer_norm": "attention/output/LayerNorm",
    "_intermediate_dense": "intermediate/dense",
    "_output_dense": "output/dense",
    "_output_layer_norm": "output/LayerNorm",
}


def is_model_garden(checkpoint: TensorFile) -> bool:
    """Return whether a checkpoint was written by the TensorFlow Model Garden."""
    return any(_NAME.fullmatch(name) for name in checkpoint.names())


def model_garden_tensors(checkpoint: TensorFile, num_heads: int) -> TensorFile:
    """Return the tensors of a checkpoint with their names and shapes in Google's original BERT code.

    The two axes of attention heads, their number and their size, are merged into one axis.

    Raises:
        PresetError: If a tensor has the wrong number of heads; the message names the file and the tensor.
    """
    joined_tensors = join_heads(checkpoint, num_heads, _find_heads_axis)
    return PlacedTensors(
        checkpoint.path, {_get_original_name(name): Place(joined_tensors, name) for name in checkpoint.names()}
    )


def _find_heads_axis(name: str) -> int | None:
    """Return the axis of the attention heads in a tensor, or None if it has no such axis."""
    if match := re.search(r"/attention/self/(?:query|key|value)/(kernel|bias)$", _get_original_name(name)):
        return 1 if match[1] == "kernel" else 0
    return 0 if _get_original_name(name).endswith("/attention/output/dense/kernel") else None


def _get_original_name(name: str) -> str:
    if not (match := _NAME.fullmatch(name)):
        return name
    layer_number = int(match[1])
    layer_path = match[2]
    if layer_number < len(_EMBEDDINGS) and layer_path == "embeddings":
        return f"bert/embeddings/{_EMBEDDINGS[layer_number]}"
    if layer_number == len(_EMBEDDINGS):
        return f"bert/embeddings/LayerNorm/{layer_path}"
    sublayer, _, variable = layer_path.rpartition("/")
    if sublayer in _SUBLAYERS:
        return f"bert/encoder/layer_{layer_number - len(_EMBEDDINGS) - 1}/{_SUBLAYERS[sublayer]}/{variable}"
    return f"bert/pooler/dense/{layer_path}" if not sublayer and layer_number > len(_EMBEDDINGS) else name
