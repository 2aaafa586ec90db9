"""`tf_model.h5` of transformers' TensorFlow classes: loaded with the outputs of their PyTorch twins, or refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.checkpoints.family_names import names_in_transformers
from lmzoo.checkpoints.formats.safetensors import write_safetensors
from lmzoo.checkpoints.hugging_face.tensorflow import open_tensorflow_model
from lmzoo.checkpoints.tokenizers.files import write_tokenizer
from lmzoo.models import (
    Backbone,
    CausalLM,
    MaskedLM,
    MultipleChoice,
    Pretrainer,
    QuestionAnswerer,
    Seq2SeqLM,
    TextClassifier,
    TextRegressor,
    TokenClassifier,
)
from lmzoo.presets import PresetError
from lmzoo.presets.source import open_source
from lmzoo.registry.family import families
from lmzoo.text import WordPieceTokenizer
from tests.checkpoints.model_files import configure, load
from tests.reference.weights import difference, run, to_numpy

MODELS = Path(__file__).parent / "tensorflow_models"
TOLERANCE = 1e-5
HEADS = {
    "XLNetLMHeadModel": Pretrainer,
    "LMHeadModel": CausalLM,
    "MTModel": Seq2SeqLM,
    "ForMaskedLM": MaskedLM,
    "ForPreTraining": Pretrainer,
    "ForSequenceClassification of one output": TextRegressor,
    "ForSequenceClassification": TextClassifier,
    "ForTokenClassification": TokenClassifier,
    "ForMultipleChoice": MultipleChoice,
    "ForQuestionAnswering": QuestionAnswerer,
}
# At least one class of each family and of each kind of head; `make test-all` reads all of them.
QUICK = {
    "TFAlbertForMaskedLM",
    "TFBertForPreTraining in parts",
    "TFBertForQuestionAnswering",
    "TFBertForSequenceClassification of one output",
    "TFDistilBertForSequenceClassification",
    "TFGPT2LMHeadModel",
    "TFMarianMTModel",
    "TFRobertaForMultipleChoice",
    "TFXLNetForTokenClassification",
    "TFXLNetLMHeadModel",
}
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in sorted(path.stem for path in MODELS.glob("*.zip"))
]


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[str], Path]:
    def unpack(name: str) -> Path:
        folder = tmp_path / name.replace(" ", "_")
        with zipfile.ZipFile(MODELS / f"{name}.zip") as archive:
            archive.extractall(folder)
        return folder

    return unpack


def load_model(name: str, folder: Path):
    """Load the backbone, or the task of a class's head, without a warning except for a missing pooler."""
    cls = next((cls for end, cls in HEADS.items() if end in name), None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* holds no pooler")
        return load(folder, cls)


def check_outputs(model, folder: Path, shift: float = 0.0) -> None:
    """Compare all outputs in the file, except at padding."""
    with np.load(folder / "outputs.npz") as file:
        stored = dict(file)
    expected = {name: stored.pop(name) for name in list(stored) if name.startswith("expected ")}
    outputs = run(model, stored)
    is_token = stored.get("decoder_padding_mask", stored["padding_mask"]) > 0
    assert expected
    for name, theirs in expected.items():
        ours = outputs if name == "expected logits" else outputs[name.removeprefix("expected ")]
        ours = np.asarray(ours)
        assert ours.shape == theirs.shape
        if is_token.ndim == 2 and theirs.shape[:2] == is_token.shape:
            ours = ours[is_token]
            theirs = theirs[is_token]
        assert difference(ours, theirs + shift) <= TOLERANCE


def edit_file(folder: Path, edit: Callable[[h5py.File], object], name: str = "tf_model.h5") -> None:
    """Edit a copy of a file, which then replaces it, as HDF5 ignores changes of a file that is open."""
    shutil.copy(folder / name, folder / "changed")
    with h5py.File(folder / "changed", "r+") as file:
        edit(file)
    os.replace(folder / "changed", folder / name)


def paths_in(folder: Path) -> list[str]:
    """Return the paths of the datasets in `tf_model.h5`."""
    paths: list[str] = []
    with h5py.File(folder / "tf_model.h5") as file:
        file.visititems(lambda name, item: paths.append(name) if isinstance(item, h5py.Dataset) else None)
    return paths


def path_of(folder: Path, end: str) -> str:
    """Return the path of the only dataset whose path ends with `end`."""
    (path,) = [path for path in paths_in(folder) if path.endswith(end)]
    return path


def assert_refused(folder: Path, message: str, cls: Any = Backbone) -> None:
    with pytest.raises(PresetError, match=f"(?s){re.escape(str(folder))}.*{message}"):
        load(folder, None if cls is Backbone else cls)


# === Outputs ===


@pytest.mark.parametrize("name", NAMES)
def test_outputs_equal_those_of_the_twin(name, unpacked):
    folder = unpacked(name)
    model = load_model(name, folder)
    check_outputs(model, folder)
    if isinstance(model, TokenClassifier):
        assert model.class_names == ["bad", "middling", "good"]


def test_every_class_of_every_family_has_a_file():
    """Each class of transformers with a TensorFlow twin has one, in the families that the guide names."""
    heads = {name: family.checkpoints["hf"].heads.keys() - {"embedding"} for name, family in families().items()
             if "hf" in family.checkpoints}  # fmt: skip
    stored = {path.stem.removeprefix("TF") for path in MODELS.glob("*.zip")}
    # Families that were added after transformers dropped TensorFlow have no twins.
    prefixes = {name: names_in_transformers(families()[name]).prefix for name in heads}
    twins = {name for name, prefix in prefixes.items() if any(file.startswith(prefix) for file in stored)}
    assert {"albert", "bert", "distilbert", "gpt2", "roberta", "xlnet"} <= twins
    for name, kinds in heads.items():
        if name not in twins:
            continue
        names = names_in_transformers(families()[name])
        missing = {names.architecture(kind) for kind in kinds} - stored
        # RoBERTa and DistilBERT have no such class.
        assert {n for n in missing if not n.endswith("ForPreTraining")} == set(), name


def test_kernels_are_transposed_by_their_names(unpacked):
    """GPT-2's `weight` is not transposed, square matrices are, and GPT-2's bias has one more axis."""
    folder = unpacked("TFGPT2LMHeadModel")
    weights = {weight.path: to_numpy(weight.value) for weight in load(folder).weights}
    with h5py.File(folder / "tf_model.h5") as file:
        scope = file["transformer/tfgpt2lm_head_model/transformer"]
        attention = scope["h_._1/attn"]
        np.testing.assert_array_equal(weights["block_1/attention/output_dense/kernel"], attention["c_proj/weight:0"])
        np.testing.assert_array_equal(weights["block_1/attention/key/bias"], attention["c_attn/bias:0"][0, 15:30])
    folder = unpacked("TFBertForPreTraining")
    tensors = open_tensorflow_model(folder)
    with h5py.File(folder / "tf_model.h5") as file:
        for name, end in (
            ("bert.encoder.layer.1.attention.self.query.weight", "layer_._1/attention/self/query/kernel:0"),
            ("bert.encoder.layer.0.intermediate.dense.weight", "layer_._0/intermediate/dense/kernel:0"),
        ):
            expected = file[f"bert/tf_bert_for_pre_training/bert/encoder/{end}"][()].T
            assert tensors.shape(name) == expected.shape
            np.testing.assert_array_equal(tensors.read(name), expected)
        assert "cls.seq_relationship.weight" in tensors.names()
        assert tensors.dtype("cls.predictions.bias") == "float32"


def test_files_of_older_versions_are_read(unpacked):
    """Scopes have numbers, configurations name no family or class, and GPT-2's embeddings have another name."""
    folder = unpacked("TFGPT2LMHeadModel")

    def age(file: h5py.File) -> None:
        file.move("transformer/tfgpt2lm_head_model", "transformer/tfgp_t2lm_head_model_7")
        table = file["transformer/tfgp_t2lm_head_model_7/transformer/wte"]
        table.move("embeddings:0", "weight:0")

    edit_file(folder, age)
    configure(folder, architectures=None)
    check_outputs(load(folder, CausalLM), folder)
    configure(folder, model_type=None)
    assert type(load(folder)).__name__ == "Gpt2Backbone"


def test_architectures_may_name_tensorflow_classes(unpacked):
    folder = unpacked("TFDistilBertForSequenceClassification")
    configure(folder, architectures=["TFDistilBertForSequenceClassification"])
    check_outputs(load(folder, TextClassifier), folder)
    configure(folder, architectures=["TFBertForSequenceClassification"])
    assert_refused(folder, "names 'BertForSequenceClassification', a class of another family")


def test_albert_adds_the_bias_of_its_decoder(unpacked):
    """TensorFlow's head has another bias that it never adds; PyTorch's head has one bias."""
    folder = unpacked("TFAlbertForMaskedLM")
    unused = path_of(folder, "predictions/bias:0")
    edit_file(folder, lambda file: file[unused].write_direct(np.full(67, 5.0, "float32")))
    check_outputs(load(folder, MaskedLM), folder)
    used = path_of(folder, "predictions/decoder/bias:0")
    edit_file(folder, lambda file: file[used].write_direct(file[used][()] + 1))
    check_outputs(load(folder, MaskedLM), folder, shift=1)
    # After resizing the vocabulary, the bias has another name.
    edit_file(folder, lambda file: file.move(used, used.replace("decoder/bias", "decoder_bias")))
    check_outputs(load(folder, MaskedLM), folder, shift=1)
    plan = open_source(folder).plan(load(folder, MaskedLM))
    assert plan.left_out == {"predictions.unused_bias": "a bias that TensorFlow's head never adds"}


def test_files_of_pytorch_have_priority(unpacked):
    folder = unpacked("TFBertModel")
    (folder / "model.safetensors").write_bytes(b"not weights")
    assert_refused(folder, r"model\.safetensors is not a whole safetensors file")


# === Damaged files, and files of other models ===


def test_copies_of_a_weight_must_be_equal(unpacked):
    folder = unpacked("TFBertForPreTraining")
    copy = "mlm___cls/tf_bert_for_pre_training/bert/embeddings/word_embeddings/weight:0"
    assert copy in paths_in(folder)
    edit_file(folder, lambda file: file[copy].write_direct(file[copy][()] + np.eye(67, 15, dtype="float32")))
    assert_refused(folder, "'mlm___cls/.*' and 'bert/.*' differ, but they are the same weight")

    def shorten(file: h5py.File) -> None:
        values = file[copy][1:]
        del file[copy]
        file[copy] = values

    edit_file(folder, shorten)
    assert_refused(folder, r"'mlm___cls/.*' has shape \(66, 15\), expected \(67, 15\), the shape of 'bert/")


def test_missing_and_unknown_tensors_are_refused(unpacked):
    folder = unpacked("TFBertForSequenceClassification of one output")
    scope = "bert/tf_bert_for_sequence_classification_1/bert"
    gamma = f"{scope}/encoder/layer_._1/output/LayerNorm/gamma:0"
    edit_file(folder, lambda file: file.move(gamma, gamma.replace("gamma", "delta")))
    assert_refused(folder, r"tf_model\.h5 lacks 'encoder\.layer\.1\.output\.LayerNorm\.weight'")
    edit_file(folder, lambda file: file.move(gamma.replace("gamma", "delta"), gamma))
    edit_file(
        folder, lambda file: file.create_dataset(f"{scope}/encoder/more/kernel:0", data=np.ones((2, 3), "float32"))
    )
    assert_refused(folder, r"tf_model\.h5 holds 'bert\.encoder\.more\.weight' \(3, 2\), which is not part of the model")


def test_files_of_other_models_are_refused(unpacked):
    folder = unpacked("TFBertModel")
    config = (folder / "config.json").read_text()
    advice = r"load this file into it, and call `save_pretrained\(folder\)`"
    edit_file(folder, lambda file: file.create_dataset("dense/dense/kernel:0", data=np.ones((15, 2), "float32")))
    assert_refused(folder, f"holds tensors of dense, tf_bert_model, expected those of one model: .*{advice}")
    edit_file(folder, lambda file: (file.move("dense", "model_weights/dense"), file.move("bert", "model_weights/bert")))
    assert_refused(folder, f"is a whole model of Keras: .*{advice}")
    edit_file(folder, lambda file: (file.clear(), file.create_dataset("a/b/kernel", data=np.ones((2, 3), "float32"))))
    assert_refused(folder, "holds 'a/b/kernel', which has no name of a variable of Keras 2")
    edit_file(folder, lambda file: file.clear())
    assert_refused(folder, "holds no tensors")
    assert (folder / "config.json").read_text() == config


def test_the_index_must_match_the_shards(unpacked):
    """`test_shards_and_links.py` has the other differences."""
    folder = unpacked("TFBertForPreTraining in parts")
    index = folder / "tf_model.h5.index.json"
    entries = json.loads(index.read_text())["weight_map"]
    first = "tf_bert_for_pre_training_1/bert/embeddings/word_embeddings/weight:0"
    assert entries[first] == "tf_model-00001-of-00003.h5"
    entries[first.replace("_1/", "_2/")] = "tf_model-00002-of-00003.h5"
    index.write_text(json.dumps({"weight_map": entries}))
    assert_refused(folder, "index.json names a tensor twice")


# === Advice for other files of such models ===

SAVE = r"call `save_pretrained\(folder\)`"
OTHER_FILES = {
    "saved_model/1/saved_model.pb": f"saved_model is TensorFlow's SavedModel, .*{SAVE}",
    "saved_model.pb": f"saved_model.pb is TensorFlow's SavedModel, .*{SAVE}",
    "weights.h5": "wrote weights.h5, rename it to tf_model.h5, and put the model's config.json next to it",
    "weights.index": f"weights.index is a TensorFlow checkpoint .*{SAVE}",
    "tf_model-00001-of-00002.h5": "needs the index tf_model.h5.index.json and config.json",
    "adapter_config.json": f"is of an adapter of PEFT, which holds only changes to another model. .*{SAVE}",
}


@pytest.mark.parametrize("name", OTHER_FILES)
@pytest.mark.parametrize("configured", [True, False], ids=["with config.json", "alone"])
def test_errors_say_what_to_do_with_other_files(name, configured, unpacked):
    folder = unpacked("TFBertModel")
    (folder / "tf_model.h5").unlink()
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"anything")
    if configured:
        assert_refused(folder, f"holds a configuration but no weights: .*{OTHER_FILES[name]}")
    else:
        (folder / "config.json").unlink()
        assert_refused(folder, f"has no config.json. .*{OTHER_FILES[name]}")


def test_the_configuration_is_required(unpacked):
    folder = unpacked("TFBertModel")
    (folder / "config.json").unlink()
    assert_refused(folder, "has no config.json. tf_model.h5 needs the config.json that transformers wrote next to it")


def test_safetensors_of_tensorflow_are_refused(unpacked):
    folder = unpacked("TFBertModel")
    table = ("bert/embeddings/word_embeddings/weight:0", np.ones((67, 15), "float32"))
    write_safetensors(folder / "model.safetensors", [table])
    assert_refused(folder, f"holds safetensors of a TensorFlow class .* To get a tf_model.h5, .*{SAVE}")


# === From loading to serving ===


@pytest.fixture
def classifier_folder(unpacked) -> Path:
    folder = unpacked("TFBertForSequenceClassification")
    write_tokenizer(WordPieceTokenizer.of_words(["good", "bad", "film"], 67), folder, 19, "BertTokenizer")
    return folder


TEXTS = ["a good film", "bad", "good", "a bad bad film"]


@pytest.mark.slow
def test_a_classifier_is_verified_and_converted(classifier_folder, tmp_path):
    report = lmzoo.verify(classifier_folder)
    assert report["tensors"] == "39 of the backbone, 2 of the head, in tf_model.h5"
    lmzoo.convert(classifier_folder, tmp_path / "hf", to="hf")
    (tmp_path / "hf/outputs.npz").write_bytes((classifier_folder / "outputs.npz").read_bytes())
    assert not (tmp_path / "hf/tf_model.h5").exists()
    check_outputs(TextClassifier.from_preset(tmp_path / "hf"), tmp_path / "hf")


@pytest.mark.slow
def test_a_classifier_is_fine_tuned_saved_and_exported(classifier_folder, tmp_path, eager):
    classifier = TextClassifier.from_preset(classifier_folder)
    before = classifier.classify(TEXTS)
    assert {prediction["label"] for prediction in before} <= {"bad", "middling", "good"}
    classifier.fit(TEXTS, ["good", "bad", "good", "bad"], batch_size=2, verbose=0)
    after = classifier.classify(TEXTS)
    assert after != before
    classifier.save(tmp_path / "model.keras")
    assert TextClassifier.load(tmp_path / "model.keras").classify(TEXTS) == after
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        classifier.export(tmp_path / "served/1", verbose=False)
        served = tf.saved_model.load(str(tmp_path / "served/1")).signatures["serving_default"]
        labels = served(text=tf.constant(TEXTS))["label"].numpy()
        assert [label.decode() for label in labels] == [prediction["label"] for prediction in after]
