"""Units of a program of one rank, put into another order."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import Block

from spmdir.analysis.local_programs.globalize import Unit


def set_order(block: Block, units: Iterable[Unit]) -> None:
    """Let the ops of `block` but the last be those of `units`, in order; some may be new, and others be gone."""
    end = block.last_op
    assert end is not None
    for op in list(block.ops):
        op.detach()
    block.add_ops([*(op for unit in units for op in unit), end])
