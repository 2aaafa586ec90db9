"""Batches of word streams for a language model; each batch continues where the previous one ended.

A step holds a pair of words for each direction: the word that is read and the next word.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized

import numpy as np

from lmzoo.common.progress import progress_over
from lmzoo.common.tensor_types import Tensors
from lmzoo.data.corpora.tokenized_documents import check_documents
from lmzoo.data.corpora.word_vocabulary import Document, sentences_of
from lmzoo.text import Encoded
from lmzoo.text.batching import OrderedBatches
from lmzoo.text.tokenizers.word_level import SENTENCE_END, SENTENCE_START
from lmzoo.text.validate_text import TextWarningFilter

_NO_WORDS = "There are no examples: the documents hold no words."

Pair = tuple[str, str]
Step = tuple[Pair, Pair]  # forward, backward


def pair_neighbors(sentence: Sequence[str], backward: bool = False) -> Iterator[Pair]:
    """Yield the pairs of adjacent words in a sentence, including its start and end markers.

    With `backward`, the sentence is read from its end.
    """
    marked_sentence = [SENTENCE_START, *sentence, SENTENCE_END]
    return itertools.pairwise(marked_sentence[::-1] if backward else marked_sentence)


def cut_streams(
    sentences: Iterable[Sequence[str]], rows: int, steps: int, backward: bool = False, complete: bool = False
) -> Iterator[list[list[Pair]]]:
    """Distribute sentences over parallel streams, and yield batches of the streams without padding, as in bilm-tf.

    Each row of a batch continues one stream. When the sentence of a stream ends, the stream takes the next sentence
    that no stream has taken yet. In the next batch each stream continues where it stopped.

    Args:
        sentences: iterable of lists of words.
        rows: int, number B of streams, each of which is a row of every batch.
        steps: int, number T of words per stream in a batch.
        backward: bool, whether to read each sentence from its end.
        complete: bool, whether to continue until every sentence has been read; the last rows may be shorter than T.

    Yields:
        Batches, each B lists of T pairs. Without `complete`, a batch that cannot be filled is dropped.

    Example:

    ```python
    from lmzoo.data.corpora.lm_batches import cut_streams

    next(cut_streams([["a", "b", "c"], ["d"]], rows=2, steps=2))
    # [[("<S>", "a"), ("a", "b")], [("<S>", "d"), ("d", "</S>")]]
    ```
    """
    sentence_pairs = map(functools.partial(pair_neighbors, backward=backward), sentences)
    streams = [itertools.chain.from_iterable(sentence_pairs) for _ in range(rows)]
    while True:
        batch = [list(itertools.islice(stream, steps)) for stream in streams]
        if not (any(batch) if complete else all(len(row) == steps for row in batch)):
            return
        yield batch


class DocumentStreams(OrderedBatches):
    """Batches of words from documents, which are read forward and backward as independent streams.

    Memory holds only one batch and the rest of each stream's current sentence.

    Args:
        documents: iterable of documents, each a list of sentences: strings, which are split into words, or lists of
            words. The documents are iterated over several times.
        make_batch: callable `(rows, steps, goes_on) -> batch` that takes B lists of T `Step`s (fewer at the end of a
            pass with `once`), T, and whether the rows continue the previous batch.
        rows: int, number B of streams.
        steps: int, number T of words per stream in a batch.
        length: int, number of batches per pass, for which the documents repeat if needed; None for an endless pass.
        once: bool, whether a pass reads every sentence once, without shuffling, until the last stream ends.
        shuffle: bool, whether to read documents, if they are a sequence, in a new random order for each repetition
            and direction.
        seed: tuple of ints, seed of the order.

    Raises:
        TypeError: If the documents can be iterated over only once; in a pass, if a document is not a list of sentences.
        ValueError: In a pass, if there are no words.

    Example: see `lmzoo.models.BidirectionalLM`.
    """

    def __init__(
        self,
        documents: Iterable[Document],
        make_batch: Callable[[list[list[Step]], int, bool], Tensors],
        rows: int,
        steps: int,
        length: int | None = None,
        once: bool = False,
        shuffle: bool = True,
        seed: tuple[int, ...] = (0,),
    ) -> None:
        super().__init__()
        if isinstance(documents, Iterator):
            raise TypeError(
                f"Documents are read several times, which a {type(documents).__name__} does not allow: pass a list, or "
                "an object whose `__iter__` starts from the beginning."
            )
        self.documents = documents
        self.make_batch = make_batch
        self.rows = rows
        self.steps = steps
        self.once = once
        self.shuffle = shuffle and not once and isinstance(documents, Sequence)
        self.seed = seed
        self.length = length
        self.num_words = 0
        self.warning_filter = TextWarningFilter()

    @property
    def num_batches(self) -> int | None:
        """Number of batches in a pass, or None if the pass is endless or not counted yet."""
        return self.length

    def count(self, verbose: bool = True) -> None:
        """Read the documents once to set `length` and `num_words`; the end of a sentence counts as a word.

        Raises:
            TypeError: If a document is not a list of sentences; the message names its position.
            ValueError: If there are no words, or too few for one batch.
        """
        check_documents(self.documents)
        with progress_over(self.documents, "Counting words", "documents", verbose) as documents:
            sentences = sentences_of(documents, warning_filter=self.warning_filter)
            if self.once:
                batches = cut_streams(sentences, self.rows, self.steps, complete=True)
                words_per_batch = [sum(map(len, batch)) for batch in batches]
                self.length = len(words_per_batch)
                self.num_words = sum(words_per_batch)
            else:
                self.num_words = sum(len(sentence) + 1 for sentence in sentences)
                self.length = self.num_words // (self.rows * self.steps)
        if not self.num_words:
            raise ValueError(_NO_WORDS)
        if not self.length:
            raise ValueError(
                f"The documents hold {self.num_words} words, ends of sentences included, too few for a batch of "
                f"{self.rows} rows of {self.steps}: choose a smaller `batch_size` or `unroll_steps`."
            )

    def batches(self) -> Iterator[Tensors]:
        """Iterate over the batches of the current epoch."""
        yield from self._make_pass(self.epoch)

    def batches_from(self, step: int) -> Iterator[Tensors]:
        """Iterate endlessly over the batches of all epochs, skipping the first `step` batches.

        Epochs that are skipped completely are not read. In the next epoch, the words of skipped batches are read, but
        not passed to `make_batch`.
        """
        epoch, first = divmod(step, self.length) if self.length else (0, step)
        while True:
            yield from self._make_pass(epoch, first)
            epoch += 1
            first = 0

    def _make_pass(self, epoch: int, first: int = 0) -> Iterator[Tensors]:
        """Yield the batches of one epoch, starting with the batch at index `first`."""
        batches_by_direction = [
            cut_streams(self._sentences(epoch, backward), self.rows, self.steps, backward, complete=self.once)
            for backward in (False, True)
        ]
        batch_pairs = itertools.islice(zip(*batches_by_direction, strict=True), first, self.length)
        for batch_index, batch_pair in enumerate(batch_pairs, first):
            rows = [list(zip(*row, strict=True)) for row in zip(*batch_pair, strict=True)]
            yield self.make_batch(rows, self.steps, batch_index > 0)

    def identity(self) -> dict[str, object]:
        """Return the settings, and properties of the documents that are quick to compute; see `Batches`."""
        first_sentence: list[str] = next(sentences_of(self.documents, warning_filter=self.warning_filter), [])
        properties: dict[str, object] = {"first sentence": " ".join(first_sentence)}
        if isinstance(self.documents, Sized):
            properties["number of documents"] = len(self.documents)
        if isinstance(self.documents, Sequence) and self.documents:
            *_, last_sentence = [[], *sentences_of(self.documents, [len(self.documents) - 1], self.warning_filter)]
            properties["last sentence"] = " ".join(last_sentence)
        if self.num_words:
            properties["number of words"] = self.num_words
        return {
            **properties,
            "batch size": self.rows,
            "number of words in a row": self.steps,
            "order": "shuffle" if self.shuffle else "given",
            "seed": self.seed[0],
        }

    def _sentences(self, epoch: int, backward: bool) -> Iterator[list[str]]:
        """Yield the sentences of one epoch for one direction; repeat them endlessly unless `self.once` is set."""
        for repetition in range(1) if self.once else itertools.count():
            order = None
            if self.shuffle:
                rng = np.random.default_rng((*self.seed, epoch, int(backward), repetition))
                order = rng.permutation(len(self.documents)).tolist()  # type: ignore[arg-type]
            sentence = None
            for sentence in sentences_of(self.documents, order, self.warning_filter):
                yield sentence
            if sentence is None:
                raise ValueError(_NO_WORDS)


class EncodedDocuments(Encoded):
    """Documents that are read independently, as lists of steps.

    Args:
        documents: sequence of lists of steps, one list per document.
    """

    def __init__(self, documents: Sequence[list[Step]]) -> None:
        self.documents = documents

    @classmethod
    def of(cls, documents: Iterable[Document]) -> EncodedDocuments:
        """Split documents into words with `sentences_of`, and convert the words to steps of both directions."""
        check_documents(documents)
        documents = list(documents)
        warning_filter = TextWarningFilter()
        steps = []
        for i in range(len(documents)):
            sentences = list(sentences_of(documents, [i], warning_filter))
            forward_pairs, backward_pairs = (
                [pair for sentence in sentences for pair in pair_neighbors(sentence, is_backward)]
                for is_backward in (False, True)
            )
            steps.append(list(zip(forward_pairs, backward_pairs, strict=True)))
        return cls(steps)

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each of the n documents: int64 (n,)."""
        return np.array([len(steps) for steps in self.documents], "int64")

    def select(self, indices: np.ndarray | Sequence[int]) -> EncodedDocuments:
        return EncodedDocuments([self.documents[index] for index in indices])
