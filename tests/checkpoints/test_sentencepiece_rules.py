"""ALBERT's clean-up as rules of the model: the model alone does what the tokenizer does before the model."""

from __future__ import annotations

import functools
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

# Latin, Greek and accents; letters and syllables of Hangul, separately, as rules cannot handle accents between these.
LATIN = [(0x20, 0x250), (0x300, 0x400), (0x1E00, 0x2000), (0xFF00, 0xFF60)]
HANGUL = [(0x20, 0x7F), (0x1100, 0x1200), (0x3131, 0x318F), (0xAC00, 0xAC80), (0xFFA0, 0xFFDD)]
# Quotes of three marks; capitals that combine with an accent only in lowercase; syllables in parts.
PLAIN = ["```a''' '' ``", "J\u030c\u0323 W\u030a H\u0331", "\uac00\u11a8 \uffa1\uffc2", " a\u3000 b\x1c ", ""]


def texts() -> list[str]:
    rng = random.Random(3001)
    random_texts = []
    for planes in (LATIN, HANGUL):
        alphabet = [chr(code) for plane in planes for code in range(*plane)]
        random_texts += ["".join(rng.choices(alphabet, k=31)) for _ in range(2003)]
    return [*PLAIN, *random_texts, *(text for text in varied_texts(2003, 17, []) if isinstance(text, str))]


@pytest.fixture(scope="module")
def models(root: Path) -> dict[str, bytes]:
    """Return a model with SentencePiece's default rules, and one without rules."""
    return {"nmt_nfkc": train_albert(root), "identity": SentencePieceTokenizer.of_words(["the", "é"], 13).model}


@pytest.fixture(scope="module")
def clean_tokenizer(models: dict[str, bytes]) -> Callable[..., SentencePieceTokenizer]:
    """Return a cached function that makes a tokenizer whose model cleans up texts itself."""
    return functools.cache(lambda rules, *settings: add_clean_up(SentencePieceTokenizer(models[rules], *settings)))


@pytest.mark.slow
@pytest.mark.parametrize("keep_accents", [True, False])
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("rules", ["nmt_nfkc", "identity"])
def test_the_model_alone_cleans_up_texts(
    models: dict[str, bytes], clean_tokenizer: Callable, rules: str, lowercase: bool, keep_accents: bool
) -> None:
    tokenizer = SentencePieceTokenizer(models[rules], lowercase, keep_accents)
    cleaning = clean_tokenizer(rules, lowercase, keep_accents)
    characters = character_map(lowercase, keep_accents)
    assert read_clean_up(cleaning.model) == cleaning.get_config() == tokenizer.get_config()
    assert read_clean_up(tokenizer.model) is None
    assert cleaning.vocabulary == tokenizer.vocabulary
    for text in texts():
        assert cleaning.backend.normalize(text) == tokenizer.backend.normalize(clean(text, characters)), ascii(text)
    assert cleaning.tokenize(texts()) == tokenizer.tokenize(texts())
    assert add_clean_up(cleaning).model == cleaning.model


@pytest.mark.slow
def test_settings_may_differ_from_the_model(clean_tokenizer: Callable) -> None:
    cased = clean_tokenizer("identity", False, False)
    lowered = add_clean_up(SentencePieceTokenizer(cased.model))
    assert read_clean_up(lowered.model) == {"lowercase": True, "keep_accents": False}
    assert (cased.backend.normalize("Thé"), lowered.backend.normalize("Thé")) == ("▁The", "▁the")


def test_some_rules_cannot_be_combined(models: dict[str, bytes]) -> None:
    """SentencePiece has no rule that keeps two characters."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(models["identity"])
    normalizer = sentencepiece.SentencePieceNormalizer(norm_map=[("AB", "x"), ("ab", "AB")])
    proto.normalizer_spec.MergeFromString(normalizer.serialized_normalizer_spec())
    with pytest.raises(PresetError, match=r"cannot add rules for {'lowercase': True, 'keep_accents': True} to"):
        add_clean_up(SentencePieceTokenizer(proto.SerializeToString(), keep_accents=True))
    add_clean_up(SentencePieceTokenizer(proto.SerializeToString(), lowercase=False, keep_accents=True))
