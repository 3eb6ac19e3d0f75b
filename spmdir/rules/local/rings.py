"""Unroll rings in local forms: in each step, a rank has the block of another rank, and sends it to the next rank."""

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
    """The part of the emitter that a ring uses; see `spmdir.rules.local.emitter.Emitter`."""

    rank: Rank
    operands: tuple[TensorMeta, ...]
    names: dict[str, Any]
    shards: dict[int, Local]

    def run_all(self, body: Sequence[Statement]) -> Any: ...

    def emit(self, op: str, tensors: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[Value, ...]: ...

    def add(self, call: Call, operands: tuple[Value, ...], location: Location | None = None) -> tuple[Value, ...]: ...

    def meta(self, value: Value) -> TensorMeta: ...


DimOf = Callable[[Value], "int | None"]
"""Operand of the op → its dimension with the factor of the ring, or None."""


def run_ring(emitter: RingBuilder, ring: Statement, factor: int, dim_of: DimOf) -> None:
    """Emit the body of `ring` once for each rank along the axes that shard `factor`; once if no axis shards it.

    The targets move to the next rank after each step. After the last step, the targets that the body assigns move once
    more, back to the owner of their block. The other targets get their initial values back.

    Args:
        dim_of: returns the dimension of an operand that `factor` shards.

    Raises:
        LimitError: the ring has more than RING ranks.
    """
    shard = emitter.shards.get(factor)
    if shard is None:
        emitter.run_all(ring.body)
        return
    assigned = {name for statement in statements(ring.body) for name in statement.targets}
    initial = {name: emitter.names[name] for name in ring.targets}
    body_names = assigned - emitter.names.keys()  # each step starts without them
    dims = {name: _sharded_dim(emitter, name, initial, shard, dim_of, ring.location) for name in ring.targets}
    count = emitter.rank.ring_size(shard.axes)
    RING.check(count, ring.location)
    for step in range(count):
        emitter.shards[factor] = attrs.evolve(shard, back=step)
        for name in body_names:
            emitter.names.pop(name, None)
        emitter.run_all(ring.body)
        for name in ring.targets:
            if step + 1 < count or name in assigned:
                emitter.names[name] = _rotate(emitter, emitter.names[name], shard, step, dims[name], ring.location)
    emitter.names.update((name, value) for name, value in initial.items() if name not in assigned)
    emitter.shards[factor] = shard


def _sharded_dim(
    emitter: RingBuilder, name: str, initial: Mapping[str, Any], shard: Local, dim_of: DimOf, location: Location
) -> int | None:
    """Return the dimension of target `name` that the factor of the ring shards.

    If the target is no operand, the first operand with the same shape determines the dimension. Return None if there is
    none. Then the shape of the target must be equal on all ranks, which `require_equal_shapes` checks.

    Args:
        initial: target → its value before the ring.
        shard: the shard of the factor of the ring.
        dim_of: returns the dimension of an operand that this factor shards.
        location: the location of the ring, for errors.
    """
    value = initial[name]
    if not isinstance(value, Value):
        raise RuleError(
            f"'{name}' moves round a ring, but is a number or a list of tensors; expected one tensor", location
        )
    meta, size = emitter.meta(value), emitter.rank.value(attrs.evolve(shard, kind="size"))
    operands = [operand for operand in initial.values() if isinstance(operand, Value) and operand.source == "operand"]
    if value in operands:
        dim = dim_of(value)
    else:
        dim = next((dim_of(operand) for operand in operands if emitter.meta(operand).shape == meta.shape), None)
    if value in operands and (dim is None or meta.shape[dim] != size):
        raise RuleError(
            f"'{name}' moves round a ring, but the strategy does not shard it by the factor of the ring; expected an "
            "operand that is sharded by this factor",
            location,
        )
    return dim


def require_equal_shapes(forms: Mapping[int, Expansion], mesh: Mesh) -> None:
    """Raise RuleError, at the ring, if the shapes that ranks send round a ring differ between ranks.

    Args:
        forms: rank → its local form, for all ranks of each ring.
    """
    for rank, form in forms.items():
        for op_index, op in enumerate(form.ops):
            if op.call.name not in ROTATIONS:
                continue
            axes: Any = op.call.argument["axes"]
            # All ranks of a ring have the same ops at the same indices, except for shapes.
            member_forms = [forms[member] for member in mesh.group(rank, axes)]
            ring_ops = [form.ops[op_index] for form in member_forms if op_index < len(form.ops)]
            sent_types = dict.fromkeys(" and ".join(map(str, ring_op.call.operands)) for ring_op in ring_ops)
            if len(sent_types) > 1:
                raise RuleError(
                    f"ranks send tensors of different types round the ring: {' or '.join(sent_types)}; expected an "
                    "operand sharded along the ring, a value with the shape of such an operand, or one shape on all "
                    "ranks",
                    op.location,
                )


def _rotate(emitter: RingBuilder, value: Value, shard: Local, step: int, dim: int | None, location: Location) -> Value:
    """Send `value` to the next rank after `step`, and return the received value. Short blocks are padded for this.

    For example, 5 elements on 2 ranks are blocks of 3 and 2: the block of 2 is sent as 3 elements, and its receiver
    slices it to 2.

    Args:
        shard: the shard of the factor of the ring.
        dim: the dimension of `value` that this factor shards; None if its shape is equal on all ranks.
    """
    sizes = emitter.rank.values(attrs.evolve(shard, kind="size"))
    padded_dim = dim if len(sizes) > 1 else None
    if padded_dim is not None:
        tensor_rank, local_size = emitter.meta(value).rank, attrs.evolve(shard, kind="size", back=step)
        # The padding lists (before, after) from the last dimension to `padded_dim`, which gets max(sizes) elements.
        pad = (*(0,) * (2 * (tensor_rank - 1 - padded_dim)), 0, attrs.evolve(local_size, times=-1, plus=max(sizes)))
        (value,) = emitter.emit("aten.constant_pad_nd", {"self": value}, {"pad": pad, "value": 0})
    meta = emitter.meta(value)
    call = Call("spmd.rotate", (meta,), (("axes", shard.axes),), (meta,))
    (value,) = emitter.add(call, (value,), location)
    if padded_dim is None:
        return value
    # The received block is that of the rank `step + 1` places back.
    end = attrs.evolve(shard, kind="size", back=(step + 1) % emitter.rank.ring_size(shard.axes))
    return emitter.emit("aten.slice.Tensor", {"self": value}, {"dim": padded_dim, "start": 0, "end": end})[0]
