"""Tokenizers, packing, masking and batching: everything before the model. Imports nothing heavy."""

from lmzoo.text.batching import LengthBatches
from lmzoo.text.masking import Masking
from lmzoo.text.packing import EncodedTexts, Packing
from lmzoo.text.policy import TextNotice
from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.wordpiece import Piece, WordPieceTokenizer

__all__ = [
    "EncodedTexts",
    "LengthBatches",
    "Masking",
    "Packing",
    "Piece",
    "Preprocessor",
    "TextNotice",
    "WordPieceTokenizer",
]
