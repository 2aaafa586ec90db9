"""Small vocabularies, trained on the examples' reviews by the libraries that people train theirs with."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.text import BytePairTokenizer, SentencePieceTokenizer


def reviews(root: Path) -> list[str]:
    """The examples' reviews; `root` is the repository's top folder."""
    with (root / "examples/data/reviews.csv").open(encoding="utf-8", newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def train_byte_pairs(root: Path, texts: Iterable[str | bytes]):
    """A `tokenizers.ByteLevelBPETokenizer` with RoBERTa's special tokens, of reviews and of other texts."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    lines = [*reviews(root), *(text for text in texts if isinstance(text, str))]
    special = list(BytePairTokenizer.special_tokens)
    trained.train_from_iterator(lines, 1500, special_tokens=special, show_progress=False)
    return trained


def train_sentencepiece(lines: Iterable[str], added: Iterable[tuple[str, int]] = (), **settings: Any) -> bytes:
    """A unigram SentencePiece model of some lines, and `added` pieces with their scores where it lacks them."""
    from sentencepiece import SentencePieceTrainer, sentencepiece_model_pb2

    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=written,
        model_type="unigram",
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **settings,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    learned = {piece.piece for piece in proto.pieces}
    for piece, score in added:
        if piece not in learned:
            proto.pieces.add(piece=piece, score=score)
    return proto.SerializeToString()


def train_albert(root: Path) -> bytes:
    """A SentencePiece model with ALBERT's special tokens and symbols; a few pieces end in a digit and a comma."""
    lines = [review.lower() for review in reviews(root)]
    lines += [f"in {year}, we read {year // 7} and x{year % 10} or éa{year % 10} and 42" for year in range(2000, 2020)]
    return train_sentencepiece(
        lines,
        [("▁2014,", -5), ("9,", -3), ("▁2,", -3), ("a1,", -4), ("12,", -4), ("▁x9,", -5), ("3,1,", -5)],
        character_coverage=1.0,
        vocab_size=700,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=list('()"-.–£€'),
    )


def train_xlm_roberta(root: Path, texts: Iterable[str] = ()) -> bytes:
    """A SentencePiece model as XLM-RoBERTa's is published, of reviews and of other texts."""
    return train_sentencepiece(
        _published_lines(root, texts),
        [("▁2014,", -5), ("9,", -3), ("''", -3)],
        character_coverage=0.98,
        vocab_size=3001,
        normalization_rule_name="nmt_nfkc",
    )


def train_deberta(root: Path, texts: Iterable[str] = ()) -> bytes:
    """A SentencePiece model as DeBERTa-v3's is published, without a mask, of reviews and of other texts."""
    return train_sentencepiece(
        _published_lines(root, texts),
        [("9,", -3), ("''", -3)],
        character_coverage=0.98,
        vocab_size=2503,
        normalization_rule_name="nmt_nfkc",
        pad_id=0,
        pad_piece="[PAD]",
        bos_id=1,
        bos_piece="[CLS]",
        eos_id=2,
        eos_piece="[SEP]",
        unk_id=3,
        unk_piece="[UNK]",
    )


def _published_lines(root: Path, texts: Iterable[str]) -> list[str]:
    return [*reviews(root), *(text for text in texts if "\0" not in text and len(text) < 4000)]


def comparable_to_transformers(texts: Iterable[str], peer, lowercase: bool, keep_accents: bool) -> list[str]:
    """Texts on which transformers' AlbertTokenizer, `peer`, is meant to agree with ours."""
    special = SentencePieceTokenizer.special_tokens

    def alike(text: str) -> bool:
        # These control characters are white space to Google's code, which cuts there; for transformers they vanish.
        if any(c in "\x0b\x1c\x1d\x1e\x1f" for c in text):
            return False
        # transformers' vocabulary holds the special tokens as pieces, so that full-width ones become special, too.
        if not lowercase and any(token in normal(text) for token in special):
            return False
        # With accents kept, its own copy of SentencePiece's clean-up sees grapheme clusters as a whole.
        return not keep_accents or not any(unicodedata.category(c)[0] in "MC" for c in text)

    def normal(text: str) -> str:
        for token in special:
            text = text.replace(token, " ")
        return peer.backend_tokenizer.normalizer.normalize_str(text)

    return [text for text in texts if alike(text)]


def assert_equal_or_tied(
    tokenizer: SentencePieceTokenizer, texts: Sequence, found: list[list[int]], expected: list[list[int]]
) -> int:
    """That ids are equal or, in under 1% of the texts, other segmentations of equal score; returns their number.

    A score is a sum of floats, and libraries add in different orders.
    """
    ties = 0
    for text, ids, others in zip(texts, found, expected, strict=True):
        if ids != others:
            score, other = (sum(map(tokenizer.backend.get_score, row)) for row in (ids, others))
            assert abs(score - other) < 1e-4 + np.spacing(np.float32(abs(score))), (text, ids, others)
            ties += 1
    assert ties < 0.01 * len(texts)
    print(f"{ties} ties in {len(texts)} texts")
    return ties
