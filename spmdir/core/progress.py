"""What long work says of itself while it runs, to whom a tool has asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SHOW: ContextVar[Callable[[str], object] | None] = ContextVar("progress", default=None)


def say(text: str, *values: object) -> None:
    """Tell what is being done, `text` with `values` in its braces; nobody may listen, and then it costs nothing."""
    show = _SHOW.get()
    if show is not None:
        show(text.format(*values) if values else text)


@contextmanager
def shown_by(show: Callable[[str], object] | None) -> Iterator[None]:
    """Inside, `show` gets what `say` is told."""
    token = _SHOW.set(show)
    try:
        yield
    finally:
        _SHOW.reset(token)
