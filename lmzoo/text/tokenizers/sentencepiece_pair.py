"""Marian's pair of SentencePiece models, one for each language, with one vocabulary."""

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

SOURCE_FILE, TARGET_FILE, VOCABULARY_FILE = "source.spm", "target.spm", "vocab.json"
LANGUAGE = re.compile(r">>[^<>\s]+<<")  # at the beginning of a source: the language to translate it to


@keras.saving.register_keras_serializable(package="lmzoo")
class MarianTokenizer(Tokenizer):
    """A SentencePiece model for sources and another for targets, with one vocabulary.

    A source may begin with the code of a target language, such as `>>fra<<`, if the vocabulary has it. Special tokens
    are recognized in text.

    Args:
        source: the source's model: its bytes or the path of its file.
        target: the target's model; that of the source by default.
        vocabulary: all tokens in order of their ids, or a dict from tokens to ids.
        **special: special tokens that differ from `<pad>`, `<unk>` and `</s>`.

    Raises:
        ValueError: for files that are not complete SentencePiece models; for a vocabulary without special tokens, with
            repeated ones, or whose ids are not 0 to V - 1.

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

    def __init__(
        self,
        source: bytes | str | Path | None = None,
        target: bytes | str | Path | None = None,
        vocabulary: Sequence[str] | Mapping[str, int] | None = None,
        **special: Unpack[SpecialTokens],
    ) -> None:
        self._set_special_tokens(special)
        if source is not None and vocabulary is not None:
            self._set_files(source, source if target is None else target, vocabulary)

    def _set_files(
        self, source: bytes | str | Path, target: bytes | str | Path, vocabulary: Sequence[str] | Mapping[str, int]
    ) -> None:
        if isinstance(vocabulary, Mapping):
            vocabulary = in_order(vocabulary)
        self._set_tokens(vocabulary)
        self._models = _content(source), _content(target)
        self._backends = tuple(
            _backend(content, "`source`" if content is self._models[0] else "`target`") for content in self._models
        )
        self._side = 0
        longest_first = sorted(self.special_tokens, key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self.languages = tuple(token for token in vocabulary if LANGUAGE.fullmatch(token))

    @property
    def target_side(self) -> MarianTokenizer:
        """The tokenizer of targets, with the same vocabulary."""
        self._require_vocabulary()
        other = copy.copy(self)
        other._side = 1
        return other

    @property
    def backend(self) -> SentencePieceProcessor:
        """The `sentencepiece.SentencePieceProcessor` that splits text."""
        self._require_vocabulary()
        return self._backends[self._side]

    @property
    def models(self) -> tuple[bytes, bytes]:
        """The SentencePiece models of source and target, as their files hold them."""
        self._require_vocabulary()
        return self._models

    @property
    def model(self) -> bytes:
        """The SentencePiece model that splits text."""
        return self.models[self._side]

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """See `Tokenizer.of_words`; words are tokens with a space in front, codes of languages are not."""
        blank = cls(**special)
        codes = [word for word in words if LANGUAGE.fullmatch(word)]
        roles: Any = {role: getattr(blank, role) for role in blank.roles}
        others = [word for word in words if word not in codes]
        model = SentencePieceTokenizer.of_words(others, size - len(codes), **roles)
        count = len(model.special_tokens)
        vocabulary = [*model.vocabulary[:count], *codes, *model.vocabulary[count:]]
        return cls(model.model, None, vocabulary, **special)

    @classmethod
    def of_model(cls, model: bytes, **special: Unpack[SpecialTokens]) -> Self:
        """Return a tokenizer of one SentencePiece model for both languages, with a padding token if it has none."""
        backend = _backend(model, "`model`")
        vocabulary = [backend.id_to_piece(id) for id in range(backend.get_piece_size())]
        pad = str(cls(**special).pad_token)
        return cls(model, None, vocabulary if pad in vocabulary else [*vocabulary, pad], **special)

    # === Text to tokens ===

    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        self._require_vocabulary()
        unknown, found = self._ids[self.unk_token], []
        split = [self._split(text) for text in clean_texts(texts)]
        encoded = iter(self.backend.encode([part for parts in split for part in parts[::2]], out_type=str))
        for parts in split:
            ids: list[int] = []
            for index, part in enumerate(parts):
                ids += [self._ids[part]] if index % 2 else [self._ids.get(token, unknown) for token in next(encoded)]
            found.append(ids)
        return found

    def _split(self, text: str) -> list[str]:
        """Return plain text at the even indices, tokens that are not split at the odd ones."""
        code = LANGUAGE.match(text)
        if code and code[0] in self._ids:
            return ["", code[0], *self._special.split(text[code.end() :])]
        return self._special.split(text)

    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[TokenSpan]]:
        """See `Tokenizer.tokenize_with_offsets`; the space that a token begins with is not part of its span."""
        self._require_vocabulary()
        unknown, result = self._ids[self.unk_token], []
        for text in clean_texts(texts):
            begin, spans = 0, []
            for index, part in enumerate(self._split(text)):
                if index % 2:
                    spans.append(TokenSpan(self._ids[part], part, begin, begin + len(part)))
                elif pieces := self.backend.encode(part, out_type=str):
                    ids = [self._ids.get(piece, unknown) for piece in pieces]
                    places = self._places(part, pieces)
                    spans += [
                        TokenSpan(i, self._tokens[i], begin + a, begin + b)
                        for i, (a, b) in zip(ids, places, strict=True)
                    ]
                begin += len(part)
            result.append(spans)
        return result

    def _places(self, text: str, pieces: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield the characters of a text that pieces came from, without spaces."""
        origin = np.array(self.backend.normalize(text, with_offsets=True)[1])  # of each character that is split
        ends = np.cumsum([*map(len, pieces)])  # (t,)
        begins = ends - [len(piece.lstrip(SPACE)) for piece in pieces]
        after = np.minimum(origin.searchsorted(origin[ends - 1], side="right"), len(origin) - 1)
        stops = np.where(begins < ends, origin[after], origin[begins])
        for start, stop in zip(origin[begins].tolist(), stops.tolist(), strict=True):
            yield start, start + len(text[start:stop].rstrip())

    # === Tokens to text ===

    def text_of(self, token: str) -> str:
        return token.replace(SPACE, " ")

    def word_starts(self) -> np.ndarray:
        """See `Tokenizer.word_starts`: tokens with a space in front, and special tokens."""
        special = {*self.special_tokens, *self.languages}
        return np.array([token.startswith(SPACE) or token in special for token in self._tokens])

    # === Files ===

    def save_assets(self, directory: str | Path) -> None:
        """Write `source.spm`, `target.spm` and `vocab.json` into `directory`."""
        for name, model in zip((SOURCE_FILE, TARGET_FILE), self.models, strict=True):
            (Path(directory) / name).write_bytes(model)
        text = json.dumps({token: id for id, token in enumerate(self._tokens)}, ensure_ascii=False, indent=1)
        (Path(directory) / VOCABULARY_FILE).write_text(text, encoding="utf-8")

    def load_assets(self, directory: str | Path) -> None:
        """Read what `save_assets` wrote.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: as for the constructor.
        """
        source, target, vocabulary = (Path(directory) / name for name in (SOURCE_FILE, TARGET_FILE, VOCABULARY_FILE))
        self._set_files(source, target, in_order(read_ids(vocabulary)))


def _content(model: bytes | str | Path) -> bytes:
    return model if isinstance(model, bytes) else Path(model).read_bytes()


def _backend(model: bytes, name: str) -> SentencePieceProcessor:
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=model)
    except Exception as error:  # the library raises errors of several types, none of its own
        raise ValueError(f"{name} is not a SentencePiece model ({len(model):,} bytes): {error}") from error
