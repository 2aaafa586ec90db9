"""SentencePiece, ALBERT's tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import keras
import numpy as np

from lmzoo.text.tokenizers.sentencepiece_text import Aligned, align, character_map, clean, every_character
from lmzoo.text.tokenizers.tokenizer import SpecialTokens, Tokenizer, TokenSpan
from lmzoo.text.validate_text import clean_texts

MODEL_FILE = "vocabulary.spm"
_MODEL_FILES = (MODEL_FILE, "spiece.model")  # KerasHub's name, Hugging Face's name
SPACE = "▁"  # how pieces write a space


@keras.saving.register_keras_serializable(package="lmzoo")
class SentencePieceTokenizer(Tokenizer):
    """ALBERT's unigram SentencePiece (Kudo, 2018; Lan et al., 2020).

    White space is squeezed, PTB quotes (two backticks or two apostrophes) become '"' as Hugging Face does (Google's
    code does not), then accents are stripped and letters lower-cased, character by character. The special tokens are
    recognised in text and never split. A comma after a digit is a piece of its own: where the model has "9,", the text
    "9,200" still begins with "9" and ",", as in Google's code (transformers 5 leaves "9,").

    Args:
        model: the SentencePiece model: the file's path or its bytes; None if `load_assets` will bring it.
        lowercase: whether to lower-case.
        keep_accents: whether to leave out compatibility decomposition and the stripping of combining marks.
        **special: other special tokens than ALBERT's, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: if `model` is not a whole SentencePiece model or lacks a special token.

    Example:

    ```python
    from lmzoo.text import SentencePieceTokenizer

    tokenizer = SentencePieceTokenizer.of_words(["the", "film"], size=11)
    tokenizer.tokenize(["The  film", ""])  # [[5, 6], []]
    ```
    """

    pad_token, unk_token, start_token, end_token, mask_token = "<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"
    needs_unknown = True

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
        if isinstance(model, (str, Path)):
            self._set_model(Path(model).read_bytes(), str(model))
        elif model is not None:
            self._set_model(model, "`model`")

    def _set_model(self, model: bytes, name: str) -> None:
        """Takes a model's bytes; `name` is what to call them in messages."""
        from sentencepiece import SentencePieceProcessor

        try:
            proto = _model_proto().FromString(model)
            # The file's parts come in this order. One that was cut between two of them can still be parsed.
            whole = bool(proto.pieces) and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")
            backend = SentencePieceProcessor(model_proto=model) if whole else None
        except Exception as error:  # the library's errors are of several types, none of its own
            raise ValueError(f"{name} is not a whole SentencePiece model ({len(model):,} bytes): {error}") from error
        if backend is None:
            raise ValueError(f"{name} is not a whole SentencePiece model ({len(model):,} bytes): it ends too early.")
        try:
            self._set_tokens([piece.piece for piece in proto.pieces])
        except ValueError as error:
            raise ValueError(f"{name} is of another family's tokenizer. {error}") from None
        self._model, self._backend = model, backend
        self._special = re.compile("(" + "|".join(map(re.escape, self.special_tokens)) + ")")
        self._characters = character_map(self.lowercase, self.keep_accents)
        self._parts = {i: self._split_comma(token) for i, token in enumerate(self._tokens) if _ends_in_comma(token)}
        unknown = self._ids[self.unk_token]
        self._splits = {i: [self._ids.get(part, unknown) for part in parts] for i, parts in self._parts.items()}

    def _split_comma(self, piece: str) -> list[str]:
        """What stands for a piece like "9,"."""
        parts = self._backend.encode(piece[:-1].replace(SPACE, ""), out_type=str)
        if not piece.startswith(SPACE):
            parts[0] = parts[0].removeprefix(SPACE)  # the library puts one in front of every text
        return [part for part in parts if part] + [","]

    def _require_vocabulary(self) -> None:
        if not self._tokens:
            raise ValueError("The tokenizer has no vocabulary yet: pass `model` or call `load_assets`.")

    @property
    def backend(self) -> Any:
        """The `sentencepiece.SentencePieceProcessor` that splits cleaned text."""
        self._require_vocabulary()
        return self._backend

    @property
    def model(self) -> bytes:
        """The SentencePiece model, as its file holds it."""
        self._require_vocabulary()
        return self._model

    @property
    def splits(self) -> dict[int, list[int]]:
        """Ids of the pieces that end in a digit and a comma, each with the ids that stand in its place."""
        self._require_vocabulary()
        return self._splits

    @property
    def split_tokens(self) -> dict[int, list[str]]:
        """The same pieces, each with what stands in its place as text."""
        self._require_vocabulary()
        return self._parts

    def blanks(self) -> list[str]:
        """The characters that the model's own cleaning takes for spaces or leaves out."""
        characters = every_character()
        after = self.backend.normalize(characters)
        return [c for c, text in zip(characters, after, strict=True) if not text.strip(SPACE)]

    @classmethod
    def of_words(cls, words: Sequence[str], size: int, **special: Unpack[SpecialTokens]) -> Self:
        """See `Tokenizer.of_words`; the words' pieces are those with a space in front.

        Raises:
            ValueError: if `size` is too small.
        """
        blank = cls(**special)
        pieces = [*blank.special_tokens, *(SPACE + word for word in words), SPACE]
        if size < len(pieces):
            raise ValueError(f"{len(words)} words need a `size` of at least {len(pieces)}, got {size}.")
        # The trainer has to be talked into both a given size and given pieces; a model is easily written down.
        proto = _model_proto()()
        for index, piece in enumerate([*pieces, *(f"{SPACE}filler{i}" for i in range(size - len(pieces)))]):
            kind = 2 if piece == blank.unk_token else 3 if index < len(blank.special_tokens) else 1  # unknown, control
            proto.pieces.add(piece=piece, score=-1.0 if kind == 1 else 0.0, type=kind)
        proto.trainer_spec.model_type = 1  # unigram
        proto.trainer_spec.vocab_size = size
        proto.trainer_spec.pad_id = -1 if blank.pad_token is None else pieces.index(blank.pad_token)
        proto.trainer_spec.unk_id = pieces.index(str(blank.unk_token))
        proto.trainer_spec.bos_id = proto.trainer_spec.eos_id = -1
        proto.normalizer_spec.name = "identity"
        return cls(proto.SerializeToString(deterministic=True), **special)

    # === Text to tokens ===

    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        """See `Tokenizer.tokenize`."""
        self._require_vocabulary()
        rows = [self._special.split(text) for text in clean_texts(texts)]  # special tokens at the odd places
        plain = [clean(part, self._characters) for row in rows for part in row[::2]]
        encoded = iter(self._backend.encode(plain, out_type=int))
        result = []
        for row in rows:
            ids: list[int] = []
            for index, part in enumerate(row):
                ids += [self._ids[part]] if index % 2 else next(encoded)
            if not self._splits.keys().isdisjoint(ids):
                ids = [j for i in ids for j in self._splits.get(i, [i])]
            result.append(ids)
        return result

    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[TokenSpan]]:
        """See `Tokenizer.tokenize_with_offsets`.

        The space that a piece begins with is not part of its offsets, so that a piece which is only a space has none:
        its end is its start, where the next piece begins.

        Example:

        ```python
        from lmzoo.text import SentencePieceTokenizer

        tokenizer = SentencePieceTokenizer.of_words(["un", "cafe"], size=11)
        tokenizer.tokenize_with_offsets(["Un café"])[0][1]  # TokenSpan(id=6, token='▁cafe', start=3, end=7)
        ```
        """
        self._require_vocabulary()
        return [list(self._pieces(text)) for text in clean_texts(texts)]

    def _pieces(self, text: str) -> Iterator[TokenSpan]:
        begin = 0
        for index, part in enumerate(self._special.split(text)):
            if index % 2:
                yield TokenSpan(self._ids[part], part, begin, begin + len(part))
            else:
                yield from self._plain_pieces(align(part, self._characters, begin))
            begin += len(part)

    def _plain_pieces(self, aligned: Aligned) -> Iterator[TokenSpan]:
        ids = self._backend.encode(aligned.text, out_type=int)
        surfaces = self._backend.encode(aligned.text, out_type=str)
        # The library cleans text, too: character i of what it splits comes from `[origin[i], after[i])`.
        origin = self._backend.normalize(aligned.text, with_offsets=True)[1]
        after = origin[1:]
        for i in reversed(range(len(after) - 1)):  # several may come from the same
            after[i] = after[i] if after[i] > origin[i] else after[i + 1]
        at = 0
        for id, surface in zip(ids, surfaces, strict=True):
            for i, part in zip(self._splits.get(id, [id]), self._parts.get(id, [surface]), strict=True):
                end = at + len(part)
                begin = end - len(part.lstrip(SPACE))
                start = aligned.starts[origin[begin]]
                yield TokenSpan(i, self._tokens[i], start, aligned.ends[after[end - 1] - 1] if begin < end else start)
                at = end

    # === Tokens to text ===

    def text_of(self, token: str) -> str:
        """See `Tokenizer.text_of`."""
        return token.replace(SPACE, " ")

    def word_starts(self) -> np.ndarray:
        """See `Tokenizer.word_starts`: all but pieces of the letters a to z alone, as for ALBERT's masking."""
        return np.array([re.fullmatch("[A-Za-z]+", token) is None for token in self._tokens])

    # === Files ===

    def save_assets(self, directory: str | Path) -> None:
        """Writes the model into `directory` as `vocabulary.spm`."""
        (Path(directory) / MODEL_FILE).write_bytes(self.model)

    def load_assets(self, directory: str | Path) -> None:
        """Reads `vocabulary.spm`, or `spiece.model` where there is no such file.

        Raises:
            FileNotFoundError: if neither is there.
            ValueError: as the constructor.
        """
        paths = [Path(directory) / name for name in _MODEL_FILES]
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            raise FileNotFoundError(f"{directory} holds neither {' nor '.join(_MODEL_FILES)}.")
        self._set_model(path.read_bytes(), str(path))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments without the model, which `save_assets` writes."""
        own = self._own_special_tokens()
        return {"lowercase": self.lowercase, "keep_accents": self.keep_accents, **own}


def _ends_in_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _model_proto() -> Any:
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto
