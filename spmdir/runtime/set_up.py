"""The first steps of `parallelize` and `shard_module`: ranks agree on mesh, machine and options, and decide once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.mesh import Mesh, as_mesh
from spmdir.core.placement.pipeline_axis import PipelineAxis
from spmdir.dialects.size_ops import open_sizes
from spmdir.pipeline.pipeline import Pipeline
from spmdir.runtime.agreement import RankGroup
from spmdir.runtime.decision import decide_once
from spmdir.runtime.default_pipeline import running_pipeline
from spmdir.runtime.digests import package_digest, value_digest
from spmdir.runtime.parallel_options import ChosenOptions
from spmdir.runtime.per_rank_sizes import allow_different_sizes
from spmdir.runtime.rank_mesh import check_world, given_device_mesh, make_device_mesh, mesh_members, rank_device
from spmdir.runtime.ranks import Ranks


@attrs.frozen(eq=False, kw_only=True)
class SetUp:
    """The settings that the ranks of a mesh have agreed on, before a program is captured.

    Attributes:
        group: the ranks.
        mesh: the mesh.
        device: the device of this rank.
        device_mesh: the DeviceMesh of the caller; None to make one.
        pipeline: the passes to run on the program.
        cache: the directory in which the first rank keeps decided programs; None for no cache.
        sync_state: whether the state is copied from the first rank instead of being compared.
        local_inputs, compile: as in `Ranks`.
        rank: the index of this rank in the mesh.
    """

    group: RankGroup
    mesh: Mesh
    device: torch.device
    device_mesh: DeviceMesh | None
    pipeline: Pipeline
    cache: str | os.PathLike[str] | None
    sync_state: bool
    local_inputs: bool
    compile: Mapping[str, Any] | None
    rank: int = attrs.field(default=attrs.Factory(lambda self: self.group.index, takes_self=True))

    def for_stages(self, pipeline: PipelineAxis) -> SetUp:
        """Return the settings for the programs of stages, which are over the other axes of the mesh."""
        mesh = pipeline.other_axes(self.mesh)
        other_axes = [axis for axis in self.mesh.axis_names if axis != pipeline.axis]
        return attrs.evolve(self, mesh=mesh, rank=self.mesh.index(self.rank, other_axes))

    def decide_once(self, imported: ModuleOp, model: Any) -> ModuleOp:
        """Return the decided form of a module that all ranks have imported; its cache entry is named after `model`.

        Raises:
            SpmdirError: as `decide_once`.
        """
        name = getattr(model, "__name__", type(model).__name__)
        with self.pipeline.rules:
            return decide_once(imported, self.pipeline, self.group, self.cache, name)

    def for_decision_of(self, imported: ModuleOp) -> SetUp:
        """Return the settings for the decision of a program; with local inputs, the decision allows different sizes."""
        if not self.local_inputs or not open_sizes(imported).hints:
            return self
        return attrs.evolve(self, pipeline=allow_different_sizes(self.pipeline, imported))

    def connect_ranks(self) -> Ranks:
        """Return the ranks with a device mesh; all ranks must call this, because it may create process groups."""
        return Ranks(
            mesh=self.mesh,
            device_mesh=make_device_mesh(self.mesh, self.device) if self.device_mesh is None else self.device_mesh,
            device=self.device,
            group=self.group,
            local_inputs=self.local_inputs,
            timeout=self.group.timeout if self.device_mesh is None else None,
            compile=self.compile,
        )


def set_up(
    operation: str, mesh: Mesh | DeviceMesh, options: ChosenOptions, check_arguments: Callable[[], None] = lambda: None
) -> SetUp:
    """Compare the settings of the ranks, and return them.

    Args:
        operation: the call that the ranks make, for errors.
        check_arguments: raises SpmdirError for arguments of the wrong type.

    Raises:
        SpmdirError: there is no process group, or its size differs from that of the mesh; an option has the wrong type;
            or ranks differ. All ranks raise.
    """
    if not dist.is_initialized():
        check_arguments()  # a wrong argument comes before a missing process group
        options.check()
    device_mesh = given_device_mesh(mesh, options.device_mesh)
    group = RankGroup.join(mesh_members(device_mesh))
    with group.check_agreement(operation) as status:
        check_arguments()
        options.check()
        mesh, device = as_mesh(mesh), rank_device(device_mesh)
        pipeline = running_pipeline(options.pipeline, device.type)
        status |= {"pipeline": {"text": str(pipeline), "digest": pipeline.digest}}
        status |= {"torch": torch.__version__, "spmdir": package_digest(), "mesh": str(mesh)}
        status |= {"sync_state": options.sync_state, "local_inputs": options.local_inputs}
        status |= {"compile": value_digest(options.inductor)}
        check_world(mesh, device_mesh)
    return SetUp(
        group=group,
        mesh=mesh,
        device=device,
        device_mesh=device_mesh,
        pipeline=pipeline,
        cache=options.cache,
        sync_state=options.sync_state,
        local_inputs=options.local_inputs,
        compile=options.inductor,
    )
