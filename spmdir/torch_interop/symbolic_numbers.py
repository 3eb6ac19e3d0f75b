"""Symbolic numbers of torch, which are unknown during a trace."""

from __future__ import annotations

from typing import Any

import torch

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_open(value: object) -> bool:
    """Return whether `value` is a symbolic number of torch."""
    return isinstance(value, _SYMBOLIC)


def comparable_number(value: Any) -> Any:
    """Return a number, or the sympy expression of a symbolic one.

    A comparison of symbolic numbers themselves would specialise them to their example values.
    """
    return value.node.expr if is_open(value) else value


def size_source(name: str) -> Any:
    """Return where a symbolic size comes from, as torch's ShapeEnv takes it: `torch._dynamo.source`."""
    from torch._dynamo.source import ConstantSource  # slow to import

    return ConstantSource(name)
