"""Offsets of SentencePiece's tokens: the characters of the original text that they come from."""

from __future__ import annotations

import pytest

from lmzoo.text import SentencePieceTokenizer
from lmzoo.text.tokenizers.sentencepiece_text import align, character_map, clean
from tests.text.piece_groups import group_by_characters

SPECIAL = list(SentencePieceTokenizer.special_tokens)
OPTIONS = [(True, False), (False, False), (True, True), (False, True)]  # lowercase, keep_accents


@pytest.mark.parametrize(("lowercase", "keep_accents"), OPTIONS)
def test_alignment_of_cleaned_text(strings: list[str], lowercase: bool, keep_accents: bool) -> None:
    characters = character_map(lowercase, keep_accents)
    for text in strings:
        aligned = align(text, characters)
        assert aligned.text == clean(text, characters), ascii(text)
        starts, ends = aligned.starts.tolist(), aligned.ends.tolist()
        assert starts == sorted(starts)
        assert ends == sorted(ends)
        for letter, start, end in zip(aligned.text, starts, ends, strict=False):
            assert (
                letter in clean(text[start:end], characters)
                or letter == " " == clean(f"a{text[start:end]}b", characters)[1]
            )
    text, starts, ends = align("a  b", characters, begin=7)
    assert (text, starts.tolist(), ends.tolist()) == ("a b", [7, 8, 10, 11], [8, 9, 11])


@pytest.mark.parametrize(("lowercase", "keep_accents"), OPTIONS)
def test_slices_give_the_pieces(model: bytes, strings: list[str], lowercase: bool, keep_accents: bool) -> None:
    tokenizer = SentencePieceTokenizer(model, lowercase, keep_accents)
    characters = character_map(lowercase, keep_accents)
    rows = tokenizer.tokenize_with_offsets(strings)
    assert [[piece.id for piece in row] for row in rows] == tokenizer.tokenize(strings)
    checked = 0
    for text, row in zip(strings, rows, strict=True):
        end = 0
        for group in group_by_characters(row):
            first, last = group[0].start, max(piece.end for piece in group)
            assert 0 <= end <= first <= last <= len(text), (text, group)
            end = last
            pieces = [piece.token for piece in group]
            assert all(piece.start < piece.end for piece in group if piece.token != "▁"), (text, group)
            assert all(piece.start == piece.end for piece in group if piece.token == "▁"), (text, group)
            if pieces[0] in SPECIAL and pieces[0] != "<unk>":
                assert text[first:last] == pieces[0], (text, group)
            elif "<unk>" not in pieces:
                cleaned = tokenizer.backend.normalize(clean(text[first:last], characters))
                assert cleaned.replace("▁", "") == "".join(pieces).replace("▁", ""), (text, group)
                checked += len(group)
    assert checked > 4.2 * len(strings)


CASES = [
    # text, (token, the slice it stands for), ...
    ("Un café!", ("▁un", "Un"), ("▁cafe", "café"), ("!", "!")),
    ("cafe\u0301! x", ("▁cafe", "cafe"), ("!", "!"), ("▁x", "x")),
    ("ne\u0301e x", ("▁nee", "ne\u0301e"), ("▁x", "x")),
    ("  x   x ", ("▁x", "x"), ("▁x", "x")),
    ("x\t\u3000 İSTANBUL\n", ("▁x", "x"), ("▁istanbul", "İSTANBUL")),
    ("ﬁne x", ("▁fine", "ﬁne"), ("▁x", "x")),
    ("x ``x'' x", ("▁x", "x"), ("▁", ""), ('"', "``"), ("x", "x"), ('"', "''"), ("▁x", "x")),
    ("x !", ("▁x", "x"), ("▁", ""), ("!", "!")),
    ("Éx[MASK]  É", ("▁ex", "Éx"), ("[MASK]", "[MASK]"), ("▁e", "É")),
    ("x  [MASK]", ("▁x", "x"), ("[MASK]", "[MASK]")),
    ("x zebra\u0301s x", ("▁x", "x"), ("▁", ""), ("<unk>", "zebra\u0301s"), ("▁x", "x")),
    ("x 9,9 é9,", ("▁x", "x"), ("▁9", "9"), (",", ","), ("9", "9"), ("▁e", "é"), ("9", "9"), (",", ",")),
    ("½x", ("▁1⁄2", "½"), ("x", "x")),
    ("\ufe19", ("▁", ""), (".", "\ufe19"), (".", "\ufe19"), (".", "\ufe19")),
]


@pytest.fixture(scope="module")
def hand_made() -> SentencePieceTokenizer:
    from sentencepiece import sentencepiece_model_pb2

    pieces = {token for _, *pieces in CASES for token, _ in pieces} - {*SPECIAL, "▁"}
    words = sorted(piece[1:] for piece in pieces if piece.startswith("▁"))
    proto = sentencepiece_model_pb2.ModelProto.FromString(SentencePieceTokenizer.of_words(words, 41).model)
    for piece in [*sorted(piece for piece in pieces if not piece.startswith("▁")), "▁9,", "9,"]:
        proto.pieces.add(piece=piece, score=-1.0)
    return SentencePieceTokenizer(proto.SerializeToString())


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case[0]))
def test_tokens_and_slices_by_hand(hand_made: SentencePieceTokenizer, case: tuple) -> None:
    text, *expected = case
    pieces = hand_made.tokenize_with_offsets([text])[0]
    assert [(piece.token, text[piece.start : piece.end]) for piece in pieces] == expected


def test_a_space_alone_is_empty_before_the_next_piece(hand_made: SentencePieceTokenizer) -> None:
    pieces = hand_made.tokenize_with_offsets(["x   !"])[0]
    assert [piece[2:] for piece in pieces] == [(0, 1), (4, 4), (4, 5)]


def test_offsets_count_characters_of_what_was_passed(hand_made: SentencePieceTokenizer) -> None:
    # Offsets of bytes count the characters that they decode to.
    assert [piece[2:] for piece in hand_made.tokenize_with_offsets(["x é".encode(), "É  x"])[1]] == [(0, 1), (3, 4)]
    assert [piece[2:] for piece in hand_made.tokenize_with_offsets(["éx x".encode()])[0]][-1] == (3, 4)
