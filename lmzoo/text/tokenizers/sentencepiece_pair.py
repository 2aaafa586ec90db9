"""Marian's tokenizer: a SentencePiece model per language and a shared vocabulary."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import keras
import numpy as np

from lmzoo.text.tokenizers.sentencepiece import SPACE, SentencePieceTokenizer
from lmzoo.text.tokenizers.token_lists import in_order, read_ids
from lmzoo.text.tokenizers.tokenizer import SpecialTokens, Tokenizer, TokenSpan
from lmzoo.text.validate_text import clean_texts

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

SOURCE_FILE = "source.spm"
TARGET_FILE = "target.spm"
VOCABULARY_FILE = "vocab.json"
LANGUAGE = re.compile(r">>[^<>\s]+<<")  # target language code, at the beginning of a source


@keras.saving.register_keras_serializable(package="lmzoo")
class MarianTokenizer(Tokenizer):
    """Marian's tokenizer: a SentencePiece model for sources, another for targets, and a shared vocabulary.

    A source may begin with the code of a target language, such as `>>fra<<`, if the vocabulary has it. Special tokens
    are recognized in text.

    Args:
        source: bytes or path of the source model; None to read the files with `load_assets`.
        target: bytes or path of the target model; the source model by default.
        vocabulary: all tokens in order of their ids, or a dict from tokens to ids.
        **special: special tokens that differ from `<pad>`, `<unk>` and `</s>`, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If only one of `source` and `vocabulary` is passed, `source` or `target` is not a SentencePiece
            model, or `vocabulary` lacks a special token, repeats a token or leaves out an id.

    Example:

    ```python
    from lmzoo.text import MarianTokenizer

    tokenizer = MarianTokenizer.of_words([">>fra<<", "a", "film"], size=13)
    tokenizer.tokenize(["a film"])  # [[4, 5]]
    ```
    """

    pad_token = "<pad>"
    unk_token = "<unk>"
    end_token = "</s>"
    vocabulary_argument = "source"
    needs_unknown = True
    has_offsets_in_graphs = False

    def __init__(
        self,
        source: bytes | str | Path | None = None,
        target: bytes | str | Path | None = None,
        vocabulary: Sequence[str] | Mapping[str, int] | None = None,
        **special: Unpack[SpecialTokens],
    ) -> None:
        self._set_special_tokens(special)
        if (source is None) != (vocabulary is None) or (target is not None and source is None):
            raise ValueError("Pass both `source` and `vocabulary`, or no files and call `load_assets`.")
        if source is not None and vocabulary is not None:
            self._set_files(source, source if target is None else target, vocabulary)

    def _set_files(
        self, source: bytes | str | Path, target: bytes | str | Path, vocabulary: Sequence[str] | Mapping[str, int]
    ) -> None:
        """Set the models and the vocabulary."""
        if isinstance(vocabulary, Mapping):
            vocabulary = in_order(vocabulary)
        self._set_tokens(vocabulary)
        self._models = _load_bytes(source), _load_bytes(target)
        self._backends = tuple(
            _make_backend(content, "`source`" if content is self._models[0] else "`target`") for content in self._models
        )
        self._side = 0
        longest_first = sorted(self.special_tokens, key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self.languages = tuple(token for token in vocabulary if LANGUAGE.fullmatch(token))

    @property
    def target_side(self) -> MarianTokenizer:
        """Tokenizer for targets, with the same vocabulary."""
        self._require_vocabulary()
        tokenizer = copy.copy(self)
        tokenizer._side = 1
        return tokenizer

    @property
    def backend(self) -> SentencePieceProcessor:
        """The `sentencepiece.SentencePieceProcessor` that splits text."""
        self._require_vocabulary()
        return self._backends[self._side]

    @property
    def models(self) -> tuple[bytes, bytes]:
        """Contents of the source and target model files."""
        self._require_vocabulary()
        return self._models

    @property
    def model(self) -> bytes:
        """Content of the SentencePiece model that splits text."""
        return self.models[self._side]

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """Create a tokenizer with a vocabulary of `size` tokens, for tests and toy models.

        The tokens are the special tokens, each of `words`, a single space, and fillers. Words get a leading space,
        except for language codes.

        Raises:
            ValueError: If `size` is too small.
        """
        defaults = cls(**special)
        language_codes = [word for word in words if LANGUAGE.fullmatch(word)]
        special_by_role: Any = {role: getattr(defaults, role) for role in defaults.roles}
        plain_words = [word for word in words if word not in language_codes]
        unigram_tokenizer = SentencePieceTokenizer.of_words(plain_words, size - len(language_codes), **special_by_role)
        num_special = len(unigram_tokenizer.special_tokens)
        vocabulary = [
            *unigram_tokenizer.vocabulary[:num_special],
            *language_codes,
            *unigram_tokenizer.vocabulary[num_special:],
        ]
        return cls(unigram_tokenizer.model, None, vocabulary, **special)

    @classmethod
    def of_model(cls, model: bytes, **special: Unpack[SpecialTokens]) -> Self:
        """Create a tokenizer with one SentencePiece model for both languages, adding a padding token if needed."""
        backend = _make_backend(model, "`model`")
        vocabulary = [backend.id_to_piece(id) for id in range(backend.get_piece_size())]
        pad_token = str(cls(**special).pad_token)
        return cls(model, None, vocabulary if pad_token in vocabulary else [*vocabulary, pad_token], **special)

    # === Text to tokens ===

    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        self._require_vocabulary()
        unknown_id = self._ids[self.unk_token]
        id_lists = []
        parts_by_text = [self._split(text) for text in clean_texts(texts)]
        tokens_of_plain_parts = iter(
            self.backend.encode([part for parts in parts_by_text for part in parts[::2]], out_type=str)
        )
        for parts in parts_by_text:
            ids: list[int] = []
            for index, part in enumerate(parts):
                ids += (
                    [self._ids[part]]
                    if index % 2
                    else [self._ids.get(token, unknown_id) for token in next(tokens_of_plain_parts)]
                )
            id_lists.append(ids)
        return id_lists

    def _split(self, text: str) -> list[str]:
        """Split a text into plain parts, at even indices, and special tokens and language codes, at odd indices."""
        code = LANGUAGE.match(text)
        if code and code[0] in self._ids:
            return ["", code[0], *self._special.split(text[code.end() :])]
        return self._special.split(text)

    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[TokenSpan]]:
        """Return the tokens of each text with their offsets in it, excluding the space that a token begins with.

        See `Tokenizer.tokenize_with_offsets`.
        """
        self._require_vocabulary()
        unknown_id = self._ids[self.unk_token]
        spans_by_text = []
        for text in clean_texts(texts):
            begin = 0
            spans = []
            for index, part in enumerate(self._split(text)):
                if index % 2:
                    spans.append(TokenSpan(self._ids[part], part, begin, begin + len(part)))
                elif pieces := self.backend.encode(part, out_type=str):
                    ids = [self._ids.get(piece, unknown_id) for piece in pieces]
                    offsets = self._offsets(part, pieces)
                    spans += [
                        TokenSpan(id, self._tokens[id], begin + start, begin + end)
                        for id, (start, end) in zip(ids, offsets, strict=True)
                    ]
                begin += len(part)
            spans_by_text.append(spans)
        return spans_by_text

    def _offsets(self, text: str, pieces: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield the start and end, in `text`, of each token of `pieces`, without leading spaces."""
        # Index in `text` of the character that each character of the normalized text comes from.
        origins = np.array(self.backend.normalize(text, with_offsets=True)[1])
        ends = np.cumsum([*map(len, pieces)])  # (t,)
        begins = ends - [len(piece.lstrip(SPACE)) for piece in pieces]
        next_indices = np.minimum(origins.searchsorted(origins[ends - 1], side="right"), len(origins) - 1)
        stops = np.where(begins < ends, origins[next_indices], origins[begins])
        for start, stop in zip(origins[begins].tolist(), stops.tolist(), strict=True):
            yield start, start + len(text[start:stop].rstrip())

    # === Tokens to text ===

    def text_of(self, token: str) -> str:
        return token.replace(SPACE, " ")

    def word_starts(self) -> np.ndarray:
        """Return whether each of the V tokens begins a word, rather than continuing one: bool (V,).

        Tokens with a leading space, special tokens and language codes begin a word.
        """
        special_tokens = {*self.special_tokens, *self.languages}
        return np.array([token.startswith(SPACE) or token in special_tokens for token in self._tokens])

    # === Files ===

    def save_assets(self, directory: str | Path) -> None:
        """Write `source.spm`, `target.spm` and `vocab.json` into `directory`."""
        for name, model in zip((SOURCE_FILE, TARGET_FILE), self.models, strict=True):
            (Path(directory) / name).write_bytes(model)
        text = json.dumps({token: id for id, token in enumerate(self._tokens)}, ensure_ascii=False, indent=1)
        (Path(directory) / VOCABULARY_FILE).write_text(text, encoding="utf-8")

    def load_assets(self, directory: str | Path) -> None:
        """Load the models and the vocabulary from the files that `save_assets` writes.

        Raises:
            FileNotFoundError: If a file is missing.
            ValueError: If a file is damaged, or the vocabulary lacks a special token.
        """
        source, target, vocabulary = (Path(directory) / name for name in (SOURCE_FILE, TARGET_FILE, VOCABULARY_FILE))
        self._set_files(source, target, in_order(read_ids(vocabulary)))


def _load_bytes(model: bytes | str | Path) -> bytes:
    """Return the bytes of a model, reading its file if `model` is a path."""
    return model if isinstance(model, bytes) else Path(model).read_bytes()


def _make_backend(model: bytes, name: str) -> SentencePieceProcessor:
    """Create the processor of a SentencePiece model, which error messages call `name`.

    Raises:
        ValueError: If `model` is not a SentencePiece model.
    """
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=model)
    except Exception as error:  # the library raises errors of several types, none of its own
        raise ValueError(f"{name} is not a SentencePiece model ({len(model):,} bytes): {error}") from error
