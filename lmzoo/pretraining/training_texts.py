"""Training documents and held-out documents of a text or of a mixture of texts."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from lmzoo.common.arguments import is_number, require
from lmzoo.data.corpora.documents import read_documents, split_documents, text_files
from lmzoo.data.corpora.tokenized_documents import check_documents
from lmzoo.data.readers.text_files import is_listed
from lmzoo.errors import ArgumentError
from lmzoo.files.urls import exists, get_size, is_in_folder, make_absolute, open_to_read
from lmzoo.text.word_splitting import list_words

Text: TypeAlias = str | Path | Iterable[str | Path] | Iterable[Sequence[str]] | Mapping[str, float]

_HELD_OUT_INTERVAL = 100  # every hundredth document is held out
_HEAD_BYTES = 1 << 16  # beginning of a file that identifies it, with its name and size


class TextSource:
    """The documents of a text, in files or in memory, which can be iterated over several times.

    Args:
        source: files, folders or patterns; or documents, each a list of sentences.
        field: str, key of the text in JSON lines, as for `lmzoo.data.corpora.read_documents`.
        split: bool, whether to split lines into sentences, as for `lmzoo.data.corpora.read_documents`.
        name: str, name of the text in a mixture.
        share: float, fraction of the tokens of a mixture.

    Raises:
        TypeError: If the source is a dict or a table, or cannot be iterated over several times.
    """

    def __init__(
        self, source: Any, field: str = "text", split: bool = True, name: str = "", share: float = 1.0
    ) -> None:
        self.name = name
        self.share = share
        if isinstance(source, Iterator):
            raise TypeError(
                f"Text is read several times, which a {type(source).__name__} does not allow: pass a list, or an "
                "object whose `__iter__` starts from the beginning."
            )
        sources = [source] if isinstance(source, (str, Path)) else source
        check_documents(sources)
        self.in_files = isinstance(next(iter(sources), None), (str, Path))
        self._source = sources
        self._field = field
        self._split = split

    def __iter__(self) -> Iterator[list[str]]:
        """Return an iterator over documents, each a list of sentences."""
        if self.in_files:
            return read_documents(self._source, self._field, self._split)
        return split_documents(self._source, self._field, self._split)

    def files(self) -> list[str]:
        """Return the paths of all files, or an empty list for documents in memory."""
        return [path for source in self._source for path in text_files(source)] if self.in_files else []

    def find_source_around(self, folder: str | Path) -> str | Path | None:
        """Return the folder or pattern of the text by which files of `folder` would be read; None if there is none."""
        for source in self._source if self.in_files else []:
            matches_pattern = not exists(source) and any(is_in_folder(file, folder) for file in text_files(source))
            if matches_pattern or is_listed(folder, source):
                return source
        return None

    def identity(self) -> dict[str, object]:
        """Return values that identify the text in a saved run: sizes and a digest of files, or a digest of documents.

        The digest of a file covers its name, its size and its first 64 kB.

        Raises:
            FileNotFoundError: If a file does not exist.
        """
        digest = hashlib.sha256()
        sizes: dict[str, object] = {}
        if self.in_files:
            paths = self.files()
            total_bytes = 0
            for path in paths:
                with open_to_read(path) as file:
                    digest.update(f"{os.path.basename(path)}\n{get_size(path)}\n".encode() + file.read(_HEAD_BYTES))
                total_bytes += get_size(path)
            sizes = {"files": len(paths), "bytes": total_bytes}
        else:
            for document in self:
                digest.update("\n".join([*document, "\n"]).encode())
        return {**sizes, "sha256": digest.hexdigest()[:16]}


class TrainingDocuments:
    """The training documents or the held-out documents of a text.

    Args:
        text: `TextSource` of all documents.
        every: int n, to hold out the last of every n documents; None to use all documents.
        is_held_out: bool, whether to use the held-out documents instead of the training documents.
    """

    def __init__(self, text: TextSource, every: int | None = None, is_held_out: bool = False) -> None:
        self.text = text
        self.every = every
        self.is_held_out = is_held_out
        self.name = text.name
        self.share = text.share

    def __iter__(self) -> Iterator[list[str]]:
        """Yield documents, each a list of sentences."""
        for i, document in enumerate(self.text):
            if self.every is None or (i % self.every == self.every - 1) == self.is_held_out:
                yield document


class MixedDocuments:
    """The documents of several texts, repeated or skipped so that each text has its share of the characters.

    Args:
        texts: the documents of each text.
    """

    def __init__(self, texts: Sequence[TrainingDocuments]) -> None:
        self._texts = texts

    def __iter__(self) -> Iterator[list[str]]:
        """Yield documents, each a list of sentences, with about as many characters in total as the texts."""
        if len(self._texts) == 1:
            yield from self._texts[0]
            return
        sizes = [sum(len(sentence) for document in text for sentence in document) for text in self._texts]
        for text, size in zip(self._texts, sizes, strict=True):
            copies_per_document = text.share * sum(sizes) / size
            copies_due = 0.5  # copies to yield, accumulated over documents
            for document in text:
                copies_due += copies_per_document
                yield from itertools.repeat(document, int(copies_due))
                copies_due %= 1


def read_texts(source: Any, field: str = "text", split: bool = True) -> list[TextSource]:
    """Return the texts of a mixture, or a list with a single text.

    Args:
        source: source of a `TextSource`; or a mixture, a dict from files, folders or patterns to weights.
        field: str, key of the text in JSON lines, as for `lmzoo.data.corpora.read_documents`.
        split: bool, whether to split lines into sentences, as for `lmzoo.data.corpora.read_documents`.

    Raises:
        FileNotFoundError: If a file of a mixture does not exist.
        TypeError: If the source cannot be iterated over several times, or a mixture has keys that are not paths.
        ValueError: If a mixture is empty, a weight is not a finite number above 0, or a file belongs to two texts.
    """
    if not isinstance(source, Mapping):
        return [TextSource(source, field, split)]
    require(len(source), "corpus", "at least one text", source)
    for path, weight in source.items():
        if not isinstance(path, (str, Path)):
            raise TypeError(f"A mixture has files, folders or patterns and their weights, got {path!r:.60}.")
        allowed_weights = "a finite number above 0"
        require(is_number(weight, 0) and 0 < weight < math.inf, f"the weight of {path}", allowed_weights, weight)
    names = _name_texts(list(source)) if len(source) > 1 else [""]
    weights = [float(weight) for weight in source.values()]
    shares = [weight / sum(weights) for weight in weights]
    named_sources = zip(source, names, shares, strict=True)
    texts = [TextSource(path, field, split, name, share) for path, name, share in named_sources]
    text_names_by_file: dict[str, str] = {}
    for text in texts:
        for file in text.files():
            if (other_name := text_names_by_file.setdefault(make_absolute(file), text.name)) != text.name:
                raise ValueError(f"{file} is in two texts, {other_name} and {text.name}: each file has one weight.")
    return texts


def _name_texts(paths: Sequence[str | Path]) -> list[str]:
    """Return a unique name for each file, folder or pattern: its last part without wildcards and suffixes."""
    names: list[str] = []
    for path in paths:
        components = [re.split(r"[*?\[.]", component)[0] for component in str(path).split("/")]
        words = [word for component in components if (word := re.sub(r"\W+", "_", component).strip("_"))]
        name = words[-1] if words else "text"
        candidates = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        names.append(next(candidate for candidate in candidates if candidate not in names))
    return names


def describe_shares(texts: Sequence[TrainingDocuments]) -> str:
    """Return the shares of the texts of a mixture, such as ": 66.7% films, 33.3% books", or "" for one text."""
    return ": " + ", ".join(f"{text.share:.1%} {text.name}" for text in texts) if len(texts) > 1 else ""


def identify_texts(texts: Sequence[TextSource]) -> dict[str, object]:
    """Return values that identify a text, or the texts of a mixture and their shares, in a saved run."""
    if len(texts) == 1:
        return texts[0].identity()
    return {text.name: {"share": round(text.share, 9), **text.identity()} for text in texts}


def split_held_out(
    corpus: Sequence[TextSource], validation: Sequence[TextSource] | None
) -> tuple[list[TrainingDocuments], list[TrainingDocuments]]:
    """Return the training documents and the held-out documents of each text.

    Args:
        corpus: the texts to train on.
        validation: the held-out texts; None to hold out one of every hundred documents of each text, or the last
            document if there are fewer than a hundred.

    Raises:
        ValueError: If a text has no words or only one document, or a file is in both `corpus` and `validation`.
    """
    if validation is not None:
        corpus_files = {make_absolute(file) for text in corpus for file in text.files()}
        if shared_files := [
            file for text in validation for file in text.files() if make_absolute(file) in corpus_files
        ]:
            message = f"{', '.join(shared_files)}: text to train on and to evaluate on (`validation`) must differ."
            raise ArgumentError(message, "validation")
        train, held_out = ([TrainingDocuments(text) for text in texts] for texts in (corpus, validation))
    else:
        train = []
        held_out = []
        for text in corpus:
            count = sum(1 for _ in itertools.islice(text, _HELD_OUT_INTERVAL))
            if count == 1:
                raise ArgumentError(
                    f"{_describe_text(text, 'The corpus')} holds 1 document, too few to hold any out: pass text to "
                    "evaluate on (`validation`), or put blank lines between documents.",
                    "validation",
                )
            train.append(TrainingDocuments(text, count))
            held_out.append(TrainingDocuments(text, count, is_held_out=True))
    for documents, name in ((train, "corpus"), (held_out, "text to evaluate on (`validation`)")):
        for text_documents in documents:
            if not any(list_words(sentence) for document in text_documents for sentence in document):
                raise ValueError(f"There are no words in {_describe_text(text_documents.text, f'the {name}')}.")
    return train, held_out


def _describe_text(text: TextSource, role: str) -> str:
    """Return a description of a text for messages: `role`, and the text's name if it is in a mixture."""
    return f"{role}, in the text {text.name}," if text.name else role
