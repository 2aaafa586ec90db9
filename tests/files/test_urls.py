"""Paths and URLs: finding, reading and writing files on the disk and in fsspec's memory."""

from __future__ import annotations

import uuid

import pytest

from lmzoo.files import urls
from lmzoo.files.urls import (
    copy_folder,
    exists,
    find_files,
    get_size,
    join_path,
    list_relative_names,
    open_to_read,
    read_source_file,
    remove,
    remove_folder,
    whole_file,
)


@pytest.fixture(params=["path", "url"])
def folder(request, tmp_path):
    """Return a directory on the disk or in memory that does not exist yet."""
    return str(tmp_path / "texts") if request.param == "path" else f"memory://{uuid.uuid4().hex}"


def write_files(folder, *names):
    for name in names:
        with whole_file(join_path(folder, name)) as file:
            file.write(name.encode())


def read(path):
    with open_to_read(path) as file:
        return file.read().decode()


def find_texts(path):
    """Return the names of text files below a path, after checking that each holds its name."""
    files = find_files(path, lambda name: name.endswith(".txt"))
    names = list_relative_names(path, files)
    assert all(read(file).endswith(name) for file, name in zip(files, names, strict=True))
    return names


def test_sizes_are_read(folder):
    write_files(folder, "seven.t")
    assert get_size(join_path(folder, "seven.t")) == 7


def test_files_are_found_by_folder_name_and_pattern(folder):
    write_files(folder, "b.txt", "a-b/c.txt", "a.csv", "a/d.txt")
    assert find_texts(folder) == ["a/d.txt", "a-b/c.txt", "b.txt"]
    assert find_texts(join_path(folder, "a.csv")) == ["a.csv"]
    assert find_texts(join_path(folder, "a*")) == ["a/d.txt", "a-b/c.txt", "a.csv"]
    assert find_texts(join_path(folder, "a/*.txt")) == ["d.txt"]
    assert find_files(folder, lambda name: False) == []
    for missing in ("c", "c*"):
        with pytest.raises(FileNotFoundError, match=r"There is no .*c"):
            find_files(join_path(folder, missing), bool)


def test_hidden_files_in_a_directory_are_skipped(folder):
    write_files(folder, ".hidden/a/b.txt", ".hidden/a/.c.txt", ".hidden/a/.d/e.txt", ".hidden/a/f.d/g.txt")
    visible_folder = join_path(folder, ".hidden/a")  # a hidden directory may be named
    assert find_texts(visible_folder) == ["b.txt", "f.d/g.txt"]
    assert find_texts(join_path(visible_folder, ".c.txt")) == [".c.txt"]
    assert find_texts(join_path(visible_folder, ".*.txt")) == [".c.txt"]
    assert find_files(folder, bool) == []


def test_links_to_directories_are_followed(tmp_path):
    folder = tmp_path / "texts"
    write_files(folder, "c/d.txt", "e.txt")
    write_files(tmp_path / "elsewhere", "f/g.txt", ".h.txt")
    for link, target in {
        "a": tmp_path / "elsewhere",
        "b": folder / "c",  # is listed as "c"
        "c/cycle": folder,
        ".hidden": tmp_path,
    }.items():
        (folder / link).symlink_to(target)
    (tmp_path / "elsewhere" / "cycle").symlink_to(folder)
    found = find_files(folder, lambda name: name.endswith(".txt"))
    assert found == [f"{folder}/{name}" for name in ("a/f/g.txt", "c/d.txt", "e.txt")]


def write_half(path):
    with whole_file(path) as file:
        file.write(b"half")
        raise RuntimeError("stopped")


def test_a_file_appears_when_it_is_whole(folder):
    path = join_path(folder, "a.txt")
    with pytest.raises(RuntimeError, match="stopped"):
        write_half(path)
    assert not exists(path)
    with whole_file(path) as file:
        file.write(b"whole")
        assert not exists(path)
    assert read(path) == "whole"
    source = read_source_file(path)
    assert str(getattr(source, "name", source)).endswith("a.txt")
    remove(path)
    remove(path)
    with pytest.raises(FileNotFoundError, match=r"a\.txt"):
        open_to_read(path)


@pytest.mark.parametrize(
    ("path", "folder", "expected"),
    [
        ("texts", "texts/", True),
        ("texts/a/b", "texts", True),
        ("texts2", "texts", False),
        (".", "texts", False),
        ("texts", ".", True),
        ("texts", "/", True),
        ("s3://texts/a", "s3://texts/", True),
        ("s3://texts2", "s3://texts", False),
    ],
)
def test_paths_in_folders(path, folder, expected):
    assert urls.is_in_folder(path, folder) == expected


@pytest.mark.parametrize(
    ("path", "folder", "expected"),
    [
        ("texts", "texts", False),
        ("texts/a.b/c", "texts", False),
        ("texts/.a/b", "texts", True),
        ("texts/a/_b", "texts", True),
        ("_texts/a", "_texts", False),
        ("s3://texts/_a/b", "s3://texts/", True),
    ],
)
def test_skipped_paths(path, folder, expected):
    assert urls.is_skipped(path, folder, (".", "_")) == expected


def test_links_into_folders_are_followed(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "texts")
    assert urls.is_in_folder(tmp_path / "link/a", tmp_path / "texts")


def test_unknown_protocols_are_errors():
    with pytest.raises(ValueError, match="Protocol not known: nowhere"):
        find_files("nowhere://bucket/a", bool)


def test_folders_are_copied_and_removed(folder, tmp_path, monkeypatch):
    write_files(folder, "b.txt", "a/d.txt", "c.txt")
    copied_files, open_whole_file = [], urls.whole_file
    monkeypatch.setattr(urls, "whole_file", lambda path: copied_files.append(str(path)) or open_whole_file(path))
    for target in (str(tmp_path / "copy"), f"memory://{uuid.uuid4().hex}"):
        copied_files.clear()
        copy_folder(folder, target, last="b.txt")
        assert find_texts(target) == ["a/d.txt", "b.txt", "c.txt"]
        assert copied_files[-1] == join_path(target, "b.txt")
        remove_folder(target)
        assert not exists(target)
        remove_folder(target)
    assert find_texts(folder) == ["a/d.txt", "b.txt", "c.txt"]
    with pytest.raises(FileNotFoundError):
        copy_folder(join_path(folder, "none"), str(tmp_path / "copy"), last="b.txt")
