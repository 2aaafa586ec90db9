"""Tokenizers, packing, masking and batching: everything before the model. Imports nothing heavy."""

from lmzoo.text.batching import LengthBatches
from lmzoo.text.bpe import BytePairTokenizer
from lmzoo.text.characters import CharacterTokenizer, batch_to_ids
from lmzoo.text.choices import EncodedChoices
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Encoded, EncodedTexts, EncodedWords, Packing
from lmzoo.text.policy import TextNotice
from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.sentencepiece import SentencePieceTokenizer
from lmzoo.text.sentences import split_sentences
from lmzoo.text.tokenizer import Piece, Tokenizer
from lmzoo.text.windows import EncodedWindows
from lmzoo.text.word_level import WordTokenizer
from lmzoo.text.wordpiece import WordPieceTokenizer

__all__ = [
    "BytePairTokenizer",
    "CharacterTokenizer",
    "Encoded",
    "EncodedChoices",
    "EncodedTexts",
    "EncodedWindows",
    "EncodedWords",
    "LengthBatches",
    "Masking",
    "Packing",
    "Piece",
    "Preprocessor",
    "SentencePieceTokenizer",
    "TextNotice",
    "Tokenizer",
    "WordPieceTokenizer",
    "WordTokenizer",
    "batch_to_ids",
    "split_sentences",
]
