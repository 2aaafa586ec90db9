"""A tokenised corpus in memory-mapped files."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import keras
import numpy as np

from lmzoo.data.corpora.corpus_index import ADVICE, INDEX_FILE, TOKENIZER_FOLDER, Index, Shard
from lmzoo.data.corpora.tokenized_documents import TokenizedDocuments
from lmzoo.text import Tokenizer


class TokenCorpus:
    """Tokenised documents in a folder that `write_corpus` filled, memory-mapped.

    `pack_documents`, `pack_sentences` and `segment_pairs` take it in place of documents. They store the sequences that
    they make in an unnamed file, which is removed with the sequences.

    Args:
        folder: the folder of the corpus.
        sequences_folder: where to store the files of sequences; by default in `folder`.

    Attributes:
        folder: the folder of the corpus.
        sequences_folder: where files of sequences are stored.
        shards: the files, as `lmzoo.data.corpora.tokenized_documents.TokenizedDocuments`.

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
        self.folder = Path(folder)
        self.sequences_folder = self.folder if sequences_folder is None else Path(sequences_folder)
        self._index = Index.read(self.folder)
        if not self._index.complete:
            raise ValueError(f"{self.folder} is unfinished: continue it by `write_corpus` with the same arguments.")
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
        """Checks that a tokenizer is the one that made the corpus.

        Raises:
            ValueError: if it is another one.
        """
        self._index.check_tokenizer(self.folder, tokenizer)

    def verify(self) -> None:
        """Reads all files and checks their sha256.

        Raises:
            ValueError: naming a file that was altered.
        """
        for shard in self._index.shards:
            path = self.folder / shard["name"]
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != shard["sha256"]:
                    raise ValueError(f"{path} was altered: its sha256 is not the one in {INDEX_FILE}. {ADVICE}")


def _map(folder: Path, dtype: str, shard: Shard) -> TokenizedDocuments:
    raw = np.asarray(np.memmap(folder / shard["name"], "uint8", "r"))
    documents, sentences = 8 * (shard["documents"] + 1), 8 * (shard["sentences"] + 1)
    tokens = raw[documents + sentences :].view(dtype)
    return TokenizedDocuments(
        tokens, raw[documents : documents + sentences].view("int64"), raw[:documents].view("int64")
    )
