"""Find the kept values: arguments with `spmd.keep`, which ops use without a reshard, and views and casts of these."""

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

    If a view separates a dimension, its result may be sharded along sub-axes of a kept axis. For example, 8 rows with
    `tp: S(0)` over 4 ranks, viewed as 2 x 4, have `tp(1)2: S(0), tp(2)2: S(1)`.

    Attributes:
        shardings: value → the sharding that ops must use, open along axes that are not kept.
    """

    def __init__(self, function: FuncOp, mesh: Mesh, rules: RuleSet):
        self.shardings: dict[SSAValue, Sharding] = {}
        self._mesh, self._rules, self._unsplittable_axes = mesh, rules, frozenset[str]()
        for argument in function.args:
            self._add(argument, _kept_argument(argument, mesh))
        if self.shardings:
            annotated = user_shardings(function)
            entries = [entry for sharding in annotated for entry in sharding.entries]
            self._unsplittable_axes = frozenset(
                mesh.root_axis(axis) for axis, placement in entries if not placement.splits
            )
            with contextlib.suppress(ShardingError):  # propagate reports annotations that contradict each other
                self._mesh = annotated_splits(annotated, mesh)
            for op in function.body.block.ops:
                if isinstance(op, AtenOp):
                    self._add(op.results[0], self._kept_result(op))

    def can_reshape(self, value: SSAValue, shape: Sequence[int]) -> bool:
        """Return whether a reshape of a value to `shape` preserves its kept sharding; True if the value is not kept.

        The order of queries matters. A reshape may be possible only if a mesh axis is split into sub-axes. A query with
        this result commits the split, and later queries use the split mesh.
        """
        meta = meta_of(value.type)
        if value not in self.shardings or meta is None:
            return True
        rule = self._rules.instantiate(self._rules.infer_call("aten.reshape", (meta,), {"shape": tuple(shape)}))
        return rule is not None and self._result_sharding(rule, self.shardings[value]) is not None

    def _add(self, value: SSAValue, sharding: Sharding | None) -> None:
        """Record the kept sharding of a value; nothing if it is None."""
        if sharding is not None:
            self.shardings[value] = sharding

    def _kept_result(self, op: AtenOp) -> Sharding | None:
        """Return the kept sharding of the result of a view or cast of a kept value; None for other ops.

        A view or cast has one tensor operand, and a result with as many elements and without an annotation.
        """
        if len(op.tensors) != 1 or len(op.results) != 1 or op.tensors[0] not in self.shardings or any(op.shardings):
            return None
        operand, result = meta_of(op.tensors[0].type), meta_of(op.results[0].type)
        if operand is None or result is None or operand.numel != result.numel:
            return None
        rule = rule_of(op, self._rules)
        return self._result_sharding(rule, self.shardings[op.tensors[0]]) if rule is not None else None

    def _result_sharding(self, rule: OpRule, operand_sharding: Sharding) -> Sharding | None:
        """Return the sharding of the result of an op with one operand, if the operand has its kept sharding.

        None if no strategies of its rule accept this sharding, along whole axes or along sub-axes. Axes that are split
        stay split for later ops, because a program has one mesh.
        """
        placements = [(axis, placement) for axis, placement in operand_sharding.entries if placement.trait != "open"]
        axes = dict.fromkeys(self._mesh.root_axis(axis) for axis, _ in placements)
        split = wanted_splits({(rule, axis): 1.0 for axis in axes if axis not in self._unsplittable_axes}, self._mesh)
        for fine in dict.fromkeys((self._mesh, split)):
            choice = _strategies_for(rule, Sharding(placements, operand_sharding.mesh).refined(fine), fine)
            if choice is not None:
                self._mesh = fine
                return _kept_sharding([(axis, strategy.results[0]) for axis, strategy in choice.items()], fine)
        return None


def _kept_argument(argument: Any, mesh: Mesh) -> Sharding | None:
    """Return the kept sharding of an argument: its annotation along the axes of `spmd.keep`, open along other axes.

    None if it has no `spmd.keep` or no annotation, or if no kept axis shards it.
    """
    kept_axes = function_attrs(argument.owner.parent_op(), "arg_attrs", argument.index).get("spmd.keep")
    sharding = sharding_of(argument)
    if not isinstance(kept_axes, StringAttr) or sharding is None:
        return None
    axes = {axis.strip() for axis in kept_axes.data.split(",")}
    return _kept_sharding([(axis, placement) for axis, placement in sharding.entries if axis in axes], mesh)


def _strategies_for(rule: OpRule, operand: Sharding, mesh: Mesh) -> dict[str, Strategy] | None:
    """Return axis → the strategy that accepts the operand's sharding, given the strategies of earlier axes.

    None if an axis has no such strategy, or several with different placements of the result.
    """
    choice: dict[str, Strategy] = {}
    for axis, placement in operand.entries:
        strategies = rule.strategies(mesh.sizes[axis], sharded_factors(choice, mesh), plugins_of([operand]))
        fitting = [strategy for strategy in strategies if strategy.operands[0] == placement]
        if len({strategy.results[0] for strategy in fitting}) != 1:
            return None
        choice[axis] = fitting[0]
    return choice


def _kept_sharding(placements: Sequence[tuple[str, Placement]], mesh: Mesh) -> Sharding | None:
    """Return the sharding with those of `placements` that shard, open along all other axes; None if none shards.

    Args:
        placements: (axis, placement) pairs.
    """
    shard_entries = [(axis, placement) for axis, placement in placements if placement.trait == "shard"]
    if not shard_entries:
        return None
    sharding = Sharding(shard_entries).merged(mesh)
    fine = mesh.refine([axis for axis, _ in sharding.entries])
    kept_axes = {part for axis, _ in sharding.entries for part in fine.parts(axis)}
    open_entries = [(axis, parse_placement("?")) for axis in fine.axis_names if axis not in kept_axes]
    return Sharding([*sharding.entries, *open_entries])
