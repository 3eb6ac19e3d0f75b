"""What would be right: every assignment of placements to the operands of a call, tried by running the op on shards."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from spmdir.checking.rules.soundness import run_op
from spmdir.checking.rules.values import difference, local_values, seed
from spmdir.core.placement.call import Call
from spmdir.core.placement.standard import Partial, Placement, R, Shard, chunk

LIMIT = 1500
"""Assignments tried of one call; of more, a random choice."""

ENOUGH = 20
"""Elements that partial values are tried on, at least, in as many sets of random local values as that takes."""

ENUMERATED = {"bool": ("any", "all"), "complex": ("sum",)}
"""Element type → the partial reductions that are tried; sum, max and min for all others."""

FAILURES = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ArithmeticError, AssertionError)
"""What ops raise on shards that do not fit together."""


@attrs.frozen
class Possible:
    """An assignment that gives the right results.

    Attributes:
        operands: the placement of each operand.
        results: per result, the placements that describe what the ranks hold then; none for an absent result.
    """

    operands: tuple[Placement, ...]
    results: tuple[tuple[Placement, ...], ...]

    def both(self, other: Possible) -> Possible | None:
        """Return what is right by both, for the same operands; None if they agree on no placement of some result."""
        pairs = list(zip(self.results, other.results, strict=True))
        results = tuple(tuple(p for p in mine if p in theirs) for mine, theirs in pairs)
        known = all(some or not mine for some, (mine, _) in zip(results, pairs, strict=True))
        return Possible(self.operands, results) if known else None

    def __str__(self) -> str:
        results = (str(placements[0]) if placements else "R" for placements in self.results)
        return f"({', '.join(map(str, self.operands))}) -> ({', '.join(results)})"


class Trial:
    """A call whose assignments are tried; keeps what the ranks hold of each operand.

    Args:
        sized: the arguments that hold the sizes of the first result.
    """

    def __init__(self, call: Call, operands: Sequence[Tensor], expected: Sequence[Any], sized: Sequence[str] = ()):
        self.call, self.operands, self.expected, self.sized = call, operands, expected, sized
        self._known: dict[tuple[int, Placement, int, int], list[Tensor]] = {}

    def assignments(self, limit: int = LIMIT) -> list[tuple[Placement, ...]]:
        """Return the assignments to try, at most about `limit`; the tensors of one list are placed alike."""
        groups = [slot if isinstance(slot, tuple) else (slot,) for slot in self.call.slots]
        members = [[i for i in group if i is not None] for group in groups]
        members = [group for group in members if group]
        choices = [_placements([self.call.operands[i] for i in group]) for group in members]
        ways: Iterator[tuple[Placement, ...]] = itertools.product(*choices)
        if math.prod(map(len, choices)) > limit:
            draw = random.Random(0)
            drawn = (tuple(draw.choice(c) for c in choices) for _ in range(limit // 2))
            ways = iter(dict.fromkeys([*itertools.islice(_alike(choices), limit // 2), *drawn]))
        found = []
        for way in ways:
            placed: list[Placement] = [R] * len(self.operands)
            for group, placement in zip(members, way, strict=True):
                for index in group:
                    placed[index] = placement
            found.append(tuple(placed))
        return found

    def right(
        self, operands: tuple[Placement, ...], counts: Sequence[int], so_far: Possible | None = None
    ) -> Possible | None:
        """Return the assignment with its results, if the op gives them on `counts` ranks for several values."""
        partial = [t.numel() for t, p in zip(self.operands, operands, strict=True) if p.trait == "partial"]
        # Few elements agree by chance more often.
        times = max(2, ENOUGH // max(1, min(partial))) if partial else 1
        for local in self._local_sizes():
            results = so_far.results if so_far else None
            for count, again in itertools.product(counts, range(times)):
                results = self._described(operands, count, again, local, results)
                if results is None:
                    break
            if results is not None:
                return Possible(operands, results)
        return None

    def ignored(self) -> frozenset[int]:
        """Return the operands whose values the results do not depend on."""
        found = []
        for index, tensor in enumerate(self.operands):
            seed(self.call.name, "ignored", index)
            others = list(self.operands)
            others[index] = tensor.flatten()[torch.randperm(tensor.numel())].reshape(tensor.shape)
            if tensor.is_floating_point():
                others[index] = torch.randn(tensor.shape, dtype=tensor.dtype)
            try:
                results = run_op(self.call.name, self.call.slots, [t.clone() for t in others], self.call.argument)
            except FAILURES:
                continue
            if all(self._same(found, right) for found, right in zip(results, self.expected, strict=True)):
                found.append(index)
        return frozenset(found)

    @staticmethod
    def _same(found: Any, right: Any) -> bool:
        return right is None or difference(found, right, False) is None

    def _local_sizes(self) -> list[Placement]:
        """Return what the first result may be placed as, where the call says its sizes; R leaves them as they are."""
        first = self.expected[0]
        if not self.sized or first is None:
            return [R]
        return [R, *(Shard(d) for d, size in enumerate(first.shape) if size > 1)]

    def _described(
        self, operands: tuple[Placement, ...], count: int, again: int, local: Placement,
        narrowed: tuple[tuple[Placement, ...], ...] | None,
    ) -> tuple[tuple[Placement, ...], ...] | None:  # fmt: skip
        """Return the placements in `narrowed` (None: all) that describe the results on `count` ranks, or None."""
        outcomes = self._run(operands, count, again, local)
        if outcomes is None:
            return None
        through_sums = any(p.op in ("sum", "avg") for p in operands)
        described = []
        for index, right in enumerate(self.expected):
            if right is None:
                described.append(())
                continue
            each = [outcome[index] for outcome in outcomes]
            tried = narrowed[index] if narrowed else _describing(right)
            fitting = tuple(p for p in tried if describes(p, each, right, through_sums))
            if local != R and index == 0:
                fitting = tuple(p for p in fitting if p == local)
            if not fitting:
                return None
            described.append(fitting)
        return tuple(described)

    def _run(self, operands: tuple[Placement, ...], count: int, again: int, local: Placement) -> list[Any] | None:
        """Return what each rank gets, or None if the op rejects what some rank has."""
        local_tensors = [self._local(i, placement, count, again) for i, placement in enumerate(operands)]
        outcomes = []
        for rank in range(count):
            mine = [each[rank].clone() for each in local_tensors]
            try:
                outcomes.append(run_op(self.call.name, self.call.slots, mine, self._arguments(local, count, rank)))
            except FAILURES:
                return None
        return outcomes

    def _arguments(self, local: Placement, count: int, rank: int) -> Mapping[str, Any]:
        if local.dim is None:
            return self.call.argument
        sizes = list(self.expected[0].shape)
        sizes[local.dim] = chunk(sizes[local.dim], count, rank)[1]
        return {**self.call.argument, **dict.fromkeys(self.sized, tuple(sizes))}

    def _local(self, index: int, placement: Placement, count: int, again: int) -> list[Tensor]:
        key = (index, placement, count, again)
        if key not in self._known:
            seed(self.call.name, *key)
            self._known[key] = local_values(self.operands[index], placement, count)
        return self._known[key]


def _placements(metas: Sequence[Any]) -> list[Placement]:
    kinds = ENUMERATED.get(metas[0].dtype.kind, ("sum", "max", "min"))
    dims = range(min(meta.rank for meta in metas))
    shards = [Shard(d) for d in dims if all(meta.shape[d] > 1 for meta in metas)]
    return [R, *shards, *map(Partial, kinds)]


def _alike(choices: Sequence[Sequence[Placement]]) -> Iterator[tuple[Placement, ...]]:
    """Yield those where operands are replicated or all placed by the same kind of placement."""
    for trait in ("shard", "partial"):
        narrowed = [[p for p in options if p.trait in ("replicated", trait)] for options in choices]
        yield from itertools.product(*narrowed)


def _describing(right: Tensor) -> tuple[Placement, ...]:
    kinds = ("any", "all") if right.dtype == torch.bool else ("sum",) if right.is_complex() else ("sum", "max", "min")
    return (R, *(Shard(d) for d, size in enumerate(right.shape) if size > 1), *map(Partial, kinds))


def describes(placement: Placement, local_tensors: Sequence[Tensor], right: Tensor, through_sums: bool) -> bool:
    """Return whether ranks with the local tensors `local_tensors` have `right` in `placement`."""
    count = len(local_tensors)
    if placement.trait == "shard":
        dim = placement.dim or 0
        for rank, local in enumerate(local_tensors):
            length = chunk(right.shape[dim], count, rank)[1]
            if list(local.shape) != [*right.shape[:dim], length, *right.shape[dim + 1 :]]:
                return False
    elif any(local.shape != right.shape for local in local_tensors):
        return False
    if any(local.dtype != right.dtype for local in local_tensors):
        return False
    if placement.trait == "replicated":
        return all(difference(local, right, through_sums) is None for local in local_tensors)
    if right.is_complex() and placement.op in ("max", "min"):
        return False
    return (
        difference(placement.collect(local_tensors, right.shape), right, through_sums or placement.op == "sum") is None
    )
