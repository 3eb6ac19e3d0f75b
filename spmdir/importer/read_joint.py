"""A joint graph of AOTAutograd as a program: its descriptors say what each input and output is."""

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
"""What the gradients of outputs, which the backward begins with, are called: `tangents.0` is that of output 0."""

_LATE = "late"
"""What the buffers that a backward writes to are called in it: `late.norm.running_mean`."""

ARGUMENT = "spmdir_argument"
"""The key in the `meta` of a placeholder for what the caller calls the input."""


_SELF = re.compile(r"^L\['self'\]\.?")
"""What the paths of modules begin with that dynamo has captured."""


def read_joint(module: fx.GraphModule) -> Program:
    """Return the program of a joint graph: forward outputs, then gradients by what they are of, then mutations.

    Parameters and buffers are called by their FQN; a user input by what its placeholder has as `ARGUMENT`, and `arg0`
    for its place; the gradient of output 0 `tangents.0`, and a buffer that the backward takes `late.norm.running_mean`,
    unless the module has tensors of such names: then `tangents_.0` and `late_.norm.running_mean`. A missing gradient is
    no output. Checkpointed regions are computed again in the backward.

    Raises:
        UnsupportedError: the graph takes or returns something else.
    """
    reject_effects(module)
    tangents = _tangents(module.graph)
    repeat_regions(module.graph, _renewed(module.graph), tangents)
    sources = find_tangent_dependencies(module.graph, tangents)
    _name_modules(module.graph)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    end = next(node for node in module.graph.nodes if node.op == "output")
    named = [node.meta.get(ARGUMENT, node.name) for node in placeholders]
    asked, told = [node.meta["desc"] for node in placeholders], end.meta["desc"]
    read = [sources.get(value, frozenset()) for value in end.args[0]]
    program = read_traced(module, None)
    constants = program.inputs[: len(program.inputs) - len(asked)]
    tensors = [each.target for each in asked if isinstance(each, (aot.ParamAOTInput, aot.BufferAOTInput))]
    groups = {word: _free(word, [*tensors, *named]) for word in (_TANGENTS, _LATE)}
    inputs = [_input(*each, groups) for each in zip(program.inputs[len(constants) :], asked, named, strict=True)]
    names = {descriptor: entry.names for descriptor, entry in zip(asked, inputs, strict=True)}
    entries = [attrs.evolve(o, sources=source) for o, source in zip(program.outputs, read, strict=True)]
    pairs = [(o, d) for o, d in zip(entries, told, strict=True) if d is not None and not _is_missing(o, d)]
    outputs = [_output(output, descriptor, names) for output, descriptor in pairs]
    ranked = sorted(zip(outputs, pairs, strict=True), key=lambda pair: _rank(pair[1][1]))
    return Program(program.graph, [*constants, *inputs], [output for output, _ in ranked], program.ranges)


def _tangents(graph: fx.Graph) -> dict[fx.Node, int]:
    """Return the placeholder of each gradient of an output → the place of the output."""
    described = {node: node.meta["desc"] for node in graph.nodes if node.op == "placeholder"}
    return {
        node: descriptor.output.idx
        for node, descriptor in described.items()
        if isinstance(descriptor, aot.TangentAOTInput) and isinstance(descriptor.output, aot.PlainAOTOutput)
    }


def _renewed(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return the placeholder of each buffer that the forward writes to → its new value."""
    end = next(node for node in graph.nodes if node.op == "output")
    buffers = {node.meta["desc"]: node for node in graph.nodes if node.op == "placeholder"}
    written = [
        (buffers[descriptor.mutated_input], value)
        for value, descriptor in zip(end.args[0], end.meta["desc"], strict=True)  # type: ignore[arg-type]
        if isinstance(descriptor, aot.InputMutationAOTOutput) and descriptor.mutated_input in buffers
    ]
    return {buffer: value for buffer, value in written if isinstance(buffer.meta["desc"], aot.BufferAOTInput)}


def _name_modules(graph: fx.Graph) -> None:
    """Let nodes of the backward say the modules whose forward they are of, and all say them as paths."""
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
        if stack:
            named = ((_SELF.sub("", path), kind) for path, kind in stack.values())
            node.meta["nn_module_stack"] = {path: (path, kind) for path, kind in named}


def _free(word: str, names: Sequence[str]) -> str:
    """Return `word`, longer if there are names in it, such as `late.weight`."""
    while any(name.startswith(f"{word}.") for name in names):
        word += "_"
    return word


def _input(entry: Input, descriptor: Any, name: str, groups: Mapping[str, str]) -> Input:
    if isinstance(descriptor, aot.ParamAOTInput):
        return Input(entry.node, (descriptor.target, name), "parameter", entry.value)
    if isinstance(descriptor, aot.BufferAOTInput):
        return Input(entry.node, (descriptor.target, name), "buffer", entry.value)
    if isinstance(descriptor, aot.PlainAOTInput):
        return Input(entry.node, (name, f"arg{descriptor.idx}"), entry.kind, entry.value)
    if isinstance(descriptor, aot.TangentAOTInput) and isinstance(descriptor.output, aot.PlainAOTOutput):
        return Input(entry.node, (f"{groups[_TANGENTS]}.{descriptor.output.idx}", name), "tangent", entry.value)
    if isinstance(descriptor, LateBuffer):
        names = (f"{groups[_LATE]}.{descriptor.target}", name)
        return Input(entry.node, names, "late_buffer", entry.value, descriptor.target)
    written = getattr(getattr(descriptor, "output", None), "mutated_input", None)
    if isinstance(written, aot.ParamAOTInput):
        raise UnsupportedError(
            f"the forward writes to its parameter '{written.target}', as nn.Embedding with max_norm does; expected "
            "writes to buffers only: write to it between steps under no_grad, or use parallelize with training_step"
        )
    raise UnsupportedError(
        f"the joint graph takes {descriptor.expr()}; expected parameters, buffers, inputs and gradients of outputs"
    )


def _output(output: Output, descriptor: Any, names: dict[Any, tuple[str, ...]]) -> Output:
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


def _is_missing(output: Output, descriptor: Any) -> bool:
    """Return whether `output` stands for the gradient of an input that no output depends on."""
    return isinstance(descriptor, aot.GradAOTOutput) and output.value is None


def _rank(descriptor: Any) -> tuple[int, int]:
    if isinstance(descriptor, aot.PlainAOTOutput):
        return 0, descriptor.idx
    if isinstance(descriptor, LateWrite):
        return 3, 0
    return (1, 0) if isinstance(descriptor, aot.GradAOTOutput) else (2, 0)
