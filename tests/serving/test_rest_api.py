"""Responses of the REST API, in the form of TensorFlow Serving's."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request

import numpy as np
import pytest
from typer.testing import CliRunner

from lmzoo.serving.json_tensors import RequestError, to_tensor
from lmzoo.serving.model_versions import ModelVersions
from lmzoo.serving.server import listening, running_server
from lmzoo_cli.main import app

TEXTS = ["good film", "", "bad bad film!"]


@pytest.fixture(scope="module")
def url(api):
    with running_server(api) as url:
        yield url


@pytest.fixture(scope="module")
def ask(url):
    def ask(path, body=None):
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{url}{path}", data)) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return ask


@pytest.mark.slow_cases("/versions/9-9")
@pytest.mark.parametrize(("path", "version"), [("", 10), ("/versions/10", 10), ("/versions/9", 9)])
def test_rows_and_columns_are_predicted(reviews, ask, path, version):
    expected = reviews.models[version].classify(TEXTS)
    url = f"/v1/models/reviews{path}:predict"
    for instances in (TEXTS, [{"text": text} for text in TEXTS]):
        status, answer = ask(url, {"instances": instances})
        assert status == 200
        assert [row["label"] for row in answer["predictions"]] == [row["label"] for row in expected]
        scores = [row["score"] for row in answer["predictions"]]
        np.testing.assert_allclose(scores, [row["score"] for row in expected], 1e-5)
        assert answer["predictions"][0].keys() == {"label", "score", "probabilities", "truncated"}
    for inputs in (TEXTS, {"text": TEXTS}):
        columns = ask(url, {"inputs": inputs, "signature_name": "serving_default"})[1]["outputs"]
        assert columns["label"] == [row["label"] for row in expected]


@pytest.mark.slow
def test_pairs_bytes_and_ids_are_predicted(reviews, ask):
    model = reviews.models[10]
    url = "/v1/models/reviews:predict"
    body = {"signature_name": "pair", "instances": [{"text": "good", "text_pair": "bad film"}]}
    assert ask(url, body)[1]["predictions"][0]["label"] == model.classify([("good", "bad film")])[0]["label"]
    broken = {"b64": base64.b64encode(b"good \xff film").decode()}
    predictions = ask(url, {"instances": [broken, "good \ufffd film"]})[1]["predictions"]
    assert predictions[0] == predictions[1]
    ids = {name: values.tolist() for name, values in model.preprocessor(["good"]).items()}
    rows = [{name: values[0] for name, values in ids.items()}]
    (prediction,) = ask(url, {"signature_name": "tokens", "instances": rows})[1]["predictions"]
    assert prediction["label"] == model.classify(["good"])[0]["label"]


def test_state_and_metadata_are_those_of_tensorflow_serving(ask):
    states = ask("/v1/models/reviews")[1]["model_version_status"]
    assert [(state["version"], state["state"]) for state in states] == [("10", "AVAILABLE"), ("9", "AVAILABLE")]
    metadata = ask("/v1/models/reviews/versions/9/metadata")[1]
    assert metadata["model_spec"] == {"name": "reviews", "signature_name": "", "version": "9"}
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["text"]["dtype"] == "DT_STRING"
    assert signature["inputs"]["text"]["tensor_shape"] == {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("reviews:predict", {}, 400, 'either "instances" or "inputs"'),
        ("reviews:predict", {"instances": []}, 400, "not empty"),
        ("reviews:predict", {"instances": [3]}, 400, "expected a string, got 3"),
        ("reviews:predict", {"instances": [{"txt": "a"}]}, 400, "Inputs must be text; got txt"),
        ("reviews:predict", {"inputs": "a"}, 400, "must have shape"),
        ("reviews:predict", {"inputs": ["a"], "signature_name": "no"}, 400, "no signature 'no'"),
        ("reviews:predict", {"inputs": [{"b64": "?"}]}, 400, "base64"),
        ("reviews/versions/3:predict", {"inputs": ["a"]}, 404, "no version 3 of reviews; there are 9, 10"),
        ("other:predict", {"inputs": ["a"]}, 404, "nothing at /v1/models/other:predict"),
        ("reviews:classify", {"inputs": ["a"]}, 404, "nothing at"),
        ("reviews", {"inputs": ["a"]}, 405, "takes GET, not POST"),
        ("reviews:predict", None, 405, "takes POST, not GET"),
        (
            "reviews:predict",
            {"inputs": {"text": ["a", "b"], "text_pair": ["c"]}, "signature_name": "pair"},
            400,
            "as many rows; got 2 of text, 1 of text_pair",
        ),
        (
            "reviews:predict",
            {
                "inputs": {"token_ids": [[2, 3], [2]], "padding_mask": [[1]], "segment_ids": [[0]]},
                "signature_name": "tokens",
            },
            400,
            "equally long: fill shorter ones up with 0",
        ),
        (
            "reviews:predict",
            {
                "inputs": {"token_ids": [[2, 7, 3]], "padding_mask": [[1]], "segment_ids": [[0, 0, 0]]},
                "signature_name": "tokens",
            },
            400,
            "The model cannot take this: assertion failed: [`padding_mask` must have the shape of `token_ids`.]",
        ),
        (
            "reviews:predict",
            {
                "inputs": {"token_ids": [[2, -1, 3]], "padding_mask": [[1] * 3], "segment_ids": [[0] * 3]},
                "signature_name": "tokens",
            },
            400,
            "The model cannot take this: assertion failed: [`token_ids` must not be negative.",
        ),
        (
            "reviews:predict",
            {
                "inputs": {"token_ids": [[2, 7, 999, 3]], "padding_mask": [[1] * 4], "segment_ids": [[0] * 4]},
                "signature_name": "tokens",
            },
            400,
            "The model cannot take this: indices[0,2] = 999 is not in [0, ",
        ),
    ],
)
def test_wrong_requests_are_refused(ask, path, body, status, message):
    actual, answer = ask(f"/v1/models/{path}", body)
    assert actual == status
    assert message in answer["error"]


@pytest.mark.slow
def test_bodies_arrive_whole_or_in_chunks(url):
    body = json.dumps({"instances": TEXTS}).encode()
    whole, chunked = (
        json.load(urllib.request.urlopen(urllib.request.Request(f"{url}/v1/models/reviews:predict", data)))
        for data in (body, iter([body[:7], body[7:]]))
    )
    assert chunked == whole
    request = urllib.request.Request(f"{url}/v1/models/reviews:predict", body, {"Content-Encoding": "gzip"})
    with pytest.raises(urllib.error.HTTPError, match="415") as raised:
        urllib.request.urlopen(request)
    assert "not gzip" in json.load(raised.value)["error"]


def test_errors_of_other_methods_are_json(url):
    request = urllib.request.Request(f"{url}/v1/models/reviews", method="DELETE")
    with pytest.raises(urllib.error.HTTPError, match="405") as raised:
        urllib.request.urlopen(request)
    assert "DELETE" in json.load(raised.value)["error"]


def test_directories_without_a_model_are_refused(reviews, url, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no version of a model"):
        ModelVersions(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"holds no version of a model, but {reviews.folder} does: serve that"):
        ModelVersions(reviews.folder.parent)
    (tmp_path / "t.keras").touch()
    with pytest.raises(NotADirectoryError, match=r"t\.keras is a file"):
        ModelVersions(tmp_path / "t.keras")
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*nowhere"):
        ModelVersions(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=f"serve the folder above it, {reviews.folder}"):
        ModelVersions(reviews.path(9))
    with pytest.raises(OSError, match=r"in use\. Choose another"), listening(port=int(url.split(":")[-1])):
        pass


def test_an_export_does_not_replace_a_folder_of_versions(reviews):
    before = sorted(reviews.folder.iterdir())
    with pytest.raises(ValueError, match=f"holds versions of a model: export to the next one, {reviews.path(11)}"):
        reviews.models[9].export(reviews.folder, verbose=False)
    assert sorted(reviews.folder.iterdir()) == before


@pytest.mark.slow
def test_choices_are_predicted(served):
    version = served[2].get()
    (row,) = version.example()["instances"]
    assert row.keys() == {"prompt", "choices"}
    assert version.predict(version.example())["predictions"][0]["choice"] in row["choices"]
    rows = [{"prompt": "p", "choices": ["c", "d"]}, {"prompt": "q", "choices": ["a", "b"]}]
    assert len(version.predict({"instances": rows})["predictions"]) == 2
    for choices, message in ((["a"], 'equally long: fill shorter ones up with ""'), ([], "equally long")):
        with pytest.raises(RequestError, match=message):
            version.predict({"instances": [rows[0], {"prompt": "q", "choices": choices}]})
    with pytest.raises(RequestError, match=r"must have shape \(None, None\), got \(1, 0\)"):
        version.predict({"instances": [{"prompt": "p", "choices": []}]})


def test_the_command_line_exports_the_next_version(reviews, fill):
    assert f"TextClassifier in {reviews.origin / '10'}: strings in, label, score, probabilities out" in reviews.output
    assert f"MaskedLM in {fill.folder / '1'}: strings in, token, score out" in fill.output
    for path in (reviews.path(10), fill.path(1)):
        assert (path / "saved_model.pb").exists()
    result = CliRunner().invoke(app, ["export", "any.keras", str(reviews.path(9))])
    assert result.exit_code == 1
    assert "exists already. Pass --overwrite" in result.output


def test_values_that_are_not_strings_are_named_by_their_position():
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(RequestError, match=r"expected a string, got None \(`text\[2\]`\)"):
        to_tensor("text", ["a", "b", None], tf.TensorSpec([None], tf.string))
    with pytest.raises(RequestError, match=r"expected a string, got 3 \(`choices\[1\]\[0\]`\)"):
        to_tensor("choices", [["a", "b"], [3, "c"]], tf.TensorSpec([None, None], tf.string))
