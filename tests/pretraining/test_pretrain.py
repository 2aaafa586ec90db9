"""Pre-training of encoders and ELMo, from text files to a preset: interruptions, documents, estimates, errors."""

from __future__ import annotations

import csv
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
from lmzoo.pretraining.training_texts import TextSource, split_held_out
from lmzoo.registry.family import families
from lmzoo.text import BytePairTokenizer, EncodedTexts, LengthBatches
from lmzoo.text.interleaved import Interleaved
from lmzoo.text.validate_text import TextWarning
from lmzoo.training import FineTuningRecipe
from lmzoo.training.throughput import Throughput
from lmzoo_cli.main import app
from tests.pretraining.conftest import LINES, TINY, assert_same_weights
from tests.tasks.interruptions import Interrupted, Spy

pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.slow
def test_an_interrupted_run_has_the_same_weights(text, tmp_path):
    """It is interrupted in its second part, and in the middle of an epoch."""
    lines = []
    scores = pretrain(text, tmp_path / "whole", Recipe(**TINY), say=lines.append, weights_dtype="float32")
    names = ("loss", "masked_lm_loss", "masked_lm_accuracy", "sentence_loss", "sentence_accuracy")
    assert scores.keys() == {*names, *(f"{name}_at_23" for name in names)}
    assert any("train: 102 documents" in line for line in lines)
    assert any(": loss" in line and "tokens/s" in line for line in lines)
    with open(tmp_path / "whole.work/log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["tokens_per_second"]) > 0
    progress = [line.split() for line in lines if line.startswith("step ")]
    steps = int(progress[-1][1])
    assert progress[-1][3] == f"{steps}:"
    assert steps % 3  # the last round is incomplete
    assert sorted(path.name for path in (tmp_path / "whole.work/states").iterdir())[-1] == f"step-{steps:012d}"
    # Runs differ in which of equally frequent tokens they learn.
    shutil.copytree(tmp_path / "whole.work/tokenizer", tmp_path / "continued.work/tokenizer")
    for step in (2, steps - 1):
        with pytest.raises(Interrupted):
            pretrain(text, tmp_path / "continued", Recipe(**TINY), callbacks=[Spy(step)], verbose=False)
    exact = {"verbose": False, "weights_dtype": "float32"}
    pretrain(text, tmp_path / "continued", Recipe(**TINY), **exact)
    pretrain(text, tmp_path / "continued", Recipe(**TINY), overwrite=True, callbacks=[Spy(steps + 1)], **exact)
    whole, continued = (lmzoo.models.Pretrainer.from_preset(tmp_path / name) for name in ("whole", "continued"))
    assert_same_weights(continued, whole)
    assert whole.backbone.config.dropout == 0.1
    assert whole.objective == "nsp"
    check_preset(tmp_path / "whole", steps)


def check_preset(directory, steps):
    """Check the recipe, the files and the card of a preset."""
    whole = lmzoo.models.Pretrainer.from_preset(directory)
    assert whole.backbone.fine_tuning["classification"] == FineTuningRecipe(3e-3, epochs=6, pooling="mean")
    assert lmzoo.models.TextClassifier.from_preset(directory, num_classes=2).pooling == "mean"
    verify_manifest(directory)
    assert "README.md" in json.loads((directory / "manifest.json").read_text("utf-8"))["files"]
    card = (directory / "README.md").read_text("utf-8")
    assert "masked lm accuracy" in card
    assert "| TextClassifier | 0.003 | 6 | 32 | mean |" in card
    assert "| TokenClassifier | 0.003 | 6 | 32 | - |" in card
    assert f"| steps | {steps} |" in card
    assert f"{keras.backend.backend()} backend on " in card
    assert "License of the weights: not stated." in card
    assert "![Loss over tokens seen](loss.png)" in card
    assert (directory / "loss.png").read_bytes()[1:4] == b"PNG"
    assert lmzoo.models.MaskedLM.from_preset(directory).fill(["The [MASK] left."], top_k=1)[0][0]["token"]


ELMO = Recipe("elmo", tokens=84, vocabulary_size=13, sequence_length=3, batch_size=4)


@pytest.mark.slow
def test_elmo_is_trained_and_continued(text, tmp_path, capsys):
    lines = []
    scores = pretrain(text, tmp_path / "elmo", ELMO, say=lines.append, weights_dtype="float32")
    assert not capsys.readouterr().out  # no progress bar without a terminal
    assert any(": perplexity " in line for line in lines)
    card = (tmp_path / "elmo/README.md").read_text("utf-8")
    assert "| optimizer | adagrad |" in card
    assert "objective" not in card
    model = lmzoo.models.BidirectionalLM.from_preset(tmp_path / "elmo")
    held_out = list(split_held_out([TextSource(text)], None)[1][0])
    assert len(held_out) == 1
    assert model.perplexity(held_out, verbose=False) == pytest.approx(scores["perplexity"], rel=1e-5)
    # An interrupted run has the same weights.
    with pytest.raises(Interrupted):
        pretrain(text, tmp_path / "continued", ELMO, callbacks=[Spy(5)], verbose=False)
    pretrain(text, tmp_path / "continued", ELMO, verbose=False, weights_dtype="float32")
    continued = lmzoo.models.BidirectionalLM.from_preset(tmp_path / "continued")
    assert_same_weights(continued, model)


OTHER_FAMILIES = sorted(
    name for name, family in families().items() if name != "bert" and family.pretrained_head == "pretraining"
)


def choose_vocabulary_size(family):
    """Return a size that can be learned from the few lines; byte-level BPE has a token for each byte."""
    return 263 if issubclass(families()[family].tokenizer, BytePairTokenizer) else {"albert": 40}.get(family, 61)


@pytest.mark.slow_cases(
    "albert", "deberta_v3", "distilbert, compiled", "electra", "mpnet", "roberta", "xlm_roberta", "xlnet"
)
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=pytest.mark.compiled, id="distilbert, compiled") if name == "distilbert" else name
        for name in OTHER_FAMILIES
    ],
)
def test_other_families_are_trained(family, text, tmp_path):
    """The documents are in memory, gradients are accumulated, and blocks are rematerialized."""
    runs = []

    class RecordRun(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            optimizer = self.model.optimizer
            runs.append((int(optimizer.iterations), optimizer.gradient_accumulation_steps, self.model.backbone.remat))

    settings = {**TINY, "tokens": 500, "positions": 17, "vocabulary_size": choose_vocabulary_size(family)}
    recipe = Recipe(family, **settings, accumulate=2, remat=True)
    documents = [LINES[:3], LINES[1:]] * 20
    lines = []
    callbacks = [RecordRun()]
    scores = pretrain(documents, tmp_path / "preset", recipe, callbacks=callbacks, say=lines.append, verbose=False)
    assert any("held_out: 1 documents" in line for line in lines)
    assert np.isfinite([*scores.values()]).all()
    ((steps, accumulated, remat),) = runs
    assert (accumulated, remat) == (2, True)
    model = lmzoo.models.Pretrainer.from_preset(tmp_path / "preset")
    assert model.objective == families()[family].objective
    assert not model.backbone.remat
    card = (tmp_path / "preset/README.md").read_text("utf-8")
    assert f"| steps | {steps} |" in card
    assert "| accumulate | 2 |" in card


def test_batches_of_two_lengths_take_turns():
    def part(name, count):
        make = lambda rows, width, rng: (name, rows.tolist())  # noqa: E731
        return LengthBatches(np.arange(1, count + 1), make, 1, [99], order="given")

    turns = Interleaved([part("short", 5), part("long", 2)], [6, 3])
    batches = list(itertools.islice(turns.batches(), 18))
    assert "".join(name[0] for name, _ in batches[:9]) == "slsslssls"
    assert [row for name, (row,) in batches if name == "short"] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    for step in range(12):
        assert list(itertools.islice(turns.batches_from(step), 6)) == batches[step : step + 6]
    turns.seed = (7, 1)
    assert [part.seed for part in turns.parts] == [(7, 1), (7, 1)]
    assert turns.identity() != Interleaved(turns.parts, [6, 2]).identity()
    assert turns.identity() == Interleaved(turns.parts, [0.2, 0.1]).identity()  # the number of batches does not matter


def test_documents_are_stored_as_words(tmp_path, monkeypatch):
    monkeypatch.setattr(document_store, "_BLOCK_BYTES", 7)
    documents = [["A b.", "c d"], ["\ud800 \u2028é"], [], ["e"]]
    stored = StoredDocuments.store(iter(documents), tmp_path / "documents", verbose=False)
    assert list(stored) == [[["A", "b", "."], ["c", "d"]], [["\ud800", "é"]], [], [["e"]]]
    assert stored[-1] == [["e"]]
    assert stored[1:] == list(stored)[1:]
    assert len(StoredDocuments.store(None, tmp_path / "documents")) == 4  # the documents are not read again
    with pytest.raises(ValueError, match="holds no documents"):
        StoredDocuments.store([], tmp_path / "nothing", verbose=False)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.half_precision
@pytest.mark.slow
def test_mixed_precision_ends_in_float32_and_pairs_follow_the_seed(text, tmp_path, monkeypatch):
    pairs, states = encoders.segment_pairs, []

    def record_state(corpus, preprocessor, objective, rng, passes):
        states.append(rng.bit_generator.state)
        return pairs(corpus, preprocessor, objective, rng, passes)

    monkeypatch.setattr(encoders, "segment_pairs", record_state)
    recipe = Recipe(**{**TINY, "tokens": 300}, dtype="mixed_bfloat16", seed=3)
    pretrain(text, tmp_path / "preset", recipe, verbose=False)
    assert states == [np.random.default_rng(3).bit_generator.state] * 4  # two lengths, for training and evaluation
    model = lmzoo.models.Pretrainer.from_preset(tmp_path / "preset")
    with h5py.File(tmp_path / "preset/task.weights.h5") as file:
        assert file["masked_lm_head/dense/kernel"].dtype == "float16"
    policies = {layer.dtype_policy.name for layer in [model, model.backbone, *model.backbone.layers]}
    assert policies == {"float32"}


def test_one_document_in_a_hundred_is_held_out(text, tmp_path):
    def counts(corpus, validation=None):
        parts = split_held_out([TextSource(corpus)], None if validation is None else [TextSource(validation)])
        return [len(list(documents)) for (documents,) in parts]

    assert counts(text) == [102, 1]
    short_text = tmp_path / "other.txt"
    short_text.write_text("One.\n\nTwo.\n", "utf-8")
    assert counts(text, short_text) == [103, 2]
    (train,), (held_out,) = split_held_out([TextSource(short_text)], None)
    assert [*train, *held_out] == [["One."], ["Two."]]
    (tmp_path / "texts.jsonl").write_text('{"body": "One. Two."}\n', "utf-8")
    assert [*TextSource([tmp_path / "texts.jsonl"], "body", split=False)] == [["One. Two."]]
    assert [*TextSource([["One. Two."], ["Three."]])] == [["One.", "Two."], ["Three."]]


def test_unusable_text_is_refused_before_anything_is_written(text, tmp_path):
    def write_text(content):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.txt"
        path.write_text(content, "utf-8")
        return path

    for family in ("bert", "elmo"):
        recipe = Recipe(family, tokens=1, vocabulary_size=61)
        short_text = write_text("The sea.")
        for corpus, validation, error, message in (
            (text, tmp_path / "typo.txt", FileNotFoundError, r"There is no .*typo\.txt"),
            (tmp_path / "typo.txt", text, FileNotFoundError, r"There is no .*typo\.txt"),
            (text, write_text("\ufeff"), ValueError, r"no words in the text to evaluate on \(`validation`\)"),
            (write_text("\n"), text, ValueError, "no words in the corpus"),
            (text, [short_text, text], ValueError, r"tales\.txt: text to train on and to evaluate on"),
            (write_text("The sea.\nIt was calm."), None, ValueError, r"holds 1 document, too few .* \(`validation`\)"),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TextWarning)
                with pytest.raises(error, match=message):
                    pretrain(corpus, tmp_path / "model", recipe, validation, verbose=False)
            assert [path.name for path in tmp_path.glob("model.work/*")] in ([], ["recipe.json"])


def test_a_directory_continues_only_with_the_same_text(text, tmp_path, monkeypatch):
    runs = []

    def train(run, train, held):
        (run.work / "train").mkdir(exist_ok=True)
        runs.append(run)
        raise Interrupted

    trainers = importlib.import_module("lmzoo.pretraining.pretrain")._TRAINERS
    monkeypatch.setitem(trainers, "pretraining", train)

    def begin(corpus, validation=None, error=Interrupted, match=None, seed=0):
        with pytest.raises(error, match=match):
            pretrain(corpus, tmp_path / "model", Recipe(**TINY, seed=seed), validation)

    text_copy = tmp_path / "other.txt"
    shutil.copy(text, text_copy)
    begin(text)
    begin(text)
    description = rf"files 1, bytes {text.stat().st_size}, sha256 \w+"
    documents = [[str(i)] for i in range(150)]
    assert TextSource(documents).identity() != TextSource([*documents[:-1], ["Other."]]).identity()
    message = rf"with another `corpus` \({description}; now {description}\)\. Pass another `work`"
    begin(text_copy, None, ValueError, message)
    message = rf"with another `seed`, another `validation` \(none; now {description}\)"
    begin(text, text_copy, ValueError, message, seed=1)
    content = text.read_text("utf-8")
    text.write_text(content.replace("ship", "boat"), "utf-8")
    begin(text, None, ValueError, "another `corpus`")
    text.write_text(content, "utf-8")
    file = tmp_path / "model.work/recipe.json"
    stored = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({name: value for name, value in stored.items() if name != "remat"}), "utf-8")
    begin(text)  # written before `remat` was a field
    assert len(runs) == 3
    file.write_text("{", "utf-8")
    begin(text_copy, None, ValueError, r"recipe\.json is damaged .* remove .*model\.work")


def test_batches_are_a_multiple_of_the_accumulation(tmp_path):
    tokens = (0.3, 150.4, 299, 900, 1001)
    for accumulate, expected in ((1, [1, 150, 299, 900, 1001]), (8, [8, 152, 296, 896, 1000])):
        training_run = run.Run(Recipe(accumulate=accumulate), tmp_path, tmp_path, [], False, print)
        assert [training_run.count_batches(count, 1) for count in tokens] == expected


@pytest.mark.slow
def test_a_run_that_fails_before_its_card_is_not_trained_again(text, tmp_path, monkeypatch):
    """With `overwrite`, the old preset stays until the new one is complete."""
    module = importlib.import_module("lmzoo.pretraining.pretrain")
    write_card = module.write_card

    def fail(*arguments):
        write_card(*arguments)
        raise Interrupted

    def fail_before_card(**arguments):
        with monkeypatch.context() as patch:
            patch.setattr(module, "write_card", fail)
            with pytest.raises(Interrupted):
                pretrain(text, tmp_path / "preset", ELMO, verbose=False, **arguments)
        assert {path.name for path in tmp_path.iterdir()} <= {"tales.txt", "preset", "preset.work"}

    fail_before_card()
    assert not (tmp_path / "preset").exists()
    pretrain(text, tmp_path / "preset", ELMO, verbose=False, callbacks=[Spy(1)])
    files = json.loads((tmp_path / "preset/manifest.json").read_text("utf-8"))["files"]
    assert {"README.md", "loss.png", "model.weights.h5"} <= files.keys()
    assert (tmp_path / "preset/README.md").read_text("utf-8").startswith("# preset\n")
    (tmp_path / "preset/notes.txt").write_text("mine", "utf-8")
    before = {path: path.read_bytes() for path in (tmp_path / "preset").rglob("*") if path.is_file()}
    fail_before_card(overwrite=True)
    assert {path: path.read_bytes() for path in (tmp_path / "preset").rglob("*") if path.is_file()} == before
    verify_manifest(tmp_path / "preset")


@pytest.mark.slow
def test_a_failed_run_leaves_its_last_state_and_no_progress_bar(text, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(Throughput, "on_train_end", lambda *_, **__: closed.append(True))
    monkeypatch.setattr(run, "ROUND", 100)
    monkeypatch.setattr(run, "MINUTES", 1e-9)
    with pytest.raises(Interrupted):
        pretrain(text, tmp_path / "preset", ELMO, verbose=False, callbacks=[Spy(3)])
    assert closed
    assert [path.name for path in sorted((tmp_path / "preset.work/states").iterdir())][-1] == "step-000000000002"


def test_presets_that_cannot_be_written_are_refused_before_the_training(text, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/config.json").touch()
    monkeypatch.chdir(tmp_path)
    for output, message in {"file": "is a file", "checkpoint": "holds .'config.json'.", ".": "working dir"}.items():
        with pytest.raises(FileExistsError, match=message):
            pretrain(text, output, Recipe(**TINY), overwrite=True)
    for metadata in ({"languages": {"en"}}, {"source": tmp_path}, {7: "seven"}):
        with pytest.raises(TypeError, match=r"`metadata` cannot be written as JSON: .* Use strings as keys"):
            pretrain(text, "new", Recipe(**TINY), metadata=metadata)
    for languages in ("en", [7]):
        with pytest.raises(ValueError, match=r"`metadata\['languages'\]` must be a list of strings, such as \['en'\]"):
            pretrain(text, "new", Recipe(**TINY), metadata={"languages": languages})
    for key in ("model", "tasks", "overwrite"):
        with pytest.raises(ValueError, match=f"`metadata` must be a dict without the keys model, .*, got .'{key}'"):
            pretrain(text, "new", Recipe(**TINY), metadata={key: "x"})
    assert not list(tmp_path.glob("*.work"))


def test_a_run_in_a_folder_of_its_text_is_refused(text, tmp_path):
    """Its recipe and vocabulary would be documents."""
    (tmp_path / "texts").mkdir()
    file = text.rename(tmp_path / "texts/tales.txt")
    inside, outside = tmp_path / "texts/model", tmp_path / "model"
    for name, arguments in (
        ("output", {"output": inside}),
        ("work", {"output": outside, "work": inside}),
        ("states", {"output": outside, "states": inside}),
    ):
        for corpus, validation in ((tmp_path / "texts", None), ([LINES], [tmp_path / "texts/"])):
            with pytest.raises(ValueError, match=f"`{name}`, .*/texts/model, holds files .*, since .*/texts is among"):
                pretrain(corpus, recipe=Recipe(**TINY), validation=validation, verbose=False, **arguments)
    assert sorted(tmp_path.rglob("*")) == [file.parent, file]


def test_sources_whose_documents_would_include_a_folder(text, tmp_path):
    inside = tmp_path / "texts/model"
    inside.mkdir(parents=True)
    file = text.rename(inside / "tales.txt")
    assert TextSource(tmp_path / "texts").find_source_around(inside) == tmp_path / "texts"
    assert TextSource(tmp_path / "texts").find_source_around(tmp_path / "texts/.model") is None  # not read
    assert TextSource(tmp_path / "texts").find_source_around(tmp_path / "texts/_runs/model") is None
    assert TextSource(tmp_path / "texts/*/*.txt").find_source_around(inside) == tmp_path / "texts/*/*.txt"
    assert TextSource(tmp_path / "texts/*/*.txt").find_source_around(tmp_path / "model") is None
    assert TextSource(file).find_source_around(inside) is None  # only this file is read


def test_wrong_arguments_are_refused(text, tmp_path):
    with pytest.raises(TypeError, match=r"read several times, which a generator does not allow: pass a list"):
        pretrain((line for line in [LINES]), tmp_path / "model", Recipe(**TINY))
    with pytest.raises(ValueError, match="special tokens and the characters alone"):
        pretrain(text, tmp_path / "model", Recipe(**{**TINY, "vocabulary_size": 9}))
    work = tmp_path / "model.work"
    Recipe(**TINY).remember(work, {})  # nothing was trained with the previous recipe
    assert json.loads((work / "recipe.json").read_text("utf-8"))["vocabulary_size"] == 61
    (work / "tokenizer").mkdir()
    message = r"holds a run with another `size`, another `learning_rate`, another `seed`, another `corpus` \(none;"
    with pytest.raises(ValueError, match=message):
        pretrain(text, tmp_path / "model", Recipe(**TINY, size="mini", seed=3))
    assert json.loads((work / "recipe.json").read_text("utf-8"))["size"] == "nano"
    (tmp_path / "model").mkdir()
    with pytest.raises(FileExistsError, match=r"exists already\. Pass `overwrite=True`"):
        pretrain(text, tmp_path / "model", Recipe(**TINY))
    with pytest.raises(ValueError, match="`weights_dtype` must be one of float32, float16, int8, got 'bfloat16'"):
        pretrain(text, tmp_path / "new", Recipe(**TINY), weights_dtype="bfloat16")
    with pytest.raises(FileNotFoundError, match="There is no"):
        pretrain(tmp_path / "none.txt", tmp_path / "another", Recipe(**TINY))


def test_sequences_for_evaluation_are_spread_over_the_text():
    sequences = EncodedTexts(np.arange(300), np.arange(0, 301, 3), np.full(100, 3))
    sample = sample_sequences(sequences, 20)
    indices = sample.token_ids[::3] // 3
    assert len(set(indices.tolist())) == 20
    assert indices.min() < 20 < 80 < indices.max()
    np.testing.assert_array_equal(sample.token_ids, sample_sequences(sequences, 20).token_ids)
    assert len(sample_sequences(sequences, 101)) == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "times", "step"),
    [
        (Recipe(**{**TINY, "positions": 11}), [50, 7, *[2] * 9, 4, *[2] * 90], 2.0),
        # Such slow steps end the trial; the first two compile.
        (ELMO, [50, 30, 20, 5, 5, 5], 20.0),
    ],
    ids=["bert", "elmo"],
)
def test_the_time_of_a_training_is_estimated(text, monkeypatch, recipe, times, step):
    """The estimate is the median step of a trial on batches of the training's size, times the number of steps."""
    clock = iter(np.cumsum(times))
    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=clock.__next__))
    shapes, fit = set(), keras.Model.fit

    def record_shapes(self, batches, **arguments):
        batches = list(batches)
        shapes.update((x.shape[:2], y.shape[0]) for features, y in batches for x in features.values())
        return fit(self, (batch for batch in batches), **arguments)

    monkeypatch.setattr(keras.Model, "fit", record_shapes)
    seconds = estimate.estimate_training_seconds(recipe)
    batch_size, length = recipe.batch_size, min(recipe.sequence_length, 11)
    assert shapes == {((batch_size, length), batch_size)}
    assert seconds == pytest.approx(step * recipe.tokens / (batch_size * length))


@pytest.mark.parametrize(
    ("seconds", "terminal", "options", "answer", "code", "is_asked"),
    [
        (7200, True, [], "n\n", 1, True),
        (7200, True, [], "y\n", 0, True),
        (7200, True, ["--yes"], None, 0, False),
        (7200, False, [], None, 0, False),
        (3000, True, [], None, 0, False),
    ],
)
def test_long_trainings_are_confirmed_on_a_terminal(
    text, tmp_path, monkeypatch, seconds, terminal, options, answer, code, is_asked
):
    module, runs = importlib.import_module("lmzoo.pretraining.pretrain"), []
    monkeypatch.setattr(module, "estimate_training_seconds", lambda recipe: seconds)
    monkeypatch.setattr(module, "_write_preset", lambda *_: None)
    monkeypatch.setitem(
        module._TRAINERS, "pretraining", lambda run, *_: runs.append(run) or (None, {"scores": {}, "of_texts": {}})
    )
    arguments = ["pretrain", str(text), "-o", str(tmp_path / "preset"), *options]
    with CliRunner().isolation(input=answer):
        stdin_type = type(sys.stdin)
    monkeypatch.setattr(stdin_type, "isatty", lambda self: terminal, raising=False)
    result = CliRunner().invoke(app, arguments, input=answer)
    assert result.exit_code == code, (result.output, result.exception)
    duration = "2 hours" if seconds == 7200 else "50 minutes"
    assert f"Training takes about {duration} on this machine." in result.stderr
    assert ("Start it? [y/N]" in result.stderr) == is_asked
    assert len(runs) == (code == 0)
    if not code:  # a run that has begun is not confirmed again
        (tmp_path / "preset.work/states").mkdir()
        assert "takes about" not in CliRunner().invoke(app, arguments).output


@pytest.mark.slow
def test_the_command_line_stops_and_continues(text, tmp_path, monkeypatch):
    monkeypatch.setattr(
        importlib.import_module("lmzoo.pretraining.pretrain"), "estimate_training_seconds", lambda recipe: 60.0
    )

    def call(*arguments, code=0):
        result = CliRunner().invoke(app, ["pretrain", *map(str, arguments)])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    path = tmp_path / "tales.jsonl"
    documents = text.read_text("utf-8").split("\n\n")
    path.write_text("".join(json.dumps({"body": document}) + "\n" for document in documents), "utf-8")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    described = ["--language=en", "--license=MIT"]
    recipe_options = ["--objective=none", "--static", *described, "--tensorboard", tmp_path / "board"]
    command = [path, "--field=body", "-o", tmp_path / "preset", *options]
    for owner, name, signals, code, position in (
        (encoders, "write_corpus", [signal.SIGINT], 130, ""),
        (Throughput, "on_train_batch_end", [signal.SIGINT], 130, " after step 1"),
        (Throughput, "on_train_batch_end", [signal.SIGTERM], 143, " after step 2"),
        (Throughput, "on_train_batch_end", [signal.SIGINT] * 2, 130, ""),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *_, by=signals, **__: [os.kill(os.getpid(), number) for number in by])
            stopped = call(*command, *recipe_options, code=code)
        assert f"Stopped{position}. The same command continues from {tmp_path / 'preset.work'}." in stopped.stderr
        assert "Error" not in stopped.stderr
    result = call(*command, *recipe_options)
    assert "continuing after step 2\n" in result.stderr
    assert "step 3 of " in result.stderr
    names = {line.split("\t")[0] for line in result.stdout.strip().splitlines()}
    assert names == {"loss", "accuracy", "loss_at_23", "accuracy_at_23"}
    stored = json.loads((tmp_path / "preset/metadata.json").read_text("utf-8"))
    assert stored["languages"] == ["en"]
    assert "Language: en. License of the weights: MIT." in (tmp_path / "preset/README.md").read_text("utf-8")
    assert any((tmp_path / "board").rglob("events*"))
    task = lmzoo.models.Pretrainer.from_preset(tmp_path / "preset")
    assert (task.objective, task.masking.dynamic) == (None, False)
    error = call(*command, code=1).stderr
    assert error.endswith("exists already. Pass `overwrite=True` to replace it. Option: --overwrite.\n")
    error = call(text, "-o", tmp_path / "new", "--family=bart", code=1).stderr
    assert "`family` must be one of" in error
    assert error.endswith("got 'bart'. Option: --family.\n")
