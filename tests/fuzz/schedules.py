"""Random schedules of a rank's program: collectives are joined, started early and waited for late, in any order that is
legal; they compute what the program does, in whatever order the ranks run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from random import Random

import attrs
import torch
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from spmdir import run_passes, simulate
from spmdir.analysis.local_programs.globalize import units_of
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.attributes import pending_type
from spmdir.dialects.collectives import Collective, WaitOp, collective_class
from spmdir.dialects.deadlock_check import Communicator, communicator
from spmdir.torch_interop.schemas import is_random, torch_op
from tests.fuzz.batch import Kind, Wrong
from tests.fuzz.edited import MESHES, inputs_of
from tests.fuzz.local_programs import PROGRAMS, program
from tests.placements.lossy_placements import ROUNDING
from tests.search.random_programs import programs

Unit = Sequence[Operation]


@attrs.frozen
class Scheduled:
    """A program, and the seed of its schedule."""

    text: str
    seed: int

    def __str__(self) -> str:
        return f"schedule {self.seed} of\n{self.text}"


def check(case: Scheduled) -> str | None:
    """Simulate the program as it is and as it is scheduled; raises Wrong unless results are equal to the bit."""
    module = run_passes(ir.parse(case.text), "propagate,insert-reshard,lower-reshard,localize")
    given = inputs_of(case.text)
    expected = simulate(module, given)
    random_schedule(module, Random(case.seed))
    text = ir.print_ir(module)
    for index, (found, right) in enumerate(
        zip(simulate(ir.parse(text), given, interleavings=2), expected, strict=True)
    ):
        if not torch.equal(found.nan_to_num(nan=0.5), right.nan_to_num(nan=0.5)):
            raise Wrong(f"result {index} is another in this schedule:\n{text}")
    return None if "_start" in text else "no collective that can be started"


def random_schedule(module: ModuleOp, draw: Random) -> None:
    """Shuffle the units of a localized module, join and split its collectives at random, and shuffle again."""
    function, mesh = ir.main_function(module), ir.mesh(module)
    _shuffle(function, mesh, draw)
    for op in [op for op in function.body.block.ops if isinstance(op, Collective)]:
        if op.parent is not None and op.spec.may_be_bucketed and not op.IS_START and draw.random() < 0.7:
            _join(op, mesh)
    for op in _alone(function):
        if op.spec.may_be_async and not op.IS_START and draw.random() < 0.8:
            _split(op)
    _shuffle(function, mesh, draw)
    ir.verify(module)


def _alone(function: FuncOp) -> list[Collective]:
    """Return the collectives that are no part of a local form."""
    every = list(units_of(function.body.block))
    return [op for form, (op, *_) in every if form is None and isinstance(op, Collective)]


def _join(first: Collective, mesh: Mesh) -> None:
    """Let the next collective that is like `first`, before which nothing needs `first`, do both."""
    users = {use.operation for result in first.results for use in result.uses}
    alone = _alone(first.parent_op())  # type: ignore[arg-type]  # in a function
    op = first
    while (op := op.next_op) is not None and op not in users and first in alone:
        if not (isinstance(op, Collective) and op in alone and _like(op) == _like(first)):
            continue
        joined = type(op).joined((first, op), mesh)
        _replace((first, op), joined)
        return


def _like(op: Collective) -> tuple[object, ...]:
    return type(op), op.axes, op.reduction, op.metas[0] and op.metas[0].dtype


def _replace(old: Sequence[Collective], new: Operation) -> None:
    """Put an op whose results are those of `old` in place of the last of them."""
    old[-1].parent.insert_op_before(new, old[-1])  # type: ignore[union-attr]  # in a block
    results = [result for op in old for result in op.results]
    for result, replacement in zip(results, new.results, strict=True):
        result.replace_all_uses_with(replacement)
    for op in old:
        op.detach()
        op.erase()


def _split(op: Collective) -> None:
    types = [pending_type(meta) for meta in op.metas if meta is not None]
    given = {"operands": op.operands, "result_types": types, "properties": dict(op.properties), "location": op.location}
    start = collective_class(op.spec.name, starts=True).create(**given)
    kept = {name: value for name, value in op.properties.items() if name != "arguments"}
    wait = WaitOp.create(operands=start.results, result_types=op.result_types, properties=kept, location=op.location)
    op.parent.insert_op_before(start, op)  # type: ignore[union-attr]  # in a block
    _replace((op,), wait)


def _shuffle(function: FuncOp, mesh: Mesh, draw: Random) -> None:
    """Put the units of a function into a random order in which none that may not be in flight at once are.

    Those that draw random numbers stay in order.
    """
    block = function.body.block
    units: list[Unit] = [unit for _, unit in units_of(block)]
    end = block.last_op
    number: dict[object, int] = {op: index for index, unit in enumerate(units) for op in unit}
    needs = [
        {number[v.owner] for op in unit for v in op.operands if v.owner in number} - {i} for i, unit in enumerate(units)
    ]
    drawing = [index for index, unit in enumerate(units) if any(map(_draws, unit))]
    for before, after in itertools.pairwise(drawing):
        needs[after].add(before)
    order: list[Unit] = []
    done: set[int] = set()
    flying: dict[Operation, Communicator] = {}
    while len(order) < len(units):
        ready = [
            i for i in range(len(units)) if i not in done and needs[i] <= done and _may_run(units[i], flying, mesh)
        ]
        index = draw.choice(ready)
        done.add(index)
        order.append(units[index])
        for op in units[index]:
            own = communicator(op, mesh)
            if isinstance(op, WaitOp):
                flying.pop(op.start, None)
            elif own is not None and getattr(op, "IS_START", False):
                flying[op] = own
    for op in [*block.ops]:
        op.detach()
    block.add_ops([*(op for unit in order for op in unit), end])  # type: ignore[list-item]  # a function has a return


def _draws(op: Operation) -> bool:
    return op.name.startswith("aten.") and is_random(torch_op(op.name))


def _may_run(unit: Unit, flying: dict[Operation, Communicator], mesh: Mesh) -> bool:
    own: Iterable[Communicator | None] = [communicator(op, mesh) for op in unit]
    return not any(one is not None and one.excludes(other, mesh) for one in own for other in flying.values())


@st.composite
def scheduled(draw: st.DrawFn) -> Scheduled:
    """Return a random program, or one that has what localize makes, and a schedule."""
    seed = draw(st.integers(0, 2**32 - 1))
    if draw(st.booleans()):
        return Scheduled(program(draw(st.sampled_from([*PROGRAMS])), "propagate"), seed)
    lossy = draw(st.sampled_from(("?", *ROUNDING)))
    return Scheduled(draw(programs(MESHES, asked=("?", lossy))).text, seed)


SCHEDULES = Kind("schedules", scheduled(), check, examples=40, seconds=30, share=1.5)
