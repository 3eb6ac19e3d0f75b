"""Values as factors of message passing: the cost of a value, given the placements at its producer and its users.

See `message_passing.py` for the algorithm. Prices are seconds. The cost of a value is the price of its cheapest
reshards: each user reshards the value from the produced placement, or from one *copy* in another placement, which is
resharded once for all users. For example, the value is produced sharded, and two users need placements X and Y:

    price       to R   to X   to Y
    sharded       5      6      6       without a copy: 6 + 6 = 12 seconds
    R             0      1      1       with a copy in R: 5 + 1 + 1 = 7 seconds, the cost of the value
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
        is_last: for passes in program order and for passes in reverse, whether no part that the pass visits after this
            one shares the value.
        message: [placement], seconds added to the value and subtracted from the part.
        decided: the index of the decided placement; None if the part is not decided.
        copy_costs: the cached result of `Use.costs_from_copies`. Whoever changes the message, the prices or `decided`
            sets it to None.
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
        price: [before, after], seconds of a reshard of the value.
        needs: for each operand that is the value, [placement of the use], the placement that it needs.
        produced: the placements that the value may be produced in.

    Attributes:
        price: [placement before, placement of the use], seconds of the reshards for all operands of the use.
        from_produced: the rows of `price` for the placements in `produced`.
        by_needed: `price`, transposed.
        from_produced_by_needed: `from_produced`, transposed.
    """

    def __init__(self, price: Numbers, needs: Sequence[Numbers], produced: Numbers):
        self.produced, self.price = produced, operand_costs(price, needs)
        self.from_produced = self.price[produced]
        self.by_needed = np.ascontiguousarray(self.price.T)
        self.from_produced_by_needed = np.ascontiguousarray(self.from_produced.T)


class Use(End):
    """The end of a value at a part that uses it.

    If several operands of the part are this value, a "placement" of the end is a tuple of placements, one for each.

    Args:
        needs: for each operand that is the value, [state of the part], the placement that it needs.

    Attributes:
        prices: the prices of the reshards for this end; unset until `read`.
        needs: for each of these operands, [placement of the end], the placement that it needs.
        key: equal for ends with equal `needs`.
    """

    prices: UsePrices

    def __init__(self, needs: Sequence[Numbers]):
        counts = [int(need.max()) + 1 for need in needs]
        # `ravel_multi_index` encodes the placements of all operands as one number, and `unravel_index` decodes it.
        placements, placement_of_state = np.unique(np.ravel_multi_index(needs, counts), return_inverse=True)
        super().__init__(placement_of_state, len(placements))
        self.needs = np.unravel_index(placements, counts)
        self.key = tuple([need.tobytes() for need in self.needs])

    def read(self, prices: UsePrices) -> None:
        """Replace the prices of reshards."""
        self.prices, self.copy_costs = prices, None

    def costs_from_copies(self) -> Numbers:
        """Return an array [copy, produced]: the least cost of this end if it reshards from the cheaper of the two.

        If the part is decided, its placement is the only one, and the message does not count.
        """
        costs = self.copy_costs
        if costs is None:
            decided, price = self.decided, self.prices.by_needed
            least_by_source = price[decided] if decided is not None else _least(price + self.message[:, None])
            self.copy_costs = costs = np.minimum(least_by_source[:, None], least_by_source[self.prices.produced])
        return costs

    def costs_from_produced(self) -> Numbers:
        """Return for each produced placement the least cost of this end if it reshards from there: there is no copy."""
        decided, price = self.decided, self.prices.from_produced_by_needed
        return price[decided] if decided is not None else _least(price + self.message[:, None])


class ValueFactor:
    """The cost of a value as a function of the placements at its ends: the producer and the uses.

    Args:
        produced: the placements that the value may be produced in. A placement of `producer` is an index into them.
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
        self._produced_key = produced.tobytes()  # part of the key of `known`
        self.read(price, {} if known is None else known)

    def read(self, price: Numbers, known: dict[object, UsePrices]) -> None:
        """Read the prices of reshards.

        Args:
            price: [before, after], seconds.
            known: a cache of the prices for uses, which this method fills. Many values share one table of prices.
        """
        self._price_of_copy = np.ascontiguousarray(price[self.produced].T)
        for use in self.uses:
            key = id(price), use.key, self._produced_key
            if key not in known:
                known[key] = UsePrices(price, use.needs, self.produced)
            use.read(known[key])

    def least(self, end: End) -> Numbers:
        """Return for each placement of `end` the least cost of all reshards and of the messages of the other ends.

        An end that is decided has only the decided placement, and its message does not count.
        """
        if end is self.producer:
            return self._least_by_produced()
        return self._least_by_needed(end)  # type: ignore  # all other ends are uses

    def lower_bound(self) -> float:
        """Return the least cost over all placements, including the messages of all ends. No end may be decided."""
        return float(_least(self._least_by_produced() + self.producer.message))

    def _least_by_produced(self) -> Numbers:
        """Return for each produced placement the least cost of all reshards and of the messages of the uses."""
        if len(self.uses) == 1:
            return self.uses[0].costs_from_produced()
        cost = self._price_of_copy
        for use in self.uses:
            cost = cost + use.costs_from_copies()
        return _least(cost)

    def _least_by_needed(self, end: Use) -> Numbers:
        """Return for each placement of `end` the least cost of all reshards and of the messages of the other ends.

        The use `end` reshards from the produced placement, or from the copy.
        """
        price, price_of_copy, message = end.prices.from_produced, self._price_of_copy, self.producer.message
        decided = self.producer.decided
        columns = slice(None) if decided is None else slice(decided, decided + 1)
        if decided is not None:  # only one produced placement is left, and the message of the producer does not count
            price, price_of_copy, message = price[columns], price_of_copy[:, columns], _NO_MESSAGE
        if len(self.uses) == 1:
            return _least(price + message[:, None])
        other_costs = price_of_copy + message  # [copy, produced], of the producer, the copy and the other uses
        for use in self.uses:
            if use is not end:
                other_costs = other_costs + use.costs_from_copies()[:, columns]
        least_by_produced, least_by_copy = _least(other_costs), _least(other_costs, axis=1)
        cost_from_produced = _least(price + least_by_produced[:, None])
        cost_from_copy = _least(end.prices.price + least_by_copy[:, None])
        return np.minimum(cost_from_produced, cost_from_copy)


_NO_MESSAGE = np.zeros(1)
"""[produced], the message of a producer that is decided."""
