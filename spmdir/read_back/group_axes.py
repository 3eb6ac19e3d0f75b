"""Find the mesh axes of a process group by its name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from spmdir.core.errors import ShardingError, did_you_mean, require_type
from spmdir.core.mesh import Mesh
from spmdir.lowering.process_groups import symbolic_axes
from spmdir.torch_interop.group_registry import group_ranks

GroupAxes = Mapping[str, "str | Sequence[str]"]
"""Name of a process group → its mesh axes, as a list or as text such as "dp, tp"."""


class GroupTable:
    """The mesh axes of process groups.

    Args:
        groups: the entries of the user. They have precedence over the process groups of this process.
        ranks: for each position in the mesh, its rank in the default process group.

    Raises:
        ShardingError: an entry of `groups` names an axis that the mesh does not have.
    """

    def __init__(self, mesh: Mesh, groups: GroupAxes | None, ranks: Sequence[int]):
        self.mesh, self.ranks = mesh, ranks
        self._axes = {str(name): self._read_axes(axes) for name, axes in (groups or {}).items()}

    def axes_of(self, name: Any) -> tuple[str, ...]:
        """Return the axes of a group, in mesh order.

        Raises:
            ShardingError: the group is unknown, or its ranks are not those of a set of mesh axes.
        """
        if not isinstance(name, str):
            name = getattr(name, "group_name", name)
        name = str(name)
        if name not in self._axes:
            symbolic = symbolic_axes(name)
            self._axes[name] = self._in_mesh_order(symbolic) if symbolic else self._axes_of_process_group(name)
        return self._axes[name]

    def _read_axes(self, axes: str | Sequence[str]) -> tuple[str, ...]:
        """Return the axes of an entry of the user, in mesh order."""
        require_type("the axes of a group", axes, (str, list, tuple), 'a text such as "dp,tp", or a list of names')
        names = [axis.strip() for axis in axes.split(",")] if isinstance(axes, str) else [*axes]
        return self._in_mesh_order(names)

    def _in_mesh_order(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Return `axes` in mesh order; raise ShardingError if the mesh lacks one of them."""
        for axis in axes:
            self.mesh.require(axis)
        fine = self.mesh.refine(axes)
        return tuple(sorted(axes, key=lambda axis: fine.axis_names.index(fine.parts(axis)[0])))

    def _axes_of_process_group(self, name: str) -> tuple[str, ...]:
        """Return the axes of a process group of this process."""
        members = group_ranks(name) if dist.is_available() and dist.is_initialized() else None
        if members is None:
            known = ", ".join(sorted(self._axes)) or "none"
            raise ShardingError(
                f"process group '{name}' is unknown; expected one of this process, or an entry of `groups` (now: "
                f"{known}): pass groups={{'{name}': 'tp'}}, or --group {name}=tp, "
                f"with its mesh axes{did_you_mean(name, self._axes)}"
            )
        position = self.ranks.index(members[0]) if members[0] in self.ranks else 0
        for count in range(1, len(self.mesh.axis_names) + 1):
            for axes in itertools.combinations(self.mesh.axis_names, count):
                if [self.ranks[member] for member in self.mesh.group(position, axes)] == members:
                    return axes
        raise ShardingError(
            f"process group '{name}' has the ranks {members}, which are not those of mesh axes of {self.mesh}; "
            f"expected the group of one or several axes: pass the mesh of the groups, or groups={{'{name}': …}}"
        )
