"""split-matmul: matrix products beside a collective become rings, in which a block is sent while one is multiplied."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import attrs
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.local_forms import SPLIT, is_split
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.analysis.type_check import match, rule_of
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of, sharding_attr
from spmdir.dialects.collectives import Collective
from spmdir.dialects.context import IRContext
from spmdir.dialects.mesh_op import MeshOp
from spmdir.dialects.names import take_name
from spmdir.dialects.values import sharding_of
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipeline.trials import run_trial
from spmdir.reshard.topology import Topology
from spmdir.rules import RuleSet
from spmdir.rules.strategies import split_products
from spmdir.schedule.simulate import simulate

Split = Callable[[Collective, Sequence[AtenOp]], None]
"""Splits products beside a collective: (the collective, the ops that it takes, or that take of it) → nothing."""


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


@dataclass(frozen=True)
class SplitMatmulPass(FunctionPass, MachineOptions):
    """Splits matrix products beside an all_gather or a reduce_scatter into the steps of rings, where that is faster.

    Left alone are gathers of what no product makes, as of parameters, and scatters that no product waits for, as of
    their gradients: a schedule hides these behind other ops.

    Options:
        always: split wherever a ring is possible, whatever it takes.
    """

    name = "split-matmul"
    requires: ClassVar[str] = "lowered"
    always: bool = False

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        trials: Trials | None = None  # the file of a machine that nothing is priced by need not be there
        for collective, choices in _Sites(function.body.block, ir.mesh(module), ctx.rules, self.always).all():
            split = _SPLITS[collective.spec.traits]
            if self.always:
                split(collective, choices[0])
                continue
            trials = trials or Trials(ctx, ir.mesh_op(module), self.machine_with_remark(ctx, function).topology)
            saved = [trials.saved(collective, chosen, split) for chosen in choices]
            if max(saved) > 0.0:
                split(collective, choices[saved.index(max(saved))])


class _Sites:
    """The places in a function where products may be split.

    Attributes:
        products: the ops that contract.
        splittable: those of them that may be split.
        place: op → its number in program order.
    """

    def __init__(self, block: Block, mesh: Mesh, rules: RuleSet, everywhere: bool):
        self.block, self.mesh, self.rules, self.everywhere = block, mesh, rules, everywhere
        self.place = {op: number for number, op in enumerate(block.ops)}
        instances = {op: rule for op in block.ops if isinstance(op, AtenOp) and (rule := rule_of(op, rules))}
        self.products = {op for op, rule in instances.items() if rule.contracts}
        self.splittable = {op for op, rule in instances.items() if split_products.may_be_split(rule)}

    def all(self) -> Iterator[tuple[Collective, Sequence[Sequence[AtenOp]]]]:
        """Yield each collective with the ops of which some may be split beside it, which the caller may do at once."""
        behind, before = self._behind_products(), self._before_products()
        for op in list(self.block.ops):
            if not isinstance(op, Collective) or op.IS_START or len(op.operands) != 1 or len(op.axes) != 1:
                continue
            if op.spec.traits == _GATHER and (self.everywhere or op.operands[0] in behind):
                choices = [(user,) for user in self._ready_users(op) if self._may_gather(user, op)]
            elif op.spec.traits == _SCATTER and (self.everywhere or op.results[0] in before):
                added = self._added(op.operands[0])
                choices = [added] if added and all(self._may_scatter(one, op) for one in added) else []
            else:
                continue
            if choices:
                yield op, choices
                if any(is_split(one) for chosen in choices for one in chosen):
                    self.place = {op: number for number, op in enumerate(self.block.ops)}

    def _behind_products(self) -> set[SSAValue]:
        """Return the values that some product is needed for."""
        found: set[SSAValue] = set()
        for op in self.block.ops:
            if op in self.products or not found.isdisjoint(op.operands):
                found.update(op.results)
        return found

    def _before_products(self) -> set[SSAValue]:
        """Return the values that are needed for some product."""
        found: set[SSAValue] = set()
        for op in reversed(list(self.block.ops)):
            if op in self.products or not found.isdisjoint(op.results):
                found.update(op.operands)
        return found

    def _ready_users(self, gather: Collective) -> Iterator[AtenOp]:
        """Yield the products of what is gathered that may stand in front of all other users."""
        users = list(dict.fromkeys(use.operation for use in gather.results[0].uses))
        first = min(map(self.place.__getitem__, users), default=0)
        for user in users:
            if isinstance(user, AtenOp) and user in self.splittable and not is_split(user):
                makers = [value.owner for value in user.operands]
                if all(isinstance(maker, Block) or self.place[maker] < first for maker in makers):
                    yield user

    def _added(self, value: SSAValue) -> tuple[AtenOp, ...]:
        """Return the products whose sum is `value`, with the ops that add them up; () if it is anything else."""
        op = value.owner
        if not isinstance(op, AtenOp) or is_split(op) or len(list(value.uses)) != 1 or len(op.results) != 1:
            return ()
        if op in self.splittable:
            return (op,)
        parts = [self._added(operand) if operand.type == value.type else () for operand in op.operands]
        return (*(one for part in parts for one in part), op) if parts and all(parts) else ()

    def _may_gather(self, product: AtenOp, gather: Collective) -> bool:
        given = [gather.operands[0] if value is gather.results[0] else value for value in product.operands]
        return self._is_typed(product, list(map(sharding_of, given)), product.shardings[0], gather.axes[0])

    def _may_scatter(self, op: AtenOp, scatter: Collective) -> bool:
        if op in self.splittable:
            return self._is_typed(op, list(map(sharding_of, op.operands)), scatter.target, scatter.axes[0])
        return self._is_typed(op, [scatter.target] * len(op.operands), scatter.target)

    def _is_typed(
        self, op: AtenOp, operands: Sequence[Sharding | None], result: Sharding | None, axis: str | None = None
    ) -> bool:
        """Return whether `op` may be sharded so; it must be split along `axis` if that is given."""
        rule = rule_of(op, self.rules)
        try:
            choice = match(rule, operands, [result], self.mesh, may_split=axis is not None)  # type: ignore  # it is decided
        except ShardingError:
            return False
        return axis is None or (axis in choice and choice[axis].rewrite == split_products.SPLIT)


def _gather(gather: Collective, chosen: Sequence[AtenOp]) -> None:
    """Let the steps of a product gather its operand; other users of the gather get it behind these."""
    (product,), (value,), (gathered,) = chosen, gather.operands, gather.results
    users = {use.operation for use in gathered.uses}
    first: Operation = gather
    while first not in users:
        assert first.next_op is not None  # what uses a value is behind it
        first = first.next_op
    if product is not first:
        product.detach()
        Rewriter.insert_op(product, InsertPoint.before(first))
    gather.detach()
    Rewriter.insert_op(gather, InsertPoint.after(product))
    product.operands = [value if operand is gathered else operand for operand in product.operands]
    product.attributes[SPLIT] = UnitAttr()
    if not gathered.uses:
        Rewriter.erase_op(gather)


def _scatter(scatter: Collective, chosen: Sequence[AtenOp]) -> None:
    """Let the steps of products scatter their results, which other ops add up, the last one to what is scattered."""
    for op in chosen:
        if all(operand.owner not in chosen for operand in op.operands):
            op.attributes[SPLIT] = UnitAttr()
        op.set_shardings(scatter.shardings)
    take_name(chosen[-1].results[0], scatter.results[0])
    scatter.results[0].replace_all_uses_with(chosen[-1].results[0])
    Rewriter.erase_op(scatter)


_GATHER, _SCATTER = ("shard", "replicated"), ("partial", "shard")

_SPLITS: Mapping[tuple[str | None, str | None], Split] = {_GATHER: _gather, _SCATTER: _scatter}
"""Traits of the axes of a collective → what splits products beside it."""
