"""Rings in local forms: at each step every rank has the block of another one, and passes it on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from spmdir.core.errors import Location, RuleError
from spmdir.core.limits import RING
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call, Local
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.syntax_tree import Statement, statements
from spmdir.rules.local.expansion import Expansion, Value
from spmdir.rules.local.rank import Rank

ROTATIONS = ("spmd.rotate", "spmd.rotate_start")
"""The ops that send a tensor along a ring."""


class RingBuilder(Protocol):
    """What a ring needs of the emitter that runs a form."""

    rank: Rank
    operands: tuple[TensorMeta, ...]
    names: dict[str, Any]
    shards: dict[int, Local]

    def run_all(self, body: Sequence[Statement]) -> Any: ...

    def emit(self, op: str, tensors: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[Value, ...]: ...

    def add(self, call: Call, operands: tuple[Value, ...], location: Location | None = None) -> tuple[Value, ...]: ...

    def meta(self, value: Value) -> TensorMeta: ...


DimOf = Callable[[Value], "int | None"]
"""Operand of the op → the dimension of it that the factor of a ring makes up."""


def run_ring(emitter: RingBuilder, ring: Statement, factor: int, dim_of: DimOf) -> None:
    """Run the body of `ring` once for each rank along the axes that shard `factor`.

    What the targets name goes to the next rank after each step; after the last one, those that the body assigns go on
    once more, and are home, and the others have the values that they had.

    Raises:
        LimitError: the ring has more than RING ranks.
    """
    shard = emitter.shards.get(factor)
    if shard is None:
        emitter.run_all(ring.body)
        return
    assigned = {name for statement in statements(ring.body) for name in statement.targets}
    own = {name: emitter.names[name] for name in ring.targets}
    fresh = assigned - emitter.names.keys()
    dims = {name: _dim(emitter, name, own, shard, dim_of, ring.location) for name in ring.targets}
    count = emitter.rank.ring(shard.axes)
    RING.check(count, ring.location)
    for step in range(count):
        emitter.shards[factor] = attrs.evolve(shard, back=step)
        for name in fresh:
            emitter.names.pop(name, None)
        emitter.run_all(ring.body)
        for name in ring.targets:
            if step + 1 < count or name in assigned:
                emitter.names[name] = _rotated(emitter, emitter.names[name], shard, step, dims[name], ring.location)
    emitter.names.update((name, value) for name, value in own.items() if name not in assigned)
    emitter.shards[factor] = shard


def _dim(
    emitter: RingBuilder, name: str, own: Mapping[str, Any], shard: Local, dim_of: DimOf, where: Location
) -> int | None:
    """Return the dimension of what `name` is that the ranks share out: that of an operand of its shape, if it is none.

    None if there is no such dimension: its shape is to be the same on all ranks, which `require_alike` checks.
    """
    value = own[name]
    if not isinstance(value, Value):
        raise RuleError(f"'{name}' goes round a ring; expected one tensor, found several, or a number", where)
    meta, size = emitter.meta(value), emitter.rank.value(attrs.evolve(shard, kind="size"))
    operands = [one for one in own.values() if isinstance(one, Value) and one.source == "operand"]
    alike = [value] if value in operands else [one for one in operands if emitter.meta(one).shape == meta.shape]
    dim = next((dim_of(one) for one in alike), None)
    if value in operands and (dim is None or meta.shape[dim] != size):
        raise RuleError(
            f"'{name}' goes round a ring, and the strategy does not shard it by what the ring is over; expected an "
            "operand of which each rank has a block of that",
            where,
        )
    return dim


def require_alike(forms: Mapping[int, Expansion], mesh: Mesh) -> None:
    """Raise RuleError, at the ring, if what ranks send round a ring differs in shape between them.

    Args:
        forms: rank → its local form, for all ranks of each ring.
    """
    for rank, form in forms.items():
        for number, op in enumerate(form.ops):
            if op.call.name not in ROTATIONS:
                continue
            axes: Any = op.call.argument["axes"]
            ring = [forms[member].ops[number : number + 1] for member in mesh.group(rank, axes)]
            sent = dict.fromkeys(" and ".join(map(str, other.call.operands)) for others in ring for other in others)
            if len(sent) > 1:
                raise RuleError(
                    f"what goes round the ring is {' or '.join(sent)}, by the rank; expected an operand sharded along "
                    "the ring, a value shaped like one that goes with it, or one of the same shape on all ranks",
                    op.location,
                )


def _rotated(emitter: RingBuilder, value: Value, shard: Local, step: int, dim: int | None, location: Location) -> Value:
    """Return what the rank before has as `value` after `step`; blocks that differ in size are sent as the longest."""
    sizes = emitter.rank.values(attrs.evolve(shard, kind="size"))
    padded = dim if len(sizes) > 1 else None
    if padded is not None:
        rank, own = emitter.meta(value).rank, attrs.evolve(shard, kind="size", back=step)
        pad = (*(0,) * (2 * (rank - 1 - padded)), 0, attrs.evolve(own, times=-1, plus=max(sizes)))
        (value,) = emitter.emit("aten.constant_pad_nd", {"self": value}, {"pad": pad, "value": 0})
    meta = emitter.meta(value)
    call = Call("spmd.rotate", (meta,), (("axes", shard.axes),), (meta,))
    (value,) = emitter.add(call, (value,), location)
    if padded is None:
        return value
    end = attrs.evolve(shard, kind="size", back=(step + 1) % emitter.rank.ring(shard.axes))
    return emitter.emit("aten.slice.Tensor", {"self": value}, {"dim": padded, "start": 0, "end": end})[0]
