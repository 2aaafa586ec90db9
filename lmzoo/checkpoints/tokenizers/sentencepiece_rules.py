"""What is done to texts before SentencePiece as rules in its model: ALBERT's clean-up, and Unicode's composition."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import defaultdict
from typing import Any

from lmzoo.errors import PresetError
from lmzoo.text import SentencePieceTokenizer
from lmzoo.text.tokenizers.sentencepiece import read_model
from lmzoo.text.tokenizers.sentencepiece_text import QUOTES, CharacterMap, character_map, every_character

# The name of the rules in the model. It tells the settings, which would be hard to infer from the rules.
_NAME = "lmzoo lowercase={lowercase} keep_accents={keep_accents}"
_KNOWN_NAME = re.compile(_NAME.format(lowercase="(True|False)", keep_accents="(True|False)"))


def with_clean_up(tokenizer: SentencePieceTokenizer) -> SentencePieceTokenizer:
    """Return the tokenizer with a model that cleans texts itself, by rules that do both clean-ups in one step.

    No rule can join letters of Hangul once an accent between them is removed: they stay separate.

    Raises:
        PresetError: if there are no such rules.

    Example:

    ```python
    from lmzoo.checkpoints.tokenizers.sentencepiece_rules import with_clean_up
    from lmzoo.text import SentencePieceTokenizer

    with_clean_up(SentencePieceTokenizer.of_words(["the"], size=7)).backend.normalize("Thé")  # '▁the'
    ```
    """
    settings = {"lowercase": tokenizer.lowercase, "keep_accents": tokenizer.keep_accents}
    if clean_up_in(tokenizer.model) == settings:
        return tokenizer
    proto = read_model(tokenizer.model)
    spec, characters = proto.normalizer_spec, character_map(**settings)
    own = _normalizer(normalizer_spec=spec)
    sources = [source for source, _ in own.decompile()] if spec.precompiled_charsmap else []
    sources += _uncleaned(sources, characters)
    sources = list(dict.fromkeys([*sources, *map(chr, characters.changes()), *QUOTES]))
    results = own.normalize(['"' if source in QUOTES else source.translate(characters) for source in sources])
    rules = [(source, result) for source, result in zip(sources, results, strict=True) if source != result]
    both = _normalizer(norm_map=rules)
    if both.normalize(sources) != results:
        raise PresetError(f"SentencePiece cannot add rules for {settings} to those of the model, {spec.name!r}.")
    spec.precompiled_charsmap = type(spec).FromString(both.serialized_normalizer_spec()).precompiled_charsmap
    spec.remove_extra_whitespaces = True
    spec.name = _NAME.format(**settings)
    return SentencePieceTokenizer(proto.SerializeToString(deterministic=True), **tokenizer.get_config())


def _uncleaned(sources: list[str], characters: CharacterMap) -> list[str]:
    """Return strings to which one of the model's rules, which replace `sources`, applies only after the clean-up.

    Their first character, such as a capital with an accent or a syllable, becomes the beginning of a rule's source.
    """
    before = defaultdict(list)
    for code, cleaned in characters.changes().items():
        before[cleaned].append(chr(code))
    return [
        character + source[end:]
        for source in sources
        for end in range(1, len(source))
        if source[:end] in before and source[end:].translate(characters)
        for character in before[source[:end]]
    ]


@functools.lru_cache(maxsize=1)
def composing_rules() -> bytes:
    """Return the rules that compose characters, Unicode's NFC, as the `precompiled_charsmap` of a model. Takes seconds.

    They compose a letter and its marks, also if some of these are composed already. They do not sort marks that are in
    another order than Unicode's.

    Example:

    ```python
    from lmzoo.checkpoints.tokenizers.sentencepiece_rules import composing_rules
    from lmzoo.text.tokenizers.precompiled_rules import PrecompiledRules

    PrecompiledRules(composing_rules()).clean("cafe\u0301")  # 'café'
    ```
    """
    rules: dict[str, str] = {}
    for character in every_character():
        composed = unicodedata.normalize("NFC", character)
        if composed != character:
            rules[character] = composed
            continue
        marks = unicodedata.normalize("NFD", character)
        for end in range(1, len(marks)):
            rules[unicodedata.normalize("NFC", marks[:end]) + marks[end:]] = character
    spec = _normalizer(norm_map=list(rules.items())).serialized_normalizer_spec()
    return bytes(type(read_model(b"").normalizer_spec).FromString(spec).precompiled_charsmap)


def _normalizer(**source: Any) -> Any:
    """Return SentencePiece's normalizer with its rules alone: spaces are left as they are."""
    import sentencepiece

    sentencepiece.set_min_log_level(1)  # it would log the number of rules
    try:
        return sentencepiece.SentencePieceNormalizer(
            **source, add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
        )
    finally:
        sentencepiece.set_min_log_level(0)


def clean_up_in(model: bytes) -> dict[str, bool] | None:
    """Return the settings of the clean-up that `with_clean_up` put into a model's rules; None if it did not."""
    match = _KNOWN_NAME.fullmatch(read_model(model).normalizer_spec.name)
    return {"lowercase": match[1] == "True", "keep_accents": match[2] == "True"} if match else None
