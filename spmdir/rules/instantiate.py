"""Instantiate a rule on one call: match its patterns to the shapes, and evaluate the conditions of its clauses."""

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
from spmdir.rules.language.promotion import dtype_mismatch, result_dtype
from spmdir.rules.language.scope import Scope
from spmdir.rules.language.syntax_tree import Function, Rule, Statement, statements, walk
from spmdir.rules.op_rule import OpRule, Rules
from spmdir.rules.shapes.call_reader import scope_of
from spmdir.rules.shapes.factor import Factor
from spmdir.rules.shapes.layout import Layout
from spmdir.rules.shapes.shape_matching import fit, infer_shapes

FACTOR_CLAUSES = ("reduce", "same", "unsharded", "nonempty", "aligned", "expand", "local")
"""The kinds of clauses that set properties of the factors that they name."""


def choose_rule(alternatives: Iterable[Rule], call: Call) -> tuple[Rule, Binding] | None:
    """Return the first of `alternatives` whose `when` clauses hold for `call`, with its binding; None if there is none.

    A rule without `when` clauses always fits.

    Args:
        alternatives: the rules of the op, in order.

    Raises:
        RuleError: the call has arguments or operands that the op does not have.
    """
    for rule in alternatives:
        binding = bind(rule, call.slots, call.structure is None, call.argument)
        when = rule.of_kind("when")
        scope = scope_of(call, binding, None) if when else None
        if scope is None or all(clause.value is None or evaluate(clause.value, scope) for clause in when):
            return rule, binding
    return None


def instantiate(rule: Rule, call: Call, binding: Binding, rules: Rules) -> OpRule:
    """Return the instance of `rule` on `call`.

    Args:
        rules: the rules of the ops in its expansions.

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
    """Infer the types of the results of a call; `call.results` are ignored.

    Shapes follow from the patterns of the rule. The element type is that of the `as` of the rule, or the promoted type
    of the operands. If the table of torch's ops does not allow this type, it is the first type that the table allows.

    Raises:
        RuleError: the call does not fit the rule, or a size of a result follows from no operand and no argument.
    """
    type_signature, operands = signature(call.name, binding.arguments), _operands_by_name(call, binding)
    metas = []
    for index, shape in enumerate(infer_shapes(rule, call, binding)):
        declared = rule.results[0 if rule.result_list else index].dtype
        dtype = result_dtype(declared, binding, call.operands)
        dtypes = type_signature.expected(index, operands, binding.arguments) if type_signature else ()
        if dtypes and dtype not in dtypes:
            dtype = dtypes[0]
        metas.append(TensorMeta(shape, dtype))
    return tuple(metas)


def _operands_by_name(call: Call, binding: Binding) -> Named:
    """Return tensor parameter → the types of its operands."""
    return {name: tuple(call.operands[index] for index in binding.operands(name)) for name in binding.tensors}


def _check_dtypes(rule: Rule, call: Call, binding: Binding, layout: Layout) -> None:
    """Raise RuleError if torch would reject the operands' element types, or not return results of these types.

    The message contains the mismatch of shapes in `layout`, if there is one. The table of torch's ops is checked first.
    A result that the rule declares, or that the table does not cover, is then checked by declaration and promotion.
    """
    type_signature, operands = signature(call.name, binding.arguments), _operands_by_name(call, binding)
    try:
        if type_signature is not None:
            type_signature.check(operands, binding.arguments, [meta and meta.dtype for meta in call.results])
        for index, meta in enumerate(call.results):
            if meta is None:
                continue
            declared = rule.results[0 if rule.result_list else index].dtype
            if declared is None and type_signature is not None:
                is_checked_by_table = bool(type_signature.expected(index, operands, binding.arguments))
                if is_checked_by_table:
                    continue
            if required_dtype := dtype_mismatch(meta.dtype, declared, index, binding, call.operands):
                raise RuleError(f"result {index} has the element type {meta.dtype}; expected {required_dtype}")
    except RuleError as error:
        layout.fail(error.message)


def _factors(layout: Layout, rule: Rule, scope: Scope) -> tuple[Factor, ...]:
    """Return the factors of `layout` with the properties from active clauses; later clauses override earlier ones.

    For example, `sum k` gives factor k the kind "sum", and `local n` gives n the rewrite "local".

    The layout then excludes shardings that no clause can allow: of dimensions without a meaning on a rank, of windows
    that cannot slide over shards, and of dimensions that an argument separates and no clause names.
    """
    # For each factor, name of an attribute of `Factor` → its value.
    properties: list[dict[str, Any]] = [{} for _ in layout.sizes]
    for clause_index, clause in enumerate(rule.clauses):
        if clause.kind not in FACTOR_CLAUSES or not holds(clause.condition, scope):
            continue
        named_factors = [factor for name in clause.names for factor in layout.refer(name)]
        for factor in named_factors:
            factor_properties = properties[factor]
            if clause.kind == "nonempty":
                factor_properties["least"] = 1
            elif clause.kind == "aligned":
                factor_properties["aligned"] = True
            elif clause.kind in ("expand", "local"):
                factor_properties["rewrite"] = clause.kind
                factor_properties["clauses"] = (*factor_properties.get("clauses", ()), clause_index)
                is_local = clause.kind == "local"
                if is_local and any(_needs_single_dim(statement, layout) for statement in statements(clause.body)):
                    factor_properties["alone"] = (*factor_properties.get("alone", ()), clause_index)
            else:
                factor_properties["kind"] = clause.reductions[0] if clause.reductions else clause.kind
    for factor in layout.unsharded:
        if properties[factor].get("rewrite") != "local":
            properties[factor] = {"kind": "unsharded"}
    for factor, window in layout.windows.items():
        if window is not None:
            properties[factor]["least"] = window.least
        else:
            properties[factor].update({"kind": "unsharded", "rewrite": None, "clauses": ()})
    for factor in layout.separate_factors:
        if "rewrite" not in properties[factor]:
            properties[factor].setdefault("kind", "unsharded")
    return tuple(
        Factor(name, size, **factor_properties)
        for name, size, factor_properties in zip(layout.names, layout.sizes, properties, strict=True)
    )


def _needs_single_dim(statement: Statement, layout: Layout) -> bool:
    """Return whether a function of one dimension has an argument that names several dimensions."""
    for value in statement.values:
        for expression in walk(value):
            if not isinstance(expression, Function) or expression.name not in SINGLE:
                continue
            if any(len(layout.refer(name)) > 1 for name in expression.arguments):
                return True
    return False
