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

_MIN_SECONDS = 0.2  # reading a program that compiles faster saves nothing


def use_compilation_cache(directory: str | os.PathLike[str] | None = None, max_bytes: int = 2**30) -> Path | None:
    """Keep the programs that JAX compiles in files, from which later processes read them.

    A first `fit` on a few texts then takes about half the time. The `lmzoo` command always does this; in Python, call
    it before the first model. On other backends it does nothing. A damaged file is compiled again.

    Args:
        directory: path of the files; by default a directory for this version of jaxlib and this processor in lmzoo's
            cache, unless JAX has one already (`JAX_COMPILATION_CACHE_DIR`).
        max_bytes: int, size from which the files that were not used for the longest time are removed.

    Returns:
        The directory, or None on other backends.

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

    if directory is None and jax.config.jax_compilation_cache_dir:
        return Path(jax.config.jax_compilation_cache_dir)
    path = Path(directory or cache_directory() / "jax" / _machine()).expanduser().resolve()
    jax.config.update("jax_compilation_cache_dir", os.fspath(path))
    jax.config.update("jax_compilation_cache_max_size", max_bytes)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_SECONDS)
    compilation_cache.reset_cache()  # JAX may have opened another directory
    # A file that cannot be read or written costs no more than its compilation.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning)
    return path


def _machine() -> str:
    """Return a name for the version of jaxlib and the processor's instructions, on which programs depend."""
    try:
        instructions = re.findall(r"^(?:flags|Features)\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[:1]
    except OSError:
        instructions = []
    processor = " ".join([platform.machine(), platform.processor(), *instructions])
    return f"{importlib.metadata.version('jaxlib')}-{hashlib.sha256(processor.encode()).hexdigest()[:8]}"
