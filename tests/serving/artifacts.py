"""Directories of exported models."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from lmzoo.tasks import Task
from lmzoo_cli.main import app


class Exported(NamedTuple):
    """Directory of versions, the models in it, and records of the export."""

    folder: Path
    models: dict[int, Task]
    origin: Path  # directory of the export, before the folder was moved
    output: str = ""  # of the command line
    times: dict[str, int] | None = None  # last change of each file, in nanoseconds

    def path(self, version: int) -> Path:
        return self.folder / str(version)


def export_with_cli(model: Task, target: Path) -> str:
    """Export with the command line, which adds the next version to `target`, and return its output."""
    file = target.with_suffix(".keras")
    target.parent.mkdir(parents=True, exist_ok=True)
    model.save(file)
    result = CliRunner().invoke(app, ["export", str(file), str(target)])
    assert result.exit_code == 0, result.output
    return result.output


def times_of(folder: Path) -> dict[str, int]:
    """Return the time of the last change of each file, in nanoseconds."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def write_echo(folder: Path) -> Path:
    """Write version 1 of a model that returns its inputs, and return the directory of versions."""
    import tensorflow as tf

    def echo_text(text):
        return {"text": text, "bytes": tf.strings.length(text)}

    def echo_ids(ids):
        with tf.control_dependencies([tf.debugging.assert_less(ids, 7)]):
            return {"ids": tf.identity(ids)}

    signatures = {
        "serving_default": tf.function(echo_text, [tf.TensorSpec([None], tf.string, "text")]),
        "tokens": tf.function(echo_ids, [tf.TensorSpec([None, None], tf.int32, "ids")]),
    }
    tf.saved_model.save(tf.Module(), str(folder / "1"), signatures)
    return folder
