"""Programs of one function, and what to ask of an imported module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, signature_kind, signature_name

MESH = Mesh({"dp": 2, "tp": 2})


class Function(nn.Module):
    """A module whose forward is `function(self, *args)`, with the other arguments as its members."""

    def __init__(self, function: Callable[..., Any], **members: Any):
        super().__init__()
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def export(function: Callable[..., Any], *args: Any, **members: Any) -> torch.export.ExportedProgram:
    """Return `function(self, *args)` as torch.export gives it, with a copy of each tensor that is given again."""
    distinct = tuple(arg.clone() if any(arg is other for other in args[:at]) else arg for at, arg in enumerate(args))
    return torch.export.export(Function(function, **members), distinct)


def ops(module: ModuleOp) -> list[ValueOp]:
    """Return the tensor ops of a module, in order."""
    return [op for op in ir.main_function(module).body.block.ops if isinstance(op, ValueOp)]


def op(module: ModuleOp, name: str) -> ValueOp:
    """Return the one op of that name."""
    (found,) = [op for op in ops(module) if op.name == name]
    return found


def arguments(module: ModuleOp, what: str = "sharding") -> dict[str, str | None]:
    """Name of each argument → its sharding or kind."""
    return _said(module, "arg_attrs", what)


def results(module: ModuleOp, what: str = "sharding") -> list[tuple[str, str | None]]:
    """Name of each result and its sharding or kind."""
    return list(_pairs(module, "res_attrs", what))


def _said(module: ModuleOp, which: str, what: str) -> dict[str, str | None]:
    return dict(_pairs(module, which, what))


def _pairs(module: ModuleOp, which: str, what: str) -> Any:
    function = ir.main_function(module)
    types = function.function_type.inputs if which == "arg_attrs" else function.function_type.outputs
    for index in range(len(types)):
        name = signature_name(function, which, index)
        if what == "kind":
            yield name, signature_kind(function, which, index)
            continue
        said = function_attrs(function, which, index).get(f"spmd.{what}")
        yield name, None if said is None else str(said.data)
