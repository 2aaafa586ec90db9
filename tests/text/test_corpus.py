"""Vocabularies of WordPiece and full rows for pretraining."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lmzoo.data.corpora import pack_documents, pack_sentences, sequences, train_wordpiece
from lmzoo.text import Preprocessor, TextWarning, WordPieceTokenizer
from lmzoo.text.validate_text import collect_warnings

SPECIAL = list(WordPieceTokenizer.special_tokens)
CORPUS = [
    "The film is fine, fine indeed; a filmed finale.",
    "[MASK] the Café, the cafés!",
    "",
    "films of finery 東京",
] * 5


@pytest.mark.parametrize("size", [60, 90])
def test_vocabularies_know_their_texts(size: int) -> None:
    tokenizer = train_wordpiece(iter(CORPUS), size, min_frequency=1, verbose=False)
    vocabulary = tokenizer.vocabulary
    assert vocabulary[:5] == SPECIAL
    assert len(vocabulary) == len(set(vocabulary)) == tokenizer.vocabulary_size <= size
    assert [tokenizer.token_to_id(token) for token in vocabulary] == list(range(len(vocabulary)))
    assert all(token == token.lower() for token in vocabulary[5:])
    assert not any("é" in token for token in vocabulary[5:])
    assert 1 not in {i for ids in tokenizer.tokenize(CORPUS) for i in ids}, (
        "a text of the training has an unknown piece"
    )


def test_larger_vocabularies_hold_whole_words() -> None:
    small, large = (train_wordpiece(CORPUS, size, min_frequency=2, verbose=False) for size in (52, 90))
    assert small.vocabulary_size == 52 < large.vocabulary_size
    assert len(large.tokenize(["indeed filmed finale"])[0]) < len(small.tokenize(["indeed filmed finale"])[0])


def test_cased_vocabularies() -> None:
    tokenizer = train_wordpiece(CORPUS, 200, lowercase=False, min_frequency=1, verbose=False)
    assert not tokenizer.lowercase
    assert {"The", "the", "Café"} <= set(tokenizer.vocabulary)


def test_rare_pieces_are_not_learned() -> None:
    texts = ["zyzzyva film film film film"]
    assert "zyzzyva" in train_wordpiece(texts, 200, min_frequency=1, verbose=False).vocabulary
    assert "zyzzyva" not in train_wordpiece(texts, 200, min_frequency=2, verbose=False).vocabulary


@pytest.mark.parametrize("batch", [1, 2, 256])
@pytest.mark.parametrize("length", [5, 7, 11])
def test_documents_are_packed_without_loss(
    make_preprocessor: Callable[..., Preprocessor], monkeypatch: pytest.MonkeyPatch, length: int, batch: int
) -> None:
    monkeypatch.setattr(sequences, "_BATCH_DOCUMENTS", batch)
    documents = ["ab " * n + "a," * (n % 3) for n in (4, 0, 1, 9, 2, 13)] + [""]
    preprocessor = make_preprocessor(length)
    with pytest.warns(TextWarning, match="^2 of 7 documents held no tokens and were left out"):
        rows = pack_documents(iter(documents), preprocessor)
    running = [token for ids in preprocessor.tokenizer.tokenize(documents) if ids for token in [*ids, 3]]
    count, room = len(running) // (length - 2), length - 2
    assert len(rows) == count
    assert rows.lengths.tolist() == [length] * count
    assert rows.second.tolist() == [length] * count, "one segment"
    assert (rows.token_ids.dtype, rows.sequence_splits.dtype, rows.second.dtype) == (np.int32, np.int64, np.int32)
    table = rows.token_ids.reshape(count, length)
    assert set(table[:, 0].tolist()) == {2}
    assert set(table[:, -1].tolist()) == {3}
    np.testing.assert_array_equal(table[:, 1:-1].ravel(), running[: count * room])
    assert len(running) - count * room < room, "only a shorter last sequence is dropped"


@pytest.mark.parametrize("documents", [[], [""], ["a"]])
def test_short_documents_fill_no_row(make_preprocessor: Callable[..., Preprocessor], documents: list[str]) -> None:
    with collect_warnings() as caught:
        rows = pack_documents(documents, make_preprocessor(11))
    assert len(caught) == documents.count("")
    assert len(rows) == 0
    assert len(rows.select([])) == 0


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("length", [5, 11, 40])
def test_sentences_stay_whole(
    make_preprocessor: Callable[..., Preprocessor], monkeypatch: pytest.MonkeyPatch, across: bool, length: int
) -> None:
    monkeypatch.setattr(sequences, "_BATCH_DOCUMENTS", 3)
    packer = make_preprocessor(sequence_length=length)
    words = ["a", "aa", "b", "abc", "b,"]
    rng = np.random.default_rng(7)
    documents = [
        [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(rng.integers(1, 6))] for _ in range(13)
    ]
    documents[4] = []
    start, end = (packer.tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    with pytest.warns(TextWarning, match="^1 of 13 documents held no tokens"):
        encoded = pack_sentences(documents, packer, across_documents=across)
    rows = [encoded.select([i]).token_ids.tolist() for i in range(len(encoded))]
    assert all(row[0] == start and len(row) <= length for row in rows)
    sentences = [[[*packer.tokenizer.tokenize([s])[0], end] for s in document] for document in documents]
    if across:
        stream = [id for document in sentences for s in [*document, [end]] for id in s]
        flat = [id for row in rows for id in row[1:]]
        # A row of a separator alone is left out.
        assert [id for id in flat if id != end] == [id for id in stream if id != end]
    else:
        stream = [id for document in sentences for s in document for id in s]
        assert [id for row in rows for id in row[1:] if id != end] == [id for id in stream if id != end]
        ends = np.cumsum([sum(len(s) - 1 for s in document) for document in sentences])
        reached = np.cumsum([len(row) - 1 - row.count(end) for row in rows])
        assert set(ends[ends > 0]) <= set(reached), "a row holds parts of two documents"
    longest = max(len(s) for document in sentences for s in document)
    if longest < length:
        assert all(row[-1] == end for row in rows)
        # The next sentence has no room.
        if across:
            first = [row[1 : row.index(end, 1) + 1] for row in rows]
            assert all(len(a) + len(b) > length for a, b in zip(rows, first[1:], strict=False))
