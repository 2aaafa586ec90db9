"""SentencePiece as TensorFlow ops: the same clean text as in Python, and the same ids or a tie."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from lmzoo.serving.allowed_ops import check_ops, list_ops  # noqa: E402
from lmzoo.text import Packing, Preprocessor, SentencePieceTokenizer  # noqa: E402
from lmzoo.text.graphs import graph_tokenizer  # noqa: E402
from lmzoo.text.tokenizers.sentencepiece_text import character_map, clean  # noqa: E402
from tests.text.graph_checks import check_packer, check_saved_packer, packing_module  # noqa: E402
from tests.text.varied import EVERY_CODE_POINT  # noqa: E402

SPECIAL = list(SentencePieceTokenizer.special_tokens)
OPTIONS = [(True, False), (False, False), (True, True), (False, True)]  # lowercase, keep_accents

pytestmark = pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")


@pytest.mark.quick_cases("all-True-False", "all-False-False", "all-True-True", "all-False-True")
@pytest.mark.parametrize(("lowercase", "keep_accents"), OPTIONS)
def test_ids_equal_the_python_path(
    model: bytes, texts: list[str | bytes], equal_or_tied: Callable[..., int], lowercase: bool, keep_accents: bool
) -> None:
    tokenizer = SentencePieceTokenizer(model, lowercase, keep_accents)
    ids, spans = graph_tokenizer(tokenizer).with_offsets(tf.constant(texts))
    assert ids.dtype == spans.dtype == tf.int32
    equal_or_tied(tokenizer, texts, ids.to_list(), tokenizer.tokenize(texts))
    checked = 0
    pieces = tokenizer.tokenize_with_offsets(texts)
    for text, offsets, row, expected in zip(texts, spans.to_list(), ids.to_list(), pieces, strict=True):
        if row != [piece.id for piece in expected]:
            continue  # a tie
        assert offsets == [[*piece[2:]] for piece in expected], ascii(text)
        checked += len(row)
    assert checked > 8.4 * len(texts)


@pytest.mark.slow_cases("True-False-some")
@EVERY_CODE_POINT
@pytest.mark.parametrize(("lowercase", "keep_accents"), [(True, False), (False, True)])
def test_every_code_point(model: bytes, codes: list[str], lowercase: bool, keep_accents: bool) -> None:
    tokenizer = SentencePieceTokenizer(model, lowercase, keep_accents)
    texts = ["a".join(codes[i : i + 64]) for i in range(0, len(codes), 64)]
    characters = character_map(lowercase, keep_accents)
    for text, cleaned in zip(texts, graph_tokenizer(tokenizer).clean(tf.constant(texts)).numpy(), strict=True):
        assert cleaned.decode() == clean(text, characters), ascii(text)


def test_text_is_cleaned_character_by_character(strings: list[str]) -> None:
    """Hugging Face's steps, which read the whole text, give the same."""
    from tokenizers import normalizers as n

    normalizer = n.Sequence([n.Replace("``", '"'), n.Replace("''", '"'), n.NFKD(), n.StripAccents(), n.Lowercase()])
    characters = character_map(lowercase=True, keep_accents=False)
    for text in strings:
        assert clean(text, characters) == " ".join(normalizer.normalize_str(text).split()), ascii(text)


def test_a_comma_after_a_digit(tokenizer: SentencePieceTokenizer) -> None:
    texts = ["9,200", "in 2014, and 2,", "x9, a1,b 12,, 3,1,4", "[MASK]9,[MASK]", "two, the,"]
    unsplit = [tokenizer.backend.encode(text) for text in texts]
    assert sum(not tokenizer.splits.keys().isdisjoint(row) for row in unsplit) >= 3
    graph = graph_tokenizer(tokenizer)
    ids = graph(texts).to_list()
    assert ids == tokenizer.tokenize(texts)
    assert tokenizer.splits.keys().isdisjoint(np.concatenate(ids))
    assert graph(tf.constant([], tf.string)).to_list() == []


@pytest.mark.slow
def test_a_hundred_thousand_characters(tokenizer: SentencePieceTokenizer) -> None:
    text = "the book was never dull, it cost 9,200 ﬁné [MASK] " * 2000
    assert graph_tokenizer(tokenizer)([text]).to_list() == tokenizer.tokenize([text])


def lines(root: Path) -> list[str]:
    """Return texts that people wrote, of several kinds and languages."""
    texts = []
    for name in ("expository", "books"):
        with lzma.open(root / f"pretrain/{name}-dev.txt.xz", "rt", encoding="utf-8") as file:
            texts += file.read().split("\n")[:4000]
    with (root / "stsb/stsb-en-dev.decontam.csv").open(encoding="utf-8", newline="") as file:
        texts += [line for row in csv.reader(file) for line in row]
    with gzip.open(root / "clinc150/data_full.train_val.json.gz", "rt", encoding="utf-8") as file:
        texts += [line for line, _ in json.load(file)["train"]][:3000]
    return [line for line in texts if line.strip()]


@pytest.mark.slow
def test_real_text(
    shared: Callable[[str], Path], german: Callable[[], bytes], model: bytes, equal_or_tied: Callable[..., int]
) -> None:
    texts = lines(shared("data"))
    assert len(texts) > 8000
    for content in (german(), model):
        tokenizer = SentencePieceTokenizer(content)
        equal_or_tied(tokenizer, texts, graph_tokenizer(tokenizer)(texts).to_list(), tokenizer.tokenize(texts))


@pytest.mark.slow
def test_a_real_model(german: Callable[[], bytes], texts: list[str | bytes], equal_or_tied: Callable[..., int]) -> None:
    tokenizer = SentencePieceTokenizer(german())
    equal_or_tied(tokenizer, texts, graph_tokenizer(tokenizer)(tf.constant(texts)).to_list(), tokenizer.tokenize(texts))


# === Packed, traced and saved ===


@pytest.fixture(scope="module")
def preprocessor(tokenizer: SentencePieceTokenizer) -> Preprocessor:
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    return Preprocessor(tokenizer, packing, sequence_length=11)


@pytest.mark.slow
def test_packing_equals_the_python_path_in_ops_that_servers_know(preprocessor: Preprocessor) -> None:
    module = packing_module(preprocessor)
    texts = ["the book", "", "in 2014, we read 9,200 books", "[MASK] é", "9,"]
    for inputs in [(texts,), (texts, texts[::-1]), (texts[1:2],), (texts[1:2], texts[:1])]:
        check_packer(module.packer if len(inputs) == 1 else module.pair, preprocessor, *inputs)
    graph = module.pair.get_concrete_function().graph.as_graph_def()
    check_ops(graph)
    assert "VarHandleOp" not in list_ops(graph)


@pytest.mark.slow
def test_a_saved_graph_needs_only_tensorflow_text(preprocessor: Preprocessor, tmp_path: Path) -> None:
    texts = ["The é,a [MASK] ﬁne\x01 한", "", "9,200 and 2014,", "``the book'' " * 20, "\ufffd b 中", "x[SEP]<pad>"]
    encoded = [*(text.encode() for text in texts), b"\xff"]
    check_saved_packer(preprocessor, encoded, tmp_path, with_tensorflow_text=True)
