"""Reading SQuAD's JSON: both versions, errors, and public datasets."""

from __future__ import annotations

import json
import lzma

import pytest

from lmzoo.data.readers import read_squad

QUESTIONS = [
    {"id": "1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}, {"text": "da", "answer_start": 1}]},
    {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
    {"id": "3", "question": "How?", "answers": [{"text": "Bob", "answer_start": 8}], "is_impossible": True},
]


def squad(questions):
    paragraphs = [{"context": "Ada met Bob.", "qas": questions}]
    return json.dumps({"version": "2.0", "data": [{"title": "t", "paragraphs": paragraphs}]})


def test_questions_with_and_without_answers(tmp_path):
    path = tmp_path / "dev.json"
    path.write_text(squad(QUESTIONS))
    (questions, contexts), answers = read_squad(path)
    assert questions == ["Who?", "Why?", "How?"]
    assert contexts == ["Ada met Bob."] * 3
    assert answers == [QUESTIONS[0]["answers"], [], []]
    path.write_bytes(lzma.compress(squad(QUESTIONS).encode()))
    assert read_squad(path) == ((questions, contexts), answers)


def test_unlabeled_files(tmp_path):
    path = tmp_path / "test.json"
    path.write_text(squad([{"id": "1", "question": "Who?"}]))
    assert read_squad(path, labeled=False) == ((["Who?"], ["Ada met Bob."]), None)
    with pytest.raises(ValueError, match=r"test\.json is not in the format of SQuAD.*KeyError: 'answers'"):
        read_squad(path)


def test_other_encodings(tmp_path):
    path = tmp_path / "dev.json"
    path.write_bytes(squad(QUESTIONS).replace("Who?", "Qué?").encode("latin-1"))
    assert read_squad(path, encoding="latin-1")[0][0] == ["Qué?", "Why?", "How?"]
    with pytest.raises(ValueError, match=r"line 1: the byte 0xe9 is not utf-8"):
        read_squad(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not in the format of SQuAD"),
        ("[1]", "is not in the format of SQuAD"),
        ('{"data": []}', r"dev\.json holds no questions"),
    ],
)
def test_errors_of_files(tmp_path, text, message):
    path = tmp_path / "dev.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_squad(path)


@pytest.mark.parametrize(
    ("file", "count", "has_impossible"),
    [("amazon_reviews_v1.0", 9885, False), ("dev-v2.0.open", 5295, True), ("train-v1.1.first12", 4370, False)],
)
def test_public_datasets(shared, file, count, has_impossible):
    (questions, contexts), answers = read_squad(shared(f"data/squad/{file}.json.gz"))
    assert len(questions) == len(contexts) == len(answers) == count
    assert (not all(answers)) == has_impossible
