"""Matches of the left side of a rewrite: ops of the program that have its form, and the bindings of its variables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from xdsl.ir import Operation, SSAValue

from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import Collective as CollectiveOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.reshard.clause import STREAM
from spmdir.rewrites.terms import Collective, Function, Term, Value

Bindings = Mapping[str, Any]
"""Variable → axes (upper case), dimension or reduction (lower case)."""


@attrs.frozen
class Match:
    """One match of a left side.

    Attributes:
        bindings: the values of its variables.
        ops: the matched ops, outermost first.
        value: the value of x, in a left side without f.
        function: the op of f.
        operands: the value of x in each operand of f; None for operands that do not match.
    """

    bindings: Bindings
    ops: tuple[ValueOp, ...]
    value: SSAValue | None = None
    function: ValueOp | None = None
    operands: tuple[SSAValue | None, ...] = ()


def find_matches(term: Term, op: Operation) -> Iterator[Match]:
    """Yield all matches of `term` at `op` and the producers of its operands."""
    return _match_op(term, op, {}, ())


def _match_op(term: Term, op: Operation, bindings: Bindings, ops: tuple[ValueOp, ...]) -> Iterator[Match]:
    """Yield the matches of `term` at `op` that extend `bindings` and the matched `ops` outside of it."""
    if isinstance(term, Collective) and op.name == term.op_name and len(op.operands) == 1:
        assert isinstance(op, ValueOp)
        for bound in _bind(term, op, bindings):
            yield from _match_value(term.operand, op.operands[0], bound, (*ops, op))
    elif isinstance(term, Function) and isinstance(op, AtenOp) and _is_local_function(term.operand, op):
        yield from _match_operands(term.operand, op, bindings, (*ops, op))


def _is_local_function(form: Term, op: AtenOp) -> bool:
    """Return whether `op` may match `f(form, ...)`: it has an operand that may match `form`, and one result.

    All its values must have shardings, and operands must have the shardings that the op needs.
    """
    if not any(_may_match(form, value) for value in op.operands):  # rejects most ops, and is cheap
        return False
    values = (*op.operands, *op.results)
    decided = all(meta_of(value.type) is not None and sharding_of(value) is not None for value in values)
    return len(op.results) == 1 and op.needs is None and decided


def _may_match(term: Term, value: SSAValue) -> bool:
    """Return whether the producer of a value has the name of the outermost op of `term`, if that has one."""
    return not isinstance(term, Collective) or getattr(value.owner, "name", None) == term.op_name


def _match_value(term: Term, value: SSAValue, bindings: Bindings, ops: tuple[ValueOp, ...]) -> Iterator[Match]:
    """Yield the matches of `term` at the producer of a value; at the value itself if the term is `x`."""
    if isinstance(term, Value):
        yield Match(bindings, ops, value)
    elif isinstance(value.owner, Operation):
        yield from _match_op(term, value.owner, bindings, ops)


def _match_operands(form: Term, op: ValueOp, bindings: Bindings, ops: tuple[ValueOp, ...]) -> Iterator[Match]:
    """Yield the matches of `f(form, ...)`: one for each binding of axes and reductions from an operand.

    For `f(all_gather(x, axes), …)` and an op with two gathered operands, one along dp and one along tp, there are two
    matches: axes = dp with the first operand, and axes = tp with the second. The dimension may differ between operands,
    so it is not part of the binding.
    """
    dim_variables = form.dims if isinstance(form, Collective) else set()
    matches_of_operands = [list(_match_value(form, operand, bindings, ())) for operand in op.operands]
    distinct_bindings: list[Bindings] = []
    for match in itertools.chain.from_iterable(matches_of_operands):
        binding = {name: value for name, value in match.bindings.items() if name not in dim_variables}
        if binding not in distinct_bindings:
            distinct_bindings.append(binding)
    for binding in distinct_bindings:
        operand_matches = [
            next((match for match in matches if binding.items() <= match.bindings.items()), None)
            for matches in matches_of_operands
        ]
        inner_ops = dict.fromkeys(inner_op for match in operand_matches if match for inner_op in match.ops)
        values = tuple(match and match.value for match in operand_matches)
        yield Match(binding, (*ops, *inner_ops), None, op, values)


def _bind(term: Collective, op: ValueOp, bindings: Bindings) -> Iterator[Bindings]:
    """Yield the extensions of `bindings` with which the arguments of `op` are those of `term`.

    There are none if the flags differ, if the op has a named stream, or if an axis has a placement that does not split.
    """
    argument = op.argument
    op_flags = {name for name, value in argument.items() if value is True}
    if op_flags != term.flags or STREAM.argument in argument:
        return
    bound = dict(bindings)
    for name, variable in term.variables:
        if name not in argument or bound.setdefault(variable, argument[name]) != argument[name]:
            return  # a reduction may be omitted if the placement implies it
    if not isinstance(op, CollectiveOp) or not term.axes:
        yield bound
        return
    axes: Any = argument["axes"]
    # A dimension in a rewrite means the placement S.
    if not all(side[axis].splits for side in (op.source, op.target) if side for axis in axes):
        return
    yield from _bind_axes(term.axes, axes, not op.spec.orders_axes, bound)


def _bind_axes(
    pattern: tuple[tuple[str, bool], ...], axes: tuple[str, ...], unordered: bool, bindings: Bindings
) -> Iterator[Bindings]:
    """Yield all bindings with which the concatenated lists of `pattern` equal `axes`.

    For example, the pattern `A, B?` matches [dp, tp] as A = [dp], B = [tp] and as A = [dp, tp], B = [].

    Args:
        pattern: (variable, whether it may bind no axes) for each list.
        unordered: whether the order of `axes` has no meaning. Then a bound list may be anywhere in `axes`.
    """
    if not pattern:
        if not axes:
            yield bindings
        return
    (name, optional), later_lists = pattern[0], pattern[1:]
    if name not in bindings:
        for length in range(0 if optional else 1, len(axes) + 1):
            yield from _bind_axes(later_lists, axes[length:], unordered, {**bindings, name: axes[:length]})
        return
    bound_axes = bindings[name]
    if unordered and set(bound_axes) <= set(axes):
        yield from _bind_axes(later_lists, tuple(axis for axis in axes if axis not in bound_axes), unordered, bindings)
    elif axes[: len(bound_axes)] == bound_axes:
        yield from _bind_axes(later_lists, axes[len(bound_axes) :], unordered, bindings)
