"""Ops without a rule, by ops that have one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from spmdir.importer.canonicalize import REWRITES
from spmdir.importer.fx_arguments import op_name
from spmdir.rules import RuleSet
from spmdir.torch_interop import pytree
from spmdir.torch_interop.decompositions import can_decompose, decomposition_table, sized_form, with_right_states
from spmdir.torch_interop.dispatch import dispatch_functionalize
from spmdir.torch_interop.fake_tensors import FakeTensor, FakeTensorMode
from spmdir.torch_interop.ops import OpOverload
from spmdir.torch_interop.schemas import is_random
from spmdir.torch_interop.symbolic_numbers import is_open

_LAID_OUT = ("aten.as_strided", "aten.as_strided_scatter")
"""Ops that are imported only where they say no more than a view does."""

_SAID = ("stack_trace", "nn_module_stack")
"""Metadata that the ops of a decomposition inherit from the node, so that errors name its place."""


def decompose_node(node: fx.Node, rules: RuleSet) -> tuple[fx.Graph, list[fx.Node]] | None:
    """Return the graph that torch puts in the place of a call, and its placeholders' arguments.

    None if some op of it has no rule either, or torch knows nothing simpler. Calls that draw random numbers stay as
    they are, since other ops would draw others.
    """
    target: Any = node.target
    if not can_decompose(target):
        return None
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    given = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
    values = [leaf.meta.get("val") for leaf in given]
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)

    def call(*tensors: Any) -> Any:
        numbers = iter(tensors)
        args, kwargs = pytree.tree_unflatten([next(numbers) if isinstance(x, fx.Node) else x for x in leaves], spec)
        return run(*args, **kwargs)

    # What torch has in C++ binds open sizes, and so does the first method below, which keeps mutations of shapes.
    is_sized = any(is_open(size) for v in values if isinstance(v, Tensor) for size in v.shape)
    run = sized_form(target) if is_sized else target
    fakes = [mode.from_tensor(v) if isinstance(v, Tensor) and not isinstance(v, FakeTensor) else v for v in values]
    known = node.meta.get("val")
    results = None if known is None else pytree.tree_leaves(with_right_states(target, known))
    # The second method cannot trace checks of numbers.
    methods = [torch.func.functionalize(call, remove="mutations"), dispatch_functionalize(call)]
    for functional in methods[is_sized:]:
        graph = _traced(functional, fakes, mode, rules)
        if graph is None or (results is not None and not _returns(graph, results)):
            continue
        if all(_is_known(inner, target, rules) for inner in _calls(graph)):
            for inner in graph.nodes:
                inner.meta.update({key: node.meta[key] for key in _SAID if key in node.meta})
            return graph, given
    return None


def has_rule(name: str, rules: RuleSet) -> bool:
    """Return whether the op `name` has a rule, or is said by one that has."""
    return name in rules.records or name in REWRITES


def _returns(graph: fx.Graph, expected: Sequence[Any]) -> bool:
    """Return whether a graph gives tensors of the shapes and element types of `expected`.

    Sizes that are open may be written in different ways.
    """
    (output,) = graph.find_nodes(op="output")
    found = [leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf for leaf in pytree.tree_leaves(output.args)]
    return len(found) == len(expected) and all(
        one.dtype == other.dtype and _may_be_equal(one.shape, other.shape)
        for one, other in zip(found, expected, strict=True)
        if isinstance(one, Tensor) and isinstance(other, Tensor)
    )


def _may_be_equal(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    sizes = zip(shape, other, strict=False)
    return len(shape) == len(other) and all(is_open(m) or is_open(n) or m == n for m, n in sizes)


def _calls(graph: fx.Graph) -> list[fx.Node]:
    """Return the calls that what the graph returns depends on; checks of numbers are not among them."""
    live = {node for node in graph.nodes if node.op == "output"}
    for node in reversed(graph.nodes):
        if node in live:
            live.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in live and node.op == "call_function"]


def _is_known(node: fx.Node, whole: Any, rules: RuleSet) -> bool:
    op: Any = node.target
    if not isinstance(op, OpOverload):
        return True
    if is_open(node.meta.get("val")):
        return torch.Tag.data_dependent_output not in op.tags
    if op is whole or is_random(op):
        return False
    return op_name(op) not in _LAID_OUT and has_rule(op_name(op), rules)


@cache
def _table(rules: RuleSet) -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions of the ops that have no rule; the others are not decomposed."""
    known = decomposition_table.items()
    return {op: run for op, run in known if not has_rule(op_name(op), rules)}


def _traced(call: Callable[..., Any], values: list[Any], mode: FakeTensorMode, rules: RuleSet) -> fx.Graph | None:
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        with mode:
            return make_fx(call, decomposition_table=_table(rules))(*values).graph
    except Exception:  # whatever torch's decompositions raise, the op can still run replicated
        return None
