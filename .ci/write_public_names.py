"""Write `tests/public_names.txt`: what the API pages document, with the parameters and defaults of what is called.

`make registry` runs it after `write_registry.py`, which writes the pages; a test compares the file with what it would
write.
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


def public_names() -> str:
    """Return what the API pages document: every name, and the parameters and defaults of what is called."""
    pages = "".join(path.read_text("utf-8") for path in sorted((ROOT / "docs/api").glob("*.md")))
    entries = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    return "\n".join([*sorted({line for entry in entries for line in _signatures(entry, pydoc.locate(entry))}), ""])


def _signatures(name: str, thing: object) -> Iterator[str]:
    """Yield the lines of a module, a class with its own public methods, a function or anything else."""
    if inspect.ismodule(thing):
        for part, value in vars(thing).items():
            if not part.startswith("_") and getattr(value, "__module__", None) == thing.__name__:
                yield from _signatures(f"{name}.{part}", value)
    elif inspect.isclass(thing):
        yield name + _parameters(thing)
        for part, value in vars(thing).items():
            if not part.startswith("_"):
                function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
                if inspect.isfunction(function):
                    yield f"{name}.{part}{_parameters(function)}"
                elif isinstance(function, (property, functools.cached_property)):
                    yield f"{name}.{part}"
    else:
        yield name + (_parameters(thing) if callable(thing) else "")


def _parameters(function: Callable[..., object]) -> str:
    """Return the parameters of a function in parentheses, without their types, which mypy checks."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a class that takes what a built-in class takes
        return ""
    return str(inspect.Signature([parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]))


def written_files() -> dict[str, str]:
    """Return the content of the file, by its path."""
    return {FILE: public_names()}


def main() -> None:
    """Write the file, and print its name if it changed."""
    text = public_names()
    if (ROOT / FILE).read_text("utf-8") != text:
        (ROOT / FILE).write_text(text, "utf-8")
        print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
