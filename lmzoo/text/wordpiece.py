"""WordPiece, BERT's tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras

from lmzoo.text.policy import clean_texts

VOCABULARY_FILE = "vocabulary.txt"


class Piece(NamedTuple):
    """A token with the characters that it came from: `text[start:end]`."""

    id: int
    token: str
    start: int
    end: int


@keras.saving.register_keras_serializable(package="lmzoo")
class WordPieceTokenizer:
    """Greedy longest-match WordPiece with BERT's text clean-up (Wu et al., 2016; Devlin et al., 2019).

    The ids are those of Hugging Face's BERT tokenizers: words of over 100 characters are unknown, control, format,
    surrogate and private-use characters are dropped, and the special tokens are recognised in text and never split.

    Args:
        vocabulary: tokens in order of their ids, or None if `load_assets` will bring them.
        lowercase: whether to lower-case.
        strip_accents: whether to strip accents; None does so exactly when lower-casing.

    Raises:
        ValueError: if a special token is missing or an entry is repeated.

    Example:

    ```python
    from lmzoo.text import WordPieceTokenizer

    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "run", "##ning", "!"])
    tokenizer.tokenize(["Running!"])  # [[5, 6, 7]]
    ```
    """

    pad_token, unk_token, cls_token, sep_token, mask_token = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
    special_tokens = (pad_token, unk_token, cls_token, sep_token, mask_token)
    max_characters_per_word = 100
    continuation_prefix = "##"

    def __init__(
        self,
        vocabulary: Sequence[str] | None = None,
        lowercase: bool = True,
        strip_accents: bool | None = None,
    ) -> None:
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self._ids: dict[str, int] = {}
        if vocabulary is not None:
            self._set_vocabulary(vocabulary)

    def _set_vocabulary(self, vocabulary: Sequence[str]) -> None:
        # Imported here so that `import lmzoo` stays as light as Keras.
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        ids = {token: index for index, token in enumerate(vocabulary)}
        if len(ids) != len(vocabulary):
            repeated = next(token for index, token in enumerate(vocabulary) if ids[token] != index)
            raise ValueError(f"The vocabulary holds {repeated!r} twice.")
        missing = [token for token in self.special_tokens if token not in ids]
        if missing:
            raise ValueError(f"The vocabulary lacks the special tokens {', '.join(missing)}.")
        self._ids = ids
        self._tokens = list(vocabulary)
        self._backend = Tokenizer(
            models.WordPiece(
                ids,
                unk_token=self.unk_token,
                max_input_chars_per_word=self.max_characters_per_word,
                continuing_subword_prefix=self.continuation_prefix,
            )
        )
        self._backend.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )
        self._backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._backend.add_special_tokens(list(self.special_tokens))

    @property
    def backend(self) -> Any:
        """The `tokenizers.Tokenizer` that does the work."""
        if not self._ids:
            raise ValueError("The tokenizer has no vocabulary yet: pass `vocabulary` or call `load_assets`.")
        return self._backend

    @property
    def vocabulary(self) -> list[str]:
        """Tokens in order of their ids."""
        self.backend  # noqa: B018 - raises if there is no vocabulary
        return list(self._tokens)

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens."""
        return len(self._ids)

    @property
    def pad_id(self) -> int:
        """Id of the padding token."""
        return self.token_to_id(self.pad_token)

    @property
    def mask_id(self) -> int:
        """Id of the mask token."""
        return self.token_to_id(self.mask_token)

    def token_to_id(self, token: str) -> int:
        """Id of a token.

        Raises:
            ValueError: if the vocabulary lacks it.
        """
        if token not in self._ids:
            raise ValueError(f"The vocabulary has no token {token!r}.")
        return self._ids[token]

    def id_to_token(self, id: int) -> str:
        """Token of an id."""
        return self._tokens[id]

    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        """Token ids of each text, without special tokens around them.

        Args:
            texts: a list of strings; see `lmzoo.text.policy.clean_texts` for what else is taken.

        Returns:
            One list of ids per text; empty for an empty text.
        """
        encodings = self.backend.encode_batch_fast(clean_texts(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def tokenize_with_offsets(self, texts: Iterable[str | bytes]) -> list[list[Piece]]:
        """Tokens of each text with the characters of the original text that they came from.

        Args:
            texts: a list of strings.

        Returns:
            One list of `Piece(id, token, start, end)` per text. Offsets count characters (code points) of the string as
            it was passed, whatever lower-casing or accent stripping did to it.

        Example:

        ```python
        from lmzoo.text import WordPieceTokenizer

        tokenizer = WordPieceTokenizer([*WordPieceTokenizer.special_tokens, "cafe", "!"])
        tokenizer.tokenize_with_offsets(["Un café!"])[0][1]  # Piece(id=5, token='cafe', start=3, end=7)
        ```
        """
        return [
            [Piece(i, t, *o) for i, t, o in zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True)]
            for encoding in self.backend.encode_batch(clean_texts(texts), add_special_tokens=False)
        ]

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of a sequence of ids: pieces joined, a space between words."""
        words: list[str] = []
        for token in (self._tokens[i] for i in ids):
            if token.startswith(self.continuation_prefix) and words:
                words[-1] += token[len(self.continuation_prefix) :]
            else:
                words.append(token)
        return " ".join(words)

    def word_starts(self) -> Any:
        """Bool numpy array (V,): whether a token begins a word rather than continues one."""
        import numpy as np

        return np.array([not token.startswith(self.continuation_prefix) for token in self._tokens])

    def save_assets(self, directory: str | Path) -> None:
        """Writes `vocabulary.txt`, one token a line, into `directory`."""
        text = "".join(f"{token}\n" for token in self.vocabulary)
        (Path(directory) / VOCABULARY_FILE).write_text(text, encoding="utf-8", newline="\n")

    def load_assets(self, directory: str | Path) -> None:
        """Reads what `save_assets` wrote."""
        # Split at "\n" only: a token may hold other characters that splitlines() takes for line ends.
        text = (Path(directory) / VOCABULARY_FILE).read_bytes().decode("utf-8")
        self._set_vocabulary([line.rstrip("\r") for line in text.removesuffix("\n").split("\n")])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments without the vocabulary, which `save_assets` writes."""
        return {"lowercase": self.lowercase, "strip_accents": self.strip_accents}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WordPieceTokenizer:
        """Builds a tokenizer without a vocabulary."""
        return cls(**config)
