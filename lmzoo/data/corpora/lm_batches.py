"""Streams of words that a language model reads, a batch going on where the one before ended.

A step is what is read and what comes next, in both directions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from lmzoo.data.corpora.tokenized_documents import check_documents
from lmzoo.data.corpora.word_vocabulary import Document, sentences_of
from lmzoo.progress import progress_over
from lmzoo.text import Encoded
from lmzoo.text.batching import Batches
from lmzoo.text.tokenizers.word_level import SENTENCE_END, SENTENCE_START
from lmzoo.text.validate_text import FirstWarning

_NO_WORDS = "There are no examples: the documents hold no words."

Pair = tuple[str, str]
Step = tuple[Pair, Pair]  # forward, backward


def pairs_of(sentence: Sequence[str], backward: bool = False) -> Iterator[Pair]:
    """Each word of a sentence, the first of its markers included, with the one that comes after it.

    Args:
        sentence: its words.
        backward: whether to read from its end to its beginning.
    """
    marked = [SENTENCE_START, *sentence, SENTENCE_END]
    return itertools.pairwise(marked[::-1] if backward else marked)


def cut_streams(
    sentences: Iterable[Sequence[str]], rows: int, steps: int, backward: bool = False, complete: bool = False
) -> Iterator[list[list[Pair]]]:
    """Batches of words and those after them, as bilm-tf makes them: no padding, and no row ends with its sentence.

    Every row is a stream. Where its sentence ends it takes the next one that no row has taken, and where a batch ends
    it goes on in the next.

    Args:
        sentences: lists of words.
        rows: int, B.
        steps: int, T, words of a row.
        backward: whether sentences are read from their ends.
        complete: whether to go on until every sentence has been read, with rows that get shorter than T.

    Yields:
        B rows of T pairs. A batch that cannot be filled is dropped, unless `complete`.

    Example:

    ```python
    from lmzoo.data.corpora.lm_batches import cut_streams

    next(cut_streams([["a", "b", "c"], ["d"]], rows=2, steps=2))
    # [[("<S>", "a"), ("a", "b")], [("<S>", "d"), ("d", "</S>")]]
    ```
    """
    reader = map(functools.partial(pairs_of, backward=backward), sentences)
    streams = [itertools.chain.from_iterable(reader) for _ in range(rows)]
    while True:
        batch = [list(itertools.islice(stream, steps)) for stream in streams]
        if not (any(batch) if complete else all(len(row) == steps for row in batch)):
            return
        yield batch


class DocumentStreams(Batches):
    """Documents as batches of two streams, which are read independently of each other.

    Memory holds a batch, and of each row the rest of its sentence.

    Args:
        documents: documents, each a list of sentences: strings, which are split into words, or lists of words. Anything
            that can be gone through again.
        make_batch: `(rows, steps, goes_on) -> batch`: B lists of T `Step`s, T, and whether they go on with the batch
            before.
        rows: int, B.
        steps: int, T.
        length: int, batches of a pass, which begins anew where documents end; None for a pass without end.
        once: whether a pass reads every sentence once instead, without shuffling, until the last row ends.
        shuffle: whether documents, if they are a sequence, are read in a new order each time and in each direction.
        seed: ints.

    Raises:
        TypeError: for documents that can be gone through only once; in a pass, see `sentences_of`.
        ValueError: in a pass, if there are no words.
    """

    def __init__(
        self,
        documents: Iterable[Document],
        make_batch: Callable[[list[list[Step]], int, bool], Any],
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
                f"Documents are read several times, which a {type(documents).__name__} does not allow: pass a list of "
                "them, or an object whose `__iter__` begins anew."
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
        self.warning = FirstWarning()
        self._pass: tuple[int, Iterator[Any]] = (0, iter(()))

    @property
    def num_batches(self) -> int | None:
        """Batches of a pass; None if it has no end."""
        return self.length

    def count(self, verbose: bool = True) -> None:
        """Reads the documents for `length`, the batches that they fill, and `num_words`, ends of sentences included.

        Args:
            verbose: whether to show progress.

        Raises:
            TypeError: see `sentences_of`.
            ValueError: if there are no words, or not enough for one batch.
        """
        check_documents(self.documents)
        with progress_over(self.documents, "Counting words", "documents", verbose) as documents:
            sentences = sentences_of(documents, warning=self.warning)
            if self.once:
                batches = cut_streams(sentences, self.rows, self.steps, complete=True)
                sizes = [sum(map(len, batch)) for batch in batches]
                self.length, self.num_words = len(sizes), sum(sizes)
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

    def batches(self) -> Iterator[Any]:
        """One pass, of the epoch begun last."""
        yield from self._pass_of(self.epoch)

    def batches_from(self, step: int) -> Iterator[Any]:
        """See `Batches`; what comes before is read, too, but no batches are made of it."""
        epoch, first = divmod(step, self.length) if self.length else (0, step)
        while True:
            yield from self._pass_of(epoch, first)
            epoch, first = epoch + 1, 0

    def _pass_of(self, epoch: int, first: int = 0) -> Iterator[Any]:
        directions = [
            cut_streams(self._sentences(epoch, backward), self.rows, self.steps, backward, complete=self.once)
            for backward in (False, True)
        ]
        pairs = itertools.islice(zip(*directions, strict=True), first, self.length)
        for index, pair in enumerate(pairs, first):
            rows = [list(zip(*row, strict=True)) for row in zip(*pair, strict=True)]
            yield self.make_batch(rows, self.steps, index > 0)

    def identity(self) -> dict[str, Any]:
        """The documents, by what takes no time to know of them, and how they are read."""
        first: list[str] = next(sentences_of(self.documents, warning=self.warning), [])
        found: dict[str, Any] = {"first sentence": " ".join(first)}
        if isinstance(self.documents, Sized):
            found["number of documents"] = len(self.documents)
        if isinstance(self.documents, Sequence) and self.documents:
            *_, last = [[], *sentences_of(self.documents, [len(self.documents) - 1], self.warning)]
            found["last sentence"] = " ".join(last)
        if self.num_words:
            found["number of words"] = self.num_words
        return {
            **found,
            "batch size": self.rows,
            "number of words in a row": self.steps,
            "order": "shuffle" if self.shuffle else "given",
            "seed": self.seed[0],
        }

    def _sentences(self, epoch: int, backward: bool) -> Iterator[list[str]]:
        for number in range(1) if self.once else itertools.count():
            order = None
            if self.shuffle:
                rng = np.random.default_rng((*self.seed, epoch, int(backward), number))
                order = rng.permutation(len(self.documents)).tolist()  # type: ignore[arg-type]
            sentence = None
            for sentence in sentences_of(self.documents, order, self.warning):
                yield sentence
            if sentence is None:
                raise ValueError(_NO_WORDS)

    def __getitem__(self, index: int) -> Any:
        """The batch at `index`, which must be 0, to begin a pass, or the next one."""
        if index == 0:
            self._pass = (0, self.batches())
        if index != self._pass[0]:
            raise IndexError(f"Streams are read in order: batch {self._pass[0]} comes next, not {index}.")
        self._pass = (index + 1, self._pass[1])
        return next(self._pass[1])


class EncodedDocuments(Encoded):
    """Documents, each by itself, as lists of steps.

    Args:
        documents: of each document its steps.
    """

    def __init__(self, documents: Sequence[list[Step]]) -> None:
        self.documents = documents

    @classmethod
    def of(cls, documents: Iterable[Document]) -> EncodedDocuments:
        """Reads documents; see `sentences_of`."""
        check_documents(documents)
        documents, warning, rows = list(documents), FirstWarning(), []
        for i in range(len(documents)):
            sentences = list(sentences_of(documents, [i], warning))
            forward, backward = ([pair for s in sentences for pair in pairs_of(s, b)] for b in (False, True))
            rows.append(list(zip(forward, backward, strict=True)))
        return cls(rows)

    @property
    def lengths(self) -> np.ndarray:
        """Int64 (n,), steps of each document."""
        return np.array([len(steps) for steps in self.documents], "int64")

    def select(self, rows: Any) -> EncodedDocuments:
        """The given documents, in the given order."""
        return EncodedDocuments([self.documents[row] for row in rows])
