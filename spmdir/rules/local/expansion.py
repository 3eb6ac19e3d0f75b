"""The ops that replace one op."""

from __future__ import annotations

import attrs

from spmdir.core.errors import Location
from spmdir.core.placement.call import Call


@attrs.frozen(cache_hash=True)
class Value:
    """A value in a rewrite: an operand of the replaced op, or a result of a new op.

    Attributes:
        source: "operand" or "op".
        index: the index of the operand, or of the new op.
        result: the index of the result of the new op; 0 for an operand.
    """

    source: str
    index: int
    result: int = 0


@attrs.frozen
class ExpandedOp:
    """One op of a rewrite.

    Attributes:
        call: the op. In a local form, its shapes are local.
        operands: the values of `call.operands`.
        location: the ring that the op belongs to.
    """

    call: Call
    operands: tuple[Value, ...]
    location: Location | None = attrs.field(default=None, eq=False)


@attrs.frozen
class Expansion:
    """The ops that replace one op.

    Attributes:
        ops: the new ops, in order.
        results: the value of each result of the replaced op; None for an absent result.
    """

    ops: tuple[ExpandedOp, ...]
    results: tuple[Value | None, ...]

    def without_unused(self) -> Expansion:
        """Return this rewrite without the ops whose results no result and no other used op needs."""
        used_indices = {value.index for value in self.results if value is not None and value.source == "op"}
        for op_index in reversed(range(len(self.ops))):
            if op_index in used_indices:
                used_indices |= {value.index for value in self.ops[op_index].operands if value.source == "op"}
        new_indices = {old: new for new, old in enumerate(sorted(used_indices))}

        def renumbered(value: Value) -> Value:
            """Return `value` with the new index of its op."""
            return value if value.source == "operand" else attrs.evolve(value, index=new_indices[value.index])

        used_ops = (self.ops[old] for old in new_indices)
        ops = tuple(attrs.evolve(op, operands=tuple(map(renumbered, op.operands))) for op in used_ops)
        return Expansion(ops, tuple(value and renumbered(value) for value in self.results))
