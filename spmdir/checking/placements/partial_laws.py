"""Laws of the trait "partial": the reduction, its identity, and the order of reductions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import attrs

from spmdir.checking.placements.comparison import difference, rounding
from spmdir.checking.placements.examples import tensors
from spmdir.checking.placements.law import Example, Fault, Law, Outcome, if_concerned
from spmdir.core.dtype import F32
from spmdir.core.placement.base import PartialPlacement, Placement, parse_placement
from spmdir.core.placement.reductions import REDUCTIONS


def _is_partial(placement: Placement) -> bool:
    return isinstance(placement, PartialPlacement)


def _partial(placement: Placement) -> Iterator[Example]:
    if _is_partial(placement):
        yield from tensors(placement)


def _of_any_sign(placement: Placement) -> Iterator[Example]:
    """Yield tensors, also with negative values, because steps to the placement are planned for unknown values."""
    for example in _partial(placement):
        yield example
        if example.values == "positive":
            yield attrs.evolve(example, values="random")


def _reduction(placement: Any, example: Example) -> str | None:
    tensor, combine = example.tensor(), REDUCTIONS[placement.reduce].combine
    for again in range(2):
        shards = placement.distribute(tensor, example.ranks, example.noise(again))
        limit = rounding(placement, example.ranks, [tensor, *shards])
        reduced = placement.before(shards[0])
        if reduced.shape != tensor.shape or reduced.dtype != tensor.dtype:
            made = f"{list(reduced.shape)} of {reduced.dtype}"
            return f"`before` makes {made}; expected {list(tensor.shape)} of {tensor.dtype}"
        for shard in shards[1:]:
            reduced = combine(reduced, placement.before(shard))
        fault = difference(placement.after(reduced, example.ranks), tensor, limit)
        if fault:
            return f"after({placement.reduce} of before(…)) {fault}"
    return None


def _identity(placement: Any, example: Example) -> Fault:
    tensor, combine = example.tensor(), REDUCTIONS[placement.reduce].combine
    # Integers use their least and greatest value instead of infinities.
    if placement.identity is None or (not tensor.is_floating_point() and math.isinf(placement.identity)):
        return Outcome.UNMET
    nothing = placement.before(tensor.new_full(tensor.shape, placement.identity))
    reduced = placement.before(tensor.clone())
    for _ in range(example.ranks - 1):
        reduced = combine(reduced, nothing)
    fault = difference(placement.after(reduced, example.ranks), tensor, rounding(placement, example.ranks, [tensor]))
    return f"beside the identity {placement.identity} the value {fault}" if fault else None


def _has_identity(placement: Placement) -> bool:
    return isinstance(placement, PartialPlacement) and placement.identity is not None


def _is_copied(placement: Placement) -> bool:
    return isinstance(placement, PartialPlacement) and placement.copies


def _copied(placement: Placement) -> Iterator[Example]:
    if _is_copied(placement):
        yield from _of_any_sign(placement)


def _copies(placement: Any, example: Example) -> str | None:
    tensor = example.tensor()
    collected = placement.collect([tensor.clone() for _ in range(example.ranks)], tuple(tensor.shape))
    fault = difference(collected, tensor, rounding(placement, example.ranks, [tensor]))
    return f"of copies of the value on all ranks, it {fault}" if fault else None


def _commuting(placement: Placement) -> Iterator[Example]:
    if isinstance(placement, PartialPlacement):
        yield from (example for example in tensors(placement) if example.count == 2 and _of_kind(placement, example))


def _of_kind(placement: PartialPlacement, example: Example) -> Placement | None:
    """Return the standard placement of the same kind, else `placement`; None if it does not support the type."""
    standard = parse_placement(f"P({placement.kind})") if placement.kind in REDUCTIONS else placement
    return standard if standard.supports(example.dtype or F32) else None


def _kind(placement: Any, example: Example) -> str | None:
    tensor, other = example.tensor(), _of_kind(placement, example)
    assert other is not None
    shards = placement.distribute(tensor, 2, example.noise())
    rows = [other.distribute(shard, 2, example.noise(2 + index)) for index, shard in enumerate(shards)]
    shape = tuple(tensor.shape)
    reduced = other.collect([placement.collect([row[index] for row in rows], shape) for index in range(2)], shape)
    fault = difference(reduced, tensor, rounding(placement, 4, [tensor, *shards, *itertools.chain(*rows)]))
    return f"reduced before {other}, which is of its kind '{placement.kind}', the value {fault}" if fault else None


def _elementwise(placement: Any, example: Example) -> Fault:
    tensor = example.tensor()
    if not tensor.dim() or not len(tensor):
        return Outcome.UNMET
    shards = placement.distribute(tensor, example.ranks, example.noise())
    half = -(-len(tensor) // 2)
    # `before` and `after` may change their operand.
    before = [(placement.before(shard.clone())[:half], placement.before(shard[:half].clone())) for shard in shards]
    reduced = placement.before(tensor.clone())
    after = (placement.after(reduced.clone(), example.ranks)[:half], placement.after(reduced[:half], example.ranks))
    for name, (whole, part) in (*(("before", both) for both in before), ("after", after)):
        if fault := difference(part, whole, rounding(placement, 1, [whole])):
            return f"`{name}` of the first rows {fault}, as of all rows"
    return None


PARTIAL_LAWS = (
    Law(
        "elementwise",
        "`before` and `after` do the same to every element",
        _partial,
        _elementwise,
        ("before", "after"),
        subjects=if_concerned(_is_partial),
    ),
    Law(
        "reduction",
        "the value is `after` of the reduction of `before`",
        _partial,
        _reduction,
        ("reduce", "after"),
        subjects=if_concerned(_is_partial),
    ),
    Law(
        "identity",
        "a rank that holds the identity changes nothing, whatever the sign of the value",
        _of_any_sign,
        _identity,
        ("identity",),
        subjects=if_concerned(_has_identity),
    ),
    Law(
        "copies",
        "where `copies` is true, the value on every rank is a partial value, whatever its sign",
        _copied,
        _copies,
        ("copies",),
        subjects=if_concerned(_is_copied),
    ),
    Law(
        "kind",
        "reductions of one kind can be done in any order",
        _commuting,
        _kind,
        ("kind",),
        subjects=if_concerned(_is_partial),
    ),
)
