"""Tokenizer files that are damaged, or need what lmzoo does not support, are refused by name."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmzoo.checkpoints.tokenizers.files import read_tokenizer, write_tokenizer
from lmzoo.presets import PresetError
from lmzoo.text import CharacterTokenizer, Tokenizer, WordTokenizer
from tests.checkpoints.tokenizer_files import (
    CONFIG,
    PAIR,
    PIPELINE,
    SENTENCE,
    SIZES,
    WORD,
    added,
    edit_json,
    put,
    tiny,
    write_fairseq,
    write_json,
    write_vocabulary,
)

NAMES, ADDED = "special_tokens_map.json", "added_tokens.json"
VOCABULARY = {WORD: "vocab.txt", PAIR: "vocab.json", SENTENCE: "spiece.model"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint").mkdir()
    return tmp_path / "checkpoint"


def remove_step(pipeline: dict[str, Any]) -> None:
    pipeline["normalizer"]["normalizers"].pop(0)


def append_step(pipeline: dict[str, Any]) -> None:
    pipeline["normalizer"]["normalizers"].append({"type": "Strip"})


SETTINGS = [
    (WORD, CONFIG, put(tokenize_chinese_chars="no"), "`tokenize_chinese_chars` must be true or false, got 'no'"),
    (WORD, CONFIG, put(do_lower_case="no"), "`do_lower_case` must be true or false, got 'no'"),
    (WORD, CONFIG, put(split_special_tokens=True), "`split_special_tokens` is True"),
    (WORD, CONFIG, put(tokenizer_class="BertJapaneseTokenizer"), "JapaneseTokenizer, .* BertTokenizer or .*DistilBert"),
    (PAIR, CONFIG, put(add_prefix_space="yes"), "`add_prefix_space` must be true or false, got 'yes'"),
    (PAIR, CONFIG, put(tokenizer_class="BartTokenizerFast"), "the tokenizer is a BartTokenizer"),
    (SENTENCE, CONFIG, put(remove_space=False), "`remove_space` is False"),
    (SENTENCE, CONFIG, put(keep_accents=2), "`keep_accents` must be true or false, got 2"),
    (SENTENCE, CONFIG, put(sp_model_kwargs={"enable_sampling": True}), "`sp_model_kwargs` is {'enable_sampling': Tr"),
    (WORD, PIPELINE, put(normalizer=None), "`normalizer.type` is None, but lmzoo supports only 'BertNormalizer'"),
    (WORD, PIPELINE, put(normalizer__type="Lowercase"), "`normalizer.type` is 'Lowercase'"),
    (WORD, PIPELINE, put(normalizer__clean_text=False), "`normalizer.clean_text` is False"),
    (WORD, PIPELINE, put(pre_tokenizer={"type": "Whitespace"}), "`pre_tokenizer.type` is 'Whitespace'"),
    (WORD, PIPELINE, put(model__max_input_chars_per_word=200), "`model.max_input_chars_per_word` is 200"),
    (WORD, PIPELINE, put(model__continuing_subword_prefix="@@"), "`model.continuing_subword_prefix` is '@@'"),
    (WORD, PIPELINE, put(model__unk_token="<unk>"), "lacks the special tokens <unk>"),
    (WORD, PIPELINE, put(model__unk_token=["a"]), "`unk_token` must be a string, got ..a..."),
    (WORD, PIPELINE, put(model__type="WordLevel"), "holds a 'WordLevel' model; supported are WordPiece, BPE, Unigram"),
    (WORD, PIPELINE, put(model=[]), 'must hold an object "model" with a "vocab"'),
    (PAIR, PIPELINE, put(normalizer={"type": "NFC"}), "`normalizer` is {'type': 'NFC'}"),
    (PAIR, PIPELINE, put(pre_tokenizer__add_prefix_space=2), "`pre_tokenizer.add_prefix_space` is 2"),
    (PAIR, PIPELINE, put(pre_tokenizer__use_regex=False), "`pre_tokenizer.use_regex` is False"),
    (PAIR, PIPELINE, put(pre_tokenizer={"type": "Metaspace"}), "`pre_tokenizer.type` is 'Metaspace'"),
    (PAIR, PIPELINE, put(model__dropout=0.1), "`model.dropout` is 0.1"),
    (PAIR, PIPELINE, put(model__end_of_word_suffix="</w>"), "`model.end_of_word_suffix` is '</w>'"),
    (PAIR, PIPELINE, put(model__continuing_subword_prefix="##"), "`model.continuing_subword_prefix` is '##'"),
    (PAIR, PIPELINE, put(model__ignore_merges=True), "`model.ignore_merges` is True"),
    (PAIR, PIPELINE, put(model__byte_fallback=True), "`model.byte_fallback` is True"),
    (SENTENCE, PIPELINE, remove_step, "must have ALBERT's steps, got Rep"),
    (SENTENCE, PIPELINE, put(normalizer__normalizers__1__content="'"), "must have ALBERT's steps"),
    (SENTENCE, PIPELINE, put(normalizer={"type": "NFC"}), "must have ALBERT's steps, got NFC"),
    (SENTENCE, PIPELINE, append_step, "steps, .* Strip"),
    (SENTENCE, PIPELINE, put(pre_tokenizer=None), "`pre_tokenizer.type` is None"),
    (SENTENCE, PIPELINE, put(pre_tokenizer__pretokenizers__0__type="Digits"), "must be WhitespaceSplit and Metaspace"),
    (SENTENCE, PIPELINE, put(pre_tokenizer__pretokenizers__1__prepend_scheme="first"), "prepend_scheme` is 'first'"),
    (SENTENCE, PIPELINE, put(model__byte_fallback=True), "`model.byte_fallback` is True"),
]
TOKENS = [
    (WORD, CONFIG, put(mask_token="<mask>"), "the mask_token is '<mask>', but a WordPieceTokenizer has '.MASK.'"),
    (WORD, NAMES, put(unk_token={"content": "film"}), "the unk_token is 'film', but a WordPieceTokenizer has '.UNK.'"),
    (WORD, CONFIG, put(bos_token="<s>"), "adds the token '<s>', for which the model has no embedding: it has 11"),
    (WORD, CONFIG, put(additional_special_tokens=["[E1]"]), r"adds the token '\[E1\]', for which the model"),
    (WORD, CONFIG, put(added_tokens_decoder={"11": {"content": "[E1]"}}), r"adds the token '\[E1\]', for which"),
    (WORD, CONFIG, put(added_tokens_decoder={"12": {"content": "[E1]"}}), "with the id 12, but 11 is the next one"),
    (WORD, ADDED, put(**{"[MASK]": 11}), r"adds the token '\[MASK\]' with the id 11, but it has the id 4"),
    (WORD, PIPELINE, added(id=11, content="[E1]"), r"adds the token '\[E1\]', for which the model"),
    (PAIR, CONFIG, put(cls_token="[CLS]"), "the cls_token is '.CLS.', but a BytePairTokenizer has '<s>'"),
    (SENTENCE, CONFIG, put(eos_token="</s>"), "the eos_token is '</s>', but a SentencePieceTokenizer has '.SEP.'"),
]


@pytest.mark.parametrize(("cls", "name", "change", "message"), [*SETTINGS, *TOKENS])
def test_unsupported_settings_and_tokens_are_refused(
    directory: Path, cls: type[Tokenizer], name: str, change: Callable[[Any], Any], message: str
) -> None:
    write_tokenizer(tiny(cls), directory, 7)
    if not (directory / name).exists():
        write_json(directory / name, {})
    edit_json(directory / name, change)
    for _ in ("all files", "tokenizer.json alone, where it is enough"):
        with pytest.raises(PresetError, match=message) as caught:
            read_tokenizer(directory, cls, SIZES[cls])
        assert str(directory / name) in str(caught.value)
        (directory / VOCABULARY[cls]).unlink(missing_ok=True)


def test_missing_files_are_named(directory: Path) -> None:
    expected = {
        WORD: "expected tokenizer.json or vocab.txt or vocab_chinese.txt. Pass `preprocessor=`.",
        PAIR: "expected tokenizer.json or vocab.json and merges.txt or dict.txt and encoder.json and vocab.bpe.",
        SENTENCE: "expected tokenizer.json or spiece.model or 30k-clean.model or vocab.txt or vocab_chinese.txt.",
        WordTokenizer: r"must hold one vocab\*.txt for its tokens, found none. Pass `preprocessor=`.",
    }
    for cls, message in expected.items():
        with pytest.raises(PresetError, match=message):
            read_tokenizer(directory, cls)
    for name in ("vocab-1.txt", "vocab-2.txt"):
        (directory / name).write_text("<S>\n")
    with pytest.raises(PresetError, match=r"found vocab-1.txt, vocab-2.txt"):
        read_tokenizer(directory, CharacterTokenizer, 7)


def test_missing_files_of_a_pair_are_named(directory: Path) -> None:
    (directory / "dict.txt").write_text("13 850314647\n")
    message = "there is only dict.txt. Pass `preprocessor=`. Fetch encoder.json and vocab.bpe"
    with pytest.raises(PresetError, match=message):
        read_tokenizer(directory, PAIR)
    (directory / "dict.txt").rename(directory / "merges.txt")
    with pytest.raises(PresetError, match=r"there is only merges.txt. Pass `preprocessor=`.$"):
        read_tokenizer(directory, PAIR)


@pytest.mark.parametrize("cls", SIZES)
def test_truncated_files_are_refused(directory: Path, cls: type[Tokenizer]) -> None:
    write_tokenizer(tiny(cls), directory, 7)
    for name in (CONFIG, PIPELINE):
        content = (directory / name).read_bytes()
        (directory / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(PresetError, match=f"{name} cannot be read as JSON"):
            read_tokenizer(directory, cls)
        (directory / name).write_bytes(content)
    (directory / PIPELINE).unlink()
    content = (directory / VOCABULARY[cls]).read_bytes()
    (directory / VOCABULARY[cls]).write_bytes(content[:23])
    message = {
        WORD: r"lacks the special tokens \[MASK\]",
        PAIR: "cannot be read as JSON",
        SENTENCE: "not a complete SentencePiece model",
    }
    with pytest.raises(PresetError, match=f"{VOCABULARY[cls]}.*{message[cls]}"):
        read_tokenizer(directory, cls)
    (directory / VOCABULARY[cls]).write_bytes(b"\xff\xfe" + content)
    with pytest.raises(PresetError, match=VOCABULARY[cls]):
        read_tokenizer(directory, cls)


def test_malformed_vocabularies_are_refused(directory: Path) -> None:
    write_tokenizer(tiny(WORD), directory, 7)
    edit_json(directory / PIPELINE, put(model__vocab__film=3))
    with pytest.raises(PresetError, match=r"tokenizer.json: The id 3 belongs to two tokens, '.SEP.' and 'film'"):
        read_tokenizer(directory, WORD)
    edit_json(directory / PIPELINE, put(model__vocab__film=13))
    message = "tokenizer.json: The ids must be 0 to 10, .* 'filler0' has 6 and no token has 5"
    with pytest.raises(PresetError, match=message):
        read_tokenizer(directory, WORD)
    edit_json(directory / PIPELINE, put(model__vocab=["film"]))
    with pytest.raises(PresetError, match="must be an object with an id for each token"):
        read_tokenizer(directory, WORD)
    shutil.rmtree(directory)
    directory.mkdir()
    write_vocabulary(directory, tiny(PAIR))
    with (directory / "merges.txt").open("a", encoding="utf-8") as file:
        file.write("a b\n")
    with pytest.raises(PresetError, match=r"vocab.json: Line .* of the merges, 'a b', needs 'ab'"):
        read_tokenizer(directory, PAIR)
    write_tokenizer(tiny(SENTENCE), directory, 7)
    (directory / "spiece.model").unlink()
    edit_json(directory / PIPELINE, put(model__vocab__0=["<pad>"]))
    with pytest.raises(PresetError, match="expected a vocabulary of pairs, token and score"):
        read_tokenizer(directory, SENTENCE)


@pytest.mark.parametrize(
    ("step", "least"), [pytest.param(7, 50, id="some"), pytest.param(1, 100, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("cls", SIZES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_other_json_gives_errors_or_is_not_read(directory: Path, cls: type[Tokenizer], step: int, least: int) -> None:
    write_tokenizer(tiny(cls), directory, 7)
    write_json(directory / NAMES, {"mask_token": {"content": tiny(cls).mask_token}})
    write_json(directory / ADDED, {tiny(cls).mask_token: tiny(cls).mask_id})
    if cls is SENTENCE:
        (directory / "spiece.model").unlink()
    refused, accepted = [], 0
    for name in (PIPELINE, CONFIG, NAMES, ADDED):
        stored = json.loads((directory / name).read_text("utf-8"))
        for damaged in itertools.islice(damaged_values(stored), 0, None, step):
            write_json(directory / name, damaged)
            try:
                read_tokenizer(directory, cls)
                accepted += 1
            except PresetError as error:
                refused.append(str(error))
        write_json(directory / name, stored)
    assert len(refused) > least
    assert all(str(directory) in message for message in refused)
    assert accepted > least, "changes of values that no tokenizer reads should be accepted"


def damaged_values(value: Any, depth: int = 4) -> Iterator[Any]:
    """Yield copies of a value, each with something else in one of its places."""
    yield from (None, 7, -1, "x", [], {}, [7], {"x": 7}, True)
    if depth and isinstance(value, dict):
        for key in [*value][:20]:
            yield {name: value[name] for name in value if name != key}
            yield from ({**value, key: inner} for inner in damaged_values(value[key], depth - 1))
    elif depth and isinstance(value, list):
        for i in range(len(value))[:7]:
            yield from ([*value[:i], inner, *value[i + 1 :]] for inner in damaged_values(value[i], depth - 1))


def test_malformed_dictionaries_are_refused(directory: Path) -> None:
    write_fairseq(directory, tiny(PAIR))
    lines = (directory / "dict.txt").read_text().split("\n")
    for line in ("7", "7 x", "99999 3", "<s> 3 #fairseq:overwrite"):
        (directory / "dict.txt").write_text("\n".join([*lines[:2], line, *lines[3:]]))
        with pytest.raises(PresetError, match=r"dict.txt, line 3: expected a number in encoder.json and a count"):
            read_tokenizer(directory, PAIR)
    (directory / "dict.txt").write_text("\n".join([*lines[:2], lines[0], *lines[3:]]))
    with pytest.raises(PresetError, match=r"dict.txt: The vocabulary holds '.*' twice"):
        read_tokenizer(directory, PAIR)


def test_the_class_in_the_models_configuration_counts(directory: Path) -> None:
    write_vocabulary(directory, tiny(WORD))
    write_json(directory / "config.json", {"model_type": "bert", "tokenizer_class": "BertJapaneseTokenizer"})
    with pytest.raises(PresetError, match="the tokenizer is a BertJapaneseTokenizer, but lmzoo supports only"):
        read_tokenizer(directory, WORD)


def test_the_files_decide_the_class(directory: Path) -> None:
    """The class is found with or without its name, whatever class is expected."""
    for written in SIZES:
        shutil.rmtree(directory)
        directory.mkdir()
        write_tokenizer(tiny(written), directory, 7)
        for removed in (None, CONFIG, PIPELINE):
            if removed is not None:
                (directory / removed).unlink()
            for cls in SIZES:
                tokenizer = read_tokenizer(directory, cls)
                assert (type(tokenizer), tokenizer.vocabulary) == (written, tiny(written).vocabulary)
    (directory / CONFIG).write_text('{"tokenizer_class": "BertTokenizer"}')
    with pytest.raises(PresetError, match=r"expected tokenizer.json or vocab.txt or vocab_chinese.txt. Pass"):
        read_tokenizer(directory, SENTENCE)


@pytest.mark.parametrize("name", ["vocab.txt", CONFIG, PIPELINE, NAMES, ADDED])
def test_links_out_of_the_directory_are_refused(directory: Path, tmp_path: Path, name: str) -> None:
    write_tokenizer(tiny(WORD), directory, 7)
    if name == "vocab.txt":
        (directory / PIPELINE).unlink()
    write_json(tmp_path / "elsewhere", {})
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PresetError, match=f"{name} is a link to .*elsewhere, which is outside the directory"):
        read_tokenizer(directory, WORD)
