"""Values that are added to attention scores to hide keys."""

from __future__ import annotations

# Low enough that a masked key gets exactly 0 in a softmax with any real key, high enough that the scores of a sequence
# without real keys stay finite (its softmax is then uniform).
MASKED = -1e9
# Lower than scores at padding, so that a position with only padding in sight attends to that padding alone.
OUT_OF_SIGHT = 2 * MASKED
