"""One collective as one rank sees it, and what a started one leaves to be done after the wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import attrs
import torch
from torch.fx import Node

from spmdir.lowering.cut import Cut, Emit, aten, cut_of
from spmdir.lowering.groups import GroupName
from spmdir.mesh import Mesh
from spmdir.sharding import Sharding

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
    """One collective as one rank sees it; axes with one rank are left out.

    Attributes:
        shape: the global shape of the tensor.
        dtype: its element type, in MLIR's spelling.
        argument: the op's literal arguments.
    """

    emit: Emit
    group_name: GroupName
    mesh: Mesh
    rank: int
    source: Sharding
    target: Sharding
    shape: tuple[int, ...]
    dtype: str
    argument: Mapping[str, Any]

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes of the group, in the order that the op names them."""
        return tuple(axis for axis in self.argument.get("axes", ()) if self.mesh.sizes[axis] > 1)

    @property
    def ranks(self) -> int:
        return len(self.shape)

    def local(self, sharding: Sharding) -> tuple[int, ...]:
        """The shape of what this rank holds under `sharding`."""
        return sharding.local_shape(self.shape, self.mesh, self.mesh.coordinate(self.rank))

    def cut(self, sharding: Sharding, dim: int) -> Cut:
        """How the group cuts `dim` under `sharding`."""
        return cut_of(sharding, dim, self.axes, self.shape[dim], self.mesh, self.rank)

    def own(self, cut: Cut) -> tuple[int, int]:
        """(offset, length) of this rank's piece."""
        return cut.pieces[self.mesh.index(self.rank, self.axes)]

    def send(self, op: Any, x: Node, *arguments: Any, axes: tuple[str, ...] | None = None) -> Node:
        """Call a functional collective on `x`, made contiguous, in the group over `axes`."""
        axes = self.axes if axes is None else axes
        name = self.group_name(self.mesh.merge(axis for axis in self.mesh.axis_names if axis in axes))
        return self.emit(op, self.emit(aten.contiguous.default, x), *arguments, name)


def here(value: Node) -> Started:
    """A collective that sends nothing."""
    return Started(value, False, lambda result: result)
