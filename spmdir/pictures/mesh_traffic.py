"""The data of the picture of a mesh: its axes, its links, and the traffic of its groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmdir.core.axis_colors import axis_color
from spmdir.core.mesh import Mesh
from spmdir.report.rank_step import RankStep
from spmdir.report.schedule import CollectiveShare
from spmdir.schedule.program import Transfer

MAX_RANKS = 4096
"""The largest number of ranks that are drawn."""


def mesh_traffic(step: RankStep, shares: Sequence[CollectiveShare]) -> dict[str, Any]:
    """Return the axes of a mesh, the number of drawn ranks, the bandwidths of its links, and the traffic of its groups.

    Args:
        shares: the collectives of the step, by kind and axes.
    """
    mesh, machine = step.mesh, step.machine
    intra_axes = mesh.axis_names if mesh.intra_node is None else mesh.intra_node
    links = [["links within a node", machine.intra_bandwidth], ["links between nodes", machine.inter_bandwidth]]
    return {
        "mesh": [
            {"axis": axis, "size": size, "color": axis_color(axis, mesh.axis_names), "inside": axis in intra_axes}
            for axis, size in mesh.axes
        ],
        "drawn": _drawn_ranks(mesh),
        "links": links,
        "groups": _groups(step, shares),
    }


def _groups(step: RankStep, shares: Sequence[CollectiveShare]) -> list[dict[str, Any]]:
    """Return one entry for each set of axes with collectives.

    An entry has the bytes, the number of messages, the busy seconds of each kind of link, the indices of its shares,
    and the group of each rank.
    """
    members_of_axes: dict[tuple[str, ...], list[int]] = {}
    for index, share in enumerate(shares):
        members_of_axes.setdefault(share.axes, []).append(index)
    transfers: dict[tuple[str, ...], list[Transfer]] = {}
    for task in step.execution.program.tasks:
        if task.transfer is not None:
            transfers.setdefault(task.transfer.axes, []).append(task.transfer)
    groups: list[dict[str, Any]] = []
    for axes, members in members_of_axes.items():
        busy_inside_nodes = sum(transfer.intra for transfer in transfers[axes])
        busy_between_nodes = sum(transfer.inter for transfer in transfers[axes])
        groups.append({
            "axes": list(axes),
            "bytes": sum(shares[index].wire_bytes for index in members),
            "count": sum(shares[index].count for index in members),
            "busy": [busy_inside_nodes, busy_between_nodes],
            "shares": members,
            "groups": group_numbers(step.mesh, axes) if axes else [],  # copies to the host have no groups
        })  # fmt: skip
    return groups


def group_numbers(mesh: Mesh, axes: Sequence[str]) -> list[int]:
    """Return for each drawn rank the number of its group along `axes`. Groups are numbered by their first ranks."""
    group_of_rank: dict[int, int] = {}
    group_count = 0
    for rank in range(_drawn_ranks(mesh)):
        if rank not in group_of_rank:
            group_of_rank.update(dict.fromkeys(mesh.group(rank, axes), group_count))
            group_count += 1
    return [group_of_rank[rank] for rank in range(_drawn_ranks(mesh))]


def _drawn_ranks(mesh: Mesh) -> int:
    """Return how many ranks the picture shows."""
    return min(mesh.world_size, MAX_RANKS)
