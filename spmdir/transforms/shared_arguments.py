"""Give the functions of a served model one sharding of each parameter and cache that they share.

Functions that have a cache of one name are programs on the same state: their parameters, buffers and caches of equal
names are the same tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.dialects import ir
from spmdir.dialects.caches import shared_arguments
from spmdir.dialects.values import function_attrs, signature_kind, signature_name

_SHARDING = "spmd.sharding"


def copy_shared_shardings(module: ModuleOp, function: FuncOp) -> None:
    """Annotate the shared arguments of `function`, and their new values, with their shardings in earlier functions."""
    shardings = {}
    for earlier in _functions_before(module, function):
        for name, (index, other_index) in shared_arguments(function, earlier).items():
            sharding = function_attrs(earlier, "arg_attrs", other_index).get(_SHARDING)
            if sharding is not None:
                shardings["arg_attrs", index] = sharding
                for result in range(len(function.function_type.outputs)):
                    is_new_value = signature_kind(function, "res_attrs", result) == "mutation"
                    if is_new_value and signature_name(function, "res_attrs", result) == name:
                        shardings["res_attrs", result] = sharding
    for which in ("arg_attrs", "res_attrs"):
        entries = getattr(function, which)
        if entries is not None and any(key == which for key, _ in shardings):
            new_entries = [
                DictionaryAttr({**entry.data, _SHARDING: shardings[which, index]})
                if (which, index) in shardings
                else entry
                for index, entry in enumerate(entries.data)
            ]
            function.properties[which] = ArrayAttr(new_entries)


def _functions_before(module: ModuleOp, function: FuncOp) -> Iterator[FuncOp]:
    """Yield the functions of a module before `function`."""
    for other in ir.functions(module):
        if other is function:
            return
        yield other
