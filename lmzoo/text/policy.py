"""What counts as text: one policy for every tokenizer and verb."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

_SURROGATE = re.compile("[\ud800-\udfff]")


class TextNotice(UserWarning):
    """A text was changed before use: invalid UTF-8 replaced, or cut to the sequence length. One notice a call."""


def is_text(value: Any) -> bool:
    """Whether `value` is one text: a string or UTF-8 bytes."""
    return isinstance(value, (str, bytes))


def clean_texts(texts: Iterable[Any], what: str = "texts") -> list[str]:
    """Checks a batch of texts and makes each a valid Unicode string.

    Bytes are read as UTF-8. Invalid bytes and lone surrogates become U+FFFD, with one notice per call. The empty string
    is a text like any other.

    Args:
        texts: strings or bytes: a list, a tuple, a numpy array or a tensor of strings.
        what: what to call the argument in messages.

    Returns:
        A list of strings.

    Raises:
        TypeError: for a single string, or naming the position of the first entry that is not text.

    Example:

    ```python
    from lmzoo.text.policy import clean_texts

    clean_texts(["a café", b"caf\\xc3\\xa9", ""])  # ["a café", "café", ""]
    ```
    """
    if is_text(texts):
        raise TypeError(f"`{what}` must be a list of strings, got one string; write [{texts!r:.40}].")
    if hasattr(texts, "numpy"):
        texts = texts.numpy()
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    cleaned, replaced = [], 0
    for position, text in enumerate(texts):
        if isinstance(text, bytes):
            decoded = text.decode("utf-8", errors="replace")
            replaced += "\ufffd" in decoded and "\ufffd".encode() not in text
            text = decoded
        elif isinstance(text, str):
            if not text.isascii() and _SURROGATE.search(text):
                text = _SURROGATE.sub("\ufffd", text)
                replaced += 1
        else:
            raise TypeError(f"`{what}[{position}]` must be a string, got {text!r:.60} ({type(text).__name__}).")
        cleaned.append(text)
    if replaced:
        warnings.warn(f"{replaced} of {len(cleaned)} texts held invalid UTF-8; it was read as U+FFFD.", TextNotice, 2)
    return cleaned
