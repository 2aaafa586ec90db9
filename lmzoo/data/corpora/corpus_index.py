"""Index of a tokenized corpus: its files and the identity of its tokenizer."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import keras
import numpy as np

from lmzoo.files.urls import join_path, save_json
from lmzoo.text import Tokenizer

INDEX_FILE = "corpus.json"
TOKENIZER_FOLDER = "tokenizer"
BLOCK = 1 << 22  # number of bytes; the checksums of existing corpora depend on it
ADVICE = "Delete the folder and write the corpus again."


class Shard(TypedDict):
    """Record of a corpus file: its name, size and checksums, and its numbers of documents, sentences and tokens.

    Attributes:
        name: str, name of the file.
        documents: int, number of documents in the file.
        sentences: int, number of sentences in the file.
        tokens: int, number of tokens in the file.
        special: int, number of special tokens spelled out in the text; missing in corpora of earlier versions.
        size: int, size of the file in bytes.
        sha256: str, SHA-256 digest of the file.
        crc32: list of ints, CRC-32 checksum of every `BLOCK` bytes; missing in corpora of earlier versions.
        read: int, number of documents read up to the end of the file, including earlier files and empty documents.
        digest: str, digest of the sentences of the `read` documents; missing in corpora of earlier versions.
    """

    name: str
    documents: int
    sentences: int
    tokens: int
    special: NotRequired[int]
    size: int
    sha256: str
    crc32: NotRequired[list[int]]
    read: int
    digest: NotRequired[str]


class TokenizerIdentity(TypedDict):
    """The identity of a tokenizer: its class, its arguments, and the digest of its files.

    Attributes:
        name: str, registered name of the class.
        config: dict, constructor arguments.
        sha256: str, digest of the files.
    """

    name: str
    config: dict[str, Any]
    sha256: str


@dataclass
class Index:
    """Content of `corpus.json`, the index of a corpus.

    Attributes:
        tokenizer: `TokenizerIdentity` of the tokenizer that made the ids.
        dtype: str, NumPy name of the ids' dtype, such as "uint16".
        shards: list of `Shard`, the files of the corpus.
        complete: bool, whether all documents have been written.
        format: int, version of the format, 1.
    """

    tokenizer: TokenizerIdentity
    dtype: str
    shards: list[Shard]
    complete: bool = False
    format: int = 1

    @classmethod
    def read(cls, folder: Path) -> Index:
        """Read the index of a corpus.

        Raises:
            FileNotFoundError: If the directory has no index.
            ValueError: If the index is damaged or its format is not supported.
        """
        path = folder / INDEX_FILE
        if not path.exists():
            raise FileNotFoundError(f"{folder} holds no corpus ({INDEX_FILE} is missing). `write_corpus` makes one.")
        try:
            index = cls(**json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} does not describe a corpus ({error}). {ADVICE}") from None
        if index.format == 1 and (problem := index.problem()):
            raise ValueError(f"{path} does not describe a corpus ({problem}). {ADVICE}")
        if index.format != 1:
            raise ValueError(
                f"{path} is of format {index.format}, this lmzoo reads format 1: a newer one may be needed."
            )
        return index

    def problem(self) -> str:
        """Return a description of the first invalid entry, or "" if the index is valid."""
        if self.dtype not in ("uint16", "int32"):
            return f"ids of {self.dtype!r:.40}"
        entry_types = (
            {name: type(value) for name, value in self.tokenizer.items()} if type(self.tokenizer) is dict else {}
        )
        if entry_types != {"name": str, "config": dict, "sha256": str}:
            return "an incomplete tokenizer"
        for shard in self.shards if type(self.shards) is list else [None]:
            if type(shard) is not dict or not re.fullmatch(r"shard-\d+\.bin", str(shard.get("name"))):
                return f"no file of a corpus: {shard!r:.60}"
            counts = [shard.get(name) for name in ("documents", "sentences", "tokens", "size", "read")]
            if not all(type(count) is int and count >= 0 for count in counts):
                return f"{shard['name']} without its sizes"
            expected_size = (
                8 * (shard["documents"] + shard["sentences"] + 2) + np.dtype(self.dtype).itemsize * shard["tokens"]
            )
            if expected_size != shard["size"]:
                return f"{shard['name']} with {shard['size']} bytes instead of {expected_size}"
        return ""

    def write(self, folder: str | Path) -> None:
        """Write the index, replacing an older one."""
        save_json(join_path(folder, INDEX_FILE), vars(self))

    def check_tokenizer(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Check that a tokenizer is the one that made the corpus.

        Raises:
            ValueError: If the corpus was made with another tokenizer.
        """
        identity = identity_of(tokenizer)
        if identity != self.tokenizer:
            raise ValueError(
                f"{folder} was made with another tokenizer, a {self.tokenizer['name']} (sha256 "
                f"{self.tokenizer['sha256'][:8]}); this is a {identity['name']} ({identity['sha256'][:8]}). Use "
                "`TokenCorpus(folder).tokenizer`, or write a corpus for your tokenizer into another folder."
            )

    def check_files(self, folder: Path) -> None:
        """Check that all files exist and have the right sizes.

        Raises:
            FileNotFoundError: If a file is missing; the message names it.
            ValueError: If a file has the wrong size; the message names it.
        """
        for shard in self.shards:
            path = folder / shard["name"]
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing. {ADVICE}")
            if (size := path.stat().st_size) != shard["size"]:
                raise ValueError(f"{path} has {size:,} bytes and should have {shard['size']:,}. {ADVICE}")


def compute_checksums(content: np.ndarray) -> list[int]:
    """Return the CRC-32 of every `BLOCK` bytes of a file.

    Args:
        content: uint8 array, bytes of the file.
    """
    return [zlib.crc32(content.data[begin : begin + BLOCK]) for begin in range(0, len(content), BLOCK)]


def get_dtype_name(tokenizer: Tokenizer) -> str:
    """Return the NumPy name of the dtype that corpus files use for a tokenizer's ids."""
    return "uint16" if tokenizer.vocabulary_size <= 1 << 16 else "int32"


def identity_of(tokenizer: Tokenizer) -> TokenizerIdentity:
    """Return the identity of a tokenizer: its class, its arguments, and the digest of its files.

    Raises:
        ValueError: If the tokenizer has no vocabulary, since a corpus stores token ids.
    """
    if not tokenizer.vocabulary:
        raise ValueError(
            f"A corpus holds ids, and a {type(tokenizer).__name__} has none: `BidirectionalLM` learns from the "
            "documents themselves."
        )
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_assets(folder)
        for name in sorted(os.listdir(folder)):
            digest.update(name.encode() + b"\n" + Path(folder, name).read_bytes())
    name = keras.saving.get_registered_name(type(tokenizer))
    # Turn tuples into lists, so that the config equals one that was read from JSON.
    config = json.loads(json.dumps(tokenizer.get_config()))
    return {"name": name, "config": config, "sha256": digest.hexdigest()}
