"""Checks of arguments, and their error messages."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lmzoo.errors import ArgumentError


def is_integer(value: object, least: float = -math.inf, most: float = math.inf) -> bool:
    """Return whether `value` is a Python or numpy integer from `least` to `most`, but not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and least <= value <= most  # type: ignore[operator]


def is_number(value: object, least: float = -math.inf, most: float = math.inf) -> bool:
    """Return whether `value` is a real number from `least` to `most`, but not a bool or NaN."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and least <= value <= most  # type: ignore[operator]


def as_python_values(value: Any) -> Any:
    """Convert NumPy scalars, also inside nested lists, tuples and dicts, to Python values, as JSON requires."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: as_python_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [as_python_values(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def require(condition: object, name: str, allowed: str, value: object, advice: str = "") -> None:
    """Check an argument, with an error message that describes the allowed values.

    Args:
        condition: whether the value is allowed.
        name: str, name of the argument.
        allowed: str, description of the allowed values, which follows "must be" in the message.
        value: the value that was passed.
        advice: str, a sentence that says what to do, for the end of the message; may be empty.

    Raises:
        ArgumentError: If `condition` is false; a subclass of ValueError.
    """
    if not condition:
        raise ArgumentError(f"`{name}` must be {allowed}, got {value!r:.60}.{' ' if advice else ''}{advice}", name)


def require_share(name: str, value: object) -> None:
    """Check that an argument is a number in [0, 1), such as a dropout rate.

    Raises:
        ArgumentError: If `value` is anything else; a subclass of ValueError.
    """
    require(is_number(value, 0, 1) and value != 1, name, "a number in [0, 1)", value)


def refuse_arguments(call: str, names: Iterable[str], advice: Mapping[str, str], arguments: Iterable[str] = ()) -> None:
    """Raise a TypeError if there are unknown arguments, with advice on the first of them in alphabetical order.

    Args:
        call: str, name of the function or class that was called.
        names: names of the unknown arguments; may be empty.
        advice: dict from an argument's name in another library to a sentence that says what to do instead.
        arguments: names of the supported arguments. A similar one is suggested if `advice` lacks the name.

    Raises:
        TypeError: If `names` is not empty.
    """
    if unknown_names := sorted(names):
        similar_names = difflib.get_close_matches(unknown_names[0], arguments, 1)
        hint = advice.get(unknown_names[0]) or (f"Did you mean `{similar_names[0]}`?" if similar_names else "")
        raise TypeError(f"`{call}` takes no argument `{unknown_names[0]}`. {hint}".rstrip())


def list_stop_strings(stop: Any) -> list[str]:
    """Check the argument `stop` of text generation, and return it as a list.

    Args:
        stop: str, iterable of str, or None: the strings that end a generated text.

    Raises:
        ValueError: If `stop` is anything else, or a string is empty.
    """
    is_collection = isinstance(stop, Iterable) and not isinstance(stop, str)
    stop_strings = [*stop] if is_collection else [] if stop is None else [stop]
    for string in stop_strings:
        allowed = "a string that is not empty, a list of such strings, or None"
        require(isinstance(string, str) and string, "stop", allowed, string)
    return stop_strings


def near_names(name: str, names: Sequence[str]) -> str:
    """Return the end of an error message about an unknown name: a similar name, if any, and up to 20 known names."""
    similar_names = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {similar_names[0]!r}?" if similar_names else ""
    listed_names = ", ".join(f"{name!r:.40}" for name in names[:20]) + ", ..." * (len(names) > 20)
    return f"{hint} There are: {listed_names}."
