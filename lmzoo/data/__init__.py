"""Datasets: examples in tables, readers of files with examples, and corpora for pretraining."""

from lmzoo.data.examples import ExampleStream, from_table, stream

__all__ = ["ExampleStream", "from_table", "stream"]
