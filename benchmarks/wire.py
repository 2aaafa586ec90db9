"""Bytes that devices send each other in a training step, and the time of a step, for each layout of the weights.

A step of BERT's masked LM is compiled for eight virtual devices, and the collective operations are read from XLA's
program. Steps with other numbers of layers and tokens show how the bytes grow with each, which gives the bytes for
models of any depth and batches of any size: see docs/scale.md. Bytes are counted for each device, in float32, with ring
algorithms: an all-reduce of n bytes among d devices sends 2n(d - 1)/d, and the other operations n(d - 1)/d of the
whole.

The devices share the cores of this machine, so the seconds of a step show the cost of partitioning, not the gain from
several devices.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.common import JAX, ROOT, console, save

DEVICES = 8
MESHES = ("8x1", "4x2", "2x4", "1x8")
VOCABULARY = 30_528  # BERT's, padded so that eight devices can split it
BATCH = 8
# Layers and tokens in a sequence, for the slopes. The last layer only computes masked tokens, so it is a constant.
POINTS = ((2, 32), (3, 32), (2, 64), (3, 64))
BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "s32": 4, "u32": 4, "s8": 1, "u8": 1, "pred": 1}
COLLECTIVE = re.compile(r"= (.+?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
ARRAY = re.compile(r"\b([a-z]+\d+|pred)\[([\d,]*)\]")


def count_bytes_sent(program: str) -> dict[str, float]:
    """Return the bytes that each device sends in an XLA program, by kind of operation."""
    totals: dict[str, float] = {}
    for line in program.splitlines():
        for shapes, kind in COLLECTIVE.findall(line):
            devices = _read_group_size(line)
            size = sum(BYTES[d] * math.prod(int(n) for n in s.split(",") if n) for d, s in ARRAY.findall(shapes))
            whole = size * devices if kind == "reduce-scatter" else size  # its output is one part
            factor = 1.0 if kind == "collective-permute" else (1 + (kind == "all-reduce")) * (devices - 1) / devices
            totals[kind] = totals.get(kind, 0.0) + factor * whole
    return totals


def _read_group_size(line: str) -> int:
    """Return the number of devices in a group of a collective operation, which XLA writes in three ways."""
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return listed[1].count(",") + 1
    if sized := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(sized[1])
    if named := re.search(r"replica_groups=mesh\[(.*?)\].*? \{(.*?)\}", line):
        axes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
        return math.prod(axes[name] for name in re.findall(r"\w+", named[2]))
    return DEVICES


def train(mesh: str, width: int, layers: int, length: int, batch: int, steps: int) -> float:
    """Train in this process, on one device if there is no mesh, and return the seconds of a step."""
    import keras

    from lmzoo import models
    from lmzoo.parallel import layout_map
    from lmzoo.registry.family import families
    from lmzoo.text import Preprocessor, WordPieceTokenizer

    family = families()["bert"]
    words = [f"w{i}" for i in range(VOCABULARY - 5)]
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])

    def build() -> models.MaskedLM:
        backbone = family.backbone(
            vocabulary_size=VOCABULARY,
            num_layers=layers,
            num_heads=width // 64,
            hidden_dim=width,
            intermediate_dim=4 * width,
            max_sequence_length=length,
        )
        return models.MaskedLM(backbone, Preprocessor(tokenizer, family.packing, length))

    if mesh:
        shape = [int(size) for size in mesh.split("x")]
        devices = keras.distribution.DeviceMesh(shape, ("batch", "model"), keras.distribution.list_devices())
        layouts = layout_map(build(), devices)
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
        )
    task = build()
    rng, ends = np.random.default_rng(0), []
    texts = [" ".join(words[i] for i in rng.integers(len(words), size=length - 2)) for _ in range(batch * steps)]
    clock = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: ends.append(time.perf_counter()))
    task.fit(texts, batch_size=batch, verbose=0, callbacks=[clock])
    return statistics.median(np.diff(ends)[1:].tolist()) if steps > 3 else math.nan


def run(mesh: str, *sizes: int, dump: Path | None = None) -> float:
    """Call `train` in a process with eight devices, or one without a mesh, and let XLA write its programs to `dump`."""
    flags = [f"--xla_force_host_platform_device_count={DEVICES}"] if mesh else []
    flags += [f"--xla_dump_to={dump}", "--xla_dump_hlo_as_text", "--xla_dump_hlo_module_re=.*train.*"] if dump else []
    environment = {**os.environ, **JAX, "XLA_FLAGS": " ".join(flags), "JAX_ENABLE_COMPILATION_CACHE": "0"}
    command = [sys.executable, "-m", "benchmarks.wire", "--run", mesh, *map(str, sizes)]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {process.stderr[-800:]}")
    return float(process.stdout.split()[-1])


def count_bytes(mesh: str, width: int) -> dict[str, Any]:
    """Return the bytes of a step: a constant, and bytes per layer, per token on a device, and per layer and token."""
    totals: list[float] = []
    kinds: dict[str, float] = {}
    per_device = BATCH // int(mesh.split("x")[0])
    for layers, length in POINTS:
        with tempfile.TemporaryDirectory() as name:
            run(mesh, width, layers, length, BATCH, 2, dump=Path(name))
            (program,) = Path(name).glob("*jit_train_step*after_optimizations.txt")
            kinds = count_bytes_sent(program.read_text())
        totals.append(sum(kinds.values()))
    short1, short2, long1, long2 = totals
    tokens = per_device * (POINTS[2][1] - POINTS[0][1])
    per_layer_and_token = (long2 - long1 - short2 + short1) / tokens
    per_token = (long1 - short1) / tokens
    per_layer = short2 - short1 - per_layer_and_token * per_device * POINTS[0][1]
    per_token -= per_layer_and_token * (POINTS[0][0] - 1)
    constant = (
        short1
        - (POINTS[0][0] - 1) * per_layer
        - (per_token + per_layer_and_token * (POINTS[0][0] - 1)) * per_device * POINTS[0][1]
    )
    return {
        "constant": constant,
        "layer": per_layer,
        "token": per_token,
        "layer and token": per_layer_and_token,
        "kinds": kinds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=768, help="of the model whose bytes are counted")
    parser.add_argument("--meshes", nargs="+", default=MESHES, metavar="BATCHxMODEL")
    parser.add_argument("--rounds", type=int, default=3, help="of the steps that are timed; 0 to count only")
    parser.add_argument("--name", default="wire", help="name of the result file")
    parser.add_argument("--run", nargs=6, metavar="SIZE", help=argparse.SUPPRESS)
    options: dict[str, Any] = vars(parser.parse_args())
    if (arguments := options.pop("run")) is not None:
        print(train(arguments[0], *map(int, arguments[1:])))
        return
    counted = {}
    for mesh in options["meshes"]:
        with console.status(f"counting {mesh}"):
            counted[mesh] = count_bytes(mesh, options["width"])
    table = Table("mesh", "constant MB", "layer MB", "token kB", "layer and token kB", "operations of the last step")
    for mesh, sizes in counted.items():
        numbers = [f"{sizes[name] / unit:.2f}" for name, unit in
                   (("constant", 1e6), ("layer", 1e6), ("token", 1e3), ("layer and token", 1e3))]  # fmt: skip
        table.add_row(mesh, *numbers, ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in sizes["kinds"].items()))
    console.print(table)
    seconds: dict[str, list[float]] = {}
    for _ in range(options["rounds"]):
        for mesh in ("", *options["meshes"]):
            seconds.setdefault(mesh or "one device", []).append(run(mesh, 256, 4, 128, 32, 12))
    for mesh, values in seconds.items():
        console.print(f"{mesh}: {statistics.median(values):.3f} s a step, 4 x 256, 32 x 128 tokens, {values}")
    save(options["name"], options, bytes=counted, seconds=seconds)


if __name__ == "__main__":
    main()
