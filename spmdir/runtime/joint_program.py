"""The lowered program of one rank for the forward and the backward of a module, in two halves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import fx
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp

from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, ShardingLike
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.dialects import ir
from spmdir.dialects.attributes import sharding_attr
from spmdir.dialects.values import function_attrs, late_buffers, sharding_of, signature_name
from spmdir.importer.importer import import_program
from spmdir.lowering.compile_program import attach_compiled
from spmdir.lowering.emit import emit
from spmdir.lowering.process_groups import symbolic_group
from spmdir.pipeline.pipeline import Pipeline
from spmdir.runtime.capture import Convention
from spmdir.runtime.digests import agreement, placement_digests
from spmdir.runtime.joint_call import JointCall
from spmdir.runtime.joint_capture import JointCapture
from spmdir.runtime.joint_parts import JointParts
from spmdir.runtime.program_parts import extract_results
from spmdir.runtime.rank_calls import draws
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.signature import Argument, Result, Signature


@attrs.frozen(eq=False)
class Half:
    """The forward or the backward of a program.

    Attributes:
        module: the program in the IR, equal on all ranks.
        graph: the graph of this rank.
        draws: whether the program draws random numbers.
    """

    module: ModuleOp
    graph: fx.GraphModule
    draws: bool


@attrs.define(frozen=True, eq=False, slots=False)
class JointProgram:
    """The forward and the backward of a module on one rank.

    Attributes:
        forward: takes all arguments except gradients of outputs. Returns the tensors among the outputs, the new values
            of buffers, and the saved tensors.
        backward: takes the saved tensors, the gradients of outputs, and the buffers that the backward writes to.
            Returns gradients, and the new values of these buffers.
        saved: the number of saved tensors.
        signature: the signature of both halves together. Its outputs are those of the module, then the gradients.
        convention: the calling convention of the module.
        outputs: the number of outputs of the module.
        gradients: the names of the arguments whose gradients the backward returns.
        sources: for each result of the backward, the indices of the outputs whose gradients it depends on.
        shardings: the shardings of the outputs; None for numbers.
    """

    forward: Half
    backward: Half
    saved: int
    signature: Signature
    convention: Convention
    outputs: int
    gradients: tuple[str, ...]
    sources: tuple[frozenset[int], ...]
    shardings: tuple[Sharding | None, ...]

    @cached_property
    def leaves(self) -> tuple[Any, ...]:
        """The leaves of the output of the module: results and numbers."""
        return self.signature.outputs[: self.outputs]

    @cached_property
    def tensors(self) -> list[int]:
        """The indices of the tensors among the leaves. These tensors are the first results of the forward."""
        return [number for number, leaf in enumerate(self.leaves) if isinstance(leaf, Result)]

    @cached_property
    def buffer_updates(self) -> list[tuple[Argument, int]]:
        """Pairs (buffer, index of the result of the forward that is its new value).

        In the signature of both halves together, the gradients come before the new values, but the backward returns
        them. So the indices in the forward are smaller by the number of gradients.
        """
        forward_updates = [(argument, result) for argument, result in self.signature.updates if argument.buffer is None]
        return [(argument, result.index - len(self.gradients)) for argument, result in forward_updates]

    @cached_property
    def late_buffers(self) -> list[str]:
        """The names of the buffers that the backward writes to. It returns their new values after the gradients."""
        return [argument.buffer for argument, _ in self.signature.updates if argument.buffer is not None]

    @cached_property
    def late_arguments(self) -> list[Argument]:
        """The arguments of the backward after the saved tensors: gradients of outputs, and buffers."""
        return [argument for argument in self.signature.arguments if argument.is_tangent]

    @cached_property
    def tangents(self) -> list[tuple[int, Argument]]:
        """Pairs (index of an output among the leaves, argument of the backward that is its gradient)."""
        gradients = [argument for argument in self.late_arguments if not argument.buffer]
        # The gradient of output 2 is named `tangents.2`.
        return [(int(argument.name.rpartition(".")[2]), argument) for argument in gradients]

    @cached_property
    def forward_arguments(self) -> list[Argument]:
        """The arguments of the forward, in order."""
        return [argument for argument in self.signature.arguments if not argument.is_tangent]

    @cached_property
    def input_axes(self) -> tuple[str, ...]:
        """The mesh axes that shard the inputs."""
        inputs = [argument for argument in self.forward_arguments if not argument.is_state]
        return tuple(dict.fromkeys(axis for argument in inputs for axis, _ in argument.sharding.entries))

    @cached_property
    def must_agree_on_outputs(self) -> bool:
        """Whether ranks must compare the sets of outputs that their losses use.

        They must if gradients have different sources and outputs are sharded: then each rank has a separate loss.
        """
        has_shards = any(sharding is not None and sharding.entries for sharding in self.shardings)
        return has_shards and len({source for source in self.sources if source}) > 1

    def results_to_compute(self, outputs: Set[int]) -> frozenset[int]:
        """Return the indices of the results of the backward to compute if losses use `outputs`.

        As in eager mode, a parameter without effect on a used output has no gradient. A gradient that depends on the
        gradient of no output is a constant, and is always computed.
        """
        return frozenset(index for index, source in enumerate(self.sources) if not source or source & outputs)

    def backward_graph(self, results: Set[int], ranks: Ranks) -> fx.GraphModule:
        """Return the part of the backward that computes the results with these indices; its other results are None."""
        if len(results) == len(self.sources):
            return self.backward.graph
        key = frozenset(results)
        if key not in self._parts:
            self._parts[key] = extract_results(self.backward.graph, key)
            if ranks.compile is not None:
                attach_compiled(self._parts[key], ranks.compile)
        return self._parts[key]

    @cached_property
    def _parts(self) -> dict[Set[int], fx.GraphModule]:
        """Indices of results → the part of the backward that computes only these results."""
        return {}

    @property
    def state_arguments(self) -> list[Argument]:
        """The parameters and buffers."""
        return self.signature.state_arguments

    @property
    def agreement(self) -> dict[str, Any]:
        """The properties that must be equal on all ranks, as fields of a status."""
        return agreement(*((half.module, half.graph) for half in (self.forward, self.backward)))

    @property
    def placements(self) -> dict[str, Any]:
        """The properties that may differ between ranks that read the same text, as a field of a status."""
        return {"placements": placement_digests(self.forward.module, self.backward.module)}

    def connect(self, ranks: Ranks) -> None:
        """Prepare both programs to run; all ranks must call this, because it creates process groups."""
        for half in (self.forward, self.backward):
            ranks.connect(half.graph)


def import_joint(
    joint: JointCapture,
    mesh: Mesh,
    plan: ShardingPlan,
    pipeline: Pipeline,
    missing_rule: Any,
    local_inputs: bool,
    gradients: Mapping[str, Sharding],
) -> ModuleOp:
    """Return a captured module in the IR, with the shardings of `plan`.

    Args:
        gradients: name of a parameter or input → sharding of its gradient; by default, that of the tensor.

    Raises:
        SpmdirError: the module cannot be imported, or the plan does not fit it.
    """
    outputs = _out_shardings(joint, plan.out_shardings)
    plan = plan.with_inputs(0, len(joint.capture.convention.examples)).updated_with(_tangent_plan(joint, outputs))
    out_shardings: list[ShardingLike | None] = [*outputs]
    for name in joint.call.gradients:
        # None is the sharding of the parameter or input; "" is replicated, for the gradient of a global input.
        out_shardings.append(gradients.get(name, None if local_inputs or name in joint.capture.tensors else ""))
    with pipeline.rules:
        module = import_program(joint.program, mesh, plan, out_shardings, missing_rule)
    _lay_out_late_buffers(module)
    return module


def _lay_out_late_buffers(module: ModuleOp) -> None:
    """Give each buffer that the backward writes to the same sharding in forward and backward.

    This is the annotation of the buffer, or replicated. Such a buffer is an argument of the forward, and again a "late"
    argument, which is passed to the backward.
    """
    function = ir.main_function(module)
    attributes = [function_attrs(function, "arg_attrs", value.index) for value in function.args]
    argument_index = {signature_name(function, "arg_attrs", value.index): value.index for value in function.args}
    replicated = sharding_attr(Sharding((), ir.mesh(module).name))
    for late_index, buffer in late_buffers(function).items():
        layout = attributes[argument_index[buffer]].get("spmd.sharding", replicated)
        for index in (argument_index[buffer], late_index):
            attributes[index] = {**attributes[index], "spmd.sharding": layout}
    function.arg_attrs = ArrayAttr(map(DictionaryAttr, attributes))


def joint_program(parts: JointParts, call: JointCall, rank: int, device: torch.device) -> JointProgram:
    """Return the program of `rank`, with groups named by mesh axes.

    Raises:
        SpmdirError: the parts cannot be emitted.
    """
    mesh, signature = ir.mesh(parts.outline), parts.signature(call)
    forward, backward = (
        Half(part, emit(ir.main_function(part), mesh, rank, symbolic_group).to(device), draws(part))
        for part in (parts.forward, parts.backward)
    )
    returned = ir.terminator(ir.main_function(parts.forward)).operands
    leaves = signature.outputs[: call.outputs]
    shardings = tuple(sharding_of(returned[leaf.index]) if isinstance(leaf, Result) else None for leaf in leaves)
    program = JointProgram(
        forward=forward,
        backward=backward,
        saved=parts.saved,
        signature=signature,
        convention=call.convention,
        outputs=call.outputs,
        gradients=call.gradients,
        sources=call.sources,
        shardings=shardings,
    )
    for number, argument in program.tangents:
        output_sharding = shardings[number]
        if (
            output_sharding is not None
            and output_sharding.entries
            and (output_sharding != argument.sharding or output_sharding.partial)
        ):
            raise UnsupportedError(
                f"output {number} comes back as <{output_sharding}>, for which there is no gradient of shards; "
                "expected shards on axes that out_shardings names, such as dp: S(0)"
            )
    return program


def _out_shardings(joint: JointCapture, shardings: Sequence[ShardingLike | None] | None) -> list[ShardingLike | None]:
    """Return the sharding of each output of the module for the importer, as `Capture.result_shardings`."""
    outputs = attrs.evolve(joint.capture, outputs=joint.capture.outputs[: joint.call.outputs])
    return outputs.result_shardings(shardings)


def _tangent_plan(joint: JointCapture, outputs: Sequence[ShardingLike | None]) -> ShardingPlan:
    """Return a plan that gives the gradient of each sharded output the sharding of the output."""
    names = [entry.names[0] for entry in joint.program.inputs if entry.kind == "tangent"]
    # The gradient of output 2 is named `tangents.2`.
    output_sharding = {name: outputs[int(name.rpartition(".")[2])] for name in names}
    return ShardingPlan({name: sharding for name, sharding in output_sharding.items() if sharding})
