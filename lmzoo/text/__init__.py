"""Tokenizers, packing, masking and batching: the steps before the model."""

from lmzoo.text.batching import LengthBatches
from lmzoo.text.encoded_choices import EncodedChoices
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Encoded, EncodedTexts, EncodedWords, Packing
from lmzoo.text.preprocessor import Preprocessor
from lmzoo.text.sentences import split_sentences
from lmzoo.text.span_corruption import SpanCorruption
from lmzoo.text.tokenizers.added_tokens import AddedToken
from lmzoo.text.tokenizers.bpe import BytePairTokenizer
from lmzoo.text.tokenizers.character_pairs import CharacterPairTokenizer
from lmzoo.text.tokenizers.characters import CharacterTokenizer, batch_to_ids
from lmzoo.text.tokenizers.deberta_sentencepiece import DebertaV3Tokenizer
from lmzoo.text.tokenizers.normalized_bpe import NormalizedBytePairTokenizer
from lmzoo.text.tokenizers.sentencepiece import SentencePieceTokenizer
from lmzoo.text.tokenizers.sentencepiece_pair import MarianTokenizer
from lmzoo.text.tokenizers.sentinel_sentencepiece import T5Tokenizer
from lmzoo.text.tokenizers.tokenizer import SpecialTokens, Tokenizer, TokenSpan
from lmzoo.text.tokenizers.word_level import TextWordTokenizer, WordTokenizer
from lmzoo.text.tokenizers.wordpiece import WordPieceTokenizer
from lmzoo.text.tokenizers.xlmr_sentencepiece import XlmRobertaTokenizer
from lmzoo.text.tokenizers.xlnet_sentencepiece import XlnetTokenizer
from lmzoo.text.validate_text import TextWarning
from lmzoo.text.windows import EncodedWindows

__all__ = [
    "AddedToken",
    "BytePairTokenizer",
    "CharacterPairTokenizer",
    "CharacterTokenizer",
    "DebertaV3Tokenizer",
    "Encoded",
    "EncodedChoices",
    "EncodedTexts",
    "EncodedWindows",
    "EncodedWords",
    "LengthBatches",
    "MarianTokenizer",
    "Masking",
    "NormalizedBytePairTokenizer",
    "Packing",
    "Preprocessor",
    "SentencePieceTokenizer",
    "SpanCorruption",
    "SpecialTokens",
    "T5Tokenizer",
    "TextWarning",
    "TextWordTokenizer",
    "TokenSpan",
    "Tokenizer",
    "WordPieceTokenizer",
    "WordTokenizer",
    "XlmRobertaTokenizer",
    "XlnetTokenizer",
    "batch_to_ids",
    "split_sentences",
]
