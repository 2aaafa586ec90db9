"""Arguments and files that cannot be: each gives an error that names it and says what was expected."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras.optimizers.schedules import PolynomialDecay

from lmzoo.checkpoints.formats.hdf5 import write_hdf5
from lmzoo.data import readers
from lmzoo.data.corpora import (
    TokenCorpus,
    pack_documents,
    pack_sentences,
    read_documents,
    segment_pairs,
    train_byte_pairs,
    train_sentencepiece,
    train_wordpiece,
    train_words,
    write_corpus,
)
from lmzoo.files.atomic import atomic_directory, atomic_file
from lmzoo.models import (
    Backbone,
    BidirectionalLM,
    MaskedLM,
    MultipleChoice,
    Pretrainer,
    QuestionAnswerer,
    Task,
    TextClassifier,
    TextEmbedder,
    TextRegressor,
    TokenClassifier,
)
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.testing.tiny import tiny_examples
from lmzoo.text import CharacterTokenizer, Masking, Preprocessor, WordPieceTokenizer, WordTokenizer
from lmzoo.training import (
    LAMB,
    Adagrad,
    AdamW,
    InverseSquareRoot,
    LateDecay,
    MultipleNegativesRanking,
    ResumableCheckpoint,
    WarmUp,
)

pytestmark = pytest.mark.usefixtures("eager")

BERT, ELMO = families()["bert"], families()["elmo"]
TASKS: dict[str, Callable[[], Task]] = {
    "classifier": lambda: tiny_task(TextClassifier, BERT),
    "multi-label": lambda: tiny_task(TextClassifier, BERT, multi_label=True),
    "regressor": lambda: tiny_task(TextRegressor, BERT),
    "tagger": lambda: tiny_task(TokenClassifier, BERT),
    "answerer": lambda: tiny_task(QuestionAnswerer, BERT),
    "choice": lambda: tiny_task(MultipleChoice, BERT),
    "masked": lambda: tiny_task(MaskedLM, BERT),
    "embedder": lambda: tiny_task(TextEmbedder, BERT),
    "cosine": lambda: tiny_task(TextEmbedder, BERT, objective="cosine"),
    "pretrainer": lambda: tiny_task(Pretrainer, BERT),
    "bilm": lambda: tiny_task(BidirectionalLM, ELMO),
}
LABELS = {"multi-label": [["O"], [], ["B-PER"]], "cosine": [0.1, 0.2, 0.3]}
NAN = float("nan")


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    """Tasks that have been built, by name."""
    return {}


@pytest.fixture(params=TASKS)
def task(tasks: dict[str, Task], request: pytest.FixtureRequest) -> Task:
    name = request.param
    tasks.setdefault(name, TASKS[name]())
    return tasks[name]


@pytest.fixture
def examples(task: Task, request: pytest.FixtureRequest) -> tuple[list[Any], Any]:
    x, y = tiny_examples(task, 3)
    return x, LABELS.get(request.node.callspec.params["task"], y)


def refused(message: str, call: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Checks that a call raises one of our errors, and not one that Python or a library raises by itself."""
    with pytest.raises((TypeError, ValueError, OSError), match=message) as caught:
        call(*args, **kwargs)
    place = traceback.extract_tb(caught.tb)[-1]
    assert "lmzoo" in Path(place.filename).parts, place
    assert (place.line or "").startswith("raise "), place


# === Arguments ===

COUNTS = [(name, value) for name in ("batch_size", "steps") for value in (-1, 0, 2.5, "3", True, NAN, [2])]
FIT: list[tuple[str, object]] = [
    *(("batch_size", value) for value in (-1, 0, 2.5, "3", True, NAN)),
    *(("epochs", value) for value in (None, -1, "2", 1.5, True)),
    *(("validation_split", value) for value in (NAN, 1.5, 1.0, -0.1, "x", True, [0.5], float("inf"))),
    *(("seed", value) for value in (None, -1, 1.5, "a")),
    *(("validation_freq", value) for value in (None, 0, -1, 1.5, "a")),
    *(("callbacks", value) for value in ("x", 5, [5], [None])),
    *(("validation_data", value) for value in ((), (1, 2, 3, 4))),
    *(("initial_epoch", value) for value in (None, -1, "1")),
    *(("steps_per_epoch", value) for value in (0, 1.5, "2")),
]


def test_arguments_of_fit_and_evaluate(task: Task, examples: tuple[Any, Any]) -> None:
    x, y = examples
    for name, value in FIT:
        refused(f"`{name}` must be ", task.fit, x, y, verbose=0, **{name: value})
    for name, value in COUNTS:
        refused(f"`{name}` must be an integer of at least 1, got ", task.evaluate, x, y, verbose=0, **{name: value})
        refused(f"`{name}` must be an integer of at least 1, got ", task.predict, x, verbose=0, **{name: value})


def _answers(task: Task) -> bool:
    """Whether the task has a method that returns answers."""
    return type(task).answers is not Task.answers


def test_batch_size_of_answers(task: Task) -> None:
    answer, texts = task.answers if _answers(task) else task.predict, tiny_examples(task, 3)[0]
    texts = ["the [MASK]"] if isinstance(task, MaskedLM) else texts
    for call in (task.perplexity,) if isinstance(task, BidirectionalLM) else (answer,):
        for value in (-1, 0, 2.5, "3", NAN):
            refused("`batch_size` must be an integer of at least 1, got ", call, texts, batch_size=value)
    if isinstance(task, TextEmbedder):
        refused("`batch_size` must be", task.embed, ["a"], level="word", batch_size=0)
        refused(r"`layers\[0\]` must be a finite number", task.embed, ["a"], level="word", layers={0: NAN})


WEIGHTS = [
    (np.ones((3, 2)), "(one|a) weight for each (example|text)|has no weight|weights for 7 words"),
    (np.ones((3, 1, 1)), "(one|a) weight for each (example|text)|has no weight|weights for 7 words"),
    (1.0, "(one|a) weight for each (example|text)|has no weight|weights for 7 words"),
    ([[1.0], [1.0, 2.0], [1.0]], "must be numbers, got lists of different lengths|has no weight|weights for 7 words"),
    (["1", "2", "3"], "`sample_weight` must be numbers|has no weight"),
    ([None, 1.0, 1.0], "`sample_weight` must be numbers|has no weight"),
    ([1j, 1.0, 1.0], "`sample_weight` must be numbers|has no weight"),
    ([1.0, 1.0], r"Got \d texts but 2 weights|has no weight"),
]


def test_weights(task: Task, examples: tuple[Any, Any]) -> None:
    x, y = examples
    for weights, message in WEIGHTS:
        refused(message, task.fit, x, y, sample_weight=weights, verbose=0)
        refused(message, task.evaluate, x, y, sample_weight=weights, verbose=0)
    if task.needs_labels and not task.labels_words:
        column = task.evaluate(x, y, sample_weight=np.array([[1.0], [0.0], [1.0]]), verbose=0)
        np.testing.assert_allclose(column, task.evaluate(x, y, sample_weight=[True, False, True], verbose=0), rtol=1e-5)


# === Labels and texts ===

WRONG_LABELS = {
    "classifier": (None, 2**70, -1, 0.5, b"x", NAN, {}, "zzz", [1, 2], (), 1j, np.datetime64("2020-01-01"), [None]),
    "multi-label": (None, 0.5, True, "O", b"O", ["zzz"], [2**70], [None], 1),
    "regressor": (None, b"x", NAN, "1", [1, 2], (), 1j, {}, np.datetime64("2020-01-01")),
    "tagger": (None, 0.5, "O", ["zzz"], [1], {"a": 1}, [{"start": 0}], [{"start": "a", "end": 1, "label": "PER"}],
               [{"start": 0.0, "end": 3.0, "label": "PER"}]),
    "answerer": (0.5, True, [1], {"text": None, "answer_start": 0}, {"text": "the", "answer_start": "0"},
                 {"text": "the", "answer_start": 2**70}),
    "choice": (None, 2**70, 2**32, -1, 0.5, b"x", NAN, "0", [0, 1], ()),
    "cosine": (None, 2, -1.5, NAN, "1", b"x", [0.1, 0.2], 1j),
}  # fmt: skip
NO_LABELS = (5, "xyz", b"xyz", object(), {"a": 1}, {1, 2, 3}, np.array(1), iter([0, 1, 2]))


def test_labels(task: Task, examples: tuple[Any, Any], request: pytest.FixtureRequest) -> None:
    x, y = examples
    for label in WRONG_LABELS.get(request.node.callspec.params["task"], ()):
        refused("(?s).", task.fit, x, [y[0], label, y[2]], verbose=0)
        if not isinstance(label, tuple):  # as an array, that is no labels for the multi-label task
            refused("(?s).", task.fit, x, [label] * 3, verbose=0)
    for labels in NO_LABELS:
        refused("`y|takes no labels", task.fit, x, labels, verbose=0)


def test_a_label_is_named(tasks: dict[str, Task]) -> None:
    classifier = tasks.setdefault("classifier", TASKS["classifier"]())
    choice = tasks.setdefault("choice", TASKS["choice"]())
    for wrong, message in (
        ([0, None, 1], "Label None at position 1 is neither a class's number nor its name"),
        ([0, 2**70, 1], f"Label {2**70} at position 1 is outside"),
        ([0, [1], 1], r"Expected one class for each text, got lists of different lengths: \[0, \[1\], 1\]"),
        (["O", 7, "O"], "Label '7' at position 1 is not one of"),
    ):
        refused(message, classifier.encode_labels, wrong)
    refused(f"Label {2**32} at position 1 is not the index of a choice", choice.encode_labels, [0, 2**32])


NO_TEXTS = (
    *(None, 5, 1.5, True, object(), b"abc", "abc", {"a"}, {"a": 1}, np.array("a"), (1, 2), (None, None)),
    *([None] * 3, [5] * 3, [{}] * 3, lambda: 1),
)


def test_texts(task: Task, examples: tuple[Any, Any]) -> None:
    for texts in NO_TEXTS:
        refused("(?s).", task.fit, texts, examples[1], verbose=0)
        refused("(?s).", task.predict, texts, verbose=0)
        if _answers(task):
            refused("(?s).", task.answers, texts)
    refused("got None", task.predict, None)
    for texts in ("a film", ["a", "film"], ("a film", 1)):
        refused(
            "got a generator of them|a generator does not allow", task.predict, (text for text in [texts]), verbose=0
        )
        refused("got a generator of them|a generator does not allow", task.fit, (text for text in [texts]), verbose=0)
    refused("`validation_data`: .*got 5", task.fit, *examples, validation_data=5, verbose=0)


# === Constructors ===

SHARE, POSITIVE = r"must be a number in \[0, 1\), got", "must be (a positive integer|an integer of at least 1), got"
ABOVE_0, AT_LEAST_0 = "must be a (positive number|number above 0), got", "must be a finite number of at least 0"
HEADS = {"dropout": (SHARE, 2, -1, "a", NAN, 1.0), "encoder_dim": (POSITIVE, 0, -1, 2.5, "a", None)}
CONSTRUCTORS: list[tuple[type[Task], dict[str, tuple[Any, ...]]]] = [
    (TextClassifier, {**HEADS, "num_classes": ("an integer of at least 2", 1, 0, -2, "2", 2.0, None, True, NAN, [3]),
                      "labels": ("must be|twice|at least 2", "ab", 5, [], ["a"], ["a", "a"], {"a": 1}),
                      "pooling": ("`pooling` must be", "foo", None, 5), "encoder": ("`encoder` must be", "foo", 5)}),
    (TokenClassifier, {**HEADS, "num_classes": ("an integer of at least 2", 1, "2", 2.0)}),
    (TextRegressor, {**HEADS, "output_activation": ("Unknown activation", "foo", None, 5)}),
    (MultipleChoice, HEADS),
    (QuestionAnswerer, {**dict.fromkeys(("doc_stride", "n_best"), (POSITIVE, 0, 2.5, "a", None, True)),
                        "null_score_threshold": ("must be a number or None", "a", NAN, [1])}),
    (MaskedLM, {"masking": ("`masking` must be a", "x", 5), "activation": ("Unknown activation", "foo"),
                "layer_norm_epsilon": (r"must be a number in \(0, 1\)", 0, -1, "a", NAN)}),
    (Pretrainer, {"masking": ("`masking` must be a", "x"), "objective": ("`objective` must be", "foo")}),
    (TextEmbedder, {"temperature": (ABOVE_0, 0, -1, "a", NAN, None),
                    "pooling": ("`pooling` must be", "foo", None, 5, [], [5], ["mean"] * 2),
                    "projection": ("`projection.*` must be|lacks|has the unknown|Unknown", 5, "ab", [5], [{}],
                                   [{"kind": "foo"}], [{"kind": "dense"}], [{"kind": "dense", "units": 0}],
                                   [{"kind": "layer_norm", "units": 3}], [{"kind": "dropout", "rate": 1}],
                                   [{"kind": "dense", "units": 3, "activation": "foo"}], [{"kind": "normalize"}] * 33),
                    "prompts": ("`prompts` must|not valid Unicode", 5, ["a"], {"a": 5}, {5: "a"}, {"a": "\ud800"}),
                    "default_prompt": ("There is no prompt", "a", "")}),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "table"), CONSTRUCTORS)
def test_constructors_of_tasks(cls: type[Task], table: dict[str, tuple[Any, ...]]) -> None:
    backbone, preprocessor = tiny_backbone(BERT), tiny_preprocessor(BERT)
    classes = {"num_classes": 3} if "num_classes" in table else {}
    for name, (message, *values) in table.items():
        for value in values:
            arguments = {name: value} if name == "labels" else {**classes, name: value}
            refused(message, cls, backbone, preprocessor, **arguments)
    for other in (None, 5, "x", preprocessor):
        refused("does not belong to a registered family|Expected a backbone", cls, other, preprocessor, **classes)
    for other in (5, "x", preprocessor.tokenizer):
        refused("`preprocessor` must be a `lmzoo.text.Preprocessor`, got", cls, backbone, other, **classes)


DOCUMENTS, DECAY, TINY = [["a b", "c d"], ["e f", "g h"]], PolynomialDecay(1e-3, 10), tiny_preprocessor(BERT)
WRONG = (-1, "a", NAN, None, [1])
TRAINERS = (train_wordpiece, train_byte_pairs, train_sentencepiece)
# A message, a call of one argument, and what it is called with.
Calls = list[tuple[str, Callable[[Any], object], tuple[Any, ...]]]
OPTIMIZERS: Calls = [
    *((f"`{name}` {AT_LEAST_0}", lambda v, name=name: LAMB(**{name: v}), WRONG)
      for name in ("learning_rate", "weight_decay", "epsilon")),
    *((f"`{name}` {AT_LEAST_0}", lambda v, name=name: Adagrad(**{name: v}), WRONG)
      for name in ("learning_rate", "epsilon", "initial_accumulator_value")),
    (f"`beta_2` {SHARE}", lambda v: AdamW(beta_2=v), (1.0, *WRONG)),
    ("`exclude_from_decay` must be a list", lambda v: AdamW(exclude_from_decay=v), (5, "bias", [5])),
    ("`warmup_steps` must be an integer of at least 0", AdamW().start_schedule, (2.5, *WRONG)),
    ("`steps` must be an integer", lambda v: WarmUp(DECAY, v), (2.5, *WRONG)),
    ("`schedule` must be a Keras schedule", lambda v: WarmUp(v, 3), (0.1, "x", None)),
    ("`steps` must be an integer", lambda v: InverseSquareRoot(1e-3, v), (0, *WRONG)),
    (f"`peak` {AT_LEAST_0}", lambda v: InverseSquareRoot(v, 3), WRONG),
    (f"`peak` {AT_LEAST_0}", lambda v: LateDecay(v, 3, 5), WRONG),
    ("`begin` must be an integer", lambda v: LateDecay(1e-3, v, 5), (2.5, *WRONG)),
    ("`end` must be an integer above `begin`, 3", lambda v: LateDecay(1e-3, 3, v), (3, *WRONG)),
    (f"`temperature` {ABOVE_0}", MultipleNegativesRanking, (0, *WRONG)),
    ("`global_clipnorm` must be a positive number", lambda v: AdamW(global_clipnorm=v), (0, -1, "a", NAN)),
    ("`global_clipnorm` must be a positive number", lambda v: Adagrad(global_clipnorm=v), (0, -1, "a", NAN)),
    ("Expected the path of a file", ResumableCheckpoint, (None, 5)),
    ("`every` must be an integer", lambda v: ResumableCheckpoint("states", every=v), (0, "a")),
]  # fmt: skip
BACKBONES: Calls = [
    (f"`dropout` {SHARE}", lambda v: tiny_backbone(BERT, dropout=v), WRONG),
    (f"`dropout` {SHARE}", lambda v: tiny_backbone(ELMO, dropout=v), WRONG),
    ("`cell_clip` must be a positive number or None", lambda v: tiny_backbone(ELMO, cell_clip=v), (0, "a", NAN)),
    (f"`rank` {POSITIVE}", lambda v: tiny_backbone(BERT).enable_lora(v), (0, *WRONG)),
    ("BertBackbone is called 'none'", lambda v: tiny_backbone(BERT).enable_lora(2, v), (("none",),)),
    ("ElmoBackbone is called 'query' or 'value'", lambda v: tiny_backbone(ELMO).enable_lora(v), (2,)),
    ("`metrics` must be a list", lambda v: tiny_task(TextClassifier, BERT).compile(metrics=v), ("accuracy", 5)),
    (
        "`threshold` must be a number",
        lambda v: tiny_task(TextClassifier, BERT).classify(["a"], threshold=v),
        ("a", NAN),
    ),
    ("`num_sampled` must be a", lambda v: tiny_task(BidirectionalLM, ELMO, num_sampled=v), (0, 2.5, "a")),
]
TEXT: Calls = [
    ("`vocabulary", WordPieceTokenizer, (5, "abc", [5], b"abc", [b"a"])),
    ("`vocabulary", WordTokenizer, (5, "abc", [5], b"abc", [b"a"])),
    ("`max_characters` must be an integer", CharacterTokenizer, (2, "a", None)),
    ("`id` must be an integer from 0 to", TINY.tokenizer.id_to_token, (-1, 10**6, 2**70, 1.5, "a", None)),
    ("`id` must be an integer from 0 to 3", WordTokenizer(WordTokenizer.special_tokens).id_to_token, (-1, 4)),
    ("`sequence_length` must be", lambda v: Preprocessor(TINY.tokenizer, TINY.packing, v), (0, 2.5, True, *WRONG)),
    ("`tokenizer` must be", lambda v: Preprocessor(v, TINY.packing), (None, "x", TINY)),
    ("`packing` must be", lambda v: Preprocessor(TINY.tokenizer, v), (None, "x")),
    ("`probability` must be a number", Masking, (2, *WRONG)),
    ("`ngram` counts words", lambda v: Masking(ngram=v), (0, "a", None)),
]
CORPORA: Calls = [
    *(("`texts` must be", lambda v, train=train: train(v, 300), (None, 5, {"a": 1})) for train in TRAINERS),
    *(("`vocabulary_size` must", lambda v, train=train: train(["a b"], v), (2.5, "a", None)) for train in TRAINERS),
    *(("Expected a list of documents", lambda v, pack=pack: pack(v, TINY), (None, 5, "abc", {"a"}))
      for pack in (pack_sentences, pack_documents)),
    *(("`preprocessor` must be", lambda v, pack=pack: pack(DOCUMENTS, v), (None, TINY.tokenizer))
      for pack in (pack_sentences, pack_documents)),
    ("`vocabulary_size` must be an integer", lambda v: train_words(DOCUMENTS, v), (3, *WRONG)),
    ("`min_frequency` must be", lambda v: train_words(DOCUMENTS, 9, v), (0, *WRONG)),
    ("`rng` must be", lambda v: segment_pairs(DOCUMENTS, TINY, "nsp", v), (None, 5)),
    ("`passes` must", lambda v: segment_pairs(DOCUMENTS, TINY, "nsp", np.random.default_rng(0), passes=v), (0, *WRONG)),
    ("Expected a list of documents", lambda v: write_corpus(v, TINY.tokenizer, "none"), (None, 5, "abc")),
    ("`tokenizer` must be", lambda v: write_corpus(DOCUMENTS, v, "none"), (None, TINY)),
    ("Expected the path of a file", read_documents, (None, 5, b"x")),
    ("Expected the path of a file", TokenCorpus, (None, 5, b"x")),
    ("Expected the path of a file", lambda v: write_corpus(DOCUMENTS, TINY.tokenizer, v), (None, 5, b"x")),
    ("Expected the path of a file", readers.read_conll, (None, 5)),
    ("Expected the path of a file", readers.read_squad, (None, 5)),
]  # fmt: skip


@pytest.mark.parametrize(
    "calls", [OPTIMIZERS, BACKBONES, TEXT, CORPORA], ids=["optimizers", "backbones", "text", "corpora"]
)
def test_other_arguments(calls: Calls) -> None:
    for message, call, values in calls:
        for value in values:
            refused(message, call, value)


# === Files ===


def spoil(content: dict[str, bytes]) -> Iterator[tuple[str, dict[str, bytes | None], str]]:
    """Ways to damage the files of a model: a name, the changed files, and the message."""
    for name, data in content.items():
        if name not in ("metadata.json", "tokenizer.json"):  # which loading does not need
            yield "missing", {name: None}, name.rpartition("/")[2]
        if name.endswith(".h5"):
            yield "half", {name: data[: len(data) // 2]}, "."
            yield "empty", {name: b""}, "."
        if name.endswith(".txt"):
            yield "not UTF-8", {name: b"\xff\xfe" + data}, r"\.txt is not UTF-8: its byte 0 is 0xff"
        if name in ("config.json", "task.json", "preprocessor.json"):
            for changed in (data[:50], b"[1]", b"{}", b"\xff\xfe\x00", b'{"registered_name": [], "config": []}'):
                yield "other", {name: changed}, "."


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `it.keras` and the preset `it`."""
    folder, task = tmp_path_factory.mktemp("saved"), tiny_task(TextClassifier, BERT)
    task.save(folder / "it.keras")
    task.save_to_preset(folder / "it")
    (folder / "it" / "manifest.json").unlink()  # which would find every damage
    return folder


def test_damaged_keras_files(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "it.keras"
    with zipfile.ZipFile(saved / "it.keras") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    for kind, changes, _ in spoil(content):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**content, **changes}.items():
                if data is not None:
                    archive.writestr(name, data)
        with pytest.raises(ValueError, match=r"it\.keras") as caught:
            Task.load(path)
        assert not re.search("object has no|not subscriptable", str(caught.value)), (kind, changes.keys())
    whole = bytearray((saved / "it.keras").read_bytes())
    whole[len(whole) // 2] ^= 255
    for data, message in (
        (bytes(whole), "it.keras is damaged or not an archive .*Bad CRC-32"),
        (whole[:1000], "it.keras is damaged"),
        (b"", "it.keras is damaged"),
        (b"hello" * 50, "it.keras is damaged"),
    ):
        path.write_bytes(data)
        refused(message, Task.load, path)
    refused("is a directory, not a `.keras` file", Task.load, tmp_path)
    for other in (None, 5, b"x", ["a"]):
        refused("Expected the path of a file", Task.load, other)


def test_damaged_presets(saved: Path, tmp_path: Path) -> None:
    files = {str(p.relative_to(saved / "it")): p.read_bytes() for p in (saved / "it").rglob("*") if p.is_file()}
    for number, (kind, changes, message) in enumerate(spoil(files)):
        folder = tmp_path / f"preset{number}"
        shutil.copytree(saved / "it", folder)
        for name, data in changes.items():
            (folder / name).unlink()
            if data is not None:
                (folder / name).write_bytes(data)
        if changes.get("task.json", b"") is None:
            continue  # a backbone's preset
        with pytest.raises(ValueError, match=message) as caught:
            TextClassifier.from_preset(folder)
        assert str(folder) in str(caught.value), (kind, changes.keys())
    config = json.loads(files["config.json"])
    config["config"]["max_sequence_length"] = 7
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"model\.weights\.h5 holds a weight of shape \(\d+, 35\), .* shape \(7, 35\)"):
        Backbone.from_preset(folder)
    refused("`labels` must be a list", TextClassifier.from_preset, saved / "it", labels=5)
    refused("`sequence_length` must", TextClassifier.from_preset, saved / "it", sequence_length=True)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    task = tiny_task(TextClassifier, BERT)
    advice = r"what was there before has not changed. Free some room, or choose another folder: '.*{}'$"
    with pytest.raises(OSError, match=advice.format("it")), atomic_file(tmp_path / "it"):
        fail()
    with pytest.raises(OSError, match=advice.format("it")), atomic_directory(tmp_path / "it", marker="", owns=()):
        fail()
    # HDF5 ends the process if the disk is full when it closes a file: there must be room before it is opened.
    monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
    with pytest.raises(OSError, match=advice.format("it")):
        task.save_to_preset(tmp_path / "it")
    with pytest.raises(OSError, match=advice.format("it.h5")):
        write_hdf5(tmp_path / "it.h5", [("a", np.ones(3))])
    monkeypatch.setattr(keras.Model, "save", fail)
    with pytest.raises(OSError, match=advice.format("it.keras")):
        task.save(tmp_path / "it.keras")
    assert not list(tmp_path.iterdir())


def test_room_for_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda file, start, size: asked.append(size), raising=False)
    for number, family in enumerate((BERT, ELMO)):
        del asked[:]
        tiny_backbone(family).save_to_preset(tmp_path / str(number))
        assert asked[0] > (tmp_path / str(number) / "model.weights.h5").stat().st_size


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    task, file = tiny_task(TextClassifier, BERT), tmp_path / "file"
    file.write_text("")
    for call in (task.save, task.save_to_preset, task.export):
        for other in (None, 5, b"x.keras", ["a"]):
            refused("Expected the path of a file or directory", call, other)
        name = "it.keras" if call == task.save else "it"
        refused("file is not a directory, or lies in a file", call, file / name)
    (tmp_path / "it.keras").mkdir()
    with pytest.raises(IsADirectoryError, match=r"Is a directory: '.*/it\.keras'$"):
        task.save(tmp_path / "it.keras")
