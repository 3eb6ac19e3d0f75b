"""Read an ExportedProgram as a `Program`, with parameters and buffers by FQN. Random draws and aliases are kept."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, fx
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument

from spmdir.core.errors import UnsupportedError
from spmdir.importer.aliases import with_explicit_aliases
from spmdir.importer.liveness import draws_random_numbers
from spmdir.importer.locations import innermost_frame
from spmdir.importer.program import Input, Output, Program, is_small
from spmdir.importer.pytree_names import Names, tree_names
from spmdir.importer.retrace import needs_retrace, retrace_decompositions
from spmdir.importer.torch_errors import torch_errors
from spmdir.torch_interop import pytree
from spmdir.torch_interop.graphs import with_graph
from spmdir.torch_interop.ops import OpOverload
from spmdir.torch_interop.tied_names import tied_names

MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)


def read_exported(exported: torch.export.ExportedProgram) -> Program:
    """Return the `Program` of an ExportedProgram, with its parameters and buffers by FQN.

    Raises:
        UnsupportedError: an input or output is neither a tensor nor a literal, or the model was exported with one
            tensor for two arguments.
    """
    _check_distinct_examples(exported)
    # `names` is read before the retrace, which adds `draw_count` outputs without names at the end.
    draw_count, names = 0, iter(_result_names(exported))
    if needs_retrace(exported.graph_module):
        with torch_errors("the exported program cannot be made functional"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*treespec, LeafSpec", FutureWarning)  # torch copies trees
            exported, draw_count = _return_draws(exported_with_explicit_aliases(exported))
            exported = exported.run_decompositions(retrace_decompositions(exported.graph_module))
    signature = exported.graph_signature
    graph = _drop_tokens(exported)
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    mutated_names = {spec.target for spec in signature.output_specs if spec.kind in MUTATIONS}
    specs = [spec for spec in signature.input_specs if spec.kind != InputKind.TOKEN]
    inputs = [_read_input(exported, spec, placeholders[spec.arg.name], mutated_names) for spec in specs]
    inputs = _merge_tied_inputs(inputs, exported.state_dict)
    output_values = next(node for node in graph.nodes if node.op == "output").args[0]
    output_specs = [spec for spec in signature.output_specs if spec.kind != OutputKind.TOKEN]
    outputs = []
    for value, spec in zip(output_values, output_specs, strict=True):
        if spec.kind in MUTATIONS:
            outputs.append(Output(value, (str(spec.target),), "mutation", spec.target))
        else:
            outputs.append(Output(value, next(names, ()), "output", spec.target))
    return Program(graph, inputs, outputs[: len(outputs) - draw_count], exported.range_constraints)


def _check_distinct_examples(exported: torch.export.ExportedProgram) -> None:
    """Raise an error if one example tensor was given for two arguments.

    `torch.export` then lets the last of these arguments replace the others, so the program ignores their values.
    """
    users = [spec for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    examples = pytree.tree_leaves(exported.example_inputs)
    if len(users) != len(examples):  # an archive without examples
        return
    argument_of_example: dict[int, str] = {}
    for spec, example in zip(users, examples, strict=True):
        if not isinstance(example, Tensor):
            continue
        argument = argument_of_example.setdefault(id(example), spec.arg.name)
        if argument != spec.arg.name:
            raise UnsupportedError(
                f"the example inputs of '{argument}' and '{spec.arg.name}' are the same tensor, and "
                f"torch.export uses '{spec.arg.name}' for both; expected a different tensor for each: "
                "export the model with a clone of one"
            )


def _result_names(exported: torch.export.ExportedProgram) -> list[Names]:
    """Return the names of each output, from the keys and fields on its path in the pytree."""
    signature = exported.module_call_graph[0].signature
    return [] if signature is None else tree_names(signature.out_spec)


def exported_with_explicit_aliases(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return the program with schemas that declare all aliases that writes depend on."""
    examples = [node.meta.get("val") for node in exported.graph.find_nodes(op="placeholder")]
    module = with_explicit_aliases(exported.graph_module, examples)
    if module is exported.graph_module:
        return exported
    signature = copy.deepcopy(exported.graph_signature)
    (output,) = module.graph.find_nodes(op="output")
    for spec, value in zip(signature.output_specs, output.args[0], strict=True):
        if isinstance(value, fx.Node) and isinstance(spec.arg, TensorArgument):
            spec.arg = TensorArgument(value.name)
    return with_graph(exported, module, signature)


def _return_draws(exported: torch.export.ExportedProgram) -> tuple[torch.export.ExportedProgram, int]:
    """Return (the program with its random draws as further outputs, their number).

    `run_decompositions` would drop unused draws. Then later draws would get other numbers than in eager mode.
    """
    if not any(map(draws_random_numbers, exported.graph.nodes)):
        return exported, 0
    module, draws = _expose_draws(exported.graph_module)
    signature = copy.deepcopy(exported.graph_signature)
    signature.output_specs += [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(draw.name), None) for draw in draws]
    program = with_graph(exported, module, signature)
    root = program.module_call_graph[0].signature
    assert root is not None  # the signature of the whole program
    count = sum(spec.kind == OutputKind.USER_OUTPUT for spec in signature.output_specs)
    root.out_spec = pytree.tree_structure((0,) * count)
    return program, len(draws)


def _expose_draws(module: fx.GraphModule) -> tuple[fx.GraphModule, list[fx.Node]]:
    """Return (a copy of `module` that also returns its random draws, the nodes of the draws in the copy).

    For `y = dropout(x); return y + 1`, the copy returns (y + 1, y). A draw of an inner graph becomes a further result
    of the inner graph, and then of the module.
    """
    graph, copies = fx.Graph(), {}
    outputs: Any = graph.graph_copy(module.graph, copies)
    draws: list[fx.Node] = []
    bodies: dict[str, fx.GraphModule] = {}
    for node in filter(draws_random_numbers, module.graph.nodes):
        call = copies[node]
        if isinstance(node.target, OpOverload):
            if node.target is torch.ops.aten.dropout.default and node.args[1] == 1 and node.args[2]:
                # Dropout with p=1 draws no numbers, but torch decomposes it into an op that does.
                call.target, call.args = torch.ops.aten.mul.Tensor, (call.args[0], 0.0)
            else:
                draws.append(call if isinstance(call.meta["val"], Tensor) else _insert_getitem(call, 0))
            continue
        for operand in node.all_input_nodes:
            if operand.op != "get_attr":
                continue
            name = str(operand.target)
            bodies[name], inner_draws = _expose_draws(getattr(module, name))
            result_count = len(call.meta["val"])
            call.meta["val"] = (*call.meta["val"], *(value.meta["val"] for value in inner_draws))
            draws += [_insert_getitem(call, result_count + index) for index in range(len(inner_draws))]
    graph.output((*outputs, *draws))
    new_module = fx.GraphModule(module, graph)
    for name, body in bodies.items():
        setattr(new_module, name, body)
    return new_module, draws


def _insert_getitem(source: fx.Node, index: int) -> fx.Node:
    """Append a node that takes result `index` of `source` to the end of the graph, and return the node."""
    item = source.graph.call_function(operator.getitem, (source, index))
    item.meta["val"] = source.meta["val"][index]
    return item


def _drop_tokens(exported: torch.export.ExportedProgram) -> fx.Graph:
    """Return the graph of a program without the tokens that order its assertions. The assertions become dead code.

    Raises:
        UnsupportedError: tokens order other side effects.
    """
    effects = exported.graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
    for node in effects:
        if node.args[1] is not torch.ops.aten._linalg_check_errors.default:
            raise UnsupportedError(
                f"'{node.name}' calls {node.args[1]}, which has side effects; expected ops without side effects: "
                "remove the call and export again",
                innermost_frame(node.meta.get("stack_trace")),
            )
    if not effects:
        return exported.graph
    graph = fx.Graph()
    outputs: Any = graph.graph_copy(exported.graph, {})
    specs = exported.graph_signature.output_specs
    graph.output(tuple(value for value, spec in zip(outputs, specs, strict=True) if spec.kind != OutputKind.TOKEN))
    return fx.GraphModule(exported.graph_module, graph).graph


def _merge_tied_inputs(inputs: list[Input], state: Mapping[str, Any]) -> list[Input]:
    """Merge inputs that are tied, such as the weights of an embedding and of an output layer.

    Of each group of tied inputs, the unused ones are dropped, and the first used input gets their names. Further used
    inputs stay, and so does a group without a used input.

    Args:
        state: FQN → tensor; equal tensors are tied.
    """
    entries = {entry.names[0]: entry for entry in inputs if entry.names[0] in state}
    merged_inputs: dict[str, Input | None] = {}  # preferred name → the input to use instead; None to drop it
    for names in tied_names((name, state[name]) for name in entries):
        group = [entries[name] for name in names]
        used = next((entry for entry in group if entry.node.users), None)
        if used is not None:
            unused = [entry for entry in group if entry is not used and not entry.node.users]
            unused_names = tuple(name for entry in unused for name in entry.names)
            merged_inputs[used.names[0]] = attrs.evolve(used, names=used.names + unused_names)
            merged_inputs |= dict.fromkeys(unused_names)
    inputs_or_none = [merged_inputs.get(entry.names[0], entry) for entry in inputs]
    return [entry for entry in inputs_or_none if entry is not None]


def _read_input(
    exported: torch.export.ExportedProgram, spec: Any, node: fx.Node, mutated_names: set[str | None]
) -> Input:
    """Return the input of a placeholder.

    A buffer becomes a constant if it is small and outside the state dict, and if nothing writes to it.

    Args:
        spec: the entry of the placeholder in the signature of the program.
        mutated_names: the FQNs of the parameters and buffers that the program writes to.

    Raises:
        UnsupportedError: the input is neither a tensor nor a literal.
    """
    names = (spec.target or node.name,)
    if spec.kind == InputKind.PARAMETER:
        return Input(node, names, "parameter")
    if spec.kind == InputKind.USER_INPUT:
        is_tensor = isinstance(node.meta.get("val"), Tensor)
        return Input(node, names, "input" if is_tensor else "literal", getattr(spec.arg, "value", None))
    if spec.kind not in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
        raise UnsupportedError(
            f"input '{node.name}' is a {spec.kind.name.lower()}; expected tensors and numbers only: remove the "
            "input, and export again"
        )
    value = exported.constants.get(spec.target)
    if spec.target in exported.state_dict or spec.target in mutated_names or not is_small(value):
        return Input(node, names, "buffer")
    return Input(node, names, "constant", value)
