"""DTensor's plans for a reshard as steps of spmdir's planner, to price both with one cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, Placement, R, Shard, plugins
from spmdir.reshard.collectives import collectives_between
from spmdir.reshard.steps import Step, make_step

PLANNERS = {"DTensor, greedy": False, "DTensor, min-cost": True}
"""Name of a planner → its value of `use_graph_based_transform`. The first planner is DTensor's default."""

Plans = dict[str, list[Step] | str]
"""Name of a planner → its steps, or the reason why it has no plan. Each step is over one axis."""


def dtensor_plans(shape: Sequence[int], source: Sharding, target: Sharding, mesh: Mesh) -> Plans:
    """Return DTensor's plans for one reshard."""
    with dtensor_planner(mesh) as plans:
        return plans(shape, source, target)


@contextmanager
def dtensor_planner(mesh: Mesh) -> Iterator[Callable[[Sequence[int], Sharding, Sharding], Plans]]:
    """Yield a function (shape, source, target) → the plans of that reshard, for many reshards on one mesh.

    It calls DTensor's planners, with a fake process group for all ranks.
    """
    import torch.distributed as dist

    from spmdir.torch_interop.dtensor_planner import FakeStore

    dist.init_process_group("fake", rank=0, world_size=mesh.world_size, store=FakeStore())
    try:
        device_mesh = dist.device_mesh.init_device_mesh(
            "cpu", tuple(mesh.sizes.values()), mesh_dim_names=mesh.axis_names
        )

        def plans(shape: Sequence[int], source: Sharding, target: Sharding) -> Plans:
            """Return the plans of both planners. DTensor has no plan with a plug-in placement."""
            foreign = plugins(placement for _, placement in (*source.entries, *target.entries))
            if foreign:
                return dict.fromkeys(PLANNERS, f"has no {foreign[0]}")
            before, after = (_spec(sharding, device_mesh, tuple(shape), mesh) for sharding in (source, target))
            plans_by_name: Plans = {}
            for name, uses_graph in PLANNERS.items():
                plans_by_name[name] = _plan_reshard(before, after, uses_graph, source, mesh, tuple(shape))
            return plans_by_name

        yield plans
    finally:
        dist.destroy_process_group()


def _spec(sharding: Sharding, device_mesh: Any, shape: tuple[int, ...], mesh: Mesh) -> Any:
    """Return a sharding as DTensor's specification of a tensor of this shape."""
    from torch.distributed import tensor

    from spmdir.torch_interop.dtensor_planner import spec

    def placement(spmdir_placement: Placement) -> Any:
        """Return a standard placement as DTensor's."""
        if spmdir_placement.dim is not None:
            return tensor.Shard(spmdir_placement.dim)
        return tensor.Partial(spmdir_placement.op) if spmdir_placement.op else tensor.Replicate()

    # (dimension, indices of the axes that shard it, outermost first). DTensor's default is the order of the mesh.
    order = []
    for dim in range(len(shape)):
        axes = sharding.dim_axes(dim)
        if axes:
            order.append((dim, tuple(mesh.axis_names.index(axis) for axis in axes)))
    return spec(device_mesh, [placement(sharding[axis]) for axis in mesh.axis_names], shape, order)


def _plan_reshard(
    source: Any, target: Any, uses_graph: bool, sharding: Sharding, mesh: Mesh, shape: tuple[int, ...]
) -> list[Step] | str:
    """Return the plan of one of DTensor's planners as steps, or the reason why it has none.

    Args:
        source: DTensor's specification before the reshard.
        target: the specification after it.
        uses_graph: the value of `use_graph_based_transform`.
        sharding: the sharding before the reshard.
    """
    from spmdir.torch_interop.dtensor_planner import transitions

    try:
        infos = transitions(source, target, uses_graph)
    except Exception as error:
        # Any exception of DTensor's planner is reported as its result.
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    steps: list[Step] = []
    for info in infos:
        axis = mesh.axis_names[info.mesh_dim]
        before, after = (_to_placement(placement) for placement in info.src_dst_placements)
        kinds = collectives_between(before.trait, after.trait)
        if not kinds:
            return f"plans {before} to {after} on [{axis}] in one step, for which there is no collective"
        kind = kinds[0].name
        dim, to_dim = (before.dim, after.dim) if before.dim is not None else (after.dim, None)
        try:
            step = make_step(
                kind, sharding, mesh, shape, axes=(axis,), dim=dim, to_dim=to_dim, reduction=after.op or before.op
            )
        except ShardingError as error:
            return f"{kind} on [{axis}] is not a step here: {error.message}"
        steps.append(step)
        sharding = step.target
    return steps


def _to_placement(placement: Any) -> Placement:
    """Return the placement that equals one of DTensor."""
    if placement.is_partial():
        return Partial(placement.reduce_op)
    return R if placement.is_replicate() else Shard(placement.dim)
