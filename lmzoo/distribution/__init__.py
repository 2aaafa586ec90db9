"""Several devices and processes: how they are connected, and how the weights of a model are split."""

from lmzoo.distribution.initialization import initialize
from lmzoo.distribution.layouts import layout_map

__all__ = ["initialize", "layout_map"]
