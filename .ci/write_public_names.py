"""Write `tests/public_names.txt`: the names on the API pages, with the parameters of functions, methods and classes.

`make registry` runs it after `write_registry.py`, which writes the pages; a test checks that the file is up to date.
"""

from __future__ import annotations

import functools
import inspect
import pydoc
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = "tests/public_names.txt"


def list_public_names() -> str:
    """Return a line for each name on the API pages, with the parameters and defaults of callables."""
    pages = "".join(path.read_text("utf-8") for path in sorted((ROOT / "docs/api").glob("*.md")))
    entries = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    return "\n".join(
        [*sorted({line for entry in entries for line in _list_signatures(entry, pydoc.locate(entry))}), ""]
    )


def _list_signatures(name: str, thing: object) -> Iterator[str]:
    """Yield the lines for an object: with its members for a module, with its own public members for a class."""
    if inspect.ismodule(thing):
        for part, value in vars(thing).items():
            if not part.startswith("_") and getattr(value, "__module__", None) == thing.__name__:
                yield from _list_signatures(f"{name}.{part}", value)
    elif inspect.isclass(thing):
        yield name + _format_parameters(thing)
        for part, value in vars(thing).items():
            if not part.startswith("_"):
                function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
                if inspect.isfunction(function):
                    yield f"{name}.{part}{_format_parameters(function)}"
                elif isinstance(function, (property, functools.cached_property)):
                    yield f"{name}.{part}"
    else:
        yield name + (_format_parameters(thing) if callable(thing) else "")


def _format_parameters(function: Callable[..., object]) -> str:
    """Return the parameters of a function in parentheses, without their types, which mypy checks."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a class with the parameters of a built-in class
        return ""
    return str(inspect.Signature([parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]))


def written_files() -> dict[str, str]:
    """Return the content of the file, by its path."""
    return {FILE: list_public_names()}


def main() -> None:
    """Write the file, and print its name if it changed."""
    text = list_public_names()
    if (ROOT / FILE).read_text("utf-8") != text:
        (ROOT / FILE).write_text(text, "utf-8")
        print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
