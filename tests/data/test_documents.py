"""Documents from files and streams: their sentences, counts and errors."""

from __future__ import annotations

import gzip
import json
import lzma

import numpy as np
import pytest

from lmzoo.data.corpora import (
    pack_documents,
    pack_sentences,
    read_documents,
    segment_pairs,
    split_documents,
    train_tokenizer,
    train_words,
    write_corpus,
)
from lmzoo.data.readers import TableStream
from lmzoo.text import Packing, Preprocessor, TextWarning, WordPieceTokenizer
from lmzoo.text.validate_text import collect_warnings

TEXT = "\ufeffIt rained. We stayed in.\r\nSo did they.\n\n\n \nFine.\n"
PACK = Preprocessor(WordPieceTokenizer.of_words(["fine", "."], 11), Packing("[CLS]", "[SEP]", ("[SEP]",), True), 16)
DOCUMENTS = [["It rained.", "We stayed in.", "So did they."], ["Fine."]]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_text_files(write_file, pack):
    path = write_file("a.txt", pack(TEXT.encode()))
    assert list(read_documents(path)) == DOCUMENTS
    lines = [["It rained. We stayed in.", "So did they."], ["Fine."]]
    assert list(read_documents(str(path), split=False)) == lines


def test_json_lines(write_file):
    rows = [{"body": "It rained. We stayed in.\n\nSo did they."}, {"body": ["Fine."]}, {"body": None}, {"body": " \n"}]
    path = write_file("a.jsonl.gz", gzip.compress("\n\n".join(map(json.dumps, rows)).encode()))
    with pytest.warns(TextWarning, match="^2 of 4 documents were empty and were left out") as caught:
        assert list(read_documents(path, field="body")) == DOCUMENTS
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["c4-train.00003-of-00007.json.gz", "c4.JSON"])
def test_json_files_are_json_lines(write_file, tmp_path, name):
    content = "".join(json.dumps({"text": text, "url": "a"}) + "\n" for text in ("It rained.", "Fine."))
    write_file(name, gzip.compress(content.encode()) if name.endswith(".gz") else content)
    for path in (name, "c4*", ""):
        assert list(read_documents(tmp_path / path)) == [["It rained."], ["Fine."]]


def test_tables_are_not_documents(write_file, tmp_path):
    path = write_file("a.csv.gz", gzip.compress(b"id,body\n1,It rained.\n2,Fine.\n"))
    for source in (path, tmp_path / "*.gz", write_file("b.tsv", "a\tb\n"), write_file("c.parquet", b"PAR1")):
        with pytest.raises(
            ValueError, match=r"\.(csv\.gz|tsv|parquet) is a table, not text\. Convert it to JSON lines"
        ):
            read_documents(source)
    assert list(split_documents(TableStream(path), field="body")) == [["It rained."], ["Fine."]]


def test_directories_patterns_and_lists(write_file, tmp_path):
    for name in ("b.txt", "a/z.txt.xz", "a/c.jsonl", "README.md", "a/index.tsv.xz", "a/_c.jsonl"):
        content = json.dumps({"text": name}) if "jsonl" in name else name
        write_file(name, lzma.compress(content.encode()) if name.endswith(".xz") else content)

    def read_names(*names):
        paths = [tmp_path / name for name in names]
        return [document[0] for document in read_documents(paths if len(paths) > 1 else paths[0])]

    assert read_names("") == ["a/c.jsonl", "a/z.txt.xz", "b.txt"]
    assert read_names("a/_c.jsonl") == ["a/_c.jsonl"]
    assert read_names("*.txt") == ["b.txt"]
    assert read_names("**/*.txt*") == ["a/z.txt.xz", "b.txt"]
    assert read_names("b.txt", "a", "README.md") == ["b.txt", "a/c.jsonl", "a/z.txt.xz", "README.md"]
    assert read_names("*") == ["README.md", "a/c.jsonl", "a/z.txt.xz", "b.txt"]


def test_files_are_read_on_demand(write_file):
    documents = read_documents([write_file("a.txt", "Fine.\n\nBad.\n"), write_file("b.txt", b"\0")])
    assert [next(documents), next(documents)] == [["Fine."], ["Bad."]]
    with pytest.raises(ValueError, match=r"b\.txt is binary"):
        next(documents)


def test_files_without_text_are_counted(write_file, tmp_path):
    for name, content in {"a.txt": "", "b.txt": "\n \n\n", "c.txt": "\n\nFine.\n\n"}.items():
        write_file(name, content)
    with collect_warnings() as caught:
        assert list(read_documents(tmp_path)) == [["Fine."]]
    assert caught == ["2 of 3 documents were empty and were left out."]


BINARY = [
    (b"caf\xe9\n", 3, "e9"),
    (b"one line\nand \x00more\xff\n", 13, "00"),
    (b"a\n" * 9 + b"b\xff\x00", 19, "ff"),
    (gzip.compress(b"text\nPK\x03\x04\0\0", mtime=0), 9, "00"),
]


@pytest.mark.parametrize(("content", "byte", "value"), BINARY)
def test_binary_files_are_refused(write_file, content, byte, value):
    message = rf"a\.txt is binary or not encoded in UTF-8: byte {byte} of its text is 0x{value}"
    with pytest.raises(ValueError, match=message):
        list(read_documents(write_file("a.txt", content)))


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_truncated_archives_are_refused(write_file, pack):
    data = pack(TEXT.encode() * 99)
    with pytest.raises(ValueError, match=r"a\.txt\.gz is a damaged archive"):
        list(read_documents(write_file("a.txt.gz", data[: len(data) // 2])))


ERRORS = [
    ("not json", "line 2 is not JSON"),
    ("[3]", r"line 2 is not a JSON object"),
    ('{"txet": "a"}', r"line 2 has no 'text' \(`field`\).* Did you mean 'txet'"),
    ('{"text": ["a", 7]}', r"line 2: 'text' must be a string or a list of strings, got \[\"a\", 7\]"),
]


@pytest.mark.parametrize(("line", "message"), ERRORS)
def test_errors_of_json_lines(write_file, line, message):
    with pytest.raises(ValueError, match=rf"a\.jsonl, {message}"):
        list(read_documents(write_file("a.jsonl", f'{{"text": "Fine."}}\n{line}\n')))


def test_a_json_array_is_refused(write_file):
    path = write_file("a.json", '[{"text": "Fine."}]')
    with pytest.raises(ValueError, match=r"a\.json, line 1 is not a JSON object"):
        list(read_documents(path))


def test_missing_files_are_named(write_file, tmp_path):
    write_file("a.csv", "text\n")
    for path, message in (("", r"holds no \.txt"), ("b.txt", r"There is no .*b\.txt"), ("*.txt", "There is no")):
        with pytest.raises(FileNotFoundError, match=message):
            read_documents(tmp_path / path)


def test_iterables_of_texts():
    texts = ["It rained. We stayed in.\nSo did they.", "Fine."]
    assert list(split_documents(iter(texts))) == DOCUMENTS
    assert list(split_documents([texts[0].split("\n"), texts[1].encode()])) == DOCUMENTS
    assert list(split_documents(np.array(texts))) == DOCUMENTS
    assert next(split_documents(texts, split=False)) == ["It rained. We stayed in.", "So did they."]


def test_tensorflow_datasets_of_texts():
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(
        [" ", TEXT[1:], "Fine.", "Caf\udcc3.".encode(errors="surrogateescape")]
    )
    for batched in (dataset, dataset.batch(3)):
        with collect_warnings() as caught:
            documents = list(split_documents(batched))
        assert documents == [DOCUMENTS[0] + ["Fine."], ["Fine."], ["Caf\ufffd."]]
        assert [message[:11] for message in caught] == ["1 of 4 docu", "1 documents"]


def test_iterables_of_records():
    rows = [{"title": "A", "body": "It rained. We stayed in.\nSo did they."}, {"title": "B", "body": None}]
    with collect_warnings() as caught:
        documents = list(split_documents(iter([*rows, {"body": ["Fine."]}]), field="body"))
    assert documents == DOCUMENTS
    assert caught == ["1 of 3 documents were empty and were left out."]
    assert list(split_documents([{"text": "Fine."}])) == [["Fine."]]
    with pytest.raises(ValueError, match=r"documents\[1\] has no 'text' \(`field`\).* Did you mean 'txet'"):
        list(split_documents([{"text": "a"}, {"txet": "b"}]))


def test_tensorflow_datasets_of_records():
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices({"text": ["Fine.", "It rained. We stayed in."], "label": [0, 1]})
    for batched in (dataset, dataset.batch(2)):
        assert list(split_documents(batched)) == [["Fine."], ["It rained.", "We stayed in."]]


class Table:
    columns = ("text",)

    def __iter__(self):
        return iter(self.columns)


CONSUMERS = [
    lambda documents: write_corpus(documents, PACK.tokenizer, "never"),
    lambda documents: pack_documents(documents, PACK),
    lambda documents: pack_sentences(documents, PACK),
    lambda documents: segment_pairs(documents, PACK, "nsp", np.random.default_rng(3)),
    lambda documents: train_tokenizer(documents, WordPieceTokenizer, 99, verbose=False),
    lambda documents: train_words(documents, 99),
]


@pytest.mark.parametrize("consume", CONSUMERS)
def test_records_and_tables_are_not_documents(consume, tmp_path, monkeypatch):
    """Iterating over a record or a table gives names, which must not be read as text."""
    monkeypatch.chdir(tmp_path)
    message = r"`documents\[1\]` is a record of 'text', 'label', not a text: `lmzoo\.data\.corpora\.split_documents"
    with pytest.raises(TypeError, match=message):
        consume([["Fine."], {"text": "Fine.", "label": 1}])
    for table in ({"text": ["Fine."]}, Table(), "Fine."):
        with pytest.raises(TypeError, match="Expected a list of documents, each a list of sentences; got"):
            consume(table)


def test_errors_of_streams():
    for table in ({"text": ["Fine."]}, Table()):
        with pytest.raises(TypeError, match="Expected a list of documents"):
            split_documents(table)
    with pytest.raises(TypeError, match=r"got one string; write \['a text'\]"):
        split_documents("a text")
    with pytest.raises(TypeError, match=r"`documents\[1\]\[1\]` must be a string, got 7"):
        list(split_documents([["a"], ["b", 7]]))
    with pytest.raises(TypeError, match=r"`documents\[1\]` must be a string or a list of strings, got 7"):
        list(split_documents(["a", 7]))
