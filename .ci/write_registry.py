"""Write the files that follow from the registries and the benchmarks: modules that list names, and blocks of pages.

`make registry` runs it, and then `write_public_names.py`, which reads the pages; a test checks that the files are up to
date. In a page, a block is between `<!-- written by make registry: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import csv
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from posixpath import relpath

from lmzoo.checkpoints.family_names import ARCHITECTURES, names_in_transformers
from lmzoo.pretraining.recipe import LEARNS, METHODS
from lmzoo.registry.family import Family, families
from lmzoo.registry.head_kinds import tasks
from lmzoo.tasks import Task
from lmzoo_cli.task_kinds import KINDS, READINGS

ROOT = Path(__file__).resolve().parents[1]
# The formats of checkpoints, by the library that reads and writes them: see `Family.checkpoints`.
FORMATS = {
    "hf": "Hugging Face",
    "google": "Google, TensorFlow 1",
    "keras_hub": "KerasHub",
    "fairseq": "fairseq",
    "bilm": "bilm-tf, AllenNLP",
}


def list_package_families() -> list[Family]:
    """Return the families of the package by name, without those that users register."""
    return [family for _, family in sorted(families().items()) if family.backbone.__module__.startswith("lmzoo.")]


def list_package_tasks() -> list[type[Task]]:
    """Return the tasks of the package by the names of their classes."""
    # Bases of several tasks are in folders of `lmzoo.tasks`.
    classes = [task for task in dict.fromkeys(tasks().values()) if re.fullmatch(r"lmzoo\.tasks\.\w+", task.__module__)]
    return sorted(classes, key=lambda task: task.__name__)


_MISSING_MODEL = [
    "",
    "if not TYPE_CHECKING:  # type checkers would accept every name",
    "",
    "    def __getattr__(name: str) -> NoReturn:",
    '        """Raise an AttributeError with advice on what to use instead."""',
    "        refuse_model_name(name, __all__)",
]


def make_models_module() -> str:
    """Return the source of `lmzoo/models.py`."""
    backbones = sorted(["Backbone", *(family.backbone.__name__ for family in list_package_families())])
    heads = sorted(["Task", *(task.__name__ for task in list_package_tasks())])
    names = sorted([*backbones, "NgramLM", "StaticEmbedder", *heads])
    return "\n".join(
        [
            '"""Public names of backbones, tasks, n-gram models and word vectors. `make registry` writes this file."""',
            "",
            "from typing import TYPE_CHECKING, NoReturn",
            "",
            "from lmzoo.common.other_names import refuse_model_name",
            *_format_import("lmzoo.families", backbones),
            "from lmzoo.ngrams import NgramLM",
            "from lmzoo.static_vectors import StaticEmbedder",
            *_format_import("lmzoo.tasks", heads),
            "",
            "__all__ = [",
            *(f'    "{name}",' for name in names),
            "]",
            *_MISSING_MODEL,
            "",
        ]
    )


def _format_import(module: str, names: Iterable[str]) -> list[str]:
    return [f"from {module} import (", *(f"    {name}," for name in names), ")"]


def make_command_line_module() -> str:
    """Return the source of `lmzoo_cli/registered.py`."""
    families = [family.name for family in list_package_families() if family.pretrained_head in METHODS]
    return "\n".join(
        [
            '"""Names that help shows before Keras is loaded. `make registry` writes this file."""',
            "",
            *_format_tuple("PRETRAINED_FAMILIES", families),
            "",
            *_format_tuple("TASKS", [kind.name for kind in KINDS]),
            "",
        ]
    )


def _format_tuple(name: str, values: Iterable[str]) -> list[str]:
    return [f"{name} = (", *(f'    "{value}",' for value in values), ")"]


def make_table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in lines)


def make_directives(names: Iterable[str]) -> str:
    """Return the lines of an API page that document classes, given their full names."""
    return "\n\n".join(f"::: {name}" for name in names)


def get_summary(thing: object) -> str:
    """Return the first sentence of a docstring, without its period."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")


def make_family_table(page: str) -> str:
    """Return the table of families, their backbones and tokenizers."""
    rows = []
    for family in list_package_families():
        title = family.title
        if family.guide:
            title = f"[{title}]({relpath('docs/' + family.guide, str(Path(page).parent))})"
        rows.append((title, f"`{family.backbone.__name__}`", f"`{family.tokenizer.__name__}`"))
    return make_table(("family", "backbone in `lmzoo.models`", "tokenizer in `lmzoo.text`"), rows)


def make_format_table() -> str:
    """Return the table of families and the formats of their checkpoints."""
    rows = [
        (family.title, *("yes" if name in family.checkpoints else "" for name in FORMATS))
        for family in list_package_families()
        if family.checkpoints
    ]
    return make_table(("", *FORMATS.values()), rows)


def make_head_table() -> str:
    """Return the table of tasks and the formats from which they load their heads."""
    names = [name for name in FORMATS if any(_get_head_kinds(family, name) for family in list_package_families())]
    rows = []
    for task in list_package_tasks():
        kinds = {kind for kind, cls in tasks().items() if cls is task} | set(task.reads_heads)
        cells = []
        for name in names:
            read = [
                family
                for family in list_package_families()
                if task.supports(family) and kinds & _get_head_kinds(family, name)
            ]
            cells.append(_format_classes(kinds, read) if name == "hf" else "yes" if read else "")
        if any(cells):
            rows.append((f"`{task.__name__}`", *cells))
    return make_table(("", *(FORMATS[name] for name in names)), rows)


def _get_head_kinds(family: Family, name: str) -> set[str]:
    """Return the kinds of heads that a family has in a format."""
    return set(getattr(family.checkpoints.get(name), "heads", None) or ())


def _format_classes(kinds: set[str], with_heads: Iterable[Family]) -> str:
    """Return the names of transformers' classes with the given kinds of heads, with `…` for the prefix of a family.

    If transformers has no such class, return a link to the format of Sentence Transformers.
    """
    classes = set()
    for family in with_heads:
        special = names_in_transformers(family).architectures
        for kind in kinds & _get_head_kinds(family, "hf"):
            usual = f"…For{ARCHITECTURES[kind]}" if kind in ARCHITECTURES else None
            classes.add(special.get(kind, usual))
    names = sorted(name for name in classes if name and f"…For{name.partition('For')[2]}" not in classes - {name})
    return ", ".join(f"`{name}`" for name in names) or (
        "[`modules.json`](#sentence-transformers)" if with_heads else ""
    )


def make_pretraining_table() -> str:
    """Return the table of the families that `lmzoo pretrain` trains, and what they learn to predict."""
    pretrained = [family for family in list_package_families() if family.pretrained_head in METHODS]
    rows = [
        (f"`{family.name}`", LEARNS.get(family.objective or "", METHODS[family.pretrained_head].learns))
        for family in pretrained
    ]
    return make_table(("`--family`", "what it learns to predict"), rows)


def make_task_table() -> str:
    """Return the table of tasks, what they predict and their methods."""
    rows = []
    for task in list_package_tasks():
        method = task.answers
        has_answers = method is not Task.answers
        answers = f"`{method.__name__}`: {get_summary(method).removeprefix('Return ')}" if has_answers else ""
        rows.append((f"`{task.__name__}`", get_summary(sys.modules[task.__module__]), task.predicts, answers))
    return make_table(("task", "what it is for", "`predict` returns", "the method that returns answers"), rows)


def make_command_table() -> str:
    """Return the table of tasks on the command line."""
    rows = []
    for task in list_package_tasks():
        for name, how in task.commands:
            rows.append((f"`{name}`", f"`{task.__name__}`", READINGS[how].examples, READINGS[how].columns))
    return make_table(("`--task`", "class", "examples", "columns by default"), sorted(rows))


def make_served_table() -> str:
    """Return the table of the inputs and outputs of exported tasks."""
    rows = [(f"`{task.__name__}`", task.takes, task.serves) for task in list_package_tasks() if task.serves]
    return make_table(("task", "takes (strings)", "returns, in addition to `truncated`"), rows)


def make_speed_table() -> str:
    """Return the table of ratios to other libraries, by processor.

    `benchmarks/landing_page.csv` names the files of `benchmarks/results` that contain the ratios.
    """
    with (ROOT / "benchmarks/landing_page.csv").open(encoding="utf-8", newline="") as file:
        (_, peers, _, *processors), *lines = csv.reader(file)
    rows = []
    for measured, peer, entry, *files in lines:
        ratios = [_format_ratio(file, entry.split("/")) if file else "–" for file in files]
        rows.append((measured, peer, *ratios))
    return make_table(("", peers, *processors), rows)


def _format_ratio(file: str, keys: Iterable[str]) -> str:
    """Return the median ratio of a peer's time to lmzoo's, in bold where lmzoo is slower."""
    entry = json.loads((ROOT / f"benchmarks/results/{file}.json").read_text("utf-8"))["summary"]
    for key in keys:
        entry = entry[key]
    text = format(entry["ratio"], ".2f" if entry["ratio"] < 1.95 else ".1f" if entry["ratio"] < 9.5 else ".0f")
    return text if float(text) >= 1 else f"**{text}**"


def make_install_commands() -> str:
    """Return the commands that install lmzoo, from PyPI if `tool.lmzoo.on-pypi` in `pyproject.toml` is true."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    if project["tool"]["lmzoo"]["on-pypi"]:
        return "```console\n$ pip install lmzoo\n$ pip install 'lmzoo[jax]'  # and the JAX backend\n```"
    repository = "git+" + project["project"]["urls"]["Repository"]
    lines = [
        "```console",
        f"$ pip install {repository}",
        f"$ pip install 'lmzoo[jax] @ {repository}'  # and the JAX backend",
        "```",
        "",
        "The first release is being prepared and will be on PyPI. From then on, the command is `pip install lmzoo`.",
    ]
    return "\n".join(lines)


def make_version_table() -> str:
    """Return the table of the versions of Python and of the backends that `pyproject.toml` allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["jax"], *extras["torch"]]
    ranges = dict(re.fullmatch(r"([\w-]+)(.+)", requirement).groups() for requirement in requirements)
    rows = [("Python", f"`{project['requires-python']}`")]
    for name in ("keras", "tensorflow", "tensorflow-text", "jax", "torch"):
        rows.append((name, f"`{ranges[name]}`"))
    return make_table(("package", "versions"), rows)


def make_blocks() -> dict[str, dict[str, str]]:
    """Return the blocks of each page by name."""
    backbones = [f"lmzoo.models.{family.backbone.__name__}" for family in list_package_families()]
    configs = [f"{f.tiny.__class__.__module__}.{f.tiny.__class__.__name__}" for f in list_package_families()]
    return {
        "docs/index.md": {"speed": make_speed_table(), "install": make_install_commands()},
        "README.md": {"families": make_family_table("README.md"), "install": make_install_commands()},
        "docs/api/models.md": {"backbones": make_directives(backbones), "configurations": make_directives(configs)},
        "docs/api/tasks.md": {
            "tasks": make_directives(f"lmzoo.models.{task.__name__}" for task in list_package_tasks())
        },
        "docs/concepts.md": {"tasks": make_task_table()},
        "docs/stability.md": {"versions": make_version_table()},
        "docs/guides/checkpoints.md": {"families": make_format_table(), "heads": make_head_table()},
        "docs/guides/command_line.md": {"tasks": make_command_table()},
        "docs/guides/serve.md": {"tasks": make_served_table()},
        "docs/guides/pretrain.md": {"families": make_pretraining_table()},
    }


def fill(text: str, page: str, name: str, block: str) -> str:
    """Return the text of a page with new content in one of its blocks.

    Raises:
        ValueError: If the page has no such block.
    """
    pattern = re.compile(rf"(<!-- written by make registry: {re.escape(name)} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(
            f"{page} has no block `<!-- written by make registry: {name} -->` that ends with `<!-- end -->`."
        )
    return pattern.sub(lambda match: f"{match[1]}\n{block}\n{match[2]}", text)


def written_files() -> dict[str, str]:
    """Return the content of each file that is written, by its path."""
    files = {
        "lmzoo_cli/registered.py": make_command_line_module(),
        "lmzoo/models.py": make_models_module(),
    }
    for page, named in make_blocks().items():
        text = (ROOT / page).read_text("utf-8")
        for name, block in named.items():
            text = fill(text, page, name, block)
        files[page] = text
    return files


def main() -> None:
    """Write the files, and print the names of those that changed."""
    for name, text in written_files().items():
        if not (ROOT / name).exists() or (ROOT / name).read_text("utf-8") != text:
            (ROOT / name).write_text(text, "utf-8")
            print(f"wrote {name}")


if __name__ == "__main__":
    main()
