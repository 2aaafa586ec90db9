"""Implementation of `lmzoo predict`, for one file or, optionally with worker processes, for many files."""

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
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lmzoo.common.progress import progress_bar
from lmzoo.data.readers.tables import SUFFIXES
from lmzoo.data.readers.text_files import get_suffix, is_listed
from lmzoo.errors import ArgumentError, NoExamplesError
from lmzoo.files.urls import (
    NamedBytes,
    exists,
    find_files,
    get_modification_time,
    is_url,
    join_path,
    list_relative_names,
    load_json,
    make_absolute,
    read_source_file,
    save_json,
    whole_file,
)
from lmzoo.parallel.workers import run_jobs
from lmzoo.presets.catalog import find_local_directory
from lmzoo.tasks import Task
from lmzoo.text.validate_text import TextWarningFilter, collect_warnings
from lmzoo_cli.answers import WRITERS, Origin, make_origins, make_parquet_table
from lmzoo_cli.examples import WORDS, Inputs, count_examples, iterate_in_parts, read_origins
from lmzoo_cli.model_loading import find_kind, load_task
from lmzoo_cli.options import Columns, WorkerOptions
from lmzoo_cli.output import say, show_status
from lmzoo_cli.task_kinds import Kind

_SETTINGS_FILE = "_predict.json"  # settings of a directory of answers; readers of whole directories skip leading "_"
_SUFFIXES = {*SUFFIXES, *(f".{format}" for format in WORDS), ".json"}


@dataclass(frozen=True)
class Prediction:
    """Settings of `lmzoo predict`; each worker gets a copy.

    Attributes:
        model: a .keras file or a preset.
        columns: options for the columns and the format of the examples.
        ids: column of the ids, or None.
        options: keyword arguments of the task's method `answers`.
        to: format of the answers.
        batch_size: examples in a batch; it does not affect the answers.
        windows: values of the task's attributes `windows` and `stride`; None for the stored values.
    """

    model: str
    columns: Columns
    ids: str | None
    options: dict[str, Any]
    to: str
    batch_size: int
    windows: dict[str, Any] | None = None

    def read(self, kind: Kind, source: Path | NamedBytes) -> tuple[Inputs, list[Origin]]:
        """Read the examples of a file, and the fields to write with their answers.

        Raises:
            ValueError: If the file cannot be read, or a field cannot be a column of Parquet, which is written.
        """
        x, _ = kind.reading.read(source, self.columns, False, None)
        if isinstance(source, NamedBytes):
            source.seek(0)
        origins = make_origins(kind, x, read_origins(source, self.columns, self.ids))
        if self.to == "parquet":
            make_parquet_table(origins)  # now, since the file is written only after all answers are computed
        return x, origins

    def write(
        self,
        task: Task,
        x: Inputs,
        origins: Sequence[Origin],
        file: BinaryIO,
        cancel_status: Callable[[], None],
        show_progress: bool,
    ) -> None:
        """Predict, and write the answers to a file.

        Args:
            task: task that predicts.
            x: inputs of the task.
            origins: fields to write with each answer.
            file: file to write to.
            cancel_status: function to call after each part of the answers, to cancel a status line.
            show_progress: whether to show a progress bar.

        Raises:
            ValueError: If the task does not take one of `options`, or does not accept the examples.
        """
        if unknown_options := self.options.keys() - inspect.signature(task.answers).parameters.keys():
            raise ValueError(
                f"A {type(task).__name__} takes no such option: leave out --{min(unknown_options).replace('_', '-')}."
            )
        with collect_warnings():  # each part gives its own
            # An error about any text is raised here, not after hours of predictions.
            task.check_answerable(x, **self.options)
        with iterate_in_parts(x, self.batch_size, show_progress) as parts:
            WRITERS[self.to](file, self._answers(task, parts, origins, cancel_status))

    def _answers(
        self, task: Task, parts: Iterator[Inputs], origins: Sequence[Origin], cancel_status: Callable[[], None]
    ) -> Iterator[tuple[Origin, Any]]:
        """Predict part by part, and yield `(origin, answer)` for each example.

        A text warning of several parts is issued for the first of these.
        """
        num_done = 0
        warning_filter = TextWarningFilter()
        for part in parts:
            try:
                with warning_filter.once_per_reason():
                    answers = task.answers(part, batch_size=self.batch_size, **self.options)
            except (ValueError, TypeError) as error:
                message = f"{error} (Counted from example {num_done}.)" if num_done else str(error)
                raise ArgumentError(message, getattr(error, "argument", None)) from None
            cancel_status()
            num_examples = count_examples(part)
            yield from zip(origins[num_done : num_done + num_examples], answers, strict=True)
            num_done += num_examples


class FilePair(NamedTuple):
    """Paths of a file of examples and of the file of answers to write."""

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

    A file of examples is skipped if its answers are newer than the file itself and `_predict.json`, which holds the
    command's settings, so that a repeated command continues a stopped one. A file of answers is replaced when its new
    answers are complete.

    Args:
        prediction: settings of the command.
        data: directory, pattern or file of the examples.
        files: paths of the files of examples.
        directory: directory to write to; files of answers have the names of the examples, with another suffix.
        overwrite: whether to replace answers from another model or other options, or all answers if none are pending.
        scale: number of worker processes, and the cluster that runs them.

    Raises:
        ValueError: If two files of answers would have the same name, answers would replace examples, or a file cannot
            be read; the message names the file.
        FileExistsError: If `overwrite` is False, and `directory` holds answers from another model or other options, or
            of unknown origin.
        NotADirectoryError: If `directory` is a file.
    """
    pairs = _pair_files(data, files, directory, prediction.to)
    # Read the first file now, so that errors in the columns appear before the model is loaded.
    kind = find_kind(prediction.model)
    if pairs and kind is not None:
        with suppress(NoExamplesError):
            prediction.read(kind, read_source_file(pairs[0].source))
    pending_pairs = _find_pending(prediction, pairs, directory, overwrite)
    if num_done := len(pairs) - len(pending_pairs):
        say(f"Skipping {num_done} of {len(pairs)} files that are already done.")
    if num_existing := sum(exists(pair.target) for pair in pending_pairs):
        say(f"Predicting again for {num_existing} of {len(pairs)} files, whose answers are replaced.")
    start_time = time.monotonic()
    num_examples = _predict_pending(prediction, pending_pairs, scale) if pending_pairs else 0
    speed = f" ({num_examples / (time.monotonic() - start_time):,.0f} examples/s)" if num_examples else ""
    say(f"Wrote answers to {num_examples:,} examples in {len(pending_pairs)} files to {directory}{speed}.")


def _predict_pending(prediction: Prediction, pending_pairs: Sequence[FilePair], scale: WorkerOptions) -> int:
    """Write the pending files of answers, and return the number of examples."""
    num_examples = 0
    start_time = time.monotonic()
    status = show_status(f"Starting {scale.workers} workers") if scale.workers else nullcontext(lambda: None)
    make_predictor = functools.partial(_load_predictor, prediction)
    with status as cancel_status, progress_bar("Predicting", len(pending_pairs), "files") as advance:
        for pair, (num_file_examples, messages) in run_jobs(
            pending_pairs, make_predictor, scale.workers, scale.ray, accelerated=True
        ):
            cancel_status()
            num_examples += num_file_examples
            advance(1, f"{num_examples:,} examples, {num_examples / (time.monotonic() - start_time):,.0f} examples/s")
            for message in messages:
                warnings.warn(f"{pair.source}: {message}", stacklevel=2)
    return num_examples


def _load_predictor(prediction: Prediction) -> Callable[[FilePair], tuple[int, list[str]]]:
    """Load the model, and return a function that predicts for one file of examples."""
    kind, task = load_task(prediction.model, prediction.windows)

    def predict_file(pair: FilePair) -> tuple[int, list[str]]:
        """Write the answers for a file, and return the number of examples and the warnings."""
        try:
            with collect_warnings() as messages, whole_file(pair.target) as file:
                x: Inputs = []
                origins: list[Origin] = []
                with suppress(NoExamplesError):  # programs may write tables in parts, some of them empty
                    x, origins = prediction.read(kind, read_source_file(pair.source))
                prediction.write(task, x, origins, file, lambda: None, show_progress=False)
        except (ValueError, OSError) as error:
            if pair.source in str(error):
                raise
            raise ValueError(f"{pair.source}: {error}") from None
        return count_examples(x), messages

    return predict_file


def _is_done(pair: FilePair, start_time: float) -> bool:
    """Return whether the answers were written after `start_time`, and the examples have not changed since.

    If either file is a URL, their modification times are not compared, since they may be from different clocks.
    """
    try:
        target_time = get_modification_time(pair.target)
    except FileNotFoundError:
        return False
    if target_time <= start_time:
        return False
    return is_url(pair.source) or is_url(pair.target) or get_modification_time(pair.source) <= target_time


def absolute_model(model: str) -> str:
    """Return the absolute path of a model, for workers with another working directory, or a preset's name unchanged.

    A preset's name takes precedence over a directory, as in `from_preset`.
    """
    path = make_absolute(model, resolve_links=False)
    is_directory = os.path.isdir(path) and find_local_directory(model) == Path(make_absolute(model))
    return path if is_directory or os.path.isfile(path) else model


def holds_examples(name: str, format: str | None) -> bool:
    """Return whether a file in a directory holds examples: its suffix is one of examples, or a format is set."""
    return format is not None or get_suffix(name) in _SUFFIXES


def _pair_files(data: str, files: Sequence[str], directory: str, to: str) -> list[FilePair]:
    """Pair each file of examples with its file of answers."""
    names = [
        posixpath.splitext(name.removesuffix(".gz").removesuffix(".xz"))[0] for name in list_relative_names(data, files)
    ]
    if repeated_names := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"The answers to several files would be called {repeated_names[0]}.{to}: predict for them separately."
        )
    pairs = [
        FilePair(make_absolute(file, resolve_links=False), join_path(make_absolute(directory), f"{name}.{to}"))
        for file, name in zip(files, names, strict=True)
    ]
    sources = {make_absolute(pair.source) for pair in pairs}
    replaces_examples = any(make_absolute(pair.target) in sources for pair in pairs)
    if replaces_examples or is_listed(directory, data):
        raise ValueError(f"{directory} also holds the examples: write the answers into another directory.")
    return pairs


def _find_pending(prediction: Prediction, pairs: Sequence[FilePair], directory: str, overwrite: bool) -> list[FilePair]:
    """Return the pairs that still need answers from this model with these options.

    A file in `directory` stores the model and the options, and answers that are older than this file are pending. To
    replace all answers, `overwrite` writes the file again.

    Raises:
        FileExistsError: If `overwrite` is False, and `directory` holds answers from another model or other options, or
            of unknown origin.
        NotADirectoryError: If `directory` is a file.
    """
    if os.path.isfile(make_absolute(directory)):
        raise NotADirectoryError(f"{directory} is a file: several files of answers are written into a directory.")
    settings = {**asdict(prediction), "model": _identify(prediction.model)}
    del settings["batch_size"]
    settings_path = join_path(make_absolute(directory), _SETTINGS_FILE)
    if exists(settings_path):
        old_settings = load_json(settings_path)
        differing_names = [name for name, value in settings.items() if old_settings.get(name) != value]
        if not differing_names:
            start_time = get_modification_time(settings_path)
            pending_pairs = [pair for pair in pairs if not _is_done(pair, start_time)]
            if pending_pairs or not overwrite:
                return pending_pairs
        elif not overwrite:
            raise FileExistsError(
                f"{directory} holds answers of a command whose {differing_names[0]} differed: pass --overwrite to "
                "replace them, or another directory."
            )
    elif not overwrite and (existing_files := [pair.target for pair in pairs if exists(pair.target)]):
        raise FileExistsError(f"{existing_files[0]} exists: pass --overwrite to replace it.")
    save_json(settings_path, settings)
    return list(pairs)


def _identify(model: str) -> str:
    """Return an identifier of a model: a digest of its file or directory, or its name if it must be downloaded."""
    model_path = model if os.path.isfile(model) else find_local_directory(model)
    if model_path is None:
        return model
    digest = hashlib.sha256()
    for file_path in find_files(model_path, lambda file_path: True):
        with open(file_path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256 {digest.hexdigest()}"
