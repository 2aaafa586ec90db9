"""SentencePiece in Python: ALBERT's text rules, special tokens, texts of tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import numpy as np
import pytest

from lmzoo.text import SentencePieceTokenizer, TextWarning
from lmzoo.text.tokenizers.sentencepiece_text import character_map
from tests.text.trained import comparable_to_transformers

SPECIAL = list(SentencePieceTokenizer.special_tokens)


def tokens(tokenizer: SentencePieceTokenizer, text: str) -> list[str]:
    return [tokenizer.id_to_token(i) for i in tokenizer.tokenize([text])[0]]


def plain(text: str) -> str:
    """Apply Google's rules to a text, with categories instead of combining classes, as Hugging Face does."""
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if not unicodedata.category(c).startswith("M")).lower()


def reference(tokenizer: SentencePieceTokenizer, text: str) -> list[int]:
    """Return ids by the rules of Google's code, with Hugging Face's rule for quotes and without special tokens."""
    text = plain(" ".join(text.split()).replace("``", '"').replace("''", '"'))
    pieces = []
    for piece in tokenizer.backend.encode(text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            parts = tokenizer.backend.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and parts[0][0] == "▁":
                parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
            pieces += [*parts, ","]
        else:
            pieces.append(piece)
    return [tokenizer.backend.piece_to_id(piece) for piece in pieces]


def test_ids_equal_the_reference(tokenizer: SentencePieceTokenizer, strings: list[str]) -> None:
    # Python and `tokenizers` follow different versions of Unicode.
    characters = character_map(lowercase=True, keep_accents=False)
    differing = {c for c in set("".join(strings)) if not c.isspace() and characters[ord(c)] != plain(c)}
    assert len(differing) < 300
    differing |= {"Σ"}  # Python's lower() depends on its neighbors
    texts = [text for text in strings if differing.isdisjoint(text) and not any(token in text for token in SPECIAL)]
    assert len(texts) > 0.67 * len(strings)
    rows = tokenizer.tokenize(texts)
    for text, ids in zip(texts, rows, strict=True):
        assert ids == reference(tokenizer, text), ascii(text)
    with_commas = [ids for ids in tokenizer.backend.encode(texts) if not tokenizer.splits.keys().isdisjoint(ids)]
    assert len(with_commas) > 0.042 * len(strings)
    unknown = np.mean(np.concatenate(rows) == tokenizer.token_to_id("<unk>"))
    assert 0.02 < unknown < 0.5, "the vocabulary must lack some of the characters"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("in 2014, and", ["▁in", "▁2014", ",", "▁and"]),  # with the space that begins a word
        ("9,200", ["▁", "9", ",", "2", "0", "0"]),
        ("a1,b", ["▁", "a", "1", ",", "b"]),  # without the space that the library adds to "a1"
        ("2,", ["▁2", ","]),
        ("x9,", ["▁x", "9", ","]),
        ("the, a", ["▁the", ",", "▁a"]),
    ],
)
def test_a_comma_after_a_digit(tokenizer: SentencePieceTokenizer, text: str, pieces: list[str]) -> None:
    # The model decides whether "2014" is one piece or several.
    actual = tokens(tokenizer, text)
    assert "".join(actual) == "".join(pieces)
    assert all(token == "," or "," not in token for token in actual)
    assert actual.count(",") == text.count(",")


def test_published_rules() -> None:
    words = ["the", "naive", "cafe", '"', "fine", "12", "naïve", "NAIVE", "ΟΔΟΣ", "οδος", "οδοσ", "İ", "i"]
    tokenizer = SentencePieceTokenizer.of_words(words, 41)
    assert tokens(tokenizer, " \t the\u3000\n naïve CAFÉ\x1ccafe\u0301 ﬁne １２ ") == [
        *("▁the", "▁naive", "▁cafe", "▁cafe", "▁fine", "▁12")
    ]
    assert tokens(tokenizer, "the `` the ''") == ["▁the", '▁"', "▁the", '▁"']
    assert tokens(tokenizer, "İ ΟΔΟΣ") == ["▁i", "▁οδοσ"]  # no final sigma, as each character is converted alone
    with_case_and_accents = SentencePieceTokenizer(tokenizer.model, lowercase=False, keep_accents=True)
    assert tokens(with_case_and_accents, "naïve NAIVE ΟΔΟΣ İ") == ["▁naïve", "▁NAIVE", "▁ΟΔΟΣ", "▁İ"]
    assert tokens(SentencePieceTokenizer(tokenizer.model, keep_accents=True), "NAÏVE") == ["▁naïve"]
    assert tokens(SentencePieceTokenizer(tokenizer.model, lowercase=False), "NAÏVE") == ["▁NAIVE"]


def test_special_tokens_are_never_split() -> None:
    tokenizer = SentencePieceTokenizer.of_words(["a", "b", ","], 11)
    for text in ("a [MASK] b", "a[MASK]b", "a   [MASK]b", "a\n[MASK] \u3000b"):
        assert tokens(tokenizer, text) == ["▁a", "[MASK]", "▁b"], text
    assert tokenizer.tokenize(["[CLS]a[SEP][SEP]<pad><unk>[MASK]"]) == [[2, 5, 3, 3, 0, 1, 4]]
    for text in ("[mask]", "[ MASK ]", "[MASK", "［ＭＡＳＫ］", "[MA\x01SK]"):
        assert "[MASK]" not in tokens(tokenizer, text), ascii(text)


def test_empty_and_invalid_texts(tokenizer: SentencePieceTokenizer) -> None:
    assert tokenizer.tokenize(["", " ", "\n\u3000", b""]) == [[], [], [], []]
    assert tokenizer.tokenize([]) == []
    with pytest.warns(TextWarning, match="1 of 2 texts held invalid UTF-8"):
        rows = tokenizer.tokenize([b"the \xff", b"the"])
    assert rows[0] == tokenizer.tokenize(["the \ufffd"])[0]
    with pytest.raises(TypeError, match=r"texts\[1\]"):
        tokenizer.tokenize(["a", None])


def test_a_hundred_thousand_characters(tokenizer: SentencePieceTokenizer) -> None:
    text = "the book was never dull, it cost 9,200 ﬁné [MASK] " * 2000
    ids = tokenizer.tokenize([text])[0]
    assert len(text) == 100_000
    assert ids == tokenizer.tokenize([text[:50]])[0] * 2000
    assert [piece.id for piece in tokenizer.tokenize_with_offsets([text])[0]] == ids


# === transformers ===


@pytest.mark.parametrize(("lowercase", "keep_accents"), [(True, False), (False, False), (True, True)])
def test_ids_equal_transformers(
    model: bytes, strings: list[str], equal_or_tied: Callable[..., int], lowercase: bool, keep_accents: bool
) -> None:
    """Texts on which they should differ are left out."""
    transformers = pytest.importorskip("transformers")
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    peer = transformers.AlbertTokenizer(
        vocab=[(piece.piece, piece.score) for piece in proto.pieces],
        do_lower_case=lowercase,
        keep_accents=keep_accents,
        _spm_precompiled_charsmap=proto.normalizer_spec.precompiled_charsmap,
    )
    tokenizer = SentencePieceTokenizer(model, lowercase, keep_accents)
    texts = comparable_to_transformers(strings, peer, lowercase, keep_accents)
    assert len(texts) > 0.42 * len(strings)
    expected = [peer(text, add_special_tokens=False)["input_ids"] for text in texts]
    # transformers 5 has no rule for commas after digits, so it is switched off here.
    tokenizer._splits = {}
    equal_or_tied(tokenizer, texts, tokenizer.tokenize(texts), expected)


def test_a_real_model(german: Callable[[], bytes]) -> None:
    tokenizer = SentencePieceTokenizer(german(), lowercase=False)  # it was trained with capital letters
    assert tokenizer.vocabulary_size == 30_000
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3, 4]
    assert tokens(tokenizer, "Am 9. Mai 2014, und 03,") == ["▁Am", "▁9", ".", "▁Mai", "▁2014", ",", "▁und", "▁03", ","]
    assert len(tokenizer.splits) == 18


# === Tokens ===


def test_of_words_makes_a_model_of_the_words() -> None:
    tokenizer = SentencePieceTokenizer.of_words(["good", "film", "."], 131)
    assert tokenizer.vocabulary_size == len(tokenizer.vocabulary) == 131
    assert tokenizer.vocabulary[:9] == [*SPECIAL, "▁good", "▁film", "▁.", "▁"]
    assert tokenizer.model == SentencePieceTokenizer.of_words(["good", "film", "."], 131).model
    assert tokenizer.tokenize(["Good film ."]) == [[5, 6, 7]]
    assert (tokenizer.pad_id, tokenizer.mask_id) == (0, 4)
    with pytest.raises(ValueError, match="3 words need a `size` of at least 9, got 8"):
        SentencePieceTokenizer.of_words(["good", "film", "."], 8)


def test_text_of_and_detokenize(tokenizer: SentencePieceTokenizer) -> None:
    assert [tokenizer.text_of(token) for token in ("▁the", "s", "▁", "[MASK]")] == [" the", "s", " ", "[MASK]"]
    text = "the book was good, and i read it in 2014, [MASK]"
    assert tokenizer.detokenize(tokenizer.tokenize([text])[0]) == text.replace(" [MASK]", "[MASK]")


def test_only_spaces_are_stripped_from_detokenized_text() -> None:
    """As in graphs."""
    tokenizer = SentencePieceTokenizer.of_words(["film"], 7, added_tokens=["\n"])
    ids = [tokenizer.token_to_id(token) for token in ("▁", "▁film", "\n", "▁")]
    assert tokenizer.detokenize(ids) == "film\n"


def test_word_starts() -> None:
    words = ["the", "9"]
    tokenizer = SentencePieceTokenizer.of_words(words, 9)
    tokenizer._tokens = [*SPECIAL, "▁the", "s", ",", "é", "ab1", "<x", "▁", "ing", "don't"]
    expected = [True] * 5 + [True, False, True, True, True, True, True, False, True]
    assert tokenizer.word_starts().tolist() == expected
