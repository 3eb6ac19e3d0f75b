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

MAX_ASSIGNMENTS = 1500
"""The largest number of assignments that are tried for a call. If there are more, they are drawn at random."""

MIN_ELEMENTS = 20
"""Small tensors are tried with several sets of partial values, until these have this number of elements in total."""

REDUCTIONS_OF_KIND = {"bool": ("any", "all"), "complex": ("sum",)}
"""Kind of element type → the reductions of partial operands; sum, max and min for other kinds."""

FAILURES = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ArithmeticError, AssertionError)
"""The exceptions that ops raise for shards that do not fit together."""


@attrs.frozen
class SoundAssignment:
    """An assignment of placements to operands with which all ranks compute the right results.

    Attributes:
        operands: the placement of each operand.
        results: for each result, the placements that its local tensors form; () for an absent result.
    """

    operands: tuple[Placement, ...]
    results: tuple[tuple[Placement, ...], ...]

    def intersect(self, other_assignment: SoundAssignment) -> SoundAssignment | None:
        """Return the placements of results that both assignments have; None if a result has no common placement."""
        results = []
        for placements, other_placements in zip(self.results, other_assignment.results, strict=True):
            common = tuple(placement for placement in placements if placement in other_placements)
            if placements and not common:
                return None
            results.append(common)
        return SoundAssignment(self.operands, tuple(results))

    def __str__(self) -> str:
        results = (str(placements[0]) if placements else "R" for placements in self.results)
        return f"({', '.join(map(str, self.operands))}) -> ({', '.join(results)})"


class AssignmentTrial:
    """Runs a call with different assignments, and caches local operands.

    Args:
        call: the call on one device.
        operands: its operands.
        expected: its results; None for a result that is not compared.
        size_arguments: the arguments that list the sizes of the first result.
    """

    def __init__(
        self, call: Call, operands: Sequence[Tensor], expected: Sequence[Any], size_arguments: Sequence[str] = ()
    ):
        self.call, self.operands, self.expected, self.size_arguments = call, operands, expected, size_arguments
        self._local_tensors: dict[tuple[int, Placement, int, int], list[Tensor]] = {}

    def assignments(self, limit: int = MAX_ASSIGNMENTS) -> list[tuple[Placement, ...]]:
        """Return at most about `limit` assignments to try. The tensors of a list have the same placement.

        If there are more, half of them are drawn at random, and half have operands of one trait: these are more often
        sound.
        """
        # For each tensor parameter, the indices of its operands: several for a list, none if it is absent.
        groups = []
        for slot in self.call.slots:
            indices = [index for index in (slot if isinstance(slot, tuple) else (slot,)) if index is not None]
            if indices:
                groups.append(indices)
        choices = [_operand_candidates([self.call.operands[index] for index in indices]) for indices in groups]
        selections: Iterator[tuple[Placement, ...]] = itertools.product(*choices)
        if math.prod(map(len, choices)) > limit:
            generator = random.Random(0)
            drawn = [tuple(map(generator.choice, choices)) for _ in range(limit // 2)]
            uniform = itertools.islice(_uniform_choices(choices), limit // 2)
            selections = iter(dict.fromkeys([*uniform, *drawn]))
        assignments = []
        for selection in selections:
            placements: list[Placement] = [R] * len(self.operands)
            for indices, placement in zip(groups, selection, strict=True):
                for index in indices:
                    placements[index] = placement
            assignments.append(tuple(placements))
        return assignments

    def check_assignment(
        self, operands: tuple[Placement, ...], counts: Sequence[int], so_far: SoundAssignment | None = None
    ) -> SoundAssignment | None:
        """Return the assignment with the placements of its results if it is sound, else None.

        It is sound if the results have common placements on all `counts` of ranks and for all draws of partial values.

        Args:
            operands: the placement of each operand.
            counts: the numbers of ranks.
            so_far: the assignment with the result placements of earlier trials. No others are considered.
        """
        partial_sizes = [
            tensor.numel()
            for tensor, placement in zip(self.operands, operands, strict=True)
            if placement.trait == "partial"
        ]
        # Results with few elements are more often right by chance.
        draws = max(2, MIN_ELEMENTS // max(1, min(partial_sizes))) if partial_sizes else 1
        for sizes_placement in self._size_placements():
            results = so_far.results if so_far else None
            for count, draw in itertools.product(counts, range(draws)):
                results = self._matching_results(operands, count, draw, sizes_placement, results)
                if results is None:
                    break
            if results is not None:
                return SoundAssignment(operands, results)
        return None

    def ignored_operands(self) -> frozenset[int]:
        """Return the indices of the operands whose values do not affect the results.

        The elements of an operand are permuted, or drawn again if they are floating-point. An operand for which the op
        then fails is not ignored.
        """
        ignored = []
        for index, tensor in enumerate(self.operands):
            seed(self.call.name, "ignored", index)
            changed = list(self.operands)
            changed[index] = tensor.flatten()[torch.randperm(tensor.numel())].reshape(tensor.shape)
            if tensor.is_floating_point():
                changed[index] = torch.randn(tensor.shape, dtype=tensor.dtype)
            try:
                copies = [operand.clone() for operand in changed]
                results = run_op(self.call.name, self.call.slots, copies, self.call.argument)
            except FAILURES:
                continue
            if all(self._is_equal(actual, expected) for actual, expected in zip(results, self.expected, strict=True)):
                ignored.append(index)
        return frozenset(ignored)

    @staticmethod
    def _is_equal(actual: Any, expected: Any) -> bool:
        """Return whether a result equals the expected one within rounding; True if there is no expected one."""
        return expected is None or difference(actual, expected, False) is None

    def _size_placements(self) -> list[Placement]:
        """Return the placements to try for the size arguments of the call: R for global sizes, S(d) for local sizes."""
        expected = self.expected[0]
        if not self.size_arguments or expected is None:
            return [R]
        return [R, *(Shard(dim) for dim, size in enumerate(expected.shape) if size > 1)]

    def _matching_results(
        self, operands: tuple[Placement, ...], count: int, draw: int, sizes_placement: Placement,
        candidates_of_results: tuple[tuple[Placement, ...], ...] | None,
    ) -> tuple[tuple[Placement, ...], ...] | None:  # fmt: skip
        """Return the placements that the results form on `count` ranks; None if there are none for a result.

        Args:
            operands: the placement of each operand.
            draw: the number of the random draw of partial values.
            sizes_placement: the placement of the first result from which local size arguments follow; R for global
                sizes.
            candidates_of_results: for each result, the placements to consider; None for all.
        """
        results_of_ranks = self.run(operands, count, draw, sizes_placement)
        if results_of_ranks is None:
            return None
        through_sums = any(placement.op in ("sum", "avg") for placement in operands)
        placements_of_results = []
        for index, expected in enumerate(self.expected):
            if expected is None:
                placements_of_results.append(())
                continue
            local_results = [results[index] for results in results_of_ranks]
            candidates = candidates_of_results[index] if candidates_of_results else _result_candidates(expected)
            if sizes_placement != R and index == 0:
                candidates = [placement for placement in candidates if placement == sizes_placement]
            placements = [
                placement
                for placement in candidates
                if is_placement_of(placement, local_results, expected, through_sums)
            ]
            if not placements:
                return None
            placements_of_results.append(tuple(placements))
        return tuple(placements_of_results)

    def run(
        self, operands: tuple[Placement, ...], count: int, draw: int, sizes_placement: Placement
    ) -> list[Any] | None:
        """Return the results of each rank; None if the op rejects the operands of a rank."""
        local_tensors = [self._local_operand(index, placement, count, draw) for index, placement in enumerate(operands)]
        results_of_ranks = []
        for rank in range(count):
            local_operands = [tensors[rank].clone() for tensors in local_tensors]
            arguments = self._local_arguments(sizes_placement, count, rank)
            try:
                results_of_ranks.append(run_op(self.call.name, self.call.slots, local_operands, arguments))
            except FAILURES:
                return None
        return results_of_ranks

    def _local_arguments(self, sizes_placement: Placement, count: int, rank: int) -> Mapping[str, Any]:
        """Return the arguments of a rank, with local sizes if `sizes_placement` shards the first result."""
        if sizes_placement.dim is None:
            return self.call.argument
        sizes = list(self.expected[0].shape)
        sizes[sizes_placement.dim] = chunk(sizes[sizes_placement.dim], count, rank)[1]
        return {**self.call.argument, **dict.fromkeys(self.size_arguments, tuple(sizes))}

    def _local_operand(self, index: int, placement: Placement, count: int, draw: int) -> list[Tensor]:
        """Return the local tensors of an operand on `count` ranks; each `draw` has other partial values."""
        key = (index, placement, count, draw)
        if key not in self._local_tensors:
            seed(self.call.name, *key)
            self._local_tensors[key] = local_values(self.operands[index], placement, count)
        return self._local_tensors[key]


def _operand_candidates(metas: Sequence[Any]) -> list[Placement]:
    """Return the placements to try for an operand.

    Args:
        metas: the type of the operand, or of each tensor if the operand is a list.
    """
    reductions = REDUCTIONS_OF_KIND.get(metas[0].dtype.kind, ("sum", "max", "min"))
    dims = range(min(meta.rank for meta in metas))
    shards = [Shard(dim) for dim in dims if all(meta.shape[dim] > 1 for meta in metas)]
    return [R, *shards, *map(Partial, reductions)]


def _uniform_choices(choices: Sequence[Sequence[Placement]]) -> Iterator[tuple[Placement, ...]]:
    """Yield assignments in which all operands that are not replicated have the same trait."""
    for trait in ("shard", "partial"):
        choices_of_trait = [
            [placement for placement in placements if placement.trait in ("replicated", trait)]
            for placements in choices
        ]
        yield from itertools.product(*choices_of_trait)


def _result_candidates(result: Tensor) -> tuple[Placement, ...]:
    """Return the placements to try for a result."""
    shards = [Shard(dim) for dim, size in enumerate(result.shape) if size > 1]
    if result.dtype == torch.bool:
        return (R, *shards, Partial("any"), Partial("all"))
    reductions = ("sum",) if result.is_complex() else ("sum", "max", "min")
    return (R, *shards, *map(Partial, reductions))


def is_placement_of(
    placement: Placement, local_tensors: Sequence[Tensor], expected: Tensor, through_sums: bool
) -> bool:
    """Return whether `local_tensors`, one for each rank, are the tensor `expected` in `placement`, within rounding.

    Args:
        through_sums: see `values.difference`.
    """
    count = len(local_tensors)
    if placement.trait == "shard":
        dim = placement.dim or 0  # a shard placement has a dimension; `or 0` is for the type checker
        for rank, local in enumerate(local_tensors):
            length = chunk(expected.shape[dim], count, rank)[1]
            if list(local.shape) != [*expected.shape[:dim], length, *expected.shape[dim + 1 :]]:
                return False
    elif any(local.shape != expected.shape for local in local_tensors):
        return False
    if any(local.dtype != expected.dtype for local in local_tensors):
        return False
    if placement.trait == "replicated":
        return all(difference(local, expected, through_sums) is None for local in local_tensors)
    if expected.is_complex() and placement.op in ("max", "min"):
        return False
    collected = placement.collect(local_tensors, expected.shape)
    return difference(collected, expected, through_sums or placement.op == "sum") is None
