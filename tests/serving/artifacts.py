"""Folders of exported models."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from lmzoo.tasks import Task
from lmzoo_cli.main import app


class Exported(NamedTuple):
    """A folder of versions, the models that they came from, and what was seen on the way."""

    folder: Path
    models: dict[int, Task]
    origin: Path  # where it was written
    said: str = ""  # by the command line
    times: dict[str, int] | None = None  # of the last change of each file

    def path(self, version: int) -> Path:
        return self.folder / str(version)


def export_with_cli(model: Task, target: Path) -> str:
    """Exports through the command line, which gives the folder of versions `target` its next one."""
    file = target.with_suffix(".keras")
    target.parent.mkdir(parents=True, exist_ok=True)
    model.save(file)
    done = CliRunner().invoke(app, ["export", str(file), str(target)])
    assert done.exit_code == 0, done.output
    return done.output


def times_of(folder: Path) -> dict[str, int]:
    """When each file was last changed."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def write_echo(folder: Path) -> Path:
    """Writes version 1 of a model that says what it was told, and returns its folder."""
    import tensorflow as tf

    def of_text(text):
        return {"text": text, "bytes": tf.strings.length(text)}

    def of_ids(ids):
        with tf.control_dependencies([tf.debugging.assert_less(ids, 7)]):
            return {"ids": tf.identity(ids)}

    signatures = {
        "serving_default": tf.function(of_text, [tf.TensorSpec([None], tf.string, "text")]),
        "tokens": tf.function(of_ids, [tf.TensorSpec([None, None], tf.int32, "ids")]),
    }
    tf.saved_model.save(tf.Module(), str(folder / "1"), signatures)
    return folder
