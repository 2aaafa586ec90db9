"""Packing documents and sentences into rows for pretraining."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.data.corpora import pack_documents, pack_sentences, sequences
from lmzoo.text import TextWarning, WordPieceTokenizer
from lmzoo.text.validate_text import collect_warnings
from tests.data.small_corpora import packer

TOKENIZER = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "##a", "b", "##b", "##c", ","])
CLS, SEP = TOKENIZER.token_to_id("[CLS]"), TOKENIZER.token_to_id("[SEP]")


@pytest.mark.parametrize("batch", [1, 2, 256])
@pytest.mark.parametrize("length", [5, 7, 11])
def test_documents_are_packed_without_loss(monkeypatch, length, batch):
    monkeypatch.setattr(sequences, "_BATCH_DOCUMENTS", batch)
    documents = ["ab " * n + "a," * (n % 3) for n in (4, 0, 1, 9, 2, 13)] + [""]
    with pytest.warns(TextWarning, match="^2 of 7 documents held no tokens and were left out"):
        rows = pack_documents(iter(documents), packer(length, TOKENIZER))
    running = [token for ids in TOKENIZER.tokenize(documents) if ids for token in [*ids, SEP]]
    count, room = len(running) // (length - 2), length - 2
    assert len(rows) == count
    assert rows.lengths.tolist() == [length] * count
    assert rows.second.tolist() == [length] * count, "one segment"
    assert (rows.token_ids.dtype, rows.sequence_splits.dtype, rows.second.dtype) == (np.int32, np.int64, np.int32)
    table = rows.token_ids.reshape(count, length)
    assert set(table[:, 0].tolist()) == {CLS}
    assert set(table[:, -1].tolist()) == {SEP}
    np.testing.assert_array_equal(table[:, 1:-1].ravel(), running[: count * room])
    assert len(running) - count * room < room, "more than a shorter last sequence is dropped"


@pytest.mark.parametrize("documents", [[], [""], ["a"]])
def test_short_documents_fill_no_row(documents):
    with collect_warnings() as caught:
        rows = pack_documents(documents, packer(11, TOKENIZER))
    assert len(caught) == documents.count("")
    assert len(rows) == 0
    assert len(rows.select([])) == 0


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("length", [5, 11, 40])
def test_sentences_stay_whole(monkeypatch, across, length):
    monkeypatch.setattr(sequences, "_BATCH_DOCUMENTS", 3)
    words = ["a", "aa", "b", "abc", "b,"]
    rng = np.random.default_rng(7)
    documents = [
        [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(rng.integers(1, 6))] for _ in range(13)
    ]
    documents[4] = []
    with pytest.warns(TextWarning, match="^1 of 13 documents held no tokens"):
        encoded = pack_sentences(documents, packer(length, TOKENIZER), across_documents=across)
    rows = [encoded.select([i]).token_ids.tolist() for i in range(len(encoded))]
    assert all(row[0] == CLS and len(row) <= length for row in rows)
    sentences = [TOKENIZER.tokenize(document) for document in documents]
    tokens = [id for row in rows for id in row[1:] if id != SEP]
    assert tokens == [id for document in sentences for sentence in document for id in sentence]
    if not across:
        ends = np.cumsum([sum(map(len, document)) for document in sentences])
        ends_of_rows = np.cumsum([len(row) - 1 - row.count(SEP) for row in rows])
        assert set(ends[ends > 0]) <= set(ends_of_rows), "a row holds parts of two documents"
    if max(len(sentence) + 1 for document in sentences for sentence in document) < length:
        assert all(row[-1] == SEP for row in rows)
        if across:
            first_sentences = [row[1 : row.index(SEP, 1) + 1] for row in rows]
            for row, next_sentence in zip(rows, first_sentences[1:], strict=False):
                assert len(row) + len(next_sentence) > length, "the next sentence has room"
