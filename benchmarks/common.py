"""The harness: one process per peer. Peers take turns, so that a slow moment of the machine affects all of them alike.

A benchmark is a module with `PEERS`, a dict from a peer's name to its environment variables, and
`prepare(peer, options)`, which runs in the peer's process and returns a function. Each call of that function is one
round and returns a dict of numbers.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")
SHARED = Path(os.environ.get("LMZOO_SHARED", ROOT.parent / "shared"))
TENSORFLOW = {"KERAS_BACKEND": "tensorflow"}
JAX = {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # peers share a GPU
TORCH = {"KERAS_BACKEND": "torch"}
PACKAGES = (
    "keras",
    "tensorflow",
    "tensorflow-text",
    "jax",
    "keras-hub",
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "numpy",
    "ray",
)
INSTRUCTIONS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
)  # instruction sets that make processors differ in speed

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
Rows = dict[str, list[dict[str, float]]]
console = Console()


class Worker:
    """A peer's process, which prepares itself and then runs one round on each request.

    Args:
        module: Name of the benchmark's module.
        peer: Name of the peer.
        options: Options that are passed to the module's `prepare`.
        environment: Environment variables to set.
    """

    def __init__(self, module: str, peer: str, options: dict[str, Any], environment: dict[str, str]) -> None:
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - kept open
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.common", module, peer, json.dumps(options)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def answer(self) -> dict[str, Any]:
        """Return the next reply of the process, or `{"skip": reason}` if it has ended."""
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.log.seek(0)
        lines = [line for line in self.log.read().splitlines() if line.strip()]
        return {"skip": f"exit status {self.process.returncode}: " + "\n".join(lines[-12:])}

    def round(self) -> dict[str, Any]:
        """Request a round and wait for its numbers."""
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` reports why
        return self.answer()

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def interleave(
    module: str, peers: dict[str, dict[str, str]], options: dict[str, Any], rounds: int, fresh: bool = False
) -> Rows:
    """Run `rounds` rounds, each with all peers in turn, and return all numbers.

    Peers that cannot start, or fail, are left out of the following rounds, with a message. With `fresh`, each round
    starts new processes, for peers that do not fit into memory together.
    """
    rows: Rows = {}
    workers: dict[str, Worker] = {}
    remaining = list(peers)
    columns = (TextColumn("{task.description:<44}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        bar = progress.add_task(module, total=len(peers) * (2 * rounds if fresh else rounds + 1))

        def take(peer: str, reply: dict[str, Any]) -> bool:
            progress.advance(bar)
            if "skip" in reply:
                console.print(f"[yellow]{peer} left out:[/] {reply['skip']}", highlight=False)
                workers.pop(peer).close()
                remaining.remove(peer)
            return "skip" not in reply

        def start(peer: str) -> None:
            progress.update(bar, description=f"{module}: starting {peer}")
            workers[peer] = Worker(module, peer, options, peers[peer])
            take(peer, workers[peer].answer())

        try:
            for peer in peers:
                if not fresh:
                    start(peer)
            for _ in range(rounds):
                for peer in list(remaining):
                    if fresh:
                        start(peer)
                    progress.update(bar, description=f"{module}: {peer}")
                    if peer in workers and take(peer, reply := workers[peer].round()):
                        rows.setdefault(peer, []).append(reply)
                    if fresh and peer in workers:
                        workers.pop(peer).close()
        finally:
            for worker in workers.values():
                worker.close()
    return rows


def summarize(rows: Rows, measure: str, skip: int = 0) -> dict[str, dict[str, float]]:
    """Return the median of a measure for each peer, and the median over rounds of its ratio to the first peer.

    Args:
        rows: Numbers of each round, by peer.
        measure: Name of the number.
        skip: Number of rounds to leave out at the start.
    """
    values = {peer: [row[measure] for row in rounds[skip:] if measure in row] for peer, rounds in rows.items()}
    values = {peer: numbers for peer, numbers in values.items() if numbers}
    first = next(iter(values.values()), [])
    return {
        peer: {
            "median": statistics.median(numbers),
            "low": min(numbers),
            "high": max(numbers),
            "ratio": statistics.median(n / base for n, base in zip(numbers, first, strict=False)),
        }
        for peer, numbers in values.items()
    }


def show(title: str, rows: Rows, measures: Iterable[str], skip: int = 0) -> dict[str, Any]:
    """Print a table of medians and ratios for each measure, and return the content of the tables."""
    summaries = {}
    for measure in measures:
        summaries[measure] = summary = summarize(rows, measure, skip)
        if not summary:
            continue
        first = next(iter(summary))
        table = Table("peer", "median", "lowest to highest", f"ratio to {first}", "rounds", title=f"{title}: {measure}")
        for peer, line in summary.items():
            spread = f"{line['low']:.4g} to {line['high']:.4g}"
            numbers = " ".join(f"{row[measure]:.4g}" for row in rows[peer] if measure in row)
            table.add_row(peer, f"{line['median']:.4g}", spread, f"{line['ratio']:.2f}", numbers)
        console.print(table)
    return summaries


def run_alone(peer: str, environment: dict[str, str], code: str, folder: str) -> str | None:
    """Run code in a new process, with `folder` as its argument; return its output, or None if it failed."""
    process = subprocess.run(
        [sys.executable, "-c", code, folder],
        # The first round writes bytecode, which installed packages have from the start.
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        console.print(f"[yellow]{peer} left out:[/] {process.stderr[-900:]}", highlight=False)
        return None
    return process.stdout


def describe_machine() -> dict[str, Any]:
    """Return the processor and the package versions, on which the numbers depend."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    installed = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "instructions": [name for name in INSTRUCTIONS if any(name in line.split() for line in lines)],
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: installed[name] for name in PACKAGES if name in installed},
    }


def save(name: str, options: dict[str, Any], **results: Any) -> None:
    """Write `results/<name>.json`: the options, all rows, the summary and the machine."""
    RESULTS.mkdir(exist_ok=True)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    content = {"benchmark": name, "date": date, "machine": describe_machine(), "options": options, **results}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    console.print(f"written to {os.path.relpath(path, ROOT)}", highlight=False)


def ready(*paths: Path) -> bool:
    """Return whether all files exist; print the missing one, or a warning if the machine is busy."""
    for path in paths:
        if not path.exists():
            console.print(f"[yellow]skipped:[/] {path} does not exist; set LMZOO_SHARED to the directory with the data")
            return False
    warn_if_busy()
    return True


def warn_if_busy() -> None:
    """Print a warning if other programs are using the machine."""
    if (load := os.getloadavg()[0]) > 0.5:
        console.print(f"[yellow]The load average is {load:.1f}: the machine is not quiet.[/]")


def time_call(call: Callable[[], Any]) -> float:
    """Call a function and return the seconds that it takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _serve() -> None:
    """Serve requests in a peer's process: replies go to the real standard output, what libraries print to the log."""
    module, peer, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")

    try:
        if peer.startswith("lmzoo"):
            import lmzoo  # noqa: F401 - first, as programs do: it chooses TensorFlow's kernels

        step = importlib.import_module(f"benchmarks.{module}").prepare(peer, options)
    except ImportError as error:
        reply({"skip": f"{error}"})
        return
    reply({})
    for _ in sys.stdin:
        numbers = step()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
        reply({**numbers, "peak memory GiB": round(peak, 2)})


if __name__ == "__main__":
    _serve()
