"""A tokenized corpus in memory-mapped files."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import keras
import numpy as np

from lmzoo.data.corpora.corpus_index import ADVICE, BLOCK, INDEX_FILE, TOKENIZER_FOLDER, Index, Shard, checksums_of
from lmzoo.data.corpora.tokenized_documents import TokenizedDocuments
from lmzoo.files.atomic import check_path
from lmzoo.files.manifest import mismatch
from lmzoo.text import Tokenizer


class TokenCorpus:
    """Tokenized documents in a folder that `write_corpus` filled, memory-mapped.

    `pack_documents`, `pack_sentences` and `segment_pairs` take it in place of documents. They store the sequences that
    they make in an unnamed file, which is removed with the sequences.

    Each file is compared with its checksums when it is first used: damaged text is an error, not other text. That reads
    it once more, at some GB per second.

    Args:
        folder: the folder of the corpus.
        sequences_folder: where to store the files of sequences; by default in `folder`.

    Attributes:
        folder: the folder of the corpus.
        sequences_folder: where files of sequences are stored.
        shards: the files, a sequence of `lmzoo.data.corpora.tokenized_documents.TokenizedDocuments`. Taking one raises
            a ValueError if the file is damaged.

    Raises:
        FileNotFoundError: if there is no corpus, or one of its files is missing.
        ValueError: if the corpus is unfinished or of a newer version, or a file has another size than it should.

    Example:

    ```python
    from lmzoo.text import WordPieceTokenizer
    from lmzoo.data.corpora import TokenCorpus, write_corpus

    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "a", "b"])
    write_corpus([["a a", "b"], ["a"]], tokenizer, "corpus")
    corpus = TokenCorpus("corpus")
    len(corpus), corpus.num_tokens, corpus.tokenizer.vocabulary_size  # 2, 4, 7
    ```
    """

    def __init__(self, folder: str | Path, sequences_folder: str | Path | None = None) -> None:
        check_path(folder)
        self.folder = Path(folder).expanduser()
        self.sequences_folder = self.folder if sequences_folder is None else Path(sequences_folder).expanduser()
        self._index = Index.read(self.folder)
        if not self._index.complete:
            raise ValueError(f"{self.folder} is unfinished: continue it by `write_corpus` with the same arguments.")
        self._index.check_files(self.folder)
        self.shards: Sequence[TokenizedDocuments] = _CheckedShards(self.folder, self._index)

    def __len__(self) -> int:
        """Return number of documents."""
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
        """The tokenizer that made the corpus."""
        stored = self._index.tokenizer
        # Whatever the file names, only a tokenizer is built.
        found = keras.saving.get_registered_object(stored["name"])
        if not (isinstance(found, type) and issubclass(found, Tokenizer)):
            raise ValueError(f"{self.folder / INDEX_FILE} does not name a tokenizer of lmzoo: {stored['name']!r:.60}.")
        try:
            tokenizer = found.from_config(stored["config"])
            tokenizer.load_assets(self.folder / TOKENIZER_FOLDER)
        except (TypeError, ValueError) as error:
            raise ValueError(f"The tokenizer of {self.folder} cannot be read ({error}). {ADVICE}") from error
        self.check_tokenizer(tokenizer)
        return tokenizer

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Check that a tokenizer is the one that made the corpus.

        Raises:
            ValueError: if it is another one.
        """
        self._index.check_tokenizer(self.folder, tokenizer)

    def verify(self) -> None:
        """Read all files and check their sha256.

        Raises:
            ValueError: naming a file that was altered.
        """
        for shard in self._index.shards:
            _check_sha256(self.folder, shard)


class _CheckedShards(Sequence[TokenizedDocuments]):
    """The files of a corpus, memory-mapped, each checked when it is first taken."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder, self._index = folder, index
        self._files = [np.asarray(np.memmap(folder / shard["name"], "uint8", "r")) for shard in index.shards]
        self._checked: set[int] = set()

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> TokenizedDocuments: ...

    @overload
    def __getitem__(self, index: slice) -> list[TokenizedDocuments]: ...

    def __getitem__(self, index: int | slice) -> TokenizedDocuments | list[TokenizedDocuments]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        content, shard = self._files[index], self._index.shards[index]
        if index not in self._checked:
            _check(self._folder, shard, content)
            self._checked.add(index)
        documents, sentences = 8 * (shard["documents"] + 1), 8 * (shard["sentences"] + 1)
        return TokenizedDocuments(
            content[documents + sentences :].view(self._index.dtype),
            content[documents : documents + sentences].view("int64"),
            content[:documents].view("int64"),
        )


def _check(folder: Path, shard: Shard, content: np.ndarray) -> None:
    """Compare a file with the checksums of its blocks; one of an earlier version, which has none, with its sha256."""
    if "crc32" not in shard:
        _check_sha256(folder, shard)
        return
    path, stored, found = folder / shard["name"], shard["crc32"], checksums_of(content)
    if stored != found:
        block = next(i for i, (a, b) in enumerate(itertools.zip_longest(stored, found)) if a != b)
        raise ValueError(
            f"{path} was altered: the checksum of the {BLOCK:,} bytes from {block * BLOCK:,} is not the one in "
            f"{INDEX_FILE}. {ADVICE}"
        )


def _check_sha256(folder: Path, shard: Shard) -> None:
    path = folder / shard["name"]
    if problem := mismatch(path, sha256=shard["sha256"]):
        raise ValueError(f"{path} was altered: {problem}, as {INDEX_FILE} says. {ADVICE}")
