"""Training of tokenizers with Hugging Face's `tokenizers` and with `sentencepiece`."""

from __future__ import annotations

import functools
import io
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TextIO, TypeVar, Unpack

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.progress import progress_over
from lmzoo.data.corpora.tokenized_documents import DocumentReader, group_items
from lmzoo.data.corpora.word_vocabulary import learn_words, report_size
from lmzoo.errors import ArgumentError
from lmzoo.text import (
    BytePairTokenizer,
    CharacterPairTokenizer,
    DebertaV3Tokenizer,
    MarianTokenizer,
    NormalizedBytePairTokenizer,
    SentencePieceTokenizer,
    T5Tokenizer,
    TextWordTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    XlmRobertaTokenizer,
    XlnetTokenizer,
)
from lmzoo.text.tokenizers.bpe import BYTE_TOKENS
from lmzoo.text.tokenizers.character_pairs import END_OF_WORD
from lmzoo.text.tokenizers.sentencepiece_text import character_map, clean
from lmzoo.text.tokenizers.token_lists import in_order
from lmzoo.text.tokenizers.tokenizer import SpecialTokens
from lmzoo.text.validate_text import clean_texts, is_column

_Kind = TypeVar("_Kind", bound=Tokenizer)
_BATCH_TEXTS = 1024  # number of texts checked at once
_MAX_CHARACTERS = 1000  # limit of the alphabet, as in Hugging Face's own scripts
_CHARACTER_COVERAGE = 0.99995  # fraction of the text's characters that SentencePiece covers; rarer ones are unknown
_MAX_TEXTS = 10_000_000  # maximum number of texts from which SentencePiece learns
_MAX_TEXT_BYTES = 1 << 16  # maximum length of a text for SentencePiece; longer texts are split
_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")  # tokens with ids 5 to 12 in ALBERT's published models


def train_tokenizer(
    documents: Iterable[str | Sequence[str]],
    kind: type[_Kind],
    vocabulary_size: int,
    **options: Any,
) -> _Kind:
    """Train a tokenizer of a given class on documents.

    Args:
        documents: iterable of strings or lists of sentences, of any length.
        kind: `WordPieceTokenizer`, `BytePairTokenizer`, `NormalizedBytePairTokenizer`, `CharacterPairTokenizer`,
            `DebertaV3Tokenizer`, `SentencePieceTokenizer`, `T5Tokenizer`, `XlmRobertaTokenizer`, `XlnetTokenizer`
            or `TextWordTokenizer`. For the class of a family, see `families()`, as in `families()["albert"].tokenizer`.
        vocabulary_size: int, number of tokens, including special tokens.
        **options: keyword arguments of the function that trains this class, such as `train_wordpiece`; they include
            special tokens, such as a family's `special_tokens`.

    Returns:
        The tokenizer. If the documents support fewer tokens than `vocabulary_size`, one warning says how many.

    Raises:
        TypeError: If a document is not text; the message names its position.
        ValueError: If the class cannot be trained, the documents have no text, or the vocabulary is too small for the
            special tokens and the characters, or bytes, of the text.

    Example:

    ```python
    from lmzoo.text import BytePairTokenizer
    from lmzoo.data.corpora import train_tokenizer

    documents = [["A fine film.", "A fine day."], ["A day at the films."]]
    tokenizer = train_tokenizer(documents, BytePairTokenizer, vocabulary_size=270, verbose=False)
    tokenizer.vocabulary[:4], tokenizer.mask_id  # ['<s>', '<pad>', '</s>', '<unk>'], 269
    ```
    """
    if kind not in _TRAINERS:
        names = ", ".join(cls.__name__ for cls in _TRAINERS)
        raise ValueError(f"A {getattr(kind, '__name__', repr(kind))} cannot be trained; choose one of {names}.")
    reader = DocumentReader(documents)
    texts = (text for document in reader for text in document)
    tokenizer = _TRAINERS[kind](texts, vocabulary_size, **options)
    reader.report(reader.count)
    report_size(tokenizer.vocabulary_size, vocabulary_size, "tokens")
    return tokenizer


def train_wordpiece(
    texts: Iterable[str],
    vocabulary_size: int,
    lowercase: bool = True,
    min_frequency: int = 2,
    verbose: bool = True,
    **special: Unpack[SpecialTokens],
) -> WordPieceTokenizer:
    """Train a WordPiece tokenizer with Hugging Face's trainer.

    Texts are iterated over once and copied to a temporary file for a second training run, in which the characters have
    a fixed order.

    Args:
        texts: iterable of strings, lines or documents.
        vocabulary_size: int, number of tokens, including special tokens.
        lowercase: bool, whether to lowercase and strip accents.
        min_frequency: int, minimum frequency of a learned token.
        verbose: bool, whether to show progress.
        **special: special tokens that differ from BERT's, see `lmzoo.text.SpecialTokens`. Special tokens get
            the first ids, in the order of the arguments.

    Returns:
        The tokenizer. The special tokens have ids 0 to 4, followed by the 1,000 most frequent characters. The result is
        the same in every run, unless there are more characters and some at this limit are equally frequent.

    Raises:
        TypeError: If `texts` is a single text or not iterable, or an entry is not text.
        ValueError: If all texts are empty, or the vocabulary is too small for the special tokens and characters.

    Example:

    ```python
    from lmzoo.data.corpora import train_wordpiece

    tokenizer = train_wordpiece(["a fine film, a fine day"], vocabulary_size=60, min_frequency=1, verbose=False)
    ```
    """
    from tokenizers import Tokenizer, models, trainers

    # `rules` cleans and splits texts like the trained tokenizer, but treats special tokens in them as ordinary text.
    special_tokens = WordPieceTokenizer.list_first_tokens(**special)
    rules = WordPieceTokenizer(special_tokens, lowercase, **special)

    def learn_vocabulary(
        texts: Iterable[str], size: int, characters: Sequence[str], max_characters: int
    ) -> dict[str, int]:
        learner = Tokenizer(models.WordPiece(unk_token=rules.unk_token))
        learner.normalizer = rules.backend.normalizer
        learner.pre_tokenizer = rules.backend.pre_tokenizer
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=min_frequency,
            special_tokens=[*special_tokens, *characters],
            limit_alphabet=max_characters,
            initial_alphabet=[token for token in characters if len(token) == 1],
            show_progress=False,
        )
        learner.train_from_iterator(texts, trainer)
        return learner.get_vocab()

    # The trainer numbers the characters in the order of a hash table, and these numbers decide between equally frequent
    # pairs. So it runs twice: without merges, to find the characters, and then with these in a fixed order.
    with (
        _track_valid_texts(texts, vocabulary_size, verbose) as valid_texts,
        tempfile.TemporaryFile("w+", encoding="ascii") as file,
    ):
        alphabet = learn_vocabulary(_copy_to_file(valid_texts, file), 0, (), _MAX_CHARACTERS).keys() - special_tokens
        characters = sorted(alphabet, key=lambda token: (len(token), token))
        file.seek(0)
        vocabulary = learn_vocabulary(map(json.loads, file), vocabulary_size, characters, len(characters))
    _check_size(vocabulary_size, len(vocabulary), "characters")
    return WordPieceTokenizer(in_order(vocabulary), lowercase, **special)


def _copy_to_file(texts: Iterable[str], file: TextIO) -> Iterator[str]:
    """Yield each text after writing it to a file as a line of JSON."""
    for text in texts:
        file.write(json.dumps(text) + "\n")
        yield text


def train_byte_pairs(
    texts: Iterable[str],
    vocabulary_size: int,
    min_frequency: int = 2,
    verbose: bool = True,
    kind: type[BytePairTokenizer] = BytePairTokenizer,
    **special: Unpack[SpecialTokens],
) -> BytePairTokenizer:
    """Train a byte-level BPE tokenizer with Hugging Face's trainer; the result is the same in every run.

    Args:
        texts: iterable of strings, lines or documents.
        vocabulary_size: int, number of tokens, including special tokens and the 256 bytes.
        min_frequency: int, minimum frequency of a pair to merge.
        verbose: bool, whether to show progress.
        kind: `BytePairTokenizer` or a subclass, whose normalization is applied to the texts.
        **special: special tokens that differ from the defaults of `kind`, see `lmzoo.text.SpecialTokens`; the last one
            gets the last id.

    Returns:
        The tokenizer. Special tokens have RoBERTa's ids: `<s>`, `<pad>`, `</s>` and `<unk>` are 0 to 3, and `<mask>` is
        the last. With another `kind`, special tokens are in the order of their roles, the last one again at the end.

    Raises:
        TypeError: If `texts` is a single text or not iterable, or an entry is not text.
        ValueError: If all texts are empty, or the vocabulary is too small for the special tokens and the bytes.

    Example:

    ```python
    from lmzoo.data.corpora import train_byte_pairs

    tokenizer = train_byte_pairs(["a fine film, a fine day"], vocabulary_size=265, verbose=False)
    ```
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    *first_tokens, last_token = kind(**special).special_tokens
    _check_size(vocabulary_size, len(first_tokens) + len(BYTE_TOKENS) + 1, "bytes")
    learner = Tokenizer(models.BPE())
    if (normalizer := kind.normalizer()) is not None:
        learner.normalizer = normalizer
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - 1,
        min_frequency=min_frequency,
        special_tokens=first_tokens,
        initial_alphabet=list(BYTE_TOKENS),
        show_progress=False,
    )
    with _track_valid_texts(texts, vocabulary_size, verbose) as valid_texts:
        tokens, merges = _learn_merges(learner, trainer, valid_texts)
    return kind([*tokens, last_token], merges, **special)


def train_character_pairs(
    texts: Iterable[str],
    vocabulary_size: int,
    min_frequency: int = 2,
    verbose: bool = True,
    **special: Unpack[SpecialTokens],
) -> CharacterPairTokenizer:
    """Train a character-level BPE tokenizer, such as GPT's, with Hugging Face's trainer.

    Args:
        texts: iterable of strings, lines or documents.
        vocabulary_size: int, number of tokens, including special tokens and the characters.
        min_frequency: int, minimum frequency of a pair to merge.
        verbose: bool, whether to show progress.
        **special: special tokens that differ from GPT's, see `lmzoo.text.SpecialTokens`.

    Returns:
        The tokenizer. Its special tokens come first, followed by the 1,000 most frequent characters. The choice between
        equally frequent pairs can differ between runs.

    Raises:
        TypeError: If `texts` is a single text or not iterable, or an entry is not text.
        ValueError: If all texts are empty, or the vocabulary is too small for the special tokens and characters.

    Example:

    ```python
    from lmzoo.data.corpora import train_character_pairs

    tokenizer = train_character_pairs(["a fine film, a fine day"], vocabulary_size=40, verbose=False)
    ```
    """
    from tokenizers import Tokenizer, models, trainers

    special_tokens = CharacterPairTokenizer(**special).special_tokens
    _check_size(vocabulary_size, len(special_tokens) + 1, "characters")
    backend = CharacterPairTokenizer(special_tokens, [], **special).backend
    learner = Tokenizer(models.BPE(end_of_word_suffix=END_OF_WORD))
    learner.normalizer = backend.normalizer
    learner.pre_tokenizer = backend.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        limit_alphabet=_MAX_CHARACTERS,
        end_of_word_suffix=END_OF_WORD,
        show_progress=False,
    )
    with _track_valid_texts(texts, vocabulary_size, verbose) as valid_texts:
        vocabulary, merges = _learn_merges(learner, trainer, valid_texts)
    _check_size(vocabulary_size, len(vocabulary), "characters")
    return CharacterPairTokenizer(vocabulary, merges, **special)


def _learn_merges(learner: Any, trainer: Any, texts: Iterator[str]) -> tuple[list[str], list[list[str]]]:
    """Train a `tokenizers` model, and return both its tokens, in the order of their ids, and its merges."""
    learner.train_from_iterator(texts, trainer)
    return in_order(learner.get_vocab()), json.loads(learner.to_str())["model"]["merges"]


def train_sentencepiece(
    texts: Iterable[str],
    vocabulary_size: int,
    lowercase: bool = True,
    keep_accents: bool = False,
    verbose: bool = True,
    kind: type[SentencePieceTokenizer] = SentencePieceTokenizer,
    **special: Unpack[SpecialTokens],
) -> SentencePieceTokenizer:
    """Train a unigram SentencePiece model (Kudo, 2018) like ALBERT's, with the `sentencepiece` package.

    Texts are first cleaned by ALBERT's rules, and split at spaces if they are longer than 65,536 bytes. The settings
    are the same as for the published models. The result is the same in every run, unless there are more than ten
    million texts: then the trainer samples ten million of them.

    Args:
        texts: iterable of strings, lines or documents. The trainer keeps them in memory.
        vocabulary_size: int, number of tokens, including special tokens.
        lowercase: bool, whether to lowercase.
        keep_accents: bool, whether to keep accents.
        verbose: bool, whether to show progress.
        kind: class of the tokenizer, such as `lmzoo.text.XlnetTokenizer`.
        **special: special tokens that differ from the class's defaults, see `lmzoo.text.SpecialTokens`.

    Returns:
        The tokenizer. Special tokens come first. By default they are ALBERT's, with the same ids: `<pad>`, `<unk>`,
        `[CLS]`, `[SEP]` and `[MASK]` are 0 to 4. The tokens `( ) " - . – £ €` follow.

    Raises:
        TypeError: If `texts` is a single text or not iterable, or an entry is not text.
        ValueError: If all texts are empty, or the vocabulary is too small for the special tokens and characters.

    Example:

    ```python
    from lmzoo.data.corpora import train_sentencepiece

    tokenizer = train_sentencepiece(["a fine film", "a fine day at the films"], vocabulary_size=40, verbose=False)
    ```
    """
    characters = character_map(lowercase, keep_accents)
    untrained_tokenizer = kind(**special)
    special_tokens = untrained_tokenizer.special_tokens
    pad_token = untrained_tokenizer.pad_token
    unknown_token = str(untrained_tokenizer.unk_token)
    with _track_valid_texts(texts, vocabulary_size, verbose) as valid_texts:
        model = _train_model(
            (clean(text, characters) for text in valid_texts),
            vocabulary_size,
            pad_id=-1 if pad_token is None else special_tokens.index(pad_token),
            pad_piece=pad_token or "<pad>",
            unk_id=special_tokens.index(unknown_token),
            unk_piece=unknown_token,
            bos_id=-1,
            eos_id=-1,
            control_symbols=[token for token in special_tokens if token not in (pad_token, unknown_token)],
            user_defined_symbols=list(_SYMBOLS),
        )
    return kind(model, lowercase, keep_accents, **special)


def _train_with_fairseq_ids(
    texts: Iterable[str], vocabulary_size: int, verbose: bool = True, **special: Unpack[SpecialTokens]
) -> XlmRobertaTokenizer:
    """Train an XLM-RoBERTa tokenizer, with SentencePiece's own text cleaning and ids.

    The tokenizer converts these ids to fairseq's.
    """
    with _track_valid_texts(texts, vocabulary_size, verbose) as valid_texts:
        # fairseq adds the padding and mask tokens.
        model = _train_model(valid_texts, vocabulary_size - 2, unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    return XlmRobertaTokenizer(model, **special)


def _train_with_mask_added(
    texts: Iterable[str], vocabulary_size: int, verbose: bool = True, **special: Unpack[SpecialTokens]
) -> DebertaV3Tokenizer:
    """Train a DeBERTa-v3 tokenizer, a SentencePiece model to which the tokenizer adds the mask token."""
    untrained_tokenizer = DebertaV3Tokenizer(**special)
    tokens_without_mask = [
        token for token in untrained_tokenizer.special_tokens if token != untrained_tokenizer.mask_token
    ]
    unknown_token = str(untrained_tokenizer.unk_token)
    with _track_valid_texts(texts, vocabulary_size, verbose) as valid_texts:
        model = _train_model(
            valid_texts,
            vocabulary_size - 1,
            unk_id=tokens_without_mask.index(unknown_token),
            unk_piece=unknown_token,
            pad_id=-1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=[token for token in tokens_without_mask if token != unknown_token],
        )
    return DebertaV3Tokenizer(model, **special)


def _train_with_sentinels_added(
    texts: Iterable[str],
    vocabulary_size: int,
    num_sentinels: int = 100,
    verbose: bool = True,
    **special: Unpack[SpecialTokens],
) -> T5Tokenizer:
    """Train a T5 tokenizer, a SentencePiece model to which the tokenizer adds the sentinels."""
    untrained_tokenizer = T5Tokenizer(num_sentinels=0, **special)
    _check_size(vocabulary_size, len(untrained_tokenizer.special_tokens) + num_sentinels + 1, "sentinels")
    unknown_token = str(untrained_tokenizer.unk_token)
    pad_token = str(untrained_tokenizer.pad_token)
    with _track_valid_texts(texts, vocabulary_size, verbose) as valid_texts:
        model = _train_model(
            valid_texts,
            vocabulary_size - num_sentinels,
            pad_id=untrained_tokenizer.special_tokens.index(pad_token),
            pad_piece=pad_token,
            unk_id=untrained_tokenizer.special_tokens.index(unknown_token),
            unk_piece=unknown_token,
            bos_id=-1,
            eos_id=-1,
            control_symbols=[
                token for token in untrained_tokenizer.special_tokens if token not in (pad_token, unknown_token)
            ],
        )
    return T5Tokenizer(model, num_sentinels, **special)


def train_joint_tokenizer(
    sources: Iterable[str], targets: Iterable[str], vocabulary_size: int, model_type: str = "bpe"
) -> MarianTokenizer:
    """Train one SentencePiece model on sources and targets together (joint BPE, Sennrich et al., 2016).

    Texts longer than 65,536 bytes are split at line ends or spaces.

    Args:
        sources: iterable of strings, texts in one language.
        targets: iterable of strings, texts in the other language.
        vocabulary_size: int, number of tokens, including special tokens: `</s>` is 0, `<unk>` 1, and `<pad>` the last.
        model_type: "bpe", or "unigram", which the published models use.

    Raises:
        TypeError: If an entry is not a string; the message names its position.
        ValueError: If `model_type` is unknown, or the vocabulary is too small or too large for the texts.

    Example:

    ```python
    from lmzoo.data.corpora import train_joint_tokenizer

    sources, targets = ["ein Film", "der Film war gut"], ["a film", "the film was good"]
    tokenizer = train_joint_tokenizer(sources, targets, vocabulary_size=30)
    ```
    """
    require(is_integer(vocabulary_size, 4), "vocabulary_size", "an integer of at least 4", vocabulary_size)
    require(model_type in ("bpe", "unigram"), "model_type", '"bpe" or "unigram"', model_type)
    model = _train_model(
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
        num_threads=1,  # for the same result in every run
    )
    return MarianTokenizer.of_model(model)


def _train_model(texts: Iterable[str], size: int, **settings: Any) -> bytes:
    """Train a SentencePiece model, by default a unigram model of at most `size` tokens, and return it as bytes.

    Raises:
        ValueError: If SentencePiece cannot learn the model from the texts, for example because `size` is too small.
    """
    from sentencepiece import SentencePieceTrainer

    defaults = {
        "model_type": "unigram",
        "hard_vocab_limit": False,
        "character_coverage": _CHARACTER_COVERAGE,
        "input_sentence_size": _MAX_TEXTS,
    }
    model_file = io.BytesIO()
    reading_errors: list[Exception] = []  # errors raised by `texts`; SentencePiece replaces them with its own

    def read_texts() -> Iterator[str]:
        try:
            for text in texts:
                yield from split_long_text(text, _MAX_TEXT_BYTES)
        except Exception as error:
            reading_errors.append(error)
            raise

    try:
        SentencePieceTrainer.train(
            sentence_iterator=read_texts(),
            model_writer=model_file,
            vocab_size=size,
            max_sentence_length=_MAX_TEXT_BYTES,
            minloglevel=2,
            **{**defaults, **settings},
        )
    except RuntimeError as error:
        if reading_errors:
            raise reading_errors[0] from None
        raise ValueError(f"SentencePiece cannot learn {size:,} tokens from these texts: {error}") from None
    return model_file.getvalue()


def split_long_text(text: str, max_bytes: int) -> Iterator[str]:
    """Split a text before line ends and spaces if possible, and yield the parts, of at most `max_bytes` bytes each.

    Args:
        text: str, the text to split.
        max_bytes: int, maximum length of a part in bytes; at least 4, so that each character fits.
    """
    content = text.encode()
    begin = 0
    while len(content) - begin > max_bytes:
        limit = begin + max_bytes
        end = max(content.rfind(separator, begin + 1, limit + 1) for separator in (b"\n", b" "))
        if end < 0:
            end = limit
            while 0x80 <= content[end] < 0xC0:  # a later byte of a character
                end -= 1
        yield content[begin:end].decode()
        begin = end
    yield content[begin:].decode()


def _train_text_words(texts: Iterable[str], vocabulary_size: int, verbose: bool = True) -> Tokenizer:
    """Train a tokenizer of the most frequent words in the texts."""
    return learn_words(([text] for text in _iterate_valid_texts(texts)), vocabulary_size, 1, verbose, TextWordTokenizer)


_TRAINERS: dict[type[Tokenizer], Callable[..., Any]] = {
    WordPieceTokenizer: train_wordpiece,
    BytePairTokenizer: train_byte_pairs,
    NormalizedBytePairTokenizer: functools.partial(train_byte_pairs, kind=NormalizedBytePairTokenizer),
    CharacterPairTokenizer: train_character_pairs,
    DebertaV3Tokenizer: _train_with_mask_added,
    SentencePieceTokenizer: train_sentencepiece,
    T5Tokenizer: _train_with_sentinels_added,
    TextWordTokenizer: _train_text_words,
    XlmRobertaTokenizer: _train_with_fairseq_ids,
    XlnetTokenizer: functools.partial(train_sentencepiece, lowercase=False, kind=XlnetTokenizer),
}


def _iterate_valid_texts(texts: Iterable[str]) -> Iterator[str]:
    """Return an iterator over the texts that are not empty, as valid strings.

    Raises:
        TypeError: Immediately, if `texts` is a single text or not iterable; while reading, if an entry is not text.
        ValueError: Immediately, if all texts are empty.
    """
    if not is_column(texts):
        raise TypeError(f"`texts` must be a list of strings or an iterator over them, got {texts!r:.60}.")
    valid_texts = (text for group in group_items(texts, _BATCH_TEXTS) for text in clean_texts(group) if text.strip())
    first_text = next(valid_texts, None)
    if first_text is None:
        raise ValueError("There is no text to learn a vocabulary from.")
    return itertools.chain([first_text], valid_texts)


def _track_valid_texts(texts: Iterable[str], size: int, verbose: bool) -> AbstractContextManager[Iterator[str]]:
    """Return a context manager that shows a progress bar and gives an iterator over the valid texts.

    Raises:
        TypeError: If `texts` is a single text or not iterable.
        ValueError: If all texts are empty, or `size` is not a positive integer.
    """
    require(is_integer(size, 1), "vocabulary_size", "a positive integer", size)
    return progress_over(_iterate_valid_texts(texts), f"Learning {size:,} tokens", "texts", verbose)


def _check_size(vocabulary_size: int, minimum: int, entries: str) -> None:
    """Check that `vocabulary_size` is at least `minimum`, the number of special tokens and `entries` together.

    Raises:
        ValueError: If `vocabulary_size` is smaller, or not a positive integer.
    """
    require(is_integer(vocabulary_size, 1), "vocabulary_size", "a positive integer", vocabulary_size)
    if vocabulary_size < minimum:
        message = (
            f"`vocabulary_size` is {vocabulary_size}, but the special tokens and the {entries} alone are {minimum}."
        )
        raise ArgumentError(message, "vocabulary_size")
