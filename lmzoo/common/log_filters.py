"""Filters of TensorFlow's Python logger."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def suppress_log_lines(*parts: str) -> Iterator[None]:
    """Suppress lines of TensorFlow's Python logger that contain one of `parts` while the block runs."""

    def should_keep(record: logging.LogRecord) -> bool:
        return not any(part in str(record.msg) for part in parts)

    logger = logging.getLogger("tensorflow")
    logger.addFilter(should_keep)
    try:
        yield
    finally:
        logger.removeFilter(should_keep)
