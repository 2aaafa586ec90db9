"""Recurrent cells and the feed-forward language model in NumPy, written from the formulas of the papers."""

from __future__ import annotations

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def simple(x, w):
    """Run Elman's network (1990), whose hidden units see the input and their own previous values."""
    width = w["recurrent_kernel"].shape[0]
    h, outputs = np.zeros((len(x), width)), []
    for t in range(x.shape[1]):
        h = np.tanh(x[:, t] @ w["kernel"] + h @ w["recurrent_kernel"] + w["bias"])
        outputs.append(h)
    return np.stack(outputs, axis=1), np.stack(outputs, axis=1)


def gru(x, w):
    """Run the GRU of Cho et al. (2014) with cuDNN's reset gate, which follows the product of the hidden units."""
    width = w["recurrent_kernel"].shape[0]
    (wr, wu, wn), (ur, uu, un) = (np.split(w[name], 3, axis=1) for name in ("kernel", "recurrent_kernel"))
    br, bu, bn = np.split(w["bias"], 3)
    h, outputs = np.zeros((len(x), width)), []
    for t in range(x.shape[1]):
        reset = sigmoid(x[:, t] @ wr + h @ ur + br)
        update = sigmoid(x[:, t] @ wu + h @ uu + bu)
        candidate = np.tanh(x[:, t] @ wn + bn + reset * (h @ un + w["candidate_bias"]))
        h = update * h + (1 - update) * candidate
        outputs.append(h)
    return np.stack(outputs, axis=1), np.stack(outputs, axis=1)


def lstm(x, w):
    """Run the LSTM of Hochreiter & Schmidhuber (1997) with the forget gate of Gers et al. (2000)."""
    width = w["recurrent_kernel"].shape[0]
    (wi, wj, wf, wo), (ui, uj, uf, uo) = (np.split(w[name], 4, axis=1) for name in ("kernel", "recurrent_kernel"))
    bi, bj, bf, bo = np.split(w["bias"], 4)
    h = c = np.zeros((len(x), width))
    memories, outputs = [], []
    for t in range(x.shape[1]):
        written = sigmoid(x[:, t] @ wi + h @ ui + bi) * np.tanh(x[:, t] @ wj + h @ uj + bj)
        c = sigmoid(x[:, t] @ wf + h @ uf + bf) * c + written
        h = sigmoid(x[:, t] @ wo + h @ uo + bo) * np.tanh(c)
        memories.append(c)
        outputs.append(h)
    return np.stack(memories, axis=1), np.stack(outputs, axis=1)


CELLS = {"rnn": simple, "gru": gru, "lstm": lstm}


def bengio(ids, w, window):
    """Score the word that follows `ids` (T,): y = b + W x + U tanh(d + H x), Bengio et al. (2003).

    `w` has the paper's matrices: C (V, m), H (h, (n-1)·m), d (h,), U (V, h), W (V, (n-1)·m) and b (V,).
    Here x holds the words in the order of the text, with zeros before its beginning.
    """
    vectors = [np.zeros(w["C"].shape[1])] * window + [w["C"][i] for i in ids]
    x = np.concatenate(vectors[-window:])
    return w["b"] + w["W"] @ x + w["U"] @ np.tanh(w["d"] + w["H"] @ x)
