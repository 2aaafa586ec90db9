"""Sentence splitting."""

from __future__ import annotations

import re

_OPENING = "\"'“‘«(["
_CLOSING = "\"'”’»)\\]"
_END_CANDIDATE = re.compile(rf"(?<![.!?…])[.!?…]+[{_CLOSING}]*\s+|[。！？]+[」』”）]*\s*")
_MAX_WORD_CHARACTERS = 64  # length of the text before a period in which an abbreviation is looked for
# A period after these does not end a sentence.
_ABBREVIATIONS = {
    *("Adm", "Brig", "Capt", "Cf", "Co", "Col", "Cpl", "Dr", "Esq", "Fig", "Figs", "Fr", "Gen", "Gov", "Hon", "Inc"),
    *("Jr", "Lieut", "Lt", "Ltd", "Maj", "Messrs", "Mlle", "Mme", "Mr", "Mrs", "Ms", "Mt", "Prof", "Rep", "Rev", "Sen"),
    *("Sgt", "Sr", "St", "Vol", "approx", "ca", "cf", "ed", "eds", "esp", "fig", "figs", "pp", "viz", "vol", "vs"),
}


def split_sentences(text: str) -> list[str]:
    """Split a paragraph into sentences.

    A sentence ends after `.`, `!`, `?` or `…` with any closing quotes and brackets, if whitespace and then anything
    except a lowercase letter follows; it also ends after `。`, `！` and `？`. A period after a single letter ("J.",
    "e.g.") or a common abbreviation ("Mr.", "vs.") does not end a sentence. This is a rule of thumb, good enough for
    segments of many sentences, where an occasional wrong end does no harm.

    Example:

    ```python
    from lmzoo.text import split_sentences

    split_sentences('"Stay, Dr. Hale!" she said. He left at 5 p.m. and never came back.')
    # ['"Stay, Dr. Hale!" she said.', 'He left at 5 p.m. and never came back.']
    ```
    """
    sentences = []
    begin = 0
    for match in _END_CANDIDATE.finditer(text):
        if _ends_a_sentence(text, begin, match):
            sentences.append(text[begin : match.end()].strip())
            begin = match.end()
    if last_sentence := text[begin:].strip():
        sentences.append(last_sentence)
    return sentences


def _ends_a_sentence(text: str, begin: int, match: re.Match[str]) -> bool:
    """Return whether a match of `_END_CANDIDATE` is the end of a sentence that begins at `begin`."""
    next_start = match.end()
    while text[next_start : next_start + 1] and text[next_start] in _OPENING:
        next_start += 1
    if text[next_start : next_start + 1].islower():
        return False
    if match[0].rstrip() != ".":
        return True
    last_characters = text[max(begin, match.start() - _MAX_WORD_CHARACTERS) : match.start()]
    word = re.split(r"\s", last_characters)[-1].rpartition(".")[2].lstrip(_OPENING)
    return not (word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha()))
