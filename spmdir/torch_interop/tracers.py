"""Tracers that are active during a call, in torch 2.11 to 2.13."""

from __future__ import annotations

import torch

_TAKES_OUTPUTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether torch.compile makes functional collectives that write into a given tensor functional."""


def takes_outputs() -> bool:
    """Return whether a call may give a functional collective the tensor that it writes to; torch.export takes none."""
    if not torch.compiler.is_compiling():
        return True
    return _TAKES_OUTPUTS and not torch.compiler.is_exporting()
