"""Small vocabularies, trained on the examples' reviews by the libraries that users train with."""

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
    """Return the examples' reviews; `root` is the repository's top directory."""
    with (root / "examples/data/reviews.csv").open(encoding="utf-8", newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def train_byte_pairs(root: Path, texts: Iterable[str | bytes]):
    """Train a `tokenizers.ByteLevelBPETokenizer` with RoBERTa's special tokens on reviews and other texts."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    lines = [*reviews(root), *(text for text in texts if isinstance(text, str))]
    special = list(BytePairTokenizer.special_tokens)
    trained.train_from_iterator(lines, 1500, special_tokens=special, show_progress=False)
    return trained


def train_sentencepiece(lines: Iterable[str], added: Iterable[tuple[str, int]] = (), **settings: Any) -> bytes:
    """Train a unigram SentencePiece model, and add pieces with their scores if it lacks them."""
    from sentencepiece import SentencePieceTrainer, sentencepiece_model_pb2

    buffer = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=buffer,
        model_type="unigram",
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **settings,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(buffer.getvalue())
    learned = {piece.piece for piece in proto.pieces}
    for piece, score in added:
        if piece not in learned:
            proto.pieces.add(piece=piece, score=score)
    return proto.SerializeToString()


def train_albert(root: Path) -> bytes:
    """Train a SentencePiece model with ALBERT's special tokens; some pieces end in a digit and a comma."""
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
    """Train a SentencePiece model like XLM-RoBERTa's published one on reviews and other texts."""
    return train_sentencepiece(
        _published_lines(root, texts),
        [("▁2014,", -5), ("9,", -3), ("''", -3)],
        character_coverage=0.98,
        vocab_size=3001,
        normalization_rule_name="nmt_nfkc",
    )


def train_deberta(root: Path, texts: Iterable[str] = ()) -> bytes:
    """Train a SentencePiece model like DeBERTa-v3's published one, without a mask, on reviews and other texts."""
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


def with_pieces(model: bytes, pieces: Iterable[str]) -> bytes:
    """Add pieces to a small model, and give it the rules `nmt_nfkc`."""
    from sentencepiece import SentencePieceNormalizer, sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for piece in pieces:
        proto.pieces.add(piece=piece, score=-1.0)
    rules = SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_normalizer_spec()
    proto.normalizer_spec.ParseFromString(rules)
    return proto.SerializeToString()


def with_bytes(model: bytes) -> bytes:
    """Add a token for each byte to a SentencePiece model, which then splits unknown characters into bytes."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.trainer_spec.byte_fallback = True
    for byte in range(256):
        proto.pieces.add(piece=f"<0x{byte:02X}>", score=0.0, type=6)
    return proto.SerializeToString(deterministic=True)


def _published_lines(root: Path, texts: Iterable[str]) -> list[str]:
    return [*reviews(root), *(text for text in texts if "\0" not in text and len(text) < 4000)]


def comparable_to_transformers(texts: Iterable[str], peer, lowercase: bool, keep_accents: bool) -> list[str]:
    """Return the texts on which transformers' AlbertTokenizer, `peer`, should agree with lmzoo's."""
    special = SentencePieceTokenizer.special_tokens

    def is_comparable(text: str) -> bool:
        # These control characters are white space to Google's code, which splits there; transformers removes them.
        if any(c in "\x0b\x1c\x1d\x1e\x1f" for c in text):
            return False
        # transformers' vocabulary holds the special tokens as pieces, so that full-width ones also become special.
        if not lowercase and any(token in normalize(text) for token in special):
            return False
        # Where accents stay, its own copy of SentencePiece's clean-up reads whole grapheme clusters.
        return not keep_accents or not any(unicodedata.category(c)[0] in "MC" for c in text)

    def normalize(text: str) -> str:
        for token in special:
            text = text.replace(token, " ")
        return peer.backend_tokenizer.normalizer.normalize_str(text)

    return [text for text in texts if is_comparable(text)]


def assert_equal_or_tied(
    tokenizer: SentencePieceTokenizer, texts: Sequence, actual: list[list[int]], expected: list[list[int]]
) -> int:
    """Check that ids are equal, or other segmentations of equal score in under 1% of the texts; return their number.

    A score is a sum of floats, and libraries add in different orders.
    """
    ties = 0
    for text, ids, expected_ids in zip(texts, actual, expected, strict=True):
        if ids != expected_ids:
            score, expected_score = (sum(map(tokenizer.backend.get_score, row)) for row in (ids, expected_ids))
            assert abs(score - expected_score) < 1e-4 + np.spacing(np.float32(abs(score))), (text, ids, expected_ids)
            ties += 1
    assert ties < 0.01 * len(texts)
    print(f"{ties} ties in {len(texts)} texts")
    return ties
