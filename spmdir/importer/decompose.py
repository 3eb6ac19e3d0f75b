"""Decompose ops without a rule into ops with rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from spmdir.core.placement.declaration import is_local_map
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

_STRIDED_OPS = ("aten.as_strided", "aten.as_strided_scatter")
"""Ops on strides, which are imported only if they are views of a contiguous tensor."""

_INHERITED_META = ("stack_trace", "nn_module_stack")
"""Metadata that the nodes of a decomposition copy from the decomposed node. Errors use it for locations."""


def decompose_node(node: fx.Node, rules: RuleSet) -> tuple[fx.Graph, list[fx.Node]] | None:
    """Return (decomposition of a call, the input nodes of the call, one for each placeholder).

    Returns None if torch has no decomposition, if an op of the decomposition has no rule either, or if the result has
    another shape or element type than that of the call. Random ops are not decomposed: other ops would draw other
    numbers.
    """
    target: Any = node.target
    if not can_decompose(target):
        return None
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    input_nodes = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
    values = [leaf.meta.get("val") for leaf in input_nodes]
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)

    def call_on_tensors(*tensors: Any) -> Any:
        """Call `callee` with the arguments of the node, but with `tensors` in place of its input nodes."""
        remaining = iter(tensors)
        values_of_leaves = [next(remaining) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(values_of_leaves, spec)
        return callee(*args, **kwargs)

    # Decompositions in C++ specialise symbolic sizes. The first method below does so too.
    has_symbolic_sizes = any(is_open(size) for value in values if isinstance(value, Tensor) for size in value.shape)
    callee = sized_form(target) if has_symbolic_sizes else target
    fakes = [
        mode.from_tensor(value) if isinstance(value, Tensor) and not isinstance(value, FakeTensor) else value
        for value in values
    ]
    example = node.meta.get("val")
    results = None if example is None else pytree.tree_leaves(with_right_states(target, example))
    # Only the first method traces assertions on numbers and in-place reshapes; only the second keeps symbolic sizes.
    methods = [torch.func.functionalize(call_on_tensors, remove="mutations"), dispatch_functionalize(call_on_tensors)]
    for functional in methods[has_symbolic_sizes:]:  # skips the first method if sizes are symbolic
        graph = _trace(functional, fakes, mode, rules)
        if graph is None or (results is not None and not _returns_like(graph, results)):
            continue
        if all(_is_supported(decomposed_node, target, rules) for decomposed_node in _find_live_calls(graph)):
            for decomposed_node in graph.nodes:
                decomposed_node.meta.update({key: node.meta[key] for key in _INHERITED_META if key in node.meta})
            return graph, input_nodes
    return None


def has_rule(name: str, rules: RuleSet) -> bool:
    """Return whether the op `name` has a sharding rule, is rewritten into ops that have one, or is a local map."""
    return name in rules.records or name in REWRITES or is_local_map(name)


def _returns_like(graph: fx.Graph, expected: Sequence[Any]) -> bool:
    """Return whether a graph returns tensors of the shapes and element types of `expected`.

    A symbolic size matches any size, because equal sizes may have different expressions. Results that are not tensors
    are not compared.
    """
    (output,) = graph.find_nodes(op="output")
    results = [leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf for leaf in pytree.tree_leaves(output.args)]
    return len(results) == len(expected) and all(
        result.dtype == expected_result.dtype and _may_be_equal_shapes(result.shape, expected_result.shape)
        for result, expected_result in zip(results, expected, strict=True)
        if isinstance(result, Tensor) and isinstance(expected_result, Tensor)
    )


def _may_be_equal_shapes(shape: Sequence[Any], other_shape: Sequence[Any]) -> bool:
    """Return whether two shapes are equal, where a symbolic size equals any size."""
    if len(shape) != len(other_shape):
        return False
    sizes = zip(shape, other_shape, strict=True)
    return all(is_open(size) or is_open(other_size) or size == other_size for size, other_size in sizes)


def _find_live_calls(graph: fx.Graph) -> list[fx.Node]:
    """Return the calls that the results of a graph depend on. Assertions are not among them."""
    live = {node for node in graph.nodes if node.op == "output"}
    for node in reversed(graph.nodes):
        if node in live:
            live.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in live and node.op == "call_function"]


def _is_supported(node: fx.Node, decomposed_op: Any, rules: RuleSet) -> bool:
    """Return whether a node may occur in the decomposition of `decomposed_op`.

    Python functions and computations of sizes may, unless they read a number out of a tensor. Other ops need a rule,
    and must neither draw random numbers nor depend on strides. The decomposed op must not occur again.
    """
    op: Any = node.target
    if not isinstance(op, OpOverload):
        return True
    if is_open(node.meta.get("val")):
        return torch.Tag.data_dependent_output not in op.tags
    if op is decomposed_op or is_random(op):
        return False
    return op_name(op) not in _STRIDED_OPS and has_rule(op_name(op), rules)


@cache
def _decompositions(rules: RuleSet) -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions of the ops without a rule."""
    table = decomposition_table.items()
    return {op: decomposition for op, decomposition in table if not has_rule(op_name(op), rules)}


def _trace(call: Callable[..., Any], values: list[Any], mode: FakeTensorMode, rules: RuleSet) -> fx.Graph | None:
    """Return the graph of a call on fake tensors, with ops without a rule decomposed; None if it cannot be traced."""
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        with mode:
            return make_fx(call, decomposition_table=_decompositions(rules))(*values).graph
    except Exception:  # decompositions raise errors of any class, and the op can still run replicated
        return None
