"""N-gram language models, which are counted rather than trained, and need no Keras."""

from lmzoo.ngrams.ngram_lm import NgramLM

__all__ = ["NgramLM"]
