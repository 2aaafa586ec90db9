"""`lmzoo predict` on many files: their names and formats, resumed runs, and killed workers."""

from __future__ import annotations

import datetime
import io
import json
import os
import subprocess
import sys
import time
import uuid
from functools import partial

import pyarrow
import pytest
from pyarrow import parquet

from lmzoo import models
from lmzoo.families.bert import FAMILY
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.files.urls import open_to_read, whole_file
from lmzoo.testing.tiny import tiny_task, tiny_texts
from lmzoo_cli import predicting
from lmzoo_cli.answers import write_parquet
from lmzoo_cli.options import Columns, WorkerOptions
from lmzoo_cli.predicting import Prediction, predict_files
from lmzoo_cli.task_kinds import get_kind
from tests.cli.commands import EAGERLY, error_of, run
from tests.parallel.killing import kill_a_worker

pytestmark = EAGERLY
TEXTS = tiny_texts(13)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "classifier.keras"
    tiny_task(models.TextClassifier, FAMILY).save(path)
    return path


def rows(name):
    return [{"key": f"{name}-{i}", "text": text, "label": "good"} for i, text in enumerate(TEXTS)]


@pytest.fixture
def data(tmp_path):
    """Write the same texts into files of all kinds, with other keys, and return their directory."""
    folder = tmp_path / "data"
    (folder / "more").mkdir(parents=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows("a"))
    (folder / "a.jsonl").write_text(lines)
    cells = ["key\ttext", *(f"{row['key']}\t{row['text']}" for row in rows("b"))]
    (folder / "b.tsv").write_text("\n".join(cells))
    (folder / "more" / "c.csv").write_text("\n".join(cells).replace("\t", ","))
    parquet.write_table(pyarrow.Table.from_pylist(rows("d")), folder / "more" / "d.parquet")
    (folder / "notes.md").write_text("no examples")
    return folder


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.*"))}


def answers_to(model, file, tmp_path, *options):
    """Return the lines that the command writes for a single file."""
    output = tmp_path / f"{uuid.uuid4().hex}.jsonl"
    run("predict", model, file, "--output", output, *options)
    return output.read_bytes()


def test_empty_files_of_a_folder_have_no_answers(model, tmp_path):
    """Programs that split a table, such as Spark, also write parts without rows."""
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "part-0.jsonl").touch()
    (data / "part-1.jsonl").write_text('{"text": "A film."}\n')
    (data / "part-2.csv").write_text("text\n")
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], "string")}), data / "part-3.parquet")
    result = run("predict", model, data, "--output", out)
    assert "Wrote answers to 1 examples in 4 files to" in " ".join(result.stderr.split())
    sizes = {path.name: len(path.read_bytes().splitlines()) for path in out.glob("part-*")}
    assert sizes == {"part-0.jsonl": 0, "part-1.jsonl": 1, "part-2.jsonl": 0, "part-3.jsonl": 0}
    as_tables = tmp_path / "tables"
    run("predict", model, data, "--output", as_tables, "--to", "parquet")
    assert [parquet.read_table(path).num_rows for path in sorted(as_tables.glob("part-*"))] == [0, 1, 0, 0]


@pytest.mark.slow
def test_answers_equal_those_of_each_file_alone(model, data, tmp_path):
    out = tmp_path / "out"
    result = run("predict", model, data, "--output", out, "--id", "key")
    assert f"Wrote answers to 52 examples in 4 files to {out}" in " ".join(result.stderr.split())
    expected = {
        name.rpartition(".")[0] + ".jsonl": answers_to(model, data / name, tmp_path, "--id", "key")
        for name in ("a.jsonl", "b.tsv", "more/c.csv", "more/d.parquet")
    }
    assert {name: content for name, content in contents(out).items() if name != "_predict.json"} == expected
    first, *_, last = map(json.loads, expected["more/d.jsonl"].splitlines())
    assert (first["id"], last["id"], first["actual"]) == ("d-0", "d-12", "good")
    assert set(first) == {"id", "actual", "label", "score"}
    run("predict", model, f"{data}/?.*", "--output", tmp_path / "some", "--to", "csv")
    assert sorted(contents(tmp_path / "some")) == ["_predict.json", "a.csv", "b.csv"]


@pytest.mark.slow
def test_answers_in_parquet_keep_the_type_of_ids(model, data, tmp_path):
    columns = {"when": [datetime.date(2026, 11, 25)] * 13, "text": TEXTS, "number": list(range(13))}
    parquet.write_table(pyarrow.table(columns), tmp_path / "dates.parquet")
    common = ["predict", model, tmp_path / "dates.parquet"]
    lines = [json.loads(line) for line in run(*common, "--id", "when").stdout.splitlines()]
    assert {line["id"] for line in lines} == {"2026-11-25"}
    run(*common, "--id", "when", "--output", tmp_path / "answers.parquet")
    run(*common, "--id", "number", "--to", "parquet", "--output", tmp_path / "answers")
    tables = [parquet.read_table(tmp_path / name).to_pylist() for name in ("answers.parquet", "answers")]
    assert tables[0] == [{**line, "id": datetime.date(2026, 11, 25)} for line in lines]
    assert [row["id"] for row in tables[1]] == list(range(13))
    assert "row 1 has no 'txt'. Did you mean 'text'?" in error_of(*common, "--text", "txt")
    assert "row 1: 'number' must be a string, got 0" in error_of(*common, "--text", "number")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    assert "broken.parquet cannot be read as Parquet" in error_of("predict", model, tmp_path / "broken.parquet")


def test_any_text_but_only_one_type_of_ids_fits_into_parquet():
    """A cell of JSON lines may be any string, or of another type than the cell above."""
    file = io.BytesIO()
    write_parquet(file, [({"text": "good \ud83d"}, {"score": 0.5})])
    assert parquet.read_table(file).to_pylist() == [{"text": "good ?", "score": 0.5}]
    with pytest.raises(ValueError, match=r"The values of 'id' cannot be a column of Parquet.*--to jsonl"):
        write_parquet(io.BytesIO(), [({"id": "a"}, {}), ({"id": 7}, {})])


def test_ids_of_two_types_are_refused_before_the_predictions(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "good", "key": "a"}\n{"text": "bad", "key": 7}\n')
    prediction = Prediction("model.keras", Columns(), "key", {}, "parquet", 5)
    with pytest.raises(ValueError, match=r"The values of 'id' cannot be a column of Parquet.*--to jsonl"):
        prediction.read(get_kind("classifier"), tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("make_task", "example", "unanswerable", "options", "message"),
    [
        (partial(tiny_task, models.MaskedLM, FAMILY), "a [MASK]", "good film", {}, r"`texts\[67\]` holds no \[MASK\]"),
        (
            partial(tiny_task, models.CausalLM, GPT2),
            "good",
            "bad " * 97,
            {},
            r"`prompts\[67\]` has .* no room for a new token",
        ),
        (
            partial(tiny_task, models.CausalLM, GPT2),
            "good",
            "bad " * 11,
            {"max_new_tokens": 61},
            r"`prompts\[67\]` has .* tokens, which with `max_new_tokens=61`",
        ),
        (
            partial(tiny_task, models.QuestionAnswerer, FAMILY, max_question_length=97),
            ("who", "a fine film"),
            ("who " * 97, "a fine film"),
            {},
            "The question of example 67 .* leaves no room for the context",
        ),
    ],
    ids=["without a mask", "no room for a token", "no room for the new tokens", "no room for the context"],
)
def test_unanswerable_examples_are_found_before_the_predictions(
    make_task, example, unanswerable, options, message, monkeypatch
):
    task = make_task()
    monkeypatch.setattr(type(task), "answers", lambda self, x, batch_size, max_new_tokens=None: pytest.fail("predicts"))
    examples = [*[example] * 67, unanswerable]  # several parts of 16 batches
    x = tuple(map(list, zip(*examples, strict=True))) if isinstance(example, tuple) else examples
    prediction = Prediction("model.keras", Columns(), None, options, "jsonl", 2)
    with pytest.raises(ValueError, match=message):
        prediction.write(task, x, [{}] * 68, io.BytesIO(), lambda: None, False)


@pytest.mark.slow
def test_a_stopped_run_continues(model, data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    common = ["predict", model, data, "--output", out]
    read_source_file = predicting.read_source_file

    def stop(path):
        if path.endswith("c.csv"):
            raise KeyboardInterrupt
        return read_source_file(path)

    with monkeypatch.context() as patch:
        patch.setattr(predicting, "read_source_file", stop)
        assert f"The same command continues from {out}" in " ".join(run(*common, code=130).stderr.split())
    first_answers = contents(out)
    assert sorted(first_answers) == ["_predict.json", "a.jsonl", "b.jsonl"]
    (out / "a.jsonl").write_text("kept")
    assert "Skipping 2 of 4 files that are already done." in run(*common, "--batch-size", 5).stderr
    assert (out / "a.jsonl").read_text() == "kept"
    assert (out / "more/c.jsonl").read_bytes() == answers_to(model, data / "more/c.csv", tmp_path)
    message = error_of(*common, "--top-k", 2)
    assert "holds answers of a command whose options differed: pass --overwrite" in message
    run(*common, "--overwrite")
    assert (out / "a.jsonl").read_bytes() == first_answers["a.jsonl"]


def test_a_preset_trained_again_does_not_continue(data, tmp_path):
    common = ["predict", tmp_path / "preset", data / "more", "--output", tmp_path / "out"]
    task = tiny_task(models.TextClassifier, FAMILY)
    task.save_to_preset(tmp_path / "preset")
    run(*common)
    task.head.weights[-1].assign([1.0, 2.0, 3.0])
    task.save_to_preset(tmp_path / "preset")
    assert "holds answers of a command whose model differed: pass --overwrite" in error_of(*common)


def test_a_presets_name_takes_precedence_over_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("bert_nano_en_uncased", "mine"):
        (tmp_path / name).mkdir()
    assert predicting.absolute_model("bert_nano_en_uncased") == "bert_nano_en_uncased"
    assert predicting.absolute_model("./bert_nano_en_uncased") == str(tmp_path / "bert_nano_en_uncased")
    assert predicting.absolute_model("mine") == str(tmp_path / "mine")


@pytest.mark.slow
def test_changed_files_are_predicted_again(model, data, tmp_path):
    out = tmp_path / "out"
    common = ["predict", model, data, "--output", out]
    run(*common)
    before = contents(out)
    (data / "a.jsonl").write_text((data / "a.jsonl").read_text().splitlines()[0] + "\n")
    os.utime(data / "a.jsonl", ns=(2 * 10**18,) * 2)
    stderr = run(*common).stderr
    assert "Skipping 3 of 4 files that are already done." in stderr
    assert "Predicting again for 1 of 4 files, whose answers are replaced." in " ".join(stderr.split())
    after = contents(out)
    assert after["a.jsonl"] == before["a.jsonl"].splitlines(keepends=True)[0]
    assert after["b.jsonl"] == before["b.jsonl"]


class FakeTask:
    """Task whose answer to each text is its option `name`; it fails or stops at texts with this name."""

    def answers(self, texts, batch_size, name):
        if f"fail {name}" in texts:
            raise ValueError("wrong option")
        if f"stop {name}" in texts:
            raise KeyboardInterrupt
        return [{"label": name} for _ in texts]

    def check_answerable(self, x, **options):
        pass


def test_an_error_names_the_example_from_which_it_counts():
    prediction = Prediction("model.keras", Columns(), None, {"name": "x"}, "jsonl", 1)
    texts = [*["good"] * 19, "fail x"]
    with pytest.raises(ValueError, match=r"^wrong option \(Counted from example 16\.\)$"):
        prediction.write(FakeTask(), texts, [{}] * 20, io.BytesIO(), lambda: None, False)


@pytest.fixture(params=["path", "url"])
def predict_name(request, tmp_path, monkeypatch):
    """Return a function that writes answers for two files, and a function that returns their labels."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.csv").write_text("text\nfail second\n")
    (data / "b.csv").write_text("text\nstop third\n")
    (tmp_path / "model.keras").touch()
    out = str(tmp_path / "out") if request.param == "path" else f"memory://{uuid.uuid4().hex}"

    def load_fake_task(model, windows):
        time.sleep(0.02)  # file systems round the times of files
        return get_kind("classifier"), FakeTask()

    def predict(name, overwrite=True):
        prediction = Prediction(str(tmp_path / "model.keras"), Columns(), None, {"name": name}, "jsonl", 5)
        files = [str(data / "a.csv"), str(data / "b.csv")]
        predict_files(prediction, str(data), files, out, overwrite, WorkerOptions())

    def read_labels():
        labels = []
        for name in ("a", "b"):
            with open_to_read(f"{out}/{name}.jsonl") as file:
                labels.append(json.load(file)["label"])
        return labels

    monkeypatch.setattr(predicting, "load_task", load_fake_task)
    return predict, read_labels


def test_errors_replace_no_answers(predict_name, monkeypatch):
    predict, read_labels = predict_name
    predict("first", overwrite=False)
    with pytest.raises(FileExistsError, match="whose options differed"):
        predict("second", overwrite=False)
    with pytest.raises(ValueError, match="wrong option"):
        predict("second")
    assert read_labels() == ["first", "first"]
    monkeypatch.setattr(predicting, "load_task", lambda model, windows: FakeTask().answers(["fail x"], 5, "x"))
    with pytest.raises(ValueError, match="wrong option"):
        predict("fourth")
    assert read_labels() == ["first", "first"]


def test_a_stopped_run_that_overwrites_continues(predict_name, tmp_path, capsys):
    predict, read_labels = predict_name
    predict("first")
    with pytest.raises(KeyboardInterrupt):
        predict("third")
    assert read_labels() == ["third", "first"]
    (tmp_path / "data" / "b.csv").write_text("text\ngood\n")
    os.utime(tmp_path / "data" / "b.csv", (0, 0))
    for overwrite in (True, False):
        capsys.readouterr()
        predict("third", overwrite)
        assert f"Skipping {1 if overwrite else 2} of 2 files" in capsys.readouterr().err
        assert read_labels() == ["third", "third"]
    predict("third")  # all files are done, so that all are replaced
    messages = capsys.readouterr().err
    assert "Skipping" not in messages
    assert "Predicting again for 2 of 2 files, whose answers are replaced." in messages


def test_a_link_is_read_under_its_own_name(tmp_path):
    """Caches of downloads link names such as test.jsonl to files that are named by digests."""
    (tmp_path / "data").mkdir()
    (tmp_path / "ab12").touch()
    link = tmp_path / "data" / "test.jsonl"
    link.symlink_to(tmp_path / "ab12")
    pair_files = predicting._pair_files
    (pair,) = pair_files(str(tmp_path / "data"), [str(link)], str(tmp_path / "out"), "jsonl")
    assert pair == (str(link), str(tmp_path / "out" / "test.jsonl"))
    with pytest.raises(ValueError, match="also holds the examples"):
        pair_files(f"{tmp_path}/data/*.jsonl", [str(link)], str(tmp_path / "data"), "jsonl")


def test_a_file_below_the_home_directory_is_one_file(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.csv").write_text("text\ngood film\n")
    assert json.loads(run("predict", model, "~/a.csv").stdout)["text"] == "good film"


@pytest.mark.slow
def test_files_and_directories_at_urls(model, data, tmp_path):
    url = f"memory://{uuid.uuid4().hex}"
    with whole_file(f"{url}/in/a.jsonl") as file:
        file.write((data / "a.jsonl").read_bytes())
    run("predict", model, f"{url}/in", "--output", f"{url}/out")
    run("predict", model, f"{url}/in/a.jsonl", "--output", f"{url}/alone.jsonl")
    for name in ("out/a.jsonl", "alone.jsonl"):
        with open_to_read(f"{url}/{name}") as file:
            assert file.read() == answers_to(model, data / "a.jsonl", tmp_path)


def test_errors_come_before_the_work(model, data, tmp_path, monkeypatch):
    out, empty = tmp_path / "out", tmp_path / "empty"
    empty.mkdir()
    cases = [
        ([model, data], "Many files, or several workers, read files and write into a directory: give --output"),
        ([model, "-", "--workers", 2, "--output", out], "Many files, or several workers"),
        ([model, data, "--output", data / "out"], "also holds the examples"),
        ([model, data / "*.jsonl", "--output", data], "also holds the examples"),
        ([model, empty, "--output", out], "empty holds no files of examples"),
        ([model, tmp_path / "none", "--output", out], "There is no"),
        ([model, data, "--output", out, "--text", "txt"], "a.jsonl, line 1 has no 'txt'"),
        ([model, data, "--output", out, "--ray", "auto"], "--ray needs the number of workers"),
        ([model, data, "--output", model], "is a file: several files of answers are written into a directory"),
    ]
    for arguments, message in cases:
        assert message in error_of("predict", *arguments)
    (data / "a.csv").write_text("text\ngood\n")
    assert "would be called a.jsonl" in error_of("predict", model, data, "--output", out)
    (data / "a.csv").unlink()
    assert not out.exists()
    out.mkdir()
    (out / "a.jsonl").write_text("another file")
    assert "a.jsonl exists: pass --overwrite" in error_of("predict", model, data, "--output", out)
    for arguments in (["no_such_model", data], [model, data, "--text", "txt"]):  # an error replaces nothing
        error_of("predict", *arguments, "--output", out, "--overwrite")
        assert contents(out) == {"a.jsonl": b"another file"}
    monkeypatch.setitem(sys.modules, "ray", None)
    message = error_of("predict", model, data, "--output", tmp_path / "new", "--workers", 2)
    assert "Workers need Ray: pip install 'lmzoo[scale]'" in message


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_named(model, data, tmp_path):
    (data / "b.tsv").write_bytes(b"text\n\xff\n")
    result = run("predict", model, data, "--output", tmp_path / "out", code=1)
    assert "b.tsv, line 2: the byte 0xff is not utf-8" in " ".join(result.stderr.split())
    assert sorted(contents(tmp_path / "out")) == ["_predict.json", "a.jsonl"]
    tiny_task(models.MaskedLM, FAMILY).save(tmp_path / "fill.keras")
    result = run("predict", tmp_path / "fill.keras", data, "--output", tmp_path / "more", code=1)
    assert f"Error: {data}/a.jsonl: " in result.stderr  # its texts have no mask


@pytest.mark.slow
def test_killed_workers_lose_no_answers(model, data, tmp_path):
    """Every example is answered once, as without workers; a file that no worker can read is named."""
    command = [sys.executable, "-m", "lmzoo_cli", "predict", str(model), str(data), "--id", "key", "--output"]
    subprocess.run([*command, str(tmp_path / "alone")], check=True, capture_output=True, timeout=600)
    workers = [*command, str(tmp_path / "out"), "--workers", "2"]
    with subprocess.Popen(workers, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        kill_a_worker(process)
        stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    assert stdout == ""
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    (data / "b.tsv").write_bytes(b"text\n\xff\n")
    failed = subprocess.run([*workers, "--overwrite"], capture_output=True, text=True, timeout=600, check=False)
    assert failed.returncode == 1
    assert "b.tsv, line 2: the byte 0xff is not utf-8" in " ".join(failed.stderr.split())
    assert "Traceback" not in failed.stderr
