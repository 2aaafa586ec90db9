"""`lmzoo prepare`: its options and the counts it prints."""

from __future__ import annotations

import sys

import pytest

from lmzoo.data.corpora import TokenCorpus
from tests.cli.commands import error_of, run

PRESET = "bert_nano_en_uncased"


@pytest.fixture
def documents(tmp_path):
    (tmp_path / "a.txt").write_text("It rained all day. We stayed in.\n\nShort.\n\nEs regnete den ganzen Tag lang.")
    (tmp_path / "b.jsonl").write_text('{"body": "It rained all day. We stayed in."}\n{"body": "The sun shone."}\n')
    return [tmp_path / "a.txt", tmp_path / "b.jsonl"]


def test_documents_become_a_corpus(documents, tmp_path):
    options = ["--duplicates", "exact", "--language", "en", "--min-characters", 9, "--field", "body", "--no-split"]
    result = run("prepare", *documents, tmp_path / "corpus", "--tokenizer", PRESET, *options, "--shard-tokens", 3)
    corpus = TokenCorpus(tmp_path / "corpus")
    counts = dict(line.split("\t") for line in result.stdout.splitlines())
    assert counts == {
        "documents": "2",
        "tokens": str(corpus.num_tokens),
        "other languages": "1",
        "too short": "1",
        "exact duplicates": "1",
    }
    assert len(corpus.shards) == corpus.num_sentences == 2


def test_errors_of_options_and_files(documents, tmp_path, monkeypatch):
    common = [*documents, tmp_path / "corpus", "--tokenizer", PRESET]
    cases = [
        ([*documents, tmp_path / "corpus", "--tokenizer", "none"], "Unknown preset 'none'"),
        ([*common, "--field", "text"], "b.jsonl, line 1 has no 'text'"),
        ([*common, "--language", "xx"], "The language 'xx' is unknown"),
        ([*common, "--ray", "auto"], "--ray needs the number of workers"),
        ([tmp_path / "c.txt", *common[2:]], "There is no"),
    ]
    for arguments, message in cases:
        assert message in error_of("prepare", *arguments)
    monkeypatch.setitem(sys.modules, "ray", None)
    message = error_of("prepare", *documents, tmp_path / "other", "--tokenizer", PRESET, "--workers", 2)
    assert "Workers need Ray: pip install 'lmzoo[scale]'" in message
