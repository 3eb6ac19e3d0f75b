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
    argument_attributes = [function_attrs(function, "arg_attrs", index) for index in range(len(function.args))]
    for value in _values(function):
        annotation = remaining.pop(text_name(value), {}).get("spmd.sharding")
        if isinstance(value, BlockArgument):
            argument_attributes[value.index].pop("spmd.sharding", None)
            if annotation is not None:
                argument_attributes[value.index]["spmd.sharding"] = annotation
        elif isinstance(value, OpResult) and isinstance(value.op, ValueOp):
            shardings = list(value.op.shardings)
            shardings[value.index] = annotation.data if isinstance(annotation, ShardingAttr) else None
            value.op.set_shardings(shardings)
            value.op.properties.pop("needs", None)
    result_count = len(function.function_type.outputs)
    result_attributes = [function_attrs(function, "res_attrs", index) for index in range(result_count)]
    for index, attributes in enumerate(result_attributes):
        attributes.pop("spmd.sharding", None)
        attributes.update(remaining.pop(_result_name(index), {}))
    if remaining:
        name = shown(next(iter(remaining)))
        raise ShardingError(
            f"{GIVEN} has an entry {name}, but the function has no such value; expected names of its "
            "values: remove the entry",
            location_of(function),
        )
    function.properties["arg_attrs"] = ArrayAttr(map(DictionaryAttr, argument_attributes))
    function.properties["res_attrs"] = ArrayAttr(map(DictionaryAttr, result_attributes))


def _values(function: FuncOp) -> Iterator[SSAValue]:
    """Yield the arguments of a function, then the results of its ops."""
    yield from function.args
    for op in function.body.block.ops:
        if isinstance(op, ValueOp):
            yield from op.results


def _result_name(index: int) -> str:
    """Return the key of a result of the function."""
    return f"result {index}"
