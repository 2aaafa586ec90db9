"""Checks of arguments: numbers, strings that end a text, and names of arguments; and the form of their messages."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmzoo.errors import ArgumentError


def is_integer(value: object, least: float = -math.inf, most: float = math.inf) -> bool:
    """Return whether `value` is an integer, also one of numpy's, but not a bool, from `least` to `most`."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and least <= value <= most  # type: ignore[operator]


def is_number(value: object, least: float = -math.inf, most: float = math.inf) -> bool:
    """Return whether `value` is a real number, but neither a bool nor NaN, from `least` to `most`."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and least <= value <= most  # type: ignore[operator]


def require(condition: object, name: str, allowed: str, value: object, advice: str = "") -> None:
    """Raise a ValueError that says what is allowed for an argument, unless `condition` holds.

    Args:
        condition: whether the value is allowed.
        name: name of the argument.
        allowed: what is, after "must be".
        value: what was passed.
        advice: a sentence that says what to do, if there is more to say.
    """
    if not condition:
        raise ArgumentError(f"`{name}` must be {allowed}, got {value!r:.60}.{' ' if advice else ''}{advice}", name)


def require_share(name: str, value: object) -> None:
    """Raise a ValueError unless an argument is a number in [0, 1), such as the rate of a dropout."""
    require(is_number(value, 0, 1) and value != 1, name, "a number in [0, 1)", value)


def refuse_arguments(call: str, names: Iterable[str], advice: Mapping[str, str], arguments: Iterable[str] = ()) -> None:
    """Raise a TypeError that names an argument that a call does not take, if there is one, and says what to do instead.

    Args:
        call: name of the function or class.
        names: names of the unknown arguments.
        advice: what to do instead, a sentence, by the names that other libraries give to arguments.
        arguments: those that the call takes, of which a similar one is suggested.
    """
    if unknown := sorted(names):
        similar = difflib.get_close_matches(unknown[0], arguments, 1)
        hint = advice.get(unknown[0]) or (f"Did you mean `{similar[0]}`?" if similar else "")
        raise TypeError(f"`{call}` takes no argument `{unknown[0]}`. {hint}".rstrip())


def stop_strings(stop: Any) -> list[str]:
    """Return the strings that end a generated text, checked: `stop` is one, several or None.

    Raises:
        ValueError: for anything else, and for empty strings.
    """
    several = isinstance(stop, Iterable) and not isinstance(stop, str)
    stops = [*stop] if several else [] if stop is None else [stop]
    for text in stops:
        what = "a string that is not empty, a list of such strings, or None"
        require(isinstance(text, str) and text, "stop", what, text)
    return stops


def near_names(name: str, names: Sequence[str]) -> str:
    """List the names that exist, for the end of a message, and suggest the one most like `name`."""
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    shown = ", ".join(f"{name!r:.40}" for name in names[:20]) + ", ..." * (len(names) > 20)
    return f"{hint} There are: {shown}."
