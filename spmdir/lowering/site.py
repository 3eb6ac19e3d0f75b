"""The inputs and the result of an emitter: a collective on one rank (`Site`), and its message (`Message`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import torch
from torch.fx import Node

from spmdir.core.arguments import instance
from spmdir.core.declared_fields import Function, check_fields
from spmdir.core.dtype import DType
from spmdir.core.intervals import Ranges
from spmdir.core.mesh import Mesh
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.lowering.partition import DimPartition, partition_of
from spmdir.lowering.process_groups import GroupName
from spmdir.lowering.ranges import Emit, aten
from spmdir.lowering.wire_types import view_as_sendable
from spmdir.torch_interop.dtypes import TORCH_DTYPES

functional = torch.ops._c10d_functional
WAIT = functional.wait_tensor.default

IS_COMPUTED = "is_computed"
"""The key in the metadata of a node for whether the program computes its value instead of only moving it."""

Kind = tuple[tuple[int, ...], torch.dtype]
"""Shape and element type of a local tensor."""


@attrs.frozen
class Message:
    """The message of a collective for one tensor.

    Attributes:
        x: the tensor to send; the operand if nothing is sent.
        finish: (result of `call` after the wait) → value of the op.
        call: the functional collective; None if nothing is sent.
        arguments: the arguments of `call` between tensor and group.
        group: the name of the process group.
        moved_dtype: the element type of `x` if the collective only moves elements. Then `x` may be sent as a view of
            another type. None if the collective computes with elements.
        received_shape: a shape of the received tensor that `finish` also accepts; None for only the shape of `call`.
        states: the new edge states. The op returns them after its value.
    """

    x: Node
    finish: Callable[[Node], Node]
    call: Any = None
    arguments: tuple[Any, ...] = ()
    group: str = ""
    moved_dtype: torch.dtype | None = None
    received_shape: tuple[int, ...] | None = None
    states: tuple[Node, ...] = ()

    def __attrs_post_init__(self) -> None:
        check_fields(self, _FIELDS)

    def send(self, emit: Emit) -> Callable[[], Node]:
        """Emit the call on a contiguous copy or view of `x`, in an element type that all backends can send.

        Returns: a function that emits the wait and returns the received tensor; `x` if nothing is sent.
        """
        if self.call is None:
            return lambda: self.x
        x, unpack = self.x, _identity
        if self.moved_dtype is not None:
            x, unpack = view_as_sendable(emit, self.x, self.moved_dtype)
        sent = emit(self.call, emit(aten.contiguous.default, x), *self.arguments, self.group)
        return lambda: unpack(emit(WAIT, sent))

    def compute_value(self, emit: Emit, received: Node) -> Node:
        """Return the contiguous value of the op for the received tensor. Some kernels ignore strides."""
        value = self.finish(received)
        return value if value is received else emit(aten.contiguous.default, value)

    def send_and_finish(self, emit: Emit) -> Node:
        """Emit the call and the wait; return the value of the op."""
        return self.compute_value(emit, self.send(emit)())


_NODE = instance(Node, expected="a node of the graph, as `site.emit` returns it")
_FIELDS = {"x": _NODE, "finish": Function("arrived", returns=_NODE)}
"""Field of a message that emitters set → valid values."""


@attrs.define(frozen=True, slots=False)
class Site:
    """One collective on one rank.

    Attributes:
        emit: (op, *arguments) → the node of the call.
        group_name: axes → the name of their process group.
        mesh: the mesh.
        rank: the rank, in mesh order.
        meta: the global shape and the element type of the tensor.
        source, target: the shardings of operand and result.
        argument: the literal arguments of the op, by name.
        states: name → (edge state on this rank, its kind).
    """

    emit: Emit
    group_name: GroupName
    mesh: Mesh
    rank: int
    source: Sharding
    target: Sharding
    meta: TensorMeta
    argument: Mapping[str, Any]
    states: Mapping[str, tuple[Node, Kind]] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return f"<site of rank {self.rank}: <{self.source}> to <{self.target}>>"

    @cached_property
    def named(self) -> tuple[str, ...]:
        """Return the axes that the op names, except axes of one rank on which the local tensor is the global tensor.

        On an axis of one rank, a plug-in placement may still change the tensor, so such an axis stays.
        """
        named_axes = []
        for axis in self.argument.get("axes", ()):
            is_trivial = self._is_whole(self.source[axis]) and self._is_whole(self.target[axis])
            if self.mesh.sizes[axis] > 1 or not is_trivial:
                named_axes.append(axis)
        return tuple(named_axes)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Return the axes of the group, in the order of the op."""
        return tuple(axis for axis in self.named if self.mesh.sizes[axis] > 1)

    def _is_whole(self, placement: Placement) -> bool:
        """Return whether the local tensor under `placement` on an axis of one rank is the global tensor."""
        if isinstance(placement, ShardPlacement):
            size = self.shape[placement.dim]
            return placement.ranges(size, 1, 0) == ((0, size),)
        return placement.trait == "replicated" or placement.op in REDUCTIONS

    @property
    def dim(self) -> int:
        """Return the dimension that the op shards or gathers."""
        return self.argument["dim"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the global shape of the tensor."""
        return self.meta.shape

    @property
    def dtype(self) -> DType:
        """Return the element type of the operand on this rank."""
        return self.local_type(self.source).dtype

    @property
    def torch_dtype(self) -> torch.dtype:
        """Return the torch element type of the operand on this rank."""
        return TORCH_DTYPES[self.dtype]

    @property
    def ranks(self) -> int:
        """Return the rank of the tensor: its number of dimensions."""
        return len(self.shape)

    def local_type(self, sharding: Sharding) -> TensorMeta:
        """Return the type of the local tensor on this rank under `sharding`."""
        return sharding.local_type(self.meta, self.mesh, self.mesh.coordinate(self.rank))

    def local(self, sharding: Sharding) -> tuple[int, ...]:
        """Return the local shape on this rank under `sharding`."""
        return self.local_type(sharding).shape

    def partition(self, sharding: Sharding, dim: int, axes: Sequence[str] | None = None) -> DimPartition:
        """Return the partition of `dim` by `axes` under `sharding`; by default, the axes that the op names."""
        axes = self.named if axes is None else axes
        nested_axes = [axis for axis in sharding.dim_axes(dim) if axis in axes]
        return partition_of(sharding, dim, nested_axes, self.shape[dim], self.mesh, self.rank)

    def own_ranges(self, partition: DimPartition) -> Ranges:
        """Return the positions of this rank's chunk in the block."""
        return partition.ranges[self.mesh.index(self.rank, self.named)]

    def group(self, axes: Sequence[str]) -> str:
        """Return the name of the process group over `axes`."""
        return self.group_name(self.mesh.merge(axis for axis in self.mesh.axis_names if axis in axes))

    def send(
        self,
        op: Any,
        x: Node,
        *arguments: Any,
        finish: Callable[[Node], Node],
        axes: Sequence[str] | None = None,
        moved_dtype: torch.dtype | None = None,
        received_shape: Sequence[int] | None = None,
    ) -> Message:
        """Return the message of the functional collective `op` on `x`. If no axis is left, the message sends nothing.

        Args:
            arguments: the arguments of `op` between `x` and the group.
            axes: the axes of the group; by default, the axes of the site.
            finish, moved_dtype, received_shape: see `Message`.
        """
        axes = self.axes if axes is None else axes
        if not axes:
            return Message(x, finish)
        received_shape = None if received_shape is None else tuple(received_shape)
        return Message(x, finish, op, arguments, self.group(axes), moved_dtype, received_shape)

    def move(
        self,
        op: Any,
        x: Node,
        *arguments: Any,
        finish: Callable[[Node], Node],
        axes: Sequence[str] | None = None,
        received_shape: Sequence[int] | None = None,
    ) -> Message:
        """Return the message of a collective that only moves elements. Its arguments are those of `send`."""
        return self.send(
            op, x, *arguments, finish=finish, axes=axes, moved_dtype=self.torch_dtype, received_shape=received_shape
        )


def here(value: Node) -> Message:
    """Return the message of a collective that sends nothing and whose result is `value`.

    Args:
        value: a node.

    Raises:
        ShardingError: `value` is not a node.

    Example:
        >>> return spmdir.placement.here(x)
    """
    return Message(value, _identity)


def _identity(value: Node) -> Node:
    """Return `value`: the `finish` of a message that needs no further ops."""
    return value
