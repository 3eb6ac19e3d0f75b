"""One-collective programs: every kind on every sharding that it is legal from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Partial, Shard
from spmdir.core.sharding import Sharding
from spmdir.dialects.ir import parse
from spmdir.reshard.steps import transition


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
    def text(self) -> str:
        type_ = f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"
        return (
            f"spmd.mesh @mesh {self.mesh}\n\n"
            f"func.func @main(%x: {type_} {{spmd.sharding = #spmd.sharding<@mesh{_comma(self.source)}>}}) -> "
            f"({type_} {{spmd.sharding = #spmd.sharding<@mesh{_comma(self.target)}>}}) {{\n"
            f"  %y = spmd.{self.kind} %x{' ' + self.clauses if self.clauses else ''} : {type_} <{self.target}>\n"
            f"  return %y : {type_}\n}}\n"
        )

    def parse(self) -> Any:
        return parse(self.text)


def _comma(sharding: Sharding) -> str:
    return f", {sharding}" if sharding.entries else ""


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
