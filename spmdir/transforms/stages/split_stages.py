"""Split the backward of each stage into the input gradient, which other stages wait for, and the weight gradient.

    @stage1.backward(%relu, %sub, …) -> (mm_3, gradients.2.weight)
    ⇒ @stage1.input_gradient(%sub, …) -> (mm_3, mul_1)
      @stage1.weight_gradient(%relu, %mul_1, …) -> (gradients.2.weight)

The input gradient has the ops that results for other stages depend on. The weight gradient has the others. It takes
the values that both use from the input gradient, except for results of free ops, which it computes again.
"""

from __future__ import annotations

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import is_side_effect_free

from spmdir.core.errors import UnsupportedError
from spmdir.dialects import ir
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import name_of
from spmdir.dialects.pipeline_flow import StepFlow
from spmdir.dialects.pipeline_op import PipelineOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import signature_name
from spmdir.pipelined.step import Stage
from spmdir.transforms.stages.stage_functions import StageFunction, build_function
from spmdir.transforms.stages.step_parts import ops_before


def split_stages(module: ModuleOp, op: PipelineOp) -> None:
    """Split the backward of all stages of a step. The order of the step is removed.

    Raises:
        UnsupportedError: the backward is split already; located.
    """
    step, flow = op.step, StepFlow.of(op)
    if step.is_split:
        raise UnsupportedError(
            "the backward of the step is split already; expected an unsplit step: run split-backward only once",
            location_of(op),
        )
    used_names = {name for part in flow.functions for name in (*flow.arguments(part), *flow.results(part))}
    stages = []
    for number, stage in enumerate(step.stages):
        functions = []
        for kind, name in stage.functions:
            if kind != "B":
                functions.append((kind, name))
                continue
            backward = next(f for f in ir.functions(module) if f.sym_name.data == name)
            base = name.removesuffix(".backward")
            parts = _split(flow, number, backward, base, used_names)
            for part in parts:
                Rewriter.insert_op(part, InsertPoint.before(backward))
            functions += [("I", parts[0].sym_name.data), ("W", parts[1].sym_name.data)]
        stages.append(Stage(stage.coordinate, tuple(functions)))
    names = {name for stage in step.stages for kind, name in stage.functions if kind == "B"}
    for function in [f for f in ir.functions(module) if f.sym_name.data in names]:
        Rewriter.erase_op(function, safe_erase=False)
    op.set_step(attrs.evolve(step, stages=tuple(stages), entries=()))


def _split(flow: StepFlow, stage: int, function: FuncOp, base: str, used_names: set[str]) -> tuple[FuncOp, FuncOp]:
    """Return the functions of the input gradient and of the weight gradient.

    The input gradient has the ops that compute results for other stages. The weight gradient has the remaining ops,
    which compute the sums of gradients. The values that it uses of the input gradient become further results of that,
    except free ones, which both functions compute.

    Args:
        base: the beginning of the names of both functions.
        used_names: the names of values in the step. Those of the further results are added.
    """
    step, returned = flow.step, ir.terminator(function).operands
    result_names = [signature_name(function, "res_attrs", index) for index in range(len(returned))]
    results = list(zip(returned, result_names, strict=True))
    sent = [(value, name) for value, name in results if not step.is_state(name)]
    summed = [(value, name) for value, name in results if step.is_state(name)]
    free = _free_ops(flow, function)
    input_ops = ops_before([value for value, _ in sent])
    weight_ops = ops_before([value for value, _ in summed]) - input_ops
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    names: dict[SSAValue, str] = {
        argument: signature_name(function, "arg_attrs", argument.index) for argument in function.args
    }
    names.update(sent)
    needed = {operand for op in weight_ops for operand in op.operands} | {value for value, _ in summed}
    for op in ops:
        if op not in input_ops or op in free:
            continue
        for value in op.results:
            if value in needed and value not in names:
                names[value] = _new_name(value, used_names)
                sent.append((value, names[value]))
    plans = [
        StageFunction(stage, "I", f"{base}.input_gradient", [op for op in ops if op in input_ops], sent),
        StageFunction(stage, "W", f"{base}.weight_gradient", [op for op in ops if op in weight_ops], summed),
    ]
    first, second = (build_function(function, free, names.__getitem__, plan) for plan in plans)
    return first, second


def _free_ops(flow: StepFlow, function: FuncOp) -> set[Operation]:
    """Return the ops of a backward that depend only on the batch and on state."""
    known: set[SSAValue] = set()
    for argument in function.args:
        name = signature_name(function, "arg_attrs", argument.index)
        if name in flow.step.batch or (flow.step.is_state(name) and not flow.step.is_sum(name)):
            known.add(argument)
    free: set[Operation] = set()
    for op in function.body.block.ops:
        if isinstance(op, ValueOp) and is_side_effect_free(op) and known.issuperset(op.operands):
            free.add(op)
            known.update(op.results)
    return free


def _new_name(value: SSAValue, used_names: set[str]) -> str:
    """Return an unused name for a value, and add it to the used ones."""
    base = name_of(value) or "v"
    name, number = base, 0
    while name in used_names:
        number += 1
        name = f"{base}_{number}"
    used_names.add(name)
    return name
