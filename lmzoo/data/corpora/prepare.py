"""From files of documents to a corpus: filtered, without duplicates, tokenized, by any number of worker processes."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmzoo.common.arguments import is_number, require
from lmzoo.common.progress import progress_bar
from lmzoo.data.corpora.corpus_index import ADVICE, INDEX_FILE, TOKENIZER_FOLDER, Index, Shard, dtype_of, identity_of
from lmzoo.data.corpora.corpus_writer import ShardWriter, warn_of_special_tokens
from lmzoo.data.corpora.document_filters import DocumentFilter, check_languages
from lmzoo.data.corpora.documents import read_documents, text_files
from lmzoo.data.corpora.near_duplicates import (
    PERMUTATIONS,
    exact_digest,
    exact_duplicates,
    min_hash,
    near_duplicates,
)
from lmzoo.data.corpora.tokenized_documents import DocumentReader
from lmzoo.files.urls import absolute, exists, inside, load_json, open_to_read, remove, save_json, size_of, whole_file
from lmzoo.parallel.workers import run_jobs
from lmzoo.text import Tokenizer
from lmzoo.text.validate_text import collect_warnings, warn

_RECORD = "_prepare.json"  # how the corpus was made; programs that read whole folders leave "_..." out


@dataclass(frozen=True)
class Preparation:
    """Which documents become a corpus, and how it is divided into files.

    Attributes:
        field: the key of the text in JSON lines.
        split: whether to split lines into sentences.
        min_characters: documents with fewer are left out.
        max_characters: documents with more are left out; None for no limit.
        languages: codes such as "en"; documents in other languages are left out. Empty for all languages.
        duplicates: what happens to a document that has occurred before: "keep"; "exact" leaves it out if its text is
            the same; "near" also if its runs of five words are `similarity` the same.
        similarity: the lowest Jaccard similarity of near duplicates, from 0.1 to 0.95; MinHash estimates it.
        shard_tokens: tokens after which a new file of the corpus begins.

    Example: see `prepare_corpus`.
    """

    field: str = "text"
    split: bool = True
    min_characters: int = 0
    max_characters: int | None = None
    languages: tuple[str, ...] = ()
    duplicates: str = "keep"
    similarity: float = 0.8
    shard_tokens: int = 1 << 24

    def __post_init__(self) -> None:
        is_valid = self.duplicates in ("keep", "exact", "near")
        require(is_valid, "duplicates", "'keep', 'exact' or 'near'", self.duplicates)
        require(is_number(self.similarity, 0.1, 0.95), "similarity", "from 0.1 to 0.95", self.similarity)
        object.__setattr__(self, "languages", tuple(self.languages))

    def documents_in(self, file: str) -> tuple[DocumentFilter, Iterator[tuple[int, Sequence[str]]]]:
        """Return the documents of a file that stay, with their positions, and the filter that counts the others."""
        kept = DocumentFilter(self.min_characters, self.max_characters, self.languages)
        return kept, kept.kept(read_documents(file, self.field, self.split))


class _Part(NamedTuple):
    """A file of documents: the place of its files among those of the corpus, and where these are."""

    number: int
    file: str
    folder: str

    def __str__(self) -> str:
        return self.file

    def named(self, kind: str, suffix: str) -> str:
        return inside(self.folder, f"_{kind}-{self.number:05}.{suffix}")


def prepare_corpus(
    documents: str | Path | Iterable[str | Path],
    tokenizer: Tokenizer,
    folder: str | Path,
    preparation: Preparation | None = None,
    workers: int | None = None,
    ray_address: str | None = None,
    verbose: bool = True,
) -> dict[str, int]:
    r"""Tokenize files of documents into a corpus, as `write_corpus` does, and leave out unwanted documents.

    Each file of documents becomes files of the corpus of its own, whoever writes them: they are the same bytes for any
    number of workers. So the work can be shared where there are more files than workers, and none is much larger than
    the others. In memory are a batch of documents for each worker and, with `duplicates`, 16 bytes for each document,
    or half a kilobyte for near ones.

    A file whose worker dies is done again. A run that was stopped continues with the same arguments, after the files
    that are complete. A complete corpus is left as it is.

    Args:
        documents: files, folders or patterns, as `read_documents` takes them; also URLs that fsspec reads.
        tokenizer: a tokenizer of `lmzoo.text`; it is saved with the corpus.
        folder: where to write: a path, or a URL that fsspec writes. `TokenCorpus` reads folders, not URLs.
        preparation: what to leave out, and how to cut; None for the defaults.
        workers: int, number of processes that Ray starts (`pip install 'lmzoo[scale]'`); None for this one.
        ray_address: of a Ray cluster, whose hosts see the same files; None for this machine.
        verbose: whether to show progress.

    Returns:
        The number of documents and of tokens, and how many documents were left out by the reason.

    Raises:
        ValueError: if the folder holds another corpus, or there are no tokens; naming a file that cannot be read.
        ImportError: naming what to install.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.data.corpora import Preparation, TokenCorpus, prepare_corpus
    from lmzoo.text import WordPieceTokenizer

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b"])
    Path("one.txt").write_text("a a b\n\na\n")
    Path("two.txt").write_text("a a b\n\nb b\n")
    prepare_corpus(["one.txt", "two.txt"], tokenizer, "prepared", Preparation(duplicates="exact"))
    # {"documents": 3, "tokens": 6, "exact duplicates": 1}
    len(TokenCorpus("prepared"))  # 3
    ```
    """
    preparation = preparation or Preparation()
    listed = [documents] if isinstance(documents, (str, Path)) else list(documents)
    files = [file for path in listed for file in text_files(path)]
    check_languages(preparation.languages)
    folder = absolute(folder)
    record = {
        **asdict(preparation),
        "tokenizer": identity_of(tokenizer)["sha256"],
        "files": [[os.path.basename(file), size_of(file)] for file in files],
    }
    parts = [_Part(number, absolute(file), folder) for number, file in enumerate(files)]
    if done := _begin(folder, json.loads(json.dumps(record)), tokenizer):
        _clean_up(parts)
        return done
    run = functools.partial(_run, workers=workers, address=ray_address, verbose=verbose)
    left_out: Counter[str] = Counter()
    if preparation.duplicates != "keep":
        for counts in run("Comparing", "signatures", parts, functools.partial(_sign, preparation)):
            left_out += Counter(counts)
        left_out += _choose(preparation, parts)
        preparation = replace(preparation, min_characters=0, max_characters=None, languages=())  # these are done
    shards: list[Shard] = []
    for found in run("Tokenizing", "part", parts, functools.partial(_write, preparation, tokenizer)):
        shards += found["shards"]
        left_out += Counter(found["left_out"])
    return _finish(folder, tokenizer, parts, shards, left_out)


# === In every process ===


def _sign(preparation: Preparation, part: _Part) -> list[str]:
    """Write what tells duplicates, of each document of a file that passes the filters; return the warnings."""
    with collect_warnings() as messages:
        kept, documents = preparation.documents_in(part.file)
        positions, digests, signatures = [], [], []
        for position, sentences in documents:
            positions.append(position)
            digests.append(exact_digest(sentences))
            if preparation.duplicates == "near":
                signatures.append(min_hash(sentences))
    arrays = {
        "positions": np.array(positions, "int64"),
        "digests": np.array(digests, "S16"),
        "signatures": np.array(signatures, "uint32").reshape(-1, PERMUTATIONS),
    }
    _save(part.named("signatures", "npz"), arrays)
    save_json(part.named("signatures", "json"), kept.left_out)
    return messages


def _write(preparation: Preparation, tokenizer: Tokenizer, part: _Part) -> list[str]:
    """Write the files of the corpus for a file of documents; return the warnings."""
    with collect_warnings() as messages:
        kept, documents = preparation.documents_in(part.file)
        if preparation.duplicates != "keep":
            chosen = set(_load(part.named("kept", "npz"))["positions"].tolist())
            documents = (document for document in documents if document[0] in chosen)
        reader = DocumentReader(sentences for _, sentences in documents)
        writer = ShardWriter(part.folder, tokenizer, preparation.shard_tokens, f"{part.number:05}")
        shards = list(writer.shards_of(reader, lambda: reader.count, hashlib.sha256()))
        if empty := reader.count - sum(shard["documents"] for shard in shards):
            kept.left_out["no tokens"] = empty
    save_json(part.named("part", "json"), {"shards": shards, "left_out": kept.left_out})
    return messages


# === In the process that was called ===


def _run(
    what: str,
    kind: str,
    parts: Sequence[_Part],
    do: Callable[[_Part], list[str]],
    workers: int | None,
    address: str | None,
    verbose: bool,
) -> Iterator[Any]:
    """Do what is left to do of a step, and yield its results, in the order of the parts."""
    left = [part for part in parts if not exists(part.named(kind, "json"))]
    with progress_bar(what, len(left), "files", verbose) as advance:
        for part, messages in run_jobs(left, lambda: do, workers, address) if left else ():
            advance(1)
            for message in messages:
                warn(f"{part.file}: {message}")
    yield from (load_json(part.named(kind, "json")) for part in parts)


def _choose(preparation: Preparation, parts: Sequence[_Part]) -> Counter[str]:
    """Write which documents of each part are no duplicates, and count the others."""
    found = [_load(part.named("signatures", "npz")) for part in parts]
    exact = exact_duplicates(np.concatenate([arrays["digests"] for arrays in found]))
    near = np.zeros_like(exact)
    if preparation.duplicates == "near":
        signatures = np.concatenate([arrays["signatures"] for arrays in found])
        near[~exact] = near_duplicates(signatures[~exact], preparation.similarity)
    begin = 0
    for part, arrays in zip(parts, found, strict=True):
        end = begin + len(arrays["positions"])
        _save(part.named("kept", "npz"), {"positions": arrays["positions"][~(exact | near)[begin:end]]})
        begin = end
    return Counter({"exact duplicates": int(exact.sum()), "near duplicates": int(near.sum())})


def _begin(folder: str, record: dict[str, Any], tokenizer: Tokenizer) -> dict[str, int] | None:
    """Record how a corpus is made, or compare this with the record, and return the counts of a complete corpus."""
    path = inside(folder, _RECORD)
    if exists(path):
        stored = load_json(path)
        if other := [name for name, value in record.items() if stored.get(name) != value]:
            raise ValueError(f"{folder} was begun with other {other[0]}. {ADVICE} Or pass the same arguments.")
        return stored.get("counts")
    if exists(inside(folder, INDEX_FILE)):
        raise ValueError(f"{folder} holds a corpus that was not made from these files. {ADVICE}")
    with tempfile.TemporaryDirectory() as assets:
        tokenizer.save_assets(assets)
        for name in os.listdir(assets):
            with whole_file(inside(folder, f"{TOKENIZER_FOLDER}/{name}")) as file:
                file.write(Path(assets, name).read_bytes())
    save_json(path, record)
    return None


def _finish(
    folder: str, tokenizer: Tokenizer, parts: Sequence[_Part], shards: list[Shard], left_out: Counter[str]
) -> dict[str, int]:
    """Join the parts to a corpus."""
    if not shards:
        raise ValueError("There are no tokens in these documents.")
    Index(identity_of(tokenizer), dtype_of(tokenizer), shards, complete=True).write(folder)
    totals = {name: sum(shard[name] for shard in shards) for name in ("documents", "tokens")}
    counts = {**totals, **{reason: count for reason, count in left_out.items() if count}}
    save_json(inside(folder, _RECORD), {**load_json(inside(folder, _RECORD)), "counts": counts})
    _clean_up(parts)
    warn_of_special_tokens(shards, tokenizer)
    return counts


def _clean_up(parts: Sequence[_Part]) -> None:
    """Remove what only a run needs."""
    for part in parts:
        for kind, suffix in (("signatures", "npz"), ("signatures", "json"), ("kept", "npz"), ("part", "json")):
            remove(part.named(kind, suffix))


def _save(path: str, arrays: dict[str, np.ndarray]) -> None:
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    with whole_file(path) as file:
        file.write(content.getbuffer())


def _load(path: str) -> dict[str, np.ndarray]:
    with open_to_read(path) as file, np.load(io.BytesIO(file.read())) as arrays:
        return dict(arrays)
