"""All claims, in the order of the page."""

from benchmarks.evidence import bert, elmo, replaced, span_corruption, spans, trained

CLAIMS = (*elmo.CLAIMS, *bert.CLAIMS, *trained.CLAIMS, *replaced.CLAIMS, *spans.CLAIMS, *span_corruption.CLAIMS)
