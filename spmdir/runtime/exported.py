"""Convert the graph of a rank to an exported program, with the signature of the source program."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram, ModuleCallEntry
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.node import map_arg
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.locations import location_of
from spmdir.dialects.values import sharding_of, signature_kind, signature_name
from spmdir.runtime.local_state import copy_shard
from spmdir.simulator.simulate import arrange_outputs
from spmdir.torch_interop.fake_tensors import FakeTensorMode

_USER = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)


def user_outputs(signature: ExportGraphSignature) -> list[OutputSpec]:
    """Return the specs of the user outputs, in order."""
    return [spec for spec in signature.output_specs if spec.kind in _USER]


def rank_program(source: ExportedProgram, module: ModuleOp, local: fx.GraphModule, rank: int) -> ExportedProgram:
    """Return the exported program of `rank`.

    Args:
        source: the functional program that `module` was imported from.
        module: the localized program; its inputs and outputs are replicated.
        local: the emitted graph of `rank`.

    Returns: a program with the inputs and outputs of `source`, local shards in its state dict, and its small
        constants lifted to inputs of the graph.

    Raises:
        UnsupportedError: the program keeps edge states between steps.
    """
    function, mesh = ir.main_function(module), ir.mesh(module)
    for value in function.args:
        if signature_kind(function, "arg_attrs", value.index) == "state":
            raise UnsupportedError(
                f"the program keeps the state '{signature_name(function, 'arg_attrs', value.index)}' "
                "between steps, which an exported program cannot; expected placements without state: "
                "change the plan, or use parallelize",
                location_of(function),
            )
    names = [signature_name(function, "arg_attrs", value.index) for value in function.args]
    shardings = {name: sharding_of(value) or Sharding() for name, value in zip(names, function.args, strict=True)}
    state = _local_state(source, shardings, mesh, rank)
    graph = _RankGraph(source, state, local)
    inputs = graph.add_inputs(names)
    outputs = _outputs(source.graph_signature, function, graph, graph.add_body())
    graph.graph.output(tuple(value for _, value in outputs))
    signature = ExportGraphSignature(inputs, [spec for spec, _ in outputs])
    return ExportedProgram(
        root=nn.Module(),
        graph=graph.graph,
        graph_signature=signature,
        state_dict=state,
        range_constraints={},
        module_call_graph=[_root_call(source, signature)],
        example_inputs=source.example_inputs,
        constants=graph.constants,
        verifiers=source.verifiers,
    )


def _local_state(
    source: ExportedProgram, shardings: Mapping[str, Sharding], mesh: Mesh, rank: int
) -> dict[str, Tensor]:
    """Return the state dict of `rank`; tied entries stay tied. A replicated parameter is the original, not a copy."""
    global_state: dict[str, Any] = source.state_dict
    sharding_of_tensor = {
        id(global_state[name]): sharding for name, sharding in shardings.items() if name in global_state
    }
    shards: dict[tuple[int, Sharding], Any] = {}
    state = {}
    for name, tensor in global_state.items():
        sharding = shardings.get(name) or sharding_of_tensor.get(id(tensor)) or Sharding()
        key = id(tensor), sharding
        if key not in shards:
            is_replicated_parameter = isinstance(tensor, nn.Parameter) and not sharding.entries
            shards[key] = tensor if is_replicated_parameter else copy_shard(tensor, sharding, mesh, rank, tensor.device)
        state[name] = shards[key]
    return state


class _RankGraph:
    """Builds a copy of a rank's graph, with the placeholders of an exported program.

    Attributes:
        graph: the copy; each node has its local value, a fake tensor, in `meta["val"]`.
        constants: name → constant of the program.
        input_names: name of a placeholder in the source → its name here; graphs rename those named like builtins.
    """

    def __init__(self, source: ExportedProgram, state: Mapping[str, Tensor], local: fx.GraphModule):
        """Start with an empty copy of `local`, the rank's graph; `state` is the rank's state dict."""
        self.source, self.state, self.local = source, state, local
        self.graph = fx.Graph()
        self.constants: dict[str, Any] = {}
        self.input_names: dict[str, str] = {}
        self.copies: dict[fx.Node, fx.Node] = {}
        self.fake = FakeTensorMode()

    def add_inputs(self, names: Sequence[str]) -> list[InputSpec]:
        """Add the placeholders of the exported program, and return their specs.

        They are the parameters, buffers and constants of the source, the small constants of the rank's graph, which
        become inputs ("lifted"), and then the arguments of the user.

        Args:
            names: the names in the IR of the placeholders of the rank's graph, in their order.
        """
        nodes = self.local.graph.nodes
        node_of_name = dict(zip(names, (node for node in nodes if node.op == "placeholder"), strict=True))
        values = {node.name: node.meta.get("val") for node in self.source.graph.nodes if node.op == "placeholder"}
        specs = self.source.graph_signature.input_specs
        user_specs = [spec for spec in specs if spec.kind == InputKind.USER_INPUT]
        state_specs = [spec for spec in specs if spec not in user_specs and spec.target in node_of_name]
        names_in_use = {spec.arg.name for spec in (*state_specs, *user_specs)}
        input_specs: list[InputSpec] = []
        for spec in state_specs:
            name = str(spec.target)
            if name not in self.state:
                self.constants[name] = self.source.constants[name]
            value: Any = self.state[name] if name in self.state else self.constants[name]
            input_specs.append(self._add_placeholder(spec, self._fake(value), node_of_name[name]))
        for node in nodes:
            if node.op == "get_attr":
                input_specs.append(self._lift(node, self.local.get_buffer(str(node.target)), names_in_use))
        for spec in user_specs:
            value = values[spec.arg.name]
            value = self._fake(value) if isinstance(value, Tensor) else value
            input_specs.append(self._add_placeholder(spec, value, node_of_name.get(spec.target or spec.arg.name)))
        return input_specs

    def add_body(self) -> list[fx.Node]:
        """Add the ops of the rank's graph, and return its results."""
        for node in self.local.graph.nodes:
            if node.op == "output":
                return [self.copies[result] for result in node.args[0]]
            if node in self.copies:
                continue
            if node.target is getattr:  # the device or element type of a tensor: a constant in an exported program
                self.copies[node] = getattr(self.copies[node.args[0]].meta["val"], str(node.args[1]))
                continue
            copy = self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
            args, kwargs = map_arg((copy.args, copy.kwargs), lambda operand: operand.meta["val"])
            with self.fake:
                copy.meta["val"] = copy.target(*args, **kwargs)  # type: ignore  # a call
        return []

    def _add_placeholder(self, spec: InputSpec, value: Any, node: fx.Node | None) -> InputSpec:
        """Append the placeholder of `spec`, and return the spec with the name that the graph gives it."""
        placeholder = self.graph.placeholder(spec.arg.name)
        placeholder.target = self.input_names[spec.arg.name] = placeholder.name
        placeholder.meta["val"] = value
        if node is not None:
            self.copies[node] = placeholder
        return dataclasses.replace(spec, arg=dataclasses.replace(spec.arg, name=placeholder.name))

    def _lift(self, node: fx.Node, value: Tensor, names_in_use: set[str]) -> InputSpec:
        """Turn a constant of the rank's graph into an input with a new name, and return the spec of the input.

        Args:
            node: the `get_attr` node that reads the constant.
            value: the constant.
            names_in_use: names of inputs that the new name must differ from.
        """
        names = itertools.chain([node.name], (f"{node.name}_{number}" for number in itertools.count(1)))
        name = next(name for name in names if name not in names_in_use and name not in self.constants)
        self.constants[name] = value
        spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name), name)
        return self._add_placeholder(spec, self._fake(value), node)

    def _fake(self, tensor: Tensor) -> Tensor:
        """Return a fake tensor with the shape, strides, element type and device of `tensor`."""
        with self.fake:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _outputs(
    signature: ExportGraphSignature, function: FuncOp, graph: _RankGraph, results: Sequence[fx.Node]
) -> list[tuple[OutputSpec, Any]]:
    """Return (spec, value) of each output of the exported program, in the order of the source.

    A signature identifies outputs by their nodes, so an output that repeats a node becomes a clone of it.

    Args:
        signature: the signature of the source.
        function: the function of the local program.
        graph: the graph, to which clones are added.
        results: the nodes of the results of the function.
    """
    arranged: list[Any] = arrange_outputs(function, results)  # type: ignore  # nodes instead of tensors
    user_count = len(user_outputs(signature))
    mutated_names = [
        signature_name(function, "res_attrs", index)
        for index in range(len(results))
        if signature_kind(function, "res_attrs", index) == "mutation"
    ]
    user_values, mutation_values = (
        iter(arranged[:user_count]),
        dict(zip(mutated_names, arranged[user_count:], strict=True)),
    )
    outputs = []
    for spec in signature.output_specs:
        value = next(user_values) if spec.kind in _USER else mutation_values[str(spec.target)]
        if isinstance(value, fx.Node) and any(value is previous for _, previous in outputs):
            value = _clone(graph.graph, value)
        arg = TensorArgument(value.name) if isinstance(value, fx.Node) else spec.arg
        target = graph.input_names[str(spec.target)] if spec.kind == OutputKind.USER_INPUT_MUTATION else spec.target
        outputs.append((dataclasses.replace(spec, arg=arg, target=target), value))
    return outputs


def _clone(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Return a new node with a copy of the value of `node`."""
    clone = graph.call_function(torch.ops.aten.clone.default, (node,))
    clone.meta["val"] = node.meta["val"]
    return clone


def _root_call(source: ExportedProgram, signature: ExportGraphSignature) -> ModuleCallEntry:
    """Return the calling convention of the root module: that of the source, with the names of the new signature."""
    call = source.module_call_graph[0].signature
    assert call is not None  # torch.export gives the whole program one
    inputs = [spec.arg for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    outputs = [spec.arg for spec in user_outputs(signature)]
    return ModuleCallEntry("", dataclasses.replace(call, inputs=inputs, outputs=outputs))
