"""WordPiece ids, compared with the specification in plain Python and with transformers."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmzoo.text import WordPieceTokenizer

SPECIAL = list(WordPieceTokenizer.special_tokens)
# lowercase, strip_accents, split_on_cjk
OPTIONS = [
    (True, None, True),
    (True, False, True),
    (False, None, True),
    (False, True, True),
    (True, None, False),
    (False, True, False),
]
IDEOGRAPHS = [
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
]


def reference_words(text: str, lowercase: bool, strip_accents: bool | None, split_on_cjk: bool) -> Iterator[str]:
    """Iterate over the words of a text without special tokens, one rule of the specification after another."""
    strip_accents = lowercase if strip_accents is None else strip_accents
    clean = ""
    for c in text:
        category = unicodedata.category(c)
        if c in "\t\n\r" or category in {"Zs", "Zl", "Zp"}:
            clean += " "
        elif c != "\ufffd" and category[0] != "C":
            is_ideograph = any(low <= ord(c) <= high for low, high in IDEOGRAPHS)
            clean += f" {c} " if split_on_cjk and is_ideograph else c
    if strip_accents:
        clean = "".join(c for c in unicodedata.normalize("NFD", clean) if unicodedata.category(c) != "Mn")
    if lowercase:
        clean = "".join(c.lower() for c in clean)
    for word in clean.split(" "):
        part = ""
        for c in word:
            if unicodedata.category(c)[0] == "P" or c in "$+<=>^`|~":
                yield from filter(None, (part, c))
                part = ""
            else:
                part += c
        if part:
            yield part


def reference_ids(word: str, ids: dict[str, int]) -> list[int]:
    """Return a word's ids, the longest piece first, or that of the unknown token."""
    pieces, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in ids)
        if len(word) > 100 or (end := next(ends, None)) is None:
            return [ids["[UNK]"]]
        pieces.append(ids[prefix + word[start:end]])
        start = end
    return pieces


@pytest.mark.parametrize(("lowercase", "strip_accents", "split_on_cjk"), OPTIONS)
def test_ids_follow_the_specification(
    varied_texts: list[str], vocabulary: list[str], lowercase: bool, strip_accents: bool | None, split_on_cjk: bool
) -> None:
    ids = {token: i for i, token in enumerate(vocabulary)}
    texts = [text for text in varied_texts if not any(token in text for token in SPECIAL)]
    tokenizer = WordPieceTokenizer(vocabulary, lowercase, strip_accents, split_on_cjk)
    for text, actual in zip(texts, tokenizer.tokenize(texts), strict=True):
        words = reference_words(text, lowercase, strip_accents, split_on_cjk)
        assert actual == [i for word in words for i in reference_ids(word, ids)], ascii(text)


@pytest.mark.parametrize(("lowercase", "strip_accents", "split_on_cjk"), OPTIONS[::5])
def test_ids_and_offsets_equal_transformers(
    varied_texts: list[str], vocabulary: list[str], lowercase: bool, strip_accents: bool | None, split_on_cjk: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    peer = transformers.BertTokenizerFast(
        vocab={token: i for i, token in enumerate(vocabulary)},
        do_lower_case=lowercase,
        strip_accents=strip_accents,
        tokenize_chinese_chars=split_on_cjk,
    )
    expected = peer(varied_texts, add_special_tokens=False, return_offsets_mapping=True)
    tokenizer = WordPieceTokenizer(vocabulary, lowercase, strip_accents, split_on_cjk)
    rows = tokenizer.tokenize(varied_texts)
    unknown = vocabulary.index("[UNK]")
    fraction = sum(ids.count(unknown) for ids in rows) / sum(map(len, rows))
    assert 0.01 < fraction < 0.5, "the vocabulary must lack some of the characters"
    assert rows == expected["input_ids"]
    spans = [[span[2:] for span in row] for row in tokenizer.tokenize_with_offsets(varied_texts)]
    assert spans == expected["offset_mapping"]


def test_chinese_characters_that_are_not_split() -> None:
    pieces = [*SPECIAL, "東", "##京", "東京", "##x"]
    assert WordPieceTokenizer(pieces).tokenize(["東京x"]) == [[5, 1, 1]]
    tokenizer = WordPieceTokenizer(pieces, split_on_cjk=False)
    assert tokenizer.tokenize(["東京x"]) == [[7, 8]]
    assert WordPieceTokenizer(pieces, **tokenizer.get_config()).tokenize(["東京x"]) == [[7, 8]]


def test_published_vectors() -> None:
    pieces = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ",", "[PAD]", "[MASK]"]
    tokenizer = WordPieceTokenizer(pieces)
    assert tokenizer.tokenize(["UNwantéd,running", "unwantedX running"]) == [[7, 4, 5, 10, 8, 9], [0, 8, 9]]
    words = ["hello", "!", "how", "are", "you", "?", "ah", "博", "推", "zz"]
    tokenizer = WordPieceTokenizer([*SPECIAL, *words])
    assert tokenizer.tokenize([" \tHeLLo!how  \n Are yoU?  ", "ah博推zz"]) == [[5, 6, 7, 8, 9, 10], [11, 12, 13, 14]]


def test_words_of_over_100_characters_are_unknown(tokenizer: WordPieceTokenizer) -> None:
    assert tokenizer.tokenize(["a" * 100, "a" * 101]) == [[5, *[6] * 99], [1]]


def test_case_and_accents() -> None:
    words = ["cafe", "café", "Cafe", "Café"]
    expected = {(True, None): "cafe", (True, False): "café", (False, None): "Café", (False, True): "Cafe"}
    for options, word in expected.items():
        tokenizer = WordPieceTokenizer([*SPECIAL, *words], *options)
        assert tokenizer.tokenize(["Café"]) == [[5 + words.index(word)]]


def test_special_tokens_in_text_are_kept_whole(tokenizer: WordPieceTokenizer) -> None:
    assert tokenizer.tokenize(["[CLS]a[MASK]b [mask] [SEP][PAD]"])[0][:3] == [2, 5, 4]
    assert tokenizer.tokenize(["[SEP][PAD][UNK]"]) == [[3, 0, 1]]


def test_tokens_ids_and_word_starts(tokenizer: WordPieceTokenizer) -> None:
    assert tokenizer.vocabulary_size == len(tokenizer.vocabulary) == 11
    assert (tokenizer.pad_id, tokenizer.mask_id) == (0, 4)
    assert [
        tokenizer.id_to_token(tokenizer.token_to_id(token)) for token in tokenizer.vocabulary
    ] == tokenizer.vocabulary
    assert tokenizer.word_starts().tolist() == [True] * 6 + [False, True, False, False, True]
    assert tokenizer.detokenize([2, 5, 6, 8, 10, 3]) == "[CLS] aab , [SEP]"
    assert tokenizer.detokenize([6, 5]) == "##a a"
    with pytest.raises(ValueError, match="no token 'zebra'"):
        tokenizer.token_to_id("zebra")


def test_empty_input(tokenizer: WordPieceTokenizer) -> None:
    assert tokenizer.tokenize([]) == []
    assert tokenizer.tokenize(["", " \n"]) == [[], []]
    assert tokenizer.tokenize_with_offsets([""]) == [[]]


def test_vocabulary_errors() -> None:
    with pytest.raises(ValueError, match=r"lacks the special tokens \[SEP\], \[MASK\]"):
        WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "a"])
    with pytest.raises(ValueError, match="holds 'a' twice"):
        WordPieceTokenizer([*SPECIAL, "a", "b", "a"])


def test_assets_keep_odd_tokens(tmp_path: Path) -> None:
    odd = ["\u2028", "a\x85b", "\x0b", "\x1c", " ", "é", "##\u2029", "\ufeff", "👍🏽"]
    tokenizer = WordPieceTokenizer([*SPECIAL, *odd, "last"])
    tokenizer.save_assets(tmp_path)
    loaded = WordPieceTokenizer()
    loaded.load_assets(tmp_path)
    assert loaded.vocabulary == tokenizer.vocabulary
    assert (tmp_path / "vocabulary.txt").read_bytes().count(b"\n") == len(tokenizer.vocabulary)
    uncased = WordPieceTokenizer(SPECIAL, lowercase=False, strip_accents=True)
    assert uncased.get_config() == {"lowercase": False, "strip_accents": True}


@pytest.mark.parametrize("token", ["\n", "a\nb", "a\r"])
def test_assets_cannot_hold_line_ends(token: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one token per line and cannot hold '"):
        WordPieceTokenizer([*SPECIAL, token, "b"]).save_assets(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("end", ["\r\n", "\n", "\n-"])
def test_vocabulary_files_of_other_programs(tmp_path: Path, end: str) -> None:
    # Windows line ends, and no line end at the end of the file.
    text = "".join(token + end.rstrip("-") for token in [*SPECIAL, "a"])
    (tmp_path / "vocabulary.txt").write_text(text.rstrip("\n") if "-" in end else text, "utf-8", newline="")
    tokenizer = WordPieceTokenizer()
    tokenizer.load_assets(tmp_path)
    assert tokenizer.vocabulary == [*SPECIAL, "a"]
