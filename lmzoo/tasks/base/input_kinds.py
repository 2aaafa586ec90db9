"""Tells raw text from model inputs, and brings texts into one form."""

from __future__ import annotations

import copy
from collections.abc import Sequence, ValuesView
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

from lmzoo.common.arguments import is_integer, require
from lmzoo.errors import ArgumentError
from lmzoo.families.backbone import Backbone
from lmzoo.registry.family import family_of
from lmzoo.tasks.base.examples import Texts
from lmzoo.text import Encoded, Preprocessor
from lmzoo.text.preprocessor import check_is_preprocessor

if TYPE_CHECKING:
    import tensorflow as tf


def leading_spec(x: object) -> Any:
    """The `tf.TensorSpec` of a `tf.data.Dataset`'s first component, a mapping if it is a dict; else None."""
    spec = getattr(x, "element_spec", None)
    while isinstance(spec, tuple):
        spec = spec[0] if spec else None
    return spec


def is_text_stream(x: object) -> TypeGuard[tf.data.Dataset]:
    """Whether `x` is a `tf.data.Dataset` whose first component holds strings."""
    return getattr(getattr(leading_spec(x), "dtype", None), "name", None) == "string"


def is_word_stream(dataset: tf.data.Dataset) -> bool:
    """Whether a `tf.data.Dataset` of strings is ragged: its texts are split into words."""
    return hasattr(leading_spec(dataset), "ragged_rank")


def in_batches(dataset: tf.data.Dataset, labels_words: bool) -> bool:
    """Whether the elements of a `tf.data.Dataset` of strings are batches of texts, rather than one text each.

    With `labels_words` an example has a label for each of its words.
    """
    spec, labels = dataset.element_spec, None
    if isinstance(spec, tuple) and len(spec) > 1:
        labels = spec[1]
    rank = leading_spec(dataset).shape.rank
    if is_word_stream(dataset):  # the words of one text have a ragged type, too
        return rank > 1
    if labels_words and labels is not None and rank:
        return labels.shape.rank > 1
    return rank > 0


def is_raw(x: object) -> TypeGuard[Texts]:
    """Whether `x` is text, encoded or not, that the preprocessor still has to turn into model inputs."""
    if isinstance(x, (Encoded, Sequence, ValuesView)):  # a string, too: later it is an error that says what to do
        return True
    dtype = getattr(x, "dtype", None)  # of numpy, pandas or TensorFlow
    return getattr(dtype, "kind", None) in ("U", "S", "O", "T") or getattr(dtype, "name", None) == "string"


def fit_preprocessor(backbone: Backbone, preprocessor: Preprocessor) -> Preprocessor:
    """Return a preprocessor that makes what a model takes, and check it.

    A model may take segment ids although its family has no segments, such as a RoBERTa with `num_segments=2`. The
    result is then a copy that makes zeros for them.

    Raises:
        TypeError: see `check_preprocessor`.
        ValueError: see `check_preprocessor`.
    """
    check_is_preprocessor(preprocessor)
    packing = preprocessor.packing
    if "segment_ids" in backbone.input and not (packing.segments or family_of(backbone).packing.segments):
        preprocessor = copy.copy(preprocessor)
        preprocessor.packing = replace(packing, zero_segments=True)
    check_preprocessor(backbone, preprocessor)
    return preprocessor


def check_preprocessor(backbone: Backbone, preprocessor: Preprocessor) -> None:
    """Checks that a model can take what a preprocessor makes.

    Raises:
        TypeError: if it is something else.
        ValueError: if its sequences or words are too long, or its ids too high, for the model, or if it makes other
            inputs than the model takes; if its packing needs tokens that its tokenizer does not have.
    """
    check_is_preprocessor(preprocessor)
    tokenizer, config = preprocessor.tokenizer, backbone.config
    reader, model = type(tokenizer).__name__, type(backbone).__name__
    length, longest = preprocessor.sequence_length, getattr(config, "max_sequence_length", None)
    tokens, embeddings = tokenizer.vocabulary_size, config.vocabulary_size
    columns, most = (getattr(part, "max_characters", None) for part in (tokenizer, config))
    require(is_integer(length, 1), "sequence_length", "a positive integer", length)
    if longest is not None and length > longest:
        raise ArgumentError(
            f"`sequence_length` is {length}, but the model has positions for {longest} tokens. Choose at most "
            f"{longest}.",
            "sequence_length",
        )
    made = set(tokenizer.features(None, None))
    taken = {name for name in backbone.input if not name.startswith("decoder_")}  # those the task makes
    packing = preprocessor.packing
    segments = {"segment_ids"} if packing.segments or packing.zero_segments else set()  # a model may do without them
    if not made <= taken <= made | segments:
        raise ValueError(
            f"This {model} takes {', '.join(sorted(taken))}, but this {reader} with its packing makes "
            f"{', '.join(sorted(made | segments))}: they do not belong together."
        )
    if embeddings is not None and tokens > embeddings:
        raise ValueError(
            f"The tokenizer has {tokens} tokens, but the model has embeddings for {embeddings}: this {reader} and this "
            f"{model} do not belong together. If tokens were added, take `resize_token_embeddings({tokens})`, a new "
            "model."
        )
    if columns is not None and most is not None and columns > most:
        raise ValueError(
            f"`max_characters` of the {reader} is {columns}, but that of the {model} is {most}. Choose at most {most}."
        )
    if tokens > 1:  # before a vocabulary is loaded, there is at most the padding token
        _check_packing(preprocessor)


def _check_packing(preprocessor: Preprocessor) -> None:
    tokenizer, packing = preprocessor.tokenizer, preprocessor.packing
    try:
        for token in filter(None, (packing.start, *packing.between, *packing.closing)):
            tokenizer.token_to_id(token)
    except ValueError as error:
        raise ValueError(f"This {type(tokenizer).__name__} cannot be packed by {packing}: {error}") from None
