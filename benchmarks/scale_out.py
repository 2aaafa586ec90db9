"""The commands `lmzoo prepare` and `lmzoo predict` on many files, without workers and with Ray's.

Each command runs on few and on many files, which separates its start from its speed: the seconds are
`start + files / speed`. `at an hour` is a peer's time, in hours, for work that takes the first peer an hour: 1.15 is an
overhead of 15%. Memory is the peak of one process: the command itself, or its largest worker.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, SHARED, TENSORFLOW, Rows, console, ready, save, show
from lmzoo.data.corpora import read_documents

PEERS: dict[str, list[str]] = {
    "no workers": [],
    "1 worker": ["--workers", "1"],
    "2 workers": ["--workers", "2"],
}
PRESET = "bert_nano_en_uncased"
MODEL = f"""
import sys, lmzoo
lmzoo.models.TextClassifier.from_preset("{PRESET}", num_classes=2).save(sys.argv[1])
"""
TEXTS = SHARED / "data/pretrain"


def write_files(folder: Path, count: int, characters: int, sentences: int) -> None:
    """Write `count` files of documents, and as many of sentences, in JSON lines."""
    for kind in ("documents", "sentences"):
        (folder / kind).mkdir()
    documents = itertools.cycle(read_documents(sorted(TEXTS.glob("*train*")))) if TEXTS.exists() else iter(())
    for number in range(count):
        text, size = [], 0
        while size < characters:
            text.append("\n".join(next(documents)))
            size += len(text[-1])
        rows = {"documents": text, "sentences": list(itertools.islice(itertools.chain.from_iterable(
            part.split("\n") for part in text), sentences))}  # fmt: skip
        for kind, texts in rows.items():
            lines = (json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts))
            (folder / kind / f"{number:04}.jsonl").write_text("".join(lines), "utf-8")


def measure_memory(process_id: int) -> dict[str, float]:
    """Return the peak memory of a command's process and of its largest worker, in GiB."""
    peaks: dict[str, float] = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            title = path.with_name("cmdline").read_bytes().replace(b"\0", b" ")
            lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        except (OSError, ValueError):
            continue
        kind = (
            "command" if int(path.parent.name) == process_id else "worker" if title.startswith(b"ray::_Worker") else ""
        )
        if kind and "VmHWM" in lines:
            peaks[kind] = max(peaks.get(kind, 0.0), int(lines["VmHWM"].split()[0]) / 2**20)
    return peaks


def run(command: list[str]) -> dict[str, float]:
    """Run a command, and return its seconds and memory."""
    start, memory = time.perf_counter(), 0.0
    environment = {**os.environ, **TENSORFLOW, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as log:
        arguments = [sys.executable, "-m", "lmzoo_cli", *command]
        process = subprocess.Popen(arguments, env=environment, stdout=log, stderr=log, text=True)
        while process.poll() is None:
            peaks = measure_memory(process.pid)
            memory = max(memory, peaks.get("worker" if "--workers" in command else "command", 0.0))
            time.sleep(0.2)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{command} failed: {log.read()[-600:]}")
    return {"seconds": time.perf_counter() - start, "memory GiB": round(memory, 2)}


def measure(folder: Path, command: str, peer: str, counts: list[int]) -> dict[str, float]:
    """Run a command on few and on many files, and return the seconds of its start and of each file, and its memory."""
    few, many = (
        run(_make_command(folder, command, count, Path(tempfile.mkdtemp(dir=folder)), PEERS[peer])) for count in counts
    )
    rate = (many["seconds"] - few["seconds"]) / (counts[1] - counts[0])
    return {**many, "seconds for a file": rate, "start": few["seconds"] - counts[0] * rate}


def _make_command(folder: Path, command: str, count: int, out: Path, workers: list[str]) -> list[str]:
    files = folder / command / "some"
    files.mkdir(parents=True, exist_ok=True)
    for file in files.iterdir():
        file.unlink()
    source = {"prepare": "documents", "predict": "sentences"}[command]
    for file in sorted((folder / source).glob("*.jsonl"))[:count]:
        (files / file.name).symlink_to(file)
    if command == "prepare":
        return ["prepare", str(files), str(out / "out"), "--tokenizer", PRESET, *workers]
    return ["predict", str(folder / "model.keras"), str(files), "--output", str(out / "out"), "--id", "id", *workers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs=2, default=[4, 24], help="a few and many")
    parser.add_argument("--characters", type=int, default=4_000_000, help="in a file of documents")
    parser.add_argument("--sentences", type=int, default=4000, help="in a file of sentences")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="scale_out", help="name of the result file")
    options: dict[str, Any] = vars(parser.parse_args())
    if not ready(TEXTS):
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, console.status("writing files") as status:
        folder = Path(name)
        write_files(folder, options["files"][1], options["characters"], options["sentences"])
        subprocess.run([sys.executable, "-c", MODEL, str(folder / "model.keras")], cwd=ROOT, check=True,
                       env={**os.environ, **TENSORFLOW})  # fmt: skip
        for command in ("prepare", "predict"):
            rows: Rows = {}
            for number, peer in itertools.product(range(options["rounds"]), PEERS):
                status.update(f"{command}: round {number + 1} of {options['rounds']}, {peer}")
                rows.setdefault(peer, []).append(measure(folder, command, peer, options["files"]))
            for alone, *with_workers in zip(*rows.values(), strict=True):
                files = (3600 - alone["start"]) / alone["seconds for a file"]
                for row in (alone, *with_workers):
                    row["at an hour"] = (row["start"] + files * row["seconds for a file"]) / 3600
            measures = ["seconds", "start", "seconds for a file", "at an hour", "memory GiB"]
            results[command] = {"rows": rows, "summary": show(command, rows, measures)}
    save(options["name"], options, **results)


if __name__ == "__main__":
    main()
