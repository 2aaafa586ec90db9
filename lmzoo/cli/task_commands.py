"""`lmzoo fit`, `lmzoo evaluate` and `lmzoo predict`."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from rich.console import Console

from lmzoo.cli.app import app, messages
from lmzoo.cli.examples import (
    Columns,
    Examples,
    Inputs,
    Labels,
    Reader,
    read_label_sets,
    read_numbers,
    read_pairs,
    read_prompts,
    read_questions,
    read_texts,
    read_texts_alone,
    read_words,
)
from lmzoo.cli.fine_tuning import choose_recipe
from lmzoo.cli.output import (
    check_output,
    count_of,
    in_parts,
    json_line,
    output_to,
    show,
    show_report,
    take,
    write_json,
)

if TYPE_CHECKING:
    from lmzoo.tasks import Task

# === Kinds of tasks ===


@dataclass(frozen=True)
class Kind:
    """A task on the command line.

    Attributes:
        name: its name there.
        head: the kind of its head.
        read: reads its examples.
        report: name of the function of `lmzoo.cli.task_scores` that compares its predictions with labels.
        names: takes labels, of examples or of their words, returns the names in them; None if labels have no names.
        arguments: takes labels, returns the constructor's arguments that depend on them.
        fits: whether a model with such a head is of this kind.
    """

    name: str
    head: str
    read: Reader
    report: str
    names: Callable[[Any], Iterable[str]] | None = None
    arguments: Callable[[Any], dict[str, object]] = lambda y: {}
    fits: Callable[[Task], bool] = lambda task: True


def _threshold(y: list[Any]) -> dict[str, object]:
    return {} if all(y) else {"null_score_threshold": 0.0}


def _objective(y: Labels) -> dict[str, object]:
    return {"objective": "contrastive" if y is None else "cosine"}


KINDS = (
    Kind(
        "classifier", "classification", read_texts, "report_classes", names=iter, fits=lambda task: not task.multi_label
    ),
    Kind("regressor", "regression", read_numbers, "report_numbers"),
    Kind("tagger", "token_classification", read_words, "report_tags", names=chain.from_iterable),
    Kind("qa", "question_answering", read_questions, "report_answers", arguments=_threshold),
    Kind("choice", "multiple_choice", read_prompts, "report_choices"),
    Kind("masked-lm", "masked_lm", read_texts_alone, "report_masked"),
    Kind("embedder", "embedding", read_pairs, "report_pairs", arguments=_objective),
    Kind(
        "multi-label",
        "classification",
        read_label_sets,
        "report_label_sets",
        names=chain.from_iterable,
        arguments=lambda y: {"multi_label": True},
        fits=lambda task: task.multi_label,
    ),
)


def _kind_called(name: str) -> Kind:
    from lmzoo.head_kinds import task_name

    wanted = re.sub("[-_ ]", "", name.lower())
    # The name of a class with two kinds means the first of them.
    known = {
        re.sub("[-_]", "", key.lower()): kind
        for kind in reversed(KINDS)
        for key in (kind.name, kind.head, task_name(kind.head))
    }
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1)
        hint = f" Did you mean {known[near[0]].name}?" if near else ""
        raise ValueError(f"There is no task {name!r}.{hint} Choose one of {', '.join(kind.name for kind in KINDS)}.")
    return known[wanted]


# === Options ===

_DATA = "CSV, TSV (no quotes), JSON lines, text lines, CoNLL, CoNLL-U, SQuAD's JSON; may be compressed with gzip or xz."
_MODEL = "A .keras file, or a preset with the task's head."
_TEXT = 'Column of the texts (or words, questions, prompts), by name or by number from 0. Default: "text".'
_PAIR = "Column of the second texts of pairs, of the contexts, or of the words that every choice begins with."
_LABEL = 'Column of the labels. Default: "label"; the last one of CoNLL, UPOS of CoNLL-U. "|" separates several labels.'
_CHOICES = "Columns of the choices, separated by commas, or one column of lists. Default: ending0 to ending3."
_FORMAT = "csv, tsv, jsonl, txt, labelled (a label, a space, a text), conll, conllu, squad. Default: from the suffix."
_RECIPE = "Default: the recipe that the preset recommends for the task."
_SCALE = "Divide numeric labels by this number, such as 5 for similarities from 0 to 5."

Text = Annotated[str | None, typer.Option("--text", help=_TEXT, rich_help_panel="Data")]
Pair = Annotated[str | None, typer.Option("--pair", help=_PAIR, rich_help_panel="Data")]
Label = Annotated[str | None, typer.Option("--label", help=_LABEL, rich_help_panel="Data")]
Choices = Annotated[str | None, typer.Option("--choices", help=_CHOICES, rich_help_panel="Data")]
FormatOption = Annotated[str | None, typer.Option("--format", help=_FORMAT, rich_help_panel="Data")]
Header = Annotated[
    bool,
    typer.Option("--header/--no-header", help="Whether CSV and TSV begin with column names.", rich_help_panel="Data"),
]
Encoding = Annotated[str, typer.Option("--encoding", help="Encoding of the files.", rich_help_panel="Data")]
Scale = Annotated[float, typer.Option("--scale", help=_SCALE, rich_help_panel="Data")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Examples in a batch.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]


@app.command(rich_help_panel="Tasks")
def fit(
    data: Annotated[Path, typer.Argument(metavar="DATA", help=f"Training examples. {_DATA}", show_default=False)],
    task: Annotated[str, typer.Option("--task", help=f"{', '.join(kind.name for kind in KINDS)}.")],
    preset: Annotated[str, typer.Option("--preset", help="What to start from: see `lmzoo presets`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .keras file to write.")],
    validation: Annotated[Path | None, typer.Option("--validation", help="Examples to evaluate on.")] = None,
    validation_split: Annotated[
        float, typer.Option("--validation-split", min=0.0, max=0.99, help="Or a random share of DATA to hold out.")
    ] = 0.0,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help=f"Passes over the examples. {_RECIPE}")] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help=f"Examples in a batch. {_RECIPE}")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", min=0.0, help=f"Peak learning rate. {_RECIPE}"),
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", help="Longest sequence in tokens. Default: the preset's.")
    ] = None,
    pooling: Annotated[
        str | None, typer.Option("--pooling", help=f"first or mean; for embedder cls, mean or max. {_RECIPE}")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed for all random numbers.")] = 0,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    choices: Choices = None,
    format: FormatOption = None,
    header: Header = True,
    encoding: Encoding = "utf-8",
    scale: Scale = 1.0,
    overwrite: Overwrite = False,
) -> None:
    """Train a task on a file of examples and write it as a .keras file.

    The classes are the labels in DATA. If there are validation examples, their scores are printed after training.
    """
    with messages():
        kind, columns = _kind_called(task), Columns(text, pair, label, choices, format, header, encoding, scale)
        check_output(output, overwrite, suffix=".keras")
        if validation and validation_split:
            raise ValueError("Give --validation or --validation-split, not both.")
        x, y = kind.read(data, columns, True, None)
        arguments, names = kind.arguments(y), None
        if kind.names:
            from lmzoo.text.span_labels import with_marks

            arguments["labels"] = names = _sorted_labels(with_marks(set(kind.names(y))), data)
        held_out = kind.read(validation, columns, True, names) if validation else None
        if validation_split:
            (x, y), held_out = _split(x, y, validation_split, seed)
        options = {"sequence_length": sequence_length, "pooling": pooling}
        arguments |= {name: value for name, value in options.items() if value is not None}

        import keras

        from lmzoo.cli.task_scores import Report, score
        from lmzoo.training import AdamW

        keras.utils.set_random_seed(seed)
        model = _task_class(kind, arguments).from_preset(preset, **arguments)
        chosen = {"learning_rate": learning_rate, "epochs": epochs, "batch_size": batch_size, "pooling": pooling}
        recipe = choose_recipe(model, preset, chosen)
        if kind.names and names:
            counts = [Counter(kind.names(part[1])) for part in ((x, y), held_out) if part]
            titles = ["label", "training", "validation"][: len(counts) + 1]
            show(titles, [[name, *(count[name] for count in counts)] for name in names])
        if learning_rate is not None:
            model.compile(AdamW(learning_rate, global_clipnorm=1.0))
        verbose = "auto" if Console().is_terminal else 2
        batch_size = recipe.batch_size
        history = model.fit(x, y, batch_size, recipe.epochs, verbose, validation_data=held_out, seed=seed).history
        if held_out and kind.name == "qa" and len({bool(answers) for answers in held_out[1] or ()}) == 2:
            model.fit_null_threshold(*held_out, batch_size)
        model.save(output)
        Console(stderr=True).print(f"written to {output}", highlight=False)
        training = {f"training {name}": values[-1] for name, values in history.items()}
        named = bool(kind.names)
        show_report(score(model, kind.report, named, *held_out, batch_size) if held_out else Report(training))


@app.command(rich_help_panel="Tasks")
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)],
    data: Annotated[Path, typer.Argument(metavar="DATA", help=f"Labelled examples. {_DATA}", show_default=False)],
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write all scores to this file.")] = None,
    batch_size: BatchSize = 32,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    choices: Choices = None,
    format: FormatOption = None,
    header: Header = True,
    encoding: Encoding = "utf-8",
    scale: Scale = 1.0,
    overwrite: Overwrite = False,
) -> None:
    """Print a task's scores on a file of labelled examples.

    The loss and the metrics are those that the model was compiled with; the other scores depend on the task.
    """
    with messages():
        from lmzoo.cli.task_scores import score

        if json_file:
            check_output(json_file, overwrite)
        columns = Columns(text, pair, label, choices, format, header, encoding, scale)
        kind, task = load_task(model)
        x, y = kind.read(data, columns, True, task.class_names if kind.names else None)
        report = score(task, kind.report, bool(kind.names), x, y, batch_size)
        if json_file:
            write_json(json_file, {"model": model, "data": str(data), "examples": count_of(x)}, report)
        show_report(report)


@app.command(rich_help_panel="Tasks")
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help=f"Examples, or - for lines of text from standard input. {_DATA}")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write instead of standard output.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Number of answers for each example, best first.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Lowest probability of a label, for multi-label (0.5).")
    ] = None,
    batch_size: BatchSize = 32,
    text: Text = None,
    pair: Pair = None,
    choices: Choices = None,
    format: FormatOption = None,
    header: Header = True,
    encoding: Encoding = "utf-8",
    overwrite: Overwrite = False,
) -> None:
    """Write a task's answers as JSON lines, one for each example.

    A line holds what the task's method returns: a class and its score, a number, spans, an answer, a choice, words for
    the mask, or a vector.
    """
    with messages():
        if output:
            check_output(output, overwrite)
        kind, task = load_task(model)
        source: Path | BinaryIO = sys.stdin.buffer if data == "-" else Path(data)
        columns = Columns(text, pair, None, choices, format or ("txt" if data == "-" else None), header, encoding)
        x, _ = kind.read(source, columns, False, None)
        verb = getattr(task, task.verb)
        options = {k: v for k, v in (("top_k", top_k), ("threshold", threshold)) if v is not None}
        if unknown := options.keys() - inspect.signature(verb).parameters.keys():
            raise ValueError(
                f"A {type(task).__name__} takes no such option: leave out --{min(unknown).replace('_', '-')}."
            )
        shown = bool(output) or not sys.stdout.isatty()  # answers on the screen need no bar between them
        with output_to(output) as file, in_parts(x, batch_size, shown) as parts:
            done = 0
            for part in parts:
                try:
                    answers = verb(part, batch_size=batch_size, **options)
                except (ValueError, TypeError) as error:
                    raise ValueError(f"{error} (Counted from example {done}.)" if done else str(error)) from None
                file.writelines(map(json_line, answers))
                done += count_of(part)


# === Examples and models ===


def _split(x: Inputs, y: Labels, share: float, seed: int) -> list[Examples]:
    """Training and validation examples."""
    import numpy as np

    count = count_of(x)
    held_out = round(count * share)
    if not 0 < held_out < count:
        raise ValueError(f"--validation-split {share:g} leaves no examples for training or validation, of {count}.")
    order = np.random.default_rng(seed).permutation(count).tolist()
    parts = sorted(order[held_out:]), sorted(order[:held_out])
    return [(take(x, indices), y and [y[i] for i in indices]) for indices in parts]


def _sorted_labels(names: Iterable[str], data: Path) -> list[str]:
    """All different labels in alphabetical order or, if they are numbers, in numerical order."""
    labels = sorted(set(names))
    if not labels:
        raise ValueError(f"No example of {data} has a label.")
    if len(labels) < 2:
        raise ValueError(f"All labels of {data} are {labels[0]!r}: there is nothing to tell apart.")
    return sorted(labels, key=float) if all(re.fullmatch(r"-?\d+(\.\d+)?", label) for label in labels) else labels


def _task_class(kind: Kind, arguments: Iterable[str]) -> Any:
    from lmzoo.head_kinds import task_of

    found: Any = task_of(kind.head)
    if "pooling" in arguments and "pooling" not in inspect.signature(found).parameters:
        raise ValueError(f"A {found.__name__} does not pool: leave out --pooling.")
    return found


def load_task(source: str) -> tuple[Kind, Task]:
    """Loads a task from a .keras file, a preset or a checkpoint; returns its kind, too."""
    from lmzoo.tasks.base.saving import load_keras_file

    path = Path(source)
    if path.suffix == ".keras" or path.is_file():
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}.")
        try:
            task = load_keras_file(path)
        except Exception as error:  # Keras' own differ in type and length
            reason = str(error).strip().split("\n")[0]
            raise ValueError(f"{path} cannot be loaded: {reason}") from None
    else:
        task = _head_of(source).from_preset(source)
    head = getattr(task, "head_kind", None)
    kind = next((kind for kind in KINDS if kind.head == head and kind.fits(task)), None)
    if kind is None:
        raise ValueError(f"{source} holds a {type(task).__name__}, which is not a task. See `lmzoo fit`.")
    return kind, task


def _head_of(preset: str) -> Any:
    """The class of the task that can use the head of a preset or checkpoint."""
    from lmzoo.head_kinds import user_of
    from lmzoo.presets.source import open_source

    found = user_of(open_source(preset).head)
    if found is None or found.head_kind not in {kind.head for kind in KINDS}:
        raise ValueError(f"{preset} holds no head of a task, only a backbone. Train one with `lmzoo fit`.")
    return found
