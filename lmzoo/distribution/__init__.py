"""Several devices: how the weights of a model are split between them."""

from lmzoo.distribution.layouts import layout_map

__all__ = ["layout_map"]
