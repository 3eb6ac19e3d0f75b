"""Plans carried out on plain tensors over all ranks give the wanted sharding of the same value."""

from __future__ import annotations

import functools
import itertools
import random
from types import SimpleNamespace

import attrs
import pytest
import torch

from spmdir.core.intervals import common, length, positions
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import PartialPlacement, edge_between
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.standard import Partial, Placement, R, Shard
from spmdir.reshard.cost import sends_anything
from spmdir.reshard.exchange import exchange, grid_of, partial_axes, reduced_axes
from spmdir.reshard.exchange_parts import Grid, Part
from spmdir.reshard.multi_axis_steps import permute_senders
from spmdir.reshard.plan import plan_reshard
from spmdir.reshard.steps import Step, make_step, transition
from spmdir.reshard.topology import CPU_GLOO, H100X8, Topology
from spmdir.reshard.two_round_exchange import two_round_exchange

FEWEST_BYTES = Topology("fewest-bytes", 1e9, 1e9, 0.0, 0.0, 0.0, 1e15)


def all_shardings(mesh: Mesh, placements: list[Placement]) -> list[Sharding]:
    found = {}
    for order in itertools.permutations(mesh.axis_names):
        for chosen in itertools.product(placements, repeat=len(order)):
            found[Sharding(zip(order, chosen, strict=True))] = None
    return list(found)


def noise(tensor: torch.Tensor) -> torch.Tensor:
    return torch.randint_like(tensor, -9, 9)


def distribute(tensor: torch.Tensor, sharding: Sharding, mesh: Mesh) -> list[torch.Tensor]:
    chunks: dict[tuple[int, ...], torch.Tensor] = {(): tensor}
    for axis, placement in sharding.entries:
        chunks = {
            (*at, index): chunk
            for at, whole in chunks.items()
            for index, chunk in enumerate(placement.distribute(whole, mesh.sizes[axis], noise))
        }
    coordinates = [mesh.coordinate(rank) for rank in range(mesh.world_size)]
    return [chunks[tuple(here[axis] for axis, _ in sharding.entries)].clone() for here in coordinates]


def assert_holds(locals_: list[torch.Tensor], sharding: Sharding, mesh: Mesh, tensor: torch.Tensor) -> None:
    """Every choice of ranks along the replicated axes collects to the tensor."""
    replicated = [axis for axis in mesh.axis_names if sharding[axis] == R]
    for ranks in {mesh.group(rank, [a for a, _ in sharding.entries]) for rank in range(mesh.world_size)}:
        assert len(ranks) * mesh.group_size(replicated) == mesh.world_size
        chunks = {tuple(mesh.coordinate(r)[axis] for axis, _ in sharding.entries): locals_[r] for r in ranks}
        for depth, (axis, placement) in reversed([*enumerate(sharding.entries)]):
            around, names = Sharding(sharding.entries[:depth]), [name for name, _ in sharding.entries[:depth]]
            collected = {}
            for at in sorted({at[:-1] for at in chunks}):
                shape = around.local_shape(tensor.shape, mesh, dict(zip(names, at, strict=True)))
                collected[at] = placement.collect([chunks[*at, i] for i in range(mesh.sizes[axis])], shape)
            chunks = collected
        torch.testing.assert_close(chunks[()], tensor)


def cut(tensor: torch.Tensor, dim: int, axes: tuple[str, ...], mesh: Mesh, rank: int) -> torch.Tensor:
    for axis in axes:
        tensor = Shard(dim).distribute(tensor, mesh.sizes[axis], noise)[mesh.coordinate(rank)[axis]]
    return tensor


def gathered(locals_: list[torch.Tensor], step: Step, mesh: Mesh, rank: int) -> torch.Tensor:
    return torch.cat([locals_[peer] for peer in mesh.group(rank, step.axes)], step.dim)  # type: ignore[arg-type]


def reduced(locals_: list[torch.Tensor], step: Step, mesh: Mesh, rank: int) -> torch.Tensor:
    total = locals_[mesh.group(rank, step.axes)[0]]
    for peer in mesh.group(rank, step.axes)[1:]:
        total = REDUCTIONS[step.reduction].combine(total, locals_[peer])  # type: ignore[index]
    return total / mesh.group_size(axis for axis, op in step.source.partial if axis in step.axes and op == "avg")


def partitioned(local: torch.Tensor, step: Step, mesh: Mesh, rank: int) -> torch.Tensor:
    _, pending = step.ends(mesh)
    assert isinstance(pending, PartialPlacement)
    if mesh.index(rank, step.axes) == 0 or pending.copies or pending.identity is None:
        return local
    return torch.full_like(local, pending.identity)


def converted(local: torch.Tensor, step: Step, mesh: Mesh) -> torch.Tensor:
    edge = edge_between(*step.ends(mesh))
    assert edge is not None and edge.by is None
    return edge.lower(local, SimpleNamespace(size=mesh.group_size(step.axes)))


EXECUTE = {
    "convert": lambda held, s, mesh, r: converted(held[r], s, mesh),
    "slice": lambda held, s, mesh, r: cut(held[r], s.dim, s.axes, mesh, r),
    "partition": lambda held, s, mesh, r: partitioned(held[r], s, mesh, r),
    "all_gather": gathered,
    "all_to_all": lambda held, s, mesh, r: cut(gathered(held, s, mesh, r), s.to_dim, s.axes, mesh, r),
    "all_reduce": reduced,
    "reduce_scatter": lambda held, s, mesh, r: cut(reduced(held, s, mesh, r), s.dim, s.axes, mesh, r),
}


def execute(step: Step, held: list[torch.Tensor], mesh: Mesh, shape: tuple[int, ...]) -> list[torch.Tensor]:
    if step.kind == "permute":
        sent = [permute_senders(step.source, step.target, mesh, shape, rank)[rank] for rank in range(mesh.world_size)]
        assert sorted(sent) == list(range(mesh.world_size))
        for rank, sender in enumerate(sent):
            assert sender in mesh.group(rank, step.axes)
            assert held[sender].shape == held[rank].shape
        return [held[sender] for sender in sent]
    if step.kind in WHOLE:
        return WHOLE[step.kind](held, step, mesh, shape)
    return [EXECUTE[step.kind](held, step, mesh, rank) for rank in range(mesh.world_size)]


def exchanged(held: list[torch.Tensor], step: Step, mesh: Mesh, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """What an exchange gives; each element of each partial must come exactly once or, if it stays partial, at most."""
    results = []
    for rank in range(mesh.world_size):
        parts = [p for p in exchange(step.source, step.target, mesh, shape, rank) if p.receiver == rank]
        given = [(part, taken(held, part, step, mesh, shape)) for part in parts]
        left = partial_axes(step.source, step.target)
        of_addends = {part.partial for part in parts}
        assert left or not parts or len(of_addends) == mesh.group_size(reduced_axes(step.source, step.target))
        results.append(put_together(given, step, mesh, shape, rank, bool(left)))
    return results


def in_two_rounds(held: list[torch.Tensor], step: Step, mesh: Mesh, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """What a two-round exchange gives; a reducer must have of each partial what it has of the others."""
    results = []
    for rank in range(mesh.world_size):
        moved = two_round_exchange(step.source, step.target, mesh, shape, rank)
        given = [(part, taken(held, part, step, mesh, shape)) for part in moved.stationary if part.receiver == rank]
        for part in (part for part in moved.second_round if part.receiver == rank):
            partials: dict[int, torch.Tensor] = {}
            count = torch.zeros([length(ranges) for ranges in part.grid])
            for chunk in (chunk for chunk in moved.first_round if chunk.receiver == part.sender):
                overlap = tuple(common(a, b) for a, b in zip(chunk.grid, part.grid, strict=True))
                if all(overlap):
                    whole = partials.setdefault(chunk.partial, torch.zeros(count.shape).double())
                    within_piece = attrs.evolve(chunk, grid=overlap)
                    whole[within(overlap, part.grid)] = taken(held, within_piece, step, mesh, shape)
                    count[within(overlap, part.grid)] += 1
            assert count.eq(len(partials)).all()
            given.append((part, functools.reduce(REDUCTIONS[pending(step)].combine, partials.values())))
        results.append(put_together(given, step, mesh, shape, rank, bool(step.target.partial)))
    return results


WHOLE = {"exchange": exchanged, "two_round_exchange": in_two_rounds, "rearrange": exchanged}


def pending(step: Step) -> str:
    return next((op for _, op in (*step.source.partial, *step.target.partial)), "sum")


def taken(held: list[torch.Tensor], part: Part, step: Step, mesh: Mesh, shape: tuple[int, ...]) -> torch.Tensor:
    assert part.sender in mesh.group(part.receiver, step.axes)
    return held[part.sender][within(part.grid, grid_of(step.source, shape, mesh, part.sender))]


def put_together(
    given: list[tuple[Part, torch.Tensor]], step: Step, mesh: Mesh, shape: tuple[int, ...], rank: int, left: bool
) -> torch.Tensor:
    """The partials that a rank is given, reduced; what is `left` partial need not be given, nor more than one of it."""
    grid = grid_of(step.target, shape, mesh, rank)
    count = 1 + max((part.partial for part, _ in given), default=0)
    identity = REDUCTIONS[Partial(pending(step)).reduce].identity
    assert identity is not None
    partials = torch.full([count, *map(length, grid)], float(identity)).double()
    times = torch.zeros(partials.shape)
    for part, chunk in given:
        times[part.partial][within(part.grid, grid)] += 1
        partials[part.partial][within(part.grid, grid)] = chunk
    assert times.le(1).all()
    assert left or times[0].eq(1).all()
    reduced = reduced_axes(step.source, step.target)
    total = functools.reduce(REDUCTIONS[pending(step)].combine, partials)
    return total / mesh.group_size(a for a, op in step.source.partial if a in reduced and op == "avg")


def within(grid: Grid, around: Grid) -> tuple[torch.Tensor, ...]:
    """The index of the elements of `grid` in what holds `around`."""
    places = [positions(part, ranges) for part, ranges in zip(grid, around, strict=True)]
    lists = [torch.tensor([at for start, end in found for at in range(start, end)]).long() for found in places]
    return torch.meshgrid(*lists, indexing="ij") if grid else ()


def run(shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh, topology: Topology) -> set[str]:
    plan = plan_reshard(shape, "f64", source, target, mesh, topology)
    tensor = torch.randint(-9, 9, shape).double()
    held, here = distribute(tensor, source, mesh), source
    for step in plan.steps:
        assert step.source == here
        arguments = {
            "axes": step.axes,
            "dim": step.dim,
            "to_dim": step.to_dim,
            "reduction": step.reduction,
            "target": step.target,
        }
        assert transition(step.kind, here, mesh, shape, **arguments) == step.target
        assert step.spec.loads is None or sends_anything(step, shape, mesh)
        held, here = execute(step, held, mesh, shape), step.target
        for rank, local in enumerate(held):
            assert tuple(local.shape) == here.local_shape(shape, mesh, mesh.coordinate(rank))
    assert here == target
    assert_holds(held, target, mesh, tensor)
    return {step.kind for step in plan.steps}


@pytest.mark.parametrize("mesh", [Mesh({"a": 2}), Mesh({"a": 2, "b": 3})], ids=str)
def test_plans_from_one_kind_of_reduction_to_another_keep_the_value(mesh: Mesh) -> None:
    torch.manual_seed(0)
    sides = [all_shardings(mesh, [R, Shard(0), Partial(op)]) for op in ("max", "sum")]
    for source, target in itertools.product(*sides):
        if source.partial and target.partial:
            run((7, 5), source, target, mesh, FEWEST_BYTES)


@pytest.mark.parametrize("mesh", [Mesh({"a": 3}), Mesh({"a": 2, "b": 3}), Mesh({"a": 2, "b": 2, "c": 2})], ids=str)
@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("kind", ["exchange", "two_round_exchange"])
def test_one_step_makes_any_sharding_of_any_other(mesh: Mesh, op: str, kind: str) -> None:
    torch.manual_seed(0)
    chosen = random.Random(0)
    shardings = all_shardings(mesh, [R, Shard(0), Shard(1), Partial(op)])
    pairs = list(itertools.product(shardings, repeat=2))
    for source, target in chosen.sample(pairs, min(len(pairs), 100)):
        shape = chosen.choice([(12, 24), (7, 5), (1, 3), (0, 4)])
        tensor = torch.randint(-9, 9, shape).double()
        step = make_step(kind, source, mesh, shape, target=target)
        held = execute(step, distribute(tensor, source, mesh), mesh, shape)
        assert_holds(held, target, mesh, tensor)


@pytest.mark.parametrize("op", ["avg", "max", "min", "product"])
def test_every_kind_of_partial_reduction_is_moved_rightly(op: str) -> None:
    torch.manual_seed(0)
    mesh = Mesh({"a": 2, "b": 3})
    shardings = all_shardings(mesh, [R, Shard(1), Partial(op)])
    for source, target in itertools.product(shardings, repeat=2):
        run((3, 7), source, target, mesh, H100X8)


def test_partial_sums_and_averages_may_be_reduced_together() -> None:
    torch.manual_seed(0)
    mesh = Mesh({"a": 2, "b": 3})
    mixed = parse_sharding("a: P(sum), b: P(avg)")
    for target in ("", "a: S(0), b: S(0)", "b: S(1)", "a: P(avg), b: P(sum)", "a: P(sum)", "a: S(1), b: P(avg)"):
        run((6, 6), mixed, parse_sharding(target), mesh, H100X8)


def test_plans_on_three_axes_keep_the_value() -> None:
    torch.manual_seed(0)
    mesh = Mesh({"a": 2, "b": 2, "c": 3})
    chosen = random.Random(1)
    shardings = all_shardings(mesh, [R, Shard(0), Shard(1), Partial("sum")])
    for _ in range(50):
        source, target = chosen.choice(shardings), chosen.choice(shardings)
        run(
            chosen.choice([(12, 24), (7, 11), (5, 3)]),
            source,
            target,
            mesh,
            chosen.choice((H100X8, CPU_GLOO, FEWEST_BYTES)),
        )


def test_axes_of_one_rank_need_no_special_case() -> None:
    torch.manual_seed(0)
    mesh = Mesh({"a": 1, "b": 2})
    for source, target in itertools.product(all_shardings(mesh, [R, Shard(0), Shard(1), Partial("sum")]), repeat=2):
        run((5, 4), source, target, mesh, H100X8)
