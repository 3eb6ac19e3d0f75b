"""Record the user annotations of a function in `spmd.given` before it is decided, and restore them.

Keys are the names of values, such as `%x`, and `result 0` for a result of the function.
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

_ANNOTATIONS = ("spmd.sharding", "spmd.like")
"""The attributes of results that are user annotations."""


def note_given(function: FuncOp) -> None:
    """Record the annotations of a function that is not decided yet. An existing record is kept."""
    if GIVEN in function.attributes:
        return
    annotations: dict[str, Attribute] = {}
    for value in _values(function):
        sharding = sharding_of(value)
        if sharding is not None:
            annotations[text_name(value)] = DictionaryAttr({"spmd.sharding": sharding_attr(sharding)})
    for index in range(len(function.function_type.outputs)):
        result_attributes = function_attrs(function, "res_attrs", index)
        if any(key in result_attributes for key in _ANNOTATIONS):
            annotations[_result_name(index)] = DictionaryAttr(
                {key: result_attributes[key] for key in _ANNOTATIONS if key in result_attributes}
            )
    function.attributes[GIVEN] = DictionaryAttr(annotations)


def open_decided(function: FuncOp) -> None:
    """Remove all decisions from a decided function, and restore the recorded annotations.

    Raises:
        ShardingError: the record has a name that is not in the function; located.
    """
    recorded: Any = function.attributes.pop(GIVEN)
    function.attributes.pop(STAGE, None)
    remaining = {name: dict(entry.data) for name, entry in recorded.data.items()}
    entries = [function_attrs(function, "arg_attrs", index) for index in range(len(function.args))]
    for value in _values(function):
        annotation = remaining.pop(text_name(value), {}).get("spmd.sharding")
        if isinstance(value, BlockArgument):
            entries[value.index].pop("spmd.sharding", None)
            entries[value.index] |= {} if annotation is None else {"spmd.sharding": annotation}
        elif isinstance(value, OpResult) and isinstance(value.op, ValueOp):
            shardings = list(value.op.shardings)
            shardings[value.index] = annotation.data if isinstance(annotation, ShardingAttr) else None
            value.op.set_shardings(shardings)
            value.op.properties.pop("needs", None)
    results = [function_attrs(function, "res_attrs", index) for index in range(len(function.function_type.outputs))]
    for index, entry in enumerate(results):
        entry.pop("spmd.sharding", None)
        entry |= remaining.pop(_result_name(index), {})
    if remaining:
        name = shown(next(iter(remaining)))
        raise ShardingError(
            f"{GIVEN} has an entry {name}, but the function has no such value; remove the entry", location_of(function)
        )
    for which, changed in (("arg_attrs", entries), ("res_attrs", results)):
        function.properties[which] = ArrayAttr([DictionaryAttr(entry) for entry in changed])


def _values(function: FuncOp) -> Iterator[SSAValue]:
    yield from function.args
    for op in function.body.block.ops:
        if isinstance(op, ValueOp):
            yield from op.results


def _result_name(index: int) -> str:
    return f"result {index}"
