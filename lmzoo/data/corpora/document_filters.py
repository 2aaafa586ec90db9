"""Filters of documents by length and language."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lmzoo.errors import ArgumentError

_LANGUAGE_CHARACTERS = 2000  # number of leading characters that determine the language


@dataclass
class DocumentFilter:
    """A filter of documents by length and language, which counts the dropped documents by reason.

    Attributes:
        min_characters: int, minimum length of a document.
        max_characters: int, maximum length of a document; None for no limit.
        languages: tuple of codes such as "en", the accepted languages; empty for all languages.
        left_out: dict, number of dropped documents by reason.
    """

    min_characters: int = 0
    max_characters: int | None = None
    languages: tuple[str, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)

    def kept(self, documents: Iterable[Sequence[str]]) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield the documents that pass the filter, each with its position."""
        for position, sentences in enumerate(documents):
            if reason := self._reason(sentences):
                self.left_out[reason] = self.left_out.get(reason, 0) + 1
            else:
                yield position, sentences

    def _reason(self, sentences: Sequence[str]) -> str:
        """Return the reason for dropping a document, or "" to accept it."""
        num_characters = sum(map(len, sentences))
        if num_characters < self.min_characters:
            return "too short"
        if self.max_characters is not None and num_characters > self.max_characters:
            return "too long"
        if self.languages and detect_language(sentences) not in self.languages:
            return "other languages"
        return ""


def detect_language(sentences: Sequence[str]) -> str:
    """Detect the language of a document from its beginning, and return its code, such as "en".

    Raises:
        ImportError: If py3langid is not installed.
    """
    try:
        import py3langid
    except ImportError:
        raise ImportError("Recognizing languages needs py3langid: pip install 'lmzoo[scale]'.") from None
    return py3langid.classify("\n".join(sentences)[:_LANGUAGE_CHARACTERS])[0]


def check_languages(languages: Sequence[str]) -> None:
    """Check that all languages can be recognized.

    Raises:
        ValueError: If a language cannot be recognized; the message names it.
        ImportError: If py3langid is not installed.
    """
    if languages:
        detect_language(["."])  # loads the model, or raises an error if it is not installed
        import py3langid

        supported_languages = sorted({code for code, _ in py3langid.rank(".")})
        if unsupported_languages := [language for language in languages if language not in supported_languages]:
            message = (
                f"The language {unsupported_languages[0]!r} is unknown. Known are {', '.join(supported_languages)}."
            )
            raise ArgumentError(message, "languages")
