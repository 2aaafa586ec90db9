"""Mixtures of several texts, each with its fraction of the tokens."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from lmzoo.pretraining import Recipe, pretrain
from lmzoo.pretraining.interleaved import MixedBatches, join_sequences
from lmzoo.pretraining.training_texts import (
    MixedDocuments,
    TrainingDocuments,
    _name_texts,
    identify_texts,
    read_texts,
    split_held_out,
)
from lmzoo.text import EncodedTexts, LengthBatches
from lmzoo.text.interleaved import count_turns
from lmzoo_cli.main import app
from lmzoo_cli.pretrain_command import _parse_texts
from tests.pretraining.conftest import LINES, TINY
from tests.tasks.interruptions import Interrupted, Spy

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture
def films(text, tmp_path):
    """Return a mixture of a small text, with two thirds of the tokens, and a larger text."""
    (tmp_path / "films").mkdir()
    lines = ["The film was dull.", "The ending of the film was rough.", "Nobody left."]
    for name in ("a", "b"):
        document = "\n".join(lines)
        (tmp_path / f"films/{name}.txt").write_text("\n\n".join([document] * 5), "utf-8")
    return {f"{tmp_path}/films/": 2, str(text): 1}


def make_batches(rates, counts, size):
    lengths = np.random.default_rng(3).integers(3, 17, sum(counts))
    part = LengthBatches(lengths, lambda rows, width, rng: rows.tolist(), size, [99], seed=(5,))
    return MixedBatches(part, counts, rates)


def test_batches_have_the_fractions_of_each_text():
    """Each text is read again and again, in a new order each time, and all batches are full."""
    counts, rates, size = [7, 301, 11], [0.3, 0.6, 0.1], 5
    batches = make_batches(rates, counts, size)
    all_batches = list(itertools.islice(batches.batches_from(0), 400))
    assert {len(batch) for batch in all_batches} == {size}
    text_of_sequence = np.searchsorted(np.cumsum(counts), np.concatenate(all_batches), side="right")
    np.testing.assert_array_equal(np.bincount(text_of_sequence), [600, 1200, 200])
    num_read = Counter(itertools.chain.from_iterable(all_batches))
    for begin, count, total in ((0, 7, 600), (7, 301, 1200), (308, 11, 200)):
        assert {num_read[i] for i in range(begin, begin + count)} <= {total // count, total // count + 1}
    readings = [batches._read_text(0, begin, begin + 7).tolist() for begin in range(0, 70, 7)]
    assert [sorted(reading) for reading in readings] == [[*range(7)]] * 10
    assert len(set(map(tuple, readings))) > 5
    assert batches._read_text(0, 5, 16).tolist() == [*readings[0][5:], *readings[1], *readings[2][:2]]
    for step in (0, 3, 50, 149):
        assert list(itertools.islice(batches.batches_from(step), 55)) == all_batches[step : step + 55]
    assert batches.identity() != make_batches([0.3, 0.5, 0.2], counts, size).identity()
    assert batches.identity() != make_batches(rates, [8, 300, 11], size).identity()


def test_turns_are_spread_evenly():
    rates = np.array([0.07, 0.9, 0.03])
    turns = np.array([count_turns(rates, total) for total in range(400)])
    assert (turns.sum(axis=1) == np.arange(400)).all()
    assert (np.diff(turns, axis=0) >= 0).all()
    assert np.abs(turns - np.arange(400)[:, None] * rates).max() <= 1


def test_sequences_are_joined(tmp_path):
    first = EncodedTexts(np.arange(5, dtype="uint16"), np.array([0, 2, 5]), np.array([2, 1], "int32"))
    second = EncodedTexts(np.arange(4, dtype="uint16"), np.array([0, 4]), np.array([3], "int32"))
    joined = join_sequences([first, second], tmp_path)
    np.testing.assert_array_equal(joined.token_ids, [0, 1, 2, 3, 4, 0, 1, 2, 3])
    np.testing.assert_array_equal(joined.sequence_splits, [0, 2, 5, 9])
    np.testing.assert_array_equal(joined.second, [2, 1, 3])
    assert joined.token_ids.dtype == "uint16"


def test_the_vocabulary_is_learned_from_the_mixture(films):
    """It reads as many characters as without weights, two thirds of them from the small text."""
    parts = [TrainingDocuments(text) for text in read_texts(films)]
    sizes = [sum(len(line) for document in part for line in document) for part in parts]
    documents = list(MixedDocuments(parts))
    count = Counter("".join(document) == "".join(next(iter(parts[0]))) for document in documents)
    characters = [len(line) for document in documents for line in document]
    assert sum(characters) == pytest.approx(sum(sizes), rel=0.02)
    small = count[True] * sum(map(len, next(iter(parts[0]))))
    assert small / sum(characters) == pytest.approx(2 / 3, abs=0.02)
    assert list(MixedDocuments(parts[:1])) == list(parts[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "metric"),
    [
        pytest.param(Recipe(**TINY), "masked_lm_loss", id="bert"),
        pytest.param(
            Recipe("elmo", tokens=84, vocabulary_size=13, sequence_length=3, batch_size=4), "perplexity", id="elmo"
        ),
    ],
)
def test_each_text_of_a_mixture_has_scores(films, tmp_path, recipe, metric):
    """The card has them as well. With other weights, the run is another one."""
    scores = pretrain(films, tmp_path / "preset", recipe, verbose=False)
    small, large, total = scores[f"{metric}_films"], scores[f"{metric}_tales"], scores[metric]
    if metric == "perplexity":
        small, large, total = np.log([small, large, total])
    assert total == pytest.approx(2 / 3 * small + 1 / 3 * large, rel=1e-9)
    assert small != large
    card = (tmp_path / "preset/README.md").read_text("utf-8")
    assert "66.7% films, 33.3% tales" in card
    assert re.search(rf"^\| held out from \|.* {metric.replace('_', ' ')} \|", card, re.MULTILINE)
    assert f"| films | {scores[next(iter(scores)) + '_films']:.4g} |" in card
    changed = dict.fromkeys(films, 1)
    with pytest.raises(ValueError, match="a run with another `corpus`"):
        pretrain(changed, tmp_path / "preset", recipe, overwrite=True, verbose=False)


@pytest.mark.slow
def test_an_interrupted_mixture_has_the_same_scores(films, tmp_path):
    all_scores, losses = [], []

    class RecordLosses(Spy):
        def on_train_batch_end(self, batch, logs=None):
            losses[-1].append(float(logs["loss"]))
            super().on_train_batch_end(batch, logs)

    for name, steps in (("whole", [0]), ("interrupted", [4, 0])):
        for step in steps:
            losses.append([])
            try:
                scores = pretrain(films, tmp_path / name, Recipe(**TINY), callbacks=[RecordLosses(step)], verbose=False)
            except Interrupted:
                continue
            all_scores.append(scores)
    assert all_scores[0] == all_scores[1]
    assert len(losses[2]) < len(losses[0])


def test_held_out_text_may_be_given(films, text, tmp_path):
    short_text, long_text = tmp_path / "other.txt", tmp_path / "more.txt"
    short_text.write_text("\n\n".join(["\n".join(LINES)] * 3), "utf-8")
    long_text.write_text("\n\n".join(["\n".join(LINES[1:])] * 2), "utf-8")
    parts = split_held_out(read_texts(films), None)
    assert [[len(list(part)) for part in side] for side in parts] == [[9, 102], [1, 1]]
    train, held_out = split_held_out(read_texts(films), read_texts([short_text, long_text]))
    assert [len(list(part)) for part in (*train, *held_out)] == [10, 103, 5]
    _, held_out = split_held_out(read_texts(films), read_texts({short_text: 1, long_text: 3}))
    assert [(part.name, part.share, len(list(part))) for part in held_out] == [("other", 0.25, 3), ("more", 0.75, 2)]
    with pytest.raises(ValueError, match=r"tales\.txt: text to train on and to evaluate on"):
        split_held_out(read_texts(films), read_texts({short_text: 1, text: 1}))


def test_texts_have_unique_names_and_an_identity(tmp_path, text):
    paths = ["a", "b/a-train-*.txt.xz", "c/a-train", "d/[ab]*", "e/"]
    for path in ("a", "b/a-train-0.txt.xz", "c/a-train", "d/b1.txt", "e/x.txt"):
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_text("One.\n\nTwo.", "utf-8")
    texts = read_texts({str(tmp_path / path) + "/" * path.endswith("/"): 1 for path in paths})
    assert [source.name for source in texts] == ["a", "a_train", "a_train_2", "d", "e"]
    assert read_texts({text: 7})[0].name == ""
    assert _name_texts(["a/books_2.txt", "books/", "b/books.txt"]) == ["books_2", "books", "books_3"]
    assert _name_texts(["books/", "b/books.txt", "c/books_2/"]) == ["books", "books_2", "books_2_2"]
    identity = identify_texts(texts)
    assert json.loads(json.dumps(identity)) == identity
    assert identity["a"]["share"] == 0.2
    assert identify_texts(read_texts({text: 7})) == identify_texts(read_texts(text))


def test_held_out_text_without_pairs_is_refused_before_the_training(text, tmp_path, monkeypatch):
    monkeypatch.setattr("lmzoo.pretraining.run.Run.fit", None)
    (tmp_path / "other.txt").write_text("THE END.\n\nNo more.", "utf-8")
    recipe = Recipe(**{**TINY, "objective": "nsp"})
    with pytest.raises(ValueError, match="The held-out text: None of the documents has two sentences"):
        pretrain(text, tmp_path / "model", recipe, validation=tmp_path / "other.txt", verbose=False)


def test_wrong_mixtures_are_refused(text, tmp_path):
    second_text = tmp_path / "other.txt"
    second_text.write_text("The sea.", "utf-8")
    for mixture, error, message in (
        ({}, ValueError, "at least one text"),
        ({text: 0, second_text: 1}, ValueError, r"the weight of .*tales\.txt` must be a finite number above 0, got 0"),
        ({text: "2", second_text: 1}, ValueError, "must be a finite number above 0, got '2'"),
        ({text: 2, str(tmp_path): 1}, ValueError, r"tales\.txt is in two texts, tales and .*: each file has one we"),
        ({text: 2, tmp_path / "typo.txt": 1}, FileNotFoundError, r"There is no .*typo\.txt"),
        ({3: 2}, TypeError, "A mixture has files, folders or patterns and their weights, got 3"),
        ({text: 2, second_text: 1}, ValueError, "The corpus, in the text other, holds 1 document"),
    ):
        with pytest.raises(error, match=message):
            pretrain(mixture, tmp_path / "model", Recipe(**TINY), verbose=False)


def test_the_command_line_takes_weights(text, tmp_path, monkeypatch):
    assert _parse_texts(["films/", "books/*"]) == ["films/", "books/*"]
    assert _parse_texts(["films/:2", "s3://books/*:0.5"]) == {"films/": 2.0, "s3://books/*": 0.5}
    for texts, message in ((["films/:2", "b"], "b: no weight"), (["a:1", "a:2"], "given twice")):
        with pytest.raises(ValueError, match=message):
            _parse_texts(texts)
    corpora = []
    monkeypatch.setattr("lmzoo.pretraining.pretrain", lambda corpus, *_, **__: corpora.append(corpus) or {})
    command = ["pretrain", "-o", str(tmp_path / "preset")]
    for arguments in (["--text", "films/:2", "--text", "books/:1"], ["a", "b"], ["--text", "a"]):
        result = CliRunner().invoke(app, [*command, *arguments])
        assert result.exit_code == 0, result.output
    assert corpora == [{"films/": 2.0, "books/": 1.0}, ["a", "b"], ["a"]]
    for arguments in ([], ["a", "--text", "b"]):
        result = CliRunner().invoke(app, [*command, *arguments])
        assert result.exit_code == 2
        assert "either as CORPUS or as --text" in result.stderr
