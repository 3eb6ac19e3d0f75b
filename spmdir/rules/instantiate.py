"""A rule on one call: its patterns matched to the shapes, its clauses to the arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spmdir.core.errors import RuleError
from spmdir.core.placement.call import Call
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.element_types import Named, signature
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


def chosen(alternatives: Iterable[Rule], call: Call) -> tuple[Rule, Binding] | None:
    """Return the first of some rules of an op whose `when` clauses hold for `call`, and its parameters filled by it.

    Raises:
        RuleError: the call has arguments or operands that the op does not take.
    """
    for rule in alternatives:
        binding = bind(rule, call.slots, call.structure is None, call.argument)
        when = rule.of_kind("when")
        scope = scope_of(call, binding, None) if when else None
        if scope is None or all(clause.value is None or evaluate(clause.value, scope) for clause in when):
            return rule, binding
    return None


def instantiate(rule: Rule, call: Call, binding: Binding, rules: Rules) -> OpRule:
    """Return `rule` on `call`, whose expansions go by `rules`.

    Raises:
        RuleError: the operands, arguments or results of the call do not fit the rule.
    """
    layout = fit(rule, call, binding)
    _check_dtypes(rule, call, binding, layout)
    scope = scope_of(call, binding, layout)
    sized = [name for clause in rule.of_kind("sizes") for name in clause.names]
    shape_arguments = tuple(dict.fromkeys([*layout.shape_arguments, *sized]))
    return OpRule(rule, call, binding, layout, scope, _factors(layout, rule, scope), shape_arguments, rules)


def infer(rule: Rule, call: Call, binding: Binding) -> tuple[TensorMeta, ...]:
    """Return the types of the results of `call`, whose own results are not looked at: shapes from the rule's patterns,
    element types by its `as`, else by the table of torch's ops, else by promotion.

    Raises:
        RuleError: the call does not fit the rule, or a size in a result is in no operand and no argument.
    """
    known, operands = signature(call.name, binding.arguments), _named(call, binding)
    metas = []
    for index, shape in enumerate(infer_shapes(rule, call, binding)):
        declared = rule.results[0 if rule.result_list else index].dtype
        dtype = result_dtype(declared, binding, call.operands)
        listed = known.expected(index, operands, binding.arguments) if known else ()
        metas.append(TensorMeta(shape, listed[0] if listed and dtype not in listed else dtype))
    return tuple(metas)


def _named(call: Call, binding: Binding) -> Named:
    return {name: tuple(call.operands[i] for i in binding.operands(name)) for name in binding.tensors}


def _check_dtypes(rule: Rule, call: Call, binding: Binding, layout: Layout) -> None:
    """Raise RuleError unless torch gives results of these element types for operands of these.

    The table of torch's ops counts, and what the rule declares. Of what neither says promotion does.
    """
    known, operands = signature(call.name, binding.arguments), _named(call, binding)
    try:
        if known is not None:
            known.check(operands, binding.arguments, [meta and meta.dtype for meta in call.results])
        for index, meta in enumerate(call.results):
            declared = rule.results[0 if rule.result_list else index].dtype
            if meta is None or (declared is None and known and known.expected(index, operands, binding.arguments)):
                continue
            if expected := expected_dtype(meta.dtype, declared, index, binding, call.operands):
                raise RuleError(f"result {index} has the element type {meta.dtype}; expected {expected}")
    except RuleError as error:
        layout.fail(error.message)


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
