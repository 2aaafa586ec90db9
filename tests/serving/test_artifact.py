"""What an export writes beside the graph, and how the folder behaves where it is served."""

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


def written(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow  # `check_task_export` asks without lmzoo, too
def test_requests_to_warm_up_with_are_answered_without_lmzoo(artifacts: list[Path], bare: BareProcess) -> None:
    of_texts = [("serving_default", rows) for rows in (1, 1, 4)]
    of_pairs = [("pair", rows) for rows in (1, 1, 4)]
    assert [bare.warm_up(path) for path in artifacts] == [of_pairs + of_texts, of_pairs + of_texts, of_texts]


def test_requests_to_warm_up_with_are_short_and_long(reviews: Exported, fill: Exported, api: RestApi) -> None:
    requests = [inputs for name, inputs in read_warmup(reviews.path(9)) if name == "serving_default"]
    serve = api.versions.get(9).signatures["serving_default"]
    cut = [serve(text=tf.constant(inputs["text"]))["truncated"].numpy().tolist() for inputs in requests]
    assert cut == [[False], [True], [False, True, False, False]]
    masks = [inputs for _, inputs in read_warmup(fill.path(1))]
    assert all(b"[MASK]" in text for inputs in masks for texts in inputs.values() for text in texts)


@pytest.mark.slow
def test_the_readme_says_what_is_served(artifacts: list[Path], served: list[ModelVersions]) -> None:
    for folder, versions in zip(artifacts, served, strict=True):
        text = (folder / "README.md").read_text()
        version = versions.get(int(folder.name))
        (answer,) = version.predict(json.loads(text.split("curl -d '")[1].split("'")[0]))["predictions"]
        assert answer.keys() == version.signatures["serving_default"].structured_outputs.keys()
        for name, function in version.signatures.items():
            specs = {"input": function.structured_input_signature[1], "output": function.structured_outputs}
            rows = [
                f"| {way} | `{key}` | {spec.dtype.name} | ({', '.join(map(str, spec.shape))}) |".replace("None", "?")
                for way, found in specs.items()
                for key, spec in sorted(found.items())
            ]
            table = text.split(f"\n### {name}\n")[1].split("###")[0]
            assert table.strip().splitlines()[2:] == rows


@pytest.mark.slow
def test_kernels_are_joined_before_they_are_written(reviews: Exported) -> None:
    folder = reviews.path(9)
    (graph,) = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes()).meta_graphs
    read, joined = set(), set()
    for function in graph.graph_def.library.function:
        read |= {node.name for node in function.node_def if node.op == "ReadVariableOp"}
        joined |= {name.split(":")[0] for node in function.node_def if node.op == "ConcatV2" for name in node.input}
    assert read
    assert joined
    assert not read & joined
    shapes = [shape for _, shape in tf.train.list_variables(str(folder / "variables" / "variables"))]
    projections = 3 * 15 * (15 + 1)  # of the last block, which is traced for all vectors and for the first alone
    assert sum(int(np.prod(shape)) for shape in shapes if shape) == reviews.models[9].count_params() + projections


@pytest.mark.slow
def test_labels_are_lines(reviews: Exported, artifacts: list[Path]) -> None:
    assert (reviews.path(9) / "labels.txt").read_text() == "no\nyes\n"
    assert (reviews.path(10) / "labels.txt").read_text() == "no\nmay be\nyes\n"
    assert [(path / "labels.txt").exists() for path in artifacts] == [True, False, False]


@pytest.mark.slow
def test_an_export_over_another_leaves_nothing_of_it(reviews: Exported, choose: Exported) -> None:
    assert {name for name, _ in read_warmup(reviews.path(10))} == {"pair", "serving_default"}
    assert {name for name, _ in read_warmup(choose.path(1))} == {"serving_default"}
    found = {path.name for path in choose.path(1).iterdir()}
    assert "labels.txt" not in found
    assert found >= {"README.md", "notes.txt", "assets.extra", "saved_model.pb"}
    assert "# MultipleChoice" in (choose.path(1) / "README.md").read_text()


@pytest.mark.slow
def test_no_path_is_written(reviews: Exported, fill: Exported, choose: Exported, artifacts: list[Path]) -> None:
    written_at = [exported.origin.parent for exported in (reviews, fill, choose)]
    there = [*written_at, Path(lmzoo.__file__).parents[1], Path.cwd(), Path.home()]
    names = [os.fsencode(path) for path in there if len(path.parts) > 1] + [path.name.encode() for path in written_at]
    for folder in (*artifacts, reviews.path(9)):
        files = written(folder)
        assert {"saved_model.pb", "assets.extra/tf_serving_warmup_requests"} <= files.keys()
        for name, path in files.items():
            assert [p for p in names if p in path.read_bytes()] == [], name


@pytest.mark.slow
def test_ops_that_servers_lack_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier(labels=["no", "yes"])
    serve = model.serve

    def through_python(features):
        found = serve(features)
        return {**found, "score": tf.numpy_function(np.sqrt, [found["score"]], tf.float32)}

    monkeypatch.setattr(model, "serve", through_python)
    # One signature is traced sooner than three.
    monkeypatch.setattr(model, "signatures", lambda: (tf.Module(), {"tokens": tokens_signature(model)}))
    with pytest.raises(ValueError, match="PyFunc, and servers have the ops"):
        model.export(tmp_path / "reviews" / "1", verbose=False)
    assert list((tmp_path / "reviews").iterdir()) == []


def test_two_versions_in_a_moved_folder_and_nothing_written(reviews: Exported, api: RestApi) -> None:
    assert not reviews.origin.exists()
    texts = ["good film", "", "bad bad film!"]
    for version in (9, 10, 9):
        outputs = api.versions.get(version).signatures["serving_default"](text=tf.constant(texts))
        answers = reviews.models[version].classify(texts)
        assert [label.decode() for label in outputs["label"].numpy()] == [answer["label"] for answer in answers]
        np.testing.assert_allclose(outputs["score"], [answer["score"] for answer in answers], atol=1e-5)
    assert times_of(reviews.folder) == reviews.times


@pytest.mark.quick_cases("32-16")
@pytest.mark.parametrize(("threads", "each"), [(8, 8), pytest.param(32, 16, marks=pytest.mark.slow)])
def test_threads_get_the_serial_answers(api: RestApi, threads: int, each: int) -> None:
    from tensorflow.python.eager import context  # nothing public lists functions

    served = api.versions.get(10).signatures["serving_default"]
    rng = np.random.default_rng(5)
    words = ["good", "bad", "film", "!", "zzz", "é"]
    requests = [
        [" ".join(rng.choice(words, rng.integers(0, 40))) for _ in range(rng.integers(1, 8))]
        for _ in range(threads * each)
    ]

    def ask(texts):
        return {name: value.numpy() for name, value in served(text=tf.constant(texts)).items()}

    expected = [ask(texts) for texts in requests]
    functions = set(context.context().list_function_names())
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
    assert set(context.context().list_function_names()) <= functions
