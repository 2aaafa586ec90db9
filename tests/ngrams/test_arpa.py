"""ARPA files of lmzoo and of other programs, and damaged ones."""

from __future__ import annotations

import gzip
import lzma
import math
from pathlib import Path

import numpy as np
import pytest

from lmzoo.data.corpora import train_words
from lmzoo.models import NgramLM
from lmzoo.text import WordTokenizer

# In SRILM's form: without weights of 0 and <unk>, and with unsorted bigrams.
FILE = r"""
# a note
\data\
ngram 1=4
ngram 2=3
ngram 3=1

\1-grams:
-0.5	</s>
-99	<s>	-0.25
-0.75	film	-0.125
-1	a	-0.375

\2-grams:
-0.2	film </s>
-0.3	<s> a	-0.0625
-0.4	a film

\3-grams:
-0.1	<s> a film

\end\
"""


def load(path: Path, content: str | bytes) -> NgramLM:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return NgramLM.load(path, verbose=False)


def log10(model: NgramLM, words: list[str]) -> list[float]:
    return [token["log_probability"] / math.log(10) for token in model.score([words])[0]]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_probabilities_and_weights_of_a_file(tmp_path, line_end):
    model = load(tmp_path / "model.arpa", FILE.replace("\n", line_end))
    assert (model.order, model.vocabulary) == (3, ["<unk>", "<s>", "</s>", "film", "a"])
    assert log10(model, ["a", "film"]) == pytest.approx([-0.3, -0.1, -0.2], rel=1e-6)
    # "a a" has the weights of "<s> a" and of "a", and "a </s>" that of "a".
    assert log10(model, ["a", "a"]) == pytest.approx([-0.3, -0.0625 - 0.375 - 1, -0.375 - 0.5], rel=1e-6)
    assert log10(model, ["dog", "film"]) == pytest.approx([-0.25 - 100, -0.75, -0.2], rel=1e-6)
    assert model.discounts == []


def test_an_order_without_ngrams(tmp_path):
    """SRILM also writes a section whose n-grams are all too rare."""
    model = load(tmp_path / "model.arpa", FILE.replace("ngram 3=1", "ngram 3=0").replace("-0.1\t<s> a film\n", ""))
    assert (model.order, model.num_ngrams) == (3, [5, 3, 0])
    assert log10(model, ["a", "film"]) == pytest.approx([-0.3, -0.0625 - 0.4, -0.2], rel=1e-6)


def test_a_byte_order_mark_is_skipped(tmp_path):
    model = load(tmp_path / "model.arpa", FILE[FILE.index("\\data") :].replace("\n", "\r\n").encode("utf-8-sig"))
    assert model.num_ngrams == [5, 3, 1]


def test_unknown_words_of_other_programs(tmp_path):
    text = FILE.replace("ngram 1=4", "ngram 1=5").replace("-1\ta", "-2\t<UNK>\n-1\ta")
    model = load(tmp_path / "model.arpa.xz", lzma.compress(text.encode()))
    assert log10(model, ["dog"])[0] == pytest.approx(-2.25)


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
def test_files_round_trip_exactly(trigrams, reviews, tmp_path, name):
    (tmp_path / name).write_text("an older file, which is replaced")
    trigrams.save(tmp_path / name, verbose=False)
    loaded = NgramLM.load(tmp_path / name, verbose=False)
    assert (loaded.vocabulary, loaded.order) == (trigrams.vocabulary, 3)
    for part in ("keys", "log10", "backoff"):
        for expected, actual in zip(getattr(trigrams._table, part), getattr(loaded._table, part), strict=True):
            np.testing.assert_array_equal(actual, expected)
    assert loaded.perplexity([reviews["test"]]) == trigrams.perplexity([reviews["test"]])
    loaded.save(tmp_path / f"resaved {name}", verbose=False)
    assert (tmp_path / f"resaved {name}").read_bytes() == (tmp_path / name).read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    is_gzip = (tmp_path / name).read_bytes()[:2] == b"\x1f\x8b"
    assert is_gzip == name.endswith(".gz")


def test_another_name_of_the_unknown_word_is_no_word(tmp_path):
    """Files may call the unknown word <UNK>, so a file with both as words could not be read."""
    model = NgramLM(1)
    with pytest.warns(UserWarning, match="too small"):
        model.fit([["a b", ["a", "<UNK>", "b"], ["<UNK>"]], [["a", "<UNK>"]]], verbose=False)
    assert model.vocabulary == ["<unk>", "<s>", "</s>", "a", "b"]
    model.save(tmp_path / "model.arpa", verbose=False)
    loaded = NgramLM.load(tmp_path / "model.arpa", verbose=False)
    assert log10(loaded, ["a", "<UNK>"]) == pytest.approx(log10(model, ["a", "dog"]), rel=1e-6)
    words = ["<unk>", "<s>", "</s>", "<UNK>", "a", "b"]
    tokenizer = WordTokenizer(words, unk_token="<unk>", start_token="<s>", end_token="</s>")
    model = NgramLM(1, tokenizer)
    with pytest.warns(UserWarning, match="too small"):
        model.fit([[["a", "<UNK>", "b"]]], verbose=False)
    assert model.vocabulary == ["<unk>", "<s>", "</s>", "a", "b"]


def test_special_words_of_a_tokenizer(tmp_path):
    """Files have other programs' names of the unknown word and of the ends of sentences."""
    model = NgramLM(1, train_words([["a b"]], 5, verbose=False))
    with pytest.warns(UserWarning, match="too small"):
        model.fit(["a <S> b", ["a"], [["<S>", "</S>", "<UNK>"]]], verbose=False)
    model.save(tmp_path / "model.arpa", verbose=False)
    words = [line.split("\t")[1] for line in (tmp_path / "model.arpa").read_text().splitlines() if "\t" in line]
    assert words == ["<unk>", "<s>", "</s>", "a", "b"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (r"\data\ ".strip(), "data", r"line 23 \(the end of the file\): there is no \\data\\ line"),
        ("ngram 2=3", "ngram 3=3", r"line 5 .*: expected the number of 2-grams"),
        ("ngram 1=4\nngram 2=3\nngram 3=1\n", "", r"line 5 .*: expected the numbers of n-grams"),
        ("ngram 1=4", "ngram 1=5", r"line 13 \(''\): the 1-grams end after 4 of 5"),
        ("ngram 2=3", "ngram 2=2", r"line 17 \('-0.4\\ta film'\): expected \\3-grams:"),
        (r"\2-grams", r"\3-grams", r"line 14 .*: expected \\2-grams:"),
        ("-0.75", "-O.75", r"line 11 .*: expected numbers"),
        ("-0.75", "0.75", r"line 11 .*: the logarithms"),
        ("-0.75", "nan", r"line 11 .*: the logarithms"),
        ("-0.125", "-inf", r"line 11 .*: the logarithms"),
        ("-0.4\ta film", "-0.4\ta dog", r"line 17 .*: the word 'dog' is not among the 1-grams"),
        ("-0.4\ta film", "-0.4\ta film film film", r"line 17 .*: expected a probability, 2 words and perhaps"),
        ("-0.4\ta film", "-0.4\t<s> a", r"line 17 repeats an n-gram"),
        ("-1\ta", "-1\tfilm", r"line 12 repeats an n-gram"),
        ("-99\t<s>", "-99\tdog", r"the 1-grams lack <s>"),
        ("<s> a film", "a a film", r"line 20: 'a a' is not among the shorter n-grams"),
        ("\\end\\\n", "", r"the end of the file\): expected \\end\\"),
        ("\\end\\\n", "\\end\\\nmore\n", r"line 23 \('more'\): expected nothing"),
    ],
)
def test_damaged_lines_are_named(tmp_path, old, new, message):
    assert FILE.count(old) == 1 or old == "-0.75"
    with pytest.raises(ValueError, match=r"bad\.arpa.*" + message):
        load(tmp_path / "bad.arpa", FILE.replace(old, new, 1))


def test_damaged_and_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"bad.arpa, line 11 .*: b'f\\xfflm' is not UTF-8"):
        load(tmp_path / "bad.arpa", FILE.encode().replace(b"film", b"f\xfflm"))
    with pytest.raises(ValueError, match=r"bad.arpa is a damaged archive"):
        load(tmp_path / "bad.arpa", gzip.compress(FILE.encode())[:-9])
    with pytest.raises(FileNotFoundError, match=r"missing.arpa"):
        NgramLM.load(tmp_path / "missing.arpa")


def test_a_tokenizer_without_the_words_is_refused(tmp_path):
    (tmp_path / "model.arpa").write_text(FILE, encoding="utf-8")
    tokenizer = train_words([["a dog"]], 5, verbose=False)
    with pytest.raises(ValueError, match=r"The tokenizer lacks 1 words of .*model.arpa, such as 'film'"):
        NgramLM.load(tmp_path / "model.arpa", tokenizer, verbose=False)


def test_words_may_begin_or_end_with_whitespace_of_unicode(tmp_path):
    """Other programs split lines only at ASCII characters."""
    words = ["\xa0", "film\xa0", "\u3000a", "film"]
    unigrams = "".join(f"-{i}.5\t{word}\t0\n" for i, word in enumerate(words, 1))
    content = f"""\\data\\
ngram 1=7
ngram 2=1

\\1-grams:
-3\t<unk>\t0
-99\t<s>\t0
-0.5\t</s>\t0
{unigrams}
\\2-grams:
-0.25\tfilm\xa0 \xa0

\\end\\
"""
    model = load(tmp_path / "model.arpa", content)
    assert model.vocabulary[3:] == words
    assert log10(model, words) == pytest.approx([-1.5, -2.5, -3.5, -4.5, -0.5], rel=1e-6)
    assert log10(model, ["film\xa0", "\xa0"]) == pytest.approx([-2.5, -0.25, -0.5], rel=1e-6)
    assert model.generate("", max_new_tokens=2, stop=None) == "\xa0 \xa0"
