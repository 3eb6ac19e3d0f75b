"""How far the steps of a placement may be off: a bound in a norm, or that none is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs

from spmdir.core.declared_fields import evaluated, place
from spmdir.core.errors import ShardingError, shown

NORMS = {"max": "largest absolute element", "l2": "root of the sum of the squares of the elements"}
"""The norms in which errors are bounded, and what each is of a tensor."""

ENDS = {
    "shards": "the sum of the norms of what the ranks hold before the step",
    "result": "the norm of the exact value",
}
"""What an error is relative to."""

Factor = float | Callable[[tuple[int, ...], int], float]


@attrs.frozen
class ErrorBound:
    """How far the value after a step may be from the exact one: norm(difference) ≤ factor · norms of `of`.

    Attributes:
        factor: a number, or (local shape before the step, number of ranks) → a number; 0 where the step is exact but
            for rounding, None where no bound is known before the values are.
        norm: "max" or "l2", a key of NORMS; of the whole value, not of one rank's shard of it.
        of: "shards" or "result", a key of ENDS. Partial values may cancel, so that what is done to each of them has no
            bound relative to their sum.

    Example:
        >>> ErrorBound(1 / 254)  # each rank is off by 1/254 of the largest absolute element that it holds
        >>> ErrorBound(lambda shape, count: (1 - 8 / math.prod(shape)) ** 0.5, norm="l2")
    """

    factor: Factor | None = 0.0
    norm: str = "max"
    of: str = "shards"

    def __attrs_post_init__(self) -> None:
        for name, value, allowed in (("norm", self.norm, NORMS), ("of", self.of, ENDS)):
            if value not in tuple(allowed):  # a tuple, since values without a hash are asked about too
                raise ShardingError(
                    f"`{name}` of an ErrorBound is {shown(value)}; expected one of {', '.join(allowed)}"
                )
        if not (self.factor is None or callable(self.factor) or _is_bound(self.factor)):
            raise ShardingError(
                f"`factor` of an ErrorBound is {shown(self.factor)}; expected a number from 0 on, a function of "
                "(shape, count), or None where no bound is known"
            )

    def __bool__(self) -> bool:
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
                f"`factor` of an ErrorBound gives {shown(factor)} for {list(shape)} on {count} ranks; expected a "
                "number from 0 on",
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
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


EXACT = ErrorBound()
"""Exact but for rounding."""

UNKNOWN = ErrorBound(None)
"""No bound is known before the values are: it can only be measured."""
