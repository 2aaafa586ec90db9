"""A path that begins with "~" is in the home directory wherever files are read or written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmzoo.data.corpora import TokenCorpus, prepare_corpus, read_documents, write_corpus
from lmzoo.data.readers import TableStream, read_table
from lmzoo.families.bert import FAMILY
from lmzoo.files.urls import exists, list_relative_names, make_absolute, open_to_read, read_source_file, whole_file
from lmzoo.models import Task, TextClassifier
from lmzoo.presets import verify_manifest, write_manifest
from lmzoo.testing import tiny_backbone
from lmzoo.text import WordPieceTokenizer
from lmzoo_cli.examples import is_several
from lmzoo_cli.model_loading import find_file
from lmzoo_cli.output import check_output
from lmzoo_cli.predicting import absolute_model
from lmzoo_cli.searching import load_vectors


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    (tmp_path / "elsewhere").mkdir()
    (folder / "texts").mkdir(parents=True)
    (folder / "texts" / "a.csv").write_text("text,label\nan a,b\n")
    (folder / "texts" / "b.txt").write_text("a b\n\nb\n")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(tmp_path / "elsewhere")
    yield folder
    assert not list(Path().iterdir())


def test_files_below_the_home_directory(home):
    with whole_file("~/new.bin") as file:
        file.write(b"x")
    assert exists("~/new.bin")
    with open_to_read("~/new.bin") as file:
        assert file.read() == b"x"
    assert make_absolute("~/new.bin") == str(home / "new.bin")
    assert list_relative_names("~/texts", [str(home / "texts" / "a.csv")]) == ["a.csv"]


def test_tables_and_documents_below_the_home_directory(home):
    assert read_table("~/texts/a.csv", label="label") == read_table(read_source_file("~/texts/a.csv"), label="label")
    assert TableStream("~/texts/*.csv").column_names == ["text", "label"]
    assert list(read_documents("~/texts/b.txt")) == [["a b"], ["b"]]


def test_corpora_below_the_home_directory(home):
    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b"])
    assert len(write_corpus([["a a", "b"], ["a"]], tokenizer, "~/written", verbose=False)) == 2
    prepare_corpus("~/texts", tokenizer, "~/prepared", verbose=False)
    assert [TokenCorpus(f"~/{name}").num_tokens for name in ("written", "prepared")] == [4, 3]
    assert TokenCorpus("~/written").folder == home / "written"


def test_models_and_presets_below_the_home_directory(home):
    task = TextClassifier(tiny_backbone(FAMILY), num_classes=2)
    task.save("~/task.keras")
    assert isinstance(Task.load("~/task.keras"), TextClassifier)
    with pytest.raises(FileExistsError, match=r"task\.keras exists"):
        task.save("~/task.keras", overwrite=False)
    task.save_to_preset("~/preset")
    write_manifest("~/preset")
    assert verify_manifest("~/preset")
    assert (home / "preset" / "manifest.json").stat().st_size > 100


def test_models_and_vectors_of_commands_below_the_home_directory(home):
    (home / "task.keras").touch()
    assert find_file("~/task.keras") == home / "task.keras"
    assert absolute_model("~/task.keras") == str(home / "task.keras")
    np.save(home / "vectors.npy", np.ones((3, 5)))
    assert load_vectors(Path("~/vectors.npy")).shape == (3, 5)


def test_outputs_of_commands_below_the_home_directory(home):
    """Shells do not expand the "~" of `--output=~/...`."""
    check_output(Path("~/new/answers.jsonl"), overwrite=False)
    assert (home / "new").is_dir()
    with pytest.raises(FileExistsError, match=r"a\.csv exists"):
        check_output(Path("~/texts/a.csv"), overwrite=False)
    assert is_several(Path("~/texts"))
    assert not is_several(Path("~/texts/a.csv"))
