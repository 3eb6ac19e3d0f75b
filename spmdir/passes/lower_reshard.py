"""Reshards → collectives: the planner's cheapest steps, found together for all reshards of one value."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import SpmdOp, build_collective
from spmdir.dialects.names import Names, take_name
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp, is_inexact
from spmdir.dialects.syntax.context import IRContext, location_of
from spmdir.dialects.values import sharding_of
from spmdir.passes.preconditions import FunctionPass
from spmdir.passes.step_states import add_states, return_states
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.cost import sends_anything
from spmdir.reshard.plan import Plan, plan_reshard
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import FLAT, Topology, find_topology

ORDERS = 24
"""How many orders of the reshards of one value to try; all of them up to four reshards."""

Tree = dict[Sharding, Step]
"""Sharding of a value → the step that gives it, from a sharding before; the value's own is not in."""


@attrs.frozen
class Planner:
    """What reshards are planned for, and with which collectives."""

    mesh: Mesh
    topology: Topology
    collectives: tuple[CollectiveSpec, ...]

    def plan(self, meta: TensorMeta, source: Sharding, target: Sharding) -> Plan:
        """Return the cheapest plan from `source` to `target`.

        Raises:
            SpmdirError: there is none.
        """
        return plan_reshard(
            meta.shape, meta.dtype, source, target, self.mesh, self.topology, collectives=self.collectives
        )


@dataclass(frozen=True)
class LowerReshardPass(FunctionPass):
    """Turns each spmd.reshard into the cheapest collectives; reshards of one value share their steps."""

    name = "lower-reshard"

    topology: str = FLAT.name
    """What the mesh runs on, a preset or a TOML file; on `flat` plans send the fewest bytes."""

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        mesh = ir.mesh(module)
        topology = find_topology(self.topology, FLAT)
        reshards: dict[SSAValue, list[SpmdOp]] = {}
        for reshard in function.body.block.ops:
            if type(reshard) is ReshardOp or type(reshard) is ConstraintOp:  # isinstance is slow on other ops
                reshards.setdefault(_origin(reshard), []).append(reshard)
        names = Names(function.body.block)
        for of_value in reshards.values():
            _lower(_origin(of_value[0]), of_value, Planner(mesh, topology, ctx.collectives), names)


def _origin(op: SpmdOp) -> SSAValue:
    """Return the value that `op` reshards, through earlier reshards except those that a user wants inexact."""
    value = op.operands[0]
    while isinstance(value.owner, (ReshardOp, ConstraintOp)) and not is_inexact(value.owner.target):
        value = value.owner.operands[0]
    return value


def _lower(value: SSAValue, reshards: Sequence[SpmdOp], planner: Planner, names: Names) -> None:
    """Replace `reshards`, in program order, of `value`; each step is done before the first one that needs it."""
    source, meta = sharding_of(value), meta_of(value.type)
    assert meta is not None
    if source is None:
        raise ShardingError("the resharded value has no sharding; run propagate first", location_of(reshards[0]))
    targets = {_target(reshard): location_of(reshard) for reshard in reversed(reshards)}
    for target, location in targets.items():
        try:
            planner.plan(meta, source, target)
        except SpmdirError as error:
            raise type(error)(f"cannot reshard from <{source}> to <{target}>: {error.message}", location) from None
    tree = _cheapest_tree(meta, source, tuple(reversed(targets)), planner)
    made = {source: value}
    given = {_target(reshard): reshard.results[0] for reshard in reversed(reshards)}
    for reshard in reshards:
        _make(_target(reshard), tree, made, reshard, planner, names)
        reshard.results[0].replace_all_uses_with(made[_target(reshard)])
    for target, result in list(made.items())[1:]:
        take_name(result, given[target]) if target in given else names.give(result, value, tree[target].kind)
    for reshard in reversed(reshards):
        Rewriter.erase_op(reshard)


def _target(op: SpmdOp) -> Sharding:
    target = op.target
    if target is None or target.open_axes:
        raise ShardingError(f"'{op.name}' does not say how to place every axis; run propagate first", location_of(op))
    return target


@lru_cache(maxsize=65536)
def _cheapest_tree(meta: TensorMeta, source: Sharding, targets: tuple[Sharding, ...], planner: Planner) -> Tree:
    """Steps to all `targets`: of least modelled time, then fewest wire bytes, then fewest steps that send.

    The targets are planned one after the other, each from whichever sharding reached so far is cheapest. Several
    orders are tried, since P → R serves P → S on the way and not the other way round.
    """
    best: tuple[tuple[float, float, int], Tree] | None = None
    for order in itertools.islice(itertools.permutations(targets), ORDERS):
        tree: Tree = {}
        wire, sends, seconds = 0.0, 0, 0.0
        for target in order:
            starts = (source, *(reached for reached in tree if not is_inexact(reached)))
            plans = (planner.plan(meta, start, target) for start in starts)
            plan = min(plans, key=lambda plan: (plan.seconds, plan.wire_bytes, len(plan.steps)))
            tree.update((step.target, step) for step in plan.steps if step.target not in tree)
            wire, seconds = wire + plan.wire_bytes, seconds + plan.seconds
            sends += sum(sends_anything(step, meta.shape, planner.mesh) for step in plan.steps)
        if best is None or (seconds, wire, sends) < best[0]:
            best = (seconds, wire, sends), tree
    assert best is not None
    return best[1]


def _make(
    target: Sharding, tree: Tree, made: dict[Sharding, SSAValue], before: Operation, planner: Planner, names: Names
) -> None:
    """Do the steps to `target` that are not in `made` yet, before the op `before`."""
    if target in made:
        return
    step = tree[target]
    _make(step.source, tree, made, before, planner, names)
    origin = next(iter(made.values()))
    states = add_states(step, origin, before, planner.mesh, names)
    op = build_collective(step, made[step.source], before.location, states)
    Rewriter.insert_op(op, InsertPoint.before(before))
    return_states(op, states)
    made[target] = op.results[0]
