"""Models for ONNX Runtime and LiteRT: the outputs of `predict` for token features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from lmzoo.models import QuestionAnswerer, TextClassifier, TokenClassifier
from lmzoo.registry.family import families
from lmzoo.tasks import Task
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task, tiny_texts
from lmzoo.text import Preprocessor
from tests.serving.exported_files import outputs_of

# Keras' exporters write the formats; two tasks and two families cover both kinds of outputs and inputs.
CASES = [
    (TextClassifier, "bert", {"labels": ["no", "maybe", "yes"], "pooling": ["max", "mean"]}),
    (QuestionAnswerer, "roberta", {}),
]

pytestmark = [pytest.mark.tf_only, pytest.mark.usefixtures("eager")]


def shallow_task(task_class: type, family: str, arguments: dict[str, Any]) -> Task:
    """Return a task of one layer, as every layer is exported alike."""
    family_record = families()[family]
    return task_class(tiny_backbone(family_record, num_layers=1), tiny_preprocessor(family_record), **arguments)


def features_of(preprocessor: Preprocessor) -> list[dict[str, np.ndarray]]:
    """Return batches of different sizes and lengths."""
    return [preprocessor(texts) for texts in (tiny_texts(1), tiny_texts(7), ["good film " * 12, ""])]


@pytest.mark.quick_cases("TextClassifier-bert-arguments0")
@pytest.mark.parametrize(("task_class", "family", "arguments"), CASES)
def test_onnx_files_give_the_same_logits(
    task_class: type, family: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    onnxruntime, _ = pytest.importorskip("onnxruntime"), pytest.importorskip("tf2onnx")
    task = shallow_task(task_class, family, arguments)
    task.export(tmp_path / "model.onnx", verbose=False)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    assert {i.name for i in session.get_inputs()} == set(task.input)
    assert [o.name for o in session.get_outputs()] == ["logits"]
    for features in features_of(task.preprocessor):
        (logits,) = session.run(None, features)
        np.testing.assert_allclose(logits, task.predict(features, verbose=0), atol=1e-5)


@pytest.mark.slow
def test_int8_onnx_files_give_similar_logits(tmp_path: Path) -> None:
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    task = shallow_task(TextClassifier, "bert", {"labels": ["no", "maybe", "yes"]})
    task.export(tmp_path / "model.onnx", verbose=False, dtype="int8")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    ops = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert ops.count("MatMulInteger") == 7  # query, key and value, the other three of the block, pooler, head
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for features in features_of(task.preprocessor):
        (logits,) = session.run(None, features)
        exact = task.predict(features, verbose=0)
        assert 0 < np.abs(logits - exact).max() < 0.06 * np.abs(exact).max()


def test_wrong_dtypes_are_refused(tmp_path: Path) -> None:
    task = shallow_task(*CASES[0])
    for name in ("1", "model.tflite"):
        with pytest.raises(ValueError, match=r'`dtype="int8"` is for \.onnx files'):
            task.export(tmp_path / name, dtype="int8")
    with pytest.raises(ValueError, match="`dtype` must be \"int8\" or None, got 'int4'"):
        task.export(tmp_path / "model.onnx", dtype="int4")
    task.quantize("int8")
    with pytest.raises(ValueError, match="are int8 already: leave out `dtype`"):
        task.export(tmp_path / "model.onnx", dtype="int8")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize(("task_class", "family", "arguments"), CASES)
def test_litert_files_give_the_same_logits(
    task_class: type, family: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    import tensorflow as tf

    task = shallow_task(task_class, family, arguments)
    task.export(tmp_path / "model.tflite", verbose=False)
    # The interpreter has only LiteRT's own operations.
    run = tf.lite.Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
    assert set(run.get_input_details()) == set(task.input)
    for features in features_of(task.preprocessor):
        np.testing.assert_allclose(run(**features)["logits"], task.predict(features, verbose=0), atol=1e-5)


def write_onnx(path: Path) -> None:
    """Write a model with an op that no runtime has, in one branch of a condition."""
    from onnx import TensorProto, helper

    nodes = {"then_branch": [helper.make_node("Identity", ["x"], ["y"])]}
    nodes["else_branch"] = [helper.make_node("Abs", ["x"], ["z"]), helper.make_node("UniqueV2", ["z"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    branches = {name: helper.make_graph(part, name, [], [y]) for name, part in nodes.items()}
    condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    node = helper.make_node("If", ["condition"], ["y"], **branches)
    path.write_bytes(helper.make_model(helper.make_graph([node], "graph", [condition, x], [y])).SerializeToString())


def write_onnx_of_later_opset(path: Path) -> None:
    """Write a model with an op that is newer than its version of the format."""
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.INT32, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("BitwiseAnd", ["x", "x"], ["y"])], "graph", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())


def write_litert(path: Path) -> None:
    """Write a model with one op of TensorFlow, as Keras' exporter converts it."""
    import tensorflow as tf

    function = tf.function(tf.strings.lower, input_signature=[tf.TensorSpec([1], tf.string)]).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], function)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    path.write_bytes(converter.convert())


@pytest.mark.parametrize(
    ("write", "name", "op"),
    [
        (write_onnx, "a.onnx", "UniqueV2"),
        (write_onnx_of_later_opset, "a.onnx", "BitwiseAnd"),
        (write_litert, "a.tflite", "StringLower"),
    ],
)
def test_ops_that_the_runtime_lacks_are_refused(
    write: Callable[[Path], None], name: str, op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.endswith("onnx"):
        pytest.importorskip("tf2onnx")
    monkeypatch.setattr(keras.Model, "export", lambda self, path, **_: write(Path(path)))
    message = f"This TextClassifier on bert cannot be written as .*: the format has nothing for {op}"
    with pytest.raises(ValueError, match=message):
        tiny_task(TextClassifier, families()["bert"]).export(tmp_path / name, verbose=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize(
    ("family", "name", "encoder"),
    [
        ("elmo", "model.onnx", None),
        ("albert", "model.tflite", None),
        ("elmo", "model.onnx", "bilstm"),
        ("elmo", "model.tflite", "bilstm"),
        ("bert", "model.tflite", "bilstm"),
    ],
)
def test_exports_avoid_ops_that_the_runtime_lacks(family: str, name: str, encoder: str | None, tmp_path: Path) -> None:
    """Compute each word of ELMo, unroll ALBERT's loop, and run LSTMs without lists of tensors."""
    if name.endswith("onnx"):
        pytest.importorskip("tf2onnx")
    arguments = {} if encoder is None else {"encoder": encoder, "encoder_dim": 5, "crf": True}
    task = tiny_task(TextClassifier if encoder is None else TokenClassifier, families()[family], **arguments)
    task.export(tmp_path / name, verbose=False)
    for features in features_of(task.preprocessor):
        (outputs,) = outputs_of(tmp_path / name, features).values()
        np.testing.assert_allclose(outputs, task.predict(features, verbose=0), atol=1e-5)


@pytest.mark.usefixtures("no_garbage_collection")
def test_quantized_weights_are_not_written_to_litert(tmp_path: Path) -> None:
    task = tiny_task(TextClassifier, families()["bert"])
    task.quantize("int8")
    with pytest.raises(ValueError, match=r"cannot write quantized weights as \.tflite"):
        task.export(tmp_path / "model.tflite", verbose=False)


def test_other_file_names_are_refused(tmp_path: Path) -> None:
    task = tiny_task(TextClassifier, families()["bert"])
    for name in ("model.ONNX", "model.onnx.gz", "model.keras"):
        with pytest.raises(ValueError, match=r"must end in \.onnx or \.tflite, and a SavedModel is a folder"):
            task.export(tmp_path / name, verbose=False)
