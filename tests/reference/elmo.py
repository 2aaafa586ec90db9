"""ELMo in plain NumPy, one sentence and one word at a time, written from SPEC.md; it shares no code with lmzoo.

Weights are a dict of arrays named as in the released HDF5 files. Shapes: T tokens with markers, W characters,
E character width, F filters, P word width, D memory width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.reference.left_to_right import sigmoid

Weights = dict[str, np.ndarray]

BOS, EOS, BOW, EOW, PAD = 256, 257, 258, 259, 260


def word_row(symbols: bytes | list[int], width: int) -> np.ndarray:
    """Return the character ids (width,) of a word, shifted by one, because 0 means no token."""
    row = np.full(width, PAD)
    characters = list(symbols)[: width - 2]
    row[: len(characters) + 2] = [BOW, *characters, EOW]
    return row + 1


def sentence_rows(sentence: list[str], width: int) -> np.ndarray:
    """Return the ids (T - 2, W) of a sentence's words."""
    return np.array([word_row(word.encode(), width) for word in sentence], int).reshape(-1, width)


def batch_ids(sentences: list[list[str]], width: int, extra: int = 0) -> np.ndarray:
    """Return ids int32 (B, longest + extra, W), zero at padding."""
    ids = np.zeros((len(sentences), max(map(len, sentences)) + extra, width), "int32")
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence_rows(sentence, width)
    return ids


def clip(x: np.ndarray, limit: float | None) -> np.ndarray:
    return x if limit is None else np.minimum(np.maximum(x, -limit), limit)


class Elmo:
    """The language model. `options` are the fields of a released options.json, flattened."""

    def __init__(self, weights: Weights, dtype: str = "float64", **options: Any):
        self.w = {name: np.asarray(value, dtype) for name, value in weights.items()}
        self.o = options
        for table in ("char_embed", "embedding"):
            if table in self.w:
                self.w[table] = np.pad(self.w[table], [[1, 0], [0, 0]])

    def word(self, ids: np.ndarray) -> np.ndarray:
        """Return the vector (P,) of a word, given its characters (W,) or its id."""
        if "embedding" in self.w:
            return self.w["embedding"][ids]
        x = self.w["char_embed"][ids]  # (W, E)
        act = {"relu": lambda v: np.maximum(v, 0), "tanh": np.tanh}[self.o["activation"]]
        parts = []
        for i, (width, count) in enumerate(self.o["filters"]):
            kernel, bias = self.w[f"CNN/W_cnn_{i}"][0], self.w[f"CNN/b_cnn_{i}"]
            assert kernel.shape == (width, x.shape[1], count)
            scores = [np.tensordot(x[p : p + width], kernel, 2) + bias for p in range(len(x) - width + 1)]
            parts.append(act(np.array(scores)).max(0))
        y = np.concatenate(parts)  # (F,)
        for k in range(self.o["n_highway"]):
            prefix = f"CNN_high_{k}"
            gate = sigmoid(y @ self.w[f"{prefix}/W_carry"] + self.w[f"{prefix}/b_carry"])
            changed = np.maximum(y @ self.w[f"{prefix}/W_transform"] + self.w[f"{prefix}/b_transform"], 0)
            y = gate * changed + (1 - gate) * y
        if "CNN_proj/W_proj" in self.w:
            y = y @ self.w["CNN_proj/W_proj"] + self.w["CNN_proj/b_proj"]
        return y

    def stack(self, direction: int, x: np.ndarray, state: list[Any] | None) -> tuple[list[np.ndarray], list[Any]]:
        """Return each layer's outputs (T, P) for `x` (T, P), in reading order, and its final state (c, m)."""
        outputs, states = [], []
        for layer in range(self.o["n_layers"]):
            prefix = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            kernel, bias = self.w[f"{prefix}/W_0"], self.w[f"{prefix}/B"]
            projection = self.w.get(f"{prefix}/W_P_0")
            memory_width, width = kernel.shape[1] // 4, kernel.shape[0] // 2
            c, m = state[layer] if state else (np.zeros(memory_width), np.zeros(width))
            ys = []
            for x_t in x:
                i, j, f, o = np.split(np.concatenate([x_t, m]) @ kernel + bias, 4)
                c = clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), self.o["cell_clip"])
                m = sigmoid(o) * np.tanh(c)
                if projection is not None:
                    m = clip(m @ projection, self.o["proj_clip"])
                ys.append(m + x_t if self.o["use_skip_connections"] and layer else m)
            x = np.array(ys)
            outputs.append(x)
            states.append((c, m))
        return outputs, states

    def sentence(self, words: np.ndarray, state: Any = None) -> tuple[np.ndarray, Any]:
        """Return all layers (layers + 1, T, 2P) of a sentence without markers, and the states of both directions."""
        if "embedding" in self.w:
            ids = [self.o["bos"], *words, self.o["eos"]]
        else:
            ids = [word_row([BOS], words.shape[1]), *words, word_row([EOS], words.shape[1])]
        x = np.array([self.word(row) for row in ids])  # (T, P)
        forward, forward_state = self.stack(0, x, state and state[0])
        backward, backward_state = self.stack(1, x[::-1], state and state[1])
        layers = [np.concatenate([x, x], 1)]
        layers += [np.concatenate([f, b[::-1]], 1) for f, b in zip(forward, backward, strict=True)]
        return np.array(layers), (forward_state, backward_state)


def mix(layers: list[np.ndarray], scalars: list[float], gamma: float, norm: str | None = None) -> list[np.ndarray]:
    """Mix the layers of each sentence (layers + 1, T, 2P) in a batch; the results (T - 2, 2P) have no markers."""
    weights = np.exp(scalars) / np.exp(scalars).sum()
    mixed = [np.zeros_like(sentence[0, 1:-1]) for sentence in layers]
    for k, weight in enumerate(weights):
        mean, scale = 0.0, 1.0
        if norm:
            inside = slice(1, -1) if norm == "bilm_tf" else slice(None)
            values = np.concatenate([sentence[k, inside] for sentence in layers])
            mean, epsilon = values.mean(), {"bilm_tf": 1e-12, "allennlp": 1e-13}[norm]
            scale = 1 / np.sqrt(values.var() + epsilon)
        for sentence, total in zip(layers, mixed, strict=True):
            total += gamma * weight * (sentence[k, 1:-1] - mean) * scale
    return mixed


def product_paths(config: Any) -> dict[str, str]:
    """Return a dict from names in a released file to paths of lmzoo's weights."""
    names = {}
    if config.vocabulary_size is None:
        names["char_embed"] = "bilm/encoder/embedding"
        for i in range(len(config.filters)):
            names |= {f"CNN/W_cnn_{i}": f"bilm/encoder/kernel_{i}", f"CNN/b_cnn_{i}": f"bilm/encoder/bias_{i}"}
        for k in range(config.num_highway):
            for part in ("carry", "transform"):
                target = f"bilm/encoder/highway_{k}/{part}"
                names |= {f"CNN_high_{k}/W_{part}": f"{target}/kernel", f"CNN_high_{k}/b_{part}": f"{target}/bias"}
        if config.num_filters != config.projection_dim:
            target = "bilm/encoder/projection"
            names |= {"CNN_proj/W_proj": f"{target}/kernel", "CNN_proj/b_proj": f"{target}/bias"}
    else:
        names["embedding"] = "bilm/token_embedding/embeddings"
    for layer in range(config.num_layers):
        for d, direction in enumerate(("forward", "backward")):
            source, target = f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell", f"bilm/lstm_{layer}/{direction}"
            names |= {f"{source}/W_0": f"{target}_kernel", f"{source}/B": f"{target}_bias"}
            if config.lstm_dim != config.projection_dim:
                names[f"{source}/W_P_0"] = f"{target}_projection"
    return names


def to_product(name: str, array: np.ndarray) -> np.ndarray:
    """Convert an array of a released file to the form in which lmzoo stores it."""
    if name in ("char_embed", "embedding"):
        return np.pad(array, [[1, 0], [0, 0]])
    return array[0] if name.startswith("CNN/W_cnn") else array


def from_product(name: str, array: np.ndarray) -> np.ndarray:
    """Convert an array of lmzoo to the form of a released file."""
    if name in ("char_embed", "embedding"):
        assert not array[0].any()
        return array[1:]
    return array[None] if name.startswith("CNN/W_cnn") else array


def reference_of(backbone: Any, **changes: Any) -> Elmo:
    """Return the reference with a backbone's weights and options; `changes` replaces options, to make it differ."""
    config = backbone.config
    arrays = {weight.path: np.asarray(weight) for weight in backbone.weights}
    paths = product_paths(config)
    assert sorted(paths.values()) == sorted(path for path in arrays if not path.startswith("scalar_mix/"))
    options = {
        "filters": config.filters,
        "activation": config.activation,
        "n_highway": config.num_highway,
        "n_layers": config.num_layers,
        "cell_clip": config.cell_clip,
        "proj_clip": config.projection_clip,
        "use_skip_connections": config.skip_connections,
        "bos": config.start_token_id,
        "eos": config.end_token_id,
    }
    return Elmo({name: from_product(name, arrays[path]) for name, path in paths.items()}, **{**options, **changes})
