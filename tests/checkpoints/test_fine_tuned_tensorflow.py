"""Checkpoints of run_classifier.py and run_squad.py of Google's BERT: a head's tensors and the optimizer's."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.models import QuestionAnswerer, TextClassifier, TextRegressor
from lmzoo.presets import PresetError
from lmzoo.presets.converting import save_checkpoint
from lmzoo.presets.verifying import verify
from tests.checkpoints.model_files import load
from tests.reference.weights import difference, named_weights, padded_batch, run, tiny_backbone

pytest.importorskip("tensorflow")

BATCH = padded_batch()


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone()


@pytest.fixture(scope="module")
def vectors(backbone):
    return run(backbone, BATCH)


def write_checkpoint(directory, backbone, head) -> None:
    """Write a checkpoint as training leaves it: with moments of every weight, and the step."""
    from lmzoo.checkpoints.formats.tensorflow import write_tensorflow_checkpoint

    save_checkpoint(backbone, directory, to="tf1")
    tensors = {**named_weights(backbone), **head}
    slots = {f"{name}/adam_{slot}": array + 1 for name, array in tensors.items() for slot in "mv"}
    everything = {**tensors, **slots, "global_step": np.int64(343)}
    write_tensorflow_checkpoint(directory / "bert_model.ckpt", everything.items())


def make_head_tensors(scope: str, outputs: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(31)
    kernel, bias = rng.normal(size=(outputs, 35)), rng.normal(size=outputs)
    return {f"{scope}output_weights": kernel.astype("float32"), f"{scope}output_bias": bias.astype("float32")}


@pytest.mark.quick_cases("TextRegressor-1")
@pytest.mark.parametrize(("cls", "outputs"), [(TextClassifier, 5), (TextClassifier, 2), (TextRegressor, 1)])
def test_checkpoints_of_run_classifier_are_loaded(cls, outputs, backbone, vectors, tmp_path):
    head = make_head_tensors("", outputs)
    write_checkpoint(tmp_path, backbone, head)
    task = load(tmp_path, cls)
    expected = vectors["pooled_output"] @ head["output_weights"].T + head["output_bias"]
    assert difference(run(task, BATCH), expected) <= 1e-5
    assert task.output_shape == (None, outputs)
    other_class = TextClassifier if cls is TextRegressor else TextRegressor
    with pytest.raises(PresetError, match=f"the head of a {cls.__name__}, not of a {other_class.__name__}"):
        load(tmp_path, other_class)


def test_checkpoints_of_run_squad_are_loaded(backbone, vectors, tmp_path):
    head = make_head_tensors("cls/squad/", 2)
    write_checkpoint(tmp_path, backbone, head)
    task, real = load(tmp_path, QuestionAnswerer), BATCH["padding_mask"] > 0
    expected = vectors["sequence_output"] @ head["cls/squad/output_weights"].T + head["cls/squad/output_bias"]
    assert difference(np.asarray(run(task, BATCH))[real], expected[real]) <= 1e-5


def test_verify_lists_what_is_not_read(backbone, tmp_path):
    write_checkpoint(tmp_path, backbone, make_head_tensors("", 3))
    report = verify(tmp_path)
    count = len(named_weights(backbone)) + 2
    assert report["head"] == "TextClassifier"
    assert report["not read: the optimizer's state"].startswith(f"{2 * count}: ")
    assert report["not read: not a weight"] == "1: global_step"
