"""One collective from the point of view of one rank, and what remains to be done after its wait."""

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
from spmdir.core.placement.base import ShardPlacement
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.lowering.partition import DimPartition, partition_of
from spmdir.lowering.process_groups import GroupName
from spmdir.lowering.ranges import Emit, aten
from spmdir.lowering.wire import packed
from spmdir.torch_interop.dtypes import TORCH_DTYPES

functional = torch.ops._c10d_functional
WAIT = functional.wait_tensor.default

IS_COMPUTED = "is_computed"
"""The key of a node's meta for whether it is a value that the program computes, rather than moves between ranks."""

Kind = tuple[tuple[int, ...], torch.dtype]
"""Shape and element type of what a rank holds."""


@attrs.frozen
class Message:
    """What a collective sends of one tensor, and what it makes of what arrives.

    Attributes:
        x: what is sent; the operand if nothing is.
        finish: what `call` gives, after the wait → the value that the op gives.
        call: the functional collective; None if nothing is sent.
        arguments: of `call`, between tensor and group.
        group: the name of the process group.
        moved: the element type of `x` if no element is changed, so that it may go as another; None if some are.
        taken: a shape in which `finish` takes what arrives as well, where that is not as `call` gives it.
        states: the new states that the op gives after its value.
    """

    x: Node
    finish: Callable[[Node], Node]
    call: Any = None
    arguments: tuple[Any, ...] = ()
    group: str = ""
    moved: torch.dtype | None = None
    taken: tuple[int, ...] | None = None
    states: tuple[Node, ...] = ()

    def __attrs_post_init__(self) -> None:
        check_fields(self, _FIELDS)

    def send(self, emit: Emit) -> Callable[[], Node]:
        """Call the collective on `x`, made contiguous and viewed as a type that all backends carry if it is moved.

        Returns: what waits, and gives what has arrived; `x` if nothing is sent.
        """
        if self.call is None:
            return lambda: self.x
        x, unpack = (self.x, _same) if self.moved is None else packed(emit, self.x, self.moved)
        sent = emit(self.call, emit(aten.contiguous.default, x), *self.arguments, self.group)
        return lambda: unpack(emit(WAIT, sent))

    def finished(self, emit: Emit, arrived: Node) -> Node:
        """Return the value of the op, contiguous unless it is what arrived: some kernels ignore strides."""
        value = self.finish(arrived)
        return value if value is arrived else emit(aten.contiguous.default, value)

    def sent_and_finished(self, emit: Emit) -> Node:
        """Return the value of the op, waited for at once."""
        return self.finished(emit, self.send(emit)())


_NODE = instance(Node, expected="a node of the graph, as `site.emit` returns it")
_FIELDS = {"x": _NODE, "finish": Function("arrived", returns=_NODE)}
"""Field of a message → its kind, of those that emitters give."""


@attrs.define(frozen=True, slots=False)
class Site:
    """One collective from the point of view of one rank.

    Attributes:
        emit: (op, *arguments) → the node that calls it.
        group_name: axes → the name of their process group.
        mesh: the mesh.
        rank: in mesh order.
        meta: the global shape and the element type of the tensor.
        source, target: the shardings of operand and result.
        argument: the op's literal arguments.
        states: name → what the ranks keep for it, on this rank, and its kind.
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
        """Return the axes that the op names, without those of one rank on which its placements change nothing."""
        return tuple(
            axis
            for axis in self.argument.get("axes", ())
            if self.mesh.sizes[axis] > 1 or not (self._plain(self.source[axis]) and self._plain(self.target[axis]))
        )

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Return the axes of the group, in the order that the op names them."""
        return tuple(axis for axis in self.named if self.mesh.sizes[axis] > 1)

    def _plain(self, placement: Placement) -> bool:
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
        return TORCH_DTYPES[self.dtype]

    @property
    def ranks(self) -> int:
        return len(self.shape)

    def local_type(self, sharding: Sharding) -> TensorMeta:
        """Return the shape and element type of what this rank has under `sharding`."""
        return sharding.local_type(self.meta, self.mesh, self.mesh.coordinate(self.rank))

    def local(self, sharding: Sharding) -> tuple[int, ...]:
        """Return the local shape on this rank under `sharding`."""
        return self.local_type(sharding).shape

    def partition(self, sharding: Sharding, dim: int, axes: Sequence[str] | None = None) -> DimPartition:
        """Return how `axes`, by default those that the op names, partition `dim` under `sharding`."""
        axes = self.named if axes is None else axes
        nested = [axis for axis in sharding.dim_axes(dim) if axis in axes]
        return partition_of(sharding, dim, nested, self.shape[dim], self.mesh, self.rank)

    def own(self, partition: DimPartition) -> Ranges:
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
        moved: torch.dtype | None = None,
        taken: Sequence[int] | None = None,
    ) -> Message:
        """Return what a functional collective sends of `x` in the group over `axes`; without axes, nothing.

        Args:
            moved, taken: see `Message`.
        """
        axes = self.axes if axes is None else axes
        if not axes:
            return Message(x, finish)
        return Message(x, finish, op, arguments, self.group(axes), moved, None if taken is None else tuple(taken))

    def move(
        self,
        op: Any,
        x: Node,
        *arguments: Any,
        finish: Callable[[Node], Node],
        axes: Sequence[str] | None = None,
        taken: Sequence[int] | None = None,
    ) -> Message:
        """Call `send` for a collective that changes no element of `x`."""
        return self.send(op, x, *arguments, finish=finish, axes=axes, moved=self.torch_dtype, taken=taken)


def here(value: Node) -> Message:
    """Return the message of a collective that sends nothing and whose result is `value`.

    Args:
        value: a node.

    Raises:
        ShardingError: it is no node.

    Example:
        >>> return spmdir.placement.here(x)
    """
    return Message(value, _same)


def _same(value: Node) -> Node:
    return value
