"""Training of a tokenizer for translation on both languages together."""

from __future__ import annotations

from collections.abc import Iterable

from lmzoo.common.arguments import is_integer, require
from lmzoo.data.corpora.train_tokenizers import train_pieces
from lmzoo.text import MarianTokenizer
from lmzoo.text.validate_text import clean_texts


def train_joint_tokenizer(
    sources: Iterable[str], targets: Iterable[str], vocabulary_size: int, model_type: str = "bpe"
) -> MarianTokenizer:
    """Train one SentencePiece model on sources and targets together (Sennrich et al., 2016, joint BPE).

    Args:
        sources: texts. The trainer leaves out those longer than 65,536 bytes.
        targets: texts in the other language.
        vocabulary_size: int, number of tokens, special tokens included: `</s>` is 0, `<unk>` 1, and `<pad>` the last.
        model_type: "bpe", or "unigram" as in the published models.

    Raises:
        TypeError: naming the position of an entry that is not a string.
        ValueError: for an unknown `model_type`, or a vocabulary that is too small or too large for the texts.

    Example:

    ```python
    from lmzoo.data.corpora import train_joint_tokenizer

    sources, targets = ["ein Film", "der Film war gut"], ["a film", "the film was good"]
    tokenizer = train_joint_tokenizer(sources, targets, vocabulary_size=30)
    ```
    """
    require(is_integer(vocabulary_size, 4), "vocabulary_size", "an integer of at least 4", vocabulary_size)
    require(model_type in ("bpe", "unigram"), "model_type", '"bpe" or "unigram"', model_type)
    model = train_pieces(
        [text for side in (sources, targets) for text in clean_texts(side)],
        vocabulary_size - 1,  # without padding
        model_type=model_type,
        hard_vocab_limit=True,
        character_coverage=1.0,
        input_sentence_size=0,
        eos_id=0,
        unk_id=1,
        bos_id=-1,
        pad_id=-1,
        num_threads=1,  # the same result in every run
    )
    return MarianTokenizer.of_model(model)
