"""Which words an answer is due to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from lmzoo.analysis.reading import SPECIAL, Reader
from lmzoo.arguments import is_integer, require
from lmzoo.tasks import TextClassifier, TextRegressor
from lmzoo.tasks.base.input_kinds import split_segments
from lmzoo.tensor_types import Features, Tensor
from lmzoo.text.batching import ladder_buckets
from lmzoo.text.validate_text import clean_columns
from lmzoo.text.word_splitting import place_words


class Attribution(NamedTuple):
    """What each part of a text contributes to an answer.

    Attributes:
        texts: the text, or the two of a pair.
        tokens: n strings, tokens or words.
        offsets: int64 (n, 2), the first character of each and the one after its last; -1 for special tokens.
        segments: int64 (n,), to which of the texts each belongs; -1 for special tokens.
        values: float64 (n,), contributions to the score: positive ones speak for the answer.
        target: the answer, a class by its name; "score" for numbers.
        score: float, the logit of the class, or the number, for the text.
        baseline: float, the score without the text; None if each word was left out by itself.
    """

    texts: tuple[str, ...]
    tokens: list[str]
    offsets: np.ndarray
    segments: np.ndarray
    values: np.ndarray
    target: str
    score: float
    baseline: float | None


def integrated_gradients(
    task: TextClassifier | TextRegressor, texts: Any, target: str | int | None = None, steps: int = 32
) -> list[Attribution]:
    """What each token contributes to an answer, by integrated gradients (Sundararajan et al., 2017).

    https://arxiv.org/abs/1703.01365. The embeddings of a text are faded in from those of a text of mask tokens, or of
    padding if the family has no mask token; the gradients of the score along the way, times the difference, are summed.
    The contributions of all tokens add up to the score minus that of the baseline.

    Args:
        task: a `TextClassifier` or a `TextRegressor` with a preprocessor, on a family with token embeddings.
        texts: strings or pairs of them.
        target: the class, by name or number; by default of each text the one that the task answers.
        steps: int, points on the way; more make the sum more exact.

    Raises:
        TypeError: for another task; naming the position of an entry that is not text.
        ValueError: for an unknown class; for a family without token embeddings, such as ELMo, where `leave_out` works;
            if there are no texts.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    (found,) = lmzoo.analysis.integrated_gradients(task, ["A quiet, lovely film."])
    found.values.sum()  # found.score - found.baseline
    ```
    """
    _check(task)
    require(is_integer(steps, 1), "steps", "a positive integer", steps)
    layer = getattr(task.backbone, "embeddings", None)
    if layer is None:
        raise ValueError(
            f"{type(task.backbone).__name__} has no embeddings of tokens to fade in: use `leave_out` instead."
        )
    reader = Reader.of(task, None)
    read, encoded = reader.read(texts)
    chosen = _targets(task, task.predict(texts, verbose=0), target)
    widths = ladder_buckets(max(reader.preprocessor.sequence_length, int(encoded.lengths.max())))
    points, weights = np.polynomial.legendre.leggauss(steps)  # of Gauss' quadrature, from -1 to 1
    points, weights = (points + 1) / 2, weights / 2
    results = []
    for i, text in enumerate(read):
        width = next(width for width in widths if width >= len(text.tokens))
        features = reader.preprocessor.features(encoded, np.array([i]), width)
        blank = {**features, "token_ids": features["token_ids"].copy()}
        blank["token_ids"][0, : len(text.tokens)][text.segments != SPECIAL] = _blank_id(reader)
        start, end = _embedded(task, layer, blank), _embedded(task, layer, features)  # (1, T, E)
        difference = ops.cast(end - start, "float32")
        path = ops.cast(start, "float32") + np.reshape(points, (-1, 1, 1)).astype("float32") * difference  # (S, T, E)
        repeated = {name: np.repeat(values, steps, axis=0) for name, values in features.items()}
        column = chosen[i]

        def score(x: Tensor, repeated: Features = repeated, column: int = column) -> Tensor:
            with _replaced(layer, lambda _: x):
                return ops.sum(ops.cast(task(repeated, training=False), "float32")[:, column])

        gradients = np.asarray(_gradient(score, path), "float64")  # (S, T, E)
        values = (np.tensordot(weights, gradients, 1) * np.asarray(difference[0], "float64")).sum(axis=-1)  # (T,)
        ends = [float(ops.convert_to_numpy(task(x, training=False))[0, column]) for x in (features, blank)]
        results.append(Attribution(*text, values[: len(text.tokens)], _name(task, column), *ends))
    return results


def leave_out(
    task: TextClassifier | TextRegressor, texts: Any, target: str | int | None = None, batch_size: int = 32
) -> list[Attribution]:
    """What each word contributes to an answer: how much the score falls if the word is left out (Li et al., 2016).

    https://arxiv.org/abs/1612.08220. A text of n words costs n forward passes. Contributions need not add up.

    Args:
        task: a `TextClassifier` or a `TextRegressor` with a preprocessor, on any family.
        texts: strings or pairs of them.
        target: the class, by name or number; by default of each text the one that the task answers.
        batch_size: int.

    Raises:
        TypeError: for another task; naming the position of an entry that is not text.
        ValueError: for an unknown class, or if there are no texts.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    (found,) = lmzoo.analysis.leave_out(task, ["A quiet, lovely film."])
    found.tokens[found.values.argmax()]  # the word that speaks most for the answer
    ```
    """
    _check(task)
    columns = [list(part) for part in split_segments(texts) if part is not None]
    cleaned = clean_columns(dict(zip(("texts", "pairs"), columns, strict=False)))
    require(cleaned[0], "texts", "at least one text", cleaned[0])
    rows = list(zip(*cleaned, strict=True))
    words = [[(s, *word) for s, text in enumerate(row) for word in place_words(text)] for row in rows]
    without = [
        (*row[:s], row[s][:start] + row[s][end:], *row[s + 1 :])
        for row, of_row in zip(rows, words, strict=True)
        for s, _, start, end in of_row
    ]
    outputs = task.predict(_as_inputs([*rows, *without]), batch_size=batch_size, verbose=0)  # (n + w, C)
    chosen = _targets(task, outputs[: len(rows)], target)
    results, place = [], len(rows)
    for i, (row, of_row) in enumerate(zip(rows, words, strict=True)):
        score, rest = float(outputs[i, chosen[i]]), outputs[place : place + len(of_row), chosen[i]]
        place += len(of_row)
        offsets = np.array([(start, end) for _, _, start, end in of_row], "int64").reshape(-1, 2)
        segments = np.array([s for s, *_ in of_row], "int64")
        names = [word for _, word, _, _ in of_row]
        values = score - rest.astype("float64")
        results.append(Attribution(row, names, offsets, segments, values, _name(task, chosen[i]), score, None))
    return results


def _check(task: object) -> None:
    if not isinstance(task, (TextClassifier, TextRegressor)):
        raise TypeError(f"Contributions are to answers of a TextClassifier or a TextRegressor, got {task!r:.60}.")


def _as_inputs(rows: Sequence[tuple[str, ...]]) -> Any:
    """Texts, or pairs, as a task takes them."""
    columns = tuple(list(column) for column in zip(*rows, strict=True))
    return columns[0] if len(columns) == 1 else columns


def _targets(task: TextClassifier | TextRegressor, outputs: np.ndarray, target: str | int | None) -> list[int]:
    """The column of the outputs (n, C) to explain, for each text."""
    if isinstance(task, TextRegressor):
        require(target is None, "target", "None for a TextRegressor, which gives one number", target)
        return [0] * len(outputs)
    if target is None:
        return outputs.argmax(axis=1).tolist()
    names = task.class_names
    if target in names:
        return [names.index(str(target))] * len(outputs)
    known = is_integer(target, 0) and int(target) < len(names)
    require(known, "target", f"one of the classes {', '.join(names)}, or its number", target)
    return [int(target)] * len(outputs)


def _name(task: TextClassifier | TextRegressor, column: int) -> str:
    return task.class_names[column] if isinstance(task, TextClassifier) else "score"


def _blank_id(reader: Reader) -> int:
    """The token of a text that says nothing."""
    tokenizer = reader.preprocessor.tokenizer
    return tokenizer.pad_id if tokenizer.mask_token is None else tokenizer.mask_id


@contextlib.contextmanager
def _replaced(layer: keras.layers.Layer, replace: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Outputs of a layer are replaced in the body of a `with` statement.

    The graph of a Functional model has no place to put embeddings in, whichever task is around it.
    """
    call = layer.call
    layer.call = lambda *args, **kwargs: replace(call(*args, **kwargs))
    try:
        yield
    finally:
        del layer.call


def _embedded(task: keras.Model, layer: keras.layers.Layer, features: Features) -> Tensor:
    seen: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    with _replaced(layer, keep):
        task(features, training=False)
    return seen[0]


def _gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of a number that depends on a tensor."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(jax.grad(function))(x)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)
    raise NotImplementedError(f"Integrated gradients need TensorFlow or JAX, not {keras.backend.backend()}.")
