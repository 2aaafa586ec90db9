"""Tokenizer classes of transformers, and detection of the class of the tokenizer in a directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import JsonObject
from lmzoo.checkpoints.family_names import names_in_transformers
from lmzoo.checkpoints.tokenizers.format import PIPELINE_FILE
from lmzoo.checkpoints.tokenizers.formats import get_format, select_format
from lmzoo.checkpoints.tokenizers.vocabulary_files import add_file_to_errors
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE, JsonFiles
from lmzoo.registry.family import Family, find_families_by_format
from lmzoo.text import Packing, SpecialTokens, Tokenizer

SETTINGS_FILE = "tokenizer_config.json"
ANY_CLASS = ("PreTrainedTokenizer", "TokenizersBackend")  # generic classes: tokenizer.json determines everything
NO_PACKING = Packing("", "", (), segments=False)
_READING_PACKING = ("AlbertTokenizer",)  # reads `post_processor` from tokenizer.json, like the classes of decoders


@dataclass(frozen=True)
class TokenizerClass:
    """A tokenizer class of transformers and its equivalent in lmzoo.

    Attributes:
        name: Class name in transformers, without "Fast".
        tokenizer: Tokenizer class in lmzoo.
        special_tokens: Special tokens that differ from the defaults of lmzoo's class, by role.
        packing: Packing of the class.
        packs: Whether the class always uses this packing, whatever `tokenizer.json` says.
        is_decoder: Whether it is the class of a family of decoders, whose tokenizers add no special tokens.
    """

    name: str
    tokenizer: type[Tokenizer]
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    packing: Packing = NO_PACKING
    packs: bool = True
    is_decoder: bool = False

    @property
    def tokens_by_role(self) -> dict[str, Any]:
        """The special tokens by role, None for a role without a token."""
        return {role: getattr(self.tokenizer, role) for role in self.tokenizer.roles} | self.special_tokens

    def can_be(self, vocabulary: Iterable[str]) -> bool:
        """Return whether a vocabulary has all special tokens that the class requires."""
        tokens = self.tokens_by_role
        required_tokens = {tokens[role] for role in tokens.keys() - {"mask_token", "other_tokens"}}
        return required_tokens - {None} <= {*vocabulary}


def get_family_class(family: Family) -> TokenizerClass:
    """Return the tokenizer class of a family in transformers, with the name "" if transformers has no such class."""
    is_decoder = family.backbone.causal
    name = ""
    packing = NO_PACKING if is_decoder else family.packing
    if "hf" in family.checkpoints:
        names = names_in_transformers(family)
        name = f"{names.prefix}Tokenizer" if names.tokenizer is None else names.tokenizer
        packing = dataclasses.replace(packing, segments=packing.segments or names.tokenizer_segments)
    packs = not (is_decoder or name in _READING_PACKING)
    return TokenizerClass(name, family.tokenizer, family.special_tokens, packing, packs, is_decoder)


def get_family_packing(family: Family, tokenizer: Tokenizer) -> Packing:
    """Return a family's packing, for a decoder's own tokenizer with the end token that the tokenizer has."""
    packing = family.packing
    end = tokenizer.end_token
    if not (family.backbone.causal and type(tokenizer) is family.tokenizer and packing.end and end):
        return packing
    between = tuple(end if token == packing.end else token for token in packing.between)
    return dataclasses.replace(packing, end=end, between=between)


def list_tokenizer_classes() -> dict[str, TokenizerClass]:
    """Return the supported tokenizer classes by name, beginning with families that use the default special tokens."""
    classes: dict[str, TokenizerClass] = {}
    for tokenizer_class in _list_family_classes():
        if tokenizer_class.name:
            classes.setdefault(tokenizer_class.name, tokenizer_class)
    return classes


def _list_family_classes() -> list[TokenizerClass]:
    """Return the classes of all families, including unnamed ones, in the order of `list_tokenizer_classes`."""
    families = sorted(find_families_by_format("hf"), key=lambda family: bool(family.special_tokens))
    return [get_family_class(family) for family in families]


def read_class_name(files: JsonFiles) -> tuple[Path, str | None]:
    """Return the path of the file that names the tokenizer's class, and the name without "Fast".

    If no file names it, return the path of `tokenizer_config.json` and None.
    """
    for name in (SETTINGS_FILE, CONFIG_FILE):
        if class_name := files.read_if_present(name).get("tokenizer_class"):
            return files.directory / name, str(class_name).removesuffix("Fast")
    return files.directory / SETTINGS_FILE, None


def find_class(files: JsonFiles, family_class: TokenizerClass, pipeline: JsonObject | None) -> TokenizerClass:
    """Return the transformers class of the tokenizer in a directory.

    If the files name no class, or a generic one (`ANY_CLASS`), it is detected from the content of `tokenizer.json` or,
    without that file, from the vocabulary files. The default is `family_class`.

    Args:
        files: JSON files of the checkpoint.
        family_class: Class of the family's tokenizers.
        pipeline: Content of `tokenizer.json`, or None if the file is missing.

    Raises:
        PresetError: If the class is not supported or contradicts `tokenizer.json`; the message names the class and the
            file.
    """
    classes = list_tokenizer_classes()
    directory = files.directory
    file, name = read_class_name(files)
    family_format = get_format(family_class.tokenizer)
    if name is not None and name not in ANY_CLASS:
        if name not in classes and name != family_class.name:
            raise PresetError(f"{file}: the tokenizer is a {name}, but lmzoo supports only a {' or '.join(classes)}.")
        named_class = family_class if name == family_class.name else classes[name]
        format = get_format(named_class.tokenizer)
        if pipeline is not None and select_format(pipeline, directory, format).model_type != format.model_type:
            raise PresetError(
                f"{file}: the tokenizer is a {name}, but {PIPELINE_FILE} holds one of another kind. Delete the file "
                "that does not belong to the model."
            )
        return named_class
    alternatives = [candidate for candidate in classes.values() if candidate.tokenizer is family_format.alternative]
    unnamed_classes = [candidate for candidate in _list_family_classes() if not candidate.name]
    candidates = [
        family_class,
        *alternatives,
        *(candidate for candidate in classes.values() if candidate is not family_class),
        *unnamed_classes,
    ]
    if pipeline is None:
        return _find_by_files(directory, candidates) or family_class
    model_type = select_format(pipeline, directory, family_format).model_type
    candidates = [candidate for candidate in candidates if get_format(candidate.tokenizer).model_type == model_type]
    candidates = [candidate for candidate in candidates if get_format(candidate.tokenizer).fits(pipeline)] or candidates
    tokens = {token if isinstance(token, str) else token[0] for token in pipeline["model"]["vocab"] if token}
    return next((candidate for candidate in candidates if candidate.can_be(tokens)), candidates[0])


def _find_by_files(directory: Path, candidates: Sequence[TokenizerClass]) -> TokenizerClass | None:
    """Return the first candidate with vocabulary files in a directory, or None if no candidate has any.

    Among candidates that share these files, a candidate that fits the tokens in the files is preferred.
    """
    candidates_with_files = [
        (candidate, files)
        for candidate in candidates
        if (files := get_format(candidate.tokenizer).find_files(directory))
    ]
    if not candidates_with_files:
        return None
    first_candidate, files = candidates_with_files[0]
    tied_candidates = [candidate for candidate, candidate_files in candidates_with_files if candidate_files == files]
    definitions = [(candidate.tokenizer, candidate.special_tokens) for candidate in tied_candidates]
    if all(definition == definitions[0] for definition in definitions):
        return first_candidate
    format = get_format(first_candidate.tokenizer)
    with add_file_to_errors(files[0]):
        tokens = format.lists(format.read_vocabulary_files(files))["tokens"]
    matches = (
        candidate
        for candidate in tied_candidates
        if get_format(candidate.tokenizer).fits_tokens(tokens) and candidate.can_be(tokens)
    )
    return next(matches, first_candidate)


def find_class_with_packing(tokenizer: Tokenizer, packing: Packing, family: Family) -> TokenizerClass | None:
    """Return the transformers class equivalent to a tokenizer and a packing, or None if there is no such class.

    The class of the family is preferred, and is also returned for the family's packing, which may differ from the
    packing of the class. Segments are ignored for a family without segments.
    """
    family_class = get_family_class(family)
    if (
        family_class.name
        and family_class.tokenizer is type(tokenizer)
        and packing in (family_class.packing, get_family_packing(family, tokenizer))
    ):
        return family_class
    packings = [packing] if family.packing.segments else [packing, dataclasses.replace(packing, segments=True)]
    return next((candidate for candidate in find_tokenizer_classes(tokenizer) if candidate.packing in packings), None)


def find_tokenizer_classes(tokenizer: Tokenizer) -> list[TokenizerClass]:
    """Return the transformers classes for a tokenizer's type.

    If the tokenizer has all special tokens of some of these classes, only these classes are returned.
    """
    candidates = [
        candidate for candidate in list_tokenizer_classes().values() if candidate.tokenizer is type(tokenizer)
    ]
    return [candidate for candidate in candidates if candidate.can_be(tokenizer.special_tokens)] or candidates
