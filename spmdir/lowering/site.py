"""One collective as one rank sees it, and what a started one leaves to be done after the wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import torch
from torch.fx import Node

from spmdir.core.dtype import DType
from spmdir.core.intervals import Ranges
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import ShardPlacement
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.standard import Placement
from spmdir.core.sharding import Sharding
from spmdir.lowering.partition import Cut, cut_of
from spmdir.lowering.process_groups import GroupName
from spmdir.lowering.ranges import Emit, aten
from spmdir.lowering.wire import packed
from spmdir.torch_interop.dtypes import TORCH_DTYPES

functional = torch.ops._c10d_functional
WAIT = functional.wait_tensor.default


@attrs.frozen
class Started:
    """A collective whose result may still be on its way.

    Attributes:
        value: the operand of the wait, or the operand itself if nothing is sent.
        sent: whether there is something to wait for.
        finish: result of the wait → the value that the op gives.
    """

    value: Node
    sent: bool
    finish: Callable[[Node], Node]

    def wait(self, emit: Emit) -> Node:
        """The value that the op gives, contiguous if the op made it: some kernels ignore strides."""
        received = emit(WAIT, self.value) if self.sent else self.value
        value = self.finish(received)
        return value if value is received else emit(aten.contiguous.default, value)


@attrs.define(frozen=True, slots=False)
class Site:
    """One collective as one rank sees it.

    Attributes:
        shape: the global shape of the tensor.
        dtype: its element type.
        argument: the op's literal arguments.
    """

    emit: Emit
    group_name: GroupName
    mesh: Mesh
    rank: int
    source: Sharding
    target: Sharding
    shape: tuple[int, ...]
    dtype: DType
    argument: Mapping[str, Any]

    @cached_property
    def named(self) -> tuple[str, ...]:
        """The axes that the op names, but for those of one rank on which its placements change nothing."""
        return tuple(
            axis
            for axis in self.argument.get("axes", ())
            if self.mesh.sizes[axis] > 1 or not (self._plain(self.source[axis]) and self._plain(self.target[axis]))
        )

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes of the group, in the order that the op names them."""
        return tuple(axis for axis in self.named if self.mesh.sizes[axis] > 1)

    def _plain(self, placement: Placement) -> bool:
        """Whether a rank that holds a tensor alone by `placement` holds it as it is."""
        if isinstance(placement, ShardPlacement):
            size = self.shape[placement.dim]
            return placement.ranges(size, 1, 0) == ((0, size),)
        return placement.trait == "replicated" or placement.op in REDUCTIONS

    @property
    def dim(self) -> int:
        """The dimension that the op shards or gathers."""
        return self.argument["dim"]

    @property
    def torch_dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.dtype]

    @property
    def ranks(self) -> int:
        return len(self.shape)

    def local(self, sharding: Sharding) -> tuple[int, ...]:
        """The shape of what this rank holds under `sharding`."""
        return sharding.local_shape(self.shape, self.mesh, self.mesh.coordinate(self.rank))

    def cut(self, sharding: Sharding, dim: int, axes: Sequence[str] | None = None) -> Cut:
        """How `axes`, by default those that the op names, cut `dim` under `sharding`."""
        axes = self.named if axes is None else axes
        nested = [axis for axis in sharding.dim_axes(dim) if axis in axes]
        return cut_of(sharding, dim, nested, self.shape[dim], self.mesh, self.rank)

    def own(self, cut: Cut) -> Ranges:
        """The positions of this rank's piece in the block that is cut."""
        return cut.held[self.mesh.index(self.rank, self.named)]

    def group(self, axes: Sequence[str]) -> str:
        """The name of the process group over `axes`."""
        return self.group_name(self.mesh.merge(axis for axis in self.mesh.axis_names if axis in axes))

    def send(
        self, op: Any, x: Node, *arguments: Any, finish: Callable[[Node], Node], axes: Sequence[str] | None = None
    ) -> Started:
        """Call a functional collective on `x`, made contiguous, in the group over `axes`; a rank alone has all."""
        axes = self.axes if axes is None else axes
        if not axes:
            return Started(x, False, finish)
        sent = self.emit(op, self.emit(aten.contiguous.default, x), *arguments, self.group(axes))
        return Started(sent, True, finish)

    def move(
        self, op: Any, x: Node, *arguments: Any, finish: Callable[[Node], Node], axes: Sequence[str] | None = None
    ) -> Started:
        """`send` of a collective that changes no element of `x`: each type goes as all backends carry it."""
        axes = self.axes if axes is None else axes
        if not axes:
            return Started(x, False, finish)
        sent, unpack = packed(self.emit, x, self.torch_dtype)
        return self.send(op, sent, *arguments, finish=lambda came: finish(unpack(came)), axes=axes)


def here(value: Node) -> Started:
    """A collective that sends nothing."""
    return Started(value, False, lambda result: result)
