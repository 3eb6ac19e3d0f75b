"""Give the functions of a served model one sharding of each parameter and cache that they share.

Functions that have a cache of one name are programs on the same state: their parameters, buffers and caches of equal
names are the same tensors.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.core.errors import ShardingError
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import ShardingAttr
from spmdir.dialects.caches import shared_arguments
from spmdir.dialects.locations import location_of
from spmdir.dialects.values import function_attrs, signature_kind, signature_name

_SHARDING = "spmd.sharding"


def copy_shared_shardings(module: ModuleOp, function: FuncOp) -> None:
    """Annotate the shared arguments of `function`, and their new values, with their shardings in other functions.

    Earlier functions are decided. Later functions contribute the annotations of the user, so these hold in all.

    Raises:
        ShardingError: two functions give an argument, or its new value, different shardings; located.
    """
    results = {
        signature_name(function, "res_attrs", index): index
        for index in range(len(function.function_type.outputs))
        if signature_kind(function, "res_attrs", index) == "mutation"
    }
    for other in ir.functions(module):
        if other is function:
            continue
        for name, (index, other_index) in shared_arguments(function, other).items():
            sharding = function_attrs(other, "arg_attrs", other_index).get(_SHARDING)
            if isinstance(sharding, ShardingAttr):
                _annotate(function, "arg_attrs", index, name, sharding, other)
                if name in results:
                    _annotate(function, "res_attrs", results[name], name, sharding, other)


def _annotate(function: FuncOp, which: str, index: int, name: str, sharding: ShardingAttr, other: FuncOp) -> None:
    """Write the sharding that an argument has in the function `other`, unless the present one decides all axes.

    Args:
        which: `arg_attrs` for the argument, `res_attrs` for its new value; `index` is its position there.
        name: the name of the argument, for errors.
        sharding: the sharding in `other`.

    Raises:
        ShardingError: the present sharding differs from it; located.
    """
    present = function_attrs(function, which, index).get(_SHARDING)
    if isinstance(present, ShardingAttr):
        if not _agree(present.data, sharding.data):
            what = "argument" if which == "arg_attrs" else "new value"
            raise ShardingError(
                f"{what} '{name}' is <{present.data}> in @{function.sym_name.data}, but the argument is "
                f"<{sharding.data}> in @{other.sym_name.data}; expected one sharding of each argument that functions "
                "with common caches share: annotate it in one function only, or equally in all",
                location_of(function),
            )
        if not present.data.open_axes:
            return
    entries = list(getattr(function, which).data)
    entries[index] = DictionaryAttr({**entries[index].data, _SHARDING: sharding})
    function.properties[which] = ArrayAttr(entries)


def _agree(left: Sharding, right: Sharding) -> bool:
    """Return whether two shardings are equal, except for axes that one of them leaves open."""
    open_axes = {*left.open_axes, *right.open_axes}
    if not open_axes:
        return left == right
    in_both = dict(left.entries).keys() & dict(right.entries).keys()
    return all(left[axis] == right[axis] for axis in in_both - open_axes)
