"""Validation and cleaning of texts for all tokenizers and tasks, and warnings about them."""

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
_NUMBER = re.compile(r"\d[\d.,]*")
_COLLECTED: ContextVar[list[str] | None] = ContextVar("collected warnings", default=None)


class TextWarning(UserWarning):
    """A warning about texts, for example that invalid UTF-8 was replaced or that texts were truncated.

    A call issues one warning for each reason, not one for each text.

    Example:

    ```python
    import warnings
    import lmzoo

    warnings.simplefilter("ignore", lmzoo.text.TextWarning)
    ```
    """


def warn(message: str) -> None:
    """Issue a `TextWarning` that points at the first caller outside lmzoo and Keras.

    Unlike `warnings.warn`, it repeats a warning that the same line has already caused. Inside `collect_warnings` the
    message is collected instead.
    """
    if (collected_messages := _COLLECTED.get()) is not None:
        collected_messages.append(message)
        return
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("lmzoo", "keras"):
        frame = frame.f_back
    warnings.warn_explicit(message, TextWarning, frame.f_code.co_filename, frame.f_lineno, registry={})


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    r"""Collect the text warnings of a block in a list instead of issuing them.

    Do not use it around the `yield` of a generator: code that runs in between would not warn.

    Yields:
        The list to which messages are added.

    Example:

    ```python
    from lmzoo.text.validate_text import clean_texts, collect_warnings

    with collect_warnings() as messages:
        clean_texts([b"caf\xe9"])
    messages  # ["1 of 1 texts held invalid UTF-8; it was read as U+FFFD."]
    ```
    """
    messages: list[str] = []
    context_token = _COLLECTED.set(messages)
    try:
        yield messages
    finally:
        _COLLECTED.reset(context_token)


class TextWarningFilter:
    """A filter that issues one text warning for each reason and drops its repetitions.

    Messages that differ only in their numbers have the same reason.
    """

    def __init__(self) -> None:
        self.issued_reasons: set[str] = set()

    @contextmanager
    def once_per_reason(self) -> Iterator[None]:
        """Run a block, and at its end issue its text warnings, except for reasons that a block has already issued."""
        with collect_warnings() as messages:
            yield
        for message in messages:
            reason = _NUMBER.sub("", message)
            if reason not in self.issued_reasons:
                self.issued_reasons.add(reason)
                warn(message)


def is_text(value: object) -> bool:
    """Return whether `value` is a single text: a string or UTF-8 bytes."""
    return isinstance(value, (str, bytes))


def holds_text(values: Any) -> bool:
    """Return whether `values` is a text or a batch whose first entry is a text; tensors of strings may be symbolic."""
    dtype = getattr(values, "dtype", None)
    if getattr(dtype, "name", dtype) == "string" or getattr(dtype, "kind", None) in ("U", "S", "T"):
        return True
    is_sequence = isinstance(values, (list, tuple)) or getattr(dtype, "kind", None) == "O"
    return is_text(next(iter(values), None) if is_sequence else values)


def as_single_text(value: Any) -> str | bytes | None:
    """Return a single text, also from a scalar array or tensor, or None if `value` is anything else."""
    if getattr(value, "ndim", None) == 0:
        value = value.numpy() if hasattr(value, "numpy") else value.item()
    return value if is_text(value) else None


def is_column(values: object) -> bool:
    """Return whether `values` can be a batch of texts: an ordered iterable, but neither a single text nor a dict."""
    is_excluded = is_text(values) or isinstance(values, (Mapping, set, frozenset)) or getattr(values, "ndim", 1) == 0
    return isinstance(values, Iterable) and not is_excluded


def clean_texts(texts: Iterable[object], name: str = "texts") -> list[str]:
    r"""Check a batch of texts and turn each into a valid Unicode string.

    Bytes are decoded as UTF-8. Invalid bytes and lone surrogates become U+FFFD, with one warning per call. The empty
    string is valid.

    Args:
        texts: list, tuple, numpy array or tensor of strings or bytes.
        name: str, name of the argument in messages.

    Returns:
        A list of strings.

    Raises:
        TypeError: If `texts` is a single string or a table, or an entry is not text; the message names the first such
            entry's position.

    Example:

    ```python
    from lmzoo.text.validate_text import clean_texts

    clean_texts(["a café", b"caf\xc3\xa9", ""])  # ["a café", "café", ""]
    ```
    """
    return clean_columns({name: texts})[0]


def clean_columns(columns: Mapping[str, Iterable[object]], words: bool = False) -> list[list[Any]]:
    """Check and clean several batches of texts, such as both sides of pairs, with at most one warning.

    Args:
        columns: dict from argument names, for messages, to batches of texts.
        words: bool, whether a text may also be a list, tuple or array of words.

    Returns:
        One list per batch: a string for each text, or a list of strings if it is split into words.

    Raises:
        TypeError: If a batch is a single string or a table, or an entry is not text; the message names the first such
            entry's position.
    """
    clean_text = _clean_words if words else _clean
    cleaned_columns = {
        name: [clean_text(text, name, i) for i, text in enumerate(_check_column(texts, name))]
        for name, texts in columns.items()
    }
    num_changed = sum(was_changed for column in cleaned_columns.values() for _, was_changed in column)
    if num_changed:
        num_texts = sum(map(len, cleaned_columns.values()))
        warn(f"{num_changed} of {num_texts} texts held invalid UTF-8; it was read as U+FFFD.")
    return [[text for text, _ in column] for column in cleaned_columns.values()]


def convert_to_list(texts: Any) -> Any:
    """Convert a tensor or array of texts to a list, or to a text if it has no axes; return anything else unchanged."""
    if hasattr(texts, "numpy"):
        texts = texts.numpy()
    return texts.tolist() if isinstance(texts, np.ndarray) else texts


def _check_column(texts: object, name: str) -> Iterable[object]:
    """Check that `texts` is a batch of texts, and return it, with a tensor or array converted to a list.

    Raises:
        TypeError: If `texts` is a single string, a table, or not a batch; the message calls it `name`.
    """
    texts = convert_to_list(texts)
    if hasattr(texts, "columns"):  # iterating over a table would yield the names of its columns
        raise TypeError(f"`{name}` must be a list of strings, got a table ({type(texts).__name__}). Pass one column.")
    if is_text(texts):
        raise TypeError(f"`{name}` must be a list of strings, got one string; write [{texts!r:.40}].")
    if not is_column(texts):
        raise TypeError(f"`{name}` must be a list of strings, got {texts!r:.60} ({type(texts).__name__}).")
    return texts  # type: ignore[return-value]


def _clean(text: object, name: str, position: int) -> tuple[str, bool]:
    """Return the text as a valid string, and whether invalid characters were replaced.

    Raises:
        TypeError: If `text` is not text; the message names its `position` in the argument `name`.
    """
    if isinstance(text, bytes):
        try:
            return text.decode(), False
        except UnicodeDecodeError:
            return text.decode(errors="replace"), True
    if not isinstance(text, str):
        raise TypeError(f"`{name}[{position}]` must be a string, got {text!r:.60} ({type(text).__name__}).")
    if not text.isascii() and _SURROGATE.search(text):
        return _SURROGATE.sub("\ufffd", text), True
    return text, False


def _clean_words(text: object, name: str, position: int) -> tuple[str | list[str], bool]:
    """Return a text, or a list of words, as valid strings, and whether invalid characters were replaced.

    Raises:
        TypeError: If `text` is not text or words; the message names its `position` in the argument `name`.
    """
    if isinstance(text, np.ndarray):  # words from a row of a ragged tensor or of a table
        text = text.tolist()
    if not isinstance(text, (list, tuple)):
        return _clean(text, name, position)
    cleaned_words = [_clean(word, f"{name}[{position}]", i) for i, word in enumerate(text)]
    return [word for word, _ in cleaned_words], any(was_changed for _, was_changed in cleaned_words)
