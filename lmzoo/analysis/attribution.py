"""Which words an answer is due to."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.analysis.explained import Attribution, Explained, check_explained, left_out, questions
from lmzoo.analysis.reading import SPECIAL
from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Tensor

# In how many parts the way is cut, in turn: heads with a kink, as of ReLU, need more points than smooth ones.
_PARTS = (1, 2, 4, 8)
_NOISE = 1e-4  # of float32


def integrated_gradients(
    task: Explained, texts: Any, target: str | int | None = None, steps: int = 32, word: str | int | None = None
) -> list[Attribution]:
    """Return what each token contributes to an answer, by integrated gradients (Sundararajan et al., 2017).

    https://arxiv.org/abs/1703.01365. The embeddings of a text are faded in from those of a text of mask tokens, or of
    padding if the family has no mask token; the gradients of the score along the way, times the difference, are summed.
    The contributions of all tokens add up to the score minus that of the baseline.

    Args:
        task: a `TextClassifier`, `TextRegressor`, `TokenClassifier` or `QuestionAnswerer` with a preprocessor, on a
            family with token embeddings.
        texts: strings or pairs of them, or lists of words, as for the task. Of a long context, only the
            window with the answer is explained.
        target: the class, by name or number, by default of each text the one that the task answers; of a
            `QuestionAnswerer` "start" or "end", by default the sum of both logits of its answer.
        steps: int, points on the way. If the contributions do not add up to one per cent, up to eight times as many are
            tried.
        word: of a `TokenClassifier`, the word whose label is explained: its number from 0, or the first one like this.

    Raises:
        TypeError: for another task; naming the position of an entry that is not text.
        ValueError: for an unknown class or word; for a family without token embeddings, such as ELMo, where `leave_out`
            works; for a tagger with a CRF; if there are no texts.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    (found,) = lmzoo.analysis.integrated_gradients(task, ["A quiet, lovely film."])
    found.values.sum()  # found.score - found.baseline
    ```
    """
    texts = check_explained(task, texts, word)
    require(is_integer(steps, 1), "steps", "a positive integer", steps)
    layer = getattr(task.backbone, "embeddings", None)
    if layer is None:
        raise ValueError(
            f"{type(task.backbone).__name__} has no embeddings of tokens to fade in: use `leave_out` instead."
        )
    tokenizer = task.text_preprocessor.tokenizer
    nothing = tokenizer.pad_id if tokenizer.mask_token is None else tokenizer.mask_id  # the token of an empty text
    points, weights = np.polynomial.legendre.leggauss(steps)  # of Gauss' quadrature, from -1 to 1
    points, weights = (points + 1) / 2, weights / 2
    results = []
    for i, (read, features, name, score) in enumerate(questions(task, texts, target, word)):
        blank = {**features, "token_ids": features["token_ids"].copy()}
        blank["token_ids"][0, : len(read.tokens)][read.segments != SPECIAL] = nothing
        start, end = _embedded(task, layer, blank), _embedded(task, layer, features)  # (1, T, E)
        difference = ops.cast(end - start, "float32")
        repeated = {key: np.repeat(values, steps, axis=0) for key, values in features.items()}

        def total(x: Tensor, repeated: Features = repeated, score: Callable[[Any], Any] = score) -> Tensor:
            with _replaced(layer, lambda _: x):
                return ops.sum(score(ops.cast(task(repeated, training=False), "float32")))

        gradient = _gradient_of(total)
        whole, none = (
            float(score(ops.convert_to_numpy(task(x, training=False)).astype("float32"))[0]) for x in (features, blank)
        )
        for parts in _PARTS:
            mean = np.zeros(difference.shape[1:])  # (T, E)
            for part in range(parts):  # each has all points, so that batches keep their shape
                places = ((part + points) / parts).reshape(-1, 1, 1).astype("float32")
                slopes = np.asarray(gradient(ops.cast(start, "float32") + places * difference), "float64")  # (S, T, E)
                mean += np.tensordot(weights, slopes, 1) / parts
            values = (mean * np.asarray(difference[0], "float64")).sum(axis=-1)  # (T,)
            gap = abs(values.sum() - (whole - none))
            if gap <= 0.01 * abs(whole - none) + _NOISE:
                break
        else:
            warnings.warn(
                f"The contributions of text {i} do not add up to its score, by {gap:.2g}: raise `steps`.", stacklevel=2
            )
        results.append(Attribution(*read, values[: len(read.tokens)], name, whole, none))
    return results


def leave_out(
    task: Explained,
    texts: Any,
    target: str | int | None = None,
    batch_size: int = 32,
    word: str | int | None = None,
) -> list[Attribution]:
    """Return how much the score of an answer falls if each word is left out (Li et al., 2016).

    https://arxiv.org/abs/1612.08220. A text of n words costs n forward passes. Contributions need not add up. The word
    that has a label, and the words of an answer to a question, are not left out: without them there is no such score.

    Args:
        task: a `TextClassifier`, `TextRegressor`, `TokenClassifier` or `QuestionAnswerer` with a preprocessor, on any
            family.
        texts: strings or pairs of them, or lists of words, as for the task.
        target: see `integrated_gradients`.
        batch_size: int.
        word: see `integrated_gradients`.

    Raises:
        TypeError: for another task; naming the position of an entry that is not text.
        ValueError: for an unknown class or word, for a tagger with a CRF, or if there are no texts.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    (found,) = lmzoo.analysis.leave_out(task, ["A quiet, lovely film."])
    found.tokens[found.values.argmax()]  # the word that speaks most for the answer
    ```
    """
    texts = check_explained(task, texts, word)
    return left_out(task, texts, target, word, batch_size)


@contextlib.contextmanager
def _replaced(layer: keras.layers.Layer, replace: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace outputs of a layer in the body of a `with` statement.

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


def _gradient_of(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the gradient of a number that depends on a tensor, as a function of the tensor."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(jax.grad(function))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        def gradient(x: Tensor) -> Tensor:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return tape.gradient(y, x)

        return gradient
    raise NotImplementedError(f"Integrated gradients need TensorFlow or JAX, not {keras.backend.backend()}.")
