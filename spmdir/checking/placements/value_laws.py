"""Laws of `distribute` and `collect`: types of local tensors, and restored global tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spmdir.checking.placements.comparison import difference, difference_beyond_error
from spmdir.checking.placements.law import Example, Fault, Law, Outcome, if_applicable, is_value_placement
from spmdir.checking.placements.tensor_examples import magnitude_tensors, scaled_types, special_tensors, tensor_examples
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import Placement, own_type
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH, TORCH_DTYPES


def _usual_tensors(placement: Placement) -> Iterable[Example]:
    """Return tensors for a placement that values may have."""
    return tensor_examples(placement) if is_value_placement(placement) else ()


def _find_type_fault(placement: Placement, example: Example) -> str | None:
    """Return a fault if `distribute` returns a wrong number of tensors, or one of another type than declared."""
    tensor = example.tensor()
    method = "ranges" if placement.trait == "shard" and not placement.has_own_type else "local_type"
    shards = placement.distribute(tensor, example.ranks, example.noise())
    if len(shards) != example.count:
        return f"`distribute` returns {len(shards)} tensors; expected {example.count}, one for each rank"
    for rank, shard in enumerate(shards):
        shape, dtype = own_type(placement, tuple(tensor.shape), DTYPES_OF_TORCH[tensor.dtype], example.ranks, rank)
        returned = f"`distribute` returns a tensor of rank {rank} with"
        if shape != tuple(shard.shape):
            return f"{returned} shape {list(shard.shape)}; expected {list(shape)}, as `{method}` defines"
        if shard.dtype != TORCH_DTYPES[dtype]:
            return f"{returned} type {shard.dtype}; expected {TORCH_DTYPES[dtype]}, as `{method}` defines"
    return None


def _usual_and_special_tensors(placement: Placement) -> Iterator[Example]:
    """Yield tensors, also with NaN and infinities if the placement does not round."""
    if is_value_placement(placement):
        yield from tensor_examples(placement)
        # The infinities of partial values may cancel to NaN.
        if not placement.rounds:
            yield from special_tensors(placement)


def _find_inverse_fault(placement: Placement, example: Example) -> str | None:
    """Return a fault if `distribute` and then `collect` change the tensor beyond rounding and the declared error."""
    tensor = example.tensor()
    for draw in range(2 if placement.trait == "partial" else 1):
        shards = placement.distribute(tensor.clone(), example.ranks, example.noise(draw))
        # `collect` may change its operands, and the allowed error depends on the shards.
        copies = [shard.clone() for shard in shards]
        collected = placement.collect_as(copies, tuple(tensor.shape), DTYPES_OF_TORCH[tensor.dtype])
        if placement.rounds or placement.error:
            fault = difference_beyond_error(placement, collected, tensor, example.ranks, shards)
        else:
            fault = difference(collected, tensor, 0)
        if fault:
            return fault
    return None


def _scaled_tensors(placement: Placement) -> Iterator[Example]:
    """Yield tensors of large and small values for a placement that values may have."""
    if is_value_placement(placement):
        yield from magnitude_tensors(placement)


def _find_magnitude_fault(placement: Placement, example: Example) -> Fault:
    """Return a fault if `distribute` accepts the values of a tensor, but `collect` does not restore them.

    NOT_APPLICABLE if `distribute` rejects the values with UnsupportedError; None if there is no fault.
    """
    try:
        placement.distribute(example.tensor(), example.ranks, example.noise())
    except UnsupportedError:
        return Outcome.NOT_APPLICABLE
    fault = _find_inverse_fault(placement, example)
    return (
        f"{fault}; raise UnsupportedError in `distribute` for values that the placement cannot represent"
        if fault
        else None
    )


VALUE_LAWS = (
    Law(
        "local shape",
        "`distribute` returns local tensors of the shapes and types that `local_type` defines",
        _usual_tensors,
        _find_type_fault,
        ("local_type", "local_shape", "distribute"),
        subjects=if_applicable(is_value_placement),
    ),
    Law(
        "inverse",
        "`collect` restores the tensor from the local tensors of `distribute`",
        _usual_and_special_tensors,
        _find_inverse_fault,
        ("collect", "distribute"),
        subjects=if_applicable(is_value_placement),
    ),
    Law(
        "magnitude",
        "`collect` also restores large, small, sparse, cancelling and linearly dependent values",
        _scaled_tensors,
        _find_magnitude_fault,
        ("before", "collect", "distribute"),
        subjects=if_applicable(lambda placement: is_value_placement(placement) and bool(scaled_types(placement))),
    ),
)
