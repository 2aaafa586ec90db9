"""What is an error, and what is not (the text policy)."""

from __future__ import annotations

import dataclasses
import warnings

import keras
import numpy as np
import pytest

from lmzoo.models import BertBackbone, ElmoBackbone, TextClassifier
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone
from lmzoo.text import CharacterTokenizer, Preprocessor, TextWarning, WordPieceTokenizer, WordTokenizer


@pytest.fixture(scope="module")
def task(tiny):
    return tiny.classifier(num_classes=3)


@pytest.fixture(scope="module")
def named(tiny):
    return tiny.classifier(labels=["bad", "good"])


TEXTS = ["good film", "bad plot", "dull"]


@pytest.mark.parametrize(
    ("texts", "labels", "error", "message"),
    [
        (TEXTS, [0, 1, 3], ValueError, r"Label 3 at position 2 is outside \[0, 3\)"),
        (TEXTS, [0, -1, 1], ValueError, r"Label -1 at position 1 is outside \[0, 3\)"),
        (TEXTS, ["bad", "good", "bad"], ValueError, "labels="),
        (TEXTS, [0.5, 1, 1], ValueError, "whole numbers or strings, got 0.5 at position 0"),
        (TEXTS, [1, np.nan, 1], ValueError, "got nan at position 1. A label is missing there."),
        (TEXTS, np.eye(3), ValueError, r"one class for each text, got labels of shape \(3, 3\)"),
        (TEXTS, None, ValueError, "needs a label for each text"),
        (TEXTS, [0, 1], ValueError, "3 texts but 2 labels"),
        (["good", None, "bad"], [0, 1, 2], TypeError, r"`texts\[1\]` must be a string, got None"),
        (["good", 7, "bad"], [0, 1, 2], TypeError, r"`texts\[1\]` must be a string, got 7"),
        ([1, 2, 3], [0, 1, 2], TypeError, r"`texts\[0\]` must be a string, got 1"),
        (np.array([1, 2, 3]), [0, 1, 2], TypeError, "got an array of int64"),
        (np.array([["good", "bad"]] * 3), [0, 1, 2], ValueError, r"of shape \(3, 2\); pairs are"),
        ({"good", "bad"}, [0, 1], TypeError, "got a set"),
        ("good film", [0], TypeError, "got one string"),
        ((["good"], ["bad", "dull"]), [0], ValueError, "got 1 and 2"),
        (("good", "bad"), [0, 1], ValueError, "A tuple means pairs"),
        ([("good", "bad"), "dull"], [0, 1], ValueError, r"`x\[1\]` must be a pair"),
        ([("good", "bad", "dull")], [0], ValueError, r"`x\[0\]` must be a pair"),
        ((["good"], [None]), [0], TypeError, r"`pairs\[0\]` must be a string"),
        ([], [], ValueError, "no examples"),
    ],
)
def test_errors_come_before_the_first_step(task, steps, texts, labels, error, message):
    with pytest.raises(error, match=message):
        task.fit(texts, labels, callbacks=[steps], verbose=0)
    assert steps.count == 0
    if len(texts):
        with pytest.raises(error, match=message):
            task.evaluate(texts, labels, verbose=0)
        with pytest.raises(error, match=message):
            task.fit(TEXTS, [0, 1, 2], validation_data=(texts, labels), callbacks=[steps], verbose=0)
        assert steps.count == 0


def test_names_that_are_none_of_the_labels(named, steps):
    with pytest.raises(ValueError, match=r"Label 'fine' at position 1 is not one of \['bad', 'good'\]"):
        named.fit(TEXTS, ["good", "fine", "bad"], callbacks=[steps])
    assert steps.count == 0


def test_labels_of_features(tiny, task, steps):
    features = tiny.preprocessor()(TEXTS)
    for arguments in (
        {"x": features, "y": np.array([0, 1, 3])},
        {"x": features, "y": np.array([0, 1, 2]), "validation_data": (features, np.array([0, 3, 1]))},
    ):
        with pytest.raises(ValueError, match="Label 3 at position"):
            task.fit(**arguments, callbacks=[steps], verbose=0)
    with pytest.raises(ValueError, match="Label 3 at position"):
        task.evaluate(features, np.array([0, 1, 3]), verbose=0)
    assert steps.count == 0


def test_wrong_label_in_a_dataset_stops_before_its_step(task, steps, strings_dataset, weights_of):
    before = weights_of(task)
    with pytest.raises(ValueError, match="Label 3 at position 1"):
        task.fit(strings_dataset((TEXTS, [0, 3, 1])).batch(3), callbacks=[steps], verbose=0)
    assert steps.count == 0
    late = strings_dataset((TEXTS * 8, [0, 1, 2] * 7 + [0, 1, 3])).batch(3)
    task.compile(keras.optimizers.SGD(0.0))
    with pytest.raises(Exception, match="Label 3 at position 2"):
        task.fit(late, callbacks=[steps], verbose=0)
    assert all(np.array_equal(a, b) for a, b in zip(before, weights_of(task), strict=True))


def test_datasets_that_cannot_be(task, strings_dataset):
    with pytest.raises(ValueError, match="the dataset is empty"):
        task.fit(strings_dataset((TEXTS, [0, 1, 2])).take(0))
    with pytest.raises(ValueError, match=r"needs a dataset of \(texts, labels\)"):
        task.fit(strings_dataset(TEXTS))


def test_empty_evaluation_and_prediction(task):
    assert task.predict([], verbose=0).shape == (0, 3)
    with pytest.raises(ValueError, match="no examples"):
        task.evaluate([], [], verbose=0)


def test_sequence_length_above_the_models(tiny):
    with pytest.raises(ValueError, match="positions for 41 tokens"):
        TextClassifier(tiny.backbone(), tiny.preprocessor(43), num_classes=2)


def test_sequence_length_set_above_the_models_later(tiny):
    task = tiny.classifier()
    task.preprocessor.sequence_length = 43
    with pytest.raises(ValueError, match="positions for 41 tokens"):
        task.predict(["good"])


def test_features_longer_than_the_model(tiny):
    ids = np.full((2, 43), 7, "int32")
    features = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    with pytest.raises(
        Exception, match=r"43 tokens long, but the model has positions for 41|indices.* not in \[0, 41\)"
    ):
        tiny.classifier().predict(features, verbose=0)


def test_vocabulary_above_the_models(tiny):
    preprocessor = tiny.preprocessor()
    preprocessor.tokenizer = WordPieceTokenizer([*preprocessor.tokenizer.vocabulary, "more"])
    with pytest.raises(ValueError, match="21 tokens, but the model has embeddings for 20") as caught:
        TextClassifier(tiny.backbone(), preprocessor, num_classes=2)
    assert "this WordPieceTokenizer and this BertBackbone do not belong together" in str(caught.value)


def test_tokens_of_another_kind(tiny):
    words = WordTokenizer(["<S>", "</S>", "<UNK>"])
    elmo = ElmoBackbone(lstm_dim=5, projection_dim=3, vocabulary_size=29)
    packing = families()["elmo"].packing
    for backbone, preprocessor, message in (
        (tiny.backbone(), Preprocessor(words, packing, 7), "BertBackbone takes .*but this WordTokenizer .* token_ids:"),
        (elmo, tiny.preprocessor(), "This ElmoBackbone takes token_ids, but this WordPieceTokenizer .* padding_mask"),
    ):
        with pytest.raises(ValueError, match=message):
            TextClassifier(backbone, preprocessor, num_classes=2)
    TextClassifier(elmo, Preprocessor(words, packing, 7), num_classes=2)


def test_the_packing_of_another_family(tiny):
    for name, message in (
        ("roberta", "This BertBackbone takes padding_mask, segment_ids, token_ids, but this WordPieceTokenizer"),
        ("elmo", "takes padding_mask, segment_ids"),
    ):
        with pytest.raises(ValueError, match=message):
            TextClassifier(tiny.backbone(), Preprocessor(tiny.tokenizer(), families()[name].packing, 7), num_classes=2)
    packing = dataclasses.replace(families()["roberta"].packing, segments=True)
    message = r"This WordPieceTokenizer cannot be packed by Packing\(start='<s>'.*has no token '<s>'"
    with pytest.raises(ValueError, match=message):
        TextClassifier(tiny.backbone(), Preprocessor(tiny.tokenizer(), packing, 7), num_classes=2)


def test_segments_that_a_model_does_not_tell_apart_do_no_harm(tiny):
    config = {**tiny.backbone().get_config(), "num_segments": 1}
    TextClassifier(BertBackbone.from_config(config), tiny.preprocessor(), num_classes=2)


def test_longer_words_than_the_models():
    packing, backbone = families()["elmo"].packing, tiny_backbone(families()["elmo"], max_characters=43)
    with pytest.raises(ValueError, match="of the CharacterTokenizer is 47, but that of the ElmoBackbone is 43"):
        TextClassifier(backbone, Preprocessor(CharacterTokenizer(47), packing, 7), num_classes=2)
    for columns in (41, 43):
        TextClassifier(backbone, Preprocessor(CharacterTokenizer(columns), packing, 7), num_classes=2)


def test_validation_split_that_leaves_nothing(task):
    with pytest.raises(ValueError, match="leaves no examples"):
        task.fit(TEXTS, [0, 1, 2], validation_split=0.9)
    with pytest.raises(ValueError, match="Label 3 at position 2"):
        task.fit(TEXTS, [0, 1, 3], validation_split=0.4)


@pytest.mark.parametrize("text", ["", "   ", "\x00", "���", "mañana 😀 中文", "[SEP] good [MASK]"])
def test_any_text_is_a_text(task, text):
    probabilities = task.classify([text, "good"], top_k=3)
    assert sum(answer["score"] for answer in probabilities[0]) == pytest.approx(1, abs=1e-5)
    task.fit([text, "good"], [0, 1], verbose=0)


@pytest.mark.parametrize("text", [b"good \xff\xfe film", "good \ud800 film"])
def test_invalid_text_is_read_with_one_notice(task, strings_dataset, text):
    with pytest.warns(TextWarning, match="invalid UTF-8") as notices:
        found = task.predict([text, text], verbose=0)
    assert len(notices) == 1
    np.testing.assert_array_equal(found, task.predict(["good � film"] * 2, verbose=0))
    with pytest.warns(TextWarning, match="invalid UTF-8") as notices:
        task.predict(([text, "a"], [text, "b"]), verbose=0)
    assert len(notices) == 1


def test_long_texts_are_truncated_with_one_warning(tiny, task, strings_dataset):
    long = "good film . " * 9000
    assert len(long) > 100_000
    texts = [long, "bad", long, "dull"]
    for call in (
        lambda: task.predict(texts, verbose=0),
        lambda: task.classify((texts, texts)),
        lambda: task.fit(texts, [0, 1, 2, 0], batch_size=4, verbose=0),
        lambda: task.evaluate(texts, [0, 1, 2, 0], verbose=0),
        lambda: task.fit(strings_dataset((texts, [0, 1, 2, 0])).batch(2), epochs=2, verbose=0),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        notices = [str(w.message) for w in caught if w.category is TextWarning]
        assert len(notices) == 1
        assert f"truncated to {tiny.length} tokens" in notices[0]
    with pytest.warns(TextWarning):
        found = task.predict([long], verbose=0)
    cut = " ".join(long.split()[: tiny.length - 2])
    np.testing.assert_array_equal(found, task.predict([cut], verbose=0))


def test_labels_that_are_not_what_they_look_like(tiny):
    with pytest.raises(TypeError, match="strings; got 1"):
        tiny.classifier(labels=[1, 2])
    task = tiny.classifier(labels=["bad", "good"])
    assert task.encode_labels(np.array([0, 1], object)).tolist() == [0, 1]
    with pytest.raises(TypeError, match="Label 7 at position 1"):
        task.encode_labels(["bad", 7, "good", None])


def test_numbers_and_features_are_not_texts(task):
    with pytest.raises(TypeError, match="got an array of int64"):
        task.predict(np.array([1, 2]))
    with pytest.raises(TypeError, match="Expected texts, got a dict"):
        task.encode_inputs({"token_ids": [[1]]})


def test_other_sequences_of_texts(task):
    texts = {"a": "good film", "b": "bad"}
    np.testing.assert_array_equal(task.predict(texts.values(), verbose=0), task.predict([*texts.values()], verbose=0))


def test_a_table_is_not_texts(task):
    class Table:  # as in pandas
        columns, shape = ("text", "label"), (3, 2)

        def __len__(self):
            return 3

    with pytest.raises(TypeError, match=r"a table with the columns \['text', 'label'\]: pass one of them"):
        task.predict(Table())


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        ("sparse_categorical_crossentropy", keras.losses.SparseCategoricalCrossentropy),
        ("categorical_crossentropy", keras.losses.CategoricalCrossentropy),
    ],
)
def test_a_loss_by_name_is_that_of_logits(tiny, loss, kind):
    task = tiny.classifier()
    task.compile("sgd", loss)
    assert type(task.loss) is kind
    assert task.loss.from_logits
    with pytest.raises(ValueError, match=rf"pass {kind.__name__}\(from_logits=True\)"):
        task.compile("sgd", kind())


@pytest.mark.parametrize(
    ("class_weight", "error", "message"),
    [
        ({"fine": 2.0}, ValueError, "In `class_weight`: Label 'fine' at position 0 is not one of"),
        ([1.0, 2.0], TypeError, r"`class_weight` must be a dict from classes to weights, got \[1.0, 2.0\]"),
        ("balanced", TypeError, "must be a dict"),
    ],
)
def test_wrong_class_weights(named, steps, class_weight, error, message):
    with pytest.raises(error, match=message):
        named.fit(TEXTS, ["bad", "good", "bad"], class_weight=class_weight, callbacks=[steps], verbose=0)
    assert steps.count == 0


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_weights_are_finite_and_not_negative(task, named, tiny, steps, weight):
    message = f"`sample_weight` is {weight} at position 1: weights must be finite and at least 0"
    weights, features = [1.0, weight, 1.0], tiny.preprocessor()(TEXTS)
    for arguments in (
        {"x": TEXTS, "y": [0, 1, 2], "sample_weight": weights},
        {"x": features, "y": np.array([0, 1, 2]), "sample_weight": np.array(weights)},
        {"x": TEXTS, "y": [0, 1, 2], "validation_data": (TEXTS, [0, 1, 2], weights)},
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(**arguments, callbacks=[steps], verbose=0)
    with pytest.raises(ValueError, match=message):
        task.evaluate(TEXTS, [0, 1, 2], sample_weight=weights, verbose=0)
    with pytest.raises(ValueError, match=f"In `class_weight`: the weight of 'good' must be a finite .*, got {weight}"):
        named.fit(TEXTS, ["bad", "good", "bad"], class_weight={"good": weight}, callbacks=[steps], verbose=0)
    assert steps.count == 0


def test_weights_are_numbers(task):
    with pytest.raises(TypeError, match="`sample_weight` must be numbers, got an array of <U1"):
        task.fit(TEXTS, [0, 1, 2], sample_weight=["1", "2", "3"], verbose=0)


@pytest.mark.quick_cases("nan")
@pytest.mark.parametrize("weight", [np.nan, -1.0])
def test_wrong_weights_in_a_dataset_stop_before_their_step(task, tiny, strings_dataset, weight):
    texts, labels = TEXTS * 4, [0, 1, 2] * 4
    features = {name: np.asarray(values) for name, values in tiny.preprocessor()(texts).items()}
    for x in (texts, features):
        for position in (1, 11):
            weights = np.ones(12, "float32")
            weights[position] = weight
            task.compile(keras.optimizers.SGD(0.0))
            message = f"(?s)In batch {position // 3} of the dataset: .*finite and at least 0"
            with pytest.raises(Exception, match=message):
                task.fit(strings_dataset((x, labels, weights)).batch(3), verbose=0)
            assert int(task.optimizer.iterations) == position // 3


def test_a_dataset_has_at_most_three_components(task, tiny, steps, strings_dataset):
    features = {name: np.asarray(values) for name, values in tiny.preprocessor()(TEXTS).items()}
    for x in (TEXTS, features):
        dataset = strings_dataset((x, [0, 1, 2], [1.0, 1.0, 1.0], [4, 4, 4])).batch(3)
        for call in (task.fit, task.evaluate):
            with pytest.raises(ValueError, match="got one of 4 components: select what you need with `map`"):
                call(dataset, callbacks=[steps], verbose=0)
    assert steps.count == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be an integer of at least 1, got 0. Omit it for the default size."),
        ({"batch_size": -1}, "`batch_size` must be an integer of at least 1, got -1"),
        ({"batch_size": 2.5}, "`batch_size` must be an integer of at least 1, got 2.5"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be .*, got 0. Omit it to use all batches."),
        ({"epochs": -1}, "`epochs` must be an integer of at least 0, got -1"),
        ({"epochs": None}, "`epochs` must be an integer of at least 0, got None"),
        ({"initial_epoch": -1}, "`initial_epoch` must be an integer of at least 0, got -1"),
        ({"validation_steps": 0}, "`validation_steps` must be an integer of at least 1, got 0"),
    ],
)
def test_counts_are_checked_before_anything_is_encoded(task, arguments, message):
    with pytest.raises(ValueError, match=message):
        task.fit([None], [7], **arguments, verbose=0)  # neither text nor label is looked at


def test_counts_of_evaluation_and_prediction(task):
    for call in (
        lambda: task.evaluate(TEXTS, [0, 1, 2], batch_size=0),
        lambda: task.predict(TEXTS, batch_size=0),
        lambda: task.classify(TEXTS, batch_size=0),
    ):
        with pytest.raises(ValueError, match="`batch_size` must be an integer of at least 1, got 0"):
            call()
    with pytest.raises(ValueError, match="`steps` must be an integer of at least 1, got 0"):
        task.evaluate(TEXTS, [0, 1, 2], steps=0, verbose=0)
    task.fit(TEXTS, [0, 1, 2], batch_size=np.int64(2), epochs=0, verbose=0)


@pytest.mark.parametrize("labels", ["np", {"bad", "good"}])
def test_names_of_classes_need_an_order(tiny, labels):
    with pytest.raises(TypeError, match="must be a list, whose order numbers the classes"):
        tiny.classifier(labels=labels)


def test_a_preset_s_name_is_not_a_backbone():
    with pytest.raises(ValueError, match="Expected a backbone, got 'bert_nano_en_uncased': `from_preset`"):
        TextClassifier("bert_nano_en_uncased", num_classes=2)


@pytest.mark.parametrize("length", ["128", 0, 1.5])
def test_sequence_length_is_an_integer(tiny, length):
    task = tiny.classifier()
    task.preprocessor.sequence_length = length
    with pytest.raises(ValueError, match="`sequence_length` must be a positive integer"):
        task.predict(TEXTS)
