"""Values as factors of message passing: the cost of a value, given the placements at its producer and its users.

See `message_passing.py` for the algorithm. Prices are seconds, as arrays over placements before and after a reshard.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdir.search.forest_moves import operand_costs
from spmdir.search.joint_placements import Numbers

_least = np.minimum.reduce


class End:
    """The link between a value and one part.

    Attributes:
        placement_of_state: [state of the part], the index of the value's placement at this end.
        size: the number of placements.
        is_last: whether the part is the last one of the value, in program order and in reverse.
        message: [placement], seconds added to the value and subtracted from the part.
        decided: the index of the decided placement; None if the part is not decided.
        copy_costs: as of `Use.costs_from_copies`; None if it has to be computed again.
    """

    def __init__(self, placement_of_state: Numbers, size: int):
        self.placement_of_state, self.size = placement_of_state, size
        self.is_last: tuple[bool, bool] = (False, False)
        self.message = np.zeros(size)
        self.decided: int | None = None
        self.copy_costs: Numbers | None = None


class UsePrices:
    """The prices of the reshards of a value for one of its uses.

    Args:
        price: [before, after], of the value.
        needs: for each operand that is the value, [placement of the use], the placement that it needs.
        produced: the placements that the value may be produced in.

    Attributes:
        price: [placement before, placement of the use].
        from_produced: the rows of `price` for the placements in `produced`.
        by_needed, from_produced_by_needed: the same, transposed.
    """

    def __init__(self, price: Numbers, needs: Sequence[Numbers], produced: Numbers):
        self.produced, self.price = produced, operand_costs(price, needs)
        self.from_produced = self.price[produced]
        self.by_needed = np.ascontiguousarray(self.price.T)
        self.from_produced_by_needed = np.ascontiguousarray(self.from_produced.T)


class Use(End):
    """The end of a value at a part that uses it.

    If several operands of the part are this value, a "placement" of the end is a tuple of placements, one for each.

    Attributes:
        prices: of the reshards for this end.
    """

    prices: UsePrices

    def __init__(self, needs: Sequence[Numbers]):
        counts = [int(need.max()) + 1 for need in needs]
        placements, placement_of_state = np.unique(np.ravel_multi_index(needs, counts), return_inverse=True)
        super().__init__(placement_of_state, len(placements))
        self.needs = np.unravel_index(placements, counts)
        self.key = tuple([need.tobytes() for need in self.needs])

    def read(self, prices: UsePrices) -> None:
        """Replace the prices of reshards."""
        self.prices, self.copy_costs = prices, None

    def costs_from_copies(self) -> Numbers:
        """Return [copy, produced], the least cost of this end if it may be resharded from either placement."""
        costs = self.copy_costs
        if costs is None:
            decided, price = self.decided, self.prices.by_needed
            least_by_copy = price[decided] if decided is not None else _least(price + self.message[:, None])
            self.copy_costs = costs = np.minimum(least_by_copy[:, None], least_by_copy[self.prices.produced])
        return costs

    def costs_from_produced(self) -> Numbers:
        """Return [produced], the least cost of this end if it is resharded from the produced placement."""
        decided, price = self.decided, self.prices.from_produced_by_needed
        return price[decided] if decided is not None else _least(price + self.message[:, None])


class ValueFactor:
    """The cost of a value as a function of the placements at its ends: the producer and the uses.

    Args:
        price, known: as of `read`.
    """

    def __init__(
        self,
        produced: Numbers,
        producer: End,
        uses: Sequence[Use],
        price: Numbers,
        known: dict[object, UsePrices] | None = None,
    ):
        self.produced, self.producer, self.uses = produced, producer, uses
        self._produced_key = produced.tobytes()
        self.read(price, {} if known is None else known)

    def read(self, price: Numbers, known: dict[object, UsePrices]) -> None:
        """Read the prices of reshards, [before, after].

        Args:
            known: the prices for uses that were read from tables before; it is filled. Many values share one table.
        """
        self._price_of_copy = np.ascontiguousarray(price[self.produced].T)
        for use in self.uses:
            key = id(price), use.key, self._produced_key
            if key not in known:
                known[key] = UsePrices(price, use.needs, self.produced)
            use.read(known[key])

    def least(self, end: End) -> Numbers:
        """Return [placement of `end`], the least cost of all reshards and of the messages of the other ends.

        As in `forest_moves.py`, users may reshard from the produced placement or from one copy in another placement.
        """
        if end is self.producer:
            return self._least_by_produced()
        return self._least_by_needed(end)  # type: ignore  # all other ends are uses

    def lower_bound(self) -> float:
        """Return the minimum over all placements, when no end is decided."""
        return float(_least(self._least_by_produced() + self.producer.message))

    def _least_by_produced(self) -> Numbers:
        """Return [produced], the least cost of all reshards and of the messages of the uses."""
        if len(self.uses) == 1:
            return self.uses[0].costs_from_produced()
        cost = self._price_of_copy
        for use in self.uses:
            cost = cost + use.costs_from_copies()
        return _least(cost)

    def _least_by_needed(self, end: Use) -> Numbers:
        """Return [placement of `end`], the least cost of all reshards and of the messages of the other ends."""
        price, price_of_copy, message, decided = (
            end.prices.from_produced,
            self._price_of_copy,
            self.producer.message,
            self.producer.decided,
        )
        columns = slice(None) if decided is None else slice(decided, decided + 1)
        if decided is not None:  # only the decided placement is possible, and its message no longer matters
            price, price_of_copy, message = price[columns], price_of_copy[:, columns], _NO_MESSAGE
        if len(self.uses) == 1:
            return _least(price + message[:, None])
        cost = price_of_copy + message  # [copy, produced]
        for use in self.uses:
            if use is not end:
                cost = cost + use.costs_from_copies()[:, columns]
        return np.minimum(
            _least(price + _least(cost)[:, None]), _least(end.prices.price + _least(cost, axis=1)[:, None])
        )


_NO_MESSAGE = np.zeros(1)
