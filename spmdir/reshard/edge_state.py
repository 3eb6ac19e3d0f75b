"""The tensors that steps keep from one run of a program to the next, as tensors of the program."""

from __future__ import annotations

import attrs

from spmdir.core.declared_fields import place
from spmdir.core.dtype import as_dtype
from spmdir.core.errors import LimitError
from spmdir.core.limits import check_shape
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.cost import declared_edge, local_shape
from spmdir.reshard.steps import Step


@attrs.frozen
class StepState:
    """A tensor that the ranks keep for a step.

    Attributes:
        name: what its edge calls it.
        meta: [ranks, …]: what each rank has, one after the other.
        sharding: `S(0)` over the axes along which ranks have their own.
        initial: what it begins with.
        feedback: whether it is what earlier runs left out.
    """

    name: str
    meta: TensorMeta
    sharding: Sharding
    initial: str
    feedback: bool = False


def step_state(step: Step, meta: TensorMeta, mesh: Mesh) -> tuple[StepState, ...]:
    """Return what ranks keep for `step` on a tensor of global type `meta`, in the order that its edge declares.

    Ranks have their own along the axes on which the tensor is not replicated before, but for the axes of a step of
    which all ranks have the same.
    """
    edge = declared_edge(step, mesh)
    if edge is None or not edge.state:
        return ()
    local, count = local_shape(step.source, meta.shape, mesh), mesh.group_size(step.axes)
    states = edge.states(local, count)
    fine = mesh.refine([*step.axes, *(axis for axis, _ in step.source.entries)])
    moved = {part for axis in step.axes for part in fine.parts(axis)}
    apart = {axis for axis, placement in step.source.refined(fine).entries if placement.trait != "replicated"}
    found = []
    for name, state in states.items():
        shape = state.local_shape(local, count)
        own = apart - moved if state.shared else apart | moved
        axes = [axis for axis in fine.axis_names if axis in own]
        sharding = Sharding([(axis, Shard(0)) for axis in mesh.merge(axes)], step.source.mesh)
        whole = TensorMeta((fine.group_size(axes), *shape), as_dtype(state.dtype or meta.dtype))
        try:
            check_shape(whole.shape)
        except LimitError as error:
            raise error.at(place(state.shape), f"'{name}'") from None
        found.append(StepState(name, whole, sharding, state.initial, state.feedback))
    return tuple(found)
