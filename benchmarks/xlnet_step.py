"""(u) One train step and one forward pass of an XLNet classifier, and one step of permutation language modeling.

As in `train_step`, every peer has dropout 0.1, AdamW, and a batch without padding. KerasHub only has XLNet's backbone:
its classifier is a dense layer on the last token, and it has no second stream to train.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, TENSORFLOW, TORCH, console, interleave, save, show, time_call, warn_if_busy
from benchmarks.models import SIZES, get_shape

VOCABULARY = 32_000
PEERS = {
    "lmzoo-tf": TENSORFLOW,
    "lmzoo-tf-jit": TENSORFLOW,
    "kerashub-tf": TENSORFLOW,
    "lmzoo-jax": JAX,
    "kerashub-jax": JAX,
    "transformers-torch": TORCH,
}
GROUPS = {
    "tf": ("lmzoo-tf", "kerashub-tf", "transformers-torch", "lmzoo-tf-jit"),
    "jax": ("lmzoo-jax", "kerashub-jax", "transformers-torch"),
}
MEASURES = ("train step s", "forward s", "plm step s")
Steps = dict[str, Callable[[], object]]


def make_batches(
    options: dict[str, Any],
) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Return a batch without padding, its labels, and the inputs and targets of permutation language modeling."""
    from lmzoo.text import Masking
    from lmzoo.text.permutation import factorization_order

    rng = np.random.default_rng(1)
    batch, length = shape = options["batch_size"], options["length"]
    ids = rng.integers(10, VOCABULARY, shape).astype("int32")
    segments = np.zeros(shape, "int32")
    segments[:, -1] = 2
    features = {"token_ids": ids, "padding_mask": np.ones(shape, "int32"), "segment_ids": segments}
    lengths, is_visible = np.full(batch, length), np.ones(shape, bool)
    positions, _ = Masking(1 / 6).choose(is_visible, lengths, is_visible, rng)
    np.put_along_axis(is_visible, positions, False, axis=1)
    permutation_inputs = {"mask_positions": positions, "order": factorization_order(is_visible, lengths, rng)}
    return (
        features,
        rng.integers(2, size=batch).astype("int32"),
        permutation_inputs,
        np.take_along_axis(ids, positions, axis=1),
    )


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the models, run all functions twice, and return a function that measures a round."""
    steps = (_make_torch_steps if peer == "transformers-torch" else _make_keras_steps)(peer, options)
    for _ in range(2):  # the first call compiles; the second may compile again, because the optimizer now has a state
        for step in steps.values():
            step()
    return lambda: {
        name: statistics.median(time_call(step) for _ in range(options["steps"])) for name, step in steps.items()
    }


def _make_keras_steps(peer: str, options: dict[str, Any]) -> Steps:
    import keras

    features, labels, more, targets = make_batches(options)
    if peer.startswith("kerashub"):
        import keras_hub

        inside = keras_hub.models.XLNetBackbone(vocabulary_size=VOCABULARY, dropout=0.1, **get_shape(options["size"]))
        model = keras.Model(inside.input, keras.layers.Dense(2)(inside.output[:, -1]))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(5e-5, weight_decay=0.01), loss)
        return _name_steps(lambda: model.train_on_batch(features, labels), lambda: model.predict_on_batch(features))
    import lmzoo
    from lmzoo.training import AdamW

    def compiled(task: Any) -> Any:
        task.compile(optimizer=AdamW(5e-5), **({"jit_compile": True} if peer.endswith("jit") else {}))
        return task

    def backbone() -> Any:
        return lmzoo.models.XlnetBackbone(
            vocabulary_size=VOCABULARY, **get_shape(options["size"]), max_sequence_length=options["length"]
        )

    model = compiled(lmzoo.models.TextClassifier(backbone(), num_classes=2))
    pretrainer = compiled(lmzoo.models.Pretrainer(backbone()))
    return _name_steps(
        lambda: model.train_on_batch(features, labels),
        lambda: model.predict_on_batch(features),
        lambda: pretrainer.train_on_batch({**features, **more}, {"masked_lm": targets}),
    )


def _make_torch_steps(peer: str, options: dict[str, Any]) -> Steps:
    import torch
    from transformers import XLNetConfig, XLNetForSequenceClassification, XLNetLMHeadModel

    features, labels, more, targets = make_batches(options)
    shape = dict(zip(("n_layer", "n_head", "d_model", "d_inner"), SIZES[options["size"]], strict=True))
    config = XLNetConfig(vocab_size=VOCABULARY, num_labels=2, use_mems_eval=False, **shape)
    batch = {
        "input_ids": torch.tensor(features["token_ids"], dtype=torch.long),
        "attention_mask": torch.tensor(features["padding_mask"], dtype=torch.float32),
        "token_type_ids": torch.tensor(features["segment_ids"], dtype=torch.long),
    }
    order = more["order"]
    same = (order[:, None] == order[:, :, None]) & ~np.eye(options["length"], dtype=bool)
    hidden = ~((order[:, None] < order[:, :, None]) | same)
    permuted = {
        **batch,
        "perm_mask": torch.tensor(hidden, dtype=torch.float32),
        "target_mapping": torch.tensor(np.eye(options["length"])[more["mask_positions"]], dtype=torch.float32),
        "labels": torch.tensor(targets, dtype=torch.long),
    }

    def trained(model: Any, batch: dict[str, Any]) -> Callable[[], float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)

        def step() -> float:
            model.train()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()

        return step

    model = XLNetForSequenceClassification(config)

    def forward() -> None:
        model.eval()
        with torch.inference_mode():
            model(**batch).logits.float().numpy()

    train = trained(model, {**batch, "labels": torch.tensor(labels, dtype=torch.long)})
    return _name_steps(train, forward, trained(XLNetLMHeadModel(config), permuted))


def _name_steps(*steps: Callable[[], object]) -> Steps:
    return dict(zip(MEASURES, steps, strict=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--group", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="calls of each function in a round, for the median")
    parser.add_argument("--name", default="xlnet_step", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    rows, summary = {}, {}
    for group in options["group"]:
        peers = {peer: PEERS[peer] for peer in GROUPS[group] if peer in options["peers"]}
        rows[group] = interleave("xlnet_step", peers, options, options["rounds"])
        title = f"XLNet-{options['size']} {options['batch_size']} x {options['length']}, {group}"
        summary[group] = show(title, rows[group], (*MEASURES, "peak memory GiB"))
    console.print("A ratio above 1 says how many times slower than lmzoo a peer is.")
    save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
