"""The ranks that run programs together, on one of them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import attrs
import torch
from torch import fx

from spmdir.core.mesh import Mesh
from spmdir.lowering.compile_program import attach_compiled
from spmdir.lowering.in_place import reduce_in_place, write_caches_in_place
from spmdir.lowering.process_groups import name_groups
from spmdir.runtime.agreement import RankGroup


@attrs.frozen(eq=False, kw_only=True)
class Ranks:
    """The ranks of a mesh, and the settings with which programs run on them.

    Attributes:
        mesh: the mesh.
        device_mesh: the torch DeviceMesh of `mesh`, with the process groups of programs.
        device: the device of this rank.
        group: the ranks, to exchange statuses and errors.
        local_inputs: whether calls pass this rank's shards of the inputs.
        timeout: the timeout of the process groups of programs, in seconds; None to keep the present one.
        compile: the options of Inductor for programs; None to run them without Inductor.
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
        """The index of this rank in the mesh."""
        return self.group.index

    def group_along(self, axes: Set[str]) -> RankGroup:
        """Return the ranks that differ from this one only along `axes`. Sub-axes are allowed."""
        mesh, sub_axes = self._refine(axes)
        return self.group.make_subgroup(mesh.group(self.index, [axis for axis in mesh.axis_names if axis in sub_axes]))

    def group_across(self, axes: Set[str]) -> RankGroup:
        """Return the ranks with the same coordinates as this one along `axes`. Sub-axes are allowed."""
        mesh, sub_axes = self._refine(axes)
        other_axes = [axis for axis in mesh.axis_names if axis not in sub_axes]
        return self.group.make_subgroup(mesh.group(self.index, other_axes))

    def _refine(self, axes: Set[str]) -> tuple[Mesh, Set[str]]:
        """Return the mesh refined to the sub-axes in `axes`, and the axes of this refined mesh that make up `axes`."""
        mesh = self.mesh.refine(axes)
        return mesh, {sub_axis for axis in axes for sub_axis in mesh.parts(axis)}

    def connect(self, graph: fx.GraphModule) -> None:
        """Prepare a program of this rank to run, in place; all ranks must call this, because it creates process groups.

        Groups get the names of this process. Caches are written in place. Without Inductor, all-reduces also write in
        place where they can.
        """
        write_caches_in_place(graph)
        if self.compile is None:
            reduce_in_place(graph)
        name_groups(graph, self.mesh, self.device_mesh, self.timeout)
        if self.compile is not None:
            attach_compiled(graph, self.compile)
