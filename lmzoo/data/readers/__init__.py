"""Readers of common dataset formats, as lists for `fit` or as streams."""

from lmzoo.data.readers.conll import read_conll
from lmzoo.data.readers.multiple_choice import read_choices
from lmzoo.data.readers.semantic_roles import mark_predicate, read_roles
from lmzoo.data.readers.squad import read_squad
from lmzoo.data.readers.table_streams import TableStream
from lmzoo.data.readers.tables import read_table

__all__ = [
    "TableStream",
    "mark_predicate",
    "read_choices",
    "read_conll",
    "read_roles",
    "read_squad",
    "read_table",
]
