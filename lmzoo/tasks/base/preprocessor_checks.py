"""Checks that a preprocessor's output fits a model."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.errors import ArgumentError
from lmzoo.families.backbone import Backbone
from lmzoo.registry.family import get_family
from lmzoo.text import Preprocessor
from lmzoo.text.preprocessor import check_is_preprocessor


def takes_zero_segments(backbone: Backbone, preprocessor: Preprocessor | None) -> bool:
    """Return whether the backbone takes segment ids that must all be 0, because its family uses no segments.

    A model may take segment ids even if its family does not use segments, such as a RoBERTa with `num_segments=2`.
    """
    packing = preprocessor.packing if isinstance(preprocessor, Preprocessor) else None
    has_segments = packing is not None and packing.segments and not packing.zero_segments
    return "segment_ids" in backbone.input and not (has_segments or get_family(backbone).packing.segments)


def fit_preprocessor(backbone: Backbone, preprocessor: Preprocessor, reads_pairs: bool = False) -> Preprocessor:
    """Return the preprocessor, or a copy with other segment ids, after checking that its output fits the backbone.

    If the backbone takes segment ids that are always 0, the copy makes these zeros. With `reads_pairs`, it makes the
    segment ids of pairs, and the task itself passes zeros to such a backbone.

    Raises:
        TypeError: see `check_preprocessor`.
        ValueError: see `check_preprocessor`.
    """
    check_is_preprocessor(preprocessor)
    packing = preprocessor.packing
    if takes_zero_segments(backbone, preprocessor):
        packing = replace(packing, segments=reads_pairs, zero_segments=True)
    elif reads_pairs:
        packing = replace(packing, segments=True)
    if packing != preprocessor.packing:
        preprocessor = copy.copy(preprocessor)
        preprocessor.packing = packing
    check_preprocessor(backbone, preprocessor)
    return preprocessor


def check_preprocessor(backbone: Backbone, preprocessor: Preprocessor) -> None:
    """Check that a preprocessor's output fits a model.

    Raises:
        TypeError: if `preprocessor` is not a preprocessor.
        ValueError: if its sequences or words are too long for the model, or its ids too high; if its features are not
            the model's inputs; if its packing needs tokens that its tokenizer does not have.
    """
    check_is_preprocessor(preprocessor)
    tokenizer = preprocessor.tokenizer
    config = backbone.config
    tokenizer_name = type(tokenizer).__name__
    model_name = type(backbone).__name__
    length = preprocessor.sequence_length
    max_length = getattr(config, "max_sequence_length", None)
    token_count = tokenizer.vocabulary_size
    embedding_count = config.vocabulary_size
    tokenizer_characters, model_characters = (getattr(part, "max_characters", None) for part in (tokenizer, config))
    require(is_integer(length, 1), "sequence_length", "a positive integer", length)
    if max_length is not None and length > max_length:
        raise ArgumentError(
            f"`sequence_length` is {length}, but the model has positions for {max_length} tokens. Choose at most "
            f"{max_length}.",
            "sequence_length",
        )
    no_ids = np.zeros((0, 0), "int32")
    features = set(tokenizer.features(no_ids, no_ids))
    inputs = {name for name in backbone.input if not name.startswith("decoder_")}  # the task makes a decoder's inputs
    packing = preprocessor.packing
    # The model need not take segment ids.
    segment_features = {"segment_ids"} if packing.segments or packing.zero_segments else set()
    if not features <= inputs <= features | segment_features:
        raise ValueError(
            f"This {model_name} takes {', '.join(sorted(inputs))}, but this {tokenizer_name} with its packing makes "
            f"{', '.join(sorted(features | segment_features))}: they do not belong together."
        )
    if embedding_count is not None and token_count > embedding_count:
        raise ValueError(
            f"The tokenizer has {token_count} tokens, but the model has embeddings for {embedding_count}: this "
            f"{tokenizer_name} and this {model_name} do not belong together. If tokens were added, take "
            f"`resize_token_embeddings({token_count})`, a new model."
        )
    if tokenizer_characters is not None and model_characters is not None and tokenizer_characters > model_characters:
        raise ValueError(
            f"`max_characters` of the {tokenizer_name} is {tokenizer_characters}, but that of the {model_name} is "
            f"{model_characters}. Choose at most {model_characters}."
        )
    if token_count > 1:  # otherwise no vocabulary is loaded yet, and there is at most the padding token
        try:
            for token in filter(None, (packing.start, *packing.between, *packing.closing)):
                tokenizer.token_to_id(token)
        except ValueError as error:
            raise ValueError(f"This {tokenizer_name} cannot be packed by {packing}: {error}") from None
