"""Find all sound assignments of placements to the operands of a call, by running the op on shards."""

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

MOST_ASSIGNMENTS = 1500
"""The most assignments that are tried for a call; if there are more, a random selection."""

LEAST_ELEMENTS = 20
"""The least number of elements for partial values. Small tensors are tried with several sets of local values."""

ENUMERATED = {"bool": ("any", "all"), "complex": ("sum",)}
"""Kind of element type → the reductions that are tried; sum, max and min for other kinds."""

FAILURES = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ArithmeticError, AssertionError)
"""The exceptions that ops raise for shards that do not fit together."""


@attrs.frozen
class Possible:
    """A sound assignment.

    Attributes:
        operands: the placement of each operand.
        results: for each result, the placements that its local tensors form; () for an absent result.
    """

    operands: tuple[Placement, ...]
    results: tuple[tuple[Placement, ...], ...]

    def both(self, other: Possible) -> Possible | None:
        """Return the intersection with the results of `other`; None if some result has no common placement."""
        pairs = list(zip(self.results, other.results, strict=True))
        results = tuple(tuple(p for p in placements if p in other_placements) for placements, other_placements in pairs)
        agree = all(common or not mine for common, (mine, _) in zip(results, pairs, strict=True))
        return Possible(self.operands, results) if agree else None

    def __str__(self) -> str:
        results = (str(placements[0]) if placements else "R" for placements in self.results)
        return f"({', '.join(map(str, self.operands))}) -> ({', '.join(results)})"


class Trial:
    """A call whose assignments are tried. It caches local operands.

    Args:
        sized: the arguments that list the sizes of the first result.
    """

    def __init__(self, call: Call, operands: Sequence[Tensor], expected: Sequence[Any], sized: Sequence[str] = ()):
        self.call, self.operands, self.expected, self.sized = call, operands, expected, sized
        self._local_tensors: dict[tuple[int, Placement, int, int], list[Tensor]] = {}

    def assignments(self, limit: int = MOST_ASSIGNMENTS) -> list[tuple[Placement, ...]]:
        """Return at most about `limit` assignments to try. The tensors of a list have the same placement."""
        groups = [slot if isinstance(slot, tuple) else (slot,) for slot in self.call.slots]
        members = [[i for i in group if i is not None] for group in groups]
        members = [group for group in members if group]
        choices = [_placements([self.call.operands[i] for i in group]) for group in members]
        ways: Iterator[tuple[Placement, ...]] = itertools.product(*choices)
        if math.prod(map(len, choices)) > limit:
            draw = random.Random(0)
            drawn = (tuple(draw.choice(c) for c in choices) for _ in range(limit // 2))
            ways = iter(dict.fromkeys([*itertools.islice(_uniform_choices(choices), limit // 2), *drawn]))
        assignments = []
        for way in ways:
            placed: list[Placement] = [R] * len(self.operands)
            for group, placement in zip(members, way, strict=True):
                for index in group:
                    placed[index] = placement
            assignments.append(tuple(placed))
        return assignments

    def right(
        self, operands: tuple[Placement, ...], counts: Sequence[int], so_far: Possible | None = None
    ) -> Possible | None:
        """Return the assignment with its results, if the op gives them on `counts` ranks for several values."""
        partial = [t.numel() for t, p in zip(self.operands, operands, strict=True) if p.trait == "partial"]
        # Few elements agree by chance more often.
        times = max(2, LEAST_ELEMENTS // max(1, min(partial))) if partial else 1
        for local in self._local_sizes():
            results = so_far.results if so_far else None
            for count, again in itertools.product(counts, range(times)):
                results = self._matching_results(operands, count, again, local, results)
                if results is None:
                    break
            if results is not None:
                return Possible(operands, results)
        return None

    def ignored(self) -> frozenset[int]:
        """Return the operands whose values do not affect the results."""
        ignored = []
        for index, tensor in enumerate(self.operands):
            seed(self.call.name, "ignored", index)
            changed = list(self.operands)
            changed[index] = tensor.flatten()[torch.randperm(tensor.numel())].reshape(tensor.shape)
            if tensor.is_floating_point():
                changed[index] = torch.randn(tensor.shape, dtype=tensor.dtype)
            try:
                results = run_op(self.call.name, self.call.slots, [t.clone() for t in changed], self.call.argument)
            except FAILURES:
                continue
            if all(self._is_same(found, right) for found, right in zip(results, self.expected, strict=True)):
                ignored.append(index)
        return frozenset(ignored)

    @staticmethod
    def _is_same(actual: Any, expected: Any) -> bool:
        return expected is None or difference(actual, expected, False) is None

    def _local_sizes(self) -> list[Placement]:
        """Return the placements to try for the size arguments of the call: R for global sizes, S(d) for local sizes."""
        expected = self.expected[0]
        if not self.sized or expected is None:
            return [R]
        return [R, *(Shard(d) for d, size in enumerate(expected.shape) if size > 1)]

    def _matching_results(
        self, operands: tuple[Placement, ...], count: int, again: int, local: Placement,
        narrowed: tuple[tuple[Placement, ...], ...] | None,
    ) -> tuple[tuple[Placement, ...], ...] | None:  # fmt: skip
        """Return the placements that the results form on `count` ranks; None if there are none for a result.

        Args:
            narrowed: for each result, the placements to consider; None for all.
        """
        outcomes = self._run(operands, count, again, local)
        if outcomes is None:
            return None
        through_sums = any(p.op in ("sum", "avg") for p in operands)
        matching = []
        for index, expected in enumerate(self.expected):
            if expected is None:
                matching.append(())
                continue
            local_results = [outcome[index] for outcome in outcomes]
            candidates = narrowed[index] if narrowed else _result_candidates(expected)
            fitting = tuple(p for p in candidates if describes(p, local_results, expected, through_sums))
            if local != R and index == 0:
                fitting = tuple(p for p in fitting if p == local)
            if not fitting:
                return None
            matching.append(fitting)
        return tuple(matching)

    def _run(self, operands: tuple[Placement, ...], count: int, again: int, local: Placement) -> list[Any] | None:
        """Return the results of each rank; None if the op rejects the operands of a rank."""
        local_tensors = [self._local(i, placement, count, again) for i, placement in enumerate(operands)]
        outcomes = []
        for rank in range(count):
            local_operands = [tensors[rank].clone() for tensors in local_tensors]
            try:
                outcomes.append(
                    run_op(self.call.name, self.call.slots, local_operands, self._arguments(local, count, rank))
                )
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
        if key not in self._local_tensors:
            seed(self.call.name, *key)
            self._local_tensors[key] = local_values(self.operands[index], placement, count)
        return self._local_tensors[key]


def _placements(metas: Sequence[Any]) -> list[Placement]:
    kinds = ENUMERATED.get(metas[0].dtype.kind, ("sum", "max", "min"))
    dims = range(min(meta.rank for meta in metas))
    shards = [Shard(d) for d in dims if all(meta.shape[d] > 1 for meta in metas)]
    return [R, *shards, *map(Partial, kinds)]


def _uniform_choices(choices: Sequence[Sequence[Placement]]) -> Iterator[tuple[Placement, ...]]:
    """Yield assignments in which all operands that are not replicated have the same trait."""
    for trait in ("shard", "partial"):
        narrowed = [[p for p in options if p.trait in ("replicated", trait)] for options in choices]
        yield from itertools.product(*narrowed)


def _result_candidates(right: Tensor) -> tuple[Placement, ...]:
    kinds = ("any", "all") if right.dtype == torch.bool else ("sum",) if right.is_complex() else ("sum", "max", "min")
    return (R, *(Shard(d) for d, size in enumerate(right.shape) if size > 1), *map(Partial, kinds))


def describes(placement: Placement, local_tensors: Sequence[Tensor], right: Tensor, through_sums: bool) -> bool:
    """Return whether `local_tensors` are the tensor `right` in `placement`."""
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
