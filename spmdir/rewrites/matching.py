"""Matches of the left side of a rewrite: which ops of the program have its form, and what its variables stand for."""

from __future__ import annotations

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
    """One way in which a left side matches.

    Attributes:
        ops: the ops that it covers, outermost first.
        value: what x stands for, where there is no f.
        function: the op that f stands for.
        operands: what x stands for in each operand of f; None for those not of the form.
    """

    bindings: Bindings
    ops: tuple[ValueOp, ...]
    value: SSAValue | None = None
    function: ValueOp | None = None
    operands: tuple[SSAValue | None, ...] = ()


def matches(term: Term, op: Operation) -> Iterator[Match]:
    """Return every way in which `op` and the ops that make its operands have the form of `term`."""
    return _match_op(term, op, {}, ())


def _match_op(term: Term, op: Operation, bindings: Bindings, ops: tuple[ValueOp, ...]) -> Iterator[Match]:
    if isinstance(term, Collective) and op.name == term.op_name and len(op.operands) == 1:
        assert isinstance(op, ValueOp)
        for bound in _bind(term, op, bindings):
            yield from _match_value(term.operand, op.operands[0], bound, (*ops, op))
    elif isinstance(term, Function) and isinstance(op, AtenOp) and _is_local_function(term.operand, op):
        yield from _match_operands(term.operand, op, bindings, (*ops, op))


def _is_local_function(form: Term, op: AtenOp) -> bool:
    """Return whether `op` has an operand that may be of `form`, has one result, and all about it is decided."""
    if not any(_may_match(form, value) for value in op.operands):  # which is rare, and cheap to ask
        return False
    values = (*op.operands, *op.results)
    decided = all(meta_of(value.type) is not None and sharding_of(value) is not None for value in values)
    return len(op.results) == 1 and op.needs is None and decided


def _may_match(term: Term, value: SSAValue) -> bool:
    return not isinstance(term, Collective) or getattr(value.owner, "name", None) == term.op_name


def _match_value(term: Term, value: SSAValue, bindings: Bindings, ops: tuple[ValueOp, ...]) -> Iterator[Match]:
    if isinstance(term, Value):
        yield Match(bindings, ops, value)
    elif isinstance(value.owner, Operation):
        yield from _match_op(term, value.owner, bindings, ops)


def _match_operands(form: Term, op: ValueOp, bindings: Bindings, ops: tuple[ValueOp, ...]) -> Iterator[Match]:
    """Return the matches of `f(form, ...)`: one for each binding of axes and reductions that some operand gives."""
    own = form.dims if isinstance(form, Collective) else set()
    forms = [list(_match_value(form, operand, bindings, ())) for operand in op.operands]
    shared: list[Bindings] = []
    for found in (found for several in forms for found in several):
        common = {name: value for name, value in found.bindings.items() if name not in own}
        if common not in shared:
            shared.append(common)
    for common in shared:
        chosen = [next((f for f in several if common.items() <= f.bindings.items()), None) for several in forms]
        inner = dict.fromkeys(inner for found in chosen if found for inner in found.ops)
        yield Match(common, (*ops, *inner), None, op, tuple(found and found.value for found in chosen))


def _bind(term: Collective, op: ValueOp, bindings: Bindings) -> Iterator[Bindings]:
    argument = op.argument
    if {name for name, value in argument.items() if value is True} != term.flags or STREAM.argument in argument:
        return
    bound = dict(bindings)
    for name, variable in term.variables:
        if name not in argument or bound.setdefault(variable, argument[name]) != argument[name]:
            return  # a reduction may be omitted where the placement implies it
    if not isinstance(op, CollectiveOp) or not term.axes:
        yield bound
        return
    axes: Any = argument["axes"]
    # Rewrites name a dimension, by which S is meant.
    if not all(side[axis].splits for side in (op.source, op.target) if side for axis in axes):
        return
    yield from _bind_axes(term.axes, axes, not op.spec.orders_axes, bound)


def _bind_axes(
    pattern: tuple[tuple[str, bool], ...], axes: tuple[str, ...], unordered: bool, bindings: Bindings
) -> Iterator[Bindings]:
    """Return every way to read `axes` as the lists of `pattern`, one after the other."""
    if not pattern:
        if not axes:
            yield bindings
        return
    (name, optional), rest = pattern[0], pattern[1:]
    if name not in bindings:
        for length in range(0 if optional else 1, len(axes) + 1):
            yield from _bind_axes(rest, axes[length:], unordered, {**bindings, name: axes[:length]})
        return
    known = bindings[name]
    if unordered and set(known) <= set(axes):
        yield from _bind_axes(rest, tuple(axis for axis in axes if axis not in known), unordered, bindings)
    elif axes[: len(known)] == known:
        yield from _bind_axes(rest, axes[len(known) :], unordered, bindings)
