"""N-gram language models, which are estimated from counts and need no Keras."""

from lmzoo.ngrams.ngram_lm import NgramLM

__all__ = ["NgramLM"]
