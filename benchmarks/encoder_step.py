"""One train step and one forward pass of classifiers in the shapes of ModernBERT, DeBERTa-v3 and MPNet.

A case is a number of texts and their length in tokens, such as 8x128, without padding; `:forward` leaves out the train
step. Every peer has AdamW and the step that its library compiles by default. Dropout has the published rates, which are
the defaults of all libraries: 0 for ModernBERT, 0.1 for the other families. transformers chooses its attention itself;
`transformers-eager` is ModernBERT with `attn_implementation="eager"`, which the other families always have.

KerasHub has no MPNet, and ModernBERT only in versions after 0.32. `--keras-hub-path` is a directory with another
version of it: `pip install --no-deps --target DIRECTORY keras-hub-nightly`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common import Rows, console, interleave, save, show, warn_if_busy
from benchmarks.models import SIZES
from benchmarks.steps import (
    FORWARD,
    KERAS_DTYPES,
    LEARNING_RATE,
    TRAIN,
    Steps,
    compile_lmzoo,
    make_batch,
    make_keras_steps,
    make_parser,
    make_torch_steps,
    measure_steps,
)
from benchmarks.steps import PEERS as STEP_PEERS

EAGER = "transformers-eager"
PEERS = {**STEP_PEERS, EAGER: STEP_PEERS["transformers-torch"]}
# Groups of peers that fit into memory together, with 4 to 6 GiB each; each is compared with the first peer.
GROUPS = {
    "tf": ("lmzoo-tf", "kerashub-tf", "transformers-torch", EAGER),
    "jit": ("lmzoo-tf", "lmzoo-tf-jit"),
    "jax": ("lmzoo-jax", "kerashub-jax", "transformers-torch", EAGER),
}
MAX_TOKENS_TOGETHER = 1024  # with more tokens in a batch, only one process is in memory
CASE = re.compile(r"(\d+)x(\d+)(:forward)?")


@dataclass(frozen=True)
class Encoder:
    """An encoder in all libraries.

    Args:
        title: Name of the published model.
        class_name: Name of lmzoo's and KerasHub's backbones, without "Backbone".
        model_type: Name of the model in transformers.
        vocabulary_size: Number of tokens.
        max_length: Number of positions.
        sizes: Layers, heads, hidden width and intermediate width, by the name of the size.
        cases: Cases that are measured by default.
        settings: Arguments of transformers' configuration in which the published models differ from its defaults.
        added_positions: Positions that transformers counts in addition to `max_length`.
        has_positions: Whether KerasHub's backbone has the argument `max_sequence_length`.
        has_fused_attention: Whether transformers' default differs from `attn_implementation="eager"`.
    """

    title: str
    class_name: str
    model_type: str
    vocabulary_size: int
    max_length: int
    sizes: dict[str, tuple[int, int, int, int]]
    cases: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    added_positions: int = 0
    has_positions: bool = True
    has_fused_attention: bool = False


FAMILIES = {
    "modernbert": Encoder(
        title="ModernBERT",
        class_name="ModernBert",
        model_type="modernbert",
        vocabulary_size=50_368,
        max_length=8192,
        sizes={"tiny": (4, 2, 32, 48), "base": (22, 12, 768, 1152)},
        cases=("8x128", "1x2048", "1x8192:forward"),
        has_positions=False,
        has_fused_attention=True,
    ),
    "deberta_v3": Encoder(
        title="DeBERTa-v3",
        class_name="DebertaV3",
        model_type="deberta-v2",
        vocabulary_size=128_100,
        max_length=512,
        sizes=SIZES,
        cases=("8x128", "1x2048"),
        settings={
            "norm_rel_ebd": "layer_norm",
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "position_buckets": 256,
            "relative_attention": True,
            "share_att_key": True,
        },
    ),
    "mpnet": Encoder(
        title="MPNet",
        class_name="Mpnet",
        model_type="mpnet",
        vocabulary_size=30_527,
        max_length=512,
        sizes=SIZES,
        cases=("8x128", "2x512"),
        settings={"layer_norm_eps": 1e-5},
        added_positions=2,
    ),
}


def read_case(case: str) -> tuple[int, int, bool]:
    """Parse a case into the texts in a batch, the tokens in a text, and whether only the forward pass is measured.

    Raises:
        argparse.ArgumentTypeError: For a case that is not like 8x128 or 1x8192:forward.
    """
    match = CASE.fullmatch(case)
    if match is None:
        raise argparse.ArgumentTypeError(f"a case must be like 8x128 or 1x8192:forward, got {case!r}")
    return int(match[1]), int(match[2]), match[3] is not None


def check_case(case: str) -> str:
    """Return the case unchanged if `read_case` can parse it."""
    read_case(case)
    return case


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the classifier, run its functions, which compiles them, and return a function that measures a round."""
    batch_size, length, is_forward_only = read_case(options["case"])
    encoder = FAMILIES[options["family"]]
    if peer.startswith("lmzoo"):
        build = _build_lmzoo
    elif peer.startswith("kerashub"):
        build = _build_keras_hub
    else:
        build = _build_transformers
    features, labels = make_batch(encoder.vocabulary_size, batch_size, length)
    del features["segment_ids"]
    settings = {**options, "positions": max(encoder.max_length, length)}
    steps = build(peer, encoder, settings, features, labels)
    if is_forward_only:
        del steps[TRAIN]
    return measure_steps(steps, options["steps"])


def _get_shape(encoder: Encoder, options: dict[str, Any]) -> dict[str, int]:
    """Return the arguments that lmzoo's and KerasHub's backbones have in common."""
    names = ("num_layers", "num_heads", "hidden_dim", "intermediate_dim")
    shape = dict(zip(names, encoder.sizes[options["size"]], strict=True))
    return {"vocabulary_size": encoder.vocabulary_size, **shape}


def _build_lmzoo(peer: str, encoder: Encoder, options: dict[str, Any], features: Any, labels: Any) -> Steps:
    import lmzoo

    backbone = getattr(lmzoo.models, f"{encoder.class_name}Backbone")(
        **_get_shape(encoder, options),
        max_sequence_length=options["positions"],
        dtype=KERAS_DTYPES[options["precision"]],
    )
    model = compile_lmzoo(lmzoo.models.TextClassifier(backbone, num_classes=2), peer)
    return make_keras_steps(model, features, labels)


def _build_keras_hub(peer: str, encoder: Encoder, options: dict[str, Any], features: Any, labels: Any) -> Steps:
    import keras
    import keras_hub

    if not hasattr(keras_hub.models, f"{encoder.class_name}Backbone"):
        raise ImportError(f"KerasHub {keras_hub.__version__} has no {encoder.title}.")
    positions = {"max_sequence_length": options["positions"]} if encoder.has_positions else {}
    backbone = getattr(keras_hub.models, f"{encoder.class_name}Backbone")(
        **_get_shape(encoder, options), **positions, dtype=KERAS_DTYPES[options["precision"]]
    )
    model = getattr(keras_hub.models, f"{encoder.class_name}TextClassifier")(backbone, num_classes=2)
    model.compile(optimizer=keras.optimizers.AdamW(LEARNING_RATE, weight_decay=0.01))
    return make_keras_steps(model, features, labels)


def _build_transformers(peer: str, encoder: Encoder, options: dict[str, Any], features: Any, labels: Any) -> Steps:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    names = ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size")
    config = AutoConfig.for_model(
        encoder.model_type,
        vocab_size=encoder.vocabulary_size,
        num_labels=2,
        max_position_embeddings=options["positions"] + encoder.added_positions,
        **dict(zip(names, encoder.sizes[options["size"]], strict=True)),
        **encoder.settings,
    )
    attention = {"attn_implementation": "eager"} if peer == EAGER else {}
    model = AutoModelForSequenceClassification.from_config(config, **attention)
    batch = {
        "input_ids": torch.tensor(features["token_ids"], dtype=torch.long),
        "attention_mask": torch.tensor(features["padding_mask"], dtype=torch.long),
    }
    return make_torch_steps(model, batch, labels, options["precision"])


def choose_peers(family: str, group: str, options: dict[str, Any], keras_hub_path: str | None) -> dict[str, Any]:
    """Return the environment variables of the chosen peers in a group."""
    chosen = {peer: PEERS[peer] for peer in GROUPS[group] if peer in options["peers"]}
    if not FAMILIES[family].has_fused_attention:
        chosen.pop(EAGER, None)
    if keras_hub_path is None:
        return chosen
    paths = [keras_hub_path, os.environ.get("PYTHONPATH", "")]
    keras_hub_first = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return {
        peer: {**environment, **keras_hub_first} if peer.startswith("kerashub") else environment
        for peer, environment in chosen.items()
    }


def find_keras_hub_version(path: str) -> str:
    """Return the version of the KerasHub in a directory.

    Raises:
        ValueError: If the directory contains none.
    """
    for distribution in importlib.metadata.distributions(path=[path]):
        if distribution.metadata["Name"].startswith("keras-hub"):
            return distribution.version
    raise ValueError(f"{path} contains no KerasHub. Install it there with `pip install --no-deps --target`.")


def main() -> None:
    parser = make_parser(__doc__, "encoder_step", ("tiny", "base"), PEERS, GROUPS)
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--cases", nargs="+", type=check_case, help="by default, the cases of the family")
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--keras-hub-path", help="directory with the KerasHub to measure, by default the installed one")
    parser.set_defaults(rounds=3)
    options = vars(parser.parse_args())
    keras_hub_path = options.pop("keras_hub_path")
    versions = {} if keras_hub_path is None else {"keras_hub": find_keras_hub_version(keras_hub_path)}
    warn_if_busy()
    rows: dict[str, Rows] = {}
    summary: dict[str, Any] = {}
    for family in options["family"]:
        for case in options["cases"] or FAMILIES[family].cases:
            batch_size, length, _ = read_case(case)
            for precision in options["precision"]:
                for group in options["group"]:
                    peers = choose_peers(family, group, options, keras_hub_path)
                    settings = {**options, "family": family, "case": case, "precision": precision}
                    key = f"{family} {case} {group} {precision}"
                    is_fresh = batch_size * length > MAX_TOKENS_TOGETHER
                    rows[key] = interleave("encoder_step", peers, settings, options["rounds"], fresh=is_fresh)
                    title = f"{FAMILIES[family].title}-{options['size']} {batch_size} x {length}, {group} {precision}"
                    summary[key] = show(title, rows[key], (TRAIN, FORWARD, "peak memory GiB"))
                    save(options["name"], options, **versions, rows=rows, summary=summary)
    console.print("A ratio above 1 says how many times slower than lmzoo a peer is.")


if __name__ == "__main__":
    main()
