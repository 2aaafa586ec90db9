"""Fixtures and hooks for all tests: backend, seed, eager tasks, memory, optional data, and marks of slow cases."""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if "PYTEST_XDIST_WORKER" in os.environ:
    # There is a worker for each processor: more threads would only wait for each other.
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
os.environ.setdefault("XLA_FLAGS", "")
if os.environ.get("LMZOO_FULL_OPTIMIZATION") != "1" and "optimization_level" not in os.environ["XLA_FLAGS"]:
    # XLA would spend most of the time on optimizing code that runs once. `make test-all` runs with full optimization.
    os.environ["XLA_FLAGS"] = (
        f"{os.environ['XLA_FLAGS']} --xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0 "
        "--xla_llvm_disable_expensive_passes=true"
    )

import keras
import pytest

from lmzoo.common.tensorflow_kernels import warn_if_onednn_is_off
from lmzoo.tasks.base.task import Task
from tests.web import web  # noqa: F401 - a fixture

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    warn_if_onednn_is_off()  # Keras was imported first; the warning comes once, and so not in a test of `fit`
    # Keras has seeds of its own. For each new seed TensorFlow would create the kernels of all operations again, which
    # takes a fifth of the time of the tests.
    tf.random.set_seed(1301)
    tf.random.set_seed = lambda seed: None

# Nobody needs the files of tests after a power cut, and waiting for the disk would take half a minute.
os.fsync = lambda descriptor: None

ROOT = Path(__file__).resolve().parents[1]
BACKEND = keras.backend.backend()
# Datasets outside the repository. Tests that use them are skipped if they are missing.
SHARED = Path(os.environ.get("LMZOO_SHARED", ROOT.parent / "shared"))
REAL_WEIGHTS = {"minilm": ROOT / "real_weights/all-minilm-l6-v2", "mpnet": ROOT / "real_weights/all-mpnet-base-v2"}


def pytest_report_header() -> str:
    return f"keras {keras.version()}, {BACKEND} backend, shared data: {'yes' if SHARED.is_dir() else 'no'}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--about", metavar="NAME", help="only tests of a family or a task, such as electra or TextEmbedder"
    )


def _is_about(item: pytest.Item, name: str) -> bool:
    """Return whether a test is about a family or a task, by its parameters, its file name or the layer that it tests.

    Slow tests only count in the conformance suite.
    """
    if item.get_closest_marker("slow") and item.path.parent.name != "conformance":
        return False
    words = re.findall(r"\w+", item.name.partition("[")[2])
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    module = getattr(parameters.get("cls"), "__module__", "")  # the class of a layer
    if item.name == "test_every_layer_is_a_case" or module.startswith(f"lmzoo.families.{name}."):
        return True
    return name in words or item.path.stem == "test_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _is_slow_case(item: pytest.Item) -> bool:
    """Return whether a mark of a parametrized test leaves this case to `make test-all`."""
    case = item.callspec.id if hasattr(item, "callspec") else ""
    slow = [mark.args for mark in item.iter_markers("slow_cases")]
    quick = [mark.args for mark in item.iter_markers("quick_cases")]
    return any(case in cases for cases in slow) or any(case not in cases for cases in quick)


def _check_marked_cases(items: list[pytest.Item]) -> None:
    """Raise an error if a mark names a case that does not exist, such as one that was renamed."""
    collected = {item.nodeid for item in items}
    for item in items:
        for mark in (*item.iter_markers("slow_cases"), *item.iter_markers("quick_cases")):
            function = item.nodeid.partition("[")[0]
            if missing := [case for case in mark.args if f"{function}[{case}]" not in collected]:
                raise pytest.UsageError(f"{function} has no case {missing[0]!r}, which its mark `{mark.name}` names")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any("::" in argument for argument in config.args):  # a single test lacks its other cases
        _check_marked_cases(items)
    for item in items:
        if _is_slow_case(item):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and str(zlib.crc32(item.nodeid.encode()) % 10) == os.environ.get("TENTH"):
            item.add_marker(pytest.mark.tenth)
        has_name = "float16" in item.nodeid or "half_precision" in item.nodeid
        in_half_precision = has_name or item.get_closest_marker("half_precision")
        if in_half_precision and _forbids_kernels_for_half_precision():
            reason = (
                "TensorFlow calls oneDNN for half precision if the processor has AVX-512, and dies if oneDNN may not "
                "use it"
            )
            item.add_marker(pytest.mark.skip(reason=reason))
    if name := config.getoption("--about"):
        items[:] = [item for item in items if _is_about(item, name)]
    if BACKEND != "tensorflow":
        for item in items:
            if item.get_closest_marker("tf_only"):
                item.add_marker(pytest.mark.skip(reason=f"needs the TensorFlow backend, this is {BACKEND}"))


@functools.cache
def _forbids_kernels_for_half_precision() -> bool:
    """Return whether oneDNN may not use AVX-512, for which TensorFlow chooses its half-precision kernels."""
    processor = Path("/proc/cpuinfo")
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    has_instructions = processor.exists() and "avx512f" in processor.read_text("utf-8")
    return BACKEND == "tensorflow" and limit.startswith(("SSE", "AVX2", "AVX_")) and has_instructions


def pytest_collection_finish() -> None:
    _freeze()


def _freeze() -> None:
    """Exclude all existing objects from garbage collection.

    Keras collects garbage for every variable that a layer deletes, and imports alone create a million objects.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """Let Ctrl-C reach tests and their processes even if a shell runs them in the background."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed() -> None:
    keras.utils.set_random_seed(1301)


_compile = Task.compile


def _compile_eagerly(self: Task, *args: Any, **kwargs: Any) -> None:
    eagerly = {} if kwargs.keys() & {"jit_compile", "run_eagerly"} else {"run_eagerly": True}
    _compile(self, *args, **kwargs, **eagerly)


@pytest.fixture
def eager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tasks eagerly on TensorFlow, unless the test is marked `compiled` or passes an option of compilation.

    Tracing and compiling a tiny model takes seconds; running it takes milliseconds.
    """
    if BACKEND == "tensorflow":
        compiled = request.node.get_closest_marker("compiled")
        monkeypatch.setattr(Task, "compile", _compile if compiled else _compile_eagerly)


@pytest.fixture(scope="session")
def _modules_with_compiled_tests(request: pytest.FixtureRequest) -> set[Path]:
    """Return the files of tests that do not all run eagerly."""
    return {item.path for item in request.session.items if "eager" not in item.fixturenames}


@pytest.fixture(autouse=True, scope="module")
def _eager_module(request: pytest.FixtureRequest, _modules_with_compiled_tests: set[Path]) -> Iterator[None]:
    """Build the tasks of a module's fixtures for eager execution if all tests of the module run eagerly."""
    eager = request.path not in _modules_with_compiled_tests and not request.node.get_closest_marker("compiled")
    with pytest.MonkeyPatch.context() as patch:
        if BACKEND == "tensorflow" and eager:
            patch.setattr(Task, "compile", _compile_eagerly)
        yield


@pytest.fixture(autouse=True, scope="module")
def _forget_module() -> Iterator[None]:
    """Free the compiled functions and graphs of a module's tests, which would fill the memory."""
    yield
    _forget()


@pytest.fixture(autouse=True)
def _forget_early() -> Iterator[None]:
    """Free compiled functions and graphs within a module whenever the process has grown by half a gigabyte."""
    yield
    if _memory_in_use() > _memory_after_freeing + 5e8:
        _forget()


def _memory_in_use() -> int:
    """Return the bytes of memory that this process uses, or 0 on systems without `/proc`."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


_memory_after_freeing = 0  # bytes


def _forget() -> None:
    global _memory_after_freeing
    keras.backend.clear_session()
    if BACKEND == "jax":
        import jax

        jax.clear_caches()
    if BACKEND == "tensorflow":
        # TensorFlow never frees the custom gradients of a graph, which keep the graph, the model and XLA's code in
        # memory: 70 MB for each compiled tiny model.
        from tensorflow.python.framework import ops

        registry = ops.gradient_registry._registry
        for name in [name for name in registry if name.startswith("CustomGradient-")]:
            del registry[name]
    _freeze()
    _memory_after_freeing = _memory_in_use()


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the top directory of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def backend() -> str:
    """Return the name of the Keras backend: tensorflow, jax or torch."""
    return BACKEND


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """Return a function that finds a path in the shared development data, or skips the test if it is missing."""

    def path_of(relative: str) -> Path:
        if not (path := SHARED / relative).exists():
            pytest.skip(f"{path} is missing")
        return path

    return path_of


@pytest.fixture(scope="session", params=["minilm", pytest.param("mpnet", marks=pytest.mark.slow)])
def real_weights(request: pytest.FixtureRequest) -> Path:
    """Return the directory of the weights that `make minilm` or `make mpnet` downloads, or skip the test without it."""
    folder = REAL_WEIGHTS[request.param]
    if not folder.is_dir():
        pytest.skip(f"{folder.relative_to(ROOT)} is missing: run `make {request.param}`")
    return folder


@pytest.fixture
def no_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the garbage collection after each weight that Keras quantizes, which takes seconds."""
    monkeypatch.setattr("gc.collect", lambda: 0)
