"""N-gram language models."""

from __future__ import annotations

import itertools
import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from lmzoo.common.arguments import is_integer, list_stop_strings, require
from lmzoo.common.progress import progress_over
from lmzoo.data.corpora.tokenized_documents import DocumentReader, check_documents, group_items
from lmzoo.data.corpora.tokenized_documents import sentences_of as sentences_in
from lmzoo.data.corpora.word_vocabulary import Document, sentences_of
from lmzoo.ngrams.arpa import SPACES, SPECIAL, UNKNOWN_ALIAS, read_arpa, write_arpa
from lmzoo.ngrams.kneser_ney import Discounts, estimate
from lmzoo.ngrams.sampling import make_sampler
from lmzoo.ngrams.table import END, START, UNKNOWN, NgramTable
from lmzoo.text import Tokenizer, TokenSpan, WordTokenizer
from lmzoo.text.token_scores import TokenScore
from lmzoo.text.validate_text import Text, clean_texts, is_text

_BATCH_SIZE = 4096  # sentences tokenized at once


class NgramLM:
    r"""N-gram language model with interpolated modified Kneser-Ney smoothing (Chen and Goodman, 1999).

    Its estimates agree with KenLM's; `lmzoo.ngrams.kneser_ney` gives the formulas. Sentences are predicted
    independently, including their end, which is a token. A document is a list of sentences, each a string or a list of
    words; a string in place of a document is one sentence.

    Args:
        order: int, length of the longest n-grams; 3 for trigrams.
        tokenizer: tokenizer of `lmzoo.text` with a vocabulary, or None to let `fit` learn a vocabulary of words. With
            the tokenizer of `lmzoo.data.corpora.train_words`, the perplexity can be compared with the perplexity of a
            `BidirectionalLM` with the same vocabulary. Tokens outside of the vocabulary, and `<UNK>`, become `<unk>`.

    Attributes:
        discounts: list of the three discounts of each order after `fit`; otherwise empty.

    Raises:
        ValueError: If `order` is below 1, or the tokenizer has no vocabulary.

    Example:

    ```python
    import numpy as np
    import lmzoo

    documents = [str(thing.__doc__).split("\n\n") for thing in vars(np).values()]  # any English text
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
        self.order = int(order)
        self.discounts = list[Discounts]()
        self._learns_words = tokenizer is None
        if tokenizer is not None:
            if not isinstance(tokenizer, Tokenizer) or not tokenizer.vocabulary:
                raise ValueError(f"`tokenizer` must be one of lmzoo.text with a vocabulary, got {tokenizer!r:.60}.")
            special_words = {*tokenizer.special_tokens, *SPECIAL, UNKNOWN_ALIAS}
            words = dict.fromkeys(
                word for word in tokenizer.vocabulary if word not in special_words and _fits_a_file(word)
            )
            self._set_vocabulary(tokenizer, [*SPECIAL, *words])

    def _set_vocabulary(self, tokenizer: Tokenizer, words: list[str]) -> None:
        """Set the tokenizer and the vocabulary of the n-grams, and map the tokenizer's ids to n-gram tokens."""
        self.tokenizer = tokenizer
        self._words = words
        token_by_word = {word: token for token, word in enumerate(words)} | dict.fromkeys(SPECIAL, UNKNOWN)
        tokenizer_tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.vocabulary_size)]
        # START and END come last; tokenizers do not return them.
        self._tokens = np.array(
            [*(token_by_word.get(tokenizer_token, UNKNOWN) for tokenizer_token in tokenizer_tokens), START, END],
            "int32",
        )

    @property
    def vocabulary(self) -> list[str]:
        """Tokens of the n-grams: `<unk>`, `<s>`, `</s>`, then all words."""
        self._check_fitted()
        return list(self._words)

    @property
    def num_ngrams(self) -> list[int]:
        """Number of n-grams of each order."""
        self._check_fitted()
        return [len(keys) for keys in self._table.keys]

    def fit(self, documents: Iterable[str | Document], min_frequency: int = 1, verbose: bool = True) -> None:
        """Estimate the model from documents, replacing any earlier estimate.

        If the discounts of an order cannot be estimated, for example from a very small text, they are 0.5, 1 and 1.5,
        with a warning except for unigrams of a model with longer n-grams.

        Args:
            documents: documents, each a list of sentences: strings, or lists of words if tokens are words. A string in
                place of a document is one sentence. Documents are read once.
            min_frequency: int, minimum frequency of a word in a learned vocabulary; rarer words become `<unk>`.
            verbose: whether to show progress.

        Raises:
            TypeError: If a document is not a list of sentences; the message gives its position.
            ValueError: If there are no words, or `min_frequency` is below 1.
        """
        require(is_integer(min_frequency, 1), "min_frequency", "an integer of at least 1", min_frequency)
        if self._learns_words:
            words, tokens = _learn_vocabulary(
                self._iterate_sentences(documents, True, "Counting words", verbose), min_frequency
            )
        else:
            words = self._words
            tokens = np.concatenate([np.zeros(0, "int32"), *self._encode_buffer(documents, "Tokenizing", verbose)])
        if not len(tokens):
            raise ValueError("The documents hold no words.")
        table, discounts = estimate(tokens, len(words), self.order)
        if self._learns_words:
            self._set_vocabulary(_make_word_tokenizer(words), words)
        self._table = table
        self.discounts = discounts

    def perplexity(self, documents: Iterable[str | Document], verbose: bool = True) -> float:
        """Return the perplexity of documents, including the ends of sentences.

        The perplexity is the exponential of the mean negative log-likelihood per token.

        Args:
            documents: documents in the form that `fit` takes.
            verbose: whether to show progress.

        Raises:
            TypeError: If a document is not a list of sentences; the message gives its position.
            ValueError: If there are no words, or the model is not fitted.
        """
        self._check_fitted()
        total_log_probability = 0.0
        num_tokens = 0
        for tokens in self._encode_buffer(documents, "Evaluating", verbose):
            log_probabilities = self._table.log_probabilities(tokens)[tokens != START]
            total_log_probability += log_probabilities.sum()
            num_tokens += len(log_probabilities)
        if not num_tokens:
            raise ValueError("The documents hold no words.")
        return math.exp(-total_log_probability / num_tokens)

    def score(self, texts: Iterable[Text]) -> list[list[TokenScore]]:
        """Return the log-probability of each token of texts; each text is one sentence.

        Args:
            texts: strings, or lists of words if tokens are words.

        Returns:
            One list per text: `{"token": str, "start": int, "end": int, "log_probability": float}` for each token,
            found at `text[start:end]`, and for the end of the sentence, `</s>`. Logarithms are natural. A token outside
            of the vocabulary has the probability of `<unk>`.

        Raises:
            TypeError: If a text is of another type; the message gives its position.
            ValueError: If the model is not fitted.
        """
        self._check_fitted()
        text_scores: list[list[TokenScore]] = []
        for spans in self.tokenizer.tokenize_with_offsets(texts):  # type: ignore[arg-type]
            tokens = self._tokens[[-2, *(span.id for span in spans), -1]]
            log_probabilities = self._table.log_probabilities(tokens)[1:].tolist()
            text_end = spans[-1].end if spans else 0
            spans.append(TokenSpan(-1, SPECIAL[END], text_end, text_end))
            text_scores.append(
                [
                    {"token": span.token, "start": span.start, "end": span.end, "log_probability": log_probability}
                    for span, log_probability in zip(spans, log_probabilities, strict=True)
                ]
            )
        return text_scores

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
        """Generate continuations of prompts, which are beginnings of sentences.

        Args:
            prompts: strings, or one string. An empty string is the beginning of a sentence.
            max_new_tokens: int, maximum number of tokens to add to each prompt.
            sampler: how tokens are chosen: `"greedy"`, the most probable token; `"random"`, a random token;
                `"top_k"`, a random token among the `top_k` most probable tokens; `"top_p"`, a random token among the
                smallest set of tokens with a total probability of at least `top_p`. `<unk>` is never chosen.
            temperature: float, divisor of log-probabilities for all samplers except `"greedy"`; below 1, probable
                tokens become more probable.
            stop: string or strings. A continuation ends before the first of these strings, or at the end of the
                sentence. With None, the end of the sentence is never chosen, and every continuation has
                `max_new_tokens` tokens.
            seed: int, seed of the samples; None for different samples in each call.
            top_k: int, number of tokens for `"top_k"`.
            top_p: float in (0, 1], minimum total probability for `"top_p"`.

        Returns:
            The continuation of each prompt, or of the single prompt; words are separated by spaces.

        Raises:
            TypeError: If a prompt is not a string; the message gives its position.
            ValueError: If `sampler` is unknown, a number is out of range, or the model is not fitted.
        """
        self._check_fitted()
        require(is_integer(max_new_tokens, 1), "max_new_tokens", "a positive integer", max_new_tokens)
        require(seed is None or is_integer(seed, 0), "seed", "an integer of at least 0, or None", seed)
        stops = list_stop_strings(stop)
        sample_token = make_sampler(sampler, temperature, top_k, top_p, np.random.default_rng(seed))
        excluded_tokens = [UNKNOWN, START] if stop is not None else [UNKNOWN, START, END]

        def choose_next(context: list[int]) -> int:
            log_probabilities = self._table.next_log_probabilities(context)
            log_probabilities[excluded_tokens] = -np.inf
            return sample_token(log_probabilities)

        is_single = is_text(prompts)
        cleaned_prompts = clean_texts([prompts] if is_single else prompts, "prompts")
        continuations = [
            self._continue(ids, choose_next, max_new_tokens, stops) for ids in self.tokenizer.tokenize(cleaned_prompts)
        ]
        # Continuations begin with a space, except after a prompt that ends with one.
        texts = [
            text.removeprefix(" ") if prompt.endswith(" ") else text
            for text, prompt in zip(continuations, cleaned_prompts, strict=True)
        ]
        return texts[0] if is_single else texts

    def _continue(
        self, ids: list[int], choose_next: Callable[[list[int]], int], max_new_tokens: int, stops: list[str]
    ) -> str:
        """Return the continuation of one prompt, given its ids."""
        context = [START, *self._tokens[ids].tolist()]
        all_ids = list(ids)
        text = ""
        prompt_length = len(self.tokenizer.detokenize(ids))
        while len(all_ids) < len(ids) + max_new_tokens and not any(stop in text for stop in stops):
            if (token := choose_next(context)) == END:
                break
            context.append(token)
            all_ids.append(self.tokenizer.token_to_id(self._words[token]))
            text = self.tokenizer.detokenize(all_ids)[prompt_length:]
        return text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]

    # === Documents ===

    def _iterate_sentences(self, documents: Iterable[Any], as_words: bool, title: str, verbose: bool) -> Iterator[Any]:
        """Yield the sentences of documents, as lists of words if `as_words` else as strings, and show progress."""
        documents = check_documents(documents)
        with progress_over(documents, title, "documents", verbose) as tracked_documents:
            if as_words:
                yield from sentences_of(sentences_in(document) for document in tracked_documents)
            else:
                reader = DocumentReader(tracked_documents)
                yield from itertools.chain.from_iterable(reader)
                reader.report(reader.count)

    def _encode_buffer(self, documents: Iterable[str | Document], title: str, verbose: bool) -> Iterator[np.ndarray]:
        """Yield arrays with the tokens of many sentences, int32 (T,), each sentence between `START` and `END`."""
        start_id = len(self._tokens) - 2
        end_id = len(self._tokens) - 1
        for group in group_items(
            self._iterate_sentences(documents, self.tokenizer.takes_words, title, verbose), _BATCH_SIZE
        ):
            joined_ids = array("i")
            for ids in filter(None, self.tokenizer.tokenize(group)):
                joined_ids.append(start_id)
                joined_ids.extend(ids)
                joined_ids.append(end_id)
            yield self._tokens[np.array(joined_ids, "int32")]

    # === Files ===

    def save(self, path: str | Path, verbose: bool = True) -> None:
        """Write the model to an ARPA file, the format of SRILM and KenLM.

        The file is compressed if its name ends in ".gz". It does not include the tokenizer.

        Args:
            path: file to write; an existing file is replaced once the new file is complete.
            verbose: whether to show progress.

        Raises:
            OSError: If the file cannot be written.
            ValueError: If the model is not fitted.
        """
        self._check_fitted()
        write_arpa(path, self._table, self._words, verbose)

    @classmethod
    def load(cls, path: str | Path, tokenizer: Tokenizer | None = None, verbose: bool = True) -> Self:
        """Load a model from an ARPA file, written by `save`, KenLM, SRILM or other software.

        Args:
            path: path or URL (read by fsspec) of the file, which may be compressed by gzip or xz.
            tokenizer: tokenizer of the tokens in the file, or None if the tokens are words. If other software split the
                training text into words by its own rules, pass texts to the model as lists of words.
            verbose: whether to show progress.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If the file is damaged or not an ARPA file (the message gives the line), or the tokenizer lacks
                words of the file.
        """
        table, words = read_arpa(path, verbose)
        model = cls(table.order, tokenizer)
        if tokenizer is not None and (missing_words := {*words[len(SPECIAL) :]} - {*tokenizer.vocabulary}):
            raise ValueError(
                f"The tokenizer lacks {len(missing_words):,} words of {path}, such as {min(missing_words)!r}."
            )
        model._set_vocabulary(tokenizer or _make_word_tokenizer(words), words)
        model._table = table
        return model

    def _check_fitted(self) -> None:
        """Raise a ValueError if the model has no n-grams."""
        if not hasattr(self, "_table"):
            raise ValueError("The model holds no n-grams yet: call `fit`, or read a file with `NgramLM.load`.")


def _learn_vocabulary(sentences: Iterable[Sequence[str]], min_frequency: int) -> tuple[list[str], np.ndarray]:
    """Return a vocabulary of special tokens and words by descending frequency, and the tokens of the sentences."""
    special_ids = dict.fromkeys((*SPECIAL, UNKNOWN_ALIAS), UNKNOWN)
    id_by_word = defaultdict(itertools.count(len(SPECIAL)).__next__, special_ids)
    joined_ids = array("i")
    for sentence in sentences:
        joined_ids.append(START)
        joined_ids.extend(map(id_by_word.__getitem__, sentence))
        joined_ids.append(END)
    tokens = np.array(joined_ids)
    frequencies = np.bincount(tokens, minlength=len(SPECIAL) + len(id_by_word))
    frequent_words = [
        word for word, i in id_by_word.items() if frequencies[i] >= min_frequency and i > END and _fits_a_file(word)
    ]
    frequent_words.sort(key=lambda word: (-frequencies[id_by_word[word]], word))
    new_ids = np.full(len(frequencies), UNKNOWN, "int32")
    new_ids[[START, END]] = START, END
    new_ids[[id_by_word[word] for word in frequent_words]] = np.arange(len(frequent_words)) + len(SPECIAL)
    return [*SPECIAL, *frequent_words], new_ids[tokens]


def _make_word_tokenizer(words: Sequence[str]) -> WordTokenizer:
    unknown_token, start_token, end_token = SPECIAL
    return WordTokenizer(words, unk_token=unknown_token, start_token=start_token, end_token=end_token)


def _fits_a_file(word: str) -> bool:
    """Return whether an ARPA file can hold the word, which must neither be empty nor contain spaces."""
    return word == word.strip() != "" and not any(space in word for space in SPACES)
