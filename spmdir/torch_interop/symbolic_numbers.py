"""Numbers of torch's that are not known when tracing."""

from __future__ import annotations

from typing import Any

import torch

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_open(value: object) -> bool:
    """Return whether `value` is a number of torch's that is not known when tracing."""
    return isinstance(value, _SYMBOLIC)


def plain(value: Any) -> Any:
    """Return a number of torch's, where it is open as what it is made of: comparing these asks nothing of torch.

    To compare open numbers themselves would make torch take their examples for what they always are.
    """
    return value.node.expr if is_open(value) else value


def size_source(name: str) -> Any:
    """Return where a symbolic size comes from, as torch's ShapeEnv takes it: `torch._dynamo.source`."""
    from torch._dynamo.source import ConstantSource  # slow to import

    return ConstantSource(name)
