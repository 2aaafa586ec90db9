"""Invalid arguments raise an error that names the argument, says what was expected, and comes from lmzoo itself."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras.optimizers.schedules import PolynomialDecay

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
from lmzoo.models import (
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
TASKS: dict[str, tuple[type[Task], dict[str, Any]]] = {
    "classifier": (TextClassifier, {}),
    "multi-label": (TextClassifier, {"multi_label": True}),
    "regressor": (TextRegressor, {}),
    "tagger": (TokenClassifier, {}),
    "answerer": (QuestionAnswerer, {}),
    "choice": (MultipleChoice, {}),
    "masked": (MaskedLM, {}),
    "embedder": (TextEmbedder, {}),
    "cosine": (TextEmbedder, {"objective": "cosine"}),
    "pretrainer": (Pretrainer, {}),
    "bilm": (BidirectionalLM, {}),
}
LABELS = {"multi-label": [["O"], [], ["B-PER"]], "cosine": [0.1, 0.2, 0.3]}
NAN = float("nan")


@functools.cache
def get_task(name: str) -> Task:
    """Build a task on the first call and return the same one afterwards."""
    cls, options = TASKS[name]
    return tiny_task(cls, ELMO if cls is BidirectionalLM else BERT, **options)


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    return get_task(request.param)


@pytest.fixture
def examples(task: Task, request: pytest.FixtureRequest) -> tuple[list[Any], Any]:
    x, y = tiny_examples(task, 3)
    return x, LABELS.get(request.node.callspec.params["task"], y)


def assert_refused(message: str, call: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Check that a call raises an error of lmzoo's, and not one of Python or another library."""
    with pytest.raises((TypeError, ValueError, OSError), match=message) as caught:
        call(*args, **kwargs)
    frame = traceback.extract_tb(caught.tb)[-1]
    assert "lmzoo" in Path(frame.filename).parts, frame
    assert (frame.line or "").startswith("raise "), frame


# === Arguments of methods ===

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


def test_invalid_arguments_of_fit_evaluate_and_predict_are_named() -> None:
    """One task is enough: the base class has these methods."""
    task = get_task("classifier")
    x, y = tiny_examples(task, 3)
    for name, value in FIT:
        assert_refused(f"`{name}` must be ", task.fit, x, y, verbose=0, **{name: value})
    for name, value in COUNTS:
        assert_refused(
            f"`{name}` must be an integer of at least 1, got ", task.evaluate, x, y, verbose=0, **{name: value}
        )
        assert_refused(f"`{name}` must be an integer of at least 1, got ", task.predict, x, verbose=0, **{name: value})


def has_answers(task: Task) -> bool:
    """Return whether the task has a method that returns answers."""
    return type(task).answers is not Task.answers


def test_an_invalid_batch_size_of_answers_is_named(task: Task) -> None:
    method = task.answers if has_answers(task) else task.predict
    if isinstance(task, BidirectionalLM):
        method = task.perplexity
    texts = ["the [MASK]"] if isinstance(task, MaskedLM) else tiny_examples(task, 3)[0]
    for value in (-1, 0, 2.5, "3", NAN):
        assert_refused("`batch_size` must be an integer of at least 1, got ", method, texts, batch_size=value)


def test_invalid_arguments_of_word_embeddings_are_named() -> None:
    embedder = get_task("embedder")
    assert_refused("`batch_size` must be", embedder.embed, ["a"], level="word", batch_size=0)
    assert_refused(r"`layers\[0\]` must be a finite number", embedder.embed, ["a"], level="word", layers={0: NAN})


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


def test_invalid_sample_weights_are_named(task: Task, examples: tuple[Any, Any]) -> None:
    x, y = examples
    for weights, message in WEIGHTS:
        assert_refused(message, task.fit, x, y, sample_weight=weights, verbose=0)
        assert_refused(message, task.evaluate, x, y, sample_weight=weights, verbose=0)
    if task.needs_labels and not task.labels_words:
        with_column = task.evaluate(x, y, sample_weight=np.array([[1.0], [0.0], [1.0]]), verbose=0)
        with_booleans = task.evaluate(x, y, sample_weight=[True, False, True], verbose=0)
        np.testing.assert_allclose(with_column, with_booleans, rtol=1e-5)


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


def test_invalid_labels_are_refused(task: Task, examples: tuple[Any, Any], request: pytest.FixtureRequest) -> None:
    x, y = examples
    for label in WRONG_LABELS.get(request.node.callspec.params["task"], ()):
        assert_refused("(?s).", task.fit, x, [y[0], label, y[2]], verbose=0)
        if not isinstance(label, tuple):  # an array of empty tuples has valid labels for the multi-label task
            assert_refused("(?s).", task.fit, x, [label] * 3, verbose=0)
    for labels in NO_LABELS:
        assert_refused("`y|takes no labels", task.fit, x, labels, verbose=0)


def test_the_error_names_an_invalid_label_and_its_position() -> None:
    for labels, message in (
        ([0, None, 1], "Label None at position 1 is neither a class's number nor its name"),
        ([0, 2**70, 1], f"Label {2**70} at position 1 is outside"),
        ([0, [1], 1], r"Expected one class for each text, got lists of different lengths: \[0, \[1\], 1\]"),
        (["O", 7, "O"], "Label '7' at position 1 is not one of"),
    ):
        assert_refused(message, get_task("classifier").encode_labels, labels)
    message = f"Label {2**32} at position 1 is not the index of a choice"
    assert_refused(message, get_task("choice").encode_labels, [0, 2**32])


NO_TEXTS = (
    *(None, 5, 1.5, True, object(), b"abc", "abc", {"a"}, {"a": 1}, np.array("a"), (1, 2), (None, None)),
    *([None] * 3, [5] * 3, [{}] * 3, lambda: 1),
)


def test_invalid_texts_are_refused(task: Task, examples: tuple[Any, Any]) -> None:
    for texts in NO_TEXTS:
        assert_refused("(?s).", task.fit, texts, examples[1], verbose=0)
        assert_refused("(?s).", task.predict, texts, verbose=0)
        if has_answers(task):
            assert_refused("(?s).", task.answers, texts)
    assert_refused("got None", task.predict, None)
    for texts in ("a film", ["a", "film"], ("a film", 1)):
        for method in (task.predict, task.fit):
            generator = (text for text in [texts])
            assert_refused("got a generator of them|a generator does not allow", method, generator, verbose=0)
    assert_refused("`validation_data`: .*got 5", task.fit, *examples, validation_data=5, verbose=0)


# === Constructors ===

FRACTION = r"must be a number in \[0, 1\), got"
POSITIVE_INTEGER = "must be (a positive integer|an integer of at least 1), got"
ABOVE_0 = "must be a (positive number|number above 0), got"
AT_LEAST_0 = "must be a finite number of at least 0"
ENCODER = '`encoder` must be "bilstm", "esim" or None, got'
HEADS = {"dropout": (FRACTION, 2, -1, "a", NAN, 1.0), "encoder_dim": (POSITIVE_INTEGER, 0, -1, 2.5, "a", None)}
CONSTRUCTORS: list[tuple[type[Task], dict[str, tuple[Any, ...]]]] = [
    (TextClassifier, {**HEADS, "num_classes": ("an integer of at least 2", 1, 0, -2, "2", 2.0, None, True, NAN, [3]),
                      "labels": ("must be|twice|at least 2", "ab", 5, [], ["a"], ["a", "a"], {"a": 1}),
                      "pooling": ("`pooling` must be", "foo", None, 5), "encoder": (ENCODER, "foo", "gru", 5)}),
    (TokenClassifier, {**HEADS, "num_classes": ("an integer of at least 2", 1, "2", 2.0)}),
    (TextRegressor, {**HEADS, "output_activation": ("Unknown activation", "foo", None, 5),
                     "pooling": ("`pooling` must be .*, got 'max'", "max"), "encoder": (f"{ENCODER} 'gru'", "gru")}),
    (MultipleChoice, HEADS),
    (QuestionAnswerer, {**{name: (f"`{name}` must be a positive integer, got (0|-1|1.5|'3'|None|True)",
                                   0, -1, 1.5, "3", None, True) for name in
                           ("doc_stride", "max_question_length", "max_answer_length", "n_best")},
                        "null_score_threshold": ("must be a number or None", "a", NAN, [1])}),
    (MaskedLM, {"masking": ("`masking` must be a", "x", 5), "activation": ("Unknown activation", "foo"),
                "layer_norm_epsilon": (r"must be a number in \(0, 1\)", 0, -1, "a", NAN)}),
    (Pretrainer, {"masking": ("`masking` must be a", "x"), "objective": ("`objective` must be", "foo")}),
    (TextEmbedder, {"temperature": ("`temperature` must be a positive number, got (0|-1|'a'|nan|None)",
                                    0, -1, "a", NAN, None),
                    "objective": ('`objective` must be one of "contrastive", "triplet", .*, got \'pairs\'', "pairs"),
                    "mini_batch_size": ("`mini_batch_size` must be None or an integer of at least 1",
                                         0, -1, 2.5, "3", True),
                    "pooling": ("`pooling` must be", "foo", None, 5, [], [5], ["mean"] * 2),
                    "projection": ("`projection.*` must be|lacks|has the unknown|Unknown", 5, "ab", [5], [{}],
                                   [{"kind": "foo"}], [{"kind": "dense"}], [{"kind": "dense", "units": 0}],
                                   [{"kind": "layer_norm", "units": 3}], [{"kind": "dropout", "rate": 1}],
                                   [{"kind": "dense", "units": 3, "activation": "foo"}], [{"kind": "normalize"}] * 33),
                    "prompts": ("`prompts` must|not valid Unicode", 5, ["a"], {"a": 5}, {5: "a"}, {"a": "\ud800"}),
                    "default_prompt": ("There is no prompt", "a", "")}),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "table"), CONSTRUCTORS)
def test_invalid_arguments_of_tasks_are_named(cls: type[Task], table: dict[str, tuple[Any, ...]]) -> None:
    backbone, preprocessor = tiny_backbone(BERT), tiny_preprocessor(BERT)
    classes = {"num_classes": 3} if "num_classes" in table else {}
    for name, (message, *values) in table.items():
        for value in values:
            arguments = {name: value} if name == "labels" else {**classes, name: value}
            assert_refused(message, cls, backbone, preprocessor, **arguments)
    for value in (None, 5, "x", preprocessor):
        assert_refused(
            "does not belong to a registered family|Expected a backbone", cls, value, preprocessor, **classes
        )
    for value in (5, "x", preprocessor.tokenizer):
        assert_refused("`preprocessor` must be a `lmzoo.text.Preprocessor`, got", cls, backbone, value, **classes)


DOCUMENTS = [["a b", "c d"], ["e f", "g h"]]
DECAY = PolynomialDecay(1e-3, 10)
TINY = tiny_preprocessor(BERT)
WRONG = (-1, "a", NAN, None, [1])
TRAINERS = (train_wordpiece, train_byte_pairs, train_sentencepiece)
# A message, a function of one argument, and invalid values of the argument.
Calls = list[tuple[str, Callable[[Any], object], tuple[Any, ...]]]
OPTIMIZERS: Calls = [
    *((f"`{name}` {AT_LEAST_0}", lambda v, name=name: LAMB(**{name: v}), WRONG)
      for name in ("learning_rate", "weight_decay", "epsilon")),
    *((f"`{name}` {AT_LEAST_0}", lambda v, name=name: Adagrad(**{name: v}), WRONG)
      for name in ("learning_rate", "epsilon", "initial_accumulator_value")),
    (f"`beta_2` {FRACTION}", lambda v: AdamW(beta_2=v), (1.0, *WRONG)),
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
    (f"`dropout` {FRACTION}", lambda v: tiny_backbone(BERT, dropout=v), WRONG),
    (f"`dropout` {FRACTION}", lambda v: tiny_backbone(ELMO, dropout=v), WRONG),
    ("`cell_clip` must be a positive finite number or None", lambda v: tiny_backbone(ELMO, cell_clip=v), (0, "a", NAN)),
    (f"`rank` {POSITIVE_INTEGER}", lambda v: tiny_backbone(BERT).enable_lora(v), (0, *WRONG)),
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
def test_invalid_arguments_are_named(calls: Calls) -> None:
    for message, call, values in calls:
        for value in values:
            assert_refused(message, call, value)
