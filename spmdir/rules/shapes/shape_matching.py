"""Match the dimension patterns of a rule to the shapes of one call."""

from __future__ import annotations

import math
from collections.abc import Callable

from spmdir.core.placement.call import Call
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.binding import Binding
from spmdir.rules.language.expressions import evaluate, holds
from spmdir.rules.language.syntax_tree import Parameter, Pattern, Rule, Term
from spmdir.rules.shapes.call_reader import scope_of
from spmdir.rules.shapes.dimension_maps import MAPS
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.layout import Layout
from spmdir.rules.shapes.layout_builder import LayoutBuilder
from spmdir.rules.shapes.sliding_windows import size_outcomes, slide
from spmdir.rules.shapes.variadic_dims import add_variadic, check_dims, is_mapped, match_variadic, split_shape

Parts = int | tuple[int, ...]
"""The number of results in a list, or the size of each along the dimension that is split."""


def fit(rule: Rule, call: Call, binding: Binding) -> Layout:
    """Return the layout of `call`: the factors of each dimension of its operands and results.

    Raises:
        RuleError: the shapes do not fit the patterns of `rule`.
    """
    return _match_shapes(rule, call, binding, call.results).finish()


def infer_shapes(rule: Rule, call: Call, binding: Binding) -> tuple[tuple[int, ...], ...]:
    """Infer the shapes of the results of `call`; `call.results` are ignored.

    Raises:
        RuleError: the operands do not fit, or a size of a result follows from no operand and no argument.
    """
    layout = _match_shapes(rule, call, binding, None)
    return tuple(
        tuple(math.prod(layout.sizes[factor] or 0 for factor in factors) for factors in dims or ())
        for dims in layout.result_dims
    )


def _match_shapes(
    rule: Rule, call: Call, binding: Binding, results: tuple[TensorMeta | None, ...] | None
) -> LayoutBuilder:
    """Match the patterns of `rule` to the shapes of `call`.

    Args:
        results: the types of the results; None if they are to be inferred.
    """
    layout = LayoutBuilder(rule, call, binding, results, _extents(rule, call, binding))
    if rule.replicated is not None:
        _leave_without_factors(layout, rule.replicated)
        return layout
    _match_patterns(layout, _list_parts(layout, call) if results is None else None)
    for clause in rule.of_kind("slides"):
        kernel, over, to = clause.groups
        slide(layout, kernel, over, to, holds(clause.condition, scope_of(call, binding, layout)))
    return layout


def _extents(rule: Rule, call: Call, binding: Binding) -> dict[str, int]:
    """Return name of a factor that no operand has → its size, from the `extent` clauses."""
    sizes = {}
    for clause in rule.of_kind("extent"):
        value = evaluate(clause.value, scope_of(call, binding, None)) if clause.value else None
        if isinstance(value, int):
            sizes[clause.names[0]] = max(value, 0)
    return sizes


def _list_parts(layout: LayoutBuilder, call: Call) -> Callable[[], Parts] | None:
    """Return a function that evaluates the `lists` clause to the parts of the results; None without such a clause.

    The clause may refer to sizes of factors, which are known only after the operands are matched.
    """
    values = [clause.value for clause in layout.rule.of_kind("lists") if clause.value]
    return (lambda: evaluate(values[0], scope_of(call, layout.binding, layout))) if values else None


def _match_patterns(layout: LayoutBuilder, list_parts: Callable[[], Parts] | None) -> None:
    """Match the operands, then the results, because the sizes of inferred results follow from operands.

    Args:
        list_parts: returns the parts of the resulting list; None if the results are not an inferred list.
    """
    operands = [
        (index, parameter) for parameter in layout.rule.tensors for index in layout.binding.operands(parameter.name)
    ]
    add_variadic(layout, operands)
    _fit_operands(layout, operands)
    if layout.results is None:
        size_outcomes(layout)
    if list_parts is not None:
        parts = list_parts()
        sizes = (None,) * parts if isinstance(parts, int) else parts
        layout.result_dims += [_predict(layout, layout.result_pattern(0), size) for size in sizes]
    else:
        for index in range(len(layout.rule.results if layout.results is None else layout.results)):
            layout.result_dims.append(_result_dims(layout, index))
    _solve_groups(layout)


def _leave_without_factors(layout: LayoutBuilder, reason: str) -> None:
    """Give the dimensions no factors, so no dimension can be sharded."""
    if layout.results is None:
        layout.fail(
            f"the rule replicates the op, so it does not give the shapes of the results: {reason}; expected "
            "result types in the call: write them"
        )
    layout.operand_dims = [((),) * meta.rank for meta in layout.operands]
    layout.result_dims = [None if meta is None else ((),) * meta.rank for meta in layout.results]


def _fit_operands(layout: LayoutBuilder, operands: list[tuple[int, Parameter]]) -> None:
    """Match the operands. Those with a dimension map come last, because maps read the dimensions of the others."""
    for index, parameter in operands:
        if not is_mapped(parameter.pattern):
            shape, description = layout.operands[index].shape, f"operand '{parameter.name}'"
            layout.operand_dims[index] = _match(layout, parameter.pattern or (), shape, description, operand=True)
    _solve_groups(layout)
    for index, parameter in operands:
        if not is_mapped(parameter.pattern):
            continue
        assert parameter.pattern
        layout.operand = index
        mapped_dims, shape = _dims_of_map(layout, parameter.pattern[0]), layout.operands[index].shape
        # As in broadcasting, the last dimensions correspond.
        missing_count = len(shape) - len(mapped_dims)
        aligned_dims = ((),) * missing_count + mapped_dims[max(0, -missing_count) :]
        layout.operand_dims[index] = tuple(
            check_dims(layout, factors, size, f"operand '{parameter.name}'", broadcast=True)
            for factors, size in zip(aligned_dims, shape, strict=True)
        )
    layout.operand = None


def _result_dims(layout: LayoutBuilder, index: int) -> Dims | None:
    """Return the dimensions of result `index`, matched to its shape or inferred; None if the result is absent."""
    pattern, shape, description = layout.result_pattern(index), layout.result_shape(index), f"result {index}"
    if layout.results is not None and shape is None:
        return None
    if is_mapped(pattern):
        dims = _dims_of_map(layout, pattern[0])
        if shape is None:
            return dims
        sizes = layout.same_rank(dims, shape)
        return tuple(check_dims(layout, factors, size, description) for factors, size in zip(dims, sizes, strict=True))
    return _predict(layout, pattern) if shape is None else _match(layout, pattern, shape, description, operand=False)


def _dims_of_map(layout: LayoutBuilder, term: Term) -> Dims:
    """Return the dimensions that the dimension map in `term` computes.

    The last name of a sized map is an argument with sizes of the global shape. It is recorded in `shape_arguments`,
    because a rank passes the sizes of its shard instead.
    """
    dims = MAPS[term.names[0]].build(layout, *term.names[1:])
    if MAPS[term.names[0]].sized:
        layout.shape_arguments.append(term.names[-1])
    return dims


def _match(layout: LayoutBuilder, pattern: Pattern, shape: tuple[int, ...], description: str, operand: bool) -> Dims:
    """Match `pattern` to `shape`, and return the factors of each dimension.

    Args:
        description: the name of the tensor, for errors.
        operand: whether the tensor is an operand, whose dimensions of size 1 broadcast.
    """
    dims: list[tuple[int, ...]] = []
    for term, sizes in split_shape(layout, pattern, shape, description):
        if term.kind == "variadic":
            dims += match_variadic(layout, term, sizes, description, operand)
        elif term.kind == "one":
            if sizes[0] != 1:
                layout.fail(
                    f"{description} has a dimension of size {sizes[0]} where the rule has 1; expected size 1: "
                    "correct its type"
                )
            dims.append(())
        elif term.kind == "factor":
            (name,) = term.names
            factor = layout.named_factor(name)
            if layout.sizes[factor] is None:
                layout.sizes[factor] = sizes[0]
            if layout.sizes[factor] != sizes[0]:
                expected = f"expected {layout.sizes[factor]}, because all dimensions {name} have one size"
                layout.fail(f"{description} has {name} = {sizes[0]}; {expected}")
            dims.append((factor,))
        else:
            group = tuple(map(layout.named_factor, term.names))
            layout.open_groups.append((group, sizes[0], description))
            dims.append(group)
    return tuple(dims)


def _predict(layout: LayoutBuilder, pattern: Pattern, part: int | None = None) -> Dims:
    """Infer the dimensions of a result with `pattern` from the factors of the operands.

    Args:
        part: the size of the dimension `*~dim` of this result; None if the results are not a list of different sizes.
    """
    dims: list[tuple[int, ...]] = []
    for term in pattern:
        if term.kind == "variadic":
            dims += _predict_variadic(layout, term, part)
        else:
            dims.append(tuple(map(layout.named_factor, term.names)) if term.kind != "one" else ())
    for factor in [factor for factors in dims for factor in factors]:
        if layout.sizes[factor] is None:
            layout.fail(
                f"the size of {layout.names[factor]} in the result does not follow from the operands; expected each "
                "factor of a result in an operand or an argument: add it to a pattern"
            )
    return tuple(dims)


def _predict_variadic(layout: LayoutBuilder, term: Term, part: int | None) -> list[tuple[int, ...]]:
    """Infer the dimensions of a result that variadic `term` stands for; see `_predict`.

    `*b` has all variadic factors. `*-dim` lacks the reduced ones, or has size 1 there if `keepdim` is true. `*~dim` has
    a separate factor of size `part` there.
    """
    factors = layout.variadic.get(term.names[0])
    if factors is None:
        layout.fail(
            f"the sizes of `{term}` in the result do not follow from the operands; expected `*{term.names[0]}` in an "
            "operand: add it to a pattern"
        )
    if term.modifier == "~" and part is None:
        layout.fail(
            f"the size of `{term}` in the result does not follow from the operands; expected `{term}` in an operand: "
            "add it to a pattern"
        )
    modified_positions = layout.positions(term.argument, len(factors)) if term.modifier else ()
    if term.modifier == "~" and part is not None:
        separate_factors = {
            position: layout.separate_factor(term.argument, position, part) for position in modified_positions
        }
        return [(separate_factors.get(position, factor),) for position, factor in enumerate(factors)]
    keeps_dims = bool(layout.argument("keepdim"))
    dims: list[tuple[int, ...]] = []
    for position, factor in enumerate(factors):
        if position not in modified_positions:
            dims.append((factor,))
        elif keeps_dims:
            dims.append(())
    return dims


def _solve_groups(layout: LayoutBuilder) -> None:
    """Compute the unknown size of one factor in each open group such as `(h g)`, and close the groups.

    A dimension of 12 elements with the known factor h = 4 gives g = 3.

    Raises:
        RuleError: several sizes of a group are unknown, or the known sizes do not fit the dimension.
    """
    for group, size, description in layout.open_groups:
        unknown_factors = [factor for factor in group if layout.sizes[factor] is None]
        known_sizes = [factor_size for factor in group if (factor_size := layout.sizes[factor]) is not None]
        product = math.prod(known_sizes)
        if unknown_factors:
            is_solvable = len(unknown_factors) == 1 and product > 0 and size % product == 0
        else:
            is_solvable = product == size
        if not is_solvable:
            names = " ".join(layout.names[factor] for factor in group)
            layout.fail(
                f"{description} has a dimension of size {size}; expected a product of the sizes of the "
                f"factors ({names}): correct its type"
            )
        for factor in unknown_factors:
            layout.sizes[factor] = size // product
    layout.open_groups = []
