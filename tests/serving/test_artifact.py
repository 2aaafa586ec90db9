"""What an export writes beside the graph, and how the folder behaves where it is served."""

from __future__ import annotations

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import lmzoo
from lmzoo.models import MaskedLM, MultipleChoice, TextEmbedder
from lmzoo.serving.rest import ModelServer
from lmzoo.serving.warmup import read_warmup
from tests.serving.bare import run_bare
from tests.serving.test_export import classifier

tf = pytest.importorskip("tensorflow")
saved_model_pb2 = pytest.importorskip("tensorflow.core.protobuf.saved_model_pb2")
pytestmark = [pytest.mark.slow, pytest.mark.tf_only]

ANSWER_WARMUP = """
from tensorflow_serving.apis import prediction_log_pb2
for folder in sys.argv[1:]:
    served, rows = tf.saved_model.load(folder).signatures, []
    for record in tf.data.TFRecordDataset(str(Path(folder, "assets.extra", "tf_serving_warmup_requests"))):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
        outputs = served[request.model_spec.signature_name](**inputs)
        rows.append(f"{request.model_spec.signature_name} {len(next(iter(outputs.values())))}")
    print(", ".join(rows))
"""


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Two versions of a classifier, and the models that they came from."""
    folder = tmp_path_factory.mktemp("serving") / "reviews"
    models = {1: classifier(labels=["no", "yes"]), 2: classifier(labels=["no", "may\nbe", "yes"])}
    for version, model in models.items():
        model.export(folder / str(version), verbose=False)
    return folder, models


@pytest.fixture(scope="module")
def tasks(tmp_path_factory, versions):
    """Folders of tasks whose inputs differ."""
    model = versions[1][1]
    parts = model.backbone, model.preprocessor
    folder = tmp_path_factory.mktemp("tasks")
    others = {"fill": MaskedLM(*parts), "choose": MultipleChoice(*parts)}
    for name, task in others.items():
        task.export(folder / name / "1", verbose=False)
    return [versions[0] / "1", *(folder / name / "1" for name in others)]


def written(folder):
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def test_requests_to_warm_up_with_are_answered_without_lmzoo(tasks):
    of_texts = [f"serving_default {rows}" for rows in (1, 1, 4)]
    of_pairs = [f"pair {rows}" for rows in (1, 1, 4)]
    both = ", ".join([*of_pairs, *of_texts])
    assert run_bare(ANSWER_WARMUP, *tasks) == [both, both, ", ".join(of_texts)]


def test_requests_to_warm_up_with_are_short_and_long(versions, tasks):
    loaded = tf.saved_model.load(str(versions[0] / "1"))
    requests = [inputs for name, inputs in read_warmup(versions[0] / "1") if name == "serving_default"]
    cut = [loaded.signatures["serving_default"](**inputs)["truncated"].numpy().tolist() for inputs in requests]
    assert cut == [[False], [True], [False, True, False, False]]
    masks = [inputs for _, inputs in read_warmup(tasks[1])]
    assert all(b"[MASK]" in text for inputs in masks for texts in inputs.values() for text in texts)


def test_the_readme_says_what_is_served(tasks):
    for folder in tasks:
        text = (folder / "README.md").read_text()
        with ModelServer(folder.parent, port=0) as server:
            signatures = server.loaded[1].signatures
            (answer,) = server.predict(1, json.loads(text.split("curl -d '")[1].split("'")[0]))["predictions"]
        assert answer.keys() == signatures["serving_default"].structured_outputs.keys()
        for name, function in signatures.items():
            specs = {"input": function.structured_input_signature[1], "output": function.structured_outputs}
            rows = [
                f"| {way} | `{key}` | {spec.dtype.name} | ({', '.join(map(str, spec.shape))}) |".replace("None", "?")
                for way, found in specs.items()
                for key, spec in sorted(found.items())
            ]
            table = text.split(f"\n### {name}\n")[1].split("###")[0]
            assert table.strip().splitlines()[2:] == rows


def test_kernels_are_joined_before_they_are_written(versions):
    folder, models = versions
    (graph,) = saved_model_pb2.SavedModel.FromString((folder / "1" / "saved_model.pb").read_bytes()).meta_graphs
    read, joined = set(), set()
    for function in graph.graph_def.library.function:
        read |= {node.name for node in function.node_def if node.op == "ReadVariableOp"}
        joined |= {name.split(":")[0] for node in function.node_def if node.op == "ConcatV2" for name in node.input}
    assert read
    assert joined
    assert not read & joined
    shapes = [shape for _, shape in tf.train.list_variables(str(folder / "1" / "variables" / "variables"))]
    projections = 3 * 15 * (15 + 1)  # of the last block, which is traced for all vectors and for the first alone
    assert sum(int(np.prod(shape)) for shape in shapes if shape) == models[1].count_params() + projections


def test_labels_are_lines(versions, tasks):
    folder = versions[0]
    assert (folder / "1" / "labels.txt").read_text() == "no\nyes\n"
    assert (folder / "2" / "labels.txt").read_text() == "no\nmay be\nyes\n"
    assert [(path / "labels.txt").exists() for path in tasks] == [True, False, False]


def test_an_export_over_another_leaves_nothing_of_it(versions, tmp_path):
    target = tmp_path / "1"
    shutil.copytree(versions[0] / "2", target)
    (target / "notes.txt").write_text("mine")
    model = versions[1][1]
    TextEmbedder(model.backbone, model.preprocessor).export(target, verbose=False)
    found = {path.name for path in target.iterdir()}
    assert "labels.txt" not in found
    assert found >= {"README.md", "notes.txt", "assets.extra", "saved_model.pb"}
    assert "# TextEmbedder" in (target / "README.md").read_text()
    assert {name for name, _ in read_warmup(target)} == {"pair", "serving_default"}


def test_no_path_is_written(versions, tasks):
    there = [versions[0].parent, tasks[-1].parents[1], Path(lmzoo.__file__).parents[1], Path.cwd(), Path.home()]
    names = [os.fsencode(path) for path in there if len(path.parts) > 1] + [versions[0].parent.name.encode()]
    for folder in (*tasks, versions[0] / "2"):
        files = written(folder)
        assert {"saved_model.pb", "assets.extra/tf_serving_warmup_requests"} <= files.keys()
        for name, path in files.items():
            assert [p for p in names if p in path.read_bytes()] == [], name


def test_ops_that_servers_lack_are_refused(tmp_path, monkeypatch):
    model = classifier(labels=["no", "yes"])
    serve = model.serve

    def through_python(features):
        found = serve(features)
        return {**found, "score": tf.numpy_function(np.sqrt, [found["score"]], tf.float32)}

    monkeypatch.setattr(model, "serve", through_python)
    with pytest.raises(ValueError, match="PyFunc, and servers have the ops"):
        model.export(tmp_path / "reviews" / "1", verbose=False)
    assert list((tmp_path / "reviews").iterdir()) == []


def test_two_versions_a_moved_folder_and_nothing_written(versions, tmp_path):
    models = versions[1]
    folder = shutil.move(shutil.copytree(versions[0], tmp_path / "first"), tmp_path / "then")
    before = {name: path.stat().st_mtime_ns for name, path in written(folder).items()}
    for path in folder.rglob("*"):  # which root may write to all the same
        path.chmod(0o555 if path.is_dir() else 0o444)
    loaded = {version: tf.saved_model.load(str(folder / str(version))) for version in (1, 2)}
    texts = ["good film", "", "bad bad film!"]
    for version in (1, 2, 1):
        outputs = loaded[version].signatures["serving_default"](text=tf.constant(texts))
        answers = models[version].classify(texts)
        assert [label.decode() for label in outputs["label"].numpy()] == [answer["label"] for answer in answers]
        np.testing.assert_allclose(outputs["score"], [answer["score"] for answer in answers], atol=1e-5)
    assert {name: path.stat().st_mtime_ns for name, path in written(folder).items()} == before


def test_threads_get_the_serial_answers(versions):
    from tensorflow.python.eager import context  # nothing public counts functions

    threads, each = 32, 16
    loaded = tf.saved_model.load(str(versions[0] / "2"))
    served = loaded.signatures["serving_default"]
    rng = np.random.default_rng(5)
    words = ["good", "bad", "film", "!", "zzz", "é"]
    requests = [
        [" ".join(rng.choice(words, rng.integers(0, 40))) for _ in range(rng.integers(1, 8))]
        for _ in range(threads * each)
    ]

    def ask(texts):
        return {name: value.numpy() for name, value in served(text=tf.constant(texts)).items()}

    expected = [ask(texts) for texts in requests]
    functions = len(context.context().list_function_names())
    start = threading.Barrier(threads)

    def ask_all(thread):
        start.wait()
        return [ask(texts) for texts in requests[thread * each : (thread + 1) * each]]

    with ThreadPoolExecutor(threads) as pool:
        found = [answer for answers in pool.map(ask_all, range(threads)) for answer in answers]
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert len(context.context().list_function_names()) == functions
