"""What the user annotated, kept on a function that is decided, as `spmd.given`, and the function as it was before.

Names tell what was annotated: `%x` a value, `result 0` a result of the function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, OpResult, SSAValue

from spmdir.core.errors import ShardingError, shown
from spmdir.dialects.attributes import ShardingAttr, sharding_attr
from spmdir.dialects.function_checks import GIVEN
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.dialects.stage import STAGE
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, sharding_of

_SAID = ("spmd.sharding", "spmd.like")
"""The attributes of results by which a user says how they are placed."""


def note_given(function: FuncOp) -> None:
    """Keep on `function` what is annotated, before it is decided; what is kept already stays."""
    if GIVEN in function.attributes:
        return
    found: dict[str, Attribute] = {}
    for value in _values(function):
        sharding = sharding_of(value)
        if sharding is not None:
            found[text_name(value)] = DictionaryAttr({"spmd.sharding": sharding_attr(sharding)})
    for index in range(len(function.function_type.outputs)):
        said = function_attrs(function, "res_attrs", index)
        if any(key in said for key in _SAID):
            found[_result(index)] = DictionaryAttr({key: said[key] for key in _SAID if key in said})
    function.attributes[GIVEN] = DictionaryAttr(found)


def open_decided(function: FuncOp) -> None:
    """Leave to a decided function only what the user annotated, as it is kept on it.

    Raises:
        ShardingError: it names what is not there; located.
    """
    kept: Any = function.attributes.pop(GIVEN)
    function.attributes.pop(STAGE, None)
    left = {name: dict(entry.data) for name, entry in kept.data.items()}
    entries = [function_attrs(function, "arg_attrs", index) for index in range(len(function.args))]
    for value in _values(function):
        given = left.pop(text_name(value), {}).get("spmd.sharding")
        if isinstance(value, BlockArgument):
            entries[value.index].pop("spmd.sharding", None)
            entries[value.index] |= {} if given is None else {"spmd.sharding": given}
        elif isinstance(value, OpResult) and isinstance(value.op, ValueOp):
            own = list(value.op.shardings)
            own[value.index] = given.data if isinstance(given, ShardingAttr) else None
            value.op.set_shardings(own)
            value.op.properties.pop("needs", None)
    results = [function_attrs(function, "res_attrs", index) for index in range(len(function.function_type.outputs))]
    for index, entry in enumerate(results):
        entry.pop("spmd.sharding", None)
        entry |= left.pop(_result(index), {})
    if left:
        raise ShardingError(f"{GIVEN} names {shown(next(iter(left)))}, which is not there", location_of(function))
    for which, changed in (("arg_attrs", entries), ("res_attrs", results)):
        function.properties[which] = ArrayAttr([DictionaryAttr(entry) for entry in changed])


def _values(function: FuncOp) -> Iterator[SSAValue]:
    yield from function.args
    for op in function.body.block.ops:
        if isinstance(op, ValueOp):
            yield from op.results


def _result(index: int) -> str:
    return f"result {index}"
