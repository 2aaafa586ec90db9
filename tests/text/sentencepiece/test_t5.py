"""T5's tokenizer against SentencePiece itself, transformers and its graph, and its sentinels."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest

from lmzoo.data.corpora import train_tokenizer
from lmzoo.text import T5Tokenizer
from lmzoo.text.tokenizers.sentencepiece_text import WHITE_SPACE
from tests.text.graph_checks import check_graph
from tests.text.trained import assert_equal_or_tied, reviews
from tests.text.varied import sizes, varied_strings

PARTS = ["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_7>", "<extra_id_10>", "<extra_id_", "<extra_id_00>",
         "<EXTRA_ID_0>", "9,", "``", " ", "ﬁ", "ｶﾞ"]  # fmt: skip
SENTINELS = 11


@pytest.fixture(scope="module", params=sizes(4_000))
def texts(request: pytest.FixtureRequest) -> list[str]:
    return varied_strings(request.param, 2029, PARTS)


@pytest.fixture(scope="module")
def tokenizer(root: Path) -> T5Tokenizer:
    return train_tokenizer(reviews(root), T5Tokenizer, 400, num_sentinels=SENTINELS, verbose=False)


def test_ids_of_special_tokens(tokenizer: T5Tokenizer) -> None:
    assert tokenizer.vocabulary_size == 400
    assert tokenizer.vocabulary[:3] == ["<pad>", "</s>", "<unk>"]
    assert [tokenizer.token_to_id(f"<extra_id_{i}>") for i in range(SENTINELS)] == [399 - i for i in range(SENTINELS)]
    assert tokenizer.tokenize(["<extra_id_10><extra_id_0></s>"]) == [[389, 399, 1]]
    ids = tokenizer.tokenize(["<extra_id_0> a film <extra_id_1>"])[0]
    assert tokenizer.detokenize(ids) == "<extra_id_0> a film<extra_id_1>"


def is_comparable(character: str) -> bool:
    """Return whether transformers treats a character like SentencePiece, T5's own code and lmzoo.

    transformers does not apply the model's rules to a letter with a mark after it, keeps unusual single characters
    of white space in a text, and reads "▁" as a space.
    """
    if character.isspace():
        return character in " \n\r\t"
    return unicodedata.category(character)[0] != "M" and character not in "▁\0\u200d"


def test_transformers_has_the_same_ids(tokenizer: T5Tokenizer, texts: list[str], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from lmzoo.checkpoints.tokenizers.files import read_tokenizer, write_tokenizer

    write_tokenizer(tokenizer, tmp_path, 71)
    peer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(peer).__name__.startswith("T5Tokenizer")
    comparable = [text for text in texts if all(map(is_comparable, text))]
    assert len(comparable) > 0.5 * len(texts)
    expected = peer(comparable, add_special_tokens=False, verbose=False)["input_ids"]
    assert_equal_or_tied(tokenizer, comparable, tokenizer.tokenize(comparable), expected)
    assert peer("a film", "a plot")["input_ids"].count(1) == 2
    loaded = read_tokenizer(tmp_path, T5Tokenizer)
    assert (loaded.model, loaded.get_config()) == (tokenizer.model, tokenizer.get_config())
    for name in ("spiece.model", "tokenizer.json"):  # one file is enough
        directory = tmp_path / f"without {name}"
        directory.mkdir()
        for file in tmp_path.iterdir():
            if file.is_file() and file.name != name:
                (directory / file.name).write_bytes(file.read_bytes())
        assert read_tokenizer(directory, T5Tokenizer).tokenize(texts) == tokenizer.tokenize(texts)


def test_ids_are_those_of_the_model_itself(tokenizer: T5Tokenizer, texts: list[str], tmp_path: Path) -> None:
    """T5's own code and KerasHub read texts without special tokens in this way."""
    from sentencepiece import SentencePieceProcessor

    tokenizer.save_assets(tmp_path)
    backend = SentencePieceProcessor(model_proto=(tmp_path / "vocabulary.spm").read_bytes())
    # lmzoo splits at these control characters.
    differing = {*tokenizer.special_tokens, "\x1c", "\x1d", "\x1e", "\x1f"}
    spaces = str.maketrans(dict.fromkeys(WHITE_SPACE, " "))
    plain = [text for text in texts if not any(part in text for part in differing)]
    assert len(plain) > 0.6 * len(texts)
    assert tokenizer.tokenize(plain) == backend.encode([text.translate(spaces) for text in plain])


def test_the_graph_equals_the_python_path(tokenizer: T5Tokenizer, texts: list[str]) -> None:
    ids = check_graph(tokenizer, texts)
    import tensorflow as tf

    from lmzoo.text.graphs import graph_detokenizer

    decoded = [text.decode() for text in graph_detokenizer(tokenizer)(tf.ragged.constant(ids)).numpy().tolist()]
    assert decoded == tokenizer.detokenize(ids)


def test_files_have_the_published_model(tokenizer: T5Tokenizer, tmp_path: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    tokenizer.save_assets(tmp_path)
    stored = (tmp_path / "vocabulary.spm").read_bytes()
    assert SentencePieceProcessor(model_proto=stored).get_piece_size() == 400 - SENTINELS
    loaded = T5Tokenizer.from_config(tokenizer.get_config())
    loaded.load_assets(tmp_path)
    assert loaded.vocabulary == tokenizer.vocabulary
    assert T5Tokenizer(tokenizer.model, SENTINELS).vocabulary == tokenizer.vocabulary  # with the sentinels


@pytest.mark.parametrize("count", [-1, 1.5, None])
def test_wrong_numbers_of_sentinels(count: Any) -> None:
    with pytest.raises(ValueError, match="`num_sentinels` must be an integer of at least 0"):
        T5Tokenizer(num_sentinels=count)
