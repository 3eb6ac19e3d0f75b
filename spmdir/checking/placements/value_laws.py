"""Laws of values: local tensors, and how the global tensor comes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spmdir.checking.placements.comparison import difference, inexact_difference, rounding
from spmdir.checking.placements.examples import specials, tensors
from spmdir.checking.placements.law import Example, Law
from spmdir.core.placement.base import Placement


def _layouts(placement: Placement) -> Iterable[Example]:
    return () if placement.trait == "open" else tensors(placement)


def _local_shape(placement: Placement, example: Example) -> str | None:
    tensor = example.tensor()
    shards = placement.distribute(tensor, example.ranks, example.noise())
    if len(shards) != example.count:
        return f"`distribute` gives {len(shards)} shards; expected {example.count}, one a rank"
    for index, shard in enumerate(shards):
        said = tuple(placement.local_shape(tuple(tensor.shape), example.ranks, index))
        if said != tuple(shard.shape):
            return (
                f"rank {index} gets {list(shard.shape)} by `distribute`; expected {list(said)}, as `local_shape` says"
            )
        if len(said) != tensor.dim():
            return f"rank {index} has {list(said)}; expected as many dimensions as the tensor has, {tensor.dim()}"
        if shard.dtype != tensor.dtype and not placement.error:
            return f"rank {index} gets {shard.dtype} by `distribute`; expected {tensor.dtype}"
    return None


def _values(placement: Placement) -> Iterator[Example]:
    if placement.trait != "open":
        yield from tensors(placement)
        # Of partial values, infinities may cancel to NaN.
        if placement.trait != "partial":
            yield from specials(placement)


def _inverse(placement: Placement, example: Example) -> str | None:
    tensor = example.tensor()
    shards = placement.distribute(tensor.clone(), example.ranks, example.noise())
    found = placement.collect(shards, tuple(tensor.shape))
    if placement.trait != "partial" and not placement.error:
        return difference(found, tensor, 0)
    limit = rounding(example.ranks, tensor)
    if not placement.error:
        return difference(found, tensor, limit)
    return inexact_difference(found, tensor, placement.error, example.ranks, shards, limit)


VALUE_LAWS = (
    Law("local shape", "`distribute` gives each rank what `local_shape` says", _layouts, _local_shape),
    Law("inverse", "`collect` of what `distribute` gives is the tensor", _values, _inverse),
)
