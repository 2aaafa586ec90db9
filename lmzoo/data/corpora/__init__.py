"""Corpora for pretraining: reading, tokenizing and packing documents, and training tokenizers on documents."""

from lmzoo.data.corpora.corpus_writer import write_corpus
from lmzoo.data.corpora.documents import read_documents, split_documents
from lmzoo.data.corpora.lm_batches import DocumentStreams
from lmzoo.data.corpora.prepare import Preparation, prepare_corpus
from lmzoo.data.corpora.segment_pairing import SegmentPairs, segment_pairs
from lmzoo.data.corpora.sequences import pack_continuously, pack_documents, pack_running_text, pack_sentences
from lmzoo.data.corpora.token_corpus import TokenCorpus
from lmzoo.data.corpora.train_tokenizers import (
    train_byte_pairs,
    train_character_pairs,
    train_joint_tokenizer,
    train_sentencepiece,
    train_tokenizer,
    train_wordpiece,
)
from lmzoo.data.corpora.word_vocabulary import train_words

__all__ = [
    "DocumentStreams",
    "Preparation",
    "SegmentPairs",
    "TokenCorpus",
    "pack_continuously",
    "pack_documents",
    "pack_running_text",
    "pack_sentences",
    "prepare_corpus",
    "read_documents",
    "segment_pairs",
    "split_documents",
    "train_byte_pairs",
    "train_character_pairs",
    "train_joint_tokenizer",
    "train_sentencepiece",
    "train_tokenizer",
    "train_wordpiece",
    "train_words",
    "write_corpus",
]
