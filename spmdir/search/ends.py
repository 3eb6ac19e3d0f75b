"""The ends of a value, at the parts that make and use it, with the numbers that messages put there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdir.search.forest import from_each
from spmdir.search.joint_placements import Numbers

_least = np.minimum.reduce


class End:
    """The end of a value at a part.

    Attributes:
        key: by state of the part, the index of its placement at this end.
        size: how many placements there are.
        is_last: whether no other part of the value comes later, in program order and back.
        given: by placement, its number.
        decided: the index of the placement that was decided on, if one was.
    """

    def __init__(self, key: Numbers, size: int):
        self.key, self.size = key, size
        self.is_last: tuple[bool, bool] = (False, False)
        self.given = np.zeros(size)
        self.decided: int | None = None
        self.through: Numbers | None = None


class Use(End):
    """The end of a value at a part that uses it; several operands of the part are one end, and so one placement here.

    Attributes:
        price, price_made: what it costs to have the value as this end needs it, [from placement, needed]; from any
            placement, and from those that it may be made in.
        through: [copy, made], the least that this end costs from a copy of the value or from where it is made, by its
            numbers or as it is decided; None if that is to be worked out again.
    """

    def __init__(self, needs: Sequence[Numbers]):
        counts = [int(need.max()) + 1 for need in needs]
        found, key = np.unique(np.ravel_multi_index(needs, counts), return_inverse=True)
        super().__init__(key, len(found))
        self._needs = np.unravel_index(found, counts)

    def read(self, price: Numbers, made: Numbers) -> None:
        """Read the prices of reshards, [before, after], of a value that is made in the placements `made`."""
        self._made, self.price = made, from_each(price, self._needs)
        self.price_made = self.price[made]
        self._needed = np.ascontiguousarray(self.price.T)
        self._needed_made = np.ascontiguousarray(self.price_made.T)
        self.through = None

    def cost_through(self) -> Numbers:
        """Return `through`, worked out again if need be."""
        through = self.through
        if through is None:
            at = self.decided
            below = self._needed[at] if at is not None else _least(self._needed + self.given[:, None])
            self.through = through = np.minimum(below[:, None], below[self._made])
        return through

    def cost_below_made(self) -> Numbers:
        """Return by placement that the value may be made in the least that this end costs from there."""
        at = self.decided
        return self._needed_made[at] if at is not None else _least(self._needed_made + self.given[:, None])


class Star:
    """A value with its ends: of the part that makes it, and of those that use it."""

    def __init__(self, made: Numbers, maker: End, uses: Sequence[Use], price: Numbers):
        self.made, self.maker, self.uses = made, maker, uses
        self.read(price)

    def read(self, price: Numbers) -> None:
        """Read the prices of reshards, [before, after]."""
        self._copy = np.ascontiguousarray(price[self.made].T)
        for use in self.uses:
            use.read(price, self.made)

    def least(self, end: End) -> Numbers:
        """Return, by placement of an end, the least that reshards and numbers of the other ends cost beside it.

        As in `forest.py`, the value is held in one copy beside the placement that it is made in, if that costs less.
        """
        if end is self.maker:
            return self._least_made()
        return self._least_needed(end)  # type: ignore  # all other ends are uses

    def bound(self) -> float:
        """Return the least that reshards and numbers of all ends cost, none decided."""
        return float(_least(self._least_made() + self.maker.given))

    def _least_made(self) -> Numbers:
        if len(self.uses) == 1:
            return self.uses[0].cost_below_made()
        cost = self._copy
        for use in self.uses:
            cost = cost + use.cost_through()
        return _least(cost)

    def _least_needed(self, end: Use) -> Numbers:
        price, copy, held, at = end.price_made, self._copy, self.maker.given, self.maker.decided
        here = slice(None) if at is None else slice(at, at + 1)
        if at is not None:
            price, copy, held = price[here], copy[:, here], _NOTHING
        if len(self.uses) == 1:
            return _least(price + held[:, None])
        cost = copy + held  # [copy, made]
        for use in self.uses:
            if use is not end:
                cost = cost + use.cost_through()[:, here]
        return np.minimum(_least(price + _least(cost)[:, None]), _least(end.price + _least(cost, axis=1)[:, None]))


_NOTHING = np.zeros(1)
