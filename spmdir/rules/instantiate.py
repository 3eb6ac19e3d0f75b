"""A rule on one call: its patterns matched to the shapes, its clauses to the arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spmdir.core.call import Call, Literal
from spmdir.core.tensor import TensorMeta
from spmdir.rules.language.binding import Binding, bind
from spmdir.rules.language.expressions import evaluate, holds
from spmdir.rules.language.functions import SINGLE
from spmdir.rules.language.promotion import expected_dtype, result_dtype
from spmdir.rules.language.scope import Scope
from spmdir.rules.language.syntax_tree import Function, Rule, Statement, statements, walk
from spmdir.rules.op_rule import OpRule, Rules
from spmdir.rules.shapes.call_reader import scope_of
from spmdir.rules.shapes.factor import Factor
from spmdir.rules.shapes.layout import Layout
from spmdir.rules.shapes.shape_matching import fit, infer_shapes

FACTOR_CLAUSES = ("reduce", "same", "unsharded", "nonempty", "aligned", "expand", "local")


def instantiate(rule: Rule, call: Call, rules: Rules) -> OpRule:
    """Return `rule` on `call`, whose expansions go by `rules`.

    Raises:
        RuleError: the operands, arguments or results of the call do not fit the rule.
    """
    binding = bind(rule, call.slots, call.structure is None, call.argument)
    layout = fit(rule, call, binding)
    _check_dtypes(rule, call, binding, layout)
    scope = scope_of(call, binding, layout)
    sized = [name for clause in rule.of_kind("sizes") for name in clause.names]
    shape_arguments = tuple(dict.fromkeys([*layout.shape_arguments, *sized]))
    return OpRule(rule, call, binding, layout, scope, _factors(layout, rule, scope), shape_arguments, rules)


def infer(
    rule: Rule,
    operands: tuple[TensorMeta, ...],
    arguments: Mapping[str, Literal],
    structure: tuple[int | tuple[int, ...], ...] | None = None,
) -> tuple[TensorMeta, ...]:
    """Return the types of the results of a call: shapes from the rule's patterns, element types by its `as`, else
    by promotion.

    Raises:
        RuleError: the call does not fit the rule, or a size in a result is in no operand and no argument.
    """
    call = Call(rule.op, operands, tuple(sorted(arguments.items())), (), structure)
    binding = bind(rule, call.slots, call.structure is None, call.argument)
    return tuple(
        TensorMeta(shape, result_dtype(rule.results[0 if rule.result_list else index].dtype, binding, operands))
        for index, shape in enumerate(infer_shapes(rule, call, binding))
    )


def applies(rule: Rule, call: Call) -> bool:
    """Return whether the `when` clauses of `rule` hold for `call`."""
    binding = bind(rule, call.slots, call.structure is None, call.argument)
    scope = scope_of(call, binding, None)
    return all(clause.value is None or evaluate(clause.value, scope) for clause in rule.of_kind("when"))


def _check_dtypes(rule: Rule, call: Call, binding: Binding, layout: Layout) -> None:
    for index, meta in enumerate(call.results):
        declared = rule.results[0 if rule.result_list else index].dtype
        if meta is not None and (expected := expected_dtype(meta.dtype, declared, index, binding, call.operands)):
            layout.fail(f"result {index} has the element type {meta.dtype}; expected {expected}")


def _factors(layout: Layout, rule: Rule, scope: Scope) -> tuple[Factor, ...]:
    """Return the factors of `layout` with what the clauses that hold say of them; later clauses count."""
    said: list[dict[str, Any]] = [{} for _ in layout.sizes]
    for number, clause in enumerate(rule.clauses):
        if clause.kind not in FACTOR_CLAUSES or not holds(clause.condition, scope):
            continue
        for factor in (f for name in clause.names for f in layout.refer(name)):
            if clause.kind == "nonempty":
                said[factor]["least"] = 1
            elif clause.kind == "aligned":
                said[factor]["aligned"] = True
            elif clause.kind in ("expand", "local"):
                alone = clause.kind == "local" and any(_speaks_of_one(s, layout) for s in statements(clause.body))
                former = said[factor]
                former.update(rewrite=clause.kind, clauses=(*former.get("clauses", ()), number))
                former.update(alone=(*former.get("alone", ()), *([number] if alone else [])))
            else:
                said[factor]["kind"] = clause.reductions[0] if clause.reductions else clause.kind
    for factor in layout.unsharded:
        said[factor] = {"kind": "unsharded"} if said[factor].get("rewrite") != "local" else said[factor]
    for factor, window in layout.windows.items():
        said[factor].update(
            {"least": window.least} if window else {"kind": "unsharded", "rewrite": None, "clauses": ()}
        )
    for factor in layout.separate_factors:
        if "rewrite" not in said[factor]:
            said[factor].setdefault("kind", "unsharded")
    return tuple(
        Factor(name, size, **entry) for name, size, entry in zip(layout.names, layout.sizes, said, strict=True)
    )


def _speaks_of_one(statement: Statement, layout: Layout) -> bool:
    """Return whether a name of several dimensions stands where only one of them can be meant."""
    functions = (e for value in statement.values for e in walk(value) if isinstance(e, Function) and e.name in SINGLE)
    return any(len(layout.refer(name)) > 1 for function in functions for name in function.arguments)
