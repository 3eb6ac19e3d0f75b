"""Which values of two programs are the same: what the same op makes of the same values, whatever their names.

This compares two programs, not the layers of one: an op is matched by its operands, in the order of the text.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import FORMS, unresharded
from spmdir.dialects.value_op import DECIDED, ValueOp


def made_values(function: FuncOp) -> Iterator[SSAValue]:
    """Yield arguments, and what ops make that is no form of another value."""
    yield from function.args
    for op in _making(function):
        yield from op.results


def names_in(before: FuncOp, after: FuncOp) -> dict[SSAValue, str]:
    """Return value of `after` → its name in `before`, or a new one.

    Arguments are the same by name; of several equal ops, those whose results have one name. What no op of `before`
    makes of the same values is the same by name too.
    """
    names = {text_name(value): value for value in made_values(before)}
    known: dict[Hashable, dict[str, ValueOp]] = {}
    for op in _making(before):
        known.setdefault(_look(op, {}), {})[text_name(op.results[0])] = op
    same: dict[SSAValue, SSAValue] = {
        value: names[text_name(value)] for value in after.args if text_name(value) in names
    }
    taken: set[ValueOp] = set()
    for op in _making(after):
        name, alike = text_name(op.results[0]), known.get(_look(op, same), {})
        found = alike.pop(name, None) or (alike.pop(next(iter(alike))) if alike else _named(op, names.get(name)))
        if found is not None and found not in taken:
            taken.add(found)
            same.update(zip(op.results, found.results, strict=False))
    return {value: _name(value, same, names) for value in made_values(after)}


def _making(function: FuncOp) -> Iterator[ValueOp]:
    return (
        op for op in function.body.block.ops if isinstance(op, ValueOp) and op.results and not isinstance(op, FORMS)
    )


def _look(op: ValueOp, same: Mapping[SSAValue, SSAValue]) -> Hashable:
    """Return what equal ops have in common; operands are those that they are the same as."""
    said = frozenset((key, value) for key, value in op.properties.items() if key not in DECIDED)
    operands = [unresharded(operand) for operand in op.operands]
    return op.name, said, tuple(same.get(operand, operand) for operand in operands)


def _named(op: ValueOp, value: SSAValue | None) -> ValueOp | None:
    """Return the op that makes a value of this name, if it is of the same kind."""
    owner = value.owner if value is not None else None
    return owner if isinstance(owner, ValueOp) and owner.name == op.name else None


def _name(value: SSAValue, same: Mapping[SSAValue, SSAValue], names: Mapping[str, SSAValue]) -> str:
    if value in same:
        return text_name(same[value])
    return f"{text_name(value)} (after)" if text_name(value) in names else text_name(value)
