"""Values that are added to attention scores to hide keys."""

from __future__ import annotations

# Large enough that exp() of a masked score is exactly 0 next to any real one, small enough that a sequence without real
# keys stays finite (its softmax is then uniform).
MASKED = -1e9
# Lower than scores at padding, so that a position with only padding in sight attends to that padding alone.
OUT_OF_SIGHT = 2 * MASKED
