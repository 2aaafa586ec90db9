"""The files of `examples/clusters`: they start valid commands, and processes that meet."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import yaml
from typer.main import get_command

from lmzoo import models
from lmzoo.families.bert import FAMILY
from lmzoo.testing import tiny_backbone, tiny_preprocessor
from lmzoo_cli.main import app

BACKEND = keras.backend.backend()


def documents(root, name):
    return [*yaml.safe_load_all((root / "examples/clusters" / name).read_text("utf-8"))]


def parse_options(command):
    """Return the options of a command of lmzoo."""
    program, name, *arguments = command
    assert program == "lmzoo"
    return get_command(app).commands[name].make_context(name, arguments).params


def test_kuberay_starts_a_valid_command(root):
    (job,) = documents(root, "kuberay.yaml")
    options = parse_options(shlex.split(job["spec"]["entrypoint"]))
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert options["workers"] == group["replicas"]
    assert options["ray"] == "auto"


def test_kubernetes_starts_a_valid_command(root):
    service, job = documents(root, "kubernetes.yaml")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = parse_options([*container["command"], *container["args"]])
    assert options["workers"] is None
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert int(variables["KERAS_DISTRIBUTION_NUM_PROCESSES"]) == job["spec"]["completions"]
    host, _, port = variables["KERAS_DISTRIBUTION_JOB_ADDRESSES"].partition(":")
    assert host == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert port.isdecimal()
    assert "KERAS_DISTRIBUTION_PROCESS_ID" in variables


# Starts two tasks, with the variables of Slurm 22.05.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for task in 0 1; do SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & done
wait -n && wait -n
"""


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason=f"needs the JAX backend, this is {BACKEND}")
def test_two_tasks_of_slurm_train_one_model(root, tmp_path):
    models.MaskedLM(tiny_backbone(FAMILY, num_layers=1), tiny_preprocessor(FAMILY)).save_to_preset(tmp_path / "preset")
    (tmp_path / "texts.tsv").write_text("text\tlabel\n" + "a\tgood\nb\tbad\nc\tgood\n")
    programs = {"srun": SRUN, "lmzoo": f'#!/bin/bash\nexec {sys.executable} -m lmzoo_cli "$@"\n'}
    for name, text in programs.items():
        Path(tmp_path, name).write_text(text)
        Path(tmp_path, name).chmod(0o755)
    slurm = {
        "SLURM_JOB_ID": "1301",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
    }
    model = ["--task", "classifier", "--preset", "preset", "--sequence-length", "16", "--output", "model.keras"]
    result = subprocess.run(
        ["bash", str(root / "examples/clusters/slurm.sh"), "fit", "texts.tsv", *model, "--checkpoint", "states"],
        cwd=tmp_path,
        env={**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stderr.count("Wrote model.keras.") == 1
    assert result.stdout.count("training loss") == 1
    assert keras.saving.load_model(tmp_path / "model.keras").labels == ("bad", "good")
