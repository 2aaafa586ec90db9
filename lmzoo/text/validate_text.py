"""Checks and cleans texts, in the same way for every tokenizer and task, and warns about them."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np

# A string, UTF-8 bytes or, for tokenizers with `takes_words`, a list of words.
Text: TypeAlias = str | bytes | Sequence[str]

_SURROGATE = re.compile("[\ud800-\udfff]")
_COLLECTED: ContextVar[list[str] | None] = ContextVar("collected warnings", default=None)


class TextWarning(UserWarning):
    """A text was changed: invalid UTF-8 was replaced, or it was truncated to the sequence length. One warning per call.

    Example:

    ```python
    import warnings
    import lmzoo

    warnings.simplefilter("ignore", lmzoo.text.TextWarning)
    ```
    """


def warn(message: str) -> None:
    """Issue a `TextWarning` that points at the first caller outside the library.

    Unlike `warnings.warn`, it also warns when the same line has given the same warning before. Inside
    `collect_warnings` the message is collected instead.
    """
    if (collected := _COLLECTED.get()) is not None:
        collected.append(message)
        return
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("lmzoo", "keras"):
        frame = frame.f_back
    warnings.warn_explicit(message, TextWarning, frame.f_code.co_filename, frame.f_lineno, registry={})


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    r"""Collect the text warnings of a `with` block instead of issuing them.

    Do not hold it across the `yield` of a generator: code that runs in between would not warn.

    Yields:
        The messages, in a list that grows.

    Example:

    ```python
    from lmzoo.text.validate_text import clean_texts, collect_warnings

    with collect_warnings() as messages:
        clean_texts([b"caf\xe9"])
    messages  # ["1 of 1 texts held invalid UTF-8; it was read as U+FFFD."]
    ```
    """
    messages: list[str] = []
    token = _COLLECTED.set(messages)
    try:
        yield messages
    finally:
        _COLLECTED.reset(token)


class FirstWarning:
    """A collector of text warnings, which issues the first and drops all others."""

    def __init__(self) -> None:
        self.issued = False

    @contextmanager
    def only(self) -> Iterator[None]:
        """Drop the warnings of a `with` block, except for the very first one."""
        with collect_warnings() as messages:
            yield
        if messages and not self.issued:
            self.issued = True
            warn(messages[0])


def is_text(value: object) -> bool:
    """Return whether `value` is a single text: a string or UTF-8 bytes."""
    return isinstance(value, (str, bytes))


def single_text(value: Any) -> str | bytes | None:
    """Return a single text, also one in an array or tensor without axes, or None for anything else."""
    if getattr(value, "ndim", None) == 0:
        value = value.numpy() if hasattr(value, "numpy") else value.item()
    return value if is_text(value) else None


def is_column(values: object) -> bool:
    """Whether `values` can be a batch of texts: anything to iterate over, in an order, but a single text or a dict."""
    other = is_text(values) or isinstance(values, (Mapping, set, frozenset)) or getattr(values, "ndim", 1) == 0
    return isinstance(values, Iterable) and not other


def clean_texts(texts: Iterable[object], what: str = "texts") -> list[str]:
    r"""Check a batch of texts and turn each into a valid Unicode string.

    Bytes are decoded as UTF-8. Invalid bytes and lone surrogates become U+FFFD, with one warning per call. The empty
    string is valid.

    Args:
        texts: strings or bytes: a list, a tuple, a numpy array or a tensor of strings.
        what: the name of the argument, for messages.

    Returns:
        A list of strings.

    Raises:
        TypeError: for a single string, or naming the position of the first entry that is not text.

    Example:

    ```python
    from lmzoo.text.validate_text import clean_texts

    clean_texts(["a café", b"caf\xc3\xa9", ""])  # ["a café", "café", ""]
    ```
    """
    return clean_columns({what: texts})[0]


def clean_columns(columns: Mapping[str, Iterable[object]], words: bool = False) -> list[list[Any]]:
    """`clean_texts` for several arguments of one call, such as the two sides of pairs, with one warning for all.

    `columns` are batches of texts by their names, for messages. With `words` a text may also be a list, tuple or array
    of words.

    Returns:
        One list per batch: a string for each text, or a list of strings if it is split into words.

    Raises:
        TypeError: as for `clean_texts`.
    """
    clean = _clean_words if words else _clean
    cleaned = {what: [clean(text, what, i) for i, text in enumerate(_listed(t, what))] for what, t in columns.items()}
    replaced = sum(changed for column in cleaned.values() for _, changed in column)
    if replaced:
        count = sum(map(len, cleaned.values()))
        warn(f"{replaced} of {count} texts held invalid UTF-8; it was read as U+FFFD.")
    return [[text for text, _ in column] for column in cleaned.values()]


def _listed(texts: object, what: str) -> Iterable[object]:
    if hasattr(texts, "numpy"):
        texts = texts.numpy()
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    if is_text(texts):
        raise TypeError(f"`{what}` must be a list of strings, got one string; write [{texts!r:.40}].")
    if not is_column(texts):
        raise TypeError(f"`{what}` must be a list of strings, got {texts!r:.60} ({type(texts).__name__}).")
    return texts  # type: ignore[return-value]


def _clean(text: object, what: str, position: int) -> tuple[str, bool]:
    """Return the text as a valid string, and whether it was changed."""
    if isinstance(text, bytes):
        try:
            return text.decode(), False
        except UnicodeDecodeError:
            return text.decode(errors="replace"), True
    if not isinstance(text, str):
        raise TypeError(f"`{what}[{position}]` must be a string, got {text!r:.60} ({type(text).__name__}).")
    if not text.isascii() and _SURROGATE.search(text):
        return _SURROGATE.sub("\ufffd", text), True
    return text, False


def _clean_words(text: object, what: str, position: int) -> tuple[str | list[str], bool]:
    """`_clean` for a text that may be a list of words."""
    if isinstance(text, np.ndarray):  # words from a row of a ragged tensor or of a table
        text = text.tolist()
    if not isinstance(text, (list, tuple)):
        return _clean(text, what, position)
    cleaned = [_clean(word, f"{what}[{position}]", i) for i, word in enumerate(text)]
    return [word for word, _ in cleaned], any(changed for _, changed in cleaned)
