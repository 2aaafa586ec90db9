"""Reading tables: small files, errors of wrong ones, and public datasets."""

from __future__ import annotations

import datetime
import decimal
import gzip
import io
import json
import lzma
from collections import Counter

import pytest

from lmzoo.data.readers import TableStream, read_table


@pytest.fixture
def write(write_file):
    return lambda content, name="data.csv", encoding="utf-8": write_file(name, content, encoding)


# === Formats ===

CSV = 'id,text,other,label\r\n7,"Good, ""really""\nso.",u,pos\r\n\r\n11,,v,neg\r\n'


def test_columns_of_csv(write):
    path = write(CSV)
    assert read_table(path, label="label") == (['Good, "really"\nso.', ""], ["pos", "neg"])
    assert read_table(path, text=1, label=-1) == read_table(path, label="label")
    assert read_table(path, pair="other") == ((['Good, "really"\nso.', ""], ["u", "v"]), None)


def test_tsv_has_no_quotes(write):
    path = write('index\tsentence\tlabel\n0\t"Good\t1\n1\tit\'s "so\u2028so\x85so"\t0\n', "dev.tsv")
    x, y = read_table(path, "sentence", label="label", label_type=int)
    assert x == ['"Good', 'it\'s "so\u2028so\x85so"']
    assert y == [1, 0]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_empty_lines_of_one_column_are_empty_texts(write, name):
    path = write("\ntext\n\nA b.\r\n\r\n\nC d.\n\n\n", name)
    assert read_table(path) == (["", "A b.", "", "", "C d."], None)
    stream = TableStream(path)
    assert [(row["text"], row.place) for row in stream] == [
        ("", (0, 3)),
        ("A b.", (0, 4)),
        ("", (0, 5)),
        ("", (0, 6)),
        ("C d.", (0, 7)),
    ]
    assert stream.count_rows(verbose=False) == 5
    path = write("A b.\n\nC d.", name)
    assert read_table(path, 0, header=False)[0] == ["A b.", "", "C d."]
    separator = "," if name == "a.csv" else "\t"
    path = write(f"text{separator}label\n\nA b.{separator}x\n", name)
    assert read_table(path, label="label") == (["A b."], ["x"])


def test_columns_without_a_header(write):
    path = write("gj04\t1\t\tA b.\ncj99\t0\t*\tC d.", "cola.tsv")
    assert read_table(path, 3, label=1, header=False) == (["A b.", "C d."], ["1", "0"])
    assert read_table(path, -1, label=1, header=False, labels=["0", "1"])[1] == ["1", "0"]


def test_json_lines(write):
    rows = [{"a": "é", "b": "x", "n": 4.5}, {"a": "", "b": "y", "n": 3, "more": None}]
    path = write("\n".join(map(json.dumps, rows)) + "\n\n", "rows.jsonl")
    assert read_table(path, "a", "b", "n", float) == ((["é", ""], ["x", "y"]), [4.5, 3.0])
    path = write('{"text": "t", "label": true}\n{"text": "u", "label": 2}\n', "rows.ndjson")
    assert read_table(path, label="label")[1] == ["true", "2"]


def test_lines_and_labeled_lines(write):
    assert read_table(write("A b.\n\n c\r\n", "a.txt")) == (["A b.", "", " c"], None)
    path = write("DESC:manner How ?\nNUM:x  How many ?\n", "TREC.train")
    assert read_table(path, label="label", format="labeled") == (["How ?", " How many ?"], ["DESC:manner", "NUM:x"])


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("name", ["data.csv.gz", "data.csv.xz", "DATA.CSV"])
def test_compression_does_not_depend_on_the_name(write, pack, name):
    assert read_table(write(pack(CSV.encode()), name), label="label")[1] == ["pos", "neg"]


def test_open_files():
    file = io.BytesIO(b"A b.\nC d.\n")
    assert read_table(file, format="txt") == (["A b.", "C d."], None)


def test_byte_order_mark_and_other_encodings(write):
    assert read_table(write("\ufefftext\nA\n"))[0] == ["A"]
    assert read_table(write("text\nsœur\n", encoding="cp1252"), encoding="cp1252")[0] == ["sœur"]


def test_several_labels_in_a_cell(write):
    x, y = read_table(write("text,label\na,x|y\nb,\nc, z | x \n", "a.csv"), label="label", separator="|")
    assert (x, y) == (["a", "b", "c"], [["x", "y"], [], ["z", "x"]])
    rows = ['["x", "y"]', "[]", "null", '"x;z"', "3"]
    lines = "".join(f'{{"text": "a", "label": {row}}}\n' for row in rows)
    _, y = read_table(write(lines, "a.jsonl"), label="label", separator=";")
    assert y == [["x", "y"], [], [], ["x", "z"], ["3"]]
    _, y = read_table(write("text,label\na,1|2\n", "a.csv"), label="label", label_type=int, separator="|")
    assert y == [[1, 2]]
    for cell, message in (("x|w", "line 3: the label 'w' is unknown"), ("x||y", "line 3: the label is missing")):
        path = write(f"text,label\na,x\nb,{cell}\n", "a.csv")
        with pytest.raises(ValueError, match=message):
            read_table(path, label="label", labels=["x", "y", "z"], separator="|")


def test_labels_of_parquet_are_plain_strings(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values_and_labels = [
        (decimal.Decimal("2.50"), "2.50"),
        (datetime.date(2024, 2, 29), "2024-02-29"),
        ("é".encode(), "é"),
        (b"\xff", "\ufffd"),
        (True, "true"),
        (3, "3"),
        (0.5, "0.5"),
        ("x", "x"),
    ]
    columns = {f"label {i}": [value] for i, (value, _) in enumerate(values_and_labels)}
    parquet.write_table(pyarrow.table({"text": ["a"], **columns}), tmp_path / "a.parquet")
    for i, (_, label) in enumerate(values_and_labels):
        assert read_table(tmp_path / "a.parquet", label=f"label {i}")[1] == [label]


def test_cells_may_be_long(write):
    long = "word " * 40_000
    assert read_table(write(f'text\n"{long}"\nb\n'))[0] == [long, "b"]


def test_label_type_is_any_function(write):
    assert read_table(write("text,score\na,5\nb,2\n"), label="score", label_type=lambda s: float(s) / 5)[1] == [1, 0.4]


# === Errors ===


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("text,lable\na,b\n", {"label": "label"}, "data.csv, read as csv, has no column 'label'. Did you mean 'lable'"),
        (
            "text,x\na,b\n",
            {"label": "sentiment"},
            "has no column 'sentiment'. There are: 'text', 'x'. If its first line is not a header",
        ),
        ("text,x\na,b\n", {"label": 2}, "data.csv has 2 columns, numbered from 0, and no column 2"),
        ("text,x\na,b\n", {"label": -3}, "data.csv has 2 columns, numbered from 0, and no column -3"),
        ("a,5.0\nb,3\n", {"text": 0, "label": 1, "label_type": float}, "but holds a label, '5.0'. If it is an example"),
        ("a,good\nb,bad\nc,good\n", {"text": 0, "label": -1}, "but holds a label, 'good'. If it is an example"),
        ("a,b\n", {"header": False}, "read without a header: give columns by number, 0 to 1"),
        ("text,a,a\nx,y,z\n", {"label": "a"}, "several columns 'a'"),
        ('text,x\na,b\n\n"c\nd",e\nf\n', {}, "data.csv, line 6, read as csv, has 1 cells, the first line has 2"),
        ('text,x\na,b\n"c\nd,e\n', {}, "data.csv, line 3: the quotes are wrong"),
        ('text,x\na,b\n"c"d,e\n', {}, "data.csv, line 3: the quotes are wrong"),
        ("text,label\na,b\nc,\n", {"label": "label"}, "data.csv, line 3: the label is missing"),
        (
            "text,label\na,1\nc,x\n",
            {"label": "label", "label_type": float},
            "line 3: the label 'x' is not a valid float",
        ),
        (
            "text,label\na,p\nc,q\n",
            {"label": "label", "label_type": {"p": 1}.__getitem__},
            "line 3: the label 'q' is not a valid",
        ),
        ("text,label\na,p\nc,q\n", {"label": "label", "labels": ["p"]}, "line 3: the label 'q' is unknown. There are"),
        ("text,label\n", {}, "data.csv holds no examples"),
        ("", {}, "data.csv holds no examples"),
        (b"text\na\n\xe9t\xe9\n", {}, "data.csv, line 3: the byte 0xe9 is not utf-8"),
        ("text\na\n", {"encoding": "latin-11"}, "There is no encoding 'latin-11'"),
        (
            "text\na\n",
            {"format": "xlsx"},
            "There is no format 'xlsx'. Pass one of these as .*: csv, tsv, jsonl, parquet, txt",
        ),
        (gzip.compress(b"text\nabc\n" * 99, mtime=0)[:-9], {}, "data.csv is a damaged archive"),
        (gzip.compress(b"text\nabc\n" * 99, mtime=0)[:9] + b"text\nabc\n" * 9, {}, "data.csv is a damaged archive"),
        (lzma.compress(b"text\nabc\n" * 99)[:-9], {}, "data.csv is a damaged archive"),
    ],
)
def test_errors_of_tables(write, text, arguments, message):
    with pytest.raises(ValueError, match=message):
        read_table(write(text), **arguments)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": 3}', "rows.jsonl, line 3: 'text' must be a string, got 3"),
        ('{"texts": "a"}', "line 3 has no 'text'. Did you mean 'texts'"),
        ('["a"]', "line 3 is not a JSON object"),
        ('{"text": ', "line 3 is not JSON"),
        ('{"text": "a", "label": null}', "line 3: the label is missing"),
        ('{"text": "a", "label": ["x"]}', "line 3: 'label' must be one label, got"),
    ],
)
def test_errors_of_json_lines(write, line, message):
    path = write(f'{{"text": "a", "label": "x"}}\n\n{line}\n', "rows.jsonl")
    with pytest.raises(ValueError, match=message):
        read_table(path, label="label")


def test_unknown_suffixes_are_refused(write):
    with pytest.raises(ValueError, match="does not tell its format"):
        read_table(write("text\na\n", "stsa.binary.dev"))


def test_a_long_header_is_not_repeated_in_full(write):
    path = write("\t".join(["word " * 50] * 50) + "\n" + "\t".join(["x"] * 50) + "\n", "a.tsv")
    with pytest.raises(ValueError, match="has no column 'text'") as error:
        read_table(path)
    assert len(str(error.value)) < 1200


# === Public datasets ===

QUALITY, LATIN = {"text": "#1 String", "pair": "#2 String", "label": "Quality"}, {"encoding": "latin-1"}
PAIR = {"text": "sentence1", "pair": "sentence2", "label": "label"}
STSB = {"text": 0, "pair": 1, "label": 2, "label_type": float, "header": False}
LABELED = {"label": "label", "format": "labeled"}
NLI = {"text": "premise", "pair": "hypothesis", "label": "label"}


@pytest.mark.parametrize(
    ("file", "count", "classes", "arguments"),
    [
        ("cola/in_domain_dev.tsv", 527, 2, {"text": 3, "label": 1, "header": False}),
        ("mrpc/msr_paraphrase_train.decontam.txt.gz", 3938, 2, {**QUALITY, "format": "tsv"}),
        ("rte/train.tsv.gz", 2127, 2, PAIR),
        # Its README counts 362, as if the first line were a header.
        ("rte/val.tsv", 363, 2, {"text": 1, "pair": 2, "label": 3, "header": False}),
        ("qnli/dev.open.tsv.gz", 3288, 2, {"text": "question", "pair": "sentence", "label": "label"}),
        ("stsb/stsb-en-train.decontam.csv.gz", 5176, None, STSB),
        ("sst2/stsa.binary.train", 6920, 2, LABELED),
        ("sst2/stsa.fine.train", 8544, 5, LABELED),
        ("trec/TREC.train", 5452, 50, {**LABELED, **LATIN}),
        ("nli/snli_dev.open.csv.gz", 7804, 3, NLI),
    ],
)
def test_public_datasets(shared, file, count, classes, arguments):
    x, y = read_table(shared(f"data/{file}"), **arguments)
    assert len(y) == count
    for texts in x if isinstance(x, tuple) else (x,):
        assert len(texts) == count
        assert all(text.strip() and "\n" not in text for text in texts)
    if classes is None:
        assert all(0 <= score <= 5 for score in y)
    else:
        assert len(Counter(y)) == classes
