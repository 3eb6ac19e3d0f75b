"""The modelled times of the stages of a pipelined step, and the bytes that they save for the backward."""

from __future__ import annotations

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.analysis.op_seconds import op_seconds, work_alone
from spmdir.analysis.sent_messages import SentMessages
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.pipeline_flow import StepFlow
from spmdir.dialects.stage import is_local
from spmdir.dialects.values import sharding_of
from spmdir.pipelined.actions import Action
from spmdir.pipelined.times import StageTimes, equal_stages
from spmdir.reshard.topology import Topology
from spmdir.rules import RuleSet


def seconds_alone(op: Operation, mesh: Mesh, rules: RuleSet, topology: Topology) -> float:
    """Return the time of a torch op with global types on the busiest rank, without fusion; 0 for another op."""
    if not isinstance(op, AtenOp):
        return 0.0
    operands = tuple((meta, sharding_of(value) or Sharding()) for value in op.tensors if (meta := meta_of(value.type)))
    results = tuple(
        (meta, sharding or Sharding()) for meta, sharding in zip(op.metas, op.shardings, strict=True) if meta
    )
    rule = rules.instantiate(op.call())
    work = work_alone(rule, op.name, tuple(meta for meta, _ in operands), tuple(meta for meta, _ in results))
    return op_seconds(work, operands, results, mesh, topology)


def local_bytes(value: SSAValue, mesh: Mesh) -> int:
    """Return the bytes of a value with a global type on the rank that holds most of it."""
    meta, sharding = meta_of(value.type), sharding_of(value)
    if meta is None:
        return 0
    return meta.bytes if sharding is None else max(local.bytes for local in sharding.local_types(meta, mesh))


def stage_times(flow: StepFlow, mesh: Mesh, rules: RuleSet, topology: Topology) -> StageTimes:
    """Return the times of the stages of a step: of ops without fusion, and of collectives without overlap.

    A backward that is one function counts half for the gradients of inputs and half for those of weights. The stages
    of a localized step count as equal.
    """
    count = len(flow.step.stages)
    if any(is_local(function) for function in flow.functions.values()):
        return equal_stages(count, 1, 1, 1)

    def seconds(function: FuncOp | None) -> float:
        """Return the time of the function of one stage; 0 if the stage has none."""
        if function is None:
            return 0.0
        messages, total = SentMessages(mesh, topology), 0.0
        for op in function.body.block.ops:
            message = messages.of(op)
            total += message.terms.seconds if message is not None else seconds_alone(op, mesh, rules, topology)
        return total

    # All micro-batches take the same time, so micro-batch 0 is used.
    # kind → [stage], the time of its forward (F), input gradients (I), weight gradients (W) or whole backward (B)
    seconds_of = {
        kind: [seconds(flow.functions.get(Action(stage, kind, 0))) for stage in range(count)]  # type: ignore[arg-type]
        for kind in ("F", "I", "W", "B")
    }
    input_gradient = [whole / 2 + split for whole, split in zip(seconds_of["B"], seconds_of["I"], strict=True)]
    weight_gradient = [whole / 2 + split for whole, split in zip(seconds_of["B"], seconds_of["W"], strict=True)]
    saved = tuple(sum(_saved_bytes(flow, mesh, stage).values()) for stage in range(count))
    return StageTimes(seconds_of["F"], input_gradient, weight_gradient, _message_seconds(flow, mesh, topology), saved)


def _saved_bytes(flow: StepFlow, mesh: Mesh, stage: int) -> dict[str, int]:
    """Return name → bytes, on the largest rank, of the results of forwards that the backward of a stage uses."""
    saved: dict[str, int] = {}
    for action, operands in flow.operands.items():
        if action.stage == stage and action.kind in "BIW":
            for name, producer in operands.items():
                if producer.kind == "F":
                    saved[name] = local_bytes(_result(flow, producer, name), mesh)
    return saved


def _result(flow: StepFlow, producer: Action, name: str) -> SSAValue:
    """Return the result `name` of the function of an action."""
    return ir.terminator(flow.functions[producer]).operands[flow.results(producer).index(name)]


def _message_seconds(flow: StepFlow, mesh: Mesh, topology: Topology) -> float:
    """Return the time of the largest message of a micro-batch between ranks; 0 if there is none.

    One message has all results that an action sends to one rank.
    """
    sizes: dict[tuple[Action, int], int] = {}  # (the action that sends, the coordinate that receives) → bytes
    for action, operands in flow.operands.items():
        if action.kind == "U":
            continue  # an update runs once for all micro-batches
        target = flow.step.stages[action.stage].coordinate
        for name, producer in operands.items():
            if flow.step.stages[producer.stage].coordinate != target:
                key = producer, target
                sizes[key] = sizes.get(key, 0) + local_bytes(_result(flow, producer, name), mesh)
    if not sizes:
        return 0.0
    return topology.inter_latency + max(sizes.values()) / topology.inter_bandwidth
