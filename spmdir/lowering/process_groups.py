"""Names of the process groups that collectives run in."""

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
    """Mesh axes, in mesh order → the name of the process group over them, in ascending rank order.

    A stream is a group of its own over its axes, whose collectives wait for those of no other; None is that which all
    share that name none.
    """

    def __call__(self, axes: tuple[str, ...], stream: str | None = None) -> str: ...


_PREFIX, _STREAM = "mesh:", "#"

AXES = "mesh_axes"
"""The key of a node's meta under which `name_groups` keeps the mesh axes of its group."""


def symbolic_group(axes: tuple[str, ...], stream: str | None = None) -> str:
    """Return the name of the group over `axes` where there are no processes: `mesh:dp,tp`, or `mesh:dp#prefetch`."""
    return _PREFIX + ",".join(axes) + (_STREAM + stream if stream else "")


def symbolic_axes(name: str) -> tuple[str, ...] | None:
    """Return the axes of a name made by `symbolic_group`; None for any other name."""
    return tuple(name.removeprefix(_PREFIX).partition(_STREAM)[0].split(",")) if name.startswith(_PREFIX) else None


def _symbolic_stream(name: str) -> str | None:
    """Return the stream of a name made by `symbolic_group`."""
    return name.partition(_STREAM)[2] or None


def device_groups(mesh: Mesh, device_mesh: Any) -> GroupName:
    """Return the groups of a torch DeviceMesh, which must be `mesh`, as this process knows them.

    Raises:
        ShardingError: axis names, sizes or the order of ranks differ.
    """
    found = tuple(zip(device_mesh.mesh_dim_names or (), device_mesh.mesh.shape, strict=False))
    if found != mesh.axes:
        raise ShardingError(
            f"the device mesh has axes {dict(found)}, the module has {mesh.sizes}; give one that agrees"
        )
    ranks = device_mesh.mesh.flatten().tolist()
    if ranks != sorted(ranks):
        raise ShardingError(
            f"the device mesh lists ranks as {ranks}; expected ascending order, as init_device_mesh makes"
        )

    return lambda axes, stream=None: _group(mesh, device_mesh, axes, stream).group_name


def _group(mesh: Mesh, device_mesh: Any, axes: tuple[str, ...], stream: str | None = None) -> Any:
    """Return the process group of this process over `axes`, sub-axes among them, of a torch DeviceMesh, which must be
    `mesh`.

    DeviceMesh knows the groups of whole axes. Those of sub-axes and streams are made once and kept with it; every rank
    asks for groups in the same order, so that the ranks of each meet in making it.
    """
    if stream is None and not any(map(is_part, axes)):
        part = device_mesh[axes[0]] if len(axes) == 1 else flat_mesh(device_mesh[axes])
        return part.get_group()
    known = device_mesh.__dict__.setdefault("_spmdir_groups", {})
    if (axes, stream) not in known:
        ranks = device_mesh.mesh.flatten().tolist()
        members = [ranks[member] for member in mesh.group(device_rank(device_mesh), axes)]
        known[axes, stream] = dist.new_group(sorted(members), use_local_synchronization=True)
    return known[axes, stream]


def name_groups(program: fx.GraphModule, mesh: Mesh, device_mesh: Any, timeout: float | None = None) -> None:
    """Replace the names by mesh axes of a program's groups by those of a torch DeviceMesh, which must be `mesh`.

    All ranks must do this alike, for it makes the groups that there are not yet.

    Args:
        timeout: of the groups, in seconds; None to leave it as it is.
    """
    named = {text: symbolic_axes(text) for text in group_names(program)}
    found: dict[str, str] = {}
    for name, axes in named.items():
        group = _group(mesh, device_mesh, axes or (), _symbolic_stream(name))
        if timeout is not None:
            set_timeout(group, timeout)
        found[name] = group.group_name
    for node in program.graph.nodes:
        for text in node.args:
            if isinstance(text, str) and text in found:
                node.meta[AXES] = named[text]
        node.args = tuple(found.get(text, text) if isinstance(text, str) else text for text in node.args)
    write_gathers(program, device_mesh)
    program.recompile()
    generate(program)


def generate(program: Any) -> Any:
    """Return `program` with its Python generated, as what traces it expects, if that was left until it is asked for.

    A program whose groups are named by mesh axes cannot be run, so nothing may ever ask: simulation and reports go by
    its graph, and generating Python takes longer than emitting the graph.
    """
    generate_code(program)
    return program


def group_names(program: fx.GraphModule) -> list[str]:
    """Return the names by mesh axes of the groups that the collectives of a program run in, sorted."""
    return sorted(set(_group_names(program)))


def is_runnable(program: fx.GraphModule) -> bool:
    """Return whether no group of a program is named by mesh axes."""
    return next(_group_names(program), None) is None


def _group_names(program: fx.GraphModule) -> Iterator[str]:
    texts = (text for node in program.graph.nodes for text in node.args if isinstance(text, str))
    return (text for text in texts if symbolic_axes(text) is not None)


def connect(program: Any, device_mesh: Any) -> None:
    """Make known in this process the groups that a program names by mesh axes, as those of a torch DeviceMesh.

    Args:
        program: an fx.GraphModule or an ExportedProgram that was made without a device mesh.

    Raises:
        ShardingError: the device mesh has no such axis.
    """
    for name in group_names(program):
        axes = symbolic_axes(name) or ()
        mesh = Mesh(zip(device_mesh.mesh_dim_names or (), device_mesh.mesh.shape, strict=False))
        for axis in axes:
            try:
                mesh.require(axis)
            except ShardingError as error:
                raise error.at(None, "the program does not fit the device mesh") from None
        register_group(name, _group(mesh, device_mesh, axes, _symbolic_stream(name)))
    generate(program)


def device_rank(device_mesh: Any) -> int:
    """Return the row-major position of this process in a torch DeviceMesh.

    Raises:
        ShardingError: the process is not in the mesh.
    """
    if not hasattr(device_mesh, "get_coordinate"):
        raise ShardingError(f"device_mesh is {shown(device_mesh)}; expected a torch DeviceMesh, as of init_device_mesh")
    coordinate = device_mesh.get_coordinate()
    if coordinate is None:
        raise ShardingError("this process is not in the device mesh; call this only on ranks of the mesh")
    position = 0
    for index, size in zip(coordinate, device_mesh.mesh.shape, strict=True):
        position = position * size + index
    return position
