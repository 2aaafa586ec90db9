"""Preparation of a corpus from files: filtering, deduplication and tokenization by several worker processes."""

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
from lmzoo.data.corpora.corpus_index import (
    ADVICE,
    INDEX_FILE,
    TOKENIZER_FOLDER,
    Index,
    Shard,
    get_dtype_name,
    identity_of,
)
from lmzoo.data.corpora.corpus_writer import ShardWriter, warn_about_special_tokens
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
from lmzoo.data.readers.text_files import is_listed
from lmzoo.files.urls import (
    exists,
    get_size,
    is_in_folder,
    join_path,
    load_json,
    make_absolute,
    open_to_read,
    remove,
    save_json,
    whole_file,
)
from lmzoo.parallel.workers import run_jobs
from lmzoo.text import Tokenizer
from lmzoo.text.validate_text import collect_warnings, warn

_RECORD_FILE = "_prepare.json"  # the arguments; programs that read whole directories skip names with a leading "_"


@dataclass(frozen=True)
class Preparation:
    """Settings for `prepare_corpus`: the documents to accept, and the size of the corpus's files.

    Attributes:
        field: str, key of the text in JSON lines.
        split: bool, whether to split lines into sentences.
        min_characters: int, minimum length of a document.
        max_characters: int, maximum length of a document; None for no limit.
        languages: tuple of codes such as "en", the accepted languages; empty for all languages.
        duplicates: "keep" to accept all documents, "exact" to drop documents with the same text as an earlier one, or
            "near" to also drop documents that share many of their five-word shingles with an earlier one.
        similarity: float, minimum Jaccard similarity of near duplicates, estimated by MinHash, from 0.1 to 0.95.
        shard_tokens: int, number of tokens after which a new file of the corpus begins.

    Raises:
        ValueError: If `duplicates` is unknown or `similarity` is out of range.

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
        """Return a new filter, and an iterator over the `(position, sentences)` of a file's documents that pass it."""
        document_filter = DocumentFilter(self.min_characters, self.max_characters, self.languages)
        return document_filter, document_filter.kept(read_documents(file, self.field, self.split))


class _Part(NamedTuple):
    """An input file, whose documents become one or more files of the corpus.

    Attributes:
        number: int, index of the input file, which orders the files of the corpus.
        file: str, path or URL of the input file.
        folder: str, directory of the corpus.
    """

    number: int
    file: str
    folder: str

    def __str__(self) -> str:
        return self.file

    def temporary_path(self, kind: str, suffix: str) -> str:
        """Return the path of the temporary file that step `kind` writes for this input file."""
        return join_path(self.folder, f"_{kind}-{self.number:05}.{suffix}")


def prepare_corpus(
    documents: str | Path | Iterable[str | Path],
    tokenizer: Tokenizer,
    folder: str | Path,
    preparation: Preparation | None = None,
    workers: int | None = None,
    ray_address: str | None = None,
    verbose: bool = True,
) -> dict[str, int]:
    r"""Filter and tokenize the documents of files, and write them as a corpus.

    Each input file becomes one or more files of the corpus, whose bytes do not depend on the number of workers. Work is
    therefore balanced if there are more input files than workers and none is much larger than the rest. Memory holds a
    batch of documents per worker and, to drop duplicates, 16 bytes per document, or half a kilobyte for near
    duplicates.

    A file whose worker dies is retried. To resume a stopped run, call the function again with the same arguments;
    completed files are skipped. A complete corpus is not changed.

    Args:
        documents: files, directories or patterns, as in `read_documents`; also URLs that fsspec supports.
        tokenizer: `lmzoo.text.Tokenizer`, which is saved with the corpus.
        folder: str or path, directory or fsspec URL to write. `TokenCorpus` reads directories, not URLs.
        preparation: `Preparation`, selection of documents and size of files; None for the defaults.
        workers: int, number of processes that Ray starts (`pip install 'lmzoo[scale]'`); None for this process only.
        ray_address: str, address of a Ray cluster, whose hosts must see the same files; None for this machine.
        verbose: bool, whether to show progress.

    Returns:
        A dict with the numbers of `documents` and `tokens` in the corpus, and for each reason the number of documents
        that were dropped.

    Raises:
        FileNotFoundError: If an input file does not exist, or a directory holds no input files.
        ValueError: If `folder` holds another corpus or is in a directory of documents, a language is unknown, there are
            no tokens, or a file cannot be read, in which case the message names the file.
        ImportError: If a package is missing; the message names it.

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
    paths = [documents] if isinstance(documents, (str, Path)) else list(documents)
    files = [file for path in paths for file in text_files(path)]
    check_languages(preparation.languages)
    folder = make_absolute(folder)
    for path in paths:
        if is_listed(folder, path):
            raise ValueError(f"{folder} is in {path}, which holds the documents: write the corpus elsewhere.")
        own_files = [file for file in text_files(path) if is_in_folder(file, folder)]
        if own_files and not exists(path):
            raise ValueError(
                f"{own_files[0]} is in {folder}, so files of the corpus may also match {path}: write the corpus "
                "elsewhere, or narrow the pattern."
            )
    record = {
        **asdict(preparation),
        "tokenizer": identity_of(tokenizer),
        "files": [[os.path.basename(file), get_size(file)] for file in files],
    }
    parts = [_Part(i, make_absolute(file, resolve_links=False), folder) for i, file in enumerate(files)]
    if complete_counts := _begin(folder, json.loads(json.dumps(record)), tokenizer):
        _clean_up(parts)
        return complete_counts
    run_step = functools.partial(_run, workers=workers, address=ray_address, verbose=verbose)
    dropped_counts: Counter[str] = Counter()
    if preparation.duplicates != "keep":
        for file_counts in run_step(
            "Comparing", "signatures", parts, functools.partial(_write_signatures, preparation)
        ):
            dropped_counts += Counter(file_counts)
        dropped_counts += _drop_duplicates(preparation, parts)
        preparation = replace(preparation, min_characters=0, max_characters=None, languages=())  # already applied
    shards: list[Shard] = []
    for part_record in run_step("Tokenizing", "part", parts, functools.partial(_tokenize_file, preparation, tokenizer)):
        shards += part_record["shards"]
        dropped_counts += Counter(part_record["left_out"])
    return _finish(folder, tokenizer, parts, shards, dropped_counts)


# === Worker processes ===


def _write_signatures(preparation: Preparation, part: _Part) -> list[str]:
    """Store digests of a file's accepted documents and, for near duplicates, MinHash signatures; return the warnings.

    One temporary file stores the positions, digests and signatures of these documents, another the numbers of dropped
    documents by reason.
    """
    with collect_warnings() as messages:
        document_filter, documents = preparation.documents_in(part.file)
        positions = []
        digests = []
        signatures = []
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
    _save_arrays(part.temporary_path("signatures", "npz"), arrays)
    save_json(part.temporary_path("signatures", "json"), document_filter.left_out)
    return messages


def _tokenize_file(preparation: Preparation, tokenizer: Tokenizer, part: _Part) -> list[str]:
    """Tokenize one input file into files of the corpus, write a record of these, and return the warnings."""
    with collect_warnings() as messages:
        document_filter, documents = preparation.documents_in(part.file)
        if preparation.duplicates != "keep":
            unique_positions = set(_load_arrays(part.temporary_path("kept", "npz"))["positions"].tolist())
            documents = (document for document in documents if document[0] in unique_positions)
        reader = DocumentReader(sentences for _, sentences in documents)
        writer = ShardWriter(part.folder, tokenizer, preparation.shard_tokens, f"{part.number:05}")
        shards = list(writer.shards_of(reader, lambda: reader.count, hashlib.sha256()))
        if num_empty := reader.count - sum(shard["documents"] for shard in shards):
            document_filter.left_out["no tokens"] = num_empty
    save_json(part.temporary_path("part", "json"), {"shards": shards, "left_out": document_filter.left_out})
    return messages


# === Main process ===


def _run(
    title: str,
    kind: str,
    parts: Sequence[_Part],
    process_file: Callable[[_Part], list[str]],
    workers: int | None,
    address: str | None,
    verbose: bool,
) -> Iterator[Any]:
    """Run the incomplete jobs of a step, and yield the results of all jobs in the order of `parts`.

    Args:
        title: str, title of the progress bar.
        kind: str, name of the step in the names of temporary files.
        parts: sequence of input files, one per job.
        process_file: callable that processes an input file and returns the warnings.
        workers: int, number of processes that Ray starts; None for this process only.
        address: str, address of a Ray cluster; None for this machine.
        verbose: bool, whether to show progress.
    """
    pending_parts = [part for part in parts if not exists(part.temporary_path(kind, "json"))]
    with progress_bar(title, len(pending_parts), "files", verbose) as advance:
        for part, messages in run_jobs(pending_parts, lambda: process_file, workers, address) if pending_parts else ():
            advance(1)
            for message in messages:
                warn(f"{part.file}: {message}")
    yield from (load_json(part.temporary_path(kind, "json")) for part in parts)


def _drop_duplicates(preparation: Preparation, parts: Sequence[_Part]) -> Counter[str]:
    """Write the positions of each input file's unique documents, and count exact and near duplicates."""
    positions = []
    digests = []
    for part in parts:
        arrays = _load_arrays(part.temporary_path("signatures", "npz"))
        positions.append(arrays["positions"])
        digests.append(arrays["digests"])
    boundaries = np.cumsum([len(part_positions) for part_positions in positions])[:-1]
    is_exact_duplicate = exact_duplicates(np.concatenate(digests))
    is_near_duplicate = np.zeros_like(is_exact_duplicate)
    if preparation.duplicates == "near":
        # Filled part by part, so that memory holds only one copy of all signatures.
        signatures = np.empty((np.count_nonzero(~is_exact_duplicate), PERMUTATIONS), "uint32")
        begin = 0
        for part, is_duplicate in zip(parts, np.split(is_exact_duplicate, boundaries), strict=True):
            arrays = _load_arrays(part.temporary_path("signatures", "npz"))
            end = begin + int(np.count_nonzero(~is_duplicate))
            signatures[begin:end] = arrays["signatures"][~is_duplicate]
            begin = end
        is_near_duplicate[~is_exact_duplicate] = near_duplicates(signatures, preparation.similarity)
    for part, part_positions, is_duplicate in zip(
        parts, positions, np.split(is_exact_duplicate | is_near_duplicate, boundaries), strict=True
    ):
        _save_arrays(part.temporary_path("kept", "npz"), {"positions": part_positions[~is_duplicate]})
    return Counter({"exact duplicates": int(is_exact_duplicate.sum()), "near duplicates": int(is_near_duplicate.sum())})


def _begin(folder: str, record: dict[str, Any], tokenizer: Tokenizer) -> dict[str, int] | None:
    """Record the arguments and tokenizer of a new corpus, or check the arguments of an existing corpus.

    Returns:
        The counts if the corpus is complete, else None.

    Raises:
        ValueError: If the directory holds a corpus of other files or arguments.
    """
    record_path = join_path(folder, _RECORD_FILE)
    if exists(record_path):
        stored_record = load_json(record_path)
        # Records written until November 2026 hold only the digest of the tokenizer's files.
        if stored_record.get("tokenizer") == record["tokenizer"]["sha256"]:
            stored_record["tokenizer"] = record["tokenizer"]
        if different_names := [name for name, value in record.items() if stored_record.get(name) != value]:
            raise ValueError(
                f"{folder} was begun with other {different_names[0]}. {ADVICE} Or pass the same arguments."
            )
        return stored_record.get("counts")
    if exists(join_path(folder, INDEX_FILE)):
        raise ValueError(f"{folder} holds a corpus that was not made from these files. {ADVICE}")
    with tempfile.TemporaryDirectory() as assets_folder:
        tokenizer.save_assets(assets_folder)
        for name in os.listdir(assets_folder):
            with whole_file(join_path(folder, f"{TOKENIZER_FOLDER}/{name}")) as file:
                file.write(Path(assets_folder, name).read_bytes())
    save_json(record_path, record)
    return None


def _finish(
    folder: str, tokenizer: Tokenizer, parts: Sequence[_Part], shards: list[Shard], dropped_counts: Counter[str]
) -> dict[str, int]:
    """Write the index and the counts of the complete corpus, remove temporary files, and return the counts.

    Raises:
        ValueError: If no file holds any tokens.
    """
    if not shards:
        raise ValueError("There are no tokens in these documents.")
    Index(identity_of(tokenizer), get_dtype_name(tokenizer), shards, complete=True).write(folder)
    totals = {name: sum(shard[name] for shard in shards) for name in ("documents", "tokens")}
    counts = {**totals, **{reason: count for reason, count in dropped_counts.items() if count}}
    save_json(join_path(folder, _RECORD_FILE), {**load_json(join_path(folder, _RECORD_FILE)), "counts": counts})
    _clean_up(parts)
    warn_about_special_tokens(shards, tokenizer)
    return counts


def _clean_up(parts: Sequence[_Part]) -> None:
    """Remove the temporary files of a run."""
    for part in parts:
        for kind, suffix in (("signatures", "npz"), ("signatures", "json"), ("kept", "npz"), ("part", "json")):
            remove(part.temporary_path(kind, suffix))


def _save_arrays(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays to an `.npz` file or URL."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    with whole_file(path) as file:
        file.write(buffer.getbuffer())


def _load_arrays(path: str) -> dict[str, np.ndarray]:
    """Read arrays from an `.npz` file or URL."""
    with open_to_read(path) as file, np.load(io.BytesIO(file.read())) as arrays:
        return dict(arrays)
