"""`suppress_log_lines` removes the given lines of TensorFlow's logger, in its block only."""

from __future__ import annotations

import logging

from lmzoo.common.log_filters import suppress_log_lines


def test_only_the_given_lines_are_suppressed_and_only_in_the_block(caplog):
    logger = logging.getLogger("tensorflow")
    with suppress_log_lines("Assets written"):
        logger.error("Assets written to: %s", "x")
        logger.error("Another line.")
    logger.error("Assets written to: %s", "y")
    assert [record.getMessage() for record in caplog.records] == ["Another line.", "Assets written to: y"]
