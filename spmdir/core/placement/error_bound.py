"""Error bounds: the largest error of a lossy step, as a factor of a norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs

from spmdir.core.declared_fields import evaluated, place
from spmdir.core.errors import ShardingError, shown

NORMS = {"max": "largest absolute element", "l2": "root of the sum of the squares of the elements"}
"""Name of a norm → its definition."""

ENDS = {
    "shards": "the sum of the norms of the local tensors before the step",
    "result": "the norm of the exact value",
}
"""Name → the quantity that an error is relative to."""

Factor = float | Callable[[tuple[int, ...], int], float]
"""A number, or (local shape before the step, number of ranks) → a number."""


@attrs.frozen
class ErrorBound:
    """The largest error of a step: norm(value after the step - exact value) ≤ factor · (quantity named by `of`).

    Attributes:
        factor: a number, or (local shape before the step, number of ranks) → a number. 0: the step is exact except for
            rounding. None: no bound is known without the values.
        norm: "max" or "l2", a key of NORMS. It is the norm of the global value, not of a shard.
        of: "shards" or "result", a key of ENDS. The error of partial values is relative to "shards": the values may
            cancel, so their error has no bound relative to their sum.

    Example:
        >>> ErrorBound(1 / 254)  # the error on a rank is at most 1/254 of its largest absolute element
        >>> ErrorBound(lambda shape, count: (1 - 8 / math.prod(shape)) ** 0.5, norm="l2")
    """

    factor: Factor | None = 0.0
    norm: str = "max"
    of: str = "shards"

    def __attrs_post_init__(self) -> None:
        """Raise ShardingError unless `norm`, `of` and `factor` have valid values."""
        for name, value, allowed in (("norm", self.norm, NORMS), ("of", self.of, ENDS)):
            if value not in tuple(allowed):  # a tuple, because the value may have no hash
                raise ShardingError(
                    f"`{name}` of an ErrorBound is {shown(value)}; expected one of {', '.join(allowed)}"
                )
        if not (self.factor is None or callable(self.factor) or _is_bound(self.factor)):
            raise ShardingError(
                f"`factor` of an ErrorBound is {shown(self.factor)}; expected a nonnegative number, a function of "
                "(shape, count), or None if no bound is known"
            )

    def __bool__(self) -> bool:
        """Return whether a step with this bound may be lossy; False for an exact step."""
        return self.factor is None or callable(self.factor) or self.factor > 0

    def bound(self, shape: Sequence[int], count: int) -> float | None:
        """Return the factor for local tensors of `shape` on `count` ranks; None if no bound is known.

        Raises:
            ShardingError: the declared function fails or gives no bound.
        """
        if not callable(self.factor):
            return self.factor
        factor = evaluated("factor", self.factor, tuple(shape), count)
        if not _is_bound(factor):
            raise ShardingError(
                f"`factor` of an ErrorBound returns {shown(factor)} for {list(shape)} on {count} ranks; expected a "
                "nonnegative number",
                place(self.factor),
            )
        return factor

    def __str__(self) -> str:
        if not self:
            return "exact"
        if self.factor is None:
            return "unknown"
        factor = "a function of the shape" if callable(self.factor) else f"{self.factor:.3g}"
        return f"{factor} of {ENDS[self.of]} ({self.norm})"


def _is_bound(value: object) -> bool:
    """Return whether a value is a finite number that is not negative."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


EXACT = ErrorBound()
"""The bound of a step that is exact except for rounding."""

UNKNOWN = ErrorBound(None)
"""The bound of a step whose error can only be measured."""
