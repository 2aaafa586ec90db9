"""Tokenizers in KerasHub's presets: KerasHub's classes give our ids, also after reading them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmzoo.checkpoints.family_names import keras_hub_prefix
from lmzoo.checkpoints.tokenizers.keras_hub import write_keras_hub_tokenizer
from lmzoo.models import TextClassifier
from lmzoo.presets import PresetError
from lmzoo.presets.converting import convert, save_checkpoint
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone
from lmzoo.text import BytePairTokenizer, Preprocessor, SentencePieceTokenizer, WordPieceTokenizer
from tests.checkpoints.test_formats import EXPRESSIBLE
from tests.checkpoints.tokenizer_files import word_pieces
from tests.text.trained import reviews, train_albert, train_byte_pairs

# KerasHub leaves the file to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file .*vocabulary.spm:ResourceWarning")

CASING = [(True, None), (True, False), (False, None), (False, True)]  # lowercase, strip_accents
CLEANING = [(True, False), (False, False), (True, True), (False, True)]  # lowercase, keep_accents
CASES = [
    *[(name, *option) for name in ("bert", "distilbert") for option in CASING],
    ("bert", False, False, False),  # split_on_cjk
    ("roberta",),
    ("gpt2",),
    *[("albert", *option) for option in CLEANING],
]

COMMON_TEXTS = ["", "  The Café\tin\nÅland, naïve; ISBN 1999: $7!", "東京 is Tokyo", "“IT’S” — a (very) GOOD film!"]
# Texts for one family: its special tokens in a text, and quotes of two marks.
FAMILY_TEXTS = {
    "bert": ["a [MASK] film[SEP]", "[UNK] [CLS]"],
    "distilbert": ["a [MASK] film[SEP]", "[UNK] [CLS]"],
    "roberta": ["</s>a<unk>", "<mask> film<s>"],
    "gpt2": ["the end<|endoftext|>A film", "<s>a"],
    "albert": ["``Well'' it is ﬁne Ⅷ"],
}


@pytest.fixture(scope="module")
def keras_hub() -> Any:
    return pytest.importorskip("keras_hub").models


@pytest.fixture(scope="module")
def texts(root: Path) -> list[str]:
    return [*COMMON_TEXTS, *reviews(root)[:307]]


@pytest.fixture(scope="module")
def tokenizers(root: Path, texts: list[str]) -> dict[str, Any]:
    """Return the class of each family's tokenizer and the arguments with its vocabulary."""
    pairs, pieces = train_byte_pairs(root, texts), (WordPieceTokenizer, word_pieces(texts))
    merges = json.loads(pairs.to_str())["model"]["merges"]
    return {
        "bert": pieces,
        "distilbert": pieces,
        "roberta": (BytePairTokenizer, pairs.get_vocab(), merges),
        "gpt2": (BytePairTokenizer, gpt2_tokens(pairs.get_vocab()), merges),
        "albert": (SentencePieceTokenizer, train_albert(root)),
    }


def gpt2_tokens(ids: dict[str, int]) -> list[str]:
    """Return RoBERTa's tokens with GPT-2's special token at the end instead of RoBERTa's."""
    tokens = sorted(ids, key=ids.__getitem__)
    return [token for token in tokens if token not in BytePairTokenizer.special_tokens] + ["<|endoftext|>"]


def save(family: str, tokenizer: Any, directory: Path) -> None:
    record = families()[family]
    sizes = {**EXPRESSIBLE.get((family, "keras_hub"), {}), "vocabulary_size": tokenizer.vocabulary_size}
    preprocessor = Preprocessor(tokenizer, record.packing, 61)
    save_checkpoint(tiny_backbone(record, **sizes), directory, to="keras_hub", preprocessor=preprocessor)


def ids_of(peer: Any, texts: list[str]) -> list[list[int]]:
    return [[int(id) for id in row] for row in peer(texts)]


@pytest.mark.quick_cases("bert False True", "bert False False False", "distilbert True False", "gpt2")
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_keras_hub_gives_our_ids(case, tokenizers, texts, tmp_path, keras_hub):
    family, *settings = case
    cls, *vocabulary = tokenizers[family]
    tokenizer = cls(*vocabulary, *settings, **families()[family].special_tokens)
    save(family, tokenizer, tmp_path)
    name = f"{keras_hub_prefix(families()[family])}Tokenizer"
    peer = getattr(keras_hub, name).from_preset(str(tmp_path))
    texts = [*texts, *FAMILY_TEXTS[family]]
    if family == "albert":  # ours splits a piece that ends in a digit and a comma
        texts = [text for text in texts if not any(f"{digit}," in text for digit in range(10))]
    assert len(texts) > 200
    rows = zip(texts, tokenizer.tokenize(texts), ids_of(peer, texts), strict=True)
    assert [row for row in rows if row[1] != row[2]] == []
    reloaded = TextClassifier.from_preset(tmp_path, num_classes=2).preprocessor.tokenizer
    assert type(reloaded) is cls
    assert reloaded.vocabulary == tokenizer.vocabulary
    assert reloaded.tokenize(texts) == tokenizer.tokenize(texts)
    expected = tokenizer.get_config()
    if expected.get("strip_accents", False) is None:
        expected["strip_accents"] = expected["lowercase"]  # the meaning of None
    assert reloaded.get_config() == expected


@pytest.mark.parametrize(
    "family", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("distilbert", "roberta", "albert"))]
)
def test_keras_hub_packs_texts_as_we_do(family, tokenizers, tmp_path, keras_hub):
    """Its task for our preset computes predictions."""
    cls, *vocabulary = tokenizers[family]
    save(family, cls(*vocabulary), tmp_path / "hub")
    convert(tmp_path / "hub", tmp_path / "ours")
    ours = TextClassifier.from_preset(tmp_path / "ours", num_classes=2)
    firsts, seconds = ["a very good film", "dull"], ["the end", "no, it is not"]
    peer = keras_hub.TextClassifierPreprocessor.from_preset(str(tmp_path / "hub"), sequence_length=23)
    rows = ours.preprocessor.encode(firsts, seconds)
    batch = {name: np.asarray(values) for name, values in peer(x=(firsts, seconds)).items()}
    real = batch["padding_mask"].astype(bool)
    assert batch["token_ids"][real].tolist() == rows.token_ids.tolist()
    task = keras_hub.TextClassifier.from_preset(str(tmp_path / "hub"), num_classes=2, preprocessor=peer)
    task.run_eagerly = True
    assert task.predict(firsts, verbose=0).shape == (2, 2)


def test_a_tokenizer_of_another_class_cannot_be_written(tmp_path):
    tokenizer = WordPieceTokenizer.of_words(["film"], 131)
    with pytest.raises(PresetError, match="KerasHub's AlbertTokenizer cannot do what a WordPieceTokenizer does"):
        save("albert", tokenizer, tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


def test_a_token_that_keras_hub_would_strip_is_refused(tmp_path):
    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "film", "##\u3000"])
    with pytest.raises(PresetError, match=r"KerasHub's BertTokenizer cannot read the token '##\\u3000'"):
        write_keras_hub_tokenizer(tokenizer, tmp_path, "BertTokenizer")
