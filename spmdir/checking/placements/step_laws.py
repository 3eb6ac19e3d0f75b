"""Laws of steps: reshards and edges convert the local tensors of `distribute` to those that `collect` expects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from random import Random

import attrs
import torch

from spmdir.checking.placements.comparison import difference, difference_beyond_error
from spmdir.checking.placements.law import Example, Law, if_applicable, is_value_placement
from spmdir.checking.placements.layouts import accepts, layouts, usual_counts
from spmdir.checking.placements.simulated_steps import Move, is_edge_step, run_moves
from spmdir.checking.placements.tensor_examples import (
    even_sizes,
    magnitude_tensors,
    scaled_types,
    supported_types,
    usual_values,
)
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
"""The placements at the other end of the reshards."""

ENDS_OF_TRAIT = {"shard": ("S(0)", "S(1)", "S(2)", "S(3)"), "replicated": ("R",), "partial": ("P(sum)",)}
"""Trait → placements that represent it as the end of an edge."""

ALLOWANCE = 64
"""The additional bytes that an edge may send to each rank, such as a scale."""

MAX_DECLARED_RATIO = 2
"""The largest allowed ratio of the declared bytes of an edge to the bytes that its collectives send."""

MORE_COUNTS = (5, 8)
"""Larger numbers of ranks for reshards."""

DRAWN_MOVES = {("x", "y"): 16, ("x", "y", "z"): 8}
"""Axes of two ranks each → the number of moves between drawn placements."""

MOVES_PER_PROGRAM = 48
"""The number of moves in one program."""

Entries = list[tuple[str, Placement]]
"""(mesh axis, placement) pairs of a sharding."""


def edge_name(edge: Edge) -> str:
    """Return the name of an edge in reports."""
    return f"the edge from {edge.source}" if edge.source is not None else f"the edge to {edge.target}"


def _has_steps(placement: Placement) -> bool:
    """Return whether the trait of a placement has steps, or the placement declares edges."""
    is_derived = placement.trait in ("shard", "partial")
    return is_value_placement(placement) and (is_derived or (placement.trait == "other" and any(placement.edges())))


def _has_steps_at_magnitudes(placement: Placement) -> bool:
    """Return whether the steps of a placement can be checked on large and small values."""
    return _has_steps(placement) and bool(scaled_types(placement))


def _edge_subjects(placement: Placement) -> list[str]:
    """Return the names of the edges that accept some placement at their other end."""
    if not is_value_placement(placement):
        return []
    return [edge_name(edge) for edge in placement.edges() if _accepts_any_end(edge)]


def _accepts_any_end(edge: Edge) -> bool:
    """Return whether `when` of an edge accepts at least one placement with the trait of its other end."""
    ends = ENDS_OF_TRAIT.get(edge.target or edge.source or "", ())
    return edge.when is None or any(edge.when(parse_placement(text)) for text in ends)


SIZE_CLASSES = ("large", "middle", "short", "empty")
"""The sizes of tensors on the usual numbers of ranks. Some ranks have no elements of a short tensor."""


def _tensors_of_sizes(placement: Placement) -> Iterator[Example]:
    """Yield accepted tensors: those of SIZE_CLASSES on the two usual numbers of ranks, one on each larger number.

    They are matrices of the first supported type, or have more dimensions if the placement accepts no matrices. There
    are none for open and replicated placements.
    """
    dtype = next(iter(supported_types(placement)), None)
    if placement.trait in ("open", "replicated") or dtype is None:
        return
    values, accepted, usual = usual_values(placement, dtype), layouts(placement), usual_counts(placement)
    tensor_ranks = sorted({len(example.shape or ()) for example in accepted})
    # Matrices reveal most faults. If the placement accepts none, tensors with more dimensions replace them.
    tensor_rank = next((rank for rank in tensor_ranks if rank >= 2), max(tensor_ranks, default=0))
    candidates = [
        example for example in accepted if len(example.shape or ()) == tensor_rank and example.ranks >= usual[0]
    ]
    for number, count in enumerate(sorted({example.ranks for example in candidates})):
        typed = (attrs.evolve(example, dtype=dtype, values=values) for example in candidates if example.count == count)
        fitting = [example for example in typed if _can_represent(placement, example)]
        if not fitting:
            continue
        fitting.sort(key=lambda example: -math.prod(example.shape or ()))
        if count in usual:
            nonempty = [example for example in fitting if math.prod(example.shape or ())]
            shortest = nonempty[-1] if nonempty else fitting[-1]
            yield from (fitting[0], fitting[len(fitting) // 2], shortest, fitting[-1])
        else:
            # Each number of ranks gets a tensor of another size.
            yield fitting[number % len(fitting)]


def _reshard_moves(placement: Placement) -> Iterator[Move]:
    """Yield reshards between the placement and each partner: on one axis, and next to a partner on a second axis.

    Also yield reshards between partners while the placement is on another axis, and between random shardings.
    """
    first_example = None
    partners = tuple(map(parse_placement, PARTNERS))
    for example in _tensors_of_sizes(placement):
        if first_example is not None and example.ranks not in (*usual_counts(placement), *MORE_COUNTS):
            continue
        first_example = first_example or example
        mesh, mesh_of_two_axes = Mesh({"x": example.ranks}), Mesh({"x": example.ranks, "y": 2})
        for partner in partners:
            entry, partner_entry, second_entry = ("x", placement), ("x", partner), ("y", partner)
            for source, target in (([entry], [partner_entry]), ([partner_entry], [entry])):
                yield from _move("reshard", example, mesh, source, target)
            if example.count != first_example.count:
                continue
            for outer, inner in ((entry, second_entry), (second_entry, entry)):
                for source, target in (([outer, inner], [outer]), ([inner], [outer, inner])):
                    yield from _move("reshard", example, mesh_of_two_axes, source, target)
    if first_example is None:
        return
    for source_partner, target_partner in itertools.permutations(partners, 2):
        for axis, partner_axis in (("x", "y"), ("y", "x")):
            source = sorted([(axis, placement), (partner_axis, source_partner)])
            target = sorted([(axis, placement), (partner_axis, target_partner)])
            mesh = Mesh({axis: first_example.ranks, partner_axis: 2})
            yield from _move("reshard", first_example, mesh, source, target)
    yield from _drawn_moves(placement, (placement, placement, *partners))


def _drawn_moves(placement: Placement, choices: Sequence[Placement]) -> Iterator[Move]:
    """Yield reshards between random placements from `choices` on several axes of two ranks.

    DRAWN_MOVES has the number of moves. There may be fewer, if most draws have no plan. Each call draws the same.
    """
    tensors = [
        example for example in _tensors_of_sizes(placement) if example.ranks == 2 and math.prod(example.shape or ())
    ]
    random = Random(str(placement))

    def draw_moves(axes: Sequence[str], draws: int) -> Iterator[Move]:
        """Yield the valid moves among `draws` random ones in which `placement` occurs."""
        for index in range(draws):
            source = [(axis, random.choice(choices)) for axis in axes]
            target = [(axis, random.choice(choices)) for axis in axes]
            if any(drawn == placement for _, drawn in (*source, *target)):
                yield from _move("reshard", tensors[index % len(tensors)], Mesh(dict.fromkeys(axes, 2)), source, target)

    if not tensors:
        return
    for axes, number in DRAWN_MOVES.items():
        # A placement without steps between these placements would be drawn forever.
        yield from islice(draw_moves(axes, draws=40 * number), number)


EDGE_TENSOR_INDICES = (0, 2, 5, 7)
"""The indices of the tensors for edges: large and short tensors on few ranks, others on more ranks."""


def _edge_moves(placement: Placement) -> Iterator[Move]:
    """Yield moves along each edge, on one axis and on two, with the placements at its other end.

    On the usual numbers of ranks, EDGE_TENSOR_INDICES selects the tensors. Larger numbers are tried for every second
    edge in turn. An edge without a move is tried once more with other shapes.
    """
    usual, tried = usual_counts(placement), set[str]()
    number_of_edge = {edge_name(edge): number for number, edge in enumerate(placement.edges())}
    for index, example in enumerate(_tensors_of_sizes(placement)):
        is_usual = example.ranks in usual
        if is_usual and index not in EDGE_TENSOR_INDICES:
            continue
        for move in moves_along_edges(placement, example, two_axes=index < len(SIZE_CLASSES)):
            # Larger numbers of ranks alternate between the edges, to save time.
            if is_usual or (index + number_of_edge[move.subject]) % 2:
                tried.add(move.subject)
                yield move
    yield from _moves_of_other_edges(placement, tried)


def _moves_of_other_edges(placement: Placement, tried: Collection[str]) -> Iterator[Move]:
    """Yield one move for each edge whose name is not in `tried`, with the first other shape that fits."""
    example = next(_tensors_of_sizes(placement), None)
    if example is None:
        return
    shapes = [
        layout.shape for layout in layouts(placement) if layout.ranks == example.ranks and math.prod(layout.shape or ())
    ]
    min_rank = 0 if placement.dim is None else placement.dim + 1
    shapes += [(2,) * rank for rank in range(min_rank, 9) if accepts(placement, (2,) * rank, example.ranks)]

    def moves_along(edge: Edge) -> Iterator[Move]:
        """Yield the moves of all shapes along one edge."""
        for shape in shapes:
            for move in moves_along_edges(placement, attrs.evolve(example, shape=shape), two_axes=False):
                if move.subject == edge_name(edge):
                    yield move

    for edge in placement.edges():
        if edge_name(edge) not in tried:
            yield from islice(moves_along(edge), 1)


def moves_of_large_tensors(placement: Placement) -> Iterator[Move]:
    """Yield moves along edges, of tensors so large that the bytes of a scale are negligible.

    If the placement accepts none, the largest accepted tensors with even shards replace them.
    """
    example = next(_tensors_of_sizes(placement), None)
    if example is None:
        return
    rank = len(example.shape or ())
    moves: list[Move] = []
    for count in usual_counts(placement):
        unsharded_size = 96 if rank < 4 else 24
        sizes = (unsharded_size,) if placement.dim is None else even_sizes(placement, count)
        for size in sizes:
            large = attrs.evolve(example, count=count, shape=(size,) * rank)
            if accepts(placement, (size,) * rank, count) and _can_represent(placement, large):
                moves += moves_along_edges(placement, large)
    moves = moves or list(_moves_without_padding(placement, example))
    yield from (*moves, *_moves_of_other_edges(placement, {move.subject for move in moves}))


MAX_EVEN_SHAPES = 6
"""The number of the largest shapes for moves without padding."""


def _moves_without_padding(placement: Placement, example: Example) -> Iterator[Move]:
    """Yield a move along each edge, of the largest tensor with the ranks of `example` whose shards are even.

    Edges for which MAX_EVEN_SHAPES shapes have uneven shards are left out.
    """
    shapes = {
        layout.shape for layout in layouts(placement) if layout.ranks == example.ranks and layout.shape is not None
    }
    tried: set[tuple[str, Sharding, Sharding]] = set()
    for shape in sorted(shapes, key=lambda shape: (-math.prod(shape), shape))[:MAX_EVEN_SHAPES]:
        even = attrs.evolve(example, shape=shape)
        if not _can_represent(placement, even):
            continue
        for move in moves_along_edges(placement, even):
            key = (move.subject, move.source, move.target)
            is_even = all(
                sharding.is_even(dim, size, move.mesh)
                for sharding in (move.source, move.target)
                for dim, size in enumerate(shape)
            )
            if math.prod(shape) and is_even and key not in tried:
                tried.add(key)
                yield move


def _moves_at_magnitudes(placement: Placement) -> Iterator[Move]:
    """Yield moves along edges, to R and from R, of large, small, sparse and cancelling values."""
    if placement.trait in ("open", "replicated"):
        return
    least_count = usual_counts(placement)[0]
    for example in magnitude_tensors(placement):
        entries, mesh = [("x", placement)], Mesh({"x": example.ranks})
        if _can_represent(placement, example) and example.count == least_count:
            yield from moves_along_edges(placement, example, two_axes=False)
            yield from _move("reshard", example, mesh, entries, [])
            yield from _move("reshard", example, mesh, [], entries)


def _can_represent(placement: Placement, example: Example) -> bool:
    """Return whether `placement` can represent the values of `example`: whether it can distribute its tensor.

    An exact placement must also represent NaN and infinities. Errors other than UnsupportedError do not count here.
    """
    examples = [example]
    is_exact = not placement.rounds and not placement.error
    if is_exact:
        examples.append(attrs.evolve(example, values="special"))
    try:
        for tensor in (values.tensor() for values in examples):
            placement.distribute(tensor, example.ranks, example.noise())
    except UnsupportedError:
        return False
    except Exception:
        return True  # earlier laws report this error
    return True


def moves_along_edges(
    placement: Placement, example: Example, two_axes: bool = True, kind: str = "convert"
) -> Iterator[Move]:
    """Yield moves of one tensor along each edge: on one axis and, if `two_axes`, also on two axes at once.

    Moves that a sharding rejects, or that have no plan, are left out.

    Args:
        kind: the kind of step: "convert" is the step of a declared edge.
    """
    meshes = (Mesh({"x": example.ranks}), *([Mesh({"x": example.ranks, "y": 2})] if two_axes else ()))
    for edge in placement.edges():
        end = edge.target if edge.target is not None else edge.source
        assert end is not None  # the law "edges" checks this
        for partner, mesh in itertools.product(map(parse_placement, ENDS_OF_TRAIT.get(end, (end,))), meshes):
            entries = [(axis, placement) for axis in mesh.axis_names]
            partner_entries = [(axis, partner) for axis in mesh.axis_names]
            source, target = (entries, partner_entries) if edge.target is not None else (partner_entries, entries)
            yield from _move(kind, attrs.evolve(example, subject=edge_name(edge)), mesh, source, target)


def _planned_moves(placement: Placement) -> Iterator[Move]:
    """Yield moves along each edge on one axis, for every second tensor."""
    for example in islice(_tensors_of_sizes(placement), 0, None, 2):
        yield from moves_along_edges(placement, example, two_axes=False)


def _move(kind: str, example: Example, mesh: Mesh, *entries: Entries) -> Iterator[Move]:
    """Yield the move, if both shardings accept the tensor and the planner finds a plan; else nothing.

    If no placement rounds, usual values become "special" ones, so that NaN and infinities are moved too.

    Args:
        entries: those of the source sharding, and of the target sharding.
    """
    assert example.shape is not None and example.dtype is not None
    source, target = map(Sharding, entries)
    placements = [placement for sharding in (source, target) for _, placement in sharding.entries]
    try:
        for sharding in (source, target):
            sharding.check_shape(mesh, example.shape)
        if source == target or not all(placement.supports(example.dtype) for placement in placements):
            return
        if is_edge_step(kind):
            transition(kind, source, mesh, example.shape, target=target)
        plan_reshard(example.shape, example.dtype, source, target, mesh)
    except SpmdirError:
        return
    is_usual = example.values in ("random", "positive") and example.scale == example.noise_scale == 1
    is_exact = is_usual and not any(placement.rounds or placement.error for placement in placements)
    fields = {**attrs.asdict(example, recurse=False), "values": "special" if is_exact else example.values}
    yield Move(**fields, kind=kind, mesh=mesh, source=source, target=target)


def _find_result_fault(placement: Placement, example: Example) -> str | None:
    """Return the first fault of the local tensors after a move, else None."""
    assert isinstance(example, Move)
    source_shards = example.source_shards()
    return _describe_wrong_result(placement, example, source_shards, run_moves([example], [source_shards])[0])


def _hold_in_shared_programs(placement: Placement, examples: Sequence[Example]) -> bool:
    """Return whether all moves have the right results. Moves on one mesh share programs, to save time."""
    moves = sorted((move for move in examples if isinstance(move, Move)), key=lambda move: str(move.mesh))
    if any(_find_result_fault(placement, move) for move in moves if move.edge_states):
        return False
    for _, group in itertools.groupby(moves, key=lambda move: move.mesh):
        stateless = [move for move in group if not move.edge_states]
        for start in range(0, len(stateless), MOVES_PER_PROGRAM):
            shared = stateless[start : start + MOVES_PER_PROGRAM]
            shards_of_moves = [move.source_shards() for move in shared]
            results = run_moves(shared, shards_of_moves)
            if any(map(partial(_describe_wrong_result, placement), shared, shards_of_moves, results)):
                return False
    return True


def _describe_wrong_result(
    placement: Placement, move: Move, source_shards: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> str | None:
    """Return the first fault of the local tensors after a move; None if they are right.

    Args:
        source_shards, results: the local tensors of the ranks before and after the move.
    """
    assert move.shape is not None
    tensor = move.tensor()
    meta = TensorMeta(move.shape, DTYPES_OF_TORCH[tensor.dtype])
    for rank, shard in enumerate(results):
        local = move.target.local_type(meta, move.mesh, move.mesh.coordinate(rank))
        shape, dtype = local.shape, TORCH_DTYPES[local.dtype]
        if tuple(shard.shape) != shape or shard.dtype != dtype:
            return f"rank {rank} has {list(shard.shape)} of {shard.dtype}; expected {list(shape)} of {dtype}"
    collected = collect(results, move.target, move.mesh, move.shape, tensor.dtype)
    if move.values == "special":
        return difference(collected, tensor, 0.0)
    return difference_beyond_error(placement, collected, tensor, move.mesh.world_size, source_shards)


def _find_cost_fault(placement: Placement, example: Example) -> str | None:
    """Return a fault if an edge declares fewer bytes than its collectives send, or far more; else None.

    ALLOWANCE and MAX_DECLARED_RATIO are the allowed differences.
    """
    assert isinstance(example, Move) and example.shape is not None
    cost = _step_cost(example)
    for name, number in (("wire bytes", cost.wire_bytes), ("seconds", cost.seconds)):
        if not 0 <= number < math.inf:
            return f"the edge declares {number} {name}; expected a finite number from 0 on"
    sent, allowance = example.count_sent_bytes(), ALLOWANCE * example.mesh.world_size
    declared = f"the edge declares {cost.wire_bytes:g} wire bytes; expected"
    if sent > (cost.wire_bytes + allowance) * 1.001:  # a factor for floating-point errors of the costs
        return f"{declared} at least {sent:g}, the bytes that its collectives send from one rank"
    if cost.wire_bytes > MAX_DECLARED_RATIO * sent + allowance:
        return f"{declared} about {sent:g}, the bytes that its collectives send from one rank"
    return None


def _step_cost(move: Move):
    """Return the cost that the edge of a move declares."""
    axes = tuple(axis for axis in move.mesh.axis_names if move.source[axis] != move.target[axis])
    step = Step("convert", axes, move.source, move.target)
    return step_cost(step, move.shape or (), move.tensor().element_size(), move.mesh)


def _find_plan_fault(placement: Placement, example: Example) -> str | None:
    """Return a fault if the planner chooses a slower plan for a move than the declared edge, else None."""
    assert isinstance(example, Move) and example.shape is not None
    plan = plan_reshard(example.shape, example.dtype, example.source, example.target, example.mesh)
    cost = _step_cost(example)
    if plan.seconds > cost.seconds * 1.001:
        return (
            f"the planner chooses `{plan}`, which takes {plan.seconds:.3g} s; expected the declared edge, which takes "
            f"{cost.seconds:.3g} s"
        )
    return None


STEP_LAWS = (
    Law(
        "edge",
        "an edge converts the local tensors of one end to those of the other end",
        _edge_moves,
        _find_result_fault,
        ("edges",),
        _hold_in_shared_programs,
        subjects=_edge_subjects,
    ),
    Law(
        "cost",
        "an edge declares at least the bytes that its collectives send, and at most twice as many",
        moves_of_large_tensors,
        _find_cost_fault,
        ("edges",),
        subjects=_edge_subjects,
    ),
    Law(
        "planned",
        "the planner chooses a declared edge, or a cheaper plan",
        _planned_moves,
        _find_plan_fault,
        ("edges",),
        subjects=if_applicable(lambda placement: False),
    ),
    Law(
        "precision",
        "edges and reductions also keep large, small, sparse, cancelling and linearly dependent values",
        _moves_at_magnitudes,
        _find_result_fault,
        ("edges", "before", "error"),
        _hold_in_shared_programs,
        subjects=if_applicable(_has_steps_at_magnitudes),
    ),
    Law(
        "steps",
        "every plan to or from the placement keeps the tensor",
        _reshard_moves,
        _find_result_fault,
        (),
        _hold_in_shared_programs,
        subjects=if_applicable(_has_steps),
    ),
)
