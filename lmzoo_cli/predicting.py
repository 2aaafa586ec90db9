"""What `lmzoo predict` does: answers to one file, and to many files, which worker processes may share."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import posixpath
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from lmzoo.common.progress import progress_bar
from lmzoo.data.readers.tables import SUFFIXES
from lmzoo.data.readers.text_files import suffix_of
from lmzoo.errors import NoExamplesError
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
from lmzoo_cli.answers import WRITERS, Origin, origins
from lmzoo_cli.examples import WORDS, Columns, Inputs, read_kept
from lmzoo_cli.model_loading import find_model, load_task
from lmzoo_cli.output import announced, count_of, in_parts, say
from lmzoo_cli.task_kinds import Kind

if TYPE_CHECKING:
    from lmzoo.tasks import Task

_RECORD = "_predict.json"  # how a folder of answers was made; programs that read whole folders leave "_..." out
_SUFFIXES = {*SUFFIXES, *(f".{format}" for format in WORDS), ".json"}


@dataclass(frozen=True)
class Prediction:
    """How a command predicts; it travels to the workers.

    Attributes:
        model: a .keras file or a preset.
        columns: how the examples are read.
        ids: column of their ids.
        options: arguments of the task's method.
        to: format of the answers.
        batch_size: examples in a batch; all else decides what the answers are.
    """

    model: str
    columns: Columns
    ids: str | None
    options: dict[str, Any]
    to: str
    batch_size: int

    def read(self, kind: Kind, source: Path | NamedBytes) -> tuple[Inputs, list[Origin]]:
        """Reads the examples of a file, and what is written with their answers."""
        x, _ = kind.reading.read(source, self.columns, False, None)
        if isinstance(source, NamedBytes):
            source.seek(0)
        return x, origins(kind, x, read_kept(source, self.columns, self.ids))

    def write(
        self, task: Task, x: Inputs, of_answers: Sequence[Origin], file: BinaryIO, seen: Callable[[], None], shown: bool
    ) -> None:
        """Predicts and writes the answers.

        Args:
            task: the model.
            x: the examples.
            of_answers: what is written with each answer.
            file: where to write.
            seen: called when there is a first answer.
            shown: whether to show a progress bar.

        Raises:
            ValueError: for an option that the task does not have, or examples that it does not take.
        """
        assert task.verb is not None
        verb = getattr(task, task.verb)
        if unknown := self.options.keys() - inspect.signature(verb).parameters.keys():
            raise ValueError(
                f"A {type(task).__name__} takes no such option: leave out --{min(unknown).replace('_', '-')}."
            )
        done, written = 0, WRITERS[self.to](file)
        with in_parts(x, self.batch_size, shown) as parts:
            for part in parts:
                try:
                    answers = verb(part, batch_size=self.batch_size, **self.options)
                except (ValueError, TypeError) as error:
                    raise ValueError(f"{error} (Counted from example {done}.)" if done else str(error)) from None
                seen()
                written.write(of_answers[done : done + count_of(part)], answers)
                done += count_of(part)
        written.close()


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
    folder: str,
    overwrite: bool,
    workers: int | None,
    address: str | None,
) -> None:
    """Writes a file of answers for each file of examples into a folder.

    What is complete is not done again, unless the file of examples is newer than its answers.

    Args:
        prediction: how to predict.
        data: the folder, pattern or file that names the examples.
        files: the files that it stands for.
        folder: where to write, under the same names with another suffix.
        overwrite: whether to do again what is there.
        workers: int, number of worker processes; None for this process.
        address: of a Ray cluster; None for this machine.

    Raises:
        ValueError: if two files of answers would have one name, or replace examples; naming a file that cannot be read.
        FileExistsError: if the folder holds other files of these names.
    """
    pairs = _pairs(data, files, folder, prediction.to)
    # What is wrong with the model or the options is told before anything is replaced.
    found = find_model(prediction.model)
    if pairs and found.kind:
        with suppress(NoExamplesError):
            prediction.read(found.kind, source_of(pairs[0].source))
    _check_folder(prediction, pairs, folder, overwrite)
    left = [pair for pair in pairs if not exists(pair.target) or _is_newer(pair)]
    if done := len(pairs) - len(left):
        say(f"{done} of {len(pairs)} files are done already")
    if changed := sum(exists(pair.target) for pair in left):
        say(f"{changed} of {len(pairs)} files have changed since they were answered: they are answered again")
    examples, began, rate = 0, time.monotonic(), ""
    work = announced(f"Starting {workers} workers") if workers else nullcontext(lambda: None)
    with work as seen, progress_bar("Predicting", len(left), "files") as advance:
        start = functools.partial(_start, prediction)
        for pair, (count, messages) in run_jobs(left, start, workers, address, accelerated=True) if left else ():
            seen()
            examples += count
            rate = f", {examples / (time.monotonic() - began):,.0f} examples/s"
            advance(1, f"{examples:,} examples{rate}")
            for message in messages:
                warnings.warn(f"{pair.source}: {message}", stacklevel=2)
    say(f"answers to {examples:,} examples in {len(left)} files are written to {folder}{rate}")


def _start(prediction: Prediction) -> Callable[[FilePair], tuple[int, list[str]]]:
    """Loads the model in the process that predicts."""
    from lmzoo.text.validate_text import collect_warnings

    kind, task = load_task(find_model(prediction.model))

    def predict_file(pair: FilePair) -> tuple[int, list[str]]:
        """Returns the number of examples, and warnings."""
        try:
            with collect_warnings() as messages, whole_file(pair.target) as file:
                x: Inputs = []
                of_answers: list[Origin] = []
                with suppress(NoExamplesError):  # of the parts of a table that a program writes, some may be empty
                    x, of_answers = prediction.read(kind, source_of(pair.source))
                prediction.write(task, x, of_answers, file, lambda: None, shown=False)
        except (ValueError, OSError) as error:
            if pair.source in str(error):
                raise
            raise ValueError(f"{pair.source}: {error}") from None
        return count_of(x), messages

    return predict_file


def _is_newer(pair: FilePair) -> bool:
    """Whether the examples have changed after the answers were written; of URLs this is not known."""
    if is_url(pair.source) or is_url(pair.target):
        return False
    return os.path.getmtime(pair.source) > os.path.getmtime(pair.target)


def absolute_model(model: str) -> str:
    """A model as workers with another working directory find it: where it is a path, the absolute one."""
    return absolute(model) if os.path.exists(model) else model


def holds_examples(name: str, format: str | None) -> bool:
    """Whether a file in a folder is taken for examples: by its suffix, unless their format is given."""
    hidden = PurePath(name).name.startswith((".", "_"))
    return not hidden and (format is not None or suffix_of(name) in _SUFFIXES)


def _pairs(data: str, files: Sequence[str], folder: str, to: str) -> list[FilePair]:
    """The files of answers to files of examples."""
    names = [posixpath.splitext(name.removesuffix(".gz").removesuffix(".xz"))[0] for name in names_below(data, files)]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"The answers to several files would be called {twice[0]}.{to}: predict for them separately.")
    pairs = [
        FilePair(absolute(file), inside(absolute(folder), f"{name}.{to}"))
        for file, name in zip(files, names, strict=True)
    ]
    sources = {pair.source for pair in pairs}
    if any(pair.target in sources for pair in pairs) or f"{absolute(folder)}/".startswith(f"{absolute(data)}/"):
        raise ValueError(f"{folder} holds the examples, too: write the answers into another folder.")
    return pairs


def _check_folder(prediction: Prediction, pairs: Sequence[FilePair], folder: str, overwrite: bool) -> None:
    """Makes sure that all answers in a folder are of the same model and options, which a file there records."""
    if not is_url(folder) and os.path.isfile(folder):
        raise NotADirectoryError(f"{folder} is a file: several files of answers are written into a folder.")
    settings = {**asdict(prediction), "model": _identity(prediction.model)}
    del settings["batch_size"]
    record = inside(absolute(folder), _RECORD)
    if overwrite:
        for path in (*(pair.target for pair in pairs), record):
            remove(path)
    elif exists(record):
        stored = load_json(record)
        if other := [name for name, value in settings.items() if stored.get(name) != value]:
            raise FileExistsError(
                f"{folder} holds answers of a command whose {other[0]} differed: pass --overwrite to replace them, or "
                "another folder."
            )
    elif there := [pair.target for pair in pairs if exists(pair.target)]:
        raise FileExistsError(f"{there[0]} exists: pass --overwrite to replace it.")
    save_json(record, settings)


def _identity(model: str) -> str:
    """What distinguishes a model from others: the digest of a file, the name of a preset."""
    if not os.path.isfile(model):
        return model
    with open(model, "rb") as file:
        return f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
