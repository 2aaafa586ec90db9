"""Which documents are worth training on: of some length, in some languages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lmzoo.errors import ArgumentError

_PROBE = 2000  # characters that tell the language


@dataclass
class DocumentFilter:
    """A filter of documents, which counts why it leaves them out.

    Attributes:
        min_characters: int, documents with fewer are left out.
        max_characters: int, documents with more are left out; None for no limit.
        languages: codes such as "en"; documents in others are left out. Empty for all languages.
        left_out: how many documents were left out, by the reason.
    """

    min_characters: int = 0
    max_characters: int | None = None
    languages: tuple[str, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)

    def kept(self, documents: Iterable[Sequence[str]]) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield the documents that stay, each with its position."""
        for position, sentences in enumerate(documents):
            if reason := self._reason(sentences):
                self.left_out[reason] = self.left_out.get(reason, 0) + 1
            else:
                yield position, sentences

    def _reason(self, sentences: Sequence[str]) -> str:
        count = sum(map(len, sentences))
        if count < self.min_characters:
            return "too short"
        if self.max_characters is not None and count > self.max_characters:
            return "too long"
        if self.languages and language_of(sentences) not in self.languages:
            return "other languages"
        return ""


def language_of(sentences: Sequence[str]) -> str:
    """Return the code of the language that the beginning of a document is most likely in, such as "en".

    Raises:
        ImportError: if py3langid is not installed.
    """
    try:
        import py3langid
    except ImportError:
        raise ImportError("Recognizing languages needs py3langid: pip install 'lmzoo[scale]'.") from None
    return py3langid.classify("\n".join(sentences)[:_PROBE])[0]


def check_languages(languages: Sequence[str]) -> None:
    """Check that there are such languages.

    Raises:
        ValueError: naming one that cannot be told from others.
    """
    if languages:
        language_of(["."])  # loads the model, or says what is missing
        import py3langid

        known = sorted({code for code, _ in py3langid.rank(".")})
        if unknown := [language for language in languages if language not in known]:
            message = f"The language {unknown[0]!r} is unknown. Known are {', '.join(known)}."
            raise ArgumentError(message, "languages")
