"""Tokens that a GPT-2 generates in a second: prompts of 32 tokens and 64 new ones, greedily, with a cache.

Every peer has random weights and its library's default generation loop. No text ends early. lmzoo takes texts, so its
time includes the tokenizer; the other peers take ids.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, TENSORFLOW, TORCH, console, interleave, save, show, time_call, warn_if_busy
from benchmarks.models import SIZES, get_shape

VOCABULARY, POSITIONS = 50_257, 1024
PEERS = {
    "lmzoo-tf": TENSORFLOW,
    "kerashub-tf": TENSORFLOW,
    "lmzoo-jax": JAX,
    "kerashub-jax": JAX,
    "transformers-torch": TORCH,
}
MEASURES = ("ms per token", "first call s", "peak memory GiB")


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model and generate once, which compiles."""
    build = (
        _build_transformers
        if peer == "transformers-torch"
        else _build_lmzoo
        if peer.startswith("lmzoo")
        else _build_keras_hub
    )
    generate = build(options)
    first = time_call(generate)

    def round() -> dict[str, float]:
        seconds = time_call(generate)
        return {
            "ms per token": 1000 * seconds / options["new"] / options["batch_size"],
            "first call s": first,
        }

    return round


def _draw_prompts(options: dict[str, Any]) -> np.ndarray:
    shape = (options["batch_size"], options["prompt"])
    return np.random.default_rng(1).integers(1000, VOCABULARY - 1, shape).astype("int32")


def _get_dtype(options: dict[str, Any]) -> str:
    return "bfloat16" if options["precision"] == "bf16" else "float32"


def _build_lmzoo(options: dict[str, Any]) -> Callable[[], object]:
    import lmzoo
    from lmzoo.families.gpt2 import FAMILY
    from lmzoo.text import BytePairTokenizer, Preprocessor

    words = ["".join(letters) for letters in itertools.product("abcde", repeat=3)]
    tokenizer = BytePairTokenizer.of_words(words, VOCABULARY, **FAMILY.special_tokens)
    backbone = lmzoo.models.Gpt2Backbone(
        vocabulary_size=VOCABULARY,
        **get_shape(options["size"]),
        max_sequence_length=POSITIONS,
        dtype=_get_dtype(options),
    )
    model = lmzoo.models.CausalLM(backbone, Preprocessor(tokenizer, FAMILY.packing, POSITIONS))
    rng = np.random.default_rng(1)
    prompts = [
        "".join(f" {word}" for word in rng.choice(words, options["prompt"])) for _ in range(options["batch_size"])
    ]
    assert {len(ids) for ids in tokenizer.tokenize(prompts)} == {options["prompt"]}
    return lambda: model.generate(prompts, max_new_tokens=options["new"], stop=None)


def _build_keras_hub(options: dict[str, Any]) -> Callable[[], object]:
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY,
        **get_shape(options["size"]),
        max_sequence_length=POSITIONS,
        dtype=_get_dtype(options),
    )
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    model.compile(sampler="greedy")
    room = ((0, 0), (0, options["new"]))
    ids = np.pad(_draw_prompts(options), room)
    mask = np.pad(np.ones_like(_draw_prompts(options)), room)
    inputs = {"token_ids": ids, "padding_mask": mask}
    return lambda: model.generate(inputs, stop_token_ids=None)


def _build_transformers(options: dict[str, Any]) -> Callable[[], object]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    names = ("n_layer", "n_head", "n_embd", "n_inner")
    shape = dict(zip(names, SIZES[options["size"]], strict=True))
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=POSITIONS, **shape)).eval()
    model = model.to(options["device"], getattr(torch, _get_dtype(options)))
    ids = torch.tensor(_draw_prompts(options), dtype=torch.long, device=options["device"])
    new = options["new"]

    def generate() -> object:
        with torch.inference_mode():
            return model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=new,
                max_new_tokens=new,
                do_sample=False,
                pad_token_id=VOCABULARY - 1,
            )

    return generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", choices=SIZES, default="base", help="base has the shape of GPT-2 with 124M parameters"
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens that are generated")
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", help="of torch")
    parser.add_argument("--name", default="generation", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    rows, summary = {}, {}
    peers = {peer: PEERS[peer] for peer in options["peers"]}
    for precision in options["precision"]:
        for batch_size in options["batch_sizes"]:
            key = f"{batch_size} at once, {precision}"
            chosen = {**options, "precision": precision, "batch_size": batch_size}
            rows[key] = interleave("generation", peers, chosen, options["rounds"])
            title = f"GPT-2 {options['size']}, {options['prompt']} + {options['new']} tokens, {key}"
            summary[key] = show(title, rows[key], MEASURES)
    console.print("A ratio above 1 says how many times slower than lmzoo on TensorFlow a peer is.")
    save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
