"""KerasHub's way of calling tokenizers and preprocessors, alone and in `tf.data`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lmzoo.registry.family import families
from lmzoo.testing import tiny_preprocessor, tiny_texts
from lmzoo.text import (
    BytePairTokenizer,
    CharacterPairTokenizer,
    CharacterTokenizer,
    Preprocessor,
    SentencePieceTokenizer,
    TextWarning,
    TextWordTokenizer,
    WordPieceTokenizer,
    XlnetTokenizer,
)
from lmzoo.text.tokenizers.bpe import ONLY_END_OF_TEXT

TEXTS = ["a b a", "", "b"]


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def assert_equal(actual: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


# === Tokenizers ===


def test_tokenizers_take_one_text_or_several(tokenizer: WordPieceTokenizer, tf: Any) -> None:
    assert tokenizer(TEXTS) == tokenizer(np.array(TEXTS)) == tokenizer.tokenize(TEXTS) == [[5, 7, 5], [], [7]]
    for text in ("a b a", b"a b a", np.str_("a b a"), np.array("a b a"), tf.constant("a b a")):
        assert tokenizer(text) == [5, 7, 5]
    assert tokenizer("") == []
    with pytest.raises(TypeError, match="must be a list of strings, got None"):
        tokenizer(None)


@pytest.mark.parametrize(
    "cls", [BytePairTokenizer, CharacterPairTokenizer, SentencePieceTokenizer, TextWordTokenizer, WordPieceTokenizer]
)
def test_detokenize_refuses_ids_of_no_token(cls: Any) -> None:
    tokenizer = cls.of_words(["aa"], 293)
    for id in (-100, -1, 293, 1009):
        message = f"`ids` must be from 0 to 292, got {id:,}. Remove other ids first, such as the label -100 of"
        for ids in ([5, id, 7], np.array([[5, 7], [id, 11]])):
            with pytest.raises(ValueError, match=re.escape(message)):
                tokenizer.detokenize(ids)
    assert tokenizer.detokenize([[]]) == [""]


def test_detokenize_takes_one_row_or_several(tokenizer: WordPieceTokenizer, tf: Any) -> None:
    for ids in ([5, 6, 7], iter([5, 6, 7]), np.array([5, 6, 7]), tf.constant([5, 6, 7])):
        assert tokenizer.detokenize(ids) == "aa b"
    rows = [[5, 6, 7], [], [7]]
    for batch in (rows, iter(rows), tuple(map(tuple, rows)), tf.ragged.constant(rows), [np.array(r) for r in rows]):
        assert tokenizer.detokenize(batch) == ["aa b", "", "b"]
    assert tokenizer.detokenize(np.array([[5, 6], [7, 5]])) == ["aa", "b a"]
    assert tokenizer.detokenize([]) == ""


@pytest.mark.parametrize("family", families())
def test_every_family_has_a_callable_tokenizer(family: str) -> None:
    tokenizer = tiny_preprocessor(families()[family]).tokenizer
    texts = tiny_texts(3)
    rows = tokenizer(texts)
    assert rows == tokenizer.tokenize(texts) == [tokenizer(text) for text in texts]
    assert tokenizer.detokenize(rows) == [tokenizer.detokenize(row) for row in rows]
    assert tokenizer.get_vocabulary() == tokenizer.vocabulary
    assert tokenizer.pad_token_id == tokenizer.pad_id


def test_ids_of_special_tokens() -> None:
    def ids_of(tokenizer: Any) -> list[int | None]:
        return [getattr(tokenizer, f"{role}_token_id") for role in ("pad", "unk", "start", "end", "mask")]

    assert ids_of(WordPieceTokenizer(WordPieceTokenizer.special_tokens)) == [0, 1, 2, 3, 4]
    assert ids_of(BytePairTokenizer.of_words(["film"], 271)) == [1, 3, 0, 2, 270]
    gpt2 = BytePairTokenizer.of_words(["film"], 271, **ONLY_END_OF_TEXT)
    assert ids_of(gpt2) == [0, gpt2.end_token_id, gpt2.end_token_id, gpt2.end_token_id, None]
    assert ids_of(SentencePieceTokenizer.of_words(["film"], 13)) == [0, 1, 2, 3, 4]
    assert ids_of(TextWordTokenizer(["<|endoftext|>", "<unk>"])) == [0, 1, 0, 0, None]
    assert ids_of(CharacterTokenizer()) == [0, None, None, None, None]


@pytest.mark.parametrize("cls", [WordPieceTokenizer, SentencePieceTokenizer, XlnetTokenizer])
def test_cls_and_sep_are_the_start_and_end_tokens(cls: Any) -> None:
    tokenizer = cls.of_words(["film"], 17)
    assert (tokenizer.cls_token, tokenizer.sep_token) == (tokenizer.start_token, tokenizer.end_token)
    assert tokenizer.token_to_id(tokenizer.cls_token) == tokenizer.cls_token_id
    assert tokenizer.token_to_id(tokenizer.sep_token) == tokenizer.sep_token_id
    assert tokenizer.cls_token_id != tokenizer.sep_token_id


# === Preprocessors ===


def test_one_text_has_no_axis_of_texts(make_preprocessor: Callable[..., Preprocessor]) -> None:
    preprocessor = make_preprocessor()
    batch = preprocessor(["a b"])
    assert_equal(preprocessor("a b"), {name: array[0] for name, array in batch.items()})
    pair = preprocessor((["a b"], ["b"]))
    assert pair["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1]]
    assert_equal(preprocessor([("a b", "b")]), pair)
    assert_equal(preprocessor(("a b", "b")), {name: array[0] for name, array in pair.items()})


def test_labels_are_returned(make_preprocessor: Callable[..., Preprocessor]) -> None:
    preprocessor = make_preprocessor()
    labels = np.array([1, 0, 1])
    features, y = preprocessor(TEXTS, labels)
    assert_equal(features, preprocessor(TEXTS))
    assert y is labels
    weights = [0.5, 2.0, 1.0]
    _, y, sample_weight = preprocessor(TEXTS, labels.tolist(), weights)  # arrays, as Keras takes no lists of numbers
    assert y.tolist() == labels.tolist()
    assert sample_weight.tolist() == weights
    assert preprocessor(x="a", y=1)[1] == 1
    tags = [["B-PER", "O"], [], ["O"]]
    assert preprocessor(TEXTS, tags)[1] is tags


@pytest.mark.parametrize("second", ["b", ["b", "a", ""], np.array(["b", "a", ""]), np.array(["b", "", ""], "O")])
def test_a_second_text_is_not_a_label(make_preprocessor: Callable[..., Preprocessor], second: Any) -> None:
    with pytest.raises(TypeError, match=r"`y` must be labels, got text.*`preprocessor\(\(first, second\)\)`"):
        make_preprocessor()(TEXTS, second)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (("a", "b", "a"), ValueError, r"A tuple means pairs, \(firsts, seconds\)"),
        (("a", ["b"]), ValueError, "A tuple means pairs"),
        ((["a"],), ValueError, "A tuple means pairs"),
        ((), ValueError, "A tuple means pairs"),
        ({"text": ["a"]}, TypeError, "got a dict"),
        (7, TypeError, "Expected a list of texts, got 7"),
        (["a", None], TypeError, r"`texts\[1\]` must be a string, got None"),
    ],
)
def test_errors_of_inputs(make_preprocessor: Callable[..., Preprocessor], x: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make_preprocessor()(x)


# === In `tf.data` ===


def test_texts_and_labels_in_tf_data(make_preprocessor: Callable[..., Preprocessor], tf: Any) -> None:
    preprocessor = make_preprocessor()
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, [1, 0, 1]))
    batches = dataset.batch(2).map(preprocessor, num_parallel_calls=2)
    assert [spec.shape.as_list() for spec in batches.element_spec[0].values()] == [[None, None]] * 3
    for (features, labels), begin in zip(batches, (0, 2), strict=True):
        assert_equal(features, preprocessor(TEXTS[begin : begin + 2]))
        assert labels.numpy().tolist() == [1, 0, 1][begin : begin + 2]
    # Only equal shapes can be batched.
    ((features, labels),) = dataset.map(preprocessor).batch(3)
    assert features["token_ids"].shape == (3, 11)
    width = preprocessor(TEXTS)["token_ids"].shape[1]
    assert_equal({name: array[:, :width] for name, array in features.items()}, preprocessor(TEXTS))
    assert not features["padding_mask"][:, width:].numpy().any()


def test_pairs_in_tf_data(make_preprocessor: Callable[..., Preprocessor], tf: Any) -> None:
    preprocessor = make_preprocessor()
    seconds = ["b", "a", ""]
    dataset = tf.data.Dataset.from_tensor_slices(((TEXTS, seconds), [1, 0, 1]))
    ((features, _),) = dataset.batch(3).map(preprocessor)
    assert_equal(features, preprocessor((TEXTS, seconds)))
    example = next(iter(dataset.map(preprocessor)))[0]
    assert example["segment_ids"].numpy().tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    unlabeled = tf.data.Dataset.from_tensor_slices((TEXTS, seconds))
    with pytest.raises(TypeError, match=r"`y` must be labels"):
        unlabeled.map(preprocessor)
    (features,) = unlabeled.batch(3).map(lambda first, second: preprocessor((first, second)))
    assert_equal(features, preprocessor((TEXTS, seconds)))
    (features,) = unlabeled.batch(3).map(lambda first, second: preprocessor(first))
    assert_equal(features, preprocessor(TEXTS))


def test_tokenizers_in_tf_data(tokenizer: WordPieceTokenizer, tf: Any) -> None:
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS)
    assert [ids.numpy().tolist() for ids in dataset.map(tokenizer)] == tokenizer(TEXTS)
    (ids,) = dataset.batch(3).map(tokenizer)
    assert ids.to_list() == tokenizer(TEXTS)


def test_words_as_characters_in_tf_data(tf: Any) -> None:
    preprocessor = tiny_preprocessor(families()["elmo"])
    tokenizer = preprocessor.tokenizer
    dataset = tf.data.Dataset.from_tensor_slices(["a film", "plot"])
    (features,) = dataset.batch(2).map(preprocessor)
    assert_equal(features, preprocessor(["a film", "plot"]))
    assert [ids.shape for ids in dataset.map(tokenizer)] == [
        (2, tokenizer.max_characters),
        (1, tokenizer.max_characters),
    ]


def test_errors_of_shapes_in_tf_data(make_preprocessor: Callable[..., Preprocessor], tf: Any) -> None:
    preprocessor = make_preprocessor()
    dataset = tf.data.Dataset.from_tensor_slices([TEXTS])
    with pytest.raises(ValueError, match=r"pass texts of shape \(\) or \(n,\), .* got \(None, 3\)"):
        dataset.batch(1).map(preprocessor)
    with pytest.raises(ValueError, match=r"pass texts of shape"):
        dataset.map(lambda texts: preprocessor((texts, "b")))


def test_one_warning_for_a_dataset(make_preprocessor: Callable[..., Preprocessor], tf: Any) -> None:
    dataset = tf.data.Dataset.from_tensor_slices(["a " * 50] * 5).map(make_preprocessor())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(dataset)
    assert [str(w.message) for w in caught if w.category is TextWarning] == [
        "1 of 1 texts were truncated to 11 tokens (`sequence_length`)."
    ]
