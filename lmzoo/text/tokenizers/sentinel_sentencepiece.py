"""T5's SentencePiece tokenizer, with sentinel tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import keras

from lmzoo.common.arguments import is_integer, require
from lmzoo.text.tokenizers.sentencepiece import MODEL_FILE, ModelRulesTokenizer, model_proto, read_model
from lmzoo.text.tokenizers.tokenizer import SpecialTokens

_CONTROL = 3  # SentencePiece's type for tokens that never occur in texts


@keras.saving.register_keras_serializable(package="lmzoo")
class T5Tokenizer(ModelRulesTokenizer):
    """T5's tokenizer, a unigram SentencePiece model and sentinels (Raffel et al., 2020, section 3.1.4).

    Only the model's own rules clean a text. A sentinel, such as `<extra_id_0>`, stands for a span of tokens that the
    model is to write. Sentinels follow all other tokens, and their ids count down: `<extra_id_0>` has the last id. They
    are recognized in texts, and are part of decoded texts.

    Args:
        model: bytes or path of a SentencePiece model, without or with the sentinels; None to read it with
            `load_assets`.
        num_sentinels: int, number of sentinels.
        **special: special tokens that differ from `<pad>`, `</s>` and `<unk>`, see `lmzoo.text.SpecialTokens`.

    Raises:
        ValueError: If `model` is not a complete SentencePiece model or lacks a special token, or `num_sentinels` is
            negative.

    Example:

    ```python
    from lmzoo.text import T5Tokenizer

    tokenizer = T5Tokenizer.of_words(["A", "film"], size=11, num_sentinels=3)
    tokenizer.tokenize(["A <extra_id_0> film", "<extra_id_2>"])  # [[3, 10, 4], [8]]
    ```
    """

    pad_token = "<pad>"
    end_token = "</s>"
    unk_token = "<unk>"
    start_token = None
    mask_token = None
    roles: ClassVar[tuple[str, ...]] = ("pad_token", "end_token", "unk_token", "start_token", "mask_token")
    last_part_counts = True

    def __init__(
        self, model: bytes | str | Path | None = None, num_sentinels: int = 100, **special: Unpack[SpecialTokens]
    ) -> None:
        require(is_integer(num_sentinels, 0), "num_sentinels", "an integer of at least 0", num_sentinels)
        self.num_sentinels = num_sentinels
        other_tokens = [token for token in special.get("other_tokens", ()) if token not in self.sentinels]
        special["other_tokens"] = (*other_tokens, *self.sentinels)
        super().__init__(model, **special)

    @property
    def sentinels(self) -> tuple[str, ...]:
        """The sentinels in their order in texts, `<extra_id_0>` first."""
        return tuple(f"<extra_id_{i}>" for i in range(self.num_sentinels))

    @classmethod
    def of_words(
        cls, words: Sequence[str], size: int, num_sentinels: int = 100, **special: Unpack[SpecialTokens]
    ) -> Self:
        """Create a tokenizer with a vocabulary of `size` tokens, for tests and toy models.

        The tokens are the special tokens, each of `words` with a leading space, a single space, fillers, and the
        sentinels.

        Raises:
            ValueError: If `size` is too small.
        """
        arguments: Any = {**special, "num_sentinels": 0}
        plain_tokenizer = super().of_words(words, size - num_sentinels, **arguments)
        return cls(plain_tokenizer.model, num_sentinels, **special)

    def save_assets(self, directory: str | Path) -> None:
        """Write the model into `directory` as `vocabulary.spm`, without sentinels that were added to it."""
        (Path(directory) / MODEL_FILE).write_bytes(remove_sentinels(self.model, self.sentinels))

    def _set_model(self, model: bytes, name: str) -> None:
        super()._set_model(add_sentinels(model, self.sentinels), name)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        other_tokens = [token for token in config.pop("other_tokens", ()) if token not in self.sentinels]
        if other_tokens:
            config["other_tokens"] = other_tokens
        return {**config, "num_sentinels": self.num_sentinels}


def _serialize_sentinels(sentinels: Sequence[str]) -> bytes:
    """Serialize sentinels, the last one first, so that they can be appended to a serialized model."""
    proto = model_proto()()
    for sentinel in reversed(sentinels):
        proto.pieces.add(piece=sentinel, score=0.0, type=_CONTROL)
    return bytes(proto.SerializePartialToString())


def add_sentinels(model: bytes, sentinels: Sequence[str]) -> bytes:
    """Add sentinels after all tokens of a complete model that has none of them; return any other bytes unchanged."""
    try:
        proto = read_model(model)
    except Exception:  # protobuf raises errors of several types
        return model
    is_complete = proto.pieces and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")
    if not is_complete or not {piece.piece for piece in proto.pieces}.isdisjoint(sentinels):
        return model
    # Serialized messages can be concatenated, which leaves the published bytes unchanged.
    return model + _serialize_sentinels(sentinels)


def remove_sentinels(model: bytes, sentinels: Sequence[str]) -> bytes:
    """Remove the sentinels that `add_sentinels` added; return any other model unchanged."""
    return model.removesuffix(_serialize_sentinels(sentinels))
