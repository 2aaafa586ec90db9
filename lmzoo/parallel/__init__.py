"""Several devices, processes and hosts: how they are connected, and how work and weights are split between them."""

from lmzoo.parallel.initialization import initialize
from lmzoo.parallel.layouts import layout_map

__all__ = ["initialize", "layout_map"]
