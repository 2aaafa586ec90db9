"""DeBERTa-v3's tokenizer, compared with SentencePiece itself and transformers, in Python and in graphs."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmzoo.checkpoints.tokenizers.sentencepiece_rules import make_composition_rules
from lmzoo.text import DebertaV3Tokenizer
from lmzoo.text.tokenizers.deberta_sentencepiece import add_mask_token, remove_mask_token
from lmzoo.text.tokenizers.sentencepiece import read_model
from lmzoo.text.tokenizers.sentencepiece_text import WHITE_SPACE
from tests.text.graph_checks import check_graph
from tests.text.trained import assert_equal_or_tied, train_deberta, with_pieces
from tests.text.varied import SOME, has_marks_in_order, sizes, varied_strings

SPECIAL = DebertaV3Tokenizer.special_tokens
PARTS = [*SPECIAL, "[MASK", "［ＣＬＳ］", "e\u0301", "E\u0323\u0301", "ﬁ\u0301", "½\u20e3", "ｶﾞ", "9,", "``", "''", " ",
         "\x85", "\u1112\u1161\u11ab"]  # fmt: skip


@pytest.fixture(scope="module", params=sizes(10_000))
def texts(request: pytest.FixtureRequest) -> list[str]:
    return varied_strings(request.param, 2027, PARTS)


@pytest.fixture(scope="module")
def published(root: Path, texts: list[str]) -> bytes:
    return train_deberta(root, texts[:SOME])


@pytest.fixture(scope="module")
def tokenizer(published: bytes) -> DebertaV3Tokenizer:
    return DebertaV3Tokenizer(published)


@pytest.fixture(scope="module")
def composing(published: bytes) -> DebertaV3Tokenizer:
    """Return a tokenizer with NFC instead of the model's rules, like version 5 of transformers."""
    proto = read_model(published)
    proto.normalizer_spec.precompiled_charsmap = make_composition_rules()
    return DebertaV3Tokenizer(proto.SerializeToString())


@pytest.fixture(scope="module")
def peer(published: bytes, tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("published")
    (directory / "spm.model").write_bytes(published)
    return transformers.DebertaV2Tokenizer.from_pretrained(directory)


def test_ids_are_those_of_the_model_itself(tokenizer: DebertaV3Tokenizer, texts: list[str], published: bytes) -> None:
    """Microsoft's code and KerasHub read texts without special tokens in this way."""
    from sentencepiece import SentencePieceProcessor

    # lmzoo splits at these control characters, as for ALBERT.
    differing = {*SPECIAL, "\x1c", "\x1d", "\x1e", "\x1f"}
    plain = [text for text in texts if not any(part in text for part in differing)]
    # To the model, white space without a rule is a character.
    spaces = str.maketrans(dict.fromkeys(WHITE_SPACE, " "))
    expected = SentencePieceProcessor(model_proto=published).encode([text.translate(spaces) for text in plain])
    assert tokenizer.tokenize(plain) == expected
    assert len(plain) > 0.7 * len(texts)
    unknown = sum(ids.count(3) for ids in expected) / sum(map(len, expected))
    assert 0.01 < unknown < 0.5


def test_ids_and_offsets_equal_transformers(composing: DebertaV3Tokenizer, texts: list[str], peer: Any) -> None:
    comparable = [text for text in texts if is_comparable(text)]
    assert len(comparable) > 0.6 * len(texts)
    expected = peer(comparable, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    assert_equal_or_tied(composing, comparable, composing.tokenize(comparable), expected["input_ids"])
    spans = composing.tokenize_with_offsets(comparable)
    checked = 0
    for text, row, ids, offsets in zip(
        comparable, spans, expected["input_ids"], expected["offset_mapping"], strict=True
    ):
        if [span.id for span in row] == ids:
            for span, (start, end) in zip(row, offsets, strict=True):
                # lmzoo's span of "▁" is empty, and transformers' span of a composed letter has no marks.
                if span.token != "▁" and unicodedata.normalize("NFC", text) == text:
                    # transformers' span begins with the space before the token.
                    visible = end - len(text[start:end].lstrip())
                    assert (span.start, span.end) == (visible, end), ascii(text)
                    checked += 1
    assert checked > 2 * len(comparable)


def is_comparable(text: str) -> bool:
    """Return whether transformers should agree with lmzoo."""
    # transformers keeps other single characters of white space in a text, and "▁" is a space.
    if any(c.isspace() and c not in " \n\r\t" for c in text) or "▁" in text:
        return False
    return has_marks_in_order(text) and "\0" not in text


def test_the_graph_equals_the_python_path(tokenizer: DebertaV3Tokenizer, texts: list[str]) -> None:
    check_graph(tokenizer, texts)


CASES = {
    "Un  café": [("▁Un", 0, 2), ("▁café", 4, 8)],
    "cafe\u0301": [("▁café", 0, 5)],
    "９,": [("▁", 0, 0), ("9,", 0, 2)],
    "x ''": [("▁", 0, 0), ("x", 0, 1), ("▁", 2, 2), ("''", 2, 4)],
    " [MASK]\tUn": [("[MASK]", 1, 7), ("▁Un", 8, 10)],
}


@pytest.mark.parametrize("text", CASES, ids=ascii)
def test_tokens_and_offsets_by_hand(text: str) -> None:
    model = with_pieces(DebertaV3Tokenizer.of_words(["Un", "café"], 11).model, ["x", "9,", "''"])
    rows = DebertaV3Tokenizer(model).tokenize_with_offsets([text, ""])
    assert [[tuple(span[1:]) for span in row] for row in rows] == [CASES[text], []]


def test_composing_rules_are_those_of_unicode() -> None:
    from lmzoo.text.tokenizers.precompiled_rules import PrecompiledRules

    codes = [chr(code) for code in range(0x3400) if unicodedata.category(chr(code))[0] not in "CZ"]
    rules = PrecompiledRules(make_composition_rules())
    assert [rules.clean(c) for c in codes] == [unicodedata.normalize("NFC", c) for c in codes]


def test_files_have_the_published_model(published: bytes, tokenizer: DebertaV3Tokenizer, tmp_path: Path) -> None:
    size = len(read_model(published).pieces)
    assert tokenizer.vocabulary[:4] == ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    assert (tokenizer.mask_id, tokenizer.vocabulary_size, tokenizer.pad_id) == (size, size + 1, 0)
    assert add_mask_token(tokenizer.model) == tokenizer.model
    assert remove_mask_token(tokenizer.model) == published
    tokenizer.save_assets(tmp_path)
    assert (tmp_path / "vocabulary.spm").read_bytes() == published
    loaded = DebertaV3Tokenizer.from_config(tokenizer.get_config())
    loaded.load_assets(tmp_path)
    text = "The film's ``good'' ﬁ 9,2 [MASK]"
    assert (loaded.get_config(), loaded.tokenize([text])) == ({}, tokenizer.tokenize([text]))
    starts = [tokenizer.id_to_token(id) for id in np.flatnonzero(tokenizer.word_starts())]
    assert {token[0] for token in starts} == {"▁", "["}


def test_tokenized_words_and_incomplete_models() -> None:
    small = DebertaV3Tokenizer.of_words(["Un", "café"], 11)
    assert small.tokenize_words(["café", "Un"]) == [[6], [5]]
    with pytest.raises(ValueError, match="is not a complete SentencePiece model"):
        DebertaV3Tokenizer(small.model[:20])
