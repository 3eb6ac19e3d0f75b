"""print-rules: add the rule of each op to the op as an attribute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from spmdir.analysis.type_check import plugins_of, rule_of
from spmdir.core.placement.base import Placement
from spmdir.core.placement.standard import plugins
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.context import IRContext
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.rules import OpRule, Strategy
from spmdir.rules.strategies.obstacle import Dropped


@dataclass(frozen=True)
class PrintRulesPass(FunctionPass):
    """Adds `spmd.rule` to each op: its rule with the factors of this call and their sizes.

    It also adds `spmd.strategies`: the strategies of the op, and why others are excluded.
    """

    name = "print-rules"
    takes_layers: ClassVar[bool] = True

    needs_numbers: ClassVar = False

    strategies: Literal["plug-ins", "all", "none"] = "plug-ins"
    """The placements whose strategies are listed: the plug-ins that the function names, all, or none."""

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Add the attributes to the torch ops of `function`. An op without a rule gets a note that it is replicated.

        Strategies depend on the number of ranks, so axes with equally many ranks share a line.
        """
        placements = _plugin_placements(function) if self.strategies != "none" else ()
        axes_of_count: dict[int, list[str]] = {}  # number of ranks → the axes with so many ranks
        if placements or self.strategies == "all":
            for axis, count in ir.mesh(module).axes:
                axes_of_count.setdefault(count, []).append(axis)
        for op in function.body.block.ops:
            if not isinstance(op, AtenOp):
                continue
            rule = rule_of(op, ctx.rules)
            op.attributes["spmd.rule"] = StringAttr(rule.text() if rule else "none: replicated only")
            if rule is None:
                continue
            texts: list[str] = []
            for count, axes in axes_of_count.items():
                texts += self._strategy_texts(rule, count, axes, placements)
            if texts:
                op.attributes["spmd.strategies"] = ArrayAttr(map(StringAttr, texts))

    def _strategy_texts(
        self, rule: OpRule, count: int, axes: Sequence[str], placements: tuple[Placement, ...]
    ) -> Iterator[str]:
        """Yield the text of each listed strategy on `axes`, which have `count` ranks each."""
        for strategy in rule.considered(count, placements=placements):
            if self.strategies == "all" or _uses_plugins(strategy):
                yield f"{', '.join(axes)}: {strategy}"


def _plugin_placements(function: FuncOp) -> tuple[Placement, ...]:
    """Return the plug-in placements that a function names."""
    attributes = [function_attrs(function, "arg_attrs", index) for index in range(len(function.args))]
    result_count = len(function.function_type.outputs)
    attributes += [function_attrs(function, "res_attrs", index) for index in range(result_count)]
    shardings = [entries["spmd.sharding"].data for entries in attributes if "spmd.sharding" in entries]
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    op_shardings = [sharding for op in ops for sharding in op.shardings]
    return plugins_of((*shardings, *op_shardings))


def _uses_plugins(strategy: Strategy | Dropped) -> bool:
    """Return whether a strategy, or a missing one, is written as text or has a plug-in placement."""
    if isinstance(strategy, Strategy):
        return bool(strategy.text or plugins((*strategy.operands, *strategy.results)))
    return strategy.placement is None or bool(plugins([strategy.placement]))
