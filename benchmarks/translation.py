"""(t) Translation: beam search from 24 tokens to 24 new ones, and a train step of 24 + 24 tokens without padding.

Every peer has random weights, by default in the shape of the published Marian models, and its library's default loop
and step. No text ends early, because the bias of the end token forbids it. lmzoo takes texts, so its time includes the
tokenizer; transformers takes ids. Train steps have dropout 0.1, label smoothing 0.1 and AdamW.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, TENSORFLOW, TORCH, console, interleave, save, show, time_call, warn_if_busy

PEERS = {"lmzoo-tf": TENSORFLOW, "lmzoo-jax": JAX, "transformers-torch": TORCH}
SIZES = {  # layers of the encoder and of the decoder, heads, width, intermediate width, vocabulary size
    "tiny": (2, 2, 32, 64, 1000),
    "multi30k": (3, 4, 256, 1024, 8000),
    "opus": (6, 8, 512, 2048, 58_101),
}
MEASURES = ("ms per token", "train step s", "peak memory GiB")
POSITIONS, NEVER = 512, -1e9
Steps = tuple[Callable[[], object], Callable[[], object]]


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model, translate and train twice, which compiles, and return a function that measures a round."""
    translate, train = (_build_transformers if peer == "transformers-torch" else _build_lmzoo)(options)
    for _ in range(2):
        translate()
        train()

    def round() -> dict[str, float]:
        seconds = time_call(translate) / options["length"] / options["batch_size"]
        step = statistics.median(time_call(train) for _ in range(options["steps"]))
        return {"ms per token": 1000 * seconds, "train step s": step}

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
    from lmzoo.families.marian import FAMILY
    from lmzoo.text import MarianTokenizer, Preprocessor
    from lmzoo.training import AdamW

    layers, heads, width, inner, count = SIZES[options["size"]]
    words = ["".join(letters) for letters in itertools.product("abcde", repeat=3)]
    tokenizer = MarianTokenizer.of_words(words, count)
    backbone = lmzoo.models.MarianBackbone(
        vocabulary_size=count,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=inner,
        max_sequence_length=POSITIONS,
        dropout=0.1,
    )
    model = lmzoo.models.Seq2SeqLM(
        backbone, Preprocessor(tokenizer, FAMILY.packing, POSITIONS), max_new_tokens=options["length"]
    )
    bias = np.zeros(count, "float32")
    bias[tokenizer.token_to_id(tokenizer.end_token)] = NEVER
    model.output_bias.set_weights([bias])
    model.compile(AdamW(1e-4), model.default_loss())
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(words, options["length"] - 1)) for _ in range(options["batch_size"])]  # and an end
    assert {len(ids) for ids in tokenizer.tokenize(texts)} == {options["length"] - 1}
    batch = _make_batch(options)
    return lambda: model.translate(texts), lambda: model.train_on_batch(batch, batch["decoder_token_ids"])


def _build_transformers(options: dict[str, Any]) -> Steps:
    import torch
    from transformers import MarianConfig, MarianMTModel

    layers, heads, width, inner, count = SIZES[options["size"]]
    model = MarianMTModel(
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
    with torch.no_grad():
        model.final_logits_bias[0, 0] = NEVER
    features = _make_batch(options)
    batch = {
        peer_name: torch.tensor(features[lmzoo_name], dtype=torch.long)
        for peer_name, lmzoo_name in (
            ("input_ids", "token_ids"),
            ("attention_mask", "padding_mask"),
            ("decoder_input_ids", "decoder_token_ids"),
        )
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def translate() -> None:
        model.eval()
        with torch.inference_mode():
            model.generate(
                batch["input_ids"],
                attention_mask=batch["attention_mask"],
                num_beams=4,
                min_new_tokens=options["length"],
                max_new_tokens=options["length"],
            )

    def train() -> None:
        logits = model.train()(**batch).logits
        labels = batch["decoder_input_ids"]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return translate, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="opus")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--length", type=int, default=24, help="tokens of a source, and of a target")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="train steps of a round, for the median")
    parser.add_argument("--name", default="translation", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    rows, summary = {}, {}
    peers = {peer: PEERS[peer] for peer in options["peers"]}
    for batch_size in options["batch_sizes"]:
        key = f"{batch_size} at once"
        rows[key] = interleave("translation", peers, {**options, "batch_size": batch_size}, options["rounds"])
        summary[key] = show(f"Marian {options['size']}, 4 beams, {key}", rows[key], MEASURES)
    console.print("A ratio above 1 says how many times slower than lmzoo on TensorFlow a peer is.")
    save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
