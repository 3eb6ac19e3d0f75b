"""Put the units of a local program into another order."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import Block

from spmdir.analysis.local_programs.globalize import Unit


def set_order(block: Block, units: Iterable[Unit]) -> None:
    """Replace all ops of `block` except the last by the ops of `units`, in order. Units may be new or missing."""
    end = block.last_op
    assert end is not None
    for op in list(block.ops):
        op.detach()
    block.add_ops([*(op for unit in units for op in unit), end])
