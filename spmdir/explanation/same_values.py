"""Match the values of two programs: equal ops with matched operands have matched results, whatever their names.

For example, `%a = mm(%x, %w); %b = relu(%a)` and `%c = mm(%x, %w); %d = relu(%c)` match as %c → %a and %d → %b.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import FORMS, unresharded
from spmdir.dialects.value_op import DECIDED, ValueOp


def program_values(function: FuncOp) -> Iterator[SSAValue]:
    """Yield the arguments, and the results of all ops except reshards, constraints, collectives and waits."""
    yield from function.args
    for op in _producers(function):
        yield from op.results


def match_names(before: FuncOp, after: FuncOp) -> dict[SSAValue, str]:
    """Return value of `after` → the name of its match in `before`, or a new name if it has none.

    Arguments match by name. An op matches an equal op with matched operands; of several, the one whose result has the
    same name. If there is none, it matches an op of the same kind whose result has the same name.
    """
    values_before = {text_name(value): value for value in program_values(before)}
    producers_before: dict[Hashable, dict[str, ValueOp]] = {}
    for op in _producers(before):
        producers_before.setdefault(_op_key(op, {}), {})[text_name(op.results[0])] = op
    match_of: dict[SSAValue, SSAValue] = {}
    for argument in after.args:
        if text_name(argument) in values_before:
            match_of[argument] = values_before[text_name(argument)]
    matched: set[ValueOp] = set()
    for op in _producers(after):
        name, candidates = text_name(op.results[0]), producers_before.get(_op_key(op, match_of), {})
        if candidates:
            match = candidates.pop(name if name in candidates else next(iter(candidates)))
        else:
            match = _producer_of_kind(op, values_before.get(name))
        if match is not None and match not in matched:
            matched.add(match)
            match_of.update(zip(op.results, match.results, strict=False))
    return {value: _matched_name(value, match_of, values_before) for value in program_values(after)}


def _producers(function: FuncOp) -> Iterator[ValueOp]:
    """Yield the ops with results, except reshards, constraints, collectives and waits."""
    for op in function.body.block.ops:
        if isinstance(op, ValueOp) and op.results and not isinstance(op, FORMS):
            yield op


def _op_key(op: ValueOp, match_of: Mapping[SSAValue, SSAValue]) -> Hashable:
    """Return a key that equal ops with matched operands share."""
    properties = frozenset((key, value) for key, value in op.properties.items() if key not in DECIDED)
    operands = [unresharded(operand) for operand in op.operands]
    return op.name, properties, tuple(match_of.get(operand, operand) for operand in operands)


def _producer_of_kind(op: ValueOp, value: SSAValue | None) -> ValueOp | None:
    """Return the producer of `value` if it is the same kind of op as `op`."""
    owner = value.owner if value is not None else None
    return owner if isinstance(owner, ValueOp) and owner.name == op.name else None


def _matched_name(value: SSAValue, match_of: Mapping[SSAValue, SSAValue], values_before: Mapping[str, SSAValue]) -> str:
    """Return the name of the match of a value, else its own; `%a (after)` if another value before has this name."""
    if value in match_of:
        return text_name(match_of[value])
    return f"{text_name(value)} (after)" if text_name(value) in values_before else text_name(value)
