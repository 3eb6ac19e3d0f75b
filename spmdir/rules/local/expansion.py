"""The ops that replace one op, and how they lie on a mesh axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from spmdir.core.call import Call, TensorMeta
from spmdir.core.placement.standard import Placement
from spmdir.rules.strategies.strategy import Strategy

if TYPE_CHECKING:
    from spmdir.rules.shapes.layout import Dims


@attrs.frozen
class Value:
    """A value inside a rewrite: operand `index` of the op that is replaced, or result `result` of piece `index`."""

    source: str
    index: int
    result: int = 0


@attrs.frozen
class Piece:
    """One op of a rewrite.

    Attributes:
        call: the op; in a local form its shapes are those of the given local operands.
        operands: what fills call.operands.
    """

    call: Call
    operands: tuple[Value, ...]


@attrs.frozen
class Expansion:
    """The ops that replace one op.

    Attributes:
        pieces: in order.
        results: the value of each result of the op; None for an absent one.
    """

    pieces: tuple[Piece, ...]
    results: tuple[Value | None, ...]


@attrs.frozen
class Reduced:
    """A value inside an expansion that is reduced before use.

    Attributes:
        value, meta, op: which one, its type, and the pending reduction.
        dims: per dimension, the factors of the expanded op that make it up.
    """

    value: Value
    meta: TensorMeta
    op: str
    dims: Dims


@attrs.frozen
class Placed:
    """How an expansion lies on one mesh axis.

    Attributes:
        rows: per piece, the strategy it uses; its operands are as used, its results as made.
        results: of the expanded op.
        reductions: what is reduced between being made and being used.
    """

    rows: tuple[Strategy, ...]
    results: tuple[Placement, ...]
    reductions: tuple[Reduced, ...]
