"""The ops that replace one op."""

from __future__ import annotations

import attrs

from spmdir.core.call import Call


@attrs.frozen
class Value:
    """A value inside a rewrite: operand `index` of the op that is replaced, or result `result` of new op `index`."""

    source: str
    index: int
    result: int = 0


@attrs.frozen
class ExpandedOp:
    """One op of a rewrite.

    Attributes:
        call: the op; in a local form its shapes are those of the local operands.
        operands: what fills call.operands.
    """

    call: Call
    operands: tuple[Value, ...]


@attrs.frozen
class Expansion:
    """The ops that replace one op.

    Attributes:
        ops: in order.
        results: the value of each result of the op; None for an absent one.
    """

    ops: tuple[ExpandedOp, ...]
    results: tuple[Value | None, ...]
