"""Byte-level BPE of normalized texts in files of the published form, with special tokens after the vocabulary."""

from __future__ import annotations

import json

import pytest

from lmzoo.checkpoints.tokenizers.files import read_tokenizer, read_tokenizer_and_packing, write_tokenizer
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.registry.family import families
from lmzoo.text import BytePairTokenizer, NormalizedBytePairTokenizer
from lmzoo.text.tokenizers.bpe import BYTE_TOKENS
from tests.checkpoints.tokenizer_files import edit_json
from tests.text.varied import sizes, varied_texts

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

FAMILY = families()["modernbert"]
SPACES = [" " * count for count in (7, 5, 3, 2)]
SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
PARTS = [
    *SPECIAL,
    *SPACES,
    " ",
    "\n",
    "|||EMAIL|||",
    "<|endoftext|>",
    "[unused1]",
    "e\u0301",
    "\u0323",
    "[MASK",
    "]",
    "café",
]


def write_published(directory) -> None:
    """Write a tokenizer as in ModernBERT's repositories: added tokens are spaces, special tokens and unused ones."""
    pairs = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ã", "©"), ("f", "Ã©"), ("a", "fÃ©"), ("c", "afÃ©"), ("Ġ", "cafÃ©")]
    vocabulary = ["|||IP|||", "<|padding|>", *BYTE_TOKENS, *map("".join, pairs)]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(vocabulary)}, pairs))
    backend.normalizer = tokenizers.normalizers.NFC()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    token = tokenizers.AddedToken
    backend.add_tokens([token("|||IP|||", normalized=True), *(token(s, normalized=True) for s in SPACES)])
    backend.add_special_tokens([token("<|padding|>", normalized=False)])
    backend.add_tokens([token("|||EMAIL|||", normalized=True)])
    backend.add_special_tokens([token("<|endoftext|>", normalized=False)])
    backend.add_special_tokens([token(t, normalized=False, lstrip=t == "[MASK]") for t in SPECIAL])
    backend.add_tokens([token(f"[unused{i}]", normalized=True) for i in range(3)])
    ids = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"
    backend.post_processor = tokenizers.processors.TemplateProcessing(single, pair, ids)
    backend.save(str(directory / "tokenizer.json"))
    names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": True,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 8192,
        **{f"{name}_token": token for name, token in names.items()},
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module", params=sizes(10_000))
def texts(request) -> list[str]:
    texts = varied_texts(request.param, 2017, PARTS)
    return [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in texts]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    directory = tmp_path_factory.mktemp("published")
    write_published(directory)
    return directory


def trim_offsets(peer):
    """Return the same pipeline with trimmed offsets like ours; the published one does not trim."""
    backend = tokenizers.Tokenizer.from_str(peer.backend_tokenizer.to_str())
    backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
    return backend


def test_ids_and_offsets_equal_those_of_transformers(published, texts):
    ours, packing = read_tokenizer_and_packing(JsonFiles(published), FAMILY, 280)
    peer = transformers.AutoTokenizer.from_pretrained(published)
    assert type(ours) is NormalizedBytePairTokenizer
    assert ours.vocabulary_size == len(peer) == 280
    assert packing == FAMILY.packing
    encodings = trim_offsets(peer).encode_batch(texts, add_special_tokens=False)
    rows = ours.tokenize_with_offsets(texts)
    expected = peer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    for text, row, ids, encoding in zip(texts, rows, expected, encodings, strict=True):
        assert [span.id for span in row] == ids, ascii(text)
        assert [tuple(span[2:]) for span in row] == encoding.offsets, ascii(text)
    assert ours.tokenize(texts) == expected


@pytest.mark.tf_only
def test_graphs_give_the_ids_and_offsets_of_python(published, texts):
    import tensorflow as tf

    from lmzoo.text.graphs import graph_tokenizer

    ours = read_tokenizer(published, NormalizedBytePairTokenizer)
    ids, spans = tf.function(graph_tokenizer(ours).with_offsets)(tf.constant(texts))
    expected = ours.tokenize_with_offsets(texts)
    assert ids.to_list() == [[span.id for span in row] for row in expected]
    assert spans.to_list() == [[list(span[2:]) for span in row] for row in expected]


def test_written_files_give_the_same_ids_and_offsets(published, texts, tmp_path):
    """Both libraries read them, and pack texts in the same way."""
    ours, packing = read_tokenizer_and_packing(JsonFiles(published), FAMILY)
    write_tokenizer(ours, tmp_path, 8192, None, packing)
    reloaded, reloaded_packing = read_tokenizer_and_packing(JsonFiles(tmp_path), FAMILY)
    assert (reloaded.get_config(), reloaded.vocabulary, reloaded_packing) == (
        ours.get_config(),
        ours.vocabulary,
        packing,
    )
    original, written = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (published, tmp_path))
    assert written("a café", "b")["input_ids"] == original("a café", "b")["input_ids"]
    sample = texts[:701]
    encoded = written(sample, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    assert encoded["input_ids"] == ours.tokenize(sample)
    spans = [[tuple(span[2:]) for span in row] for row in ours.tokenize_with_offsets(sample)]
    assert [[tuple(pair) for pair in row] for row in encoded["offset_mapping"]] == spans


def test_without_a_packing_pairs_are_packed_as_in_bert(tmp_path):
    ours = NormalizedBytePairTokenizer.of_words(["good"], 277)
    write_tokenizer(ours, tmp_path, 512)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    start, end = map(ours.token_to_id, ("[CLS]", "[SEP]"))
    (first,), (second,) = ours.tokenize(["good"]), ours.tokenize([" x"])
    assert peer("good", " x")["input_ids"] == [start, *first, end, *second, end]


@pytest.mark.parametrize(("kind", "expected"), [("NFC", NormalizedBytePairTokenizer), (None, BytePairTokenizer)])
def test_the_normalizer_tells_the_class(kind, expected, tmp_path):
    write_tokenizer(expected.of_words(["good"], 277), tmp_path, 512)
    edit_json(tmp_path / "tokenizer_config.json", lambda config: config.pop("tokenizer_class"))
    for cls in (NormalizedBytePairTokenizer, BytePairTokenizer):
        assert type(read_tokenizer(tmp_path, cls)) is expected


def test_other_normalizers_are_refused(tmp_path):
    write_published(tmp_path)
    edit_json(tmp_path / "tokenizer.json", lambda pipeline: pipeline.update(normalizer={"type": "NFKC"}))
    with pytest.raises(PresetError, match=r"`normalizer\.type` is 'NFKC', but lmzoo supports only 'NFC'"):
        read_tokenizer(tmp_path, NormalizedBytePairTokenizer)
