"""Tokenizer settings that the files omit or contradict, and tokenizers in presets of KerasHub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lmzoo.checkpoints.tokenizers.files import read_tokenizer, write_tokenizer
from lmzoo.presets import PresetError
from lmzoo.text import CharacterTokenizer, T5Tokenizer, Tokenizer
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
    write_json,
    write_vocabulary,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint").mkdir()
    return tmp_path / "checkpoint"


def test_the_vocabulary_must_fit_the_embeddings(directory: Path) -> None:
    write_tokenizer(tiny(WORD), directory, 7)
    for size in (11, 12, 138, None):
        assert read_tokenizer(directory, WORD, size).vocabulary_size == 11
    message = "tokenizer.json holds 11 tokens, but the model has embeddings for 10: they do"
    with pytest.raises(PresetError, match=message):
        read_tokenizer(directory, WORD, 10)
    with pytest.warns(UserWarning, match="holds 11 tokens, but the model has embeddings for 1,139. That works"):
        read_tokenizer(directory, WORD, 1139)
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    for size in (3, 5):
        with pytest.raises(PresetError, match=f"vocab.txt holds 4 tokens, but the model has embeddings for {size}"):
            read_tokenizer(directory, CharacterTokenizer, size)


# === Omitted and contradictory settings ===


@pytest.mark.parametrize(
    ("name", "word", "lowercase"),
    [
        ("checkpoint", "film", True),
        ("checkpoint", "Film", False),
        ("checkpoint", "##Film", False),
        ("checkpoint", "ℝ", True),  # Google's uncased vocabulary has it
        ("uncased_L-3_H-35_A-5", "Film", True),
        ("cased_L-3_H-35_A-5", "film", False),
        ("multi_cased-4d7a2146", "film", False),
        ("encased", "film", True),
    ],
)
def test_casing_of_googles_files(tmp_path: Path, name: str, word: str, lowercase: bool) -> None:
    (tmp_path / name).mkdir()
    write_vocabulary(tmp_path / name, WORD.of_words([word], 7))
    assert read_tokenizer(tmp_path / name, WORD).get_config() == {"lowercase": lowercase, "strip_accents": None}
    (tmp_path / name / "vocab.txt").unlink()
    write_vocabulary(tmp_path / name, SENTENCE.of_words([word.removeprefix("##")], 11))
    assert read_tokenizer(tmp_path / name, SENTENCE).get_config() == {"lowercase": lowercase, "keep_accents": False}


def test_casing_in_the_checkpoints_name(directory: Path) -> None:
    write_vocabulary(directory, WORD.of_words(["film"], 7))
    (directory / "my_cased_model.ckpt.index").touch()
    assert not read_tokenizer(directory, WORD).lowercase


@pytest.mark.parametrize("cls", [WORD, SENTENCE])
def test_casing_of_hugging_faces_files(tmp_path: Path, cls: type[Any]) -> None:
    for word in ("film", "Film"):
        directory = tmp_path / f"cased-{word}"
        directory.mkdir()
        write_vocabulary(directory, cls.of_words([word], 13))
        write_json(directory / "config.json", {"model_type": "bert"})
        if word == "Film":
            with pytest.warns(UserWarning, match="lower-cased, as in transformers, .* such as '▁?Film'"):
                assert read_tokenizer(directory, cls).lowercase
        else:
            assert read_tokenizer(directory, cls).lowercase
        write_json(directory / CONFIG, {"do_lower_case": False})
        assert not read_tokenizer(directory, cls).lowercase


def test_contradictory_casing_gives_a_warning(directory: Path) -> None:
    write_tokenizer(WORD.of_words(["film"], 7), directory, 7)
    edit_json(directory / PIPELINE, put(normalizer__lowercase=False))
    message = "says lowercase=False, but transformers takes True, since .* says so. .* True"
    with pytest.warns(UserWarning, match=message):
        assert read_tokenizer(directory, WORD).lowercase
    edit_json(directory / CONFIG, lambda config: config.pop("do_lower_case"))
    with pytest.warns(UserWarning, match="takes True, since .* lacks `do_lower_case`. lmzoo takes False"):
        assert not read_tokenizer(directory, WORD).lowercase
    edit_json(directory / CONFIG, put(tokenizer_class="TokenizersBackend", do_lower_case=True))
    assert not read_tokenizer(directory, WORD).lowercase


def test_chinese_characters_that_are_not_split(directory: Path) -> None:
    write_tokenizer(WORD.of_words(["film"], 7), directory, 7)
    edit_json(directory / PIPELINE, put(normalizer__handle_chinese_chars=False))
    with pytest.warns(UserWarning, match="says split_on_cjk=False, but transformers takes True"):
        assert read_tokenizer(directory, WORD).split_on_cjk
    edit_json(directory / CONFIG, put(tokenize_chinese_chars=False))
    tokenizer = read_tokenizer(directory, WORD)
    assert not tokenizer.split_on_cjk
    write_tokenizer(tokenizer, directory, 7)
    assert json.loads((directory / CONFIG).read_text())["tokenize_chinese_chars"] is False
    assert json.loads((directory / PIPELINE).read_text())["normalizer"]["handle_chinese_chars"] is False


@pytest.mark.parametrize(("key", "value"), [("do_basic_tokenize", False), ("never_split", ["film"])])
def test_settings_that_transformers_ignores(directory: Path, key: str, value: Any) -> None:
    write_tokenizer(tiny(WORD), directory, 7)
    edit_json(directory / CONFIG, put(**{key: value}))
    with pytest.warns(UserWarning, match=f"tokenizer_config.json: ignoring `{key}` \\("):
        assert read_tokenizer(directory, WORD).vocabulary == tiny(WORD).vocabulary


def test_transformers_adds_no_mask_to_written_files(directory: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = WORD([*(token for token in WORD.special_tokens if token != WORD.mask_token), "film"], mask_token=None)
    write_tokenizer(tokenizer, directory, 7)
    (directory / "config.json").write_text('{"model_type": "bert"}')
    peer = transformers.AutoTokenizer.from_pretrained(directory)
    assert peer("[MASK] film", add_special_tokens=False)["input_ids"] == tokenizer.tokenize(["[MASK] film"])[0]


def test_texts_that_transformers_truncates_at_the_beginning_give_a_warning(directory: Path) -> None:
    write_tokenizer(tiny(WORD), directory, 7)
    edit_json(directory / PIPELINE, put(truncation={"direction": "Left", "max_length": 5}))
    with pytest.warns(UserWarning, match="`truncation_side` is 'left', but lmzoo truncates .* at the end"):
        read_tokenizer(directory, WORD)
    edit_json(directory / CONFIG, put(truncation_side="right"))
    read_tokenizer(directory, WORD)  # as in transformers, this file takes precedence


def test_contradictory_vocabularies_give_a_warning(directory: Path) -> None:
    for cls, word in ((WORD, "film"), (PAIR, "film"), (SENTENCE, "▁other")):
        write_tokenizer(cls.of_words(["film"], SIZES[cls] + 30), directory, 7)
        pipeline = (directory / PIPELINE).read_bytes()
        write_tokenizer(cls.of_words(["other"], SIZES[cls] + 30), directory, 7)
        (directory / PIPELINE).write_bytes(pipeline)
        # tokenizer.json counts, as in transformers, but SentencePiece's own file says more.
        used_file = "spiece.model" if cls is SENTENCE else PIPELINE
        message = rf"{PIPELINE} and .* hold different tokens: .*; lmzoo reads {used_file}\."
        with pytest.warns(UserWarning, match=message):
            assert word in [token.lstrip("Ġ") for token in read_tokenizer(directory, cls).vocabulary]


def test_contradictory_merges_give_a_warning(directory: Path) -> None:
    write_tokenizer(tiny(PAIR), directory, 7)
    with (directory / "merges.txt").open("a") as file:
        file.write("a b\n")
    with pytest.warns(UserWarning, match=r"and vocab.json hold different merges: number \d+ is None and 'a b'"):
        assert read_tokenizer(directory, PAIR).merges == tiny(PAIR).merges


def test_a_mask_may_leave_the_space_before_it(directory: Path) -> None:
    tokenizer = tiny(PAIR)
    write_tokenizer(tokenizer, directory, 7)
    assert len(tokenizer.tokenize(["film <mask>"])[0]) == len(tokenizer.tokenize(["film<mask>"])[0])
    edit_json(directory / PIPELINE, put(added_tokens__4__lstrip=False))
    changed = read_tokenizer(directory, PAIR)
    assert len(changed.tokenize(["film <mask>"])[0]) == len(tokenizer.tokenize(["film<mask>"])[0]) + 1


FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


@pytest.mark.parametrize(
    ("cls", "name", "change"),
    [
        (WORD, "special_tokens_map.json", put(extra_special_tokens={"image_token": "film"})),
        (WORD, "added_tokens.json", put(film=5)),
        (WORD, PIPELINE, added(id=5, content="film", **FLAGS)),
        (WORD, PIPELINE, put(added_tokens__4__single_word=True)),
        (PAIR, PIPELINE, put(added_tokens__0__rstrip=True)),
        (PAIR, PIPELINE, put(added_tokens__0__lstrip=True)),
        (SENTENCE, PIPELINE, added(id=5, content="▁film", **{**FLAGS, "special": False})),
    ],
)
def test_flags_of_tokens_in_the_vocabulary_are_read(
    directory: Path, cls: type[Tokenizer], name: str, change: Any
) -> None:
    transformers = pytest.importorskip("transformers")
    write_tokenizer(tiny(cls), directory, 7)
    if not (directory / name).exists():
        (directory / name).write_text("{}")
    edit_json(directory / name, change)
    tokenizer = read_tokenizer(directory, cls, SIZES[cls])
    assert len(tokenizer.added_tokens) == 1
    texts = ["film[MASK] film filmfilm", "a <s> film<s>b", "x[MASK]x [MASK]", "▁film film▁film"]
    peer = transformers.AutoTokenizer.from_pretrained(directory)
    assert tokenizer.tokenize(texts) == peer(texts, add_special_tokens=False)["input_ids"]


def test_symbols_that_transformers_splits_off_give_a_warning(directory: Path) -> None:
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(tiny(SENTENCE).model)
    proto.pieces[7].piece, proto.pieces[7].type, proto.pieces[7].score = "(", 4, 0
    tokenizer = SENTENCE(proto.SerializeToString())
    for remaining in ("spiece.model", PIPELINE):
        write_tokenizer(tokenizer, directory, 7)
        edit_json(directory / PIPELINE, added(id=7, content="(", special=remaining == PIPELINE))
        (directory / {PIPELINE: "spiece.model", "spiece.model": PIPELINE}[remaining]).unlink()
        if remaining == "spiece.model":
            edit_json(directory / CONFIG, put(extra_special_tokens=["("]))
        with pytest.warns(UserWarning, match=r"transformers splits texts at \( before SentencePiece sees them"):
            reloaded = read_tokenizer(directory, SENTENCE)
        assert reloaded.tokenize(["film(film"]) == tokenizer.tokenize(["film(film"])


def test_symbols_that_users_added_are_read(directory: Path) -> None:
    """transformers adds all symbols of a model: if the files hold only some, users added them."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(tiny(SENTENCE).model)
    for index, symbol in ((7, "("), (8, ")")):
        proto.pieces[index].piece, proto.pieces[index].type, proto.pieces[index].score = symbol, 4, 0
    tokenizer = SENTENCE(proto.SerializeToString())
    assert tokenizer.add_tokens(["("]) == 0
    write_tokenizer(tokenizer, directory, 7)
    reloaded = read_tokenizer(directory, SENTENCE)
    assert reloaded.added_tokens == tokenizer.added_tokens
    assert reloaded.tokenize(["film(film)"]) == tokenizer.tokenize(["film(film)"])


def test_windows_line_ends_are_read(directory: Path) -> None:
    write_vocabulary(directory, tiny(PAIR))
    for name in ("merges.txt", "vocab.json"):
        text = (directory / name).read_bytes()
        (directory / name).write_bytes(text.replace(b"\n", b"\r\n"))
    assert read_tokenizer(directory, PAIR).merges == tiny(PAIR).merges


def test_null_is_the_default_of_t5s_prefix_space(directory: Path) -> None:
    """With any other value, transformers 4 converts the model file anew, which needs sentencepiece."""
    tokenizer = T5Tokenizer.of_words(["film"], 113)
    write_tokenizer(tokenizer, directory, 7)
    assert "add_prefix_space" not in json.loads((directory / CONFIG).read_text())
    for value in (None, True):
        edit_json(directory / CONFIG, put(add_prefix_space=value))
        assert read_tokenizer(directory, T5Tokenizer).vocabulary == tokenizer.vocabulary
    edit_json(directory / CONFIG, put(add_prefix_space=False))
    with pytest.raises(PresetError, match="`add_prefix_space` is False, but lmzoo supports only None or True"):
        read_tokenizer(directory, T5Tokenizer)


# === KerasHub ===


def write_keras_hub(directory: Path, name: str, **config: Any) -> None:
    cls = {"Bert": WORD, "Roberta": PAIR, "Albert": SENTENCE}[name.removesuffix("Tokenizer")]
    (directory / "assets/tokenizer").mkdir(parents=True)
    tiny(cls).save_assets(directory / "assets/tokenizer")
    write_json(directory / PIPELINE, {"class_name": name, "config": {"name": "a", "dtype": "int32", **config}})


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("BertTokenizer", {"split": False}, "`split` must be True, got False"),
        ("BertTokenizer", {"oov_token": "<unk>"}, "lacks the special tokens <unk>"),
        ("RobertaTokenizer", {"add_prefix_space": True}, "`add_prefix_space` must be False"),
        ("AlbertTokenizer", {"add_bos": True}, "`add_bos` must be False"),
    ],
)
def test_unsupported_settings_of_keras_hub_are_refused(
    directory: Path, name: str, config: dict[str, Any], message: str
) -> None:
    write_keras_hub(directory, name, **config)
    cls = {"B": WORD, "R": PAIR, "A": SENTENCE}[name[0]]
    with pytest.raises(PresetError, match=message):
        read_tokenizer(directory, cls)
    edit_json(directory / PIPELINE, put(config={"name": "a"}))
    tokenizer = read_tokenizer(directory, cls, SIZES[cls])
    assert tokenizer.vocabulary == tiny(cls).vocabulary
    assert tokenizer.get_config().get("lowercase") == {WORD: False, PAIR: None, SENTENCE: True}[cls]


def test_keras_hubs_files_are_checked(directory: Path, tmp_path: Path) -> None:
    write_keras_hub(directory, "BertTokenizer", lowercase=True, strip_accents=True)
    assert read_tokenizer(directory, WORD).get_config() == {"lowercase": True, "strip_accents": True}
    message = "assets/tokenizer is of a WordPieceTokenizer, but the model needs a BytePair"
    with pytest.raises(PresetError, match=message):
        read_tokenizer(directory, PAIR)
    edit_json(directory / PIPELINE, put(class_name="BloomTokenizer"))
    with pytest.raises(PresetError, match="holds a 'BloomTokenizer' of KerasHub; supported are AlbertTokenizer, "):
        read_tokenizer(directory, WORD)
    edit_json(directory / PIPELINE, put(class_name="BertTokenizer"))
    file = directory / "assets/tokenizer/vocabulary.txt"
    file.replace(tmp_path / "elsewhere")
    with pytest.raises(PresetError, match=r"No such file.*assets/tokenizer/vocabulary.txt"):
        read_tokenizer(directory, WORD)
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PresetError, match=r"vocabulary.txt is a link to .*elsewhere, which is outside the directory"):
        read_tokenizer(directory, WORD)
    shutil.rmtree(directory / "assets")
    with pytest.raises(PresetError, match="has no assets/tokenizer, where the vocabulary should be"):
        read_tokenizer(directory, WORD)


def test_the_class_of_another_family_is_written(directory: Path) -> None:
    write_tokenizer(tiny(WORD), directory, 7, "DistilBertTokenizer")
    config = json.loads((directory / CONFIG).read_text())
    assert (config["tokenizer_class"], config["model_max_length"]) == ("DistilBertTokenizer", 7)
