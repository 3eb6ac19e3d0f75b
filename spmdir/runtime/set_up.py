"""What `parallelize` and `shard_module` begin with: the ranks agree on mesh, machine and options, and decide once."""

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
from spmdir.dialects.sizes import open_sizes
from spmdir.pipeline.pipeline import Pipeline
from spmdir.runtime.agreement import RankGroup
from spmdir.runtime.decision import decided_once
from spmdir.runtime.default_pipeline import running_pipeline
from spmdir.runtime.digests import package_digest, value_digest
from spmdir.runtime.own_sizes import deciding_apart
from spmdir.runtime.parallel_options import ChosenOptions
from spmdir.runtime.rank_mesh import check_world, given_device_mesh, make_device_mesh, mesh_members, rank_device
from spmdir.runtime.ranks import Ranks


@attrs.frozen(eq=False, kw_only=True)
class SetUp:
    """What the ranks of a mesh have agreed on, before a program is captured.

    Attributes:
        group: the ranks.
        device: where this one runs.
        given: the DeviceMesh of the caller; None to make one.
        pipeline: what is run on the program.
        cache: where the first rank keeps decided programs.
        sync_state: whether the state is taken from the first rank instead of being compared.
        local_inputs, compile: as of `Ranks`.
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

    @property
    def rank(self) -> int:
        """The place of this rank in the mesh."""
        return self.group.index

    def decided(self, imported: ModuleOp, model: Any) -> ModuleOp:
        """Return the decided form of a module that all ranks have imported alike, kept under the name of `model`.

        Raises:
            SpmdirError: as `decided_once`.
        """
        name = getattr(model, "__name__", type(model).__name__)
        with self.pipeline.rules:
            return decided_once(imported, self.pipeline, self.group, self.cache, name)

    def deciding(self, imported: ModuleOp) -> SetUp:
        """Return what decides an imported program, for ranks with sizes of their own if they may have them."""
        if not self.local_inputs or not open_sizes(imported).hints:
            return self
        return attrs.evolve(self, pipeline=deciding_apart(self.pipeline, imported))

    def connected(self) -> Ranks:
        """Return the ranks with a device mesh; all of them call this alike, for it may make process groups."""
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
    """Return what the ranks that begin `what` have in common.

    Args:
        check_arguments: raises SpmdirError for arguments of the wrong type.

    Raises:
        SpmdirError: there is no process group, or it has another size than the mesh; an option is of the wrong type; or
            ranks differ. All ranks raise.
    """
    if not dist.is_initialized():
        check_arguments()  # a wrong argument comes before a missing process group
        options.check()
    device_mesh = given_device_mesh(mesh, options.device_mesh)
    group = RankGroup.join(mesh_members(device_mesh))
    with group.checked(operation) as status:
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
