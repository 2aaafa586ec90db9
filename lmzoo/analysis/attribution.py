"""Attribution of predictions to tokens and words."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.analysis.explained import Attribution, Explained, check_explained, compute_score_drops, iterate_questions
from lmzoo.analysis.reading import SPECIAL
from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Features, Tensor

# The path is divided into more parts until the contributions add up. Scores with kinks, as caused by ReLU, need more
# points than smooth scores.
_PART_COUNTS = (1, 2, 4, 8)
_NOISE = 1e-4  # rounding error of float32 scores


def integrated_gradients(
    task: Explained, texts: Any, target: str | int | None = None, steps: int = 32, word: str | int | None = None
) -> list[Attribution]:
    """Return each token's contribution to a prediction by integrated gradients (Sundararajan et al., 2017).

    https://arxiv.org/abs/1703.01365. The gradient of the score is integrated along a straight path from a baseline's
    embeddings to the text's embeddings. The baseline is the text with all tokens except special tokens
    replaced by the mask token, or by padding if the family has no mask token. The contributions of all tokens add up
    to the score of the text minus the score of the baseline.

    Args:
        task: a `TextClassifier`, `TextRegressor`, `TokenClassifier` or `QuestionAnswerer` with a preprocessor, on a
            family with token embeddings.
        texts: strings, pairs of strings, or lists of words, as for the task. In a long context, only the window with
            the answer is explained.
        target: class to explain, by name or index; by default the predicted class of each text. For a
            `QuestionAnswerer`, "start" or "end"; by default the sum of both logits of its answer.
        steps: int, number of points on the path. If the contributions do not add up within 1%, up to eight times as
            many points are used, and a warning follows if these are still too few.
        word: for a `TokenClassifier`, the word whose label is explained: its index, or the word itself (its first
            occurrence).

    Raises:
        TypeError: If the task is of another kind, or an entry is not text; the message gives the entry's position.
        ValueError: If the class or word is unknown, `word` is missing for a `TokenClassifier` or passed for another
            task, a `TokenClassifier` has a CRF, there are no texts, the family (such as ELMo) has no token embeddings,
            or the task's `encoder` or `word_vectors` also look up the tokens. In the last two cases, use `leave_out`.
        NotImplementedError: If the Keras backend is neither TensorFlow nor JAX.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    (attribution,) = lmzoo.analysis.integrated_gradients(task, ["A quiet, lovely film."])
    attribution.values.sum()  # attribution.score - attribution.baseline
    ```
    """
    texts = check_explained(task, texts, word)
    require(is_integer(steps, 1), "steps", "a positive integer", steps)
    embedding_layer = getattr(task.backbone, "embeddings", None)
    if embedding_layer is None:
        raise ValueError(
            f"{type(task.backbone).__name__} has no embeddings of tokens to fade in: use `leave_out` instead."
        )
    tokenizer = task.text_preprocessor.tokenizer
    baseline_id = tokenizer.pad_id if tokenizer.mask_token is None else tokenizer.mask_id
    points, weights = np.polynomial.legendre.leggauss(steps)  # Gaussian quadrature from -1 to 1
    points = (points + 1) / 2
    weights = weights / 2
    attributions = []
    for i, (read_text, features, target_name, score) in enumerate(iterate_questions(task, texts, target, word)):
        baseline_features = {**features, "token_ids": features["token_ids"].copy()}
        baseline_features["token_ids"][0, : len(read_text.tokens)][read_text.segments != SPECIAL] = baseline_id
        path_start = _embed(task, embedding_layer, baseline_features)  # (1, T, E)
        path_end = _embed(task, embedding_layer, features)  # (1, T, E)
        difference = ops.cast(path_end - path_start, "float32")
        repeated_features = {key: np.repeat(values, steps, axis=0) for key, values in features.items()}

        def sum_scores(
            x: Tensor, repeated_features: Features = repeated_features, score: Callable[[Any], Any] = score
        ) -> Tensor:
            with _replace_outputs(embedding_layer, lambda _: x):
                return ops.sum(score(ops.cast(task(repeated_features, training=False), "float32")))

        compute_gradient = _make_gradient(sum_scores)
        text_score, baseline_score = (_compute_score(task, x, score) for x in (features, baseline_features))
        if task.encoder is not None or task.word_vectors is not None:
            _check_start(task, embedding_layer, path_start, features, score, baseline_score)
        for num_parts in _PART_COUNTS:
            mean_gradient = np.zeros(difference.shape[1:])  # (T, E)
            for part in range(num_parts):  # each part has all points, so that batches keep their shape
                fractions = ((part + points) / num_parts).reshape(-1, 1, 1).astype("float32")
                embeddings = ops.cast(path_start, "float32") + fractions * difference  # (S, T, E)
                gradients = np.asarray(compute_gradient(embeddings), "float64")  # (S, T, E)
                mean_gradient += np.tensordot(weights, gradients, 1) / num_parts
            contributions = (mean_gradient * np.asarray(difference[0], "float64")).sum(axis=-1)  # (T,)
            gap = abs(contributions.sum() - (text_score - baseline_score))
            if gap <= max(0.01 * abs(text_score - baseline_score), _NOISE):
                break
        else:
            warnings.warn(
                f"The contributions of text {i} do not add up to its score, by {gap:.2g}: raise `steps`.", stacklevel=2
            )
        attributions.append(
            Attribution(*read_text, contributions[: len(read_text.tokens)], target_name, text_score, baseline_score)
        )
    return attributions


def leave_out(
    task: Explained,
    texts: Any,
    target: str | int | None = None,
    batch_size: int = 32,
    word: str | int | None = None,
) -> list[Attribution]:
    """Return how much the score of a prediction drops when each word is left out (Li et al., 2016).

    https://arxiv.org/abs/1612.08220. For a text of n words, the model reads the text and up to n shortened copies.
    Contributions need not add up to the score. The word whose label is explained, and the words of an answer to a
    question, are not left out, since the score would not exist without them.

    Args:
        task: a `TextClassifier`, `TextRegressor`, `TokenClassifier` or `QuestionAnswerer` with a preprocessor, on any
            family.
        texts: strings, pairs of strings, or lists of words, as for the task.
        target: class to explain; see `integrated_gradients`.
        batch_size: int, number of texts in a batch.
        word: word whose label is explained; see `integrated_gradients`.

    Raises:
        TypeError: If the task is of another kind, or an entry is not text; the message gives the entry's position.
        ValueError: If the class or word is unknown, `word` is missing for a `TokenClassifier` or passed for another
            task, a `TokenClassifier` has a CRF, or there are no texts.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    (attribution,) = lmzoo.analysis.leave_out(task, ["A quiet, lovely film."])
    attribution.tokens[attribution.values.argmax()]  # the word that supports the prediction most
    ```
    """
    texts = check_explained(task, texts, word)
    return compute_score_drops(task, texts, target, word, batch_size)


def _compute_score(task: keras.Model, features: Features, score: Callable[[Any], Any]) -> float:
    """Call the task on one text and return the score of its outputs."""
    return float(score(ops.convert_to_numpy(task(features, training=False)).astype("float32"))[0])


def _check_start(
    task: keras.Model,
    layer: keras.layers.Layer,
    baseline_embeddings: Tensor,
    features: Features,
    score: Callable[[Any], Any],
    baseline_score: float,
) -> None:
    """Check that the score of the baseline depends only on its embeddings, not also on the token ids.

    Args:
        task: the task to explain.
        layer: embedding layer of the task.
        baseline_embeddings: float (1, T, E), embeddings of the T tokens of the baseline.
        features: inputs of the text.
        score: function from the task's outputs to scores.
        baseline_score: score of the baseline.

    Raises:
        ValueError: If the text's token ids change the score, so that the contributions cannot add up.
    """
    with _replace_outputs(layer, lambda _: baseline_embeddings):
        start_score = _compute_score(task, features, score)
    if abs(start_score - baseline_score) > _NOISE:
        raise ValueError(
            f"This {type(task).__name__} looks up its tokens also in its `encoder` or `word_vectors`, whose "
            "contributions would be missing: use `leave_out` instead."
        )


@contextlib.contextmanager
def _replace_outputs(layer: keras.layers.Layer, replace: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Temporarily pass the outputs of `layer` through `replace`.

    A Functional model has no input for embeddings, so they are replaced within its call.
    """
    call = layer.call
    layer.call = lambda *args, **kwargs: replace(call(*args, **kwargs))
    try:
        yield
    finally:
        del layer.call


def _embed(task: keras.Model, layer: keras.layers.Layer, features: Features) -> Tensor:
    """Call the task and return the outputs of its embedding layer."""
    embeddings: list[Tensor] = []

    def record(x: Tensor) -> Tensor:
        embeddings.append(x)
        return x

    with _replace_outputs(layer, record):
        task(features, training=False)
    return embeddings[0]


def _make_gradient(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that computes the gradient of a scalar `function` of a tensor.

    Raises:
        NotImplementedError: If the Keras backend is neither TensorFlow nor JAX.
    """
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(jax.grad(function))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        def compute_gradient(x: Tensor) -> Tensor:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return tape.gradient(y, x)

        return compute_gradient
    raise NotImplementedError(f"Integrated gradients need TensorFlow or JAX, not {keras.backend.backend()}.")
