"""Tables that are streamed: the same cells as in memory, from any row on, in any format."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
import sys

import pyarrow.parquet
import pytest

from lmzoo.data.readers import TableStream, read_table
from lmzoo.files.urls import whole_file

ROWS = [{"text": f"text {i}\u2028{'é' * i}", "label": i % 3, "other": None} for i in range(23)]


@pytest.fixture
def write(tmp_path):
    def write_(name, rows):
        path = tmp_path / name
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=4)
            return path
        lines = [json.dumps(row) for row in rows]
        if ".csv" in name:
            quoted = [row["text"].replace('"', '""') for row in rows]
            lines = ["text,label", *(f'"{text}",{row["label"]}' for text, row in zip(quoted, rows, strict=True))]
        data = "\n".join([*lines, ""]).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write_


@pytest.fixture
def files(write):
    return [
        write(name, ROWS[7 * i : 7 * i + 7]) for i, name in enumerate(["a.jsonl", "b.jsonl.gz", "c.parquet", "d.csv"])
    ]


def test_all_formats_in_one_stream(files, tmp_path):
    stream = TableStream(tmp_path, types={"label": int}).select_columns(["text", "label"])
    rows = list(stream)
    assert rows == [{"text": row["text"], "label": row["label"]} for row in ROWS]
    assert list(stream) == rows  # a stream can be read again
    assert stream.count_rows() == 23
    assert rows[8].where == f"{files[1]}, line 2"
    assert rows[15].where == f"{files[2]}, row 2"
    assert rows[22].where == f"{files[3]}, line 3"  # line 1 is the header
    assert TableStream(files[0]).column_names == ["text", "label", "other"]


def test_a_given_format_applies_to_all_files_in_a_directory(tmp_path):
    for name in ("part-0", "part-1.data", "_SUCCESS", "_log.csv", ".part-2", "_temporary/0/part-3", "more/.old/part-4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"text\n{name}\n")
    assert [row["text"] for row in TableStream(tmp_path, format="csv")] == ["part-0", "part-1.data"]
    with pytest.raises(FileNotFoundError, match=r"holds no \.csv, "):
        TableStream(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty holds only files whose names begin with .*Name a file itself"):
        TableStream(tmp_path / "empty", format="csv")


@pytest.mark.parametrize("counted", [False, True])
def test_rows_after_a_skip_equal_those_of_a_full_read(files, counted):
    stream = TableStream(files, types={"label": int})
    if counted:
        stream.count_rows()
    rows = list(stream)
    for n in range(25):
        remaining = stream.skip(n)
        assert [(row, row.where) for row in remaining] == [(row, row.where) for row in rows[n:]]
        assert remaining.count_rows() == max(0, 23 - n)
    assert list(stream.skip(3).skip(9)) == rows[12:]


def test_each_epoch_has_its_order_of_files(files):
    stream = TableStream(files, types={"label": int}).shuffle_files(seed=3)
    orders = []
    for epoch in (0, 1, 2, 3, 0):
        stream.set_epoch(epoch)
        rows = list(stream)
        assert sorted(rows, key=lambda row: row.place) == list(TableStream(files, types={"label": int}))
        assert list(stream.skip(9)) == rows[9:]
        orders.append([file for file, _ in itertools.groupby(row.place[0] for row in rows)])
    assert orders[0] == orders[4]
    assert len({tuple(order) for order in orders}) > 1
    assert all(len(order) == 4 for order in orders)  # file by file


def test_batches_of_rows(files):
    batches = list(TableStream(files[:2]).iter(batch_size=5))
    assert [len(batch["text"]) for batch in batches] == [5, 5, 4]
    assert [text for batch in batches for text in batch["text"]] == [row["text"] for row in ROWS[:14]]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be", "gb18030", "latin-1"])
def test_byte_order_marks_are_skipped(tmp_path, encoding, pack):
    mark = "\ufeff" if encoding in ("utf-8", "utf-16-le", "utf-32-be", "gb18030") else ""
    (tmp_path / "a.csv").write_bytes(pack(f"{mark}text,label\né,1\n".encode(encoding)))
    table = TableStream(tmp_path / "a.csv", encoding=encoding)
    assert list(table) == [{"text": "é", "label": "1"}]
    assert table.count_rows() == 1


def test_missing_cells_are_none(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b", "label": 1}\n')
    assert list(TableStream(tmp_path / "a.jsonl").iter(2)) == [{"text": ["a", "b"], "label": [None, 1]}]


def test_a_selected_column_must_be_the_only_one_of_its_name(tmp_path):
    (tmp_path / "a.csv").write_text("text,note,note\ngood,x,y\n")
    table = TableStream(tmp_path / "a.csv")
    assert list(table.select_columns(["text"])) == [{"text": "good"}]
    for ambiguous in (table, table.select_columns(["note"])):
        with pytest.raises(ValueError, match=r"a\.csv has several columns 'note'"):
            next(iter(ambiguous))


def test_a_selected_column_of_parquet_must_be_the_only_one_of_its_name(tmp_path):
    repeated = pyarrow.table([["good"], ["x"], ["y"]], names=["text", "note", "note"])
    pyarrow.parquet.write_table(repeated, tmp_path / "a.parquet")
    table = TableStream(tmp_path / "a.parquet")
    assert list(table.select_columns(["text"])) == [{"text": "good"}]
    with pytest.raises(ValueError, match=r"a\.parquet has several columns 'note'"):
        next(iter(table.select_columns(["note"])))


def test_column_names_are_in_the_order_of_the_cells(tmp_path):
    (tmp_path / "a.csv").write_text("text,note,note,label\n")  # no rows
    (tmp_path / "b.csv").write_text("text,note,note,label\ngood,x,y,pos\n")
    table = TableStream(tmp_path / "*.csv")
    assert table.column_names == ["text", "note", "note", "label"]
    assert TableStream(tmp_path / "b.csv", header=False).column_names == [0, 1, 2, 3]
    assert table.select_columns(["label"]).column_names == ["label"]
    assert TableStream(tmp_path / "a.csv").column_names == []
    labels = [row["label"] for row in table.select_columns([table.column_names[3]])]
    assert labels == read_table(tmp_path / "b.csv", label=3)[1]


def test_missing_columns_of_parquet_are_named(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["a"], "label": ["x"]}), tmp_path / "a.parquet")
    for name, message in (("lable", "Did you mean 'label'"), ("stars", "There are: 'text', 'label'")):
        with pytest.raises(ValueError, match=rf"a\.parquet has no column '{name}'.*{message}"):
            list(TableStream(tmp_path / "a.parquet").select_columns(["text", name]))


@pytest.mark.parametrize("name", ["quotes.csv", "plain.tsv", "none.tsv", "lines.txt", "trec.labeled"])
def test_streams_have_the_cells_of_read_table(tmp_path, name):
    text = {
        "quotes.csv": 'id,text,label\r\n7,"Good, ""really""\nso.",pos\r\n\r\n11,,neg\r\n',
        "plain.tsv": '\ufeffid\ttext\tlabel\n1\t"so\t0\n',
        "none.tsv": "1\tA b.\tx\n2\tC d.\ty",
        "lines.txt": "A b.\n\n c\r\n",
        "trec.labeled": "x A b.\ny C\n",
    }[name]
    (tmp_path / name).write_text(text, "utf-8", newline="")
    header, format = name != "none.tsv", "labeled" if name.endswith("labeled") else None
    columns = ("text", "label") if header else (1, 2)
    label = None if name == "lines.txt" else columns[1]
    x, y = read_table(tmp_path / name, columns[0], label=label, header=header, format=format)
    rows = list(TableStream(tmp_path / name, header=header, format=format))
    assert [row[columns[0]] for row in rows] == x
    assert y is None or [row[columns[1]] for row in rows] == y


def test_errors_of_files(tmp_path, write):
    def read_bytes(name, content, **options):
        path = tmp_path / name
        path.write_bytes(content)
        return list(TableStream(path, **options))

    for name, content, options, message in [
        ("a.jsonl", b'{"a": 1}\n{"a"\n', {}, "a.jsonl, line 2 is not JSON"),
        ("b.csv", b"a,b\n1,2\n3\n", {}, "b.csv, line 3, read as csv, has 1 cells, the first line has 2"),
        ("c.csv", b'a,b\n1,2\n"3,4\n', {}, "c.csv, line 3: the quotes are wrong"),
        ("d.txt", b"a\nb\xff\n", {}, r"d.txt: the byte 0xff is not utf-8.*\(`encoding`\)"),
        ("e.csv", b"a,b\n1,2\nx,4\n", {"types": {"a": int}}, "e.csv, line 3: 'a' is 'x', which is not a valid int"),
        (
            "k.csv",
            b"a,b\n1,2\nx,4\n",
            {"types": {"a": {"1": 5}.__getitem__}},
            "k.csv, line 3: 'a' is 'x', which is not",
        ),
        ("f.txt.gz", gzip.compress(b"a\n" * 99)[:-9], {}, "f.txt.gz is a damaged archive"),
        ("g.txt", b"a\n", {"encoding": "utf-88"}, "no encoding 'utf-88'"),
        ("h.txt", b"a\n", {"format": "xml"}, "no format 'xml'. Pass one of these .*jsonl.*parquet"),
        ("i.dat", b"a\n", {}, "i.dat does not tell its format"),
        ("j.parquet", b"a\n" * 9, {}, "j.parquet cannot be read as Parquet"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_bytes(name, content, **options)
    with pytest.raises(FileNotFoundError, match=r"There is no .*nothing"):
        TableStream(tmp_path / "nothing-*.jsonl")
    with pytest.raises(ValueError, match="at least one file"):
        TableStream([])
    with pytest.raises(TypeError, match="Expected the path of a file"):
        TableStream([3])


def test_parquet_needs_pyarrow(monkeypatch, tmp_path):
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"Parquet files need pyarrow: pip install 'lmzoo\[parquet\]'"):
        TableStream(tmp_path)


def test_files_at_urls():
    with whole_file("memory://streamed/1.csv") as file:
        file.write(b"text,stars\nGood.,5\nDull.,1\n")
    stream = TableStream("memory://streamed", types={"stars": int})
    assert stream.count_rows(verbose=False) == 2
    assert [dict(row) for row in stream] == [{"text": "Good.", "stars": 5}, {"text": "Dull.", "stars": 1}]
