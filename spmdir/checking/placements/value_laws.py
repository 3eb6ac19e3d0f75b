"""Laws of values: local tensors, and how the global tensor comes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spmdir.checking.placements.comparison import apart, difference
from spmdir.checking.placements.examples import magnitudes, scaled_types, specials, tensors
from spmdir.checking.placements.law import Example, Fault, Law, Outcome, can_be_held, if_concerned
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import Placement, own_type
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH, TORCH_DTYPES


def _layouts(placement: Placement) -> Iterable[Example]:
    return tensors(placement) if can_be_held(placement) else ()


def _local_type(placement: Placement, example: Example) -> str | None:
    tensor = example.tensor()
    source = "local_type" if placement.has_own_type else "ranges" if placement.trait == "shard" else "local_type"
    shards = placement.distribute(tensor, example.ranks, example.noise())
    if len(shards) != example.count:
        return f"`distribute` gives {len(shards)} shards; expected {example.count}, one a rank"
    for index, shard in enumerate(shards):
        said, dtype = own_type(placement, tuple(tensor.shape), DTYPES_OF_TORCH[tensor.dtype], example.ranks, index)
        if said != tuple(shard.shape):
            return f"rank {index} gets {list(shard.shape)} by `distribute`; expected {list(said)}, as `{source}` says"
        if shard.dtype != TORCH_DTYPES[dtype]:
            return (
                f"rank {index} gets {shard.dtype} by `distribute`; expected {TORCH_DTYPES[dtype]}, as `{source}` says"
            )
    return None


def _values(placement: Placement) -> Iterator[Example]:
    if can_be_held(placement):
        yield from tensors(placement)
        # Of partial values, infinities may cancel to NaN.
        if not placement.rounds:
            yield from specials(placement)


def _inverse(placement: Placement, example: Example) -> str | None:
    tensor = example.tensor()
    for again in range(2 if placement.trait == "partial" else 1):
        shards = placement.distribute(tensor.clone(), example.ranks, example.noise(again))
        # `collect` may work in place, and what is right depends on what ranks held.
        copies = [shard.clone() for shard in shards]
        found = placement.collect_as(copies, tuple(tensor.shape), DTYPES_OF_TORCH[tensor.dtype])
        exact = not placement.rounds and not placement.error
        fault = difference(found, tensor, 0) if exact else apart(placement, found, tensor, example.ranks, shards)
        if fault:
            return fault
    return None


def _magnitudes(placement: Placement) -> Iterator[Example]:
    if can_be_held(placement):
        yield from magnitudes(placement)


def _at_magnitude(placement: Placement, example: Example) -> Fault:
    try:
        placement.distribute(example.tensor(), example.ranks, example.noise())
    except UnsupportedError:
        return Outcome.UNMET
    fault = _inverse(placement, example)
    return f"{fault}; where it cannot hold such values, `distribute` raises UnsupportedError" if fault else None


VALUE_LAWS = (
    Law(
        "local shape",
        "`distribute` gives each rank what `local_type` says",
        _layouts,
        _local_type,
        ("local_type", "local_shape", "distribute"),
        subjects=if_concerned(can_be_held),
    ),
    Law(
        "inverse",
        "`collect` of what `distribute` gives is the tensor",
        _values,
        _inverse,
        ("collect", "distribute"),
        subjects=if_concerned(can_be_held),
    ),
    Law(
        "magnitude",
        "large, small, sparse, cancelling and linearly dependent values are kept as well",
        _magnitudes,
        _at_magnitude,
        ("before", "collect", "distribute"),
        subjects=if_concerned(lambda placement: can_be_held(placement) and bool(scaled_types(placement))),
    ),
)
