"""The ops that replace one op."""

from __future__ import annotations

import attrs

from spmdir.core.errors import Location
from spmdir.core.placement.call import Call


@attrs.frozen(cache_hash=True)
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
        location: of the ring that the op is of.
    """

    call: Call
    operands: tuple[Value, ...]
    location: Location | None = attrs.field(default=None, eq=False)


@attrs.frozen
class Expansion:
    """The ops that replace one op.

    Attributes:
        ops: in order.
        results: the value of each result of the op; None for an absent one.
    """

    ops: tuple[ExpandedOp, ...]
    results: tuple[Value | None, ...]

    def used(self) -> Expansion:
        """Return this rewrite without the ops of which it uses nothing."""
        needed = {value.index for value in self.results if value is not None and value.source == "op"}
        for number in reversed(range(len(self.ops))):
            if number in needed:
                needed |= {value.index for value in self.ops[number].operands if value.source == "op"}
        numbers = {old: new for new, old in enumerate(sorted(needed))}

        def renumbered(value: Value) -> Value:
            return value if value.source == "operand" else attrs.evolve(value, index=numbers[value.index])

        kept = (self.ops[old] for old in numbers)
        ops = tuple(attrs.evolve(op, operands=tuple(map(renumbered, op.operands))) for op in kept)
        return Expansion(ops, tuple(value and renumbered(value) for value in self.results))
