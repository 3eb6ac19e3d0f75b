"""The ranks that run programs together, as one of them sees them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import attrs
import torch
from torch import fx

from spmdir.core.mesh import Mesh
from spmdir.lowering.compiled import run_compiled
from spmdir.lowering.in_place import sum_in_place
from spmdir.lowering.process_groups import name_groups
from spmdir.runtime.agreement import RankGroup


@attrs.frozen(eq=False, kw_only=True)
class Ranks:
    """This rank, the others, and how calls give tensors.

    Attributes:
        device_mesh: the torch DeviceMesh like `mesh`, whose process groups programs run in.
        device: where this rank runs.
        group: the ranks.
        local_inputs: whether calls are given this rank's shards of the inputs.
        timeout: of the process groups of programs, in seconds; None to leave it as it is.
        compile: Inductor's options for programs; None to run them as they are.
    """

    mesh: Mesh
    device_mesh: Any
    device: torch.device
    group: RankGroup
    local_inputs: bool
    timeout: float | None = None
    compile: Mapping[str, Any] | None = None

    @property
    def index(self) -> int:
        """The place of this rank in the mesh."""
        return self.group.index

    def group_along(self, axes: Set[str]) -> RankGroup:
        """Return the ranks with the place of this one along all axes but `axes`, which may be parts of axes."""
        mesh, parts = self._parts(axes)
        return self.group.part(mesh.group(self.index, [axis for axis in mesh.axis_names if axis in parts]))

    def group_across(self, axes: Set[str]) -> RankGroup:
        """Return the ranks with the place of this one along `axes`, which may be parts of axes."""
        mesh, parts = self._parts(axes)
        return self.group.part(mesh.group(self.index, [axis for axis in mesh.axis_names if axis not in parts]))

    def _parts(self, axes: Set[str]) -> tuple[Mesh, Set[str]]:
        mesh = self.mesh.refine(axes)
        return mesh, {part for axis in axes for part in mesh.parts(axis)}

    def connect(self, graph: fx.GraphModule) -> None:
        """Make a program of this rank ready to run; all ranks call this alike, for it makes process groups."""
        if self.compile is None:
            sum_in_place(graph)
        name_groups(graph, self.mesh, self.device_mesh, self.timeout)
        if self.compile is not None:
            run_compiled(graph, self.compile)
