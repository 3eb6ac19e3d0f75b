"""Lower bounds on the seconds of a reshard between two placements.

If all shards have equal lengths, the time depends on the bytes of the value and on the *pattern* of the placements:
which of them shard the same dimension, and whether it is the first. The planner's time is the minimum over plans and
protocols, and the time of each plan by given protocols is linear in the bytes. So the planner's time is concave in the
bytes, and interpolation between two planned sizes is a lower bound.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator

import attrs
import numpy as np

from spmdir.core.dtype import F32
from spmdir.core.errors import ShardingError
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, Placement, R, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.byte_bound import lower_bound
from spmdir.reshard.collectives import keep_bounds
from spmdir.reshard.plan import least_seconds, plan_reshard
from spmdir.reshard.time_bound import most_seconds_per_byte
from spmdir.search.certificate.all_states import Placed
from spmdir.search.problem import Problem

STEP = 4
"""The planner plans values whose bytes are a power of this number."""

UNEVEN = -1


@attrs.define(eq=False)
class ReshardTable:
    """The least seconds of reshards of equal values.

    Attributes:
        meta: shape and element type of the values.
        before, after: the placements before and after a reshard.
        pattern: the number of the kind of each reshard, [before, after]; UNEVEN where shards are not equally long.
        seconds: [before, after].
        is_planned: [before, after], whether `seconds` uses the planner's plan.
    """

    meta: TensorMeta
    before: tuple[Placed, ...]
    after: tuple[Placed, ...]
    pattern: np.ndarray
    seconds: np.ndarray
    is_planned: np.ndarray


@attrs.define(eq=False)
class _Pattern:
    """Reshards between placements that are equal after renumbering dimensions, of values of any size.

    Attributes:
        meta: the smallest value.
        orders: both sides, in each nesting order of axes.
        latency: the least seconds to start what any plan sends.
        fraction: the fraction of the bytes of a value that any algorithm sends.
        planned: bytes of a value → seconds of the planner's plan, for the sizes planned so far.
    """

    meta: TensorMeta
    orders: list[tuple[Sharding, Sharding]]
    latency: float
    fraction: float
    planned: dict[int, float]

    def sizes(self, size: float) -> list[int]:
        """Return the planned sizes in bytes directly below and above the size of a value."""
        times = max(size / self.meta.bytes, 1.0)
        below = self.meta.bytes * STEP ** math.floor(math.log(times, STEP) + 1e-9)
        return [below] if size <= below else [below, below * STEP]


class ReshardBounds:
    """Lower bounds of the reshards of a problem, minimised over nesting orders of axes.

    Initially the bound is the time of the bytes and hops that any algorithm needs. `plan` replaces it by the time of
    the planner's plan. That takes longer to compute.
    """

    def __init__(self, problem: Problem):
        self.mesh, self.topology, self.collectives = problem.mesh, problem.topology, problem.collectives
        self._tables: dict[object, ReshardTable] = {}
        self._patterns: list[_Pattern] = []
        self._number_of_key: dict[object, int] = {}
        self._number_of_pair: dict[tuple[Placed, Placed], int] = {}
        self._bandwidth = max(problem.topology.intra_bandwidth, problem.topology.inter_bandwidth)
        self._per_byte = most_seconds_per_byte(self.mesh.root or self.mesh, self.topology)

    def table(self, meta: TensorMeta, before: tuple[Placed, ...], after: tuple[Placed, ...]) -> ReshardTable:
        """Return the table of a value; equal values have one."""
        key = meta.shape, meta.dtype.itemsize, before, after
        if key not in self._tables:
            even = {dim for dim, size in enumerate(meta.shape) if size % self.mesh.world_size == 0}
            pairs = itertools.product(before, after)
            pattern = [self._pattern(*pair) if self._is_even(pair, even) else UNEVEN for pair in pairs]
            shape = len(before), len(after)
            table = ReshardTable(
                meta, before, after, np.array(pattern, int).reshape(shape), np.zeros(shape), np.zeros(shape, bool)
            )
            for row, column in np.argwhere(table.pattern == UNEVEN):
                orders = self._nested(meta, before[row], after[column])
                table.seconds[row, column] = min((self._least(meta, *order) for order in orders), default=math.inf)
            self._tables[key] = table
            self._follow_patterns(table)
        return self._tables[key]

    def add_plans(self, pairs: Iterable[tuple[ReshardTable, int, int]]) -> None:
        """Plan the reshards at each (table, before, after), and enter their seconds in all tables of equal patterns."""
        for table, row, column in pairs:
            if table.is_planned[row, column]:
                continue
            table.is_planned[row, column] = True
            if table.pattern[row, column] == UNEVEN:
                orders = self._nested(table.meta, table.before[row], table.after[column])
                planned = self._planned(table.meta, list(orders))
                table.seconds[row, column] = max(planned, table.seconds[row, column])
                continue
            pattern = self._patterns[table.pattern[row, column]]
            for size in pattern.sizes(table.meta.bytes):
                if size not in pattern.planned:
                    *leading, last_size = pattern.meta.shape
                    meta = attrs.evolve(pattern.meta, shape=(*leading, last_size * size // pattern.meta.bytes))
                    pattern.planned[size] = self._planned(meta, pattern.orders)
        for table in self._tables.values():
            self._follow_patterns(table)

    def _follow_patterns(self, table: ReshardTable) -> None:
        even = table.pattern != UNEVEN
        numbers, pattern_of_entry = np.unique(table.pattern[even], return_inverse=True)
        patterns = [self._patterns[number] for number in numbers]
        table.seconds[even] = np.array([self._seconds(pattern, table.meta.bytes) for pattern in patterns])[
            pattern_of_entry
        ]
        is_planned = [not p.orders or p.planned.keys() >= {*p.sizes(table.meta.bytes)} for p in patterns]
        table.is_planned[even] = np.array(is_planned, bool)[pattern_of_entry]

    def _seconds(self, pattern: _Pattern, size: float) -> float:
        """Return the least time of reshards of a value of `size` bytes."""
        latency = pattern.latency if size else 0.0
        least = latency + pattern.fraction * size / self._bandwidth
        if not pattern.planned or not size:
            return least
        sizes = sorted(pattern.planned)
        times = [latency, *(pattern.planned[planned_size] for planned_size in sizes)]
        return max(least, float(np.interp(size, [0.0, *sizes], times)))

    def _least(self, meta: TensorMeta, source: Sharding, target: Sharding) -> float:
        """Return the least time of a reshard: that of the bytes that any algorithm sends, and of the fewest hops."""
        mesh, itemsize = self.mesh.root or self.mesh, meta.dtype.itemsize
        return least_seconds(meta.shape, itemsize, source, target, mesh, self.topology, self.collectives)

    def _is_even(self, pair: tuple[Placed, Placed], even: set[int]) -> bool:
        """Return whether all shards have equal lengths, and no plug-in collective lowers the bounds."""
        are_even = all(p in (R, *map(Shard, even)) or isinstance(p, Partial) for side in pair for p in side)
        return are_even and keep_bounds(self.collectives)

    def _pattern(self, produced: Placed, needed: Placed) -> int:
        """Return the number of the pattern of a reshard between two placements."""
        number = self._number_of_pair.get((produced, needed))
        if number is None:
            dims = dict.fromkeys((0, *(p.dim for p in (*produced, *needed) if p.dim is not None)))
            renamed = {dim: Shard(index) for index, dim in enumerate(dims)}
            key = tuple(tuple(p if p.dim is None else renamed[p.dim] for p in side) for side in (produced, needed))
            number = self._number_of_key.setdefault(key, len(self._patterns))
            if number == len(self._patterns):
                self._patterns.append(self._new_pattern(key[0], key[1], len(dims)))
            self._number_of_pair[produced, needed] = number
        return number

    def _new_pattern(self, produced: Placed, needed: Placed, rank: int) -> _Pattern:
        """Return a pattern. Its values have one more dimension, so no plan is impossible for lack of dimensions."""
        meta = TensorMeta((self.mesh.world_size,) * (rank + 1), F32)
        orders = list(self._nested(meta, produced, needed)) if produced != needed else []
        sent = [self._least_bytes(meta, *order) for order in orders]
        starts = [self._least(meta, *order) - size * self._per_byte for order, size in zip(orders, sent, strict=True)]
        return _Pattern(meta, orders, min(starts, default=0.0), min(sent, default=0.0) / meta.bytes, {})

    def _planned(self, meta: TensorMeta, orders: list[tuple[Sharding, Sharding]]) -> float:
        """Return the least time of a plan; infinity if no plan leads from one side to the other."""
        mesh, machine, least = self.mesh.root or self.mesh, self.topology, math.inf
        for source, target in orders:
            with contextlib.suppress(ShardingError):
                plan = plan_reshard(meta.shape, meta.dtype, source, target, mesh, machine, collectives=self.collectives)
                least = min(least, plan.seconds)
        return least

    def _least_bytes(self, meta: TensorMeta, source: Sharding, target: Sharding) -> float:
        """Return the bytes that any algorithm sends."""
        return lower_bound(meta.shape, meta.dtype.itemsize, source, target, self.mesh.root or self.mesh) or 0.0

    def _nested(self, meta: TensorMeta, produced: Placed, needed: Placed) -> Iterator[tuple[Sharding, Sharding]]:
        """Yield both shardings in every nesting order of axes that is legal for the shape."""
        mesh = self.mesh
        for source, target in itertools.product(self._orders(produced), self._orders(needed)):
            try:
                source.check_shape(mesh, meta.shape, meta.dtype)
                target.check_shape(mesh, meta.shape, meta.dtype)
            except ShardingError:
                continue
            yield (source, target) if mesh.root is None else (source.merged(mesh), target.merged(mesh))

    def _orders(self, placed: Placed) -> Iterator[Sharding]:
        by_dim: dict[object, list[tuple[str, Placement]]] = {}
        for axis, placement in zip(self.mesh.axis_names, placed, strict=True):
            by_dim.setdefault(axis if placement.dim is None else placement.dim, []).append((axis, placement))
        for orders in itertools.product(*map(itertools.permutations, by_dim.values())):
            yield Sharding(tuple(itertools.chain(*orders)), self.mesh.name)
