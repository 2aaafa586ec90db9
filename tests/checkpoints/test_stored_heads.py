"""Heads in checkpoints of transformers whose `config.json` says little or nothing of them, or too much."""

from __future__ import annotations

import json

import pytest
from safetensors.numpy import load_file, save_file

import lmzoo
from lmzoo.checkpoints.tokenizers.config import longest_sequence
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.models import (
    CausalLM,
    MaskedLM,
    MultipleChoice,
    Pretrainer,
    QuestionAnswerer,
    TextClassifier,
    TextRegressor,
    TokenClassifier,
)
from lmzoo.presets.source import open_source
from tests.checkpoints.model_files import CHOICES, LABELS, load, padded_rows, peer, rewrite, run_peer
from tests.checkpoints.test_config_keys import edit
from tests.reference.weights import difference, run, to_numpy

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SPANS = {"0": "O", "1": "B-PER", "2": "I-PER", "3": "B-LOC", "4": "I-LOC"}
ARCHITECTURES = {"missing": None, "null": {"architectures": None}, "a user's": {"architectures": ["MyClassifier"]}}


def forget(directory, architectures="missing") -> None:
    """Take the name of the class from the configuration in a directory."""
    edit(directory, "architectures", **(ARCHITECTURES[architectures] or {}))


def check_logits(theirs, task, *shape) -> None:
    batch = padded_rows(task.backbone, *(shape or (5,)))
    expected, ours = run_peer(theirs, batch).logits.numpy(), run(task, batch)
    real = batch["padding_mask"] > 0 if ours.ndim == 3 else ...
    assert difference(ours[real], expected[real]) <= 1e-5


@pytest.mark.quick_cases("albert-missing", "albert-null", "albert-a user's")
@pytest.mark.parametrize("architectures", ARCHITECTURES)
@pytest.mark.parametrize("case", ["bert", "roberta", "albert", "distilbert"])
def test_a_classifier(case, architectures, tmp_path):
    """Its labels are given, or other names for its classes, and its weights are the stored ones."""
    theirs = peer(case, "ForSequenceClassification", tmp_path, num_labels=5)
    forget(tmp_path, architectures)
    for labels in ({}, {"labels": ["a", "b", "c", "d", "e"]}):
        task = load(tmp_path, TextClassifier, **labels)
        assert task.class_names == labels.get("labels", ["0", "1", "2", "3", "4"])
        check_logits(theirs, task)
    assert open_source(tmp_path).head == "classification"
    with pytest.warns(UserWarning, match="The head of .* is not used"):
        load(tmp_path, TextClassifier, num_classes=3)


@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
@pytest.mark.parametrize(
    ("case", "architecture"),
    [("bert", "BertForPreTraining"), ("roberta", "RobertaForMaskedLM"), ("distilbert", "DistilBertForMaskedLM")],
)
def test_a_head_next_to_the_name_of_another_class(case, architecture, head, tmp_path):
    """The configuration of what was fine-tuned is left over, and the tensors are those of another head."""
    theirs = peer(case, f"For{head}", tmp_path, **({} if head == "QuestionAnswering" else {"num_labels": 5}))
    edit(tmp_path, architectures=[architecture])
    cls = {"S": TextClassifier, "T": TokenClassifier, "Q": QuestionAnswerer}[head[0]]
    task = load(tmp_path, cls, **({} if head == "QuestionAnswering" else {"labels": ["a", "b", "c", "d", "e"]}))
    if head != "QuestionAnswering":
        check_logits(theirs, task)
    else:
        stored = theirs.qa_outputs.weight.detach().numpy()
        assert difference(to_numpy(task.head.logits.kernel.value).T, stored) == 0
    assert open_source(tmp_path).head == cls.head_kind
    assert open_source(tmp_path).get_head_arguments(MaskedLM) is None


def test_two_heads_in_one_file(tmp_path):
    """The class that is named comes first, and a task of the other head finds its own."""
    classifier = peer("bert", "ForSequenceClassification", tmp_path / "classifier", num_labels=5)
    peer("bert", "ForMaskedLM", tmp_path)
    added = load_file(tmp_path / "classifier" / "model.safetensors")
    save_file({**load_file(tmp_path / "model.safetensors"), **added}, tmp_path / "model.safetensors", {"format": "pt"})
    check_logits(classifier, load(tmp_path, TextClassifier))
    assert open_source(tmp_path).head == "masked_lm"
    load(tmp_path, MaskedLM)


def test_a_classifier_of_xlnet(tmp_path):
    theirs = peer("xlnet", "ForSequenceClassification", tmp_path)
    forget(tmp_path)
    task = load(tmp_path, TextClassifier)
    assert task.class_names == LABELS
    stored = theirs.logits_proj.weight.detach().numpy()
    assert difference(to_numpy(task.head.logits.kernel.value).T, stored) == 0


def test_a_classifier_in_a_file_of_a_backbone(tmp_path):
    """`architectures` denies the head: nothing but a task that could be its own loads it."""
    theirs = peer("bert", "ForSequenceClassification", tmp_path)
    edit(tmp_path, architectures=["BertModel"])
    assert open_source(tmp_path).head is None
    check_logits(theirs, load(tmp_path, TextClassifier))


@pytest.mark.parametrize("case", ["bert", "roberta", "albert", "distilbert"])
def test_a_token_classifier(case, tmp_path):
    """Without a pooler below it, or a layer of its own, a head is one of tokens."""
    theirs = peer(case, "ForTokenClassification", tmp_path)
    forget(tmp_path)
    assert open_source(tmp_path).head == "token_classification"
    task = load(tmp_path, TokenClassifier)
    check_logits(theirs, task)
    assert task.class_names == LABELS


def test_a_token_classifier_with_a_pooler(tmp_path):
    """Files of 2019 hold one. Labels of spans show what the head is for."""
    peer("bert", "ForSequenceClassification", tmp_path)
    forget(tmp_path)
    assert open_source(tmp_path).head == "classification"
    edit(tmp_path, id2label=SPANS)
    assert open_source(tmp_path).head == "token_classification"
    assert load(tmp_path, TokenClassifier).class_names == list(SPANS.values())


@pytest.mark.parametrize(
    ("head", "kind", "cls"),
    [
        ("ForMaskedLM", "masked_lm", MaskedLM),
        ("ForPreTraining", "pretraining", Pretrainer),
        ("ForQuestionAnswering", "question_answering", QuestionAnswerer),
    ],
)
def test_other_heads(head, kind, cls, tmp_path):
    peer("bert", head, tmp_path / "it")
    forget(tmp_path / "it")
    assert open_source(tmp_path / "it").head == kind
    peer("bert", head, tmp_path / "named")
    for ours, theirs in zip(load(tmp_path / "it", cls).weights, load(tmp_path / "named", cls).weights, strict=True):
        if not ours.path.startswith("pooler"):  # which some of them lack
            assert difference(to_numpy(ours.value), to_numpy(theirs.value)) == 0


@pytest.mark.slow
def test_one_output(tmp_path):
    """It is a number or a choice, whatever the file says of labels."""
    theirs = peer("bert", "ForSequenceClassification", tmp_path, num_labels=1)
    edit(tmp_path, "architectures", "id2label", "label2id")
    assert open_source(tmp_path).head == "regression"
    check_logits(theirs, load(tmp_path, TextRegressor))
    assert load(tmp_path, MultipleChoice).head.logits.units == 1
    for problem in ("single_label_classification", "multi_label_classification"):
        edit(tmp_path, problem_type=problem, architectures=["BertForSequenceClassification"])
        check_logits(theirs, load(tmp_path, TextRegressor))


def test_choices(tmp_path):
    theirs = peer("roberta", "ForMultipleChoice", tmp_path)
    forget(tmp_path)
    assert open_source(tmp_path).head == "multiple_choice"
    check_logits(theirs, load(tmp_path, MultipleChoice), 5, CHOICES)


def test_a_backbone(tmp_path):
    peer("bert", "Model", tmp_path)
    forget(tmp_path)
    assert open_source(tmp_path).head is None


COUNTS = {
    "num_labels": {"num_labels": 5},
    "_num_labels": {"_num_labels": 5},
    "nothing": {},
    "a wrong number": {"num_labels": 3},
    "no number": {"num_labels": "five"},
}


@pytest.mark.parametrize("case", COUNTS)
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification"])
def test_the_tensors_count(head, case, tmp_path):
    theirs = peer("bert", head, tmp_path)
    edit(tmp_path, "id2label", "label2id", **COUNTS[case])
    task = load(tmp_path, TextClassifier if "Sequence" in head else TokenClassifier)
    assert (task.num_classes, task.labels) == (5, None)
    check_logits(theirs, task)


@pytest.mark.parametrize("stated", [{"num_labels": 5}, {"_num_labels": 5}, {"id2label": dict(enumerate(LABELS))}])
def test_without_tensors_the_configuration_counts(stated, tmp_path):
    peer("bert", "ForSequenceClassification", tmp_path)
    edit(tmp_path, "id2label", "label2id", **stated)
    (tmp_path / "model.safetensors").unlink()
    assert load(tmp_path, TextClassifier, load_weights=False).num_classes == 5


LABELS_THAT_DO_NOT_FIT = {
    "null": {"0": None, "1": "b", "2": "c", "3": "d", "4": "e"},
    "from 1": {str(i + 1): label for i, label in enumerate(LABELS)},
    "twice": {str(i): label for i, label in enumerate([*LABELS[:4], LABELS[0]])},
    "too few": {"0": "bad", "1": "good"},
    "too many": {str(i): f"class {i}" for i in range(6)},
    "a list": LABELS,
    "no numbers": {label: i for i, label in enumerate(LABELS)},
}


@pytest.mark.quick_cases("null")
@pytest.mark.parametrize("case", LABELS_THAT_DO_NOT_FIT)
def test_names_that_do_not_fit(case, tmp_path):
    """A backbone does not read them; a task warns, and the caller can name the classes."""
    theirs = peer("bert", "ForSequenceClassification", tmp_path)
    edit(tmp_path, "label2id", id2label=LABELS_THAT_DO_NOT_FIT[case])
    load(tmp_path)
    message = r"config\.json: `id2label` must give each number from 0 to 4 a name of its own, got [{\[]"
    with pytest.warns(UserWarning, match=message) as caught:
        task = load(tmp_path, TextClassifier)
    assert str(caught[0].message).startswith(str(tmp_path))
    assert task.class_names == ["0", "1", "2", "3", "4"]
    check_logits(theirs, task)
    with pytest.warns(UserWarning, match=message):
        named = load(tmp_path, TextClassifier, labels=LABELS)
    assert named.class_names == LABELS
    check_logits(theirs, named)


def test_names_that_are_numbers(tmp_path):
    peer("bert", "ForSequenceClassification", tmp_path)
    edit(tmp_path, id2label={"0": -2, "1": -1, "2": 0, "3": 1, "4": 2.5})
    assert load(tmp_path, TextClassifier).class_names == ["-2", "-1", "0", "1", "2.5"]


@pytest.mark.quick_cases("architectures0")
@pytest.mark.parametrize("architectures", [["GPT2ForSequenceClassification"], None])
def test_a_head_that_cannot_be_read(architectures, tmp_path):
    peer("gpt2", "ForSequenceClassification", tmp_path)
    edit(tmp_path, architectures=architectures)
    with pytest.warns(
        UserWarning, match="holds a head of a TextClassifier that lmzoo cannot read, so a new one starts from scratch"
    ):
        load(tmp_path, TextClassifier, num_classes=5)
    with pytest.warns(UserWarning, match="holds the head of a TextClassifier, not of a TokenClassifier"):
        load(tmp_path, TokenClassifier, num_classes=5)
    assert lmzoo.verify(tmp_path)["head"] == "of a TextClassifier, which is not loaded"
    load(tmp_path, CausalLM)


def test_verify_and_convert(tmp_path):
    theirs = peer("bert", "ForSequenceClassification", tmp_path / "theirs")
    forget(tmp_path / "theirs")
    assert lmzoo.verify(tmp_path / "theirs")["head"] == "TextClassifier"
    with pytest.warns(UserWarning, match="no tokenizer files"):
        lmzoo.convert(tmp_path / "theirs", tmp_path / "ours")
    check_logits(theirs, load_ours(tmp_path / "ours"))


def load_ours(directory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmzoo.presets.keras_preset.KerasPreset.preprocessor", lambda self: None)
        return TextClassifier.from_preset(directory)


def test_a_damaged_head(tmp_path):
    """It is neither left out nor replaced without a word."""
    peer("bert", "ForSequenceClassification", tmp_path)
    forget(tmp_path)
    rewrite(tmp_path, lambda state: {**state, "classifier.bias": state["classifier.bias"][:3]})
    with pytest.raises(PresetError, match=r"'classifier.bias' has shape \(3,\), expected \(5,\)"):
        load(tmp_path, TextClassifier)
    rewrite(tmp_path, lambda state: {name: tensor for name, tensor in state.items() if name != "classifier.bias"})
    with pytest.raises(PresetError, match=r"lacks 'classifier\.bias'"):
        load(tmp_path, TextClassifier, labels=LABELS)
    with pytest.warns(UserWarning, match="The head of .* is not used"):
        load(tmp_path, TextClassifier, num_classes=5)


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({"max_len": 256}, 256),
        ({"max_len": 1024}, 512),
        ({"max_len": 256, "model_max_length": 128}, 128),
        ({"max_len": 256, "model_max_length": None}, 512),
    ],
)
def test_the_length_in_old_files(settings, length, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert longest_sequence(JsonFiles(tmp_path), 512) == length


def test_a_length_that_is_none(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"max_len": "long"}')
    with pytest.raises(PresetError, match=r"tokenizer_config.json: `max_len` must be a positive number, got"):
        longest_sequence(JsonFiles(tmp_path), 512)
