"""Names of the process groups of collectives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch.distributed as dist
from torch import fx

from spmdir.core.axes import is_part
from spmdir.core.errors import ShardingError, shown
from spmdir.core.mesh import Mesh
from spmdir.lowering.gathers import write_gathers
from spmdir.torch_interop.graphs import generate_code
from spmdir.torch_interop.group_registry import flat_mesh, register_group, set_timeout


class GroupName(Protocol):
    """A function from mesh axes, in mesh order, to the name of the process group over them.

    Each stream has a separate group over its axes, so its collectives do not wait for those of other streams. None is
    the shared default stream.
    """

    def __call__(self, axes: tuple[str, ...], stream: str | None = None) -> str: ...


_PREFIX, _STREAM = "mesh:", "#"

AXES = "mesh_axes"
"""The key of a node's meta under which `name_groups` keeps the mesh axes of its group."""


def symbolic_group(axes: tuple[str, ...], stream: str | None = None) -> str:
    """Return the symbolic name of the group over `axes`: `mesh:dp,tp`, or `mesh:dp#prefetch` with a stream."""
    return _PREFIX + ",".join(axes) + (_STREAM + stream if stream else "")


def symbolic_axes(name: str) -> tuple[str, ...] | None:
    """Return the axes of a name made by `symbolic_group`; None for any other name."""
    return tuple(name.removeprefix(_PREFIX).partition(_STREAM)[0].split(",")) if name.startswith(_PREFIX) else None


def _symbolic_stream(name: str) -> str | None:
    """Return the stream of a name made by `symbolic_group`; None for the default stream."""
    return name.partition(_STREAM)[2] or None


def device_groups(mesh: Mesh, device_mesh: Any) -> GroupName:
    """Return the group names of a torch DeviceMesh in this process.

    Args:
        mesh: the mesh that `device_mesh` must equal.

    Raises:
        ShardingError: axis names, sizes or the order of ranks differ.
    """
    device_axes = tuple(zip(device_mesh.mesh_dim_names or (), device_mesh.mesh.shape, strict=False))
    if device_axes != mesh.axes:
        raise ShardingError(
            f"the device mesh has axes {dict(device_axes)}, the module has {mesh.sizes}; expected equal meshes"
        )
    ranks = device_mesh.mesh.flatten().tolist()
    if ranks != sorted(ranks):
        raise ShardingError(
            f"the device mesh lists ranks as {ranks}; expected ascending order, as from init_device_mesh"
        )

    return lambda axes, stream=None: _process_group(mesh, device_mesh, axes, stream).group_name


def _process_group(mesh: Mesh, device_mesh: Any, axes: tuple[str, ...], stream: str | None = None) -> Any:
    """Return the process group of this process over axes or sub-axes of a torch DeviceMesh.

    DeviceMesh has the groups of whole axes. Groups of sub-axes and streams are created once and stored on the device
    mesh. All ranks request groups in the same order, because creating a group is collective.

    Args:
        mesh: the mesh that `device_mesh` equals.
    """
    if stream is None and not any(map(is_part, axes)):
        part = device_mesh[axes[0]] if len(axes) == 1 else flat_mesh(device_mesh[axes])
        return part.get_group()
    groups = device_mesh.__dict__.setdefault("_spmdir_groups", {})
    if (axes, stream) not in groups:
        ranks = device_mesh.mesh.flatten().tolist()  # index in the mesh → global rank
        members = [ranks[member] for member in mesh.group(device_rank(device_mesh), axes)]
        groups[axes, stream] = dist.new_group(sorted(members), use_local_synchronization=True)
    return groups[axes, stream]


def name_groups(program: fx.GraphModule, mesh: Mesh, device_mesh: Any, timeout: float | None = None) -> None:
    """Replace the symbolic group names in a program, in place, by the group names of a torch DeviceMesh.

    The meta `AXES` of each collective keeps the mesh axes. On CPUs, all-gathers change too, see `write_gathers`. Then
    the code of the program is generated.

    All ranks must call this with equal programs, because the call creates missing groups.

    Args:
        mesh: the mesh that `device_mesh` must equal.
        timeout: the timeout of the groups in seconds; None to keep it.
    """
    axes_of_name = {text: symbolic_axes(text) for text in group_names(program)}
    group_name_of: dict[str, str] = {}
    for name, axes in axes_of_name.items():
        group = _process_group(mesh, device_mesh, axes or (), _symbolic_stream(name))
        if timeout is not None:
            set_timeout(group, timeout)
        group_name_of[name] = group.group_name
    for node in program.graph.nodes:
        for text in node.args:
            if isinstance(text, str) and text in group_name_of:
                node.meta[AXES] = axes_of_name[text]
        node.args = tuple(group_name_of.get(text, text) if isinstance(text, str) else text for text in node.args)
    write_gathers(program, device_mesh)
    program.recompile()
    generate(program)


def generate(program: Any) -> Any:
    """Generate the Python code of `program`, if it does not exist yet, and return the program.

    A program that runs or is traced needs the code. Simulations and reports use only the graph, and generating the code
    takes longer than emitting the graph. So the code is generated on demand.
    """
    generate_code(program)
    return program


def group_names(program: fx.GraphModule) -> list[str]:
    """Return the symbolic names of the groups of a program's collectives, sorted."""
    return sorted(set(_group_names(program)))


def is_runnable(program: fx.GraphModule) -> bool:
    """Return whether a program can run: no group has a symbolic name."""
    return next(_group_names(program), None) is None


def _group_names(program: fx.GraphModule) -> Iterator[str]:
    """Yield the symbolic name of the group of each collective, with repetitions."""
    texts = (text for node in program.graph.nodes for text in node.args if isinstance(text, str))
    return (text for text in texts if symbolic_axes(text) is not None)


def connect(program: Any, device_mesh: Any) -> None:
    """Register the groups of a torch DeviceMesh in this process under the symbolic names of a program.

    Then the program can run. All ranks must call this with equal programs, because the call creates missing groups.

    Args:
        program: an fx.GraphModule or an ExportedProgram that was lowered without a device mesh.

    Raises:
        ShardingError: the device mesh lacks an axis.
    """
    for name in group_names(program):
        axes = symbolic_axes(name) or ()
        mesh = Mesh(zip(device_mesh.mesh_dim_names or (), device_mesh.mesh.shape, strict=False))
        for axis in axes:
            try:
                mesh.require(axis)
            except ShardingError as error:
                raise error.at(None, "the program does not fit the device mesh") from None
        register_group(name, _process_group(mesh, device_mesh, axes, _symbolic_stream(name)))
    generate(program)


def device_rank(device_mesh: Any) -> int:
    """Return the row-major position of this process in a torch DeviceMesh.

    Raises:
        ShardingError: the process is not in the mesh.
    """
    if not hasattr(device_mesh, "get_coordinate"):
        raise ShardingError(
            f"device_mesh is {shown(device_mesh)}; expected a torch DeviceMesh, as from init_device_mesh"
        )
    coordinate = device_mesh.get_coordinate()
    if coordinate is None:
        raise ShardingError(
            "this process is not in the device mesh; expected a rank of the mesh: make the call only on ranks "
            "of the mesh"
        )
    position = 0
    for index, size in zip(coordinate, device_mesh.mesh.shape, strict=True):
        position = position * size + index
    return position
