"""Several devices and processes: how they are brought together, and how the weights of a model are split."""

from lmzoo.distribution.layouts import layout_map
from lmzoo.distribution.starting import initialize

__all__ = ["initialize", "layout_map"]
