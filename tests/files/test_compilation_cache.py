"""Compiled programs are cached in files on JAX, and damaged files do not matter."""

from __future__ import annotations

import os
import warnings

import keras
import pytest

import lmzoo
from lmzoo.files import compilation_cache


def test_other_backends_have_no_cache(tmp_path):
    if keras.backend.backend() == "jax":
        pytest.skip("tests other backends")
    assert lmzoo.use_compilation_cache(tmp_path) is None
    assert not list(tmp_path.iterdir())


@pytest.fixture
def jax(monkeypatch):
    """Return JAX without compiled programs; restore its settings afterwards."""
    jax = pytest.importorskip("jax")
    if keras.backend.backend() != "jax":
        pytest.skip("JAX compiles")
    from jax.experimental.compilation_cache import compilation_cache as cache

    names = ("compilation_cache_dir", "compilation_cache_max_size", "persistent_cache_min_compile_time_secs")
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
    monkeypatch.setattr(compilation_cache, "_MIN_SECONDS", 0)
    jax.config.update("jax_compilation_cache_dir", None)
    run_compiled(jax)  # JAX has compiled without a cache before
    yield jax
    for name, value in before.items():
        jax.config.update(name, value)
    cache.reset_cache()


def run_compiled(jax):
    """Return the result of a function that is compiled, or read from the cache."""
    jax.clear_caches()
    return float(jax.jit(lambda x: (3 * x - 2).sum())(keras.ops.arange(11, dtype="float32")))


@pytest.mark.parametrize(("count", "cached"), [(1, True), (2, False), (16, False)])
def test_virtual_devices_have_no_cache(jax, monkeypatch, tmp_path, count, cached):
    """Programs that are read from the cache would wait for each other forever."""
    monkeypatch.setenv("XLA_FLAGS", f"--xla_cpu_use=1 --xla_force_host_platform_device_count={count} --other=3")
    assert lmzoo.use_compilation_cache(tmp_path) == (tmp_path.resolve() if cached else None)
    assert (jax.config.jax_compilation_cache_dir is not None) == cached


def test_programs_are_written_and_read(jax, tmp_path):
    warnings.simplefilter("error")
    directory = lmzoo.use_compilation_cache(tmp_path / "programs")
    assert directory == (tmp_path / "programs").resolve()
    assert run_compiled(jax) == 143
    programs = {path: path.read_bytes() for path in directory.glob("*-cache")}
    assert programs
    assert run_compiled(jax) == 143
    assert {path: path.read_bytes() for path in directory.glob("*-cache")} == programs
    for path in programs:
        path.write_bytes(programs[path][:101])
    assert run_compiled(jax) == 143


def test_an_unwritable_directory_is_ignored(jax, tmp_path):
    warnings.simplefilter("error")
    (tmp_path / "file").touch()
    lmzoo.use_compilation_cache(tmp_path / "file" / "programs")
    assert run_compiled(jax) == 143


def test_the_default_directory_depends_on_the_version(jax, tmp_path, monkeypatch):
    monkeypatch.setenv("LMZOO_CACHE", os.fspath(tmp_path))
    directory = lmzoo.use_compilation_cache()
    assert directory.is_relative_to(tmp_path.resolve())
    assert jax.__version__ in directory.name
    jax.config.update("jax_compilation_cache_dir", os.fspath(tmp_path / "of_the_user"))
    assert lmzoo.use_compilation_cache() == tmp_path / "of_the_user"
