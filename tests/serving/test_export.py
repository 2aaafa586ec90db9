"""Exported SavedModels, run where lmzoo is not."""

import shutil

import keras
import numpy as np
import pytest

from lmzoo.models import BertBackbone, MaskedLM, TextClassifier
from lmzoo.text import Packing, Preprocessor, TextNotice, WordPieceTokenizer
from tests.serving.bare import ask_bare

# Each test starts a process that loads TensorFlow.
pytestmark = pytest.mark.slow

TEXTS = ["good film", "", "Bad, bad FILM!", "a film " * 1500, "zzz unknown é", "good"]


def serve(path, signature, **inputs):
    return ask_bare(path, signature, [inputs])[0]


def classifier(**kwargs):
    keras.utils.set_random_seed(3)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = [
        *WordPieceTokenizer.special_tokens,
        *letters,
        *(f"##{c}" for c in letters),
        "good",
        "bad",
        "film",
        "!",
    ]
    packing = Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True)
    preprocessor = Preprocessor(WordPieceTokenizer(vocabulary), packing, sequence_length=23)
    # A wide initialiser, so that different texts get visibly different scores.
    backbone = BertBackbone(
        vocabulary_size=len(vocabulary), num_layers=2, num_heads=3, hidden_dim=15, intermediate_dim=31,
        max_sequence_length=29, initializer_range=0.7,
    )  # fmt: skip
    return TextClassifier(backbone, preprocessor, **kwargs)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model = classifier(labels=["no", "maybe", "yes"])
    path = tmp_path_factory.mktemp("serving") / "reviews" / "1"
    model.export(path, verbose=False)
    return model, path


def check(model, served, *texts):
    inputs = texts[0] if len(texts) == 1 else texts
    answers = model.classify(inputs)
    assert len({round(a["score"], 4) for a in answers}) > 1
    assert served["label"] == [a["label"] for a in answers]
    np.testing.assert_allclose(served["score"], [a["score"] for a in answers], atol=1e-5)
    np.testing.assert_allclose(np.sum(served["probabilities"], axis=1), 1, atol=1e-5)


def test_strings_are_served_without_lmzoo(exported, tmp_path):
    model, path = exported
    # Another place: nothing in the artifact may point to where it was written.
    moved = tmp_path / "elsewhere"
    shutil.copytree(path, moved)
    served = serve(moved, "serving_default", text=TEXTS)
    with pytest.warns(TextNotice, match="1 of 6"):
        check(model, served, TEXTS)
    assert served["truncated"] == [False, False, False, True, False, False]


def test_invalid_utf8_is_served_as_it_is_classified(exported):
    model, path = exported
    texts = [b"good \xff film", b"\xc3", "bad film"]
    with pytest.warns(TextNotice):
        check(model, serve(path, "serving_default", text=texts), texts)


def test_pairs_are_served(exported):
    model, path = exported
    firsts, seconds = ["good", "bad film", ""], ["film", "", "good good"]
    check(model, serve(path, "pair", text=firsts, text_pair=seconds), firsts, seconds)


def test_token_ids_are_served(exported):
    model, path = exported
    texts = ["good film", "bad"]
    features = {name: value.tolist() for name, value in model.preprocessor(texts).items()}
    check(model, serve(path, "tokens", **features), texts)


def test_a_task_without_a_preprocessor_is_refused(exported, tmp_path):
    model, _ = exported
    with pytest.raises(ValueError, match="preprocessor"):
        TextClassifier(model.backbone, num_classes=2).export(tmp_path / "1")


def test_a_failed_export_leaves_the_old_version(exported, tmp_path, monkeypatch):
    model, path = exported
    target = tmp_path / "1"
    shutil.copytree(path, target)
    before = sorted(p.relative_to(target) for p in target.rglob("*"))
    import lmzoo.serving.export as module

    def fail(task, folder):
        (folder / "saved_model.pb").write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(module, "_write", fail)
    monkeypatch.setattr(module, "_write_with_tensorflow", fail)
    with pytest.raises(OSError, match="disk full"):
        model.export(target)
    assert sorted(p.relative_to(target) for p in target.rglob("*")) == before
    assert [p.name for p in tmp_path.iterdir()] == ["1"]


def test_masks_are_filled_as_in_memory(exported, tmp_path):
    model = MaskedLM(exported[0].backbone, exported[0].preprocessor)
    model.export(tmp_path / "1", verbose=False)
    texts = ["good [MASK]", "no mask", "[MASK] film [MASK] !"]
    served = serve(tmp_path / "1", "serving_default", text=texts)
    (one, *none), filler, two = served["token"]
    assert none == [[""] * 5]
    assert filler == [[""] * 5] * 2
    for text, got, scores in ((texts[0], [one], served["score"][0]), (texts[2], two, served["score"][2])):
        expected = model.fill([text], top_k=5)[0]
        expected = [expected] if len(got) == 1 else expected
        assert got == [[answer["token"] for answer in answers] for answers in expected]
        np.testing.assert_allclose(
            scores[: len(got)], [[answer["score"] for answer in answers] for answers in expected], atol=1e-5
        )


def test_all_labels_are_served_best_first(tmp_path):
    model = classifier(labels=["art", "sport", "war", "sea", "law"], multi_label=True)
    model.export(tmp_path / "1", verbose=False)
    texts = ["good film", "bad", ""]
    served = serve(tmp_path / "1", "serving_default", text=texts)
    probabilities = 1 / (1 + np.exp(-model.predict(texts, verbose=0)))
    np.testing.assert_allclose(served["probabilities"], probabilities, atol=1e-5)
    for answers, labels, scores in zip(
        model.classify(texts, threshold=0.0), served["label"], served["score"], strict=True
    ):
        assert labels == [answer["label"] for answer in answers]
        np.testing.assert_allclose(scores, [answer["score"] for answer in answers], atol=1e-5)
    assert len({tuple(labels) for labels in served["label"]}) > 1
