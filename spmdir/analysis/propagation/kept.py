"""Values that are used as they lie: which axes are kept, and how views and casts hand that on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.analysis.sub_axes import annotated_splits, user_shardings, wanted_splits
from spmdir.analysis.type_check import plugins_of, rule_of, sharded_factors
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.rules import OpRule, RuleSet, Strategy


class KeptValues:
    """The kept arguments of a function, and the views and casts of them.

    Where a view separates a dimension, its result may be sharded along parts of a kept axis: `tp: S(0)` of 8 rows over
    4 ranks, viewed as 2 x 4, is `tp(1)2: S(0), tp(2)2: S(1)`.

    Attributes:
        shardings: value → the sharding that ops must take it in, open along axes that are not kept.
    """

    def __init__(self, function: FuncOp, mesh: Mesh, rules: RuleSet):
        self.shardings: dict[SSAValue, Sharding] = {}
        self._mesh, self._rules, self._whole = mesh, rules, frozenset[str]()
        for argument in function.args:
            self._add(argument, _kept_argument(argument, mesh))
        if self.shardings:
            annotated = user_shardings(function)
            self._whole = frozenset(mesh.root_axis(axis) for s in annotated for axis, p in s.entries if not p.splits)
            with contextlib.suppress(ShardingError):  # propagate reports annotations that contradict each other
                self._mesh = annotated_splits(annotated, mesh)
            for op in function.body.block.ops:
                if isinstance(op, AtenOp):
                    self._add(op.results[0], self._kept_result(op))

    def can_reshape(self, value: SSAValue, shape: Sequence[int]) -> bool:
        """Return whether a reshape of a value to `shape` can take it as it is kept; True if the value is not kept."""
        meta = meta_of(value.type)
        if value not in self.shardings or meta is None:
            return True
        rule = self._rules.instantiate(self._rules.infer_call("aten.reshape", (meta,), {"shape": tuple(shape)}))
        return rule is not None and self._through(rule, self.shardings[value]) is not None

    def _add(self, value: SSAValue, sharding: Sharding | None) -> None:
        if sharding is not None:
            self.shardings[value] = sharding

    def _kept_result(self, op: AtenOp) -> Sharding | None:
        """Return how the result of a view or a cast of a kept value is kept; None of others and of annotated ones.

        A view or cast is what takes one tensor and gives one with as many elements.
        """
        if len(op.tensors) != 1 or len(op.results) != 1 or op.tensors[0] not in self.shardings or any(op.shardings):
            return None
        taken, made = meta_of(op.tensors[0].type), meta_of(op.results[0].type)
        if taken is None or made is None or taken.numel != made.numel:
            return None
        rule = rule_of(op, self._rules)
        return self._through(rule, self.shardings[op.tensors[0]]) if rule is not None else None

    def _through(self, rule: OpRule, kept: Sharding) -> Sharding | None:
        """Return how an op of one operand places its result if it takes its operand as it is kept.

        None if no strategy of its rule takes the operand so, along whole axes or along parts of them. Axes that are
        split stay split for other ops, as a program has one mesh.
        """
        placed = [(axis, placement) for axis, placement in kept.entries if placement.trait != "open"]
        axes = dict.fromkeys(self._mesh.root_axis(axis) for axis, _ in placed)
        split = wanted_splits({(rule, axis): 1.0 for axis in axes if axis not in self._whole}, self._mesh)
        for fine in dict.fromkeys((self._mesh, split)):
            choice = _taking(rule, Sharding(placed, kept.mesh).refined(fine), fine)
            if choice is not None:
                self._mesh = fine
                return _kept([(axis, strategy.results[0]) for axis, strategy in choice.items()], fine)
        return None


def _kept_argument(argument: Any, mesh: Mesh) -> Sharding | None:
    """Return how an argument is to be used: as it is annotated along the axes of `spmd.keep`, open along others."""
    said = function_attrs(argument.owner.parent_op(), "arg_attrs", argument.index).get("spmd.keep")
    sharding = sharding_of(argument)
    if not isinstance(said, StringAttr) or sharding is None:
        return None
    axes = {axis.strip() for axis in said.data.split(",")}
    return _kept([(axis, placement) for axis, placement in sharding.entries if axis in axes], mesh)


def _taking(rule: OpRule, operand: Sharding, mesh: Mesh) -> dict[str, Strategy] | None:
    """Return axis → the only strategy that takes the operand so, beside those of the axes before it.

    None if an axis has none, or several that place the result differently.
    """
    choice: dict[str, Strategy] = {}
    for axis, placement in operand.entries:
        listed = rule.strategies(mesh.sizes[axis], sharded_factors(choice, mesh), plugins_of([operand]))
        fitting = [strategy for strategy in listed if strategy.operands[0] == placement]
        if len({strategy.results[0] for strategy in fitting}) != 1:
            return None
        choice[axis] = fitting[0]
    return choice


def _kept(placed: Sequence[tuple[str, Placement]], mesh: Mesh) -> Sharding | None:
    """Return the sharding of a kept value that is placed so, open along all other axes; None if none shards it."""
    sharded = [(axis, placement) for axis, placement in placed if placement.trait == "shard"]
    sharding = Sharding(sharded).merged(mesh)
    fine = mesh.refine([axis for axis, _ in sharding.entries])
    named = {part for axis, _ in sharding.entries for part in fine.parts(axis)}
    others = [(axis, parse_placement("?")) for axis in fine.axis_names if axis not in named]
    return Sharding([*sharding.entries, *others]) if sharded else None
