"""Laws of steps: what is lowered for a placement makes of what `distribute` says what `collect` says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import attrs
import torch

from spmdir.checking.placements.comparison import difference, inexact_difference, rounding
from spmdir.checking.placements.examples import DTYPES, FLOATS, even_sizes, layouts, ordinary, takes
from spmdir.checking.placements.law import Example, Law
from spmdir.checking.placements.simulated_steps import Move
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.reshard.cost import step_cost
from spmdir.reshard.plan import plan_reshard
from spmdir.reshard.steps import Step, transition
from spmdir.simulator.distribution import collect
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH, TORCH_DTYPES

PARTNERS = ("R", "S(0)", "S(1)", "P(sum)")
"""What a placement is taken from and to."""

SOME = {"shard": ("S(0)", "S(1)"), "replicated": ("R",), "partial": ("P(sum)",)}
"""Trait → what stands for it as the end of an edge."""

ALLOWANCE = 64
"""Bytes that an edge may send to each rank beside its elements, such as their scale."""


def _tensors(placement: Placement) -> Iterator[Example]:
    """Yield a large, a middle and a small tensor that a placement takes, on two ranks, on three, and on more."""
    dtype = next((dtype for dtype in (*FLOATS, *DTYPES) if placement.supports(dtype)), None)
    if placement.trait in ("open", "replicated") or dtype is None:
        return
    values, taken = ordinary(placement, dtype), list(layouts(placement))
    ranks = sorted({len(example.shape or ()) for example in taken})
    # Plans of matrices say most; of what holds none, those of the next larger tensors.
    rank = next((rank for rank in ranks if rank >= 2), max(ranks, default=0))
    held = [example for example in taken if len(example.shape or ()) == rank]
    more = max((example.ranks for example in held), default=0)
    for count in sorted({2, 3, more}):
        found = [example for example in held if example.count == count]
        found.sort(key=lambda example: -math.prod(example.shape or ()))
        for example in (found[0], found[len(found) // 2], found[-1]) if found else ():
            yield attrs.evolve(example, dtype=dtype, values=values)


def _moves(placement: Placement) -> Iterator[Move]:
    """From it and to it, alone on one axis, and beside what it comes from or goes to on another one."""
    first = None
    for example in _tensors(placement):
        first = first or example.count
        for partner in map(parse_placement, PARTNERS):
            own, other, beside = ("x", placement), ("x", partner), ("y", partner)
            for source, target in (([own], [other]), ([other], [own])):
                yield from _move("reshard", example, Mesh({"x": example.ranks}), source, target)
            if example.count == first:
                for outer, inner in ((own, beside), (beside, own)):
                    for source, target in (([outer, inner], [outer]), ([inner], [outer, inner])):
                        yield from _move("reshard", example, Mesh({"x": example.ranks, "y": 2}), source, target)


def _converts(placement: Placement) -> Iterator[Move]:
    """Yield each edge, to or from what it names or some of the trait that it names, along one axis and along two."""
    for example in islice(_tensors(placement), 0, None, 2):
        yield from _edges_on(placement, example)


def _larger(placement: Placement) -> Iterator[Move]:
    """Edges on tensors beside which a scale is nothing."""
    for count in (2, 3):
        for size in even_sizes(placement, count) if placement.dim is not None else (96,):
            for example in islice(_tensors(placement), 1):
                shape = (size,) * len(example.shape or ())
                if takes(placement, shape, count):
                    yield from _edges_on(placement, attrs.evolve(example, count=count, shape=shape))


def _edges_on(placement: Placement, example: Example) -> Iterator[Move]:
    for edge in placement.edges():
        end = edge.target if edge.target is not None else edge.source
        assert end is not None  # an earlier law says so
        for other in map(parse_placement, SOME.get(end, (end,))):
            for mesh in (Mesh({"x": example.ranks}), Mesh({"x": example.ranks, "y": 2})):
                own, their = ([(axis, p) for axis in mesh.axis_names] for p in (placement, other))
                source, target = (own, their) if edge.target is not None else (their, own)
                yield from _move("convert", example, mesh, source, target)


def _move(kind: str, example: Example, mesh: Mesh, *entries: list[tuple[str, Placement]]) -> Iterator[Move]:
    """Yield the move, if there is a plan and the tensor fits both layouts."""
    assert example.shape is not None and example.dtype is not None
    source, target = map(Sharding, entries)
    held = [placement for side in (source, target) for _, placement in side.entries]
    try:
        for side in (source, target):
            side.check_shape(mesh, example.shape)
        if source == target or not all(placement.supports(example.dtype) for placement in held):
            return
        if kind == "convert":
            transition(kind, source, mesh, example.shape, target=target)
        plan_reshard(example.shape, example.dtype, source, target, mesh)
    except SpmdirError:
        return
    exact = not any(placement.trait == "partial" or placement.error for placement in held)
    yield Move(
        example.count, example.shape, example.dtype, "special" if exact else example.values, kind=kind, mesh=mesh,
        source=source, target=target,
    )  # fmt: skip


def _same(placement: Placement, example: Example) -> str | None:
    assert isinstance(example, Move) and example.shape is not None
    tensor, held, found = example.tensor(), example.held(), example.run()
    meta = TensorMeta(example.shape, DTYPES_OF_TORCH[tensor.dtype])
    for rank, shard in enumerate(found):
        local = example.target.local_type(meta, example.mesh, example.mesh.coordinate(rank))
        shape, dtype = local.shape, TORCH_DTYPES[local.dtype]
        if tuple(shard.shape) != shape or shard.dtype != dtype:
            return f"rank {rank} has {list(shard.shape)} of {shard.dtype}; expected {list(shape)} of {dtype}"
    whole = collect(found, example.target, example.mesh, example.shape, tensor.dtype)
    if example.values == "special":
        return difference(whole, tensor, 0.0)
    limit = rounding(example.mesh.world_size, torch.cat([shard.flatten() for shard in held]))
    if not (error := placement.error):
        return difference(whole, tensor, limit)
    return inexact_difference(whole, tensor, error, example.mesh.world_size, held, limit)


def _cost(placement: Placement, example: Example) -> str | None:
    assert isinstance(example, Move) and example.shape is not None
    itemsize = example.tensor().element_size()
    axes = tuple(axis for axis in example.mesh.axis_names if example.source[axis] != example.target[axis])
    step = Step("convert", axes, example.source, example.target)
    cost = step_cost(step, example.shape, itemsize, example.mesh)
    for name, number in (("wire bytes", cost.wire_bytes), ("seconds", cost.seconds)):
        if not 0 <= number < math.inf:
            return f"its {name} are {number}; expected a number that is not negative"
    sent, limit = example.sent(), cost.wire_bytes + ALLOWANCE * example.mesh.world_size
    if sent > limit * 1.001:
        return f"its collectives send {sent:g} bytes a rank; expected at most {cost.wire_bytes:g}, as its edge declares"
    return None


STEP_LAWS = (
    Law("edge", "what an edge makes of what ranks hold is what its other end says", _converts, _same),
    Law("cost", "an edge costs no less than nothing, and no less than its collectives send", _larger, _cost),
    Law("steps", "the steps of every plan from it and to it keep the tensor", _moves, _same),
)
