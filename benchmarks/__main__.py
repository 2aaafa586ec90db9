"""Run the benchmarks one after another: `python -m benchmarks [--quick] [NAME ...]`."""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.common import ROOT, console

QUICK = {
    "train_step": "--size small --batch-size 4 --length 64 --rounds 3 --precision fp32 "
    "--peers lmzoo-tf kerashub-tf lmzoo-jax transformers-torch",
    "xlnet_step": "--size tiny --batch-size 4 --length 32 --rounds 2",
    "encoder_step": "--size tiny --cases 2x16 1x1040:forward --precision fp32 --rounds 1 --steps 1",
    "finetune_epoch": "--size nano --sentences 512 --rounds 2 --peers lmzoo-tf lmzoo-jax transformers-grouped",
    "fit_overhead": "--steps 60 --rounds 3",
    "startup": "--size nano --rounds 1",
    "first_minute": "--rounds 1 --peers lmzoo-tf lmzoo-jax transformers",
    "albert_compile": "--size base --rounds 1",
    "elmo": "--size tiny --rounds 1",
    "load": "--layers 2 --rounds 1",
    "prepare": "--documents 50 --vocabulary-size 2000 --lengths 128",
    "streaming": "--gigabytes 0.1 --files 10 --steps 30",
    "wire": "--width 64 --meshes 4x2 --rounds 1",
    "scale_out": "--files 2 6 --characters 300000 --sentences 500 --rounds 1",
    "pretrain_speed": "--size tiny --paragraphs 300 --steps 5 --rounds 2",
    "task_speed": "--size tiny --sentences 64 --questions 16 --rounds 2 --peers lmzoo-tf lmzoo-jax transformers",
    "generation": "--size tiny --new 8 --rounds 2 --precision fp32",
    "language_model_step": "--size tiny --batch-size 2 --length 16 --vocabulary-size 1100 --rounds 2",
    "translation": "--family marian t5 --size tiny --batch-sizes 2 --length 7 --rounds 2",
    "packing": "--size tiny --sentences 64 --rounds 2 --peers lmzoo-tf lmzoo-tf-packed lmzoo-jax lmzoo-jax-packed",
    "growth": "--axes batch --values 2 --rounds 1 --steps 1",
    "local_attention": "--forms blocks mask --longest 128 --rounds 1 --steps 1",
    "serving_latency": "--sizes tiny --dtypes float32 --rounds 2",
    "real_weights": "--pairs 64 --sentences 64 --dev 64 --epochs 1 --rounds 2",
    "artifacts": "--epochs 1 --rounds 2",
    "embedding_speed": "--size tiny --lengths 32 --texts 64 --rounds 2",
}
# What `--quick` runs by default: the main paths of lmzoo, in 7 minutes on two cores with AVX-512 and 14 with AVX2.
MAIN = (
    "train_step",
    "finetune_epoch",
    "fit_overhead",
    "startup",
    "first_minute",
    "elmo",
    "prepare",
    "task_speed",
    "generation",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(QUICK)}; by default all")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"small models and few rounds; by default only {', '.join(MAIN)}: 7 to 14 minutes",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(QUICK):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(QUICK)}")
    failed = []
    for name in arguments.names or (MAIN if arguments.quick else QUICK):
        console.rule(name)
        extra = [*QUICK[name].split(), "--name", f"{name}_quick"] if arguments.quick else []
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *extra], cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        console.print(f"[red]failed:[/] {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
