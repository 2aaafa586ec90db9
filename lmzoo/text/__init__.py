"""Tokenizers, packing, masking and batching: everything before the model. Imports nothing heavy."""

from lmzoo.text.batching import LengthBatches
from lmzoo.text.masking import Masking
from lmzoo.text.packing import EncodedTexts, Packing
from lmzoo.text.policy import TextNotice
from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.tokenizer import Piece, Tokenizer
from lmzoo.text.wordpiece import WordPieceTokenizer

__all__ = [
    "EncodedTexts",
    "LengthBatches",
    "Masking",
    "Packing",
    "Piece",
    "Preprocessor",
    "TextNotice",
    "Tokenizer",
    "WordPieceTokenizer",
]
