"""Rows of ids: truncation, ragged storage, padding, segments."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import keras
import numpy as np
import pytest

from lmzoo.text import EncodedTexts, Packing, Preprocessor, WordPieceTokenizer
from lmzoo.text.packing import truncate_pair
from lmzoo.text.validate_text import collect_warnings

MakePreprocessor = Callable[..., Preprocessor]


def pop_loop(a: int, b: int, budget: int) -> tuple[int, int]:
    """Return the lengths of a truncated pair by BERT's loop, which drops one token at a time."""
    while a + b > budget:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


def test_truncate_pair_is_the_pop_loop() -> None:
    grid = np.array(list(itertools.product(range(13), range(13))))
    for budget in range(25):
        actual = np.stack(truncate_pair(grid[:, 0], grid[:, 1], budget), axis=1)
        expected = [pop_loop(a, b, budget) for a, b in grid.tolist()]
        np.testing.assert_array_equal(actual, expected, err_msg=f"budget {budget}")


@pytest.fixture
def encoded() -> EncodedTexts:
    rng = random.Random(7)
    rows = [[rng.randrange(1, 99) for _ in range(n)] for n in (3, 1, 7, 2, 5)]
    splits = np.cumsum([0, *map(len, rows)])
    return EncodedTexts(
        np.array([i for row in rows for i in row], "int32"), splits, np.array([2, 1, 4, 2, 5], "int32"), truncated=3
    )


def id_rows(encoded: EncodedTexts) -> list[list[int]]:
    return [encoded.token_ids[a:b].tolist() for a, b in itertools.pairwise(encoded.sequence_splits)]


@pytest.mark.parametrize("order", [[], [4], [2, 0], [1, 1, 4, 1], [0, 1, 2, 3, 4]])
def test_selected_texts(encoded: EncodedTexts, order: list[int]) -> None:
    selected = encoded.select(order)
    assert len(selected) == len(order)
    assert id_rows(selected) == [id_rows(encoded)[i] for i in order]
    assert selected.second.tolist() == [encoded.second[i] for i in order]
    assert selected.lengths.tolist() == [encoded.lengths[i] for i in order]
    assert selected.token_ids.dtype == selected.second.dtype == np.int32
    assert selected.sequence_splits.dtype == np.int64


def test_slices_of_texts(encoded: EncodedTexts) -> None:
    assert id_rows(encoded[1:4]) == id_rows(encoded)[1:4]
    assert id_rows(encoded[-2:]) == id_rows(encoded)[-2:]
    assert id_rows(encoded[::2]) == id_rows(encoded)[::2]


def test_padded_ids_and_mask(encoded: EncodedTexts) -> None:
    rows = np.array([2, 1, 3])
    ids, mask = encoded.padded(rows, 8, pad_id=97)
    assert ids.dtype == mask.dtype == np.int32
    expected = [id_rows(encoded)[i] for i in rows]
    np.testing.assert_array_equal(ids, [row + [97] * (8 - len(row)) for row in expected])
    np.testing.assert_array_equal(mask, [[1] * len(row) + [0] * (8 - len(row)) for row in expected])


def literal_row(
    packing: Packing, tokenizer: WordPieceTokenizer, a: str, b: str | None, limit: int
) -> tuple[list, list]:
    """Return the tokens and segments of one row, without any shared code."""
    ids = {name: tokenizer.token_to_id(name) for name in (packing.start, packing.end, *packing.between)}
    first, second = tokenizer.tokenize([a, b or ""])
    if b is None:
        first = first[: limit - 2]
        return [ids[packing.start], *first, ids[packing.end]], [0] * (len(first) + 2)
    n, m = pop_loop(len(first), len(second), limit - 2 - len(packing.between))
    head = [ids[packing.start], *first[:n], *(ids[token] for token in packing.between)]
    tail = [*second[:m], ids[packing.end]]
    return head + tail, [0] * len(head) + [1] * len(tail)


@pytest.mark.parametrize("between", [("[SEP]",), ("[SEP]", "[MASK]")])
@pytest.mark.parametrize("limit", [5, 8, 11, 64])
@pytest.mark.filterwarnings("ignore::lmzoo.text.TextWarning")
def test_packed_rows_equal_rows_by_hand(
    make_preprocessor: MakePreprocessor, limit: int, between: tuple[str, ...]
) -> None:
    preprocessor = make_preprocessor(limit, between)
    tokenizer, packing = preprocessor.tokenizer, preprocessor.packing
    grid = list(itertools.product(range(9), range(9)))
    texts, pairs = ["ab," * a for a, _ in grid], ["b " * b for _, b in grid]
    for seconds in (None, pairs):
        encoded = preprocessor.encode(texts, seconds)
        expected = [
            literal_row(packing, tokenizer, *row, limit) for row in zip(texts, seconds or [None] * 81, strict=True)
        ]
        assert id_rows(encoded) == [ids for ids, _ in expected]
        untruncated = [
            literal_row(packing, tokenizer, *row, 999) for row in zip(texts, seconds or [None] * 81, strict=True)
        ]
        assert encoded.truncated == sum(len(ids) > limit for ids, _ in untruncated)
        features = preprocessor.features(encoded, np.arange(81), limit + 3)
        assert {name: array.dtype.name for name, array in features.items()} == dict.fromkeys(
            ["token_ids", "padding_mask", "segment_ids"], "int32"
        )
        for i, (ids, segments) in enumerate(expected):
            room = limit + 3 - len(ids)
            assert features["token_ids"][i].tolist() == ids + [0] * room
            assert features["padding_mask"][i].tolist() == [1] * len(ids) + [0] * room
            assert features["segment_ids"][i].tolist() == segments + [0] * room


def test_families_without_segments(make_preprocessor: MakePreprocessor) -> None:
    assert make_preprocessor(segments=False)((["a"], ["b"])).keys() == {"token_ids", "padding_mask"}


def test_call_pads_to_the_longest(make_preprocessor: MakePreprocessor) -> None:
    assert make_preprocessor()(["a b a", "", "b"])["token_ids"].tolist() == [
        [2, 5, 7, 5, 3],
        [2, 3, 0, 0, 0],
        [2, 7, 3, 0, 0],
    ]


def test_no_texts(make_preprocessor: MakePreprocessor) -> None:
    encoded = make_preprocessor().encode([])
    assert (len(encoded), encoded.truncated, encoded.token_ids.shape) == (0, 0, (0,))


def test_errors_of_texts_and_lengths(make_preprocessor: MakePreprocessor) -> None:
    with pytest.raises(ValueError, match="got 2 and 1"):
        make_preprocessor().encode(["a", "b"], ["a"])
    with pytest.raises(ValueError, match=r"`sequence_length` is 2, but a sequence has 2 special tokens: .* at least 3"):
        make_preprocessor(2).encode(["a"])
    with pytest.raises(ValueError, match=r"`sequence_length` is 3, but a sequence has 3 special tokens: .* at least 4"):
        make_preprocessor(3).encode(["a"], ["a"])


def test_saved_preprocessors_pack_alike(make_preprocessor: MakePreprocessor, tmp_path: object) -> None:
    preprocessor = make_preprocessor(13, ("[SEP]", "[SEP]"), segments=False)
    preprocessor.save_assets(tmp_path)
    config = keras.saving.serialize_keras_object(preprocessor)
    loaded = keras.saving.deserialize_keras_object(config)
    loaded.load_assets(tmp_path)
    assert loaded.packing == preprocessor.packing
    assert loaded.sequence_length == 13
    assert loaded((["ab,"], ["b"]))["token_ids"].tolist() == preprocessor((["ab,"], ["b"]))["token_ids"].tolist()


def test_a_last_token_has_a_segment_of_its_own() -> None:
    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b"])
    preprocessor = Preprocessor(tokenizer, Packing("", "[SEP]", ("[SEP]",), segments=True, last="[CLS]"), 6)
    with collect_warnings():
        features = preprocessor((["a b", "a a a a", "a"], ["b", "b b b", ""]))
    assert features["token_ids"].tolist() == [[5, 6, 3, 6, 3, 2], [5, 5, 3, 6, 3, 2], [5, 3, 3, 2, 0, 0]]
    assert features["segment_ids"].tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, 1, 1, 2], [0, 0, 1, 2, 0, 0]]
    assert preprocessor(["a"])["segment_ids"].tolist() == [[0, 0, 2]]
    assert preprocessor.encode_words([["a", "b"]]).first.tolist() == [0, 1]
