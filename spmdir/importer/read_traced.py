"""Read a traced GraphModule as a `Program`: lift its tensors to inputs, and make its mutations functional."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from spmdir.core.errors import UnsupportedError
from spmdir.importer.admitted_nodes import reject_numbers
from spmdir.importer.aliases import make_empty_like, symbolic_fake_mode, with_explicit_aliases
from spmdir.importer.foreach_ops import EntrywiseInterpreter
from spmdir.importer.program import Input, Output, Program, is_small
from spmdir.importer.pytree_names import Names, argument_names, result_names
from spmdir.importer.retrace import needs_retrace, retrace_decompositions
from spmdir.importer.torch_errors import torch_errors
from spmdir.torch_interop import pytree
from spmdir.torch_interop.fake_tensors import FakeTensorMode

_CAPTURED = re.compile(r"(?:.*\.)?(?:_tensor_constant|lifted_tensor_)[0-9]+")
"""The names that tracers give to tensors that the function created or closed over. They are not in a state dict."""


def read_traced(module: fx.GraphModule, example_inputs: Sequence[Any] | None) -> Program:
    """Return the `Program` of a GraphModule.

    Raises:
        UnsupportedError: its nodes have no shapes, and there are no example inputs.
    """
    arguments, results = argument_names(module.graph), result_names(module.graph)
    module, lifted = _lift_tensors(module)
    user_nodes = _placeholders(module)[len(lifted) :]
    _ensure_values(module, lifted, user_nodes, example_inputs)
    names = arguments if len(arguments) == len(user_nodes) else [()] * len(user_nodes)
    inputs = [*lifted, *map(_make_user_input, user_nodes, names)]
    if needs_retrace(module):
        module, inputs = _functionalize(module, inputs)
    output_values = next(node for node in module.graph.nodes if node.op == "output").args[0]
    leaves = pytree.tree_leaves(output_values, is_leaf=lambda leaf: leaf is None)
    output_names = results if len(results) == len(leaves) else [()] * len(leaves)
    return Program(module.graph, inputs, list(map(Output, leaves, output_names)))


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    """Return the placeholders of the graph, in order."""
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _make_user_input(node: fx.Node, path: Names) -> Input:
    """Return the input of a placeholder, with the names `path`, or else with those of the placeholder `x_1`: x_1 and x.

    The second name is the user's, because make_fx appends a number to the name of each argument.
    """
    names = path or (node.name, re.sub(r"_[0-9]+$", "", node.name))
    value = node.meta.get("val")
    return Input(node, tuple(dict.fromkeys(names)), "input" if isinstance(value, Tensor) else "literal", value)


def _lift_tensors(module: fx.GraphModule) -> tuple[fx.GraphModule, list[Input]]:
    """Return (a module with the tensors of `module` as its first placeholders, these inputs).

    Without tensors, the module is returned unchanged. Otherwise, it is a copy. A small tensor that the function created
    or closed over is a constant, and any other is a parameter or a buffer.
    """
    if all(node.op != "get_attr" for node in module.graph.nodes):
        return module, []
    state_names = {name for name in module.state_dict() if not _CAPTURED.fullmatch(name)}
    graph, copies = fx.Graph(), {}
    lifted: dict[str, Input] = {}
    for node in module.graph.nodes:
        value = _read_attribute(module, node) if node.op == "get_attr" else None
        if not isinstance(value, Tensor):
            continue
        name = str(node.target)
        if name not in lifted:
            kind = "parameter" if isinstance(value, torch.nn.Parameter) else "buffer"
            kind = "constant" if name not in state_names and is_small(value) else kind
            copy = graph.placeholder(node.name)
            copy.meta = {**node.meta, "val": value}
            lifted[name] = Input(copy, (name,), kind, value)
        copies[node] = lifted[name].node
    for node in module.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(module, graph), list(lifted.values())


def _read_attribute(module: fx.GraphModule, node: fx.Node) -> Any:
    """Return the attribute of `module` that a `get_attr` node reads, as `layers.0.weight`."""
    value: Any = module
    for part in str(node.target).split("."):
        if not hasattr(value, part):
            raise UnsupportedError(
                f"the graph reads the attribute '{node.target}', which its module does not have; expected an attribute "
                "of the module: set it, or trace again"
            )
        value = getattr(value, part)
    return value


def _ensure_values(
    module: fx.GraphModule, lifted: list[Input], user_nodes: list[fx.Node], example_inputs: Sequence[Any] | None
) -> None:
    """Set the missing `meta["val"]` of nodes by a run on the example inputs. If no value is missing, do nothing.

    Raises:
        UnsupportedError: there are no example inputs, their number is wrong, or the run fails.
    """
    node_without_value = next((node for node in module.graph.nodes if _lacks_value(node)), None)
    if node_without_value is None:
        return
    if example_inputs is None:
        raise UnsupportedError(
            f"node '{node_without_value.name}' has no shape; expected an example value in meta['val']: pass "
            "example_inputs, or trace with make_fx or torch.export"
        )
    examples = pytree.tree_leaves(tuple(example_inputs), is_leaf=lambda leaf: leaf is None)
    if len(examples) != len(user_nodes):
        raise UnsupportedError(
            f"example_inputs has {len(examples)} entries; expected {len(user_nodes)}, one for each input of the graph"
        )
    for node, value in zip(user_nodes, examples, strict=True):
        node.meta["val"] = value
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    values = [*(entry.value for entry in lifted), *examples]
    with torch_errors("cannot run the graph on example_inputs"):
        fake_values = [mode.from_tensor(value) if isinstance(value, Tensor) else value for value in values]
        _ValueRecorder(module, mode).run(*fake_values)


def _lacks_value(node: fx.Node) -> bool:
    """Return whether a node lacks a required `meta["val"]`. Items of tuples and unused nodes do not need one."""
    needs_value = node.op == "placeholder" or (node.op == "call_function" and node.target is not operator.getitem)
    return needs_value and bool(node.users) and "val" not in node.meta


class _ValueRecorder(fx.Interpreter):
    """Runs a graph on fake tensors, and stores the value of each node in `meta["val"]`."""

    def __init__(self, module: fx.GraphModule, mode: FakeTensorMode):
        super().__init__(module)
        self.mode = mode

    def run_node(self, n: fx.Node) -> Any:
        """Run the node, store its value, and return it."""
        with self.mode:
            value = super().run_node(n)
        if n.op not in ("output", "get_attr"):
            n.meta["val"] = value
        return value


def _functionalize(module: fx.GraphModule, inputs: list[Input]) -> tuple[fx.GraphModule, list[Input]]:
    """Trace the graph again without in-place ops and ops on lists, and return (new module, its inputs).

    Mutations of inputs become `copy_` at the end.

    Args:
        inputs: the input of each placeholder. A constant that the graph writes to becomes a buffer.
    """
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    reject_numbers(module.graph.nodes)
    examples = [node.meta.get("val") for node in _placeholders(module)]
    with torch_errors("the graph cannot be made functional"):
        module = with_explicit_aliases(module, examples)
    mode = symbolic_fake_mode(examples) or FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        values = [make_empty_like(value) for value in examples]
    run = torch.func.functionalize(EntrywiseInterpreter(module).run, remove="mutations")
    # Outside of the fake mode, factories would specialise symbolic sizes to their examples, and allocate memory.
    with torch_errors("the graph cannot be made functional"), preserve_node_meta(), mode:
        traced, constants = _lift_tensors(make_fx(run, retrace_decompositions(module))(*values))
    nodes = _placeholders(traced)[len(constants) :]
    mutated_nodes = {node.args[0] for node in traced.graph.nodes if node.target is torch.ops.aten.copy_.default}
    functional_inputs = []
    for node, entry in zip(nodes, inputs, strict=True):
        kind = "buffer" if node in mutated_nodes and entry.kind == "constant" else entry.kind
        functional_inputs.append(Input(node, entry.names, kind, entry.value))
    return traced, [*constants, *functional_inputs]
