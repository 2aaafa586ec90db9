"""The command `lmzoo env`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from pathlib import Path

from lmzoo_cli.output import show_parts
from lmzoo_cli.preset_commands import describe_place

# Instructions on which the speed and the last digits of results depend: x86's, then ARM's.
_INSTRUCTIONS = (
    "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8",
    "asimd", "sve", "bf16", "i8mm",
)  # fmt: skip
_CPU_INFO = Path("/proc/cpuinfo")  # only Linux has this file
# Named one by one, since variables with the same prefixes may be secret: TF_VAR_* are Terraform's.
_VARIABLES = (
    "KERAS_BACKEND", "TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_XLA_FLAGS",
    "TF_FORCE_GPU_ALLOW_GROWTH", "XLA_FLAGS", "XLA_PYTHON_CLIENT_MEM_FRACTION", "JAX_PLATFORMS", "JAX_ENABLE_X64",
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "RAYON_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "HF_HUB_OFFLINE",
    "LMZOO_CACHE", "LMZOO_PRESETS",
)  # fmt: skip


def env() -> None:
    """Print versions, backend, processor, threads, presets and settings, for a bug report.

    If lmzoo cannot be imported, the error is shown. On a terminal, the output is a table; in a pipe or a file,
    tab-separated lines. It contains no tokens or passwords; look through the paths before you publish it.
    """
    # Read before `_load_backend`: importing lmzoo sets TF_ENABLE_ONEDNN_OPTS, and the report shows the user's settings.
    settings = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    entries = {
        "lmzoo": importlib.metadata.version("lmzoo"),
        "Python": platform.python_version() + (" (conda)" if Path(sys.prefix, "conda-meta").is_dir() else ""),
        "system": platform.platform(),
        **_read_processor(),
        **_read_versions(),
        **_load_backend(),
    }
    show_parts({**entries, "settings": " ".join(settings) or "none"})


def _read_processor() -> dict[str, str]:
    """Return the processor's name, the instructions on which results depend, and the number of cores."""
    cpu_info = _CPU_INFO.read_text("utf-8") if _CPU_INFO.exists() else ""
    name_match = re.search(r"^model name\s*:\s*(.+)$", cpu_info, re.MULTILINE)
    flags_match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpu_info, re.MULTILINE)
    cpu_flags = flags_match[1].split() if flags_match else []
    num_usable_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": name_match[1] if name_match else platform.processor() or platform.machine(),
        "instructions": " ".join(instruction for instruction in _INSTRUCTIONS if instruction in cpu_flags) or "unknown",
        "cores": f"{num_usable_cores} of {os.cpu_count()}",
    }


def _read_versions() -> dict[str, str]:
    """Return the version of each dependency, and in one line the installed packages of the extras."""
    required_versions = {}
    extra_versions = {}
    for requirement in importlib.metadata.requires("lmzoo") or ():
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if "extra ==" not in requirement:
            required_versions[name] = version or "not installed"
        elif version and name != "lmzoo":
            extra_versions[name] = version
    extra_packages = [
        f"{name} {extra_versions[name]}" for name in sorted(extra_versions.keys() - required_versions.keys())
    ]
    return {**required_versions, "extras": ", ".join(extra_packages) or "none"}


def _load_backend() -> dict[str, str]:
    """Return the backend with its devices and threads, and the presets, or the error if lmzoo cannot be imported."""
    try:
        import lmzoo  # before keras, as in users' code
    except Exception as error:  # an import may fail with anything, and that is what the report is for
        return {"backend": f"cannot be imported: {type(error).__name__}: {' '.join(str(error).split())}"}
    import keras

    backend = keras.backend.backend()
    presets = lmzoo.list_presets().values()
    shipped_names = [info.name for info in presets if describe_place(info) == "package"]
    local_names = [info.name for info in presets if describe_place(info) == "local"]
    num_published = len(presets) - len(shipped_names) - len(local_names)
    return {
        "backend": f"{backend} on {', '.join(keras.distribution.list_devices())}",
        "threads": _describe_threads(backend),
        "presets": f"{' '.join(shipped_names)}; local: {' '.join(local_names) or 'none'}; to download: {num_published}",
    }


def _describe_threads(backend: str) -> str:
    """Describe TensorFlow's numbers of threads within and across operations, or name the backend that chooses."""
    if backend != "tensorflow":
        return f"chosen by {backend}"
    import tensorflow as tf

    intra_op_threads = tf.config.threading.get_intra_op_parallelism_threads() or "all cores"
    inter_op_threads = tf.config.threading.get_inter_op_parallelism_threads() or "all cores"
    return f"{intra_op_threads} for an operation, {inter_op_threads} for several operations"
