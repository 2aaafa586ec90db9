"""The classes of tokenizers in transformers, and which of them a directory's files ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmzoo.checkpoints.config_table import JsonObject
from lmzoo.checkpoints.family_names import names_in_transformers
from lmzoo.checkpoints.tokenizers.format import PIPELINE_FILE
from lmzoo.checkpoints.tokenizers.formats import format_in, format_of
from lmzoo.checkpoints.tokenizers.vocabulary_files import add_file_to_errors
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE, JsonFiles
from lmzoo.registry.family import Family, families_with
from lmzoo.text import Packing, SpecialTokens, Tokenizer

SETTINGS_FILE = "tokenizer_config.json"
ANY_CLASS = ("PreTrainedTokenizer", "TokenizersBackend")  # they do exactly what tokenizer.json says
NO_PACKING = Packing("", "", (), segments=False)
_READING_PACKING = ("AlbertTokenizer",)  # it does what the file's `post_processor` says; so do those of decoders


@dataclass(frozen=True)
class TokenizerClass:
    """A class of tokenizers in transformers, and what does the same here.

    Attributes:
        name: Its name, without "Fast".
        tokenizer: Our class.
        special_tokens: The special tokens that are not those of our class.
        packing: How it packs texts.
        packs: Whether it packs texts in its own way, whatever `tokenizer.json` says.
    """

    name: str
    tokenizer: type[Tokenizer]
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    packing: Packing = NO_PACKING
    packs: bool = True

    def can_be(self, vocabulary: Iterable[str]) -> bool:
        """Return whether a vocabulary has the special tokens without which there is no such tokenizer."""
        roles = {role: getattr(self.tokenizer, role) for role in self.tokenizer.roles} | self.special_tokens
        needed = {roles[role] for role in roles.keys() - {"mask_token", "other_tokens"}}
        return needed - {None} <= {*vocabulary}


def class_of_family(family: Family) -> TokenizerClass:
    """Return the class of the tokenizers that transformers has for a family; it has no name if there is none."""
    is_decoder = bool(getattr(family.backbone, "causal", False))  # their tokenizers add nothing
    name = ""
    if "hf" in family.checkpoints:
        names = names_in_transformers(family)
        name = f"{names.prefix}Tokenizer" if names.tokenizer is None else names.tokenizer
    packing = NO_PACKING if is_decoder else family.packing
    packs = not (is_decoder or name in _READING_PACKING)
    return TokenizerClass(name, family.tokenizer, family.special_tokens, packing, packs)


def tokenizer_classes() -> dict[str, TokenizerClass]:
    """Return the supported classes by name, first those of families with the special tokens of our class."""
    classes: dict[str, TokenizerClass] = {}
    for tokenizer_class in _classes_of_families():
        if tokenizer_class.name:
            classes.setdefault(tokenizer_class.name, tokenizer_class)
    return classes


def _classes_of_families() -> list[TokenizerClass]:
    """Return the classes of all families, also those without a name, in the order of `tokenizer_classes`."""
    families = sorted(families_with("hf"), key=lambda family: bool(family.special_tokens))
    return [class_of_family(family) for family in families]


def stated_class(files: JsonFiles) -> tuple[Path, str | None]:
    """Return the class that a directory's files name, without "Fast", and the file that should name it."""
    for name in (SETTINGS_FILE, CONFIG_FILE):
        if stated := files.read_if_present(name).get("tokenizer_class"):
            return files.directory / name, str(stated).removesuffix("Fast")
    return files.directory / SETTINGS_FILE, None


def find_class(files: JsonFiles, own: TokenizerClass, pipeline: JsonObject | None) -> TokenizerClass:
    """Return the class of the tokenizer in a directory.

    Its files name it; otherwise the content of `tokenizer.json` shows it or, if there is none, the names of the files
    of the vocabulary. The model's own class is the default.

    Args:
        files: The checkpoint's JSON files.
        own: The class of the tokenizers of the model's family.
        pipeline: The content of `tokenizer.json`, if there is one.

    Raises:
        PresetError: Naming the file and the class, for an unknown one or one of another kind than `tokenizer.json`.
    """
    classes = tokenizer_classes()
    directory = files.directory
    file, name = stated_class(files)
    own_format = format_of(own.tokenizer)
    if name is not None and name not in ANY_CLASS:
        if name not in classes and name != own.name:
            raise PresetError(f"{file}: the tokenizer is a {name}, but lmzoo supports only a {' or '.join(classes)}.")
        named = own if name == own.name else classes[name]
        format = format_of(named.tokenizer)
        if pipeline is not None and format_in(pipeline, directory, format).model_type != format.model_type:
            raise PresetError(
                f"{file}: the tokenizer is a {name}, but {PIPELINE_FILE} holds one of another kind. Delete the file "
                "that does not belong to the model."
            )
        return named
    alternatives = [peer for peer in classes.values() if peer.tokenizer is own_format.alternative]
    unnamed = [peer for peer in _classes_of_families() if not peer.name]
    candidates = [own, *alternatives, *(peer for peer in classes.values() if peer is not own), *unnamed]
    if pipeline is None:
        return _find_by_files(directory, candidates) or own
    model_type = format_in(pipeline, directory, own_format).model_type
    candidates = [peer for peer in candidates if format_of(peer.tokenizer).model_type == model_type]
    candidates = [peer for peer in candidates if format_of(peer.tokenizer).fits(pipeline)] or candidates
    tokens = {token if isinstance(token, str) else token[0] for token in pipeline["model"]["vocab"] if token}
    return next((peer for peer in candidates if peer.can_be(tokens)), candidates[0])


def _find_by_files(directory: Path, candidates: Sequence[TokenizerClass]) -> TokenizerClass | None:
    """Return the first class whose files are there; of several with the same files, the one with their tokens."""
    present = [(peer, files) for peer in candidates if (files := format_of(peer.tokenizer).find_files(directory))]
    if not present:
        return None
    first, files = present[0]
    rivals = [peer for peer, peer_files in present if peer_files == files]
    kinds = [(peer.tokenizer, peer.special_tokens) for peer in rivals]
    if all(kind == kinds[0] for kind in kinds):
        return first
    format = format_of(first.tokenizer)
    with add_file_to_errors(files[0]):
        tokens = format.lists(format.vocabulary_of_files(files))["tokens"]
    fitting = (peer for peer in rivals if format_of(peer.tokenizer).fits_tokens(tokens) and peer.can_be(tokens))
    return next(fitting, first)


def class_with_packing(tokenizer: Tokenizer, packing: Packing, family: Family) -> TokenizerClass | None:
    """Return the class that does what a tokenizer of a model does and packs texts as it does, or None if none does.

    The family's own class comes first. It stands for the family's own packing, too, and segments do not matter to a
    family without them.
    """
    own = class_of_family(family)
    if own.name and own.tokenizer is type(tokenizer) and packing in (own.packing, family.packing):
        return own
    packings = [packing] if family.packing.segments else [packing, dataclasses.replace(packing, segments=True)]
    return next((peer for peer in classes_of_tokenizer(tokenizer) if peer.packing in packings), None)


def classes_of_tokenizer(tokenizer: Tokenizer) -> list[TokenizerClass]:
    """Return the classes that do what a tokenizer does; those with its special tokens, if there are such."""
    candidates = [peer for peer in tokenizer_classes().values() if peer.tokenizer is type(tokenizer)]
    return [peer for peer in candidates if peer.can_be(tokenizer.special_tokens)] or candidates
