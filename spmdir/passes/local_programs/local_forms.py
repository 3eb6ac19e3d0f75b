"""The note that the first op of a local form has of the op that the form replaces, so that it can be checked.

    %0 = aten.sub.Scalar(%ids) {…} : … attributes {spmd.form = {op = "aten.embedding", …}}

`operands` and `results` are the global types, `needs` and `made` their shardings, `arguments` and `structure` those of
the op. `places` says how many ops the form has, and which operand and which result of which of these is each operand
and each result of the op: `[5, 0]` is the first one of the sixth; `none` is an operand that the form does not read,
or a result that is absent. The note is not trusted: localize must make the same form and note of the op again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue

from spmdir.core.call import Call
from spmdir.core.errors import ShardingError
from spmdir.core.sharding import Sharding
from spmdir.dialects.attributes import ArgumentsAttr, ShardingsAttr, StructureAttr, shardings_attr, type_of
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.rules.local.expansion import Expansion, Value

NOTE = "spmd.form"
"""The attribute of the first op of a local form."""

Place = tuple[int, int] | None
"""(Which op of the form, which of its operands or results)."""


@attrs.frozen
class Note:
    """The op that a local form replaces.

    Attributes:
        op: the name of the op.
        operands, results: the global types.
        needs, made: the shardings of these.
        properties: the other properties of the op: its arguments and its structure.
        count: how many ops the form has.
        operand_places, result_places: for every operand and every result, its place in the form.
    """

    op: str
    operands: tuple[Attribute, ...]
    results: tuple[Attribute, ...]
    needs: tuple[Sharding | None, ...]
    made: tuple[Sharding | None, ...]
    properties: dict[str, Attribute]
    count: int
    operand_places: tuple[Place, ...]
    result_places: tuple[Place, ...]


def note(op: ValueOp, call: Call, form: Expansion) -> DictionaryAttr:
    """Return the note of `op`, which is `call` on global tensors, and which `form` replaces."""
    read = {value: (n, i) for n, op_ in reversed([*enumerate(form.ops)]) for i, value in enumerate(op_.operands)}
    results = tuple(value and (value.index, value.result) for value in form.results)
    places = (
        ("operands", tuple(read.get(Value("operand", index)) for index in range(len(op.operands)))),
        ("ops", len(form.ops)),
        ("results", results),
    )
    entries: dict[str, Attribute] = {
        "op": StringAttr(op.name),
        "operands": ArrayAttr(map(type_of, call.operands)),
        "needs": shardings_attr(tuple(map(sharding_of, op.operands))),
        "results": ArrayAttr(map(type_of, call.results)),
        "made": shardings_attr(op.shardings),
        "places": ArgumentsAttr(places),
    }
    return DictionaryAttr(entries | {name: op.properties[name] for name in _KEPT if name in op.properties})


_KEPT = {"arguments": ArgumentsAttr, "structure": StructureAttr}


def noted(op: Operation) -> Note | None:
    """Return the note on `op`; None if it begins no local form.

    Raises:
        ShardingError: it is malformed.
    """
    attribute = op.attributes.get(NOTE)
    if attribute is None:
        return None
    try:
        return _read(attribute)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ShardingError(f"{NOTE} is malformed ({error}); expected it as localize writes it") from None


def _read(attribute: Any) -> Note:
    entries: dict[str, Any] = dict(attribute.data)
    places: dict[str, Any] = dict(entries["places"].data)
    kinds = {"op": StringAttr, "operands": ArrayAttr, "needs": ShardingsAttr, "results": ArrayAttr,
             "made": ShardingsAttr, "places": ArgumentsAttr, **_KEPT}  # fmt: skip
    for name, value in entries.items():
        if not isinstance(value, kinds[name]):
            raise ValueError(f"'{name}' is {value}")
    if type(places["ops"]) is not int:
        raise ValueError(f"'ops' is {places['ops']!r}")
    found = Note(
        entries["op"].data, entries["operands"].data, entries["results"].data,
        entries["needs"].data, entries["made"].data,
        {name: entries[name] for name in _KEPT if name in entries},
        places["ops"], _places(places["operands"]), _places(places["results"]),
    )  # fmt: skip
    if not len(found.operands) == len(found.needs) == len(found.operand_places):
        raise ValueError("operands, their shardings and their places differ in number")
    if not len(found.results) == len(found.made) == len(found.result_places):
        raise ValueError("results, their shardings and their places differ in number")
    return found


def _places(value: Any) -> tuple[Place, ...]:
    for entry in value:
        if entry is not None and not (len(entry) == 2 and all(type(n) is int and n >= 0 for n in entry)):
            raise ValueError(f"{entry} is not a place")
    return value


def at(ops: Sequence[Operation], place: Place, values: str) -> SSAValue | None:
    """Return the operand or result (`values` is "operands" or "results") at `place` in the form `ops`.

    Raises:
        ShardingError: there is none.
    """
    if place is None:
        return None
    if place[0] >= len(ops) or place[1] >= len(getattr(ops[place[0]], values)):
        raise ShardingError(f"{NOTE} names {values[:-1]} {place[1]} of op {place[0]}; the form has none there")
    return getattr(ops[place[0]], values)[place[1]]
