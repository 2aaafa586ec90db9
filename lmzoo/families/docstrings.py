"""What help() says of a backbone's arguments: each is described once, where its configuration declares it."""

from __future__ import annotations

import dataclasses
import inspect
import re


def with_arguments(text: str, config_class: type, base: type) -> str:
    """A backbone's docstring with a section on all of its arguments, in front of the one on errors.

    Args:
        text: the docstring.
        config_class: a dataclass; its docstring and those of its bases describe the fields, as "Attributes".
        base: the class whose docstring describes what every backbone takes, as "Args".
    """
    described: dict[str, str] = {}
    for part in reversed(config_class.__mro__):
        described |= _entries(part, "Attributes")
    fields = [described.get(field.name, field.name) for field in dataclasses.fields(config_class)]
    common = [entry for name, entry in _entries(base, "Args").items() if not name.startswith("*")]
    section = "".join(f"    {entry}\n" for entry in (*fields, *common))
    before, errors, after = inspect.cleandoc(text).partition("Raises:\n")
    return f"{before.rstrip()}\n\nArgs:\n{section}\n{errors}{after}".rstrip() + "\n"


def _entries(cls: type, section: str) -> dict[str, str]:
    """The entries of a section of a docstring, by name."""
    found = re.search(rf"^{section}:\n((?: .*\n?)*)", inspect.cleandoc(cls.__doc__ or ""), re.MULTILINE)
    entries = re.split(r"^    (?=\S)", found[1] if found else "", flags=re.MULTILINE)[1:]
    return {entry.partition(":")[0]: entry.rstrip() for entry in entries}
