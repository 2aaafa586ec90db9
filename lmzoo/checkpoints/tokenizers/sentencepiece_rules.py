"""ALBERT's text clean-up, and Unicode's composition, as rules of a SentencePiece model."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import defaultdict

from lmzoo.errors import PresetError
from lmzoo.text import SentencePieceTokenizer
from lmzoo.text.tokenizers.precompiled_rules import compile_rules, make_normalizer
from lmzoo.text.tokenizers.sentencepiece import read_model
from lmzoo.text.tokenizers.sentencepiece_text import QUOTES, CharacterMap, character_map, list_cleaned_characters

# Name of the rules in the model. It holds the settings, which are hard to infer from the rules.
_NAME = "lmzoo lowercase={lowercase} keep_accents={keep_accents}"
_NAME_PATTERN = re.compile(_NAME.format(lowercase="(True|False)", keep_accents="(True|False)"))


def add_clean_up(tokenizer: SentencePieceTokenizer) -> SentencePieceTokenizer:
    """Return a tokenizer whose SentencePiece model includes the text clean-up in its normalization rules.

    Hangul letters that are adjacent only after an accent is removed stay separate, since no rule can join them.

    Raises:
        PresetError: If SentencePiece cannot combine the clean-up with the model's own rules.

    Example:

    ```python
    from lmzoo.checkpoints.tokenizers.sentencepiece_rules import add_clean_up
    from lmzoo.text import SentencePieceTokenizer

    add_clean_up(SentencePieceTokenizer.of_words(["the"], size=7)).backend.normalize("Thé")  # '▁the'
    ```
    """
    settings = {"lowercase": tokenizer.lowercase, "keep_accents": tokenizer.keep_accents}
    if read_clean_up(tokenizer.model) == settings:
        return tokenizer
    proto = read_model(tokenizer.model)
    spec = proto.normalizer_spec
    clean_up_map = character_map(**settings)
    normalizer = make_normalizer(normalizer_spec=spec)
    sources = [source for source, _ in normalizer.decompile()] if spec.precompiled_charsmap else []
    sources += _find_uncleaned(sources, clean_up_map)
    sources = list(dict.fromkeys([*sources, *map(chr, clean_up_map.changes()), *QUOTES]))
    targets = normalizer.normalize(['"' if source in QUOTES else source.translate(clean_up_map) for source in sources])
    rules = [(source, target) for source, target in zip(sources, targets, strict=True) if source != target]
    combined_normalizer = make_normalizer(norm_map=rules)
    if combined_normalizer.normalize(sources) != targets:
        raise PresetError(f"SentencePiece cannot add rules for {settings} to those of the model, {spec.name!r}.")
    spec.precompiled_charsmap = (
        type(spec).FromString(combined_normalizer.serialized_normalizer_spec()).precompiled_charsmap
    )
    spec.remove_extra_whitespaces = True
    spec.name = _NAME.format(**settings)
    return SentencePieceTokenizer(proto.SerializeToString(deterministic=True), **tokenizer.get_config())


def _find_uncleaned(sources: list[str], clean_up_map: CharacterMap) -> list[str]:
    """Return the strings that become a source of the model's rules only after the clean-up.

    The clean-up maps the first character of such a string, such as an accented capital, to the beginning of a source.

    Args:
        sources: Strings that the model's rules replace.
        clean_up_map: Character map of the clean-up.
    """
    originals = defaultdict(list)
    for code, replacement in clean_up_map.changes().items():
        originals[replacement].append(chr(code))
    return [
        character + source[end:]
        for source in sources
        for end in range(1, len(source))
        if source[:end] in originals and source[end:].translate(clean_up_map)
        for character in originals[source[:end]]
    ]


@functools.lru_cache(maxsize=1)
def make_composition_rules() -> bytes:
    """Return the composition rules of Unicode's NFC as the `precompiled_charsmap` of a SentencePiece model.

    The first call takes seconds. The rules compose a letter and its marks, even if some of them are already composed.
    They do not reorder marks that are not in Unicode's order.

    Example:

    ```python
    from lmzoo.checkpoints.tokenizers.sentencepiece_rules import make_composition_rules
    from lmzoo.text.tokenizers.precompiled_rules import PrecompiledRules

    PrecompiledRules(make_composition_rules()).clean("cafe\u0301")  # 'café'
    ```
    """
    rules: dict[str, str] = {}
    for character in list_cleaned_characters():
        composed_form = unicodedata.normalize("NFC", character)
        if composed_form != character:
            rules[character] = composed_form
            continue
        decomposed_form = unicodedata.normalize("NFD", character)
        for end in range(1, len(decomposed_form)):
            rules[unicodedata.normalize("NFC", decomposed_form[:end]) + decomposed_form[end:]] = character
    return compile_rules(list(rules.items()))


def read_clean_up(model: bytes) -> dict[str, bool] | None:
    """Return the settings of the clean-up that `add_clean_up` has added to a model, or None if it has added none."""
    match = _NAME_PATTERN.fullmatch(read_model(model).normalizer_spec.name)
    return {"lowercase": match[1] == "True", "keep_accents": match[2] == "True"} if match else None
