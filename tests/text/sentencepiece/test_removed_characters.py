"""Offsets of texts with characters that a model's rules remove or expand, in Python and in graphs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lmzoo.text import AddedToken, DebertaV3Tokenizer, SentencePieceTokenizer, XlmRobertaTokenizer
from lmzoo.text.tokenizers.xlmr_sentencepiece import convert_to_fairseq_ids
from tests.text.trained import train_albert, train_deberta, train_xlm_roberta

REMOVED = [chr(code) for code in (*range(1, 9), *range(0x0E, 0x1C), 0x7F, 0x8F, 0x9F)]
LETTERS = ["a", "é", "film", "The", "9,", "x", "ﬁ", "㎏", "e\u0301", "!", "'", " ", "  "]
NAMES = ["albert", "albert with accents", "deberta", "xlm-roberta"]


def draw_texts(parts: list[str], begin: bool = False) -> list[str]:
    rng = random.Random(1)
    starts = [rng.choice(REMOVED) if begin else "" for _ in range(199)]
    return [start + "".join(rng.choices(parts, k=rng.randint(1, 9))) for start in starts]


@pytest.fixture(scope="module")
def tokenizers(root: Path) -> dict[str, SentencePieceTokenizer]:
    model = train_albert(root)
    return {
        "albert": SentencePieceTokenizer(model),
        "albert with accents": SentencePieceTokenizer(model, lowercase=False, keep_accents=True),
        "deberta": DebertaV3Tokenizer(train_deberta(root, ["Un café"] * 9)),
        "xlm-roberta": XlmRobertaTokenizer(convert_to_fairseq_ids(train_xlm_roberta(root, ["Un café"] * 9))),
    }


def spans(tokenizer: SentencePieceTokenizer, texts: list[str]) -> list[list[tuple[int, int, int]]]:
    rows = tokenizer.tokenize_with_offsets(texts)
    return [[(token.id, token.start, token.end) for token in row] for row in rows]


def with_normalized_token(tokenizer: SentencePieceTokenizer) -> SentencePieceTokenizer:
    """Return a copy that matches a token in normalized texts."""
    changed = type(tokenizer)(tokenizer.model, **tokenizer.get_config())
    changed.add_tokens([AddedToken("zq", normalized=True)])
    return changed


def library_spans(tokenizer: SentencePieceTokenizer, text: str) -> list[tuple[int, int, int]]:
    """Return the library's spans in characters, without leading characters that the rules remove or make a space.

    A space alone has an empty span. The library's span of the first parts of an expanded character is empty.
    """
    encoded = text.encode()
    spans_of_text = []
    for piece in tokenizer.backend.encode(text, return_type="proto").pieces:
        start, end = (len(encoded[:offset].decode()) for offset in (piece.begin, piece.end))
        if piece.piece.startswith("▁"):
            while start < end and not tokenizer.backend.normalize(text[start]).strip("▁"):
                start += 1
        spans_of_text.append((piece.id, start, start if piece.piece == "▁" else max(end, start + 1)))
    return spans_of_text


@pytest.mark.parametrize("parts", [LETTERS, LETTERS + REMOVED], ids=["expanded", "removed"])
def test_offsets_are_those_of_the_library(parts: list[str], tokenizers: dict[str, SentencePieceTokenizer]) -> None:
    tokenizer = tokenizers["deberta"]
    texts = [text for text in draw_texts(parts) if "9," not in text and "''" not in text]
    assert len(texts) > 50
    for text, row in zip(texts, spans(tokenizer, texts), strict=True):
        assert row == library_spans(tokenizer, text), ascii(text)


@pytest.mark.parametrize(("name", "normalized"), [*((name, False) for name in NAMES), ("albert with accents", True)])
def test_graphs_have_the_same_offsets(
    name: str, normalized: bool, tokenizers: dict[str, SentencePieceTokenizer]
) -> None:
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    from lmzoo.text.graphs import graph_tokenizer

    tokenizer = with_normalized_token(tokenizers[name]) if normalized else tokenizers[name]
    texts = [
        *draw_texts([*LETTERS, *REMOVED, "zq"]),
        *draw_texts(LETTERS),
        "9,\x01",
        "\x01\x029,\x03",
        "9\x01,",
        "\r\n\n",
        "⑫,9",
        "a ▁b▁",
        "\0½\0ﷺ ¨x¨",
    ]
    ids, offsets = graph_tokenizer(tokenizer).with_offsets(tf.constant([text.encode() for text in texts]))
    for text, *row, expected in zip(texts, ids.to_list(), offsets.to_list(), spans(tokenizer, texts), strict=True):
        assert [(id, *span) for id, span in zip(*row, strict=True)] == expected, ascii(text)


@pytest.mark.parametrize("name", NAMES)
def test_a_token_for_normalized_text_changes_no_offset(
    name: str, tokenizers: dict[str, SentencePieceTokenizer]
) -> None:
    """With such a token the library normalizes the text, and its offsets lack characters removed at the beginning."""
    tokenizer = tokenizers[name]
    changed = with_normalized_token(tokenizer)
    # The library gives one character as the origin of a composed one, and each part of an expanded one.
    differing = ("''", "\u0301", "ﬁ", "㎏")
    texts = [text for text in draw_texts(LETTERS, begin=True) if not any(part in text for part in differing)]
    assert len(texts) > 50
    for text, row, expected in zip(texts, spans(changed, texts), spans(tokenizer, texts), strict=True):
        assert row == expected, ascii(text)
    for text in ("\x01a zq\x02\x03x", "zqﬁ\x02x"):
        slices = [text[start:end] for _, start, end in spans(changed, [text])[0]]
        assert "zq" in slices
        assert slices[-1] == "x"
    assert slices[-2] == "ﬁ"
