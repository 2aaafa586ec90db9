"""SentencePiece models that split unknown characters into bytes: offsets, texts and graphs."""

from __future__ import annotations

import pytest

from lmzoo.text import DebertaV3Tokenizer, SentencePieceTokenizer, T5Tokenizer, XlmRobertaTokenizer
from tests.text.graph_checks import check_graph
from tests.text.trained import with_bytes, with_pieces
from tests.text.varied import varied_strings

CLASSES = [DebertaV3Tokenizer, SentencePieceTokenizer, T5Tokenizer, XlmRobertaTokenizer]
CASES = {
    "I like 😀": [("▁I", 0, 1), ("▁like", 2, 6), ("▁", 7, 7), *[(f"<0x{x}>", 7, 8) for x in ("F0", "9F", "98", "80")]],
    "zé I": [("▁", 0, 0), ("<0x7A>", 0, 1), ("<0xC3>", 1, 2), ("<0xA9>", 1, 2), ("▁I", 3, 4)],
    "éé": [("▁", 0, 0), ("<0xC3>", 0, 1), ("<0xA9>", 0, 1), ("<0xC3>", 1, 2), ("<0xA9>", 1, 2)],
    "I ㎏": [("▁I", 0, 1), ("▁", 2, 2), ("<0x6B>", 2, 3), ("<0x67>", 2, 3)],
    "<0xF0>I": [("▁", 0, 0), *[(f"<0x{ord(c):X}>", i, i + 1) for i, c in enumerate("<0xF0>I")]],
}


def make_tokenizer(cls: type[SentencePieceTokenizer]) -> SentencePieceTokenizer:
    return cls(with_bytes(with_pieces(cls.of_words(["I", "like"], 127).model, [])))


@pytest.mark.parametrize("text", CASES, ids=ascii)
def test_each_byte_has_the_span_of_its_character(text: str) -> None:
    """As in `tokenizers`, in which SentencePiece's own tokens for bytes also cover whole characters."""
    tokenizer = make_tokenizer(DebertaV3Tokenizer)
    assert [tuple(span[1:]) for span in tokenizer.tokenize_with_offsets([text])[0]] == CASES[text]


@pytest.mark.parametrize("cls", CLASSES)
def test_the_graph_equals_the_python_path(cls: type[SentencePieceTokenizer]) -> None:
    tokenizer = make_tokenizer(cls)
    check_graph(tokenizer, [*CASES, *varied_strings(211, 2039, ["I", "like", " ", "ﬁ", "½", "é"])])


@pytest.mark.parametrize("cls", CLASSES)
def test_bytes_are_text_again(cls: type[SentencePieceTokenizer]) -> None:
    tokenizer = make_tokenizer(cls)
    text = "i like 😀 z." if cls is SentencePieceTokenizer else "I like 😀 zé."
    assert tokenizer.detokenize(tokenizer.tokenize([text])[0]) == text
    incomplete = [tokenizer.token_to_id(token) for token in ("▁like", "▁", "<0xF0>", "<0x9F>", "▁I", "<0x21>")]
    assert tokenizer.detokenize(incomplete) == "like \ufffd I!"
    assert [tokenizer.text_of(token) for token in ("<0x21>", "<0xF0>", "▁I")] == ["!", "\ufffd", " I"]
