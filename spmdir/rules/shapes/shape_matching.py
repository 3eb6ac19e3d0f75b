"""Shape matching: a rule's dimension patterns against the shapes of one call."""

from __future__ import annotations

import math
from collections.abc import Callable

from spmdir.core.placement.call import Call
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.binding import Binding
from spmdir.rules.language.expressions import evaluate, holds
from spmdir.rules.language.syntax_tree import Parameter, Pattern, Rule, Term
from spmdir.rules.shapes.call_reader import scope_of
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout import Layout
from spmdir.rules.shapes.layout_builder import LayoutBuilder
from spmdir.rules.shapes.maps import MAPS
from spmdir.rules.shapes.sliding_windows import size_outcomes, slide
from spmdir.rules.shapes.variadic_dims import add_variadic, check_dims, is_mapped, match_variadic, split_shape

Parts = int | tuple[int, ...]
"""How many results are in a list; or the size of each along the dimension that is taken apart."""


def fit(rule: Rule, call: Call, binding: Binding) -> Layout:
    """Return the factors of `call` and the dimensions that they make up in operands and results.

    Raises:
        RuleError: the shapes do not fit the patterns of `rule`.
    """
    return _matched(rule, call, binding, call.results).finished()


def infer_shapes(rule: Rule, call: Call, binding: Binding) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the results of `call`, whose own results are not looked at.

    Raises:
        RuleError: the operands do not fit, or a size in a result is in no operand and no argument.
    """
    layout = _matched(rule, call, binding, None)
    return tuple(
        tuple(math.prod(layout.sizes[f] or 0 for f in made_of) for made_of in dims or ()) for dims in layout.result_dims
    )


def _matched(rule: Rule, call: Call, binding: Binding, results: tuple[TensorMeta | None, ...] | None) -> LayoutBuilder:
    layout = LayoutBuilder(rule, call, binding, results, _extents(rule, call, binding))
    if rule.replicated is not None:
        _leave_open(layout, rule.replicated)
        return layout
    _match_patterns(layout, _listed(layout, call) if results is None else None)
    for clause in rule.of_kind("slides"):
        kernel, over, to = clause.groups
        slide(layout, kernel, over, to, holds(clause.condition, scope_of(call, binding, layout)))
    return layout


def _extents(rule: Rule, call: Call, binding: Binding) -> dict[str, int]:
    """Return the sizes that `extent` clauses give to factors that no operand has."""
    found = {}
    for clause in rule.of_kind("extent"):
        value = evaluate(clause.value, scope_of(call, binding, None)) if clause.value else None
        if isinstance(value, int):
            found[clause.names[0]] = max(value, 0)
    return found


def _listed(layout: LayoutBuilder, call: Call) -> Callable[[], Parts] | None:
    """Return what gives the parts in the list that is the result of `call`; None if its rule does not say."""
    values = [clause.value for clause in layout.rule.of_kind("lists") if clause.value]
    return (lambda: evaluate(values[0], scope_of(call, layout.binding, layout))) if values else None


def _match_patterns(layout: LayoutBuilder, listed: Callable[[], Parts] | None) -> None:
    operands = [(index, p) for p in layout.rule.tensors for index in layout.binding.operands(p.name)]
    add_variadic(layout, operands)
    _fit_operands(layout, operands)
    if layout.results is None:
        size_outcomes(layout)
    if listed is not None:
        parts = listed()
        sizes = (None,) * parts if isinstance(parts, int) else parts
        layout.result_dims += [_predict(layout, layout.result_pattern(0), size) for size in sizes]
    else:
        for index in range(len(layout.rule.results if layout.results is None else layout.results)):
            layout.result_dims.append(_result_dims(layout, index))
    _solve_groups(layout)


def _leave_open(layout: LayoutBuilder, reason: str) -> None:
    """Leave all dimensions without factors, so that none can be sharded."""
    if layout.results is None:
        layout.fail(f"its results cannot be inferred, for it only runs replicated: {reason}")
    layout.operand_dims = [((),) * meta.rank for meta in layout.operands]
    layout.result_dims = [None if meta is None else ((),) * meta.rank for meta in layout.results]


def _fit_operands(layout: LayoutBuilder, operands: list[tuple[int, Parameter]]) -> None:
    """Match the operands; those that maps compute come last, for they look at the others."""
    mapped = [(index, p) for index, p in operands if is_mapped(p.pattern)]
    for index, parameter in operands:
        if not is_mapped(parameter.pattern):
            shape, what = layout.operands[index].shape, f"operand '{parameter.name}'"
            layout.operand_dims[index] = _match(layout, parameter.pattern or (), shape, what, operand=True)
    _solve_groups(layout)
    for index, parameter in mapped:
        assert parameter.pattern
        layout.operand = index
        dims, shape = _map(layout, parameter.pattern[0]), layout.operands[index].shape
        dims = ((),) * (len(shape) - len(dims)) + dims[max(0, len(dims) - len(shape)) :]
        layout.operand_dims[index] = tuple(
            check_dims(layout, d, size, f"operand '{parameter.name}'", broadcast=True)
            for d, size in zip(dims, shape, strict=True)
        )
    layout.operand = None


def _result_dims(layout: LayoutBuilder, index: int) -> Dims | None:
    pattern, shape, what = layout.result_pattern(index), layout.result_shape(index), f"result {index}"
    if layout.results is not None and shape is None:
        return None
    if is_mapped(pattern):
        dims = _map(layout, pattern[0])
        if shape is None:
            return dims
        sizes = layout.same_rank(dims, shape)
        return tuple(check_dims(layout, d, size, what) for d, size in zip(dims, sizes, strict=True))
    return _predict(layout, pattern) if shape is None else _match(layout, pattern, shape, what, operand=False)


def _map(layout: LayoutBuilder, term: Term) -> Dims:
    dims = MAPS[term.names[0]].build(layout, *term.names[1:])
    if MAPS[term.names[0]].sized:
        layout.shape_arguments.append(term.names[-1])
    return dims


def _match(layout: LayoutBuilder, pattern: Pattern, shape: tuple[int, ...], what: str, operand: bool) -> Dims:
    dims: list[tuple[int, ...]] = []
    for term, sizes in split_shape(layout, pattern, shape, what):
        if term.kind == "variadic":
            dims += match_variadic(layout, term, sizes, what, operand)
        elif term.kind == "one":
            if sizes[0] != 1:
                layout.fail(f"{what} has a dimension of size {sizes[0]} where 1 is expected")
            dims.append(())
        elif term.kind == "factor":
            index = layout.named_factor(term.names[0])
            if layout.sizes[index] is None:
                layout.sizes[index] = sizes[0]
            if layout.sizes[index] != sizes[0]:
                layout.fail(f"{what} has {term.names[0]} = {sizes[0]}, but another operand has {layout.sizes[index]}")
            dims.append((index,))
        else:
            group = tuple(layout.named_factor(n) for n in term.names)
            layout.open_groups.append((group, sizes[0], what))
            dims.append(group)
    return tuple(dims)


def _predict(layout: LayoutBuilder, pattern: Pattern, part: int | None = None) -> Dims:
    """Return the dimensions of a result whose shape is still to be inferred; `part` is the size of its `*~dim`."""
    dims: list[tuple[int, ...]] = []
    for term in pattern:
        if term.kind == "variadic":
            base = layout.variadic.get(term.names[0])
            if base is None:
                layout.fail(f"the sizes of `{term}` cannot be inferred")
            chosen = layout.positions(term.argument, len(base)) if term.modifier else ()
            if term.modifier == "~" and part is None:
                layout.fail(f"the size of `{term}` cannot be inferred")
            if term.modifier == "~" and part is not None:
                separate = {p: layout.separate_factor(term.argument, p, part) for p in chosen}
                dims += [(separate.get(p, f),) for p, f in enumerate(base)]
                continue
            keep = bool(layout.argument("keepdim"))
            dims += [() if p in chosen else (f,) for p, f in enumerate(base) if p not in chosen or keep]
        else:
            dims.append(tuple(layout.named_factor(n) for n in term.names) if term.kind != "one" else ())
    for factor in (f for d in dims for f in d):
        if layout.sizes[factor] is None:
            layout.fail(f"the size of {layout.names[factor]} in the result cannot be inferred")
    return tuple(dims)


def _solve_groups(layout: LayoutBuilder) -> None:
    for group, size, what in layout.open_groups:
        unknown = [f for f in group if layout.sizes[f] is None]
        known = math.prod(layout.sizes[f] or 0 for f in group if layout.sizes[f] is not None)
        if len(unknown) > 1 or (unknown and (not known or size % known)) or (not unknown and known != size):
            names = " ".join(layout.names[f] for f in group)
            layout.fail(f"{what} has a dimension of size {size} that does not factor into ({names})")
        for factor in unknown:
            layout.sizes[factor] = size // known
    layout.open_groups = []
