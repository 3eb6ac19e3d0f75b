"""Assign the ops of the backward to stages so that the fewest bytes are sent.

For each boundary between stages, the ops above and below it are a minimum cut. For a gradient `g` of 64 bytes, and the
two ops that use it, `sum` of 8 bytes for a bias of the lower stage, and `mm` of 64 bytes, the cut that sends `g` alone
takes 64 bytes. One that sends `sum` and `g` takes 72. So both ops are in the lower stage.

The ends are fixed: the sum of gradients of a parameter is in the stage of the parameter, and an op is where the forward
values that it uses are, or they are sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs
from xdsl.ir import Operation, OpResult, SSAValue

from spmdir.dialects.attributes import meta_of
from spmdir.schedule.min_cut import INFINITE, minimum_cut
from spmdir.transforms.stages.step_parts import StepParts, free_sources


@attrs.frozen(eq=False)
class ForwardStages:
    """The stages of the forward.

    Attributes:
        count: the number of stages.
        stage_of: op of the forward → its stage.
        homes: argument → the stages whose forward uses it.
    """

    count: int
    stage_of: Mapping[Operation, int]
    homes: Mapping[SSAValue, Collection[int]]

    def places(self, value: SSAValue) -> Collection[int] | None:
        """Return the stages at which a value of the forward is available; None for all of them."""
        if not isinstance(value, OpResult):
            return self.homes.get(value)
        users = (self.stage_of.get(use.operation) for use in value.uses)
        return {self.stage_of[value.op], *(stage for stage in users if stage is not None)}


def byte_size(value: SSAValue) -> int:
    """Return the bytes of a tensor, at least 1."""
    meta = meta_of(value.type)
    return max(meta.bytes, 1) if meta is not None else 1


def backward_stages(parts: StepParts, forward: ForwardStages, fixed: Mapping[Operation, int]) -> dict[Operation, int]:
    """Return op of the backward → its stage: the number of boundaries between stages that it is above.

    Args:
        fixed: the ops whose stage is given: the sums of gradients.
    """
    stage_of = dict.fromkeys(parts.backward, 0)
    for boundary in range(1, forward.count):
        for op in _ops_above(parts, forward, fixed, boundary):
            stage_of[op] += 1
    return stage_of


def _ops_above(
    parts: StepParts, forward: ForwardStages, fixed: Mapping[Operation, int], boundary: int
) -> Sequence[Operation]:
    """Return the ops of the backward whose stage is `boundary` or above it, in a minimum cut.

    The network has a node for each op, and one for each value. The source is the upper side, and the sink the lower
    one. An edge of `byte_size(value)` is cut if its value is sent across the boundary. An edge of infinite capacity
    from a to b is never cut: if a is above the boundary, b is too.
    """
    source, sink = 0, 1
    number = {op: index for index, op in enumerate(parts.backward, 2)}  # op → its node, after source and sink
    value_number: dict[SSAValue, int] = {}  # value → its node, after those of ops
    edges: list[tuple[int, int, int]] = []  # (from, to, capacity)
    for op, node in number.items():
        if op in fixed:
            edges.append((source, node, INFINITE) if fixed[op] >= boundary else (node, sink, INFINITE))
        operands = {value for operand in op.operands for value in free_sources(operand, parts.free.__contains__)}
        for operand in operands:
            is_new = operand not in value_number
            value_node = value_number.setdefault(operand, len(number) + 2 + len(value_number))
            producer = number.get(operand.owner) if isinstance(operand.owner, Operation) else None
            if producer is not None:
                edges.append((node, producer, INFINITE))  # gradients flow from upper to lower stages
                edges.append((value_node, node, INFINITE))
                if is_new:
                    edges.append((producer, value_node, byte_size(operand)))
                continue
            places = forward.places(operand)
            if places is None:
                continue
            size = byte_size(operand) if isinstance(operand, OpResult) else INFINITE  # state is not sent
            if max(places) < boundary:  # above the boundary, the value would have to be sent up
                edges.append((node, value_node, INFINITE))
                if is_new:
                    edges.append((value_node, sink, size))
            elif min(places) >= boundary:
                edges.append((value_node, node, INFINITE))
                if is_new:
                    edges.append((source, value_node, size))
    above = minimum_cut(len(number) + 2 + len(value_number), edges, source, sink)
    return [op for op, node in number.items() if node in above]
