"""The documents to train on, and those that are held out, of one text or of a mixture of several."""

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
from lmzoo.errors import ArgumentError
from lmzoo.files.urls import absolute, open_to_read, size_of
from lmzoo.text.word_splitting import words_of

Text: TypeAlias = str | Path | Iterable[str | Path] | Iterable[Sequence[str]] | Mapping[str, float]

_HELD_OUT = 100  # one of so many documents is held out
_HEAD = 1 << 16  # bytes at the beginning of a file that are compared, in addition to its name and size


class TextSource:
    """Documents in files or in memory, which can be iterated over several times.

    `source` is files, folders or patterns, or documents, each a list of sentences; for `field` and `split` see
    `lmzoo.data.corpora.read_documents`. In a mixture each text has a `name`, and a `share` of the tokens.

    Raises:
        TypeError: for a source that can be iterated over only once, or not at all.
    """

    def __init__(
        self, source: Any, field: str = "text", split: bool = True, name: str = "", share: float = 1.0
    ) -> None:
        self.name, self.share = name, share
        if isinstance(source, Iterator):
            raise TypeError(
                f"Text is read several times, which a {type(source).__name__} does not allow: pass a list, or an "
                "object whose `__iter__` starts from the beginning."
            )
        listed = [source] if isinstance(source, (str, Path)) else source
        check_documents(listed)
        self.in_files = isinstance(next(iter(listed), None), (str, Path))
        self._source, self._field, self._split = listed, field, split

    def __iter__(self) -> Iterator[list[str]]:
        """Return the documents as lists of sentences."""
        if self.in_files:
            return read_documents(self._source, self._field, self._split)
        return split_documents(self._source, self._field, self._split)

    def files(self) -> list[str]:
        """Return the files; none if the documents are in memory."""
        return [path for source in self._source for path in text_files(source)] if self.in_files else []

    def identity(self) -> dict[str, object]:
        """Identify the text: by the names, sizes and beginnings of files, or by all documents in memory.

        Raises:
            FileNotFoundError: if a file does not exist.
        """
        digest = hashlib.sha256()
        found: dict[str, object] = {}
        if self.in_files:
            paths, size = self.files(), 0
            for path in paths:
                with open_to_read(path) as file:
                    digest.update(f"{os.path.basename(path)}\n{size_of(path)}\n".encode() + file.read(_HEAD))
                size += size_of(path)
            found = {"files": len(paths), "bytes": size}
        else:
            for document in self:
                digest.update("\n".join([*document, "\n"]).encode())
        return {**found, "sha256": digest.hexdigest()[:16]}


class TrainingDocuments:
    """The documents of a text, or the one of `every` that is held out (`held`), or the others."""

    def __init__(self, text: TextSource, every: int | None = None, held: bool = False) -> None:
        self.text, self.every, self.held = text, every, held
        self.name, self.share = text.name, text.share

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the documents as lists of sentences."""
        for i, document in enumerate(self.text):
            if self.every is None or (i % self.every == self.every - 1) == self.held:
                yield document


class MixedDocuments:
    """The documents of several texts, repeated or left out evenly so that each text has its share of the characters."""

    def __init__(self, texts: Sequence[TrainingDocuments]) -> None:
        self._texts = texts

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the documents as lists of sentences; as many characters as all texts have."""
        if len(self._texts) == 1:
            yield from self._texts[0]
            return
        sizes = [sum(len(sentence) for document in text for sentence in document) for text in self._texts]
        for text, size in zip(self._texts, sizes, strict=True):
            times, due = text.share * sum(sizes) / size, 0.5
            for document in text:
                due += times
                yield from itertools.repeat(document, int(due))
                due %= 1


def read_texts(source: Any, field: str = "text", split: bool = True) -> list[TextSource]:
    """Return the text of a source, or the texts of a mixture, each with its name and share.

    Args:
        source: as for `TextSource`; or a mixture, a mapping from files, folders or patterns to weights.
        field: see `lmzoo.data.corpora.read_documents`.
        split: see `lmzoo.data.corpora.read_documents`.

    Raises:
        FileNotFoundError: if a file of a mixture does not exist.
        TypeError: as `TextSource`; for a mixture of something else than files.
        ValueError: for a weight that is not above 0, or a file in two texts.
    """
    if not isinstance(source, Mapping):
        return [TextSource(source, field, split)]
    require(len(source), "corpus", "at least one text", source)
    for path, weight in source.items():
        if not isinstance(path, (str, Path)):
            raise TypeError(f"A mixture has files, folders or patterns and their weights, got {path!r:.60}.")
        allowed = "a finite number above 0"
        require(is_number(weight, 0) and 0 < weight < math.inf, f"the weight of {path}", allowed, weight)
    names = _names(list(source)) if len(source) > 1 else [""]
    weights = [float(weight) for weight in source.values()]
    shares = [weight / sum(weights) for weight in weights]
    parts = zip(source, names, shares, strict=True)
    texts = [TextSource(path, field, split, name, share) for path, name, share in parts]
    owners: dict[str, str] = {}
    for text in texts:
        for file in text.files():
            if (owner := owners.setdefault(absolute(file), text.name)) != text.name:
                raise ValueError(f"{file} is in two texts, {owner} and {text.name}: each file has one weight.")
    return texts


def _names(paths: Sequence[str | Path]) -> list[str]:
    """Return a name for each file, folder or pattern: its last part, without wildcards and suffixes."""
    names: list[str] = []
    for path in paths:
        parts = [re.split(r"[*?\[.]", part)[0] for part in str(path).split("/")]
        words = [found for part in parts if (found := re.sub(r"\W+", "_", part).strip("_"))]
        name = words[-1] if words else "text"
        candidates = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        names.append(next(candidate for candidate in candidates if candidate not in names))
    return names


def describe_shares(texts: Sequence[TrainingDocuments]) -> str:
    """Return the shares of the texts of a mixture, after a colon; nothing for one text."""
    return ": " + ", ".join(f"{text.share:.1%} {text.name}" for text in texts) if len(texts) > 1 else ""


def identity_of(texts: Sequence[TextSource]) -> dict[str, object]:
    """Identify a text, or the texts of a mixture and their shares; see `TextSource.identity`."""
    if len(texts) == 1:
        return texts[0].identity()
    return {text.name: {"share": round(text.share, 9), **text.identity()} for text in texts}


def split_held_out(
    corpus: Sequence[TextSource], validation: Sequence[TextSource] | None
) -> tuple[list[TrainingDocuments], list[TrainingDocuments]]:
    """Return the documents to train on and those to evaluate on, of each text.

    Without `validation`, one of every hundred documents of each text is held out, or the last one if there are fewer
    than a hundred.

    Raises:
        ValueError: if a text has no words, or a file is for both.
    """
    if validation is not None:
        known = {absolute(file) for text in corpus for file in text.files()}
        if both := [file for text in validation for file in text.files() if absolute(file) in known]:
            message = f"{', '.join(both)}: text to train on and to evaluate on (`validation`) must differ."
            raise ArgumentError(message, "validation")
        train, held = ([TrainingDocuments(text) for text in texts] for texts in (corpus, validation))
    else:
        train, held = [], []
        for text in corpus:
            count = sum(1 for _ in itertools.islice(text, _HELD_OUT))
            if count == 1:
                raise ArgumentError(
                    f"{_called(text, 'The corpus')} holds 1 document, too few to hold any out: pass text to evaluate "
                    "on (`validation`), or put blank lines between documents.",
                    "validation",
                )
            train.append(TrainingDocuments(text, count))
            held.append(TrainingDocuments(text, count, held=True))
    for documents, name in ((train, "corpus"), (held, "text to evaluate on (`validation`)")):
        for part in documents:
            if not any(words_of(sentence) for document in part for sentence in document):
                raise ValueError(f"There are no words in {_called(part.text, f'the {name}')}.")
    return train, held


def _called(text: TextSource, what: str) -> str:
    """Return what a message calls a text: in a mixture, its name as well."""
    return f"{what}, in the text {text.name}," if text.name else what
