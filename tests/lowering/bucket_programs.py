"""Programs that do some collectives one by one and as one, each on the same inputs."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.dialects.collectives import Collective
from spmdir.reshard.moved_axes import exchanged_axes
from spmdir.reshard.steps import make_step, transition
from tests.lowering.collective_programs import Program, attribute, programs, shardings

KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "exchange")
"""Those that may take several tensors."""

SHAPES = ((6, 4), (7, 5), (1, 3), (2, 0), (4, 2, 3), (5,))
"""Even, uneven, with fewer elements than ranks, without elements, and of other numbers of dimensions."""

_AXES = re.compile(r"on \[(.*?)\]")
_DIM = re.compile(r"(dim|from|to) (\d+)")


@attrs.frozen
class Bucket:
    """Several tensors on which one collective is done; `stream` is that of its start, where it is not waited at once.

    Attributes:
        members: of one mesh, kind, axes, element type and reduction.
    """

    members: tuple[Program, ...]
    is_async: bool = False
    stream: str | None = None

    def lines(self, xs: Sequence[str], ys: Sequence[str]) -> Iterator[str]:
        """Yield the lines that make `ys` of `xs` at once."""
        kind, clauses = self.members[0].kind, " ".join(["", *filter(None, [clauses_of(self.members)])])
        types = ", ".join(f"{m.type} <{m.target}>" for m in self.members)
        if not self.is_async:
            yield f"{', '.join(ys)} = spmd.{kind} {', '.join(xs)}{clauses} : {types}"
            return
        pending = ", ".join(f"!spmd.pending<{m.type}> <{m.target}>" for m in self.members)
        stream, handles = f" stream {self.stream}" if self.stream else "", ", ".join(f"{x}_sent" for x in xs)
        yield f"{handles} = spmd.{kind}_start {', '.join(xs)}{clauses}{stream} : {pending}"
        yield f"{', '.join(ys)} = spmd.wait {handles} : {types}"


def text(buckets: Sequence[Bucket]) -> str:
    """Return a program of all buckets: of n members in all, argument i becomes result i as a member, n + i alone."""
    members = [member for bucket in buckets for member in bucket.members]
    xs, ys, zs = ([f"%{name}{i}" for i in range(len(members))] for name in "xyz")
    arguments = ", ".join(f"{x}: {m.type} {attribute(m.source)}" for x, m in zip(xs, members, strict=True))
    results = ", ".join([f"{m.type} {attribute(m.target)}" for m in members] * 2)
    lines, start = [], 0
    for bucket in buckets:
        end = start + len(bucket.members)
        lines += bucket.lines(xs[start:end], ys[start:end])
        start = end
    for x, z, m in zip(xs, zs, members, strict=True):
        lines.append(f"{z} = spmd.{m.kind} {x} {m.clauses} : {m.type} <{m.target}>")
    lines.append(f"return {', '.join(ys + zs)} : {', '.join([m.type for m in members] * 2)}")
    body = "\n  ".join(lines)
    return f"spmd.mesh @mesh {members[0].mesh}\n\nfunc.func @main({arguments}) -> ({results}) {{\n  {body}\n}}\n"


def clauses_of(members: Sequence[Program]) -> str:
    """Return the clauses of the collective on all members: of several, the dimensions of each in a list."""
    if len(members) == 1:
        return members[0].clauses
    every = [iter(_DIM.findall(m.clauses)) for m in members]
    return _DIM.sub(lambda found: f"{found[1]} [{', '.join(next(dims)[1] for dims in every)}]", members[0].clauses)


def buckets(mesh: Mesh, kind: str, dtype: str, ops: tuple[str, ...], count: int) -> Iterator[Bucket]:
    """Yield `count` random buckets of one to five members of any shape and nesting order."""
    chosen = random.Random(f"{mesh} {kind} {dtype}")
    alike: dict[Group, list[Program]] = {}
    for shape in SHAPES:
        for program in exchanges(mesh, shape, ops, chosen) if kind == "exchange" else programs(mesh, kind, shape, ops):
            alike.setdefault(group_of(program), []).append(attrs.evolve(program, dtype=dtype))
    for number in range(count):
        group = chosen.choice(list(alike))
        some = chosen.choices(alike[group], k=chosen.randint(1, 5))
        stream = "_".join(["on", *sorted(group[0])]) if number % 3 == 2 else None
        yield Bucket(tuple(some), is_async=number % 3 > 0, stream=stream)


Group = tuple[tuple[str, ...], str | None]
"""The axes and the reduction of members of one bucket."""


def group_of(program: Program) -> Group:
    """Return the group that a program may be in a bucket of."""
    if program.kind == "exchange":
        step = make_step("exchange", program.source, program.mesh, program.shape, target=program.target)
        return Collective.message_of(step)
    return tuple(_AXES.findall(program.clauses)[0].split(", ")), _DIM.sub("", program.clauses)


def exchanges(mesh: Mesh, shape: tuple[int, ...], ops: tuple[str, ...], chosen: random.Random) -> Iterator[Program]:
    """Yield a random legal exchange from each sharding."""
    every = list(shardings(mesh, len(shape), ops))
    for source in every:
        target = chosen.choice(every)
        try:
            transition("exchange", source, mesh, shape, target=target)
        except ShardingError:
            continue
        if exchanged_axes(source, target, mesh):
            yield Program(mesh, "exchange", "", source, target, shape)
