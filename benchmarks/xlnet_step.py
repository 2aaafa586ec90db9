"""One train step and one forward pass of an XLNet classifier, and one step of permutation language modeling.

As in `train_step`, every peer has dropout 0.1, AdamW, and a batch without padding. KerasHub only has XLNet's backbone:
its classifier is a dense layer on the last token, and it has no second stream to train.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import console, interleave, save, show, warn_if_busy
from benchmarks.models import SIZES, get_shape
from benchmarks.steps import (
    FORWARD,
    GROUPS,
    LEARNING_RATE,
    PEERS,
    TRAIN,
    Steps,
    compile_lmzoo,
    make_keras_steps,
    make_parser,
    make_torch_steps,
    make_torch_train_step,
    measure_steps,
)

VOCABULARY = 32_000
PERMUTATION = "plm step s"


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
    build = _build_transformers if peer == "transformers-torch" else _build_keras
    return measure_steps(build(peer, options), options["steps"])


def _build_keras(peer: str, options: dict[str, Any]) -> Steps:
    import keras

    features, labels, permutation_inputs, targets = make_batches(options)
    if peer.startswith("kerashub"):
        import keras_hub

        backbone = keras_hub.models.XLNetBackbone(vocabulary_size=VOCABULARY, dropout=0.1, **get_shape(options["size"]))
        model = keras.Model(backbone.input, keras.layers.Dense(2)(backbone.output[:, -1]))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(LEARNING_RATE, weight_decay=0.01), loss)
        return make_keras_steps(model, features, labels)
    import lmzoo

    def make_backbone() -> Any:
        return lmzoo.models.XlnetBackbone(
            vocabulary_size=VOCABULARY, **get_shape(options["size"]), max_sequence_length=options["length"]
        )

    model = compile_lmzoo(lmzoo.models.TextClassifier(make_backbone(), num_classes=2), peer)
    pretrainer = compile_lmzoo(lmzoo.models.Pretrainer(make_backbone()), peer)
    return {
        **make_keras_steps(model, features, labels),
        PERMUTATION: lambda: pretrainer.train_on_batch({**features, **permutation_inputs}, {"masked_lm": targets}),
    }


def _build_transformers(peer: str, options: dict[str, Any]) -> Steps:
    import torch
    from transformers import XLNetConfig, XLNetForSequenceClassification, XLNetLMHeadModel

    features, labels, permutation_inputs, targets = make_batches(options)
    shape = dict(zip(("n_layer", "n_head", "d_model", "d_inner"), SIZES[options["size"]], strict=True))
    config = XLNetConfig(vocab_size=VOCABULARY, num_labels=2, use_mems_eval=False, **shape)
    batch = {
        "input_ids": torch.tensor(features["token_ids"], dtype=torch.long),
        "attention_mask": torch.tensor(features["padding_mask"], dtype=torch.float32),
        "token_type_ids": torch.tensor(features["segment_ids"], dtype=torch.long),
    }
    order = permutation_inputs["order"]
    same = (order[:, None] == order[:, :, None]) & ~np.eye(options["length"], dtype=bool)
    hidden = ~((order[:, None] < order[:, :, None]) | same)
    permuted = {
        **batch,
        "perm_mask": torch.tensor(hidden, dtype=torch.float32),
        "target_mapping": torch.tensor(
            np.eye(options["length"])[permutation_inputs["mask_positions"]], dtype=torch.float32
        ),
        "labels": torch.tensor(targets, dtype=torch.long),
    }

    pretrainer = XLNetLMHeadModel(config)
    return {
        **make_torch_steps(XLNetForSequenceClassification(config), batch, labels),
        PERMUTATION: make_torch_train_step(pretrainer, lambda: pretrainer(**permuted).loss),
    }


def main() -> None:
    parser = make_parser(__doc__, "xlnet_step", SIZES)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    options = vars(parser.parse_args())
    warn_if_busy()
    rows, summary = {}, {}
    for group in options["group"]:
        peers = {peer: PEERS[peer] for peer in GROUPS[group] if peer in options["peers"]}
        rows[group] = interleave("xlnet_step", peers, options, options["rounds"])
        title = f"XLNet-{options['size']} {options['batch_size']} x {options['length']}, {group}"
        summary[group] = show(title, rows[group], (TRAIN, FORWARD, PERMUTATION, "peak memory GiB"))
    console.print("A ratio above 1 says how many times slower than lmzoo a peer is.")
    save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
