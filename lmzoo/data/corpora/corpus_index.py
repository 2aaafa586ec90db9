"""What a tokenised corpus says of itself: its files, and the tokenizer that made it."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from lmzoo.files.atomic import atomic_file
from lmzoo.text import Tokenizer

INDEX_FILE, TOKENIZER_FOLDER = "corpus.json", "tokenizer"
ADVICE = "Delete the folder and write the corpus again."


@dataclass
class Index:
    """What `corpus.json` holds.

    Attributes:
        tokenizer: see `described`.
        dtype: of the ids, as numpy names it.
        shards: of each its file's name, size and sha256; how many documents, sentences, tokens and special tokens it
            holds; `read`, how many documents were read until its end, empty ones included, and `digest`, that of their
            sentences.
        complete: whether all documents are there.
        format: 1.
    """

    tokenizer: dict[str, Any]
    dtype: str
    shards: list[dict[str, Any]]
    complete: bool = False
    format: int = 1

    @classmethod
    def read(cls, folder: Path) -> Index:
        """Reads the index of a corpus.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if it is damaged or of another format.
        """
        path = folder / INDEX_FILE
        if not path.exists():
            raise FileNotFoundError(f"{folder} holds no corpus ({INDEX_FILE} is missing): make one by `write_corpus`.")
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            index = cls(**stored)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} does not describe a corpus ({error}). {ADVICE}") from None
        if index.format != 1:
            raise ValueError(f"{path} is of format {index.format}, and this lmzoo reads 1: it may need a newer one.")
        return index

    def write(self, folder: Path) -> None:
        """Puts the index in the place of the one that is there."""
        with atomic_file(folder / INDEX_FILE) as temporary:
            temporary.write_text(json.dumps(vars(self), indent=1) + "\n", encoding="utf-8")

    def check_tokenizer(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Checks that ids mean to a tokenizer what they mean in the corpus.

        Raises:
            ValueError: if not.
        """
        found = described(tokenizer)
        if found != self.tokenizer:
            raise ValueError(
                f"{folder} was made with another tokenizer, a {self.tokenizer['name']} (sha256 "
                f"{self.tokenizer['sha256'][:8]}); this is a {found['name']} ({found['sha256'][:8]}). Take "
                "`TokenCorpus(folder).tokenizer`, or write a corpus for yours into another folder."
            )

    def check_files(self, folder: Path) -> None:
        """Checks that all files are there and as long as they should be.

        Raises:
            FileNotFoundError: naming one that is missing.
            ValueError: naming one that is not whole.
        """
        for shard in self.shards:
            path = folder / shard["name"]
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing. {ADVICE}")
            if (size := path.stat().st_size) != shard["size"]:
                raise ValueError(f"{path} has {size:,} bytes and should have {shard['size']:,}. {ADVICE}")


def described(tokenizer: Tokenizer) -> dict[str, Any]:
    """What tells a tokenizer from others: its class, its arguments, and the digest of its files."""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_assets(folder)
        for name in sorted(os.listdir(folder)):
            digest.update(name.encode() + b"\n" + Path(folder, name).read_bytes())
    name = keras.saving.get_registered_name(type(tokenizer))
    return {"name": name, "config": tokenizer.get_config(), "sha256": digest.hexdigest()}
