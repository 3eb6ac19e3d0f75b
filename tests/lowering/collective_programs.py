"""One-collective programs: every kind on every sharding that it is legal from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import torch

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, Shard
from spmdir.dialects.ir import parse
from spmdir.reshard.steps import transition
from spmdir.simulator.simulate import simulate


@attrs.frozen
class Program:
    """A collective on one value.

    Attributes:
        kind, clauses: the op and its text, e.g. "all_gather" and "on [tp] dim 0".
    """

    mesh: Mesh
    kind: str
    clauses: str
    source: Sharding
    target: Sharding
    shape: tuple[int, ...]
    dtype: str = "f64"

    @property
    def type(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"

    @property
    def text(self) -> str:
        return joined([self])

    def parse(self) -> Any:
        return parse(self.text)


def joined(programs: Sequence[Program]) -> str:
    """One program that does what all do, each on an input of its own; they are of one mesh."""
    every = [(p, f"%x{i or ''}", f"%y{i or ''}") for i, p in enumerate(programs)]
    arguments = [f"{x}: {p.type} {attribute(p.source)}" for p, x, _ in every]
    results = [f"{p.type} {attribute(p.target)}" for p, _, _ in every]
    lines = [
        f"  {y} = spmd.{p.kind} {x}{' ' + p.clauses if p.clauses else ''} : {p.type} <{p.target}>\n"
        for p, x, y in every
    ]
    return (
        f"spmd.mesh @mesh {programs[0].mesh}\n\n"
        f"func.func @main({', '.join(arguments)}) -> ({', '.join(results)}) {{\n{''.join(lines)}"
        f"  return {', '.join(y for _, _, y in every)} : {', '.join(p.type for p in programs)}\n}}\n"
    )


def simulated(
    programs: Iterable[Program], value_of: Callable[[Program], torch.Tensor], together: int = 40
) -> Iterator[tuple[Program, torch.Tensor, torch.Tensor]]:
    """Each program, its value before, and its value after it ran on every rank; some are simulated together."""
    every = list(programs)
    for start in range(0, len(every), together):
        some = every[start : start + together]
        values = [value_of(program) for program in some]
        yield from zip(some, values, simulate(parse(joined(some)), values), strict=True)


def assert_values_kept(programs: Iterable[Program], value_of: Callable[[Program], torch.Tensor]) -> int:
    """Return how many programs there are, all of which keep the global value."""
    found = list(simulated(programs, value_of))
    for program, x, y in found:
        torch.testing.assert_close(y, x, msg=lambda m, program=program: f"{program.text}\n{m}")
    return len(found)


def ascending(program: Program) -> torch.Tensor:
    """Whole numbers from 1, all different, of the shape of `program`."""
    return torch.arange(1.0, 1 + torch.Size(program.shape).numel(), dtype=torch.float64).reshape(program.shape)


def attribute(sharding: Sharding) -> str:
    return f"{{spmd.sharding = #spmd.sharding<@mesh{', ' if sharding.entries else ''}{sharding}>}}"


def shardings(mesh: Mesh, rank: int, ops: tuple[str, ...] = ("sum",)) -> Iterator[Sharding]:
    """Every sharding of a tensor of `rank` dimensions, with every nesting order."""
    choices = [None, *map(Shard, range(rank)), *map(Partial, ops)]
    seen = set()
    for order in itertools.permutations(mesh.axis_names):
        for placements in itertools.product(choices, repeat=len(order)):
            sharding = Sharding([(a, p) for a, p in zip(order, placements, strict=True) if p])
            if sharding not in seen and len({op for _, op in sharding.partial}) <= 1:
                seen.add(sharding)
                yield sharding


def axis_tuples(mesh: Mesh) -> Iterator[tuple[str, ...]]:
    for length in range(1, len(mesh.axes) + 1):
        yield from itertools.permutations(mesh.axis_names, length)


def programs(mesh: Mesh, kind: str, shape: tuple[int, ...], ops: tuple[str, ...] = ("sum",)) -> Iterator[Program]:
    """Every legal use of collective `kind` on a tensor of `shape`."""
    dims = range(len(shape))
    given: list[tuple[dict[str, Any], str]] = []
    for axes in axis_tuples(mesh):
        on = f"on [{', '.join(axes)}]"
        if kind in ("all_gather", "slice"):
            given += [({"axes": axes, "dim": dim}, f"{on} dim {dim}") for dim in dims]
        elif kind == "reduce_scatter":
            given += [({"axes": axes, "dim": d, "reduction": op}, f"{on} dim {d} op {op}") for d in dims for op in ops]
        elif kind in ("all_reduce", "partition"):
            given += [({"axes": axes, "reduction": op}, f"{on} op {op}") for op in ops]
        elif kind == "all_to_all":
            pairs = itertools.permutations(dims, 2)
            given += [({"axes": axes, "dim": a, "to_dim": b}, f"{on} from {a} to {b}") for a, b in pairs]
        elif kind == "broadcast":
            given.append(({"axes": axes}, on))
    for source in shardings(mesh, len(shape), ops):
        if kind == "permute":
            given = [({"target": target}, "") for target in shardings(mesh, len(shape), ops) if target != source]
        for arguments, clauses in given:
            if kind == "broadcast":
                if all(source[axis].trait == "replicated" for axis in arguments["axes"]):
                    yield Program(mesh, kind, clauses, source, source, shape)
                continue
            try:
                target = transition(kind, source, mesh, shape, **arguments)
            except ShardingError:
                continue
            yield Program(mesh, kind, clauses, source, target, shape)
