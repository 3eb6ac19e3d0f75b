"""Edge states: tensors that ranks keep between runs of a program, as values of the program."""

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
    """An edge state of a step, as one global tensor.

    Attributes:
        name: its name in the edge.
        meta: the global type, [ranks, …]: the local tensors of the ranks, stacked.
        sharding: `S(0)` over the axes along which the local tensors differ.
        initial: the initial value, as the edge declares it.
        feedback: whether it is error feedback: the part of the value that earlier runs did not send.
    """

    name: str
    meta: TensorMeta
    sharding: Sharding
    initial: str
    feedback: bool = False


def step_states(step: Step, meta: TensorMeta, mesh: Mesh) -> tuple[StepState, ...]:
    """Return the edge states of `step` on a tensor of global type `meta`, in the order that its edge declares.

    The local tensors of a state differ along the axes that shard the operand or leave it partial. They also differ
    along the axes of the step, unless the state is `shared`.
    """
    edge = declared_edge(step, mesh)
    if edge is None or not edge.state:
        return ()
    local, count = local_shape(step.source, meta.shape, mesh), mesh.group_size(step.axes)
    states = edge.states(local, count)
    # the mesh with the axes of the step and of the operand split into their common sub-axes
    fine = mesh.refine([*step.axes, *(axis for axis, _ in step.source.entries)])
    moved_axes = {part for axis in step.axes for part in fine.parts(axis)}
    varying_axes = {axis for axis, placement in step.source.refined(fine).entries if placement.trait != "replicated"}
    states_of_step = []
    for name, state in states.items():
        shape = state.local_shape(local, count)  # the global type stacks one tensor of this shape for each rank
        state_axes = varying_axes - moved_axes if state.shared else varying_axes | moved_axes
        axes = [axis for axis in fine.axis_names if axis in state_axes]
        sharding = Sharding([(axis, Shard(0)) for axis in mesh.merge(axes)], step.source.mesh)
        global_meta = TensorMeta((fine.group_size(axes), *shape), as_dtype(state.dtype or meta.dtype))
        try:
            check_shape(global_meta.shape)
        except LimitError as error:
            raise error.at(place(state.shape), f"'{name}'") from None
        states_of_step.append(StepState(name, global_meta, sharding, state.initial, state.feedback))
    return tuple(states_of_step)
