"""What a mesh is drawn from: its axes, its links, and which ranks talk to each other along which axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmdir.core.axis_colors import axis_color
from spmdir.core.mesh import Mesh
from spmdir.report.rank_step import RankStep
from spmdir.report.schedule import CollectiveShare
from spmdir.schedule.program import Transfer

RANKS = 4096
"""How many ranks are drawn at most."""


def mesh_traffic(step: RankStep, shares: Sequence[CollectiveShare]) -> dict[str, Any]:
    """Return the axes of a mesh, how many of its ranks are drawn, the kinds of links that it has, and for each axes
    what is sent along them.

    Args:
        shares: what the collectives of the step take, by kind and axes.
    """
    mesh, machine = step.mesh, step.machine
    inside = mesh.axis_names if mesh.intra_node is None else mesh.intra_node
    links = [["links within a node", machine.intra_bandwidth], ["links between nodes", machine.inter_bandwidth]]
    return {
        "mesh": [
            {"axis": axis, "size": size, "color": axis_color(axis, mesh.axis_names), "inside": axis in inside}
            for axis, size in mesh.axes
        ],
        "drawn": _drawn(mesh),
        "links": links,
        "groups": _groups(step, shares),
    }


def _groups(step: RankStep, shares: Sequence[CollectiveShare]) -> list[dict[str, Any]]:
    """Return for each axes that something is sent along: bytes, messages, seconds that each kind of link is busy, the
    numbers of its shares, and the number of the group of each rank."""
    found: dict[tuple[str, ...], list[int]] = {}
    for at, share in enumerate(shares):
        found.setdefault(share.axes, []).append(at)
    sent: dict[tuple[str, ...], list[Transfer]] = {}
    for task in step.execution.program.tasks:
        if task.transfer is not None:
            sent.setdefault(task.transfer.axes, []).append(task.transfer)
    return [
        {
            "axes": list(axes),
            "bytes": sum(shares[at].wire_bytes for at in members),
            "count": sum(shares[at].count for at in members),
            "busy": [sum(one.intra for one in sent[axes]), sum(one.inter for one in sent[axes])],
            "shares": members,
            "groups": group_numbers(step.mesh, axes) if axes else [],
        }
        for axes, members in found.items()
    ]


def group_numbers(mesh: Mesh, axes: Sequence[str]) -> list[int]:
    """Return for each rank, of the first ones, the number of the group along `axes` that it is in."""
    number: dict[int, int] = {}
    groups = 0
    for rank in range(_drawn(mesh)):
        if rank not in number:
            number.update(dict.fromkeys(mesh.group(rank, axes), groups))
            groups += 1
    return [number[rank] for rank in range(_drawn(mesh))]


def _drawn(mesh: Mesh) -> int:
    return min(mesh.world_size, RANKS)
