"""A corpus that is tokenised once: memory-mapped files, written so that a run that was stopped can go on."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from lmzoo.presets.atomic import atomic_file
from lmzoo.text import Tokenizer
from lmzoo.text.policy import clean_columns, notify
from lmzoo.training.tokens import TokenizedDocuments, sentences_of, tokenize_documents

INDEX_FILE, TOKENIZER_FOLDER = "corpus.json", "tokenizer"
_BATCH = 1 << 20  # characters tokenised at once
_AHEAD = 2  # batches that wait to be tokenised while the next is read


class TokenCorpus:
    """Tokenised documents in a folder that `write_corpus` filled; they are mapped into memory, not read.

    `pack_documents`, `pack_sentences` and `segment_pairs` take it in place of documents. The rows that they make of it
    are in a file, too, which has no name and goes with them.

    Args:
        folder: the corpus.
        rows_folder: where the files of rows are; the corpus' own folder by default.

    Attributes:
        folder: where the corpus is.
        rows_folder: where the files of rows are.
        shards: the files, as `lmzoo.training.tokens.TokenizedDocuments`.

    Raises:
        FileNotFoundError: if there is no corpus, or a file of it is missing.
        ValueError: if it is unfinished, of a newer version, or naming a file that is not whole.

    Example:

    ```python
    from lmzoo.text import WordPieceTokenizer
    from lmzoo.training import TokenCorpus, write_corpus

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b"])
    write_corpus([["a a", "b"], ["a"]], tokenizer, "corpus")
    corpus = TokenCorpus("corpus")
    len(corpus), corpus.num_tokens, corpus.tokenizer.vocabulary_size  # 2, 4, 7
    ```
    """

    def __init__(self, folder: str | Path, rows_folder: str | Path | None = None) -> None:
        self.folder = Path(folder)
        self.rows_folder = self.folder if rows_folder is None else Path(rows_folder)
        self._index = _Index.read(self.folder)
        if not self._index.complete:
            raise ValueError(f"{self.folder} is unfinished: go on with `write_corpus` and the same arguments.")
        self._index.check_files(self.folder)
        self.shards = [_map(self.folder, self._index.dtype, shard) for shard in self._index.shards]

    def __len__(self) -> int:
        """Number of documents."""
        return sum(shard["documents"] for shard in self._index.shards)

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return sum(shard["sentences"] for shard in self._index.shards)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, without special ones."""
        return sum(shard["tokens"] for shard in self._index.shards)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the corpus was made with."""
        stored = self._index.tokenizer
        # Nothing but a tokenizer is built from the file, whatever it names.
        found = keras.saving.get_registered_object(stored["name"])
        if not (isinstance(found, type) and issubclass(found, Tokenizer)):
            raise ValueError(f"{self.folder / INDEX_FILE} names no tokenizer of lmzoo: {stored['name']!r:.60}.")
        tokenizer = found.from_config(stored["config"])
        tokenizer.load_assets(self.folder / TOKENIZER_FOLDER)
        return tokenizer

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Checks that ids mean to a tokenizer what they mean here.

        Raises:
            ValueError: if not.
        """
        self._index.check_tokenizer(self.folder, _described(tokenizer))

    def verify(self) -> None:
        """Reads all files and checks their sha256.

        Raises:
            ValueError: naming a file that was altered.
        """
        for shard in self._index.shards:
            path = self.folder / shard["name"]
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != shard["sha256"]:
                    raise ValueError(f"{path} was altered: its sha256 is not that of {INDEX_FILE}. {_ADVICE}")


def write_corpus(
    documents: Iterable[str | Sequence[str]],
    tokenizer: Tokenizer,
    folder: str | Path,
    shard_tokens: int = 1 << 24,
    verbose: bool = True,
    notify: Callable[[str], None] = notify,
) -> TokenCorpus:
    """Tokenises documents into a folder of memory-mapped files.

    Documents are taken one after another and never held together. The tokenizers' own threads work on all cores
    (`RAYON_NUM_THREADS` limits those of WordPiece and BPE) while the next documents are read. Every file is written to
    a temporary name first, and `corpus.json` says how long it is and what its sha256 is. Ids are uint16 where the
    vocabulary allows it and int32 elsewhere.

    A run that was stopped goes on after its last whole file: call again with the same arguments. The documents that are
    there already are then read once more and compared, not tokenised. A corpus that is complete is only opened.

    Args:
        documents: documents, each a list of sentences, or a string, which is one sentence; of any length. Those that
            hold no tokens are left out, with one notice.
        tokenizer: a tokenizer of `lmzoo.text`; it is kept with the corpus.
        folder: where to write.
        shard_tokens: int, a file ends with the documents that bring it to so many tokens.
        verbose: whether to show progress, if there is a terminal.
        notify: what to do with notices; see `Preprocessor.encode`.

    Raises:
        TypeError: for a document that is no list of strings, naming its position.
        ValueError: if the folder holds a corpus of another tokenizer or of other documents, or naming a file that is
            not whole; if there are no tokens.

    Example: see `TokenCorpus`.
    """
    folder, described = Path(folder), _described(tokenizer)
    if (folder / INDEX_FILE).exists():
        index = _Index.read(folder)
        index.check_tokenizer(folder, described)
        index.check_files(folder)
    else:
        (folder / TOKENIZER_FOLDER).mkdir(parents=True, exist_ok=True)
        tokenizer.save_assets(folder / TOKENIZER_FOLDER)
        dtype = "uint16" if tokenizer.vocabulary_size <= 1 << 16 else "int32"
        index = _Index(tokenizer=described, dtype=dtype, shards=[])
        index.write(folder)
    if not index.complete:
        _Writer(folder, index, tokenizer, shard_tokens, notify).write(documents, verbose)
    return TokenCorpus(folder)


_ADVICE = "Delete the folder and write the corpus again."


@dataclass
class _Index:
    """What `corpus.json` holds. Of a shard: its file's name, size and sha256; documents, sentences and tokens in it;
    `read`, how many documents were read until its end, and `source`, the digest of their text."""  # noqa: D205, D209

    tokenizer: dict[str, Any]
    dtype: str
    shards: list[dict[str, Any]]
    complete: bool = False
    format: int = 1

    @classmethod
    def read(cls, folder: Path) -> _Index:
        path = folder / INDEX_FILE
        if not path.exists():
            raise FileNotFoundError(f"{folder} holds no corpus ({INDEX_FILE} is missing): make one by `write_corpus`.")
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            index = cls(**stored)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} does not describe a corpus ({error}). {_ADVICE}") from None
        if index.format != 1:
            raise ValueError(f"{path} is of format {index.format}, and this lmzoo reads 1: it may need a newer one.")
        return index

    def write(self, folder: Path) -> None:
        with atomic_file(folder / INDEX_FILE) as temporary:
            temporary.write_text(json.dumps(vars(self), indent=1) + "\n", encoding="utf-8")

    def check_tokenizer(self, folder: Path, described: dict[str, Any]) -> None:
        if described != self.tokenizer:
            raise ValueError(
                f"{folder} was made with another tokenizer, a {self.tokenizer['name']} (sha256 "
                f"{self.tokenizer['sha256'][:8]}); this is a {described['name']} ({described['sha256'][:8]}). Take "
                "`TokenCorpus(folder).tokenizer`, or write a corpus for yours into another folder."
            )

    def check_files(self, folder: Path) -> None:
        for shard in self.shards:
            path = folder / shard["name"]
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing. {_ADVICE}")
            if (size := path.stat().st_size) != shard["size"]:
                raise ValueError(f"{path} has {size:,} bytes and should have {shard['size']:,}. {_ADVICE}")


class _Writer:
    """Fills what is left of a corpus."""

    def __init__(
        self, folder: Path, index: _Index, tokenizer: Tokenizer, shard_tokens: int, notify: Callable[[str], None]
    ) -> None:
        self.folder, self.index, self.tokenizer, self.shard_tokens = folder, index, tokenizer, shard_tokens
        self.notify = notify
        self.parts: list[TokenizedDocuments] = []
        self.tokens = 0
        self.invalid: list[str] = []

    def write(self, documents: Iterable[str | Sequence[str]], verbose: bool) -> None:
        done = self.index.shards[-1] if self.index.shards else {"read": 0, "source": ""}
        texts, read = self._texts(documents), 0
        digest = hashlib.sha256()
        for document in itertools.islice(texts, done["read"]):
            _update(digest, document)
            read += 1
        if done["read"] and (read, digest.hexdigest()) != (done["read"], done["source"]):
            raise ValueError(
                f"These are not the documents that {self.folder} was begun with. {_ADVICE} Or give the same ones."
            )
        with _progress(self.folder.name, verbose) as show, ThreadPoolExecutor(1) as pool:
            waiting: deque[tuple[Future[TokenizedDocuments], int, str]] = deque()
            for batch in self._batches(texts):
                for document in batch:
                    _update(digest, document)
                read += len(batch)
                future = pool.submit(lambda batch: tokenize_documents(batch, self.tokenizer).without_empty(), batch)
                waiting.append((future, read, digest.hexdigest()))
                if len(waiting) > _AHEAD:
                    self._take(*waiting.popleft(), show)
            while waiting:
                self._take(*waiting.popleft(), show)
        if self.parts:
            self._close(read, digest.hexdigest())
        if not self.index.shards:
            raise ValueError("There are no tokens in these documents.")
        self.index.complete = True
        self.index.write(self.folder)
        if empty := read - sum(shard["documents"] for shard in self.index.shards):
            self.notify(f"{empty} of {read} documents held no tokens and were left out.")
        if self.invalid:
            self.notify(f"{len(self.invalid)} documents held invalid UTF-8; it was read as U+FFFD.")

    def _texts(self, documents: Iterable[str | Sequence[str]]) -> Iterator[list[str]]:
        for position, document in enumerate(documents):
            yield clean_columns({f"documents[{position}]": sentences_of(document)}, self.invalid.append)[0]

    def _batches(self, texts: Iterator[list[str]]) -> Iterator[list[list[str]]]:
        """Documents of about `_BATCH` characters, of fewer where shards are small, since a shard ends with a batch."""
        most, batch, count = min(_BATCH, self.shard_tokens), [], 0
        for document in texts:
            batch.append(document)
            count += sum(map(len, document)) + 1
            if count >= most:
                yield batch
                batch, count = [], 0
        if batch:
            yield batch

    def _take(self, future: Future[TokenizedDocuments], read: int, source: str, show: Callable[[int], None]) -> None:
        part = future.result()
        if len(part):
            self.parts.append(part)
            self.tokens += len(part.token_ids)
        if self.tokens >= self.shard_tokens:
            self._close(read, source)
        show(len(part.token_ids))

    def _close(self, read: int, source: str) -> None:
        """Writes what was tokenised as the next shard: the ends of documents and sentences, then tokens."""
        name = f"shard-{len(self.index.shards):05}.bin"
        sentences = _joined([part.sentence_splits for part in self.parts])
        documents = _joined([part.document_splits for part in self.parts])
        tokens = np.concatenate([part.token_ids for part in self.parts]).astype(self.index.dtype)
        digest = hashlib.sha256()
        with atomic_file(self.folder / name) as temporary, temporary.open("wb") as file:
            for array in (documents, sentences, tokens):
                file.write(array.data)
                digest.update(array.data)
        counts = {"documents": len(documents) - 1, "sentences": len(sentences) - 1, "tokens": len(tokens)}
        size = documents.nbytes + sentences.nbytes + tokens.nbytes
        entry = {"name": name, **counts, "size": size, "sha256": digest.hexdigest(), "read": read, "source": source}
        self.index.shards.append(entry)
        self.index.write(self.folder)
        self.parts, self.tokens = [], 0


def _map(folder: Path, dtype: str, shard: dict[str, Any]) -> TokenizedDocuments:
    raw = np.asarray(np.memmap(folder / shard["name"], "uint8", "r"))
    documents, sentences = 8 * (shard["documents"] + 1), 8 * (shard["sentences"] + 1)
    tokens = raw[documents + sentences :].view(dtype)
    return TokenizedDocuments(
        tokens, raw[documents : documents + sentences].view("int64"), raw[:documents].view("int64")
    )


def _joined(splits: list[np.ndarray]) -> np.ndarray:
    """Splits of parts as those of the whole."""
    begins = np.cumsum([0, *(part[-1] for part in splits[:-1])])
    return np.concatenate([[0], *(part[1:] + begin for part, begin in zip(splits, begins, strict=True))])


def _update(digest: Any, document: list[str]) -> None:
    digest.update("\n".join([*document, "\n"]).encode())


def _described(tokenizer: Tokenizer) -> dict[str, Any]:
    """What tells a tokenizer from others: its class, its arguments, and the digest of its files."""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_assets(folder)
        for name in sorted(os.listdir(folder)):
            digest.update(name.encode() + b"\n" + Path(folder, name).read_bytes())
    name = keras.saving.get_registered_name(type(tokenizer))
    return {"name": name, "config": tokenizer.get_config(), "sha256": digest.hexdigest()}


@contextlib.contextmanager
def _progress(name: str, verbose: bool) -> Iterator[Callable[[int], None]]:
    """A line on the terminal, if there is one; call the function with the number of tokens that came."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    counts = TextColumn("{task.completed:,} tokens, {task.fields[rate]:,.0f} tokens/s")
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), counts, TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not (verbose and console.is_terminal)) as progress:
        task = progress.add_task(name, total=None, rate=0.0)
        yield lambda tokens: progress.update(task, advance=tokens, rate=progress.tasks[0].speed or 0.0)
