"""A rule on one call: its patterns fitted to the shapes, its clauses to the arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spmdir.core.call import Call, Literal, TensorMeta
from spmdir.rules.language.binding import Binding, bind
from spmdir.rules.language.expressions import evaluate, holds
from spmdir.rules.language.functions import SINGLE
from spmdir.rules.language.promotion import refused_dtype, result_dtype
from spmdir.rules.language.scope import Scope
from spmdir.rules.language.syntax_tree import Function, Rule, Statement, walk
from spmdir.rules.op_rule import OpRule
from spmdir.rules.shapes.layout import Layout
from spmdir.rules.shapes.sliding_windows import slide
from spmdir.rules.strategies.divisibility import Factor

if TYPE_CHECKING:
    from spmdir.rules.rule_set import RuleSet

FACTOR_CLAUSES = ("reduce", "same", "unsharded", "nonempty", "aligned", "expand", "local")


def instantiate(rule: Rule, call: Call, rules: RuleSet) -> OpRule:
    """`rule` on `call`.

    Raises:
        RuleError: the operands, arguments or results of the call do not fit the rule.
    """
    binding, layout, scope = _lay_out(rule, call, call.results)
    for index, meta in enumerate(call.results):
        declared = rule.results[0 if rule.result_list else index].dtype
        if meta is not None and (expected := refused_dtype(meta.dtype, declared, index, binding, call.operands)):
            layout.fail(f"result {index} has the element type {meta.dtype}; expected {expected}")
    factors = _kinds(layout, rule, scope)
    sized = [name for clause in rule.of_kind("sizes") for name in clause.names]
    return OpRule(
        rule, call, binding, factors, tuple(layout.operand_dims), tuple(layout.result_dims),
        tuple(dict.fromkeys([*layout.sized, *sized])), scope, rules, layout,
    )  # fmt: skip


def infer(
    rule: Rule,
    operands: tuple[TensorMeta, ...],
    arguments: Mapping[str, Literal],
    structure: tuple[int | tuple[int, ...], ...] | None = None,
) -> tuple[TensorMeta, ...]:
    """The results of a call: shapes from the rule's patterns, element types by its `as`, else by promotion.

    Raises:
        RuleError: the call does not fit the rule, or a size in a result is in no operand and no argument.
    """
    call = Call(rule.op, operands, tuple(sorted(arguments.items())), (), structure)
    binding, layout, _ = _lay_out(rule, call, None)
    metas = []
    for index, dims in enumerate(layout.result_dims):
        shape = tuple(math.prod(layout.sizes[f] or 0 for f in d) for d in dims or ())
        metas.append(TensorMeta(shape, result_dtype(rule.results[index].dtype, binding, operands)))
    return tuple(metas)


def fits(rule: Rule, call: Call) -> bool:
    """Whether the `when` clauses of `rule` hold for `call`."""
    binding = bind(rule, call.slots, call.structure is None, call.argument)
    scope = _scope([], call, binding)
    return all(clause.value is None or evaluate(clause.value, scope) for clause in rule.of_kind("when"))


def _lay_out(rule: Rule, call: Call, results: tuple[TensorMeta | None, ...] | None) -> tuple[Binding, Layout, Scope]:
    binding = bind(rule, call.slots, call.structure is None, call.argument)
    cell: list[Layout] = []
    scope = _scope(cell, call, binding)
    extents = {}
    for clause in rule.of_kind("extent"):
        value = evaluate(clause.value, scope) if clause.value else None
        if isinstance(value, int):
            extents[clause.names[0]] = max(value, 0)
    layout = Layout(rule, binding, call.operands, results, extents)
    cell.append(layout)
    for clause in rule.of_kind("slides"):
        kernel, over, to = clause.groups
        slide(layout, kernel, over, to, holds(clause.condition, scope))
    return binding, layout, scope


def _scope(layout_of: list[Layout], call: Call, binding: Binding) -> Scope:
    def factors(reference: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
        layout = layout_of[0]
        return tuple((layout.sizes[f] or 0, ()) for f in layout.refer(reference))

    def dims(tensor: str, references: tuple[str, ...]) -> tuple[int, ...]:
        layout = layout_of[0]
        chosen = {f for reference in references for f in layout.refer(reference)}
        return tuple(d for d, made_of in enumerate(layout.dims(tensor)) if chosen & set(made_of))

    return Scope(binding, call.operands, call.results, factors, dims)


def _kinds(layout: Layout, rule: Rule, scope: Scope) -> tuple[Factor, ...]:
    """The factors of `layout` with what the clauses that hold say of them."""
    said: list[dict[str, object]] = [{} for _ in layout.sizes]
    for number, clause in enumerate(rule.clauses):
        if clause.kind not in FACTOR_CLAUSES or not holds(clause.condition, scope):
            continue
        for factor in (f for name in clause.names for f in layout.refer(name)):
            if clause.kind == "nonempty":
                said[factor]["least"] = 1
            elif clause.kind == "aligned":
                said[factor]["aligned"] = True
            elif clause.kind in ("expand", "local"):
                alone = clause.kind == "local" and any(_speaks_of_one(s, layout) for s in clause.body)
                said[factor].update(rewrite=clause.kind, clause=number, alone=alone)
            else:
                said[factor]["kind"] = clause.reductions[0] if clause.reductions else clause.kind
    for factor in layout.whole:
        said[factor] = {"kind": "unsharded"} if said[factor].get("rewrite") != "local" else said[factor]
    for factor, window in layout.windows.items():
        said[factor].update({"least": window.least} if window else {"kind": "unsharded", "rewrite": None})
    for factor in layout.apart:
        if "rewrite" not in said[factor]:
            said[factor].setdefault("kind", "unsharded")
    if any(size is None for size in layout.sizes):
        layout.fail(f"the size of {layout.names[layout.sizes.index(None)]} is not determined by the operands")
    return tuple(
        Factor(name, size or 0, **entry)  # type: ignore[arg-type]
        for name, size, entry in zip(layout.names, layout.sizes, said, strict=True)
    )


def _speaks_of_one(statement: Statement, layout: Layout) -> bool:
    """Whether a name of several dimensions stands where only one of them can be meant."""
    functions = (e for value in statement.values for e in walk(value) if isinstance(e, Function) and e.name in SINGLE)
    return any(len(layout.refer(name)) > 1 for function in functions for name in function.arguments)
