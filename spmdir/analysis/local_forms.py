"""The note that the first op of a local form or of an expansion has of the op that these replace.

    %0 = aten.sub.Scalar(%ids) {…} : … attributes {spmd.form = {op = "aten.embedding", …}}

`operands` and `results` are the global types, `needs` and `made` their shardings, `arguments` and `structure` those of
the op. `places` says how many ops the form has, and which operand and which result of which of these is each operand
and each result of the op: `[5, 0]` is the first one of the sixth; `none` is an operand that the form does not read,
or a result that is absent. By the note of a local form it is checked, without trusting the note: localize must make the
same form and note of the op again. By that of an expansion reports price it as the one op that propagate decided on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Operation, SSAValue

from spmdir.core.errors import ShardingError
from spmdir.core.placement.call import Call
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.attributes import ArgumentsAttr, ShardingsAttr, StructureAttr, shardings_attr, type_of
from spmdir.dialects.value_op import ValueOp
from spmdir.rules.local.expansion import Expansion, Value

NOTE = "spmd.form"
"""The attribute of the first op of a local form."""

EXPANSION = "spmd.expansion"
"""The attribute of the first op of an expansion."""

SPLIT = "spmd.split"
"""The attribute of a matrix product that is split into the steps of a ring, as its shardings say."""

Place = tuple[int, int] | None
"""(Which op of the form, which of its operands or results)."""


@attrs.frozen
class Places:
    """Where the operands and results of an op are in what replaces it.

    Attributes:
        operands: for every operand, its place.
        count: how many ops replace it.
        results: for every result, its place.
    """

    operands: tuple[Place, ...]
    count: int
    results: tuple[Place, ...]


@attrs.frozen
class Note:
    """The op that several ops replace.

    Attributes:
        op: the name of the op.
        operands, results: the global types.
        needs, made: the shardings of these.
        properties: the other properties of the op: its arguments and its structure.
        attributes: the mark of a product that is split.
        places: of the operands and results.
    """

    op: str
    operands: tuple[Attribute, ...]
    results: tuple[Attribute, ...]
    needs: tuple[Sharding | None, ...]
    made: tuple[Sharding | None, ...]
    properties: dict[str, Attribute]
    attributes: dict[str, Attribute]
    places: Places


def places_in(form: Expansion, operands: int) -> Places:
    """Return the places of so many operands, and of the results, of an op that `form` replaces."""
    read = {value: (n, i) for n, op in reversed([*enumerate(form.ops)]) for i, value in enumerate(op.operands)}
    results = tuple(value and (value.index, value.result) for value in form.results)
    return Places(tuple(read.get(Value("operand", index)) for index in range(operands)), len(form.ops), results)


def places_among(ops: Sequence[Operation], operands: Sequence[SSAValue], results: Sequence[SSAValue | None]) -> Places:
    """Return the places of the values `operands` and `results` in `ops`, which stand for an op of these."""
    read = {value: (n, i) for n, op in reversed([*enumerate(ops)]) for i, value in enumerate(op.operands)}
    made: dict[SSAValue, Place] = {value: (n, i) for n, op in enumerate(ops) for i, value in enumerate(op.results)}
    return Places(tuple(map(read.get, operands)), len(ops), tuple(value and made.get(value) for value in results))


def note(op: ValueOp, call: Call, needs: Sequence[Sharding | None], places: Places) -> DictionaryAttr:
    """Return the note of `op`, which is `call` on global tensors.

    Args:
        needs: the shardings that it needs its operands in.
        places: of its values in the ops that replace it.
    """
    entries: dict[str, Attribute] = {
        "op": StringAttr(op.name),
        "operands": ArrayAttr(map(type_of, call.operands)),
        "needs": shardings_attr(tuple(needs)),
        "results": ArrayAttr(map(type_of, call.results)),
        "made": shardings_attr(op.shardings),
        "places": ArgumentsAttr((("operands", places.operands), ("ops", places.count), ("results", places.results))),
    }
    kept = {name: op.properties[name] for name in _KEPT if name in op.properties}
    return DictionaryAttr(entries | kept | ({SPLIT: UnitAttr()} if is_split(op) else {}))


_KEPT = {"arguments": ArgumentsAttr, "structure": StructureAttr}


def is_split(op: Operation) -> bool:
    """Return whether `op` is marked as a matrix product that is split into the steps of a ring."""
    return SPLIT in op.attributes


def noted(op: Operation, name: str = NOTE) -> Note | None:
    """Return the note `name` on `op`; None if it has none.

    Raises:
        ShardingError: it is malformed.
    """
    attribute = op.attributes.get(name)
    if attribute is None:
        return None
    try:
        return _read(attribute)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        writer = "localize" if name == NOTE else "expand"
        raise ShardingError(f"{name} is malformed ({error}); expected it as {writer} writes it") from None


def _read(attribute: Any) -> Note:
    entries: dict[str, Any] = dict(attribute.data)
    places: dict[str, Any] = dict(entries["places"].data)
    kinds = {"op": StringAttr, "operands": ArrayAttr, "needs": ShardingsAttr, "results": ArrayAttr,
             "made": ShardingsAttr, "places": ArgumentsAttr, SPLIT: UnitAttr, **_KEPT}  # fmt: skip
    for name, value in entries.items():
        if not isinstance(value, kinds[name]):
            raise ValueError(f"'{name}' is {value}")
    if type(places["ops"]) is not int or places["ops"] < 1:
        raise ValueError(f"'ops' is {places['ops']!r}")
    found = Note(
        entries["op"].data, entries["operands"].data, entries["results"].data,
        entries["needs"].data, entries["made"].data,
        {name: entries[name] for name in _KEPT if name in entries},
        {SPLIT: entries[SPLIT]} if SPLIT in entries else {},
        Places(_places(places["operands"]), places["ops"], _places(places["results"])),
    )  # fmt: skip
    if not len(found.operands) == len(found.needs) == len(found.places.operands):
        raise ValueError("operands, their shardings and their places differ in number")
    if not len(found.results) == len(found.made) == len(found.places.results):
        raise ValueError("results, their shardings and their places differ in number")
    return found


def _places(value: Any) -> tuple[Place, ...]:
    for entry in value:
        if entry is not None and not (len(entry) == 2 and all(type(n) is int and n >= 0 for n in entry)):
            raise ValueError(f"{entry} is not a place")
    return value


def at(ops: Sequence[Operation], place: Place, values: str, name: str = NOTE) -> SSAValue | None:
    """Return the operand or result (`values` is "operands" or "results") at `place` in `ops`, of which note `name` is.

    Raises:
        ShardingError: there is none.
    """
    if place is None:
        return None
    if place[0] >= len(ops) or place[1] >= len(getattr(ops[place[0]], values)):
        what = "form" if name == NOTE else "expansion"
        raise ShardingError(f"{name} names {values[:-1]} {place[1]} of op {place[0]}; the {what} has none there")
    return getattr(ops[place[0]], values)[place[1]]
