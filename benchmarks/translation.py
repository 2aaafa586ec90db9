"""Translation: generation from 24 tokens to 24 new ones, with 4 beams and greedily, and a train step.

Every peer has random weights, by default in the shape of the published Marian models or of t5-small, and its library's
default loop and step. No text ends early, because the end token does not count as one. lmzoo takes texts, so its time
includes the tokenizer; transformers takes ids. Train steps have 24 + 24 tokens without padding, dropout 0.1 and AdamW,
and Marian's have label smoothing 0.1. KerasHub has no Marian and does not generate with T5; it only takes T5's train
step, with logits from the token embeddings.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, TENSORFLOW, TORCH, console, interleave, save, show, time_call, warn_if_busy
from benchmarks.steps import TRAIN, Steps, make_torch_train_step

PEERS = {
    "lmzoo-tf": TENSORFLOW,
    "lmzoo-jax": JAX,
    "kerashub-tf": TENSORFLOW,
    "kerashub-jax": JAX,
    "transformers-torch": TORCH,
}
SIZES = {  # layers of the encoder and of the decoder, heads, width, intermediate width, vocabulary size
    "tiny": (2, 2, 32, 64, 1000),
    "multi30k": (3, 4, 256, 1024, 8000),
    "opus": (6, 8, 512, 2048, 58_101),
    "t5-small": (6, 8, 512, 2048, 32_128),
}
FAMILIES = {"marian": "opus", "t5": "t5-small"}  # family -> default size
TITLES = {"marian": "Marian", "t5": "T5"}
LABEL_SMOOTHING = {"marian": 0.1, "t5": 0.0}
BEAMS = "ms per token"
GREEDY = "ms per token, greedy"
POSITIONS = 512
LEARNING_RATE = 1e-4


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model, generate and train twice, which compiles, and return a function that measures a round."""
    if peer.startswith("lmzoo"):
        steps = _build_lmzoo(options)
    elif peer.startswith("kerashub"):
        steps = _build_keras_hub(options)
    else:
        steps = _build_transformers(options)
    for _ in range(2):
        for step in steps.values():
            step()

    def round() -> dict[str, float]:
        tokens = options["length"] * options["batch_size"]
        numbers = {measure: 1000 * time_call(steps[measure]) / tokens for measure in steps if measure != TRAIN}
        numbers[TRAIN] = statistics.median(time_call(steps[TRAIN]) for _ in range(options["steps"]))
        return numbers

    return round


def _make_batch(options: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return source features, and targets that begin with the start token."""
    shape = options["batch_size"], options["length"]
    source, target = np.random.default_rng(1).integers(10, SIZES[options["size"]][-1] - 1, (2, *shape)).astype("int32")
    mask = np.ones(shape, "int32")
    return {
        "token_ids": source,
        "padding_mask": mask,
        "decoder_token_ids": target,
        "decoder_padding_mask": mask,
    }


def _build_lmzoo(options: dict[str, Any]) -> Steps:
    import lmzoo
    from lmzoo.registry.family import families
    from lmzoo.tasks.beam_search import BeamSampler
    from lmzoo.text import Preprocessor
    from lmzoo.training import AdamW

    family = families()[options["family"]]
    layers, heads, width, inner, count = SIZES[options["size"]]
    words = ["".join(letters) for letters in itertools.product("abcde", repeat=3)]
    tokenizer = family.tokenizer.of_words(words, count)
    backbone = family.backbone(
        vocabulary_size=count,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=inner,
        max_sequence_length=POSITIONS,
        dropout=0.1,
    )
    model = lmzoo.models.Seq2SeqLM(
        backbone,
        Preprocessor(tokenizer, family.packing, POSITIONS),
        max_new_tokens=options["length"],
        label_smoothing=LABEL_SMOOTHING[options["family"]],
    )
    model.compile(AdamW(LEARNING_RATE), model.default_loss())
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(words, options["length"] - 1)) for _ in range(options["batch_size"])]  # and an end
    assert {len(ids) for ids in tokenizer.tokenize(texts)} == {options["length"] - 1}
    batch = _make_batch(options)
    return {
        BEAMS: lambda: model.generate(texts, sampler=BeamSampler(4), stop=None),
        GREEDY: lambda: model.generate(texts, sampler="greedy", stop=None),
        TRAIN: lambda: model.train_on_batch(batch, batch["decoder_token_ids"]),
    }


def _build_keras_hub(options: dict[str, Any]) -> Steps:
    import keras
    import keras_hub

    layers, heads, width, inner, count = SIZES[options["size"]]
    backbone = keras_hub.models.T5Backbone(
        vocabulary_size=count,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=inner,
        dropout=0.1,
        use_gated_activation=False,
    )
    vectors = backbone.output["decoder_sequence_output"] * width**-0.5
    model = keras.Model(backbone.input, backbone.token_embedding(vectors, reverse=True))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(LEARNING_RATE, weight_decay=0.01), loss)
    batch = _make_batch(options)
    features = {name if name.startswith("decoder") else f"encoder_{name}": batch[name] for name in batch}
    return {TRAIN: lambda: model.train_on_batch(features, batch["decoder_token_ids"])}


def _build_transformers(options: dict[str, Any]) -> Steps:
    import torch

    model = (_make_torch_t5 if options["family"] == "t5" else _make_torch_marian)(options["size"])
    features = _make_batch(options)
    batch = {
        peer_name: torch.tensor(features[lmzoo_name], dtype=torch.long)
        for peer_name, lmzoo_name in (
            ("input_ids", "token_ids"),
            ("attention_mask", "padding_mask"),
            ("decoder_input_ids", "decoder_token_ids"),
        )
    }

    def generate(num_beams: int) -> None:
        model.eval()
        with torch.inference_mode():
            model.generate(
                batch["input_ids"],
                attention_mask=batch["attention_mask"],
                num_beams=num_beams,
                do_sample=False,
                min_new_tokens=options["length"],
                max_new_tokens=options["length"],
            )

    def compute_loss() -> torch.Tensor:
        logits = model(**batch).logits
        labels = batch["decoder_input_ids"]
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), label_smoothing=LABEL_SMOOTHING[options["family"]]
        )

    return {
        BEAMS: lambda: generate(4),
        GREEDY: lambda: generate(1),
        TRAIN: make_torch_train_step(model, compute_loss, LEARNING_RATE),
    }


def _make_torch_marian(size: str) -> Any:
    from transformers import MarianConfig, MarianMTModel

    layers, heads, width, inner, count = SIZES[size]
    return MarianMTModel(
        MarianConfig(
            vocab_size=count,
            d_model=width,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=inner,
            decoder_ffn_dim=inner,
            max_position_embeddings=POSITIONS,
            activation_function="swish",
            pad_token_id=count - 1,
            eos_token_id=0,
            decoder_start_token_id=count - 1,
            forced_eos_token_id=None,
        )
    )


def _make_torch_t5(size: str) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    layers, heads, width, inner, count = SIZES[size]
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=count,
            d_model=width,
            d_kv=width // heads,
            d_ff=inner,
            num_layers=layers,
            num_heads=heads,
            decoder_start_token_id=0,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=["marian"])
    parser.add_argument("--size", choices=SIZES, help="by default opus for Marian and t5-small for T5")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--length", type=int, default=24, help="tokens of a source, and of a target")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="train steps of a round, for the median")
    parser.add_argument("--name", default="translation", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    rows, summary = {}, {}
    for family in options["family"]:
        size = options["size"] or FAMILIES[family]
        peers = {peer: PEERS[peer] for peer in options["peers"] if family == "t5" or not peer.startswith("kerashub")}
        for batch_size in options["batch_sizes"]:
            key = f"{family}, {batch_size} at once"
            settings = {**options, "family": family, "size": size, "batch_size": batch_size}
            rows[key] = interleave("translation", peers, settings, options["rounds"])
            title = f"{TITLES[family]} {size}, {batch_size} at once"
            summary[key] = show(title, rows[key], (BEAMS, GREEDY, TRAIN, "peak memory GiB"))
    console.print("A ratio above 1 says how many times slower than lmzoo on TensorFlow a peer is.")
    save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
