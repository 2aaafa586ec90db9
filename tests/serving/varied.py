"""Texts of words that tiny models know, and of what else there is in text."""

from __future__ import annotations

import random
from collections.abc import Sequence

_ODD = ["é", "e\u0301\u0323", "東京", "\u00a0", "\n", "!", "👩🏽", "\u0301", "ﬁ", "  ", "good film", "don't"]


def varied_text(texts: Sequence[str], count: int, longest: int, seed: int) -> list[str]:
    """Some texts of fewer than `longest` of the words of others."""
    rng = random.Random(seed)
    words = [*" ".join(texts).split(), *_ODD]
    return [rng.choice(["", " "]).join(rng.choices(words, k=rng.randrange(longest))) for _ in range(count)]
