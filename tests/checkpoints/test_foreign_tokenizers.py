"""The files of a directory decide its tokenizer and how it packs texts, whatever the model's family."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from lmzoo.checkpoints.tokenizers.files import read_tokenizer, read_tokenizer_and_packing, write_tokenizer
from lmzoo.checkpoints.tokenizers.keras_hub import write_keras_hub_tokenizer
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.models import Backbone, CausalLM, TextClassifier, TextEmbedder
from lmzoo.presets.converting import save_checkpoint
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone
from lmzoo.text import (
    BytePairTokenizer,
    CharacterPairTokenizer,
    Packing,
    Preprocessor,
    WordPieceTokenizer,
    XlmRobertaTokenizer,
)
from lmzoo.text.tokenizers.bpe import END_OF_TEXT, ONLY_END_OF_TEXT
from lmzoo.text.tokenizers.xlmr_sentencepiece import convert_to_fairseq_ids
from tests.checkpoints.model_files import LABELS, peer
from tests.checkpoints.tokenizer_files import CONFIG, PIPELINE, all_texts, edit_json, put, write_json, write_vocabulary
from tests.text.trained import train_byte_pairs, train_xlm_roberta

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

MODEL_FILE = "sentencepiece.bpe.model"
TEXTS = ["The film's ``good'', 9,200!", "Un café", "", "a <mask> <s>b"]


@pytest.fixture(scope="module")
def published(root: Path) -> bytes:
    return train_xlm_roberta(root, ["Un café"] * 9)


def load_auto_tokenizer(directory: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(directory)


def write_only_the_model(directory: Path) -> None:
    write_json(directory / CONFIG, {"tokenizer_class": "XLMRobertaTokenizer"})


def write_as_saved(directory: Path) -> None:
    write_only_the_model(directory)
    load_auto_tokenizer(directory).save_pretrained(directory)
    (directory / MODEL_FILE).unlink()


def write_only_the_pipeline(directory: Path) -> None:
    write_as_saved(directory)
    (directory / CONFIG).unlink()


def write_generic(directory: Path) -> None:
    write_as_saved(directory)
    edit_json(directory / CONFIG, put(tokenizer_class="PreTrainedTokenizerFast"))


def write_as_version_4(directory: Path) -> None:
    """Write the files as transformers 4 did."""
    write_as_saved(directory)
    steps = {"type": "Sequence", "normalizers": [
        json.loads((directory / PIPELINE).read_text("utf-8"))["normalizer"],
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
    ]}  # fmt: skip
    splitter = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    edit_json(directory / PIPELINE, put(normalizer=steps, pre_tokenizer=splitter))
    edit_json(directory / CONFIG, put(tokenizer_class="XLMRobertaTokenizerFast"))


def write_bert(directory: Path, published: bytes, write: Callable[[Path], None]) -> tuple[Any, Any]:
    """Write a checkpoint of a BERT that has XLM-RoBERTa's tokenizer, like multilingual-e5-small.

    Args:
        directory: Directory of the checkpoint.
        published: XLM-RoBERTa's SentencePiece model.
        write: Function that writes the tokenizer's other files to the directory, in one of the published forms.

    Returns:
        The model and the tokenizer of transformers.
    """
    tokens = XlmRobertaTokenizer(convert_to_fairseq_ids(published)).vocabulary_size
    model = peer("bert", "ForSequenceClassification", directory, vocab_size=tokens + 7)
    (directory / MODEL_FILE).write_bytes(published)
    write_only_the_model(directory)
    tokenizer = load_auto_tokenizer(directory)
    write(directory)
    return model, tokenizer


def assert_same_rows(preprocessor: Preprocessor, theirs: Any, texts: list[str] = TEXTS) -> None:
    for arguments in ((texts,), (texts, texts[::-1])):
        encoded = preprocessor.encode(*arguments)
        assert [row.tolist() for row in encoded.by_sequence(encoded.token_ids)] == theirs(*arguments)["input_ids"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "write", [write_only_the_model, write_as_saved, write_only_the_pipeline, write_generic, write_as_version_4]
)
def test_a_bert_with_xlm_robertas_tokenizer(published: bytes, tmp_path: Path, write: Callable[[Path], None]) -> None:
    model, theirs = write_bert(tmp_path, published, write)
    task = TextClassifier.from_preset(tmp_path)
    assert type(task.preprocessor.tokenizer) is XlmRobertaTokenizer
    assert_same_rows(task.preprocessor, theirs)
    for inputs in (TEXTS, (TEXTS, TEXTS[::-1])):
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        assert not task.preprocessor(inputs)["segment_ids"].any()
        with torch.no_grad():
            expected = model(**theirs(*arguments, padding=True, return_tensors="pt")).logits.numpy()
        np.testing.assert_allclose(task.predict(inputs, verbose=0), expected, atol=1e-5)


def test_a_foreign_tokenizer_is_written_as_published(published: bytes, tmp_path: Path) -> None:
    _, theirs = write_bert(tmp_path / "theirs", published, write_only_the_model)
    task = TextClassifier.from_preset(tmp_path / "theirs")
    save_checkpoint(task, tmp_path / "ours", to="hf")
    assert (tmp_path / "ours" / MODEL_FILE).read_bytes() == published
    written = load_auto_tokenizer(tmp_path / "ours")
    assert type(written) is transformers.XLMRobertaTokenizer
    assert written(TEXTS, TEXTS[::-1])["input_ids"] == theirs(TEXTS, TEXTS[::-1])["input_ids"]
    reloaded = TextClassifier.from_preset(tmp_path / "ours")
    assert reloaded.preprocessor.packing == task.preprocessor.packing
    assert_same_rows(reloaded.preprocessor, theirs)


@pytest.mark.slow
def test_a_task_with_a_foreign_tokenizer_is_trained_saved_and_exported(published: bytes, tmp_path: Path) -> None:
    write_bert(tmp_path / "theirs", published, write_as_saved)
    task = TextClassifier.from_preset(tmp_path / "theirs", sequence_length=23)
    task.fit(TEXTS, LABELS[:4], batch_size=2, verbose=0)
    expected = task.classify(TEXTS)
    task.save(tmp_path / "task.keras")
    assert keras.saving.load_model(tmp_path / "task.keras").classify(TEXTS) == expected
    task.save_to_preset(tmp_path / "preset")
    assert TextClassifier.from_preset(tmp_path / "preset").classify(TEXTS) == expected
    if keras.backend.backend() != "tensorflow":
        return
    tf = pytest.importorskip("tensorflow")
    task.export(tmp_path / "exported")
    answers = tf.saved_model.load(tmp_path / "exported").signatures["serving_default"](text=tf.constant(TEXTS))
    for answer, label, scores in zip(expected, answers["label"].numpy(), answers["probabilities"].numpy(), strict=True):
        assert label.decode() == answer["label"]
        assert max(scores) == pytest.approx(answer["score"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_a_gpt2_with_berts_tokenizer(tmp_path: Path, named: bool) -> None:
    model = peer("gpt2", "LMHeadModel", tmp_path, vocab_size=11)
    words = [*WordPieceTokenizer.special_tokens, "我", "爱", "北", "京", "film", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), "utf-8")
    write_json(tmp_path / CONFIG, {"tokenizer_class": "BertTokenizer"})
    theirs = load_auto_tokenizer(tmp_path)
    if not named:
        (tmp_path / CONFIG).unlink()
    task = CausalLM.from_preset(tmp_path)
    texts = ["我爱 films", "北京", ""]
    assert_same_rows(task.preprocessor, theirs, texts)
    assert set(task.preprocessor(texts)) == {"token_ids", "padding_mask"}
    ids = torch.tensor(theirs(texts[:1])["input_ids"])
    with torch.no_grad():
        expected = model(ids).logits.numpy()
    logits = task.predict(texts[:1], verbose=0)[:, : ids.shape[1]]
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert len(task.generate(texts, max_new_tokens=3)) == 3
    save_checkpoint(task, tmp_path / "ours", to="hf")
    assert type(load_auto_tokenizer(tmp_path / "ours")) is transformers.BertTokenizer
    assert_same_rows(CausalLM.from_preset(tmp_path / "ours").preprocessor, theirs, texts)


# === Special tokens ===


def test_a_padding_token_without_the_id_of_transformers_is_refused(tmp_path: Path) -> None:
    """transformers would give no position to the start token, which has the id of padding there."""
    family = families()["roberta"]
    words = BytePairTokenizer.of_words(["film"], family.tiny.vocabulary_size)
    start, pad, *others = words.vocabulary
    save_checkpoint(tiny_backbone(family), tmp_path, to="hf")
    write_tokenizer(BytePairTokenizer([pad, start, *others], words.merges), tmp_path, 17)
    message = r"requires the padding token at id 1, but '<pad>' has id 0.*'<s>' would .*Load the backbone alone, or"
    with pytest.raises(PresetError, match=message):
        TextClassifier.from_preset(tmp_path, num_classes=3)
    preprocessor = Preprocessor(words, family.packing, 17)
    assert TextClassifier.from_preset(tmp_path, num_classes=3, preprocessor=preprocessor).preprocessor is preprocessor
    Backbone.from_preset(tmp_path)


def test_an_ordinary_token_at_the_id_of_padding_gives_a_warning(tmp_path: Path) -> None:
    """It changes the positions of the texts that hold it."""
    family = families()["roberta"]
    words = BytePairTokenizer.of_words(["film"], family.tiny.vocabulary_size)
    start, pad, *others = words.vocabulary
    ordinary = next(token for token in others if token not in words.special_tokens)
    others.remove(ordinary)
    save_checkpoint(tiny_backbone(family), tmp_path, to="hf")
    write_tokenizer(BytePairTokenizer([pad, ordinary, start, *others], words.merges), tmp_path, 17)
    with pytest.warns(UserWarning, match=re.escape(f"texts with {ordinary!r} would get other positions. Load the")):
        assert TextClassifier.from_preset(tmp_path, num_classes=3).preprocessor.tokenizer.pad_id == 0


def test_a_gpt2_with_its_own_start_and_end_tokens(tmp_path: Path) -> None:
    words = BytePairTokenizer.of_words(["film"], 277, **ONLY_END_OF_TEXT)
    peer("gpt2", "LMHeadModel", tmp_path, vocab_size=280)
    write_vocabulary(tmp_path, words)
    write_json(tmp_path / "added_tokens.json", {"<BOS>": 277, "<EOS>": 278, "<PAD>": 279})
    unknown = {"content": END_OF_TEXT, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    roles = {"bos_token": "<BOS>", "eos_token": "<EOS>", "unk_token": unknown, "pad_token": "<PAD>"}
    write_json(tmp_path / "special_tokens_map.json", roles)
    task = CausalLM.from_preset(tmp_path)
    packing = Packing("", "<EOS>", ("<EOS>",), segments=False)
    save_checkpoint(task, tmp_path / "ours", to="hf")
    for loaded in (task, CausalLM.from_preset(tmp_path / "ours")):
        tokenizer = loaded.preprocessor.tokenizer
        tokens = (tokenizer.start_token, tokenizer.end_token, tokenizer.unk_token, tokenizer.pad_token)
        assert tokens == ("<BOS>", "<EOS>", END_OF_TEXT, "<PAD>")
        ids = [277, words.token_to_id("Ġfilm"), words.token_to_id(END_OF_TEXT), 278]
        assert tokenizer.tokenize([f"<BOS> film{END_OF_TEXT}<EOS>"]) == [ids]
        assert loaded.preprocessor.packing == packing
    assert json.loads((tmp_path / "ours" / CONFIG).read_text("utf-8"))["tokenizer_class"] == "GPT2Tokenizer"
    embedder = TextEmbedder(task.backbone, preprocessor=task.preprocessor)
    with pytest.raises(PresetError, match="cannot express '<EOS>' at the end of a text"):
        save_checkpoint(embedder, tmp_path / "embedder", to="hf")
    preprocessor = Preprocessor(tokenizer, dataclasses.replace(packing, end=""), 17)
    save_checkpoint(embedder, tmp_path / "embedder", to="hf", preprocessor=preprocessor)
    assert TextEmbedder.from_preset(tmp_path / "embedder").preprocessor.packing.end == ""


# === Packing ===

CLS, SEP = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
A, B = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}


def template(single: list[Any], pair: list[Any]) -> dict[str, Any]:
    tokens = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in (("[CLS]", 2), ("[SEP]", 3))}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


ANY = "PreTrainedTokenizerFast"
PACKINGS = [
    (ANY, template([CLS, A], [CLS, A, SEP, B]), {}),
    (ANY, template([A, SEP], [A, SEP, SEP, CLS, B, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]), {}),
    (ANY, {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}, {}),
    (ANY, {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": True,
           "add_prefix_space": False}, {}),
    (ANY, {"type": "Sequence", "processors": [template([CLS, A], [CLS, A, B])]}, {}),
    (ANY, None, {}),
    (ANY, template([A], [A, B]), {}),
    ("BertTokenizer", None, {}),
    ("BertTokenizerFast", None, {"model_input_names": ["input_ids", "attention_mask"]}),
    ("DistilBertTokenizer", None, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "processor", "settings"), PACKINGS)
def test_texts_are_packed_as_the_files_say(tmp_path: Path, name: str, processor: Any, settings: dict[str, Any]) -> None:
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    write_tokenizer(WordPieceTokenizer.of_words(["good", "film"], 11), tmp_path, 64)
    edit_json(tmp_path / CONFIG, put(tokenizer_class=name, **settings))
    edit_json(tmp_path / PIPELINE, put(post_processor=processor))
    tokenizer, packing = read_tokenizer_and_packing(JsonFiles(tmp_path), families()["bert"])
    theirs, texts = load_auto_tokenizer(tmp_path), ["good film", "film", "x"]
    assert_same_rows(Preprocessor(tokenizer, packing), theirs, texts)
    types = theirs(texts, texts).get("token_type_ids")
    if name != ANY:  # by default, version 5 omits the segments that the file gives
        assert packing.segments == (types is not None)
    copy = tmp_path / "copy"
    copy.mkdir()
    write_tokenizer(tokenizer, copy, 64, packing=packing)
    write_json(copy / "config.json", {"model_type": "bert"})
    written = load_auto_tokenizer(copy)(texts, texts)
    assert written["input_ids"] == theirs(texts, texts)["input_ids"]
    assert ("token_type_ids" in written) == packing.segments
    assert read_tokenizer_and_packing(JsonFiles(copy), families()["bert"])[1] == packing


@pytest.mark.parametrize("cls", [WordPieceTokenizer, BytePairTokenizer])
def test_special_tokens_of_a_generic_class_are_the_files(tmp_path: Path, cls: type[Any]) -> None:
    roles = {"pad_token": "<p>", "unk_token": "<u>", "start_token": "<c>", "end_token": "<e>", "mask_token": "<m>"}
    tokenizer = cls.of_words(["good", "film"], 271, **roles)
    packing = Packing("<c>", "<e>", ("<e>",), segments=True)
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    write_tokenizer(tokenizer, tmp_path, 64, packing=packing)
    reloaded, reloaded_packing = read_tokenizer_and_packing(JsonFiles(tmp_path), families()["bert"])
    assert reloaded.get_config() == tokenizer.get_config()
    assert reloaded_packing == packing
    assert_same_rows(Preprocessor(reloaded, packing), load_auto_tokenizer(tmp_path), ["good <m> film", "[MASK] x"])


def test_the_class_packs_whatever_tokenizer_json_says(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    write_tokenizer(WordPieceTokenizer.of_words(["good", "film"], 11), tmp_path, 64)
    edit_json(tmp_path / PIPELINE, put(post_processor=template([CLS, A], [CLS, A, SEP, B])))
    message = (
        r"tokenizer.json: `post_processor` packs texts as '\[CLS\] A \[SEP\] B', but a BertTokenizer of transformers "
        r"as '\[CLS\] A \[SEP\] B \[SEP\]', which lmzoo follows"
    )
    with pytest.warns(UserWarning, match=message):
        tokenizer, packing = read_tokenizer_and_packing(JsonFiles(tmp_path), families()["bert"])
    assert_same_rows(Preprocessor(tokenizer, packing), load_auto_tokenizer(tmp_path), ["good film", "x"])


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (template([CLS, CLS, A], [CLS, CLS, A, B]), "packs texts as '.CLS. .CLS. .A' and .* which lmzoo does not"),
        (template([A, SEP], [A, SEP, B]), "packs texts as '.A .SEP.' and '.A .SEP. .B', which lmzoo does not support"),
        (template([A], [B, A]), "packs texts as '.A' and '.B .A'"),
        (template([CLS, A], [CLS, A, {"SpecialToken": {"id": "[CLS]", "type_id": 1}}, B]), "which lmzoo does not"),
        ({"type": "BertProcessing", "sep": ["[SEP]", 4], "cls": ["[CLS]", 2]}, "gives '.SEP.' the id 4, which is not"),
        ({"type": "Invented"}, "the `post_processor` is a 'Invented', which lmzoo does not support"),
    ],
)
def test_unsupported_packings_are_refused(tmp_path: Path, processor: Any, message: str) -> None:
    write_tokenizer(WordPieceTokenizer.of_words(["film"], 11), tmp_path, 64)
    edit_json(tmp_path / CONFIG, put(tokenizer_class=ANY))
    edit_json(tmp_path / PIPELINE, put(post_processor=processor))
    with pytest.raises(PresetError, match=message):
        read_tokenizer_and_packing(JsonFiles(tmp_path), families()["bert"])


def test_segments_have_no_effect_in_decoders(tmp_path: Path) -> None:
    """transformers 5 gives the start token of a pair's second text the segment 1."""
    write_tokenizer(BytePairTokenizer.of_words(["film"], 277, **ONLY_END_OF_TEXT), tmp_path, 64, "GPT2Tokenizer")
    start, second_start = ({"SpecialToken": {"id": END_OF_TEXT, "type_id": segment}} for segment in (0, 1))
    id = read_tokenizer(tmp_path, BytePairTokenizer).token_to_id(END_OF_TEXT)
    processor = template([start, A], [start, A, second_start, B])
    processor["special_tokens"] = {END_OF_TEXT: {"id": END_OF_TEXT, "ids": [id], "tokens": [END_OF_TEXT]}}
    edit_json(tmp_path / PIPELINE, put(post_processor=processor))
    _, packing = read_tokenizer_and_packing(JsonFiles(tmp_path), families()["gpt2"])
    assert packing == Packing(END_OF_TEXT, "", (END_OF_TEXT,), segments=False)


@pytest.mark.tf_only
def test_a_bert_of_keras_hub_with_xlm_robertas_tokenizer(published: bytes, tmp_path: Path) -> None:
    keras_hub = pytest.importorskip("keras_hub").models
    write_keras_hub_tokenizer(XlmRobertaTokenizer(published), tmp_path, "XLMRobertaTokenizer")
    preprocessor = Preprocessor(*read_tokenizer_and_packing(JsonFiles(tmp_path), families()["bert"]), 23)
    theirs = keras_hub.BertTextEmbedderPreprocessor(keras_hub.XLMRobertaTokenizer(published), sequence_length=23)
    for inputs in (["Un café", "a film"], (["Un café", "a film"], ["The film", "a"])):
        expected = {name: np.asarray(values) for name, values in theirs(x=inputs).items()}
        real = expected["padding_mask"].astype(bool)
        rows = preprocessor(inputs)
        for name in ("token_ids", "segment_ids"):
            values = np.asarray(rows[name])
            np.testing.assert_array_equal(values[np.asarray(rows["padding_mask"]) > 0], expected[name][real])
    with pytest.raises(PresetError, match="is of a XlmRobertaTokenizer, but the model needs a BytePairTokenizer"):
        read_tokenizer_and_packing(JsonFiles(tmp_path), families()["roberta"])


# === Byte-level BPE ===


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [text for text in all_texts(701) if "<pad>" not in text]  # see `BytePairTokenizer`


@pytest.mark.slow
@pytest.mark.parametrize("adds_space", [True, False])
def test_prefix_spaces_and_unused_ids_are_kept(root: Path, tmp_path: Path, texts: list[str], adds_space: bool) -> None:
    trained = train_byte_pairs(root, texts)
    merges = json.loads(trained.to_str())["model"]["merges"]
    ids = {token: id if id < 907 else id + 7 for token, id in trained.get_vocab().items()}
    tokenizer = BytePairTokenizer(ids, merges, add_prefix_space=adds_space)
    assert tokenizer.vocabulary[907:914] == [""] * 7
    write_json(tmp_path / "config.json", {"model_type": "roberta"})
    write_tokenizer(tokenizer, tmp_path, 64)
    mask = transformers.AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, mask_token=mask)
    texts = [*texts, " <mask>a", "  <mask> a", "<s> <mask>", "a", " a", "  a", "<s>b"]
    for _ in ("with tokenizer.json", "without it"):
        reloaded = read_tokenizer(tmp_path, BytePairTokenizer, len(tokenizer.vocabulary))
        assert reloaded.vocabulary == tokenizer.vocabulary
        assert reloaded.get_config() == {"add_prefix_space": adds_space}
        (tmp_path / PIPELINE).unlink(missing_ok=True)
    encoded = theirs(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    spans = reloaded.tokenize_with_offsets(texts)
    assert reloaded.tokenize(texts) == encoded["input_ids"]
    assert [[span[2:] for span in row] for row in spans] == encoded["offset_mapping"]
    tf = pytest.importorskip("tensorflow")
    from lmzoo.text.graphs import graph_tokenizer

    ids, offsets = graph_tokenizer(reloaded).with_offsets(tf.constant([text.encode() for text in texts]))
    assert ids.to_list() == encoded["input_ids"]
    assert [[tuple(span) for span in row] for row in offsets.to_list()] == encoded["offset_mapping"]


def test_files_that_ask_for_untrimmed_offsets_give_a_warning(tmp_path: Path) -> None:
    """Our offsets exclude spaces. GPT-2's files always ask for spaces, and give no warning."""
    write_json(tmp_path / "config.json", {"model_type": "roberta"})
    tokenizer = BytePairTokenizer.of_words(["good", "film"], 277)
    write_tokenizer(tokenizer, tmp_path, 64)
    stored = json.loads((tmp_path / PIPELINE).read_text())["post_processor"]
    expected = tokenizer.tokenize_with_offsets(["a good film"])
    untrimmed = {**stored, "trim_offsets": False}
    for processor in (untrimmed, {"type": "Sequence", "processors": [untrimmed]}):
        edit_json(tmp_path / PIPELINE, put(post_processor=processor))
        with pytest.warns(UserWarning, match=r"/tokenizer.json: `post_processor.trim_offsets` is false, but the offs"):
            assert read_tokenizer(tmp_path, BytePairTokenizer).tokenize_with_offsets(["a good film"]) == expected
    edit_json(tmp_path / PIPELINE, put(post_processor=stored))
    edit_json(tmp_path / CONFIG, put(trim_offsets=False))
    with pytest.warns(UserWarning, match=r"/tokenizer_config.json: ignoring `trim_offsets` \(False\)"):
        read_tokenizer(tmp_path, BytePairTokenizer)
    edit_json(tmp_path / CONFIG, put(trim_offsets=True))
    edit_json(tmp_path / PIPELINE, put(post_processor={"type": "ByteLevel", "trim_offsets": False}))
    read_tokenizer(tmp_path, BytePairTokenizer)


def test_gpt2_with_a_prefix_space(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "gpt2"})
    tokenizer = BytePairTokenizer.of_words(["good", "film"], 271, add_prefix_space=True, **ONLY_END_OF_TEXT)
    write_tokenizer(tokenizer, tmp_path, 64, "GPT2Tokenizer")
    theirs, family = load_auto_tokenizer(tmp_path), families()["gpt2"]
    reloaded, packing = read_tokenizer_and_packing(JsonFiles(tmp_path), family)
    assert packing == family.packing
    assert reloaded.tokenize(["good film"]) == tokenizer.tokenize([" good film"]) == [theirs("good film")["input_ids"]]
    edit_json(tmp_path / CONFIG, put(add_bos_token=True))
    assert read_tokenizer_and_packing(JsonFiles(tmp_path), family)[1] == packing  # transformers ignores it
    assert load_auto_tokenizer(tmp_path)("good film")["input_ids"] == theirs("good film")["input_ids"]
    (tmp_path / PIPELINE).unlink()
    reloaded, packing = read_tokenizer_and_packing(JsonFiles(tmp_path), family)
    assert_same_rows(Preprocessor(reloaded, packing), load_auto_tokenizer(tmp_path), ["good film", "x"])


def test_unused_ids_of_characters(tmp_path: Path) -> None:
    ids = {"<unk>": 0, "a": 1, "f": 3, "a</w>": 4, "f</w>": 5, "fa</w>": 7}
    tokenizer = CharacterPairTokenizer(ids, ["f a</w>"])
    tokenizer.save_assets(tmp_path)
    reloaded = CharacterPairTokenizer()
    reloaded.load_assets(tmp_path)
    assert reloaded.vocabulary == ["<unk>", "a", "", "f", "a</w>", "f</w>", "", "fa</w>"]
    assert reloaded.tokenize(["fa aaf !"]) == [[7, 1, 1, 5, 0]]
    tf = pytest.importorskip("tensorflow")
    from lmzoo.text.graphs import graph_tokenizer

    assert graph_tokenizer(reloaded)(tf.constant(["fa aaf !"])).to_list() == [[7, 1, 1, 5, 0]]
    reloaded.add_tokens(["[X]"])  # its id is the next one, not the number of tokens
    assert reloaded.tokenize(["fa [X]"]) == graph_tokenizer(reloaded)(tf.constant(["fa [X]"])).to_list() == [[7, 8]]


def test_ids_must_be_dense_and_unique(tmp_path: Path) -> None:
    write_tokenizer(BytePairTokenizer.of_words(["film"], 271), tmp_path, 64)
    edit_json(tmp_path / PIPELINE, put(model__vocab__Ġfilm=10**9))
    with pytest.raises(PresetError, match=r"'Ġfilm' has the id 1000000000, but 271 tokens must have ids from 0 to"):
        read_tokenizer(tmp_path, BytePairTokenizer)
    edit_json(tmp_path / PIPELINE, put(model__vocab__Ġfilm=7))
    with pytest.raises(PresetError, match=r"The id 7 belongs to two tokens, .*'Ġfilm'"):
        read_tokenizer(tmp_path, BytePairTokenizer)


def test_files_of_two_kinds_are_refused(tmp_path: Path) -> None:
    write_tokenizer(WordPieceTokenizer.of_words(["film"], 11), tmp_path, 64)
    edit_json(tmp_path / CONFIG, put(tokenizer_class="RobertaTokenizer"))
    message = "tokenizer_config.json: the tokenizer is a RobertaTokenizer, but tokenizer.json holds one of another kind"
    for cls in (WordPieceTokenizer, BytePairTokenizer):
        with pytest.raises(PresetError, match=message):
            read_tokenizer(tmp_path, cls)
