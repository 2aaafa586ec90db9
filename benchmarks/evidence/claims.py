"""All claims, in the order of the page."""

from benchmarks.evidence import bert, elmo

CLAIMS = (*elmo.CLAIMS, *bert.CLAIMS)
