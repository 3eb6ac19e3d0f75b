"""Laws of the trait "partial": the reduction of partial values, its identity, and the order of reductions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import attrs

from spmdir.checking.placements.comparison import difference, rounding_limit
from spmdir.checking.placements.law import Example, Fault, Law, Outcome, if_applicable
from spmdir.checking.placements.tensor_examples import tensor_examples
from spmdir.core.dtype import F32
from spmdir.core.placement.base import PartialPlacement, Placement, parse_placement
from spmdir.core.placement.reductions import REDUCTIONS


def _is_partial(placement: Placement) -> bool:
    return isinstance(placement, PartialPlacement)


def _usual_tensors(placement: Placement) -> Iterator[Example]:
    """Yield tensors for a partial placement; none for other placements."""
    if _is_partial(placement):
        yield from tensor_examples(placement)


def _tensors_of_any_sign(placement: Placement) -> Iterator[Example]:
    """Yield tensors, also with negative values, because the planner does not know the values."""
    for example in _usual_tensors(placement):
        yield example
        if example.values == "positive":
            yield attrs.evolve(example, values="random")


def _find_reduction_fault(placement: Any, example: Example) -> str | None:
    """Return a fault if `after` of the reduction of `before` of the shards is not the tensor, else None."""
    tensor, combine = example.tensor(), REDUCTIONS[placement.reduce].combine
    for draw in range(2):
        shards = placement.distribute(tensor, example.ranks, example.noise(draw))
        limit = rounding_limit(placement, example.ranks, [tensor, *shards])
        reduced = placement.before(shards[0])
        if reduced.shape != tensor.shape or reduced.dtype != tensor.dtype:
            returned = f"{list(reduced.shape)} of {reduced.dtype}"
            return f"`before` returns {returned}; expected {list(tensor.shape)} of {tensor.dtype}"
        for shard in shards[1:]:
            reduced = combine(reduced, placement.before(shard))
        fault = difference(placement.after(reduced, example.ranks), tensor, limit)
        if fault:
            return f"after({placement.reduce} of before(…)) {fault}"
    return None


def _find_identity_fault(placement: Any, example: Example) -> Fault:
    """Return a fault if a reduction with the identity changes the tensor, else None.

    NOT_APPLICABLE if there is no identity, or if it is infinite and the elements are integers.
    """
    tensor, combine = example.tensor(), REDUCTIONS[placement.reduce].combine
    # The identity of integers is their least or greatest value instead.
    if placement.identity is None or (not tensor.is_floating_point() and math.isinf(placement.identity)):
        return Outcome.NOT_APPLICABLE
    identity = placement.before(tensor.new_full(tensor.shape, placement.identity))
    reduced = placement.before(tensor.clone())
    for _ in range(example.ranks - 1):
        reduced = combine(reduced, identity)
    fault = difference(
        placement.after(reduced, example.ranks), tensor, rounding_limit(placement, example.ranks, [tensor])
    )
    return f"reduced with the identity {placement.identity}, the value {fault}" if fault else None


def _has_identity(placement: Placement) -> bool:
    """Return whether a partial placement declares an identity."""
    return isinstance(placement, PartialPlacement) and placement.identity is not None


def _allows_copies(placement: Placement) -> bool:
    """Return whether copies of the value are partial values of the placement."""
    return isinstance(placement, PartialPlacement) and placement.copies


def _copied_tensors(placement: Placement) -> Iterator[Example]:
    """Yield tensors for a placement whose partial values may be copies of the value."""
    if _allows_copies(placement):
        yield from _tensors_of_any_sign(placement)


def _find_copies_fault(placement: Any, example: Example) -> str | None:
    """Return a fault if `collect` of copies on all ranks changes the tensor, else None."""
    tensor = example.tensor()
    collected = placement.collect([tensor.clone() for _ in range(example.ranks)], tuple(tensor.shape))
    fault = difference(collected, tensor, rounding_limit(placement, example.ranks, [tensor]))
    return f"collected from copies on all ranks, the value {fault}" if fault else None


def _tensors_on_two_ranks(placement: Placement) -> Iterator[Example]:
    """Yield tensors on 2 ranks whose type the standard placement of the same kind supports."""
    if isinstance(placement, PartialPlacement):
        for example in tensor_examples(placement):
            if example.count == 2 and _commuting_placement(placement, example):
                yield example


def _commuting_placement(placement: PartialPlacement, example: Example) -> Placement | None:
    """Return a placement whose reduction commutes with that of `placement`, to nest them.

    It is the standard placement of the same kind, or `placement` itself if its kind is not standard. None is returned
    if it does not support the element type of `example`.
    """
    commuting = parse_placement(f"P({placement.kind})") if placement.kind in REDUCTIONS else placement
    return commuting if commuting.supports(example.dtype or F32) else None


def _find_order_fault(placement: Any, example: Example) -> str | None:
    """Return a fault if a value changes that is reduced in the order in which it was distributed, else None.

    The value is distributed by the placement, then by one of the same kind. Usually the inner placement is reduced
    first. If both reductions commute, the order does not matter.

    On 2x2 ranks, `rows[i][j]` is the part of rank (i, j). The first reduction adds the parts of each column j.
    """
    tensor, commuting = example.tensor(), _commuting_placement(placement, example)
    assert commuting is not None
    shards = placement.distribute(tensor, 2, example.noise())
    rows = [commuting.distribute(shard, 2, example.noise(2 + index)) for index, shard in enumerate(shards)]
    shape = tuple(tensor.shape)
    columns = [placement.collect(list(column), shape) for column in zip(*rows, strict=True)]
    reduced = commuting.collect(columns, shape)
    fault = difference(reduced, tensor, rounding_limit(placement, 4, [tensor, *shards, *itertools.chain(*rows)]))
    if not fault:
        return None
    return f"reduced first by itself, then by {commuting} of the same kind '{placement.kind}', the value {fault}"


def _find_elementwise_fault(placement: Any, example: Example) -> Fault:
    """Return a fault if `before` or `after` of the first rows is not the first rows of the result for all rows.

    NOT_APPLICABLE if the tensor has no rows; None if there is no fault.
    """
    tensor = example.tensor()
    if not tensor.dim() or not len(tensor):
        return Outcome.NOT_APPLICABLE
    shards = placement.distribute(tensor, example.ranks, example.noise())
    half = -(-len(tensor) // 2)  # rounded up, at least one row
    # `before` and `after` may change their operand.
    results = [
        ("before", placement.before(shard.clone())[:half], placement.before(shard[:half].clone())) for shard in shards
    ]
    reduced = placement.before(tensor.clone())
    all_rows = placement.after(reduced.clone(), example.ranks)[:half]
    results.append(("after", all_rows, placement.after(reduced[:half], example.ranks)))
    for method, from_all_rows, from_first_rows in results:
        if fault := difference(from_first_rows, from_all_rows, rounding_limit(placement, 1, [from_all_rows])):
            return f"`{method}` of the first rows {fault}, as `{method}` of all rows"
    return None


PARTIAL_LAWS = (
    Law(
        "elementwise",
        "`before` and `after` map each element independently of the others",
        _usual_tensors,
        _find_elementwise_fault,
        ("before", "after"),
        subjects=if_applicable(_is_partial),
    ),
    Law(
        "reduction",
        "`after` of the reduction of `before` of the partial values is the value",
        _usual_tensors,
        _find_reduction_fault,
        ("reduce", "after"),
        subjects=if_applicable(_is_partial),
    ),
    Law(
        "identity",
        "reduction with the identity keeps positive and negative values",
        _tensors_of_any_sign,
        _find_identity_fault,
        ("identity",),
        subjects=if_applicable(_has_identity),
    ),
    Law(
        "copies",
        "if `copies` is true, copies on all ranks reduce to the value, for positive and negative values",
        _copied_tensors,
        _find_copies_fault,
        ("copies",),
        subjects=if_applicable(_allows_copies),
    ),
    Law(
        "kind",
        "reductions of the same `kind` commute",
        _tensors_on_two_ranks,
        _find_order_fault,
        ("kind",),
        subjects=if_applicable(_is_partial),
    ),
)
