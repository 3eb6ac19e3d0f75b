"""What splitting products saves: they and the collective beside them, alone on one rank, before and after."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import attrs
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of, sharding_attr
from spmdir.dialects.context import IRContext
from spmdir.dialects.mesh_op import MeshOp
from spmdir.dialects.values import sharding_of
from spmdir.pipeline.trials import run_trial
from spmdir.reshard.topology import Topology
from spmdir.schedule.simulate import simulate


class Trials:
    """Splits copies of products; what equal ones save is found once."""

    def __init__(self, ctx: IRContext, mesh: MeshOp, topology: Topology):
        self._ctx, self._mesh, self._topology = ctx, mesh, topology
        self._known: dict[Hashable, float] = {}

    def saved(
        self, collective: Operation, chosen: Sequence[Operation], split: Callable[[Any, Sequence[Any]], None]
    ) -> float:
        """Return the modelled seconds that `split` of a collective and of the ops `chosen` beside it saves a rank."""
        gathers = any(operand.owner is collective for op in chosen for operand in op.operands)
        ops = [collective, *chosen] if gathers else [*chosen, collective]
        key = _key(ops)
        if key not in self._known:
            trials = [_cut_out(ops, self._mesh) for _ in range(2)]
            split(trials[1].copies[collective], [trials[1].copies[op] for op in chosen])
            before, after = (self._seconds(trial.module) for trial in trials)
            self._known[key] = before - after
        return self._known[key]

    def _seconds(self, module: ModuleOp) -> float:
        run_trial(self._ctx, module, "localize")
        program, _ = rank_program(ir.main_function(module), ir.mesh(module), self._ctx.rules, self._topology)
        return simulate(program).seconds


def _key(ops: Sequence[Operation]) -> Hashable:
    """Return what is equal for ops that compute the same on values laid out alike, of which others use the same."""
    numbers: dict[SSAValue, int] = {}
    found: list[Hashable] = []
    for op in ops:
        values = [numbers.setdefault(value, len(numbers)) for value in (*op.operands, *op.results)]
        found += [op.name, *values, op.properties.get("arguments"), op.properties.get("structure")]
    used = [any(use.operation not in ops for use in value.uses) for value in numbers]
    return (*found, *used, *((meta_of(value.type), sharding_of(value)) for value in numbers))


@attrs.frozen
class _Trial:
    """A program of copies of some ops.

    Attributes:
        copies: op → its copy.
    """

    module: ModuleOp
    copies: Mapping[Operation, Operation]


def _cut_out(ops: Sequence[Operation], mesh: MeshOp) -> _Trial:
    """Return a program of copies of `ops` alone: what they take is given, and what others use of them returned."""
    inside = [result for op in ops for result in op.results]
    given = [value for value in dict.fromkeys(value for op in ops for value in op.operands) if value not in inside]
    block = Block(arg_types=[value.type for value in given])
    values: dict[SSAValue, SSAValue] = dict(zip(given, block.args, strict=True))
    copies = {op: op.clone(values) for op in ops}
    block.add_ops(copies.values())
    used = [value for value in inside if any(use.operation not in ops for use in value.uses)]
    block.add_op(ReturnOp(*(values[value] for value in used)))
    function = FuncOp("trial", (block.arg_types, [value.type for value in used]), Region(block))
    held = ({"spmd.sharding": sharding_attr(sharding)} if (sharding := sharding_of(v)) else {} for v in given)
    function.properties["arg_attrs"] = ArrayAttr(map(DictionaryAttr, held))
    return _Trial(ModuleOp([mesh.clone(), function]), copies)
