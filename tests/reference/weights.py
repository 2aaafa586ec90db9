"""Tiny random BERTs whose weights have the names of the first TensorFlow release, for comparison with references."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from lmzoo.layers.sublayers import sublayers
from lmzoo.models import BertBackbone, MaskedLM

# Distinct primes (the hidden width is a product of two), so that swapped axes cannot pass.
TINY = {
    "vocabulary_size": 131,
    "num_layers": 3,
    "num_heads": 5,
    "hidden_dim": 35,
    "intermediate_dim": 53,
    "max_sequence_length": 67,
    "dropout": 0.0,
}
LENGTHS = (19, 7, 1)  # real tokens of the rows of `padded_batch`
MASK_POSITIONS = np.array([[3, 11, 18], [1, 6, 0], [0, 0, 0]], "int32")

# Name in the first TensorFlow release -> path in lmzoo; `{}` is the number of the layer.
ENCODER = {
    "bert/embeddings/word_embeddings": "embeddings/token_embedding/embeddings",
    "bert/embeddings/position_embeddings": "embeddings/position_embedding/embeddings",
    "bert/embeddings/token_type_embeddings": "embeddings/segment_embedding/embeddings",
    "bert/embeddings/LayerNorm/gamma": "embeddings/layer_norm/gamma",
    "bert/embeddings/LayerNorm/beta": "embeddings/layer_norm/beta",
    "bert/pooler/dense/kernel": "pooler/dense/kernel",
    "bert/pooler/dense/bias": "pooler/dense/bias",
}
BLOCK = {
    f"bert/encoder/layer_{{}}/{theirs}/{part}": f"block_{{}}/{ours}/{part}"
    for parts, layers in {
        ("kernel", "bias"): {
            "attention/self/query": "attention/query",
            "attention/self/key": "attention/key",
            "attention/self/value": "attention/value",
            "attention/output/dense": "attention/output_dense",
            "intermediate/dense": "intermediate_dense",
            "output/dense": "output_dense",
        },
        ("gamma", "beta"): {
            "attention/output/LayerNorm": "attention_layer_norm",
            "output/LayerNorm": "output_layer_norm",
        },
    }.items()
    for theirs, ours in layers.items()
    for part in parts
}
MASKED_LM = {
    "cls/predictions/transform/dense/kernel": "masked_lm_head/dense/kernel",
    "cls/predictions/transform/dense/bias": "masked_lm_head/dense/bias",
    "cls/predictions/transform/LayerNorm/gamma": "masked_lm_head/layer_norm/gamma",
    "cls/predictions/transform/LayerNorm/beta": "masked_lm_head/layer_norm/beta",
    "cls/predictions/output_bias": "masked_lm_head/output_bias",
}


def randomise(model: keras.Model, seed: int = 17) -> None:
    """Fill every weight, including biases and normalization weights, whose values 0 and 1 would hide mistakes."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        center = 1.0 if weight.path.endswith("gamma") else 0.0
        weight.assign(rng.normal(center, 0.2, weight.shape).astype("float32"))


def tiny_backbone(seed: int = 17, **overrides: Any) -> BertBackbone:
    backbone = BertBackbone(**{**TINY, **overrides})
    randomise(backbone, seed)
    return backbone


def tiny_masked_lm(seed: int = 17, **overrides: Any) -> MaskedLM:
    model = MaskedLM(BertBackbone(**{**TINY, **overrides}))
    randomise(model, seed)
    return model


def named_weights(model: keras.Model) -> dict[str, np.ndarray]:
    """Return the arrays of a backbone or a masked LM by their published names, and check that all are named."""
    arrays = {weight.path: keras.ops.convert_to_numpy(weight.value) for weight in model.weights}
    layers = len({path.split("/")[0] for path in arrays if path.startswith("block_")})
    names = dict(ENCODER)
    for i in range(layers):
        names |= {published.format(i): path.format(i) for published, path in BLOCK.items()}
    if any(path.startswith("masked_lm_head") for path in arrays):
        names |= MASKED_LM
    assert sorted(names.values()) == sorted(arrays)
    return {published: arrays[path] for published, path in names.items()}


def padded_batch(lengths: tuple[int, ...] = LENGTHS, width: int | None = None, seed: int = 23) -> dict[str, np.ndarray]:
    """Return features of rows with different lengths; padding holds random ids, which must not matter."""
    rng = np.random.default_rng(seed)
    shape = (len(lengths), width or max(lengths))
    mask = np.arange(shape[1]) < np.array(lengths)[:, None]
    return {
        "token_ids": rng.integers(0, TINY["vocabulary_size"], shape).astype("int32"),
        "padding_mask": mask.astype("int32"),
        "segment_ids": rng.integers(0, 2, shape).astype("int32"),
    }


def run(model: keras.Model, inputs: dict[str, np.ndarray]) -> Any:
    """Return the model's outputs as arrays, compiled on JAX, which is far faster than one operation at a time."""
    if keras.backend.backend() == "jax":
        import jax

        # A new function each time: weights are constants in it, and `jit` remembers what it has compiled.
        return to_numpy(jax.jit(lambda inputs: model(inputs))(inputs))
    return to_numpy(model(inputs))


def projections(model: keras.Model) -> list[np.ndarray]:
    """Return the kernels of queries and values, including LoRA updates."""
    return [to_numpy(layer.kernel) for layer in sublayers(model) if layer.name in ("query", "value")]


def to_numpy(outputs: Any) -> Any:
    """Convert a structure of tensors to float32 arrays."""
    return keras.tree.map_structure(lambda t: keras.ops.convert_to_numpy(keras.ops.cast(t, "float32")), outputs)


def difference(a: Any, b: Any) -> float:
    """Return the largest absolute difference between two structures of arrays, or NaN if any value is NaN."""
    pairs = list(zip(keras.tree.flatten(a), keras.tree.flatten(b), strict=True))
    assert pairs
    assert [np.shape(x) for x, _ in pairs] == [np.shape(y) for _, y in pairs]
    return float(np.max([np.max(np.abs(np.asarray(x) - np.asarray(y)), initial=0.0) for x, y in pairs]))


def relative_difference(a: Any, b: Any) -> float:
    """Return the largest absolute difference, divided by the largest absolute value in `b`."""
    return difference(a, b) / max(float(np.max(np.abs(x), initial=0.0)) for x in keras.tree.flatten(b))
