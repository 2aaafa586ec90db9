"""All claims, in the order of the page."""

from benchmarks.evidence import (
    applications,
    bert,
    elmo,
    modern_network,
    replaced,
    span_corruption,
    spans,
    trained,
    transfer,
)

CLAIMS = (
    *elmo.CLAIMS,
    *applications.CLAIMS,
    *transfer.CLAIMS,
    *bert.CLAIMS,
    *trained.CLAIMS,
    *replaced.CLAIMS,
    *modern_network.CLAIMS,
    *spans.CLAIMS,
    *span_corruption.CLAIMS,
)
