"""The classes of torch's ops, and what an op says of itself: `torch._ops`, in torch 2.11 to 2.13."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket


def schema_of(op: OpOverload) -> torch.FunctionSchema:
    """Return the schema of an overload: its arguments and results with their types and aliases."""
    return op._schema


def schema_or_none(target: Any) -> torch.FunctionSchema | None:
    """Return the schema of what a node calls, of whatever type; None if it is no op."""
    return getattr(target, "_schema", None)


def overload_name(op: OpOverload) -> str:
    """Return the name of an overload in its packet: `Tensor` of `aten.add.Tensor`, `default` if it has none."""
    return op._overloadname
