"""N-gram language models with the methods of the other language models."""

from __future__ import annotations

import itertools
import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from lmzoo.common.arguments import is_integer, require, stop_strings
from lmzoo.common.progress import progress_over
from lmzoo.data.corpora.tokenized_documents import DocumentReader, check_documents, groups_of
from lmzoo.data.corpora.tokenized_documents import sentences_of as sentences_in
from lmzoo.data.corpora.word_vocabulary import Document, sentences_of
from lmzoo.ngrams.arpa import SPACES, SPECIAL, read_arpa, write_arpa
from lmzoo.ngrams.kneser_ney import Discounts, estimate
from lmzoo.ngrams.sampling import make_sampler
from lmzoo.ngrams.table import END, START, UNKNOWN, NgramTable
from lmzoo.text import Tokenizer, TokenSpan, WordTokenizer
from lmzoo.text.token_scores import TokenScore
from lmzoo.text.validate_text import Text, clean_texts, is_text

_BATCH = 4096  # sentences tokenized at once


class NgramLM:
    r"""An n-gram model with interpolated modified Kneser-Ney smoothing (Chen and Goodman, 1999).

    Its estimates are those of KenLM; `lmzoo.ngrams.kneser_ney` states the formulas. A sentence is predicted by itself,
    from its beginning to its end, which is a token, too. Documents are lists of sentences, strings or lists of words;
    a string in place of a document is one sentence.

    Args:
        order: int, n; 3 are trigrams.
        tokenizer: any tokenizer of `lmzoo.text` that has a vocabulary. That of `lmzoo.data.corpora.train_words` limits
            the words, so that the perplexity can be compared with that of a `BidirectionalLM` of the same vocabulary.
            None for words: `fit` learns the vocabulary then. What it lacks is `<unk>`.

    Attributes:
        discounts: three for each order, if the model was fitted.

    Raises:
        ValueError: for an order below 1, or a tokenizer without a vocabulary.

    Example:

    ```python
    import numpy as np
    import lmzoo

    documents = [str(thing.__doc__).split("\n\n") for thing in vars(np).values()]  # English text that is at hand
    model = lmzoo.models.NgramLM(order=3)
    model.fit(documents[20:])
    model.perplexity(documents[:20])
    model.score(["Return the sum."])  # [[{"token": "Return", "start": 0, "end": 6, "log_probability": ...}, ...]]
    model.generate(["Return the"], max_new_tokens=10, sampler="top_p", seed=1)
    model.save("numpy.arpa.gz")
    ```
    """

    tokenizer: Tokenizer
    _table: NgramTable

    def __init__(self, order: int = 3, tokenizer: Tokenizer | None = None) -> None:
        require(is_integer(order, 1), "order", "an integer of at least 1", order)
        self.order, self.discounts = int(order), list[Discounts]()
        self._learns_words = tokenizer is None
        if tokenizer is not None:
            if not isinstance(tokenizer, Tokenizer) or not tokenizer.vocabulary:
                raise ValueError(f"`tokenizer` must be one of lmzoo.text with a vocabulary, got {tokenizer!r:.60}.")
            special = {*tokenizer.special_tokens, *SPECIAL}
            words = dict.fromkeys(w for w in tokenizer.vocabulary if w not in special and _fits_a_file(w))
            self._set_vocabulary(tokenizer, [*SPECIAL, *words])

    def _set_vocabulary(self, tokenizer: Tokenizer, words: list[str]) -> None:
        """Set the tokens of the n-grams by name, and assigns them to those of a tokenizer."""
        self.tokenizer, self._words = tokenizer, words
        tokens = {word: token for token, word in enumerate(words)} | dict.fromkeys(SPECIAL, UNKNOWN)
        names = [tokenizer.id_to_token(i) for i in range(tokenizer.vocabulary_size)]
        # The last two mark the ends of sentences, which no tokenizer returns.
        self._tokens = np.array([*(tokens.get(name, UNKNOWN) for name in names), START, END], "int32")

    @property
    def vocabulary(self) -> list[str]:
        """The tokens, as files name them: `<unk>`, `<s>`, `</s>`, then the others."""
        self._check_fitted()
        return list(self._words)

    @property
    def num_ngrams(self) -> list[int]:
        """How many n-grams of each order the model holds."""
        self._check_fitted()
        return [len(keys) for keys in self._table.keys]

    def fit(self, documents: Iterable[str | Document], min_frequency: int = 1, verbose: bool = True) -> None:
        """Count the n-grams of documents, in place of those of any earlier `fit`.

        If the discounts of an order cannot be estimated, as from a very small text, they are 0.5, 1 and 1.5. A warning
        says so, unless these are the unigrams below others, which may all be frequent.

        Args:
            documents: documents, each a list of sentences: strings, or lists of words if tokens are words. A string in
                place of a document is one sentence. They are read once.
            min_frequency: int, words that are rarer are `<unk>`, if the model learns the words.
            verbose: whether to show progress.

        Raises:
            TypeError: naming the position of a document that is not a list of sentences.
            ValueError: if there are no words, or for a `min_frequency` below 1.
        """
        require(is_integer(min_frequency, 1), "min_frequency", "an integer of at least 1", min_frequency)
        if self._learns_words:
            words, tokens = _learn(self._sentences(documents, True, "Counting words", verbose), min_frequency)
        else:
            words = self._words
            tokens = np.concatenate([np.zeros(0, "int32"), *self._encoded(documents, "Tokenizing", verbose)])
        if not len(tokens):
            raise ValueError("The documents hold no words.")
        table, discounts = estimate(tokens, len(words), self.order)
        if self._learns_words:
            self._set_vocabulary(_word_tokenizer(words), words)
        self._table, self.discounts = table, discounts

    def perplexity(self, documents: Iterable[str | Document], verbose: bool = True) -> float:
        """Return the exponential of the mean negative log-likelihood of all tokens and ends of sentences.

        Args:
            documents: as for `fit`.
            verbose: whether to show progress.

        Raises:
            TypeError: naming the position of a document that is not a list of sentences.
            ValueError: if there are no words, or no n-grams yet.
        """
        self._check_fitted()
        total, count = 0.0, 0
        for tokens in self._encoded(documents, "Evaluating", verbose):
            found = self._table.log_probabilities(tokens)[tokens != START]
            total, count = total + found.sum(), count + len(found)
        if not count:
            raise ValueError("The documents hold no words.")
        return math.exp(-total / count)

    def score(self, texts: Iterable[Text]) -> list[list[TokenScore]]:
        """Return the log-probability of each token of texts, each of which is one sentence.

        Args:
            texts: strings, or lists of words if tokens are words.

        Returns:
            One list per text: `{"token": str, "start": int, "end": int, "log_probability": float}` for each token,
            `text[start:end]`, and for `</s>`, the end. Logarithms are natural ones. A token that the vocabulary lacks
            has the probability of `<unk>`.

        Raises:
            TypeError: naming the position of a text that is not a string.
            ValueError: if there are no n-grams yet.
        """
        self._check_fitted()
        answers: list[list[TokenScore]] = []
        for spans in self.tokenizer.tokenize_with_offsets(texts):  # type: ignore[arg-type]
            tokens = self._tokens[[-2, *(span.id for span in spans), -1]]
            found = self._table.log_probabilities(tokens)[1:].tolist()
            last = spans[-1].end if spans else 0
            spans.append(TokenSpan(-1, SPECIAL[END], last, last))
            answers.append(
                [
                    {"token": span.token, "start": span.start, "end": span.end, "log_probability": log_probability}
                    for span, log_probability in zip(spans, found, strict=True)
                ]
            )
        return answers

    def generate(
        self,
        prompts: Text | Iterable[Text],
        max_new_tokens: int = 64,
        sampler: str = "greedy",
        temperature: float = 1.0,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
        top_k: int = 10,
        top_p: float = 0.9,
    ) -> list[str] | Any:
        """Continue texts, the beginnings of sentences.

        Args:
            prompts: strings, or one string. The empty one stands for the beginning of a sentence.
            max_new_tokens: int, the most tokens that are added to each prompt.
            sampler: how a token is chosen: `"greedy"`, the most probable; `"random"`, any by its probability;
                `"top_k"`, one of the `top_k` most probable ones; `"top_p"`, one of the fewest that together have the
                probability `top_p`. `<unk>` is never chosen.
            temperature: float, what logarithms of probabilities are divided by before any of these but `"greedy"`:
                below 1 probable tokens become more probable.
            stop: a string, or several. A text ends before the first of them, and at the end of the sentence. None to
                ignore that, too: then every text gets `max_new_tokens`.
            seed: int, which makes samples repeatable; None for different ones in each call.
            top_k: int, for `"top_k"`.
            top_p: float in (0, 1], for `"top_p"`.

        Returns:
            For each prompt the text that follows it, or for one string its text; words are separated by spaces.

        Raises:
            TypeError: naming the position of a prompt that is not a string.
            ValueError: for an unknown sampler or a number that is out of range; if there are no n-grams yet.
        """
        self._check_fitted()
        require(is_integer(max_new_tokens, 1), "max_new_tokens", "a positive integer", max_new_tokens)
        require(seed is None or is_integer(seed, 0), "seed", "an integer of at least 0, or None", seed)
        stops = stop_strings(stop)
        choose_token = make_sampler(sampler, temperature, top_k, top_p, np.random.default_rng(seed))
        never = [UNKNOWN, START] if stop is not None else [UNKNOWN, START, END]

        def choose(context: list[int]) -> int:
            found = self._table.next_token(context)
            found[never] = -np.inf
            return choose_token(found)

        single = is_text(prompts)
        cleaned = clean_texts([prompts] if single else prompts, "prompts")
        continued = [self._continue(ids, choose, max_new_tokens, stops) for ids in self.tokenizer.tokenize(cleaned)]
        spaced = [prompt.endswith(" ") for prompt in cleaned]  # words come with a space before them
        texts = [text.removeprefix(" ") if space else text for text, space in zip(continued, spaced, strict=True)]
        return texts[0] if single else texts

    def _continue(
        self, ids: list[int], choose: Callable[[list[int]], int], max_new_tokens: int, stops: list[str]
    ) -> str:
        context, all_ids, text = [START, *self._tokens[ids].tolist()], list(ids), ""
        before = len(self.tokenizer.detokenize(ids))
        while len(all_ids) < len(ids) + max_new_tokens and not any(stop in text for stop in stops):
            if (token := choose(context)) == END:
                break
            context.append(token)
            all_ids.append(self.tokenizer.token_to_id(self._words[token]))
            text = self.tokenizer.detokenize(all_ids)[before:]
        return text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]

    # === Documents ===

    def _sentences(self, documents: Iterable[Any], words: bool, title: str, verbose: bool) -> Iterator[Any]:
        """Iterate over the sentences of documents, as lists of words if tokens are `words`."""
        check_documents(documents)
        with progress_over(documents, title, "documents", verbose) as read:
            if words:
                yield from sentences_of(sentences_in(document) for document in read)
            else:
                reader = DocumentReader(read)
                yield from itertools.chain.from_iterable(reader)
                reader.report(reader.count)

    def _encoded(self, documents: Iterable[str | Document], title: str, verbose: bool) -> Iterator[np.ndarray]:
        """Yield the tokens of documents, int32 (T,), many sentences at a time."""
        start, end = len(self._tokens) - 2, len(self._tokens) - 1
        for group in groups_of(self._sentences(documents, self.tokenizer.takes_words, title, verbose), _BATCH):
            stream = array("i")
            for ids in filter(None, self.tokenizer.tokenize(group)):
                stream.append(start)
                stream.extend(ids)
                stream.append(end)
            yield self._tokens[np.array(stream, "int32")]

    # === Files ===

    def save(self, path: str | Path, verbose: bool = True) -> None:
        """Write the model as an ARPA file, which SRILM and KenLM read; compressed if the name ends in ".gz".

        An existing file is replaced when the new one is complete. A tokenizer other than words is not in the file.

        Raises:
            OSError: if the file cannot be written.
            ValueError: if there are no n-grams yet.
        """
        self._check_fitted()
        write_arpa(path, self._table, self._words, verbose)

    @classmethod
    def load(cls, path: str | Path, tokenizer: Tokenizer | None = None, verbose: bool = True) -> Self:
        """Read an ARPA file: of `save`, KenLM, SRILM or others; plain, or compressed by gzip or xz.

        Args:
            path: the file, or a URL that fsspec reads.
            tokenizer: the tokenizer whose tokens the file holds; None if they are words. If the text of the file was
                split into words in another way than by lmzoo, pass texts as lists of words.
            verbose: whether to show progress.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: for a file that is damaged or not an ARPA file, naming the line; for a tokenizer that lacks
                words of the file.
        """
        table, words = read_arpa(path, verbose)
        model = cls(table.order, tokenizer)
        if tokenizer is not None and (lacking := {*words[len(SPECIAL) :]} - {*tokenizer.vocabulary}):
            raise ValueError(f"The tokenizer lacks {len(lacking):,} words of {path}, such as {min(lacking)!r}.")
        model._set_vocabulary(tokenizer or _word_tokenizer(words), words)
        model._table = table
        return model

    def _check_fitted(self) -> None:
        if not hasattr(self, "_table"):
            raise ValueError("The model holds no n-grams yet: call `fit`, or read a file with `NgramLM.load`.")


def _learn(sentences: Iterable[Sequence[str]], min_frequency: int) -> tuple[list[str], np.ndarray]:
    """Return the vocabulary of sentences of words, by falling frequency, and their tokens."""
    numbers = defaultdict(itertools.count(len(SPECIAL)).__next__, dict.fromkeys(SPECIAL, UNKNOWN))
    stream = array("i")
    for sentence in sentences:
        stream.append(START)
        stream.extend(map(numbers.__getitem__, sentence))
        stream.append(END)
    tokens = np.array(stream)
    counts = np.bincount(tokens, minlength=len(SPECIAL) + len(numbers))
    kept = [word for word, i in numbers.items() if counts[i] >= min_frequency and i > END and _fits_a_file(word)]
    kept.sort(key=lambda word: (-counts[numbers[word]], word))
    places = np.full(len(counts), UNKNOWN, "int32")
    places[[START, END]] = START, END
    places[[numbers[word] for word in kept]] = np.arange(len(kept)) + len(SPECIAL)
    return [*SPECIAL, *kept], places[tokens]


def _word_tokenizer(words: Sequence[str]) -> WordTokenizer:
    unknown, start, end = SPECIAL
    return WordTokenizer(words, unk_token=unknown, start_token=start, end_token=end)


def _fits_a_file(word: str) -> bool:
    """Return whether files can hold a word: they separate words by spaces."""
    return word == word.strip() != "" and not any(space in word for space in SPACES)
