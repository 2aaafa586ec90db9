"""Predictions for files of examples: for one, and for many, which worker processes may share."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import posixpath
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple

from lmzoo.common.progress import progress_bar
from lmzoo.data.readers.tables import SUFFIXES
from lmzoo.data.readers.text_files import suffix_of
from lmzoo.errors import ArgumentError, NoExamplesError
from lmzoo.files.urls import (
    NamedBytes,
    absolute,
    exists,
    inside,
    is_url,
    load_json,
    names_below,
    remove,
    save_json,
    source_of,
    whole_file,
)
from lmzoo.parallel.workers import run_jobs
from lmzoo.tasks import Task
from lmzoo.text.validate_text import collect_warnings
from lmzoo_cli.answers import WRITERS, Origin, make_origins
from lmzoo_cli.examples import WORDS, Inputs, count_examples, iterate_in_parts, read_origins
from lmzoo_cli.model_loading import find_kind, load_task
from lmzoo_cli.options import Columns, WorkerOptions
from lmzoo_cli.output import say, show_status
from lmzoo_cli.task_kinds import Kind

_RECORD = "_predict.json"  # how a directory of answers was made; programs that read whole directories leave "_..." out
_SUFFIXES = {*SUFFIXES, *(f".{format}" for format in WORDS), ".json"}


@dataclass(frozen=True)
class Prediction:
    """Settings of a command that predicts; workers get a copy.

    Attributes:
        model: a .keras file or a preset.
        columns: how the examples are read.
        ids: column of their ids.
        options: arguments of the task's method.
        to: format of the answers.
        batch_size: examples in a batch, on which the answers do not depend.
    """

    model: str
    columns: Columns
    ids: str | None
    options: dict[str, Any]
    to: str
    batch_size: int

    def read(self, kind: Kind, source: Path | NamedBytes) -> tuple[Inputs, list[Origin]]:
        """Read the examples of a file, and what is written with their answers."""
        x, _ = kind.reading.read(source, self.columns, False, None)
        if isinstance(source, NamedBytes):
            source.seek(0)
        return x, make_origins(kind, x, read_origins(source, self.columns, self.ids))

    def write(
        self, task: Task, x: Inputs, origins: Sequence[Origin], file: BinaryIO, seen: Callable[[], None], shown: bool
    ) -> None:
        """Predict and write the answers.

        Args:
            task: the model.
            x: the examples.
            origins: what is written with each answer.
            file: where to write.
            seen: called when there is a first answer.
            shown: whether to show a progress bar.

        Raises:
            ValueError: for an option that the task does not have, or examples that it does not take.
        """
        if unknown := self.options.keys() - inspect.signature(task.answers).parameters.keys():
            raise ValueError(
                f"A {type(task).__name__} takes no such option: leave out --{min(unknown).replace('_', '-')}."
            )
        with iterate_in_parts(x, self.batch_size, shown) as parts:
            WRITERS[self.to](file, self._answers(task, parts, origins, seen))

    def _answers(
        self, task: Task, parts: Iterator[Inputs], origins: Sequence[Origin], seen: Callable[[], None]
    ) -> Iterator[tuple[Origin, Any]]:
        """Yield what is written with each answer, and the answer."""
        done = 0
        for part in parts:
            try:
                answers = task.answers(part, batch_size=self.batch_size, **self.options)
            except (ValueError, TypeError) as error:
                message = f"{error} (Counted from example {done}.)" if done else str(error)
                raise ArgumentError(message, getattr(error, "argument", None)) from None
            seen()
            count = count_examples(part)
            yield from zip(origins[done : done + count], answers, strict=True)
            done += count


class FilePair(NamedTuple):
    """A file of examples, and the file of answers to write."""

    source: str
    target: str

    def __str__(self) -> str:
        return self.source


def predict_files(
    prediction: Prediction,
    data: str,
    files: Sequence[str],
    directory: str,
    overwrite: bool,
    scale: WorkerOptions,
) -> None:
    """Write a file of answers for each file of examples into a directory.

    Complete files are skipped, unless the file of examples is newer than its answers.

    Args:
        prediction: settings.
        data: the directory, pattern or file that names the examples.
        files: the files that it stands for.
        directory: where to write, under the same names with another suffix.
        overwrite: whether to predict again where there are answers.
        scale: number of worker processes, and the cluster that runs them.

    Raises:
        ValueError: if two files of answers would have one name, or replace examples; naming a file that cannot be read.
        FileExistsError: if the directory holds other files of these names.
    """
    pairs = _pair_files(data, files, directory, prediction.to)
    # Errors in the model or the options are raised before anything is replaced.
    kind = find_kind(prediction.model)
    if pairs and kind is not None:
        with suppress(NoExamplesError):
            prediction.read(kind, source_of(pairs[0].source))
    _check_directory(prediction, pairs, directory, overwrite)
    pending = [pair for pair in pairs if not exists(pair.target) or _is_newer(pair)]
    if done := len(pairs) - len(pending):
        say(f"Skipping {done} of {len(pairs)} files that are already done.")
    if changed := sum(exists(pair.target) for pair in pending):
        say(f"Predicting again for {changed} of {len(pairs)} files, which have changed.")
    began = time.monotonic()
    examples = _predict_pending(prediction, pending, scale) if pending else 0
    speed = f" ({examples / (time.monotonic() - began):,.0f} examples/s)" if examples else ""
    say(f"Wrote answers to {examples:,} examples in {len(pending)} files to {directory}{speed}.")


def _predict_pending(prediction: Prediction, pending: Sequence[FilePair], scale: WorkerOptions) -> int:
    """Write the pending files of answers, and return the number of their examples."""
    examples = 0
    began = time.monotonic()
    status = show_status(f"Starting {scale.workers} workers") if scale.workers else nullcontext(lambda: None)
    start = functools.partial(_start, prediction)
    with status as seen, progress_bar("Predicting", len(pending), "files") as advance:
        for pair, (count, messages) in run_jobs(pending, start, scale.workers, scale.ray, accelerated=True):
            seen()
            examples += count
            advance(1, f"{examples:,} examples, {examples / (time.monotonic() - began):,.0f} examples/s")
            for message in messages:
                warnings.warn(f"{pair.source}: {message}", stacklevel=2)
    return examples


def _start(prediction: Prediction) -> Callable[[FilePair], tuple[int, list[str]]]:
    """Load the model in the process that predicts."""
    kind, task = load_task(prediction.model)

    def predict_file(pair: FilePair) -> tuple[int, list[str]]:
        """Return the number of examples, and warnings."""
        try:
            with collect_warnings() as messages, whole_file(pair.target) as file:
                x: Inputs = []
                origins: list[Origin] = []
                with suppress(NoExamplesError):  # of the parts of a table that a program writes, some may be empty
                    x, origins = prediction.read(kind, source_of(pair.source))
                prediction.write(task, x, origins, file, lambda: None, shown=False)
        except (ValueError, OSError) as error:
            if pair.source in str(error):
                raise
            raise ValueError(f"{pair.source}: {error}") from None
        return count_examples(x), messages

    return predict_file


def _is_newer(pair: FilePair) -> bool:
    """Return whether the examples changed after the answers were written; False for URLs, of which it is not known."""
    if is_url(pair.source) or is_url(pair.target):
        return False
    return os.path.getmtime(pair.source) > os.path.getmtime(pair.target)


def absolute_model(model: str) -> str:
    """Return a model as workers with another working directory find it: a path as an absolute one."""
    return absolute(model) if os.path.exists(model) else model


def holds_examples(name: str, format: str | None) -> bool:
    """Return whether a file in a directory holds examples: by its suffix, unless their format is given."""
    hidden = PurePath(name).name.startswith((".", "_"))
    return not hidden and (format is not None or suffix_of(name) in _SUFFIXES)


def _pair_files(data: str, files: Sequence[str], directory: str, to: str) -> list[FilePair]:
    """Return each file of examples with its file of answers."""
    names = [posixpath.splitext(name.removesuffix(".gz").removesuffix(".xz"))[0] for name in names_below(data, files)]
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"The answers to several files would be called {repeated[0]}.{to}: predict for them separately."
        )
    pairs = [
        FilePair(absolute(file), inside(absolute(directory), f"{name}.{to}"))
        for file, name in zip(files, names, strict=True)
    ]
    sources = {pair.source for pair in pairs}
    if any(pair.target in sources for pair in pairs) or f"{absolute(directory)}/".startswith(f"{absolute(data)}/"):
        raise ValueError(f"{directory} also holds the examples: write the answers into another directory.")
    return pairs


def _check_directory(prediction: Prediction, pairs: Sequence[FilePair], directory: str, overwrite: bool) -> None:
    """Check that all answers in a directory are of the same model and options, which a file there records."""
    if not is_url(directory) and os.path.isfile(directory):
        raise NotADirectoryError(f"{directory} is a file: several files of answers are written into a directory.")
    settings = {**asdict(prediction), "model": _identify(prediction.model)}
    del settings["batch_size"]
    record = inside(absolute(directory), _RECORD)
    if overwrite:
        for path in (*(pair.target for pair in pairs), record):
            remove(path)
    elif exists(record):
        stored = load_json(record)
        if changed := [name for name, value in settings.items() if stored.get(name) != value]:
            raise FileExistsError(
                f"{directory} holds answers of a command whose {changed[0]} differed: pass --overwrite to replace "
                "them, or another directory."
            )
    elif existing := [pair.target for pair in pairs if exists(pair.target)]:
        raise FileExistsError(f"{existing[0]} exists: pass --overwrite to replace it.")
    save_json(record, settings)


def _identify(model: str) -> str:
    """Return what distinguishes a model from others: the digest of a file, the name of a preset."""
    if not os.path.isfile(model):
        return model
    with open(model, "rb") as file:
        return f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
