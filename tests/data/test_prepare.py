"""Preparing a corpus from many files: what is left out, continuing after a stop, URLs, and workers that are killed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import uuid

import numpy as np
import pytest

from lmzoo.data.corpora import Preparation, TokenCorpus, prepare, prepare_corpus, write_corpus
from lmzoo.data.corpora.near_duplicates import min_hash, near_duplicates
from lmzoo.files.urls import join_path, open_to_read, whole_file
from lmzoo.text import CharacterTokenizer, WordPieceTokenizer
from tests.parallel.killing import kill_a_worker

WORDS = [f"w{i}" for i in range(53)]
TOKENIZER = WordPieceTokenizer.of_words(WORDS, 59)
LEAST = 101  # tokens of a shard

# The one file without documents.
pytestmark = pytest.mark.filterwarnings("ignore:.*were empty and were left out:lmzoo.text.TextWarning")

PROGRAM = f"""
import sys
from lmzoo.data.corpora import Preparation, TokenCorpus, prepare_corpus

folder, duplicates = sys.argv[1:]
tokenizer = TokenCorpus(f"{{folder}}/whole").tokenizer
preparation = Preparation(duplicates=duplicates, shard_tokens={LEAST})
prepare_corpus(f"{{folder}}/documents", tokenizer, f"{{folder}}/out", preparation, workers=2)
"""


def texts(count, seed):
    rng = np.random.default_rng(seed)
    return [[" ".join(rng.choice(WORDS, rng.integers(20, 50))) for _ in range(3)] for _ in range(count)]


def write(folder, name, documents):
    with whole_file(join_path(folder, name)) as file:
        file.write("\n\n".join("\n".join(document) for document in documents).encode())


@pytest.fixture
def source(tmp_path):
    """Three files of documents, and one of none."""
    folder = tmp_path / "documents"
    for number, count in enumerate((5, 1, 3)):
        write(folder, f"{number}.txt", texts(count, number))
    write(folder, "3.txt", [])
    return folder


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("write", [prepare_corpus, write_corpus])
def test_a_tokenizer_without_ids_is_refused_at_once(source, tmp_path, write):
    """ELMo's; the folder then takes another one."""
    documents = source if write is prepare_corpus else texts(2, 7)
    with pytest.raises(ValueError, match="A corpus holds ids, and a CharacterTokenizer has none"):
        write(documents, CharacterTokenizer(), tmp_path / "corpus", verbose=False)
    write(documents, TOKENIZER, tmp_path / "corpus", verbose=False)
    assert TokenCorpus(tmp_path / "corpus").tokenizer.vocabulary == TOKENIZER.vocabulary


def shards(folder):
    return {name: content for name, content in sorted(files(folder).items()) if name.endswith(".bin")}


def list_words(corpus):
    return [
        [corpus.tokenizer.detokenize(shard.token_ids[a:b]) for a, b in itertools.pairwise(at)]
        for shard in corpus.shards
        for at in map(shard.sentences, range(len(shard)))
    ]


def test_each_file_becomes_shards_of_its_own(source, tmp_path):
    counts = prepare_corpus(source, TOKENIZER, tmp_path / "out", Preparation(shard_tokens=LEAST))
    corpus = TokenCorpus(tmp_path / "out")
    assert list_words(corpus) == [document for number, n in enumerate((5, 1, 3)) for document in texts(n, number)]
    assert counts == {"documents": 9, "tokens": corpus.num_tokens}
    for number, count in enumerate((5, 1, 3)):
        write_corpus(texts(count, number), TOKENIZER, tmp_path / str(number), LEAST)
        alone = [*shards(tmp_path / str(number)).values()]
        assert len(alone) > 1 or count == 1
        names = [f"shard-{number:05}{i:05}.bin" for i in range(len(alone))]
        assert [shards(tmp_path / "out")[name] for name in names] == alone
    assert {name for name in files(tmp_path / "out") if name.startswith("_")} == {"_prepare.json"}
    corpus.verify()


@pytest.mark.parametrize("duplicates", ["keep", "near"])
def test_a_run_that_was_stopped_goes_on(source, tmp_path, monkeypatch, duplicates):
    preparation = Preparation(duplicates=duplicates, shard_tokens=LEAST)
    prepare_corpus(source, TOKENIZER, tmp_path / "whole", preparation)
    done, save_json = [], prepare.save_json

    def stop_in_the_second_file(path, content):
        if "part-00001" in path:
            raise KeyboardInterrupt
        done.append(os.path.basename(path))
        save_json(path, content)

    monkeypatch.setattr(prepare, "save_json", stop_in_the_second_file)
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(source, TOKENIZER, tmp_path / "out", preparation)
    monkeypatch.undo()
    assert "_part-00000.json" in done
    with pytest.raises(FileNotFoundError, match="holds no corpus"):
        TokenCorpus(tmp_path / "out")
    written = (tmp_path / "out/shard-0000000000.bin").stat().st_mtime_ns
    counts = prepare_corpus(source, TOKENIZER, tmp_path / "out", preparation)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert (tmp_path / "out/shard-0000000000.bin").stat().st_mtime_ns == written
    assert prepare_corpus(source, TOKENIZER, tmp_path / "out", preparation) == counts


def test_urls(source, tmp_path):
    prepare_corpus(source, TOKENIZER, tmp_path / "out", Preparation(shard_tokens=LEAST))
    place = f"memory://{uuid.uuid4().hex}"
    for name, content in files(source).items():
        with whole_file(f"{place}/in/{name}") as file:
            file.write(content)
    prepare_corpus(f"{place}/in", TOKENIZER, f"{place}/out", Preparation(shard_tokens=LEAST))
    for name, content in files(tmp_path / "out").items():
        with open_to_read(f"{place}/out/{name}") as file:
            assert file.read() == content


@pytest.mark.slow
@pytest.mark.parametrize("duplicates", ["keep", "near"])
def test_workers_that_are_killed(source, tmp_path, duplicates):
    """The same bytes from two workers, one of which is killed at its first file."""
    preparation = Preparation(duplicates=duplicates, shard_tokens=LEAST)
    prepare_corpus(source, TOKENIZER, tmp_path / "whole", preparation)
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path), duplicates]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        kill_a_worker(running)
        assert running.wait(300) == 0, running.stderr.read()
    assert files(tmp_path / "out") == files(tmp_path / "whole")


# === What is left out ===


NOTE = "it rained all day and so we stayed in and read to each other by the fire until the night fell and all slept"


def kept(source, tmp_path, **options):
    """The documents that stay, and the counts."""
    tokenizer = WordPieceTokenizer.of_words(sorted(set(NOTE.split())), 97)
    out = tmp_path / uuid.uuid4().hex
    counts = prepare_corpus(source, tokenizer, out, Preparation(split=False, **options))
    return list_words(TokenCorpus(out)), {name: n for name, n in counts.items() if name not in ("documents", "tokens")}


def test_duplicates_are_left_out_where_they_occur_again(tmp_path):
    source = tmp_path / "documents"
    near, other = NOTE.replace("slept", "fell"), " ".join(reversed(NOTE.split()))
    write(source, "0.txt", [[NOTE], [other], [NOTE]])
    write(source, "1.txt", [[near], [other], ["night"]])
    assert kept(source, tmp_path) == ([[NOTE], [other], [NOTE], [near], [other], ["night"]], {})
    exact = kept(source, tmp_path, duplicates="exact")
    assert exact == ([[NOTE], [other], [near], ["night"]], {"exact duplicates": 2})
    assert kept(source, tmp_path, duplicates="near", similarity=0.7) == (
        [[NOTE], [other], ["night"]],
        {"exact duplicates": 2, "near duplicates": 1},
    )
    assert kept(source, tmp_path, duplicates="near", similarity=0.95)[1] == {"exact duplicates": 2}


def test_documents_of_other_lengths_and_languages(tmp_path):
    source = tmp_path / "documents"
    write(
        source, "0.txt", [["night"], [NOTE], [NOTE, NOTE], ["Es regnete den ganzen Tag, und so blieben wir zu Hause."]]
    )
    text, rest = kept(source, tmp_path, min_characters=6, max_characters=len(NOTE), languages=("en", "fr"))
    assert text == [[NOTE]]
    assert rest == {"too short": 1, "too long": 1, "other languages": 1}
    assert kept(source, tmp_path, min_characters=6, duplicates="near")[1] == {"too short": 1}
    with pytest.raises(ValueError, match=r"'xx' is unknown\. Known are .*, en, .*"):
        kept(source, tmp_path, languages=["xx"])


def test_signatures_estimate_similarity():
    """Of 200 runs of five words, changing every 100th word changes 5 of each 100: about 0.9 of all are common."""
    rng = np.random.default_rng(0)
    words = [f"{word}" for word in rng.integers(0, 10**9, 204)]
    changed = [f"{word}!" if i in (50, 150) else word for i, word in enumerate(words)]
    first, second = (min_hash([" ".join(text)]) for text in (words, changed))
    assert abs((first == second).mean() - 190 / 210) < 0.08
    other = min_hash([" ".join(words[::-1])])
    assert near_duplicates(np.stack([first, other, second]), 0.8).tolist() == [False, False, True]
    chance = np.where(np.arange(128) < 26, first, other)  # agrees in two bands of 13, and in nothing else
    assert near_duplicates(np.stack([first, chance]), 0.8).tolist() == [False, False]


# === Errors ===


def test_only_with_the_same_files_and_options(source, tmp_path):
    out = tmp_path / "out"
    prepare_corpus(source, TOKENIZER, out)
    with pytest.raises(ValueError, match="was begun with other min_characters"):
        prepare_corpus(source, TOKENIZER, out, Preparation(min_characters=3))
    with pytest.raises(ValueError, match="was begun with other tokenizer"):
        prepare_corpus(source, WordPieceTokenizer.of_words(WORDS, 61), out)
    write(source, "4.txt", texts(1, 4))
    with pytest.raises(ValueError, match="was begun with other files"):
        prepare_corpus(source, TOKENIZER, out)
    write_corpus(texts(1, 4), TOKENIZER, tmp_path / "other")
    with pytest.raises(ValueError, match="holds a corpus that was not made from these files"):
        prepare_corpus(source, TOKENIZER, tmp_path / "other")


def test_bad_arguments_and_files(source, tmp_path):
    for options, message in (
        ({"duplicates": "all"}, "`duplicates` must be 'keep', 'exact' or 'near', got 'all'"),
        ({"similarity": 0}, "`similarity` must be from 0.1 to 0.95, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Preparation(**options)
    (source / "1.txt").write_bytes(b"good \xff")
    with pytest.raises(ValueError, match=r"1\.txt is binary or not encoded in UTF-8"):
        prepare_corpus(source, TOKENIZER, tmp_path / "out")
    with pytest.raises(ValueError, match="There are no tokens"):
        prepare_corpus(source / "3.txt", TOKENIZER, tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="There is no"):
        prepare_corpus(source / "5.txt", TOKENIZER, tmp_path / "none")


@pytest.mark.parametrize(
    ("package", "options"), [("py3langid", {"languages": ["en"]}), ("datasketch", {"duplicates": "near"})]
)
def test_packages_that_are_missing(source, tmp_path, monkeypatch, package, options):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}: pip install 'lmzoo\[scale\]'"):
        prepare_corpus(source, TOKENIZER, tmp_path / "out", Preparation(**options))
