"""split-matmul: replace a product next to a collective by a ring, which sends one block while it multiplies another."""

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
from spmdir.dialects.names import copy_name
from spmdir.dialects.values import sharding_of
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipeline.trials import run_trial
from spmdir.reshard.topology import Topology
from spmdir.rules import RuleSet
from spmdir.rules.strategies import split_products
from spmdir.schedule.simulate import simulate

Split = Callable[[Collective, Sequence[AtenOp]], None]
"""Splits products next to a collective: (the collective, the producers or users to split) → None."""


class Trials:
    """Computes the time that a split saves, on copies of the products. Equal products are tried once."""

    def __init__(self, ctx: IRContext, mesh: MeshOp, topology: Topology):
        self._ctx, self._mesh, self._topology = ctx, mesh, topology
        self._saved: dict[Hashable, float] = {}

    def seconds_saved(
        self, collective: Operation, chosen: Sequence[Operation], split: Callable[[Any, Sequence[Any]], None]
    ) -> float:
        """Return the seconds that `split` saves on a rank, for a collective and its users or producers `chosen`.

        The result is negative if the split program takes longer.
        """
        is_before_products = any(operand.owner is collective for op in chosen for operand in op.operands)
        ops = [collective, *chosen] if is_before_products else [*chosen, collective]
        key = _key(ops)
        if key not in self._saved:
            unsplit_trial, split_trial = _cut_out(ops, self._mesh), _cut_out(ops, self._mesh)
            split(split_trial.copies[collective], [split_trial.copies[op] for op in chosen])
            self._saved[key] = self._seconds(unsplit_trial.module) - self._seconds(split_trial.module)
        return self._saved[key]

    def _seconds(self, module: ModuleOp) -> float:
        """Return the modelled seconds of a global program, which is localized in place."""
        run_trial(self._ctx, module, "localize")
        program, _ = rank_program(ir.main_function(module), ir.mesh(module), self._ctx.rules, self._topology)
        return simulate(program).seconds


def _key(ops: Sequence[Operation]) -> Hashable:
    """Return a key that is equal for equal ops on values of equal types, shardings and outside uses."""
    numbers: dict[SSAValue, int] = {}
    parts: list[Hashable] = []
    for op in ops:
        # Values are numbered in order of occurrence, so that equal programs have equal keys.
        values = [numbers.setdefault(value, len(numbers)) for value in (*op.operands, *op.results)]
        parts += [op.name, *values, op.properties.get("arguments"), op.properties.get("structure")]
    is_used_outside = [any(use.operation not in ops for use in value.uses) for value in numbers]
    return (*parts, *is_used_outside, *((meta_of(value.type), sharding_of(value)) for value in numbers))


@attrs.frozen
class _Trial:
    """A program with copies of some ops.

    Attributes:
        copies: op → its copy.
    """

    module: ModuleOp
    copies: Mapping[Operation, Operation]


def _cut_out(ops: Sequence[Operation], mesh: MeshOp) -> _Trial:
    """Return a program with copies of `ops`. Its arguments are their inputs, its results the values used outside."""
    results = [result for op in ops for result in op.results]
    operands = dict.fromkeys(operand for op in ops for operand in op.operands)
    inputs = [operand for operand in operands if operand not in results]
    outputs = [result for result in results if any(use.operation not in ops for use in result.uses)]
    block = Block(arg_types=[value.type for value in inputs])
    copy_of_value: dict[SSAValue, SSAValue] = dict(zip(inputs, block.args, strict=True))
    copies = {op: op.clone(copy_of_value) for op in ops}  # `clone` adds the results to `copy_of_value`
    block.add_ops(copies.values())
    block.add_op(ReturnOp(*(copy_of_value[value] for value in outputs)))
    function = FuncOp("trial", (block.arg_types, [value.type for value in outputs]), Region(block))
    input_attributes: list[DictionaryAttr] = []
    for value in inputs:
        sharding = sharding_of(value)
        input_attributes.append(DictionaryAttr({"spmd.sharding": sharding_attr(sharding)} if sharding else {}))
    function.properties["arg_attrs"] = ArrayAttr(input_attributes)
    return _Trial(ModuleOp([mesh.clone(), function]), copies)


@dataclass(frozen=True)
class SplitMatmulPass(FunctionPass, MachineOptions):
    """Splits matrix products next to an all_gather or a reduce_scatter into the steps of a ring, if that saves time.

    Gathers that do not depend on a product, as of parameters, are not split. The same holds for scatters that no
    product depends on, as of gradients. A schedule hides these while other ops run.

    Options:
        always: split wherever a ring is possible, even if it takes longer.
    """

    name = "split-matmul"
    requires: ClassVar[str] = "lowered"
    always: bool = False

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Split at each collective the choice of products that saves most time, if any saves time.

        With `always`, the first choice is split at every collective, without modelled times.
        """
        # Created at the first price: a missing machine file is an error only if something is priced.
        trials: Trials | None = None
        for collective, choices in _Sites(function.body.block, ir.mesh(module), ctx.rules, self.always).candidates():
            split = _SPLITS[collective.spec.traits]
            if self.always:
                split(collective, choices[0])
                continue
            trials = trials or Trials(ctx, ir.mesh_op(module), self.machine_with_remark(ctx, function).topology)
            seconds_saved = [trials.seconds_saved(collective, chosen, split) for chosen in choices]
            if max(seconds_saved) > 0.0:
                split(collective, choices[seconds_saved.index(max(seconds_saved))])


class _Sites:
    """The collectives of a function with the products next to them that may be split.

    Attributes:
        everywhere: whether to include collectives that a schedule can hide, such as gathers of parameters.
        products: the contractions.
        splittable: the contractions that may be split.
        number_of: op → its number in program order.
    """

    def __init__(self, block: Block, mesh: Mesh, rules: RuleSet, everywhere: bool):
        self.block, self.mesh, self.rules, self.everywhere = block, mesh, rules, everywhere
        self.number_of = {op: number for number, op in enumerate(block.ops)}
        instances = {op: rule for op in block.ops if isinstance(op, AtenOp) and (rule := rule_of(op, rules))}
        self.products = {op for op, rule in instances.items() if rule.contracts}
        self.splittable = {op for op, rule in instances.items() if split_products.may_be_split(rule)}

    def candidates(self) -> Iterator[tuple[Collective, Sequence[Sequence[AtenOp]]]]:
        """Yield each collective with its choices. A choice is a sequence of ops that are split together.

        The caller may split one of the choices before it continues the iteration.
        """
        after_products, before_products = self._values_after_products(), self._values_before_products()
        for op in list(self.block.ops):
            if not isinstance(op, Collective) or op.IS_START or len(op.operands) != 1 or len(op.axes) != 1:
                continue
            if op.spec.traits == _GATHER and (self.everywhere or op.operands[0] in after_products):
                choices = [(user,) for user in self._ready_users(op) if self._may_gather(user, op)]
            elif op.spec.traits == _SCATTER and (self.everywhere or op.results[0] in before_products):
                summed = self._summed_products(op.operands[0])
                choices = [summed] if summed and all(self._may_scatter(summand, op) for summand in summed) else []
            else:
                continue
            if choices:
                yield op, choices
                if any(is_split(product) for chosen in choices for product in chosen):
                    self.number_of = {op: number for number, op in enumerate(self.block.ops)}

    def _values_after_products(self) -> set[SSAValue]:
        """Return the values that depend on a product."""
        values: set[SSAValue] = set()
        for op in self.block.ops:
            if op in self.products or not values.isdisjoint(op.operands):
                values.update(op.results)
        return values

    def _values_before_products(self) -> set[SSAValue]:
        """Return the values that a product depends on."""
        values: set[SSAValue] = set()
        for op in reversed(list(self.block.ops)):
            if op in self.products or not values.isdisjoint(op.results):
                values.update(op.operands)
        return values

    def _ready_users(self, gather: Collective) -> Iterator[AtenOp]:
        """Yield the products of the gathered value that may be moved before all its other users.

        All other operands of such a product are computed before the first user.
        """
        users = list(dict.fromkeys(use.operation for use in gather.results[0].uses))
        first_user = min([self.number_of[user] for user in users], default=0)
        for user in users:
            if isinstance(user, AtenOp) and user in self.splittable and not is_split(user):
                producers = [value.owner for value in user.operands]
                if all(isinstance(producer, Block) or self.number_of[producer] < first_user for producer in producers):
                    yield user

    def _summed_products(self, value: SSAValue) -> tuple[AtenOp, ...]:
        """Return the products whose sum is `value`, then the ops that add them; () if `value` is not such a sum.

        A single product counts as a sum. All values in between must have one user and the type of `value`.
        """
        op = value.owner
        if not isinstance(op, AtenOp) or is_split(op) or len(list(value.uses)) != 1 or len(op.results) != 1:
            return ()
        if op in self.splittable:
            return (op,)
        products: list[AtenOp] = []
        for operand in op.operands:
            products_of_operand = self._summed_products(operand) if operand.type == value.type else ()
            if not products_of_operand:
                return ()
            products += products_of_operand
        return (*products, op) if products else ()

    def _may_gather(self, product: AtenOp, gather: Collective) -> bool:
        """Return whether a product may gather its operand in the steps of a ring."""
        operands = [gather.operands[0] if value is gather.results[0] else value for value in product.operands]
        return self._is_typed(product, list(map(sharding_of, operands)), product.shardings[0], gather.axes[0])

    def _may_scatter(self, op: AtenOp, scatter: Collective) -> bool:
        """Return whether a product may scatter its result in the steps of a ring, or whether a sum may follow it."""
        if op in self.splittable:
            return self._is_typed(op, list(map(sharding_of, op.operands)), scatter.target, scatter.axes[0])
        return self._is_typed(op, [scatter.target] * len(op.operands), scatter.target)

    def _is_typed(
        self, op: AtenOp, operands: Sequence[Sharding | None], result: Sharding | None, axis: str | None = None
    ) -> bool:
        """Return whether `op` may have these shardings. If `axis` is given, the op must also be split along it."""
        rule = rule_of(op, self.rules)
        try:
            choice = match(rule, operands, [result], self.mesh, may_split=axis is not None)  # type: ignore
        except ShardingError:
            return False
        return axis is None or (axis in choice and choice[axis].rewrite == split_products.SPLIT)


def _split_gathered(gather: Collective, chosen: Sequence[AtenOp]) -> None:
    """Mark a product to be split into steps that gather its operand, and let it use the shard.

    The product moves before the first user of the gathered value. The gather moves after the product, and is erased if
    the product was its only user.
    """
    (product,), (value,), (gathered,) = chosen, gather.operands, gather.results
    users = {use.operation for use in gathered.uses}
    first_user: Operation = gather
    while first_user not in users:
        assert first_user.next_op is not None  # users of a value follow its producer
        first_user = first_user.next_op
    if product is not first_user:
        product.detach()
        Rewriter.insert_op(product, InsertPoint.before(first_user))
    gather.detach()
    Rewriter.insert_op(gather, InsertPoint.after(product))
    product.operands = [value if operand is gathered else operand for operand in product.operands]
    product.attributes[SPLIT] = UnitAttr()
    if not gathered.uses:
        Rewriter.erase_op(gather)


def _split_scattered(scatter: Collective, chosen: Sequence[AtenOp]) -> None:
    """Mark products to be split into steps that scatter their results, and erase the scatter.

    All ops of `chosen` get the sharding of the scatter's result. The last op replaces the scatter.
    """
    for op in chosen:
        # The products come first, and have no operands among the chosen ops. The ops that add them are not split.
        if all(operand.owner not in chosen for operand in op.operands):
            op.attributes[SPLIT] = UnitAttr()
        op.set_shardings(scatter.shardings)
    copy_name(chosen[-1].results[0], scatter.results[0])
    scatter.results[0].replace_all_uses_with(chosen[-1].results[0])
    Rewriter.erase_op(scatter)


_GATHER, _SCATTER = ("shard", "replicated"), ("partial", "shard")

_SPLITS: Mapping[tuple[str | None, str | None], Split] = {_GATHER: _split_gathered, _SCATTER: _split_scattered}
"""Traits of the axes of a collective → the function that splits products next to it."""
