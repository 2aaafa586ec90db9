"""Measure how well each layer of a model separates the senses of a word.

    python examples/word_senses.py [--preset bert_nano_en_uncased] [--plot senses.svg]

The model reads sentences that use the word in different senses, and each layer gives the word a vector. The script
prints for each layer the mean cosine of two uses of the same sense ("within"), the mean cosine of two uses of different
senses ("between"), and the difference of the two, the gap. For comparison it prints two more gaps: "chance" is the gap
that 95 of 100 random assignments of senses to the same vectors stay below; "random weights" is the gap of a model of
the same shape that has learned nothing, but sees the same neighboring words. Layer 0 does not see neighbors: a gap
there comes from the word's position in the sentence or, in a cased model, from "Apple" and "apple".

`--preset` takes the same names as `from_preset`: a name that `lmzoo presets` lists, a directory,
`hf://google-bert/bert-base-uncased`, or the directory of a published ELMo (`*options.json`, `*weights.hdf5`). The plot
needs matplotlib: `pip install 'lmzoo[plots]'`.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np

import lmzoo

SENTENCES = {
    "bank": {
        "money": [
            "She opened an account at the bank on Monday.",
            "The bank refused to lend them the money for a house.",
            "He works as a cashier in a small bank.",
            "Interest rates rose, and the bank made a profit.",
            "I took the cheque to the bank and paid it in.",
            "The bank was robbed of two million dollars.",
            "Without a loan from the bank the shop would have closed.",
            "Her savings are safe in the bank.",
        ],
        "river": [
            "They sat on the bank and watched the river go by.",
            "The boat drifted towards the muddy bank.",
            "Willows grew along the bank of the stream.",
            "He pulled the fish out of the water and onto the bank.",
            "The flood had washed away a part of the bank.",
            "Cows came down to the bank to drink.",
            "We swam across and rested on the far bank.",
            "On the left bank of the Rhine lies an old town.",
        ],
        "store": [
            "The hospital asked people to give to the blood bank.",
            "Seeds of every kind are kept in a seed bank in the ice.",
            "Families who cannot buy dinner go to the food bank.",
            "The eye bank sends tissue to surgeons all over the country.",
            "Milk from other mothers comes from a milk bank.",
            "A gene bank keeps samples of rare plants.",
            "The teachers share their tests in a question bank.",
            "The clinic stores frozen cells in its own tissue bank.",
        ],
        "row": [
            "The engineer stood before a bank of switches.",
            "A bank of elevators faces the entrance.",
            "Above the stage hung a bank of lights.",
            "The guard looked at a bank of television screens.",
            "Each bank of cylinders has its own pump.",
            "The organ has a third bank of keys.",
            "A whole bank of telephones rang at once.",
            "Two men rowed on each bank of oars.",
        ],
    },
    "apple": {
        "fruit": [
            "She ate an apple and threw away the core.",
            "An apple fell from the tree into the grass.",
            "He peeled the apple with a small knife.",
            "There is one red apple left in the basket.",
            "My grandmother baked a cake with apple and cinnamon.",
            "The apple was sour and not yet ripe.",
            "A worm had made its way into the apple.",
            "Would you like a pear or an apple?",
        ],
        "company": [
            "Apple has presented a new telephone.",
            "The shares of Apple fell by two per cent.",
            "He bought a computer made by Apple.",
            "Engineers at Apple wrote the software.",
            "Customers queued in front of the Apple store all night.",
            "The court ordered Apple to pay a fine.",
            "She left Apple to found a firm of her own.",
            "Apple and its competitors design their own chips.",
        ],
    },
}
ROUNDS = 1000  # random assignments of senses


def embed_uses(word: str, embedder: lmzoo.models.TextEmbedder) -> tuple[np.ndarray, np.ndarray]:
    """Return the word's vectors in all layers, float (n, L, H), and the index of the sense of each use, int (n,)."""
    senses = SENTENCES[word]
    texts = [text for sentences in senses.values() for text in sentences]
    embeddings = embedder.embed(texts, level="word", layers="all")
    positions = [[part.lower() for part in sentence.words].index(word) for sentence in embeddings]
    vectors = np.stack([sentence.vectors[position] for sentence, position in zip(embeddings, positions, strict=True)])
    return vectors, np.repeat(np.arange(len(senses)), [*map(len, senses.values())])


def compute_mean_cosines(cosines: np.ndarray, senses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays (L,): the mean cosine within and between senses, from `cosines` (L, n, n)."""
    same_sense = senses[:, None] == senses
    distinct = ~np.eye(len(senses), dtype=bool)
    return cosines[:, same_sense & distinct].mean(axis=1), cosines[:, ~same_sense].mean(axis=1)


def measure(vectors: np.ndarray, senses: np.ndarray) -> dict[str, np.ndarray]:
    """Compute `within`, `between`, `gap` and `chance`, each (L,), from the vectors (n, L, H)."""
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    cosines = np.einsum("ilh,jlh->lij", unit, unit)  # (L, n, n)
    within, between = compute_mean_cosines(cosines, senses)
    rng = np.random.default_rng(0)
    shuffled = [
        np.subtract(*compute_mean_cosines(cosines, rng.permutation(senses))) for _ in range(ROUNDS)
    ]  # (L,) each
    return {
        "within": within,
        "between": between,
        "gap": within - between,
        "chance": np.quantile(shuffled, 0.95, axis=0),
    }


def draw(results: dict[str, dict[str, np.ndarray]], title: str, path: str) -> None:
    """Draw a panel for each word: the gap in each layer of the model, with random weights, and by chance."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "word senses"  # makes the file reproducible
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(results), figsize=(4.4 * len(results), 3.2), sharey=True, squeeze=False)
    for panel, (word, gaps) in zip(panels[0], results.items(), strict=True):
        layers = np.arange(len(gaps["gap"]))
        panel.plot(layers, gaps["gap"], "o-", label="pre-trained")
        panel.plot(layers, gaps["random"], "s--", label="random weights")
        panel.fill_between(layers, gaps["chance"], alpha=0.2, color="grey", label="by chance")
        panel.set(title=f"“{word}”: {', '.join(SENTENCES[word])}", xlabel="layer", xticks=layers)
    panels[0, 0].set_ylabel("cosine within − between senses")
    panels[0, -1].legend()
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--plot", help="file for a plot of the gaps, .svg or .png")
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(0)
    trained = lmzoo.models.TextEmbedder.from_preset(options.preset)
    untrained = lmzoo.models.TextEmbedder.from_preset(options.preset, load_weights=False)
    results = {}
    for word, senses in SENTENCES.items():
        gaps = measure(*embed_uses(word, trained))
        gaps["random"] = measure(*embed_uses(word, untrained))["gap"]
        results[word] = gaps
        uses = ", ".join(f"{sense} ({len(sentences)})" for sense, sentences in senses.items())
        print(f'\n"{word}": {uses}\n\nlayer  within  between     gap  chance  random weights')
        for layer in range(len(gaps["gap"])):
            row = [gaps[column][layer] for column in ("within", "between", "gap", "chance", "random")]
            print("{:5}  {:6.3f}  {:7.3f}  {:6.3f}  {:6.3f}  {:14.3f}".format(layer, *row))
    if options.plot:
        draw(results, options.preset, options.plot)


if __name__ == "__main__":
    main()
