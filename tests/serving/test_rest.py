"""The small server: what TensorFlow Serving's REST API would answer."""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from typer.testing import CliRunner

from lmzoo.cli import app
from lmzoo.serving.rest import ModelServer
from tests.serving.test_export import classifier

# Two exports and a process that answers.
pytestmark = pytest.mark.slow
TEXTS = ["good film", "", "bad bad film!"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving") / "reviews"
    models = {version: classifier(labels=labels) for version, labels in ((2, ["no", "yes"]), (10, ["-", "+", "?"]))}
    for version, model in models.items():
        model.save(folder.parent / f"{version}.keras")
        done = CliRunner().invoke(app, ["export", str(folder.parent / f"{version}.keras"), str(folder / str(version))])
        assert done.exit_code == 0, done.output
        assert "strings in, label, score, probabilities out" in done.output
    return folder, models


@pytest.fixture(scope="module")
def ask(models):
    with ModelServer(models[0], port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def ask(path, body=None):
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            request = urllib.request.Request(f"http://localhost:{server.server_address[1]}{path}", data)
            try:
                with urllib.request.urlopen(request) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        yield ask
        server.shutdown()


@pytest.mark.parametrize(("path", "version"), [("", 10), ("/versions/10", 10), ("/versions/2", 2)])
def test_rows_and_columns(models, ask, path, version):
    expected = models[1][version].classify(TEXTS)
    url = f"/v1/models/reviews{path}:predict"
    for instances in (TEXTS, [{"text": text} for text in TEXTS]):
        status, answer = ask(url, {"instances": instances})
        assert status == 200
        assert [row["label"] for row in answer["predictions"]] == [row["label"] for row in expected]
        np.testing.assert_allclose(
            [row["score"] for row in answer["predictions"]], [r["score"] for r in expected], 1e-5
        )
        assert answer["predictions"][0].keys() == {"label", "score", "probabilities", "truncated"}
    for inputs in (TEXTS, {"text": TEXTS}):
        columns = ask(url, {"inputs": inputs, "signature_name": "serving_default"})[1]["outputs"]
        assert columns["label"] == [row["label"] for row in expected]


def test_pairs_bytes_and_ids(models, ask):
    model = models[1][10]
    url = "/v1/models/reviews:predict"
    body = {"signature_name": "pair", "instances": [{"text": "good", "text_pair": "bad film"}]}
    assert ask(url, body)[1]["predictions"][0]["label"] == model.classify([("good", "bad film")])[0]["label"]
    broken = {"b64": base64.b64encode(b"good \xff film").decode()}
    found = ask(url, {"instances": [broken, "good \ufffd film"]})[1]["predictions"]
    assert found[0] == found[1]
    ids = {name: values.tolist() for name, values in model.preprocessor(["good"]).items()}
    rows = [{name: values[0] for name, values in ids.items()}]
    (one,) = ask(url, {"signature_name": "tokens", "instances": rows})[1]["predictions"]
    assert one["label"] == model.classify(["good"])[0]["label"]


def test_state_and_metadata(ask):
    states = ask("/v1/models/reviews")[1]["model_version_status"]
    assert [(state["version"], state["state"]) for state in states] == [("10", "AVAILABLE"), ("2", "AVAILABLE")]
    found = ask("/v1/models/reviews/versions/2/metadata")[1]
    assert found["model_spec"] == {"name": "reviews", "version": "2"}
    assert found["signatures"]["serving_default"]["inputs"] == {"text": {"dtype": "string", "shape": [None]}}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("reviews:predict", b"{", 400, "not JSON"),
        ("reviews:predict", {}, 400, 'either "instances" or "inputs"'),
        ("reviews:predict", {"instances": []}, 400, "not empty"),
        ("reviews:predict", {"instances": [3]}, 400, "expected a string, got 3"),
        ("reviews:predict", {"instances": [{"txt": "a"}]}, 400, "Inputs must be text; got txt"),
        ("reviews:predict", {"inputs": "a"}, 400, "must have shape"),
        ("reviews:predict", {"inputs": ["a"], "signature_name": "no"}, 400, "no signature 'no'"),
        ("reviews:predict", {"inputs": [{"b64": "?"}]}, 400, "base64"),
        ("reviews/versions/3:predict", {"inputs": ["a"]}, 404, "no version 3 of reviews; there are 2, 10"),
        ("other:predict", {"inputs": ["a"]}, 404, "nothing at /v1/models/other:predict"),
        ("reviews:classify", {"inputs": ["a"]}, 404, "nothing at"),
    ],
)
def test_errors(ask, path, body, status, message):
    found, answer = ask(f"/v1/models/{path}", body)
    assert found == status
    assert message in answer["error"]


def test_no_versions(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no version of a model"):
        ModelServer(tmp_path)


def test_the_next_version(models, tmp_path):
    folder, _ = models
    target = tmp_path / "reviews"
    arguments = ["export", str(folder.parent / "2.keras"), str(target)]
    for version in ("1", "2"):
        assert CliRunner().invoke(app, arguments).exit_code == 0
        assert (target / version / "saved_model.pb").exists()
    done = CliRunner().invoke(app, [*arguments[:2], str(target / "2")])
    assert done.exit_code == 1
    assert "exists already. Pass `--overwrite`" in done.output
