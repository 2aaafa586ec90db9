"""Tokenizers and preprocessors as TensorFlow ops, for exported models.

In `lmzoo.text` only these modules import TensorFlow at the top of the file.
"""

from lmzoo.text.graphs import (  # noqa: F401 - they register themselves
    bpe,
    character_pairs,
    sentencepiece,
    sentencepiece_pair,
    wordpiece,
    words_and_characters,
    xlmr_sentencepiece,
)
from lmzoo.text.graphs.detokenization import graph_detokenizer
from lmzoo.text.graphs.preprocessor import graph_packer
from lmzoo.text.graphs.tokenizer_registry import graph_tokenizer

__all__ = ["graph_detokenizer", "graph_packer", "graph_tokenizer"]
