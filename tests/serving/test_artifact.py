"""Files that an export writes next to the graph, and the folder where it is served."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import lmzoo
from lmzoo.serving.export import tokens_signature
from lmzoo.serving.model_versions import ModelVersions
from lmzoo.serving.rest_api import RestApi
from lmzoo.serving.warmup import read_warmup
from tests.serving.artifacts import Exported, times_of
from tests.serving.bare import BareProcess
from tests.serving.varied import classifier

tf = pytest.importorskip("tensorflow")
saved_model_pb2 = pytest.importorskip("tensorflow.core.protobuf.saved_model_pb2")
pytestmark = pytest.mark.tf_only


def list_files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow  # `check_task_export` also runs without lmzoo
def test_warm_up_requests_run_without_lmzoo(artifacts: list[Path], bare: BareProcess) -> None:
    text_requests = [("serving_default", rows) for rows in (1, 1, 4)]
    pair_requests = [("pair", rows) for rows in (1, 1, 4)]
    all_requests = pair_requests + text_requests
    assert [bare.warm_up(path) for path in artifacts] == [all_requests, all_requests, text_requests]


def test_warm_up_requests_are_short_and_long(reviews: Exported, fill: Exported, api: RestApi) -> None:
    requests = [inputs for name, inputs in read_warmup(reviews.path(9)) if name == "serving_default"]
    serve = api.versions.get(9).signatures["serving_default"]
    truncated = [serve(text=tf.constant(inputs["text"]))["truncated"].numpy().tolist() for inputs in requests]
    assert truncated == [[False], [True], [False, True, False, False]]
    masks = [inputs for _, inputs in read_warmup(fill.path(1))]
    assert all(b"[MASK]" in text for inputs in masks for texts in inputs.values() for text in texts)


@pytest.mark.slow
def test_the_readme_describes_the_signatures(artifacts: list[Path], served: list[ModelVersions]) -> None:
    for folder, versions in zip(artifacts, served, strict=True):
        text = (folder / "README.md").read_text()
        version = versions.get(int(folder.name))
        (row,) = version.predict(json.loads(text.split("curl -d '")[1].split("'")[0]))["predictions"]
        assert row.keys() == version.signatures["serving_default"].structured_outputs.keys()
        for name, function in version.signatures.items():
            specs = {"input": function.structured_input_signature[1], "output": function.structured_outputs}
            rows = [
                f"| {kind} | `{key}` | {spec.dtype.name} | ({', '.join(map(str, spec.shape))}) |".replace("None", "?")
                for kind, tensors in specs.items()
                for key, spec in sorted(tensors.items())
            ]
            table = text.split(f"\n### {name}\n")[1].split("###")[0]
            assert table.strip().splitlines()[2:] == rows


@pytest.mark.slow
def test_kernels_are_concatenated_before_the_export(reviews: Exported) -> None:
    folder = reviews.path(9)
    (graph,) = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes()).meta_graphs
    read, concatenated = set(), set()
    for function in graph.graph_def.library.function:
        read |= {node.name for node in function.node_def if node.op == "ReadVariableOp"}
        concatenated |= {
            name.split(":")[0] for node in function.node_def if node.op == "ConcatV2" for name in node.input
        }
    assert read
    assert concatenated
    assert not read & concatenated
    shapes = [shape for _, shape in tf.train.list_variables(str(folder / "variables" / "variables"))]
    projections = 3 * 15 * (15 + 1)  # of the last block, traced for all tokens and again for the first token
    assert sum(int(np.prod(shape)) for shape in shapes if shape) == reviews.models[9].count_params() + projections


@pytest.mark.slow
def test_labels_are_written_as_lines(reviews: Exported, artifacts: list[Path]) -> None:
    assert (reviews.path(9) / "labels.txt").read_text() == "no\nyes\n"
    assert (reviews.path(10) / "labels.txt").read_text() == "no\nmay be\nyes\n"
    assert [(path / "labels.txt").exists() for path in artifacts] == [True, False, False]


@pytest.mark.slow
def test_an_export_replaces_all_files_of_the_previous_one(reviews: Exported, choose: Exported) -> None:
    assert {name for name, _ in read_warmup(reviews.path(10))} == {"pair", "serving_default"}
    assert {name for name, _ in read_warmup(choose.path(1))} == {"serving_default"}
    names = {path.name for path in choose.path(1).iterdir()}
    assert "labels.txt" not in names
    assert names >= {"README.md", "notes.txt", "assets.extra", "saved_model.pb"}
    assert "# MultipleChoice" in (choose.path(1) / "README.md").read_text()


@pytest.mark.slow
def test_no_path_of_this_machine_is_written(
    reviews: Exported, fill: Exported, choose: Exported, artifacts: list[Path]
) -> None:
    origins = [exported.origin.parent for exported in (reviews, fill, choose)]
    paths = [*origins, Path(lmzoo.__file__).parents[1], Path.cwd(), Path.home()]
    names = [os.fsencode(path) for path in paths if len(path.parts) > 1] + [path.name.encode() for path in origins]
    for folder in (*artifacts, reviews.path(9)):
        files = list_files(folder)
        assert {"saved_model.pb", "assets.extra/tf_serving_warmup_requests"} <= files.keys()
        for name, path in files.items():
            assert [part for part in names if part in path.read_bytes()] == [], name


@pytest.mark.slow
def test_ops_that_servers_lack_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier(labels=["no", "yes"])
    serve = model.serve

    def through_python(features):
        outputs = serve(features)
        return {**outputs, "score": tf.numpy_function(np.sqrt, [outputs["score"]], tf.float32)}

    monkeypatch.setattr(model, "serve", through_python)
    # Tracing one signature is faster than tracing three.
    monkeypatch.setattr(model, "signatures", lambda: (tf.Module(), {"tokens": tokens_signature(model)}))
    with pytest.raises(ValueError, match="PyFunc, and servers have the ops"):
        model.export(tmp_path / "reviews" / "1", verbose=False)
    assert list((tmp_path / "reviews").iterdir()) == []


def test_a_moved_read_only_folder_is_served(reviews: Exported, api: RestApi) -> None:
    assert not reviews.origin.exists()
    texts = ["good film", "", "bad bad film!"]
    for version in (9, 10, 9):
        outputs = api.versions.get(version).signatures["serving_default"](text=tf.constant(texts))
        predictions = reviews.models[version].classify(texts)
        assert [label.decode() for label in outputs["label"].numpy()] == [
            prediction["label"] for prediction in predictions
        ]
        np.testing.assert_allclose(outputs["score"], [prediction["score"] for prediction in predictions], atol=1e-5)
    assert times_of(reviews.folder) == reviews.times


@pytest.mark.slow
def test_threads_get_the_same_predictions_as_serial_requests(api: RestApi) -> None:
    from tensorflow.python.eager import context  # nothing public lists functions

    threads, requests_per_thread = 32, 16
    served = api.versions.get(10).signatures["serving_default"]
    rng = np.random.default_rng(5)
    words = ["good", "bad", "film", "!", "zzz", "é"]
    requests = [
        [" ".join(rng.choice(words, rng.integers(0, 40))) for _ in range(rng.integers(1, 8))]
        for _ in range(threads * requests_per_thread)
    ]

    def ask(texts):
        return {name: value.numpy() for name, value in served(text=tf.constant(texts)).items()}

    expected = [ask(texts) for texts in requests]
    functions = set(context.context().list_function_names())
    start = threading.Barrier(threads)

    def ask_all(thread):
        start.wait()
        first = thread * requests_per_thread
        return [ask(texts) for texts in requests[first : first + requests_per_thread]]

    with ThreadPoolExecutor(threads) as pool:
        results = [outputs for part in pool.map(ask_all, range(threads)) for outputs in part]
    for actual, desired in zip(results, expected, strict=True):
        assert actual.keys() == desired.keys()
        for name in actual:
            np.testing.assert_array_equal(actual[name], desired[name])
    assert set(context.context().list_function_names()) <= functions
