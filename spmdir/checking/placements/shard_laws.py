"""Laws of the trait "shard": the positions that each rank holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spmdir.checking.placements.comparison import difference, rounding_limit
from spmdir.checking.placements.law import Example, Fault, Law, Outcome, if_applicable
from spmdir.checking.placements.layouts import LARGE, accepts, layouts, tuple_fields
from spmdir.checking.placements.tensor_examples import even_sizes, tensor_examples
from spmdir.core.intervals import Ranges, joined, length, scaled, select, tiled
from spmdir.core.placement.base import Placement, own_type
from spmdir.core.placement.shards import ShardPlacement
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH

FACTORS = (2, 3)
"""The factors for `scaled`, `unscaled` and `inside`."""

UNEVEN_SIZES = (97, 1000, LARGE)
"""Sizes of dimensions that most numbers of ranks do not divide."""

LARGE_COUNTS = (16, 65)
"""Additional numbers of ranks for `runs`."""


def _shapes_on_usual_ranks(placement: Placement) -> Iterator[Example]:
    """Yield small and large shapes for a shard placement, on up to 8 ranks."""
    if isinstance(placement, ShardPlacement):
        yield from layouts(placement)
        yield from _large_shapes(placement, (2, 3, 5, 7, 8))


def _large_shapes(placement: ShardPlacement, counts: Sequence[int]) -> Iterator[Example]:
    """Yield even and uneven shapes on each of several numbers of ranks."""
    for count in counts:
        shapes = [(size,) * (placement.dim + 1) for size in (*even_sizes(placement, count), *UNEVEN_SIZES)]
        yield from (Example(count, shape) for shape in shapes if accepts(placement, shape, count))


def _find_partition_fault(placement: Any, example: Example) -> str | None:
    """Return a fault if `ranges` gives a position to no rank or to several, or exceeds the dimension; else None."""
    assert example.shape is not None
    size = example.shape[placement.dim]
    ranges_of_ranks = [placement.ranges(size, example.ranks, index) for index in range(example.ranks)]
    ranges = []
    for rank, rank_ranges in enumerate(ranges_of_ranks):
        ranges += [(start, end, rank) for start, end in rank_ranges if start != end]
    position = 0  # all earlier positions are on exactly one rank
    for start, end, rank in sorted(ranges):
        if not position == start < end <= size:
            if start < position:
                fault = "overlap"
            else:
                fault = "leave a gap" if start > position else "exceed the dimension"
            expected = f"expected each of {size} positions on exactly one rank; `ranges` returns {ranges_of_ranks}"
            return f"the ranges {fault} at {start}, of rank {rank}; {expected}"
        position = end
    if position < size:
        expected = f"expected each position on exactly one rank; `ranges` returns {ranges_of_ranks}"
        return f"positions {position} to {size} are on no rank; {expected}"
    return None


def _overrides_runs(placement: Placement) -> bool:
    """Return whether the class of a shard placement defines `runs`."""
    return isinstance(placement, ShardPlacement) and type(placement).runs is not ShardPlacement.runs


def _shapes_on_many_ranks(placement: Placement) -> Iterator[Example]:
    """Yield shapes for a placement with its own `runs`, on up to 65 ranks."""
    if isinstance(placement, ShardPlacement) and _overrides_runs(placement):
        yield from _shapes_on_usual_ranks(placement)
        yield from _large_shapes(placement, LARGE_COUNTS)


def _find_runs_fault(placement: Any, example: Example) -> str | None:
    """Return a fault if `runs` is not the lengths of `ranges` for the size of `example`, else None."""
    assert example.shape is not None
    size = example.shape[placement.dim]
    actual, expected = placement.runs(size, example.ranks), ShardPlacement.runs(placement, size, example.ranks)
    return None if actual == expected else f"`runs` returns {actual}; expected {expected}, the lengths of `ranges`"


def _can_nest(placement: Placement) -> bool:
    """Return whether nested axes shard like one axis of all their ranks."""
    return placement.splits and placement.trait not in ("open", "replicated") and not placement.has_own_type


def _tensors_on_four_ranks(placement: Placement) -> Iterator[Example]:
    """Yield tensors on 4 ranks for a placement that can nest; of evenly sharded sizes for a shard placement."""
    if not _can_nest(placement):
        return
    if isinstance(placement, ShardPlacement):
        yield from (Example(4, (size,) * (placement.dim + 1)) for size in even_sizes(placement, 4))
    else:
        yield from (example for example in tensor_examples(placement) if example.count == 4)


def _find_nesting_fault(placement: Any, example: Example) -> str | None:
    """Return a fault if two axes of 2 ranks distribute a tensor differently from one axis of 4, else None.

    For a shard placement, ranges are compared. For another placement, the local tensors on 4 ranks are collected in two
    steps and in one.
    """
    if isinstance(placement, ShardPlacement):
        assert example.shape is not None
        size = example.shape[placement.dim]
        for rank in range(4):
            expected, outer_ranges = joined(placement.ranges(size, 4, rank)), placement.ranges(size, 2, rank // 2)
            nested = joined(select(outer_ranges, placement.ranges(length(outer_ranges), 2, rank % 2)))
            if nested != expected:
                return (
                    f"rank {rank} holds {nested} with two axes of 2 ranks; expected {expected}, as with one axis of 4"
                )
        return None
    tensor = example.tensor()
    shards = placement.distribute(tensor, 4, example.noise())
    shape = tuple(tensor.shape)
    half_shapes = [own_type(placement, shape, DTYPES_OF_TORCH[tensor.dtype], 2, index)[0] for index in range(2)]
    halves = [
        placement.collect([shard.clone() for shard in shards_of_half], half_shape)
        for shards_of_half, half_shape in zip((shards[:2], shards[2:]), half_shapes, strict=True)
    ]
    return difference(
        placement.collect(halves, shape),
        placement.collect(shards, shape),
        rounding_limit(placement, 4, [tensor, *shards]),
    )


class ScalingCall(Example):
    """A call of the method `subject`, one of SCALINGS, with a factor."""

    @property
    def declarations(self) -> tuple[str, ...]:
        return (self.subject,)


def _supported_scalings(placement: Placement) -> list[str]:
    """Return the methods of SCALINGS that return a placement for some factor."""
    methods = SCALINGS if isinstance(placement, ShardPlacement) else ()
    return [method for method in methods if any(getattr(placement, method)(factor) is not None for factor in FACTORS)]


def _scaling_calls(placement: Placement) -> Iterator[Example]:
    """Yield calls of the methods in SCALINGS on sizes that are sharded evenly."""
    if not isinstance(placement, ShardPlacement):
        return
    for count in (2, 3, *map(len, tuple_fields(placement))):
        for size in even_sizes(placement, count):
            shape = (size,) * (placement.dim + 1)
            for method, factor in itertools.product(SCALINGS, FACTORS):
                yield ScalingCall(count, shape, note=f"{method} by {factor}", subject=method)


def _find_scaling_fault(placement: Any, example: Example) -> Fault:
    """Call a method of SCALINGS, and return a fault if the resulting placement has other ranges than expected.

    NOT_APPLICABLE if the method returns None, or if the factor does not divide the size; None if there is no fault.
    """
    assert example.shape is not None
    method, factor = example.subject, int(example.note.split()[-1])
    size, result = example.shape[placement.dim], getattr(placement, method)(factor)
    if result is None or (method != "scaled" and size % factor):
        return Outcome.NOT_APPLICABLE
    call = f"`{method}({factor})` returns {result}"
    if result.dim != placement.dim:
        return f"{call}; expected a placement with dimension {placement.dim}"
    for rank in range(example.ranks):
        ranges = joined(placement.ranges(size, example.ranks, rank))
        actual, expected = SCALINGS[method](result, ranges, size, factor, example.ranks, rank)
        if actual != expected:
            return f"{call}, whose ranges on rank {rank} correspond to {actual}; expected {expected}"
    return None


def _ranges_if_scaled(
    result: Any, ranges: Ranges, size: int, factor: int, count: int, rank: int
) -> tuple[Ranges, Ranges]:
    """Return the (actual, expected) ranges for `scaled`: the range (2, 4) scaled by 3 is (6, 12)."""
    return joined(result.ranges(size * factor, count, rank)), scaled(ranges, factor)


def _ranges_if_unscaled(
    result: Any, ranges: Ranges, size: int, factor: int, count: int, rank: int
) -> tuple[Ranges, Ranges]:
    """Return the (actual, expected) ranges for `unscaled`, the inverse of `scaled`."""
    return scaled(joined(result.ranges(size // factor, count, rank)), factor), ranges


def _ranges_if_inside(
    result: Any, ranges: Ranges, size: int, factor: int, count: int, rank: int
) -> tuple[Ranges, Ranges]:
    """Return the (actual, expected) ranges for `inside`: of the inner dimension of a view, repeated for each row."""
    inner_size = size // factor
    return tiled(joined(result.ranges(inner_size, count, rank)), inner_size, factor), ranges


SCALINGS: dict[str, Callable[..., tuple[Ranges, Ranges]]] = {
    "scaled": _ranges_if_scaled,
    "unscaled": _ranges_if_unscaled,
    "inside": _ranges_if_inside,
}
"""Method → function to the actual and the expected ranges of a rank, both of tensors of the same size.

Its arguments are the placement that the method returns, the ranges of the original placement, the size of the original
dimension, the factor, the number of ranks, and the rank.
"""

PARTITION_LAWS = (
    Law(
        "partition",
        "every position of the dimension is on exactly one rank",
        _shapes_on_usual_ranks,
        _find_partition_fault,
        ("ranges",),
        subjects=if_applicable(lambda placement: isinstance(placement, ShardPlacement)),
    ),
    Law(
        "runs",
        "`runs`, if the class overrides it, returns the lengths of `ranges`",
        _shapes_on_many_ranks,
        _find_runs_fault,
        ("runs",),
        subjects=if_applicable(_overrides_runs),
    ),
)
SHARD_LAWS = (
    Law(
        "splits",
        "if `splits` is true, ranks on two axes of 2 hold the same as on one axis of 4",
        _tensors_on_four_ranks,
        _find_nesting_fault,
        ("splits",),
        subjects=if_applicable(_can_nest),
    ),
    Law(
        "scaled",
        "the placements from `scaled`, `unscaled` and `inside` shard views like the placement",
        _scaling_calls,
        _find_scaling_fault,
        subjects=_supported_scalings,
    ),
)
