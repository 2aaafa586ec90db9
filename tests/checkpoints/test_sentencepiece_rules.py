"""ALBERT's clean-up as rules of the model: the model alone does what the tokenizer does before it."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lmzoo.checkpoints.tokenizers.sentencepiece_rules import add_clean_up, read_clean_up
from lmzoo.presets import PresetError
from lmzoo.text import SentencePieceTokenizer
from lmzoo.text.tokenizers.sentencepiece_text import character_map, clean
from tests.text.trained import train_albert
from tests.text.varied import varied_texts

# Latin, Greek and accents; letters and syllables of Hangul. An accent between the latter is more than rules can do.
LATIN = [(0x20, 0x250), (0x300, 0x400), (0x1E00, 0x2000), (0xFF00, 0xFF60)]
HANGUL = [(0x20, 0x7F), (0x1100, 0x1200), (0x3131, 0x318F), (0xAC00, 0xAC80), (0xFFA0, 0xFFDD)]
# Two quotes of three marks; capitals that take an accent only after lower-casing; syllables in parts.
PLAIN = ["```a''' '' ``", "J\u030c\u0323 W\u030a H\u0331", "\uac00\u11a8 \uffa1\uffc2", " a\u3000 b\x1c ", ""]


def texts() -> list[str]:
    draw = random.Random(3001)
    drawn = []
    for planes in (LATIN, HANGUL):
        alphabet = [chr(code) for plane in planes for code in range(*plane)]
        drawn += ["".join(draw.choices(alphabet, k=31)) for _ in range(2003)]
    return [*PLAIN, *drawn, *(text for text in varied_texts(2003, 17, []) if isinstance(text, str))]


@pytest.fixture(scope="module")
def models(root: Path) -> dict[str, bytes]:
    """One with SentencePiece's usual rules, and one without any."""
    return {"nmt_nfkc": train_albert(root), "identity": SentencePieceTokenizer.of_words(["the", "é"], 13).model}


# To join SentencePiece's own rules with others takes seconds.
SOME = [("nmt_nfkc", True, False), ("identity", True, True), ("identity", False, False)]
CASES = [
    pytest.param(*case, marks=() if case in SOME else pytest.mark.slow)
    for case in itertools.product(["nmt_nfkc", "identity"], [True, False], [True, False])
]


@pytest.fixture(scope="module")
def joined(models: dict[str, bytes]) -> Callable[..., SentencePieceTokenizer]:
    """The tokenizer of these settings whose model cleans up by itself, made once."""
    return functools.cache(lambda rules, *settings: add_clean_up(SentencePieceTokenizer(models[rules], *settings)))


@pytest.mark.slow_cases("identity-False-False", "identity-True-True", "nmt_nfkc-True-False")
@pytest.mark.parametrize(("rules", "lowercase", "keep_accents"), CASES)
def test_the_model_alone(
    models: dict[str, bytes], joined: Callable, rules: str, lowercase: bool, keep_accents: bool
) -> None:
    tokenizer = SentencePieceTokenizer(models[rules], lowercase, keep_accents)
    found, characters = joined(rules, lowercase, keep_accents), character_map(lowercase, keep_accents)
    assert read_clean_up(found.model) == found.get_config() == tokenizer.get_config()
    assert read_clean_up(tokenizer.model) is None
    assert found.vocabulary == tokenizer.vocabulary
    for text in texts():
        assert found.backend.normalize(text) == tokenizer.backend.normalize(clean(text, characters)), ascii(text)
    assert found.tokenize(texts()) == tokenizer.tokenize(texts())
    assert add_clean_up(found).model == found.model


@pytest.mark.slow
def test_other_settings_than_those_in_the_model(joined: Callable) -> None:
    cased = joined("identity", False, False)
    lowered = add_clean_up(SentencePieceTokenizer(cased.model))
    assert read_clean_up(lowered.model) == {"lowercase": True, "keep_accents": False}
    assert (cased.backend.normalize("Thé"), lowered.backend.normalize("Thé")) == ("▁The", "▁the")


def test_rules_that_cannot_be_joined(models: dict[str, bytes]) -> None:
    """SentencePiece knows no rule that leaves two characters as they are."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(models["identity"])
    written = sentencepiece.SentencePieceNormalizer(norm_map=[("AB", "x"), ("ab", "AB")])
    proto.normalizer_spec.MergeFromString(written.serialized_normalizer_spec())
    with pytest.raises(PresetError, match=r"cannot add rules for {'lowercase': True, 'keep_accents': True} to"):
        add_clean_up(SentencePieceTokenizer(proto.SerializeToString(), keep_accents=True))
    add_clean_up(SentencePieceTokenizer(proto.SerializeToString(), lowercase=False, keep_accents=True))
