"""Preparing a corpus from many files: filters, resumed runs, URLs, and killed workers."""

from __future__ import annotations

import itertools
import json
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
from tests.data.small_corpora import TOKENIZER, WORDS, files
from tests.parallel.killing import kill_a_worker

SHARD_TOKENS = 101

# One file has no documents.
pytestmark = pytest.mark.filterwarnings("ignore:.*were empty and were left out:lmzoo.text.TextWarning")

PROGRAM = f"""
import sys
from lmzoo.data.corpora import Preparation, TokenCorpus, prepare_corpus

folder, duplicates = sys.argv[1:]
tokenizer = TokenCorpus(f"{{folder}}/whole").tokenizer
preparation = Preparation(duplicates=duplicates, shard_tokens={SHARD_TOKENS})
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
    """Write three files of documents and one without, and return their directory."""
    folder = tmp_path / "documents"
    for number, count in enumerate((5, 1, 3)):
        write(folder, f"{number}.txt", texts(count, number))
    write(folder, "3.txt", [])
    return folder


@pytest.mark.parametrize("write", [prepare_corpus, write_corpus])
def test_a_tokenizer_without_ids_is_refused_at_once(source, tmp_path, write):
    """ELMo's tokenizer leaves nothing behind, so another one can use the directory."""
    documents = source if write is prepare_corpus else texts(2, 7)
    with pytest.raises(ValueError, match="A corpus holds ids, and a CharacterTokenizer has none"):
        write(documents, CharacterTokenizer(), tmp_path / "corpus", verbose=False)
    write(documents, TOKENIZER, tmp_path / "corpus", verbose=False)
    assert TokenCorpus(tmp_path / "corpus").tokenizer.vocabulary == TOKENIZER.vocabulary


def test_links_are_read_in_the_format_of_their_own_names(tmp_path):
    """Caches of downloads link names such as train.jsonl to files that are named by digests."""
    (tmp_path / "ab12").write_text('{"text": "w1 w2 w3"}\n')
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "train.jsonl").symlink_to(tmp_path / "ab12")
    prepare_corpus(tmp_path / "documents", TOKENIZER, tmp_path / "out", verbose=False)
    assert list_documents(TokenCorpus(tmp_path / "out")) == [["w1 w2 w3"]]


@pytest.mark.parametrize("name", ["", "out"])
def test_a_corpus_among_its_documents_is_refused(source, tmp_path, name):
    """The files of the corpus would be documents in the next run."""
    before = files(source)
    with pytest.raises(ValueError, match=r"documents, which holds the documents: write the corpus elsewhere"):
        prepare_corpus([source / "0.txt", source], TOKENIZER, source / name, verbose=False)
    assert files(source) == before
    prepare_corpus(source / "0.txt", TOKENIZER, source / name, verbose=False)  # only this file is read
    assert len(TokenCorpus(source / name)) == 5


def test_a_corpus_that_matches_the_pattern_of_its_documents_is_refused(source):
    prepare_corpus(source, TOKENIZER, source / "_corpus", verbose=False)  # such folders are skipped
    pattern = source / "[0-9o]*"
    prepare_corpus(pattern, TOKENIZER, source / "out", verbose=False)
    with pytest.raises(ValueError, match=r"documents/out/.* is in .*/out, so files of the corpus may also match .*\*:"):
        prepare_corpus(pattern, TOKENIZER, source / "out", verbose=False)


def shards(folder):
    return {name: content for name, content in sorted(files(folder).items()) if name.endswith(".bin")}


def list_documents(corpus):
    return [
        [corpus.tokenizer.detokenize(shard.token_ids[a:b]) for a, b in itertools.pairwise(splits)]
        for shard in corpus.shards
        for splits in map(shard.sentences, range(len(shard)))
    ]


def test_each_file_has_its_own_shards(source, tmp_path):
    counts = prepare_corpus(source, TOKENIZER, tmp_path / "out", Preparation(shard_tokens=SHARD_TOKENS))
    corpus = TokenCorpus(tmp_path / "out")
    assert list_documents(corpus) == [document for number, n in enumerate((5, 1, 3)) for document in texts(n, number)]
    assert counts == {"documents": 9, "tokens": corpus.num_tokens}
    for number, count in enumerate((5, 1, 3)):
        write_corpus(texts(count, number), TOKENIZER, tmp_path / str(number), SHARD_TOKENS)
        expected = [*shards(tmp_path / str(number)).values()]
        assert len(expected) > 1 or count == 1
        names = [f"shard-{number:05}{i:05}.bin" for i in range(len(expected))]
        assert [shards(tmp_path / "out")[name] for name in names] == expected
    assert {name for name in files(tmp_path / "out") if name.startswith("_")} == {"_prepare.json"}
    corpus.verify()


@pytest.mark.parametrize("duplicates", ["keep", "near"])
def test_a_stopped_run_is_resumed(source, tmp_path, monkeypatch, duplicates):
    preparation = Preparation(duplicates=duplicates, shard_tokens=SHARD_TOKENS)
    prepare_corpus(source, TOKENIZER, tmp_path / "whole", preparation)
    saved, save_json = [], prepare.save_json

    def stop_in_the_second_file(path, content):
        if "part-00001" in path:
            raise KeyboardInterrupt
        saved.append(os.path.basename(path))
        save_json(path, content)

    monkeypatch.setattr(prepare, "save_json", stop_in_the_second_file)
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(source, TOKENIZER, tmp_path / "out", preparation)
    monkeypatch.undo()
    assert "_part-00000.json" in saved
    with pytest.raises(FileNotFoundError, match="holds no corpus"):
        TokenCorpus(tmp_path / "out")
    modified = (tmp_path / "out/shard-0000000000.bin").stat().st_mtime_ns
    counts = prepare_corpus(source, TOKENIZER, tmp_path / "out", preparation)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert (tmp_path / "out/shard-0000000000.bin").stat().st_mtime_ns == modified
    assert prepare_corpus(source, TOKENIZER, tmp_path / "out", preparation) == counts


def test_directories_at_urls(source, tmp_path):
    prepare_corpus(source, TOKENIZER, tmp_path / "out", Preparation(shard_tokens=SHARD_TOKENS))
    url = f"memory://{uuid.uuid4().hex}"
    for name, content in files(source).items():
        with whole_file(f"{url}/in/{name}") as file:
            file.write(content)
    prepare_corpus(f"{url}/in", TOKENIZER, f"{url}/out", Preparation(shard_tokens=SHARD_TOKENS))
    for name, content in files(tmp_path / "out").items():
        with open_to_read(f"{url}/out/{name}") as file:
            assert file.read() == content


@pytest.mark.slow
@pytest.mark.parametrize("duplicates", ["keep", "near"])
def test_a_killed_worker_changes_no_file(source, tmp_path, duplicates):
    """One of two workers is killed at its first file."""
    preparation = Preparation(duplicates=duplicates, shard_tokens=SHARD_TOKENS)
    prepare_corpus(source, TOKENIZER, tmp_path / "whole", preparation)
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path), duplicates]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        kill_a_worker(process)
        assert process.wait(300) == 0, process.stderr.read()
    assert files(tmp_path / "out") == files(tmp_path / "whole")


# === Filters ===


NOTE = "it rained all day and so we stayed in and read to each other by the fire until the night fell and all slept"


def prepare_texts(source, tmp_path, **options):
    """Return the documents that pass the filters, and the counts of those that do not."""
    tokenizer = WordPieceTokenizer.of_words(sorted(set(NOTE.split())), 97)
    out = tmp_path / uuid.uuid4().hex
    counts = prepare_corpus(source, tokenizer, out, Preparation(split=False, **options))
    return list_documents(TokenCorpus(out)), {
        name: n for name, n in counts.items() if name not in ("documents", "tokens")
    }


def test_later_duplicates_are_left_out(tmp_path):
    source = tmp_path / "documents"
    near_duplicate, reversed_note = NOTE.replace("slept", "fell"), " ".join(reversed(NOTE.split()))
    write(source, "0.txt", [[NOTE], [reversed_note], [NOTE]])
    write(source, "1.txt", [[near_duplicate], [reversed_note], ["night"]])
    assert prepare_texts(source, tmp_path) == (
        [[NOTE], [reversed_note], [NOTE], [near_duplicate], [reversed_note], ["night"]],
        {},
    )
    exact = prepare_texts(source, tmp_path, duplicates="exact")
    assert exact == ([[NOTE], [reversed_note], [near_duplicate], ["night"]], {"exact duplicates": 2})
    assert prepare_texts(source, tmp_path, duplicates="near", similarity=0.7) == (
        [[NOTE], [reversed_note], ["night"]],
        {"exact duplicates": 2, "near duplicates": 1},
    )
    assert prepare_texts(source, tmp_path, duplicates="near", similarity=0.95)[1] == {"exact duplicates": 2}


def test_documents_of_other_lengths_and_languages(tmp_path):
    source = tmp_path / "documents"
    write(
        source, "0.txt", [["night"], [NOTE], [NOTE, NOTE], ["Es regnete den ganzen Tag, und so blieben wir zu Hause."]]
    )
    documents, counts = prepare_texts(
        source, tmp_path, min_characters=6, max_characters=len(NOTE), languages=("en", "fr")
    )
    assert documents == [[NOTE]]
    assert counts == {"too short": 1, "too long": 1, "other languages": 1}
    assert prepare_texts(source, tmp_path, min_characters=6, duplicates="near")[1] == {"too short": 1}
    with pytest.raises(ValueError, match=r"'xx' is unknown\. Known are .*, en, .*"):
        prepare_texts(source, tmp_path, languages=["xx"])


def test_signatures_estimate_similarity():
    """Changing every 100th word changes 5 of every 100 runs of five words, so about 0.9 of all runs are common."""
    rng = np.random.default_rng(0)
    words = [f"{word}" for word in rng.integers(0, 10**9, 204)]
    changed = [f"{word}!" if i in (50, 150) else word for i, word in enumerate(words)]
    first, second = (min_hash([" ".join(text)]) for text in (words, changed))
    assert abs((first == second).mean() - 190 / 210) < 0.08
    different = min_hash([" ".join(words[::-1])])
    assert near_duplicates(np.stack([first, different, second]), 0.8).tolist() == [False, False, True]
    by_chance = np.where(np.arange(128) < 26, first, different)  # agrees in two bands of 13, and in nothing else
    assert near_duplicates(np.stack([first, by_chance]), 0.8).tolist() == [False, False]


# === Errors ===


def test_other_files_and_options_are_refused(source, tmp_path):
    out = tmp_path / "out"
    prepare_corpus(source, TOKENIZER, out)
    with pytest.raises(ValueError, match="was begun with other min_characters"):
        prepare_corpus(source, TOKENIZER, out, Preparation(min_characters=3))
    with pytest.raises(ValueError, match="was begun with other tokenizer"):
        prepare_corpus(source, WordPieceTokenizer.of_words(WORDS, 61), out)
    cased = WordPieceTokenizer(TOKENIZER.vocabulary, lowercase=not TOKENIZER.lowercase)
    with pytest.raises(ValueError, match="was begun with other tokenizer"):  # of the same files
        prepare_corpus(source, cased, out)
    write(source, "4.txt", texts(1, 4))
    with pytest.raises(ValueError, match="was begun with other files"):
        prepare_corpus(source, TOKENIZER, out)
    write_corpus(texts(1, 4), TOKENIZER, tmp_path / "other")
    with pytest.raises(ValueError, match="holds a corpus that was not made from these files"):
        prepare_corpus(source, TOKENIZER, tmp_path / "other")


def test_a_record_with_only_the_digest_of_the_tokenizer_is_read(source, tmp_path):
    counts = prepare_corpus(source, TOKENIZER, tmp_path / "out")
    path = tmp_path / "out/_prepare.json"
    record = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**record, "tokenizer": record["tokenizer"]["sha256"]}), "utf-8")
    assert prepare_corpus(source, TOKENIZER, tmp_path / "out") == counts
    with pytest.raises(ValueError, match="was begun with other tokenizer"):
        prepare_corpus(source, WordPieceTokenizer.of_words(WORDS, 61), tmp_path / "out")


def test_errors_of_arguments_and_files(source, tmp_path):
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
def test_missing_packages_are_named(source, tmp_path, monkeypatch, package, options):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}: pip install 'lmzoo\[scale\]'"):
        prepare_corpus(source, TOKENIZER, tmp_path / "out", Preparation(**options))
