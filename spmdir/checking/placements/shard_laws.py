"""Laws of the trait "shard": the positions of each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from spmdir.checking.placements.comparison import difference, rounding
from spmdir.checking.placements.examples import even_sizes, tensors
from spmdir.checking.placements.law import Example, Fault, Law, Outcome, if_concerned
from spmdir.checking.placements.layouts import LARGE, accepts, layouts, tuples
from spmdir.core.intervals import Ranges, joined, length, scaled, select, tiled
from spmdir.core.placement.base import Placement, ShardPlacement, own_type
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH

FACTORS = (2, 3)
UNEVEN = (97, 1000, LARGE)
MANY = (16, 65)


def _sharded(placement: Placement) -> Iterator[Example]:
    if isinstance(placement, ShardPlacement):
        yield from layouts(placement)
        for count in (2, 3, 5, 7, 8):
            sizes = (*even_sizes(placement, count), *UNEVEN)
            shapes = [(size,) * (placement.dim + 1) for size in sizes]
            yield from (Example(count, shape) for shape in shapes if accepts(placement, shape, count))


def _partition(placement: Any, example: Example) -> str | None:
    assert example.shape is not None
    size = example.shape[placement.dim]
    ranges_of_ranks = [placement.ranges(size, example.ranks, index) for index in range(example.ranks)]
    position = 0
    ranges = sorted(
        (start, end, rank)
        for rank, rank_ranges in enumerate(ranges_of_ranks)
        for start, end in rank_ranges
        if start != end
    )
    for start, end, rank in ranges:
        if not position == start < end <= size:
            what = (
                "overlap" if start < position else "leave positions out" if start > position else "exceed the dimension"
            )
            expected = f"expected every position of {size} on one rank: {ranges_of_ranks}"
            return f"the ranges {what} at {start}, of rank {rank}; {expected}"
        position = end
    if position < size:
        return f"positions {position} to {size} are on no rank; expected every position on one: {ranges_of_ranks}"
    return None


def _defines_runs(placement: Placement) -> bool:
    return isinstance(placement, ShardPlacement) and type(placement).runs is not ShardPlacement.runs


def _runs_examples(placement: Placement) -> Iterator[Example]:
    if isinstance(placement, ShardPlacement) and _defines_runs(placement):
        yield from _sharded(placement)
        for count in MANY:
            shapes = [(size,) * (placement.dim + 1) for size in (*even_sizes(placement, count), *UNEVEN)]
            yield from (Example(count, shape) for shape in shapes if accepts(placement, shape, count))


def _runs(placement: Any, example: Example) -> str | None:
    assert example.shape is not None
    size = example.shape[placement.dim]
    actual, expected = placement.runs(size, example.ranks), ShardPlacement.runs(placement, size, example.ranks)
    return None if actual == expected else f"`runs` is {actual}; expected {expected}, as `ranges` gives"


def _is_nested(placement: Placement) -> bool:
    return placement.splits and placement.trait not in ("open", "replicated") and not placement.has_own_type


def _nested(placement: Placement) -> Iterator[Example]:
    if not _is_nested(placement):
        return
    if isinstance(placement, ShardPlacement):
        yield from (Example(4, (size,) * (placement.dim + 1)) for size in even_sizes(placement, 4))
    else:
        yield from (example for example in tensors(placement) if example.count == 4)


def _splits(placement: Any, example: Example) -> str | None:
    if isinstance(placement, ShardPlacement):
        assert example.shape is not None
        size = example.shape[placement.dim]
        for index in range(4):
            expected, outer = joined(placement.ranges(size, 4, index)), placement.ranges(size, 2, index // 2)
            nested = joined(select(outer, placement.ranges(length(outer), 2, index % 2)))
            if nested != expected:
                return f"rank {index} holds {nested} by two axes of 2 ranks; expected {expected}, as by one axis of 4"
        return None
    tensor = example.tensor()
    shards = placement.distribute(tensor, 4, example.noise())
    shape = tuple(tensor.shape)
    inners = [own_type(placement, shape, DTYPES_OF_TORCH[tensor.dtype], 2, index)[0] for index in range(2)]
    halves = [
        placement.collect([shard.clone() for shard in half], inner)
        for half, inner in zip((shards[:2], shards[2:]), inners, strict=True)
    ]
    return difference(
        placement.collect(halves, shape), placement.collect(shards, shape), rounding(placement, 4, [tensor, *shards])
    )


class Scaled(Example):
    """One of the methods that scale, by a factor; the method is the subject."""

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.subject,)


def _scaling(placement: Placement) -> list[str]:
    """Return the methods that scale and that give a placement."""
    scaling = SCALINGS if isinstance(placement, ShardPlacement) else ()
    return [way for way in scaling if any(getattr(placement, way)(factor) is not None for factor in FACTORS)]


def _scalable(placement: Placement) -> Iterator[Example]:
    if not isinstance(placement, ShardPlacement):
        return
    for count in (2, 3, *map(len, tuples(placement))):
        for size in even_sizes(placement, count):
            shape = (size,) * (placement.dim + 1)
            yield from (Scaled(count, shape, about=f"{way} by {n}", subject=way) for way in SCALINGS for n in FACTORS)


def _scaled(placement: Any, example: Example) -> Fault:
    assert example.shape is not None
    way, factor = example.subject, int(example.about.split()[-1])
    size, made = example.shape[placement.dim], getattr(placement, way)(factor)
    if made is None or (way != "scaled" and size % factor):
        return Outcome.UNMET
    if made.dim != placement.dim:
        return f"`{way}({factor})` is {made}; expected one of dimension {placement.dim}"
    for index in range(example.ranks):
        found, right = SCALINGS[way](placement, made, size, factor, example.ranks, index)
        if found != right:
            return f"`{way}({factor})` is {made}, which makes {found} of rank {index}; expected {right}"
    return None


def _larger(own: Any, made: Any, size: int, factor: int, count: int, index: int) -> tuple[Ranges, Ranges]:
    return joined(made.ranges(size * factor, count, index)), scaled(joined(own.ranges(size, count, index)), factor)


def _smaller(own: Any, made: Any, size: int, factor: int, count: int, index: int) -> tuple[Ranges, Ranges]:
    return scaled(joined(made.ranges(size // factor, count, index)), factor), joined(own.ranges(size, count, index))


def _inner(own: Any, made: Any, size: int, factor: int, count: int, index: int) -> tuple[Ranges, Ranges]:
    extent = size // factor
    found = tiled(joined(made.ranges(extent, count, index)), extent, factor)
    return found, joined(own.ranges(size, count, index))


SCALINGS: dict[str, Callable[..., tuple[Ranges, Ranges]]] = {
    "scaled": _larger,
    "unscaled": _smaller,
    "inside": _inner,
}
"""Method → (what the placement that it gives holds on a rank, what that must be)."""

PARTITION_LAWS = (
    Law(
        "partition",
        "every position of the dimension is on one rank",
        _sharded,
        _partition,
        ("ranges",),
        subjects=if_concerned(lambda placement: isinstance(placement, ShardPlacement)),
    ),
    Law(
        "runs",
        "`runs`, where the class gives it, tells the lengths of `ranges`",
        _runs_examples,
        _runs,
        ("runs",),
        subjects=if_concerned(_defines_runs),
    ),
)
SHARD_LAWS = (
    Law(
        "splits",
        "where `splits` is true, two axes of two ranks hold what one of four does",
        _nested,
        _splits,
        ("splits",),
        subjects=if_concerned(_is_nested),
    ),
    Law(
        "scaled",
        "`scaled`, `unscaled` and `inside` shard as the placement does",
        _scalable,
        _scaled,
        subjects=_scaling,
    ),
)
