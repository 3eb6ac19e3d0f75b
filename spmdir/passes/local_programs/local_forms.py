"""What the first op of a local form notes of the op that the form stands for, so that the form can be checked.

    %0 = aten.sub.Scalar(%ids) {…} : … attributes {spmd.form = {op = "aten.embedding", …}}

`operands` and `results` are the global types, `held` and `made` their shardings, `arguments` and `structure` those of
the op. `places` says how many ops the form has, and which operand and which result of which of these is each operand
and each result of the op: `[5, 0]` is the first one of the sixth; `none` is an operand that the form does not read,
or a result that is absent. Nothing here is believed: localize must make the same form and note of the op again.
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
    """What a local form is the form of.

    Attributes:
        op: the name of the op.
        operands, results: the global types.
        held, made: the shardings of these.
        properties: those of the op besides: its arguments and its structure.
        count: how many ops the form has.
        read, given: for every operand and every result, where it stands in the form.
    """

    op: str
    operands: tuple[Attribute, ...]
    results: tuple[Attribute, ...]
    held: tuple[Sharding | None, ...]
    made: tuple[Sharding | None, ...]
    properties: dict[str, Attribute]
    count: int
    read: tuple[Place, ...]
    given: tuple[Place, ...]


def note(op: ValueOp, call: Call, form: Expansion) -> DictionaryAttr:
    """Return the note of `op`, which is `call` on global tensors, and which `form` replaces."""
    read = {value: (n, i) for n, piece in reversed([*enumerate(form.ops)]) for i, value in enumerate(piece.operands)}
    given = tuple(value and (value.index, value.result) for value in form.results)
    places = (
        ("operands", tuple(read.get(Value("operand", index)) for index in range(len(op.operands)))),
        ("ops", len(form.ops)),
        ("results", given),
    )
    entries: dict[str, Attribute] = {
        "op": StringAttr(op.name),
        "operands": ArrayAttr(map(type_of, call.operands)),
        "held": shardings_attr(tuple(map(sharding_of, op.operands))),
        "results": ArrayAttr(map(type_of, call.results)),
        "made": shardings_attr(op.shardings),
        "places": ArgumentsAttr(places),
    }
    return DictionaryAttr(entries | {name: op.properties[name] for name in _KEPT if name in op.properties})


_KEPT = {"arguments": ArgumentsAttr, "structure": StructureAttr}


def noted(op: Operation) -> Note | None:
    """The note that `op` bears; None if it begins no local form.

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
    given: dict[str, Any] = dict(attribute.data)
    places: dict[str, Any] = dict(given["places"].data)
    kinds = {"op": StringAttr, "operands": ArrayAttr, "held": ShardingsAttr, "results": ArrayAttr,
             "made": ShardingsAttr, "places": ArgumentsAttr, **_KEPT}  # fmt: skip
    for name, value in given.items():
        if not isinstance(value, kinds[name]):
            raise ValueError(f"'{name}' is {value}")
    if type(places["ops"]) is not int:
        raise ValueError(f"'ops' is {places['ops']!r}")
    found = Note(
        given["op"].data, given["operands"].data, given["results"].data, given["held"].data, given["made"].data,
        {name: given[name] for name in _KEPT if name in given},
        places["ops"], _places(places["operands"]), _places(places["results"]),
    )  # fmt: skip
    if not len(found.operands) == len(found.held) == len(found.read):
        raise ValueError("operands, their shardings and their places differ in number")
    if not len(found.results) == len(found.made) == len(found.given):
        raise ValueError("results, their shardings and their places differ in number")
    return found


def _places(value: Any) -> tuple[Place, ...]:
    for entry in value:
        if entry is not None and not (len(entry) == 2 and all(type(n) is int and n >= 0 for n in entry)):
            raise ValueError(f"{entry} is no place")
    return value


def at(ops: Sequence[Operation], place: Place, values: str) -> SSAValue | None:
    """The operand or result (`values` is "operands" or "results") at `place` of the form that `ops` are.

    Raises:
        ShardingError: there is none.
    """
    if place is None:
        return None
    if place[0] >= len(ops) or place[1] >= len(getattr(ops[place[0]], values)):
        raise ShardingError(f"{NOTE} names {values[:-1]} {place[1]} of op {place[0]}; the form has none there")
    return getattr(ops[place[0]], values)[place[1]]
