"""Figures about the next token: its probabilities at different temperatures, and n-gram models of different orders.

`examples/pictures.py` calls `draw_samplers` and `draw_orders`.
"""

from __future__ import annotations

import warnings

import keras
import matplotlib.pyplot as plt
import numpy as np

import lmzoo

PROMPT = "She opened the door and"
SHOWN = 14  # number of tokens in the figure
TOP_K = 5  # the default of `generate`
COLORS = {"drawn by top_k": "#7aa6d8", "drawn by random only": "#d5d5d5"}
ORDERS = range(1, 6)
PARTS = (1, 4, 16)  # models learn from the whole text, a quarter and a sixteenth of it


def draw_samplers() -> plt.Figure:
    """Draw the most probable next tokens at three temperatures."""
    model = lmzoo.models.CausalLM.from_preset("gpt2_nano_en")
    tokenizer = model.preprocessor.tokenizer
    logits = keras.ops.convert_to_numpy(model(model.preprocessor([PROMPT])))[0]  # (T, V)
    logits = logits[len(tokenizer.tokenize([PROMPT])[0]) - 1]  # (V,), for the token after the prompt
    best = np.argsort(-logits)[:SHOWN]
    tokens = [tokenizer.detokenize([int(token)]) for token in best]
    figure, panels = plt.subplots(1, 3, figsize=(8.6, 3.2), sharey=True, layout="constrained")
    for axes, temperature in zip(panels, (0.5, 1.0, 2.0), strict=True):
        scaled = np.exp((logits - logits.max()) / temperature)
        probabilities = (scaled / scaled.sum())[best]
        colors = [COLORS["drawn by top_k" if rank < TOP_K else "drawn by random only"] for rank in range(SHOWN)]
        axes.barh(range(SHOWN), probabilities, color=colors)
        axes.set(title=f"temperature {temperature:g}", xlabel="probability", yticks=range(SHOWN), yticklabels=tokens)
        axes.text(0.97, 0.05, f"all others {1 - probabilities.sum():.0%}", transform=axes.transAxes, ha="right")
    panels[0].invert_yaxis()
    handles = [plt.Rectangle((0, 0), 1, 1, color=color, label=name) for name, color in COLORS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    figure.suptitle(f"{PROMPT} …")
    return figure


def draw_orders() -> plt.Figure:
    """Draw the perplexity of n-gram models by their order, for training texts of three sizes."""
    # NumPy's docstrings are English text that every installation has.
    documents = [str(member.__doc__).split("\n\n") for name, member in sorted(vars(np).items()) if member.__doc__]
    documents = [documents[i] for i in np.random.default_rng(0).permutation(len(documents))]
    held_out, train = documents[:60], documents[60:]
    words = lmzoo.data.corpora.train_words(train, vocabulary_size=2000)
    figure, axes = plt.subplots(figsize=(5.4, 3.2), layout="constrained")
    for divisor, marker in zip(PARTS, "os^", strict=True):
        texts = train[: len(train) // divisor]
        perplexities = []
        for order in ORDERS:
            model = lmzoo.models.NgramLM(order=order, tokenizer=words)
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # the text is small on purpose
                model.fit(texts)
            perplexities.append(model.perplexity(held_out))
        count = sum(len(paragraph.split()) for text in texts for paragraph in text)
        axes.plot(ORDERS, perplexities, f"{marker}-", label=f"{round(count, -3):,} words")
    axes.set(xlabel="order n", ylabel="perplexity of held-out text", xticks=ORDERS, yscale="log")
    axes.set_yticks([10, 20, 50, 100, 200], [10, 20, 50, 100, 200])
    axes.grid(alpha=0.3, which="both")
    axes.legend(title="training text")
    return figure
