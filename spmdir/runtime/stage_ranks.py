"""The ranks of a pipelined step, on one of them: its coordinate on the pipeline axis, and the ranks of its stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch.distributed as dist
from torch import fx
from torch.distributed.device_mesh import DeviceMesh

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.pipeline_axis import PipelineAxis
from spmdir.lowering.process_groups import device_groups, group_names, symbolic_axes
from spmdir.runtime.ranks import Ranks


@attrs.frozen(eq=False)
class StageRanks:
    """The ranks of a pipelined step.

    Attributes:
        all: all ranks, with the mesh that contains the pipeline axis.
        within: the ranks with the same coordinate on the pipeline axis as this one, with the mesh of the other axes.
        coordinate: the index of this rank along the pipeline axis.
        peers: [coordinate], the global rank with the same index in the mesh of the other axes.
        group: the process group of `peers`.
    """

    all: Ranks
    within: Ranks
    coordinate: int
    peers: tuple[int, ...]
    group: Any

    @classmethod
    def of(cls, ranks: Ranks, pipeline: PipelineAxis) -> StageRanks:
        """Return the ranks of a pipelined step; all ranks must call this, because it may create process groups."""
        mesh, axis = pipeline.other_axes(ranks.mesh), pipeline.axis
        other_axes = [name for name in ranks.mesh.axis_names if name != axis]
        device_mesh = ranks.device_mesh
        if not other_axes:
            # Stages have one rank each: add an axis of size 1, because the mesh of a stage needs an axis.
            column = device_mesh.mesh.reshape(-1, 1)
            device_mesh = DeviceMesh(ranks.device.type, column, mesh_dim_names=(axis, *mesh.axis_names))
        members = ranks.mesh.group(ranks.index, other_axes)
        within = attrs.evolve(
            ranks, mesh=mesh, device_mesh=device_mesh[mesh.axis_names], group=ranks.group.make_subgroup(members)
        )
        peers = tuple(ranks.group.members[index] for index in ranks.mesh.group(ranks.index, [axis]))
        return cls(ranks, within, ranks.mesh.coordinate(ranks.index)[axis], peers, device_mesh.get_group(axis))

    def connect(self, graphs: Iterable[fx.GraphModule]) -> None:
        """Prepare graphs of this rank to run, in place; all ranks must call this, because it creates process groups.

        A process group must be created by all ranks in the same order, but ranks of other stages have other graphs. So
        all ranks first exchange the names of the groups in their graphs, and create the groups of all.
        """
        graphs = list(graphs)
        names_of_peers: list[list[str]] = [[] for _ in self.peers]
        names = sorted({name for graph in graphs for name in group_names(graph)})
        dist.all_gather_object(names_of_peers, names, group=self.group)
        group_of = device_groups(self.within.mesh, self.within.device_mesh)
        for name in sorted({name for names in names_of_peers for name in names}):
            group_of(symbolic_axes(name) or (), name.partition("#")[2] or None)
        for graph in graphs:
            self.within.connect(graph)

    @contextmanager
    def exchange(self, operation: str) -> Iterator[None]:
        """Run messages along the pipeline axis in the body.

        Args:
            operation: the name of the messages in errors.

        Raises:
            SpmdirError: a message fails, because another rank has ended, hangs or had an error.
        """
        try:
            yield
        except RuntimeError as error:
            errors = self.all.group.reported_errors() or "another rank has ended or hangs; "
            reason = str(error).partition("\n")[0]
            raise SpmdirError(f"{operation} fails on rank {self.all.index}: {errors}{reason}") from error
