"""Writing of tokenized documents into files, in runs that can be stopped and resumed."""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.common.progress import progress_bar
from lmzoo.data.corpora.corpus_index import (
    ADVICE,
    INDEX_FILE,
    TOKENIZER_FOLDER,
    Index,
    Shard,
    compute_checksums,
    get_dtype_name,
    identity_of,
)
from lmzoo.data.corpora.token_corpus import TokenCorpus
from lmzoo.data.corpora.tokenized_documents import (
    DocumentReader,
    TokenizedDocuments,
    check_documents,
    tokenize_documents,
)
from lmzoo.files.atomic import check_path
from lmzoo.files.urls import join_path, whole_file
from lmzoo.text import Tokenizer
from lmzoo.text.mask_tokens import maskable
from lmzoo.text.validate_text import warn

_BATCH_CHARACTERS = 1 << 20  # number of characters tokenized at once
_MAX_WAITING_BATCHES = 2  # batches that may wait to be tokenized while the next one is read


def write_corpus(
    documents: Iterable[str | Sequence[str]],
    tokenizer: Tokenizer,
    folder: str | Path,
    shard_tokens: int = 1 << 24,
    verbose: bool = True,
) -> TokenCorpus:
    """Tokenize documents, write them to the files of a corpus, and return the memory-mapped corpus.

    Documents are read one at a time, so they need not fit into memory, and are tokenized while the next documents are
    read. WordPiece and BPE use threads on all cores (`RAYON_NUM_THREADS` limits them); on up to four cores, they also
    cache the words that they have tokenized. Every file is written under a temporary name first, and `corpus.json`
    records its size and checksums. Ids are uint16 if the vocabulary has at most 65,536 tokens, otherwise int32.

    To resume a stopped run, call the function again with the same arguments: it continues after the last complete file.
    Earlier documents are read again and compared, but not tokenized. A corpus that is already complete is only opened.

    Args:
        documents: iterable of documents of any length, each a list of sentences, or a string, which is one sentence.
            Documents without tokens are omitted, with one warning. A special token that is spelled out in a document is
            read as the special token, with another warning.
        tokenizer: `lmzoo.text.Tokenizer`, which is saved with the corpus.
        folder: str or path, the directory to write.
        shard_tokens: int, number of tokens after which a new file begins; documents are not split between files.
        verbose: bool, whether to show progress.

    Raises:
        TypeError: If `tokenizer` is not a tokenizer, or if a document is neither a string nor a list of strings, in
            which case the message names its position.
        FileNotFoundError: If the directory holds a corpus and one of its files is missing; the message names the file.
        ValueError: If the tokenizer has no vocabulary, the documents have no tokens, or the directory holds a corpus
            that is damaged, of another tokenizer or of other documents, or begun by an older version of lmzoo.

    Example: see `TokenCorpus`.
    """
    check_path(folder)
    check_documents(documents)
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"`tokenizer` must be a tokenizer of `lmzoo.text`, got {tokenizer!r:.60}.")
    folder = Path(folder).expanduser()
    if (folder / INDEX_FILE).exists():
        index = Index.read(folder)
        index.check_tokenizer(folder, tokenizer)
        index.check_files(folder)
    else:
        index = Index(tokenizer=identity_of(tokenizer), dtype=get_dtype_name(tokenizer), shards=[])
        (folder / TOKENIZER_FOLDER).mkdir(parents=True, exist_ok=True)
        tokenizer.save_assets(folder / TOKENIZER_FOLDER)
        index.write(folder)
    if not index.complete:
        with progress_bar(f"Tokenizing {folder.name}", unit="tokens", show=verbose) as advance:
            _write_missing_shards(
                folder, index, documents, ShardWriter(folder, tokenizer, shard_tokens, advance=advance)
            )
    return TokenCorpus(folder)


def _write_missing_shards(
    folder: Path, index: Index, documents: Iterable[str | Sequence[str]], writer: ShardWriter
) -> None:
    """Write the missing part of a corpus, continuing after its last complete file.

    Raises:
        ValueError: If the corpus was begun with other documents or by an older version of lmzoo, or the documents have
            no tokens.
    """
    last_shard = index.shards[-1] if index.shards else None
    if last_shard is not None and "digest" not in last_shard:
        raise ValueError(f"{folder} was begun by an older version of lmzoo and cannot be continued. {ADVICE}")
    reader = DocumentReader(documents)
    digest = hashlib.sha256()
    valid_documents = iter(reader)
    if last_shard is not None:
        for document in itertools.islice(valid_documents, last_shard["read"]):
            digest.update(_encode_document(document))
        if (reader.count, digest.hexdigest()) != (last_shard["read"], last_shard["digest"]):
            raise ValueError(
                f"{folder} was begun with other documents than these. {ADVICE} Or pass the same documents."
            )
    for shard in writer.shards_of(valid_documents, lambda: reader.count, digest, len(index.shards)):
        index.shards.append(shard)
        index.write(folder)
    if not index.shards:
        raise ValueError("There are no tokens in these documents.")
    index.complete = True
    index.write(folder)
    reader.report(sum(shard["documents"] for shard in index.shards))
    warn_about_special_tokens(index.shards, writer.tokenizer)


def warn_about_special_tokens(shards: Iterable[Shard], tokenizer: Tokenizer) -> None:
    """Warn if documents spell out special tokens."""
    if count := sum(shard.get("special", 0) for shard in shards):
        warn(
            f"{count} special tokens, such as {tokenizer.special_tokens[0]}, are spelled out in the documents and "
            "were read as special tokens: remove them from the text if they are ordinary words."
        )


class ShardWriter:
    """A writer that tokenizes documents and stores them in numbered files.

    Args:
        folder: str or path, directory or URL to write to.
        tokenizer: `lmzoo.text.Tokenizer`.
        shard_tokens: int, number of tokens after which a new file begins.
        prefix: str, digits before the number in each file name.
        advance: callable that is called with the number of tokens of each batch, to show progress.
    """

    def __init__(
        self,
        folder: str | Path,
        tokenizer: Tokenizer,
        shard_tokens: int,
        prefix: str = "",
        advance: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.shard_tokens = shard_tokens
        self.prefix = prefix
        self.advance = advance
        self.parts: list[TokenizedDocuments] = []
        self.tokens = 0

    def shards_of(
        self, texts: Iterable[list[str]], read: Callable[[], int], digest: Any, first: int = 0
    ) -> Iterator[Shard]:
        """Tokenize documents, write them to files, and yield the record of each file when it is complete.

        Args:
            texts: iterable of documents as lists of valid sentences.
            read: callable that returns the number of documents read so far, including earlier files and empty
                documents.
            digest: hash object of the documents so far; each document updates it.
            first: int, number in the name of the first file.
        """
        self.number = first
        with ThreadPoolExecutor(1) as pool:
            pending_batches: deque[tuple[Future[TokenizedDocuments], int, str]] = deque()
            for batch in self._batches(texts):
                for document in batch:
                    digest.update(_encode_document(document))
                future = pool.submit(lambda batch: tokenize_documents(batch, self.tokenizer).without_empty(), batch)
                pending_batches.append((future, read(), digest.hexdigest()))
                if len(pending_batches) > _MAX_WAITING_BATCHES:
                    yield from self._take(*pending_batches.popleft())
            while pending_batches:
                yield from self._take(*pending_batches.popleft())
        if self.parts:
            yield self._close(read(), digest.hexdigest())

    def _batches(self, texts: Iterable[list[str]]) -> Iterator[list[list[str]]]:
        """Yield batches of about `_BATCH_CHARACTERS` characters, or of about `shard_tokens` characters if that is less.

        Small shards need small batches, since a shard holds whole batches.
        """
        max_characters = min(_BATCH_CHARACTERS, self.shard_tokens)
        batch = []
        num_characters = 0
        for document in texts:
            batch.append(document)
            num_characters += sum(map(len, document)) + 1
            if num_characters >= max_characters:
                yield batch
                batch = []
                num_characters = 0
        if batch:
            yield batch

    def _take(self, future: Future[TokenizedDocuments], num_read: int, digest: str) -> Iterator[Shard]:
        """Add a tokenized batch to the current shard, and write the shard and yield its record if it is complete.

        Args:
            future: the tokenized batch, when it is ready.
            num_read: number of documents read up to the end of the batch.
            digest: digest of these documents.
        """
        tokenized_batch = future.result()
        if len(tokenized_batch):
            self.parts.append(tokenized_batch)
            self.tokens += len(tokenized_batch.token_ids)
        self.advance(len(tokenized_batch.token_ids))
        if self.tokens >= self.shard_tokens:
            yield self._close(num_read, digest)

    def _close(self, num_read: int, digest: str) -> Shard:
        """Write the current shard (boundaries of documents, then of sentences, then tokens), and return its record.

        The record includes `num_read`, the number of documents read up to the end of the shard, and their digest.
        """
        name = f"shard-{self.prefix}{self.number:05}.bin"
        sentence_splits = _join_splits([part.sentence_splits for part in self.parts])
        document_splits = _join_splits([part.document_splits for part in self.parts])
        tokens = np.concatenate([part.token_ids for part in self.parts]).astype(get_dtype_name(self.tokenizer))
        content = np.concatenate([array.view("uint8") for array in (document_splits, sentence_splits, tokens)])
        with whole_file(join_path(self.folder, name)) as file:
            file.write(content.data)
        self.parts = []
        self.tokens = 0
        self.number += 1
        return {
            "name": name,
            "documents": len(document_splits) - 1,
            "sentences": len(sentence_splits) - 1,
            "tokens": len(tokens),
            "special": int(np.count_nonzero(~maskable(self.tokenizer, tokens))),
            "size": len(content),
            "sha256": hashlib.sha256(content.data).hexdigest(),
            "crc32": compute_checksums(content),
            "read": num_read,
            "digest": digest,
        }


def _join_splits(splits: list[np.ndarray]) -> np.ndarray:
    """Convert the boundaries within each of several arrays to boundaries within the concatenated arrays."""
    offsets = np.cumsum([0, *(part_splits[-1] for part_splits in splits[:-1])])
    return np.concatenate(
        [[0], *(part_splits[1:] + offset for part_splits, offset in zip(splits, offsets, strict=True))]
    )


def _encode_document(document: list[str]) -> bytes:
    """Encode a document so that different lists of sentences give different bytes."""
    return "".join([f"{len(document)};", *(f"{len(text)}:{text}" for text in document)]).encode()
