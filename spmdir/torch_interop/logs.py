"""Keep torch from logging the traceback of an error that becomes one of spmdir."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FAKE_TENSORS = logging.getLogger("torch._subclasses.fake_tensor")
"""Logs that an op cannot run on fake tensors."""

GUARDS = logging.getLogger("torch._guards")
"""Logs that a guard cannot be made."""


@contextmanager
def unlogged(logger: logging.Logger) -> Iterator[None]:
    """Drop what this thread logs; other threads log as before."""
    thread = threading.get_ident()

    def is_elsewhere(_: object) -> bool:
        return threading.get_ident() != thread

    logger.addFilter(is_elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(is_elsewhere)
