"""From text files to a preset."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import itertools
import json
import os
import shutil
import signal
import sys
import warnings
from types import SimpleNamespace

import h5py
import keras
import numpy as np
import pytest
from typer.testing import CliRunner

import lmzoo
from lmzoo.data.corpora import document_store
from lmzoo.data.corpora.document_store import StoredDocuments
from lmzoo.presets import verify_manifest
from lmzoo.pretraining import Recipe, encoders, estimate, pretrain, run
from lmzoo.pretraining.encoders import sample_sequences
from lmzoo.pretraining.fine_tuning import recipes_by_size
from lmzoo.pretraining.training_texts import TextSource, split_held_out
from lmzoo.registry.family import families
from lmzoo.text import EncodedTexts, LengthBatches
from lmzoo.text.interleaved import Interleaved
from lmzoo.text.validate_text import TextWarning
from lmzoo.training import FineTuningRecipe
from lmzoo.training.throughput import Throughput
from lmzoo_cli.main import app
from tests.pretraining.conftest import LINES, TINY, Interrupted, Stop

pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.slow
def test_a_run_and_one_that_is_interrupted(text, tmp_path):
    """The same weights; in the middle of the second part, and of an epoch."""
    said = []
    scores = pretrain(text, tmp_path / "whole", Recipe(**TINY), say=said.append, weights_dtype="float32")
    names = ("loss", "masked_lm_loss", "masked_lm_accuracy", "sentence_loss", "sentence_accuracy")
    assert scores.keys() == {*names, *(f"{name}_at_23" for name in names)}
    assert any("train: 102 documents" in line for line in said)
    assert any(": loss" in line and "tokens/s" in line for line in said)
    with open(tmp_path / "whole.work/log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["tokens_per_second"]) > 0
    shown = [line.split() for line in said if line.startswith("step ")]
    steps = int(shown[-1][1])
    assert shown[-1][3] == f"{steps}:"
    assert steps % 3  # the last round is not whole
    assert sorted(path.name for path in (tmp_path / "whole.work/states").iterdir())[-1] == f"step-{steps:012d}"
    # Which of equally frequent tokens are learned differs between runs.
    shutil.copytree(tmp_path / "whole.work/tokenizer", tmp_path / "again.work/tokenizer")
    for step in (2, steps - 1):
        with pytest.raises(Interrupted):
            pretrain(text, tmp_path / "again", Recipe(**TINY), callbacks=[Stop(step)], verbose=False)
    exact = {"verbose": False, "weights_dtype": "float32"}
    pretrain(text, tmp_path / "again", Recipe(**TINY), **exact)
    pretrain(text, tmp_path / "again", Recipe(**TINY), overwrite=True, callbacks=[Stop(steps + 1)], **exact)
    whole, again = (lmzoo.models.Pretrainer.from_preset(tmp_path / name) for name in ("whole", "again"))
    for ours, theirs in zip(whole.weights, again.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert whole.backbone.config.dropout == 0.1
    assert whole.objective == "nsp"
    assert whole.backbone.fine_tuning["classification"] == FineTuningRecipe(3e-3, epochs=6, pooling="mean")
    assert lmzoo.models.TextClassifier.from_preset(tmp_path / "whole", num_classes=2).pooling == "mean"
    verify_manifest(tmp_path / "whole")
    assert "README.md" in json.loads((tmp_path / "whole/manifest.json").read_text("utf-8"))["files"]
    card = (tmp_path / "whole/README.md").read_text("utf-8")
    assert "masked lm accuracy" in card
    assert "| TextClassifier | 0.003 | 6 | 32 | mean |" in card
    assert "| TokenClassifier | 0.003 | 6 | 32 | - |" in card
    assert f"| steps | {steps} |" in card
    assert f"{keras.backend.backend()} backend on " in card
    assert "License of the weights: not stated." in card
    assert "![Loss over tokens seen](loss.png)" in card
    assert (tmp_path / "whole/loss.png").read_bytes()[1:4] == b"PNG"
    assert lmzoo.models.MaskedLM.from_preset(tmp_path / "whole").fill(["The [MASK] left."], top_k=1)[0][0]["token"]


ELMO = Recipe("elmo", tokens=84, vocabulary_size=13, sequence_length=3, batch_size=4)


@pytest.mark.slow
def test_elmo(text, tmp_path, capsys):
    said = []
    scores = pretrain(text, tmp_path / "elmo", ELMO, say=said.append, weights_dtype="float32")
    assert not capsys.readouterr().out  # no progress bar without a terminal
    assert any(": perplexity " in line for line in said)
    card = (tmp_path / "elmo/README.md").read_text("utf-8")
    assert "| optimizer | adagrad |" in card
    assert "objective" not in card
    model = lmzoo.models.BidirectionalLM.from_preset(tmp_path / "elmo")
    held = list(split_held_out([TextSource(text)], None)[1][0])
    assert len(held) == 1
    assert model.perplexity(held, verbose=False) == pytest.approx(scores["perplexity"], rel=1e-5)


@pytest.mark.slow
def test_an_elmo_that_is_interrupted(text, tmp_path):
    pretrain(text, tmp_path / "whole", ELMO, verbose=False, weights_dtype="float32")
    with pytest.raises(Interrupted):
        pretrain(text, tmp_path / "again", ELMO, callbacks=[Stop(5)], verbose=False)
    pretrain(text, tmp_path / "again", ELMO, verbose=False, weights_dtype="float32")
    whole, again = (lmzoo.models.BidirectionalLM.from_preset(tmp_path / name) for name in ("whole", "again"))
    for ours, theirs in zip(whole.weights, again.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


OTHERS = sorted(
    name for name, family in families().items() if name != "bert" and family.pretrained_head == "pretraining"
)
VOCABULARY = {"roberta": 263, "modernbert": 263, "albert": 40}  # of that text; 61 in the others


@pytest.mark.slow_cases(
    "albert", "deberta_v3", "distilbert, compiled", "electra", "mpnet", "roberta", "xlm_roberta", "xlnet"
)
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(
            name,
            marks=[
                *([pytest.mark.compiled] if compiled else []),
                *([] if compiled == (name == "distilbert") else [pytest.mark.slow]),
            ],
            id=f"{name}, compiled" if compiled else name,
        )
        for name in OTHERS
        for compiled in (False, True)
    ],
)
def test_other_families(family, text, tmp_path):
    """From documents in memory, with accumulated gradients and rematerialised blocks."""
    seen = []

    class See(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            optimizer = self.model.optimizer
            seen.append((int(optimizer.iterations), optimizer.gradient_accumulation_steps, self.model.backbone.remat))

    settings = {**TINY, "tokens": 500, "positions": 17, "vocabulary_size": VOCABULARY.get(family, 61)}
    recipe, documents = Recipe(family, **settings, accumulate=2, remat=True), [LINES[:3], LINES[1:]] * 20
    said = []
    scores = pretrain(documents, tmp_path / "it", recipe, callbacks=[See()], say=said.append, verbose=False)
    assert any("held_out: 1 documents" in line for line in said)
    assert np.isfinite([*scores.values()]).all()
    ((steps, gathered, remat),) = seen
    assert (gathered, remat) == (2, True)
    model = lmzoo.models.Pretrainer.from_preset(tmp_path / "it")
    assert model.objective == families()[family].objective
    assert not model.backbone.remat
    card = (tmp_path / "it/README.md").read_text("utf-8")
    assert f"| steps | {steps} |" in card
    assert "| accumulate | 2 |" in card


@pytest.mark.parametrize(
    ("width", "objective", "expected"),
    [
        (128, None, FineTuningRecipe(1e-3, epochs=6, pooling="mean")),
        (256, "sop", FineTuningRecipe(3e-4, epochs=6, pooling="mean")),
        (768, "nsp", FineTuningRecipe(5e-5, epochs=3, pooling="first")),
        (512, None, FineTuningRecipe(1e-4, epochs=3, pooling="mean")),
    ],
)
def test_recipes_by_size(width, objective, expected):
    """Wide models are trained as usual; they read the first token's vector if an objective has trained it."""
    backbone = SimpleNamespace(config=SimpleNamespace(hidden_dim=width))
    found = recipes_by_size(SimpleNamespace(backbone=backbone, objective=objective, family=families()["bert"]))
    assert found["classification"] == found["regression"] == found["multiple_choice"] == expected
    others = {"token_classification", "question_answering", "embedding", "masked_lm"}
    assert {head for head, recipe in found.items() if recipe == dataclasses.replace(expected, pooling=None)} == others


def test_batches_in_turns():
    def part(name, count):
        make = lambda rows, width, rng: (name, rows.tolist())  # noqa: E731
        return LengthBatches(np.arange(1, count + 1), make, 1, [99], order="given")

    turns = Interleaved([part("short", 5), part("long", 2)], [6, 3])
    first = list(itertools.islice(turns.batches(), 18))
    assert "".join(name[0] for name, _ in first[:9]) == "slsslssls"
    assert [row for name, (row,) in first if name == "short"] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    for step in range(12):
        assert list(itertools.islice(turns.batches_from(step), 6)) == first[step : step + 6]
    turns.seed = (7, 1)
    assert [part.seed for part in turns.parts] == [(7, 1), (7, 1)]
    assert turns.identity() != Interleaved(turns.parts, [6, 2]).identity()
    assert turns.identity() == Interleaved(turns.parts, [0.2, 0.1]).identity()  # whatever the number of batches


def test_stored_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(document_store, "_BLOCK_BYTES", 7)
    documents = [["A b.", "c d"], ["\ud800 \u2028é"], [], ["e"]]
    found = StoredDocuments.store(iter(documents), tmp_path / "them", verbose=False)
    assert list(found) == [[["A", "b", "."], ["c", "d"]], [["\ud800", "é"]], [], [["e"]]]
    assert found[-1] == [["e"]]
    assert found[1:] == list(found)[1:]
    assert len(StoredDocuments.store(None, tmp_path / "them")) == 4  # nothing is read again
    with pytest.raises(ValueError, match="holds no documents"):
        StoredDocuments.store([], tmp_path / "nothing", verbose=False)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.slow
def test_mixed_precision_ends_in_float32_and_pairs_follow_the_seed(text, tmp_path, monkeypatch):
    pairs, states = encoders.segment_pairs, []

    def drawn(corpus, preprocessor, objective, rng, passes):
        states.append(rng.bit_generator.state)
        return pairs(corpus, preprocessor, objective, rng, passes)

    monkeypatch.setattr(encoders, "segment_pairs", drawn)
    recipe = Recipe(**{**TINY, "tokens": 300}, dtype="mixed_bfloat16", seed=3)
    pretrain(text, tmp_path / "it", recipe, verbose=False)
    assert states == [np.random.default_rng(3).bit_generator.state] * 4  # of both lengths, to train and to evaluate
    model = lmzoo.models.Pretrainer.from_preset(tmp_path / "it")
    with h5py.File(tmp_path / "it/task.weights.h5") as file:
        assert file["masked_lm_head/dense/kernel"].dtype == "float16"
    policies = {layer.dtype_policy.name for layer in [model, model.backbone, *model.backbone.layers]}
    assert policies == {"float32"}


def test_what_is_held_out(text, tmp_path):
    def counts(corpus, validation=None):
        parts = split_held_out([TextSource(corpus)], None if validation is None else [TextSource(validation)])
        return [len(list(documents)) for (documents,) in parts]

    assert counts(text) == [102, 1]
    other = tmp_path / "other.txt"
    other.write_text("One.\n\nTwo.\n", "utf-8")
    assert counts(text, other) == [103, 2]
    (train,), (held,) = split_held_out([TextSource(other)], None)
    assert [*train, *held] == [["One."], ["Two."]]
    (tmp_path / "them.jsonl").write_text('{"body": "One. Two."}\n', "utf-8")
    assert [*TextSource([tmp_path / "them.jsonl"], "body", split=False)] == [["One. Two."]]
    assert [*TextSource([["One. Two."], ["Three."]])] == [["One.", "Two."], ["Three."]]


def test_unusable_text_is_refused_before_anything_is_written(text, tmp_path):
    def written(content):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.txt"
        path.write_text(content, "utf-8")
        return path

    for family in ("bert", "elmo"):
        recipe = Recipe(family, tokens=1, vocabulary_size=61)
        other = written("The sea.")
        for corpus, validation, error, message in (
            (text, tmp_path / "typo.txt", FileNotFoundError, r"There is no .*typo\.txt"),
            (tmp_path / "typo.txt", text, FileNotFoundError, r"There is no .*typo\.txt"),
            (text, written("\ufeff"), ValueError, r"no words in the text to evaluate on \(`validation`\)"),
            (written("\n"), text, ValueError, "no words in the corpus"),
            (text, [other, text], ValueError, r"tales\.txt: text to train on and to evaluate on"),
            (written("The sea.\nIt was calm."), None, ValueError, r"holds 1 document, too few .* \(`validation`\)"),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TextWarning)
                with pytest.raises(error, match=message):
                    pretrain(corpus, tmp_path / "model", recipe, validation, verbose=False)
            assert [path.name for path in tmp_path.glob("model.work/*")] in ([], ["recipe.json"])


def test_a_folder_goes_on_with_the_same_text_alone(text, tmp_path, monkeypatch):
    begun = []

    def train(run, train, held):
        (run.work / "train").mkdir(exist_ok=True)
        begun.append(run)
        raise Interrupted

    trainers = importlib.import_module("lmzoo.pretraining.pretrain")._TRAINERS
    monkeypatch.setitem(trainers, "pretraining", train)

    def begin(corpus, validation=None, error=Interrupted, match=None, seed=0):
        with pytest.raises(error, match=match):
            pretrain(corpus, tmp_path / "model", Recipe(**TINY, seed=seed), validation)

    other = tmp_path / "other.txt"
    shutil.copy(text, other)
    begin(text)
    begin(text)
    found = rf"files 1, bytes {text.stat().st_size}, sha256 \w+"
    documents = [[str(i)] for i in range(150)]
    assert TextSource(documents).identity() != TextSource([*documents[:-1], ["Other."]]).identity()
    begin(other, None, ValueError, rf"with another `corpus` \({found}; now {found}\)\. Pass another `work`")
    begin(text, other, ValueError, rf"with another `seed`, another `validation` \(none; now {found}\)", seed=1)
    content = text.read_text("utf-8")
    text.write_text(content.replace("ship", "boat"), "utf-8")
    begin(text, None, ValueError, "another `corpus`")
    text.write_text(content, "utf-8")
    file = tmp_path / "model.work/recipe.json"
    stored = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({name: value for name, value in stored.items() if name != "remat"}), "utf-8")
    begin(text)  # from before that could be chosen
    assert len(begun) == 3
    file.write_text("{", "utf-8")
    begin(other, None, ValueError, r"recipe\.json is damaged .* remove .*model\.work")


def test_counts_of_batches(tmp_path):
    tokens = (0.3, 150.4, 299, 900, 1001)
    for gathered, expected in ((1, [1, 150, 299, 900, 1001]), (8, [8, 152, 296, 896, 1000])):
        it = run.Run(Recipe(accumulate=gathered), tmp_path, tmp_path, [], False, print)
        assert [it.batches(count, 1) for count in tokens] == expected


@pytest.mark.slow
def test_what_ends_before_the_card_is_written_goes_on(text, tmp_path, monkeypatch):
    """The same call, again, without training again; and with `overwrite` the old preset stays until then."""
    module = importlib.import_module("lmzoo.pretraining.pretrain")
    write_card = module.write_card

    def fail(*arguments):
        write_card(*arguments)
        raise Interrupted

    def end(**arguments):
        with monkeypatch.context() as patch:
            patch.setattr(module, "write_card", fail)
            with pytest.raises(Interrupted):
                pretrain(text, tmp_path / "it", ELMO, verbose=False, **arguments)
        assert {path.name for path in tmp_path.iterdir()} <= {"tales.txt", "it", "it.work"}

    end()
    assert not (tmp_path / "it").exists()
    pretrain(text, tmp_path / "it", ELMO, verbose=False, callbacks=[Stop(1)])
    files = json.loads((tmp_path / "it/manifest.json").read_text("utf-8"))["files"]
    assert {"README.md", "loss.png", "model.weights.h5"} <= files.keys()
    assert (tmp_path / "it/README.md").read_text("utf-8").startswith("# it\n")
    (tmp_path / "it/notes.txt").write_text("mine", "utf-8")
    before = {path: path.read_bytes() for path in (tmp_path / "it").rglob("*") if path.is_file()}
    end(overwrite=True)
    assert {path: path.read_bytes() for path in (tmp_path / "it").rglob("*") if path.is_file()} == before
    verify_manifest(tmp_path / "it")


@pytest.mark.slow
def test_what_fails_leaves_the_state_of_the_last_minutes_and_no_progress_bar(text, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(Throughput, "on_train_end", lambda *_, **__: closed.append(True))
    monkeypatch.setattr(run, "ROUND", 100)
    monkeypatch.setattr(run, "MINUTES", 1e-9)
    with pytest.raises(Interrupted):
        pretrain(text, tmp_path / "it", ELMO, verbose=False, callbacks=[Stop(3)])
    assert closed
    assert [path.name for path in sorted((tmp_path / "it.work/states").iterdir())][-1] == "step-000000000002"


def test_errors(text, tmp_path):
    for arguments, message in (
        ({"family": "bart"}, "`family` must be one of .*bert.*, got 'bart'"),
        ({"size": "huge"}, "`size` must be one of nano"),
        ({"optimizer": "sgd"}, "`optimizer` must be one of adamw, lamb"),
        ({"objective": "mlm"}, "`objective` must be one of auto"),
        ({"dtype": "mixed_bflot16"}, "`dtype` must be one of float32, mixed_bfloat16"),
        (
            {"family": "roberta", "objective": "nsp"},
            "auto or sbo or none for roberta, got 'nsp', which is for albert, bert",
        ),
        ({"family": "elmo", "optimizer": "lamb"}, "elmo does not use `optimizer`: .* Adagrad"),
        ({"family": "elmo", "objective": "none", "dynamic": False}, "elmo does not use `objective`, `dynamic`"),
        ({"family": "elmo", "vocabulary_size": 3}, "`vocabulary_size` must be at least 4 for elmo, got 3"),
        ({"tokens": 0}, "`tokens` must be at least 1"),
        ({"seed": -1}, "`seed` must be at least 0"),
        ({"sequence_length": 4}, "`sequence_length` must be at least 5 for bert, got 4"),
        ({"family": "roberta", "positions": 2}, "`positions` must be at least 3 for roberta"),
        ({"batch_size": "32"}, "`batch_size` must be at least 1 for bert, got '32'"),
        ({"family": "elmo", "accumulate": 2, "remat": True}, "elmo does not use `accumulate`, `remat`"),
        ({"accumulate": 0}, "`accumulate` must be at least 1"),
        ({"learning_rate": 0}, "`learning_rate` must be above 0, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Recipe(**arguments)
    with pytest.raises(TypeError, match=r"read several times, which a generator does not allow: pass a list"):
        pretrain((line for line in [LINES]), tmp_path / "model", Recipe(**TINY))
    with pytest.raises(ValueError, match="special tokens and the characters alone"):
        pretrain(text, tmp_path / "model", Recipe(**{**TINY, "vocabulary_size": 9}))
    work = tmp_path / "model.work"
    Recipe(**TINY).remember(work, {})  # nothing was made of the one before
    assert json.loads((work / "recipe.json").read_text("utf-8"))["vocabulary_size"] == 61
    (work / "tokenizer").mkdir()
    with pytest.raises(
        ValueError,
        match=r"holds a run with another `size`, another `learning_rate`, another `seed`, another `corpus` \(none;",
    ):
        pretrain(text, tmp_path / "model", Recipe(**TINY, size="mini", seed=3))
    assert json.loads((work / "recipe.json").read_text("utf-8"))["size"] == "nano"
    (tmp_path / "model").mkdir()
    with pytest.raises(FileExistsError, match=r"exists already\. Pass `overwrite=True`"):
        pretrain(text, tmp_path / "model", Recipe(**TINY))
    with pytest.raises(ValueError, match="`weights_dtype` must be one of float32, float16, int8, got 'bfloat16'"):
        pretrain(text, tmp_path / "new", Recipe(**TINY), weights_dtype="bfloat16")
    with pytest.raises(FileNotFoundError, match="There is no"):
        pretrain(tmp_path / "none.txt", tmp_path / "another", Recipe(**TINY))


def test_sequences_to_evaluate_on_come_from_all_of_them():
    sequences = EncodedTexts(np.arange(300), np.arange(0, 301, 3), np.full(100, 3))
    found = sample_sequences(sequences, 20)
    first = found.token_ids[::3] // 3
    assert len(set(first.tolist())) == 20
    assert first.min() < 20 < 80 < first.max()
    np.testing.assert_array_equal(found.token_ids, sample_sequences(sequences, 20).token_ids)
    assert len(sample_sequences(sequences, 101)) == 100


@pytest.mark.quick_cases("elmo")
@pytest.mark.parametrize(
    ("recipe", "times", "step"),
    [
        (Recipe(**{**TINY, "positions": 11}), [50, 7, *[2] * 9, 4, *[2] * 90], 2.0),
        # Steps that take so long end the trial; the first two compile.
        pytest.param(ELMO, [50, 30, 20, 5, 5, 5], 20.0, marks=pytest.mark.slow),
    ],
    ids=["bert", "elmo"],
)
def test_the_time_of_a_training_is_estimated(text, monkeypatch, recipe, times, step):
    """The median step of the trial, times the number of steps; on the batches that training takes."""
    clock = iter(np.cumsum(times))
    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=clock.__next__))
    shapes, fit = set(), keras.Model.fit

    def see(self, batches, **arguments):
        batches = list(batches)
        shapes.update((x.shape[:2], y.shape[0]) for features, y in batches for x in features.values())
        return fit(self, (batch for batch in batches), **arguments)

    monkeypatch.setattr(keras.Model, "fit", see)
    seconds = estimate.training_seconds(recipe)
    batch_size, length = recipe.batch_size, min(recipe.sequence_length, 11)
    assert shapes == {((batch_size, length), batch_size)}
    assert seconds == pytest.approx(step * recipe.tokens / (batch_size * length))


@pytest.mark.parametrize(
    ("seconds", "terminal", "options", "answer", "code", "asked"),
    [
        (7200, True, [], "n\n", 1, True),
        (7200, True, [], "y\n", 0, True),
        (7200, True, ["--yes"], None, 0, False),
        (7200, False, [], None, 0, False),
        (3000, True, [], None, 0, False),
    ],
)
def test_long_trainings_are_confirmed_on_a_terminal(
    text, tmp_path, monkeypatch, seconds, terminal, options, answer, code, asked
):
    module, trained = importlib.import_module("lmzoo.pretraining.pretrain"), []
    monkeypatch.setattr(module, "training_seconds", lambda recipe: seconds)
    monkeypatch.setattr(module, "_write_preset", lambda *_: None)
    monkeypatch.setitem(
        module._TRAINERS, "pretraining", lambda run, *_: trained.append(run) or (None, {"scores": {}, "of_texts": {}})
    )
    arguments = ["pretrain", str(text), "-o", str(tmp_path / "it"), *options]
    with CliRunner().isolation(input=answer):  # whose standard input becomes a terminal or not
        kind = type(sys.stdin)
    monkeypatch.setattr(kind, "isatty", lambda self: terminal, raising=False)
    result = CliRunner().invoke(app, arguments, input=answer)
    assert result.exit_code == code, (result.output, result.exception)
    duration = "2 hours" if seconds == 7200 else "50 minutes"
    assert f"Training takes about {duration} on this machine." in result.stderr
    assert ("Start it? [y/N]" in result.stderr) == asked
    assert len(trained) == (code == 0)
    if not code:  # a run that has begun to train is not asked about
        (tmp_path / "it.work/states").mkdir()
        assert "takes about" not in CliRunner().invoke(app, arguments).output


@pytest.mark.slow
def test_command_line(text, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("lmzoo.pretraining.pretrain"), "training_seconds", lambda recipe: 60.0)

    def call(*arguments, code=0):
        result = CliRunner().invoke(app, ["pretrain", *map(str, arguments)])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    path = tmp_path / "tales.jsonl"
    documents = text.read_text("utf-8").split("\n\n")
    path.write_text("".join(json.dumps({"body": document}) + "\n" for document in documents), "utf-8")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    asked = ["--objective=none", "--static", "--language=en", "--license=MIT", "--tensorboard", tmp_path / "board"]
    command = [path, "--field=body", "-o", tmp_path / "it", *options]
    for owner, name, by, code, where in (
        (encoders, "write_corpus", [signal.SIGINT], 130, ""),
        (Throughput, "on_train_batch_end", [signal.SIGINT], 130, " after step 1"),
        (Throughput, "on_train_batch_end", [signal.SIGTERM], 143, " after step 2"),
        (Throughput, "on_train_batch_end", [signal.SIGINT] * 2, 130, ""),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *_, by=by, **__: [os.kill(os.getpid(), number) for number in by])
            stopped = call(*command, *asked, code=code)
        assert f"Stopped{where}. The same command continues from {tmp_path / 'it.work'}." in stopped.stderr
        assert "Error" not in stopped.stderr
    result = call(*command, *asked)
    assert "continuing after step 2\n" in result.stderr
    assert "step 3 of " in result.stderr
    names = {line.split("\t")[0] for line in result.stdout.strip().splitlines()}
    assert names == {"loss", "accuracy", "loss_at_23", "accuracy_at_23"}
    stored = json.loads((tmp_path / "it/metadata.json").read_text("utf-8"))
    assert stored["languages"] == ["en"]
    assert "Language: en. License of the weights: MIT." in (tmp_path / "it/README.md").read_text("utf-8")
    assert any((tmp_path / "board").rglob("events*"))
    task = lmzoo.models.Pretrainer.from_preset(tmp_path / "it")
    assert (task.objective, task.masking.dynamic) == (None, False)
    refused = call(*command, code=1).stderr
    assert refused.endswith("exists already. Pass `overwrite=True` to replace it. Option: --overwrite.\n")
    refused = call(text, "-o", tmp_path / "new", "--family=bart", code=1).stderr
    assert "`family` must be one of" in refused
    assert refused.endswith("got 'bart'. Option: --family.\n")
