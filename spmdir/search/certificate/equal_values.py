"""Equal values of a program in the dual bound: the least cost of their reshards, given the messages of their ends.

Values are equal if nodes of one class produce them, and nodes of equal classes use them. A *class* is a set of nodes
with equal neighbourhoods, as of `colour_refinement.py`. The reshards of a value form a tree. Its root is the placement
that the value is produced in, and each use has a leaf, the placement that it needs. The least tree is found by dynamic
programming over sets of uses (S. E. Dreyfus and R. A. Wagner, "The Steiner problem in graphs", 1971): a tree for
several uses is a reshard to a placement, and trees for two parts of the uses from there.

For example, a value is produced in P, and its two uses need R and S. The reshards P → R, P → S, S → R and R → S take 4,
2, 2 and 0 s. Two trees from P cost 4 + 2 s, the tree that branches in S costs 2 + 2 s, and that in R costs 4 + 0 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from spmdir.search.joint_placements import Numbers

_least = np.minimum.reduce


@attrs.define(eq=False, slots=False)
class NodeMessage:
    """Seconds that each node of a class pays to the values of one operand or one result.

    Attributes:
        placement_of_state: [state of the class], the index of the placement.
        seconds: [placement], added to the cost of the values and subtracted from that of the nodes.
        ends: the values of the operand or result, each with the index of the use; -1 for a result.
        sharers: the largest number of messages of this class that one of these values has. It is 2 or more if nodes of
            the class produce and use a value, or use it twice.
    """

    placement_of_state: Numbers
    seconds: Numbers
    ends: list[tuple[EqualValues, int]] = attrs.field(factory=list)
    sharers: int = 1

    def __attrs_post_init__(self) -> None:
        """Sort the states by placement, and find where those of each placement begin, for `least_by_placement`."""
        self._order = np.argsort(self.placement_of_state, kind="stable")
        self._starts = np.searchsorted(self.placement_of_state[self._order], np.arange(len(self.seconds)))

    def least_by_placement(self, cost: Numbers) -> Numbers:
        """Return for each placement the least cost of the states with this placement.

        Args:
            cost: [state of the class].
        """
        return np.minimum.reduceat(cost[self._order], self._starts)

    def collect(self) -> Numbers:
        """Return for each placement the most seconds that values can pay to a node without a negative least cost.

        If a value has k = `sharers` messages of this class, all of them change at once. So each message takes 1/k of
        the cost of the value, which includes the message: it pays (collected + seconds)/k − seconds. The least cost of
        the value is concave in the messages, so it stays at least 0.
        """
        collected = _least([values.least_at(use) for values, use in self.ends])
        return collected if self.sharers == 1 else (collected - (self.sharers - 1) * self.seconds) / self.sharers

    def change(self, seconds: Numbers) -> None:
        """Replace the message by `seconds`, [placement]. Cached costs of its uses are dropped."""
        self.seconds = seconds
        for values, use in self.ends:
            if use >= 0:
                values.served[use] = None


@attrs.frozen(eq=False)
class EqualUses:
    """Uses of a value by nodes of one class as one operand. In the least tree, all of them need the same placement.

    Attributes:
        message: of the operand.
        count: the number of these uses of one value.
        needed: [placement of the message], its number in the prices of the value.
    """

    message: NodeMessage
    count: int
    needed: Numbers


class EqualValues:
    """Equal values with their messages.

    Args:
        count: the number of values.
        value: their merged value, in the program over classes.
        classes: the classes of their producers and users.
        price: [before, after], seconds of a reshard. The caller may change it, and calls `read` then.
        fraction: the fraction of the price that counts.
        producer: the message of the producer.
        produced: [placement of this message], its number in `price`.
        uses: groups of uses with one message each.

    Attributes:
        price: [before, after], the counted seconds of a reshard.
        first, last: the smallest and the largest of `classes`.
        served: [use], the cached result of `_serve`; None if it has to be computed again.
    """

    def __init__(
        self,
        count: int,
        value: int,
        classes: Sequence[int],
        price: Numbers,
        fraction: float,
        producer: NodeMessage,
        produced: Numbers,
        uses: Sequence[EqualUses],
    ):
        self.count, self.value, self._whole_price, self._fraction = count, value, price, fraction
        self.first, self.last = min(classes), max(classes)
        self.producer, self.produced, self.uses = producer, produced, uses
        self.read()

    def read(self) -> None:
        """Read changed prices."""
        self.price = self._whole_price if self._fraction == 1 else self._fraction * self._whole_price
        self._price_to_needed = [np.ascontiguousarray(self.price[:, use.needed].T) for use in self.uses]
        self._price_from_produced = self.price[self.produced]
        self.served: list[Numbers | None] = [None] * len(self.uses)

    def _serve(self, use: int) -> Numbers:
        """Return for each placement the least seconds to reshard from it for a group of uses, including their messages.

        Args:
            use: the index of the group in `uses`.
        """
        served = self.served[use]
        if served is None:
            end = self.uses[use]
            served = _least(self._price_to_needed[use] + end.count * end.message.seconds[:, None])
            self.served[use] = served
        return served

    def _trees(self, uses: Sequence[int]) -> tuple[list[Numbers], list[Numbers]]:
        """Return the least trees to sets of uses from each placement, as [set as bits][placement].

        The first list is of trees that branch at the placement, the second of all trees. Bit n is the n-th of `uses`:
        the set 5 = 0b101 has the first and the third. A tree of several uses branches into trees for two parts. For
        example, the tree for 0b11 that branches at a placement is the sum of the trees for 0b01 and 0b10 from there.
        The least tree for 0b11 is that sum at some placement, and a reshard to it.
        """
        none = np.zeros(len(self.price))
        branched, trees = [none], [none]
        for bits in range(1, 1 << len(uses)):
            has_one_use = bits.bit_count() == 1
            if has_one_use:
                branched.append(self._serve(uses[bits.bit_length() - 1]))
                trees.append(branched[-1])
                continue
            lowest_bit = bits & -bits
            # Split the set in two. `part` is the subset with the lowest bit, and `bits ^ part` is the other one.
            parts = [part for part in range(bits) if part & bits == part and part & lowest_bit]
            branched.append(_least([trees[part] + trees[bits ^ part] for part in parts]))
            trees.append(_least(self.price + branched[-1], axis=1))
        return branched, trees

    def _above(self, use: int) -> Numbers:
        """Return for each placement the least cost of a tree that contains it and serves all uses except one.

        So `use` may reshard from this placement. The path from the root to the placement is built one reshard at a
        time. At each placement of the path, trees for some of the other uses branch off.
        """
        others = [other for other in range(len(self.uses)) if other != use]
        _, trees = self._trees(others)
        all_bits = (1 << len(others)) - 1
        from_producer = _least(self._price_from_produced + self.producer.seconds[:, None])
        # [set of uses as bits][placement], the least cost of a path to the placement, if the uses in the set branch off
        # there or later. The cost contains the trees of the uses that branched off before.
        path_costs: list[Numbers] = [from_producer] * (all_bits + 1)
        for remaining in range(all_bits - 1, -1, -1):
            # Before, a larger set remained: the uses in `larger` and not in `remaining` branch off here.
            supersets = [larger for larger in range(remaining + 1, all_bits + 1) if larger & remaining == remaining]
            branched = _least([path_costs[larger] + trees[larger ^ remaining] for larger in supersets])
            # `use` reshards from the last placement of the path, so the path does not end with another reshard.
            path_costs[remaining] = _least(self.price + branched[:, None]) if remaining else branched
        return path_costs[0]

    def least_at(self, use: int) -> Numbers:
        """Return for each placement of one message the least cost of all reshards and of the other messages.

        If the message is that of several uses of one value, the cost is divided by their number.

        Args:
            use: the index of the uses with this message, or -1 for the message of the producer.
        """
        if use < 0:
            if len(self.uses) == 1:
                return self._serve(0)[self.produced]
            branched, _ = self._trees(range(len(self.uses)))
            return _least(self._price_from_produced + branched[-1], axis=1)  # the last set has all uses
        if len(self.uses) == 1:
            end = self.uses[use]
            least = _least(self._price_from_produced[:, end.needed] + self.producer.seconds[:, None])
        else:
            least = _least(self._price_to_needed[use] + self._above(use), axis=1)
        return least if self.uses[use].count == 1 else least / self.uses[use].count

    def least(self) -> float:
        """Return the least cost of all reshards and messages of one value."""
        return float((self.least_at(-1) + self.producer.seconds).min())

    def tight_reshards(self, produced: Numbers, needed: Sequence[Numbers], slack: float) -> Iterator[tuple[int, int]]:
        """Yield the reshards at the root and at the leaves of trees that cost at most `slack`, messages included.

        Args:
            produced: indices of the placements of the producer's message that are considered.
            needed: [use], the same for the message of each use.
            slack: seconds.

        Yields: (before, after), two numbers of placements in `price`. A pair may occur several times.
        """
        roots, root_seconds = self.produced[produced], self.producer.seconds[produced][:, None]
        if len(self.uses) > 1:
            branched, _ = self._trees(range(len(self.uses)))
            # [root, placement where the tree branches]
            for row, column in np.argwhere(self.price[roots] + root_seconds + branched[-1] <= slack):
                yield int(roots[row]), int(column)
        for use, (end, needed_indices) in enumerate(zip(self.uses, needed, strict=True)):
            leaves = end.needed[needed_indices]
            if len(self.uses) > 1:
                sources, seconds_above = np.arange(len(self.price)), self._above(use)[:, None]
            else:  # the tree is one reshard
                sources, seconds_above = roots, root_seconds
            leaf_seconds = end.count * end.message.seconds[needed_indices]
            cost = self.price[np.ix_(sources, leaves)] + seconds_above + leaf_seconds  # [source, leaf]
            for row, column in np.argwhere(cost <= slack):
                yield int(sources[row]), int(leaves[column])
