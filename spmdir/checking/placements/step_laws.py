"""Laws of steps: lowered steps and edges turn the local tensors of `distribute` into those that `collect` expects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from random import Random

import attrs
import torch

from spmdir.checking.placements.comparison import apart, difference
from spmdir.checking.placements.examples import (
    even_sizes,
    held_types,
    magnitudes,
    ordinary,
    scaled_types,
)
from spmdir.checking.placements.law import Example, Law, can_be_held, if_concerned
from spmdir.checking.placements.layouts import accepts, layouts, usual_counts
from spmdir.checking.placements.simulated_steps import Move, is_declared, run
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.placement.edge import Edge
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.cost import step_cost
from spmdir.reshard.plan import plan_reshard
from spmdir.reshard.steps import Step, transition
from spmdir.simulator.distribution import collect
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH, TORCH_DTYPES

PARTNERS = ("R", "S(0)", "S(1)", "P(sum)")
"""The placements to and from which plans are tried."""

END_OF_TRAIT = {"shard": ("S(0)", "S(1)", "S(2)", "S(3)"), "replicated": ("R",), "partial": ("P(sum)",)}
"""Trait → placements that represent it as the end of an edge."""

ALLOWANCE = 64
"""The bytes that an edge may send to each rank in addition to its elements, such as a scale."""

MOST_DECLARED = 2
"""The largest allowed ratio of the bytes that an edge declares to those that its collectives send."""

MORE = (5, 8)
"""Larger numbers of ranks on which plans are tried."""

DRAWN = {("x", "y"): 16, ("x", "y", "z"): 8}
"""Axes of two ranks each → the number of moves between drawn placements."""

TOGETHER = 48
"""The number of moves in one program."""

Entries = list[tuple[str, Placement]]


def name_of_edge(edge: Edge) -> str:
    """Return the name of an edge in reports."""
    return f"the edge from {edge.source}" if edge.source is not None else f"the edge to {edge.target}"


def _is_moved(placement: Placement) -> bool:
    """Return whether steps are derived or declared for a placement."""
    is_derived = placement.trait in ("shard", "partial")
    return can_be_held(placement) and (is_derived or (placement.trait == "other" and any(placement.edges())))


def _is_moved_at_magnitudes(placement: Placement) -> bool:
    return _is_moved(placement) and bool(scaled_types(placement))


def _ends(placement: Placement) -> list[str]:
    return [name_of_edge(edge) for edge in placement.edges() if _is_taken(edge)] if can_be_held(placement) else []


def _is_taken(edge: Edge) -> bool:
    """Return whether an edge accepts some placement of the trait that it names."""
    some = END_OF_TRAIT.get(edge.target or edge.source or "", ())
    return edge.when is None or any(edge.when(parse_placement(text)) for text in some)


KINDS = ("large", "middle", "short", "empty")
"""The sizes of tensors on the usual numbers of ranks. A short tensor leaves some ranks without elements."""


def _tensors(placement: Placement) -> Iterator[Example]:
    """Yield accepted tensors: those of KINDS on the two usual numbers of ranks, and one on each larger number."""
    dtype = next(iter(held_types(placement)), None)
    if placement.trait in ("open", "replicated") or dtype is None:
        return
    values, accepted, few = ordinary(placement, dtype), layouts(placement), usual_counts(placement)
    ranks = sorted({len(example.shape or ()) for example in accepted})
    # Plans of matrices find most faults. A placement that accepts none is tried on tensors of a higher rank.
    rank = next((rank for rank in ranks if rank >= 2), max(ranks, default=0))
    candidates = [example for example in accepted if len(example.shape or ()) == rank and example.ranks >= few[0]]
    for index, count in enumerate(sorted({example.ranks for example in candidates})):
        typed = (attrs.evolve(example, dtype=dtype, values=values) for example in candidates if example.count == count)
        fitting = [example for example in typed if _can_hold(placement, example)]
        fitting.sort(key=lambda example: -math.prod(example.shape or ()))
        short = max((place for place, example in enumerate(fitting) if math.prod(example.shape or ())), default=-1)
        places = (0, len(fitting) // 2, short, -1) if count in few else (index % max(len(fitting), 1),)
        yield from (fitting[place] for place in places if fitting)


def _moves(placement: Placement) -> Iterator[Move]:
    """Yield moves to and from the placement: on one axis, with a partner on a second axis, and drawn ones on more axes.

    Also yield moves between all partners on one axis while the placement is on another axis.
    """
    first_example = None
    partners = tuple(map(parse_placement, PARTNERS))
    for example in _tensors(placement):
        if first_example is not None and example.ranks not in (*usual_counts(placement), *MORE):
            continue
        first_example = first_example or example
        mesh = Mesh({"x": example.ranks})
        for partner in partners:
            entry, partner_entry, second_axis = ("x", placement), ("x", partner), ("y", partner)
            for source, target in (([entry], [partner_entry]), ([partner_entry], [entry])):
                yield from _move("reshard", example, mesh, source, target)
            if example.count == first_example.count:
                for outer, inner in ((entry, second_axis), (second_axis, entry)):
                    for source, target in (([outer, inner], [outer]), ([inner], [outer, inner])):
                        yield from _move("reshard", example, Mesh({"x": example.ranks, "y": 2}), source, target)
    if first_example is None:
        return
    for before, after in itertools.permutations(partners, 2):
        for entry, partner_entry in ("xy", "yx"):
            source, target = (sorted([(entry, placement), (partner_entry, partner)]) for partner in (before, after))
            yield from _move(
                "reshard", first_example, Mesh({entry: first_example.ranks, partner_entry: 2}), source, target
            )
    yield from _drawn_moves(placement, (placement, placement, *partners))


def _drawn_moves(placement: Placement, choices: Sequence[Placement]) -> Iterator[Move]:
    """Yield moves between placements drawn from `choices` on several axes of two ranks."""
    tensors = [example for example in _tensors(placement) if example.ranks == 2 and math.prod(example.shape or ())]
    random = Random(str(placement))
    for axes, number in DRAWN.items() if tensors else ():
        mesh = Mesh(dict.fromkeys(axes, 2))
        drawn = (([(axis, random.choice(choices)) for axis in axes] for _ in range(2)) for _ in range(40 * number))
        moves = (
            _move("reshard", tensors[index % len(tensors)], mesh, source, target)
            for index, (source, target) in enumerate(drawn)
            if any(p == placement for _, p in (*source, *target))
        )
        yield from islice(itertools.chain.from_iterable(moves), number)


CONVERTED = (0, 2, 5, 7)
"""The indices of the tensors on which edges are tried: large and short on few ranks, others on more."""


def _converts(placement: Placement) -> Iterator[Move]:
    """Yield moves along each edge, on one axis and on two, to or from the placements or the trait that it names."""
    few, tried = usual_counts(placement), set[str]()
    numbers = {name_of_edge(edge): number for number, edge in enumerate(placement.edges())}
    for index, example in enumerate(_tensors(placement)):
        is_usual = example.ranks in few
        for move in (
            edges_on(placement, example, two_axes=index < len(KINDS)) if index in CONVERTED or not is_usual else ()
        ):
            # On larger numbers of ranks, each edge is tried on every second number.
            if is_usual or (index + numbers[move.subject]) % 2:
                tried.add(move.subject)
                yield move
    yield from _other_edges(placement, tried)


def _other_edges(placement: Placement, tried: Collection[str]) -> Iterator[Move]:
    """Yield a move for each edge without one in `tried`, on the first other shape that fits."""
    example = next(_tensors(placement), None)
    if example is None:
        return
    shapes = [
        layout.shape for layout in layouts(placement) if layout.ranks == example.ranks and math.prod(layout.shape or ())
    ]
    lowest = 0 if placement.dim is None else placement.dim + 1
    shapes += [(2,) * rank for rank in range(lowest, 9) if accepts(placement, (2,) * rank, example.ranks)]
    for edge in (edge for edge in placement.edges() if name_of_edge(edge) not in tried):
        moves = (
            move
            for shape in shapes
            for move in edges_on(placement, attrs.evolve(example, shape=shape), two_axes=False)
            if move.subject == name_of_edge(edge)
        )
        yield from islice(moves, 1)


def large_edges(placement: Placement) -> Iterator[Move]:
    """Yield edges on tensors that are so large that the bytes of a scale are negligible."""
    for example in islice(_tensors(placement), 1):
        rank = len(example.shape or ())
        moves = [
            move
            for count in usual_counts(placement)
            for size in (even_sizes(placement, count) if placement.dim is not None else (96 if rank < 4 else 24,))
            if accepts(placement, shape := (size,) * rank, count)
            if _can_hold(placement, large := attrs.evolve(example, count=count, shape=shape))
            for move in edges_on(placement, large)
        ]
        moves = moves or list(_even_edges(placement, example))
        yield from (*moves, *_other_edges(placement, {move.subject for move in moves}))


EVEN = 6
"""The number of the largest tensors on which edges without padding are tried."""


def _even_edges(placement: Placement, example: Example) -> Iterator[Move]:
    """Yield each edge on the largest tensor whose shards are not padded."""
    shapes = {
        layout.shape for layout in layouts(placement) if layout.ranks == example.ranks and layout.shape is not None
    }
    tried: set[tuple[str, Sharding, Sharding]] = set()
    for shape in sorted(shapes, key=lambda shape: (-math.prod(shape), shape))[:EVEN]:
        even = attrs.evolve(example, shape=shape)
        for move in edges_on(placement, even) if _can_hold(placement, even) else ():
            sides = (move.source, move.target)
            is_even = all(side.is_even(dim, size, move.mesh) for side in sides for dim, size in enumerate(shape))
            if math.prod(shape) and is_even and (move.subject, *sides) not in tried:
                tried.add((move.subject, *sides))
                yield move


def _converts_at_magnitudes(placement: Placement) -> Iterator[Move]:
    """Yield edges, and steps to a replicated value and back, on large, small, sparse and cancelling values."""
    least_count = usual_counts(placement)[0]
    for example in magnitudes(placement) if placement.trait not in ("open", "replicated") else ():
        entries, mesh = [("x", placement)], Mesh({"x": example.ranks})
        if not _can_hold(placement, example) or example.count != least_count:
            continue
        yield from edges_on(placement, example, two_axes=False)
        yield from _move("reshard", example, mesh, entries, [])
        yield from _move("reshard", example, mesh, [], entries)


def _can_hold(placement: Placement, example: Example) -> bool:
    """Return whether a placement holds the values of an example, and special ones if it is exact."""
    exact = () if placement.rounds or placement.error else (attrs.evolve(example, values="special"),)
    try:
        for values in (example, *exact):
            placement.distribute(values.tensor(), example.ranks, example.noise())
    except UnsupportedError:
        return False
    except Exception:
        return True  # it is the business of earlier laws
    return True


def edges_on(placement: Placement, example: Example, two_axes: bool = True, kind: str = "convert") -> Iterator[Move]:
    """Yield each edge on one tensor, along one axis, and along two of which both move."""
    meshes = (Mesh({"x": example.ranks}), *([Mesh({"x": example.ranks, "y": 2})] if two_axes else ()))
    for edge in placement.edges():
        end = edge.target if edge.target is not None else edge.source
        assert end is not None  # an earlier law says so
        for other, mesh in itertools.product(map(parse_placement, END_OF_TRAIT.get(end, (end,))), meshes):
            own, their = ([(axis, p) for axis in mesh.axis_names] for p in (placement, other))
            source, target = (own, their) if edge.target is not None else (their, own)
            yield from _move(kind, attrs.evolve(example, subject=name_of_edge(edge)), mesh, source, target)


def _planned_edges(placement: Placement) -> Iterator[Move]:
    """Yield the reshards that each edge makes in one step, along one axis."""
    for example in islice(_tensors(placement), 0, None, 2):
        yield from edges_on(placement, example, two_axes=False)


def _move(kind: str, example: Example, mesh: Mesh, *entries: Entries) -> Iterator[Move]:
    """Yield the move, if there is a plan and the tensor fits both layouts."""
    assert example.shape is not None and example.dtype is not None
    source, target = map(Sharding, entries)
    held = [placement for side in (source, target) for _, placement in side.entries]
    try:
        for side in (source, target):
            side.check_shape(mesh, example.shape)
        if source == target or not all(placement.supports(example.dtype) for placement in held):
            return
        if is_declared(kind):
            transition(kind, source, mesh, example.shape, target=target)
        plan_reshard(example.shape, example.dtype, source, target, mesh)
    except SpmdirError:
        return
    usual = example.values in ("random", "positive") and example.scale == example.noise_scale == 1
    exact = usual and not any(placement.rounds or placement.error for placement in held)
    values = {**attrs.asdict(example, recurse=False), "values": "special" if exact else example.values}
    yield Move(**values, kind=kind, mesh=mesh, source=source, target=target)


def _same(placement: Placement, example: Example) -> str | None:
    assert isinstance(example, Move)
    held = example.held()
    return _wrong(placement, example, held, run([example], [held])[0])


def _all_same(placement: Placement, examples: Sequence[Example]) -> bool:
    """Return whether all moves are right, those of a mesh made by one program."""
    moves = sorted((move for move in examples if isinstance(move, Move)), key=lambda move: str(move.mesh))
    if any(_same(placement, move) for move in moves if move.states):
        return False
    for _, group in itertools.groupby(moves, key=lambda move: move.mesh):
        every = [move for move in group if not move.states]
        for some in (every[at : at + TOGETHER] for at in range(0, len(every), TOGETHER)):
            held = [move.held() for move in some]
            found = run(some, held)
            if any(_wrong(placement, *one) for one in zip(some, held, found, strict=True)):
                return False
    return True


def _wrong(placement: Placement, move: Move, held: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> str | None:
    """Return what is wrong with what ranks have after the move; they `held` something else before."""
    assert move.shape is not None
    tensor = move.tensor()
    meta = TensorMeta(move.shape, DTYPES_OF_TORCH[tensor.dtype])
    for rank, shard in enumerate(found):
        local = move.target.local_type(meta, move.mesh, move.mesh.coordinate(rank))
        shape, dtype = local.shape, TORCH_DTYPES[local.dtype]
        if tuple(shard.shape) != shape or shard.dtype != dtype:
            return f"rank {rank} has {list(shard.shape)} of {shard.dtype}; expected {list(shape)} of {dtype}"
    whole = collect(found, move.target, move.mesh, move.shape, tensor.dtype)
    if move.values == "special":
        return difference(whole, tensor, 0.0)
    return apart(placement, whole, tensor, move.mesh.world_size, held)


def _cost(placement: Placement, example: Example) -> str | None:
    assert isinstance(example, Move) and example.shape is not None
    cost = _step_cost(example)
    for name, number in (("wire bytes", cost.wire_bytes), ("seconds", cost.seconds)):
        if not 0 <= number < math.inf:
            return f"its {name} are {number}; expected a number that is not negative"
    sent, limit = example.sent(), cost.wire_bytes + ALLOWANCE * example.mesh.world_size
    if sent > limit * 1.001:
        return f"its collectives send {sent:g} bytes a rank; expected at most {cost.wire_bytes:g}, as its edge declares"
    if cost.wire_bytes > MOST_DECLARED * sent + ALLOWANCE * example.mesh.world_size:
        return f"its collectives send {sent:g} bytes a rank; expected about {cost.wire_bytes:g}, as its edge declares"
    return None


def _step_cost(move: Move):
    axes = tuple(axis for axis in move.mesh.axis_names if move.source[axis] != move.target[axis])
    step = Step("convert", axes, move.source, move.target)
    return step_cost(step, move.shape or (), move.tensor().element_size(), move.mesh)


def _planned(placement: Placement, example: Example) -> str | None:
    assert isinstance(example, Move) and example.shape is not None
    plan = plan_reshard(example.shape, example.dtype, example.source, example.target, example.mesh)
    cost = _step_cost(example)
    if plan.seconds > cost.seconds * 1.001:
        return (
            f"the planner takes `{plan}`, which sends {plan.wire_bytes:g} bytes; expected the declared step, which "
            f"sends {cost.wire_bytes:g}"
        )
    return None


STEP_LAWS = (
    Law(
        "edge",
        "what an edge makes of what ranks hold is what its other end says",
        _converts,
        _same,
        ("edges",),
        _all_same,
        subjects=_ends,
    ),
    Law(
        "cost",
        "an edge costs no less than nothing, no less than its collectives send, and no more than twice that",
        large_edges,
        _cost,
        ("edges",),
        subjects=_ends,
    ),
    Law(
        "planned",
        "the planner takes a declared edge, or what costs less",
        _planned_edges,
        _planned,
        ("edges",),
        subjects=if_concerned(lambda placement: False),
    ),
    Law(
        "precision",
        "edges and reductions keep large, small, sparse, cancelling and linearly dependent values as well",
        _converts_at_magnitudes,
        _same,
        ("edges", "before", "error"),
        _all_same,
        subjects=if_concerned(_is_moved_at_magnitudes),
    ),
    Law(
        "steps",
        "the steps of every plan from it and to it keep the tensor",
        _moves,
        _same,
        (),
        _all_same,
        subjects=if_concerned(_is_moved),
    ),
)
