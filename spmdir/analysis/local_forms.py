"""The attribute that describes the op which a local form or an expansion replaces. Its first op has the attribute.

    %0 = aten.sub.Scalar(%ids) {…} : … attributes {spmd.form = {op = "aten.embedding", …}}

`operands` and `results` are the global types of the op, `needs` and `made` their shardings, and `arguments` and
`structure` its properties. `places` contains the number of ops in the form, and the place of each operand and result:
`[5, 0]` is the first operand or result of the sixth op. `none` is an operand that the form does not use, or an absent
result.

A wrong attribute of a local form does no harm: verify-spmd runs localize on the op that it describes, and requires the
same form and attribute. Reports price an expansion as the op that it replaces.
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

LOCAL_FORM = "spmd.form"
"""The attribute of the first op of a local form."""

EXPANSION = "spmd.expansion"
"""The attribute of the first op of an expansion."""

SPLIT = "spmd.split"
"""The attribute of a matrix product that is split into the steps of a ring."""

Place = tuple[int, int] | None
"""(Index of an op of the form, index of one of its operands or results)."""


@attrs.frozen
class Places:
    """The places of the operands and results of an op in the ops that replace it.

    A place is (index of a replacing op, index of one of its operands or results).

    Attributes:
        operands: for each operand, its first place; None if the ops do not use it.
        op_count: the number of ops that replace the op.
        results: for each result, its place; None if it is absent.
    """

    operands: tuple[Place, ...]
    op_count: int
    results: tuple[Place, ...]


@attrs.frozen
class ReplacedOp:
    """The op that several ops replace.

    Attributes:
        op: the name of the op.
        operands, results: the global types.
        operand_shardings, result_shardings: the shardings.
        properties: the arguments and the structure of the op, where present.
        attributes: the attribute of a split product, where present.
        places: the places of the operands and results.
    """

    op: str
    operands: tuple[Attribute, ...]
    results: tuple[Attribute, ...]
    operand_shardings: tuple[Sharding | None, ...]
    result_shardings: tuple[Sharding | None, ...]
    properties: dict[str, Attribute]
    attributes: dict[str, Attribute]
    places: Places


def places_in(form: Expansion, operands: int) -> Places:
    """Return where `form` uses the operands, and computes the results, of the op that it replaces.

    A place is (number of an op of the form, index of its operand or result). An operand has the place of its first use.

    Args:
        operands: the number of operands of the op.
    """
    operand_places: dict[Value, Place] = {}
    for number, op in reversed([*enumerate(form.ops)]):  # so the first op that uses a value overwrites later ones
        operand_places.update({value: (number, index) for index, value in enumerate(op.operands)})
    result_places = tuple(value and (value.index, value.result) for value in form.results)
    used_operands = tuple(operand_places.get(Value("operand", index)) for index in range(operands))
    return Places(used_operands, len(form.ops), result_places)


def places_among(ops: Sequence[Operation], operands: Sequence[SSAValue], results: Sequence[SSAValue | None]) -> Places:
    """Return where `ops` use the `operands`, and compute the `results`, of the op that they replace.

    A place is (number of an op, index of its operand or result). For example, with the ops `%2 = sub(%0, %1)` and
    `%3 = mul(%2, %1)`, the operands %0 and %1 have the places (0, 0) and (0, 1), and the result %3 has (1, 0).
    """
    operand_places: dict[SSAValue, Place] = {}
    result_places: dict[SSAValue, Place] = {}
    for number, op in reversed([*enumerate(ops)]):  # so the first op that uses a value overwrites later ones
        operand_places.update({value: (number, index) for index, value in enumerate(op.operands)})
        result_places.update({value: (number, index) for index, value in enumerate(op.results)})
    return Places(
        tuple(map(operand_places.get, operands)),
        len(ops),
        tuple(value and result_places.get(value) for value in results),
    )


def replaced_op_attribute(op: ValueOp, call: Call, needs: Sequence[Sharding | None], places: Places) -> DictionaryAttr:
    """Return the attribute that describes `op` after other ops have replaced it. verify-spmd restores `op` from it.

    Args:
        call: the op on global tensors.
        needs: the shardings that it requires of its operands.
        places: the places of its operands and results in the ops that replace it.
    """
    entries: dict[str, Attribute] = {
        "op": StringAttr(op.name),
        "operands": ArrayAttr(map(type_of, call.operands)),
        "needs": shardings_attr(tuple(needs)),
        "results": ArrayAttr(map(type_of, call.results)),
        "made": shardings_attr(op.shardings),
        "places": ArgumentsAttr((("operands", places.operands), ("ops", places.op_count), ("results", places.results))),
    }
    properties = {name: op.properties[name] for name in _COPIED_PROPERTIES if name in op.properties}
    return DictionaryAttr(entries | properties | ({SPLIT: UnitAttr()} if is_split(op) else {}))


_COPIED_PROPERTIES = {"arguments": ArgumentsAttr, "structure": StructureAttr}
"""The properties of an op that the attribute contains → their attribute classes."""


def is_split(op: Operation) -> bool:
    """Return whether `op` is marked as a matrix product that is split into the steps of a ring."""
    return SPLIT in op.attributes


def read_replaced_op(op: Operation, name: str = LOCAL_FORM) -> ReplacedOp | None:
    """Return the replaced op that the attribute `name` of `op` describes; None if `op` has no such attribute.

    Raises:
        ShardingError: the attribute is malformed.
    """
    attribute = op.attributes.get(name)
    if attribute is None:
        return None
    try:
        return _parse_replaced_op(attribute)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        writer = "localize" if name == LOCAL_FORM else "expand"
        raise ShardingError(
            f"{name} is malformed ({error}); expected it as {writer} writes it: undo the edit, or run {writer} again"
        ) from None


def _parse_replaced_op(attribute: Any) -> ReplacedOp:
    """Return the replaced op; raise AttributeError, KeyError, TypeError or ValueError if the attribute is malformed."""
    entries: dict[str, Any] = dict(attribute.data)
    places: dict[str, Any] = dict(entries["places"].data)
    kinds = {"op": StringAttr, "operands": ArrayAttr, "needs": ShardingsAttr, "results": ArrayAttr,
             "made": ShardingsAttr, "places": ArgumentsAttr, SPLIT: UnitAttr, **_COPIED_PROPERTIES}  # fmt: skip
    for name, value in entries.items():
        if not isinstance(value, kinds[name]):
            raise ValueError(f"'{name}' is {value}")
    if type(places["ops"]) is not int or places["ops"] < 1:
        raise ValueError(f"'ops' is {places['ops']!r}")
    replaced = ReplacedOp(
        entries["op"].data, entries["operands"].data, entries["results"].data,
        entries["needs"].data, entries["made"].data,
        {name: entries[name] for name in _COPIED_PROPERTIES if name in entries},
        {SPLIT: entries[SPLIT]} if SPLIT in entries else {},
        Places(_check_places(places["operands"]), places["ops"], _check_places(places["results"])),
    )  # fmt: skip
    if not len(replaced.operands) == len(replaced.operand_shardings) == len(replaced.places.operands):
        raise ValueError("operands, their shardings and their places differ in number")
    if not len(replaced.results) == len(replaced.result_shardings) == len(replaced.places.results):
        raise ValueError("results, their shardings and their places differ in number")
    return replaced


def _check_places(value: Any) -> tuple[Place, ...]:
    """Return `value` if it is a tuple of places; raise ValueError if not."""
    for place in value:
        if place is not None and not (len(place) == 2 and all(type(number) is int and number >= 0 for number in place)):
            raise ValueError(f"a place is {place}, not [index of an op, index of an operand or result]")
    return value


def value_at(ops: Sequence[Operation], place: Place, values: str, name: str = LOCAL_FORM) -> SSAValue | None:
    """Return the operand or result at `place` in `ops`; None if `place` is None.

    Args:
        values: "operands" or "results".
        name: the attribute that contains the place, for errors.

    Raises:
        ShardingError: the place does not exist.
    """
    if place is None:
        return None
    number, index = place
    if number >= len(ops) or index >= len(getattr(ops[number], values)):
        replacement = "form" if name == LOCAL_FORM else "expansion"
        raise ShardingError(
            f"{name} names {values[:-1]} {index} of op {number}, which the {replacement} does not have; "
            f"expected {name} as the pass wrote it: undo the edit, or run the pass again"
        )
    return getattr(ops[number], values)[index]
