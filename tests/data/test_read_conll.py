"""Reading CoNLL's columns: small files, errors of wrong ones, and public datasets."""

from __future__ import annotations

import pytest

from lmzoo.data.readers import read_conll

CONLL = """-DOCSTART- -X- -X- O

EU NNP  B-NP B-ORG
rejects VBZ B-VP O

-DOCSTART- -X- -X- O
\t
Peter\u00a0B NNP B-NP I-PER
"""
CONLLU = """# sent_id = 1
# text = #one didn't
1\t#one\tone\tNUM\tCD\t_\t2\tobj\t_\t_
2-3\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdid\tdo\tAUX\tVBD\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

# sent_id = 2
1\t10 000\t10000\tNUM\tCD\t_\t0\troot\t_\t_
"""


@pytest.fixture
def write(write_file):
    return lambda content, name="train.conll": write_file(name, content)


def test_columns_of_conll(write):
    words = [["EU", "rejects"], ["Peter\u00a0B"]]
    assert read_conll(write(CONLL)) == (words, [["B-ORG", "O"], ["I-PER"]])
    assert read_conll(write(CONLL), label=1)[1] == [["NNP", "VBZ"], ["NNP"]]
    assert read_conll(write(CONLL), word=-4, labeled=False) == (words, None)
    assert read_conll(write(CONLL.replace("\n", "\r\n"))) == read_conll(write(CONLL))


def test_tabs_keep_spaces_and_empty_words(write):
    path = write("#tag\tO\nNew York\tB-LOC\n\tO\n\U0001f494 \tO\n", "a.conll")
    assert read_conll(path) == ([["#tag", "New York", "", "\U0001f494"]], [["O", "B-LOC", "O", "O"]])


MULTICONER = """# id 5239d808-f300-46ea-aa3b-5093040213a3 domain=en

their _ _ O
# _ _ B-CW
1 _ _ I-CW

# id cf0f7ae0-d0e3 domain=en
# _ _ O
films _ _ B-CW
"""
GERMEVAL = (
    "#\thttp://de.wikipedia.org/wiki/Troja\t[2009-10-17]\n"
    "1\tAufgrund\tO\tO\n2\tTroja\tB-LOC\tO\n\n#\thttp://a.de\t[2009-11-05]\n1\t#\tB-LOCderiv\tB-LOC\n"
)


def test_comments_are_no_words(write):
    words, tags = [["their", "#", "1"], ["#", "films"]], [["O", "B-CW", "I-CW"], ["O", "B-CW"]]
    assert read_conll(write(MULTICONER)) == (words, tags)
    assert read_conll(write(MULTICONER), labels=["O", "B-CW", "I-CW"]) == (words, tags)
    assert read_conll(write(MULTICONER), labeled=False) == (words, None)
    assert read_conll(write(MULTICONER.replace(" ", "\t"))) == (words, tags)
    with_tab = MULTICONER.replace(" domain", "\tdomain")  # as in the published files
    assert read_conll(write(with_tab)) == (words, tags)
    assert read_conll(write(with_tab.replace(" _ _ ", "\t"))) == (words, tags)
    assert read_conll(write(with_tab.replace(" _ _ ", " "))) == (words, tags)
    assert read_conll(write("# id 1\n# text = #a\n-DOCSTART- O\n\n#a O\n")) == ([["#a"]], [["O"]])
    assert read_conll(write("# O\n\n# O\n")) == ([["#"], ["#"]], [["O"], ["O"]])  # words, not comments
    assert read_conll(write("# id 1\n#\nAda\n\n# id 2\n#\n"), labeled=False) == ([["#", "Ada"], ["#"]], None)


def test_columns_of_word_numbers(write):
    words = [["Aufgrund", "Troja"], ["#"]]
    assert read_conll(write(GERMEVAL), label=2) == (words, [["O", "B-LOC"], ["B-LOCderiv"]])
    assert read_conll(write(GERMEVAL)) == (words, [["O", "O"], ["B-LOC"]])
    assert read_conll(write(GERMEVAL.replace("\t", " ")), label=2)[0] == words
    assert read_conll(write(GERMEVAL), word=0, label=2)[0] == [["1", "2"], ["1"]]
    assert read_conll(write("1\tAda\n2\tcame\n"), labeled=False)[0] == [["Ada", "came"]]
    counting = write("1 CD O\n2 CD O\n\nAda NNP B-PER\n")
    assert read_conll(counting)[0] == [["1", "2"], ["Ada"]]
    assert read_conll(write("1 CD O\n"))[0] == [["1"]]  # one number is a word
    assert read_conll(write("1 O\n2 O\n"))[0] == [["1", "2"]]


def test_words_without_labels(write):
    assert read_conll(write("Ada\ncame\n\nHi\n"), labeled=False) == ([["Ada", "came"], ["Hi"]], None)


def test_conllu(write):
    path = write(CONLLU, "en.conllu")
    words = [["#one", "did", "n't"], ["10 000"]]
    assert read_conll(path) == (words, [["NUM", "AUX", "PART"], ["NUM"]])
    assert read_conll(path, "LEMMA", "xpos") == ([["one", "do", "not"], ["10000"]], [["CD", "VBD", "RB"], ["CD"]])
    assert read_conll(path, label=-3)[1] == [["obj", "root", "advmod"], ["root"]]
    assert read_conll(write(CONLLU), conllu=True)[0] == words


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (b"a O\n\xff O\n", {}, "train.conll, line 2: the byte 0xff is not utf-8"),
        ("a O\nb\n", {}, "train.conll, line 2 has 1 columns, other lines have 2"),
        ("a\tO\nb\t\n", {}, "train.conll, line 2: the label is missing"),
        (
            "a O\n\nb B-X\n",
            {"labels": ["O", "B-Y"]},
            "train.conll, line 3: the label 'B-X' is unknown. Did you mean 'B-Y'",
        ),
        ("a O\n", {"label": 2}, "train.conll has 2 columns, numbered from 0, and no column 2"),
        ("a O\n", {"word": -3}, "numbered from 0, and no column -3"),
        ("a\nb\n", {}, "column -1 of 1 holds the words, not labels"),
        ("a O\n", {"label": "upos"}, "Only the columns of CoNLL-U have names: .*, got 'upos'"),
        (CONLLU, {"label": "upo", "conllu": True}, "CoNLL-U has no column 'upo'. Did you mean 'upos'"),
        ("# text = a\n1\ta\n", {"conllu": True}, "line 2 has 2 columns, other lines have 10"),
        ("\n\n-DOCSTART- O\n", {}, "train.conll holds no words"),
        ("a O\n# id 1\nb O\n", {}, "train.conll, line 2 has 3 columns, other lines have 2"),
        ("#a\nb O\n", {}, "train.conll, line 2 has 2 columns, other lines have 1"),
        ("a O\n# B-X\n", {"labels": ["O"]}, "train.conll, line 2: the label 'B-X' is unknown"),
    ],
)
def test_errors_of_columns_and_labels(write, text, arguments, message):
    with pytest.raises(ValueError, match=message):
        read_conll(write(text), **arguments)


@pytest.mark.slow_cases("pos_ewt/en_ewt-ud-train.conllu.gz-12544-17")
@pytest.mark.parametrize(
    ("file", "count", "classes"),
    [
        ("ner_btc/a.conll", 1000, 7),
        ("ner_btc/h.conll", 2001, 7),
        ("ner_wikigold/wikigold.conll.open.txt", 1377, 5),
        ("ner_wnut17/wnut17train.conll", 3394, 13),
        ("pos_ewt/en_ewt-ud-dev.conllu.gz", 2001, 17),
        ("pos_ewt/en_ewt-ud-train.conllu.gz", 12544, 17),
    ],
)
def test_public_datasets(shared, file, count, classes):
    texts, labels = read_conll(shared(f"data/{file}"))
    assert len(texts) == len(labels) == count
    assert [len(words) for words in texts] == [len(tags) for tags in labels]
    assert len({tag for tags in labels for tag in tags}) == classes
