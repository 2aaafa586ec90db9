"""Groups of tokens that share characters of a text."""

from __future__ import annotations

from collections.abc import Iterable

from lmzoo.text import TokenSpan


def group_by_characters(pieces: Iterable[TokenSpan]) -> list[list[TokenSpan]]:
    """Return groups of pieces that share characters, such as "ᄒ ##ᅡ ##ᆫ" of "한" or "k g" of "㎏"."""
    groups: list[list[TokenSpan]] = []
    for piece in pieces:
        if groups and piece.start < max(member.end for member in groups[-1]):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups
