"""Read a joint graph of AOTAutograd as a program. The descriptors of the graph have the kinds of inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from torch import fx

from spmdir.core.errors import UnsupportedError
from spmdir.importer.admitted_nodes import reject_effects
from spmdir.importer.checkpointed_regions import LateBuffer, LateWrite, find_tangent_dependencies, repeat_regions
from spmdir.importer.program import Input, Output, Program
from spmdir.importer.read_traced import read_traced
from spmdir.torch_interop.joint_export import descriptors as aot

_TANGENTS = "tangents"
"""The prefix of the names of gradients of outputs, which are inputs of the backward: `tangents.0` for output 0."""

_LATE = "late"
"""The prefix of the names of buffers that the backward writes to: `late.norm.running_mean`."""

ARGUMENT = "spmdir_argument"
"""The key in the `meta` of a placeholder for the caller's name of the input."""


_SELF = re.compile(r"^L\['self'\]\.?")
"""The start of module paths that Dynamo captured."""


def read_joint(module: fx.GraphModule) -> Program:
    """Return the program of a joint graph. Its outputs are the forward outputs, then gradients, then mutations.

    Checkpointed regions are recomputed in the backward. Missing gradients are not outputs. The names of inputs:

        parameter or buffer        its FQN
        user input                 the `ARGUMENT` of its placeholder; also `arg0` for input 0
        gradient of output 0       `tangents.0`
        buffer in the backward     `late.norm.running_mean`

    If the module has tensors of such names, they are `tangents_.0` and `late_.norm.running_mean`.

    Raises:
        UnsupportedError: the graph has other inputs or outputs.
    """
    reject_effects(module)
    tangents = _find_tangents(module.graph)
    repeat_regions(module.graph, _find_new_buffer_values(module.graph), tangents)
    sources = find_tangent_dependencies(module.graph, tangents)
    _name_modules(module.graph)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    output_node = next(node for node in module.graph.nodes if node.op == "output")
    # Read the descriptors of AOTAutograd before `read_traced`, which replaces the graph.
    argument_names = [node.meta.get(ARGUMENT, node.name) for node in placeholders]
    input_descriptors, output_descriptors = [node.meta["desc"] for node in placeholders], output_node.meta["desc"]
    output_sources = [sources.get(value, frozenset()) for value in output_node.args[0]]
    program = read_traced(module, None)
    constants = program.inputs[: len(program.inputs) - len(input_descriptors)]
    taken_names = list(argument_names)
    for descriptor in input_descriptors:
        if isinstance(descriptor, (aot.ParamAOTInput, aot.BufferAOTInput)):
            taken_names.append(descriptor.target)
    prefixes = {prefix: _make_unique(prefix, taken_names) for prefix in (_TANGENTS, _LATE)}
    described_inputs = zip(program.inputs[len(constants) :], input_descriptors, argument_names, strict=True)
    inputs = [_read_input(entry, descriptor, name, prefixes) for entry, descriptor, name in described_inputs]
    names = {descriptor: entry.names for descriptor, entry in zip(input_descriptors, inputs, strict=True)}
    # Sort the outputs by their kind; drop gradients that do not exist.
    ranked = []
    for output, descriptor, source in zip(program.outputs, output_descriptors, output_sources, strict=True):
        if descriptor is not None and not _is_missing_gradient(output, descriptor):
            output = attrs.evolve(output, sources=source)
            ranked.append((_output_rank(descriptor), _read_output(output, descriptor, names)))
    outputs = [output for _, output in sorted(ranked, key=lambda pair: pair[0])]
    return Program(program.graph, [*constants, *inputs], outputs, program.ranges)


def _find_tangents(graph: fx.Graph) -> dict[fx.Node, int]:
    """Return the tangents: placeholder of the gradient of an output → index of this output."""
    described = {node: node.meta["desc"] for node in graph.nodes if node.op == "placeholder"}
    return {
        node: descriptor.output.idx
        for node, descriptor in described.items()
        if isinstance(descriptor, aot.TangentAOTInput) and isinstance(descriptor.output, aot.PlainAOTOutput)
    }


def _find_new_buffer_values(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return placeholder of a buffer that the forward writes to → its new value."""
    output = next(node for node in graph.nodes if node.op == "output")
    buffers = {node.meta["desc"]: node for node in graph.nodes if node.op == "placeholder"}
    new_values = [
        (buffers[descriptor.mutated_input], value)
        for value, descriptor in zip(output.args[0], output.meta["desc"], strict=True)  # type: ignore[arg-type]
        if isinstance(descriptor, aot.InputMutationAOTOutput) and descriptor.mutated_input in buffers
    ]
    return {buffer: value for buffer, value in new_values if isinstance(buffer.meta["desc"], aot.BufferAOTInput)}


def _name_modules(graph: fx.Graph) -> None:
    """Set `nn_module_stack` of all nodes to module paths. Backward nodes get the modules of their forward."""
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
        if stack:
            clean_paths = ((_SELF.sub("", path), kind) for path, kind in stack.values())
            node.meta["nn_module_stack"] = {path: (path, kind) for path, kind in clean_paths}


def _make_unique(prefix: str, names: Sequence[str]) -> str:
    """Return `prefix`, with underscores appended until no name starts with it and a dot, as `late.weight` does."""
    while any(name.startswith(f"{prefix}.") for name in names):
        prefix += "_"
    return prefix


def _read_input(entry: Input, descriptor: Any, name: str, prefixes: Mapping[str, str]) -> Input:
    """Return `entry` with the names and kind that follow from `descriptor`, its descriptor of AOTAutograd.

    Args:
        name: the caller's name of the input, else the name of its placeholder. A user input gets it as the first name,
            any other input as the last.
        prefixes: `tangents` and `late` → the prefix to use, as `tangents_` if a tensor of the module has that name.
    """
    if isinstance(descriptor, aot.ParamAOTInput):
        return Input(entry.node, (descriptor.target, name), "parameter", entry.value)
    if isinstance(descriptor, aot.BufferAOTInput):
        return Input(entry.node, (descriptor.target, name), "buffer", entry.value)
    if isinstance(descriptor, aot.PlainAOTInput):
        return Input(entry.node, (name, f"arg{descriptor.idx}"), entry.kind, entry.value)
    if isinstance(descriptor, aot.TangentAOTInput) and isinstance(descriptor.output, aot.PlainAOTOutput):
        return Input(entry.node, (f"{prefixes[_TANGENTS]}.{descriptor.output.idx}", name), "tangent", entry.value)
    if isinstance(descriptor, LateBuffer):
        names = (f"{prefixes[_LATE]}.{descriptor.target}", name)
        return Input(entry.node, names, "late_buffer", entry.value, descriptor.target)
    mutated_input = getattr(getattr(descriptor, "output", None), "mutated_input", None)
    if isinstance(mutated_input, aot.ParamAOTInput):
        raise UnsupportedError(
            f"the forward writes to its parameter '{mutated_input.target}', as nn.Embedding with max_norm does; "
            "expected writes to buffers only: write to it between steps under no_grad, or use parallelize with "
            "training_step"
        )
    raise UnsupportedError(
        f"the joint graph has the input {descriptor.expr()}; expected parameters, buffers, user inputs and gradients "
        "of outputs"
    )


def _read_output(output: Output, descriptor: Any, names: dict[Any, tuple[str, ...]]) -> Output:
    """Return `output` with the name and kind that follow from `descriptor`, its descriptor of AOTAutograd.

    Args:
        names: descriptor of an input → the names of the input.
    """
    if isinstance(descriptor, aot.PlainAOTOutput):
        return Output(output.value, ())
    if isinstance(descriptor, aot.GradAOTOutput) and descriptor.grad_of in names:
        name = names[descriptor.grad_of][0]
        return Output(output.value, (f"grad.{name}",), like=name, sources=output.sources)
    if isinstance(descriptor, aot.InputMutationAOTOutput) and descriptor.mutated_input in names:
        return Output(output.value, names[descriptor.mutated_input], "mutation")
    if isinstance(descriptor, LateWrite):
        return Output(output.value, names[descriptor.buffer], "mutation", sources=descriptor.sources)
    raise UnsupportedError(
        f"the joint graph returns {descriptor.expr()}; expected outputs, gradients and new values of inputs"
    )


def _is_missing_gradient(output: Output, descriptor: Any) -> bool:
    """Return whether `output` is the missing gradient of an input that no output depends on."""
    return isinstance(descriptor, aot.GradAOTOutput) and output.value is None


def _output_rank(descriptor: Any) -> tuple[int, int]:
    """Return the sort key (class, index) of an output. A stable sort keeps the order within all classes but the first.

    The classes are 0 for forward outputs, 1 for gradients, 2 for mutations, and 3 for mutations of the backward.
    """
    if isinstance(descriptor, aot.PlainAOTOutput):
        return 0, descriptor.idx
    if isinstance(descriptor, LateWrite):
        return 3, 0
    return (1, 0) if isinstance(descriptor, aot.GradAOTOutput) else (2, 0)
