"""ALBERT's SentencePiece tokenizer, and the base of tokenizers that clean texts only by the model's own rules."""

from __future__ import annotations

import functools
import itertools
import operator
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

import keras
import numpy as np

from lmzoo.text.tokenizers.added_tokens import TextCutter, TextPart
from lmzoo.text.tokenizers.garbage_collection import pause_collection
from lmzoo.text.tokenizers.keras_hub_names import ClsAndSepNames
from lmzoo.text.tokenizers.sentencepiece_text import (
    QUOTES,
    Aligned,
    CharacterMap,
    align,
    character_map,
    clean,
    list_cleaned_characters,
)
from lmzoo.text.tokenizers.tokenizer import SpecialTokens, Tokenizer, TokenSpan
from lmzoo.text.validate_text import clean_texts

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from tokenizers.normalizers import Normalizer

MODEL_FILE = "vocabulary.spm"
_MODEL_FILES = (MODEL_FILE, "spiece.model")  # KerasHub's and Hugging Face's names
SPACE = "▁"  # stands for a space in tokens
# Stands for a removed character. Both code points are unassigned, and each is always a grapheme cluster of its own.
_REMOVED = "\ufff0\ufff1"
_BYTE = 6  # SentencePiece's type of the tokens "<0x00>" to "<0xFF>", the bytes of characters that the model lacks


@keras.saving.register_keras_serializable(package="lmzoo")
class SentencePieceTokenizer(ClsAndSepNames, Tokenizer):
    """ALBERT's tokenizer, a unigram SentencePiece model (Kudo, 2018; Lan et al., 2020).

    Repeated whitespace becomes one space, and PTB quotes (two backticks or two apostrophes) become '"' as in Hugging
    Face's code (but not in Google's). Then accents are stripped and letters lowercased, character by character. The
    special tokens are recognized in text and never split. A comma after a digit is a separate token: even if the model
    has "9,", the text "9,200" begins with "9" and ",", as in Google's code (transformers 5 keeps "9,").

    Args:
        model: bytes or path of a SentencePiece model; None to read it with `load_assets`.
        lowercase: bool, whether to lowercase text.
        keep_accents: bool, whether to skip compatibility decomposition and the stripping of combining marks.
        **special: special tokens that differ from ALBERT's, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If `model` is not a complete SentencePiece model or lacks a special token.

    Example:

    ```python
    from lmzoo.text import SentencePieceTokenizer

    tokenizer = SentencePieceTokenizer.of_words(["the", "film"], size=11)
    tokenizer.tokenize(["The  film", ""])  # [[5, 6], []]
    ```
    """

    pad_token = "<pad>"
    unk_token = "<unk>"
    start_token: str | None = "[CLS]"
    end_token = "[SEP]"
    mask_token: str | None = "[MASK]"
    vocabulary_argument = "model"
    needs_unknown = True
    takes_added_tokens = True
    splits_commas: ClassVar[bool] = True  # whether a comma after a digit is a separate token
    replaces_quotes: ClassVar[bool] = True  # whether PTB quotes become '"'
    # Whether a character that the model's rules expand into several characters belongs to the token with the last of
    # these, as in SentencePiece's own spans, and to another token only if that token begins with the character.
    last_part_counts: ClassVar[bool] = False
    empty_spaces: ClassVar[bool] = True  # whether the span of a token that is only a space is empty

    def __init__(
        self,
        model: bytes | str | Path | None = None,
        lowercase: bool = True,
        keep_accents: bool = False,
        **special: Unpack[SpecialTokens],
    ) -> None:
        self._set_special_tokens(special)
        self.lowercase = lowercase
        self.keep_accents = keep_accents
        self._bytes: dict[str, bytes] = {}
        if isinstance(model, (str, Path)):
            self._set_model(Path(model).read_bytes(), str(model))
        elif model is not None:
            self._set_model(model, "`model`")

    def _set_model(self, model: bytes, name: str) -> None:
        """Set the model from its bytes; error messages call it `name`.

        Raises:
            ValueError: If `model` is not a complete SentencePiece model or lacks a special token.
        """
        from sentencepiece import SentencePieceProcessor

        try:
            proto = read_model(model)
            # A file that ends between two of these fields, which are stored in this order, can still be parsed.
            if not (proto.pieces and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")):
                raise ValueError("it ends too early.")
            splitting_model = self._make_splitting_model(model)
            backend = SentencePieceProcessor(model_proto=splitting_model)
        except Exception as error:  # the library raises errors of several types, none of its own
            raise ValueError(f"{name} is not a complete SentencePiece model ({len(model):,} bytes): {error}") from error
        try:
            self._set_tokens([piece.piece for piece in proto.pieces])
        except ValueError as error:
            raise ValueError(f"{name} belongs to another family's tokenizer. {error}") from None
        self._model = model
        self._splitting_bytes = splitting_model
        self._backend = backend
        self._bytes = {piece.piece: bytes.fromhex(piece.piece[3:-1]) for piece in proto.pieces if piece.type == _BYTE}
        # To compute offsets, a character stands for the first of its bytes, and "" for the later ones, 0x80 to 0xBF.
        self._byte_surfaces = {token: "" if b"\x80" <= byte < b"\xc0" else "?" for token, byte in self._bytes.items()}
        self._prepare_text_tokens()

    def _prepare_text_tokens(self) -> None:
        self._separate_equal_forms()
        self._cutter = TextCutter(self.text_tokens, self._ids, self.normalizer)
        whole_tokens = {token.content for token in self.text_tokens}
        self._parts = {
            i: self._split_comma(token)
            for i, token in enumerate(self.base_vocabulary)
            if self.splits_commas and token[-1:] == "," and token[-2:-1].isdigit() and token not in whole_tokens
        }
        unknown_id = self._ids[self.unk_token]
        self._splits = {i: [self._ids.get(part, unknown_id) for part in parts] for i, parts in self._parts.items()}

    @property
    def normalizer(self) -> Normalizer:
        """Normalizer that Hugging Face's tokenizer applies before it matches normalized tokens."""
        from tokenizers import normalizers

        self._require_vocabulary()
        charsmap = read_model(self._model).normalizer_spec.precompiled_charsmap
        return normalizers.Sequence([*self._steps(), *(_make_aligned_normalizers(charsmap) if charsmap else [])])

    def _make_token_normalizer(self) -> Normalizer:
        return self.normalizer

    def _steps(self) -> list[Normalizer]:
        """Return the steps of `normalizer` that precede the model's own rules."""
        from tokenizers import normalizers

        quote_replacements = [normalizers.Replace(quote, '"') for quote in QUOTES if self.replaces_quotes]
        return [*quote_replacements, character_map(self.lowercase, self.keep_accents).steps]

    def _make_splitting_model(self, model: bytes) -> bytes:
        """Convert the stored SentencePiece model to the model that splits cleaned texts."""
        return model

    def _clean(self, text: str) -> str:
        """Clean a text without special tokens, so that the model can split it."""
        return clean(text, self._make_character_map(), self.replaces_quotes and not self._cutter.normalizes)

    def _align(self, text: str, begin: int) -> Aligned:
        """Clean a text, and return it with the original offsets of its characters, counted from `begin`."""
        return align(text, self._make_character_map(), begin, self.replaces_quotes and not self._cutter.normalizes)

    def _make_character_map(self) -> CharacterMap:
        """Return the character map for plain text, which replaces only whitespace if texts are already normalized."""
        if self._cutter.normalizes:
            return character_map(lowercase=False, keep_accents=True)
        return character_map(self.lowercase, self.keep_accents)

    def _align_part(self, part: TextPart) -> Aligned:
        """Clean a part of a text, and return it with the offsets of its characters in the text."""
        if not self._cutter.normalizes:
            return self._align(part.text, part.start)
        aligned_text = self._align(part.text, 0)
        offsets = np.array(part.offsets, "int64")  # (c, 2)
        starts = np.append(offsets[:, 0], part.end)[aligned_text.starts]
        return Aligned(aligned_text.text, starts, offsets[aligned_text.ends - 1, 1])

    def _split_comma(self, token: str) -> list[str]:
        """Return the tokens that replace a token like "9,"."""
        parts = self._backend.encode(token[:-1].replace(SPACE, ""), out_type=str)
        if not token.startswith(SPACE):
            parts[0] = parts[0].removeprefix(SPACE)  # the library puts a space in front of every text
        return [part for part in parts if part] + [","]

    @property
    def backend(self) -> SentencePieceProcessor:
        """The `sentencepiece.SentencePieceProcessor` that splits cleaned text."""
        self._require_vocabulary()
        return self._backend

    @property
    def model(self) -> bytes:
        """Content of the SentencePiece model file."""
        self._require_vocabulary()
        return self._model

    @property
    def splits(self) -> dict[int, list[int]]:
        """Ids that replace each token ending in a digit and a comma, by the token's id."""
        self._require_vocabulary()
        return self._splits

    @property
    def split_tokens(self) -> dict[int, list[str]]:
        """Tokens that replace each token ending in a digit and a comma, by the token's id."""
        self._require_vocabulary()
        return self._parts

    @property
    def splitting_model(self) -> bytes:
        """Content of the SentencePiece model that splits cleaned text."""
        self._require_vocabulary()
        return self._splitting_bytes

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """Create a tokenizer with a vocabulary of `size` tokens, for tests and toy models.

        The tokens are the special tokens, each of `words` with a leading space, a single space, and fillers.

        Raises:
            ValueError: If `size` is too small.
        """
        defaults = cls(**special)
        pieces = [*defaults.special_tokens, *(SPACE + word for word in words), SPACE]
        if size < len(pieces):
            raise ValueError(f"{len(words)} words need a `size` of at least {len(pieces)}, got {size}.")
        # The trainer cannot be made to learn exactly these tokens, so the model is written by hand.
        proto = model_proto()()
        for index, piece in enumerate([*pieces, *(f"{SPACE}filler{i}" for i in range(size - len(pieces)))]):
            # SentencePiece's types of tokens: 1 is normal, 2 unknown, 3 control.
            piece_type = 2 if piece == defaults.unk_token else 3 if index < len(defaults.special_tokens) else 1
            proto.pieces.add(piece=piece, score=-1.0 if piece_type == 1 else 0.0, type=piece_type)
        proto.trainer_spec.model_type = 1  # unigram
        proto.trainer_spec.vocab_size = size
        proto.trainer_spec.pad_id = -1 if defaults.pad_token is None else pieces.index(defaults.pad_token)
        proto.trainer_spec.unk_id = pieces.index(str(defaults.unk_token))
        proto.trainer_spec.bos_id = proto.trainer_spec.eos_id = -1
        proto.normalizer_spec.name = "identity"
        return cls(proto.SerializeToString(deterministic=True), **special)

    # === Text to tokens ===

    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        self._require_vocabulary()
        parts_by_text = self._cutter.cut(clean_texts(texts))
        plain_texts = [self._clean(part.text) for parts in parts_by_text for part in parts if part.id is None]
        ids_of_plain_texts = iter(self._backend.encode(plain_texts, out_type=int))
        id_lists = []
        for parts in parts_by_text:
            ids: list[int] = []
            for part in parts:
                ids += next(ids_of_plain_texts) if part.id is None else [part.id]
            if not self._splits.keys().isdisjoint(ids):
                ids = [j for i in ids for j in self._splits.get(i, [i])]
            id_lists.append(ids)
        return id_lists

    @pause_collection()
    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[TokenSpan]]:
        """Return the tokens of each text with their offsets in it; see `Tokenizer.tokenize_with_offsets`.

        The space that a token begins with is not part of its span. A token that is only a space has an empty span,
        which starts and ends where the next token begins. If the model splits a character into bytes, each byte has the
        character's span.

        Example:

        ```python
        from lmzoo.text import SentencePieceTokenizer

        tokenizer = SentencePieceTokenizer.of_words(["un", "cafe"], size=11)
        tokenizer.tokenize_with_offsets(["Un café"])[0][1]  # TokenSpan(id=6, token='▁cafe', start=3, end=7)
        ```
        """
        id_lists, spans = self.tokenize_with_spans(texts)
        starts, ends = map(iter, spans.T.tolist())
        # `map` stops at the end of a text's ids, before it takes an offset of the next text.
        return [list(map(TokenSpan, ids, map(self._tokens.__getitem__, ids), starts, ends)) for ids in id_lists]

    def tokenize_with_spans(self, texts: Iterable[str | bytes]) -> tuple[list[list[int]], np.ndarray]:
        self._require_vocabulary()
        id_lists = []
        spans = [np.zeros((0, 2), "int64")]
        for parts in self._cutter.cut(clean_texts(texts), with_offsets=True):
            ids: list[int] = []
            for part in parts:
                if part.id is not None:
                    ids.append(part.id)
                    spans.append(np.array([[part.start, part.end]]))
                else:
                    part_ids, part_spans = self._tokenize_plain(self._align_part(part))
                    ids += part_ids
                    spans.append(part_spans)
            id_lists.append(ids)
        return id_lists, np.concatenate(spans)

    def _tokenize_plain(self, aligned_text: Aligned) -> tuple[list[int], np.ndarray]:
        """Return the t ids of a text without special tokens, and their spans, int64 (t, 2)."""
        ids = self._backend.encode(aligned_text.text, out_type=int)
        surfaces = self._backend.encode(aligned_text.text, out_type=str)
        if not ids:
            return [], np.zeros((0, 2), "int64")
        if not self._splits.keys().isdisjoint(ids):
            surfaces = [
                part for i, surface in zip(ids, surfaces, strict=True) for part in self._parts.get(i, [surface])
            ]
            ids = [j for i in ids for j in self._splits.get(i, [i])]
        surfaces = list(map(self._byte_surfaces.get, surfaces, surfaces))
        # Token k, without its leading space, goes from `begins[k]` to `ends[k]` in the text that the library splits.
        ends = np.fromiter(itertools.accumulate(map(len, surfaces)), "int64", len(ids))  # (t,)
        visible_lengths = map(len, map(str.lstrip, surfaces, itertools.repeat(SPACE)))
        begins = ends - np.fromiter(visible_lengths, "int64", len(ids))  # (t,)
        begins -= np.fromiter(map(operator.not_, surfaces), "int64", len(ids))  # a later byte begins with the first
        # The library also cleans text: character i of the split text comes from `origins[i]` and the following
        # characters, up to the next different origin. Several characters may have the same origin.
        origins = np.array(self._backend.normalize(aligned_text.text, with_offsets=True)[1])
        last_indices = np.maximum(begins, ends - 1)  # (t,); for a lone space, the character after it
        next_indices = np.minimum(origins.searchsorted(origins[last_indices], side="right"), len(origins) - 1)  # (t,)
        origin_ends = origins[next_indices]  # (t,)
        if self.last_part_counts:
            is_shared = origins[np.minimum(last_indices + 1, len(origins) - 1)] == origins[last_indices]  # (t,)
            origin_ends = np.where(
                is_shared, np.maximum(origins[last_indices], origins[begins] + 1), origin_ends
            )  # (t,)
        spans = np.empty((len(ids), 2), "int64")
        spans[:, 0] = aligned_text.starts[origins[begins]]
        has_extent = (begins < ends) | (not self.empty_spaces)
        spans[:, 1] = np.where(has_extent, aligned_text.ends[origin_ends - 1], spans[:, 0])
        return ids, spans

    # === Tokens to text ===

    def text_of(self, token: str) -> str:
        """Return the text of a token, with a leading space if it begins a word; U+FFFD for a byte above 0x7F."""
        return self.bytes_of(token).decode(errors="replace")

    def _detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of ids without spaces at its ends; bytes that are not a whole character become U+FFFD."""
        return b"".join(self.bytes_of(self._tokens[i]) for i in ids).decode(errors="replace").strip(" ")

    def bytes_of(self, token: str) -> bytes:
        """Return the UTF-8 bytes of a token's text."""
        return self._bytes[token] if token in self._bytes else token.replace(SPACE, " ").encode()

    def word_starts(self) -> np.ndarray:
        """Return whether each of the V tokens begins a word, rather than continuing one: bool (V,).

        As in ALBERT's masking, only tokens that consist of the letters a to z and A to Z continue a word.
        """
        return np.array([re.fullmatch("[A-Za-z]+", token) is None for token in self._tokens])

    # === Files ===

    def save_assets(self, directory: str | Path) -> None:
        """Write the model into `directory` as `vocabulary.spm`."""
        (Path(directory) / MODEL_FILE).write_bytes(self.model)

    def load_assets(self, directory: str | Path) -> None:
        """Load `vocabulary.spm` or, if it does not exist, `spiece.model`.

        Raises:
            FileNotFoundError: If neither file exists.
            ValueError: If the file is not a complete SentencePiece model or lacks a special token.
        """
        paths = [Path(directory) / name for name in _MODEL_FILES]
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            raise FileNotFoundError(f"{directory} holds neither {' nor '.join(_MODEL_FILES)}.")
        self._set_model(path.read_bytes(), str(path))

    def get_config(self) -> dict[str, Any]:
        return {"lowercase": self.lowercase, "keep_accents": self.keep_accents, **super().get_config()}


class ModelRulesTokenizer(SentencePieceTokenizer):
    """Base class of SentencePiece tokenizers that clean texts only by the model's own rules.

    Letters keep their case and accents, quotes are unchanged, and "9," is a token if the model has it.
    """

    splits_commas = False
    replaces_quotes = False

    def __init__(self, model: bytes | str | Path | None = None, **special: Unpack[SpecialTokens]) -> None:
        super().__init__(model, lowercase=False, keep_accents=True, **special)

    def word_starts(self) -> np.ndarray:
        """Return whether each of the V tokens begins a word, rather than continuing one: bool (V,).

        Tokens with a leading space, and special tokens, begin a word.
        """
        return np.array([token.startswith(SPACE) or token in self.special_tokens for token in self._tokens])

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {name: value for name, value in config.items() if name not in ("lowercase", "keep_accents")}


@functools.lru_cache(maxsize=8)
def _make_aligned_normalizers(charsmap: bytes) -> tuple[Normalizer, ...]:
    """Return normalizers that apply a model's rules and keep offsets correct.

    If a rule removes a character, `tokenizers` gets offsets wrong at the beginning of a text, and after a character
    that a rule replaces by several characters. Control characters that the rules remove are therefore first replaced
    by a placeholder, which does not change the boundaries of grapheme clusters, and which a separate normalizer removes
    at the end.
    """
    from tokenizers import Regex, normalizers

    rule_normalizer = normalizers.Precompiled(charsmap)
    if rule_normalizer.normalize_str(_REMOVED) != _REMOVED:
        return (rule_normalizer,)
    controls = [character for character in list_cleaned_characters() if unicodedata.category(character) == "Cc"]
    removed_characters = "".join(f"\\x{{{ord(c):x}}}" for c in controls if not rule_normalizer.normalize_str(c))
    if not removed_characters:
        return (rule_normalizer,)
    return (
        normalizers.Replace(Regex(f"[{removed_characters}]"), _REMOVED),
        rule_normalizer,
        normalizers.Replace(_REMOVED, ""),
    )


def model_proto() -> Any:
    """Return the protobuf class of SentencePiece models."""
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto


def read_model(model: bytes) -> Any:
    """Parse a SentencePiece model."""
    return model_proto().FromString(model)
