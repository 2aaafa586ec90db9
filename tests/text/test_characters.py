"""Words as characters and as ids, compared with a slow reading of the original programs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import keras
import numpy as np
import pytest

from lmzoo.text import CharacterTokenizer, Packing, Preprocessor, TextWarning, TokenSpan, WordTokenizer, batch_to_ids
from lmzoo.text.tokenizers.characters import MARKERS, NUM_SYMBOLS
from lmzoo.text.tokenizers.wordpiece import WordPieceTokenizer

PACKING = Packing(start="", end="", between=("</S>", "<S>"), segments=False)
ODD_WORDS = [
    *("", "<S>", "</S>", "<s>", "</s>", "<S>.", "<UNK>", "<S", "\0", "\0\0a", "a b", "•", "\U0010ffff", " "),
    *("x" * n for n in (46, 47, 48, 49, 50, 51, 5000)),
    *("é" * n for n in (23, 24, 25)),
    *("x" + "é" * n for n in (23, 24, 25)),
    *("中" * 15 + tail for tail in ("ab", "abc", "中", "a中", "ab中", "abc中", "👍")),
    *("\ud800", "a\udfffb", "\ud83d\udc4d", "\ud800" * 60 + "ab", "x" * 47 + "\udc80y"),
]


def slow_row(word: str, width: int = 50) -> list[int]:
    """Return a word's symbols, one after another, as at inference."""
    data = bytearray()
    for character in word:
        if not 0xD800 <= ord(character) <= 0xDFFF:
            data += character.encode()
    symbols = {"<S>": [256], "</S>": [257]}.get(word, list(data)[: width - 2])
    row = [258, *symbols, 259]
    row += [260] * (width - len(row))
    return [symbol + 1 for symbol in row]


def rows_of(words: list[str], width: int = 50) -> list[list[int]]:
    return CharacterTokenizer(width).as_array(words, len(words)).tolist()


# === Characters ===


def test_published_examples() -> None:
    assert rows_of(["<S>"]) == [[259, 257, 260, *[261] * 47]]
    assert rows_of(["</S>"]) == [[259, 258, 260, *[261] * 47]]
    assert rows_of(["The"]) == [[259, 85, 105, 102, 260, *[261] * 45]]
    assert rows_of(["Āt"]) == [[259, 197, 129, 117, 260, *[261] * 45]]
    assert rows_of([""]) == [[259, 260, *[261] * 48]]


@pytest.mark.parametrize("width", [3, 4, 7, 50])
def test_rows_equal_the_reference(width: int) -> None:
    rng = random.Random(1301)
    spans = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0xD700, 0xE100), (0x10000, 0x10FFFF)]
    words = ["".join(chr(rng.randint(*rng.choice(spans))) for _ in range(rng.randrange(40))) for _ in range(4000)]
    words = [*ODD_WORDS, *words, *ODD_WORDS, *words[:50]]
    array = CharacterTokenizer(width).as_array(iter(words), len(words))
    assert array.dtype == np.int32
    assert array.shape == (len(words), width)
    assert array.tolist() == [slow_row(word, width) for word in words]
    assert array.min() >= 1
    assert array.max() < NUM_SYMBOLS


def test_the_number_of_characters_is_checked() -> None:
    with pytest.raises(ValueError, match=r"must be an integer of at least 3, .* got 2\."):
        CharacterTokenizer(2)


def test_batch_to_ids() -> None:
    ids = batch_to_ids([["Hi", "<S>", "é"], [], ("a\ud800",)])
    assert ids.dtype == np.int32
    assert ids.shape == (3, 3, 50)
    assert ids[0].tolist() == [slow_row("Hi"), slow_row("<S>"), slow_row("é")]
    assert ids[2, 0].tolist() == slow_row("a")
    assert not ids[1].any()
    assert not ids[2, 1:].any()
    assert batch_to_ids([["a"]], max_characters=7).shape == (1, 1, 7)
    assert batch_to_ids([[], []]).shape == (2, 0, 50)
    assert batch_to_ids([]).shape == (0, 0, 50)


def test_batch_to_ids_takes_words_only() -> None:
    with pytest.raises(TypeError, match=r"`sentences\[1\]` must be a list of words, got 'a sentence'"):
        batch_to_ids([["a"], "a sentence"])
    with pytest.raises(TypeError, match=r"`sentences\[1\]\[2\]` must be a string, got None \(NoneType\)"):
        batch_to_ids([["a"], ["b", "c", None]])


def test_sentences_of_the_original(shared: Callable[[str], Path]) -> None:
    lists = json.loads(shared("fixtures/bilm_tf/lm_embeddings_sentences.json").read_text("utf-8"))
    sentences = [sentence.split() for sentences in lists for sentence in sentences]
    ids = batch_to_ids(sentences)
    real = (ids > 0).any(axis=-1)
    assert real.sum() == 744
    assert real.sum(axis=1).tolist() == [len(sentence) for sentence in sentences]
    assert ids[real].tolist() == [slow_row(word) for sentence in sentences for word in sentence]
    encoded = Preprocessor(CharacterTokenizer(), PACKING).encode(sentences)
    assert encoded.token_ids.tolist() == ids[real].tolist()


# === Texts and words ===

VOCABULARY = ["<S>", "</S>", "<UNK>", "it", "'s", "é", "New York", "it"]


@pytest.mark.parametrize("tokenizer", [CharacterTokenizer(), WordTokenizer(VOCABULARY)], ids=["characters", "ids"])
def test_texts_are_strings_or_lists_of_words(tokenizer: CharacterTokenizer | WordTokenizer) -> None:
    texts = ["it's é", "", [], ["New York", "", "it's"], ("</S>", b"\xc3\xa9"), "caf\u00e9".encode(), [np.str_("it")]]
    words = [["it", "'s", "é"], [], [], ["New York", "", "it's"], ["</S>", "é"], ["café"], ["it"]]
    pieces = tokenizer.tokenize_with_offsets(texts)
    assert [[piece.token for piece in row] for row in pieces] == words
    assert [[piece.id for piece in row] for row in pieces] == tokenizer.tokenize(texts)
    for text, row in zip(texts, pieces, strict=True):
        text = text.decode() if isinstance(text, bytes) else text
        joined_text = (
            text if isinstance(text, str) else " ".join(w.decode() if isinstance(w, bytes) else w for w in text)
        )
        assert [joined_text[piece.start : piece.end] for piece in row] == [piece.token for piece in row]
    assert tokenizer.tokenize_with_offsets([["a", "", "it"]])[0][2] == TokenSpan(pieces[6][0].id, "it", 3, 5)


@pytest.mark.parametrize("tokenizer", [CharacterTokenizer(), WordTokenizer(VOCABULARY)], ids=["characters", "ids"])
def test_offsets_of_tokens(tokenizer: CharacterTokenizer | WordTokenizer, varied_texts: Sequence[str]) -> None:
    rows = tokenizer.tokenize_with_offsets(varied_texts)
    assert sum(map(len, rows)) > 3 * len(varied_texts)
    for text, row in zip(varied_texts, rows, strict=True):
        assert [text[piece.start : piece.end] for piece in row] == [piece.token for piece in row]
        between = [text[a:b] for a, b in pairwise([0, *(n for piece in row for n in piece[2:4]), len(text)])][::2]
        assert not "".join(between).strip(), "only white space is between words"


@pytest.mark.parametrize("tokenizer", [CharacterTokenizer(), WordTokenizer(VOCABULARY)], ids=["characters", "ids"])
def test_errors_of_texts_and_words(tokenizer: CharacterTokenizer | WordTokenizer) -> None:
    preprocessor = Preprocessor(tokenizer, PACKING)
    for call in (tokenizer.tokenize, tokenizer.tokenize_with_offsets, preprocessor):
        with pytest.raises(TypeError, match=r"`texts\[1\]` must be a string, got None"):
            call(["a", None])
        with pytest.raises(TypeError, match=r"`texts\[2\]\[1\]` must be a string, got 3 \(int\)"):
            call(["a", ["b", "c", "d"], ["e", 3, None]])
        with pytest.raises(TypeError, match=r"`texts\[0\]\[1\]` must be a string, got \['c'\] \(list\)"):
            call([["b", ["c"]]])
        if call != preprocessor:
            with pytest.raises(TypeError, match="must be a list of strings, got one string"):
                call("a text")
        with pytest.warns(TextWarning, match=r"^2 of 3 texts held invalid UTF-8"):
            call([["a\ud800", b"\xff", "c"], "b\udfff", ["d"]])
    with pytest.raises(TypeError, match=r"`pairs\[0\]\[0\]` must be a string, got 1.5"):
        preprocessor((["a"], [[1.5]]))


def test_only_word_level_tokenizers_take_words() -> None:
    tokenizer = WordPieceTokenizer(WordPieceTokenizer.special_tokens)
    with pytest.raises(TypeError, match=r"`texts\[0\]` must be a string, got \['a'\]"):
        Preprocessor(tokenizer, PACKING).encode([["a"]])


def test_invalid_text_becomes_replacement_characters() -> None:
    with pytest.warns(TextWarning):
        assert CharacterTokenizer().tokenize([b"a\xffb", ["\ud800"]]) == [["a", "\ufffd", "b"], ["\ufffd"]]


def test_character_tokenizer_without_vocabulary(tmp_path: Path) -> None:
    tokenizer = CharacterTokenizer.of_words(["film"], 31)
    assert tokenizer.vocabulary == []
    assert tokenizer.vocabulary_size == NUM_SYMBOLS == 262
    assert tokenizer.pad_id == 0
    assert tokenizer.mask_token is None
    assert tokenizer.token_to_id("</S>") == tokenizer.id_to_token("</S>") == tokenizer.text_of("</S>") == "</S>"
    assert tokenizer.detokenize(["do", "n't"]) == "do n't"
    assert set(MARKERS) == {"<S>", "</S>"}
    with pytest.raises(ValueError, match="has no mask token"):
        _ = tokenizer.mask_id
    with pytest.raises(ValueError, match="no vocabulary"):
        tokenizer.word_starts()
    tokenizer.save_assets(tmp_path)
    assert list(tmp_path.iterdir()) == []
    clone = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(CharacterTokenizer(17)))
    clone.load_assets(tmp_path)
    assert clone.as_array(clone.tokenize(["film"])[0], 1).shape == (1, 17)


# === Packing ===


def test_rows_of_one_text() -> None:
    preprocessor = Preprocessor(CharacterTokenizer(), PACKING, sequence_length=3)
    with pytest.warns(TextWarning, match="1 of 3 texts were truncated to 3 tokens"):
        features = preprocessor(["It's so good", "", ["a b", "<S>"]])
    assert features.keys() == {"character_ids"}
    expected = [["It", "'s", "so"], [], ["a b", "<S>"]]
    assert features["character_ids"].tolist() == batch_to_ids(expected).tolist()
    assert features["character_ids"].dtype == np.int32


def test_rows_of_pairs() -> None:
    preprocessor = Preprocessor(CharacterTokenizer(), PACKING, sequence_length=6)
    with pytest.warns(TextWarning, match="1 of 3 texts were truncated"):
        encoded = preprocessor.encode(["a b c d e", "", ["x"]], [["f", "g", "h"], "", "y"])
    assert encoded.lengths.tolist() == [6, 2, 4]
    assert encoded.second.tolist() == [4, 2, 3]
    words = ["a", "b", "</S>", "<S>", "f", "g", "</S>", "<S>", "x", "</S>", "<S>", "y"]
    assert encoded.token_ids.tolist() == [slow_row(word) for word in words]


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_empty_texts(texts: list[str]) -> None:
    assert not Preprocessor(CharacterTokenizer(), PACKING)(texts)["character_ids"].any()
    assert Preprocessor(CharacterTokenizer(), PACKING)(texts)["character_ids"].shape == (len(texts), 1, 50)


# === Ids of a vocabulary ===


def test_word_ids() -> None:
    tokenizer = WordTokenizer(VOCABULARY)
    assert tokenizer.tokenize(["it's New", ["New York", "<S>", ""]]) == [[8, 5, 3], [7, 1, 3]]  # the later "it"
    assert tokenizer.vocabulary == VOCABULARY
    assert tokenizer.vocabulary_size == 9
    assert [tokenizer.id_to_token(i) for i in (0, 1, 4, 8)] == ["", "<S>", "it", "it"]
    assert tokenizer.pad_id == 0
    assert tokenizer.detokenize(np.array([8, 5, 0])) == "it 's"
    assert tokenizer.word_starts().tolist() == [True] * 9
    features = Preprocessor(tokenizer, PACKING)((["it's", "é"], ["é", ""]))
    assert features.keys() == {"token_ids"}
    assert features["token_ids"].tolist() == [[8, 5, 2, 1, 6], [6, 2, 1, 0, 0]]
    with pytest.raises(ValueError, match="no token 'film'"):
        tokenizer.token_to_id("film")
    with pytest.raises(ValueError, match="lacks the special tokens </S>, <UNK>"):
        WordTokenizer(["<S>", "</s>", "<unk>"])


def test_vocabulary_file_of_the_original(tmp_path: Path) -> None:
    text = "<S>\r\n</S>\n<UNK>\n!!!MAXTERMID\n the \n\nfilm\u3000\nthe\n!!!MAXTERMID\nend"
    (tmp_path / "vocabulary.txt").write_bytes(text.encode())
    tokenizer = WordTokenizer()
    tokenizer.load_assets(tmp_path)
    assert tokenizer.vocabulary == ["<S>", "</S>", "<UNK>", "the", "", "film", "the", "end"]
    assert tokenizer.tokenize([["the", "", "film", "end", "!!!MAXTERMID"]]) == [[7, 5, 6, 8, 3]]


def test_vocabulary_round_trip(tmp_path: Path) -> None:
    tokenizer = WordTokenizer([*VOCABULARY, "", "x", "!!!MAXTERMID", ""])
    tokenizer.save_assets(tmp_path)
    clone = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tokenizer))
    clone.load_assets(tmp_path)
    assert clone.vocabulary == tokenizer.vocabulary == [*VOCABULARY, "", "x", ""]
    assert clone.tokenize([[*VOCABULARY, ""]]) == tokenizer.tokenize([[*VOCABULARY, ""]])


@pytest.mark.parametrize("word", ["\xa0", " x", "x\u3000"])
def test_words_with_whitespace_at_an_edge_do_not_fit_into_a_file(word: str, tmp_path: Path) -> None:
    tokenizer = WordTokenizer([*VOCABULARY, word, "x"])
    assert tokenizer.tokenize([[word, "x"]]) == [[tokenizer.vocabulary_size - 2, tokenizer.vocabulary_size - 1]]
    with pytest.raises(ValueError, match=r"vocabulary\.txt cannot hold '.*': whitespace around words is not read"):
        tokenizer.save_assets(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_words_numbers_the_first_words() -> None:
    tokenizer = WordTokenizer.of_words(["good", "film"], 31)
    assert tokenizer.vocabulary_size == 31
    assert tokenizer.tokenize(["good film!"]) == [[4, 5, 3]]


def test_lookup_in_lowercase() -> None:
    tokenizer = WordTokenizer([*VOCABULARY, "film", "Éa", "éb"], lowercase=True)
    words = ["Film", "film", "Éa", "ÉB", "éA", "<S>"]
    ids = [tokenizer.token_to_id(word) for word in ("film", "film", "Éa", "éb", "<UNK>", "<S>")]
    assert tokenizer.tokenize([words]) == [ids]
    assert WordTokenizer.from_config(tokenizer.get_config()).lowercase
