"""The classes of torch's ops, and what an op says of itself: `torch._ops`, in torch 2.11 to 2.13."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket


def schema_of(op: OpOverload) -> torch.FunctionSchema:
    """Return the schema of an overload: its arguments and results with their types and aliases."""
    return op._schema


def schema_or_none(target: Any) -> torch.FunctionSchema | None:
    """Return the schema of the target of a node; None if it is not an op."""
    return getattr(target, "_schema", None)


def overload_name(op: OpOverload) -> str:
    """Return the name of an overload in its packet: `Tensor` of `aten.add.Tensor`, `default` if it has none."""
    return op._overloadname


def schemas() -> Iterator[tuple[str, torch.FunctionSchema]]:
    """Yield (`aten::add.Tensor`, its schema) of every op that torch's dispatcher knows."""
    for qualified in torch._C._dispatch_get_all_op_names():
        name, _, overload = qualified.partition(".")
        yield qualified, torch._C._get_schema(name, overload)


def op_infos() -> list[Any]:
    """Return torch's own samples of its ops: `torch.testing._internal`.

    Raises:
        ImportError: a package that torch's tests need is not installed.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def is_registered(qualified: str, overload: str) -> bool:
    """Return whether torch's dispatcher knows an overload, such as `Tensor` of `aten::add`."""
    try:
        torch._C._dispatch_find_schema_or_throw(qualified, overload)
    except RuntimeError:
        return False
    return True
