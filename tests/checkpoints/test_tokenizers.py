"""Tokenizers of every format give the ids of transformers, and written ones give our ids there."""

from __future__ import annotations

import json
import lzma
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmzoo.checkpoints.tokenizers.files import read_tokenizer, write_tokenizer
from lmzoo.checkpoints.tokenizers.keras_hub import write_keras_hub_tokenizer
from lmzoo.errors import PresetError
from lmzoo.registry.family import families
from lmzoo.text import (
    BytePairTokenizer,
    CharacterTokenizer,
    Preprocessor,
    SentencePieceTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    XlmRobertaTokenizer,
)
from lmzoo.text.tokenizers.xlmr_sentencepiece import convert_from_fairseq_ids
from tests.checkpoints import tokenizer_files as files
from tests.text.trained import assert_equal_or_tied, comparable_to_transformers
from tests.text.varied import SOME, sizes

ACCENTS = [(True, None), (True, False), (False, None), (False, True)]  # lowercase, strip_accents
CLEANING = [(True, False), (False, False), (True, True)]  # lowercase, keep_accents
MORE = 2  # factor for the number of texts where some are not comparable
FAMILY = {WordPieceTokenizer: "bert", BytePairTokenizer: "roberta", SentencePieceTokenizer: "albert"}


@pytest.fixture(scope="module", params=sizes(10_000))
def count(request: pytest.FixtureRequest) -> int:
    """Return the number of texts to compare."""
    return request.param


@pytest.fixture(scope="module")
def texts(count: int) -> list[str]:
    return files.all_texts(count)


@pytest.fixture(scope="module")
def tokenizers(root: Path) -> dict[type, Any]:
    return files.make_tokenizers(root, files.all_texts(10_000))


def auto_tokenizer(directory: Path) -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(directory)


def ids_of(peer: Any, texts: list[str]) -> list[list[int]]:
    return peer(texts, add_special_tokens=False, verbose=False)["input_ids"]


def with_padding_as_text(tokenizer: Any, peer: Any) -> Any:
    """Return a transformers tokenizer that reads a literal `<pad>` as text if ours does."""
    if not isinstance(tokenizer, BytePairTokenizer):
        return peer
    import tokenizers
    import transformers

    pipeline = json.loads(peer.backend_tokenizer.to_str())
    pipeline["added_tokens"] = [token for token in pipeline["added_tokens"] if token["content"] != "<pad>"]
    backend = tokenizers.Tokenizer.from_str(json.dumps(pipeline))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)


def assert_same_ids(tokenizer: Any, peer: Any, texts: list[str]) -> None:
    peer = with_padding_as_text(tokenizer, peer)
    rows = zip(texts, tokenizer.tokenize(texts), ids_of(peer, texts), strict=True)
    assert [row for row in rows if row[1] != row[2]] == []
    assert len(texts) > SOME


# === Reading ===


@pytest.mark.parametrize(
    ("write", "lowercase", "strip_accents", "split_on_cjk"),
    [
        *((write, *option, True) for write in (files.write_published, files.write_saved) for option in ACCENTS),
        (files.write_generic, False, None, True),
        (files.write_old, True, False, True),
        (files.write_published, True, None, False),
        (files.write_saved, False, True, False),
        (files.write_generic, True, False, False),
    ],
)
def test_word_piece_files_are_read(
    tokenizers: dict,
    texts: list[str],
    tmp_path: Path,
    write: Callable,
    lowercase: bool,
    strip_accents: bool | None,
    split_on_cjk: bool,
) -> None:
    tokenizer = WordPieceTokenizer(tokenizers[WordPieceTokenizer].vocabulary, lowercase, strip_accents, split_on_cjk)
    write(tmp_path, tokenizer)
    reloaded = read_tokenizer(tmp_path, WordPieceTokenizer, tokenizer.vocabulary_size)
    assert reloaded.get_config() == tokenizer.get_config()
    assert reloaded.vocabulary == tokenizer.vocabulary
    assert_same_ids(reloaded, auto_tokenizer(tmp_path), texts)
    unknown_fraction = sum(ids.count(1) for ids in reloaded.tokenize(texts)) / sum(map(len, reloaded.tokenize(texts)))
    assert 0.01 < unknown_fraction < 0.5, "the vocabulary must neither know everything nor nothing"


@pytest.mark.parametrize("write", [files.write_published, files.write_saved, files.write_generic, files.write_old])
def test_byte_pair_files_are_read(tokenizers: dict, texts: list[str], tmp_path: Path, write: Callable) -> None:
    tokenizer = tokenizers[BytePairTokenizer]
    write(tmp_path, tokenizer)
    reloaded = read_tokenizer(tmp_path, BytePairTokenizer, tokenizer.vocabulary_size)
    assert (reloaded.vocabulary, reloaded.merges) == (tokenizer.vocabulary, tokenizer.merges)
    assert_same_ids(reloaded, auto_tokenizer(tmp_path), texts)


def test_files_of_fairseq_are_read(tokenizers: dict, texts: list[str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    trained = tokenizers[BytePairTokenizer]
    *first, mask = trained.special_tokens
    pieces = [token for token in trained.vocabulary if token not in trained.special_tokens]
    expected = BytePairTokenizer([*first, *pieces[::-1], *files.FILLERS, mask], trained.merges)
    files.write_fairseq(tmp_path, expected)
    reloaded = read_tokenizer(tmp_path, BytePairTokenizer, expected.vocabulary_size)
    assert reloaded.vocabulary == expected.vocabulary
    assert_same_ids(reloaded, files.peer_of(expected), texts)


def test_fairseqs_dictionary_must_list_the_pieces_of_the_model(tmp_path: Path) -> None:
    """CamemBERT's dictionary lists three special tokens again, so that every piece has another id."""
    tokenizer = XlmRobertaTokenizer.of_words(["good", "film"], 13)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(convert_from_fairseq_ids(tokenizer.model) or b"")
    lines = [f"{piece} 7" for piece in tokenizer.vocabulary[4:-1]]
    repeated = [f"{token} 999999 #fairseq:overwrite" for token in ("<unk>", "<s>", "</s>")]
    (tmp_path / "dict.txt").write_text("\n".join([*lines, ""]), "utf-8")
    assert read_tokenizer(tmp_path, XlmRobertaTokenizer).vocabulary == tokenizer.vocabulary
    for wrong, line, got in (
        ([*repeated, *lines], 1, "'<unk> 999999'"),
        ([*lines[:3], *lines[4:]], 4, repr(tokenizer.vocabulary[8])),
        (lines[:-1], len(lines), "no more lines"),
        ([*lines, "madeupword0000 0"], len(lines) + 1, "'madeupword0000'"),
    ):
        (tmp_path / "dict.txt").write_text("\n".join([*wrong, ""]), "utf-8")
        with pytest.raises(
            PresetError, match=rf"dict.txt, line {line}: expected .*, got {re.escape(got)}\. The dictionary must list"
        ):
            read_tokenizer(tmp_path, XlmRobertaTokenizer)


@pytest.mark.parametrize("write", [files.write_saved, files.write_generic, files.write_old])
@pytest.mark.parametrize(("lowercase", "keep_accents"), CLEANING)
def test_sentencepiece_files_are_read(
    tokenizers: dict, count: int, tmp_path: Path, write: Callable, lowercase: bool, keep_accents: bool
) -> None:
    tokenizer = SentencePieceTokenizer(tokenizers[SentencePieceTokenizer].model, lowercase, keep_accents)
    write(tmp_path, tokenizer)
    reloaded = read_tokenizer(tmp_path, SentencePieceTokenizer, tokenizer.vocabulary_size)
    assert reloaded.get_config() == {"lowercase": lowercase, "keep_accents": keep_accents}
    texts, peer = files.all_texts(3 * count if keep_accents else MORE * count), auto_tokenizer(tmp_path)
    assert reloaded.tokenize(texts) == tokenizer.tokenize(texts), "the model could be told from tokenizer.json"
    texts = comparable_to_transformers(texts, peer, lowercase, keep_accents)
    assert len(texts) > count
    reloaded._splits = {}  # transformers 5 has no rule for commas after digits
    assert_equal_or_tied(reloaded, texts, reloaded.tokenize(texts), ids_of(peer, texts))


@pytest.mark.parametrize("name", ["spiece.model", "30k-clean.model"])
def test_sentencepiece_models_are_read(tokenizers: dict, count: int, tmp_path: Path, name: str) -> None:
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizers[SentencePieceTokenizer].model)
    for piece in proto.pieces:
        piece.type = 1 if piece.type == 4 else piece.type  # transformers 5 splits texts at symbols of the user's
    files.write_published(tmp_path, SentencePieceTokenizer(proto.SerializeToString()))
    peer = auto_tokenizer(tmp_path)
    (tmp_path / "spiece.model").rename(tmp_path / name)
    reloaded = read_tokenizer(tmp_path, SentencePieceTokenizer, len(proto.pieces))
    assert reloaded.get_config() == {"lowercase": True, "keep_accents": False}
    texts = comparable_to_transformers(files.all_texts(MORE * count), peer, True, False)
    reloaded._splits = {}
    assert_equal_or_tied(reloaded, texts, reloaded.tokenize(texts), ids_of(peer, texts))
    assert len(texts) > count


def test_a_chinese_albert_has_a_wordpiece_tokenizer(tokenizers: dict, tmp_path: Path) -> None:
    tokenizer = tokenizers[WordPieceTokenizer]
    files.write_vocabulary(tmp_path, tokenizer)
    (tmp_path / "vocab.txt").rename(tmp_path / "vocab_chinese.txt")
    reloaded = read_tokenizer(tmp_path, SentencePieceTokenizer)
    assert type(reloaded) is WordPieceTokenizer
    assert reloaded.vocabulary == tokenizer.vocabulary


@pytest.mark.parametrize("blank", ["\n", "\n\n", "\r\n \n"])
def test_blank_lines_at_the_end_are_no_tokens(tmp_path: Path, blank: str) -> None:
    """They would need one embedding more, or repeat a token."""
    tokenizer = WordPieceTokenizer.of_words(["film"], 11)
    files.write_vocabulary(tmp_path, tokenizer)
    (tmp_path / "vocab.txt").write_text((tmp_path / "vocab.txt").read_text("utf-8") + blank, "utf-8")
    assert read_tokenizer(tmp_path, WordPieceTokenizer, 11).vocabulary == tokenizer.vocabulary


def test_elmos_files_are_read(tmp_path: Path) -> None:
    assert read_tokenizer(tmp_path, CharacterTokenizer).max_characters == 50
    assert read_tokenizer(tmp_path, CharacterTokenizer, max_characters=11).max_characters == 11
    (tmp_path / "vocab-7.txt").write_text("<S>\n</S>\n<UNK>\nthe\r\n!!!MAXTERMID\nthe\n", "utf-8")
    for cls in (CharacterTokenizer, WordTokenizer):
        tokenizer = read_tokenizer(tmp_path, cls, 6)
        assert type(tokenizer) is WordTokenizer
        assert tokenizer.tokenize(["the film"]) == [[5, 3]]


# === Writing ===


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "albert"])
def test_rows_in_transformers_equal_ours(tokenizers: dict, texts: list[str], tmp_path: Path, family: str) -> None:
    record = families()[family]
    tokenizer = tokenizers[record.tokenizer]
    files.write_json(tmp_path / "config.json", {"model_type": family})
    write_tokenizer(tokenizer, tmp_path, 61)
    peer = auto_tokenizer(tmp_path)
    assert peer.model_max_length == 61
    assert (peer.pad_token_id, peer.mask_token_id) == (tokenizer.pad_id, tokenizer.mask_id)
    if record.tokenizer is SentencePieceTokenizer:
        texts = comparable_to_transformers(files.all_texts(MORE * len(texts)), peer, True, False)
        expected = ids_of(peer, texts)
        rows = zip(texts, tokenizer.tokenize(texts), expected, strict=True)
        equal_texts = [text for text, ids, peer_ids in rows if ids == peer_ids]
        tokenizer = SentencePieceTokenizer(tokenizer.model)
        tokenizer._splits = {}
        assert_equal_or_tied(tokenizer, texts, tokenizer.tokenize(texts), expected)
        texts = equal_texts
    peer = with_padding_as_text(tokenizer, peer)
    assert len(texts) > SOME
    preprocessor = Preprocessor(tokenizer, record.packing, 512)
    pairs = texts[::-1]
    for arguments in ([texts], [texts, pairs]):
        rows, encoded = preprocessor.encode(*arguments), peer(*arguments, verbose=False)
        assert rows.truncated == 0
        assert [row.tolist() for row in np.split(rows.token_ids, rows.sequence_splits[1:-1])] == encoded["input_ids"]
        if record.packing.segments:
            second = [sum(types) for types in encoded["token_type_ids"]]
            assert (rows.lengths - rows.second).tolist() == second
            assert any(second) == (len(arguments) == 2)


def test_padding_in_texts_is_text_only_here(tokenizers: dict, tmp_path: Path) -> None:
    """A literal `<pad>` is text here, but a special token in transformers and in our files for it."""
    tokenizer = tokenizers[BytePairTokenizer]
    write_tokenizer(tokenizer, tmp_path, 61)
    (theirs,) = ids_of(auto_tokenizer(tmp_path), ["a <pad>"])
    (ours,) = read_tokenizer(tmp_path, BytePairTokenizer, tokenizer.vocabulary_size).tokenize(["a <pad>"])
    assert (theirs.count(1), ours.count(1)) == (1, 0)
    assert ours == tokenizer.tokenize(["a <pad>"])[0]
    assert tokenizer.detokenize(ours) == "a <pad>"


@pytest.mark.slow_cases("bert")
@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_written_files_are_read(tokenizers: dict, tmp_path: Path, family: str) -> None:
    texts = files.all_texts(SOME)
    trained = tokenizers[families()[family].tokenizer]
    options = {"bert": ACCENTS, "roberta": [()], "albert": [*CLEANING, (False, True)]}[family]
    names = {"bert": ["vocabulary"], "roberta": ["vocabulary", "merges"], "albert": ["model"]}[family]
    assets = [getattr(trained, name) for name in names]
    for number, option in enumerate(options):
        tokenizer = type(trained)(*assets, *option)
        directory = tmp_path / f"{number}"
        directory.mkdir()
        write_tokenizer(tokenizer, directory, 61)
        for _ in ("as for transformers", "as for Google's code, without tokenizer.json"):
            reloaded = read_tokenizer(directory, type(tokenizer), tokenizer.vocabulary_size)
            assert type(reloaded) is type(tokenizer)
            assert reloaded.get_config() == tokenizer.get_config()
            assert reloaded.tokenize(texts) == tokenizer.tokenize(texts)
            (directory / "tokenizer.json").unlink(missing_ok=True)


def test_elmos_files_are_written(tmp_path: Path) -> None:
    write_tokenizer(CharacterTokenizer(11), tmp_path, 61)
    assert list(tmp_path.iterdir()) == []
    tokenizer = WordTokenizer(["<S>", "</S>", "<UNK>", "the", "film"])
    write_tokenizer(tokenizer, tmp_path, 61)
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.txt"]
    assert read_tokenizer(tmp_path, WordTokenizer, 6).vocabulary == tokenizer.vocabulary


# === Real vocabularies, on real text ===


@pytest.mark.slow
def test_real_vocabularies_give_the_same_ids(shared: Callable[[str], Path], count: int, tmp_path: Path) -> None:
    folder = shared("data/tokenizers")
    with lzma.open(shared("data/pretrain/books-dev.txt.xz"), "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")
    lines = random.Random(1301).sample(lines, count) if count == SOME else lines
    fairseq = tmp_path / "fairseq"
    fairseq.mkdir()
    for name in ("gpt2/encoder.json", "gpt2/vocab.bpe"):
        (fairseq / Path(name).name).write_bytes((folder / name).read_bytes())
    dictionary = (folder / "roberta/dict.txt").read_text("utf-8").split("\n")[:50260]
    (fairseq / "dict.txt").write_text("\n".join(dictionary) + "\n", "utf-8")
    expected = json.loads((folder / "roberta/roberta-base-vocab.json").read_text("utf-8"))
    roberta = read_tokenizer(fairseq, BytePairTokenizer, 50265)
    assert {token: roberta.token_to_id(token) for token in expected} == expected
    assert roberta.tokenize(["Hello world! cécé herlolip"]) == [[31414, 232, 328, 740, 1140, 12695, 69, 46078, 1588]]
    german = SentencePieceTokenizer(folder / "albert-style-de-30k/30k-clean.model", lowercase=False)
    bert = read_tokenizer(folder / "bert-base-uncased", WordPieceTokenizer, 30522)
    assert bert.get_config() == {"lowercase": True, "strip_accents": None}
    for number, tokenizer in enumerate((roberta, bert, german)):
        directory = tmp_path / str(number)
        directory.mkdir()
        files.write_json(directory / "config.json", {"model_type": FAMILY[type(tokenizer)]})
        write_tokenizer(tokenizer, directory, 512)
        peer = auto_tokenizer(directory)
        if tokenizer is german:
            tokenizer._splits = {}
            texts = comparable_to_transformers(lines, peer, False, False)
            assert_equal_or_tied(tokenizer, texts, tokenizer.tokenize(texts), ids_of(peer, texts))
        else:
            assert tokenizer.tokenize(lines) == ids_of(peer, lines)


def test_another_unknown_token_is_kept(tmp_path: Path) -> None:
    """The files hold the tokenizer's token, not the default of its class."""
    vocabulary = ["[PAD]", "<unk>", "[CLS]", "[SEP]", "[MASK]", "a", "film"]
    tokenizer = WordPieceTokenizer(vocabulary, unk_token="<unk>")
    (tmp_path / "hf").mkdir()
    write_tokenizer(tokenizer, tmp_path / "hf", 61)
    (tmp_path / "keras_hub").mkdir()
    write_keras_hub_tokenizer(tokenizer, tmp_path / "keras_hub", "BertTokenizer")
    config = json.loads((tmp_path / "keras_hub/tokenizer.json").read_text("utf-8"))["config"]
    assert (config["oov_token"], config["special_tokens"]) == ("<unk>", ["<unk>"])
    for name in ("hf", "keras_hub"):
        reloaded = read_tokenizer(tmp_path / name, WordPieceTokenizer)
        assert reloaded.get_config()["unk_token"] == "<unk>"
        assert reloaded.tokenize(["A strange film"]) == [[5, 1, 6]]
