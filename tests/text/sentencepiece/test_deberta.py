"""DeBERTa-v3's tokenizer against SentencePiece itself and transformers, in Python and in graphs."""

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
from tests.text.sentencepiece.graph_checks import check_graph
from tests.text.trained import assert_equal_or_tied, train_deberta
from tests.text.varied import SOME, has_marks_in_order, sizes, varied_texts

SPECIAL = DebertaV3Tokenizer.special_tokens
PARTS = [*SPECIAL, "[MASK", "［ＣＬＳ］", "e\u0301", "E\u0323\u0301", "ﬁ\u0301", "½\u20e3", "ｶﾞ", "9,", "``", "''", " ",
         "\x85", "\u1112\u1161\u11ab"]  # fmt: skip


@pytest.fixture(scope="module", params=sizes(10_000))
def texts(request: pytest.FixtureRequest) -> list[str]:
    found = varied_texts(request.param, 2027, PARTS)
    return [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in found]


@pytest.fixture(scope="module")
def published(root: Path, texts: list[str]) -> bytes:
    return train_deberta(root, texts[:SOME])


@pytest.fixture(scope="module")
def tokenizer(published: bytes) -> DebertaV3Tokenizer:
    return DebertaV3Tokenizer(published)


@pytest.fixture(scope="module")
def composing(published: bytes) -> DebertaV3Tokenizer:
    """The same with NFC in place of the model's own rules, as version 5 of transformers has it."""
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
    """Texts without special tokens, as Microsoft's code and KerasHub read them."""
    from sentencepiece import SentencePieceProcessor

    # These control characters are white space to ours, which cuts there, as for ALBERT.
    unlike = {*SPECIAL, "\x1c", "\x1d", "\x1e", "\x1f"}
    plain = [text for text in texts if not any(part in text for part in unlike)]
    # White space that the model has no rule for stays a character there.
    spaces = str.maketrans(dict.fromkeys(WHITE_SPACE, " "))
    theirs = SentencePieceProcessor(model_proto=published).encode([text.translate(spaces) for text in plain])
    assert tokenizer.tokenize(plain) == theirs
    assert len(plain) > 0.7 * len(texts)
    unknown = sum(ids.count(3) for ids in theirs) / sum(map(len, theirs))
    assert 0.01 < unknown < 0.5


def test_ids_and_offsets_equal_transformers(composing: DebertaV3Tokenizer, texts: list[str], peer: Any) -> None:
    comparable = [text for text in texts if is_comparable(text)]
    assert len(comparable) > 0.6 * len(texts)
    theirs = peer(comparable, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    assert_equal_or_tied(composing, comparable, composing.tokenize(comparable), theirs["input_ids"])
    spans = composing.tokenize_with_offsets(comparable)
    checked = 0
    for text, row, ids, offsets in zip(comparable, spans, theirs["input_ids"], theirs["offset_mapping"], strict=True):
        if [span.id for span in row] == ids:
            for span, (start, end) in zip(row, offsets, strict=True):
                # Ours is empty, and theirs hold the letter alone where it is composed with its marks.
                if span.token != "▁" and unicodedata.normalize("NFC", text) == text:
                    # Theirs begins with the space before the token.
                    visible = end - len(text[start:end].lstrip())
                    assert (span.start, span.end) == (visible, end), ascii(text)
                    checked += 1
    assert checked > 2 * len(comparable)


def is_comparable(text: str) -> bool:
    """Whether transformers is meant to agree with ours."""
    # Single characters of white space but these stay in a text there, and "▁" is a space.
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
def test_cases(text: str) -> None:
    from sentencepiece import SentencePieceNormalizer, sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(DebertaV3Tokenizer.of_words(["Un", "café"], 11).model)
    for piece in ("x", "9,", "''"):
        proto.pieces.add(piece=piece, score=-1.0)
    rules = SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_normalizer_spec()
    proto.normalizer_spec.ParseFromString(rules)
    found = DebertaV3Tokenizer(proto.SerializeToString()).tokenize_with_offsets([text, ""])
    assert [[tuple(span[1:]) for span in row] for row in found] == [CASES[text], []]


def test_composing_rules_are_unicodes() -> None:
    from lmzoo.text.tokenizers.precompiled_rules import PrecompiledRules

    codes = [chr(code) for code in range(0x3400) if unicodedata.category(chr(code))[0] not in "CZ"]
    rules = PrecompiledRules(make_composition_rules())
    assert [rules.clean(c) for c in codes] == [unicodedata.normalize("NFC", c) for c in codes]


def test_the_published_model_again(published: bytes, tokenizer: DebertaV3Tokenizer, tmp_path: Path) -> None:
    size = len(read_model(published).pieces)
    assert tokenizer.vocabulary[:4] == ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    assert (tokenizer.mask_id, tokenizer.vocabulary_size, tokenizer.pad_id) == (size, size + 1, 0)
    assert add_mask_token(tokenizer.model) == tokenizer.model
    assert remove_mask_token(tokenizer.model) == published
    tokenizer.save_assets(tmp_path)
    assert (tmp_path / "vocabulary.spm").read_bytes() == published
    again = DebertaV3Tokenizer.from_config(tokenizer.get_config())
    again.load_assets(tmp_path)
    text = "The film's ``good'' ﬁ 9,2 [MASK]"
    assert (again.get_config(), again.tokenize([text])) == ({}, tokenizer.tokenize([text]))
    starts = [tokenizer.id_to_token(id) for id in np.flatnonzero(tokenizer.word_starts())]
    assert {token[0] for token in starts} == {"▁", "["}


def test_words() -> None:
    small = DebertaV3Tokenizer.of_words(["Un", "café"], 11)
    assert small.tokenize_words(["café", "Un"]) == [[6], [5]]
    with pytest.raises(ValueError, match="is not a complete SentencePiece model"):
        DebertaV3Tokenizer(small.model[:20])
