"""Word labels: conversion from spans, checks of label sequences, and decoding with a conditional random field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import keras
import numpy as np

from lmzoo.common.arguments import is_integer
from lmzoo.common.span_marks import OUTSIDE, SpanScheme
from lmzoo.layers.crf import decode
from lmzoo.text.span_labels import label_span, transition_table
from lmzoo.text.validate_text import warn
from lmzoo.training.span_metrics import IGNORED


def warn_about_unmarked_labels(labels: Sequence[str] | None) -> None:
    """Warn about labels that mark no spans, and may be misspelled, if most labels mark spans."""
    scheme = SpanScheme.of(labels)
    if scheme and scheme.others:
        warn(
            f"Labels such as {next(iter(scheme.marks))!r} mark spans, but {', '.join(map(repr, scheme.others)):.200} "
            f"{'does' if len(scheme.others) == 1 else 'do'} not: words with other labels are in no span. Rename these "
            "labels if they are misspelled."
        )


def label_spans(
    place: str, spans: Sequence[Any], text: str, words: Sequence[tuple[str, int, int]], labels: Sequence[str] | None
) -> tuple[list[str], int]:
    """Convert the spans of a text to labels of its words.

    Args:
        place: name of the spans in messages, such as "`y[3]`".
        spans: dicts `{"start": int, "end": int, "label": str}`, with character offsets; if a span also has a `text`,
            this is compared with the text at its offsets.
        text: the text.
        words: words with their start and end offsets in the text.
        labels: labels of the model, which mark spans.

    Returns:
        The labels of the words, and the number of spans that were widened to whole words.

    Raises:
        ValueError: If a span is malformed or outside of the text, if its `text` is not at its offsets, if it contains
            no word or shares a word with another span (the message shows the span), or if `labels` do not mark spans.
    """
    spans = [_check_span(place, span, text) for span in spans]
    scheme = SpanScheme.of(labels)
    if scheme is None:
        raise ValueError(f"{place} holds spans, but the model's labels do not mark any: {labels}.")
    word_labels = [OUTSIDE] * len(words)
    widened_count = 0
    for span in spans:
        word_indices = [k for k, (_, start, end) in enumerate(words) if start < span["end"] and end > span["start"]]
        if not word_indices:
            raise ValueError(f"{place}: no word of the text is in the span {span!r:.80}.")
        if any(word_labels[k] != OUTSIDE for k in word_indices):
            raise ValueError(f"{place}: the span {span!r:.80} shares a word with another one.")
        widened_count += (words[word_indices[0]][1], words[word_indices[-1]][2]) != (span["start"], span["end"])
        for k, label in zip(word_indices, label_span(span["label"], len(word_indices), scheme), strict=True):
            word_labels[k] = label
    return word_labels, widened_count


def _check_span(place: str, span: Any, text: str) -> Mapping[str, Any]:
    """Check that a span lies within `text` and matches it, and return the span; `place` names it in messages.

    Raises:
        ValueError: If the span is malformed or outside of the text, or if its `text` is not at its offsets.
    """
    if not isinstance(span, Mapping) or not {"start", "end", "label"} <= span.keys():
        raise ValueError(f'{place}: a span is a dict with "start", "end" and "label", got {span!r:.80}.')
    start = span["start"]
    end = span["end"]
    if not (is_integer(start, 0) and is_integer(end, 1, len(text)) and start < end):
        raise ValueError(f"{place}: the span {span!r:.80} is not within its text of {len(text)} characters.")
    if span.get("text", text[start:end]) != text[start:end]:
        raise ValueError(f"{place}: the text at the span {span!r:.80} is another, {text[start:end]!r:.60}.")
    return span


def check_label_sequences(class_numbers: np.ndarray, counts: Sequence[int], labels: Sequence[str]) -> None:
    """Check that the labels of each text's words form a valid sequence in the scheme of `labels`.

    Args:
        class_numbers: int (W,), class numbers of the W words of all texts; -100 for words that do not count.
        counts: the number of words in each text.
        labels: labels of the model, which mark spans.

    Raises:
        ValueError: If a label cannot follow the label before it, or begin or end a text; the message names the first.
    """
    is_allowed = transition_table(labels)
    boundary_index = len(labels)
    for i, text_labels in enumerate(np.split(class_numbers, np.cumsum(counts)[:-1])):
        word_indices = np.flatnonzero(text_labels != IGNORED)
        path = [boundary_index, *text_labels[word_indices].tolist(), boundary_index]
        for k, (previous_class, next_class) in enumerate(pairwise(path)):
            if not is_allowed[previous_class, next_class]:
                place = f"`y[{i}][{word_indices[k]}]`" if next_class < boundary_index else f"`y[{i}]`"
                if previous_class == boundary_index:
                    problem = f"{labels[next_class]!r} cannot begin a text"
                elif next_class == boundary_index:
                    problem = f"a text cannot end with {labels[previous_class]!r}"
                else:
                    problem = f"{labels[next_class]!r} cannot follow {labels[previous_class]!r}"
                raise ValueError(
                    f"{place}: {problem}, in the scheme of the labels {list(labels)}. Correct it, or train without "
                    "`crf`."
                )


def decode_words(scores: np.ndarray, columns: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the class numbers of each text's W words in the most probable sequence, and their probabilities, both (W,).

    Args:
        scores: float (n, T, C + 1, C + 1), the scores of a conditional random field with C classes for n texts of T
            tokens; see `lmzoo.layers.TransitionScores`.
        columns: for each text, the positions of its words' first tokens, int (W,).
    """
    word_counts = np.array([[len(positions)] for positions in columns])  # (n, 1)
    is_word = np.arange(max(1, word_counts.max())) < word_counts  # (n, W)
    word_columns = np.zeros(is_word.shape, "int64")
    word_columns[is_word] = np.concatenate(columns)
    word_scores = np.take_along_axis(scores, word_columns[:, :, None, None], axis=1)  # (n, W, C + 1, C + 1)
    class_numbers, probabilities = map(keras.ops.convert_to_numpy, decode(word_scores, is_word))  # (n, W)
    for i, is_word_of_text in enumerate(is_word):
        yield class_numbers[i, is_word_of_text], probabilities[i, is_word_of_text]
