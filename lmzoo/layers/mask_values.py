"""Values that are added to attention scores to hide keys."""

from __future__ import annotations

# Large enough that exp() of a masked score is exactly 0 next to any real one, small enough that a sequence without real
# keys stays finite (its softmax is then uniform).
MASKED = -1e9
# Lower than the scores of padding, so that a position with nothing but padding in sight sees nothing else.
OUT_OF_SIGHT = 2 * MASKED
