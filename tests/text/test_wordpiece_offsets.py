"""Offsets of WordPiece's tokens: the characters of the original text that they come from."""

from __future__ import annotations

import unicodedata

import pytest

from lmzoo.text import WordPieceTokenizer
from tests.text.piece_groups import group_by_characters

SPECIAL = list(WordPieceTokenizer.special_tokens)
OPTIONS = [(True, None), (True, False), (False, None), (False, True)]  # lowercase, strip_accents


def is_reordered_mark(token: str) -> bool:
    """Return whether normalization may have moved the piece in a run of combining marks."""
    return any(unicodedata.combining(c) for c in token)


@pytest.mark.parametrize(("lowercase", "strip_accents"), OPTIONS)
def test_slices_give_the_pieces(
    varied_texts: list[str], vocabulary: list[str], lowercase: bool, strip_accents: bool | None
) -> None:
    tokenizer = WordPieceTokenizer(vocabulary, lowercase, strip_accents)
    normalize = tokenizer.backend.normalizer.normalize_str
    strips_accents = lowercase if strip_accents is None else strip_accents
    rows = tokenizer.tokenize_with_offsets(varied_texts)
    assert [[piece.id for piece in row] for row in rows] == tokenizer.tokenize(varied_texts)
    assert all(tokenizer.id_to_token(piece.id) == piece.token for row in rows for piece in row)
    checked = 0
    for text, row in zip(varied_texts, rows, strict=True):
        end = 0
        for group in group_by_characters(row):
            first, last = group[0].start, group[-1].end
            assert 0 <= end <= first < last <= len(text), (text, group)
            assert all(piece.start < piece.end for piece in group), (text, group)
            assert sorted(group, key=lambda piece: (piece.start, piece.end)) == group, (text, group)
            end = last
            tokens = [piece.token for piece in group]
            if tokens[0] in SPECIAL and tokens != ["[UNK]"]:
                assert text[first:last] == tokens[0]
            elif "[UNK]" not in tokens and not (strips_accents and is_reordered_mark("".join(tokens))):
                pieces = "".join(token.removeprefix("##") for token in tokens)
                assert normalize(text[first:last]).replace(" ", "") == pieces, (text, group)
                checked += len(group)
    assert checked > 5 * len(varied_texts)


CASES = [
    # text, (token, the slice it stands for), ...
    ("Un café!", ("un", "Un"), ("cafe", "café"), ("!", "!")),
    ("cafe\u0301s", ("cafe", "cafe"), ("##s", "s")),
    ("ne\u0301e x", ("nee", "ne\u0301e"), ("x", "x")),
    ("İSTANBUL x", ("istanbul", "İSTANBUL"), ("x", "x")),
    ("ﬁne x", ("ﬁne", "ﬁne"), ("x", "x")),
    ("한 x", ("\u1112", "한"), ("##\u1161", "한"), ("##\u11ab", "한"), ("x", "x")),
    ("x東京x", ("x", "x"), ("東", "東"), ("京", "京"), ("x", "x")),
    ("👍🏽 x", ("👍🏽", "👍🏽"), ("x", "x")),
    ("👩\u200d👧 x", ("👩👧", "👩\u200d👧"), ("x", "x")),
    ("Éx[MASK]É", ("e", "É"), ("##x", "x"), ("[MASK]", "[MASK]"), ("e", "É")),
    ("\x00x\u200b  x", ("x", "x"), ("x", "x")),
    ("x zebra\u0301s x", ("x", "x"), ("[UNK]", "zebra\u0301s"), ("x", "x")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case[0]))
def test_tokens_and_slices_by_hand(case: tuple) -> None:
    tokens = {token for _, *pieces in CASES for token, _ in pieces}
    tokenizer = WordPieceTokenizer([*SPECIAL, *sorted(tokens - set(SPECIAL))])
    text, *expected = case
    pieces = tokenizer.tokenize_with_offsets([text])[0]
    assert [(piece.token, text[piece.start : piece.end]) for piece in pieces] == expected


def test_repeated_words_have_their_own_offsets() -> None:
    tokenizer = WordPieceTokenizer([*SPECIAL, "a", "b"])
    pieces = tokenizer.tokenize_with_offsets(["x", "é a  b a"])[1]
    assert [piece[2:] for piece in pieces[1:]] == [(2, 3), (5, 6), (7, 8)]


def test_offsets_count_characters_of_what_was_passed() -> None:
    # Offsets of bytes count the characters that they decode to.
    tokenizer = WordPieceTokenizer([*SPECIAL, "x"])
    assert [piece[2:] for piece in tokenizer.tokenize_with_offsets(["éé x".encode()])[0]] == [(0, 2), (3, 4)]
