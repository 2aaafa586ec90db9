"""BERT's forward pass in plain NumPy, written from the papers; it shares no code with lmzoo.

Weights are a dict of arrays named as in the first TensorFlow release, with kernels of shape (in, out). Shapes: B batch,
T positions, N heads, D head width, H hidden width, V vocabulary, M masked positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Weights = dict[str, np.ndarray]


def gelu_erf(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2)))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"gelu": gelu_erf, "gelu_tanh": gelu_tanh}


def dense(x: np.ndarray, w: Weights, name: str) -> np.ndarray:
    return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]


def layer_norm(x: np.ndarray, w: Weights, name: str, epsilon: float) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)  # biased
    return centered / np.sqrt(variance + epsilon) * w[f"{name}/LayerNorm/gamma"] + w[f"{name}/LayerNorm/beta"]


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


class Bert:
    """The encoder, the pooler and the masked-LM head."""

    def __init__(self, weights: Weights, layers: int, heads: int, activation: str = "gelu", epsilon: float = 1e-12):
        # float64, so that differences show the rounding errors of lmzoo only
        self.w = {name: np.asarray(value, "float64") for name, value in weights.items()}
        self.layers, self.heads, self.epsilon = layers, heads, epsilon
        self.act: Callable[[np.ndarray], np.ndarray] = ACTIVATIONS[activation]

    def embed(self, token_ids: np.ndarray, segment_ids: np.ndarray) -> np.ndarray:
        prefix = "bert/embeddings"
        x = self.w[f"{prefix}/word_embeddings"][token_ids] + self.w[f"{prefix}/token_type_embeddings"][segment_ids]
        x = x + self.w[f"{prefix}/position_embeddings"][: token_ids.shape[1]]
        return layer_norm(x, self.w, prefix, self.epsilon)  # (B, T, H)

    def attention(self, x: np.ndarray, mask: np.ndarray, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the context (B, T, H) before the output projection, and the probabilities (B, N, T, T)."""
        prefix = f"bert/encoder/layer_{layer}/attention/self"
        query, key, value = (dense(x, self.w, f"{prefix}/{name}") for name in ("query", "key", "value"))
        width = x.shape[-1] // self.heads  # D
        contexts, probabilities = [], []
        for head in range(self.heads):
            part = slice(head * width, (head + 1) * width)
            scores = query[..., part] @ key[..., part].transpose(0, 2, 1) / math.sqrt(width)  # (B, T, T)
            probability = softmax(np.where(mask[:, None, :] > 0, scores, -np.inf))
            contexts.append(probability @ value[..., part])
            probabilities.append(probability)
        return np.concatenate(contexts, -1), np.stack(probabilities, 1)

    def block(self, x: np.ndarray, mask: np.ndarray, layer: int) -> np.ndarray:
        prefix = f"bert/encoder/layer_{layer}"
        context, _ = self.attention(x, mask, layer)
        a = layer_norm(
            dense(context, self.w, f"{prefix}/attention/output/dense") + x,
            self.w,
            f"{prefix}/attention/output",
            self.epsilon,
        )
        f = dense(self.act(dense(a, self.w, f"{prefix}/intermediate/dense")), self.w, f"{prefix}/output/dense")
        return layer_norm(f + a, self.w, f"{prefix}/output", self.epsilon)

    def hidden_states(self, token_ids: np.ndarray, mask: np.ndarray, segment_ids: np.ndarray) -> list[np.ndarray]:
        states = [self.embed(token_ids, segment_ids)]
        for layer in range(self.layers):
            states.append(self.block(states[-1], mask, layer))
        return states

    def pooled(self, sequence: np.ndarray) -> np.ndarray:
        return np.tanh(dense(sequence[:, 0], self.w, "bert/pooler/dense"))  # (B, H)

    def masked_lm_logits(self, sequence: np.ndarray, positions: np.ndarray) -> np.ndarray:
        x = np.stack(
            [states[row_positions] for states, row_positions in zip(sequence, positions, strict=True)]
        )  # (B, M, H)
        prefix = "cls/predictions"
        x = layer_norm(
            self.act(dense(x, self.w, f"{prefix}/transform/dense")), self.w, f"{prefix}/transform", self.epsilon
        )
        return x @ self.w["bert/embeddings/word_embeddings"].T + self.w[f"{prefix}/output_bias"]  # (B, M, V)
