"""A SentencePiece model's own rules for cleaning texts, applied the way Hugging Face's `tokenizers` applies them.

The rules are applied to one grapheme cluster after another, such as a letter and its accents. If a cluster of at most
five bytes begins with the source of a rule, the rule's result replaces the whole cluster; otherwise, each character is
replaced separately. SentencePiece itself replaces the longest source at each place, and so it also composes clusters
of more than five bytes, such as Hangul.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lmzoo.text.tokenizers.sentencepiece_text import WHITE_SPACE, Aligned, list_cleaned_characters, squeeze

if TYPE_CHECKING:
    from tokenizers import normalizers

MOST_BYTES = 5  # maximum size of a cluster that is replaced as a whole
# Kinds of characters: plain, continuing a cluster, separating clusters, and joining the next character to a cluster.
PLAIN, EXTEND, CONTROL, PREPEND = range(4)
_SPACES = re.compile(f"[{''.join(WHITE_SPACE)}]+")


class PrecompiledRules:
    r"""The cleaning rules of a SentencePiece model.

    Args:
        charsmap: bytes, the model's `precompiled_charsmap`; empty if it has no rules.

    Example:

    ```python
    from lmzoo.text.tokenizers.precompiled_rules import PrecompiledRules

    PrecompiledRules(b"").clean(" a\t  b")  # 'a b'
    ```
    """

    def __init__(self, charsmap: bytes) -> None:
        self._charsmap = charsmap

    @functools.cached_property
    def _normalizer(self) -> normalizers.Precompiled | None:
        """The rules as a normalizer of `tokenizers`, or None if the model has no rules."""
        # Imported here so that `import lmzoo` stays as light as Keras.
        from tokenizers import normalizers

        return normalizers.Precompiled(self._charsmap) if self._charsmap else None

    @functools.cached_property
    def _rules(self) -> dict[str, str]:
        """Mapping from the source of each rule to its result."""
        from sentencepiece import SentencePieceNormalizer, sentencepiece_model_pb2

        if not self._charsmap:
            return {}
        spec = sentencepiece_model_pb2.NormalizerSpec(precompiled_charsmap=self._charsmap)
        rules = SentencePieceNormalizer(
            normalizer_spec=spec, add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
        )
        return dict(rules.decompile())

    @functools.cached_property
    def character_replacements(self) -> Mapping[str, str]:
        """Replacement of each character that changes; whitespace becomes a space."""
        replacements = dict.fromkeys(WHITE_SPACE, " ") | self.exact_replacements
        return {
            source: _SPACES.sub(lambda match: " " * len(match[0]), result) for source, result in replacements.items()
        }

    @functools.cached_property
    def exact_replacements(self) -> dict[str, str]:
        """Replacement of each character that has a rule, with unchanged whitespace."""
        return {source: result for source, result in self._rules.items() if len(source) == 1}

    @functools.cached_property
    def sources(self) -> Collection[str]:
        """Single characters that have a rule."""
        return {source for source in self._rules if len(source) == 1}

    @functools.cached_property
    def pair_replacements(self) -> Mapping[str, str]:
        """Replacement of each pair of characters that change together in a cluster of at most `MOST_BYTES` bytes."""
        sources = [s for s in self._rules if len(s) == 2 and len(s.encode()) <= MOST_BYTES and s[0] not in self._rules]
        return {source: self._rules[source] for source in sources}

    def clean(self, text: str) -> str:
        """Apply the rules to a text, collapse its whitespace and strip spaces at both ends."""
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        return _SPACES.sub(" ", text).strip(" ")

    def align(self, text: str, begin: int = 0) -> Aligned:
        """Clean a text, and return it with the original offsets of its characters, counted from `begin`."""
        replacements = [self.character_replacements.get(character, character) for character in text]
        for match in _make_cluster_pattern().finditer(text):
            cluster = match[0]
            size = len(cluster)
            replacement = (
                self.character_replacements[cluster[0]]
                if cluster[0] in self.sources
                else self.pair_replacements.get(cluster[:2])
            )
            if replacement is not None and len(cluster.encode()) <= MOST_BYTES:
                # The result's characters replace the cluster's characters one by one; the last place gets the rest.
                replacements[match.start() : match.end()] = [
                    *(replacement[i : i + 1] for i in range(size - 1)),
                    replacement[size - 1 :],
                ]
        return squeeze(replacements, np.ones(len(text), "int64"), begin)


precompiled_rules = functools.lru_cache(maxsize=8)(PrecompiledRules)


def compile_rules(rules: Sequence[tuple[str, str]]) -> bytes:
    """Compile rules, pairs of a source and its result, into the `precompiled_charsmap` of a SentencePiece model.

    Example:

    ```python
    from lmzoo.text.tokenizers.precompiled_rules import PrecompiledRules, compile_rules

    PrecompiledRules(compile_rules([("½", "1/2")])).clean("½ cup")  # '1/2 cup'
    ```
    """
    from sentencepiece import sentencepiece_model_pb2

    serialized_spec = make_normalizer(norm_map=list(rules)).serialized_normalizer_spec()
    return bytes(sentencepiece_model_pb2.NormalizerSpec.FromString(serialized_spec).precompiled_charsmap)


def make_normalizer(**source: Any) -> Any:
    """Return a SentencePiece normalizer that only applies rules; `source` is the library's argument with the rules."""
    import sentencepiece

    sentencepiece.set_min_log_level(1)  # suppress a log line about the number of rules
    try:
        return sentencepiece.SentencePieceNormalizer(
            **source, add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
        )
    finally:
        sentencepiece.set_min_log_level(0)


@functools.lru_cache(maxsize=1)
def character_kinds() -> tuple[np.ndarray, np.ndarray]:
    """Return the kind of each code point, which tells how it takes part in grapheme clusters.

    Kinds are determined by running the rules of `tokenizers` on every code point, so that they follow its version of
    Unicode. The first call takes two seconds.

    Returns:
        Two int32 arrays (R,) for R runs of code points of one kind: the first code point of each run, in ascending
        order from 0, and the kind: `EXTEND`, `CONTROL`, `PREPEND` or `PLAIN`.
    """
    from tokenizers import normalizers

    charsmap = compile_rules([("½", "x"), ("A\u0300", "B"), ("\u0301\u0301", "z")])
    normalizer = normalizers.Precompiled(charsmap)
    characters = [character for character in list_cleaned_characters() if character not in "\r\n½"]
    kinds = np.zeros(0x110000, "int32")

    def clean_all(before: str, after: str) -> list[str]:
        """Return the results of the rules for each character, placed between the strings `before` and `after`."""
        text = "\n".join(f"{before}{character}{after}" for character in characters)
        return normalizer.normalize_str(text).split("\n")

    # A character that continues a cluster vanishes with it, or makes it too long to be replaced.
    short_results = clean_all("½", "")
    long_results = clean_all("A\u0300", "")
    for character, short_result, long_result in zip(characters, short_results, long_results, strict=True):
        is_short = len(character.encode()) + 2 <= MOST_BYTES
        if (short_result if is_short else long_result) != ("x" if is_short else "B") + character:
            kinds[ord(character)] = EXTEND
    for character, result in zip(characters, clean_all("", "A\u0300"), strict=True):
        if not result.endswith("B"):
            kinds[ord(character)] = PREPEND
    for character, result in zip(characters, clean_all("", "\u0301\u0301"), strict=True):
        if result.endswith("z"):
            kinds[ord(character)] = CONTROL
    kinds[[ord("\r"), ord("\n")]] = CONTROL
    starts = np.flatnonzero(np.diff(kinds, prepend=-1))
    return starts.astype("int32"), kinds[starts]


@functools.lru_cache(maxsize=1)
def _make_cluster_pattern() -> re.Pattern[str]:
    """Return a pattern that matches each grapheme cluster of two or more characters."""
    starts, kinds = character_kinds()
    ends = np.append(starts[1:], 0x110000) - 1
    runs = list(zip(kinds.tolist(), starts.tolist(), ends.tolist(), strict=True))

    def make_ranges(kind: int) -> str:
        return "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for run_kind, a, b in runs if run_kind == kind)

    extend = make_ranges(EXTEND)
    prepend = make_ranges(PREPEND)
    base = f"[^{make_ranges(CONTROL)}{make_ranges(PREPEND)}]"
    return re.compile(f"[{prepend}]+{base}[{extend}]*|{base}[{extend}]+")
