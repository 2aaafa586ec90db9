"""Byte-level BPE, compared with transformers and with cases by hand."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lmzoo.text import BytePairTokenizer, TextWarning
from lmzoo.text.tokenizers.bpe import BYTE_TOKENS
from tests.text.piece_groups import group_by_characters
from tests.text.trained import train_byte_pairs
from tests.text.varied import SOME

SPECIAL = list(BytePairTokenizer.special_tokens)
BASE = [*SPECIAL, *BYTE_TOKENS]
SPACES = [" ", "  ", *"\n\t\x0b\x0c\r\x1c\x1f\x85\u00a0\u1680\u2003\u2028\u202f\u200b\u3000\ufeff\0", "\r\n"]
WORDS = "' 's 't 're 've 'm 'll 'd 'S s tis 12 ٣ Ⅷ ½ film é e\u0301 東京 👩\u200d👧 ! aaaa <mask mask> < <<mask>>"
PARTS = [*SPECIAL, *SPACES, *WORDS.split()]


@pytest.fixture(scope="module")
def texts(varied_texts: list[str]) -> list[str]:
    """Return the texts of the other tokenizers' tests, and texts of parts peculiar to this one."""
    rng = random.Random(1709)
    return [*varied_texts, *("".join(rng.choices(PARTS, k=rng.randrange(10))) for _ in range(len(varied_texts) // 2))]


@pytest.fixture(scope="module")
def files(training_texts: list[str], root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with Hugging Face's trainer, and return the directory of its files."""
    trained = train_byte_pairs(root, training_texts)
    folder = tmp_path_factory.mktemp("trained")
    trained.save_model(str(folder))
    (folder / "vocab.json").rename(folder / "vocabulary.json")
    return folder


@pytest.fixture(scope="module")
def tokenizer(files: Path) -> BytePairTokenizer:
    loaded = BytePairTokenizer()
    loaded.load_assets(files)
    return loaded


@pytest.fixture(scope="module")
def peer(files: Path) -> Callable:
    transformers = pytest.importorskip("transformers")
    vocabulary = json.loads((files / "vocabulary.json").read_text("utf-8"))
    merges = [tuple(line.split()) for line in (files / "merges.txt").read_text("utf-8").split("\n")[1:-1]]
    mask = transformers.AddedToken("<mask>", lstrip=True)  # as in every published RoBERTa
    # With another padding token, it reads a literal <pad> as text.
    return transformers.RobertaTokenizerFast(vocab=vocabulary, merges=merges, mask_token=mask, pad_token="</s>")


def test_ids_and_offsets_equal_transformers(texts: list[str], tokenizer: BytePairTokenizer, peer: Callable) -> None:
    assert len(tokenizer.merges) == 1500 - 261
    assert len(texts) > SOME
    expected = peer(texts, add_special_tokens=False, return_offsets_mapping=True)
    assert tokenizer.tokenize(texts) == expected["input_ids"]
    rows = tokenizer.tokenize_with_offsets(texts)
    assert [[piece.id for piece in row] for row in rows] == expected["input_ids"]
    assert [[(piece.start, piece.end) for piece in row] for row in rows] == expected["offset_mapping"]
    assert all(piece.token == tokenizer.id_to_token(piece.id) for row in rows for piece in row)


def test_padding_in_a_text_is_text(files: Path, tokenizer: BytePairTokenizer) -> None:
    """A model counts positions without padding, so code that finds padding by its id would skip the token."""
    for text, begin in (("a <pad> b", 2), ("<pad>", 0), ("<s><pad></s>", 3)):
        spans = tokenizer.tokenize_with_offsets([text])[0]
        ids = [span.id for span in spans]
        assert ids == tokenizer.tokenize([text])[0]
        assert tokenizer.pad_id not in ids
        assert "".join(text[span.start : span.end] for span in spans if begin <= span.start < begin + 5) == "<pad>"
        assert tokenizer.detokenize(ids) == text
    assert tokenizer.tokenize(["<s>", "</s>", "<unk>"]) == [[0], [2], [3]]
    # A token that pads and has another role is a special token in texts.
    roles = {"pad_token": "</s>", "other_tokens": ("<pad>",)}
    vocabulary, merges = tokenizer.vocabulary, tokenizer.merges
    assert BytePairTokenizer(vocabulary, merges, **roles).tokenize(["</s><pad>"]) == [[2, 1]]


def test_slices_give_the_pieces(texts: list[str], tokenizer: BytePairTokenizer) -> None:
    byte_of_character = {character: byte for byte, character in enumerate(BYTE_TOKENS)}
    checked = 0
    for text, row in zip(texts, tokenizer.tokenize_with_offsets(texts), strict=True):
        for group in group_by_characters(row):
            characters = text[group[0].start : group[-1].end]
            if (token := group[0].token) in SPECIAL:
                assert characters == token
            else:
                expected = bytes(byte_of_character[c] for piece in group for c in piece.token).decode()
                assert characters.strip() == expected.strip(), (text, group)
                checked += len(group)
    assert checked > 4 * len(texts)


def test_detokenize_restores_the_text(texts: list[str], tokenizer: BytePairTokenizer) -> None:
    texts, count = [text for text in texts if "<mask>" not in text], len(texts)
    assert len(texts) > 0.61 * count
    assert [tokenizer.detokenize(ids) for ids in tokenizer.tokenize(texts)] == texts


def test_published_vectors(shared: Callable[[str], Path]) -> None:
    folder = shared("data/tokenizers")
    gpt2 = {str(i): t for t, i in json.loads((folder / "gpt2/encoder.json").read_text("utf-8")).items()}
    lines = (folder / "roberta/dict.txt").read_text("utf-8").split("\n")[:50260]
    entries = [gpt2.get(entry := line.split(" ")[0], entry) for line in lines]
    merges = (folder / "gpt2/vocab.bpe").read_bytes().decode().split("\n")[1:-1]
    tokenizer = BytePairTokenizer(["<s>", "<pad>", "</s>", "<unk>", *entries, "<mask>"], merges)
    assert tokenizer.vocabulary_size == 50265
    cases = {
        "Hello world!": [31414, 232, 328],
        " world": [232],
        "world": [8331],
        "A, <mask> AllenNLP sentence.": [250, 6, 50264, 3823, 487, 21992, 3645, 4],
        "Hello world! cécé herlolip": [31414, 232, 328, 740, 1140, 12695, 69, 46078, 1588],
    }
    assert tokenizer.tokenize(list(cases)) == list(cases.values())


CASES = [
    # text, (token, its characters), ...
    (" good film", ("Ġgood", "good"), ("Ġfilm", "film")),
    ("good", ("g", "g"), ("o", "o"), ("o", "o"), ("d", "d")),
    ("é", ("Ã", "é"), ("©", "é")),
    ("👍 é", *[(BYTE_TOKENS[byte], "👍") for byte in "👍".encode()], ("Ġ", ""), ("Ã", "é"), ("©", "é")),
    ("a  b", ("a", "a"), ("Ġ", ""), ("Ġ", ""), ("b", "b")),
    ("a\n\n good", ("a", "a"), ("Ċ", "\n"), ("Ċ", "\n"), ("Ġgood", "good")),
    ("a \u3000\n<mask> good", ("a", "a"), ("<mask>", "<mask>"), ("Ġgood", "good")),
    ("<s> <mask>  <mask></s>", ("<s>", "<s>"), *[("<mask>", "<mask>")] * 2, ("</s>", "</s>")),
    ("<<mask>>", ("<", "<"), ("<mask>", "<mask>"), (">", ">")),
    ("a <s> good", ("a", "a"), ("Ġ", ""), ("<s>", "<s>"), ("Ġgood", "good")),
    ("\x1c<mask>", ("Ĝ", "\x1c"), ("<mask>", "<mask>")),  # a separator that is not whitespace
    ("'s's good", ("'", "'"), ("s", "s"), ("'", "'"), ("s", "s"), ("Ġgood", "good")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case[0]))
def test_tokens_and_slices_by_hand(case: tuple) -> None:
    text, *expected = case
    pieces = BytePairTokenizer.of_words(["good", "film"], 300).tokenize_with_offsets([text])[0]
    assert [(piece.token, text[piece.start : piece.end]) for piece in pieces] == expected


def test_invalid_text_is_read_as_the_replacement_character(tokenizer: BytePairTokenizer) -> None:
    with pytest.warns(TextWarning, match="2 of 3 texts"):
        rows = tokenizer.tokenize([b"a\xff\xe2\x82b", "a\ud800b", "a\ufffdb"])
    assert [tokenizer.detokenize(ids) for ids in rows] == ["a\ufffd\ufffdb", "a\ufffdb", "a\ufffdb"]


def test_overlapping_and_repeated_merges() -> None:
    tokenizer = BytePairTokenizer([*BASE, "aa", "aaaa", "ab"], ["a a", ("aa", "aa"), "a b"])
    rows = tokenizer.tokenize(["a" * n for n in (1, 2, 3, 4, 5, 7)] + ["aaab"])
    tokens = [" ".join(map(tokenizer.id_to_token, row)) for row in rows]
    assert tokens == ["a", "aa", "aa a", "aaaa", "aaaa a", "aaaa aa a", "aa ab"]
    repeated = BytePairTokenizer([*BASE, "aa", "ab"], ["a a", "a b", "a a"])  # the last rank of a merge counts
    assert repeated.merges == ["a a", "a b", "a a"]
    assert [repeated.id_to_token(i) for i in repeated.tokenize(["aab"])[0]] == ["a", "ab"]


def test_texts_and_word_starts_of_tokens() -> None:
    tokenizer = BytePairTokenizer.of_words(["é"], 270)
    expected = {"ĠÃ©": " é", "é": "\ufffd", "Ã": "\ufffd", "Ċ": "\n", "<mask>": "<mask>", "日": "日"}
    assert {token: tokenizer.text_of(token) for token in expected} == expected
    ids = [tokenizer.token_to_id(token) for token in ("Ã", "©", "Ã", "ĠÃ©", "<s>")]
    assert tokenizer.detokenize(ids) == "é\ufffd é<s>"
    starts = BytePairTokenizer([*BASE, "xĠ", "Ġx"], []).word_starts()
    assert starts.dtype == np.bool_
    assert np.flatnonzero(starts).tolist() == [*range(5), BASE.index("Ġ"), len(BASE) + 1]


# A merge for each byte, shared by words that begin alike: " ." 1, " the" 3, " then" 1, " film" 4, " fine" 2, " été" 5.
@pytest.mark.parametrize(("size", "count"), [(261, 0), (262, 1), (264, 1), (266, 3), (272, 5), (276, 5), (3001, 6)])
def test_of_words_makes_tokens_of_the_first_words(size: int, count: int) -> None:
    words = [".", "the", "then", "film", "fine", "été"]
    tokenizer = BytePairTokenizer.of_words(["the", *reversed(words)], size)
    assert tokenizer.vocabulary_size == size
    assert (tokenizer.pad_id, tokenizer.mask_id) == (1, size - 1)
    assert [word for word in words if len(tokenizer.tokenize([f" {word}"])[0]) == 1] == words[:count]


def test_unused_ids_at_the_end_are_kept(tmp_path: Path) -> None:
    """Otherwise added tokens would get other ids when they are loaded."""
    tokenizer = BytePairTokenizer.of_words(["film"], 263)
    padded = BytePairTokenizer([*tokenizer.vocabulary, "", ""], tokenizer.merges)
    padded.save_assets(tmp_path)
    loaded = BytePairTokenizer()
    loaded.load_assets(tmp_path)
    assert loaded.vocabulary == padded.vocabulary


def test_assets_round_trip(tmp_path: Path, tokenizer: BytePairTokenizer, files: Path) -> None:
    tokenizer.save_assets(tmp_path)
    assert (tmp_path / "merges.txt").read_bytes() == (files / "merges.txt").read_bytes()
    odd = ["\u2028", "a\x85b", " ", "two words", '"\\', "日", "\ufeff", "👍🏽", "\n", "##", "#v", "<|endoftext|>"]
    original = BytePairTokenizer([*odd, *BASE, "a\u2028"], ["# #", "# v", "a \u2028"])
    original.save_assets(tmp_path)
    loaded = BytePairTokenizer()
    loaded.load_assets(tmp_path)
    assert (loaded.vocabulary, loaded.merges) == (original.vocabulary, original.merges)
    assert original.get_config() == {"add_prefix_space": False}


@pytest.mark.parametrize("text", ["#version: 0.2\na a\na b\n", "#version: 0.1\r\na a\r\na b\r\n", "a a\na b"])
def test_files_of_other_programs(tmp_path: Path, text: str) -> None:
    vocabulary = {token: i for i, token in enumerate([*BASE, "aa", "ab"])}
    (tmp_path / "vocabulary.json").write_text(json.dumps(dict(reversed(vocabulary.items())), indent=2), "utf-8")
    (tmp_path / "merges.txt").write_text(text, "utf-8", newline="")
    tokenizer = BytePairTokenizer()
    tokenizer.load_assets(tmp_path)
    assert tokenizer.merges == ["a a", "a b"]
    assert tokenizer.vocabulary == list(vocabulary)


def vocabulary_with_ids(id_of: Callable[[int], int | str]) -> dict[str, int | str]:
    return {token: id_of(i) for i, token in enumerate(BASE)}


def test_errors_of_vocabularies_and_merges(tmp_path: Path, files: Path) -> None:
    malformed = "is not two tokens with one space"
    cases = [
        (BASE[2:], [], "lacks the special tokens <s>, <pad>"),
        ([*SPECIAL, *BYTE_TOKENS[2:]], [], "lacks 2 of the 256 byte tokens, such as 'Ā'"),
        ([*BASE, "a"], [], "holds 'a' twice"),
        (BASE, ["a b"], "Line 1 of the merges, 'a b', needs 'ab', which the vocabulary lacks"),
        ([*BASE, "ab"], ["a b", "ab cd"], "Line 2 of the merges, 'ab cd', needs 'cd'"),
        *((BASE, [merge], malformed) for merge in ("ab", "a  b", "a b c", "", ("a",), ("a", " "), ("a", "\n"))),
        (vocabulary_with_ids(lambda i: 3 * i), [], "has the id 522, but 261 tokens must have ids from 0 to 521"),
        (vocabulary_with_ids(lambda i: i - 1), [], "'<s>' has the id -1, but 261 tokens must have ids from 0 to 521"),
        (vocabulary_with_ids(lambda i: max(i, 1)), [], "The id 1 belongs to two tokens, '<s>' and '<pad>'"),
        (vocabulary_with_ids(lambda i: i - (i > 3)), [], "The id 3 belongs to two tokens, '<unk>' and '<mask>'"),
        *(
            (vocabulary_with_ids(kind), [], "must be an object with an id for each token")
            for kind in (str, float, bool)
        ),
    ]
    for vocabulary, merges, message in cases:
        with pytest.raises(ValueError, match=message):
            BytePairTokenizer(vocabulary, merges)
    with pytest.raises(ValueError, match="Pass both"):
        BytePairTokenizer(BASE)
    with pytest.raises(ValueError, match="`size` is 260, but the special tokens and the 256 bytes alone need 261"):
        BytePairTokenizer.of_words(["a"], 260)
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    (tmp_path / "merges.txt").write_text("#version: 0.2\nĠ a\nĠ nothing\n", "utf-8")
    with pytest.raises(ValueError, match="Line 3 of the merges, 'Ġ nothing', needs 'nothing'"):
        BytePairTokenizer().load_assets(tmp_path)
