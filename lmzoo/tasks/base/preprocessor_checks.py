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
    """Return whether the backbone takes segment ids that must all be 0: its family and `preprocessor` use no segments.

    A model may take segment ids even if its family does not use segments, such as a RoBERTa with `num_segments=2`.
    """
    packing = preprocessor.packing if isinstance(preprocessor, Preprocessor) else None
    has_segments = packing is not None and packing.segments and not packing.zero_segments
    return "segment_ids" in backbone.input and not (has_segments or get_family(backbone).packing.segments)


def fit_preprocessor(backbone: Backbone, preprocessor: Preprocessor, reads_pairs: bool = False) -> Preprocessor:
    """Return a preprocessor that makes the segment ids the task needs, and check that its output fits the backbone.

    If the segment ids of `preprocessor` must change, the result is a changed copy. With `reads_pairs`, the segment ids
    distinguish the two texts of a pair; if the backbone needs zeros instead, the task passes zeros to it. Without
    `reads_pairs`, the segment ids are zeros for a backbone that needs zeros, and unchanged for other backbones.

    Raises:
        TypeError: See `check_preprocessor`.
        ValueError: See `check_preprocessor`.
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
    """Check that a preprocessor's output fits a backbone.

    Raises:
        TypeError: If `preprocessor` is not a preprocessor.
        ValueError: If its sequences or words are too long for the backbone, if its vocabulary is larger than the
            backbone's, if its features are not the backbone's inputs, or if its packing needs tokens that its tokenizer
            does not have.
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
    tokenizer_max_characters, model_max_characters = (
        getattr(owner, "max_characters", None) for owner in (tokenizer, config)
    )
    require(is_integer(length, 1), "sequence_length", "a positive integer", length)
    if max_length is not None and length > max_length:
        raise ArgumentError(
            f"`sequence_length` is {length}, but the model has positions for {max_length} tokens. Choose at most "
            f"{max_length}.",
            "sequence_length",
        )
    empty_ids = np.zeros((0, 0), "int32")
    feature_names = set(tokenizer.features(empty_ids, empty_ids))
    # The task itself makes the inputs of a decoder.
    input_names = {name for name in backbone.input if not name.startswith("decoder_")}
    packing = preprocessor.packing
    # A backbone need not take the segment ids that the packing makes.
    segment_names = {"segment_ids"} if packing.segments or packing.zero_segments else set()
    if not feature_names <= input_names <= feature_names | segment_names:
        raise ValueError(
            f"This {model_name} takes {', '.join(sorted(input_names))}, but this {tokenizer_name} with its packing "
            f"makes {', '.join(sorted(feature_names | segment_names))}: they do not belong together."
        )
    if embedding_count is not None and token_count > embedding_count:
        raise ValueError(
            f"The tokenizer has {token_count} tokens, but the model has embeddings for {embedding_count}: this "
            f"{tokenizer_name} and this {model_name} do not belong together. If tokens were added, take "
            f"`resize_token_embeddings({token_count})`, a new model."
        )
    if (
        tokenizer_max_characters is not None
        and model_max_characters is not None
        and tokenizer_max_characters > model_max_characters
    ):
        raise ValueError(
            f"`max_characters` of the {tokenizer_name} is {tokenizer_max_characters}, but that of the {model_name} is "
            f"{model_max_characters}. Choose at most {model_max_characters}."
        )
    if token_count > 1:  # otherwise no vocabulary is loaded yet, and there is at most the padding token
        try:
            for token in filter(None, (packing.start, *packing.between, *packing.closing)):
                tokenizer.token_to_id(token)
        except ValueError as error:
            raise ValueError(
                f"This {tokenizer_name} cannot be packed by {packing}: {error} Build or train it with the family's "
                "`special_tokens`, or pass a `Preprocessor` with another packing."
            ) from None
