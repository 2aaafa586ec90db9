"""NumPy versions of the models for text pairs, written from the papers' equations, for one pair without padding.

Shapes: a words of the first text, b words of the second, D word width, U LSTM width.
"""

from __future__ import annotations

import numpy as np

from tests.reference.bert import softmax
from tests.reference.left_to_right import sigmoid


def lstm(weights, prefix, x):
    """Return the outputs (a, U) of an LSTM with gates in Keras' order: input, forget, candidate, output."""
    kernel, recurrent, bias = (weights[f"{prefix}/lstm_cell/{part}"] for part in ("kernel", "recurrent_kernel", "bias"))
    state = output = np.zeros(recurrent.shape[0])
    outputs = []
    for word in x:
        i, f, g, o = np.split(word @ kernel + output @ recurrent + bias, 4)
        state = sigmoid(f) * state + sigmoid(i) * np.tanh(g)
        output = sigmoid(o) * np.tanh(state)
        outputs.append(output)
    return np.array(outputs).reshape(len(x), recurrent.shape[0])


def bilstm(weights, prefix, x):
    """Return the outputs (a, 2U) of a bidirectional LSTM."""
    forward = lstm(weights, f"{prefix}/lstm/forward_lstm", x)
    backward = lstm(weights, f"{prefix}/lstm/backward_lstm", x[::-1])[::-1]
    return np.concatenate([forward, backward], axis=1)


def esim(weights, first, second):
    """Return the vector of a pair (Chen et al., 2017, eqs. 1 to 21)."""
    a, b = bilstm(weights, "encoding", first), bilstm(weights, "encoding", second)
    scores = a @ b.T
    aligned = softmax(scores, axis=1) @ b, softmax(scores, axis=0).T @ a
    pooled = []
    for encoded, attended in zip((a, b), aligned, strict=True):
        enhanced = np.concatenate([encoded, attended, encoded - attended, encoded * attended], axis=1)
        projected = np.maximum(enhanced @ weights["projection/kernel"] + weights["projection/bias"], 0)
        composed = bilstm(weights, "composition", projected)
        pooled += [composed.mean(axis=0), composed.max(axis=0)]
    return np.tanh(np.concatenate(pooled) @ weights["dense/kernel"] + weights["dense/bias"])


def highway(weights, prefix, x):
    gate = sigmoid(x @ weights[f"{prefix}/carry/kernel"] + weights[f"{prefix}/carry/bias"])
    transformed = np.maximum(x @ weights[f"{prefix}/transform/kernel"] + weights[f"{prefix}/transform/bias"], 0)
    return gate * transformed + (1 - gate) * x


def attention_flow(weight, context, question):
    """Return the vectors G of the context's words, from w of [h; u; h * u] (Seo et al., 2017, eqs. 1 to 3)."""
    scores = np.array([[weight @ np.concatenate([h, u, h * u]) for u in question] for h in context])  # (b, a)
    attended = softmax(scores, axis=1) @ question
    summary = softmax(scores.max(axis=1), axis=0) @ context
    return np.concatenate([context, attended, context * attended, context * summary], axis=1)


def bidaf(weights, question, context):
    """Return the start and end logits of each word of the context (Seo et al., 2017, section 2)."""
    texts = []
    for text in (question, context):
        for i in range(2):
            text = highway(weights, f"highway_{i}", text)
        texts.append(bilstm(weights, "contextual", text))
    weight = np.concatenate(
        [weights[f"attention_flow/{part}_weight"][:, 0] for part in ("context", "question", "product")]
    )
    flow = attention_flow(weight, texts[1], texts[0])
    modeled = bilstm(weights, "modeling_1", bilstm(weights, "modeling_0", flow))
    end_modeled = bilstm(weights, "end_modeling", modeled)
    start, end = (
        np.concatenate([flow, modeled_words], axis=1) @ weights[f"{name}_logits/kernel"]
        for name, modeled_words in (("start", modeled), ("end", end_modeled))
    )
    return np.concatenate([start, end], axis=1)
