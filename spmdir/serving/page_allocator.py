"""`PageAllocator`: the free pages of the caches.

A request gets all pages that it may need when it is admitted, so it never stops for want of a page. With pages of 4
rows, a prompt of 6 tokens and 5 new tokens write 10 rows, and need 3 pages. A page belongs to one sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import attrs


@attrs.define(eq=False)
class PageAllocator:
    """The free pages of the caches, in the order in which they became free.

    Attributes:
        free: the numbers of the free pages.
    """

    free: deque[int]

    @classmethod
    def of(cls, pages: int) -> PageAllocator:
        """Return an allocator whose pages, 0 up to `pages`, are all free."""
        return cls(deque(range(pages)))

    def take(self, count: int) -> tuple[int, ...]:
        """Remove and return `count` free pages; there must be as many."""
        return tuple(self.free.popleft() for _ in range(count))

    def give_back(self, pages: Iterable[int]) -> None:
        """Let pages be free again."""
        self.free.extend(pages)
