"""What moving each value of a program costs on one mesh axis: the bills that the search adds up.

Placements are indices into PLACEMENTS here. What a user of a value wishes is a placement's index plus _WIDTH times
the number of its sizes: another axis that divides a value for one user and not for another makes different sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from spmdir.mesh import Mesh
from spmdir.placement import REDUCTIONS, Partial, Placement, R, Shard
from spmdir.planner.price import axis_price
from spmdir.planner.problem import Row
from spmdir.planner.repeats import Quotient
from spmdir.planner.topology import FLAT

START_BYTES = FLAT.base_latency * FLAT.intra_bandwidth
"""What starting a collective is worth in bytes on the wire, as where reshards are planned."""

_DIMS = 12
PLACEMENTS: tuple[Placement, ...] = (R, *map(Shard, range(_DIMS)), *map(Partial, REDUCTIONS))
INDEX = {placement: index for index, placement in enumerate(PLACEMENTS)}
KIND = [None if p.op is None else "sum" if p.op == "avg" else p.op for p in PLACEMENTS]
"""Per placement its kind of pending reduction, sum and avg being one."""

_GATHERS = [[int(a.trait == "shard" and b.trait != "shard") for b in PLACEMENTS] for a in PLACEMENTS]
_WIDTH = len(PLACEMENTS)


class Bills:
    """The bills of one axis of `count` ranks, the other axes' rows given.

    Attributes:
        offset: value → {(user, operand index): what its wishes add to a placement's index}.
    """

    def __init__(self, mesh: Mesh, shared: Quotient, count: int, others: Mapping[str, Sequence[Row]]):
        self.shared, self.mesh, self.others = shared, mesh, others
        self.price = [[axis_price(a, b, 1.0, count) for b in PLACEMENTS] for a in PLACEMENTS]
        self.sizes: list[list[tuple[float, float]]] = []
        self.offset: list[dict[tuple[int, int], int]] = []
        for value in range(len(shared.values)):
            self._size(value)
        self.known: list[dict[int, list[float]]] = [{} for _ in shared.values]

    def all_reduce(self, size: float) -> float:
        """Bytes to reduce a value of `size` bytes inside an op."""
        return self.price[INDEX[Partial("sum")]][INDEX[R]] * size + START_BYTES

    def _size(self, value: int) -> None:
        """Find the bytes that moving a value for each of its users takes, and number the different ones.

        Sizes are of the value on a rank with this axis replicated: (to be reduced or moved, to be gathered). Another
        axis makes it smaller for a gather if it still divides it afterwards, and for a reduction if it divides it
        before or after, since reductions come first.
        """
        node, position = self.shared.producer[value]
        whole = float(self.shared.values[value].bytes * self.shared.value_weight[value])
        divides = [
            (self.mesh.sizes[a], rows[node].results[position].dim is not None) for a, rows in self.others.items()
        ]
        known: dict[tuple[float, float], int] = {}
        offsets = {}
        for user, slot in self.shared.users[value]:
            gathered = reduced = whole
            for (size, before), rows in zip(divides, self.others.values(), strict=True):
                after = rows[user].operands[slot].dim is not None
                gathered /= size if after else 1
                reduced /= size if after or before else 1
            offsets[user, slot] = known.setdefault((reduced, gathered), len(known)) * _WIDTH
        self.sizes.append(list(known))
        self.offset.append(offsets)

    def of(self, value: int, made: int) -> list[float]:
        """Wish → bytes to grant it from placement `made`."""
        bill = self.known[value].get(made)
        if bill is None:
            prices, gathers = self.price[made], _GATHERS[made]
            start = START_BYTES * self.shared.value_weight[value]
            bill = [
                p * sizes[g] + start if p else 0.0
                for sizes in self.sizes[value]
                for p, g in zip(prices, gathers, strict=True)
            ]
            self.known[value][made] = bill
        return bill

    def cap(self, value: int, bill: Sequence[float], wishes: Collection[int]) -> float:
        """Bytes to replicate a value, after which every wish is free."""
        if len(self.sizes[value]) == 1:
            return bill[0]
        return max((bill[wish - wish % _WIDTH] for wish in wishes), default=0.0)

    def grant(self, value: int, made: int, wishes: Collection[int]) -> float:
        """Bytes to give a value made with placement `made` as all wish: one by one, or all from R."""
        bill = self.of(value, made)
        direct = 0.0
        for wish in wishes:
            direct += bill[wish]
        return min(direct, self.cap(value, bill, wishes)) if direct else 0.0
