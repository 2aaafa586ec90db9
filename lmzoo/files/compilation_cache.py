"""Cache of the programs that JAX compiles."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import warnings
from pathlib import Path

import keras

from lmzoo.files.cache import cache_directory

_VIRTUAL_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(?!1\b)\d")
_MIN_SECONDS = 0.2  # caching programs that compile faster saves no time


def use_compilation_cache(directory: str | os.PathLike[str] | None = None, max_bytes: int = 2**30) -> Path | None:
    """Cache on disk the programs that JAX compiles, so that later processes can load them.

    The first `fit` on a few texts then takes about half as long. The `lmzoo` command always uses the cache; in Python,
    call this function before you build the first model. It has no effect on other backends, or with several virtual
    devices on one processor. If a file is damaged, its program is compiled again.

    Args:
        directory: path of the cache; by default, the directory that JAX already uses (`JAX_COMPILATION_CACHE_DIR`) or,
            without one, a directory in lmzoo's cache for this jaxlib version and processor.
        max_bytes: int, maximum size of the cache; beyond it, the least recently used files are removed. Ignored for a
            directory that JAX already uses.

    Returns:
        The directory of the cache, or None if programs are not cached.

    Example:

    ```python
    import lmzoo

    lmzoo.use_compilation_cache("programs")
    ```
    """
    if keras.backend.backend() != "jax":
        return None
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    # Programs for several devices of one processor, read from a cache, wait for each other forever (jaxlib 0.10).
    if jax.config.jax_num_cpu_devices > 1 or _VIRTUAL_DEVICES.search(os.environ.get("XLA_FLAGS", "")):
        return None
    if directory is None and jax.config.jax_compilation_cache_dir:
        return Path(jax.config.jax_compilation_cache_dir)
    cache_path = Path(directory or cache_directory() / "jax" / _identify_machine()).expanduser().resolve()
    jax.config.update("jax_compilation_cache_dir", os.fspath(cache_path))
    jax.config.update("jax_compilation_cache_max_size", max_bytes)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_SECONDS)
    compilation_cache.reset_cache()  # JAX may have opened another directory
    # If a file cannot be read or written, the only cost is compiling its program.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning)
    return cache_path


def _identify_machine() -> str:
    """Return an identifier of the jaxlib version and the processor's instruction set, on which programs depend."""
    try:
        instructions = re.findall(r"^(?:flags|Features)\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[:1]
    except OSError:
        instructions = []
    processor = " ".join([platform.machine(), platform.processor(), *instructions])
    return f"{importlib.metadata.version('jaxlib')}-{hashlib.sha256(processor.encode()).hexdigest()[:8]}"
