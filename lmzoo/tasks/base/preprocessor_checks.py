"""Preprocessors that make what a model takes."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.errors import ArgumentError
from lmzoo.families.backbone import Backbone
from lmzoo.registry.family import family_of
from lmzoo.text import Preprocessor
from lmzoo.text.preprocessor import check_is_preprocessor


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
    """Check that a model can take what a preprocessor makes.

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
    none = np.zeros((0, 0), "int32")
    made = set(tokenizer.features(none, none))
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
        try:
            for token in filter(None, (packing.start, *packing.between, *packing.closing)):
                tokenizer.token_to_id(token)
        except ValueError as error:
            raise ValueError(f"This {reader} cannot be packed by {packing}: {error}") from None
