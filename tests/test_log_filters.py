"""Some lines of TensorFlow's logger are left out where they mean nothing."""

from __future__ import annotations

import logging

from lmzoo.common.log_filters import suppress_log_lines


def test_lines_of_the_python_logger(caplog):
    logger = logging.getLogger("tensorflow")
    with suppress_log_lines("Assets written"):
        logger.error("Assets written to: %s", "x")
        logger.error("Another line.")
    logger.error("Assets written to: %s", "y")
    assert [record.getMessage() for record in caplog.records] == ["Another line.", "Assets written to: y"]
