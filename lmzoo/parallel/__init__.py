"""Distributed computation: connecting processes and hosts, and splitting work and weights between devices."""

from lmzoo.parallel.initialization import initialize
from lmzoo.parallel.layouts import layout_map

__all__ = ["initialize", "layout_map"]
