"""Heads in checkpoints of transformers whose `config.json` describes them incompletely, wrongly or not at all."""

from __future__ import annotations

import pytest
from safetensors.numpy import load_file, save_file

import lmzoo
from lmzoo.errors import PresetError
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
from tests.checkpoints.model_files import CHOICES, LABELS, configure, load, padded_rows, peer, rewrite, run_peer
from tests.reference.weights import difference, run, to_numpy

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SPANS = {"0": "O", "1": "B-PER", "2": "I-PER", "3": "B-LOC", "4": "I-LOC"}
ARCHITECTURES = {"missing": None, "null": {"architectures": None}, "a user's": {"architectures": ["MyClassifier"]}}


def remove_architectures(directory, architectures="missing") -> None:
    """Remove the name of the class from the configuration in a directory."""
    configure(directory, "architectures", **(ARCHITECTURES[architectures] or {}))


def check_logits(theirs, task, *shape) -> None:
    batch = padded_rows(task.backbone, *(shape or (5,)))
    expected, ours = run_peer(theirs, batch).logits.numpy(), run(task, batch)
    real = batch["padding_mask"] > 0 if ours.ndim == 3 else ...
    assert difference(ours[real], expected[real]) <= 1e-5


@pytest.mark.quick_cases("albert-missing", "albert-null", "albert-a user's")
@pytest.mark.parametrize("architectures", ARCHITECTURES)
@pytest.mark.parametrize("case", ["bert", "roberta", "albert", "distilbert"])
def test_a_classifier_is_known_by_its_tensors(case, architectures, tmp_path):
    """The stored weights are loaded, also with other label names."""
    theirs = peer(case, "ForSequenceClassification", tmp_path, num_labels=5)
    remove_architectures(tmp_path, architectures)
    for labels in ({}, {"labels": ["a", "b", "c", "d", "e"]}):
        task = load(tmp_path, TextClassifier, **labels)
        assert task.class_names == labels.get("labels", ["0", "1", "2", "3", "4"])
        check_logits(theirs, task)
    assert open_source(tmp_path).head == "classification"
    with pytest.warns(UserWarning, match="The head of .* is not used"):
        load(tmp_path, TextClassifier, num_classes=3)


@pytest.mark.parametrize(
    ("case", "architecture", "head"),
    [
        ("bert", "BertForPreTraining", "SequenceClassification"),
        ("bert", "BertForPreTraining", "TokenClassification"),
        ("bert", "BertForPreTraining", "QuestionAnswering"),
        ("roberta", "RobertaForMaskedLM", "SequenceClassification"),
        ("distilbert", "DistilBertForMaskedLM", "TokenClassification"),
    ],
)
def test_tensors_count_more_than_the_name_of_a_pretrained_class(case, architecture, head, tmp_path):
    """A fine-tuned model may keep the configuration of the model that it began as."""
    theirs = peer(case, f"For{head}", tmp_path, **({} if head == "QuestionAnswering" else {"num_labels": 5}))
    configure(tmp_path, architectures=[architecture])
    cls = {"S": TextClassifier, "T": TokenClassifier, "Q": QuestionAnswerer}[head[0]]
    task = load(tmp_path, cls, **({} if head == "QuestionAnswering" else {"labels": ["a", "b", "c", "d", "e"]}))
    if head != "QuestionAnswering":
        check_logits(theirs, task)
    else:
        stored = theirs.qa_outputs.weight.detach().numpy()
        assert difference(to_numpy(task.head.logits.kernel.value).T, stored) == 0
    assert open_source(tmp_path).head == cls.head_kind
    assert open_source(tmp_path).get_head_arguments(MaskedLM) is None


def test_each_task_finds_its_head_of_two(tmp_path):
    """The named class has priority, and a task of another head finds its own."""
    classifier = peer("bert", "ForSequenceClassification", tmp_path / "classifier", num_labels=5)
    peer("bert", "ForMaskedLM", tmp_path)
    added = load_file(tmp_path / "classifier" / "model.safetensors")
    save_file({**load_file(tmp_path / "model.safetensors"), **added}, tmp_path / "model.safetensors", {"format": "pt"})
    check_logits(classifier, load(tmp_path, TextClassifier))
    assert open_source(tmp_path).head == "masked_lm"
    load(tmp_path, MaskedLM)


def test_a_classifier_of_xlnet_is_known_by_its_tensors(tmp_path):
    theirs = peer("xlnet", "ForSequenceClassification", tmp_path)
    remove_architectures(tmp_path)
    task = load(tmp_path, TextClassifier)
    assert task.class_names == LABELS
    stored = theirs.logits_proj.weight.detach().numpy()
    assert difference(to_numpy(task.head.logits.kernel.value).T, stored) == 0


def test_a_classifier_may_be_named_as_a_backbone(tmp_path):
    """Only a task that asks for the head loads it."""
    classifier = peer("bert", "ForSequenceClassification", tmp_path)
    configure(tmp_path, architectures=["BertModel"])
    assert open_source(tmp_path).head is None
    check_logits(classifier, load(tmp_path, TextClassifier))


@pytest.mark.parametrize("case", ["bert", "roberta", "albert", "distilbert"])
def test_a_token_classifier_is_known_by_its_tensors(case, tmp_path):
    """A head without a pooler or a layer of its own classifies tokens."""
    theirs = peer(case, "ForTokenClassification", tmp_path)
    remove_architectures(tmp_path)
    assert open_source(tmp_path).head == "token_classification"
    task = load(tmp_path, TokenClassifier)
    check_logits(theirs, task)
    assert task.class_names == LABELS


def test_labels_of_spans_tell_a_token_classifier_with_a_pooler(tmp_path):
    """Files of 2019 hold such poolers."""
    peer("bert", "ForSequenceClassification", tmp_path)
    remove_architectures(tmp_path)
    assert open_source(tmp_path).head == "classification"
    configure(tmp_path, id2label=SPANS)
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
def test_heads_of_berts_are_known_by_their_tensors(head, kind, cls, tmp_path):
    peer("bert", head, tmp_path)
    expected = load(tmp_path, cls)
    remove_architectures(tmp_path)
    assert open_source(tmp_path).head == kind
    for ours, theirs in zip(load(tmp_path, cls).weights, expected.weights, strict=True):
        if not ours.path.startswith("pooler"):  # some files lack it
            assert difference(to_numpy(ours.value), to_numpy(theirs.value)) == 0


@pytest.mark.slow
def test_one_output_is_a_number_or_a_choice(tmp_path):
    """The labels in the configuration do not matter."""
    theirs = peer("bert", "ForSequenceClassification", tmp_path, num_labels=1)
    configure(tmp_path, "architectures", "id2label", "label2id")
    assert open_source(tmp_path).head == "regression"
    check_logits(theirs, load(tmp_path, TextRegressor))
    assert load(tmp_path, MultipleChoice).head.logits.units == 1
    for problem in ("single_label_classification", "multi_label_classification"):
        configure(tmp_path, problem_type=problem, architectures=["BertForSequenceClassification"])
        check_logits(theirs, load(tmp_path, TextRegressor))


def test_a_backbone_has_no_head(tmp_path):
    peer("bert", "Model", tmp_path)
    remove_architectures(tmp_path)
    assert open_source(tmp_path).head is None


def test_choices_are_known_by_their_tensors(tmp_path):
    theirs = peer("roberta", "ForMultipleChoice", tmp_path)
    remove_architectures(tmp_path)
    assert open_source(tmp_path).head == "multiple_choice"
    check_logits(theirs, load(tmp_path, MultipleChoice), 5, CHOICES)


COUNTS = {
    "num_labels": {"num_labels": 5},
    "_num_labels": {"_num_labels": 5},
    "nothing": {},
    "a wrong number": {"num_labels": 3},
    "no number": {"num_labels": "five"},
}


@pytest.mark.parametrize(
    ("head", "case"),
    [*(("ForSequenceClassification", case) for case in COUNTS), ("ForTokenClassification", "a wrong number")],
)
def test_the_tensors_give_the_number_of_classes(head, case, tmp_path):
    theirs = peer("bert", head, tmp_path)
    configure(tmp_path, "id2label", "label2id", **COUNTS[case])
    task = load(tmp_path, TextClassifier if "Sequence" in head else TokenClassifier)
    assert (task.num_classes, task.labels) == (5, None)
    check_logits(theirs, task)


@pytest.mark.parametrize("stated", [{"num_labels": 5}, {"_num_labels": 5}, {"id2label": dict(enumerate(LABELS))}])
def test_without_tensors_the_configuration_gives_the_number_of_classes(stated, tmp_path):
    peer("bert", "ForSequenceClassification", tmp_path)
    configure(tmp_path, "id2label", "label2id", **stated)
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
def test_wrong_label_names_give_a_warning(case, tmp_path):
    """A backbone does not read them; a task warns, and its caller may name the classes."""
    theirs = peer("bert", "ForSequenceClassification", tmp_path)
    configure(tmp_path, "label2id", id2label=LABELS_THAT_DO_NOT_FIT[case])
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


def test_numbers_are_label_names(tmp_path):
    peer("bert", "ForSequenceClassification", tmp_path)
    configure(tmp_path, id2label={"0": -2, "1": -1, "2": 0, "3": 1, "4": 2.5})
    assert load(tmp_path, TextClassifier).class_names == ["-2", "-1", "0", "1", "2.5"]


@pytest.mark.quick_cases("architectures0")
@pytest.mark.parametrize("architectures", [["GPT2ForSequenceClassification"], None])
def test_an_unsupported_head_starts_from_scratch(architectures, tmp_path):
    peer("gpt2", "ForSequenceClassification", tmp_path)
    configure(tmp_path, architectures=architectures)
    message = "holds a head of a TextClassifier that lmzoo cannot read, so a new one starts from scratch"
    with pytest.warns(UserWarning, match=message):
        load(tmp_path, TextClassifier, num_classes=5)
    with pytest.warns(UserWarning, match="holds the head of a TextClassifier, not of a TokenClassifier"):
        load(tmp_path, TokenClassifier, num_classes=5)
    assert lmzoo.verify(tmp_path)["head"] == "of a TextClassifier, which is not loaded"
    load(tmp_path, CausalLM)


def test_unnamed_heads_are_verified_and_converted(tmp_path):
    theirs = peer("bert", "ForSequenceClassification", tmp_path / "theirs")
    remove_architectures(tmp_path / "theirs")
    assert lmzoo.verify(tmp_path / "theirs")["head"] == "TextClassifier"
    with pytest.warns(UserWarning, match="no tokenizer files"):
        lmzoo.convert(tmp_path / "theirs", tmp_path / "ours")
    check_logits(theirs, load_ours(tmp_path / "ours"))


def load_ours(directory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmzoo.presets.keras_preset.KerasPreset.preprocessor", lambda self: None)
        return TextClassifier.from_preset(directory)


def test_a_damaged_head_is_refused(tmp_path):
    """It is neither ignored nor silently replaced."""
    peer("bert", "ForSequenceClassification", tmp_path)
    remove_architectures(tmp_path)
    rewrite(tmp_path, lambda state: {**state, "classifier.bias": state["classifier.bias"][:3]})
    with pytest.raises(PresetError, match=r"'classifier.bias' has shape \(3,\), expected \(5,\)"):
        load(tmp_path, TextClassifier)
    rewrite(tmp_path, lambda state: {name: tensor for name, tensor in state.items() if name != "classifier.bias"})
    with pytest.raises(PresetError, match=r"lacks 'classifier\.bias'"):
        load(tmp_path, TextClassifier, labels=LABELS)
    with pytest.warns(UserWarning, match="The head of .* is not used"):
        load(tmp_path, TextClassifier, num_classes=5)
