"""A traced GraphModule as a program: its tensors lifted to inputs, its mutations made functional."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx

from spmdir.core.errors import UnsupportedError
from spmdir.importer.admitted_nodes import reject_numbers
from spmdir.importer.aliases import make_empty_like, symbolic_fake_mode, with_explicit_aliases
from spmdir.importer.foreach_ops import EntrywiseInterpreter
from spmdir.importer.program import Input, Output, Program, is_small
from spmdir.importer.pytree_names import Names, argument_names, result_names
from spmdir.importer.retrace import decompositions, needs_retrace
from spmdir.importer.torch_errors import torch_errors
from spmdir.torch_interop import pytree
from spmdir.torch_interop.fake_tensors import FakeTensorMode

_CAPTURED = re.compile(r"(?:.*\.)?(?:_tensor_constant|lifted_tensor_)[0-9]+")
"""What tracers call tensors that the function made or closed over; no state dict of the user's knows them."""


def read_traced(module: fx.GraphModule, example_inputs: Sequence[Any] | None) -> Program:
    """Return the program of a GraphModule.

    Raises:
        UnsupportedError: its nodes have no shapes and there are no example inputs.
    """
    arguments, results = argument_names(module.graph), result_names(module.graph)
    module, lifted = _lift_tensors(module)
    user = _placeholders(module)[len(lifted) :]
    _ensure_values(module, lifted, user, example_inputs)
    names = arguments if len(arguments) == len(user) else [()] * len(user)
    inputs = [*lifted, *map(_user_input, user, names)]
    if needs_retrace(module):
        module, inputs = _functionalize(module, inputs)
    returned = next(node for node in module.graph.nodes if node.op == "output").args[0]
    leaves = pytree.tree_leaves(returned, is_leaf=lambda leaf: leaf is None)
    named = results if len(results) == len(leaves) else [()] * len(leaves)
    return Program(module.graph, inputs, [Output(v, n) for v, n in zip(leaves, named, strict=True)])


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _user_input(node: fx.Node, path: Names) -> Input:
    names = path or (node.name, re.sub(r"_[0-9]+$", "", node.name))  # make_fx numbers every argument's name
    value = node.meta.get("val")
    return Input(node, tuple(dict.fromkeys(names)), "input" if isinstance(value, Tensor) else "literal", value)


def _lift_tensors(module: fx.GraphModule) -> tuple[fx.GraphModule, list[Input]]:
    """Return the module with its own tensors as its first placeholders, a copy if it has any, and what these are."""
    if all(node.op != "get_attr" for node in module.graph.nodes):
        return module, []
    state = {name for name in module.state_dict() if not _CAPTURED.fullmatch(name)}
    graph, renamed = fx.Graph(), {}
    lifted: dict[str, Input] = {}
    for node in module.graph.nodes:
        value = _attribute(module, node) if node.op == "get_attr" else None
        if not isinstance(value, Tensor):
            continue
        name = str(node.target)
        if name not in lifted:
            kind = "parameter" if isinstance(value, torch.nn.Parameter) else "buffer"
            kind = "constant" if name not in state and is_small(value) else kind
            copy = graph.placeholder(node.name)
            copy.meta = {**node.meta, "val": value}
            lifted[name] = Input(copy, (name,), kind, value)
        renamed[node] = lifted[name].node
    for node in module.graph.nodes:
        if node not in renamed:
            renamed[node] = graph.node_copy(node, renamed.__getitem__)
    return fx.GraphModule(module, graph), list(lifted.values())


def _attribute(module: fx.GraphModule, node: fx.Node) -> Any:
    value: Any = module
    for part in str(node.target).split("."):
        if not hasattr(value, part):
            raise UnsupportedError(f"the graph reads '{node.target}', which its module does not have")
        value = getattr(value, part)
    return value


def _ensure_values(
    module: fx.GraphModule, lifted: list[Input], user: list[fx.Node], example_inputs: Sequence[Any] | None
) -> None:
    """Give every node its `meta["val"]`, from example inputs if the tracer left some without."""
    missing = next((node for node in module.graph.nodes if _lacks_value(node)), None)
    if missing is None:
        return
    if example_inputs is None:
        raise UnsupportedError(
            f"node '{missing.name}' has no shape (no meta['val']); pass example_inputs, "
            "or trace with make_fx or torch.export"
        )
    given = pytree.tree_leaves(tuple(example_inputs), is_leaf=lambda leaf: leaf is None)
    if len(given) != len(user):
        raise UnsupportedError(f"example_inputs has {len(given)} entries; the graph has {len(user)} inputs")
    for node, value in zip(user, given, strict=True):
        node.meta["val"] = value
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    values = [*(entry.value for entry in lifted), *given]
    with torch_errors("the graph does not run on example_inputs"):
        _Values(module, mode).run(*(mode.from_tensor(v) if isinstance(v, Tensor) else v for v in values))


def _lacks_value(node: fx.Node) -> bool:
    """Return an item of a tuple needs no value of its own, and what nothing uses needs none at all."""
    asked = node.op == "placeholder" or (node.op == "call_function" and node.target is not operator.getitem)
    return asked and bool(node.users) and "val" not in node.meta


class _Values(fx.Interpreter):
    """Runs a graph on fake tensors and keeps each node's value in its meta."""

    def __init__(self, module: fx.GraphModule, mode: FakeTensorMode):
        super().__init__(module)
        self.mode = mode

    def run_node(self, n: fx.Node) -> Any:
        with self.mode:
            value = super().run_node(n)
        if n.op not in ("output", "get_attr"):
            n.meta["val"] = value
        return value


def _functionalize(module: fx.GraphModule, inputs: list[Input]) -> tuple[fx.GraphModule, list[Input]]:
    """Trace the graph again without mutations and ops on lists; what it did to its inputs is `copy_` at the end."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    reject_numbers(module.graph.nodes)
    held = [node.meta.get("val") for node in _placeholders(module)]
    with torch_errors("the graph cannot be made functional"):
        module = with_explicit_aliases(module, held)
    mode = symbolic_fake_mode(held)
    with mode or FakeTensorMode(allow_non_fake_inputs=True):
        values = [make_empty_like(value) for value in held]
    run = torch.func.functionalize(EntrywiseInterpreter(module).run, remove="mutations")
    # Outside its mode a factory would take the example for the size.
    with torch_errors("the graph cannot be made functional"), preserve_node_meta(), mode or nullcontext():
        traced, constants = _lift_tensors(make_fx(run, decompositions(module))(*values))
    nodes = _placeholders(traced)[len(constants) :]
    changed = {node.args[0] for node in traced.graph.nodes if node.target is torch.ops.aten.copy_.default}
    kept = []
    for node, entry in zip(nodes, inputs, strict=True):
        kind = "buffer" if node in changed and entry.kind == "constant" else entry.kind
        kept.append(Input(node, entry.names, kind, entry.value))
    return traced, [*constants, *kept]
