"""Tokenized corpora in memory-mapped files."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import keras
import numpy as np

from lmzoo.data.corpora.corpus_index import ADVICE, BLOCK, INDEX_FILE, TOKENIZER_FOLDER, Index, Shard, compute_checksums
from lmzoo.data.corpora.tokenized_documents import TokenizedDocuments
from lmzoo.files.atomic import check_path
from lmzoo.files.manifest import find_mismatch
from lmzoo.text import Tokenizer


class TokenCorpus:
    """Memory-mapped corpus of tokenized documents, in a directory that `write_corpus` or `prepare_corpus` wrote.

    `segment_pairs` and the packing functions, such as `pack_sentences`, accept a corpus in place of documents.
    They then store the sequences in a temporary file, which exists as long as the sequences.

    Each file is compared with its checksums on first use, so that damage raises an error instead of changing the text.
    The check reads the file once more, at a few GB per second.

    Args:
        folder: str or path, directory of the corpus.
        sequences_folder: str or path, directory for the temporary files of sequences; by default `folder`.

    Attributes:
        folder: path, directory of the corpus.
        sequences_folder: path, directory for the temporary files of sequences.
        shards: sequence of `lmzoo.data.corpora.tokenized_documents.TokenizedDocuments`, one per file. Accessing
            an entry raises a ValueError if its file is damaged.

    Raises:
        FileNotFoundError: If `folder` holds no corpus, or one of the corpus's files is missing.
        ValueError: If the corpus is unfinished or of a newer version, its index is damaged, or a file has the wrong
            size.

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
        """Return the number of documents."""
        return sum(shard["documents"] for shard in self._index.shards)

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return sum(shard["sentences"] for shard in self._index.shards)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, without special tokens."""
        return sum(shard["tokens"] for shard in self._index.shards)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer that made the corpus."""
        identity = self._index.tokenizer
        # The file may be untrusted, so only create an object if the class that it names is a tokenizer.
        cls = keras.saving.get_registered_object(identity["name"])
        if not (isinstance(cls, type) and issubclass(cls, Tokenizer)):
            raise ValueError(
                f"{self.folder / INDEX_FILE} does not name a tokenizer of lmzoo: {identity['name']!r:.60}."
            )
        try:
            tokenizer = cls.from_config(identity["config"])
            tokenizer.load_assets(self.folder / TOKENIZER_FOLDER)
        except (TypeError, ValueError) as error:
            raise ValueError(f"The tokenizer of {self.folder} cannot be read ({error}). {ADVICE}") from error
        self.check_tokenizer(tokenizer)
        return tokenizer

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Check that a tokenizer is the one that made the corpus.

        Raises:
            ValueError: If the corpus was made with another tokenizer.
        """
        self._index.check_tokenizer(self.folder, tokenizer)

    def verify(self) -> None:
        """Read all files and check their SHA-256 digests.

        Raises:
            ValueError: If a file was altered; the message names it.
        """
        for shard in self._index.shards:
            _check_sha256(self.folder, shard)


class _CheckedShards(Sequence[TokenizedDocuments]):
    """Memory-mapped files of a corpus, each checked on first access.

    Args:
        folder: path, directory of the corpus.
        index: `Index` of the corpus.
    """

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder = folder
        self._index = index
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
        content = self._files[index]
        shard = self._index.shards[index]
        if index not in self._checked:
            _check_shard(self._folder, shard, content)
            self._checked.add(index)
        document_bytes = 8 * (shard["documents"] + 1)
        sentence_bytes = 8 * (shard["sentences"] + 1)
        return TokenizedDocuments(
            content[document_bytes + sentence_bytes :].view(self._index.dtype),
            content[document_bytes : document_bytes + sentence_bytes].view("int64"),
            content[:document_bytes].view("int64"),
        )


def _check_shard(folder: Path, shard: Shard, content: np.ndarray) -> None:
    """Compare a file with the checksums of its blocks, or with its SHA-256 digest if an earlier version wrote it.

    Raises:
        ValueError: If the file was altered.
    """
    if "crc32" not in shard:
        _check_sha256(folder, shard)
        return
    path = folder / shard["name"]
    expected_checksums = shard["crc32"]
    actual_checksums = compute_checksums(content)
    if expected_checksums != actual_checksums:
        block_index = next(
            i
            for i, (expected_crc, actual_crc) in enumerate(itertools.zip_longest(expected_checksums, actual_checksums))
            if expected_crc != actual_crc
        )
        raise ValueError(
            f"{path} was altered: the checksum of the {BLOCK:,} bytes from {block_index * BLOCK:,} is not the one in "
            f"{INDEX_FILE}. {ADVICE}"
        )


def _check_sha256(folder: Path, shard: Shard) -> None:
    """Compare a file with its SHA-256 digest.

    Raises:
        ValueError: If the file was altered.
    """
    path = folder / shard["name"]
    if problem := find_mismatch(path, sha256=shard["sha256"]):
        raise ValueError(f"{path} was altered: {problem}, as {INDEX_FILE} says. {ADVICE}")
