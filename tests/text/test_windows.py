"""Windows over contexts, compared with `tests/reference/squad.py` and with cases by hand."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

from lmzoo.data.readers import read_squad
from lmzoo.registry.family import families
from lmzoo.text import CharacterTokenizer, Packing, Preprocessor, TextWarning, WordPieceTokenizer
from lmzoo.text.windows import encode_windows
from tests.reference import squad as reference

LETTERS = "abcdefghijklm"
SPECIAL = WordPieceTokenizer.special_tokens


@pytest.fixture(scope="module")
def preprocessor_of():
    tokenizer = WordPieceTokenizer([*SPECIAL, *LETTERS, *(f"##{c}" for c in LETTERS), "?", "é"], strip_accents=False)

    def preprocessor(length, between=("[SEP]",), segments=True):
        return Preprocessor(tokenizer, Packing("[CLS]", "[SEP]", between, segments), length)

    return preprocessor


def letters(rng, count):
    return " ".join(rng.choices(LETTERS, k=count))


@pytest.mark.parametrize("between", [("[SEP]",), ("[SEP]", "[SEP]")])
def test_rows_are_those_of_the_reference(preprocessor_of, between):
    rng = random.Random(3)
    ids = preprocessor_of(29).tokenizer.token_to_id
    for _ in range(60):
        length, stride, max_question = rng.randrange(9, 31), rng.randrange(1, 12), rng.randrange(1, 5)
        preprocessor = preprocessor_of(length, between, segments=len(between) == 1)
        texts = [letters(rng, rng.randrange(1, 67)) for _ in range(3)]
        examples = [(letters(rng, rng.randrange(max_question + 1)), rng.choice(texts)) for _ in range(5)]
        encoded = encode_windows(preprocessor, *zip(*examples, strict=True), stride, max_question)
        expected = []
        for i, (question, context) in enumerate(examples):
            first, pieces = ["[CLS]", *question.split(), *between], context.split()
            for start, count in reference.windows(len(pieces), length - len(first) - 1, stride):
                expected.append((i, [*first, *pieces[start : start + count], "[SEP]"], len(first)))
        assert encoded.examples.tolist() == [i for i, _, _ in expected]
        assert encoded.second.tolist() == [second for _, _, second in expected]
        packed = encoded.packed(np.arange(len(encoded)))
        rows = np.split(packed.token_ids, packed.sequence_splits[1:-1])
        assert [row.tolist() for row in rows] == [[ids(token) for token in row] for _, row, _ in expected]
        assert encoded.lengths.tolist() == [len(row) for row in rows]
        features = preprocessor.features(packed, np.arange(len(encoded)), length)
        if preprocessor.packing.segments:
            seconds = [len(row) - second for _, row, second in expected]
            assert features["segment_ids"].sum(axis=1).tolist() == seconds


def test_every_token_has_most_context_in_the_window_of_the_reference(preprocessor_of):
    rng, with_several_windows = random.Random(5), 0
    for attempt in range(70):
        # From a difference of 100 tokens on, the length of a window outweighs a token to its left or right.
        length, stride = (rng.randrange(5, 31), rng.randrange(1, 9)) if attempt < 60 else (311, 157)
        texts = [letters(rng, rng.randrange(67) if attempt < 60 else rng.randrange(320, 640)) for _ in range(3)]
        questions, contexts = [letters(rng, rng.randrange(2)) for _ in range(5)], rng.choices(texts, k=5)
        encoded = encode_windows(preprocessor_of(length), questions, contexts, stride)
        expected = []
        for question, context in zip(questions, contexts, strict=True):
            spans = reference.windows(len(context.split()), length - len(question.split()) - 3, stride)
            for w, (start, count) in enumerate(spans):
                expected += [reference.has_max_context(spans, w, piece) for piece in range(start, start + count)]
            with_several_windows += len(spans) > 1
        assert encoded.max_context().tolist() == expected
    assert with_several_windows > 50


def test_windows_of_one_example(preprocessor_of):
    encoded = encode_windows(preprocessor_of(7), ["a b", "c"], ["d e f g", "h i j k l"], doc_stride=1)
    assert encoded.examples.tolist() == [0, 0, 0, 1, 1, 1]
    assert [encoded.cut_before(i) for i in range(6)] == [0, 0, 0, 3, 3, 3]
    rows, windows = encoded.of_example(1)
    assert rows.tolist() == [3, 4, 5]
    assert windows.contexts == ("h i j k l",)
    assert windows.examples.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(windows.packed(np.arange(3)).token_ids, encoded.packed(rows).token_ids)
    np.testing.assert_array_equal(windows.max_context(), encoded.max_context()[-9:])
    np.testing.assert_array_equal(encoded[4:].lengths, encoded.lengths[4:])


def label(preprocessor, question, context, answer, stride=128):
    """Return each window's tokens from the answer's first to its last, or [CLS] for a window without it."""
    encoded = encode_windows(preprocessor, [question], [context], stride)
    start = context.index(answer)
    positions = encoded.positions(np.array([[start, start + len(answer)]]))
    packed = encoded.packed(np.arange(len(encoded)))
    rows = np.split(packed.token_ids, packed.sequence_splits[1:-1])
    name = preprocessor.tokenizer.id_to_token
    return [[name(i) for i in row[a : b + 1]] for row, (a, b) in zip(rows, positions, strict=True)]


@pytest.mark.parametrize(
    ("context", "answer", "expected"),
    [
        ("a b c d", "b c", [["b", "c"]]),
        ("a bcd e", "bcd", [["b", "##c", "##d"]]),
        ("a bcd e", "c", [["##c"]]),  # a part of a word
        ("a b b c", "b c", [["b", "c"]]),  # the second of two
        ("a éb c", "éb", [["é", "##b"]]),
        ("a xyz c", "y", [["[UNK]"]]),  # the token around it
        ("a 😀 c", "😀", [["[UNK]"]]),
        ("a  b\t\nc", "b\t\nc", [["b", "c"]]),
        ("a b?", "b?", [["b", "?"]]),
    ],
)
def test_answers_are_positions_of_their_tokens(preprocessor_of, context, answer, expected):
    assert label(preprocessor_of(29), "d", context, answer) == expected


def test_a_window_without_the_whole_answer_has_none(preprocessor_of):
    # Windows of five tokens: "abcde", "cdefg", "efghi".
    context, no_answer = "a b c d e f g h i", ["[CLS]"]
    preprocessor = preprocessor_of(9)
    assert label(preprocessor, "m", context, "a", stride=2) == [["a"], no_answer, no_answer]
    assert label(preprocessor, "m", context, "c d", stride=2) == [["c", "d"], ["c", "d"], no_answer]
    assert label(preprocessor, "m", context, "b c d e f", stride=2) == [no_answer, no_answer, no_answer]
    assert label(preprocessor, "m", context, "e f g", stride=2) == [no_answer, ["e", "f", "g"], ["e", "f", "g"]]
    assert label(preprocessor, "m", context, "e", stride=2) == [["e"]] * 3
    assert label(preprocessor, "m", context, "i", stride=2) == [no_answer, no_answer, ["i"]]


def test_no_answer_is_the_first_token(preprocessor_of):
    encoded = encode_windows(preprocessor_of(9), ["a", "b"], ["c d e f g h i", "c"], 3)
    assert encoded.positions(np.zeros((2, 2), "int64")).tolist() == [[0, 0]] * len(encoded)


def test_an_answer_without_tokens_is_refused(preprocessor_of):
    encoded = encode_windows(preprocessor_of(9), ["a", "b"], ["c", "c \x00 d"])
    message = r"The answer of example 1, '\\x00', contains nothing that the tokenizer keeps"
    with pytest.raises(ValueError, match=message):
        encoded.positions(np.array([[0, 1], [2, 3]]))


def test_empty_questions_and_contexts(preprocessor_of):
    encoded = encode_windows(preprocessor_of(9), ["", "a b", ""], ["c d", "", ""])
    packed = encoded.packed(np.arange(3))
    name = preprocessor_of(9).tokenizer.id_to_token
    rows = [[name(i) for i in row] for row in np.split(packed.token_ids, packed.sequence_splits[1:-1])]
    assert rows == [
        ["[CLS]", "[SEP]", "c", "d", "[SEP]"],
        ["[CLS]", "a", "b", "[SEP]", "[SEP]"],
        ["[CLS]", *["[SEP]"] * 2],
    ]
    no_windows = encode_windows(preprocessor_of(9), [], [])
    assert len(no_windows) == 0
    assert no_windows.max_context().tolist() == []


def test_long_questions_are_truncated_with_one_warning(preprocessor_of):
    with pytest.warns(
        TextWarning, match=r"2 of 3 questions were truncated to 2 tokens \(`max_question_length`\)"
    ) as caught:
        encoded = encode_windows(preprocessor_of(9), ["a b c", "a b", "c b a"], ["d"] * 3, max_question_length=2)
    assert len(caught) == 1
    assert encoded.second.tolist() == [4, 4, 4]


def test_a_question_must_leave_room_for_context(preprocessor_of):
    encode_windows(preprocessor_of(6), ["a b"], ["c d"])
    with pytest.raises(
        ValueError, match=r"question of example 1 has 3 tokens; with 3 special tokens it leaves no room"
    ):
        encode_windows(preprocessor_of(6), ["a", "a b c"], ["c d", "d"])


@pytest.mark.parametrize(
    ("questions", "contexts", "error", "message"),
    [
        (["a", "b"], ["c"], ValueError, "a context for each question, got 2 and 1"),
        (["a", None], ["c", "d"], TypeError, r"`questions\[1\]` must be a string, got None"),
        (["a"], [7], TypeError, r"`contexts\[0\]` must be a string, got 7"),
        ("a", "c", TypeError, "`questions` must be a list of strings, got one string"),
        ([["a"]], ["c"], TypeError, r"`questions\[0\]` must be a string"),
    ],
)
def test_errors_of_questions_and_contexts(preprocessor_of, questions, contexts, error, message):
    with pytest.raises(error, match=message):
        encode_windows(preprocessor_of(9), questions, contexts)


@pytest.mark.parametrize("family", families().values(), ids=lambda family: family.name)
def test_spans_are_the_offsets_of_the_pieces(family):
    tokenizer = family.tokenizer.of_words(["film", "cafe"], family.tiny.vocabulary_size)
    texts = ["a film,  café e\u0301\n", "", "👩‍👧 中文 [MASK]<mask>", " \t", "Straße's 1,000"]
    ids, spans = tokenizer.tokenize_with_spans(texts)
    pieces = tokenizer.tokenize_with_offsets(texts)
    assert ids == [[piece.id for piece in row] for row in pieces]
    assert spans.tolist() == [[piece.start, piece.end] for row in pieces for piece in row]
    assert tokenizer.tokenize_with_spans([])[1].shape == (0, 2)


def test_windows_of_words():
    preprocessor = Preprocessor(CharacterTokenizer(), Packing("", "", ("</S>", "<S>"), False), 9)
    encoded = encode_windows(
        preprocessor, ["Who met Bob?", ["Who", "?"]], ["Ada met Bob, Eve too.", ["Ada", "met", "him"]]
    )
    assert encoded.contexts == ("Ada met Bob, Eve too.", "Ada met him")
    assert encoded.examples.tolist() == [0, 0, 0, 1]
    packed = encoded.packed(np.array([0, 3]))
    assert packed.token_ids.shape == (9 + 7, 50)
    assert packed.second.tolist() == [6, 4]
    np.testing.assert_array_equal(
        packed.token_ids[9:], preprocessor.encode([["Who", "?"]], [["Ada", "met", "him"]]).token_ids
    )
    spans = encoded.spans[slice(*encoded.context_bounds[1])]
    assert spans.tolist() == [[0, 3], [4, 7], [8, 11]]


def test_labels_of_squad_are_those_of_the_reference(shared):
    """If an answer is a part of a word, the reference may label the whole word, but lmzoo labels the part."""
    path = shared("data/tokenizers/bert-base-uncased/vocab.txt")
    tokenizer = WordPieceTokenizer(path.read_text("utf-8").split("\n")[:-1])
    preprocessor = Preprocessor(tokenizer, Packing("[CLS]", "[SEP]", ("[SEP]",), True), 97)
    (questions, contexts), answers = read_squad(shared("data/squad/train-v1.1.first12.json.gz"))
    questions, contexts, answers = questions[::7], contexts[::7], [golds[0] for golds in answers[::7]]
    encoded = encode_windows(preprocessor, questions, contexts, 31)
    spans = np.array([[a["answer_start"], a["answer_start"] + len(a["text"])] for a in answers])
    positions, with_several_windows, parts_of_words = encoded.positions(spans), 0, 0

    @functools.cache
    def tokenize(text):
        return [tokenizer.id_to_token(i) for i in tokenizer.tokenize([text])[0]]

    for i, (question, context, answer) in enumerate(zip(questions, contexts, answers, strict=True)):
        rows, question_length = np.flatnonzero(encoded.examples == i), len(tokenize(question))
        (low, high), pieces = reference.label_pieces(context, answer["text"], answer["answer_start"], tokenize)
        if pieces[low : high + 1] != tokenize(answer["text"]):
            token_spans = encoded.spans[slice(*encoded.context_bounds[i])]
            touched = [k for k, (start, end) in enumerate(token_spans) if end > spans[i, 0] and start < spans[i, 1]]
            assert low <= touched[0]
            assert touched[-1] <= high
            low, high, parts_of_words = touched[0], touched[-1], parts_of_words + 1
        windows = reference.windows(len(pieces), 97 - question_length - 3, 31)
        with_several_windows += len(windows) > 1
        expected = [list(reference.window_label((low, high), window, question_length + 2)) for window in windows]
        assert positions[rows].tolist() == expected, (context, answer)
    assert with_several_windows > 300
    assert parts_of_words < 5
